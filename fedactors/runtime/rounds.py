"""The loop of a run: rounds that end with a record and a checkpoint, and what decides which round is the last or best.

    rounds = Rounds(runtime, State(), num_rounds=100, watch=Watch("validation/accuracy", patience=10))
    if await rounds.start():                              # a fresh run, not one that is resumed
        rounds.state.num_rows = await align()
        await rounds.checkpoint()
    async for t in rounds:
        rounds.record(await server.train_round(RoundOrder(t)))
        async with rounds.aside():                        # what this costs is no training
            found = await server.evaluate(RoundOrder(t))
        if rounds.judge(found):                           # the best so far
            await workers.ask(lambda worker: worker.remember())
        rounds.record(found)
    return await rounds.result(rounds.state.chosen)

The state is a dataclass over `RunState`; it is the driver's part of every snapshot as it stands, so a resumed run
finds each field as it was. A checkpoint with other fields is refused.

The five protocols, for example: PubSub-VFL and GLASU as above. TablePuppet watches nothing, and raises from the body
when it diverges, before the round is recorded. MTCD measures before it trains (``await rounds.end(0, found)`` after
the preparation), records only every so many rounds (``every=``; ``range(rounds.state.round, t)`` are those to do
now) and stops at a gap (``Watch("gap", "min", target=...)``). NebulaFL's rounds are instants of the clock: it has no
``num_rounds``, the body begins with a keyed `sleep_until` and calls `stop` when the duration is over, and
``may_checkpoint`` is false while a center is away.
"""

from __future__ import annotations

import contextlib
import math
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from fedactors.errors import BadInput, Diverged
from fedactors.runs.folder import FINAL
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from fedactors.runtime.snapshots import DRIVERS, check_fields

Mode = Literal["max", "min"]


@dataclass
class RunState:
    """What the driver keeps between rounds; a protocol adds fields of its own by inheritance, all with defaults.

    Values are those that a snapshot can hold: plain ones, arrays, messages and containers of these.
    """

    round: int = 0
    """The last round that was recorded."""
    best: float | None = None
    """The best value so far of the metric that is watched."""
    best_round: int | None = None
    """The round that gave it, the earlier of two equal ones."""
    num_worse: int = 0
    """Judgements in a row since then."""
    over: bool = False
    """Whether the round that was last judged or stopped is the last."""
    aside: dict[str, float] = field(default_factory=dict)
    """Messages, bytes and seconds of all that was done `Rounds.aside`."""


S = TypeVar("S", bound=RunState)


@dataclass(frozen=True)
class Watch:
    """The metric that decides the best round and early stopping.

    Raises:
        BadInput: stopping early by a metric of the test rows, which would then say nothing about new ones.
    """

    metric: str
    """Its name among those that are judged, with its split: ``validation/auc``."""
    mode: Mode = "max"
    """Whether more or less of it is better."""
    patience: int | None = None
    """Judgements in a row without a new best after which the run stops; 0 or None: never."""
    target: float | None = None
    """The value at which the run stops; None: never."""

    def __post_init__(self) -> None:
        """Check that what is chosen by is not what is reported."""
        if self.patience and self.metric.startswith("test/"):
            raise BadInput(f"patience: stopping early by {self.metric} is not allowed; hold validation rows out")

    def improves(self, value: float, best: float | None) -> bool:
        """Say whether `value` beats `best`; not-a-number never does, the first number always."""
        if math.isnan(value):
            return False
        return best is None or (value > best if self.mode == "max" else value < best)

    def reaches_target(self, value: float) -> bool:
        """Say whether `value` is as good as the target."""
        if self.target is None:
            return False
        return value >= self.target if self.mode == "max" else value <= self.target


@dataclass(frozen=True)
class Remedy:
    """What to try when a run diverges: a setting, its value, and whether it should be smaller or larger."""

    setting: str
    value: Any
    way: Literal["smaller", "larger"] = "smaller"

    def error(self, number: int, what: str, value: float) -> Diverged:
        """Return the one line about a run that has diverged.

        Args:
            number: of the round.
            what: the metric, and the party if only one is concerned.
            value: what it came to.
        """
        given = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return Diverged(
            f"{self.setting}: {given} diverges ({what} {value:.3g} in round {number}): try a {self.way} one"
        )


