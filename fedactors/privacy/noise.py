"""Noise: its distributions, how each hides a value, and the one place through which every noised value passes.

Every mechanism returns ``released(exact, law, draw)``. In a run that nobody audits this is ``draw()``. An audit
(`fedactors.auditing.replay`) keeps exact value and release of one run, and in a second run, in which one record is
another, measures how far the exact value has moved in units of the noise, while the party goes on from the release of
the first run. So whatever follows from releases alone is the same in both, and anything else that leaves a party and
differs has left without noise. A protocol that draws noise of its own, or hides values behind masks, calls `released`
itself: ``exact`` is what the party puts in, ``law`` the noise on what others learn of it (of the sum, say), ``draw``
makes what leaves.

The discrete Gaussian and Laplace are drawn exactly from random bytes in whole numbers (Canonne, Kamath, Steinke, 2020,
Algorithms 1 to 3 on whole arrays): P(x) is proportional to exp(-x^2 / (2 sigma^2)), and to exp(-|x| / scale). No
floating-point number is involved, so no attack on its grid (Mironov, 2012) is possible. Gaussian values beyond 20
sigma, which occur with a probability below 2^-280, are drawn again so that 64 bits suffice.

Sums of M independent draws of deviation s are as good as one of deviation s sqrt(M): they differ by less than
``10 (M - 1) exp(-pi^2 s^2)`` (Kairouz, Liu and Steinke, 2021, Theorem 1), which is nothing at `SMALLEST_SIGMA`.
"""

from __future__ import annotations

import contextlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Array = NDArray[Any]


class Law(Protocol):
    """How noise hides an exact value."""

    def mu(self, one: Array, other: Array) -> float:
        """Return the Gaussian-DP parameter at which a release of `one` is told from a release of `other`."""

    def epsilon(self, one: Array, other: Array) -> float:
        """Return the largest log likelihood ratio of a release of `one` to one of `other`; inf if it is unbounded."""


@dataclass(frozen=True)
class Gaussian:
    """Independent N(0, sigma^2) on every number.

    Args:
        sigma: standard deviation; 0 hides nothing.
        sample_rate: probability with which a record takes part, if nobody who sees the release knows who did.
    """

    sigma: float
    sample_rate: float = 1.0

    def mu(self, one: Array, other: Array) -> float:
        """Return the L2 distance over sigma."""
        distance = float(np.linalg.norm(np.asarray(one, np.float64) - np.asarray(other, np.float64)))
        if distance == 0:
            return 0.0
        return distance / self.sigma if self.sigma > 0 and math.isfinite(distance) else math.inf

    def epsilon(self, one: Array, other: Array) -> float:
        """Return 0 or inf: a Gaussian tail bounds no ratio."""
        return 0.0 if self.mu(one, other) == 0 else math.inf


class _Pure(ABC):
    """Noise whose likelihood ratios are bounded."""

    @abstractmethod
    def epsilon(self, one: Array, other: Array) -> float:
        """See `Law`."""

    def mu(self, one: Array, other: Array) -> float:
        """Return `mu_of_epsilon` of the ratio."""
        return mu_of_epsilon(self.epsilon(one, other))


@dataclass(frozen=True)
class Laplace(_Pure):
    """Independent Laplace noise of standard deviation `deviation` on every number."""

    deviation: float

    def epsilon(self, one: Array, other: Array) -> float:
        """Return the L1 distance over the scale, ``deviation / sqrt(2)``."""
        distance = float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).sum())
        if distance == 0:
            return 0.0
        return distance * math.sqrt(2) / self.deviation if self.deviation > 0 else math.inf


@dataclass(frozen=True)
class RandomisedResponse(_Pure):
    """Each value is kept with probability ``e^eps / (e^eps + k - 1)``, else another of the `k` is drawn evenly."""

    per_value: float
    """Epsilon of one value."""

    def epsilon(self, one: Array, other: Array) -> float:
        """Return epsilon for each value that differs."""
        return self.per_value * int(np.sum(np.asarray(one) != np.asarray(other)))


def mu_of_epsilon(epsilon: float) -> float:
    """Return the smallest mu such that every epsilon-DP mechanism is mu-GDP, ``2 quantile(e^eps / (1 + e^eps))``.

    The trade-off function of epsilon-DP is the polygon through (1/(1+e^eps), 1/(1+e^eps)); a convex curve that passes
    through this point, as that of mu-GDP does, lies below it (Dong, Roth and Su, 2022, Sections 2 and 3).
    """
    from scipy.special import log_ndtr, ndtri

    if epsilon == 0:
        return 0.0
    if math.isinf(epsilon):
        return math.inf
    if epsilon < 30:
        return 2 * float(-ndtri(1 / (1 + math.exp(epsilon))))
    low, high = 0.0, 2 * math.sqrt(2 * epsilon) + 2  # log(1 / (1 + e^eps)) is -eps here, in double precision
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if float(log_ndtr(-middle / 2)) > -epsilon else (low, middle)
    return high


Observer = Callable[[Any, Law, Callable[[], Any], str], Any]
_observer: Observer | None = None


