from __future__ import annotations

import pickle

import numpy as np
import pyarrow.compute as pc
import pytest
import sklearn.datasets

from fedactors.data.datasets.load import _double_colons, load, load_images, load_tables, load_tabular, read_pickle
from fedactors.errors import BadInput


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "positives", "num_categorical"),
    [
        ("bank", (41_188, 20), 4_640, 10),
        ("bank-no-duration", (41_188, 19), 4_640, 10),
        ("credit", (30_000, 23), 6_636, 3),
    ],
)
def test_binary_tables(real_data, name, shape, positives, num_categorical):
    found = load_tabular(name)
    assert found.features.shape == shape
    assert (int(found.labels.sum()), set(np.unique(found.labels))) == (positives, {0, 1})
    assert len(found.categories) == num_categorical
    assert ("duration" in found.columns) == (name == "bank")
    assert np.isfinite(found.features).all()


@pytest.mark.data
def test_first_row_of_bank(real_data):
    found = load_tabular("bank")
    row = dict(zip(found.columns, found.features[0], strict=True))
    assert (row["age"], row["duration"], row["euribor3m"]) == (56, 261, np.float32(4.857))
    assert found.categories["job"][int(row["job"])] == "housemaid"


@pytest.mark.data
def test_energy(real_data):
    found = load_tabular("energy")
    assert found.features.shape == (19_735, 27)
    assert found.labels[0] == 60
    assert found.features[0, found.columns.index("T6")] == np.float32(7.026666666666669947)


@pytest.mark.slow
@pytest.mark.data
def test_blog_is_training_and_test_files_together(real_data):
    found = load_tabular("blog")
    assert found.features.shape == (52_397 + 7_624, 280)
    assert found.features[0, 0] == np.float32(40.30467)
    np.testing.assert_allclose(load_tabular("blog-log1p").labels, np.log1p(found.labels))


@pytest.mark.slow
@pytest.mark.data
def test_fashion_mnist(real_data):
    found = load_images("fashion-mnist")
    assert found.train_images.shape == (60_000, 1, 28, 28)
    assert found.test_images.shape == (10_000, 1, 28, 28)
    assert (np.bincount(found.train_labels) == 6_000).all()
    scaled = found.scaled(found.train_images[:2000])
    assert abs(float(scaled.mean())) < 0.05
    assert scaled.dtype == np.float32


@pytest.mark.slow
@pytest.mark.data
def test_cifar10_subset_is_balanced(real_data):
    found = load_images("cifar10-subset")
    assert found.train_images.shape == (10_000, 3, 32, 32)
    assert found.test_images.shape == (2_000, 3, 32, 32)
    assert (np.bincount(found.train_labels) == 1_000).all()
    assert (np.bincount(found.test_labels) == 200).all()


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "nodes", "columns", "classes", "edges"),
    [("cora", 2_708, 1_433, 7, 5_278), ("pubmed", 19_717, 500, 3, 44_324)],
)
def test_planetoid(real_data, name, nodes, columns, classes, edges):
    found = load(name)
    assert found.features.shape == (nodes, columns)
    assert found.edges.shape == (edges, 2)
    assert (found.edges[:, 0] < found.edges[:, 1]).all()
    assert len(np.unique(found.labels)) == classes
    same = (found.labels[found.edges[:, 0]] == found.labels[found.edges[:, 1]]).mean()
    assert same > 0.75  # citations stay within a class: labels, rows and edges belong together


def test_a_planetoid_file_can_run_no_code(tmp_path):
    class Attack:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "f").write_bytes(pickle.dumps(Attack(), protocol=2))
    with pytest.raises(BadInput, match=r"print is not allowed"):
        read_pickle(tmp_path / "f")


@pytest.mark.slow
@pytest.mark.data
def test_movielens(real_data):
    tables = load_tables("movielens-1m")
    assert tables["ratings"].num_rows == 1_000_209
    assert tables["users"].num_rows == 6_040
    assert tables["movies"].num_rows == 6_408
    assert len(tables["movies"]["movie_id"].unique()) == 3_883
    assert len(tables["ratings"]["movie_id"].unique()) == 3_706
    assert sum(tables["movies"].filter(pc.field("movie_id") == 1)["year"].to_pylist()) == 3 * 1995


def test_ratings_have_three_or_four_fields():
    import io

    names = ("user_id", "movie_id", "rating", "timestamp")
    three = _double_colons(io.BytesIO(b"1::1193::5\n2::7::3\n"), names)
    assert three.to_pydict() == {"user_id": [1, 2], "movie_id": [1193, 7], "rating": [5, 3]}
    four = _double_colons(io.BytesIO(b"1::1193::5::978300760\n"), names)
    assert four.to_pydict()["timestamp"] == [978300760]


