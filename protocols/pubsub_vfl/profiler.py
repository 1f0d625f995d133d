"""What a party measures of its own machine, so that only fitted constants leave it (Section 4.2).

Seconds are CPU seconds of the computing thread, the median of some repetitions over a few batches in turn, not over
one that stays in the caches. Parties that share a machine should measure at the same time, as they will train. A phase
is fitted as fixed + per_row B (two power laws, of exponents 0 and 1), which fits small batches far better than the
paper's single power law.

    fedactors plan pubsub-vfl --measure      driver ──measure_machine──▶ PARTY/worker-0, all at once
                                             driver ──measure_link──▶ the active party's ──Probe──▶ each passive one's
                                                                  and each party's to a second process of its own
                                             driver ──attempt──▶ all: a few batches over a broker, on random values

What a batch takes in such a trial beyond its phases is what its messages cost the processor, with all that else is
lost between processes that share a machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from fedactors.actors.context import Work
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.data.alignment.rows import load_block
from fedactors.data.layouts.vertical import VerticalData, VerticalPart
from fedactors.data.party_rows import Part
from fedactors.errors import BadInput
from fedactors.learning.optimizers import Network, OptimizerState
from fedactors.learning.split_learning import Publication, loss_gradients
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PartyWorker, PassiveWorker
from fedactors.protocols.pubsub_vfl.broker import BROKER, BatchBroker
from fedactors.protocols.pubsub_vfl.config import MOST_IN_FLIGHT, PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import Index, PartyRows
from fedactors.protocols.pubsub_vfl.messages import (
    BatchCount,
    EpochOrder,
    Link,
    Machine,
    Neighbour,
    Orders,
    PartyProfile,
    PowerLaw,
    Probe,
    Report,
    Spent,
    Stamp,
    TrialOrder,
)
from fedactors.protocols.pubsub_vfl.planner import batch_seconds
from fedactors.protocols.pubsub_vfl.replicas import steps, weighted_mean
from fedactors.runtime.interface import Costs, Runtime

_NUM_BATCHES = 4
_TRIAL_BATCHES, _TRIAL_SIZES, _TRIAL_ROWS = 150, (64, 512), 8192
_WORK = Work("profile")
_PINGS, _PROBES, _PROBE_BYTES = 50, 10, 1 << 20
BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
Seconds = NDArray[np.float64]
Batches = Iterator[NDArray[np.float32]]


def profile_machine(
    config: PubSubVflConfig, data: VerticalPart, num_features: int, num_cores: int | None = None, repetitions: int = 10
) -> PartyProfile:
    """Measure a party's models on batches of random values, shaped as its own rows are.

    Args:
        config: sizes of the algorithm.
        data: the party's part, whose task the labels are for.
        num_features: columns of its rows.
        num_cores: cores that it will give (default: all of this machine).
        repetitions: of each measurement, the median counts.
    """
    torch.set_num_threads(1)
    networks = _networks(config, data, num_features)
    seconds = _measure(config, data, num_features, networks, repetitions)
    phases = [law for measured in seconds.values() for law in fit_affine(BATCH_SIZES, measured)[0]]
    memory = psutil.virtual_memory()
    cores = num_cores or os.cpu_count() or 1
    row_bytes = (8 if config.float64 else 4) * (num_features + 2 * config.num_layers * config.hidden_size)
    bottom = networks[0].vector
    return PartyProfile(
        role="active" if len(networks) > 1 else "passive",
        cores=cores,
        phases=tuple(phases),
        memory_base=float(psutil.Process().memory_info().rss),
        memory_per_batch=PowerLaw(float(row_bytes), 1.0),
        memory_available=memory.total / (os.cpu_count() or 1),
        sync_seconds=_median(lambda: weighted_mean([bottom, bottom], [1.0, 1.0]), repetitions) / 2,
        **_measure_steps(config, networks, repetitions),
        host=_host(),
    )


class TrialRows(PartyRows):
    """Random rows in random batches of one size.

    Args:
        data: the party's part, whose task the labels are for.
        num_features: columns.
        order: number and size of the batches.
    """

    def __init__(self, data: VerticalPart, num_features: int, order: TrialOrder) -> None:
        rng = np.random.default_rng(0)
        features = rng.normal(size=(_TRIAL_ROWS, num_features)).astype(np.float32)
        positions = rng.integers(0, _TRIAL_ROWS, size=(order.num_batches, order.batch_size))
        self._positions = list(positions)
        self._train = Part(features=features, labels=_targets(data, _TRIAL_ROWS, rng))

    @property
    def train(self) -> Part:
        """The random rows."""
        return self._train

    def batches(self, epoch: int) -> list[Index]:
        """Return the positions of each batch."""
        return self._positions


class PartyProfiler(PartyWorker):
    """Measures a party's machine in a process of its own, and the link to another one's.

    Args:
        config: of the run that is planned.
        data: the party's part.
    """

    def __init__(self, config: PubSubVflConfig, data: VerticalPart) -> None:
        super().__init__(config, data, 0, (f"{data.party}/worker-0",))
        self._num_features = 0

    async def load(self) -> None:
        """Load nothing before the machine is measured."""

    def _count_batch(self, what: str, stamp: Stamp, at_most: int) -> None:
        """Count nothing: the rows are random."""

    @remote(caller=DRIVER, unbounded="reads the number of columns")
    async def measure_machine(self) -> Machine:
        """Return what the party's models take here, on batches of random values shaped as its rows."""
        block = await load_block(self, self._data)
        self._num_features = block.features.shape[1]
        args = (self.config, self._data, self._num_features)
        profile: PartyProfile = await self.compute(profile_machine, *args, work=_WORK)
        return Machine(profile, len(block.ids))

    @remote(caller=DRIVER, unbounded="the rows are random")
    async def attempt(self, order: TrialOrder) -> Spent:
        """Train on random rows as a worker does; return what that took this thread, which does it all."""
        self._build(self._num_features)
        self.rows = TrialRows(self._data, self._num_features, order)
        self.counts.start(np.arange(_TRIAL_ROWS), _TRIAL_ROWS)
        begun = time.thread_time()
        await self.run_epoch(EpochOrder(order.epoch))
        return Spent(time.thread_time() - begun, 0, os.getpid())

    @remote(caller=DRIVER, unbounded="reads no rows")
    async def measure_link(self, neighbour: Neighbour) -> Link:
        """Return the latency and bandwidth on the way to another party's profiler and back."""
        other = self.peer(neighbour.name, PassiveProfiler)
        seconds = {}
        for size, repetitions in ((0, _PINGS), (_PROBE_BYTES, _PROBES)):
            probe, taken = Probe(np.zeros(size, np.uint8)), []
            await other.answer(probe)
            for _ in range(repetitions):
                start = self.clock.now()
                await other.answer(probe)
                taken.append(self.clock.now() - start)
            seconds[size] = statistics.median(taken)
        return Link(seconds[0] / 2, _PROBE_BYTES / max(seconds[_PROBE_BYTES] - seconds[0], 1e-9))

    @remote(caller=CLIENT, unbounded="reads no rows")
    async def answer(self, probe: Probe) -> Probe:
        """Answer a message of some length with an empty one, for its sender's clock."""
        return Probe(np.zeros(0, np.uint8))


