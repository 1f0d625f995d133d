"""Shamir's secret sharing (1979), byte by byte over GF(256): as many shares as the threshold give all, fewer nothing.

All bytes of all secrets are shared at once, as arrays; a share has the length of the secrets. PyCryptodome's Shamir,
the well-kept library that there is, takes 16 bytes at a time in pure Python: 0.23 s for one secret among 100 holders,
where a client of secure sums has dozens.

Shapes: S bytes of secrets, n shares, k shares at hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
    """Return shares (n x S); the share at place p (1 to n) is row p - 1.

    Raises:
        ValueError: a threshold that is no number from 1 to `num_shares`, or more shares than the field has places.
    """
    if not 1 <= threshold <= num_shares <= MOST_SHARES:
        raise ValueError(f"threshold {threshold} of {num_shares} shares is not allowed: 1 <= threshold <= n <= 255")
    random = np.frombuffer(entropy((threshold - 1) * secrets_S.size), dtype=np.uint8)
    coefficients = np.concatenate([secrets_S[None, :], random.reshape(threshold - 1, secrets_S.size)])
    places = np.arange(1, num_shares + 1, dtype=np.uint8)[:, None]
    shares = np.zeros((num_shares, secrets_S.size), dtype=np.uint8)
    for coefficient_S in coefficients[::-1]:
        shares = _product(shares, places) ^ coefficient_S
    return shares


def join(shares_kS: Bytes, places_k: NDArray[np.integer]) -> Bytes:  # type: ignore[type-arg]
    """Return the secrets (S) from as many shares as the threshold asks for; with fewer, bytes that mean nothing.

    Raises:
        ValueError: no shares, two of one place, or a place that is none.
    """
    places = np.asarray(places_k)
    if not len(places) or len(set(places.tolist())) != len(places) or places.min() < 1 or places.max() > MOST_SHARES:
        raise ValueError(f"places {places.tolist()} are not allowed: different numbers from 1 to {MOST_SHARES}")
    x = places.astype(np.uint8)
    secrets = np.zeros(shares_kS.shape[1], dtype=np.uint8)
    for row, (share_S, own) in enumerate(zip(shares_kS, x, strict=True)):
        others = np.delete(x, row)
        weight = int(_LOGS[others].sum() - _LOGS[others ^ own].sum()) % 255
        secrets ^= _product(share_S, _POWERS[weight])
    return secrets
