"""A run that is watched until its model reaches a target: the run itself, simulated, timed by the parties' profiles.

    profiles --> seconds of each compute, links, cores          rows --> batches, steps, scores
                              run on the virtual clock, up to a target or a limit

Nothing is left out that moves the model: batches, windows, stale gradients and averages are those of a run. The
watch costs it nothing: whenever the active party's steps have come 4 % further, the validation rows are scored by the
models that the parties' parameter servers would give out then, the means of their workers' replicas. Time is that of
training: alignment and the run's own evaluations are left out. `fedactors plan` chooses by it.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedactors.actors.actor import Resources
from fedactors.actors.context import Work
from fedactors.data.layouts.vertical import VerticalData, shared_rows
from fedactors.data.party_rows import PartyBlock
from fedactors.errors import BadInput, Diverged
from fedactors.learning.network import Model, initial_vector
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PartyWorker
from fedactors.protocols.pubsub_vfl.broker import BatchBroker
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import held_rows, num_batches
from fedactors.protocols.pubsub_vfl.dry_run import Problem, TimedBroker, cores_of, links_of, seconds_of
from fedactors.protocols.pubsub_vfl.messages import PartyProfile
from fedactors.protocols.pubsub_vfl.run import HEADLINE, run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.compute import one_torch_thread
from fedactors.runtime.interface import Runtime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.sweeps import Enough, Outcome, Pilot

EVERY = 0.04
"""How much further steps have come from one look at the models to the next, as a share of all before."""
_STEP = "active-step"
_MOST_HELD = 50_000_000
"""Values of rows that pilots before may hold, whose actors are cycles: to collect them takes longer than a pilot."""


def joint_score(runtime: SimulatedRuntime, metric: str) -> float:
    """Return a validation metric of the means of all parties' replicas at this moment."""
    workers: dict[str, list[PartyWorker]] = {}
    for context in runtime.contexts.values():
        if isinstance(context.actor, PartyWorker):
            workers.setdefault(context.actor.party, []).append(context.actor)
    embeddings: list[np.ndarray] = []
    top: Model | None = None
    active: ActiveWorker | None = None
    for members in workers.values():
        columns = zip(*(worker.replica.vectors for worker in members), strict=True)
        models = [
            Model(network.spec, np.mean(vectors, axis=0).astype(vectors[0].dtype))
            for network, vectors in zip(members[0].replica.networks, columns, strict=True)
        ]
        made = models[0].output(members[0].rows.part("validation").features)
        if isinstance(members[0], ActiveWorker):
            active, top, embeddings = members[0], models[1], [made, *embeddings]
        else:
            embeddings.append(made)
    assert active is not None
    assert top is not None
    return active.score_of("validation", metric, top, embeddings)


class TrainingClock(MemoryRecorder):
    """Tells how long a run has trained: alignment and the run's own evaluations are left out."""

    runtime: Runtime | None = None

    def __init__(self) -> None:
        super().__init__(keeps_checkpoints=False)
        self._begun, self._aside = math.nan, 0.0

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Note when training began, and count the time that is not training's."""
        if kind == "phase" and label == "alignment":
            self._begun = end
        elif kind == "phase" and label == "evaluation":
            self._aside += end - start

    def ledger_sink(self, rows: list[Any]) -> None:
        """Leave the ledger's rows out: their sums are in the usage."""

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        assert self.runtime is not None
        return self.runtime.clock.now() - self._begun - self._aside


