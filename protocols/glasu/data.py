"""What a client holds of a vertically distributed graph: named graphs and own files, checks, and each special case.

    parts_of ─▶ (to the client) ─▶ load_client: load, check ─▶ arrange ─▶ renumber ─▶ scale_features

Own data is a ``.toml`` file; its paths are relative to it, and arrays lie in ``.npz`` files (no pickles)::

    [task]
    layout = "graph"
    nodes = "nodes.npz"        # labels (N), and train, validation, test: masks over the nodes, or node numbers

    [parties.bank]
    file = "bank.npz"          # edges (2, E), features (N, F)

    [parties.shop]
    file = "shop.npz"

Shapes: N nodes, E edges, F features of one client.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from fedactors.data.client_graphs import GraphBlock, graph
from fedactors.errors import BadInput
from fedactors.network.codec import plain
from protocols.glasu.config import GlasuConfig, SpecialCase
from protocols.glasu.sampling import Adjacency, IntArray, adjacency

_SPLITS = ("train", "validation", "test")


class GraphPart(Protocol):
    """What a client's actor is built with: where its own block is."""

    @property
    def party(self) -> str:
        """The client's name."""

    def load(self) -> GraphBlock:
        """Load what the client holds, in the process of its actor."""


class GraphSource(Protocol):
    """Who holds what of a graph; the driver has it, and loads nothing."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The clients' names, in order."""

    def part(self, party: str) -> GraphPart:
        """Return what the actor of `party` is built with."""


@dataclass(frozen=True)
class GraphShare:
    """What one client owns: its edges E_m and its feature block X_m, over the nodes that all clients know."""

    name: str
    edges_2E: IntArray
    features_NF: npt.NDArray[np.float32]


@dataclass(frozen=True)
class NodeSplit:
    """The labels, known to every client, and the nodes for training, validation and test."""

    labels_N: IntArray
    train: IntArray
    validation: IntArray
    test: IntArray


@dataclass(frozen=True)
class ClientGraph:
    """What a client trains on: its graph, its features, and the nodes' labels and split."""

    graph: Adjacency
    features_NF: npt.NDArray[np.float32]
    nodes: NodeSplit
    num_classes: int


def load_data(config: GlasuConfig, name: str, seed: int) -> GraphSource:
    """Return who holds what: a named graph dealt to the clients, or the user's own files.

    Raises:
        BadInput: an unknown or unfitting data set, a description that does not fit, or another number of clients.
    """
    if not name.endswith(".toml"):
        return graph(name, config.num_clients, edge_share=config.edge_share, seed=seed)
    own = read_own(Path(name))
    if len(own.parties) != config.num_clients:
        raise BadInput(f"num_clients: {config.num_clients} is not allowed: {name} names {len(own.parties)} parties")
    return own


def parts_of(config: GlasuConfig, data: GraphSource, party: str) -> tuple[GraphPart, ...]:
    """Return what a client's actor is built with: its own part; everybody's in the two centralised baselines."""
    return tuple(data.part(one) for one in (data.parties if config.sees_everything else (party,)))


def load_client(
    config: GlasuConfig, parts: Sequence[GraphPart], position: int, common_seed: int | None = None
) -> tuple[ClientGraph, list[str]]:
    """Load and check what the client at `position` trains on.

    Args:
        config: the run's settings.
        parts: see `parts_of`.
        position: its place among all clients.
        common_seed: shuffles the nodes' numbers as all clients do; None leaves them.

    Returns:
        the graph, and remarks on what is allowed but worth saying.

    Raises:
        BadInput: data that does not fit together, see `check`.
    """
    blocks = [part.load() for part in parts]
    loaded = [share_of(block, part.party) for block, part in zip(blocks, parts, strict=True)]
    shares, nodes, num_classes = [share for share, _ in loaded], loaded[0][1], blocks[0].num_classes
    check(shares, nodes)
    if nodes.labels_N.max() >= num_classes:
        raise BadInput(f"labels: {nodes.labels_N.max()} is not allowed: there are {num_classes} classes")
    arranged = arrange(config.special_case, shares)
    mine = arranged[position] if config.special_case == "simulated-centralised" else arranged[0]
    if common_seed is not None:
        numbers_N = np.random.default_rng([common_seed, 1]).permutation(len(nodes.labels_N))
        mine, nodes = renumber(mine, nodes, numbers_N)
    mine = scale_features(mine) if config.scale_features else mine
    own = adjacency(mine.edges_2E.reshape(2, -1), len(nodes.labels_N))
    remarks = [] if len(nodes.validation) else ["no validation nodes: nothing is selected, the last round stands"]
    if config.special_case != "vfl":
        lonely = [share.name for share in shares if share.edges_2E.size == 0]
        remarks += [f"{name} has no edges: its layers see each node alone" for name in lonely]
    return ClientGraph(own, mine.features_NF, nodes, num_classes), remarks


