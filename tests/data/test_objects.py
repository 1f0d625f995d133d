"""Objects of Python as data: tables of each library, samples, graphs; each at its party alone, by rules of files."""

from __future__ import annotations

import asyncio
import decimal
import gc
import json
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import fedactors
from fedactors.cli import main as cli
from fedactors.data.objects import Objects, digest_of, table_of
from fedactors.data.readers import read_columns
from fedactors.errors import BadInput
from fedactors.runtime import snapshots
from fedactors.runtime.interface import Runtime

NUM_ROWS = 80
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(NUM_ROWS, 4)).astype(np.float32)
Y = X[:, 0] + X[:, 3] > 0
IDS = [f"c{index}" for index in range(NUM_ROWS)]
SMALL = {"num_epochs": 1, "batch_size": 16, "validation_fraction": 0.3}
LABEL = ("bank", "defaulted")


def bank() -> pd.DataFrame:
    defaulted = np.where(Y, "yes", "no")
    return pd.DataFrame({"customer": IDS, "income": X[:, 0], "age": X[:, 1], "defaulted": defaulted})


def shop() -> pl.DataFrame:
    return pl.DataFrame({"customer": IDS, "orders": X[:, 2], "returned": X[:, 3]})


def tables() -> dict[str, Any]:
    return {"bank": bank().drop(columns="customer"), "shop": shop().drop("customer")}


def two() -> Objects:
    return fedactors.vertical(tables(), label=LABEL)


# --- tables of each library -------------------------------------------------------------------------------------------

PLAIN = {"number": [1.5, -2.0, 0.25], "whole": [3, 4, 2**62 + 1], "word": ["a", "bé", ""]}


def hugging_face() -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(PLAIN)


KINDS = {
    "pandas": lambda: pd.DataFrame(PLAIN),
    "pandas, rows chosen": lambda: pd.concat([pd.DataFrame(PLAIN), pd.DataFrame(PLAIN)]).iloc[3:],
    "pandas, its index asked for": lambda: pd.DataFrame(PLAIN).set_index("number")[["whole", "word"]],
    "pandas, categories": lambda: pd.DataFrame(PLAIN).astype({"word": "category"}),
    "Polars": lambda: pl.DataFrame(PLAIN),
    "Polars, lazy": lambda: pl.LazyFrame(PLAIN),
    "Arrow": lambda: pa.table(PLAIN),
    "Arrow, in chunks": lambda: pa.concat_tables([pa.table(PLAIN).slice(0, 1), pa.table(PLAIN).slice(1)]),
    "Arrow, a batch": lambda: pa.RecordBatch.from_pydict(PLAIN),
    "Arrow, other texts": lambda: pa.table({**PLAIN, "word": pa.array(PLAIN["word"], pa.string_view())}),
    "Arrow, dictionary": lambda: pa.table({**PLAIN, "word": pa.array(PLAIN["word"]).dictionary_encode()}),
    "DuckDB": lambda: duckdb.from_arrow(pa.table(PLAIN)),
    "numpy, fields": lambda: np.array(
        list(zip(*PLAIN.values(), strict=True)), [("number", "f8"), ("whole", "i8"), ("word", "U4")]
    ),
    "columns by name": lambda: {**PLAIN, "number": torch.tensor(PLAIN["number"], dtype=torch.float64)},
    "datasets": hugging_face,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_any_library_is_the_same_table(kind):
    made = table_of(KINDS[kind](), "bank", ["number"])
    assert made.to_pydict() == PLAIN
    assert [str(column.type) for column in made.columns] == ["double", "int64", "string"]
    assert digest_of(made) == digest_of(pa.table(PLAIN))


def test_a_matrix_has_the_columns_of_an_npy_file():
    assert table_of(X, "bank").column_names == ["c0", "c1", "c2", "c3"]
    assert digest_of(table_of(torch.from_numpy(X), "bank")) == digest_of(table_of(X, "bank"))


def test_an_index_of_pandas_is_a_column_where_it_is_asked_for():
    indexed = bank().set_index("customer")
    assert "customer" not in table_of(indexed, "bank").column_names
    data = fedactors.vertical({"bank": indexed, "shop": shop()}, id="customer", label=LABEL)
    assert "bank" in data.parties
    assert "customer" in snapshots.object_at(data.parties["bank"]["path"]).column_names


@pytest.mark.parametrize(
    "other",
    [
        {**PLAIN, "number": [1.5, -2.0, 0.5]},
        {**PLAIN, "number": [1.5, -2.0, None]},
        {**PLAIN, "word": ["a", "b", "é"]},
        {**PLAIN, "word": ["ab", "é", ""]},
        {**PLAIN, "word": ["a", "bé", None]},
        {"number": PLAIN["number"], "whole": PLAIN["whole"], "text": PLAIN["word"]},
        {**PLAIN, "number": [decimal.Decimal("1.5"), decimal.Decimal(-2), decimal.Decimal("0.25")]},
    ],
)
def test_another_value_has_another_digest(other):
    assert digest_of(pa.table(other)) != digest_of(pa.table(PLAIN))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bool", [True, None]),
        ("date32[day]", [3, None]),
        ("timestamp[us]", [5, 6]),
        ("decimal128(20, 2)", [decimal.Decimal("1.25"), None]),
        ("list", [[1], None]),
        ("binary", [b"a", None]),
        ("float16", [np.float16(1), np.float16(2)]),
    ],
)
def test_a_digest_is_of_values_of_any_type_wherever_they_lie(kind, values):
    whole = pa.array(
        [*values, *values], type=None if kind in ("list", "decimal128(20, 2)") else pa.type_for_alias(kind)
    )
    apart, together = pa.table({"a": whole.slice(2)}), pa.table({"a": whole.slice(0, 2)})
    assert digest_of(apart) == digest_of(together)
    assert digest_of(apart) != digest_of(pa.table({"a": whole.slice(1, 2)}))


