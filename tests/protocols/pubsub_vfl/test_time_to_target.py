"""The comparison of times to a target: AUC rises, RMSE falls, and as many settings of each method are tried."""

import dataclasses
import importlib
import os
import sys
from pathlib import Path

import pytest

from fedactors.runs.table import RunRow
from tests.protocols.pubsub_vfl.runs import simulate

SCRIPTS = Path(__file__).resolve().parents[3] / "scenarios/paper/pubsub_vfl"
NAMES = ("_watch", "_ratios", "time_to_target")


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


def row_of(data: str, score: str, values: list[float], **metrics: float) -> RunRow:
    """A run that was looked at every second from the first on; of a regression from the beginning."""
    first = 0 if score == "rmse" else 1
    seconds = [float(first + index) for index in range(len(values))]
    return RunRow(protocol="vfl", seed=0, data=data, metrics=metrics, curve={"seconds": seconds, score: values})


def test_an_auc_rises_to_its_target_from_one_half(scripts):
    crossing = scripts["time_to_target"].crossing
    row = row_of("bank", "auc", [0.75, 0.7, 0.9])
    assert crossing(row, 0.625) == pytest.approx(0.5)
    assert crossing(row, 0.8) == pytest.approx(2.5)
    assert crossing(row, 0.95) is None


def test_an_rmse_falls_to_its_target_from_that_of_the_untrained_model(scripts):
    crossing = scripts["time_to_target"].crossing
    row = row_of("blog-log1p", "rmse", [1.2, 1.0, 1.1, 0.8])
    assert crossing(row, 1.1) == pytest.approx(0.5)
    assert crossing(row, 1.0) == pytest.approx(1.0)
    assert crossing(row, 0.95) == pytest.approx(2.5)
    assert crossing(row, 0.75) is None


def test_a_run_ranks_by_targets_reached_then_by_times_then_by_its_best_score(scripts):
    rank, (high, middle, _) = scripts["time_to_target"].rank, scripts["time_to_target"].TARGETS["blog-log1p"]
    name_of = scripts["_watch"].name_of
    two = {name_of(high): 1.0, name_of(middle): 9.0, "best_rmse": 0.84}
    runs = [two, {name_of(high): 0.5, "best_rmse": 0.86}, {name_of(high): 0.7, "best_rmse": 0.8}]
    runs += [{"best_rmse": 0.95}, {"best_rmse": 1.0}]
    ranks = [rank([row_of("blog-log1p", "rmse", [1.0], **metrics)], "blog-log1p") for metrics in runs]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
    bank = [rank([row_of("bank", "auc", [0.6], best_auc=best)], "bank") for best in (0.8, 0.6)]
    assert bank == sorted(bank)
    # over several seeds the targets of all count, before the times
    steady, lucky = [runs[1], runs[1]], [two, {"best_rmse": 0.99}]
    many = [[row_of("blog-log1p", "rmse", [1.0], **metrics) for metrics in found] for found in (steady, lucky)]
    assert rank(many[0], "blog-log1p") < rank(many[1], "blog-log1p")
    assert rank([*many[1], many[0][0]], "blog-log1p") < rank(many[0], "blog-log1p")


def test_a_ratio_is_of_times_to_the_same_error_and_tells_who_did_not_get_there(scripts):
    ratio_row, name_of = scripts["time_to_target"].ratio_row, scripts["_watch"].name_of
    quick = row_of("blog-log1p", "rmse", [1.2, 0.8], **{name_of(0.9): 1.0})
    slow = row_of("blog-log1p", "rmse", [1.2, 1.0, 0.8], **{name_of(0.9): 2.0})
    never = row_of("blog-log1p", "rmse", [1.2, 1.1])
    ours = [dataclasses.replace(quick, seed=seed) for seed in (0, 1, 2)]
    theirs = [slow, dataclasses.replace(slow, seed=1), dataclasses.replace(never, seed=2)]
    metrics = ratio_row(ours, theirs, 0.9).metrics
    assert metrics["ratio"] == pytest.approx(0.75 / 1.5)
    assert metrics["ratio_of_looks"] == pytest.approx(0.5)
    assert (metrics["ours_censored"], metrics["theirs_censored"], metrics["n"]) == (0, 1, 3)


@pytest.mark.parametrize("name", ["grid", "link_grid"])
def test_as_many_settings_of_each_method_are_tried(scripts, name):
    study = scripts["time_to_target"]
    labels = {m: [study.label(chosen) for chosen in getattr(study, name)(m)] for m in study.METHODS}
    assert {len(set(found)) for found in labels.values()} == {6 if name == "grid" else 8}
    assert {len(found) for found in labels.values()} == {6 if name == "grid" else 8}


