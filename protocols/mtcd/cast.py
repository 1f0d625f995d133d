"""The actors of a run: who is spawned under which name, and what follows a loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx

from fedactors.data.partitions import VerticalData
from fedactors.errors import BadInput
from fedactors.network import topology
from fedactors.runtime.base import Runtime, derived_seed
from protocols.mtcd import roaming
from protocols.mtcd.actors import SERVER, TokenClient
from protocols.mtcd.baselines import dcpa
from protocols.mtcd.baselines.dcpa_client import DcpaClient
from protocols.mtcd.config import MtcdConfig, small_cluster_warnings
from protocols.mtcd.data import MtcdData
from protocols.mtcd.server import TokenServer, links_of


@dataclass(frozen=True)
class Cast:
    """Handles of a run's actors; `server` is None for the decentralised algorithms."""

    graph: nx.Graph
    clients: tuple[Any, ...]
    server: TokenServer | None
    smallest_cluster: int
    warnings: tuple[str, ...]
    """What users should know of their clusters before they rely on them."""


def make_graph(config: MtcdConfig, seed: int) -> nx.Graph:
    """Return the graph that the config names, or the one in its file.

    Raises:
        BadInput: an unknown name, a file that does not parse, or edges to unknown clients.
    """
    name = config.topology
    if name in topology.GRAPH_NAMES:
        return topology.make_graph(name, config.num_clients, edge_probability=config.edge_probability, seed=seed)
    if "." not in name and "/" not in name:
        raise BadInput(f"topology: {name!r} is not known, use {', '.join(topology.GRAPH_NAMES)}, or a file's path")
    if not Path(name).is_file():
        raise BadInput(f"topology: {name!r} is not a file")
    return topology.read_graph(Path(name), config.num_clients)


def assemble(config: MtcdConfig, data: MtcdData, runtime: Runtime) -> Cast:
    """Spawn the clients and, for MTCD and SVFL, the server.

    Raises:
        BadInput: a graph, clusters or links that do not fit; see `roaming.lay_out`.
    """
    seed = derived_seed(runtime.seed, "all parties", "batches")
    graph = make_graph(config, runtime.seed)
    if config.algorithm == "dcpa":
        return _assemble_dcpa(config, data, runtime, graph, seed)
    plan = plan_roaming(config, graph, runtime.seed)
    clients = tuple(
        runtime.spawn(TokenClient, name, config, data, index, links_of(plan, index, data.parties), seed)
        for index, name in enumerate(data.parties)
    )
    server = None
    if config.algorithm in ("mtcd", "svfl"):
        labels = None if isinstance(data, VerticalData) else data.labels()[0]
        server = runtime.spawn(TokenServer, SERVER, config, data.parties, labels, data.num_classes, plan, seed)
        runtime.on_loss(lambda name: "stop" if name == SERVER else config.on_party_loss, server.client_lost)
    else:
        runtime.on_loss("stop")
    found = plan.clusters or (tuple(range(config.num_clients)),)
    return Cast(graph, clients, server, plan.smallest_cluster, tuple(small_cluster_warnings(config, found)))


def plan_roaming(config: MtcdConfig, graph: nx.Graph, seed: int) -> roaming.Roaming:
    """Return who may roam where under a config."""
    linked = _linked(config)
    clusters: roaming.Clusters | None = None
    if config.algorithm == "stcd":
        _require_connected(graph, "stcd")
    elif config.algorithm == "svfl" or config.mode == "overlapping":
        topology.check_reachable(graph, linked)
    else:
        clusters = roaming.lay_out(graph, linked, config.clusters, config.num_tokens, seed)
        if isinstance(config.start, tuple):
            _check_starts(config.start, clusters, linked)
    return roaming.Roaming(
        graph,
        clusters,
        linked,
        num_tokens=config.num_tokens if config.algorithm == "mtcd" else 1,
        num_hops=config.num_hops,
        sweep=config.walk == "sweep",
        start=config.start,
        seed=derived_seed(seed, "all parties", "walks"),
    )


def _linked(config: MtcdConfig) -> tuple[int, ...]:
    if config.server_links == "all":
        return tuple(range(config.num_clients))
    return () if config.server_links is None else config.server_links


def _check_starts(start: tuple[int, ...], clusters: roaming.Clusters, linked: tuple[int, ...]) -> None:
    for token, client in enumerate(start):
        if client not in clusters[token]:
            raise BadInput(f"start: client {client} of token {token} is not in its cluster {list(clusters[token])}")
        if client not in linked:
            raise BadInput(f"start: client {client} of token {token} has no link to the server, see server_links")


def _require_connected(graph: nx.Graph, algorithm: str) -> None:
    if not nx.is_connected(graph):
        raise BadInput(
            f"topology: a disconnected graph is not allowed for {algorithm}, which has no server links to join its "
            "parts; use algorithm=mtcd"
        )


def _assemble_dcpa(config: MtcdConfig, data: MtcdData, runtime: Runtime, graph: nx.Graph, seed: int) -> Cast:
    _require_connected(graph, "dcpa")
    laplacian_KK = dcpa.consensus_matrix(topology.metropolis_weights(graph))
    clients = tuple(
        runtime.spawn(
            DcpaClient,
            name,
            config,
            data,
            index,
            tuple((other, float(laplacian_KK[index, other])) for other in sorted({index, *graph.neighbors(index)})),
            seed,
        )
        for index, name in enumerate(data.parties)
    )
    runtime.on_loss("stop")
    return Cast(graph, clients, None, config.num_clients, ())