# --- vertical ---------------------------------------------------------------------------------------------------------


def test_objects_train_as_their_files_do(tmp_path):
    bank().drop(columns="customer").to_parquet(tmp_path / "bank.parquet")
    shop().drop("customer").write_parquet(tmp_path / "shop.parquet")
    files = {"bank": tmp_path / "bank.parquet", "shop": str(tmp_path / "shop.parquet")}
    of_objects = fedactors.simulate("pubsub-vfl", two(), **SMALL)
    of_files = fedactors.simulate("pubsub-vfl", fedactors.vertical(files, label=LABEL, task="binary"), **SMALL)
    assert of_objects.metrics == of_files.metrics
    assert of_objects.ledger.to_arrow() == of_files.ledger.to_arrow()


def test_a_run_keeps_addresses_and_no_rows_and_goes_on_with_the_same_objects(tmp_path):
    run = fedactors.simulate("pubsub-vfl", two(), out=tmp_path, **SMALL)
    stored = json.loads((run.path / "config.json").read_text())
    addresses = [party["path"] for party in stored["objects"]["parties"].values()]
    assert [address.rpartition(":")[0] for address in addresses] == ["object:bank", "object:shop"]
    assert run.resume().metrics == run.metrics
    again = fedactors.load_run(run.path)
    with pytest.raises(BadInput, match=r"data: missing: the run used objects \(bank, shop\); give them again: fed"):
        again.resume()
    assert again.resume(data=two()).metrics == run.metrics
    other = tables()
    other["shop"] = other["shop"].with_columns(orders=pl.lit(0.5))
    with pytest.raises(BadInput, match=r"^data: parties.shop.path: differs from the run's: give the same objects"):
        again.resume(data=fedactors.vertical(other, label=LABEL))
    with pytest.raises(BadInput, match=r"^data: task.positive: differs from the run's"):
        again.resume(data=fedactors.vertical(tables(), label=LABEL, positive="no"))


def test_new_rows_need_no_label_and_are_predicted_as_the_run_says(tmp_path):
    given = {"bank": bank(), "shop": shop()}
    run = fedactors.simulate("pubsub-vfl", fedactors.vertical(given, id="customer", label=LABEL), out=tmp_path, **SMALL)
    new = {"bank": bank().drop(columns="defaulted")[::-1], "shop": shop().head(50)}
    rows = fedactors.vertical(new, id="customer", label=LABEL)
    outcome = run.predict(rows, tmp_path / "predicted.parquet").outcomes[0]
    assert outcome.party == "bank"
    assert (outcome.counts.num_rows, outcome.counts.num_predicted) == (NUM_ROWS, 50)
    predicted = pd.read_parquet(tmp_path / "predicted.parquet").set_index("id")
    assert set(predicted["prediction"].dropna()) <= {"yes", "no"}
    assert sorted(run.export(tmp_path / "exported")) == ["bank", "shop"]


