"""Hardware for rent: what it costs, how fast it is, which unit a container gets, and that none is let twice.

Shapes: R hardware types of a center.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput

Numbers = NDArray[np.float64]
ResourcePolicy = Literal["nebulafl", "random", "cheapest", "fastest"]
LEAST_FACTOR = 0.1
"""Smallest factor of a drawn run time, so that a wide normal distribution never gives a time of zero or less."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareType:
    """A type of hardware that centers let."""

    name: str
    """As the catalogue calls it."""
    price: float
    """Dollars an hour."""
    throughput: Mapping[str, float]
    """Samples a second, by model."""

    def samples_per_second(self, model: str) -> float:
        """Return the throughput for a model.

        Raises:
            BadInput: the catalogue has none; the time is then unknown, never zero.
        """
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

    def first_centers(self, num_centers: int) -> tuple[str, ...]:
        """Return the first centers of the file, as many as the run has."""
        if num_centers > len(self.centers):
            raise BadInput(f"num_centers: {num_centers} is more than the {len(self.centers)} centers of the catalogue")
        return tuple(self.centers)[:num_centers]

    def types_of(self, center: str) -> tuple[HardwareType, ...]:
        """Return the types that a center has at least one unit of, in the order of the file."""
        return tuple(self.types[name] for name, count in self.centers[center].items() if count > 0)


def predicted_time(num_samples: int, num_epochs: int, samples_per_second: float) -> float:
    """Return the seconds of a run that was never measured: samples * epochs / throughput (cold start of RTime)."""
    return num_samples * num_epochs / samples_per_second


def predicted_times(sizes: Sequence[int], num_epochs: int, types: Sequence[HardwareType], model: str) -> Numbers:
    """Return `predicted_time` for each type and container, shape (R, C)."""
    speeds_R = np.array([hardware.samples_per_second(model) for hardware in types])
    times_RC: Numbers = np.asarray(sizes, dtype=np.float64)[None, :] * num_epochs / speeds_R[:, None]
    return times_RC


def run_time(mean: float, spread: float, generator: np.random.Generator) -> float:
    """Return the seconds of one run, drawn from N(mean, (spread * mean)^2), at least a tenth of the mean."""
    return mean * max(LEAST_FACTOR, generator.normal(1.0, spread))


def cost_factors(prices_R: Numbers) -> Numbers:
    """Return F_cost = (price - mean price) / max price over the available types (Equation 8)."""
    dearest = prices_R.max()
    return np.asarray((prices_R - prices_R.mean()) / dearest) if dearest > 0 else np.zeros_like(prices_R)


def time_factors(times_R: Numbers, gap: float, *, paper_literal: bool = False) -> Numbers:
    """Return F_time = -(RTime - mean RTime) / max RTime * dv over the available types (Equation 9).

    The print lacks the minus, so that the least sum would give slow hardware to planets that lag, against the
    text; `paper_literal` keeps it.
    """
    factors_R: Numbers = (times_R - times_R.mean()) / times_R.max() * gap
    return factors_R if paper_literal else -factors_R


def assign(
    prices_R: Numbers,
    times_R: Numbers,
    gap: float,
    *,
    use_cost: bool = True,
    use_time: bool = True,
    paper_literal: bool = False,
) -> int:
    """Return the type with the least F_cost + F_time (ResAssign); the cheaper, then the first, at a tie.

    Args:
        prices_R: dollars an hour of the available types.
        times_R: RTime of the container on them, in seconds.
        gap: version gap of the planet.
        use_cost: count F_cost.
        use_time: count F_time.
        paper_literal: keep the printed sign of F_time.
    """
    sums_R = np.zeros(len(prices_R))
    if use_cost:
        sums_R += cost_factors(prices_R)
    if use_time:
        sums_R += time_factors(times_R, gap, paper_literal=paper_literal)
    return int(np.lexsort((prices_R, sums_R.round(12)))[0])


def choose_type(
    policy: ResourcePolicy,
    prices_R: Numbers,
    times_R: Numbers,
    gap: float,
    uniform: float,
    *,
    use_cost: bool = True,
    use_time: bool = True,
    paper_literal: bool = False,
) -> int:
    """Return the available type that a policy takes; `uniform` in [0, 1) decides for ``random``."""
    if policy == "random":
        return min(int(uniform * len(prices_R)), len(prices_R) - 1)
    if policy == "cheapest":
        return int(np.lexsort((times_R, prices_R))[0])
    if policy == "fastest":
        return int(np.lexsort((prices_R, times_R))[0])
    return assign(prices_R, times_R, gap, use_cost=use_cost, use_time=use_time, paper_literal=paper_literal)


@dataclasses.dataclass(frozen=True)
class Lease:
    """A unit that is let now."""

    unit: str
    """Type and number, such as ``a100#2``."""
    type_name: str
    """Its type."""
    holder: str
    """Who trains on it."""
    start: float
    """Seconds since the run began."""


class ResourcePool:
    """The units of one center: let, returned, waited for; each unit has at most one holder.

    Waiting is first come, first served, by key; the pool only remembers the order.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        if not any(count > 0 for count in counts.values()):
            raise BadInput("catalogue: a center needs at least one unit of some type")
        self.counts = {name: count for name, count in counts.items() if count > 0}
        self.free: dict[str, list[int]] = {name: list(range(count)) for name, count in self.counts.items()}
        self.leases: dict[str, Lease] = {}
        self.waiting: list[str] = []

    def available(self) -> list[str]:
        """Return the types with a free unit, in the order of the catalogue."""
        return [name for name, numbers in self.free.items() if numbers]

    def acquire(self, type_name: str, holder: str, now: float) -> Lease:
        """Let the free unit of lowest number; letting what is not free is a ValueError."""
        if not self.free.get(type_name):
            raise ValueError(f"no unit of {type_name!r} is free")
        number = heapq.heappop(self.free[type_name])
        lease = Lease(f"{type_name}#{number}", type_name, holder, now)
        self.leases[lease.unit] = lease
        return lease

    def release(self, unit: str) -> Lease:
        """Take a unit back and return the lease that ends; returning what is not let is a ValueError."""
        if unit not in self.leases:
            raise ValueError(f"unit {unit!r} is not let")
        lease = self.leases.pop(unit)
        heapq.heappush(self.free[lease.type_name], int(unit.rpartition("#")[2]))
        return lease

    def wait(self, key: str) -> None:
        """Put a key at the end of the queue, once."""
        if key not in self.waiting:
            self.waiting.append(key)

    def next_waiting(self) -> str | None:
        """Take the first of the queue out if some unit is free."""
        return self.waiting.pop(0) if self.waiting and self.available() else None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "free": {name: sorted(numbers) for name, numbers in self.free.items()},
            "leases": [dataclasses.astuple(lease) for lease in self.leases.values()],
            "waiting": list(self.waiting),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.free = {name: list(numbers) for name, numbers in state["free"].items()}
        self.leases = {values[0]: Lease(*values) for values in state["leases"]}
        self.waiting = list(state["waiting"])
