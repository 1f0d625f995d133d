"""Links between hosts: latency, bandwidth, price, and host capacity shared among the transfers in flight.

Pure arithmetic, no clock: the runtimes ask `Network.link` and, where a host's capacity is finite,
let `SharedTransfers` say when each transfer ends.

    rate of a transfer = min(link bandwidth, egress of the sender's host / its transfers in flight,
                             ingress of the receiver's host / its transfers in flight)

so that a server sending to K clients at once takes K times as long as sending to one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedactors.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Link:
    """A directed link: seconds of latency, bytes per second, price per 1e9 bytes."""

    latency: float = 0.0
    bandwidth: float = math.inf
    price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        if self.latency < 0 or math.isnan(self.latency):
            raise BadInput(f"latency: {self.latency} is not allowed: it must be 0 or more seconds")
        if not self.bandwidth > 0:
            raise BadInput(f"bandwidth: {self.bandwidth} is not allowed: it must be more than 0 bytes per second")
        if self.price_per_gb < 0 or math.isnan(self.price_per_gb):
            raise BadInput(f"price_per_gb: {self.price_per_gb} is not allowed: it must be 0 or more")

    def seconds(self, num_bytes: int) -> float:
        """Return the time that `num_bytes` take alone on this link."""
        return self.latency + num_bytes / self.bandwidth

    def price(self, num_bytes: int) -> float:
        """Return the price of `num_bytes` on this link."""
        return num_bytes * self.price_per_gb / 1e9


@dataclass(frozen=True, kw_only=True)
class HostCapacity:
    """What a host can send and receive in all, in bytes per second."""

    egress: float = math.inf
    ingress: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("egress", self.egress), ("ingress", self.ingress)):
            if not value > 0:
                raise BadInput(f"{name}: {value} is not allowed: it must be more than 0 bytes per second")


_UNLIMITED = HostCapacity()
LOCAL = Link()
LAN = Link(latency=0.0005, bandwidth=1.25e8)
"""The default between parties: half a millisecond and 1 Gbit/s."""


@dataclass(frozen=True)
class Network:
    """Which link joins which hosts. Actors of one party share a host unless `hosts` says otherwise.

    The first of these that exists decides: a link between the two named hosts (`links`, either direction), the
    kind of the traffic (`by_kind`, for instance "client-server"), `default`. Within a host it is `local`.
    """

    default: Link = LAN
    local: Link = LOCAL
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    by_kind: Mapping[str, Link] = field(default_factory=dict)
    capacity: Mapping[str, HostCapacity] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    unshared: frozenset[str] = frozenset()
    """Kinds of traffic that take no part of any host's capacity, such as that of an observer."""

    def host(self, actor: str) -> str:
        """Return the host of an actor: what `hosts` says of it or of its party, else its party."""
        party = actor.partition("/")[0]
        return self.hosts.get(actor) or self.hosts.get(party) or party

    def link(self, sender: str, receiver: str, kind: str) -> Link:
        """Return the link that a message of this kind takes from actor to actor."""
        source, target = self.host(sender), self.host(receiver)
        if source == target:
            return self.local
        found = self.links.get((source, target)) or self.links.get((target, source))
        return found or self.by_kind.get(kind) or self.default

    def is_shared(self, sender: str, receiver: str, kind: str = "") -> bool:
        """Say whether the capacity of either host limits a transfer between two actors on different hosts."""
        source, target = self.host(sender), self.host(receiver)
        if source == target or not self.capacity or kind in self.unshared:
            return False
        return math.isfinite(self.capacity_of(source).egress) or math.isfinite(self.capacity_of(target).ingress)

    def capacity_of(self, host: str) -> HostCapacity:
        """Return what a host can send and receive; unlimited where nothing is said."""
        return self.capacity.get(host, _UNLIMITED)


@dataclass(slots=True)
class _Transfer:
    source: str
    target: str
    bandwidth: float
    remaining: float
    rate: float = 0.0


class SharedTransfers:
    """The transfers in flight through hosts of finite capacity: events in, end times out.

    `start` and `advance` take the present time; `next_end` says when the next transfer ends if nothing else starts.
    Transfers that start at one instant share from that instant on.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._flows: dict[int, _Transfer] = {}
        self._outgoing: dict[str, int] = {}
        self._incoming: dict[str, int] = {}
        self._time = 0.0
        self._stale = False

    def start(self, now: float, key: int, source: str, target: str, link: Link, num_bytes: int) -> None:
        """Begin a transfer under a key of the caller's."""
        self._progress(now)
        self._flows[key] = _Transfer(source, target, link.bandwidth, float(num_bytes))
        self._outgoing[source] = self._outgoing.get(source, 0) + 1
        self._incoming[target] = self._incoming.get(target, 0) + 1
        self._stale = True

    def next_end(self) -> float | None:
        """Return the time at which the next transfer ends, or None when nothing is in flight."""
        if not self._flows:
            return None
        self._share()
        return self._time + min(flow.remaining / flow.rate for flow in self._flows.values())

    def advance(self, now: float) -> list[int]:
        """Move to `now` and return the keys of the transfers that ended by then, in the order of their start."""
        if self._flows:
            self._share()
        self._progress(now)
        # a transfer is over when what remains would take less than the clock can resolve
        resolution = max(abs(now), 1.0) * 1e-12
        ended = [key for key, flow in self._flows.items() if flow.remaining <= flow.rate * resolution]
        for key in ended:
            flow = self._flows.pop(key)
            self._outgoing[flow.source] -= 1
            self._incoming[flow.target] -= 1
            self._stale = True
        return ended

    def _progress(self, now: float) -> None:
        elapsed = now - self._time
        if elapsed > 0:
            self._share()
            for flow in self._flows.values():
                flow.remaining -= flow.rate * elapsed
        self._time = now

    def _share(self) -> None:
        if not self._stale:
            return
        egress = {h: self._network.capacity_of(h).egress / n for h, n in self._outgoing.items() if n}
        ingress = {h: self._network.capacity_of(h).ingress / n for h, n in self._incoming.items() if n}
        for flow in self._flows.values():
            flow.rate = min(flow.bandwidth, egress[flow.source], ingress[flow.target])
        self._stale = False
