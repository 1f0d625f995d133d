"""What secure sums are made of: shares of secrets, fixed-point words, and the graph of who masks with whom.

Shamir's secret sharing (1979) goes byte by byte over GF(256): as many shares as the threshold give all, fewer nothing.
All bytes of all secrets are shared at once, as arrays; a share has the length of the secrets. PyCryptodome's Shamir,
the well-kept library that there is, takes 16 bytes at a time in pure Python: 0.23 s for one secret among 100 holders,
where a client of secure sums has dozens.

Real numbers become integers modulo 2^32 (`FixedPoint`), on a grid so fine that the sum of all still fits. They are
rounded up or down at random, so that their mean is exact: with nearest ones, a server that chooses values on grid
points for all others and at an edge for one client would read from the sum to which side that one's fell. Of a coarse
grid random rounding alone still tells some of it: see `fedactors.secure_sums.actors.COARSEST`. Whole
numbers of several words (`LongIntegers`) are added with their carries, modulo 2^(32 W): digits that were summed each by
itself would tell more than the total, of all signs and of each one's last digits.

Everybody masks with everybody up to `COMPLETE` clients, above that on a sparse random graph (SecAgg+; Bell et al.,
2020, Section 3): a ring of the clients in random order, in which each is a neighbour of the k / 2 next
on either side. `num_neighbours` chooses k for a fifth of the clients who help the server and another fifth who drop
out: with a probability of 1 - 2^-40 each the server gets no threshold of shares of anybody's seed and key, and the
graph of the honest hangs together; with one of 1 - 2^-20 nobody's shares are lacking. The order of the ring follows
from all keys; a helper of the server who makes its keys last can choose among as many orders as it tries.

Shapes: S bytes of secrets, n shares, k shares at hand, W words of a number.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.privacy.noise import LARGEST_SIGMA, SMALLEST_SIGMA

Bytes = NDArray[np.uint8]
MOST_SHARES = 255
"""Places of the field but 0, where the secret lies."""


def _tables() -> tuple[Bytes, NDArray[np.int64]]:
    """Return powers of the generator 3 modulo x^8 + x^4 + x^3 + x + 1, and logarithms.

    The logarithm of 0 points behind all sums of two logarithms, where the table of powers holds 0.
    """
    powers, logs = np.zeros(1025, dtype=np.uint8), np.full(256, 512, dtype=np.int64)
    value = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logs[value] = exponent
        doubled = value << 1
        value ^= doubled ^ (0x11B if doubled & 0x100 else 0)
    return powers, logs


_POWERS, _LOGS = _tables()


def _product(a: Bytes, b: Bytes) -> Bytes:
    product: Bytes = _POWERS[_LOGS[a] + _LOGS[b]]
    return product


def split(secrets_S: Bytes, num_shares: int, threshold: int, entropy: Callable[[int], bytes] = os.urandom) -> Bytes:
    """Return shares (n x S); the share of index p (1 to n) is row p - 1.

    Raises:
        ValueError: a threshold that is no number from 1 to `num_shares`, or more shares than the field has indices.
    """
    if not 1 <= threshold <= num_shares <= MOST_SHARES:
        raise ValueError(f"threshold {threshold} of {num_shares} shares is not allowed: 1 <= threshold <= n <= 255")
    random = np.frombuffer(entropy((threshold - 1) * secrets_S.size), dtype=np.uint8)
    coefficients = np.concatenate([secrets_S[None, :], random.reshape(threshold - 1, secrets_S.size)])
    indices = np.arange(1, num_shares + 1, dtype=np.uint8)[:, None]
    shares = np.zeros((num_shares, secrets_S.size), dtype=np.uint8)
    for coefficient_S in coefficients[::-1]:
        shares = _product(shares, indices) ^ coefficient_S
    return shares


def join(shares_kS: Bytes, indices_k: NDArray[np.integer]) -> Bytes:  # type: ignore[type-arg]
    """Return the secrets (S) from as many shares as the threshold asks for; with fewer, bytes that mean nothing.

    Raises:
        ValueError: no shares, two of one index, or an index that is none.
    """
    indices = np.asarray(indices_k)
    if (
        not len(indices)
        or len(set(indices.tolist())) != len(indices)
        or indices.min() < 1
        or indices.max() > MOST_SHARES
    ):
        raise ValueError(f"indices {indices.tolist()} are not allowed: different numbers from 1 to {MOST_SHARES}")
    x = indices.astype(np.uint8)
    secrets = np.zeros(shares_kS.shape[1], dtype=np.uint8)
    for row, (share_S, point) in enumerate(zip(shares_kS, x, strict=True)):
        others = np.delete(x, row)
        weight = int(_LOGS[others].sum() - _LOGS[others ^ point].sum()) % 255
        secrets ^= _product(share_S, _POWERS[weight])
    return secrets


Words = NDArray[np.uint32]
MOST_COUNTED = 2.0**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """How real numbers become integers modulo 2^32, so that no sum wraps around."""

    limit: float
    """The largest absolute value that a client may send."""
    num_clients: int
    """How many vectors are summed at most."""
    counts: bool = False
    """Whether values are whole numbers, which are rounded to the nearest step."""
    num_words: ClassVar[int] = 1
    """Words of a number, which are added with carries."""

    @property
    def steps_per_unit(self) -> float:
        """Grid steps in 1.0: the finest at which the sum of all clients' largest values fits, a step more for each."""
        return (((1 << 31) - 1) // self.num_clients - 1) / self.limit

    def error(self, num_parts: int) -> float:
        """Return the largest error of a sum of so many numbers: a step each."""
        return num_parts / self.steps_per_unit

    def encode(self, values: NDArray[Any], *, towards_zero: bool = False, drawn: Words | None = None) -> Words:
        """Return the values as integers modulo 2^32.

        Args:
            values: finite numbers.
            towards_zero: cut instead of rounding, so that no vector becomes longer than it is.
            drawn: a uniform word for each value, by which it is rounded up or down; None: to the nearest step.

        Raises:
            ValueError: a value beyond the limit, or none at all.
        """
        exact = np.asarray(values, dtype=np.float64)
        if not np.all(np.abs(exact) <= self.limit):
            # not which value: the values may be hidden from the reader of this error
            raise ValueError(f"a value is not allowed: secure sums are set to values up to {self.limit:g}")
        scaled = exact * self.steps_per_unit
        if towards_zero:
            whole = np.trunc(scaled)
        elif drawn is None or self.counts:
            whole = np.rint(scaled)
        else:
            whole = np.floor(scaled + drawn * 2.0**-32)
        return whole.astype(np.int64).astype(np.uint32)

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongIntegers(FixedPoint):
    """Words of whole numbers, the lowest first: as many for each as it has; what is below 0 is counted from 2^(32 W).

    A sum has the words of the total, and these tell no more of the parts.
    """

    limit: float = 2.0**32 - 1
    num_words: ClassVar[int] = 9

    def encode(self, values: NDArray[Any], *, towards_zero: bool = False, drawn: Words | None = None) -> Words:
        """Return the words, which are whole numbers already."""
        return np.asarray(values).astype(np.uint32)

    def decode(self, words: Words) -> NDArray[np.float64]:
        """Return the words as numbers."""
        return words.astype(np.float64)


def plus(some: Words, others: Words, num_words: int) -> Words:
    """Return sums of numbers of so many words each, modulo 2^(32 W)."""
    if num_words == 1:
        return some + others
    wide = some.reshape(-1, num_words).astype(np.uint64) + others.reshape(-1, num_words)
    for word in range(1, num_words):
        wide[:, word] += wide[:, word - 1] >> np.uint64(32)
    return wide.astype(np.uint32).reshape(-1)


def minus(some: Words, others: Words, num_words: int) -> Words:
    """Return differences of numbers of so many words each, modulo 2^(32 W)."""
    if num_words == 1:
        return some - others
    one = np.zeros_like(others).reshape(-1, num_words)
    one[:, 0] = 1
    return plus(plus(some, ~others, num_words), one.reshape(-1), num_words)


def count_point(num_clients: int) -> FixedPoint:
    """Return how counts up to `MOST_COUNTED` become words; each is off by half a step at most, M / 256 of M clients."""
    return FixedPoint(limit=MOST_COUNTED, num_clients=num_clients, counts=True)


COMPLETE = 20
"""Clients up to which each shares masks with all others."""
CORRUPT_SHARE = DROPPED_SHARE = 0.2
SECURITY_BITS, CORRECTNESS_BITS = 40, 20


FEWEST = 3
"""A sum of two tells each of them the other's value."""


def threshold_of(num_clients: int) -> int:
    """Return how many must take part, and confirm who is left: more than half and at least three.

    In the graph above `COMPLETE` clients more than three fifths, so that two sets of survivors can both be confirmed
    only with the help of a fifth of the clients.
    """
    return max(FEWEST, num_clients // 2 + 1) if num_clients <= COMPLETE else num_clients * 3 // 5 + 1


@functools.lru_cache(maxsize=64)
def num_neighbours(num_clients: int) -> int:
    """Return k, even; one less than the clients where no smaller number is good enough."""
    if num_clients <= COMPLETE:
        return num_clients - 1
    from scipy.stats import hypergeom

    others, corrupt = num_clients - 1, math.ceil(CORRUPT_SHARE * num_clients)
    staying = others - math.ceil(DROPPED_SHARE * num_clients)
    for k in range(4, others, 2):
        threshold = (k + 1) // 2 + 1
        stolen = num_clients * hypergeom.sf(threshold - 1, others, corrupt, k)
        missing = num_clients * hypergeom.cdf(threshold - 1, others, staying, k)
        cut = num_clients * (CORRUPT_SHARE + DROPPED_SHARE) ** (k // 2)
        if max(stolen, cut) < 2.0**-SECURITY_BITS and missing < 2.0**-CORRECTNESS_BITS:
            return k
    return others


def neighbour_graph(names: Sequence[str], seed: bytes) -> dict[str, set[str]]:
    """Return each client's neighbours; `seed` decides the order on the ring, so that all derive one graph from it."""
    count, k = len(names), num_neighbours(len(names))
    if k >= count - 1:
        return {name: set(names) - {name} for name in names}
    order = np.random.default_rng(int.from_bytes(seed, "big")).permutation(count)
    ring = [sorted(names)[index] for index in order]
    steps = [step for step in range(-k // 2, k // 2 + 1) if step]
    return {name: {ring[(index + step) % count] for step in steps} for index, name in enumerate(ring)}
