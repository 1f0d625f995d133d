"""What a client holds of a vertically distributed graph: named graphs and own files, checks, and each special case.

    parts_of ─▶ (to the client) ─▶ load_client: load, check, arrange, renumber, scale_features

Own data: nodes with ids lie in tables or numbered in arrays (`fedactors.data.layouts.graph`).

Shapes: N nodes, E edges, F features of one client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedactors.actors.actor import Actor
from fedactors.data.alignment.nodes import load_nodes
from fedactors.data.description import layout_of, load_description, refuse_settings
from fedactors.data.layouts.graph import (
    GraphBlock,
    GraphTables,
    GraphTablesPart,
    NewGraph,
    NodeSplit,
    UserGraph,
    graph,
)
from fedactors.errors import BadInput
from fedactors.protocols.glasu.config import GlasuConfig, SpecialCase
from fedactors.protocols.glasu.sampling import Adjacency, IntArray, adjacency


class GraphPart(Protocol):
    """What a client's actor is built with: where its own block is."""

    @property
    def party(self) -> str:
        """The client's name."""

    def load(self) -> GraphBlock:
        """Load what the client holds, in the process of its actor."""


class NewGraphPart(Protocol):
    """Where one client's block of nodes to predict is."""

    @property
    def party(self) -> str:
        """The client's name."""

    def load_new(self) -> NewGraph:
        """Load nodes that need no labels."""


AnyPart = GraphPart | GraphTablesPart
"""With the latter a client asks the actor of its party that opens the tables."""


class GraphSource(Protocol):
    """Who holds what of a graph; the driver has it, and loads nothing."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The clients' names, in order."""

    def part(self, party: str) -> AnyPart:
        """Return what the actor of `party` is built with."""


@dataclass(frozen=True)
class ClientGraph:
    """What one client trains on: its edges E_m and feature block X_m, over the nodes that all clients know."""

    name: str
    graph: Adjacency
    features_NF: npt.NDArray[np.float32]
    nodes: NodeSplit
    num_classes: int
    factor: float = 1.0
    """What all its features were multiplied by."""


def load_data(config: GlasuConfig, name: str | UserGraph, seed: int) -> GraphSource:
    """Return who holds what: a named graph dealt to the clients, or the user's own files."""
    if config.user_layer:
        _check_user_layer(config)
    if isinstance(name, str) and not name.endswith(".toml"):
        return graph(name, config.num_clients, edge_share=config.edge_share, seed=seed)
    local = read_user_graph(Path(name)) if isinstance(name, str) else name
    refuse_settings(config, {"edge_share": "each party has the edges of its file"})
    if len(local.parties) != config.num_clients:
        where = name if isinstance(name, str) else ", ".join(local.parties)
        raise BadInput(f"num_clients: {config.num_clients} is not allowed: {where} names {len(local.parties)} parties")
    if isinstance(local, GraphTables):
        if config.sees_everything:
            raise BadInput(
                f"special_case: {config.special_case} is not allowed with tables of nodes: each is opened by its party"
            )
        if config.noise_multiplier:
            raise BadInput(
                f"noise_multiplier: {config.noise_multiplier:g} is not allowed with tables of nodes: their columns are "
                "scaled by what is measured on them, which the account does not count"
            )
    return local


def _check_user_layer(config: GlasuConfig) -> None:
    """Check the user's layer at the widths that are known: of the lowest each client checks its own."""
    from fedactors.learning.user_models import check_name  # they load torch
    from fedactors.protocols.glasu.backbones import Network, check_layers

    check_name(config.user_layer)
    network = Network.of(config, num_features=config.hidden_size, num_classes=2, position=0)
    check_layers(network, range(1, config.num_layers))


def parts_of(config: GlasuConfig, data: GraphSource, party: str) -> tuple[AnyPart, ...]:
    """Return what a client's actor is built with: its own part; everybody's in the two centralised baselines."""
    return tuple(data.part(one) for one in (data.parties if config.sees_everything else (party,)))