@pytest.mark.slow
def test_the_untrained_error_is_looked_at_and_no_target_is_reached_before_its_error_is(scripts):
    if not os.environ.get("FEDACTORS_DATA"):
        pytest.skip("FEDACTORS_DATA is not set")
    watch = scripts["_watch"]
    tiny = {"num_layers": 2, "hidden_size": 8, "embedding_size": 4, "batch_size": 256, "learning_rate": 0.01}
    settings = {**tiny, "algorithm": "vfl", "num_epochs": 2}
    row = watch.watch(watch.Watched(data="energy", settings=settings, targets=(90.0, 1.0)), 0)
    seconds, errors = row.curve["seconds"], row.curve["rmse"]
    # an optimiser that hardly steps leaves the model untrained: the run's own evaluation is the oracle
    config = {**tiny, "algorithm": "vfl", "num_epochs": 1, "learning_rate": 1e-12}
    untrained = simulate("energy", **config).recorder.rounds[-1]["validation/rmse"]
    assert (seconds[0], errors[0]) == (0.0, pytest.approx(untrained, rel=1e-5))
    trained = simulate("energy", **{**tiny, "algorithm": "vfl", "num_epochs": 2}).recorder.rounds[-1]["validation/rmse"]
    assert errors[-1] == pytest.approx(trained, rel=0.02)
    assert row.metrics["best_rmse"] == min(errors)
    reached = row.metrics[watch.name_of(90.0)]
    assert [error > 90.0 for error, at in zip(errors, seconds, strict=True) if at < reached] == [True] * (
        seconds.index(reached)
    )
    assert errors[seconds.index(reached)] <= 90.0 < errors[0]
    assert row.censored == (watch.name_of(1.0),)


def test_a_setting_for_one_target_reaches_it_with_most_seeds_then_first_and_else_is_the_best_of_all(scripts):
    study, name_of = scripts["time_to_target"], scripts["_watch"].name_of
    low, high, top = study.TARGETS["bank"]

    def tried(method: str, index: int, values: list[float], **metrics: float) -> RunRow:
        name = f"{method}-{study.label(study.grid(method)[index])}"
        return dataclasses.replace(row_of("bank", "auc", values, **metrics), name=name)

    class Given:
        table = "table"
        leave = 0

        def rows(self, table: str, name: str) -> list[RunRow]:
            assert table == "tune-bank"
            made = [
                dataclasses.replace(tried("avfl", 0, [low - 0.1] * 3, best_auc=low - 0.1), seed=1),
                tried("avfl", 0, [low - 0.01, high, high], **{name_of(low): 2.0, name_of(high): 2.0}),
                tried("avfl", 1, [low, low, low], **{name_of(low): 1.0}),
                dataclasses.replace(tried("avfl", 1, [low, low, low], **{name_of(low): 1.0}), seed=1),
                tried("avfl", 2, [low + 0.01, low, low], **{name_of(low): 1.0}),
                dataclasses.replace(tried("avfl", 2, [low - 0.1] * 3, best_auc=low - 0.1), seed=1),
                tried(study.OURS, 2, [low, high, high], **{name_of(low): 1.0, name_of(high): 2.0}),
            ]
            return [row for row in made[self.leave :] if row.name == name]

    avfl, ours = study.grid("avfl"), study.grid(study.OURS)
    assert study.tuned_to(Given(), "bank", low) == {"avfl": avfl[1], study.OURS: ours[2]}
    assert study.tuned_to(Given(), "bank", high) == {"avfl": avfl[0], study.OURS: ours[2]}
    assert study.tuned_to(Given(), "bank", top) == study.tuned(Given(), "bank")
    partly = Given()
    partly.leave = 1
    with pytest.raises(SystemExit, match="settings of avfl have not as many seeds"):
        study.tuned(partly, "bank")


