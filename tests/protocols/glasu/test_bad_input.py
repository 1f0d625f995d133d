"""Everything that a user can get wrong ends with exit code 2 and one line that names it."""

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.protocols.glasu.plugin import PROTOCOL
from tests.protocols.glasu.federation import altered, settings, simulate

NODES = {
    "labels": np.array([0, 1, 0, 1, 0, 1]),
    "train": np.array([1, 1, 0, 0, 0, 0], dtype=bool),
    "validation": np.array([0, 0, 1, 1, 0, 0], dtype=bool),
    "test": np.array([0, 0, 0, 0, 1, 1], dtype=bool),
}
BANK = {"edges": np.array([[0, 1, 2], [1, 2, 5]]), "features": np.arange(18.0).reshape(6, 3)}
SHOP = {"edges": np.array([[3], [4]]), "features": np.arange(12.0).reshape(6, 2)}
TWO = '[parties.a]\nfile = "bank.npz"\n[parties.b]\nfile = "shop.npz"'
WORDS = ("hidden_size=4", "num_rounds=2", "evaluate_every=1", "num_clients=2")


def write(folder, nodes=NODES, bank=BANK, text=None):
    np.savez(folder / "nodes.npz", **nodes)
    np.savez(folder / "bank.npz", **bank)
    np.savez(folder / "shop.npz", **SHOP)
    path = folder / "graph.toml"
    path.write_text(
        text
        or '[task]\nlayout = "graph"\nnodes = "nodes.npz"\n[parties.bank]\nfile = "bank.npz"\n'
        '[parties.shop]\nfile = "shop.npz"\n'
    )
    return path


def go(path, *words):
    flags = RunOptions(out=str(path.parent / "runs"), quiet=True, runtime="simulated", data=str(path))
    config, options = resolve(PROTOCOL, words or WORDS, flags)
    return launch(PROTOCOL, config, options)[0]


def refused(path, *words):
    with pytest.raises(BadInput) as error:
        go(path, *words)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    assert not list((path.parent / "runs").glob("*"))
    return str(error.value)


@pytest.mark.slow
def test_user_graph_trains(tmp_path):
    summary = go(write(tmp_path))
    assert summary.rounds == 2
    numbered = {**NODES, "train": np.array([0, 1]), "validation": np.array([2, 3]), "test": np.array([4, 5])}
    assert go(write(tmp_path, nodes=numbered)).metrics == summary.metrics


def test_a_party_without_edges_trains_and_is_said(tmp_path):
    lonely = {**BANK, "edges": np.empty((2, 0), dtype=np.int64)}
    summary = go(write(tmp_path, bank=lonely))
    assert summary.extra["remarks"] == ["bank has no edges: its layers see each node alone"]


@pytest.mark.slow
def test_without_validation_nodes_the_last_round_stands_and_without_test_nodes_no_metric_is_told(tmp_path):
    nobody = np.zeros(6, bool)
    path = write(tmp_path, nodes={**NODES, "validation": nobody})
    summary = go(path, "hidden_size=4", "num_clients=2", "num_rounds=3", "evaluate_every=1", "patience=1")
    assert summary.rounds == summary.metrics["best_round"] == 3
    assert "validation/accuracy" not in summary.metrics
    told = "no validation nodes: nothing is selected, the last round stands, and patience=1 ends nothing"
    assert summary.extra["remarks"] == [told]
    summary = go(write(tmp_path, nodes={**NODES, "test": nobody}))
    assert summary.extra["remarks"] == ["no test nodes: no metric of them is told"]
    assert "test/accuracy" not in summary.metrics
    assert "validation/accuracy" in summary.metrics


def test_the_command_line_ends_with_code_2_and_one_line(tmp_path, capsys):
    path = write(tmp_path, bank={**BANK, "features": np.ones((6, 0))})
    words = ["run", "glasu", "--data", str(path), "--runtime", "simulated", "--out", str(tmp_path / "runs"), *WORDS]
    assert main(words) == 2
    phases, line = capsys.readouterr().err.strip().rsplit("\n", 1)
    assert "fedactors:" not in phases
    assert line.startswith("fedactors: features of bank: an empty block is not allowed")


def without(arrays, name):
    return {key: value for key, value in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ({**NODES, "labels": np.array([0, 1, 0])}, "train mask: 6 entries are not allowed: there are 3 labels"),
        ({**NODES, "test": np.ones(4, bool)}, "test mask: 4 entries"),
        ({**NODES, "validation": NODES["train"]}, "validation: node 0 is not allowed: it is in another split too"),
        ({**NODES, "train": np.zeros(6, bool)}, "train: no nodes"),
        ({**NODES, "labels": np.array([0, -1, 0, 1, 0, 1])}, "labels: -1"),
        ({**NODES, "labels": np.array([0.5, 1, 0, 1, 0, 1])}, "labels: type float64"),
        ({**NODES, "train": np.array([0.5])}, "train: type float64"),
        ({**NODES, **{n: np.flatnonzero(NODES[n]) for n in ("validation", "test")}, "train": np.array([9])}, "node 9"),
        (without(NODES, "labels"), "lacks labels"),
    ],
)
def test_labels_and_splits_that_do_not_fit(tmp_path, nodes, told):
    assert told in refused(write(tmp_path, nodes=nodes))


