"""Real numbers as integers modulo 2^32, for secure sums: what the grid is, and how far a sum is off."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.privacy.discrete_gaussian import LARGEST_SIGMA, SMALLEST_SIGMA

Words = NDArray[np.uint32]
MOST_COUNTED = 2.0**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """How real numbers become integers modulo 2^32, so that no sum wraps around."""

    limit: float
    """The largest absolute value that a client may send."""
    num_clients: int
    """How many vectors are summed at most."""

    @property
    def steps_per_unit(self) -> float:
        """Grid steps in 1.0: the finest at which the sum of all clients' largest values fits."""
        return ((1 << 31) - 1) // self.num_clients / self.limit

    def error(self, num_parts: int) -> float:
        """Return the largest error of a sum of so many numbers: half a step each."""
        return 0.5 * num_parts / self.steps_per_unit

    def encode(self, values: NDArray[Any], *, towards_zero: bool = False) -> Words:
        """Return the values as integers modulo 2^32.

        Args:
            values: finite numbers.
            towards_zero: cut instead of rounding, so that no vector becomes longer than it is.

        Raises:
            ValueError: a value beyond the limit, or none at all.
        """
        exact = np.asarray(values, dtype=np.float64)
        if not np.all(np.abs(exact) <= self.limit):
            # not which value: whoever is told of the failure may be the one from whom the values are hidden
            raise ValueError(f"a value is not allowed: secure sums are set to values up to {self.limit:g}")
        scaled = exact * self.steps_per_unit
        return (np.trunc(scaled) if towards_zero else np.rint(scaled)).astype(np.int64).astype(np.uint32)

    def decode(self, words: Words) -> NDArray[np.float64]:
        """Return the real numbers that a sum of encodings stands for."""
        return words.view(np.int32).astype(np.float64) / self.steps_per_unit

    def noise_steps(self, sigma: float) -> int:
        """Return a noise deviation in whole steps, rounded up.

        Raises:
            ValueError: it is too small for the grid, or so large that noise would wrap around.
        """
        steps = int(np.ceil(sigma * self.steps_per_unit))
        if not SMALLEST_SIGMA <= steps <= LARGEST_SIGMA or sigma * 8 > self.limit * self.num_clients:
            raise ValueError(f"noise of deviation {sigma:g} does not fit a grid of limit {self.limit:g}")
        return steps


def count_point(num_clients: int) -> FixedPoint:
    """Return how counts up to `MOST_COUNTED` become words; of fewer than 64 clients whole numbers come out exactly."""
    return FixedPoint(limit=MOST_COUNTED, num_clients=num_clients)
