from __future__ import annotations

import pickle

import numpy as np
import pytest

from fedactors.data.layouts.graph import graph
from fedactors.data.layouts.horizontal import horizontal
from fedactors.data.layouts.vertical import VerticalData, relational, vertical
from fedactors.data.partitioners import DirichletPartitioner, IidPartitioner, VerticalSizePartitioner
from fedactors.data.party_rows import prepare, split
from fedactors.data.sources import ArraySource
from fedactors.errors import BadInput


def test_vertical_default_needs_nothing_and_is_small():
    data = vertical("breast-cancer")
    assert (data.label_party, data.passive_parties) == ("active", ("passive",))
    assert len(pickle.dumps(data)) < 2000
    assert data.load("active").features.shape == (569, 15)
    assert data.load("passive").labels is None


def test_vertical_of_ten_parties_and_another_label_party():
    parties = tuple(f"p{index}" for index in range(10))
    data = vertical("breast-cancer", parties, label_party="p7")
    names = [name for party in parties for name in data.load(party).feature_names]
    assert len(set(names)) == 30
    assert [data.load(party).labels is not None for party in parties].index(True) == 7


def test_images_can_be_dealt_by_columns():
    block = vertical("digits", ("a", "b", "c")).load("b")
    assert block.features.shape == (1437, 21)


@pytest.mark.slow
@pytest.mark.data
def test_bank_prepared_at_both_parties_in_one_order(real_data):
    data = vertical("bank", partitioner=VerticalSizePartitioner(partition_sizes=(8, 12)))
    parts = split(41_188, seed=0)
    blocks = {party: data.load(party) for party in data.parties}
    made = {party: prepare(block, np.arange(41_188), parts, "binary") for party, block in blocks.items()}
    assert made["active"].train.features.shape[0] == made["passive"].train.features.shape[0] == 25_949
    assert made["active"].num_features + made["passive"].num_features == 63  # 10 numbers and 53 categories
    one_hot = made["passive"].train.features[:, blocks["passive"].keeps_scale]
    assert set(np.unique(one_hot)) <= {0, 1}
    assert made["active"].train.labels.mean() == pytest.approx(0.1127, abs=0.005)


def test_vertical_bad_input():
    with pytest.raises(BadInput, match=r"cannot be split by columns"):
        vertical("karate")
    with pytest.raises(BadInput, match=r"30 columns for 31 parties"):
        vertical("breast-cancer", tuple(str(index) for index in range(31)))
    with pytest.raises(BadInput, match=r"label_party: 'x' is not allowed: the parties are active, passive"):
        vertical("breast-cancer", label_party="x")
    with pytest.raises(BadInput, match=r"rows differ: give hash or psi"):
        vertical("breast-cancer", overlap=0.5)
    with pytest.raises(BadInput, match=r"party: 'bank' is not allowed"):
        vertical("breast-cancer").part("bank")
    with pytest.raises(BadInput, match=r"3 partitions for 2 parties"):
        vertical("breast-cancer", partitioner=VerticalSizePartitioner(partition_sizes=(1, 2, 3)))


def test_the_label_party_must_hold_labels():
    source = ArraySource(ids=np.arange(3), features=np.ones((3, 2), np.float32))
    data = VerticalData(
        name="x", task="binary", num_classes=2, parties=("a", "b"), sources=(source, source), label_party="a"
    )
    with pytest.raises(BadInput, match=r"the label party holds no labels"):
        data.load("a")
    assert data.load("b").feature_names == ("c0", "c1")


def test_horizontal_images():
    data = horizontal("digits", IidPartitioner(num_partitions=5), public_size=100, seed=3)
    clients = [data.client(index).load() for index in range(5)]
    assert data.shape == clients[0].features.shape[1:] == (1, 8, 8)
    assert sum(len(client.labels) for client in clients) == 1437 - 100
    assert len(data.public().load().labels) == 100
    assert len(data.test().load().labels) == 360
    pixels = {client.features[row].tobytes() for client in clients for row in range(len(client.labels))}
    public = data.public().load().features
    assert sum(image.tobytes() in pixels for image in public) <= 2  # a few of the digits are equal pixel by pixel
    with pytest.raises(BadInput, match=r"client: 5 is not allowed"):
        data.client(5)


def test_ten_thousand_clients_are_cheap():
    data = horizontal("synthetic:20000x8", DirichletPartitioner(num_partitions=10_000, alpha=1.0, min_partition_size=0))
    sources = [data.client(index) for index in range(10_000)]
    assert len(pickle.dumps(sources[77])) < 1000
    assert sum(len(source.load().labels) for source in sources[::100]) > 0


