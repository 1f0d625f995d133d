"""What a party measures of its own machine, so that only fitted constants leave it (Section 4.2).

Seconds are CPU seconds of the computing thread, the median of some repetitions over a few batches in turn, not over
one that stays in the caches. Parties that share a machine should measure at the same time, as they will train. A phase
is fitted as fixed + per_row B (two power laws, of exponents 0 and 1), which fits small batches far better than the
paper's single power law; both goodnesses of fit are reported by `fit_affine` and `fit_power_law`.

    fedactors plan pubsub-vfl --measure      driver ──measure_machine──▶ PARTY/profiler, all at once
                                             driver ──measure_link──▶ the active party's ──Probe──▶ each passive one's
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from fedactors.data.partitions import VerticalData, VerticalPart
from fedactors.errors import BadInput
from fedactors.joining.rows import load_block
from fedactors.learning.network import Network, initial_vector
from fedactors.learning.split_network import Publication, loss_gradients
from fedactors.network import links
from fedactors.remote import CLIENT, DRIVER, remote
from fedactors.roles import Client
from fedactors.runtime.base import CostModel, Costs, Runtime, Work
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.averaging import weighted_mean
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import Link, Machine, Neighbour, Probe
from protocols.pubsub_vfl.planner import PartyProfile, PowerLaw

_NUM_BATCHES = 4
_PINGS, _PROBES, _PROBE_BYTES = 50, 10, 1 << 20
BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
Seconds = NDArray[np.float64]
Batches = Iterator[NDArray[np.float32]]


def profile_party(
    config: PubSubVflConfig, data: VerticalData, party: str, *, num_cores: int | None = None, repetitions: int = 10
) -> PartyProfile:
    """Measure a party's models on batches of random values shaped as its own rows.

    Args:
        config: sizes of the algorithm.
        data: tells the party's columns; its rows are loaded but not used.
        party: whose machine this is.
        num_cores: cores that it will give (default: all of this machine).
        repetitions: of each measurement, the median counts.
    """
    num_features = data.load(party).features.shape[1]
    return profile_machine(config, data.part(party), num_features, num_cores, repetitions)


def profile_machine(
    config: PubSubVflConfig, data: VerticalPart, num_features: int, num_cores: int | None = None, repetitions: int = 10
) -> PartyProfile:
    """Measure the models of a party of `num_features` columns; see `profile_party`."""
    torch.set_num_threads(1)
    is_active = data.party == data.label_party
    seconds = _measure(config, data, num_features, is_active, repetitions)
    phases = [law for measured in seconds.values() for law in fit_affine(BATCH_SIZES, measured)[0]]
    memory = psutil.virtual_memory()
    cores = num_cores or os.cpu_count() or 1
    row_bytes = (8 if config.float64 else 4) * (num_features + 2 * config.num_layers * config.hidden_size)
    spec = algorithm.bottom_spec(config, num_features)
    bottom = initial_vector(spec, 0)
    return PartyProfile(
        role="active" if is_active else "passive",
        cores=cores,
        phases=tuple(phases),
        memory_base=float(psutil.Process().memory_info().rss),
        memory_per_batch=PowerLaw(float(row_bytes), 1.0),
        memory_available=memory.total / (os.cpu_count() or 1),
        sync_seconds=_median(lambda: weighted_mean([bottom, bottom], [1.0, 1.0]), repetitions) / 2,
    )


class PartyProfiler(Client):
    """Measures a party's machine in a process of its own, and the link to another one's.

    Args:
        config: of the run that is planned.
        data: the party's part.
    """

    def __init__(self, config: PubSubVflConfig, data: VerticalPart) -> None:
        self._config, self._data = config, data

    @remote(caller=DRIVER)
    async def measure_machine(self) -> Machine:
        """Return what the party's models take here, on batches of random values shaped as its rows."""
        block = await load_block(self, self._data)
        args = (self._config, self._data, block.features.shape[1])
        profile: PartyProfile = await self.compute(profile_machine, *args, work=Work("profile"))
        return Machine(profile, len(block.ids))

    @remote(caller=DRIVER)
    async def measure_link(self, neighbour: Neighbour) -> Link:
        """Return the latency and bandwidth on the way to another party's profiler and back."""
        other = self.peer(neighbour.name, PartyProfiler)
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

    @remote(caller=CLIENT)
    async def answer(self, probe: Probe) -> Probe:
        """Answer a message of some length with an empty one, for its sender's clock."""
        return Probe(np.zeros(0, np.uint8))


async def measure(config: PubSubVflConfig, data: VerticalData, runtime: Runtime) -> list[dict[str, Any]]:
    """Return each party's profile for `planner.plan`, measured on its machine while the others measure theirs.

    The active party's also has the links to the others: the longest latency and the least bandwidth.

    Raises:
        BadInput: rows that a query joins; a party's columns are known to a run only.
    """
    if data.query is not None:
        raise BadInput("--measure: not for a query, whose rows a run joins first; give --profile")
    runtime.use_costs(Costs({"profile": (0.0, 0.0)}))
    profilers = {
        party: runtime.spawn(PartyProfiler, f"{party}/profiler", config, data.part(party)) for party in data.parties
    }
    await runtime.start()
    machines = await asyncio.gather(*(profiler.measure_machine() for profiler in profilers.values()))
    active = profilers[data.label_party]
    links = [await active.measure_link(Neighbour(f"{party}/profiler")) for party in data.passive_parties]
    found = [{**asdict(machine.profile), "num_rows": machine.num_rows} for machine in machines]
    found[data.parties.index(data.label_party)] |= {
        "latency": max(link.latency for link in links),
        "bandwidth": min(link.bandwidth for link in links),
    }
    return found


