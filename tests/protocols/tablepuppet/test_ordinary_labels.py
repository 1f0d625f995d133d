"""Labels as people have them: far from zero, rare; when ADMM stops, how its penalty moves, what is told of a run."""

import functools

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import f1_score, r2_score, roc_auc_score

from fedactors.config import build
from fedactors.data.layouts.vertical import stated
from fedactors.errors import BadInput
from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.tablepuppet.test_run import in_memory

SQL = "SELECT * FROM visits JOIN homes ON visits.home = homes.home"
LABELS = {
    "300 and a little": ("regression", lambda signal, draw: 300 + 3 * signal),
    "a year": ("regression", lambda signal, draw: np.round(2001 + 10 * signal)),
    "one in 3,000": ("binary", lambda signal, draw: signal > np.quantile(signal, 1 - 1 / 3000)),
}


def visits(kind, partitions=1):
    task, label = LABELS[kind]
    num_rows = 60_000 if task == "binary" else 3000
    draw = np.random.default_rng(3)
    homes = pa.table({"home": np.arange(60), "size": draw.normal(size=60)})
    home = draw.integers(0, 60, num_rows)
    warmth = draw.normal(size=num_rows)
    signal = 0.7 * homes["size"].to_numpy()[home] + warmth + 0.3 * draw.normal(size=num_rows)
    rows = pa.table({"home": home, "warmth": warmth, "label": np.asarray(label(signal, draw)).astype(float)})
    if partitions == 1:
        return stated(SQL, in_memory(visits=rows, homes=homes), label="label", task=task)
    sql = "SELECT * FROM (SELECT * FROM one UNION ALL SELECT * FROM two) visits JOIN homes ON visits.home = homes.home"
    half = num_rows // 2
    halves = {"one": rows.slice(0, half), "two": rows.slice(half)}
    return stated(sql, in_memory(**halves, homes=homes), label="label", task=task)


@functools.cache
def trained(kind, partitions=1, **words):
    return train(kind, partitions, words)


def train(kind, partitions, words):
    recorder = MemoryRecorder()
    config = build(TablePuppetConfig, {"test_fraction": 0.3, **words})
    runtime = SimulatedRuntime(seed=0, recorder=recorder)
    return runtime.execute(lambda: run(config, visits(kind, partitions=partitions), runtime)), recorder.rounds


@pytest.mark.slow
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("algorithm", ["rfl-admm-v", "vfl-admm"])
def test_admm_by_default_comes_near_the_centralised_model(kind, algorithm):
    central, _ = trained(kind, algorithm="centralised")
    found, _ = trained(kind, algorithm=algorithm, num_rounds=30)
    gap = central.metrics["test/trivial_loss"] - central.metrics["test/loss"]
    assert gap > 0
    # of a rare class the optimum is far away: thirty rounds order the rows as well, and go on towards it
    share = 0.5 if kind.startswith("one") else 0.999
    assert central.metrics["test/trivial_loss"] - found.metrics["test/loss"] > share * gap
    if kind.startswith("one"):
        assert found.metrics["test/auc"] > central.metrics["test/auc"] - 0.001
        slow, _ = trained(kind, algorithm=algorithm, num_rounds=30, rho=1.0)
        assert central.metrics["test/trivial_loss"] - slow.metrics["test/loss"] < 0.1 * gap


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(LABELS)[:2])
def test_sgd_begins_at_the_mean(kind):
    words = {"algorithm": "rfl-sgd-v", "batch_size": 10_240}  # a step an epoch, too few to get there from 0
    found, _ = trained(kind, **words)
    assert found.metrics["test/rmse"] < 0.8 * found.metrics["test/trivial_rmse"]
    apart, _ = trained(kind, **words, centre_labels=False)
    assert apart.metrics["test/rmse"] > 10 * found.metrics["test/rmse"]