class Watch(TrainingClock):
    """Ends a run that has reached its target or spent its time.

    Args:
        label_party: the active party.
        metric: what is watched, a name without its rows.
        sign: 1 where more of it is better, -1 where less is.
        target: of the metric, or None.
        pilot: says what the run may spend.
    """

    runtime: SimulatedRuntime | None = None

    def __init__(self, label_party: str, metric: str, sign: int, target: float | None, pilot: Pilot[Any]) -> None:
        super().__init__()
        self._active = f"{label_party}/worker-0"
        self._metric, self._sign, self._target, self._pilot = metric, sign, target, pilot
        self._num_steps, self._next = 0, 1
        self.first: float | None = None
        """The metric before the first step."""
        self.best = -math.inf
        """The best value so far, times the sign."""
        self.reached: float | None = None
        """Seconds to the target; 0 where the models reach it that were never trained."""
        self.figures: dict[str, float] = {}
        """What the run had used by the last look, and how far it had come."""

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Look where a step begins or a training ends."""
        super().record_span(actor, kind, label, start, end)
        if kind == "phase" and label == "training":
            self._look(False)
        elif kind == "compute" and label == _STEP and not math.isnan(self._begun):
            self._look_if_due()
            self._num_steps += 1

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Keep nothing of a round."""

    def _look_if_due(self) -> None:
        assert self.runtime is not None
        is_over = self.seconds > self._pilot.limit
        if is_over or self._num_steps >= self._next or self.first is None:
            self._next = max(self._num_steps + 1, math.ceil(self._num_steps * (1 + EVERY)))
            self._look(is_over or time.monotonic() >= self._pilot.until)

    def _look(self, is_over: bool) -> None:
        """Score the models as they are."""
        assert self.runtime is not None
        found = joint_score(self.runtime, self._metric)
        self.first = found if self.first is None else self.first
        self.best = max(self.best, self._sign * found)
        if self._target is not None and self._sign * found >= self._sign * self._target and self.reached is None:
            self.reached = self.seconds if self._num_steps else 0.0
        self.figures = {**self._used(), "first": self.first, "best": self._sign * self.best}
        if is_over or self.reached is not None:
            self.runtime.fail(Enough("the pilot is over"))

    def _used(self) -> dict[str, float]:
        assert self.runtime is not None
        worker = self.runtime.contexts[self._active].actor
        assert isinstance(worker, PartyWorker)
        num_rows = worker.rows.num_train
        epochs = self._num_steps / num_batches(num_rows, worker.config.at(num_rows).batch_size)
        return {"seconds": self.seconds, "bytes": float(self.runtime.usage().bytes), "epochs": epochs}


@dataclass(frozen=True)
class ProfiledCosts:
    """Seconds of a run's computes by its parties' profiles; evaluations and alignment cost nothing.

    Args:
        problem: holds the profiles.
        config: the settings.
        label_party: the active party.
        sizes: parameters of each party's models.
    """

    problem: Problem
    config: PubSubVflConfig
    label_party: str
    sizes: Mapping[str, int]

    def seconds(self, actor: str, work: Work) -> float:
        """Return the seconds of some work of an actor's; see `fedactors.runtime.interface.CostModel`."""
        party = actor.partition("/")[0]
        is_active = party == self.label_party
        profile = self.problem.active if is_active else self.problem.passive
        if work.kind == "report":
            return work.units
        if work.kind == "server-step":
            return profile.server_step_seconds
        rows = work.units / self.sizes.get(party, 1)
        if work.kind == "average":
            return profile.sync_seconds * rows
        half = len(profile.phases) // 2
        if work.kind == "bottom-forward":
            return 0.0 if is_active else seconds_of(profile.phases[:half], max(rows, 1)) + _messages(profile, rows) / 2
        if work.kind not in (_STEP, "bottom-backward"):
            return 0.0
        workers = self.config.num_active_workers if is_active else self.config.num_passive_workers
        updates = not self.config.steps_at_server or workers == 1
        rows = max(rows - (algorithm.UPDATE_ROWS if updates else 0), 1)
        phases = profile.phases if is_active else profile.phases[half:]
        here = seconds_of(phases, rows) + _messages(profile, rows) / (1 if is_active else 2)
        return here if updates else max(here - profile.step_seconds, 0.0)


