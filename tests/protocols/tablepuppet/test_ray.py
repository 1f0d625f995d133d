"""Every algorithm in processes of their own: the numbers and the bytes of the simulation."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pytest

from fedactors.config import build
from fedactors.data.databases import in_memory
from fedactors.data.layouts.vertical import stated
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime

pytestmark = pytest.mark.ray
CARDS = {
    1: "cards",
    2: "(SELECT * FROM north UNION ALL SELECT * FROM south)",
}


def shop(num_partitions):
    """Orders and cards, the cards in one place or in two."""
    rng = np.random.default_rng(0)
    orders = pa.table({"card": rng.integers(0, 30, 300), "amount": rng.normal(size=300), "y": rng.normal(size=300)})
    cards = pa.table({"card": np.arange(30), "age": rng.normal(size=30), "limit": rng.normal(size=30)})
    tables = {
        "orders": orders,
        **({"cards": cards} if num_partitions == 1 else {"north": cards[:15], "south": cards[15:]}),
    }
    return stated(
        f'SELECT y, amount, age, c."limit" FROM orders JOIN {CARDS[num_partitions]} c ON orders.card = c.card',
        {name: in_memory(rows) for name, rows in tables.items()},
        label="y",
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("rfl-admm-v", {}),
        ("rfl-admm-v", {"join_by": "tree"}),
        ("rfl-sgd-v", {"server_in": "orders"}),
        ("vfl-admm", {"admm": "paper_sgd", "local_epochs": 2}),
        ("vfl-sgd", {}),
        ("centralised", {"centralised": "sgd"}),
        ("rfl-sgd", {}),
        ("rfl-admm", {"model": "neural", "lbfgs_iterations": 5, "lou_coordinator": "organisation"}),
    ],
)
def test_ray_gives_the_numbers_and_the_bytes_of_the_simulation(algorithm, words, ray_cluster):
    from fedactors.runtime.ray.runtime import RayRuntime

    config = build(TablePuppetConfig, {"algorithm": algorithm, "num_rounds": 2, "batch_size": 128, "rho": 0.3, **words})
    data = shop(2 if algorithm in ("rfl-sgd", "rfl-admm") else 1)
    found = []
    for make in (SimulatedRuntime, functools.partial(RayRuntime, num_cpus=2)):
        recorder = MemoryRecorder()
        runtime = make(seed=0, recorder=recorder)
        result = runtime.execute(lambda runtime=runtime: run(config, data, runtime))  # type: ignore[misc]
        found.append((result, recorder.rounds, runtime.usage().bytes))
    (simulated, rounds, sent), (on_ray, rounds_on_ray, sent_on_ray) = found
    assert on_ray.metrics == pytest.approx(simulated.metrics, rel=1e-9)
    assert on_ray.extra["communication"] == simulated.extra["communication"]
    assert len(rounds) == len(rounds_on_ray) > 0
    for there, here in zip(rounds_on_ray, rounds, strict=True):
        assert there == pytest.approx(here, rel=1e-9)
    assert sent_on_ray == sent > 0
