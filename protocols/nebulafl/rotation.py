"""When masters rotate, which center sends to which, and over which links.

    round       0        1        2        3 (self turn)
    center 1    -> 2     -> 3     -> 4     -> 1
    center 2    -> 3     -> 4     -> 1     -> 2
    center 3    -> 4     -> 1     -> 2     -> 3
    center 4    -> 1     -> 2     -> 3     -> 4

Every round is a bijection, so each center sends one master and receives one. A center that is lost is left
out of the ring until it is back; the bijection then runs over the centers that are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import networkx as nx

from fedactors.errors import BadInput


def rotation_target(center: int, rotation: int, num_centers: int) -> int:
    """Return (i + r) mod |C| + 1 for center i = 1 ... |C| in rotation r = 0, 1, ... (Algorithm 1, line 17)."""
    return (center + rotation) % num_centers + 1


def rotation_partners(centers: Sequence[str], rotation: int) -> dict[str, str]:
    """Return who sends to whom among the `centers` present, in their order; r mod |C| = |C| - 1 is the self turn."""
    return {
        sender: centers[rotation_target(place, rotation, len(centers)) - 1]
        for place, sender in enumerate(centers, start=1)
    }


def rotation_transfers(centers: Sequence[str], rotation: int) -> list[tuple[str, str]]:
    """Return the transfers between centers in one rotation: |C| of them, none in the self turn."""
    return [
        (sender, receiver) for sender, receiver in rotation_partners(centers, rotation).items() if sender != receiver
    ]


def aggregation_transfers(centers: Sequence[str], hub: str) -> list[tuple[str, str]]:
    """Return the transfers of aggregating masters at `hub` and sending the mean back: 2 |C| for a hub of its own."""
    others = [center for center in centers if center != hub]
    return [(center, hub) for center in others] + [(hub, center) for center in others]


@dataclasses.dataclass
class RotationTimer:
    """When a center sends its master: at t_c, 2 t_c, ... (Algorithm 1, lines 14 to 18).

    The paper's condition also holds just after the start, when all masters are still m_0; `paper_literal` keeps
    that transfer, by default the first one is at t_c.
    """

    interval: float
    """t_c in seconds."""
    rotation: int = 0
    """c_r, rotations done."""
    paper_literal: bool = False
    """Rotate at 0, t_c, 2 t_c, ..."""

    def due_at(self) -> float:
        """Return the time of the next rotation in seconds since the run began."""
        return self.interval * (self.rotation + (0 if self.paper_literal else 1))

    def take(self, now: float) -> int | None:
        """Return the rotation that is due at `now` and count it, or None; the timer then waits for the next."""
        if now < self.due_at():
            return None
        self.rotation += 1
        return self.rotation - 1

    def catch_up(self, now: float) -> None:
        """Drop the rotations that a center missed while it was lost, so that all centers count alike."""
        while self.due_at() < now:
            self.rotation += 1

    def state_dict(self) -> dict[str, int]:
        """Return everything that a snapshot needs."""
        return {"rotation": self.rotation}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Put a snapshot back."""
        self.rotation = state["rotation"]


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


@dataclasses.dataclass(frozen=True)
class Route:
    """The way of one model through the network."""

    path: tuple[str, ...]
    """Places passed, sender first, receiver last; one place for a center that keeps its own model."""
    seconds: float
    """Store-and-forward time over all links."""
    dollars: float
    """Egress price over all links."""
    num_bytes: int
    """Size of what was sent."""

    @property
    def num_links(self) -> int:
        """Links passed."""
        return len(self.path) - 1


class InterCenterNetwork:
    """The routing table of the centers: the shortest path for a message of a given size."""

    def __init__(self, links: Iterable[InterCenterLink], hub: str | None = None) -> None:
        self.links = tuple(links)
        self.hub = hub
        self.graph = nx.Graph()
        for link in self.links:
            self.graph.add_edge(*link.ends, link=link)
        self._routes: dict[tuple[str, str, int], Route] = {}

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

    def route(self, sender: str, receiver: str, num_bytes: int) -> Route:
        """Return the quickest way of `num_bytes` bytes, links weighted by latency + bytes / bandwidth."""
        key = (sender, receiver, num_bytes)
        if key not in self._routes:
            self._routes[key] = self._search(sender, receiver, num_bytes)
        return self._routes[key]

    def _search(self, sender: str, receiver: str, num_bytes: int) -> Route:
        if sender == receiver:
            return Route((sender,), 0.0, 0.0, num_bytes)

        def seconds(_: str, __: str, edge: dict[str, InterCenterLink]) -> float:
            return edge["link"].latency + num_bytes / edge["link"].bandwidth

        path: list[str] = nx.dijkstra_path(self.graph, sender, receiver, weight=seconds)
        links = [self.graph.edges[pair]["link"] for pair in pairwise(path)]
        return Route(
            tuple(path),
            sum(link.latency + num_bytes / link.bandwidth for link in links),
            sum(link.egress_price * num_bytes for link in links),
            num_bytes,
        )