@pytest.mark.parametrize(
    ("bank", "told"),
    [
        ({**BANK, "features": np.ones((5, 3))}, "features of bank: 5 rows"),
        ({**BANK, "features": np.ones((6, 0))}, "features of bank: an empty block"),
        ({**BANK, "features": np.ones(6)}, "features of bank: "),
        ({**BANK, "features": np.full((6, 2), np.nan)}, "features of bank: values that are not finite"),
        ({**BANK, "features": np.full((6, 2), 1e300)}, "features of bank: column 0: values are infinite in single"),
        ({**BANK, "features": np.array([["a"] * 2] * 6)}, "features of bank: type"),
        ({**BANK, "edges": np.array([[0, 6], [1, 2]])}, "edges of bank: node 6 is not allowed: nodes are 0 to 5"),
        ({**BANK, "edges": np.array([[0, -1], [1, 2]])}, "edges of bank: node -1"),
        ({**BANK, "edges": np.array([0, 1])}, "edges of bank: shape"),
        ({**BANK, "edges": np.array([[0.5], [1.0]])}, "edges of bank: type"),
        (without(BANK, "edges"), "lacks edges"),
    ],
)
def test_a_block_that_does_not_fit(tmp_path, bank, told):
    assert told in refused(write(tmp_path, bank=bank))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not toml [", "is not TOML"),
        ('[task]\nlayout = "vertical"\nnodes = "nodes.npz"\n' + TWO, "task: unknown key 'nodes'"),
        (
            '[task]\nlayout = "vertical"\ntype = "binary"\n[parties.a]\npath = "a.csv"\nlabel = "y"\n[parties.b]\n'
            'path = "b.csv"',
            "task.layout: 'vertical' is not allowed: give graph or graph-tables",
        ),
        ('[task]\nlayout = "graph"\n' + TWO, "task.nodes: missing"),
        ('[task]\nlayout = "graph"\nnodes = "nodes.npz"', "no table [parties.NAME]"),
        ('[task]\nlayout = "graph"\nnodes = "nodes.npz"\nlabel = 1\n[parties.a]\nfile = "bank.npz"', "'label'"),
        ('[task]\nlayout = "graph"\nnodes = "absent.npz"\n' + TWO, "absent.npz cannot be read"),
        ('[task]\nlayout = "graph"\nnodes = "graph.toml"\n' + TWO, "graph.toml cannot be read"),
        ('[task]\nlayout = "graph"\nnodes = "nodes.npz"\n[parties.a]\nfile = 3', "parties.a.file: 3"),
        (
            '[task]\nlayout = "graph"\nnodes = "nodes.npz"\n[parties."a/b"]\nfile = "x"',
            "'a/b' is not allowed as",
        ),
        ('parties = 3\n[task]\nlayout = "graph"\nnodes = "nodes.npz"', "no table [parties.NAME]"),
    ],
)
def test_a_description_that_does_not_fit(tmp_path, text, told):
    assert told in refused(write(tmp_path, text=text))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("num_clients=3",), "num_clients: 3 is not allowed"),
        (("num_clients=2", "secure_aggregation=true"), "at least three"),
        (("num_clients=2", "secure_aggregation=true", "aggregation=concatenation"), "only with aggregation average"),
        (("num_clients=2", "aggregation_layers=0,2"), "the last layer, 3"),
        (("num_clients=2", "aggregation_layers=1,4"), "layers are 0 to 3"),
        (("num_clients=2", "num_local_updates=0"), "num_local_updates"),
        (("num_clients=2", "batch_size=0"), "batch_size"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, words, told):
    assert told in refused(write(tmp_path), *words)


def test_a_named_set_of_another_kind_or_with_too_few_columns():
    flags = RunOptions(runtime="simulated", quiet=True)
    for name, words, told in (
        ("breast-cancer", (), "glasu needs graph data"),
        ("blocks:100x2x2", (), "num_clients: 3 is not allowed"),
        ("no-such-graph", (), "unknown data set"),
    ):
        config, options = resolve(PROTOCOL, words, RunOptions(**{**flags.__dict__, "data": name}))
        with pytest.raises(BadInput, match=told):
            launch(PROTOCOL, config, options)


def test_clients_that_know_different_nodes_are_refused():
    block = altered().load(0)
    with pytest.raises(BadInput, match=r"nodes of client-1: .* must know|nodes of client-1: .* know the same nodes"):
        simulate(settings(), data=altered(train=block.train[1:]))