def profile_of_costs(
    config: PubSubVflConfig, data: VerticalData, party: str, costs: CostModel, num_cores: int, local: links.Link
) -> PartyProfile:
    """Return a party's profile in the simulated runtime, from its cost model instead of measurements.

    Messages cost the simulated processors nothing.

    Args:
        config: sizes of the models.
        data: tells the party's columns.
        party: whose profile.
        costs: of the runtime.
        num_cores: of the party.
        local: the link between actors of the party.
    """
    is_active = party == data.label_party
    bottom = initial_vector(algorithm.bottom_spec(config, data.load(party).features.shape[1]), 0).size
    size = bottom + (initial_vector(algorithm.top_spec(config, data), 0).size if is_active else 0)

    def law(kind: str, *, updates: bool) -> tuple[PowerLaw, PowerLaw]:
        units = [algorithm.operations(rows, size, updates=updates) for rows in (0, 1)]
        fixed, one = (costs.seconds(party, Work(kind, unit)) for unit in units)
        return PowerLaw(fixed, 0.0), PowerLaw(one - fixed, 1.0)

    def rounding(kind: str) -> tuple[PowerLaw, PowerLaw]:
        fixed, one = (costs.seconds(party, Work(kind, units)) for units in (0.0, float(config.embedding_size)))
        return PowerLaw(fixed, 0.0), PowerLaw(one - fixed, 1.0)

    compress, decompress = (rounding("compress"), rounding("decompress")) if config.cut_bits else ((), ())
    last = "active-step" if is_active else "bottom-backward"
    ahead = () if is_active else law("bottom-forward", updates=False)
    steps = [costs.seconds(party, Work(last, algorithm.operations(0, size, updates=updates))) for updates in (0, 1)]
    sums = [costs.seconds(party, Work("average", units)) for units in (0.0, float(size))]
    parameter_bytes = size * (8.0 if config.float64 else 4.0)
    return PartyProfile(
        role="active" if is_active else "passive",
        cores=num_cores,
        phases=(*ahead, *compress, *decompress, *law(last, updates=True)),
        memory_base=0.0,
        memory_per_batch=PowerLaw(0.0, 1.0),
        memory_available=1.0,
        sync_seconds=sums[1] - sums[0],
        step_seconds=steps[1] - steps[0],
        server_step_seconds=costs.seconds(party, Work("server-step", float(size))),
        parameter_bytes=parameter_bytes,
        local_latency=local.latency,
        local_bandwidth=local.bandwidth,
    )


def fit_affine(batch_sizes: Sequence[int], seconds: Seconds) -> tuple[tuple[PowerLaw, PowerLaw], float]:
    """Fit fixed + per_row B by least squares of relative errors; return both terms and the largest relative error."""
    design = np.stack([np.ones(len(seconds)), np.asarray(batch_sizes, np.float64)], axis=1)
    found, *_ = np.linalg.lstsq(design / seconds[:, None], np.ones(len(seconds)), rcond=None)
    found = np.maximum(found, 0.0)
    error = float(np.abs(design @ found / seconds - 1).max())
    return (PowerLaw(float(found[0]), 0.0), PowerLaw(float(found[1]), 1.0)), error


def fit_power_law(batch_sizes: Sequence[int], seconds: Seconds) -> tuple[PowerLaw, float]:
    """Fit lambda B^gamma by least squares of logarithms (Eqs. 6 to 8); return it and R^2."""
    x, y = np.log(batch_sizes), np.log(seconds)
    gamma, intercept = np.polyfit(x, y, 1)
    residual = y - gamma * x - intercept
    spread = float(y.var())
    return PowerLaw(float(np.exp(intercept)), float(gamma)), 1.0 - float(residual.var()) / spread if spread else 1.0


def _measure(
    config: PubSubVflConfig, data: VerticalPart, num_features: int, is_active: bool, repetitions: int
) -> dict[str, Seconds]:
    rng, optimizer = np.random.default_rng(0), config.step_rule
    bottom = Network(algorithm.bottom_spec(config, num_features), optimizer, 0)
    top = Network(algorithm.top_spec(config, data), optimizer, 0)
    found: dict[str, list[float]] = {}
    for size in BATCH_SIZES:
        shape = (_NUM_BATCHES, size)
        xs = itertools.cycle(rng.normal(size=(*shape, num_features)).astype(np.float32))
        zs = itertools.cycle(rng.normal(size=(*shape, config.embedding_size)).astype(np.float32))
        y = rng.integers(0, max(data.num_classes, 2), size=size)
        target = y.astype(np.float32) if data.task == "regression" else y

        def whole(xs: Batches = xs, zs: Batches = zs) -> None:
            publication = Publication(bottom.model, next(xs))
            algorithm.embed(publication)
            bottom.apply(algorithm.backward(publication, next(zs)))

        def top_step(zs: Batches = zs, target: NDArray[np.generic] = target) -> None:
            top.apply(loss_gradients(top.model, [next(zs) for _ in data.parties], target, data.task).gradient)

        def forward(xs: Batches = xs) -> None:
            algorithm.embed(Publication(bottom.model, next(xs)))

        ahead = _median(forward, repetitions)
        found.setdefault("forward", []).append(ahead)
        found.setdefault("backward", []).append(max(_median(whole, repetitions) - ahead, 1e-9))
        if is_active:
            found.setdefault("top", []).append(_median(top_step, repetitions))
    return {kind: np.asarray(values) for kind, values in found.items()}


def _median(action: Callable[[], object], repetitions: int) -> float:
    taken = []
    action()
    for _ in range(repetitions):
        start = time.thread_time()
        action()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)
