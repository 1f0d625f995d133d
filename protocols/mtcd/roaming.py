"""Where tokens go: walks and sweeps, who may roam where, and what is issued again when a client is lost.

    begin(round) --> Issue per token      done(token) --> counted, or stale      lose(client) --> Issues again, touched
    server --Issue--> start client --next_client(seed, hop, links)--> client --> ... S hops, S + 1 visits

Values in, values out: no clock, no I/O. Every draw is a pure function of (walk seed, hop), and a seed of (run, round,
token, attempt): a walk is the same on every runtime, whatever the order in which tokens move, and costs no generator.
Graphs by name, visit probabilities and sweeps are in `fedactors.network.topology`.

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
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import derived_seed
from fedactors.errors import BadInput
from fedactors.messages.codec import wire_type
from fedactors.network import topology
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.messages import Links
from fedactors.validation import shown

Clusters = tuple[tuple[int, ...], ...]
_MASK = (1 << 64) - 1
_MOST_EXACT = 300
"""Clients of a group whose visit probabilities are computed: it takes their number cubed for each hop."""

# --- draws ---


def _mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of the SplitMix64 generator, public domain)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def walk_seed(run_seed: int, round_: int, token: int, attempt: int = 0) -> int:
    """Return the 64-bit seed of one issue of a token in one round."""
    return _mix(_mix(_mix(run_seed & _MASK) ^ round_) ^ (token + (attempt << 32)))


def draw(seed: int, hop: int, num_options: int) -> int:
    """Return a uniform index below `num_options`, a pure function of `seed` and `hop`."""
    return (_mix(seed ^ _mix(hop)) * num_options) >> 64


def next_client(seed: int, hop: int, links: Links) -> int:
    """Return the client of hop `hop` (1 for the first): uniform over the links, or the next one of the sweep."""
    return links.options[draw(seed, hop, len(links.options))] if links.successor < 0 else links.successor


def start_client(seed: int, clients: Sequence[int]) -> int:
    """Return where the roaming begins, uniform over `clients` (pi_gamma; one client is a point mass)."""
    return clients[draw(seed, 0, len(clients))]


# --- what a configuration asks for ---


def make_graph(config: MtcdConfig, seed: int) -> nx.Graph:
    """Return the graph that the config names, or has the edges of: it opens no file (`MtcdConfig.with_contents`)."""
    name = config.topology
    if name in topology.GRAPH_NAMES:
        return topology.make_graph(name, config.num_clients, edge_probability=config.edge_probability, seed=seed)
    if "\n" in name:
        return topology.graph_of(name, config.num_clients)
    raise BadInput(f"topology: {shown(name)} is not known, use {', '.join(topology.GRAPH_NAMES)}, or a file's path")


@wire_type(eq=False)
class RoamingPlan:
    """Who may roam where, as plain values: what `Roaming` is made of, wherever it is needed."""

    num_clients: int
    edges: NDArray[np.int64]
    """Links between clients (number x 2)."""
    clusters: Clusters | None
    """Disjoint clusters with one token each, or None for overlapping tokens over the whole graph."""
    linked: tuple[int, ...]
    """Clients with a link to the server."""
    num_tokens: int
    """Tokens out at once; fewer than clusters are dealt to clusters drawn anew each round."""
    num_hops: int
    """S."""
    sweep: bool = False
    """Whether tokens follow a fixed route over their cluster."""
    start: str | tuple[int, ...] = "uniform"
    """``uniform``, ``all-clients``, or a client per token."""
    seed: int = 0
    """Fixes walks, starts and the clusters drawn."""


def plan_roaming(config: MtcdConfig, graph: nx.Graph, seed: int) -> RoamingPlan:
    """Return who may roam where under a config.

    Raises:
        BadInput: a graph, clusters, links or starts that do not fit; see `lay_out`.
    """
    linked = tuple(range(config.num_clients)) if config.server_links == "all" else config.server_links or ()
    clusters: Clusters | None = None
    if config.algorithm == "stcd":
        require_connected(graph, "stcd")
    elif config.algorithm == "svfl" or config.mode == "overlapping":
        topology.check_reachable(graph, linked)
    else:
        clusters = lay_out(graph, linked, config.clusters, config.tokens, seed)
        if isinstance(config.start, tuple):
            _check_starts(config.start, clusters, linked)
    sweeps = config.walk == "sweep" and config.algorithm == "mtcd"
    if config.walk == "auto" and config.is_accelerated and config.start == "uniform" and clusters is not None:
        sweeps = _can_sweep(graph, clusters, linked, config.num_hops)
    return RoamingPlan(
        num_clients=config.num_clients,
        edges=np.array(list(graph.edges), np.int64).reshape(-1, 2),
        clusters=clusters,
        linked=linked,
        num_tokens=config.tokens if config.algorithm == "mtcd" else 1,
        num_hops=config.num_hops,
        sweep=sweeps,
        start=config.start,
        seed=derived_seed(seed, "all parties", "walks"),
    )


def _can_sweep(graph: nx.Graph, clusters: Clusters, linked: Collection[int], num_hops: int) -> bool:
    """Say whether so many hops visit every client of each cluster once, from one with a link to the server on."""
    return all(
        len(members) <= num_hops + 1
        and topology.route_over_all(graph.subgraph(members), starts=set(linked).intersection(members), closed=False)
        for members in clusters
    )


def _check_starts(start: tuple[int, ...], clusters: Clusters, linked: tuple[int, ...]) -> None:
    for token, client in enumerate(start):
        if client not in clusters[token]:
            raise BadInput(f"start: client {client} of token {token} is not in its cluster {list(clusters[token])}")
        if client not in linked:
            raise BadInput(f"start: client {client} of token {token} has no link to the server, see server_links")


def require_connected(graph: nx.Graph, algorithm: str) -> None:
    """Refuse a graph in parts, where there is no server."""
    if not nx.is_connected(graph):
        raise BadInput(
            f"topology: a disconnected graph is not allowed for {algorithm}, which has no server links to join its "
            "parts; use algorithm=mtcd"
        )


def lay_out(
    graph: nx.Graph, linked: Collection[int] | None, clusters: Clusters | str, num_tokens: int, seed: int = 0
) -> Clusters:
    """Return the clusters that a config asks for on a graph, each one connected and with a way to the server."""
    if not nx.is_connected(graph):
        topology.check_reachable(graph, linked or ())
    if not isinstance(clusters, str):
        topology.check_clusters(graph, clusters)
        found = tuple(tuple(sorted(cluster)) for cluster in clusters)
    elif clusters == "auto":
        found = topology.even_clusters(graph, num_tokens)
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


# --- the tokens of a run ---


@dataclass(frozen=True, slots=True)
class Issue:
    """A token to be sent to `start`, for `num_hops` hops."""

    token: int
    attempt: int
    start: int
    num_hops: int


class Roaming:
    """The tokens of a run, round by round."""

    def __init__(self, plan: RoamingPlan) -> None:
        self._plan = plan
        self._graph = nx.Graph()
        self._graph.add_nodes_from(range(plan.num_clients))
        self._graph.add_edges_from(plan.edges.tolist())
        self._linked = set(plan.linked)
        self._clusters = None if plan.clusters is None else [tuple(cluster) for cluster in plan.clusters]
        self._walks = self._graph if plan.clusters is None else topology.inside_clusters(self._graph, plan.clusters)
        self._sweeps: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._round = 0
        self._members: dict[int, tuple[int, ...]] = {}
        self._out: dict[int, int] = {}
        self.attempts: dict[int, int] = {}
        """Per token of the round, the issue that counts."""
        self.changed: set[int] = set()
        """Clients that a finished token visited in this round."""
        self.lost: list[int] = []
        """Clients lost so far, in order."""

    # --- a round ---

    def begin(self, round_: int) -> list[Issue]:
        """Start a round: return one issue per token."""
        self._round = round_
        self._out, self.attempts, self.changed = {}, {}, set()
        self._members = self._groups(round_)
        return [issue for token in self._members for issue in self._issue(token)]

    def done(self, token: int, attempt: int, visited: Iterable[int], round_: int) -> bool:
        """Take the word that a token's roaming is over; return whether it counts (a stale one does not)."""
        if round_ != self._round or self._out.get(token) != attempt:
            return False
        del self._out[token]
        self.changed.update(set(visited) - set(self.lost))
        return True

    @property
    def outstanding(self) -> tuple[int, ...]:
        """The tokens still out; none when the round is finished."""
        return tuple(sorted(self._out))

    # --- who is there ---

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients that the server can reach, directly or over others."""
        return tuple(client for client in sorted(self._graph) if self.route(client))

    @property
    def clusters(self) -> Clusters:
        """The clusters; the whole graph when tokens overlap."""
        return (tuple(sorted(self._graph)),) if self._clusters is None else tuple(self._clusters)

    @property
    def smallest_cluster(self) -> int:
        """Clients of the smallest cluster that has any."""
        return min(len(cluster) for cluster in self.clusters if cluster)

    def links(self, client: int, names: Sequence[str]) -> Links:
        """Return where a token at `client` may go, and the next station to the server where it has no link to it."""
        route = self.route(client)
        uplink = names[route[-2]] if len(route) > 1 else ""
        successor = -1
        if self._plan.sweep:
            ahead = self._sweep(next(cluster for cluster in self.clusters if client in cluster))
            position = ahead.index(client) + 1
            successor = ahead[position % len(ahead) if self._clusters is None else min(position, len(ahead) - 1)]
        return Links(tuple(sorted({client, *self._walks.neighbors(client)})), uplink, successor)

    def route(self, client: int) -> tuple[int, ...]:
        """Return the clients over which the server reaches `client`, the last being itself; empty if it cannot."""
        return tuple(reversed(topology.way_to(self._graph, client, self._linked)))

    # --- losses ---

    def lose(self, client: int) -> tuple[list[Issue], tuple[int, ...]]:
        """Take a client out; return the tokens to be issued again, and the clients whose links have changed."""
        if client not in self._graph:
            return [], ()
        all_linked = self._linked.issuperset(self._graph)
        is_local = all_linked and not self._plan.sweep
        near = set(self._graph.neighbors(client)) if is_local else set(self._graph)
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
            return dict.fromkeys(range(self._plan.num_tokens), everyone) if everyone else {}
        live = [index for index, cluster in enumerate(self._clusters) if self._linked.intersection(cluster)]
        num_tokens, num_planned = self._plan.num_tokens, len(self._plan.clusters or ())
        if num_tokens < min(len(live), num_planned):
            drawn = np.random.default_rng([self._plan.seed, round_]).choice(live, num_tokens, replace=False)
            live = sorted(int(index) for index in drawn)
        return {index: self._clusters[index] for index in live}

    def _issue(self, token: int) -> list[Issue]:
        """Issue a token to a linked client of its group; nobody there, no token."""
        attempt = self.attempts.setdefault(token, 0)
        plan, members = self._plan, self._members[token]
        linked = [client for client in members if client in self._linked]
        if not linked:
            return []
        start = start_client(walk_seed(plan.seed, self._round, token, attempt), linked)
        if isinstance(plan.start, tuple):
            start = plan.start[token] if token < len(plan.start) and plan.start[token] in linked else start
        elif plan.start == "all-clients" and token in linked:
            start = token
        num_hops = plan.num_hops
        if plan.sweep and self._clusters is None:
            start = self._start_positions(members)[token]
        elif plan.sweep:
            start, num_hops = self._sweep(members)[0], min(num_hops, len(members) - 1)
        self._out[token] = attempt
        return [Issue(token, attempt, start, num_hops)]

    def _sweep(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Return a route that visits each of `members` once (the setting of Section 4.1's complexity claim).

        It begins at a client with a link to the server; that of tokens which overlap leads back to where it begins.
        """
        if members not in self._sweeps:
            is_closed = self._clusters is None
            inside = self._walks.subgraph(members)
            route = topology.route_over_all(inside, starts=self._linked.intersection(members), closed=is_closed)
            if route is None:
                raise BadInput(
                    f"walk: sweep is not allowed on cluster {sorted(members)}, no {'closed ' * is_closed}route along "
                    "its edges visits each client once, from one with a link to the server on; use walk=lazy"
                )
            self._sweeps[members] = route
        return self._sweeps[members]

    def _start_positions(self, members: tuple[int, ...]) -> list[int]:
        """Return where tokens that overlap begin their common route: at linked clients, spread over it."""
        linked = [client for client in self._sweep(members) if client in self._linked]
        number = self._plan.num_tokens
        return [linked[token * len(linked) // number] for token in range(number)]

    # --- who is visited ---

    def least_visit_probability(self) -> float | None:
        """Return p_min, the least probability that a client is visited in a round (Assumption 4); None: not computed.

        It is computed exactly for groups of up to `_MOST_EXACT` clients.

        Raises:
            BadInput: a client is never visited; the one, and what reaches it.
        """
        tokens = range(self._plan.num_tokens)
        if self._clusters is None:
            return self._least((self.clusters[0]), list(tokens))
        found = [self._least(members, [index]) for index, members in enumerate(self.clusters)]
        share = min(1.0, self._plan.num_tokens / len(found))
        known = [each for each in found if each is not None]
        return share * min(known) if len(known) == len(found) else None

    def _least(self, members: tuple[int, ...], tokens: Sequence[int]) -> float | None:
        """Return the least probability that one of `tokens`, which roam among `members`, visits a client."""
        plan, inside = self._plan, self._walks.subgraph(members)
        if plan.sweep:
            route = self._sweep(members)
            begins = [route[0]] if self._clusters is not None else self._start_positions(members)
            visits = min(plan.num_hops, len(route) - 1) + 1
            first = [route.index(client) for client in begins]
            seen = {route[(position + visit) % len(route)] for position in first for visit in range(visits)}
            self._check_visited(members, seen, begins, "hops of a sweep: as many as the longest way between two tokens")
            return 1.0
        linked = [client for client in members if client in self._linked]
        starts = [self._starts(token, linked) for token in tokens]
        ways = nx.multi_source_dijkstra_path_length(inside, {client for each in starts for client in each}, weight=None)
        near = {client for client, distance in ways.items() if distance <= plan.num_hops}
        self._check_visited(members, near, starts[0], f"{max(ways.values())} hops, or more of server_links")
        if len(members) > _MOST_EXACT:
            return None
        number = {client: position for position, client in enumerate(sorted(members))}
        walk_KK = topology.lazy_walk(nx.relabel_nodes(inside, number))
        missed_K = np.ones(len(members))
        by_start: dict[tuple[int, ...], Any] = {}
        for each in starts:
            if each not in by_start:
                start_K = np.zeros(len(members))
                start_K[[number[client] for client in each]] = 1 / len(each)
                by_start[each] = topology.visit_probabilities(walk_KK, start_K, plan.num_hops)
            missed_K *= 1 - by_start[each]
        return float(1 - missed_K.max())

    def _starts(self, token: int, linked: Sequence[int]) -> tuple[int, ...]:
        """Return where a token may begin, each with the same probability."""
        start = self._plan.start
        if isinstance(start, tuple):
            return (start[token],) if token < len(start) and start[token] in linked else tuple(linked)
        return (token,) if start == "all-clients" and token in linked else tuple(linked)

    def _check_visited(
        self, members: tuple[int, ...], seen: Collection[int], starts: Sequence[int], enough: str
    ) -> None:
        missed = sorted(set(members) - set(seen))
        if missed:
            raise BadInput(
                f"num_hops: {self._plan.num_hops} is not allowed: client {missed[0]}, one of {len(missed)}, is never "
                f"visited by tokens that begin at {list(starts)[:5]}; it takes {enough}"
            )
