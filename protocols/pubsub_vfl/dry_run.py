"""An epoch without rows or arithmetic: the run's own actors on the simulated runtime, timed by the parties' profiles.

Reports, orders, windows, links and parameter servers are those of a run. Embeddings, gradients and parameters are zeros
of the right size, and a batch takes as long as its party's profile says. `fedactors plan` chooses by it. Left out:
local updates, averages, batches that are assigned anew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import CLIENT, SAME_PARTY, remote
from fedactors.data.layouts.vertical import VerticalPart
from fedactors.data.sources import ArraySource
from fedactors.learning.optimizers import Network
from fedactors.learning.split_learning import ActiveGradients
from fedactors.messages.codec import wire_type
from fedactors.network import links
from fedactors.network.links import HostCapacity, Link
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PartyWorker, PassiveWorker, Replica
from fedactors.protocols.pubsub_vfl.broker import BROKER, BatchBroker
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import Index, PartyRows
from fedactors.protocols.pubsub_vfl.messages import (
    Embedding,
    EpochOrder,
    Gradient,
    Orders,
    Parameters,
    PartyProfile,
    PowerLaw,
    Report,
    Stamp,
)
from fedactors.protocols.pubsub_vfl.replicas import AveragingServer
from fedactors.protocols.pubsub_vfl.run import Federation
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Costs, Runtime
from fedactors.runtime.simulation.runtime import SimulatedRuntime

ACTIVE = "active"
MOST_BATCHES = 400
"""Of longer trainings so many batches are simulated; the others pass at the pace of the middle half of these."""
_STEP = "active-step"
_COSTS = Costs(dict.fromkeys(("report", "bottom-forward", "bottom-backward", _STEP, "server-step"), (0.0, 1.0)))
"""Work of the dry actors, in seconds."""
_LONGEST_CALL = 1e9


@wire_type
class Problem:
    """What is planned for. `row_bytes` is what a row's embedding and gradient take together."""

    active: PartyProfile
    passive: PartyProfile
    num_rows: int = 1
    row_bytes: float = 0.0
    bandwidth: float = math.inf
    shared_link: bool = True
    """Whether batches in flight share the bandwidth; otherwise each has it, and a transfer only adds to its way."""
    latency: float = 0.0
    """Seconds of one hop between the parties."""
    num_passive: int = 1
    """Passive parties, each of them like `passive`."""
    one_host: bool = False
    """Whether all parties share the cores of one host."""
    transfer: str = "pull"
    """How embeddings and gradients travel."""
    num_epochs: int = 1
    """Epochs that are trained without a pause."""
    steps_at_server: bool = False
    """Whether the parameter servers of parties of several workers step."""

    def communication(self, batch_size: int) -> float:
        """Return (E + G) / bandwidth of a batch (Eq. 9)."""
        return self.row_bytes * batch_size / self.bandwidth

    @property
    def passive_parties(self) -> tuple[str, ...]:
        """Names of the passive parties."""
        return tuple(f"passive-{i + 1}" for i in range(self.num_passive))


def seconds_of(phases: Iterable[PowerLaw], batch_size: float) -> float:
    """Return the seconds of some phases of one batch on one core."""
    return sum(phase.scale * math.pow(batch_size, phase.exponent) for phase in phases)


def epoch_seconds(config: PubSubVflConfig, problem: Problem) -> float:
    """Return the seconds of an epoch with the workers, batch size, window and prefetch of `config`.

    Epochs that are trained without a pause are simulated together; averages at their end are not counted.
    """
    config = config.at(problem.num_rows)
    num_batches = problem.num_epochs * math.ceil(problem.num_rows / config.batch_size)
    if num_batches <= MOST_BATCHES:
        return _simulate(config, problem)[0] / problem.num_epochs
    short = replace(problem, num_rows=MOST_BATCHES * config.batch_size, num_epochs=1)
    seconds, steps = _simulate(config, short)
    first, last = MOST_BATCHES // 4, MOST_BATCHES * 3 // 4
    pace = (steps[last] - steps[first]) / (last - first)
    return (seconds + (num_batches - MOST_BATCHES) * pace) / problem.num_epochs


def _simulate(config: PubSubVflConfig, problem: Problem) -> tuple[float, list[float]]:
    """Return the seconds of a training, and when the active party's steps end."""
    config = replace(
        config,
        deadline=math.inf,
        stale_gradients="drop",
        sync_unit="epoch",
        bottom_training="plain",
        local_updates=0,
        quantization_bits=0,
        gradient_mu=math.inf,
        num_epochs=max(config.num_epochs, problem.num_epochs),
    )
    recorder = _Steps()
    runtime = SimulatedRuntime(
        costs=_COSTS, network=links_of(problem), cores=cores_of(problem), recorder=recorder, checkpoint_every=0
    )
    seconds = runtime.execute(lambda: _train(config, problem, runtime))
    return seconds, sorted(recorder.ends)


