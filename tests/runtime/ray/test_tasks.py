"""A function's calls as tasks of a cluster."""

from __future__ import annotations

import pytest

from fedactors.errors import BadInput
from fedactors.options import RunOptions
from fedactors.plugins import find_protocol
from fedactors.runtime.ray.jobs import run_on_cluster
from fedactors.sweeps import plan, sweep
from tests import sweeping

pytestmark = pytest.mark.ray


def never(argument, why):
    raise AssertionError(f"{argument}: {why}")


def test_results_come_and_a_lost_task_takes_only_its_argument_with_it(ray_cluster):
    found = dict(run_on_cluster(sweeping.double, [3, 4, 5], address=None, when_lost=never))
    assert found == {0: 6, 1: 8, 2: 10}
    lost = {}
    found = dict(
        run_on_cluster(
            sweeping.die_at_two, [1, 2, 3], address=None, when_lost=lambda argument, why: lost.setdefault(argument, why)
        )
    )
    assert (found[0], found[2]) == (2, 6)
    assert lost == {2: found[1]}
    assert found[1].startswith("its process was lost: ")


def test_an_error_of_the_function_reaches_the_caller(ray_cluster):
    with pytest.raises(ValueError, match="1 is not liked"):
        list(run_on_cluster(sweeping.refuse, [1], address=None, when_lost=never))


def test_a_sweep_on_a_cluster_gives_the_rows_of_one_here(ray_cluster, tmp_path):
    settings = [
        {"num_layers": 2, "hidden_size": 8, "embedding_size": 4, "num_epochs": 1, "batch_size": b} for b in (32, 64)
    ]
    trials = plan(find_protocol("pubsub-vfl"), settings, RunOptions(runtime="simulated"))
    there = sweep(trials, tmp_path / "there" / "t.parquet", address="auto").rows
    here = sweep(trials, tmp_path / "here" / "t.parquet").rows
    for one, other in zip(there, here, strict=True):
        assert one.status == "finished", one.failure
        assert {**one.as_dict(), "wall_seconds": 0} == {**other.as_dict(), "wall_seconds": 0}


def test_runs_on_ray_are_no_tasks_of_a_cluster(tmp_path):
    trials = plan(find_protocol("pubsub-vfl"), [{}], RunOptions(runtime="ray"))
    with pytest.raises(BadInput, match="--address: needs --runtime simulated"):
        sweep(trials, tmp_path / "t.parquet", address="auto")