def test_keys_of_a_description_hold_for_objects():
    whole = bank().drop(columns="customer").assign(region=["north", "south"] * (NUM_ROWS // 2))
    given = {**tables(), "bank": whole}
    with pytest.raises(BadInput, match=r"^bank: object:bank:\w+: column region"):
        fedactors.simulate("pubsub-vfl", fedactors.vertical(given, label=LABEL), **SMALL)
    rules = {"bank": {"columns": {"region": {"type": "categorical"}}}, "shop": {"features": ["orders"]}}
    run = fedactors.simulate("pubsub-vfl", fedactors.vertical(given, label=LABEL, parties=rules), **SMALL)
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": ("shop", "defaulted")}, r"^shop: label: 'defaulted' is not a column of object:shop:\w+"),
        ({"label": ("crm", "defaulted")}, r"^label: \['crm', 'defaulted'\]|^label: .* the parties are bank, shop$"),
        ({"parties": {"crm": {}}}, r"^parties: 'crm' is not allowed: the parties are bank, shop$"),
        ({"parties": {"bank": {"colour": 1}}}, r"^parties.bank.*colour"),
        ({"parties": {"bank": {"csv": {"separator": ";"}}}}, r"^parties.bank.csv: .* object:bank:\w+ is no CSV file"),
        ({"alignment": "hash"}, r"^parties.bank.id: missing; alignment=hash needs an id column at every party$"),
        ({"classes": 1}, r"^task.classes"),
        ({"positive": {1}}, r"^data: .*set is not allowed"),
    ],
)
def test_what_is_not_allowed_is_one_line_as_of_a_file(change, words):
    given = {"label": LABEL, "task": "binary", **change}
    with pytest.raises(BadInput, match=words):
        fedactors.simulate("pubsub-vfl", fedactors.vertical(tables(), **given), **SMALL)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, r"^shop: builtins.int is not allowed: give a table of pandas"),
        (np.zeros(5), r"^shop: numpy.ndarray: an array of 1 dimensions"),
        (pd.DataFrame({"a": [1, "x"]}), r"^shop: pandas.*column a"),
        ({"a": [1, 2], "b": [1]}, r"^shop: builtins.dict: "),
    ],
)
def test_an_object_that_is_no_table_is_refused_with_its_party(value, words):
    with pytest.raises(BadInput, match=words):
        fedactors.vertical({**tables(), "shop": value}, label=LABEL)


def test_one_object_is_not_two_parties():
    same = shop()
    with pytest.raises(BadInput, match=r"^shop: its object is bank's already: each .*; .*copy\.copy\(rows\)$"):
        fedactors.vertical({"bank": same, "shop": same}, label=("bank", "orders"))


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (["a", "b"], {"type": "binary"}),
        ([True, False], {"type": "binary"}),
        ([0, 1], {"type": "binary"}),
        (["a", "b", "c", None], {"type": "multiclass", "classes": 3}),
        ([0.5, 1.0], {"type": "regression"}),
    ],
)
def test_the_task_is_what_labels_are(labels, task):
    given = {"bank": {"x": list(range(len(labels))), "y": labels}, "shop": {"z": list(range(len(labels)))}}
    assert fedactors.vertical(given, label=("bank", "y")).task == {"layout": "vertical", **task}


@pytest.mark.parametrize(("labels", "likely"), [([0.0, 1.0], "binary"), ([0, 1, 2], "multiclass")])
def test_labels_that_may_be_classes_or_numbers_are_asked_for(labels, likely):
    given = {"bank": {"x": list(range(len(labels))), "y": labels}, "shop": {"z": list(range(len(labels)))}}
    with pytest.raises(
        BadInput, match=rf"^task: missing: label 'y' of bank has {len(labels)} values .*task='{likely}'"
    ):
        fedactors.vertical(given, label=("bank", "y"))


def test_values_that_are_no_whole_numbers_are_not_classes_unless_they_are_listed():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) / 7
    with pytest.raises(
        BadInput, match=r"^client-0: label 'label' has 40 classes in 40 rows, .*task='regression', or list"
    ):
        fedactors.horizontal([(x, y)], task="multiclass")
    stars = np.arange(40) % 10 / 2
    assert fedactors.horizontal([(x, stars)], task="multiclass").task["classes"][:2] == ["0", "0.5"]
    assert fedactors.horizontal([(x, y)], task="regression").task["type"] == "regression"
    listed = [f"{value}" for value in y]
    assert fedactors.horizontal([(x, y)], task="multiclass", classes=listed).task["classes"] == listed


