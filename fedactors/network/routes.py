"""Ways over a graph of clients: routes over all of them, ways to the nearest of some, and clusters to walk in.

Nodes are client indices 0..K-1 of an undirected networkx graph, as `fedactors.network.topology` makes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import networkx as nx

from fedactors.network.topology import Clusters

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
