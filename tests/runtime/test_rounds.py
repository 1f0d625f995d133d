"""The loop of a run, with real actors on the simulated runtime: rounds, best, patience, target, resume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedactors.actors.actor import Client, Server
from fedactors.actors.remote import DRIVER, PEERS, remote
from fedactors.errors import BadInput, Diverged, Stopped
from fedactors.messages.codec import message
from fedactors.network.links import Link, Network
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.rounds import Remedy, Rounds, RunState, Watch
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import Memory

WAN = Network(default=Link(latency=1.0), local=Link(latency=0.5))
SCORES = (0.5, 0.7, 0.6, 0.7, 0.65, 0.9, 0.8)


@message(reveals="the number of a round")
class Order:
    """Which round."""

    round: int


@message(reveals="a score")
class Score:
    """A score and how often the model was trained."""

    score: float
    steps: int


class Learner(Client):
    """Counts its steps."""

    state = ("steps", "kept")

    def __init__(self) -> None:
        self.steps = self.kept = 0

    @remote(caller=(DRIVER, PEERS))
    async def train(self, order: Order) -> None:
        self.steps += 1

    @remote(caller=(DRIVER, PEERS))
    async def steps_done(self) -> Score:
        return Score(0.0, self.steps)


class Judge(Server):
    """Scores what a learner has learned, from a list."""

    def __init__(self, scores: Sequence[float]) -> None:
        self._scores = tuple(scores)

    @remote(caller=(DRIVER, PEERS))
    async def score(self, order: Order) -> Score:
        found = await self.peer("learner", Learner).steps_done()
        return Score(self._scores[order.round - 1], found.steps)


@dataclass
class State(RunState):
    """What the driver of these runs keeps."""

    prepared: int = 0
    curve: list[float] = field(default_factory=list)
    best_rounds: list[int] = field(default_factory=list)


class Play:
    """A run: what it recorded and returned.

    Args:
        scores: of the rounds.
        watch: what is judged.
        resume: to go on from.
        state: fresh.
        stop_in: the round in which the run is asked to stop.
        memory: where it is recorded.
        options: of `Rounds`.
    """

    def __init__(
        self,
        scores: Sequence[float] = SCORES,
        watch: Watch | None = None,
        resume: Snapshot | None = None,
        state: Any = None,
        stop_in: int | None = None,
        memory: Memory | None = None,
        **options: Any,
    ) -> None:
        self.memory = memory or Memory()
        self.spent: list[dict[str, float]] = []
        self.rounds: Rounds[Any]
        self._scores, self._stop_in = scores, stop_in
        self._runtime = SimulatedRuntime(network=WAN, recorder=self.memory, seed=1)
        self._made = {"state": state or State(), "watch": watch, "num_rounds": len(scores), **options}
        self.result: RunResult = self._runtime.execute(self._run, resume)

    async def _run(self) -> RunResult:
        runtime = self._runtime
        learner, judge = runtime.spawn(Learner, "learner"), runtime.spawn(Judge, "judge", self._scores)
        rounds = self.rounds = Rounds(runtime, **self._made)
        if await rounds.start():
            rounds.state.prepared += 1
            await rounds.checkpoint()
        async for t in rounds:
            await learner.train(Order(t))
            if t == self._stop_in:
                runtime.request_stop(130)
            rounds.record({"trained": t})
            async with rounds.aside():
                found = await judge.score(Order(t))
            if rounds.judge({"score": found.score}):
                rounds.state.best_rounds.append(t)
            rounds.state.curve.append(found.score)
            rounds.record({"score": found.score, "steps": found.steps})
            self.spent.append(await rounds.spent())
        return await rounds.result({"best_round": rounds.state.best_round}, extra={"curve": rounds.state.curve})


# --- how a run goes ---


def test_rounds_are_recorded_checkpointed_and_concluded() -> None:
    play = Play(SCORES[:3])
    assert play.memory.rounds == [
        '[1, {"trained": 1, "score": 0.5, "steps": 1}]',
        '[2, {"trained": 2, "score": 0.7, "steps": 2}]',
        '[3, {"trained": 3, "score": 0.6, "steps": 3}]',
    ]
    labels = [(label, done) for label, _, done in play.memory.snapshots]
    assert labels == [("last", 0), ("last", 1), ("last", 2), ("last", 3), ("final", 3)]
    assert play.result == RunResult(rounds=3, metrics={"best_round": None}, extra={"curve": [0.5, 0.7, 0.6]})


def test_the_best_round_is_the_earlier_of_equals() -> None:
    play = Play(watch=Watch("score"))
    assert play.rounds.state.best_rounds == [1, 2, 6]
    assert (play.rounds.state.best, play.rounds.state.best_round) == (0.9, 6)


def test_less_may_be_better() -> None:
    assert Play((3.0, 2.0, 2.0, 2.5, 1.0), Watch("score", "min")).rounds.state.best_rounds == [1, 2, 5]


@pytest.mark.parametrize(("patience", "last"), [(1, 3), (2, 4), (3, 5), (4, 7), (0, 7)])
def test_patience_ends_the_run_after_so_many_rounds_without_a_new_best(patience: int, last: int) -> None:
    assert Play(watch=Watch("score", patience=patience)).result.rounds == last


@pytest.mark.parametrize(
    ("mode", "target", "last"), [("max", 0.7, 2), ("max", 0.95, 7), ("min", 0.5, 1), ("min", 0.1, 7)]
)
def test_a_target_ends_the_run(mode: Any, target: float, last: int) -> None:
    assert Play(watch=Watch("score", mode, target=target)).result.rounds == last


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_ends_the_run_and_names_metric_round_and_remedy(value: float) -> None:
    with pytest.raises(Diverged, match=r"^training diverges \(score (nan|-?inf) in round 2\)$"):
        Play((0.2, value, 0.3), Watch("score", patience=2))
    with pytest.raises(Diverged, match=r"^rho: 0.5 diverges \(score (nan|-?inf) in round 2\): try a larger one$"):
        Play((0.2, value, 0.3), remedy=Remedy("rho", 0.5, "larger"))
    error = Remedy("rho", 0.5, "larger").error(3, "loss", value)
    assert str(error) == f"rho: 0.5 diverges (loss {value} in round 3): try a larger one"
    assert error.exit_code == 2


def test_nobody_stops_early_by_the_rows_that_are_reported() -> None:
    with pytest.raises(BadInput, match="patience: stopping early by test/auc is not allowed"):
        Watch("test/auc", patience=3)
    assert Watch("test/auc").patience is None  # to keep the best round is the protocol's own business


def test_rounds_that_are_over_stay_over() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory)

    async def main() -> list[list[int]]:
        runtime.spawn(Learner, "learner")
        rounds = Rounds(runtime, RunState(), num_rounds=2)
        await rounds.start()
        return [[t async for t in rounds] for _ in range(3)]

    assert runtime.execute(main) == [[1, 2], [], []]
    assert memory.rounds == ["[1, {}]", "[2, {}]"]


def test_what_is_watched_must_be_measured() -> None:
    with pytest.raises(BadInput, match=r"watch: 'auc' is not measured \(there are: score\)"):
        Play(watch=Watch("auc"))


def test_what_is_done_aside_is_no_training() -> None:
    play = Play(SCORES[:3])
    # a training order takes 0.5 s, an evaluation 0.5 s there and back and 2 s between judge and learner
    assert [spent["seconds"] for spent in play.spent] == [0.5, 1.0, 1.5]
    assert [spent["messages"] for spent in play.spent] == [0, 0, 0]
    assert play.rounds.state.aside["seconds"] == 3 * 3.0
    assert play.rounds.state.aside["messages"] == 3 * 2
    phases = [span for span in play.memory.spans if span[1] == "phase"]
    assert phases == [("driver", "phase", "evaluation", 0.5 + 3.5 * t, 3.5 + 3.5 * t) for t in range(3)]


def test_several_rounds_may_be_one_turn_and_round_0_is_recorded_before_them() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(network=WAN, recorder=memory)
    trained: list[int] = []

    async def main() -> RunResult:
        runtime.spawn(Learner, "learner")
        rounds = Rounds(runtime, RunState(), num_rounds=7, every=3, watch=Watch("gap", "min", target=0.0))
        if await rounds.start():
            rounds.judge({"gap": 1.0})
            await rounds.end(0, {"gap": 1.0})
        async for t in rounds:
            trained.extend(range(rounds.state.round, t))
            rounds.judge({"gap": 1.0 / t})
            rounds.record({"gap": 1.0 / t})
        return await rounds.result({"best": rounds.state.best_round})

    result = runtime.execute(main)
    assert trained == list(range(7))
    assert memory.rounds == ['[0, {"gap": 1.0}]'] + [f'[{t}, {{"gap": {1.0 / t}}}]' for t in (3, 6, 7)]
    assert result == RunResult(rounds=7, metrics={"best": 7})


def test_a_target_that_is_reached_before_the_first_round_leaves_nothing_to_do() -> None:
    runtime = SimulatedRuntime()

    async def main() -> list[int]:
        runtime.spawn(Learner, "learner")
        rounds = Rounds(runtime, RunState(), num_rounds=7, watch=Watch("gap", "min", target=0.5))
        await rounds.start()
        rounds.judge({"gap": 0.25})
        await rounds.end(0, {"gap": 0.25})
        return [t async for t in rounds]

    assert runtime.execute(main) == []


# --- checkpoints and resume ---


@pytest.mark.parametrize("watch", [Watch("score", patience=3), Watch("score", target=0.8)])
def test_a_run_goes_on_from_each_of_its_checkpoints_as_if_nothing_had_been(watch: Watch) -> None:
    whole = Play(watch=watch)
    assert len(whole.memory.snapshots) > 5
    for _, snapshot, done in whole.memory.snapshots:
        resumed = Play(watch=watch, resume=snapshot)
        assert resumed.memory.rounds == whole.memory.rounds[done:]
        assert resumed.result == whole.result
        assert resumed.rounds.state == whole.rounds.state
        assert resumed.rounds.state.prepared == 1
        assert resumed.spent == whole.spent[done:]


def test_a_run_that_is_stopped_goes_on_with_the_next_round() -> None:
    whole, memory = Play(), Memory()
    with pytest.raises(Stopped):
        Play(stop_in=3, memory=memory)
    assert memory.rounds == whole.memory.rounds[:3]  # the round under way is ended first
    resumed = Play(resume=memory.snapshots[-1][1])
    assert resumed.memory.rounds == whole.memory.rounds[3:]
    assert resumed.result == whole.result


def test_checkpoints_may_be_held_back() -> None:
    def no_odd_ones() -> bool:
        return play[0].rounds.state.round % 2 == 0

    play: list[Play] = []

    class Noted(Play):
        async def _run(self) -> RunResult:
            play.append(self)
            return await super()._run()

    found = Noted(may_checkpoint=no_odd_ones)
    assert [done for _, _, done in found.memory.snapshots] == [0, 2, 4, 6]


@dataclass
class OtherState(RunState):
    """As a later version might have it."""

    prepared: int = 0
    shape: int = 0
    best_rounds: list[int] = field(default_factory=list)


def test_a_checkpoint_of_another_version_is_refused_with_the_fields_that_differ() -> None:
    snapshot = Play(SCORES[:2]).memory.snapshots[1][1]
    with pytest.raises(BadInput, match="another version of this protocol: shape is missing, curve is unknown"):
        Play(SCORES[:2], resume=snapshot, state=OtherState())


def test_rounds_may_be_instants_of_the_clock() -> None:
    """As in NebulaFL: the driver waits in a keyed timer, no number of rounds, checkpoints while nobody is away."""

    def play(resume: Snapshot | None = None, stop_at: float | None = None) -> Memory:
        memory = Memory()
        runtime = SimulatedRuntime(network=WAN, recorder=memory)

        async def main() -> RunResult:
            learner = runtime.spawn(Learner, "learner")
            rounds = Rounds(runtime, State(), num_rounds=None, may_checkpoint=lambda: runtime.clock.now() != 20.0)
            await rounds.start()
            async for t in rounds:
                if stop_at is not None and runtime.clock.now() >= stop_at:
                    runtime.request_stop(143)
                await runtime.clock.sleep_until(10.0 * t, key="measurement")
                if t == 5:
                    rounds.stop()
                await learner.train(Order(t))
                rounds.record({"at": runtime.clock.now(), "steps": (await learner.steps_done()).steps})
            return await rounds.result({})

        try:
            assert runtime.execute(main, resume).rounds == 5
        except Stopped:
            assert stop_at is not None
        return memory

    whole = play()
    assert len(whole.rounds) == 5
    for _, snapshot, done in whole.snapshots:
        assert play(snapshot).rounds == whole.rounds[done:]
    # stopped while the driver waits in its timer: that round is the next one's
    _, snapshot, done = play(stop_at=31.0).snapshots[-1]
    assert done == 3
    assert play(snapshot).rounds == whole.rounds[3:]