class PassiveProfiler(PartyProfiler, PassiveWorker):
    """Measures a passive party's machine."""


class ActiveProfiler(PartyProfiler, ActiveWorker):
    """Measures the active party's machine."""


class TrialBroker(BatchBroker):
    """A broker that counts what it does."""

    num_reports = 0

    @remote(caller=CLIENT, only="parties", unbounded="the broker has no rows")
    async def report(self, report: Report) -> Orders:
        """See `BatchBroker.report`."""
        self.num_reports += 1
        return await super().report(report)

    @remote(caller=DRIVER, unbounded="the broker has no rows")
    async def spent(self) -> Spent:
        """Return the processor seconds of this process and the reports so far."""
        return Spent(time.thread_time(), self.num_reports, os.getpid())


async def measure(config: PubSubVflConfig, data: VerticalData, runtime: Runtime) -> list[dict[str, Any]]:
    """Return each party's profile for `planner.plan`, measured on its machine while the others measure theirs.

    The active party's also has the links to the others: the longest latency and the least bandwidth. `num_rows` are the
    rows that train, by the shares of the settings.

    Raises:
        BadInput: rows that a query joins; a party's columns are known to a run only.
    """
    if data.query is not None:
        raise BadInput("--measure: not for a query, whose rows a run joins first; give --profile")
    runtime.use_costs(Costs(dict.fromkeys((*algorithm.FITTED, _WORK.kind), (0.0, 0.0))))
    config = replace(config, algorithm="pubsub-vfl", num_active_workers=1, num_passive_workers=1, deadline=math.inf)
    config = replace(config, local_updates=0, max_in_flight=config.max_in_flight or MOST_IN_FLIGHT)
    profilers: dict[str, PartyProfiler] = {}
    for party in data.parties:
        cls = ActiveProfiler if party == data.label_party else PassiveProfiler
        profilers[party] = runtime.spawn(cls, f"{party}/worker-0", config, data.part(party))
    for party in data.parties:
        runtime.spawn(PassiveProfiler, f"{party}/neighbour", config, data.part(party))
    broker = runtime.spawn(TrialBroker, BROKER, config, data.label_party, data.passive_parties)
    await runtime.start()
    measured = await asyncio.gather(*(profiler.measure_machine() for profiler in profilers.values()))
    machines = dict(zip(profilers, measured, strict=True))
    active = profilers[data.label_party]
    ways = [await active.measure_link(Neighbour(f"{party}/worker-0")) for party in data.passive_parties]
    found = []
    messages = await _try_messages(profilers, broker, {party: made.profile for party, made in machines.items()})
    for party, machine in machines.items():
        local = await profilers[party].measure_link(Neighbour(f"{party}/neighbour"))
        way = {"local_latency": local.latency, "local_bandwidth": local.bandwidth}
        num_rows = round(machine.num_rows * (1 - config.test_fraction) * (1 - config.validation_fraction))
        found.append({**asdict(machine.profile), **messages[party], **way, "num_rows": num_rows})
    found[data.parties.index(data.label_party)] |= {
        "latency": max(way.latency for way in ways),
        "bandwidth": min(way.bandwidth for way in ways),
    }
    return found