def test_with_the_network_of_the_defaults_the_defaults_stand_beside_what_was_chosen_and_what_sets_nothing(scripts):
    study, name_of = scripts["time_to_target"], scripts["_watch"].name_of
    target = study.TARGETS["bank"][0]
    seconds = {"confirm-skip-bank": (4.0, 5.0, 2.0, 3.0, 1.0), "defaults-bank": (8.0, None, 6.0, None, 3.0)}

    class Given:
        table = "table"
        paper = False

        def rows(self, table: str, name: str) -> list[RunRow]:
            if table == "tune-skip-bank":
                made = row_of("bank", "auc", [target], **{name_of(target): 1.0})
                return [made] if name.startswith((study.OURS, "vfl-w01")) else []
            took = seconds[table][study.METHODS.index(name)]
            made = row_of("bank", "auc", [target], **{name_of(target): took})
            return [dataclasses.replace(made, curve={"seconds": [took], "auc": [target]})]

    same, plain = study._same_network(Given(), "bank")
    ratios = {name: row.metrics["ratio"] for name, row in (same | plain).items() if name.startswith(f"{target:g}-")}
    assert ratios[f"{target:g}-vfl-ps"] == pytest.approx(1 / 5)
    assert ratios[f"{target:g}-best (avfl)"] == pytest.approx(1 / 2)
    assert ratios[f"{target:g}-chosen"] == pytest.approx(3.0)
    assert ratios[f"{target:g}-best chosen (avfl)"] == pytest.approx(3 / 2)
    assert ratios[f"{target:g}-best by defaults (avfl)"] == pytest.approx(1 / 2)
    chosen = study.points(Given(), "confirm-skip", "bank")[study.OURS].settings
    assert (chosen["model"], chosen["num_layers"], chosen["schedule"]) == ("skip", 2, "constant")
    defaults = study.points(Given(), "defaults", "bank")
    assert defaults["avfl"].settings == {"algorithm": "avfl", "local_baseline": False}


def test_what_was_tried_for_the_defaults_has_its_median_times_and_ratios_to_the_defaults_on_each_link(scripts):
    study, name_of = scripts["time_to_target"], scripts["_watch"].name_of
    low, high, top = study.TARGETS["bank"]
    first, second, *_ = study.tried_defaults()
    near, far, _ = (study.link_name(*link) for link in study.TRIED_LINKS)
    seconds: dict[str, dict[float, tuple[float | None, ...]]] = {
        study.OURS: {low: (1.0, 2.0, 4.0), high: (1.0, 1.0, 1.0), top: (1.0, 1.0, 1.0)},
        f"{near}{second}": {low: (2.0, 6.0, 4.0), high: (1.0, 1.0, 5.0), top: (None, 3.0, None)},
        f"{far}{first}": {low: (2.0, 2.0, 8.0), high: (3.0, 3.0, 3.0), top: (4.0, 5.0, 6.0)},
        f"{far}{second}": {low: (1.0, 3.0, 4.0), high: (6.0, 3.0, 6.0), top: (None, None, 3.0)},
    }

    class Given:
        def rows(self, table: str, name: str) -> list[RunRow]:
            assert table == ("confirm-skip-bank" if name == study.OURS else "defaults-tried-bank")
            found = []
            for seed in range(3) if name in seconds else ():
                taken = {target: values[seed] for target, values in seconds[name].items()}
                reached = {target: value for target, value in taken.items() if value is not None}
                curve = {"seconds": list(reached.values()), "auc": list(reached)}
                row = row_of("bank", "auc", [low], **{name_of(target): value for target, value in reached.items()})
                found.append(dataclasses.replace(row, seed=seed, curve=curve))
            return found

    times = study._times_of_tried(Given(), "bank")
    assert list(times) == [f"{far}{first}", f"{far}{second}"]
    assert set(times[f"{far}{first}"].metrics.values()) == {2.0, 3.0, 5.0, 1.0}
    row = times[f"{far}{second}"]
    assert row.metrics[name_of(low)] == 3.0
    assert row.metrics[f"ratio_to_{low:g}"] == 0.5
    assert row.metrics[f"ratio_to_{high:g}"] == 2.0
    # two of three seeds never reach the last target: neither its median nor its ratio is a number
    assert row.censored == (name_of(top), f"ratio_to_{top:g}")

    ratios = study._tried_over_chosen(Given(), "bank")
    assert list(ratios) == [f"{target:g}-{second}" for target in (low, high, top)]
    assert [row.metrics.get("ratio") for row in ratios.values()] == [2.0, 1.0, None]
    last = ratios[f"{top:g}-{second}"]
    assert last.metrics["ours_censored"] == 2
    # in this order always: a table written again is the same
    assert last.censored == ("ratio", "high", "ours", "ratio_of_looks")


def test_what_was_tried_for_the_defaults_is_run_as_the_defaults_are_on_each_link(scripts):
    study = scripts["time_to_target"]
    made = study.points(None, "defaults-tried", "bank")
    assert len(made) == len(study.TRIED_LINKS) * len(study.TRIED_DEFAULTS)
    assert {(point.gigabits, point.latency) for point in made.values()} == set(study.TRIED_LINKS)
    allowed = {"algorithm", "local_baseline", "batch_size", "learning_rate", "max_in_flight"}
    assert all(set(point.settings) <= allowed for point in made.values())
    near = made["1-gbit-0.5-ms-pubsub-vfl-w01-b0128-lr0.006-5-in-flight"].settings
    assert (near["batch_size"], near["learning_rate"], near["max_in_flight"]) == (128, 0.006, 5)
