"""Graph data: clients share the nodes of one graph and hold different edges and feature columns.

User-provided graphs are described by a ``.toml`` file; its paths are relative to it, and arrays lie in ``.npz`` files
(no pickles)::

    [task]
    layout = "graph"
    nodes = "nodes.npz"        # labels (N), -1: none; train, validation, test: masks over the nodes, or node numbers

    [parties.bank]
    file = "bank.npz"          # edges (2, E), features (N, F)

    [parties.shop]
    file = "shop.npz"

A graph in tables: each party has a file of its nodes, by id, one of its edges, and perhaps one of sparse features.

    nodes.csv      account,age,job,fraud        columns as in vertical data; the label at one party, perhaps not of all
    edges.csv      source,target                ids of nodes; each edge once or twice, in any order
    words.csv      node,feature,value           sparse features; value 1 where the column is not there

Nodes are aligned by their ids, as rows are (`fedactors.data.alignment.nodes`).

Shapes: N nodes (of tables: shared ones), E edges, F features of one client.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from fedactors.data.columns import check_single
from fedactors.data.datasets.catalogue import describe
from fedactors.data.datasets.load import GraphDataset, csr_of, load_graph, to_csr
from fedactors.data.layouts.vertical import VerticalData, VerticalPart
from fedactors.data.party_rows import NO_PART, PartyBlock, SplitKind, check_block, check_ids, draw_parts, split
from fedactors.data.readers import arrays_of, names_of_columns, read_columns
from fedactors.data.values import Column, CsvFormat, IdRule, row_names
from fedactors.errors import BadInput
from fedactors.messages.codec import wire_type

Index = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class GraphBlock:
    """What one client of a graph holds: all nodes, its own edges (CSR, both directions), its own feature columns."""

    indptr: Index
    indices: Index
    features: NDArray[np.float32]
    columns: Index
    """Which columns of the whole graph's features these are."""
    labels: Index
    """Class of each node; only those in `train` may be used for training, the others are for scoring."""
    num_classes: int
    train: Index
    validation: Index
    test: Index
    class_names: tuple[str, ...] = ()
    """By number; empty where classes are called by their numbers."""

    @property
    def num_nodes(self) -> int:
        """Nodes, the same at every client."""
        return len(self.indptr) - 1


@dataclass(frozen=True)
class NewGraph:
    """Nodes to predict, as one client holds them."""

    indptr: Index
    indices: Index
    features: NDArray[np.float32]
    ids: NDArray[Any]
    """What the nodes are called."""