def read_blocks(parts: Sequence[AnyPart]) -> dict[str, GraphBlock]:
    """Return what the parties of these parts hold, outside of a run."""
    found = {}
    for part in parts:
        if isinstance(part, GraphTablesPart):
            raise BadInput("task.layout: 'graph-tables' is not allowed here: only a run aligns nodes of tables")
        found[part.party] = part.load()
    return found


async def blocks_of(actor: Actor, parts: Sequence[AnyPart]) -> dict[str, GraphBlock]:
    """Return what the parties of these parts hold, in the process of a client's actor."""
    return {
        part.party: await load_nodes(actor, part) if isinstance(part, GraphTablesPart) else part.load()
        for part in parts
    }


def load_client(
    config: GlasuConfig, blocks: Mapping[str, GraphBlock], position: int, common_seed: int | None = None
) -> tuple[ClientGraph, list[str]]:
    """Return what the client at `position` trains on, checked, and remarks on what is allowed but worth saying.

    `blocks` are by party (`parts_of`); `common_seed` shuffles the nodes' numbers as all clients do.

    Raises:
        BadInput: data that does not fit together, see `check`.
    """
    loaded = [client_graph(name, block) for name, block in blocks.items()]
    for one in loaded:
        check(one)
    arranged = arrange(config.special_case, loaded)
    local = arranged[position] if config.special_case == "simulated-centralised" else arranged[0]
    if common_seed is not None:
        local = renumber(local, np.random.default_rng([common_seed, 1]).permutation(local.graph.num_nodes))
    remarks = []
    num_untrained = local.num_classes - len(np.unique(local.nodes.labels_N[local.nodes.train]))
    if num_untrained:
        remarks.append(f"{num_untrained} of {local.num_classes} classes have no training node: they are not learned")
    if not len(local.nodes.validation):
        late = "" if config.patience is None else f", and patience={config.patience} ends nothing"
        remarks.append(f"no validation nodes: nothing is selected, the last round stands{late}")
    if not len(local.nodes.test):
        remarks.append("no test nodes: no metric of them is told")
    if config.special_case != "vfl":
        lonely = [one.name for one in loaded if one.graph.indices.size == 0]
        remarks += [f"{name} has no edges: its layers see each node alone" for name in lonely]
    by_row = config.noise_multiplier > 0
    return scale_features(local, by_row=by_row) if config.scale_features else local, remarks


def load_new_client(
    config: GlasuConfig, blocks: Mapping[str, NewGraph], position: int, factor: float, num_classes: int
) -> tuple[ClientGraph, IntArray]:
    """Return what the client at `position` predicts on, features scaled as in training, and the nodes' ids."""
    loaded, ids = [], np.zeros(0, np.int64)
    for name, block in blocks.items():
        nothing = np.zeros(0, np.int64)
        nodes = NodeSplit(np.zeros(len(block.features), np.int64), nothing, nothing, nothing)
        graph_ = Adjacency(block.indptr, block.indices)
        loaded.append(ClientGraph(name, graph_, block.features, nodes, num_classes))
        ids = block.ids
    check_sizes({one.name: one.graph.num_nodes for one in loaded})
    arranged = arrange(config.special_case, loaded)
    local = arranged[position] if config.special_case == "simulated-centralised" else arranged[0]
    if config.scale_features and config.noise_multiplier > 0:
        return scale_features(local, by_row=True), ids
    return replace(local, features_NF=local.features_NF * np.float32(factor)), ids


def check_sizes(num_nodes: Mapping[str, int]) -> None:
    """Check that all parties hold as many nodes to predict, by party."""
    if len(set(num_nodes.values())) > 1:
        said = ", ".join(f"{number} of {name}" for name, number in num_nodes.items())
        raise BadInput(f"features: {said} nodes are not allowed: all parties hold the same nodes, in the same order")


def client_graph(name: str, block: GraphBlock) -> ClientGraph:
    """Return a loaded block as what a client trains on."""
    nodes = NodeSplit(block.labels, block.train, block.validation, block.test, block.class_names)
    return ClientGraph(name, Adjacency(block.indptr, block.indices), block.features, nodes, block.num_classes)


