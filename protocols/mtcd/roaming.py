"""Who may roam where, which tokens are out, and what is issued again when a client is lost: no clock, no I/O.

    begin(round) --> Issue per token      done(token) --> counted, or stale      lose(client) --> Issues again, touched

A lost client leaves the graph. A token that may have visited it is issued again from the last sync, because Z must be
the sum of representations at copies that exist. A cluster that falls apart is served through the server: each part
with a way to the server gets a token of its own. A later issue of a token outdates the earlier (`attempt`).

| waits | for | unless |
|---|---|---|
| the server | `done` of the last issue of every token | it is issued again: then for that |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import networkx as nx
import numpy as np

from fedactors.errors import BadInput
from fedactors.network import topology
from protocols.mtcd import walk

Clusters = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Issue:
    """A token to be sent to `start`, for `num_hops` hops by lazy walk from `seed`, or along `route`."""

    token: int
    attempt: int
    start: int
    seed: int
    num_hops: int
    route: tuple[int, ...]


class Roaming:
    """The tokens of a run, round by round.

    Args:
        graph: who is linked with whom.
        clusters: disjoint clusters with one token each, or None for overlapping tokens over the whole graph.
        linked: clients with a link to the server.
        num_tokens: tokens out at once; fewer than clusters are dealt to clusters drawn anew each round.
        num_hops: S.
        sweep: whether tokens follow a fixed route over their cluster.
        start: "uniform", "all-clients", or a client per token.
        seed: fixes walks, starts and the clusters drawn.
    """

    def __init__(
        self,
        graph: nx.Graph,
        clusters: Clusters | None,
        linked: Collection[int],
        *,
        num_tokens: int,
        num_hops: int,
        sweep: bool = False,
        start: Literal["uniform", "all-clients"] | Sequence[int] = "uniform",
        seed: int = 0,
    ) -> None:
        self._graph = nx.Graph(graph)
        self._linked = set(linked)
        self._clusters = None if clusters is None else [tuple(cluster) for cluster in clusters]
        self._walks = self._graph if clusters is None else walk.cluster_graph(self._graph, clusters)
        self._participation = None if clusters is None or num_tokens >= len(clusters) else num_tokens
        self._num_tokens = num_tokens
        self._num_hops = num_hops
        self._sweep = sweep
        self._start = start
        self._seed = seed
        self._sweeps: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._round = 0
        self._members: dict[int, tuple[int, ...]] = {}
        self._out: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        """Per token of the round, the issue that counts."""
        self.changed: set[int] = set()
        """Clients that a finished token visited in this round."""
        self.num_moves = 0
        """Hops of this round's finished tokens that crossed a link."""
        self.lost: list[int] = []
        """Clients lost so far, in order."""

    # --- a round ---

    def begin(self, round_: int) -> list[Issue]:
        """Start a round: return one issue per token."""
        self._round = round_
        self._out, self.attempts, self.changed, self.num_moves = {}, {}, set(), 0
        self._members = self._groups(round_)
        return [issue for token in self._members for issue in self._issue(token)]

    def done(self, token: int, attempt: int, visited: Iterable[int], num_moves: int, round_: int) -> bool:
        """Take the word that a token's roaming is over; return whether it counts (a stale one does not)."""
        if round_ != self._round or self._out.get(token) != attempt:
            return False
        del self._out[token]
        self.changed.update(set(visited) - set(self.lost))
        self.num_moves += num_moves
        return True

    @property
    def finished(self) -> bool:
        """Whether all tokens of the round are back."""
        return not self._out

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The tokens still out."""
        return tuple(sorted(self._out))

    # --- who is there ---

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients that the server can reach, directly or over others."""
        return tuple(client for client in sorted(self._graph) if self.route(client))

    @property
    def clusters(self) -> Clusters:
        """The clusters, empty when tokens overlap."""
        return tuple(self._clusters or ())

    @property
    def smallest_cluster(self) -> int:
        """Clients of the smallest cluster (of the whole graph when tokens overlap)."""
        if self._clusters is None:
            return len(self._graph)
        return min(len(cluster) for cluster in self._clusters if cluster)

    def options(self, client: int) -> tuple[int, ...]:
        """Return where a token at `client` may go next, itself included."""
        return walk.lazy_options(self._walks, client)

    def route(self, client: int) -> tuple[int, ...]:
        """Return the clients over which the server reaches `client`, the last being itself; empty if it cannot."""
        if client in self._linked:
            return (client,)
        if client not in self._graph:
            return ()
        found = nx.single_source_shortest_path(self._graph, client)
        ways = [path for end, path in found.items() if end in self._linked]
        return tuple(reversed(min(ways, key=lambda path: (len(path), path)))) if ways else ()

    def uplink(self, client: int) -> int | None:
        """Return the next client on the way to the server, None for a direct link or no way at all."""
        route = self.route(client)
        return route[-2] if len(route) > 1 else None

    # --- losses ---

    def lose(self, client: int) -> tuple[list[Issue], tuple[int, ...]]:
        """Take a client out; return the tokens to be issued again, and the clients whose links have changed."""
        if client not in self._graph:
            return [], ()
        all_linked = self._linked.issuperset(self._graph)
        near = set(self._graph.neighbors(client)) if all_linked else set(self._graph)
        self.lost.append(client)
        self.changed.discard(client)
        self._linked.discard(client)
        for graph in {id(g): g for g in (self._graph, self._walks)}.values():
            graph.remove_node(client)
        parts = self._split(client)
        issues: list[Issue] = []
        # a word to the server may have been relayed by the lost client: without direct links all tokens are hit
        for token in [t for t in self.outstanding if client in self._members[t] or not all_linked]:
            del self._out[token]
            self.attempts[token] += 1
            if client not in self._members[token]:
                issues += self._issue(token)
            elif self._clusters is None:
                self._members[token] = tuple(c for c in self._members[token] if c != client)
                issues += self._issue(token)
            else:
                self._members.update(parts)
                issues += [issue for number in parts for issue in self._issue(number)]
        return issues, tuple(sorted(near - {client}))

    def _split(self, client: int) -> dict[int, tuple[int, ...]]:
        """Divide the lost client's cluster into its connected parts: the first keeps the token, others get new ones."""
        if self._clusters is None:
            return {}
        index = next(i for i, cluster in enumerate(self._clusters) if client in cluster)
        rest = self._walks.subgraph(c for c in self._clusters[index] if c != client)
        found = sorted(tuple(sorted(part)) for part in nx.connected_components(rest))
        served = [part for part in found if self._linked.intersection(part)]
        self._clusters[index] = served[0] if served else ()
        numbers = [index, *range(len(self._clusters), len(self._clusters) + len(served) - 1)]
        self._clusters += served[1:]
        return dict(zip(numbers, served, strict=False))

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives a round: who was lost, in order."""
        return {"lost": list(self.lost)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lose the clients that a snapshot says were lost."""
        for client in state["lost"]:
            self.lose(client)

    # --- dealing ---

    def _groups(self, round_: int) -> dict[int, tuple[int, ...]]:
        if self._clusters is None:
            everyone = tuple(sorted(self._graph))
            return dict.fromkeys(range(self._num_tokens), everyone) if everyone else {}
        live = [index for index, cluster in enumerate(self._clusters) if self._linked.intersection(cluster)]
        if self._participation is not None and self._participation < len(live):
            drawn = np.random.default_rng([self._seed, round_]).choice(live, self._participation, replace=False)
            live = sorted(int(index) for index in drawn)
        return {index: self._clusters[index] for index in live}

    def _issue(self, token: int) -> list[Issue]:
        """Issue a token to a linked client of its group; nobody there, no token."""
        attempt = self.attempts.setdefault(token, 0)
        members = self._members[token]
        linked = [client for client in members if client in self._linked]
        if not linked:
            return []
        seed = walk.walk_seed(self._seed, self._round, token + (attempt << 32))
        start = walk.start_client(seed, linked)
        if not isinstance(self._start, str):
            start = self._start[token] if token < len(self._start) and self._start[token] in linked else start
        elif self._start == "all-clients" and token in linked:
            start = token
        route: tuple[int, ...] = ()
        if self._sweep:
            if members not in self._sweeps:
                self._sweeps[members] = walk.sweep(self._walks, members)
            route = self._sweeps[members][: self._num_hops + 1]
            start = route[0]
        self._out[token] = attempt
        num_hops = len(route) - 1 if route else self._num_hops
        return [Issue(token, attempt, start, seed, num_hops, route)]


