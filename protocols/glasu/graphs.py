"""A client's share of a vertically distributed graph, its checks, and the shares that each special case trains on.

Shapes: N nodes, E edges, F features of one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedactors.data.client_graphs import GraphBlock
from fedactors.errors import BadInput
from protocols.glasu.config import SpecialCase
from protocols.glasu.sampling import IntArray


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


class GraphSource(Protocol):
    """Who holds what of a graph; each client loads its own block, in its own process."""

    @property
    def num_clients(self) -> int:
        """Number of clients M."""

    @property
    def num_classes(self) -> int:
        """Number of classes C."""

    def load(self, client: int) -> GraphBlock:
        """Load what client `client` holds."""


def client_names(source: GraphSource) -> tuple[str, ...]:
    """Return the clients' names: the user's parties, or client-0, client-1, ..."""
    named: tuple[str, ...] | None = getattr(source, "parties", None)
    return named or tuple(f"client-{position}" for position in range(source.num_clients))


def share_of(block: GraphBlock, name: str) -> tuple[GraphShare, NodeSplit]:
    """Return a loaded block as a share, each undirected edge once, and the nodes' labels and split."""
    rows = np.repeat(np.arange(block.num_nodes), np.diff(block.indptr))
    once = rows < block.indices
    edges_2E = np.stack([rows[once], block.indices[once]])
    split = NodeSplit(block.labels, block.train, block.validation, block.test)
    return GraphShare(name, edges_2E, block.features), split


def load_share(
    special_case: SpecialCase, source: GraphSource, names: Sequence[str], position: int
) -> tuple[GraphShare, NodeSplit, list[str]]:
    """Load and check what the client at `position` trains on; the two centralised baselines see everyone's.

    Returns the share, the nodes' labels and split, and remarks on what is allowed but worth saying.

    Raises:
        BadInput: data that does not fit together, see `check`.
    """
    everyone = special_case in ("centralised", "simulated-centralised")
    places = range(source.num_clients) if everyone else [position]
    loaded = [share_of(source.load(place), names[place]) for place in places]
    shares, split = [share for share, _ in loaded], loaded[0][1]
    remarks = check(shares, split)
    if split.labels_N.max() >= source.num_classes:
        raise BadInput(f"labels: {split.labels_N.max()} is not allowed: there are {source.num_classes} classes")
    arranged = arrange(special_case, shares)
    mine = arranged[position] if special_case == "simulated-centralised" else arranged[0]
    return mine, split, [] if special_case == "vfl" else remarks


def renumber(share: GraphShare, split: NodeSplit, numbers_N: IntArray) -> tuple[GraphShare, NodeSplit]:
    """Give node i the number ``numbers_N[i]``, so that what the server sees are shuffled numbers."""
    places = np.argsort(numbers_N)
    renumbered = GraphShare(share.name, numbers_N[share.edges_2E], share.features_NF[places])
    moved = (np.sort(numbers_N[nodes]) for nodes in (split.train, split.validation, split.test))
    return renumbered, NodeSplit(split.labels_N[places], *moved)


def check(shares: Sequence[GraphShare], split: NodeSplit) -> list[str]:
    """Check that shares and split fit together; returns remarks on what is allowed but worth saying.

    Raises:
        BadInput: lengths that differ, unknown nodes, overlapping or empty splits, an empty feature block.
    """
    num_nodes, remarks = len(split.labels_N), []
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
        if share.edges_2E.size == 0:
            remarks.append(f"{share.name} has no edges: its layers see each node alone")
        elif share.edges_2E.min() < 0 or share.edges_2E.max() >= num_nodes:
            worst = share.edges_2E.max() if share.edges_2E.max() >= num_nodes else share.edges_2E.min()
            raise BadInput(f"edges of {share.name}: node {worst} is not allowed: nodes are 0 to {num_nodes - 1}")
    _check_split(split, num_nodes)
    return remarks


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
