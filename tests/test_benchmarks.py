"""Every script under scenarios/benchmarks runs to its end in a tiny form, as a user runs it, so that none can rot."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.databases import postgres, postgres_address  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "scenarios" / "benchmarks"
SMALL_GRAPH = "blocks:60x8x4"
pytestmark = [pytest.mark.walk, pytest.mark.slow]


@dataclass(frozen=True)
class Tiny:
    """The words of a script's tiny form, and what it needs: Ray, downloaded data, a module."""

    words: str
    ray: bool = False
    data: str = ""
    module: str = ""


TINY: dict[str, tuple[Tiny, ...]] = {
    "combined_adversary": (Tiny("--smoke --only glasu --out made"),),
    "batched_clients": (Tiny("--clients 16 --samples 20 --models cnn8"),),
    "clients_on_ray": (Tiny("--data digits --clients 6 --samples 20 --rounds 3 --repeats 1 --each 2", ray=True),),
    "compute_costs": (Tiny("--repetitions 1 --output made.json"),),
    "local_transport": (Tiny("262144"),),
    "defaults": (
        Tiny("--smoke --only /iris"),
        Tiny("--smoke --only pubsub-vfl/iris num_epochs=2 max_in_flight=5"),
        Tiny("--smoke --only tablepuppet/orders-2000-regression"),
    ),
    "fleet": (
        Tiny("messages --sizes 8000 --repeats 1 --seconds 0.1"),
        Tiny("rounds --sizes 1000000 --sites 20 --aggregators 0,2"),
    ),
    "glasu_against_pyg": (Tiny(f"{SMALL_GRAPH} 0", module="torch_geometric"),),
    "glasu_large": (Tiny("--simulated 2000 8000 4 8 1024"),),
    "glasu_speed": (
        Tiny(f"step {SMALL_GRAPH}"),
        Tiny(f"one-update {SMALL_GRAPH}"),
        Tiny(f"inference {SMALL_GRAPH}", ray=True),
    ),
    "gpu": (Tiny("--smoke --device cpu --only glasu,clients"),),
    "many_clients": (Tiny("--data digits --clients 4 --samples 20 --rounds 3 --repeats 1 --models linear"),),
    "mtcd_hops": (
        Tiny("--clients 20 --features 3 --samples 50 --hops 9 --rounds 3 --repeats 1 --local-steps 1"),
        Tiny("--clients 20 --features 3 --samples 50 --hops 9 --rounds 3 --repeats 1 --algorithm mtcd"),
    ),
    "mtcd_overlap": (Tiny("--smoke --out made", ray=True),),
    "nebulafl_containers": (Tiny("--seconds 1 --repeats 1 --data digits", ray=True),),
    "nebulafl_speed": (Tiny("overhead --containers 20 --per-round 5 --rounds 1", data="fashion_mnist"),),
    "nebulafl_batched_clients": (Tiny("--smoke"),),
    "online": (Tiny("--requests 20 --rows 120 --clients 2"),),
    "reading": (Tiny("2000"), Tiny("wide 30")),
    "large_messages": (Tiny("--gib 0.1"),),
    "large_tables": (Tiny("horizontal 3000 4"), Tiny("tablepuppet 3000 4")),
    "private_averaging": (Tiny("--smoke --only digits/fixed"),),
    "planner": (Tiny("--smoke --out made"),),
    "postgres_reading": (),  # `test_reads_a_table_of_postgresql`
    "privacy_audits": (Tiny("--smoke --only glasu --out made"),),
    "pubsub_bank": (Tiny("--epochs 2", ray=True, data="bank"),),
    "pubsub_pipeline": (Tiny("--epochs 2 --rows 2000 --windows 4", ray=True),),
    "secure_sums": (Tiny("--smoke --only horizontal,alone --out made"),),
    "simulated_messages": (Tiny("--smoke", ray=True),),
    "sites": (Tiny("--without-bank"),),
    "tablepuppet_mapping": (Tiny("--smoke"),),
    "tablepuppet_training": (Tiny("--smoke"),),
    "tablepuppet_tree": (Tiny("--smoke"),),
    "targets": (Tiny("indoors --smoke", data="energy"),),
}
"""By script; one that is not here fails `test_each_has_a_tiny_form`."""


def finished(script: str, words: list[str], folder: Path) -> str:
    """Run a script in an empty folder to its end; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{script}.py"), *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} <= {"made", "made.json"}, "it writes elsewhere than told"
    return done.stdout


def test_each_has_a_tiny_form() -> None:
    assert sorted(TINY) == sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.drawn(3, subjects=["scenarios/benchmarks/{script}.py"])
@pytest.mark.parametrize(
    ("script", "tiny"),
    [
        pytest.param(
            script, tiny, marks=[pytest.mark.ray] if tiny.ray else [], id=f"{script} {tiny.words.split(' ')[0]}"
        )
        for script, forms in TINY.items()
        for tiny in forms
    ],
)
def test_runs_to_its_end(script: str, tiny: Tiny, tmp_path: Path) -> None:
    if tiny.module and importlib.util.find_spec(tiny.module) is None:
        pytest.skip(f"{tiny.module} is not installed")
    if tiny.data and not (Path(os.environ.get("FEDACTORS_DATA", "-")) / tiny.data).is_dir():
        pytest.skip(f"{tiny.data} is not here: FEDACTORS_DATA")
    assert finished(script, tiny.words.split(), tmp_path).strip(), "it says nothing"


@pytest.mark.drawn(1, of=4, subjects=["scenarios/benchmarks/postgres_reading.py"])
def test_reads_a_table_of_postgresql(postgres: tuple[str, int], tmp_path: Path) -> None:  # noqa: F811
    import psycopg

    address = postgres_address(postgres)
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE reading AS SELECT i AS id, random() AS x FROM generate_series(1, 100) i")
    assert finished("postgres_reading", [f"{address}?table=reading"], tmp_path).startswith("100 rows")