@pytest.mark.slow
@pytest.mark.data
def test_nycflights(real_data):
    tables = load_tables("nycflights13")
    assert {name: table.num_rows for name, table in tables.items()} == {
        "flights": 336_776,
        "airlines": 16,
        "airports": 1_458,
        "planes": 3_322,
        "weather": 26_115,
    }
    late, delay = tables["flights"]["late"], tables["flights"]["arr_delay"]
    assert pc.sum(late).as_py() == sum(value is not None and value >= 15 for value in delay.to_pylist())
    assert late.null_count == delay.null_count > 0


def test_sets_that_need_nothing():
    found = load("breast-cancer")
    assert found.features.shape == (569, 30)
    assert int(found.labels.sum()) == 357
    digits = load("digits")
    assert len(digits.train_images) + len(digits.test_images) == 1_797
    there = sklearn.datasets.load_breast_cancer()
    assert found.columns == tuple(str(name).replace(" ", "_") for name in there.feature_names)
    assert np.array_equal(found.features, there.data.astype(np.float32))
    assert np.array_equal(found.labels, there.target)
    drawn = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(drawn.target))
    assert np.array_equal(np.concatenate([digits.test_images, digits.train_images])[:, 0], drawn.images[order])
    assert np.array_equal(np.concatenate([digits.test_labels, digits.train_labels]), drawn.target[order])
    karate = load("karate")
    assert (len(karate.labels), len(karate.edges)) == (34, 78)


def test_synthetic_columns_do_not_depend_on_which_are_asked_for():
    whole = load_tabular("synthetic:500x30")
    some = load_tabular("synthetic:500x30", [29, 3, 11])
    assert whole.features.shape == (500, 30)
    assert some.columns == ("x29", "x3", "x11")
    np.testing.assert_array_equal(some.features, whole.features[:, [29, 3, 11]])
    np.testing.assert_array_equal(some.labels, whole.labels)
    assert 0.4 < whole.labels.mean() < 0.6


def test_criteo_like_is_sparse_when_encoded():
    found = load_tabular("criteo-like:3000")
    assert found.features.shape == (3_000, 39)
    assert len(found.categories) == 26
    for column, texts in found.categories.items():
        assert found.features[:, found.columns.index(column)].max() == len(texts) - 1
    assert 0.2 < found.labels.mean() < 0.4


def test_blocks_are_assortative_and_hide_classes_in_the_order():
    found = load("blocks:3000x8x3")
    assert found.features.shape == (3_000, 8)
    same = (found.labels[found.edges[:, 0]] == found.labels[found.edges[:, 1]]).mean()
    assert same == pytest.approx(0.8 + 0.2 / 3, abs=0.03)
    assert 2 * len(found.edges) / 3_000 == pytest.approx(10, abs=0.5)
    assert abs(np.corrcoef(np.arange(3_000), found.labels)[0, 1]) < 0.1


def test_orders_join_with_losses():
    tables = load_tables("orders:1000")
    items = set(tables["items"]["order_id"].to_pylist())
    orders = set(tables["orders"]["order_id"].to_pylist())
    assert orders < items
    assert len(set(tables["orders"]["card_id"].to_pylist())) < tables["cards"].num_rows
    assert 0.3 < np.mean(tables["orders"]["returned"].to_pylist()) < 0.7


@pytest.mark.parametrize(("loader", "name"), [(load_tabular, "karate"), (load_images, "bank"), (load_tables, "cora")])
def test_the_wrong_kind_is_named(loader, name):
    with pytest.raises(BadInput, match=r"is of kind"):
        loader(name)


def test_nodes_that_no_planetoid_file_holds_keep_their_place(monkeypatch, tmp_path):
    """CiteSeer's test index has gaps: nodes 0-2 in allx, tests 5 and 3 (in that order), node 4 nowhere."""
    from scipy.sparse import csr_matrix

    from fedactors.data.datasets import load as planetoid

    parts = {
        "allx": csr_matrix(np.diag([1.0, 2.0, 3.0])),
        "ally": np.eye(3),
        "tx": csr_matrix([[5.0, 5, 5], [4.0, 4, 4]]),
        "ty": np.asarray([[0, 0, 1], [0, 1, 0]]),
        "graph": {0: [1, 0], 1: [0, 2], 2: [1], 3: [5], 4: [], 5: [3, 3]},
    }
    (tmp_path / "index").write_text("5\n3\n")
    monkeypatch.setattr(planetoid, "locate", lambda name, path: tmp_path / "index" if "index" in path else path)
    monkeypatch.setattr(planetoid, "read_pickle", lambda path: parts[path.rpartition(".")[2]])
    features, labels, edges = planetoid.read_planetoid("citeseer")
    np.testing.assert_array_equal(features[:, 0], [1, 0, 0, 4, 0, 5])
    assert list(labels) == [0, 1, 2, 1, 0, 2]
    assert edges.tolist() == [[0, 1], [1, 2], [3, 5]]