def released(exact: Any, law: Law, draw: Callable[[], T], name: str = "") -> T:
    """Return what leaves, ``draw()``, unless an audit listens.

    Args:
        exact: what a record may move: the value before noise, or what the party puts into a masked sum.
        law: the noise on what others learn of it.
        draw: makes the release.
        name: of the release, in an audit's report.
    """
    if _observer is None:
        return draw()
    found: T = _observer(exact, law, draw, name)
    return found


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let an audit hear of every release of this process."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before


Entropy = Callable[[int], bytes]
Integers = NDArray[np.int64]
SMALLEST_SIGMA = 256
"""Below it a secure sum refuses to add noise: its account counts the sum as one Gaussian."""
LARGEST_SIGMA = 1 << 27
_FARTHEST = 20
_BLOCK = 1 << 16


def discrete_gaussian(sigma: int, count: int, entropy: Entropy = os.urandom) -> Integers:
    """Return `count` independent draws of deviation `sigma`, a whole number of grid steps.

    Raises:
        ValueError: sigma is no whole number from 1 to `LARGEST_SIGMA`.
    """
    _check_steps("sigma", sigma)

    def draw(most: int) -> Integers:
        drawn = _discrete_laplace(sigma, most, entropy)
        far = np.abs(np.abs(drawn) - sigma)
        near = far <= (_FARTHEST - 1) * sigma
        drawn, far = drawn[near], far[near]
        kept: Integers = drawn[_bernoulli_exp(far * far, 2 * sigma * sigma, entropy)]
        return kept

    return _until(count, draw)


def discrete_laplace(scale: int, count: int, entropy: Entropy = os.urandom) -> Integers:
    """Return `count` independent draws of scale `scale`, a whole number of grid steps.

    Raises:
        ValueError: the scale is no whole number from 1 to `LARGEST_SIGMA`.
    """
    _check_steps("scale", scale)
    return _until(count, lambda most: _discrete_laplace(scale, most, entropy))


def _check_steps(name: str, steps: Any) -> None:
    if not (isinstance(steps, int) and 1 <= steps <= LARGEST_SIGMA):
        raise ValueError(f"{name} {steps!r} is not allowed: a whole number of steps from 1 to {LARGEST_SIGMA}")


def _until(count: int, draw: Callable[[int], Integers]) -> Integers:
    """Draw, each time up to so many, until there are `count`."""
    parts = [np.zeros(0, dtype=np.int64)]
    while (missing := count - sum(map(len, parts))) > 0:
        parts.append(draw(min(2 * missing + 16, _BLOCK))[:missing])
    return np.concatenate(parts)


def _discrete_laplace(scale: int, count: int, entropy: Entropy) -> Integers:
    """Return about half of `count` draws with P(x) proportional to exp(-|x| / scale) (Algorithm 2)."""
    part = _below(np.full(count, scale), entropy)
    part = part[_bernoulli_exp(part, scale, entropy)]
    times = np.zeros(len(part), dtype=np.int64)
    going = np.arange(len(part))
    while len(going):
        going = going[_bernoulli_exp_of_one(len(going), entropy)]
        times[going] += 1
    size = part + scale * times
    negative = _bits(len(size), entropy)
    kept = ~(negative & (size == 0))
    signed: Integers = np.where(negative, -size, size)[kept]
    return signed


def _bernoulli_exp(numerator: Integers, denominator: int, entropy: Entropy) -> NDArray[np.bool_]:
    """Return draws that are true with probability exp(-numerator / denominator), exactly (Algorithm 1)."""
    whole, rest = np.divmod(numerator, denominator)
    alive = _bernoulli_exp_below_one(rest, denominator, entropy)
    turn = 0
    while len(going := np.flatnonzero(alive & (whole > turn))):
        alive[going] = _bernoulli_exp_of_one(len(going), entropy)
        turn += 1
    return alive


def _bernoulli_exp_of_one(count: int, entropy: Entropy) -> NDArray[np.bool_]:
    return _bernoulli_exp_below_one(np.ones(count, dtype=np.int64), 1, entropy)


def _bernoulli_exp_below_one(numerator: Integers, denominator: int, entropy: Entropy) -> NDArray[np.bool_]:
    """For ratios from 0 to 1: draw Bernoulli(ratio / k) for k = 1, 2, ... until one is false; true if k is odd then."""
    odd = np.zeros(len(numerator), dtype=bool)
    going, k = np.arange(len(numerator)), 1
    while len(going):
        hit = _below(np.full(len(going), denominator * k), entropy) < numerator[going]
        odd[going[~hit]] = k % 2 == 1
        going, k = going[hit], k + 1
    return odd


def _below(bounds: Integers, entropy: Entropy) -> Integers:
    """Return uniform whole numbers from 0 to below each bound; bits that would favour some are drawn again."""
    found = np.zeros(len(bounds), dtype=np.int64)
    going = np.arange(len(bounds))
    while len(going):
        words = np.frombuffer(entropy(8 * len(going)), dtype="<u8").astype(np.uint64) >> np.uint64(1)
        bound = bounds[going].astype(np.uint64)
        fair = words < (np.uint64(1 << 63) // bound) * bound
        found[going[fair]] = (words[fair] % bound[fair]).astype(np.int64)
        going = going[~fair]
    return found


def _bits(count: int, entropy: Entropy) -> NDArray[np.bool_]:
    return (np.frombuffer(entropy(count), dtype=np.uint8) & 1).astype(bool)
