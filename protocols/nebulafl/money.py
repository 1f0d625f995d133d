"""Money for hardware and its hours: every rental is an entry of a log, and every total is a sum over that log.

Egress between centers is not here: the traffic ledger holds what was sent, and the network its price.
"""

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


def rent(price: float, seconds: float) -> float:
    """Return the dollars for `seconds` at `price` dollars an hour, by the second, nothing rounded."""
    if seconds < 0:
        raise ValueError(f"a rental of {seconds} seconds")
    return price * seconds / SECONDS_PER_HOUR


@dataclasses.dataclass(frozen=True)
class CenterBill:
    """What one center's hardware cost and how busy it was."""

    rent: float
    """Dollars for hardware."""
    busy_hours: float
    """Hours that its units were let, added up."""
    utilisation: float
    """Share of the unit hours of the run that were let."""


class Bill:
    """The log of all rentals of a run."""

    def __init__(self) -> None:
        self.rentals: list[Rental] = []

    def add(self, entry: Rental) -> None:
        """Write an entry."""
        self.rentals.append(entry)

    def dollars(self) -> float:
        """Return all money spent: the exact sum over the log, whatever its order."""
        return total(self.rentals)

    def centers(self, units: Mapping[str, int], duration: float) -> dict[str, CenterBill]:
        """Return the bill of each center of `units` (number of its units) for a run of `duration` seconds."""
        bills = {}
        for center, count in units.items():
            rentals = [rental for rental in self.rentals if rental.center == center]
            busy = math.fsum(rental.seconds for rental in rentals)
            bills[center] = CenterBill(
                rent=total(rentals),
                busy_hours=busy / SECONDS_PER_HOUR,
                utilisation=busy / (count * duration) if count * duration > 0 else 0.0,
            )
        return bills

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