def share_of(block: GraphBlock, name: str) -> tuple[GraphShare, NodeSplit]:
    """Return a loaded block as a share, each undirected edge once, and the nodes' labels and split."""
    rows = np.repeat(np.arange(block.num_nodes), np.diff(block.indptr))
    once = rows < block.indices
    edges_2E = np.stack([rows[once], block.indices[once]])
    split = NodeSplit(block.labels, block.train, block.validation, block.test)
    return GraphShare(name, edges_2E, block.features), split


def renumber(share: GraphShare, split: NodeSplit, numbers_N: IntArray) -> tuple[GraphShare, NodeSplit]:
    """Give node i the number ``numbers_N[i]``, so that what the server sees are shuffled numbers."""
    places = np.argsort(numbers_N)
    renumbered = GraphShare(share.name, numbers_N[share.edges_2E], share.features_NF[places])
    moved = (np.sort(numbers_N[nodes]) for nodes in (split.train, split.validation, split.test))
    return renumbered, NodeSplit(split.labels_N[places], *moved)


def check(shares: Sequence[GraphShare], split: NodeSplit) -> None:
    """Check that shares and split fit together.

    Raises:
        BadInput: lengths that differ, unknown nodes, overlapping or empty splits, an empty feature block.
    """
    num_nodes = len(split.labels_N)
    if not shares:
        raise BadInput("clients: none given, at least one is needed")
    if num_nodes and split.labels_N.min() < 0:
        raise BadInput(f"labels: {split.labels_N.min()} is not allowed: classes are numbered from 0")
    for share in shares:
        if share.features_NF.ndim != 2 or len(share.features_NF) != num_nodes:
            raise BadInput(
                f"features of {share.name}: {len(share.features_NF)} rows are not allowed: there are {num_nodes} labels"
            )
        if share.features_NF.shape[1] == 0:
            raise BadInput(f"features of {share.name}: an empty block is not allowed: at least one column")
        if share.edges_2E.ndim != 2 or share.edges_2E.shape[0] != 2:
            raise BadInput(f"edges of {share.name}: shape {share.edges_2E.shape} is not allowed: it must be (2, edges)")
        if share.edges_2E.size and (share.edges_2E.min() < 0 or share.edges_2E.max() >= num_nodes):
            worst = share.edges_2E.max() if share.edges_2E.max() >= num_nodes else share.edges_2E.min()
            raise BadInput(f"edges of {share.name}: node {worst} is not allowed: nodes are 0 to {num_nodes - 1}")
    _check_split(split, num_nodes)


def _check_split(split: NodeSplit, num_nodes: int) -> None:
    seen = np.zeros(num_nodes, dtype=bool)
    for name, nodes in (("train", split.train), ("validation", split.validation), ("test", split.test)):
        if nodes.dtype == np.bool_:
            raise BadInput(f"{name}: a mask of {len(nodes)} entries is not allowed: give node numbers (see from_masks)")
        if len(nodes) == 0:
            if name == "train":
                raise BadInput("train: no nodes is not allowed: at least one")
            continue
        if nodes.min() < 0 or nodes.max() >= num_nodes:
            raise BadInput(f"{name}: node {nodes.max()} is not allowed: nodes are 0 to {num_nodes - 1}")
        if len(np.unique(nodes)) != len(nodes):
            raise BadInput(f"{name}: a node named twice is not allowed")
        if seen[nodes].any():
            raise BadInput(f"{name}: node {nodes[seen[nodes]][0]} is not allowed: it is in another split too")
        seen[nodes] = True


def from_masks(
    labels_N: IntArray, train: npt.NDArray[np.bool_], validation: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]
) -> NodeSplit:
    """Make a split from masks over the nodes; a mask of another length than the labels is a `BadInput`."""
    for name, mask in (("train", train), ("validation", validation), ("test", test)):
        if len(mask) != len(labels_N):
            raise BadInput(f"{name} mask: {len(mask)} entries are not allowed: there are {len(labels_N)} labels")
    return NodeSplit(labels_N, np.flatnonzero(train), np.flatnonzero(validation), np.flatnonzero(test))


def all_edges(shares: Sequence[GraphShare]) -> IntArray:
    """Return E, the union of the clients' undirected edges (Section 1.1), each once."""
    edges_2E = np.concatenate([share.edges_2E for share in shares], axis=1)
    return np.unique(np.sort(edges_2E, axis=0), axis=1)


def arrange(special_case: SpecialCase, shares: Sequence[GraphShare]) -> list[GraphShare]:
    """Return the shares that a special case trains on (Sections 2.4 and 4.2); the others keep what clients own."""
    if special_case == "centralised":
        features = np.concatenate([share.features_NF for share in shares], axis=1)
        return [GraphShare("all", all_edges(shares), features)]
    if special_case == "simulated-centralised":
        edges_2E = all_edges(shares)
        return [GraphShare(share.name, edges_2E, share.features_NF) for share in shares]
    if special_case == "vfl":
        none = np.empty((2, 0), dtype=np.int64)
        return [GraphShare(share.name, none, share.features_NF) for share in shares]
    return list(shares)


def scale_features(share: GraphShare, length: float = 2.5) -> GraphShare:
    """Multiply a client's block by one number so that its rows are `length` long on average.

    A client can do this alone; it lets one learning rate and weight decay serve bags of words and weighted words alike.
    """
    mean = float(np.linalg.norm(share.features_NF, axis=1).mean())
    return share if mean == 0.0 else replace(share, features_NF=share.features_NF * np.float32(length / mean))