@wire_type
class GraphData:
    """Clients that share nodes and training labels and hold different edges and feature columns, by a seeded recipe.

    Each client keeps every edge with probability `edge_share`, drawn on its own; feature columns are dealt at random
    into even blocks; training nodes are drawn per class, validation and test nodes from the rest (GLASU, section 5).
    """

    name: str
    num_classes: int
    num_clients: int
    train_per_class: int
    num_validation: int
    num_test: int
    edge_share: float = 0.8
    seed: int = 0

    @property
    def parties(self) -> tuple[str, ...]:
        """The clients' names: client-0, client-1, ..."""
        return tuple(f"client-{index}" for index in range(self.num_clients))

    def part(self, party: str) -> GraphPart:
        """Return what the actor of `party` is built with.

        Raises:
            BadInput: no such party.
        """
        if party not in self.parties:
            raise BadInput(f"party: {party!r} is not allowed: the parties are {', '.join(self.parties)}")
        return GraphPart(party=party, recipe=self)

    def load(self, client: int) -> GraphBlock:
        """Load what client `client` holds, in the process of its actor.

        Raises:
            BadInput: no such client, unknown data set, or too few nodes for the recipe.
            DataMissing: a file is not on this machine.
        """
        if not 0 <= client < self.num_clients:
            raise BadInput(f"client: {client} is not allowed: there are {self.num_clients}")
        graph = load_graph(self.name)
        num_columns = graph.features.shape[1]
        kept = np.random.default_rng([self.seed, 17, client]).random(len(graph.edges)) < self.edge_share
        dealt = np.random.default_rng([self.seed, 19]).permutation(num_columns)
        columns = np.sort(np.array_split(dealt, self.num_clients)[client])
        return self._block(graph, graph.edges[kept], np.ascontiguousarray(graph.features[:, columns]), columns)

    def load_whole(self) -> GraphBlock:
        """Load the graph with every edge and column, for baselines that are allowed to see all."""
        graph = load_graph(self.name)
        return self._block(graph, graph.edges, graph.features, np.arange(graph.features.shape[1]))

    def _block(self, graph: GraphDataset, edges: Index, features_NF: NDArray[np.float32], columns: Index) -> GraphBlock:
        indptr, indices = to_csr(edges, len(graph.labels))
        train, validation, test = self._nodes(graph.labels)
        return GraphBlock(
            indptr=indptr,
            indices=indices,
            features=features_NF,
            columns=columns,
            labels=graph.labels,
            num_classes=self.num_classes,
            train=train,
            validation=validation,
            test=test,
        )

    def _nodes(self, labels_N: Index) -> tuple[Index, Index, Index]:
        order = np.random.default_rng([self.seed, 23]).permutation(len(labels_N))
        train = np.concatenate(
            [order[labels_N[order] == label][: self.train_per_class] for label in range(self.num_classes)]
        )
        rest = order[~np.isin(order, train)]
        if len(train) < self.num_classes * self.train_per_class or len(rest) < self.num_validation + self.num_test:
            raise BadInput(
                f"data: {self.name} has {len(labels_N)} nodes, too few for {self.train_per_class} training nodes per "
                f"class, {self.num_validation} validation and {self.num_test} test nodes"
            )
        ends = (self.num_validation, self.num_validation + self.num_test)
        return np.sort(train), np.sort(rest[: ends[0]]), np.sort(rest[ends[0] : ends[1]])


@wire_type
class GraphPart:
    """What one client of a dealt graph is told: its name, and the recipe, by which it takes its own share alone."""

    party: str
    recipe: GraphData

    def load(self) -> GraphBlock:
        """Load what the client holds, in the process of its actor; see `GraphData.load`."""
        return self.recipe.load(self.recipe.parties.index(self.party))

    def load_new(self) -> NewGraph:
        """Load what the client holds, to predict all its nodes."""
        block = self.load()
        return NewGraph(block.indptr, block.indices, block.features, np.arange(block.num_nodes))


_TRAIN_PER_CLASS = {"cora": 60, "citeseer": 84, "pubmed": 320}