async def _train(config: PubSubVflConfig, problem: Problem, runtime: Runtime) -> float:
    federation = _assemble(config, problem, runtime)
    await runtime.start()
    begun = runtime.clock.now()
    await federation.train(EpochOrder(problem.num_epochs, problem.num_epochs), problem.num_rows)
    return runtime.clock.now() - begun


def _assemble(config: PubSubVflConfig, problem: Problem, runtime: Runtime) -> Federation:
    """Spawn dry actors as `run.assemble` spawns those of a run."""
    broker = runtime.spawn(DryBroker, BROKER, config, problem)
    handles: dict[str, PartyWorker] = {}
    for party in (ACTIVE, *problem.passive_parties):
        is_active = party == ACTIVE
        cls: type[DryActiveWorker | DryPassiveWorker] = DryActiveWorker if is_active else DryPassiveWorker
        count = config.num_active_workers if is_active else config.num_passive_workers
        names = [f"{party}/worker-{i}" for i in range(count)]
        for name in names:
            handles[name] = runtime.spawn(cls, name, config, problem, party, names)
        if len(names) > 1:
            profile = problem.active if is_active else problem.passive
            runtime.spawn(DryServer, f"{party}/ps", names, config, profile.server_step_seconds)
    return Federation(
        config=config,
        broker=broker,
        workers=ActorGroup(runtime, handles, timeout=_LONGEST_CALL),
        pairs=ActorGroup(runtime, [], timeout=_LONGEST_CALL),
        active=runtime.handle(f"{ACTIVE}/worker-0", ActiveWorker),
        first=(),
        with_server=(),
    )


def links_of(problem: Problem, active: str = ACTIVE, passive: Sequence[str] = ()) -> links.Network:
    """Return the links between the parties, called as the problem calls them or so; the broker is at the active one."""
    parties, between = (active, *(passive or problem.passive_parties)), problem.bandwidth
    default = Link(latency=problem.latency, bandwidth=between)
    if problem.one_host:
        return links.Network(local=default, hosts=dict.fromkeys((*parties, BROKER), active))
    local = Link(latency=problem.active.local_latency, bandwidth=problem.active.local_bandwidth)
    shared = {party: HostCapacity(egress=between, ingress=between) for party in parties}
    capacity = shared if problem.shared_link and math.isfinite(between) else {}
    return links.Network(default=default, local=local, hosts={BROKER: active}, capacity=capacity)


def cores_of(problem: Problem, active: str = ACTIVE, passive: Sequence[str] = ()) -> dict[str, int]:
    """Return the cores of each party, or of the host that they share."""
    if problem.one_host:
        return {active: max(problem.active.cores, problem.passive.cores)}
    return {active: problem.active.cores} | dict.fromkeys(passive or problem.passive_parties, problem.passive.cores)


