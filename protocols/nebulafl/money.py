"""Money and hardware hours: every dollar is an entry of a log, and every total is a sum over that log."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

SECONDS_PER_HOUR = 3600.0


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Egress:
    """A model that left a center."""

    center: str
    """Who sent and pays it."""
    receiver: str
    """Who got it."""
    num_bytes: int
    """Size of the model."""
    time: float
    """When it was sent, in seconds since the run began."""
    dollars: float
    """Egress price over the links passed."""


def rent(price: float, seconds: float) -> float:
    """Return the dollars for `seconds` at `price` dollars an hour, by the second, nothing rounded."""
    if seconds < 0:
        raise ValueError(f"a rental of {seconds} seconds")
    return price * seconds / SECONDS_PER_HOUR


@dataclasses.dataclass(frozen=True)
class CenterBill:
    """What one center spent and how busy its hardware was."""

    rent: float
    """Dollars for hardware."""
    egress: float
    """Dollars for what it sent."""
    busy_hours: float
    """Hours that its units were let, added up."""
    utilisation: float
    """Share of the unit hours of the run that were let."""

    @property
    def dollars(self) -> float:
        """Everything."""
        return self.rent + self.egress


class Bill:
    """The log of all rentals and transfers of a run."""

    def __init__(self) -> None:
        self.rentals: list[Rental] = []
        self.transfers: list[Egress] = []

    def add(self, entry: Rental | Egress) -> None:
        """Write an entry."""
        if isinstance(entry, Rental):
            self.rentals.append(entry)
        else:
            self.transfers.append(entry)

    def dollars(self) -> float:
        """Return all money spent: the exact sum over the log, whatever its order."""
        return total(self.rentals, self.transfers)

    def num_bytes(self) -> int:
        """Return all bytes sent between centers."""
        return sum(transfer.num_bytes for transfer in self.transfers)

    def centers(self, units: Mapping[str, int], duration: float) -> dict[str, CenterBill]:
        """Return the bill of each center of `units` (number of its units) for a run of `duration` seconds."""
        bills = {}
        for center, count in units.items():
            rentals = [rental for rental in self.rentals if rental.center == center]
            transfers = [transfer for transfer in self.transfers if transfer.center == center]
            busy = math.fsum(rental.seconds for rental in rentals)
            bills[center] = CenterBill(
                rent=total(rentals, ()),
                egress=total((), transfers),
                busy_hours=busy / SECONDS_PER_HOUR,
                utilisation=busy / (count * duration) if count * duration > 0 else 0.0,
            )
        return bills

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "rentals": [dataclasses.asdict(rental) for rental in self.rentals],
            "transfers": [dataclasses.asdict(transfer) for transfer in self.transfers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.rentals = [Rental(**values) for values in state["rentals"]]
        self.transfers = [Egress(**values) for values in state["transfers"]]


def total(rentals: Iterable[Rental], transfers: Iterable[Egress]) -> float:
    """Return the dollars of some entries, added without rounding error."""
    return math.fsum([rental.dollars for rental in rentals] + [transfer.dollars for transfer in transfers])