def lay_out(
    graph: nx.Graph, linked: Collection[int] | None, clusters: Clusters | str, num_tokens: int, seed: int = 0
) -> Clusters:
    """Return the clusters that a config asks for on a graph, each one connected and with a way to the server.

    Raises:
        BadInput: clusters that overlap, miss a client or are not connected; a component or cluster without a server
            link; fewer clusters than tokens.
    """
    if not nx.is_connected(graph):
        topology.check_reachable(graph, linked or ())
    if not isinstance(clusters, str):
        topology.check_clusters(graph, clusters)
        found = tuple(tuple(sorted(cluster)) for cluster in clusters)
    elif clusters == "auto":
        found = walk.even_clusters(graph, num_tokens)
    elif clusters == "whole":
        found = (tuple(sorted(graph)),)
        topology.check_clusters(graph, found)
    else:
        found = topology.detect_clusters(graph, clusters, num_clusters=num_tokens, seed=seed)
    if num_tokens > len(found):
        raise BadInput(
            f"num_tokens: {num_tokens} is not allowed, token-per-cluster mode has {len(found)} clusters here "
            f"(clusters={clusters if isinstance(clusters, str) else 'given'}); use mode=overlapping for more tokens"
        )
    for index, cluster in enumerate(found):
        if linked is not None and not set(cluster) & set(linked):
            raise BadInput(f"server_links: cluster {index} {list(cluster)} has no client with a link to the server")
    return found
