"""The discrete Gaussian and Laplace, drawn exactly from random bytes in whole numbers (Canonne, Kamath, Steinke, 2020).

P(x) is proportional to exp(-x^2 / (2 sigma^2)), and to exp(-|x| / scale), on the integers. No floating-point number is
involved, so no attack on its grid (Mironov, 2012) is possible. Algorithms 1 to 3 of the paper, on whole arrays;
Gaussian values beyond 20 sigma, which occur with a probability below 2^-280, are drawn again so that 64 bits suffice.

Sums of M independent draws of deviation s are as good as one of deviation s sqrt(M): they differ by less than
``10 (M - 1) exp(-pi^2 s^2)`` (Kairouz, Liu and Steinke, 2021, Theorem 1), which is nothing at `SMALLEST_SIGMA`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
    if not (isinstance(sigma, int) and 1 <= sigma <= LARGEST_SIGMA):
        raise ValueError(f"sigma {sigma!r} is not allowed: a whole number of steps from 1 to {LARGEST_SIGMA}")
    parts: list[Integers] = []
    missing = count
    while missing > 0:
        drawn = _discrete_laplace(sigma, min(2 * missing + 16, _BLOCK), entropy)
        far = np.abs(np.abs(drawn) - sigma)
        near = far <= (_FARTHEST - 1) * sigma
        drawn, far = drawn[near], far[near]
        kept = drawn[_bernoulli_exp(far * far, 2 * sigma * sigma, entropy)][:missing]
        parts.append(kept)
        missing -= len(kept)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def discrete_laplace(scale: int, count: int, entropy: Entropy = os.urandom) -> Integers:
    """Return `count` independent draws of scale `scale`, a whole number of grid steps.

    Raises:
        ValueError: the scale is no whole number from 1 to `LARGEST_SIGMA`.
    """
    if not (isinstance(scale, int) and 1 <= scale <= LARGEST_SIGMA):
        raise ValueError(f"scale {scale!r} is not allowed: a whole number of steps from 1 to {LARGEST_SIGMA}")
    parts: list[Integers] = []
    missing = count
    while missing > 0:
        kept = _discrete_laplace(scale, min(2 * missing + 16, _BLOCK), entropy)[:missing]
        parts.append(kept)
        missing -= len(kept)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


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
