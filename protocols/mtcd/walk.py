"""Where a token goes: lazy random walks, sweeps, start clients, and a bound on the chance to be visited (Appendix D).

Graphs by name, transition matrices and exact visit probabilities are in `fedactors.network.topology`.

Every draw is a pure function of (walk seed, hop): a token carries its seed, so a walk is the same on every runtime,
whatever the order in which tokens move, and costs no generator per hop.

    server --start(seed, clients)--> client --next(seed, hop, neighbours)--> client --> ... S hops, S + 1 visits
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput

_MASK = (1 << 64) - 1
_SWEEP_SEARCH_LIMIT = 200_000


def _mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of the SplitMix64 generator, public domain)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def walk_seed(run_seed: int, round_: int, token: int) -> int:
    """Return the 64-bit seed of one token's walk in one round."""
    return _mix(_mix(_mix(run_seed & _MASK) ^ round_) ^ token)


def draw(seed: int, hop: int, num_options: int) -> int:
    """Return a uniform index below `num_options`, a pure function of `seed` and `hop`."""
    return (_mix(seed ^ _mix(hop)) * num_options) >> 64


def lazy_options(graph: nx.Graph, client: int) -> tuple[int, ...]:
    """Return where a lazy walk may go from `client`: its neighbours and itself, in increasing order."""
    return tuple(sorted({client, *graph.neighbors(client)}))


def next_client(seed: int, hop: int, options: Sequence[int]) -> int:
    """Return the client of hop `hop` (1 for the first), uniform over `options` = `lazy_options` of the holder."""
    return options[draw(seed, hop, len(options))]


def start_client(seed: int, clients: Sequence[int]) -> int:
    """Return where the roaming begins, uniform over `clients` (pi_gamma; one client is a point mass)."""
    return clients[draw(seed, 0, len(clients))]


def lazy_walk(graph: nx.Graph, start: int, num_hops: int, seed: int) -> tuple[int, ...]:
    """Return the S + 1 clients that a lazy walk visits, `start` first."""
    route = [start]
    for hop in range(1, num_hops + 1):
        route.append(next_client(seed, hop, lazy_options(graph, route[-1])))
    return tuple(route)


def sweep(graph: nx.Graph, clients: Iterable[int]) -> tuple[int, ...]:
    """Return a route along edges that visits each of `clients` once (the setting of Section 4.1's complexity claim).

    Raises:
        BadInput: the cluster has no such route, or none was found within the search limit.
    """
    inside = graph.subgraph(clients)
    route = _route_over_all(inside)
    if route is None:
        raise BadInput(
            f"walk: sweep is not allowed on cluster {sorted(inside.nodes)}, no route along its edges visits each "
            "client once; use walk=lazy"
        )
    return route


def _route_over_all(graph: nx.Graph) -> tuple[int, ...] | None:
    """Search a Hamiltonian path depth first, clients with the fewest unvisited neighbours first."""
    neighbours = {node: [other for other in graph.neighbors(node) if other != node] for node in graph}
    exits = {node: len(others) for node, others in neighbours.items()}
    budget = _SWEEP_SEARCH_LIMIT
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

    for start in sorted(neighbours, key=lambda node: (exits[node], node)):
        stack = [enter(start)]
        while stack and budget > 0:
            if len(route) == len(neighbours):
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


def even_clusters(graph: nx.Graph, num_clusters: int) -> tuple[tuple[int, ...], ...]:
    """Cut a graph into connected clusters of nearly equal size: one token each, where no clusters are given.

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
        route = _route_over_all(inside) if count > 1 else tuple(component)
        if route is None:
            clusters += _grow(inside, count)
            continue
        bounds = [i * len(route) // count for i in range(count + 1)]
        clusters += [tuple(sorted(route[low:high])) for low, high in itertools.pairwise(bounds)]
    return tuple(sorted(clusters))


def _grow(graph: nx.Graph, count: int) -> list[tuple[int, ...]]:
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


def tour(graph: nx.Graph, start: int) -> tuple[int, ...]:
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


def visit_probability_bound(graph: nx.Graph, start: NDArray[np.float64], num_hops: int) -> float:
    """Return the lower bound of Appendix D: min pi where pi > 0 everywhere, else max pi (1 + max degree)^-S.

    The second needs S of at least the diameter; below it the bound is 0. The largest entry of pi is enough, because
    the walk may begin there and wait at the client it has reached.
    """
    if start.min() > 0:
        return float(start.min())
    if num_hops < nx.diameter(graph):
        return 0.0
    max_degree = max(degree for _, degree in graph.degree())
    return float(start.max()) / float(1 + max_degree) ** num_hops


def cluster_graph(graph: nx.Graph, clusters: Sequence[Sequence[int]]) -> nx.Graph:
    """Return the graph without the edges between clusters: where tokens may go in token-per-cluster mode."""
    home = {client: i for i, cluster in enumerate(clusters) for client in cluster}
    kept: nx.Graph = nx.Graph()
    kept.add_nodes_from(graph.nodes)
    kept.add_edges_from((a, b) for a, b in graph.edges if a != b and home[a] == home[b])
    return kept
