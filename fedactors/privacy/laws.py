"""The laws of noise, and the one place through which every noised value passes: what audits listen to.

Every mechanism of the frame returns ``released(exact, law, draw)``. In a run that nobody audits this is ``draw()``. An
audit (`fedactors.privacy.replay`) keeps exact value and release of one run, and in a second run, in which one record is
another, measures how far the exact value has moved in units of the noise, while the party goes on from the release of
the first run. So whatever follows from releases alone is the same in both, and anything else that leaves a party and
differs has left without noise. A protocol that draws noise of its own, or hides values behind masks, calls `released`
itself: ``exact`` is what the party puts in, ``law`` the noise on what others learn of it (of the sum, say), ``draw``
makes what leaves.
"""

from __future__ import annotations

import contextlib
import math
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


@dataclass(frozen=True)
class Laplace:
    """Independent Laplace noise of standard deviation `deviation` on every number."""

    deviation: float

    def epsilon(self, one: Array, other: Array) -> float:
        """Return the L1 distance over the scale, ``deviation / sqrt(2)``."""
        distance = float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).sum())
        if distance == 0:
            return 0.0
        return distance * math.sqrt(2) / self.deviation if self.deviation > 0 else math.inf

    def mu(self, one: Array, other: Array) -> float:
        """Return `mu_of_epsilon` of the ratio."""
        return mu_of_epsilon(self.epsilon(one, other))


@dataclass(frozen=True)
class RandomisedResponse:
    """Each value is kept with probability ``e^eps / (e^eps + k - 1)``, else another of the `k` is drawn evenly."""

    per_value: float
    """Epsilon of one value."""

    def epsilon(self, one: Array, other: Array) -> float:
        """Return epsilon for each value that differs."""
        return self.per_value * int(np.sum(np.asarray(one) != np.asarray(other)))

    def mu(self, one: Array, other: Array) -> float:
        """Return `mu_of_epsilon` of the ratio."""
        return mu_of_epsilon(self.epsilon(one, other))


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