# --- horizontal -------------------------------------------------------------------------------------------------------

CLIENT_ROWS = [np.arange(NUM_ROWS)[start::4] for start in range(4)]
ROUNDS = {"num_rounds": 2}


def frame(rows) -> pd.DataFrame:
    return pd.DataFrame({f"c{column}": X[rows, column] for column in range(4)} | {"label": Y[rows].astype(int)})


class Pairs(torch.utils.data.Dataset):
    def __init__(self, rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(X[self.rows[index]]), int(Y[self.rows[index]])


SAMPLES = {
    "tables": (frame, {"label": "label"}),
    "arrays": (lambda rows: (X[rows], Y[rows].astype(int)), {}),
    "tensors": (lambda rows: torch.utils.data.TensorDataset(torch.from_numpy(X[rows]), torch.from_numpy(Y[rows])), {}),
    "a torch Dataset": (Pairs, {}),
}


def clients(kind: str) -> Objects:
    make, keys = SAMPLES[kind]
    return fedactors.horizontal([make(rows) for rows in CLIENT_ROWS[:3]], test=make(CLIENT_ROWS[3]), **keys)


@pytest.mark.parametrize("kind", SAMPLES)
def test_clients_train_alike_whatever_their_samples_are(kind):
    run = fedactors.simulate("horizontal", clients(kind), **ROUNDS)
    assert run.metrics == fedactors.simulate("horizontal", clients("tables"), **ROUNDS).metrics
    assert run.resume().metrics == run.metrics


def test_new_rows_of_one_client_are_predicted(tmp_path):
    run = fedactors.simulate("horizontal", clients("arrays"), out=tmp_path, **ROUNDS)
    for number, new in enumerate((X[:5], torch.from_numpy(X[:5]))):
        rows = fedactors.horizontal({"client-1": new})
        outcome = run.predict(rows, tmp_path / f"{number}.parquet").outcomes[0]
        assert (outcome.party, outcome.counts.num_predicted) == ("client-1", 5)
    read = [pd.read_parquet(tmp_path / f"{number}.parquet") for number in range(2)]
    pd.testing.assert_frame_equal(*read)


class Images(Pairs):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x.repeat(16).reshape(1, 8, 8), y


def test_images_of_a_data_set_train_as_those_of_files(tmp_path):
    data = fedactors.horizontal([Images(rows) for rows in CLIENT_ROWS[:3]], test=Images(CLIENT_ROWS[3]))
    assert data.task["shape"] == [1, 8, 8]
    paths = []
    for number, rows in enumerate(CLIENT_ROWS):
        paths.append(str(tmp_path / f"{number}.npz"))
        np.savez(paths[-1], images=np.tile(X[rows], 16).reshape(-1, 1, 8, 8), labels=Y[rows].astype(int))
    files = fedactors.horizontal(paths[:3], test=paths[3], task="binary", shape=[1, 8, 8])
    run = fedactors.simulate("horizontal", data, out=tmp_path, **ROUNDS)
    assert run.metrics == fedactors.simulate("horizontal", files, **ROUNDS).metrics
    new = fedactors.horizontal({"client-0": np.zeros((3, 1, 8, 8), np.float32)})
    assert run.predict(new, tmp_path / "new.parquet").outcomes[0].counts.num_predicted == 3


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([(X, Y[:5]), (X, Y)], r"^client-0: labels of shape \[5\] for 80 samples"),
        ([(X, Y), 5], r"^client-1: int: not allowed: give \(x, y\)"),
        ([(X, Y), shop()], r"^client-1: DataFrame: "),
        ([(X, Y), (X.astype(str), Y)], r"^client-1: samples of type <U"),
        ([(X, Y), (X[:, None, None, None], Y)], r"^client-1: samples of shape \[1, 1, 1, 4\]"),
        ([(X, Y), [1, 2, 3]], r"^client-1: list: each item of a data set must be a sample and its label"),
    ],
)
def test_samples_that_are_none_are_refused_with_their_client(clients, words):
    with pytest.raises(BadInput, match=words):
        fedactors.horizontal(clients)


