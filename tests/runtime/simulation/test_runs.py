"""The simulated runtime: the same run each time, with any pool; many parties, many rounds, flat memory."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

from fedactors.network.links import Link, Network
from fedactors.runtime.compute import ProcessPool
from fedactors.runtime.interface import Costs
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import COSTS, Memory, Update, line, play, process_id, rounds_of_training

# --- the same each time ---


def record(**settings: Any) -> Memory:
    memory = Memory()
    settings.setdefault("network", Network(default=Link(latency=0.01, bandwidth=1e5)))
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, seed=5, **settings)
    runtime.execute(lambda: rounds_of_training(runtime))
    return memory


def test_two_runs_are_identical_to_the_byte() -> None:
    first, second = record(), record()
    assert len(first.rounds) == 10
    assert first.rounds == second.rounds
    assert first.spans == second.spans
    assert first.rows == second.rows
    assert [s for _, s, _ in first.snapshots] == [s for _, s, _ in second.snapshots]


def test_another_seed_gives_another_run() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, seed=6)
    runtime.execute(lambda: rounds_of_training(runtime))
    assert memory.rounds != record().rounds


@pytest.mark.parametrize("every", [0, 3])
def test_taking_snapshots_does_not_change_a_run(every: int) -> None:
    often, seldom = record(), record(checkpoint_every=every)
    assert often.rounds == seldom.rounds
    assert often.rows == seldom.rows
    assert len(seldom.snapshots) == (10 // every if every else 0)


@pytest.mark.slow
def test_pools_of_one_and_two_processes_give_the_same_run() -> None:
    inline = record()
    for workers in (1, 2):
        pooled = record(pool=workers)
        assert pooled.rounds == inline.rounds
        assert pooled.spans == inline.spans
        assert pooled.snapshots == inline.snapshots


@pytest.mark.slow
def test_computes_of_a_pool_run_in_other_processes() -> None:
    pool = ProcessPool(1)
    try:
        assert pool.submit(process_id, ()).result() != os.getpid()
    finally:
        pool.close()


# --- many parties, many rounds ---


@pytest.mark.slow
def test_a_thousand_parties() -> None:
    runtime = SimulatedRuntime(network=Network(default=Link(latency=0.001)))
    count = 1000

    async def main() -> None:
        names = [f"p{i:04d}" for i in range(count)]
        actors = [line(runtime, name) for name in names]
        await runtime.start()
        for _ in range(3):
            await asyncio.gather(*(a.relay_add(names[(i + 1) % count], 1) for i, a in enumerate(actors)))
        assert await asyncio.gather(*(a.add(0) for a in actors)) == [3] * count

    runtime.execute(main)
    assert runtime.ledger.messages() == 3 * count * 2
    assert runtime.usage().seconds == pytest.approx(3 * 0.002)


@pytest.mark.slow
def test_memory_stays_flat_over_many_rounds() -> None:
    runtime = SimulatedRuntime(network=Network(default=Link(latency=0.001)), costs=Costs({"step": (0.1, 0.0)}))
    grown: list[int] = []

    async def main() -> None:
        a, b = line(runtime, "a"), line(runtime, "b")
        await runtime.start()
        for index in range(3000):
            await a.relay("b", Update("a", index, np.zeros(100)))
            await b.work("step", 1.0)
            await a.impatient(0.01)
            if index in (500, 2999):
                grown.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        runtime.execute(main)
    finally:
        tracemalloc.stop()
    assert grown[1] - grown[0] < 300_000


def test_what_actors_hold_goes_when_the_run_ends() -> None:
    actors: list[weakref.ref[Any]] = []

    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.relay("b", Update("a", 0, np.zeros(100)))
        actors.extend(weakref.ref(context.actor) for context in runtime.contexts.values())

    gc.disable()
    try:
        play(drive)
        assert [ref() for ref in actors] == [None, None]
    finally:
        gc.enable()
