"""Hardware: units for rent, with prices and bills, and the lines between places, with the link that a model takes.

Every rental is an entry of a bill; of egress the traffic ledger holds what was sent, and the lines its price. A model
that passes several lines is stored and forwarded: it takes the sum of their latencies and of bytes / bandwidth, and
costs the sum of their egress prices. A place may have a capacity, which all that it sends, or receives, shares.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import networkx as nx

from fedactors.errors import BadInput
from fedactors.messages.ledger import CLIENT_SERVER
from fedactors.network.links import LOCAL, HostCapacity, Link, Network
from fedactors.protocols.nebulafl.messages import CenterBill
from fedactors.runtime.snapshots import Stateful

SECONDS_PER_HOUR = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareType:
    """A type of hardware that centers let."""

    name: str
    """As the catalogue calls it."""
    price: float
    """Dollars an hour."""
    throughput: Mapping[str, float]
    """Samples a second, by model."""
    startup: float = 0.0
    """Seconds from renting a unit until it computes, which are paid."""

    def samples_per_second(self, model: str) -> float:
        """Return the throughput for a model."""
        if model not in self.throughput:
            known = ", ".join(sorted(self.throughput)) or "none"
            raise BadInput(f"catalogue: type {self.name!r} has no throughput for model {model!r} (has: {known})")
        return self.throughput[model]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What each center has to let."""

    types: Mapping[str, HardwareType]
    """Types by name."""
    centers: Mapping[str, Mapping[str, int]]
    """Units of each type, by center, in the order of the file."""
    spread: float
    """Standard deviation of a run time relative to its mean."""
    illustrative: bool
    """Whether the numbers are examples instead of quotations."""

    def like(self, model: str, known: str, times: float) -> Catalogue:
        """Return the catalogue in which a model has a throughput: so many `times` that of a `known` one."""
        types = {
            name: dataclasses.replace(one, throughput={model: one.samples_per_second(known) * times, **one.throughput})
            for name, one in self.types.items()
            if known in one.throughput
        }
        return dataclasses.replace(self, types={**self.types, **types})

    def first_centers(self, num_centers: int) -> tuple[str, ...]:
        """Return the first centers of the file, as many as the run has."""
        if num_centers > len(self.centers):
            raise BadInput(f"num_centers: {num_centers} is more than the {len(self.centers)} centers of the catalogue")
        return tuple(self.centers)[:num_centers]

    def types_of(self, center: str) -> tuple[HardwareType, ...]:
        """Return the types that a center has at least one unit of, in the order of the file."""
        return tuple(self.types[name] for name, count in self.centers[center].items() if count > 0)


class HardwarePool(Stateful):
    """The units of one center: let and returned; each unit has at most one holder."""

    state = ("free",)

    def __init__(self, counts: Mapping[str, int]) -> None:
        if not any(count > 0 for count in counts.values()):
            raise BadInput("catalogue: a center needs at least one unit of some type")
        self.counts = {name: count for name, count in counts.items() if count > 0}
        self.free: dict[str, list[int]] = {name: list(range(count)) for name, count in self.counts.items()}

    def available(self) -> list[str]:
        """Return the types with a free unit, in the order of the catalogue."""
        return [name for name, numbers in self.free.items() if numbers]

    def acquire(self, type_name: str) -> str:
        """Let the free unit of lowest number and return its name, such as ``a100#2``."""
        if not self.free.get(type_name):
            raise ValueError(f"no unit of {type_name!r} is free")
        return f"{type_name}#{heapq.heappop(self.free[type_name])}"

    def release(self, unit: str) -> None:
        """Take a unit back."""
        type_name, _, number = unit.rpartition("#")
        if int(number) in self.free[type_name] or not 0 <= int(number) < self.counts[type_name]:
            raise ValueError(f"unit {unit!r} is not let")
        heapq.heappush(self.free[type_name], int(number))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rental:
    """A unit of hardware that was let and is back."""

    center: str
    """Where."""
    unit: str
    """Type and number, such as ``a100#2``."""
    container: str
    """Who trained on it."""
    start: float
    """Seconds since the run began."""
    end: float
    """Seconds since the run began."""
    price: float
    """Dollars an hour."""
    useful: bool = True
    """False when the training was given up: it is paid all the same."""

    @property
    def seconds(self) -> float:
        """How long it was let."""
        return self.end - self.start

    @property
    def dollars(self) -> float:
        """Price times time."""
        return rent(self.price, self.seconds)