def test_horizontal_rows_are_standardised_by_training_rows():
    data = horizontal("breast-cancer", IidPartitioner(num_partitions=3))
    together = np.concatenate([data.client(index).load().features for index in range(3)])
    assert together.shape == (398, 30)
    assert np.abs(together.mean(axis=0)).max() < 1e-4
    assert data.test().load().features.shape == (171, 30)
    with pytest.raises(BadInput, match=r"no public set"):
        data.public()
    with pytest.raises(BadInput, match=r"public_size: 1437"):
        horizontal("digits", IidPartitioner(num_partitions=2), public_size=1437).public().load()


@pytest.mark.data
def test_cora_recipe(real_data):
    data = graph("cora", 3, seed=1)
    blocks = [data.load(client) for client in range(3)]
    assert len(blocks[0].train) == 7 * 60
    assert (np.bincount(blocks[0].labels[blocks[0].train]) == 60).all()
    assert (len(blocks[0].validation), len(blocks[0].test)) == (500, 1000)
    columns = np.concatenate([block.columns for block in blocks])
    np.testing.assert_array_equal(np.sort(columns), np.arange(1433))
    for block in blocks:
        assert len(block.indices) == block.indptr[-1]
        assert len(block.indices) / (2 * 5278) == pytest.approx(0.8, abs=0.02)
        np.testing.assert_array_equal(block.train, blocks[0].train)
    assert not np.array_equal(blocks[0].indptr, blocks[1].indptr)


def test_graph_recipe_is_seeded_symmetric_and_disjoint():
    data = graph("karate", 2, seed=0)
    block, again = data.load(1), data.load(1)
    np.testing.assert_array_equal(block.indices, again.indices)
    nodes = np.concatenate([block.train, block.validation, block.test])
    assert len(nodes) == len(set(nodes))
    assert block.num_nodes == 34
    source = np.repeat(np.arange(34), np.diff(block.indptr))
    pairs = set(zip(source, block.indices, strict=True))
    assert all((b, a) in pairs for a, b in pairs)
    assert len(data.load_whole().indices) == 2 * 78
    assert pairs < set(
        zip(np.repeat(np.arange(34), np.diff(data.load_whole().indptr)), data.load_whole().indices, strict=True)
    )
    assert not np.array_equal(graph("karate", 2, seed=1).load(1).train, block.train)


def test_a_graph_client_takes_its_own_part():
    data = graph("karate", 2, seed=0)
    assert data.parties == ("client-0", "client-1")
    for index, party in enumerate(data.parties):
        part = data.part(party)
        assert part.party == party
        np.testing.assert_array_equal(part.load().indices, data.load(index).indices)
        assert part.load().num_classes == data.num_classes
    with pytest.raises(BadInput, match=r"the parties are client-0, client-1"):
        data.part("client-2")


def test_graph_bad_input():
    with pytest.raises(BadInput, match=r"a graph is needed"):
        graph("bank", 2)
    with pytest.raises(BadInput, match=r"give 1 to 34"):
        graph("karate", 35)
    with pytest.raises(BadInput, match=r"edge_share"):
        graph("karate", 2, edge_share=0)
    with pytest.raises(BadInput, match=r"client: 2 is not allowed"):
        graph("karate", 2).load(2)


def test_relational_partitions_share_out_all_rows():
    data = relational("orders:500", num_partitions=2)
    assert data.query.tables == ("orders", "items", "cards")
    assert [p.party for p in data.of("orders")] == ["orders-0", "orders-1"]
    ids = [set(p.source.load(["order_id"])["order_id"].to_pylist()) for p in data.of("orders")]
    assert ids[0] | ids[1] == set(range(500))
    assert not ids[0] & ids[1]
    assert len(pickle.dumps(data)) < 3000
    with pytest.raises(BadInput, match=r"the tables are orders, items, cards"):
        data.of("shops")
    with pytest.raises(BadInput, match=r"several tables"):
        relational("bank")


def test_relational_query_chooses_the_tables():
    data = relational("orders:500", sql="SELECT * FROM items JOIN orders ON items.order_id = orders.order_id")
    assert data.query.tables == ("items", "orders")
    with pytest.raises(BadInput, match=r"sql: line 1, column"):
        relational("orders", sql="SELECT FROM WHERE (")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("name", "rows"), [("movielens-1m", 2_101_815), ("nycflights13", None)])
def test_default_queries_join_the_real_tables(real_data, name, rows):
    import duckdb

    data = relational(name)
    with duckdb.connect() as connection:
        for table in data.query.tables:
            connection.register(table, data.of(table)[0].source.load())
        column = data.label.partition(".")[2]
        counted = connection.sql(f"SELECT count(*), count({column}), min({column}) FROM ({data.sql})").fetchall()[0]
    assert counted[0] == counted[1] > 200_000
    assert rows in (None, counted[0])


def test_default_query_of_orders_joins_and_the_task_may_be_changed():
    data = relational("orders:400", task="regression", num_classes=1)
    assert (data.task, data.num_classes, data.label) == ("regression", 1, "orders.returned")