class Rounds(Generic[S]):
    """The rounds of a run, as an asynchronous iterator over their numbers.

    Args:
        runtime: the run's.
        state: fresh; a resumed run's is filled with what the checkpoint holds.
        num_rounds: the last round; None: until `stop`.
        every: how many rounds one turn of the loop does; it yields the last of them.
        watch: which metric is judged; None: nothing is.
        remedy: what to try when a metric is not finite, which ends the run. A metric that could not be measured is
            None, or left out.
        may_checkpoint: asked before each checkpoint, the final one included. How often one is taken is the runtime's
            `checkpoint_every`; a run that is asked to stop does so at the next checkpoint, due or not.

    Raises:
        BadInput: the checkpoint's fields are not those of `state`.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: S,
        *,
        num_rounds: int | None,
        every: int = 1,
        watch: Watch | None = None,
        remedy: Remedy | None = None,
        may_checkpoint: Callable[[], bool] = lambda: True,
    ) -> None:
        self.state = state
        self._runtime = runtime
        self._num_rounds = num_rounds
        self._every = every
        self._watch = watch
        self._remedy = remedy
        self._may_checkpoint = may_checkpoint
        self._metrics: dict[str, Any] = {}
        if runtime.resumed:
            _check_fields(runtime.state, state)
            check_fields(typing.get_type_hints(type(state)), runtime.state, DRIVERS)
            vars(state).update(runtime.state)
        runtime.state = vars(state)
        self._current = state.round
        self._is_under_way = False

    async def start(self) -> bool:
        """Start the actors; return whether the run is new and must be prepared."""
        await self._runtime.start()
        self._runtime.tell("preparing")
        return not self._runtime.resumed

    def end_at(self, num_rounds: int, every: int = 1) -> None:
        """Set the last round and how many a turn does, where the rows decide that, which come after `start`."""
        self._num_rounds, self._every = num_rounds, every

    def __aiter__(self) -> Rounds[S]:
        return self

    async def __anext__(self) -> int:
        """End the round under way, and return the next one's number."""
        if self._is_under_way:
            self._is_under_way = False
            await self.end(self._current)
        state, last = self.state, self._num_rounds
        if state.over or (last is not None and state.round >= last):
            raise StopAsyncIteration
        self._current = state.round + self._every if last is None else min(state.round + self._every, last)
        self._is_under_way = True
        return self._current

    def record(self, metrics: Mapping[str, Any]) -> None:
        """Add metrics to the current round; they are recorded when it ends.

        Raises:
            Diverged: a metric is not finite.
        """
        self._check(self._current, metrics)
        self._metrics |= metrics

    def judge(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the current round is the best so far, and end the run at its target or patience.

        Raises:
            Diverged: a metric is not finite.
            BadInput: the metric that is watched is not among them.
        """
        self._check(self._current, metrics)
        watch, state = self._watch, self.state
        if watch is None:
            return False
        if watch.metric not in metrics:
            raise BadInput(f"watch: {watch.metric!r} is not measured (there are: {', '.join(metrics) or 'none'})")
        value = float(metrics[watch.metric])
        is_best = watch.improves(value, state.best)
        if is_best:
            state.best, state.best_round, state.num_worse = value, self._current, 0
        else:
            state.num_worse += 1
        if watch.reaches_target(value) or (watch.patience and state.num_worse >= watch.patience):
            state.over = True
        return is_best

    def stop(self) -> None:
        """Make the current round the last one."""
        self.state.over = True

    async def end(self, number: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Record a round with all its metrics and take a checkpoint; the loop does so by itself.

        Raises:
            Diverged: a metric is not finite.
        """
        self._check(number, metrics or {})
        recorded, self._metrics = {**self._metrics, **(metrics or {})}, {}
        self.state.round = number
        await self._runtime.record_round(number, recorded)
        await self.checkpoint()

    async def checkpoint(self, label: str = "last") -> None:
        """Take a checkpoint now, if it may be taken.

        Raises:
            Stopped: the run was asked to stop; the checkpoint is written.
        """
        if self._may_checkpoint():
            await self._runtime.checkpoint(label)

    def _check(self, number: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, (float, np.floating)) and not math.isfinite(value):
                if self._remedy is not None:
                    raise self._remedy.error(number, name, float(value))
                raise Diverged(f"training diverges ({name} {value:g} in round {number})")

    # --- what is no training ---

    @contextlib.asynccontextmanager
    async def aside(self, label: str = "evaluation") -> AsyncIterator[None]:
        """Run a phase that is no training; its messages, bytes and seconds are counted apart.

        On Ray every process is asked for its ledger before and after; where nobody asks what training alone has
        `spent`, ``runtime.phase`` is cheaper.
        """
        before = await self._used()
        with self._runtime.phase(label):
            yield
        sums = self.state.aside
        self.state.aside = {name: sums.get(name, 0) + now - before[name] for name, now in (await self._used()).items()}

    async def spent(self) -> dict[str, float]:
        """Return the messages, bytes and seconds so far of training alone."""
        return {name: now - self.state.aside.get(name, 0) for name, now in (await self._used()).items()}

    async def _used(self) -> dict[str, float]:
        await self._runtime.settle()
        usage = self._runtime.usage()
        return {"messages": usage.messages, "bytes": usage.bytes, "seconds": usage.seconds}

    # --- the end ---

    async def result(self, metrics: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> RunResult:
        """Take the final checkpoint, and return the run's result."""
        await self.checkpoint(FINAL)
        return RunResult(rounds=self.state.round, metrics=metrics, extra=extra or {})


def _check_fields(found: Mapping[str, Any], state: RunState) -> None:
    """Refuse a checkpoint whose fields differ; those with an underscore are the runtime's."""
    known = {f.name for f in fields(state)}
    held = {name for name in found if not name.startswith("_")}
    if held != known:
        differing = [*(f"{name} is missing" for name in sorted(known - held))]
        differing += [f"{name} is unknown" for name in sorted(held - known)]
        raise BadInput(f"the checkpoint is of another version of this protocol: {', '.join(differing)}")
