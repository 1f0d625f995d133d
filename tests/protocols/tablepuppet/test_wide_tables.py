"""Tables of many categories: held without their zeros, they give the numbers of dense ones."""

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse

from fedactors.config import build
from fedactors.data.layouts.vertical import stated
from fedactors.data.party_rows import SparseRows
from fedactors.data.query import Feature, FeatureTypeError
from fedactors.protocols.tablepuppet import data, local_solvers
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from tests.protocols.tablepuppet.test_run import execute, in_memory

SQL = "SELECT * FROM visits JOIN homes ON visits.home = homes.home"
NUM_TOWNS = 90


def town_tables(task="regression"):
    rng = np.random.default_rng(1)
    town, worth = rng.integers(0, NUM_TOWNS, 120), rng.normal(size=NUM_TOWNS)
    homes = pa.table({"home": np.arange(120), "town": [f"t{i:03d}" for i in town], "size": rng.normal(size=120)})
    home, warmth = rng.integers(0, 130, 700), rng.normal(size=700)
    signal = worth[town[home % 120]] + warmth
    label = signal if task == "regression" else (signal > 0).astype(float)
    visits = pa.table({"home": home, "warmth": warmth, "label": label})
    return stated(SQL, in_memory(visits=visits, homes=homes), label="label", task=task, categorical=("town",))


def settings(**words):
    return build(TablePuppetConfig, {"num_rounds": 3, "test_fraction": 0.3, "batch_size": 128, **words})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "task"),
    [
        ({"join_by": "rows"}, "regression"),
        ({"join_by": "tree"}, "regression"),
        ({"admm": "paper_sgd"}, "regression"),
        ({"model": "neural", "hidden_size": 3, "lbfgs_iterations": 5}, "regression"),
        ({"algorithm": "rfl-sgd-v"}, "binary"),
        ({"algorithm": "vfl-admm"}, "binary"),
        ({"algorithm": "centralised"}, "regression"),
        ({"algorithm": "rfl-sgd-v", "feature_dp": 5.0}, "binary"),
    ],
)
def test_a_wide_table_gives_the_numbers_of_a_dense_one(words, task, monkeypatch):
    noise = {"reproducible_noise": True} if "feature_dp" in words else {}
    kinds = []
    made = data.design_matrix

    def noted(*args):
        kinds.append(type(made(*args)))
        return made(*args)

    monkeypatch.setattr(data, "design_matrix", noted)
    found, recorded, _ = execute(settings(**words), town_tables(task), **noise)
    monkeypatch.setattr(data, "WIDE", 10_000)
    dense, dense_recorded, _ = execute(settings(**words), town_tables(task), **noise)
    assert kinds == [np.ndarray, SparseRows, np.ndarray, np.ndarray] or kinds == [
        SparseRows, np.ndarray, np.ndarray, np.ndarray,
    ]  # fmt: skip
    assert found.metrics == pytest.approx(dense.metrics, rel=1e-9)
    for ours, theirs in zip(recorded.rounds, dense_recorded.rounds, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-7, abs=1e-12)


def random_rows(seed=0, n=50, num_columns=30):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(n, num_columns)) * (rng.random((n, num_columns)) < 0.1)
    return dense, SparseRows(scipy.sparse.csr_array(dense)), rng


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_models_of_coded_rows(kind):
    dense, coded, rng = random_rows()
    model = local_solvers.TableModel(kind, 30, 2, 4, output_bias=True)
    theta, dh = rng.normal(size=model.num_parameters), rng.normal(size=(50, 2))
    for function in (local_solvers.pull_back, local_solvers.row_gradients):
        np.testing.assert_allclose(function(model, theta, coded, dh), function(model, theta, dense, dh), rtol=1e-12)
    np.testing.assert_allclose(
        local_solvers.predict(model, theta, coded), local_solvers.predict(model, theta, dense), rtol=1e-12
    )


def test_systems_of_coded_rows():
    dense, coded, rng = random_rows()
    model, times = local_solvers.TableModel("linear", 30, 1), rng.integers(1, 5, 50)
    solved = []
    for x in (dense, coded):
        problem = local_solvers.Subproblem(model, x, times, 2.0, 1e-3, int(times.sum()))
        solved.append(local_solvers.solve_linear(problem, local_solvers.factorise(problem), np.ones((50, 1))))
    np.testing.assert_allclose(solved[0], solved[1], rtol=1e-9)


def test_coded_rows_are_chosen_like_rows_of_an_array():
    dense, coded, rng = random_rows()
    assert len(coded) == 50
    assert coded.shape == (50, 30)
    for rows in (rng.integers(0, 50, 7), rng.random(50) < 0.3, slice(3, 9), np.zeros(0, dtype=np.int64)):
        assert np.array_equal(np.asarray(coded[rows]), dense[rows])


def test_a_table_that_would_not_fit_as_a_dense_one_has_the_size_of_what_it_holds():
    num_rows, num_categories = 200_000, 5000  # 8 GB of zeros
    indices = np.random.default_rng(0).integers(0, num_categories, num_rows)
    features = [Feature(column="card", encoding="one_hot", kind="text")]
    table = pa.table({"card": indices})
    facts = data.column_facts(table, features)
    x = data.design_matrix(table, features, facts, True)
    assert x.shape == (num_rows, num_categories + 1)
    assert isinstance(x, SparseRows)
    assert x.nbytes < 10e6
    theta = np.random.default_rng(1).normal(size=(num_categories + 1, 1))
    order = {text: index for index, text in enumerate(facts.categories[0])}
    expected = theta[[order[str(index)] for index in indices[:100]], 0] + theta[-1, 0]
    np.testing.assert_allclose((x @ theta)[:100, 0], expected)


def test_a_category_that_facts_lack_gives_zeros():
    features = [Feature(column="card", encoding="one_hot", kind="text")]
    facts = data.declared_facts(["card=" + "|".join(f"c{i:03d}" for i in range(80))], features, None)
    x = data.design_matrix(pa.table({"card": ["c003", "other"]}), features, facts, False)
    assert isinstance(x, SparseRows)
    dense = np.asarray(x)
    assert np.flatnonzero(dense[0]).tolist() == [3]
    assert not dense[1].any()
    with pytest.raises(FeatureTypeError, match="card is missing in 1 of 2 rows"):
        data.design_matrix(pa.table({"card": ["c003", None]}), features, facts, False)