class _Steps(MemoryRecorder):
    """Keeps when the active party's steps end, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        if label == _STEP:
            self.ends.append(end)

    def ledger_sink(self, rows: list[Any]) -> None:
        """Keep no rows."""


def _nothing() -> None:
    """Compute nothing."""


# --- the actors -----------------------------------------------------------------------------------------------------


class DryRows(PartyRows):
    """As many rows as a party has, and none of them."""

    def __init__(self, num_rows: int, batch_size: int) -> None:
        sizes = [min(batch_size, num_rows - start) for start in range(0, num_rows, batch_size)]
        self._positions = [np.zeros(size, np.int64) for size in sizes]

    def batches(self, epoch: int) -> list[Index]:
        """Return the batches of an epoch, all of the first row."""
        return self._positions


class DryNetwork(Network):
    """Parameters of some size that never change."""

    def __init__(self, size: int) -> None:
        self.rate, self.decay = 1.0, 0.0
        self._vector = np.zeros(size, np.float32)

    @property
    def vector(self) -> NDArray[Any]:
        """Zeros (P)."""
        return self._vector

    def load(self, vector_P: NDArray[Any]) -> None:
        """Keep the zeros."""

    def apply(self, gradient_P: Any) -> None:
        """Keep the zeros."""


class DryWorker(PartyWorker):
    """What the dry workers of both sides have in common.

    Args:
        config: the settings that are planned.
        problem: what is planned for.
        party: the worker's party.
        workers: names of all the party's workers.
    """

    _sigma = 0.0

    def __init__(self, config: PubSubVflConfig, problem: Problem, party: str, workers: Sequence[str]) -> None:
        parties = (ACTIVE, *problem.passive_parties)
        source = ArraySource(ids=np.zeros(0), features=np.zeros((0, 0), np.float32))
        part = VerticalPart(
            name="dry run",
            task="binary",
            num_classes=2,
            party=party,
            parties=parties,
            label_party=ACTIVE,
            source=source,
            alignment="already-aligned",
        )
        super().__init__(config, part, 0, workers)
        self._problem = problem
        self._profile = problem.active if party == ACTIVE else problem.passive

    async def load(self) -> None:
        """Take zeros for rows and models."""
        self.rows = DryRows(self._problem.num_rows, self.config.batch_size)
        size, top = round(self._profile.parameter_bytes / 4), [0] if self._profile.role == "active" else []
        self.replica = Replica([DryNetwork(size) for size in (size, *top)], self.config)
        self.counts.start(np.zeros(1, np.int64), 1)

    async def open(self) -> None:
        """Take no noise."""

    async def _spend(self, kind: str, phases: Iterable[PowerLaw], num_rows: int, messages: float) -> None:
        """Take as long as some phases of a batch and a share of its messages, without a step that the server takes."""
        profile = self._profile
        seconds = seconds_of(phases, num_rows)
        seconds += messages * (profile.message_seconds + profile.message_row_seconds * num_rows)
        if not self.updates and kind != "bottom-forward":
            seconds = max(seconds - profile.step_seconds, 0.0)
        await self.compute(_nothing, work=Work(kind, seconds))

    async def _values(self, message: Embedding | Gradient, num_rows: int, party: str) -> np.ndarray:
        """Return zeros of any shape: they are as long as is planned."""
        assert isinstance(message.values, np.ndarray)
        return message.values

    def _values_of(self, num_rows: int) -> NDArray[np.float16]:
        """Return zeros as long as the embedding or gradient of a batch."""
        return np.zeros(round(num_rows * self._problem.row_bytes / 4), np.float16)


class DryPassiveWorker(DryWorker, PassiveWorker):
    """Embeds batches of zeros."""

    @property
    def _half(self) -> int:
        """Number of the phases before an embedding leaves."""
        return len(self._profile.phases) // 2

    async def _embed(self, epoch: int, stamp: Stamp, positions: np.ndarray) -> Embedding:
        await self._spend("bottom-forward", self._profile.phases[: self._half], len(positions), 0.5)
        return Embedding(stamp[0], epoch, stamp[1], self.clock.now(), self._values_of(len(positions)))

    async def _backward(self, gradient: Gradient) -> np.ndarray:
        self.forget((gradient.batch_id, gradient.sequence))
        num_rows = len(self._batches[gradient.batch_id][1])
        await self._spend("bottom-backward", self._profile.phases[self._half :], num_rows, 0.5)
        return self.replica.vectors[0]


class DryActiveWorker(DryWorker, ActiveWorker):
    """Steps on embeddings of zeros."""

    async def _gradients(self, positions: np.ndarray, received: Sequence[np.ndarray]) -> ActiveGradients:
        await self._spend(_STEP, self._profile.phases, len(positions), 1.0)
        values = self._values_of(len(positions))
        return ActiveGradients(0.0, (values,) * self._problem.num_passive, *self.replica.vectors)


class DryServer(AveragingServer):
    """Takes as long for a step as its party's profile says.

    Args:
        workers: names of the party's workers.
        config: the settings that are planned.
        seconds: of a step.
    """

    def __init__(self, workers: Sequence[str], config: PubSubVflConfig, seconds: float) -> None:
        super().__init__(workers, config)
        self._seconds = seconds

    @remote(caller=SAME_PARTY)
    async def step(self, gradients: Parameters) -> Parameters:
        """Return parameters of the gradients' size, after those that came before."""
        async with self._adding:
            await self.compute(_nothing, work=Work("server-step", self._seconds))
            return gradients


class TimedBroker(BatchBroker):
    """Takes as long for a report as the active party's profile says.

    Args:
        config: the settings that are planned.
        label_party: the active party.
        passive: the others.
        profile: of the active party.
    """

    def __init__(
        self, config: PubSubVflConfig, label_party: str, passive: Sequence[str], profile: PartyProfile
    ) -> None:
        super().__init__(config, label_party, tuple(passive))
        self._profile = profile
        self._taking = asyncio.Lock()

    def rows_of(self, report: Report) -> int:
        """Return how many rows a report publishes; every batch counts as a whole one."""
        return len(report.published) * self._config.batch_size

    @remote(caller=CLIENT, only="parties", unbounded="the broker has no rows")
    async def report(self, report: Report) -> Orders:
        """See `BatchBroker.report`."""
        seconds = self._profile.broker_seconds + self._profile.broker_row_seconds * self.rows_of(report)
        if seconds:
            async with self._taking:
                await self.compute(_nothing, work=Work("report", seconds))
        return await super().report(report)


class DryBroker(TimedBroker):
    """The broker of a dry run.

    Args:
        config: the settings that are planned.
        problem: what is planned for.
    """

    def __init__(self, config: PubSubVflConfig, problem: Problem) -> None:
        super().__init__(config, ACTIVE, problem.passive_parties, problem.active)
        self._rows = DryRows(problem.num_rows, config.batch_size).batches_until(problem.num_epochs, problem.num_epochs)

    def rows_of(self, report: Report) -> int:
        """Return how many rows a report publishes."""
        return sum(len(self._rows[batch_id][1]) for batch_id, *_ in report.published)
