"""Graph data: clients that share the nodes of one graph and hold different edges and feature columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.catalogue import describe
from fedactors.data.graphs import GraphDataset, load_graph, to_csr
from fedactors.errors import BadInput
from fedactors.network.codec import plain

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


@plain
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
        return tuple(f"client-{place}" for place in range(self.num_clients))

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


@plain
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
