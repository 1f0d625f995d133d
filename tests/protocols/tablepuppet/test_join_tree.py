"""Whole runs whose sums travel along the join tree: the numbers of the listed join, and what is refused."""

import numpy as np
import pyarrow as pa
import pytest

from fedactors.config import build
from fedactors.data.join import EmptyJoinError
from fedactors.data.layouts.vertical import stated
from fedactors.errors import BadInput
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.data import loss_of
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.snapshots import unseal
from tests.arrays import arrays_in
from tests.protocols.tablepuppet.test_run import execute, in_memory

SQL = "SELECT * FROM visits JOIN offers ON visits.town = offers.town JOIN users ON visits.user = users.user"
PARTED = SQL.replace("FROM visits", "FROM (SELECT * FROM early UNION ALL SELECT * FROM late) visits")


def many_to_many(num_rows=240, towns=8, parted=False, far=300.0):
    """Return tables whose join has many times their rows, of which some do not join."""
    rng = np.random.default_rng(5)
    user, age = rng.integers(0, 12, num_rows), rng.normal(size=10)
    town, length = rng.integers(0, towns + 1, num_rows), rng.normal(size=num_rows)
    spent = far + 2 * length + age[np.minimum(user, 9)] + 0.3 * rng.normal(size=num_rows)
    visits = pa.table({"town": town, "user": user, "length": length, "spent": spent})
    offers = pa.table({"town": rng.integers(0, towns, 90), "price": rng.normal(size=90)})
    users = pa.table({"user": np.arange(10), "age": age})
    if not parted:
        return stated(SQL, in_memory(visits=visits, offers=offers, users=users), label="spent")
    half = num_rows // 2
    halves = {"early": visits.slice(0, half), "late": visits.slice(half)}
    return stated(PARTED, in_memory(**halves, offers=offers, users=users), label="spent")


def settings(**words):
    return build(
        TablePuppetConfig, {"num_rounds": 4, "local_baseline": False, "test_fraction": 0.3, "model": "linear", **words}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "parted"),
    [
        ({}, False),
        ({"rho": 0.3, "admm": "paper_exact", "num_rounds": 2}, False),
        ({"admm": "paper_sgd", "centre_labels": False}, False),
        ({"model": "neural", "hidden_size": 3, "rho": 1.0}, False),
        ({"algorithm": "rfl-admm"}, True),
        ({"algorithm": "rfl-admm", "lou_coordinator": "organisation", "server_in": "offers"}, True),
        ({"label_dp": 0.5, "label_range": (290, 310)}, False),
    ],
)
def test_the_tree_gives_the_numbers_of_the_listed_join(words, parted):
    noise = {"reproducible_noise": True} if "label_dp" in words else {}
    data = many_to_many(parted=parted)
    listed, listed_rounds, listed_runtime = execute(settings(join_by="rows", **words), data, **noise)
    found, found_rounds, runtime = execute(settings(join_by="tree", **words), data, **noise)
    assert listed.metrics.keys() - found.metrics.keys() <= {"test/mae"}
    assert found.metrics == pytest.approx({k: listed.metrics[k] for k in found.metrics}, rel=1e-8)
    assert len(found_rounds.rounds) == len(listed_rounds.rounds)
    for ours, theirs in zip(found_rounds.rounds, listed_rounds.rounds, strict=True):
        assert ours == pytest.approx({k: theirs[k] for k in ours}, rel=1e-7, abs=1e-12)
    for name in ("joined_rows", "joined_test_rows", "rows", "rows_that_join", "rows_with_null_keys"):
        assert found.extra[name] == listed.extra[name]
    assert runtime.usage().bytes < listed_runtime.usage().bytes  # outputs of label rows, not of joined rows


@pytest.mark.slow
def test_auto_lists_a_join_that_is_about_as_large_as_its_tables_and_no_other():
    small, _, _ = execute(settings(join_by="auto"), many_to_many(towns=200))
    large, _, _ = execute(settings(join_by="auto"), many_to_many())
    assert small.extra["joined_rows"] < 4 * sum(small.extra["rows"].values())
    assert "test/mae" in small.metrics
    assert large.extra["joined_rows"] + large.extra["joined_test_rows"] > 4 * sum(large.extra["rows"].values())
    assert "test/mae" not in large.metrics
    assert "test/r2" in large.metrics


@pytest.mark.slow
def test_a_join_that_cannot_be_listed_is_trained_on():
    num_rows = 60_000  # of one key: 3.6e9 joined rows, more than a row number can count
    rng = np.random.default_rng(0)
    length, price = rng.normal(size=num_rows), rng.normal(size=num_rows)
    zeros = np.zeros(num_rows, np.int64)
    sql = "SELECT * FROM visits JOIN offers ON visits.town = offers.town"
    tables = {
        "visits": pa.table({"town": zeros, "length": length, "spent": 5 + length}),
        "offers": pa.table({"town": zeros, "price": price}),
    }
    data = stated(sql, in_memory(**tables), label="spent")
    result, _, _ = execute(settings(num_rounds=20), data)
    assert result.extra["joined_rows"] + result.extra["joined_test_rows"] == num_rows**2
    assert result.metrics["test/r2"] > 0.999
    with pytest.raises(BadInput, match="3600000000 joined rows, more than 2147483647"):
        execute(settings(num_rounds=1, join_by="rows"), data)


@pytest.mark.slow
def test_a_resumed_run_along_the_tree_is_the_uninterrupted_one():
    data = many_to_many()
    _, half, _ = execute(settings(join_by="tree", rho=1.0, num_rounds=2), data)
    whole, recorder, _ = execute(settings(join_by="tree", rho=1.0), data)
    taken = half.checkpoints["last"]
    resumed, again, _ = execute(settings(join_by="tree", rho=1.0), data, resume=Snapshot(taken.actors, taken.driver))
    assert again.rounds == recorder.rounds[2:]
    assert resumed.metrics == whole.metrics
    server = unseal(taken.actors["server"], "state")
    assert max(values.size for values in arrays_in(server)) <= 240  # nothing has the size of the join


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"algorithm": "rfl-sgd-v"}, "algorithm=rfl-sgd-v"),
        ({"algorithm": "vfl-admm"}, "algorithm=vfl-admm"),
        ({"algorithm": "centralised"}, "algorithm=centralised"),
        ({"secure_aggregation": True}, "secure_aggregation=True"),
    ],
)
def test_the_tree_is_refused_where_single_joined_rows_are_needed(words, named):
    with pytest.raises(BadInput, match=f"join_by: tree is not allowed with {named}"):
        settings(join_by="tree", **words)


def test_the_tree_is_refused_for_classes():
    with pytest.raises(BadInput, match="join_by: tree is not allowed with the logistic loss"):
        loss_of(settings(join_by="tree", model="auto"), "binary")


def test_a_tree_without_test_rows_says_so():
    visits = pa.table({"town": [0, 0, 1, 2], "length": [1.0, 2.0, 3.0, 4.0], "spent": [1.0, 2.0, 3.0, 4.0]})
    sql = "SELECT * FROM visits JOIN offers ON visits.town = offers.town"

    def joined(towns):
        offers = pa.table({"town": towns, "price": [1.0] * len(towns)})
        return stated(sql, in_memory(visits=visits, offers=offers), label="spent")

    # one row joins, which is kept for the test or for training
    with pytest.raises(EmptyJoinError, match=r"none of 2 joined rows is a (test|training) row"):
        execute(settings(join_by="tree"), joined([1, 1]))
    with pytest.raises(EmptyJoinError, match="no row joins where"):
        execute(settings(join_by="tree"), joined([7]))
