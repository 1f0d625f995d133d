"""The network between centers: lines between places, and the link that a model takes over the quickest way.

A model that passes several lines is stored and forwarded: it takes the sum of their latencies and of bytes / bandwidth,
and costs the sum of their egress prices. A place may have a capacity, which all that it sends, or receives, shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise

import networkx as nx

from fedactors.errors import BadInput
from fedactors.network.ledger import CLIENT_SERVER
from fedactors.network.links import LOCAL, HostCapacity, Link, Network


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterCenterLink:
    """A line between two places, the same both ways."""

    ends: tuple[str, str]
    """The places it joins."""
    latency: float
    """Seconds."""
    bandwidth: float
    """Bytes a second."""
    egress_price: float
    """Dollars a byte, paid by the end that sends."""


class InterCenterNetwork:
    """The lines between places; the hub is where the methods that aggregate do so."""

    def __init__(
        self,
        links: Iterable[InterCenterLink],
        hub: str | None = None,
        capacity: Mapping[str, HostCapacity] | None = None,
    ) -> None:
        self.hub = hub
        self.capacity = dict(capacity or {})
        self.graph = nx.Graph()
        for link in links:
            self.graph.add_edge(*link.ends, link=link)

    def heavier(self, factor: float) -> InterCenterNetwork:
        """Return the network as it is for messages of `factor` times their bytes."""
        links = [edge["link"] for _, _, edge in self.graph.edges(data=True)]
        return InterCenterNetwork(
            [
                dataclasses.replace(link, bandwidth=link.bandwidth / factor, egress_price=link.egress_price * factor)
                for link in links
            ],
            self.hub,
            {
                place: HostCapacity(egress=found.egress / factor, ingress=found.ingress / factor)
                for place, found in self.capacity.items()
            },
        )

    def require(self, centers: Sequence[str]) -> None:
        """Check that every two of `centers` (and the hub) can reach each other.

        Raises:
            BadInput: a center that the network does not have, or that some other center cannot reach.
        """
        wanted = list(centers) + ([self.hub] if self.hub else [])
        for center in wanted:
            if center not in self.graph and len(wanted) > 1:
                raise BadInput(f"network: center {center!r} has no link (places: {', '.join(sorted(self.graph))})")
        for center in wanted[1:]:
            if not nx.has_path(self.graph, wanted[0], center):
                raise BadInput(f"network: center {center!r} cannot be reached from {wanted[0]!r}; add a link")

    def path(self, sender: str, receiver: str, num_bytes: int) -> tuple[str, ...]:
        """Return the places on the quickest way of `num_bytes` bytes, lines weighted by latency + bytes / bandwidth."""

        def seconds(_: str, __: str, edge: dict[str, InterCenterLink]) -> float:
            return edge["link"].latency + num_bytes / edge["link"].bandwidth

        return tuple(nx.dijkstra_path(self.graph, sender, receiver, weight=seconds))

    def link(self, sender: str, receiver: str, num_bytes: int) -> Link:
        """Return the whole way of `num_bytes` bytes as one link."""
        path = self.path(sender, receiver, num_bytes)
        passed = [self.graph.edges[pair]["link"] for pair in pairwise(path)]
        return Link(
            latency=sum(link.latency for link in passed),
            bandwidth=1.0 / sum(1.0 / link.bandwidth for link in passed),
            price_per_gb=sum(link.egress_price for link in passed) * 1e9,
        )

    def links(self, centers: Sequence[str], exchange: str, num_bytes: int) -> Network:
        """Return the links that messages of about `num_bytes` take between the centers and the exchange.

        The auditor is no part of the protocol; its links are free.
        """
        places, hosts = list(centers), {}
        if self.hub is not None and exchange == "exchange":
            hosts[exchange] = self.hub
            places.append(self.hub)
        links = {ends: self.link(*ends, num_bytes) for ends in combinations(places, 2) if ends[0] != ends[1]}
        free = frozenset({CLIENT_SERVER})
        return Network(links=links, by_kind={CLIENT_SERVER: LOCAL}, hosts=hosts, capacity=self.capacity, unshared=free)