def test_a_client_without_labels_is_refused_when_it_trains():
    data = fedactors.horizontal([(X, Y), X.copy()], test=(X[:9], Y[:9]))
    with pytest.raises(BadInput, match=r"^client-1: label"):
        fedactors.simulate("horizontal", data, **ROUNDS)


# --- tables that a query joins ----------------------------------------------------------------------------------------

SQL = "SELECT * FROM crm JOIN sales ON crm.id = sales.customer"


def crm() -> pd.DataFrame:
    return pd.DataFrame({"id": np.arange(30), "age": X[:30, 0], "size": X[:30, 1]})


def sales() -> pl.DataFrame:
    return pl.DataFrame({"customer": np.arange(NUM_ROWS) % 30, "amount": X[:, 2], "good": Y.astype(int)})


def test_tables_are_joined_as_their_files_are(tmp_path):
    crm().to_parquet(tmp_path / "crm.parquet")
    sales().write_parquet(tmp_path / "sales.parquet")
    given = {"sql": SQL, "label": "sales.good"}
    data = fedactors.relational({"crm": duckdb.from_df(crm()), "sales": sales()}, **given)
    files = {name: tmp_path / f"{name}.parquet" for name in ("crm", "sales")}
    run = fedactors.simulate("tablepuppet", data, **ROUNDS)
    of_files = fedactors.simulate("tablepuppet", fedactors.relational(files, task="binary", **given), **ROUNDS)
    assert run.metrics == of_files.metrics
    assert run.resume().metrics == run.metrics


def test_an_object_has_no_kind_of_database():
    given = {"sql": SQL, "label": "good", "parties": {"crm": {"kind": "sqlite"}}}
    with pytest.raises(BadInput, match=r"^parties.crm.kind: 'sqlite' is not allowed: its path is an object$"):
        fedactors.relational({"crm": crm(), "sales": sales()}, **given)


# --- graphs -----------------------------------------------------------------------------------------------------------


def masks() -> dict[str, torch.Tensor]:
    part = np.random.default_rng(1).permutation(np.arange(NUM_ROWS) % 4)
    return {name: torch.from_numpy(np.isin(part, kinds)) for name, kinds in zip(MASKS, ([0, 1], [2], [3]), strict=True)}


MASKS = ("train_mask", "val_mask", "test_mask")


def local_graph(seed: int) -> Any:
    """A party's graph, with what a ``Data`` of PyTorch Geometric has."""
    draw = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, NUM_ROWS, (2, 150), generator=draw)
    return SimpleNamespace(
        x=torch.from_numpy(X[:, seed::2].copy()), edge_index=edges, y=torch.from_numpy(Y).long(), **masks()
    )


def test_numbered_nodes_train_as_those_of_files(tmp_path):
    found = {"bank": local_graph(0), "shop": local_graph(1)}
    arrays = {n: {"edges": one.edge_index.numpy(), "features": one.x.numpy()} for n, one in found.items()}
    known = {
        "labels": Y.astype(int),
        **dict(zip(("train", "validation", "test"), map(np.asarray, masks().values()), strict=True)),
    }
    (tmp_path / "graph.toml").write_text(
        '[task]\nlayout = "graph"\nnodes = "nodes.npz"\n'
        '[parties.bank]\nfile = "bank.npz"\n[parties.shop]\nfile = "shop.npz"\n'
    )
    for name, content in {"nodes": known, **arrays}.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    settings = {**ROUNDS, "num_clients": 2}
    run = fedactors.simulate("glasu", fedactors.graph(found), **settings)
    assert run.metrics == fedactors.simulate("glasu", tmp_path / "graph.toml", **settings).metrics
    by_name = fedactors.graph(arrays, nodes=known)
    assert by_name.address == fedactors.graph(found).address
    assert run.resume(data=by_name).metrics == run.metrics
    assert run.predict(by_name, tmp_path / "nodes.parquet").outcomes[0].counts.num_rows == NUM_ROWS


def test_a_graph_of_pytorch_geometric():
    data = pytest.importorskip("torch_geometric.data").Data
    given = {name: data(**vars(local_graph(seed))) for seed, name in enumerate(("bank", "shop"))}
    assert fedactors.graph(given).address == fedactors.graph({"bank": local_graph(0), "shop": local_graph(1)}).address


