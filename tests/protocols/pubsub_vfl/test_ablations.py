"""The ablations of Table 4 take away what they say they take away."""

import dataclasses
import importlib
import math
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scenarios/paper/pubsub_vfl"
TINY = {"num_epochs": 2, "num_layers": 2, "hidden_size": 8, "embedding_size": 4, "batch_size": 32}
NAMES = ("_study", "_watch", "_planning", "ablations")


@pytest.fixture(scope="module")
def scripts():
    """The scripts' modules; other folders have modules of the same names."""
    before = {name: sys.modules.pop(name, None) for name in NAMES}
    sys.path.insert(0, str(SCRIPTS))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.remove(str(SCRIPTS))
    for name in NAMES:
        sys.modules.pop(name, None)
        if (module := before[name]) is not None:
            sys.modules[name] = module


@pytest.fixture(scope="module")
def rows(scripts):
    made = scripts["ablations"].points("breast-cancer", {"num_epochs": 2, "batch_size": 256}, 25_948)
    return {point.name: point for point in made}


@pytest.mark.slow
def test_the_planner_chooses_the_workers_and_its_ablation_takes_equal_numbers(scripts, rows):
    best = scripts["_planning"].choice({"batch_size": 256}, "breast-cancer", {"active": 50, "passive": 14}, 25_948)
    chosen = {"num_active_workers": best.num_active_workers, "num_passive_workers": best.num_passive_workers}
    assert best.num_active_workers != best.num_passive_workers
    assert best.num_active_workers <= 50
    assert best.num_passive_workers <= 14, "no more workers than cores"
    assert rows["0-all"].settings.items() >= chosen.items()
    equal = rows["2-without-planner"].settings
    assert equal["num_active_workers"] == equal["num_passive_workers"] == min(chosen.values())


@pytest.mark.slow
def test_each_row_differs_in_its_part_only(rows):
    whole = rows["0-all"].settings

    def changed(name):
        settings = rows[name].settings
        return {key for key in settings.keys() | whole.keys() if settings.get(key) != whole.get(key)}

    assert changed("1-without-deadline") == {"deadline"}
    assert changed("3-without-delta-t") == {"sync_schedule"}
    assert changed("5-without-deadline-and-delta-t") == {"deadline", "sync_schedule"}
    assert changed("4-without-pubsub") == {"algorithm", "push_every", "num_passive_workers"}


@pytest.mark.slow
def test_without_deadline_a_stalled_worker_keeps_its_batches(scripts, rows):
    def run(**changes):
        point = rows["0-all"]
        few = {"num_active_workers": 3, "num_passive_workers": 3, "max_in_flight": 12, "deadline": 0.02, "prefetch": 2}
        settings = {**point.settings, **TINY, **few, **changes}
        stalled = dataclasses.replace(point, settings=settings, speed={"passive/worker-1": 1e-3})
        return scripts["_study"].perform(stalled).metrics

    whole, without = run(), run(deadline=math.inf)
    assert whole["abandoned"] > 0
    assert without["abandoned"] == 0
    assert whole["epoch_seconds"] < without["epoch_seconds"]


@pytest.mark.slow
def test_training_seconds_leave_out_the_evaluation(scripts, rows):
    alone = {"algorithm": "vfl", "num_active_workers": 1, "num_passive_workers": 1}
    point = dataclasses.replace(rows["0-all"], settings={**rows["0-all"].settings, **TINY, **alone}, speed={})
    metrics = scripts["_study"].perform(point).metrics
    # embedding of the validation rows at both parties, one transfer, metrics: well below an epoch of 12 batches
    assert 0 < metrics["epoch_seconds"] - metrics["training_per_epoch"] < 0.2 * metrics["epoch_seconds"]
    assert 0 < metrics["training_utilisation"] < 2 / 64