# --- own files ---


@plain
class OwnPart:
    """Where one client's own file is, and that of the nodes, which everyone knows."""

    party: str
    nodes: str
    file: str

    def load(self) -> GraphBlock:
        """Load and check what the client holds.

        Raises:
            BadInput: a file that cannot be read, or arrays that do not fit together.
        """
        party, split = self.party, read_nodes(Path(self.nodes))
        found = _arrays(Path(self.file), ("edges", "features"), f"parties.{party}")
        edges, features = found["edges"], found["features"]
        if edges.dtype.kind not in "iu" and edges.size:
            raise BadInput(f"edges of {party}: type {edges.dtype} is not allowed: give whole numbers")
        if features.dtype.kind not in "fiub":
            raise BadInput(f"features of {party}: type {features.dtype} is not allowed: give numbers")
        share = GraphShare(party, edges.astype(np.int64), features.astype(np.float32))
        if not np.isfinite(share.features_NF).all():
            raise BadInput(f"features of {party}: values that are not finite are not allowed")
        check([share], split)
        csr = adjacency(share.edges_2E.reshape(2, -1), len(split.labels_N))
        return GraphBlock(
            indptr=csr.indptr,
            indices=csr.indices,
            features=share.features_NF,
            columns=np.arange(share.features_NF.shape[1]),
            labels=split.labels_N,
            num_classes=int(split.labels_N.max(initial=0)) + 1,
            train=split.train,
            validation=split.validation,
            test=split.test,
        )


@dataclass(frozen=True)
class OwnGraph:
    """A graph in the user's own files."""

    parts: tuple[OwnPart, ...]

    @property
    def parties(self) -> tuple[str, ...]:
        """The clients' names, in order."""
        return tuple(part.party for part in self.parts)

    def part(self, party: str) -> OwnPart:
        """Return what the actor of `party` is built with."""
        return self.parts[self.parties.index(party)]


def read_own(path: Path) -> OwnGraph:
    """Read a description of own data; the files that it names are read and checked by the clients.

    Raises:
        BadInput: not TOML, or missing or unknown keys.
    """
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"data: {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"data: {path} is not TOML: {error}") from error
    task, parties = given.get("task", {}), given.get("parties", {})
    _only(given, {"task", "parties"}, str(path))
    _only(task, {"layout", "nodes"}, "task")
    if task.get("layout") != "graph":
        raise BadInput(f"task.layout: {task.get('layout')!r} is not allowed: give graph")
    if not isinstance(task.get("nodes"), str):
        raise BadInput(f"task.nodes: {task.get('nodes')!r} is not allowed: give the file of labels and split")
    if not isinstance(parties, dict):
        raise BadInput(f"parties: {parties!r} is not allowed: give a table for each, such as [parties.bank]")
    if not parties:
        raise BadInput(f"parties: none in {path}, at least one is needed")
    for party, keys in parties.items():
        if "/" in party:
            raise BadInput(f"parties.{party}: a party's name may not contain '/'")
        _only(keys, {"file"}, f"parties.{party}")
        if not isinstance(keys.get("file"), str):
            raise BadInput(f"parties.{party}.file: {keys.get('file')!r} is not allowed: give a .npz file")
    folder = path.parent.resolve()
    nodes = str((folder / task["nodes"]).resolve())
    files = {party: str((folder / keys["file"]).resolve()) for party, keys in parties.items()}
    return OwnGraph(tuple(OwnPart(party=party, nodes=nodes, file=file) for party, file in files.items()))


def read_nodes(path: Path) -> NodeSplit:
    """Read labels and split; masks become node numbers.

    Raises:
        BadInput: a missing array, or lengths that differ.
    """
    found = _arrays(path, ("labels", *_SPLITS), "task.nodes")
    labels = found["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"labels: type {labels.dtype} of shape {labels.shape} is not allowed: one whole number per node")
    labels_N = labels.astype(np.int64)
    if all(found[name].dtype == np.bool_ for name in _SPLITS):
        return from_masks(labels_N, *(found[name] for name in _SPLITS))
    for name in _SPLITS:
        if found[name].ndim != 1 or found[name].dtype.kind not in "iu":
            raise BadInput(f"{name}: type {found[name].dtype} is not allowed: give three masks, or node numbers")
    return NodeSplit(labels_N, *(found[name].astype(np.int64) for name in _SPLITS))


def _arrays(path: Path, names: tuple[str, ...], where: str) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise BadInput(f"{where}: {path} lacks {', '.join(missing)}")
            return {name: file[name] for name in names}
    except OSError as error:
        raise BadInput(f"{where}: {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, BadZipFile, EOFError, AttributeError) as error:
        raise BadInput(f"{where}: {path} is no .npz file of plain arrays: {error}") from error


def _only(given: Any, known: set[str], where: str) -> None:
    if not isinstance(given, dict):
        raise BadInput(f"{where}: {given!r} is not allowed: give a table")
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadInput(f"{where}: unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")