async def _try_messages(
    profilers: Mapping[str, PartyProfiler], broker: TrialBroker, profiles: Mapping[str, PartyProfile]
) -> dict[str, dict[str, float]]:
    """Return what a batch takes each party's processor beyond its phases, and what a report takes the broker's.

    Nothing, where all run in one process, as in simulation: there messages cost no processor.
    """
    spent: list[dict[str, float]] = []
    sizes = (_TRIAL_SIZES[0], *_TRIAL_SIZES)  # the first time is for what is loaded and allocated once
    for epoch, size in enumerate(sizes, start=1):
        order, before = TrialOrder(_TRIAL_BATCHES, size, epoch), await broker.spent()
        await broker.begin_epoch(BatchCount(_TRIAL_BATCHES, epoch))
        made, *_ = await asyncio.gather(
            asyncio.gather(*(each.attempt(order) for each in profilers.values())), broker.serve_epoch()
        )
        after = await broker.spent()
        if len({after.process, *(one.process for one in made)}) <= len(made):
            return {party: {} for party in profilers}
        seconds = {party: one.processor_seconds / _TRIAL_BATCHES for party, one in zip(profilers, made, strict=True)}
        seconds[BROKER] = (after.processor_seconds - before.processor_seconds) / _TRIAL_BATCHES
        reports = (after.num_reports - before.num_reports) / _TRIAL_BATCHES
        spent.append({**seconds, "reports": reports})
    (small, large), (first, last) = _TRIAL_SIZES, spent[1:]
    found: dict[str, dict[str, float]] = {}
    for party, profile in profiles.items():
        beyond = [
            one[party] - batch_seconds(profile, size) for one, size in zip((first, last), _TRIAL_SIZES, strict=True)
        ]
        per_row = max(beyond[1] - beyond[0], 0.0) / (large - small)
        found[party] = {"message_seconds": max(beyond[0] - per_row * small, 0.0), "message_row_seconds": per_row}
        if profile.role == "active":
            published = len(profiles)  # an embedding of each passive party, and gradients at once
            row = max(last[BROKER] - first[BROKER], 0.0) / (published * (large - small))
            fixed = max(first[BROKER] - row * published * small, 0.0) / first["reports"]
            found[party] |= {"broker_seconds": fixed, "broker_row_seconds": row}
    return found


