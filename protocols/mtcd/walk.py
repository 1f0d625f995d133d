"""Where a token goes: lazy random walks, sweeps, start clients, and a bound on the chance to be visited (Appendix D).

Graphs by name, transition matrices and exact visit probabilities are in `fedactors.network.topology`.

Every draw is a pure function of (walk seed, hop): a token carries its seed, so a walk is the same on every runtime,
whatever the order in which tokens move, and costs no generator per hop.

    server --start(seed, clients)--> client --next(seed, hop, neighbours)--> client --> ... S hops, S + 1 visits
"""

from __future__ import annotations

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
    nodes = sorted(inside.nodes, key=lambda node: (inside.degree(node), node))
    budget = _SWEEP_SEARCH_LIMIT
    for start in nodes:
        route, seen = [start], {start}
        stack = [_fewest_exits_first(inside, start, seen)]
        while stack and budget > 0:
            if len(route) == len(nodes):
                return tuple(route)
            if not stack[-1]:
                stack.pop()
                seen.discard(route.pop())
                continue
            budget -= 1
            following = stack[-1].pop()
            route.append(following)
            seen.add(following)
            stack.append(_fewest_exits_first(inside, following, seen))
    raise BadInput(
        f"walk: sweep is not allowed on cluster {sorted(inside.nodes)}, no route along its edges visits each client "
        "once; use walk=lazy"
    )


def _fewest_exits_first(graph: nx.Graph, node: int, seen: set[int]) -> list[int]:
    """Return the unseen neighbours; the last, which is tried first, has the fewest unseen neighbours of its own."""
    fresh = [other for other in graph.neighbors(node) if other not in seen]
    return sorted(fresh, key=lambda other: (-sum(far not in seen for far in graph.neighbors(other)), -other))


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