def test_nodes_in_tables_train():
    draw = np.random.default_rng(3)
    edges = [pl.DataFrame({"source": draw.choice(IDS, 120), "target": draw.choice(IDS, 120)}) for _ in range(2)]
    given = {"bank": {"nodes": bank(), "edges": edges[0]}, "shop": {"nodes": shop(), "edges": edges[1]}}
    data = fedactors.graph(given, id="customer", label=LABEL)
    assert (data.layout, data.task["type"]) == ("graph-tables", "binary")
    assert fedactors.simulate("glasu", data, num_clients=2, **ROUNDS).status == "finished"
    with pytest.raises(BadInput, match=r"^shop: its tables are needed by name: nodes, edges"):
        fedactors.graph({**given, "shop": shop()}, id="customer", label=LABEL)


def test_a_graph_without_edges_is_refused_with_its_party():
    with pytest.raises(
        BadInput, match=r"^shop: SimpleNamespace lacks edges: give edges \(2, E\) and features \(N, F\)$"
    ):
        fedactors.graph({"bank": local_graph(0), "shop": SimpleNamespace(x=X)})


# --- whose they are ---------------------------------------------------------------------------------------------------


def of_tables() -> Objects:
    return fedactors.relational({"crm": crm(), "sales": sales()}, sql=SQL, label="sales.good")


EVERY = {
    "pubsub-vfl": (two, SMALL),
    "pubsub-vfl, joined": (of_tables, SMALL),
    "mtcd": (two, {"problem": "network", "num_rounds": 2, "num_clients": 2, "relaxed_protocol": True}),
    "horizontal": (lambda: clients("arrays"), ROUNDS),
    "tablepuppet": (of_tables, ROUNDS),
    "glasu": (lambda: fedactors.graph({"bank": local_graph(0), "shop": local_graph(1)}), {**ROUNDS, "num_clients": 2}),
}


@pytest.mark.parametrize("case", EVERY)
def test_an_actor_is_built_with_its_own_partys_objects_alone(case, monkeypatch):
    make, settings = EVERY[case]
    built: dict[str, set[str]] = {}
    spawn = Runtime.spawn

    def spawned(self, cls, name, *args, **kwargs):
        parties = {address.split(":")[1] for address in snapshots.objects_in((args, kwargs))}
        built.setdefault(name.partition("/")[0], set()).update(parties)
        return spawn(self, cls, name, *args, **kwargs)

    monkeypatch.setattr(Runtime, "spawn", spawned)
    data = make()
    fedactors.simulate(case.partition(",")[0], data, **settings)
    common = {"nodes"} if data.layout == "graph" else set()
    given = {party: found for party, found in built.items() if found}
    for party in data.parties:
        assert given.pop(party) == {party} | common, party
    assert given in ({}, {"server": {"test"}}), given


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_on_ray_each_process_gets_its_own_partys_objects(tmp_path, monkeypatch):
    from fedactors.runtime.ray.processes import Processes

    sent: dict[str, set[str]] = {}
    objects_of = Processes._objects_of

    def noted(self, actor_specs):
        found = objects_of(self, actor_specs)
        (party,) = {spec.name.partition("/")[0] for spec in actor_specs}
        sent.setdefault(party, set()).update(one.split(":")[1] for one in found)
        return found

    monkeypatch.setattr(Processes, "_objects_of", noted)
    run = fedactors.run("pubsub-vfl", two(), out=tmp_path, **SMALL)
    assert {party: found for party, found in sent.items() if found} == {"bank": {"bank"}, "shop": {"shop"}}
    assert run.status == "finished"
    assert run.resume(runtime="ray").metrics.keys() == run.metrics.keys()
    new = fedactors.vertical({**tables(), "bank": tables()["bank"].drop(columns="defaulted")}, label=LABEL)
    assert run.predict(new, tmp_path / "new.parquet").outcomes[0].counts.num_predicted == NUM_ROWS
    assert run.predict(new, tmp_path / "same.parquet", runtime="simulated").outcomes[0].counts.num_predicted == NUM_ROWS
    on_ray, here = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("new", "same"))
    assert list(on_ray["prediction"]) == list(here["prediction"])