def fit_affine(batch_sizes: Sequence[int], seconds: Seconds) -> tuple[tuple[PowerLaw, PowerLaw], float]:
    """Fit fixed + per_row B by least squares of relative errors; return both terms and the largest relative error."""
    design = np.stack([np.ones(len(seconds)), np.asarray(batch_sizes, np.float64)], axis=1)
    found, *_ = np.linalg.lstsq(design / seconds[:, None], np.ones(len(seconds)), rcond=None)
    found = np.maximum(found, 0.0)
    error = float(np.abs(design @ found / seconds - 1).max())
    return (PowerLaw(float(found[0]), 0.0), PowerLaw(float(found[1]), 1.0)), error


def _host() -> str:
    """Return a name of this machine that tells nothing else."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    told = f"{boot.read_text() if boot.exists() else ''} {platform.node()}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _networks(config: PubSubVflConfig, data: VerticalPart, num_features: int) -> tuple[Network, ...]:
    """Return a bottom, and at the active party a top, as they are in the beginning."""
    bottom = Network(algorithm.bottom_spec(config, num_features), config.step_rule, 0)
    if data.party != data.label_party:
        return (bottom,)
    return (bottom, Network(algorithm.top_spec(config, data), config.step_rule, 0))


def _targets(data: VerticalPart, size: int, rng: np.random.Generator) -> NDArray[Any]:
    y = rng.integers(0, max(data.num_classes, 2), size=size)
    return y.astype(np.float32) if data.task == "regression" else y


def _measure_steps(config: PubSubVflConfig, networks: Sequence[Network], repetitions: int) -> dict[str, float]:
    """Return what an optimiser's step takes a worker and a parameter server, and how much they send one another."""
    vectors = [network.vector for network in networks]
    states = [OptimizerState() for _ in networks]

    def step_here() -> None:
        for network, vector in zip(networks, vectors, strict=True):
            network.apply(vector)

    return {
        "step_seconds": _median(step_here, repetitions),
        "server_step_seconds": _median(lambda: steps(config.step_rule, vectors, vectors, states), repetitions),
        "parameter_bytes": float(sum(vector.nbytes for vector in vectors)),
    }


def _measure(
    config: PubSubVflConfig, data: VerticalPart, num_features: int, networks: Sequence[Network], repetitions: int
) -> dict[str, Seconds]:
    rng, (bottom, *tops) = np.random.default_rng(0), networks
    found: dict[str, list[float]] = {}
    for size in BATCH_SIZES:
        shape = (_NUM_BATCHES, size)
        xs = itertools.cycle(rng.normal(size=(*shape, num_features)).astype(np.float32))
        zs = itertools.cycle(rng.normal(size=(*shape, config.embedding_size)).astype(np.float32))
        target = _targets(data, size, rng)

        def whole(xs: Batches = xs, zs: Batches = zs) -> None:
            publication = Publication(bottom.model, next(xs))
            publication.embed()
            bottom.apply(publication.gradient(next(zs)))

        def top_step(top: Network, zs: Batches = zs, target: NDArray[np.generic] = target) -> None:
            top.apply(loss_gradients(top.model, [next(zs) for _ in data.parties], target, data.task).gradient)

        def forward(xs: Batches = xs) -> None:
            Publication(bottom.model, next(xs)).embed()

        ahead = _median(forward, repetitions)
        found.setdefault("forward", []).append(ahead)
        found.setdefault("backward", []).append(max(_median(whole, repetitions) - ahead, 1e-9))
        for top in tops:
            found.setdefault("top", []).append(_median(partial(top_step, top), repetitions))
    return {kind: np.asarray(values) for kind, values in found.items()}


def _median(action: Callable[[], object], repetitions: int) -> float:
    taken = []
    action()
    for _ in range(repetitions):
        start = time.thread_time()
        action()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)
