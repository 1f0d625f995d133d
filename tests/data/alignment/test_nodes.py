"""A graph in tables: nodes aligned by their ids, labels at one party, edges and sparse features; the same in arrays."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import CLIENT, endpoints
from fedactors.api import load_part
from fedactors.cli.main import main
from fedactors.config import build
from fedactors.data.alignment.nodes import NodeHolder
from fedactors.data.description import load_description
from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput, Refused, RowsChangedError
from fedactors.inspection import describe_joins
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.keeping import Keeping

TASK = '[task]\nlayout = "graph-tables"\ntype = "binary"\nalignment = "psi"\npositive = "yes"\n'
PARTIES = """
[parties.bank]
path = "{0}bank.csv"
id = "account"
label = "fraud"
split = "part"
edges = "{0}transfers.csv"
ends = ["from", "to"]
columns = {{ job = {{ type = "categorical", missing = "indicator" }} }}
[parties.shop]
path = "{0}shop.csv"
id = "client"
edges = "{0}friends.csv"
sparse = "{0}words.csv"
"""
WORDS = ["num_clients=2", "num_rounds=3", "num_layers=2", "hidden_size=4", "batch_size=8", "num_neighbours=3"]


def write(folder, name, rows):
    with (folder / name).open("w", newline="") as file:
        out = csv.writer(file)
        out.writerows(rows)


def make(folder, prefix="", count=60, labelled=True):
    """Accounts 000.. at the bank, which lacks the last ones; the shop lacks the first; some labels are not known."""
    rng = np.random.default_rng(count)
    ids = [f"{number:03}" for number in range(count)]
    taste, income = rng.normal(size=count), rng.normal(size=count).astype(np.float32)
    bank = [["account", "income", "job", *(["fraud", "part"] if labelled else [])]]
    for row in rng.permutation(count - 4).tolist():
        fraud = "yes" if income[row] + taste[row] > 0 else "no"
        part = ["train", "train", "validation", "test"][row % 4]
        known = [fraud, part] if row % 7 else ["", ""]
        job = ["clerk", "pilot", ""][row % 3] if labelled else "astronaut"
        bank.append([ids[row], income[row], job, *(known if labelled else [])])
    shop = [["client", "age"], *([ids[row], 20 + row % 9] for row in rng.permutation(np.arange(2, count)).tolist())]
    if not labelled:
        shop[5][1] = ""
    write(folder, f"{prefix}bank.csv", bank)
    write(folder, f"{prefix}shop.csv", shop)
    for name, head, extra in (
        ("transfers", ["from", "to"], [["007", "999"], ["008", "008"]]),
        ("friends", ["source", "target"], []),
    ):
        pairs = rng.integers(0, count, (3 * count, 2)).tolist()
        write(folder, f"{prefix}{name}.csv", [head, *([ids[a], ids[b]] for a, b in pairs), *extra])
    words = [
        [ids[row], word, 1 + row % 2]
        for row in range(2, count)
        for word in (["sun"] if taste[row] > 0 else ["rain", "fog"])
    ]
    write(
        folder,
        f"{prefix}words.csv",
        [["node", "feature", "value"], *words, *([] if labelled else [["003", "snow", 1]])],
    )
    (folder / f"{prefix}graph.toml").write_text(TASK + PARTIES.format(prefix))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    make(folder)
    make(folder, "new-", 30, labelled=False)
    return folder


def train(data_file, seed=0, resume=None, **more):
    protocol = find_protocol("glasu")
    config = build(protocol.Config, dict(word.split("=") for word in WORDS) | more)
    recorder = Keeping()
    runtime = SimulatedRuntime(seed=seed, recorder=recorder, reproducible_noise=True)
    data = load_data(protocol, config, str(data_file), seed)
    result = runtime.execute(lambda: protocol.run(config, data, runtime), resume)
    return result, recorder, runtime


def rows(folder, name):
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def in_arrays(folder, states):
    """Write what the parties would have had to have: numbered nodes in the run's order, the bank's labels for all."""
    bank, shop = rows(folder, "bank.csv"), rows(folder, "shop.csv")
    order = [bank[row]["account"] for row in actor_state(states, "bank/nodes")["rows"]]
    assert order == [shop[row]["client"] for row in actor_state(states, "shop/nodes")["rows"]]
    assert sorted(order) == sorted({row["account"] for row in bank} & {row["client"] for row in shop})
    index_of = {name: number for number, name in enumerate(order)}
    of_bank, of_shop = {row["account"]: row for row in bank}, {row["client"]: row for row in shop}
    parts = {
        name: np.array([of_bank[node]["part"] == name for node in order]) for name in ("train", "validation", "test")
    }
    labels = np.array([int(of_bank[node]["fraud"] == "yes") for node in order])
    np.savez(folder / "nodes.npz", labels=labels, **parts)

    def scaled(values):
        known = values[parts["train"]]
        return (values - known.mean()) / known.std()

    incomes = scaled(np.array([float(of_bank[node]["income"]) for node in order], np.float32))
    jobs = [np.array([of_bank[node]["job"] == job for node in order]) for job in ("", "clerk", "pilot")]
    ages = scaled(np.array([float(of_shop[node]["age"]) for node in order]))
    words = np.zeros((len(order), 3))
    for row in rows(folder, "words.csv"):
        if row["node"] in index_of:
            words[index_of[row["node"]], ["fog", "rain", "sun"].index(row["feature"])] = row["value"]
    for party, name, columns in (
        ("bank", "transfers.csv", [incomes, *jobs]),
        ("shop", "friends.csv", [ages, *words.T]),
    ):
        pairs = [tuple(row.values()) for row in rows(folder, name)]
        edges = [(index_of[a], index_of[b]) for a, b in pairs if a in index_of and b in index_of]
        np.savez(folder / f"{party}.npz", edges=np.array(edges).T, features=np.stack(columns, axis=1))
    text = '[task]\nlayout = "graph"\nnodes = "nodes.npz"\n'
    (folder / "arrays.toml").write_text(text + "".join(f'[parties.{p}]\nfile = "{p}.npz"\n' for p in ("bank", "shop")))


def test_tables_train_as_arrays_of_the_shared_nodes_do(data_dir):
    result, recorder, _ = train(data_dir / "graph.toml")
    states = list(recorder.checkpoints.values())[-1].actors
    in_arrays(data_dir, states)
    clear, other, _ = train(data_dir / "arrays.toml")
    assert dict(result.metrics) == pytest.approx(dict(clear.metrics), abs=1e-4)
    for party in ("bank", "shop"):
        mine, theirs = (
            actor_state(one, party)["parameters"] for one in (states, list(other.checkpoints.values())[-1].actors)
        )
        assert all(np.allclose(mine[name], theirs[name], atol=1e-4) for name in theirs)
    assert result.extra["notes"][0] == "bank: 54 of 56 nodes are used (2 not at shop, or missing values there)"
    assert [note.partition(":")[0] for note in result.extra["notes"][1:]] == ["bank", "shop"]


@pytest.fixture(scope="module")
def run(data_dir):
    """A run from the command line."""
    words = ["run", "glasu", "--data", str(data_dir / "graph.toml"), "--runtime", "simulated", "--quiet", *WORDS]
    assert main([*words, "--out", str(data_dir / "runs")]) == 0
    (folder,) = (data_dir / "runs").iterdir()
    return folder


def predicted(data_dir, run, data, to, *flags):
    assert main(["predict", str(run), "--data", str(data_dir / data), "--output", str(to), *flags]) == 0
    return rows(to.parent, to.name)


def test_new_nodes_are_predicted_at_the_party_with_the_labels_and_the_others_told(data_dir, run, tmp_path):
    """Against arrays of the same nodes, which the exported parts prepare."""
    found = predicted(data_dir, run, "new-graph.toml", tmp_path / "said.csv")
    bank, shop = rows(data_dir, "new-bank.csv"), rows(data_dir, "new-shop.csv")
    assert [row["id"] for row in found] == [row["account"] for row in bank]
    rejections = {row["id"]: row["reason"] for row in found if row["reason"]}
    blank = next(row["client"] for row in shop if row["age"] == "")
    lost = {"000": "not at shop", "001": "not at shop", blank: "shop cannot use its row"}
    assert rejections == {name: reason for name, reason in lost.items() if name in {row["account"] for row in bank}}
    assert list(found[0]) == ["id", "prediction", "probability_no", "probability_yes", "reason"]
    shared = [row["account"] for row in bank if row["account"] in {row["client"] for row in shop}]
    assert main(["export", str(run), "--output", str(tmp_path / "model")]) == 0
    parts = {party: load_part(tmp_path / "model" / party) for party in ("bank", "shop")}
    of_bank, of_shop = {row["account"]: row for row in bank}, {row["client"]: row for row in shop}
    features = parts["bank"].preprocess(
        {
            "income": [float(of_bank[node]["income"]) for node in shared],
            "job": [of_bank[node]["job"] for node in shared],
        }
    )
    ages = parts["shop"].preprocess({"age": [float(of_shop[node]["age"] or 0) for node in shared]}).numpy()
    ages[shared.index(blank)] = 0
    names, index_of = parts["shop"].settings["sparse_features"], {node: number for number, node in enumerate(shared)}
    words = np.zeros((len(shared), len(names)))
    for row in rows(data_dir, "new-words.csv"):
        if row["node"] in index_of and row["feature"] in names:
            words[index_of[row["node"]], names.index(row["feature"])] = row["value"]
    for party, name, columns in (
        ("bank", "new-transfers.csv", features.numpy()),
        ("shop", "new-friends.csv", np.concatenate([ages, words], axis=1)),
    ):
        pairs = [tuple(row.values()) for row in rows(data_dir, name)]
        edges = [(index_of[a], index_of[b]) for a, b in pairs if a in index_of and b in index_of]
        np.savez(data_dir / f"new-{party}.npz", edges=np.array(edges).T, features=columns)
    np.savez(data_dir / "new-nodes.npz", ids=np.array(shared))
    text = '[task]\nlayout = "graph"\nnodes = "new-nodes.npz"\n'
    parties = "".join(f'[parties.{party}]\nfile = "new-{party}.npz"\n' for party in ("bank", "shop"))
    (data_dir / "new-arrays.toml").write_text(text + parties)
    clear = {row["id"]: row for row in predicted(data_dir, run, "new-arrays.toml", tmp_path / "clear.csv")}
    for row in found:
        if not row["reason"]:
            assert float(row["probability_yes"]) == pytest.approx(float(clear[row["id"]]["probability_yes"]), abs=1e-6)
    assert parts["bank"].class_names == ("no", "yes")


@pytest.mark.slow
@pytest.mark.ray
def test_ray_trains_and_predicts_alike_and_each_process_has_its_user_files(data_dir, run, tmp_path, ray_cluster):
    here = predicted(data_dir, run, "new-graph.toml", tmp_path / "here.csv")
    there = predicted(data_dir, run, "new-graph.toml", tmp_path / "there.csv", "--runtime", "ray")
    for one, other in zip(here, there, strict=True):
        assert (one["id"], one["reason"]) == (other["id"], other["reason"])
        if not one["reason"]:
            assert float(one["probability_yes"]) == pytest.approx(float(other["probability_yes"]), abs=1e-6)


def test_who_works_alone_predicts_its_shared_nodes_and_tells_why_not_the_others(data_dir, tmp_path):
    words = ["run", "glasu", "--data", str(data_dir / "graph.toml"), "--runtime", "simulated", "--quiet", *WORDS]
    assert main([*words, "special_case=standalone", "--out", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert (
        main(["predict", str(folder), "--data", str(data_dir / "new-graph.toml"), "--output", str(tmp_path / "p.csv")])
        == 0
    )
    for party, file in (("bank", "new-bank.csv"), ("shop", "new-shop.csv")):
        found = rows(tmp_path, f"p-{party}.csv")
        assert [row["id"] for row in found] == [next(iter(row.values())) for row in rows(data_dir, file)]
        assert all(bool(row["reason"]) != bool(row["prediction"]) for row in found)
    assert {row["reason"] for row in found} == {"", "not at all parties", "age: missing"}


def test_each_party_is_told_of_its_user_files_only(data_dir):
    """What an actor is built with is all that it knows of files; nobody else opens any."""
    _, _, runtime = train(data_dir / "graph.toml", num_rounds="1")
    files = {"bank": ("bank.csv", "transfers.csv"), "shop": ("shop.csv", "friends.csv", "words.csv")}
    data = load_data(find_protocol("glasu"), build(find_protocol("glasu").Config, {"num_clients": 2}),
                     str(data_dir / "graph.toml"), 0)  # fmt: skip
    for party, others in (("bank", "shop"), ("shop", "bank")):
        told = repr(data.part(party))
        assert all(name in told for name in files[party])
        assert not any(f"/{name}" in told for name in files[others])
    totals = [(total.sender, total.receiver, total.type) for total in runtime.ledger.totals()]
    local = {
        (sender.partition("/")[0], receiver.partition("/")[0])
        for sender, receiver, kind in totals
        if kind == "UserNodes"
    }
    assert local == {("bank", "bank"), ("shop", "shop")}
    assert {(sender, receiver) for sender, receiver, kind in totals if kind == "NodeLabels"} == {
        ("bank/nodes", "shop/nodes")
    }
    told_of = {one["message"] for one in describe_joins(find_protocol("glasu"))}
    assert {kind for sender, _, kind in totals if sender.endswith("/nodes") and not kind.endswith("()")} <= told_of
    table = endpoints(NodeHolder)
    with pytest.raises(Refused, match="open to"):
        table.check("give_nodes", "shop/nodes", CLIENT, "bank/nodes", None)


@pytest.mark.slow
def test_a_resumed_run_places_its_nodes_again_and_notices_others(tmp_path):
    make(tmp_path)
    whole, recorder, _ = train(tmp_path / "graph.toml", num_rounds="2")
    first = recorder.all[0]
    again, _, _ = train(tmp_path / "graph.toml", resume=first, num_rounds="2")
    assert again.metrics == whole.metrics
    (tmp_path / "friends.csv").write_text("source,target\n003,004\n")
    with pytest.raises(RowsChangedError, match=r"shop/nodes: .*friends\.csv: the file is another, or read"):
        train(tmp_path / "graph.toml", resume=first, num_rounds="2")


@pytest.mark.parametrize(
    ("old", "new", "words", "named"),
    [
        ('edges = "transfers.csv"', "", [], "parties.bank.edges: missing"),
        ('ends = ["from", "to"]', 'ends = ["from", "from"]', [], "parties.bank.ends: ['from', 'from'] is not allowed"),
        ('ends = ["from", "to"]', "", [], "bank: 'source' is not a column of "),
        ('id = "account"', "", [], "parties.bank.id: missing"),
        ('label = "fraud"\nsplit = "part"', "", [], "label: 0 parties name one"),
        ('sparse = "words.csv"', 'sparse = "friends.csv"', [], "shop: 'node' is not a column of "),
        ('edges = "friends.csv"', 'edges = "transfers.csv"', [], "parties.shop.edges: "),
        ('type = "binary"', 'type = "regression"', [], "task.type: 'regression'"),
        ('alignment = "psi"', "", [], "alignment: the ids of "),
        ("", "", ["special_case=centralised"], "special_case: centralised is not allowed with tables of nodes"),
        ("", "", ["noise_multiplier=1", "clip_norm=1", "max_degree=99"], "is not allowed with tables of nodes"),
    ],
)
def test_what_cannot_be_is_one_line(data_dir, tmp_path, capsys, old, new, words, named):
    text = (data_dir / "graph.toml").read_text()
    assert old in text
    (data_dir / "other.toml").write_text(text.replace(old, new))
    run = ["run", "glasu", "--data", str(data_dir / "other.toml"), "--runtime", "simulated", "--quiet", *WORDS, *words]
    assert main([*run, "--out", str(tmp_path)]) == 2
    assert named in capsys.readouterr().err


def test_other_protocols_take_no_graphs(data_dir, capsys):
    for protocol in ("pubsub-vfl", "tablepuppet", "horizontal"):
        assert main(["run", protocol, "--data", str(data_dir / "graph.toml"), "--quiet"]) == 2
        assert "layout" in capsys.readouterr().err


ENDS = 'ends = [["source-branch", "source"], ["target-branch", "target"]]\n'


def test_nodes_called_by_two_columns_have_the_edges_of_nodes_called_by_one(tmp_path):
    make(tmp_path)
    for name, ends in (("bank", ["account"]), ("shop", ["client"]), ("transfers", ["from", "to"]),
                       ("friends", ["source", "target"])):  # fmt: skip
        with (tmp_path / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            for end in ends:
                row[f"{end}-branch"], row[end] = row[end][:2], row[end][2:]
        write(tmp_path, f"{name}-2.csv", [list(rows[0]), *(list(row.values()) for row in rows)])
    text = (TASK + PARTIES.format("")).replace('sparse = "words.csv"\n', "")
    for old, new in (
        (".csv", "-2.csv"),
        ('id = "account"', 'id = ["account-branch", "account"]'),
        ('id = "client"\n', 'id = ["client-branch", "client"]\n' + ENDS),
        ('ends = ["from", "to"]', 'ends = [["from-branch", "from"], ["to-branch", "to"]]'),
    ):  # fmt: skip
        text = text.replace(old, new)
    (tmp_path / "two.toml").write_text(text)
    one, two = (load_description(tmp_path / name) for name in ("graph.toml", "two.toml"))
    for party in ("bank", "shop"):
        parts: list[Any] = [data.part(party) for data in (one, two)]
        edges = []
        ids = [part.read().ids.tolist() for part in parts]
        assert ids[1] == [f"{name[:2]}/{name[2:]}" for name in ids[0]]
        for part, names in zip(parts, ids, strict=True):
            (indptr, indices), count, unknown = part.edges.load(names)
            edges.append((indptr.tolist(), indices.tolist(), count, unknown))
        assert edges[0] == edges[1]
        assert edges[0][2] > 100
    wrong = {
        r"ends: \['from', 'to'\] is not allowed: an id has 2 columns, each end as many": text.replace(
            '[["from-branch", "from"], ["to-branch", "to"]]', '["from", "to"]'
        ),
        "sparse: 'words.csv' is not allowed: its column node is one, and an id has 2": text + 'sparse = "words.csv"\n',
    }
    for said, written in wrong.items():
        (tmp_path / "two.toml").write_text(written)
        with pytest.raises(BadInput, match=said):
            load_description(tmp_path / "two.toml")
