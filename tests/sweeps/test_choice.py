import pytest

from fedactors.errors import BadInput
from fedactors.runs.table import RunRow
from fedactors.sweeps import Criterion, choose


def row(rate, seed, value, **more):
    return RunRow(
        protocol="p",
        seed=seed,
        config={"rate": rate},
        metrics={"validation/auc": value, "test/auc": 1 - value},
        digest=f"{rate} {seed}",
        **more,
    )


ROWS = [row(1, 0, 0.5), row(1, 1, 0.9), row(2, 0, 0.8), row(2, 1, 0.8), row(3, 0, 0.99), row(3, 1, 0.99)]
ROWS[5] = RunRow(protocol="p", seed=1, config={"rate": 3}, digest="3 1", status="failed", failure="diverged")
SETTINGS = {found.digest: found.config for found in ROWS}


def test_the_best_mean_of_settings_all_of_whose_seeds_finished():
    found = choose(ROWS, Criterion.parse("validation/auc:max"), SETTINGS)
    assert (found["settings"], found["mean"], found["seeds"]) == ({"rate": 2}, 0.8, [0, 1])
    assert found["settings_tried"] == 3
    assert [entry["mean"] for entry in found["tried"]] == [0.7, 0.8, None]
    assert choose(ROWS, Criterion.parse("validation/auc:min"), SETTINGS)["settings"] == {"rate": 1}


def test_a_metric_of_rounds_counts_by_its_best_round():
    rows = [
        RunRow(protocol="p", seed=0, config={"a": 1}, digest="1", curve={"validation/loss": [3.0, 1.0, 2.0]}),
        RunRow(protocol="p", seed=0, config={"a": 2}, digest="2", curve={"validation/loss": [1.5, None, 1.2]}),
    ]
    found = choose(rows, Criterion.parse("validation/loss:min"), {"1": {"a": 1}, "2": {"a": 2}})
    assert (found["settings"], found["mean"]) == ({"a": 1}, 1.0)


@pytest.mark.parametrize("text", ["auc", "auc:best", ":max"])
def test_how_a_choice_is_stated(text):
    with pytest.raises(BadInput, match="METRIC:max or METRIC:min"):
        Criterion.parse(text)


def test_nobody_chooses_on_test_rows_or_on_what_was_not_measured():
    with pytest.raises(BadInput, match="'test/accuracy' is not allowed: settings are chosen on validation"):
        Criterion.parse("test/accuracy:max")
    with pytest.raises(BadInput, match=r"no setting has 'f1' in all its runs \(there are validation/auc\)"):
        choose(ROWS, Criterion.parse("f1:max"), SETTINGS)