def _messages(profile: PartyProfile, rows: float) -> float:
    return profile.message_seconds + profile.message_row_seconds * rows


class PilotRuntime(SimulatedRuntime):
    """Simulates a run whose broker takes as long as the active party's profile says."""

    profile: PartyProfile | None = None

    def spawn(self, cls: type[Any], name: str, *args: Any, resources: Resources | None = None, **kwargs: Any) -> Any:
        """See `fedactors.runtime.interface.Runtime.spawn`."""
        if cls is BatchBroker:
            cls, args = TimedBroker, (*args, self.profile)
        return super().spawn(cls, name, *args, resources=resources, **kwargs)


class Rehearsal:
    """Runs pilots of settings on the same rows, for the same machines and links.

    Args:
        problem: the machines and links.
        data: who holds which rows.
    """

    def __init__(self, problem: Problem, data: VerticalData) -> None:
        self.problem = problem
        self.data = data
        metric, mode = HEADLINE[data.task]
        self.metric, self.sign = metric.partition("/")[2], 1 if mode == "max" else -1
        self._blocks: dict[str, PartyBlock] = {}
        self._prepared: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_blocks": {}, "_prepared": []}

    @property
    def blocks(self) -> Mapping[str, PartyBlock]:
        """Each party's rows, loaded once in each process."""
        if not self._blocks:
            self._blocks = {party: self.data.load(party) for party in self.data.parties}
        return self._blocks

    def num_rows(self, config: PubSubVflConfig) -> int:
        """Return how many rows train."""
        whole = min(len(block.ids) for block in self.blocks.values())
        return max(1, round(whole * (1 - config.test_fraction) * (1 - config.validation_fraction)))

    def __call__(self, pilot: Pilot[PubSubVflConfig]) -> Outcome:
        """Run the settings until they reach their target, or may spend no more."""
        if len(held_rows()) * max(math.prod(block.features.shape) for block in self.blocks.values()) > _MOST_HELD:
            gc.collect()
        one_torch_thread()
        config, data = replace(pilot.candidate, local_baseline=False), self.data
        target = config.target
        watch = Watch(data.label_party, self.metric, self.sign, target, pilot)
        runtime = PilotRuntime(
            seed=pilot.seed,
            recorder=watch,
            costs=self._costs(config),
            network=links_of(self.problem, data.label_party, data.passive_parties),
            cores=cores_of(self.problem, data.label_party, data.passive_parties),
            checkpoint_every=0,
        )
        runtime.profile, watch.runtime = self.problem.active, runtime
        has_ended = False
        try:
            with shared_rows(self.blocks), contextlib.suppress(Enough):
                runtime.execute(lambda: run(config, data, runtime))
                has_ended = True
        except Diverged:
            return Outcome(has_ended=True)
        self._prepared = held_rows()  # for the next pilots
        return Outcome(cost=watch.reached, score=watch.best, has_ended=has_ended, figures=watch.figures)

    def _costs(self, config: PubSubVflConfig) -> ProfiledCosts:
        data = self.data
        sizes = {}
        for party in data.parties:
            specs = [algorithm.bottom_spec(config, self.blocks[party].features.shape[1])]
            specs += [algorithm.top_spec(config, data)] if party == data.label_party else []
            sizes[party] = sum(initial_vector(spec, 0).size for spec in specs)
        return ProfiledCosts(self.problem, config, data.label_party, sizes)


def check_parties(data: VerticalData, problem: Problem) -> None:
    """Check that rows and profiles are of as many parties.

    Raises:
        BadInput: they are not, or a query joins the rows.
    """
    if data.query is not None:
        raise BadInput("--data: a query joins these rows, which is not rehearsed; leave --data out, for generated rows")
    if len(data.passive_parties) != problem.num_passive:
        raise BadInput(
            f"--profile: {problem.num_passive} of passive parties given for data of {len(data.passive_parties)}: give "
            "one for each"
        )