def renumber(local: ClientGraph, numbers_N: IntArray) -> ClientGraph:
    """Give node i the number ``numbers_N[i]``, so that what the server sees are shuffled numbers."""
    positions, nodes = np.argsort(numbers_N), local.nodes
    train, validation, test = (np.sort(numbers_N[some]) for some in (nodes.train, nodes.validation, nodes.test))
    return replace(
        local,
        graph=adjacency(numbers_N[local.graph.edges], len(numbers_N)),
        features_NF=local.features_NF[positions],
        nodes=replace(nodes, labels_N=nodes.labels_N[positions], train=train, validation=validation, test=test),
    )


def check_degrees(config: GlasuConfig, local: ClientGraph) -> None:
    """Check that no node has more neighbours than the account of noised representations counts on."""
    highest = int(local.graph.degrees.max(initial=0))
    if config.noise_multiplier and config.max_degree is not None and highest > config.max_degree:
        raise BadInput(f"max_degree: {config.max_degree} is not allowed: {local.name} has a node of degree {highest}")


def check(local: ClientGraph) -> None:
    """Check that a client's data fit together."""
    labels_N, features_NF = local.nodes.labels_N, local.features_NF
    if features_NF.ndim != 2 or len(features_NF) != len(labels_N):
        raise BadInput(
            f"features of {local.name}: {len(features_NF)} rows are not allowed: there are {len(labels_N)} labels"
        )
    if features_NF.shape[1] == 0:
        raise BadInput(f"features of {local.name}: an empty block is not allowed: at least one column")
    _check_split(local.nodes)
    if labels_N.min() < 0:
        raise BadInput(f"labels: {labels_N.min()} is not allowed: classes are numbered from 0")
    if labels_N.max() >= local.num_classes:
        raise BadInput(f"labels: {labels_N.max()} is not allowed: there are {local.num_classes} classes")


def _check_split(split: NodeSplit) -> None:
    num_nodes = len(split.labels_N)
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


def arrange(special_case: SpecialCase, clients: Sequence[ClientGraph]) -> list[ClientGraph]:
    """Return what a special case trains on (Sections 2.4 and 4.2); the others keep what clients own."""
    num_nodes = clients[0].graph.num_nodes
    if special_case == "vfl":
        nothing = adjacency(np.empty((2, 0), dtype=np.int64), num_nodes)
        return [replace(local, graph=nothing) for local in clients]
    if special_case in ("centralised", "simulated-centralised"):
        everything = adjacency(np.concatenate([local.graph.edges for local in clients], axis=1), num_nodes)
        if special_case == "simulated-centralised":
            return [replace(local, graph=everything) for local in clients]
        features_NF = np.concatenate([local.features_NF for local in clients], axis=1)
        return [replace(clients[0], name="all", graph=everything, features_NF=features_NF)]
    return list(clients)


def scale_features(local: ClientGraph, length: float = 2.5, *, by_row: bool = False) -> ClientGraph:
    """Multiply a client's block by one number so that its rows are `length` long on average; `by_row`: each row.

    A client can do this alone; it lets one learning rate and weight decay serve bags of words and weighted words alike.
    """
    lengths_N = np.linalg.norm(local.features_NF, axis=1)
    if by_row:
        factors_N = (length / np.where(lengths_N > 0, lengths_N, 1.0)).astype(np.float32)
        return replace(local, features_NF=local.features_NF * factors_N[:, None])
    mean = float(lengths_N.mean())
    if mean == 0.0:
        return local
    factor = np.float32(length / mean)
    return replace(local, features_NF=local.features_NF * factor, factor=float(factor))


def read_user_graph(path: Path) -> UserGraph | GraphTables:
    """Read a description of own data; the files that it names are read and checked by the clients."""
    local = load_description(path)
    if not isinstance(local, UserGraph | GraphTables):
        raise BadInput(f"task.layout: {layout_of(local)!r} is not allowed: give graph or graph-tables")
    return local