@pytest.mark.ray
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", ["pubsub-vfl, joined", "horizontal", "tablepuppet", "glasu"])
def test_on_ray_other_layouts_train_as_they_do_here(case):
    make, settings = EVERY[case]
    on_ray = fedactors.run(case.partition(",")[0], make(), **settings)
    here = fedactors.simulate(case.partition(",")[0], make(), **settings)
    assert on_ray.status == here.status == "finished"
    assert on_ray.metrics.keys() == here.metrics.keys()
    for name, value in here.metrics.items() if not case.startswith("pubsub") else ():  # whose rows are in other orders
        if name.startswith("test/"):
            assert on_ray.metrics[name] == pytest.approx(value, abs=0.05), name


def test_equal_objects_are_one_as_long_as_either_is_kept():
    first, second = two(), two()
    assert first.address == second.address
    del second
    assert fedactors.simulate("pubsub-vfl", first, **SMALL).status == "finished"


def test_objects_live_in_the_process_that_made_them():
    bank = tables()["bank"]
    data = fedactors.vertical({**tables(), "bank": bank.iloc[::-1]}, label=LABEL)  # no other test's data are equal
    address = data.address
    assert fedactors.simulate("pubsub-vfl", address, **SMALL).status == "finished"
    del data
    gc.collect()
    with pytest.raises(BadInput, match=r"^data: object:vertical:\w+.toml is not here: an object lives in the process"):
        fedactors.simulate("pubsub-vfl", address, **SMALL)


def test_a_command_refuses_to_go_on_with_objects(tmp_path, capsys):
    run = fedactors.simulate("pubsub-vfl", two(), out=tmp_path, **SMALL)
    assert cli.main(["run", "pubsub-vfl", "--resume", str(run.path)]) == 2
    assert "data: missing: the run used objects (bank, shop); give them again" in capsys.readouterr().err


def test_a_sweep_refuses_objects():
    with pytest.raises(BadInput, match=r"^data: objects are not allowed in a sweep"):
        fedactors.sweep("pubsub-vfl", SMALL, data=two())


def test_between_sites_objects_are_refused():
    from fedactors.launch import resolve
    from fedactors.options import RunOptions
    from fedactors.plugins import find_protocol

    data = two()
    options = RunOptions.checked(data=data.address, federation="federation.toml")
    with pytest.raises(BadInput, match=r"^data: objects are not allowed between sites: each site names its own data"):
        resolve(find_protocol("pubsub-vfl"), {}, options)


def test_objects_in_a_running_loop():
    async def notebook():
        return fedactors.simulate("pubsub-vfl", two(), **SMALL)

    assert asyncio.run(notebook()).metrics == fedactors.simulate("pubsub-vfl", two(), **SMALL).metrics


@pytest.mark.parametrize("kind", ["int32", "uint8", "float64"])
def test_labels_of_several_widths_are_one_label(kind):
    labels = np.arange(8) % 2
    held = {name: {"x": np.arange(8.0), "y": y} for name, y in (("north", labels), ("south", labels.astype(kind)))}
    assert fedactors.horizontal(held, label="y", task="binary") is not None


@pytest.mark.parametrize("kind", ["bool", "str"])
def test_labels_of_other_kinds_are_refused_in_one_line(kind):
    labels = np.arange(8) % 2
    held = {name: {"x": np.arange(8.0), "y": y} for name, y in (("north", labels), ("south", labels.astype(kind)))}
    with pytest.raises(BadInput, match=r"^north and south: label 'y' holds .*int64.*; give it one type"):
        fedactors.horizontal(held, label="y", task="binary")


def test_columns_with_masks_and_lists_are_read_as_arrays_are():
    moments = np.array(["2024-01-01T00:00:00", "2024-01-01T12:00:10"], "M8[10s]")
    as_read = table_of({"x": moments}, "bank").column("x").to_pylist()
    for given in (np.ma.array(moments, mask=[0, 0]), list(moments)):
        assert table_of({"x": given}, "bank").column("x").to_pylist() == as_read
    masked = np.ma.array(["a\0b", "a", "c"], mask=[0, 0, 1])
    assert table_of({"x": masked}, "bank").column("x").to_pylist() == ["a\0b", "a", None]
    assert table_of({"x": np.array([b"a\0b", b"a"])}, "bank").column("x").to_pylist() == [b"a\0b", b"a"]


def test_texts_of_numpy_are_whole_and_columns_stay_apart(tmp_path):
    texts = np.array(["a\0b", "a\0c", "d"])
    assert table_of({"x": texts}, "bank").column("x").to_pylist() == ["a\0b", "a\0c", "d"]
    np.save(tmp_path / "a.npy", np.array([(one, 1.0) for one in texts.tolist()], dtype=[("x", "U3"), ("v", "f8")]))
    assert read_columns(tmp_path / "a.npy", "bank", wanted=None)["x"].texts("") == ["a\0b", "a\0c", "d"]
    with pytest.raises(BadInput, match="two columns are called '0'"):
        table_of({0: [1], "0": [2]}, "bank")