def graph(dataset: str, num_clients: int, *, edge_share: float = 0.8, seed: int = 0) -> GraphData:
    """Deal a named graph to clients: Planetoid as published (500 validation, 1,000 test nodes), others in proportion.

    Raises:
        BadInput: unknown data set, no graph, or more clients than feature columns.
    """
    described = describe(dataset)
    if described.kind != "graph":
        raise BadInput(f"data: {dataset} is of kind {described.kind}; a graph is needed here")
    if not 1 <= num_clients <= described.columns:
        raise BadInput(f"num_clients: {num_clients} is not allowed: give 1 to {described.columns}, one column each")
    if not 0 < edge_share <= 1:
        raise BadInput(f"edge_share: {edge_share} is not allowed: give a number above 0, at most 1")
    published = dataset in _TRAIN_PER_CLASS
    return GraphData(
        name=dataset,
        num_classes=described.num_classes,
        num_clients=num_clients,
        train_per_class=_TRAIN_PER_CLASS.get(dataset, max(1, described.rows // (4 * described.num_classes))),
        num_validation=500 if published else described.rows // 4,
        num_test=1000 if published else described.rows // 4,
        edge_share=edge_share,
        seed=seed,
    )


_SPLITS = ("train", "validation", "test")
_MOST_CLASSES = 65536
UNLABELLED = -1
"""What the labels' array has of a node without one."""


@dataclass(frozen=True)
class NodeSplit:
    """The labels, known to every client, and the nodes for training, validation and test."""

    labels_N: Index
    train: Index
    validation: Index
    test: Index
    class_names: tuple[str, ...] = ()
    """By number; empty where classes are called by their numbers."""


def from_masks(
    labels_N: Index, train: npt.NDArray[np.bool_], validation: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]
) -> NodeSplit:
    """Make a split from masks over the nodes; a mask of another length than the labels is a `BadInput`."""
    for name, mask in (("train", train), ("validation", validation), ("test", test)):
        if len(mask) != len(labels_N):
            raise BadInput(f"{name} mask: {len(mask)} entries are not allowed: there are {len(labels_N)} labels")
    return NodeSplit(labels_N, np.flatnonzero(train), np.flatnonzero(validation), np.flatnonzero(test))


@wire_type
class GraphFiles:
    """Where one client's file is, and that of the nodes, which everyone knows."""

    party: str
    nodes: str
    file: str

    @property
    def user_files(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.file, self.nodes)

    def load(self) -> GraphBlock:
        """Load and check what the client holds.

        Raises:
            BadInput: a file that cannot be read, or arrays that do not fit together.
        """
        split = read_nodes(Path(self.nodes))
        features_NF, (indptr, indices) = self._local(len(split.labels_N))
        return GraphBlock(
            indptr=indptr,
            indices=indices,
            features=features_NF,
            columns=np.arange(features_NF.shape[-1]),
            labels=split.labels_N,
            num_classes=len(split.class_names),
            train=split.train,
            validation=split.validation,
            test=split.test,
            class_names=split.class_names,
        )

    def load_new(self) -> NewGraph:
        """Load nodes to predict; the nodes' file need hold nothing but `ids`, if they have any.

        Raises:
            BadInput: a file that cannot be read, or arrays that do not fit together.
        """
        features_NF, (indptr, indices) = self._local(None)
        if not len(features_NF):
            raise BadInput(f"features of {self.party}: no nodes")
        ids = arrays_of(Path(self.nodes), "task.nodes").get("ids", np.arange(len(features_NF)))
        if ids.shape != (len(features_NF),):
            raise BadInput(f"ids: shape {ids.shape} is not allowed: {self.party} has {len(features_NF)} nodes")
        if ids.dtype == object and all(isinstance(one, str) for one in ids):
            ids = ids.astype(np.str_)
        if ids.dtype.kind not in "iuU":
            raise BadInput(f"ids: type {ids.dtype} is not allowed: give whole numbers, or texts by ids.astype(str)")
        values, counts = np.unique(ids, return_counts=True)
        if len(several := values[counts > 1]):
            raise BadInput(f"ids: {several[0]!s} of {counts.max()} nodes is not allowed: give each node another id")
        if "" in values:
            raise BadInput("ids: a node without one is not allowed: give each node an id")
        return NewGraph(indptr, indices, features_NF, ids)

    def _local(self, num_known: int | None) -> tuple[npt.NDArray[np.float32], tuple[Index, Index]]:
        party = self.party
        found = _arrays(Path(self.file), ("edges", "features"), f"parties.{party}")
        refuse_weights(found, party)
        edges, features = found["edges"], found["features"]
        num_nodes = len(features) if num_known is None else num_known
        if edges.dtype.kind not in "iu" and edges.size:
            raise BadInput(f"edges of {party}: type {edges.dtype} is not allowed: give whole numbers")
        if edges.ndim != 2 or edges.shape[0] != 2:
            raise BadInput(f"edges of {party}: shape {edges.shape} is not allowed: it must be (2, edges)")
        if unknown_nodes := edges[(edges < 0) | (edges >= num_nodes)].tolist():
            raise BadInput(f"edges of {party}: node {unknown_nodes[0]} is not allowed: nodes are 0 to {num_nodes - 1}")
        if features.ndim != 2:
            raise BadInput(f"features of {party}: shape {features.shape} is not allowed: it must be (nodes, columns)")
        if features.dtype.kind not in "fiub":
            raise BadInput(f"features of {party}: type {features.dtype} is not allowed: give numbers")
        if not np.isfinite(features).all():
            raise BadInput(f"features of {party}: values that are not finite are not allowed")
        if num_known is not None:
            check_single(features, f"features of {party}")
        with np.errstate(over="ignore"):
            features_NF = features.astype(np.float32)
        if not np.isfinite(features_NF).all():
            raise BadInput(f"features of {party}: values are infinite in single precision; write them in another unit")
        return features_NF, csr_of(edges, num_nodes)


@dataclass(frozen=True)
class UserGraph:
    """A user-provided graph in arrays."""

    parties: tuple[str, ...]
    parts: tuple[GraphFiles, ...]
    """Each party's; to the driver of several organisations' run they are names."""

    def part(self, party: str) -> GraphFiles:
        """Return what the actor of `party` is built with."""
        return self.parts[self.parties.index(party)]


_FEW = 20
"""Nodes, or edges, of which nothing is said that chance may make."""


def odd_arrays(blocks: Mapping[str, GraphBlock]) -> Iterator[tuple[str, str]]:
    """Yield what is odd with the arrays of parties, with the party's name: none of them is wrong by itself."""
    for party, block in blocks.items():
        known = np.unique(np.concatenate([block.train, block.validation, block.test]))
        if len(block.features) != block.num_nodes or np.any((known < 0) | (known >= block.num_nodes)):
            continue  # which the protocol refuses
        yield from ((party, told) for told in _odd_features(block, known))
        if told := _odd_edges(block, known):
            yield party, told
    for (one, first), (other, second) in itertools.combinations(blocks.items(), 2):
        if np.array_equal(first.features, second.features):
            yield other, f"its features are those of {one}, number by number: is one the file of the other?"


def _odd_features(block: GraphBlock, known: Index) -> Iterator[str]:
    features_NF, labels_n = block.features, block.labels[known]
    if not len(features_NF):
        return
    constant = np.flatnonzero(features_NF.min(axis=0) == features_NF.max(axis=0))
    if len(constant):
        told = f"{len(constant)} of {features_NF.shape[1]} columns of features have one value, such as column"
        yield f"{told} {constant[0]}: they tell a model nothing"
    if len(known) < _FEW:
        return
    order = known[np.argsort(labels_n, kind="stable")]
    starts = np.flatnonzero(np.diff(block.labels[order], prepend=-1))
    low_CF = np.minimum.reduceat(features_NF[order], starts, axis=0)
    is_one = (low_CF == np.maximum.reduceat(features_NF[order], starts, axis=0)).all(axis=0)
    for column in np.flatnonzero(is_one & (np.diff(np.sort(low_CF, axis=0), axis=0) > 0).all(axis=0)):
        yield f"column {column} of features tells the class of every node: is it the label?"


def _odd_edges(block: GraphBlock, known: Index) -> str:
    """Return what to say of edges that join nodes as chance would."""
    is_known = np.zeros(block.num_nodes, np.bool_)
    is_known[known] = True
    sources = np.repeat(np.arange(block.num_nodes), np.diff(block.indptr))
    between = is_known[sources] & is_known[block.indices]
    ends = block.labels[sources[between]], block.labels[block.indices[between]]
    if len(ends[0]) < 2 * _FEW:
        return ""
    share = float((ends[0] == ends[1]).mean())
    chance = float(((np.bincount(ends[0]) / len(ends[0])) ** 2).sum())
    if abs(share - chance) > 2 * math.sqrt(chance * (1 - chance) / (len(ends[0]) / 2)):
        return ""
    return (
        f"{share:.0%} of its edges join nodes of one class, as chance does ({chance:.0%}): does it number the nodes as "
        "the labels do?"
    )


def read_nodes(path: Path) -> NodeSplit:
    """Read labels and split; masks become node numbers, and labels the numbers of the classes that are there.

    Raises:
        BadInput: a missing array, lengths that differ, or a node of the split without a label.
    """
    found = _arrays(path, ("labels", *_SPLITS), "task.nodes")
    labels = found["labels"]
    if labels.ndim != 1:
        such = ", such as labels[:, 0]" if labels.ndim == 2 and labels.shape[1] == 1 else ""
        raise BadInput(f"labels: shape {labels.shape} is not allowed: give one whole number per node{such}")
    if labels.dtype.kind not in "iu":
        raise BadInput(
            f"labels: type {labels.dtype} is not allowed: give one whole number per node ({UNLABELLED}: no label), "
            "such as np.unique(labels, return_inverse=True)[1]"
        )
    is_labelled = labels != UNLABELLED
    classes, numbers = np.unique(labels[is_labelled], return_inverse=True)
    if len(classes) > _MOST_CLASSES:
        raise BadInput(f"labels: {len(classes)} classes are not allowed: at most {_MOST_CLASSES}")
    labels_N = np.full(len(labels), UNLABELLED, np.int64)
    labels_N[is_labelled] = numbers
    split = _split_of(found, labels_N)
    for name in _SPLITS:
        nodes: Index = getattr(split, name)
        known = nodes[(nodes >= 0) & (nodes < len(labels_N))]
        if len(known) < len(nodes):
            continue  # numbers of no nodes are refused with the graph
        if len(without := known[labels_N[known] == UNLABELLED]):
            raise BadInput(
                f"labels: {UNLABELLED} of node {without[0]} of {name} is not allowed: it is of no class; leave the "
                f"node out of {name}, or number classes from 0"
            )
        if name == "train" and len(np.unique(labels_N[known])) == 1:
            raise BadInput(f"train: nodes of class {classes[labels_N[known[0]]]} only are not allowed: two are needed")
    if len(classes) < 2:
        what = f"{classes[0]} at every node" if len(classes) else "no label at any node"
        raise BadInput(f"labels: {what} is not allowed: there must be at least two classes")
    # a node without a label is in no part, and nobody looks
    return replace(split, labels_N=np.maximum(labels_N, 0), class_names=tuple(map(str, classes.tolist())))


def _split_of(found: Mapping[str, npt.NDArray[Any]], labels_N: Index) -> NodeSplit:
    for name in _SPLITS:
        if (shape := found[name].shape)[1:]:
            raise BadInput(
                f"{name}: shape {shape} is not allowed: that is {shape[1]} splits of the nodes; give one of them, such "
                f"as {name}[:, 0], of the same number in all three"
            )
    if all(found[name].dtype == np.bool_ for name in _SPLITS):
        return from_masks(labels_N, *(found[name] for name in _SPLITS))
    for name in _SPLITS:
        if found[name].ndim != 1 or found[name].dtype.kind not in "iu":
            raise BadInput(f"{name}: type {found[name].dtype} is not allowed: give three masks, or node numbers")
        if len(found[name]) == len(labels_N) > 2 and set(found[name].tolist()) <= {0, 1}:
            raise BadInput(f"{name}: only 0 and 1, one for each node, are not allowed: give a mask of booleans")
    train, validation, test = (found[name].astype(np.int64) for name in _SPLITS)
    return NodeSplit(labels_N, train, validation, test)


def _arrays(path: Path, names: tuple[str, ...], where: str) -> dict[str, npt.NDArray[Any]]:
    found = arrays_of(path, where)
    if missing := [name for name in names if name not in found]:
        raise BadInput(f"{where}: {path} lacks {', '.join(missing)}")
    return found


WEIGHTS = ("edge_weight", "edge_weights", "edge_attr", "weight", "weights")
"""What edges' weights are called, which no model sees."""


def refuse_weights(names: Iterable[str], where: str) -> None:
    """Refuse edges that are said to have weights.

    Raises:
        BadInput: naming what says so.
    """
    for name in names:
        if name in WEIGHTS:
            raise BadInput(f"{where}: {name} is not allowed: edges have no weights here; leave it out")


# --- a graph in tables ------------------------------------------------------------------------------------------------

_MOST_NUMBERS = 1 << 30
"""Of sparse features, which become columns: 4 GiB."""


@wire_type
class EdgeFile:
    """Where one party's edges and sparse features are."""

    party: str
    path: str
    ends: tuple[tuple[str, ...], ...]
    """Columns of the ids at an edge's two ends."""
    sparse: str | None = None
    """File of sparse features."""
    csv: CsvFormat = CsvFormat()
    id_rules: tuple[IdRule, ...] = ()
    """What does not count in ids."""

    @property
    def user_files(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.path,) if self.sparse is None else (self.path, self.sparse)

    def load(self, ids_N: Sequence[str]) -> tuple[tuple[Index, Index], int, int]:
        """Read the edges.

        Args:
            ids_N: of the nodes, in their order.

        Returns:
            CSR pointers and neighbours, both directions, each edge once and none from a node to itself; how many rows
            the file has; how many of them end at nodes that are not there.

        Raises:
            BadInput: the file cannot be read, lacks a column, misses an id, or has a column of weights.
        """
        named = [name for end in self.ends for name in end]
        columns = iter(read := self._read(self.path, named, [name for name in WEIGHTS if name not in named]))
        refuse_weights([column.name for column in read[len(named) :]], self._at(self.path))
        ends = [[next(columns) for _ in end] for end in self.ends]
        index_of = {name: number for number, name in enumerate(ids_N)}
        found = (
            np.array([[index_of.get(name, -1) for name in self._ids(end)] for end in ends], np.int64).reshape(2, -1).T
        )
        known = found[(found >= 0).all(axis=1)]
        pairs = np.unique(np.sort(known[known[:, 0] != known[:, 1]], axis=1), axis=0)
        return to_csr(pairs, len(ids_N)), len(found), len(found) - len(known)

    def load_sparse(
        self, ids_N: Sequence[str], known: Collection[str], trained: Sequence[str] | None = None
    ) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        """Read the sparse features as columns (N, F), with their names; nothing where there is no file.

        Args:
            ids_N: of the shared nodes, in their order; others are left out.
            known: ids of all of the party's nodes.
            trained: of nodes to predict the features that training saw: others are left out.

        Raises:
            BadInput: the file cannot be read, lacks a column, misses an id or a feature, has one of them twice or of a
                node that is not there, or a value is not finite or no single one in single precision.
        """
        if self.sparse is None:
            return np.zeros((len(ids_N), 0), np.float32), ()
        where = self._at(self.sparse)
        node, feature, *value = self._read(self.sparse, ("node", "feature"), optional=("value",))
        others = [] if value else [name for name in self._names(self.sparse) if name not in ("node", "feature")]
        if others:
            raise BadInput(f"{where}: no column value, and {', '.join(others)} is not read: call the values' column so")
        nodes, features = self._ids([node]), self._ids([feature], ())
        self._refuse_rows(node, nodes, features, known)
        names = tuple(sorted(set(features))) if trained is None else tuple(trained)
        if len(ids_N) * len(names) > _MOST_NUMBERS:
            raise BadInput(
                f"{where}: {len(names)} features of {len(ids_N)} nodes are not allowed: at most "
                f"{_MOST_NUMBERS} numbers in all"
            )
        numbers = value[0].numbers(where) if value else np.ones(len(nodes))
        with np.errstate(over="ignore"):
            is_finite = bool(np.isfinite(numbers.astype(np.float32)).all())
        if not is_finite:
            raise BadInput(f"{where}: column value: only numbers that are finite in single precision are allowed")
        if trained is None:
            _check_single_values(numbers, features, where)
        row = {name: number for number, name in enumerate(ids_N)}
        column = {name: number for number, name in enumerate(names)}
        made = np.zeros((len(ids_N), len(names)), np.float32)
        for one, what, number in zip(nodes, features, numbers.tolist(), strict=True):
            if one in row and what in column:
                made[row[one], column[what]] = number
        return made, names

    def _refuse_rows(self, node: Column, nodes: Sequence[str], features: Sequence[str], known: Collection[str]) -> None:
        """Refuse sparse rows that would be left out, or of which only one could be meant."""
        first: dict[tuple[str, str], int] = {}
        for row, pair in enumerate(zip(nodes, features, strict=True)):
            if pair[0] not in known:
                raise BadInput(
                    f"{self._at(self.sparse)}: {node.row(row)}: node {pair[0]!r} is none of the {len(known)} nodes of "
                    f"{self.party}, such as {min(known, default='')!r}; leave such rows out"
                )
            if (other := first.setdefault(pair, row)) < row:
                raise BadInput(
                    f"{self._at(self.sparse)}: feature {pair[1]!r} of node {pair[0]!r} stands in {node.row(other)} and "
                    f"in {node.row(row)}; leave one of them out, or add them up"
                )

    def _at(self, path: str | None) -> str:
        return f"{self.party}: {path}"

    def _names(self, path: str) -> list[str]:
        return names_of_columns(Path(path), self.party, self.csv)

    def _read(self, path: str, wanted: Sequence[str], optional: Sequence[str] = ()) -> list[Column]:
        read = read_columns(Path(path), self.party, wanted=[*wanted, *optional], csv=self.csv)
        for name in wanted:
            if name not in read:
                has = ", ".join(self._names(path)) or "none"
                raise BadInput(
                    f"{self.party}: {name!r} is not a column of {path} (it has {has}); where no line names them, say "
                    f"csv = {{ names = {json.dumps(list(wanted))} }}"
                )
        return [read[name] for name in (*wanted, *optional) if name in read]

    def _ids(self, columns: Sequence[Column], rules: Sequence[IdRule] | None = None) -> list[str]:
        texts = row_names(columns, self.id_rules if rules is None else rules, self.party)
        if "" in texts:
            names = " and ".join(column.name for column in columns)
            raise BadInput(f"{self.party}: column {names}: {texts.count('')} values are missing")
        return texts


@wire_type
class GraphTablesPart:
    """What one party is told: where its files are, who has the label, and how nodes are aligned."""

    rows: VerticalPart
    edges: EdgeFile

    @property
    def party(self) -> str:
        """Its name."""
        return self.rows.party

    @property
    def holder(self) -> str:
        """The actor that opens the files."""
        return f"{self.rows.party}/nodes"

    def read(self) -> PartyBlock:
        """Read the own nodes, in the process of their holder.

        Raises:
            BadInput: rows that cannot be trained on, or no feature.
        """
        block = replace(self.rows.source.load(), alignment=self.rows.alignment)
        if not len(block.ids):
            raise BadInput(f"{self.party}: {block.origin}: no rows")
        check_ids(block.ids, f"{self.party}: {block.origin}")
        if block.feature_names:
            check_block(replace(block, labels=None), self.party, self.rows.task, self.rows.num_classes)
        elif self.edges.sparse is None:
            raise BadInput(f"{self.party}: {block.origin}: no feature column: every party needs at least one")
        return block

    def check(self) -> None:
        """Read all files as training does, as if all parties had all of the own nodes.

        Raises:
            BadInput: as of training.
        """
        ids = [str(name) for name in self.read().ids.tolist()]
        self.edges.load_sparse(ids, set(ids))
        self.edges.load(ids)


@wire_type
class GraphTables:
    """Parties with different columns and edges of the same nodes, all of them in tables; one has the labels."""

    rows: VerticalData
    edges: tuple[EdgeFile, ...]

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in order."""
        return self.rows.parties

    def part(self, party: str) -> GraphTablesPart:
        """Return what the actors of `party` are built with.

        Raises:
            BadInput: no such party.
        """
        rows = self.rows.part(party)
        return GraphTablesPart(rows=rows, edges=self.edges[self.parties.index(party)])


def _check_single_values(numbers: NDArray[np.float64], features: Sequence[str], where: str) -> None:
    """Check sparse values as `check_single` does, those of each feature by themselves."""
    if (numbers.astype(np.float32) == numbers).all():
        return
    names, codes = np.unique(np.asarray(features), return_inverse=True)
    parts = np.split(numbers[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
    for name, part in zip(names.tolist(), parts, strict=True):
        check_single(part[:, None], f"{where}: feature {name}")


def node_parts(block: PartyBlock, order_N: Index, how: SplitKind, seed: int) -> NDArray[np.uint8]:
    """Return the part of each shared node, `NO_PART` of those without a label.

    Args:
        block: the label party's nodes; a column that tells the parts has precedence.
        order_N: for each shared node the party's own row.
        how: of those with a label 30 % are for tests and 10 % of the others for validation, at random or of each class.
        seed: of the drawing.

    Raises:
        BadInput: too few nodes have a label.
    """
    assert block.labels is not None
    made = np.full(len(order_N), NO_PART, np.uint8)
    labelled = np.flatnonzero(block.labels[order_N] >= 0)
    test, validation = 0.3, 0.1
    drawn = draw_parts(block, order_N[labelled], how, seed=seed, test_fraction=test, validation_fraction=validation)
    if not len(drawn):
        drawn = split(len(labelled), seed=seed, test_fraction=test, validation_fraction=validation).numbers
    made[labelled] = drawn
    return made