@pytest.mark.slow
def test_a_run_stops_when_both_residuals_are_small():
    whole, rounds = trained("a year", num_rounds=60)
    found, short = trained("a year", num_rounds=60, tolerance=1e-4)
    assert found.rounds == len(short) < 60
    last = short[-1]
    assert max(last["primal_residual"], last["dual_residual"]) <= 1e-4
    assert all(max(one["primal_residual"], one["dual_residual"]) > 1e-4 for one in short[:-1])
    assert found.metrics["test/rmse"] == pytest.approx(whole.metrics["test/rmse"], rel=1e-3)
    assert rounds[: len(short) // 2] == short[: len(short) // 2]
    with pytest.raises(BadInput, match=r"tolerance: 0\.1 is not allowed for rfl-sgd-v"):
        build(TablePuppetConfig, {"algorithm": "rfl-sgd-v", "tolerance": 0.1})


@pytest.mark.slow
def test_the_penalty_falls_where_positives_are_rare_and_stays_where_it_was_given():
    _, rounds = trained("one in 3,000", num_rounds=30, rho="auto")
    assert rounds[0]["rho"] == 1.0
    assert rounds[-1]["rho"] < 0.2
    assert len({one["rho"] for one in rounds[15:]}) == 1  # it moves in the first half alone
    _, fixed = trained("one in 3,000", num_rounds=4, rho=1.0)
    assert {one["rho"] for one in fixed} == {1.0}
    _, exact = trained("a year", num_rounds=4, admm="paper_exact")
    assert {one["rho"] for one in exact} == {1.0}


@pytest.mark.slow
def test_a_penalty_that_moves_reaches_tables_of_several_partitions():
    one, rounds = trained("one in 3,000", num_rounds=12, rho="auto")
    two, parts = trained("one in 3,000", 2, algorithm="rfl-admm", num_rounds=12, inner_rounds=60, rho="auto")
    assert len({each["rho"] for each in rounds}) > 2
    assert len({each["rho"] for each in parts}) > 2
    # other rows are kept for the test: two samples of the same visits, of twenty positives each
    assert two.metrics["test/auc"] == pytest.approx(one.metrics["test/auc"], abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("kind", ["300 and a little", "one in 3,000"])
def test_scores_beside_the_main_one(kind, partitions):
    words = {"algorithm": "rfl-admm"} if partitions == 2 else {}
    found, _ = trained(kind, partitions, num_rounds=5, **words)
    names = {"r2", "mae"} if kind.startswith("300") else {"f1", "auc"}
    assert {f"test/{name}" for name in names} <= found.metrics.keys()
    assert found.metrics["test/r2" if kind.startswith("300") else "test/auc"] > 0.8


@pytest.mark.slow
def test_under_label_noise_no_more_is_told_of_test_labels():
    found, _ = trained("one in 3,000", num_rounds=2, label_dp=0.5)
    assert not {"test/auc", "test/f1"} & found.metrics.keys()


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_tallies_of_parts_add_up_to_the_scores_of_the_whole(loss):
    draw = np.random.default_rng(0)
    y = draw.normal(size=90) if loss == "squared" else draw.integers(0, 3 if loss == "softmax" else 2, 90)
    h = np.round(draw.normal(size=(90, 3 if loss == "softmax" else 1)), 1)  # with ties
    ranks = algorithm.ranks_of(loss, h)
    given = ranks if len(ranks) else np.zeros(90, dtype=np.int64)
    parts = [algorithm.tally_rows(loss, h[index], y[index], given[index]) for index in np.array_split(np.arange(90), 4)]
    found = algorithm.more_scores(loss, sum(parts), 90)
    if loss == "squared":
        assert found["r2"] == pytest.approx(r2_score(y, h[:, 0]))
        assert found["mae"] == pytest.approx(np.mean(np.abs(y - h[:, 0])))
    elif loss == "logistic":
        assert found["auc"] == pytest.approx(roc_auc_score(y, h[:, 0]))
        assert found["f1"] == pytest.approx(f1_score(y, h[:, 0] > 0))
    else:
        assert found["f1"] == pytest.approx(f1_score(y, h.argmax(axis=1), average="macro"))


def test_scores_that_are_not_defined_are_left_out():
    ones, h = np.ones(4), np.arange(4.0)[:, None]
    tally = algorithm.tally_rows("logistic", h, ones, algorithm.ranks_of("logistic", h))
    assert "auc" not in algorithm.more_scores("logistic", tally, 4)
    assert "r2" not in algorithm.more_scores(
        "squared", algorithm.tally_rows("squared", h, ones, np.zeros(0, dtype=np.int64)), 4
    )


def test_residuals_are_those_of_the_definition():
    draw = np.random.default_rng(1)
    y, total, dual, before = draw.normal(size=8), *(draw.normal(size=(8, 1)) for _ in range(3))
    z = algorithm.update_z("squared", y, dual, total, 0.5)
    args = ([y], [dual], [total], 0.5, [before], [np.ones(1)], lambda parts: float(np.linalg.norm(parts[0])))
    (updated,), _, (found,), residuals = algorithm.admm_server_round("squared", *args)
    np.testing.assert_allclose(found, z)
    assert residuals.primal == pytest.approx(np.linalg.norm(total - z))
    assert residuals.dual == pytest.approx(0.5 * np.linalg.norm(z - before))
    assert residuals.dual_scale == pytest.approx(np.linalg.norm(updated))
    assert residuals.primal_scale == pytest.approx(max(np.linalg.norm(total - 1), np.linalg.norm(z - 1)))
    for above, below, scale, rho in (
        (9.0, 1.0, 1.0, 3.0),
        (3.0, 1.0, 1.0, 1.0),
        (9.0, 1.0, 4.0, 1.0),
        (1.0, 16.0, 1.0, 0.25),
        (1.0, 1e9, 1.0, 0.1),
        (0.0, 0.0, 1.0, 1.0),
    ):
        assert algorithm.Residuals(above, below, scale, 1.0).balanced(1.0) == pytest.approx(rho)


@pytest.mark.slow
def test_sgd_by_default_takes_ten_steps_an_epoch_of_few_rows():
    found, _ = trained("300 and a little", algorithm="rfl-sgd-v")
    large, _ = trained("300 and a little", algorithm="rfl-sgd-v", batch_size=10_240, num_rounds=10)
    best, _ = trained("300 and a little", algorithm="centralised")
    assert found.metrics["test/rmse"] < 1.01 * best.metrics["test/rmse"]
    assert large.metrics["test/rmse"] > 1.5 * best.metrics["test/rmse"]  # the paper's batch holds all rows


@pytest.mark.parametrize(("rows", "size"), [(3, 1), (2550, 255), (102_399, 10_239), (10**9, 10_240)])
def test_a_batch_is_a_tenth_of_the_rows_at_most(rows, size):
    assert build(TablePuppetConfig, {"algorithm": "rfl-sgd-v"}).batch_of(rows) == size
    assert build(TablePuppetConfig, {"algorithm": "rfl-sgd-v", "batch_size": 5000}).batch_of(rows) == 5000
