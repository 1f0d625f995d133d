"""Who is linked with whom: graphs by name or from a file, clusters of clients, walks and averages, and routes.

Nodes are client indices 0..K-1. Graphs are undirected networkx graphs without self-loops; weights are ignored.

Shapes: K clients; a transition matrix P_KK has rows that sum to one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput, DataMissing

GRAPH_NAMES = ("complete", "path", "ring", "star", "grid", "erdos-renyi", "empty")
CLUSTER_METHODS = ("components", "greedy-modularity", "louvain", "label-propagation")

Clusters = tuple[tuple[int, ...], ...]
Matrix = NDArray[np.float64]


def make_graph(name: str, num_clients: int, *, edge_probability: float = 0.3, seed: int = 0) -> Any:
    """Return the graph `name` over `num_clients` nodes.

    ``grid`` is as square as the number allows (a prime number gives a path); ``erdos-renyi`` is drawn from `seed` and
    may be disconnected; ``star`` has client 0 at its centre.

    Raises:
        BadInput: an unknown name, fewer than one client, or a probability outside [0, 1].
    """
    if num_clients < 1:
        raise BadInput(f"num_clients: {num_clients!r} is not allowed: it must be at least 1")
    if name == "erdos-renyi":
        if not 0 <= edge_probability <= 1:
            raise BadInput(f"edge_probability: {edge_probability!r} is not allowed: it must be in [0, 1]")
        return nx.gnp_random_graph(num_clients, edge_probability, seed=seed)
    if name == "grid":
        rows = max(d for d in range(1, math.isqrt(num_clients) + 1) if num_clients % d == 0)
        grid = nx.grid_2d_graph(rows, num_clients // rows)
        return nx.convert_node_labels_to_integers(grid, ordering="sorted")
    if name == "ring":
        return nx.cycle_graph(num_clients) if num_clients > 2 else nx.path_graph(num_clients)
    if name == "star":
        return nx.star_graph(num_clients - 1)
    if name in ("complete", "path", "empty"):
        return getattr(nx, f"{name}_graph")(num_clients)
    raise BadInput(f"topology: {name!r} is not known (known: {', '.join(GRAPH_NAMES)}, or a file)")


def read_graph(path: Path, num_clients: int | None = None) -> Any:
    """Read a graph from a file as networkx writes it; weights and other facts of edges are left out.

    It is an edge list (``.edgelist``, ``.edges``, ``.txt``), an adjacency list (``.adjlist``), GraphML, GML, or
    node-link JSON.

    Nodes are client numbers, those that the file leaves out having no edge; or any names, which are then numbered in
    sorted order.

    Raises:
        DataMissing: there is no such file.
        BadInput: it cannot be parsed, is directed, has an unknown client, or another number of names than
            `num_clients`; an edge list's line is named.
    """
    if not path.is_file():
        raise DataMissing(f"topology: {path} is not a file")
    readers = {".graphml": nx.read_graphml, ".json": _read_json, ".gml": nx.read_gml, ".adjlist": nx.read_adjlist}
    try:
        graph = readers[path.suffix](path) if path.suffix in readers else _edges(path.read_text())
    except (nx.NetworkXError, ValueError, KeyError, TypeError, IndexError, SyntaxError, AttributeError) as error:
        raise BadInput(f"topology: {path} cannot be read as {path.suffix or 'an edge list'}: {error}") from None
    if graph.is_directed():
        raise BadInput(f"topology: {path} is directed; links between clients go both ways")
    if graph.number_of_nodes() == 0:
        raise BadInput(f"topology: {path} has no nodes")
    if all(str(node).isdecimal() for node in graph):
        return _with_all_clients(graph, path, num_clients)
    if num_clients is not None and graph.number_of_nodes() != num_clients:
        raise BadInput(f"topology: {path} has {graph.number_of_nodes()} nodes, but there are {num_clients} clients")
    return _renamed(graph, {node: index for index, node in enumerate(sorted(graph, key=str))}, len(graph))


def graph_text(graph: Any) -> str:
    """Return a graph of client numbers as a text of lines, each a node or the two ends of an edge."""
    lines = [*map(str, sorted(graph)), *(f"{a} {b}" for a, b in sorted(map(sorted, graph.edges)))]
    return "".join(f"{line}\n" for line in lines)


def graph_of(text: str, num_clients: int) -> Any:
    """Return the graph that `graph_text` described.

    Raises:
        BadInput: it is no such text, or of another number of clients.
    """
    try:
        found = nx.relabel_nodes(_edges(text), int)
    except ValueError as error:
        raise BadInput(f"topology: {error}") from None
    if sorted(found) != list(range(num_clients)):
        raise BadInput(f"topology: its {len(found)} nodes are not the clients 0 to {num_clients - 1}")
    graph = nx.empty_graph(num_clients)  # nodes in their order
    graph.add_edges_from(found.edges)
    return graph


def detect_clusters(graph: Any, method: str, *, num_clusters: int | None = None, seed: int = 0) -> Clusters:
    """Return clusters of the graph by a networkx method, sorted, each internally connected.

    ``greedy-modularity`` takes `num_clusters` as a wish that connectivity may override; the other methods find their
    own number.
    """
    if graph.number_of_edges() == 0 or method == "components":
        found = nx.connected_components(graph)
    elif method == "greedy-modularity":
        wish = {} if num_clusters is None else {"cutoff": num_clusters, "best_n": num_clusters}
        found = nx.community.greedy_modularity_communities(graph, **wish)
    elif method == "louvain":
        found = nx.community.louvain_communities(graph, seed=seed)
    elif method == "label-propagation":
        found = nx.community.label_propagation_communities(graph)
    else:
        raise BadInput(f"cluster_method: {method!r} is not known (known: {', '.join(CLUSTER_METHODS)})")
    parts = [part for community in found for part in nx.connected_components(graph.subgraph(community))]
    return tuple(sorted(tuple(sorted(part)) for part in parts))


def check_clusters(graph: Any, clusters: Sequence[Collection[int]]) -> None:
    """Check that clusters partition the clients and that a token can walk through each one.

    Raises:
        BadInput: as `check_partition`; a cluster that is not connected.
    """
    check_partition(len(graph), clusters)
    for index, cluster in enumerate(clusters):
        if not nx.is_connected(graph.subgraph(cluster)):
            raise BadInput(f"clusters: cluster {index} {sorted(cluster)} is not connected in the graph")


def check_partition(num_clients: int, clusters: Sequence[Collection[int]]) -> None:
    """Check that each client is in one cluster.

    Raises:
        BadInput: a client in two clusters, in none, or unknown; an empty cluster.
    """
    owner: dict[int, int] = {}
    for index, cluster in enumerate(clusters):
        if not cluster:
            raise BadInput(f"clusters: cluster {index} is empty")
        for client in sorted(cluster):
            if not 0 <= client < num_clients:
                raise BadInput(f"clusters: client {client} of cluster {index} does not exist (0..{num_clients - 1})")
            if client in owner:
                raise BadInput(f"clusters: client {client} is in clusters {owner[client]} and {index}; they overlap")
            owner[client] = index
    missing = sorted(set(range(num_clients)) - set(owner))
    if missing:
        raise BadInput(f"clusters: clients {missing} are in no cluster")


def check_reachable(graph: Any, server_links: Collection[int]) -> None:
    """Check that each component has a client with a server link, unless the graph is connected and needs none.

    Raises:
        BadInput: an unknown client, or a component that no token can reach.
    """
    unknown = sorted(set(server_links) - set(graph))
    if unknown:
        raise BadInput(f"server_links: clients {unknown} do not exist (0..{len(graph) - 1})")
    components = sorted(tuple(sorted(component)) for component in nx.connected_components(graph))
    if len(components) == 1:
        return
    for component in components:
        if not set(component) & set(server_links):
            raise BadInput(f"server_links: component {list(component)} of a disconnected graph has no server link")


def metropolis_weights(graph: Any) -> Matrix:
    """Return the symmetric doubly stochastic W: ``1 / (1 + max(deg i, deg j))`` on edges, the rest on the diagonal."""
    matrix = np.zeros((len(graph), len(graph)))
    for i, j in graph.edges():
        matrix[i, j] = matrix[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    return matrix


def lazy_walk(graph: Any, cluster: Collection[int] | None = None) -> Matrix:
    """Return P_KK of the lazy walk: the next client is uniform over the neighbours and the client itself (MTCD).

    With a `cluster` the walk stays inside it; rows of clients outside it stay put.
    """
    inside = set(graph if cluster is None else cluster)
    matrix = np.eye(len(graph))
    for i in sorted(inside):
        reach = [i, *(j for j in graph.neighbors(i) if j in inside)]
        matrix[i] = 0.0
        matrix[i, reach] = 1 / len(reach)
    return matrix


def visit_probabilities(transition_KK: Matrix, start_K: Matrix, num_hops: int) -> Matrix:
    """Return for each client the probability that a token visits it in ``num_hops + 1`` visits.

    One minus the mass that avoids the client: ``1 - pi_{-k} (P_{-k,-k})^S 1`` (MTCD, Assumption 4 and Appendix D).

    Raises:
        BadInput: a start distribution that is negative or does not sum to one, or a negative number of hops.
    """
    if num_hops < 0:
        raise BadInput(f"num_hops: {num_hops!r} is not allowed: it must be at least 0")
    if np.any(start_K < 0) or not math.isclose(float(start_K.sum()), 1.0, rel_tol=0, abs_tol=1e-9):
        raise BadInput(f"start distribution: {start_K.tolist()} is not allowed: it must be non-negative and sum to 1")
    num_clients = len(start_K)
    avoiding_KK = np.tile(start_K, (num_clients, 1))
    np.fill_diagonal(avoiding_KK, 0.0)
    for _ in range(num_hops):
        avoiding_KK = avoiding_KK @ transition_KK
        np.fill_diagonal(avoiding_KK, 0.0)
    visited_K: Matrix = np.clip(1 - avoiding_KK.sum(axis=1), 0.0, 1.0)
    return visited_K


def _edges(text: str) -> Any:
    graph = nx.Graph()
    for number, line in enumerate(text.splitlines(), start=1):
        # what stands in braces is what networkx knows of the edge, a third word a weight
        words = line.partition("#")[0].partition("{")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) == 3 and _is_number(words[2]):
            words = words[:2]
        if len(words) > 2:
            raise ValueError(
                f"line {number} has {len(words)} words; an edge has two and perhaps a weight, a lone node one"
            )
        for word in words:
            if word not in graph:
                graph.add_node(word, line=number)
        if len(words) == 2:
            graph.add_edge(*words)
    return graph


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_json(path: Path) -> Any:
    content = json.loads(path.read_text())
    links = "edges" if "edges" in content else "links"
    return nx.node_link_graph({"directed": False, "multigraph": False, **content}, edges=links)


def _with_all_clients(graph: Any, path: Path, num_clients: int | None) -> Any:
    """Return the graph over all clients by their numbers; `num_clients` by default ends at the largest number."""
    count = max(int(str(node)) for node in graph) + 1 if num_clients is None else num_clients
    for node, facts in graph.nodes(data=True):
        if int(str(node)) >= count:
            where = f", line {facts['line']}" if "line" in facts else ""
            raise BadInput(f"topology: {path}{where}: client {node} is unknown, allowed are 0 to {count - 1}")
    return _renamed(graph, {node: int(str(node)) for node in graph}, count)


def _renamed(graph: Any, index_of: dict[Any, int], num_nodes: int) -> Any:
    """Return a simple graph on 0..K-1."""
    made = nx.Graph()
    made.add_nodes_from(range(num_nodes))
    made.add_edges_from((index_of[a], index_of[b]) for a, b in graph.edges() if a != b)
    return made


# --- routes and clusters to walk in ---

_SEARCH_LIMIT = 200_000


def route_over_all(
    graph: Any, *, starts: Collection[int] | None = None, closed: bool = False
) -> tuple[int, ...] | None:
    """Return a route along edges that visits each node once; None: there is none, or it was not found in some time.

    A Hamiltonian path is searched depth first, nodes with the fewest unvisited neighbours first.

    Args:
        graph: undirected.
        starts: where it may begin; anywhere by default.
        closed: whether an edge must lead from its end to its beginning.
    """
    neighbours = {node: [other for other in graph.neighbors(node) if other != node] for node in graph}
    exits = {node: len(others) for node, others in neighbours.items()}
    budget = _SEARCH_LIMIT
    route: list[int] = []
    seen: set[int] = set()

    def enter(node: int) -> list[int]:
        route.append(node)
        seen.add(node)
        for other in neighbours[node]:
            exits[other] -= 1
        fresh = [other for other in neighbours[node] if other not in seen]
        return sorted(fresh, key=lambda other: (-exits[other], -other))

    def leave() -> None:
        node = route.pop()
        seen.discard(node)
        for other in neighbours[node]:
            exits[other] += 1

    allowed = neighbours if starts is None else set(starts).intersection(neighbours)
    for start in sorted(allowed, key=lambda node: (exits[node], node)):
        stack = [enter(start)]
        while stack and budget > 0:
            if len(route) == len(neighbours) and (not closed or len(route) < 3 or start in neighbours[route[-1]]):
                return tuple(route)
            if stack[-1]:
                budget -= 1
                stack.append(enter(stack[-1].pop()))
            else:
                stack.pop()
                leave()
        if budget <= 0:
            break
    return None


def even_clusters(graph: Any, num_clusters: int) -> Clusters:
    """Cut a graph into connected clusters of nearly equal size.

    Components are never joined: a graph with more of them than `num_clusters` gives its components. A component with a
    route over all its clients is cut along it (a path into paths); another is grown from spread seeds, the smallest
    cluster first, and may come out less even.
    """
    components = sorted((sorted(component) for component in nx.connected_components(graph)), key=lambda c: c[0])
    parts = [1] * len(components)
    while sum(parts) < min(num_clusters, len(graph)):
        growable = [i for i, component in enumerate(components) if parts[i] < len(component)]
        parts[max(growable, key=lambda i: (len(components[i]) / parts[i], -i))] += 1
    clusters: list[tuple[int, ...]] = []
    for component, count in zip(components, parts, strict=True):
        inside = graph.subgraph(component)
        route = route_over_all(inside) if count > 1 else tuple(component)
        if route is None:
            clusters += _grow(inside, count)
            continue
        bounds = [i * len(route) // count for i in range(count + 1)]
        clusters += [tuple(sorted(route[low:high])) for low, high in itertools.pairwise(bounds)]
    return tuple(sorted(clusters))


def _grow(graph: Any, count: int) -> list[tuple[int, ...]]:
    distance = nx.single_source_shortest_path_length(graph, min(graph))
    seeds = [min(graph, key=lambda node: (-distance[node], node))]
    nearest = nx.single_source_shortest_path_length(graph, seeds[0])
    while len(seeds) < count:
        seeds.append(min(graph, key=lambda node: (-nearest[node], node)))
        reach = nx.single_source_shortest_path_length(graph, seeds[-1])
        nearest = {node: min(nearest[node], reach[node]) for node in graph}
    grown = [{seed} for seed in seeds]
    free = set(graph) - set(seeds)
    while free:
        for cluster in sorted(grown, key=lambda members: (len(members), min(members))):
            border = {other for node in cluster for other in graph.neighbors(node)} & free
            if border:
                cluster.add(min(border))
                free.discard(min(border))
                break
    return [tuple(sorted(cluster)) for cluster in grown]


def tour(graph: Any, start: int) -> tuple[int, ...]:
    """Return a route along edges from `start` over all clients it can reach, ending at the last new one."""
    route, last = [start], 1
    seen, stack = {start}, [start]
    while stack:
        fresh = [other for other in sorted(graph.neighbors(stack[-1])) if other not in seen]
        if fresh:
            stack.append(fresh[0])
            seen.add(fresh[0])
            route.append(fresh[0])
            last = len(route)
        else:
            stack.pop()
            route += stack[-1:]
    return tuple(route[:last])


def way_to(graph: Any, node: int, ends: Collection[int]) -> tuple[int, ...]:
    """Return the shortest way from `node` to one of `ends`, both included; nothing where there is none."""
    if node in ends:
        return (node,)
    if node not in graph:
        return ()
    found = nx.single_source_shortest_path(graph, node)
    ways: list[tuple[int, ...]] = [tuple(path) for end, path in found.items() if end in ends]
    return min(ways, key=lambda path: (len(path), path)) if ways else ()


def inside_clusters(graph: Any, clusters: Sequence[Sequence[int]]) -> Any:
    """Return the graph without the edges between clusters."""
    home = {client: i for i, cluster in enumerate(clusters) for client in cluster}
    kept = nx.Graph()
    kept.add_nodes_from(graph.nodes)
    kept.add_edges_from((a, b) for a, b in graph.edges if a != b and home[a] == home[b])
    return kept