def rent(price: float, seconds: float) -> float:
    """Return the dollars for `seconds` at `price` dollars an hour, by the second, nothing rounded."""
    if seconds < 0:
        raise ValueError(f"a rental of {seconds} seconds")
    return price * seconds / SECONDS_PER_HOUR


class Bill:
    """The log of all rentals of a run."""

    def __init__(self, rentals: Iterable[Rental] = ()) -> None:
        self.rentals = list(rentals)

    def add(self, entry: Rental) -> None:
        """Write an entry."""
        self.rentals.append(entry)

    def take_back(self, center: str, lost: Callable[[int, Rental], bool]) -> None:
        """Count useful rentals of a center as given up, of which `lost` says so by their place among them."""
        useful = [number for number, rental in enumerate(self.rentals) if rental.center == center and rental.useful]
        for index, number in enumerate(useful):
            if lost(index, self.rentals[number]):
                self.rentals[number] = dataclasses.replace(self.rentals[number], useful=False)

    def dollars(self) -> float:
        """Return all money spent: the exact sum over the log, whatever its order."""
        return total(self.rentals)

    def center(self, center: str, num_units: int, duration: float) -> CenterBill:
        """Return the bill of a center with so many units for a run of `duration` seconds."""
        rentals = [rental for rental in self.rentals if rental.center == center]
        busy = math.fsum(rental.seconds for rental in rentals)
        return CenterBill(
            center=center,
            rent=total(rentals),
            busy_hours=busy / SECONDS_PER_HOUR,
            utilisation=busy / (num_units * duration) if num_units * duration > 0 else 0.0,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {"rentals": [dataclasses.astuple(rental) for rental in self.rentals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        names = [field.name for field in dataclasses.fields(Rental)]
        self.rentals = [Rental(**dict(zip(names, values, strict=True))) for values in state["rentals"]]


def total(rentals: Iterable[Rental]) -> float:
    """Return the dollars of some rentals, added without rounding error."""
    return math.fsum(rental.dollars for rental in rentals)


# --- lines between places ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterCenterLink:
    """A line between two places, the same both ways, or one way."""

    ends: tuple[str, str]
    """The places it joins; one way from the first to the second."""
    latency: float
    """Seconds."""
    bandwidth: float
    """Bytes a second."""
    egress_price: float
    """Dollars a byte, paid by the end that sends."""
    one_way: bool = False
    """Whether it leads from the first place to the second only."""


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
        self.graph = nx.DiGraph()
        for link in links:
            self.graph.add_edge(*link.ends, link=link)
            if not link.one_way:
                self.graph.add_edge(*link.ends[::-1], link=link)

    def heavier(self, factor: float) -> InterCenterNetwork:
        """Return the network as it is for messages of `factor` times their bytes."""
        return InterCenterNetwork(
            [
                dataclasses.replace(
                    edge["link"],
                    ends=ends,
                    bandwidth=edge["link"].bandwidth / factor,
                    egress_price=edge["link"].egress_price * factor,
                    one_way=True,
                )
                for *ends, edge in self.graph.edges(data=True)
            ],
            self.hub,
            {
                name: HostCapacity(egress=found.egress / factor, ingress=found.ingress / factor)
                for name, found in self.capacity.items()
            },
        )

    def require(self, centers: Sequence[str]) -> None:
        """Check that every two of `centers` (and the hub) can reach each other."""
        wanted = list(centers) + ([self.hub] if self.hub else [])
        for center in wanted:
            if center not in self.graph and len(wanted) > 1:
                raise BadInput(f"network: center {center!r} has no link (places: {', '.join(sorted(self.graph))})")
        for center in wanted[1:]:
            for ends in ((wanted[0], center), (center, wanted[0])):
                if not nx.has_path(self.graph, *ends):
                    raise BadInput(f"network: center {ends[1]!r} cannot be reached from {ends[0]!r}; add a link")

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
        nodes, hosts = list(centers), {}
        if self.hub is not None and exchange == "exchange":
            hosts[exchange] = self.hub
            nodes.append(self.hub)
        pairs = (pair for both in combinations(dict.fromkeys(nodes), 2) for pair in (both, both[::-1]))
        links = {ends: self.link(*ends, num_bytes) for ends in pairs}
        free = frozenset({CLIENT_SERVER})
        return Network(links=links, by_kind={CLIENT_SERVER: LOCAL}, hosts=hosts, capacity=self.capacity, unshared=free)