@pytest.mark.parametrize("kind", ["Int128", "UInt128"])
def test_whole_numbers_of_128_bits_are_refused_with_casts_that_work(kind):
    polars = pytest.importorskip("polars")
    wide = polars.DataFrame({"x": polars.Series([2**63 - 1, 5], dtype=getattr(polars, kind))})
    with pytest.raises(
        BadInput, match=r"column x: holds whole numbers of 128 bits.* cast it to Int64.*String.*Float64"
    ):
        table_of(wide, "bank")
    for cast, right in ((polars.Int64, [2**63 - 1, 5]), (polars.String, [str(2**63 - 1), "5"])):
        assert table_of(wide.cast(cast), "bank").column("x").to_pylist() == right
    assert table_of(wide.cast(polars.Float64), "bank").column("x").to_pylist() == [float(2**63 - 1), 5.0]


def test_structured_arrays_with_masks_and_of_another_byte_order_are_read():
    masked = np.ma.array([(1, 2.5), (3, 4.5)], mask=[(0, 1), (0, 0)], dtype=[("id", ">i8"), ("x", "f8")])
    assert table_of(masked, "bank").to_pydict() == {"id": [1, 3], "x": [None, 4.5]}
    swapped = pd.DataFrame({"id": np.array([2**60 + 1, 7], ">i8"), "x": np.array([0.1, -0.0], ">f4"), "t": ["a", "b"]})
    whole = table_of(swapped, "bank").to_pydict()
    assert whole == {"id": [2**60 + 1, 7], "x": [pytest.approx(0.1), 0.0], "t": ["a", "b"]}


DENSE = {
    "to_dense": lambda: torch.tensor([0.0, 2.0]).to_sparse(),
    "to_padded_tensor": lambda: torch.nested.nested_tensor([torch.tensor([1.0]), torch.tensor([1.0, 2.0])]),
    "dequantize": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quant")
@pytest.mark.parametrize("how", DENSE)
def test_tensors_that_are_not_dense_are_refused_with_what_makes_them_so(how):
    tensor = DENSE[how]()
    with pytest.raises(
        BadInput, match=rf"bank: builtins.dict: column x: a tensor .* give what \.{how}\(\) makes"
    ) as told:
        table_of({"x": tensor}, "bank")
    assert str(told.value).count("; give") == 1
    if how != "to_padded_tensor":
        right = getattr(tensor, how)()
        assert table_of({"x": right}, "bank").column("x").to_pylist() == pytest.approx(right.tolist())


@pytest.mark.parametrize(
    ("field", "words"),
    [(("x", [("a", "i4")]), "column x: .*give one number"), (("x", "f4", (3,)), "column x: .*give one number"),
     (("x", "g"), "column x: .*give float64")],
)  # fmt: skip
def test_fields_of_a_structured_array_that_are_no_columns_are_named(field, words):
    with pytest.raises(BadInput, match=words):
        table_of(np.zeros(2, dtype=[("id", "i8"), field]), "bank")


def test_texts_of_any_length_of_numpy_are_texts():
    kind = np.dtypes.StringDType(na_object=None)
    made = table_of({"a": np.array(["x", "a\0b\0", None], dtype=kind), "b": [1, 2, 3]}, "bank")
    assert made.to_pydict() == {"a": ["x", "a\0b\0", None], "b": [1, 2, 3]}


@pytest.mark.parametrize("value", ["['0101'::BIT]", "[TIMETZ '10:00:00+02']", "[[1::UHUGEINT]]"])
def test_lists_that_duckdb_gives_as_others_are_refused_with_a_view_that_works(value):
    with pytest.raises(BadInput, match=r"column a holds lists of the type .*, such as a\[1\] AS a1"):
        table_of(duckdb.sql(f"SELECT {value} AS a"), "bank")
    if "[[" not in value:
        found = table_of(duckdb.sql(f"SELECT a[1] AS a1 FROM (SELECT {value} AS a)"), "bank").to_pydict()
        assert found["a1"] in ([b"0101"], ["10:00:00+02"])
