"""Secure aggregation: the server learns the sum of the clients' vectors and nothing about a single one.

After Bonawitz et al. (2017), for an honest-but-curious server:

    client i  --public key-->  server  --all public keys-->  clients          `new_key_pair`, `pair_seeds`
    client i  --x_i + b_i + sum_{j>i} m_ij - sum_{j<i} m_ij-->  server          `masked_vector`
    server    --who arrived-->  arrived clients
    client i  --b_i's seed, and the seeds m_ij of each dropped j-->  server    `reveal`
    server    sum x_i  over those who arrived                                  `unmasked_sum`

Everything is fixed point modulo 2^64, so masks cancel exactly. Pair masks come from an X25519 key agreement, HKDF and
the ChaCha20 stream; the second mask b_i keeps a vector hidden that arrives after its sender was declared dropped.
A client never reveals its own b_i and a pair mask of the same peer, and reveals once per context. If a client drops
between masking and revealing, its b_i is lost: `unmasked_sum` says so, and the round is done again under another
context. A server that tells clients different things about who dropped is outside this threat model.

`SecureSumClient` keeps a client's memory and enforces both; the functions above it are pure. Names order the pairs.
`context` must differ for every vector that is masked: run, attempt (a resumed run is a new one), round, layer.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedactors.errors import FedactorsError

Entropy = Callable[[int], bytes]
"""A source of random bytes: `os.urandom`, or ``generator.bytes`` of a numpy Generator in a test."""
Words = NDArray[np.uint64]

SEED_BYTES = 32


class SecureSumError(FedactorsError):
    """The masks of a round cannot be removed; the message names the clients whose answer is missing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """How real numbers become integers modulo 2^64."""

    fraction_bits: int = 24
    """Bits after the point; the error of a sum of K numbers is at most K 2^-(fraction_bits + 1)."""
    num_clients: int = 2
    """How many vectors are summed at most: it bounds the values, so that no sum wraps around."""

    @property
    def largest(self) -> float:
        """The largest absolute value that a client may send."""
        return float(2.0 ** (62 - self.fraction_bits) / self.num_clients)

    def encode(self, values: NDArray[Any]) -> Words:
        """Return the values as integers modulo 2^64; a value that could overflow the sum is a ValueError."""
        exact = np.asarray(values, dtype=np.float64)
        if not np.all(np.abs(exact) <= self.largest):
            raise ValueError(f"fixed point holds finite values up to {self.largest:.6g}, got {np.abs(exact).max():.6g}")
        return np.rint(exact * 2.0**self.fraction_bits).astype(np.int64).view(np.uint64)

    def decode(self, words: Words) -> NDArray[np.float64]:
        """Return the real numbers that a sum of encodings stands for."""
        return words.view(np.int64).astype(np.float64) / 2.0**self.fraction_bits


@dataclasses.dataclass(frozen=True)
class KeyPair:
    """An X25519 key pair; the private half never leaves its party."""

    private: bytes = dataclasses.field(repr=False)
    public: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reveal:
    """What a client that arrived gives the server so that the masks can be removed."""

    own_seed: bytes
    dropped_seeds: dict[str, bytes]


def new_key_pair(entropy: Entropy = os.urandom) -> KeyPair:
    """Make a key pair from 32 random bytes."""
    private = X25519PrivateKey.from_private_bytes(entropy(SEED_BYTES))
    raw, fmt = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    private_bytes = private.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    return KeyPair(private_bytes, private.public_key().public_bytes(raw, fmt))


def pair_seeds(name: str, keys: KeyPair, public_keys: Mapping[str, bytes], context: bytes) -> dict[str, bytes]:
    """Return, for each peer, the seed that this client and the peer (and nobody else) can derive for `context`."""
    private = X25519PrivateKey.from_private_bytes(keys.private)
    seeds = {}
    for peer in sorted(set(public_keys) - {name}):
        shared = private.exchange(X25519PublicKey.from_public_bytes(public_keys[peer]))
        first, second = sorted((name, peer))
        info = _join(b"fedactors pair mask", first.encode(), second.encode(), context)
        seeds[peer] = HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=info).derive(shared)
    return seeds


def mask_stream(seed: bytes, length: int) -> Words:
    """Return `length` uniform words: the ChaCha20 key stream of `seed`, which must be used for one vector only."""
    encryptor = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def masked_vector(
    values_P: NDArray[Any], name: str, seeds: Mapping[str, bytes], own_seed: bytes, point: FixedPoint
) -> Words:
    """Return the client's vector under its own mask and one mask for each peer (added for later names)."""
    if len(seeds) + 1 > point.num_clients:
        raise ValueError(f"fixed point is set for {point.num_clients} clients, {len(seeds) + 1} take part")
    if not seeds:
        raise ValueError("a secure sum needs at least two clients")
    words: Words = point.encode(values_P) + mask_stream(own_seed, len(values_P))
    for peer in sorted(seeds):
        stream = mask_stream(seeds[peer], len(values_P))
        words = words + stream if name < peer else words - stream
    return words


def reveal(name: str, seeds: Mapping[str, bytes], own_seed: bytes, arrived: Sequence[str]) -> Reveal:
    """Return this client's seeds for the removal of the masks, given whose vectors arrived.

    Raises:
        ValueError: the client itself did not arrive, a stranger did, or fewer than two clients did (their sum would
            be a single vector).
    """
    present = set(arrived)
    if name not in present:
        raise ValueError(f"{name}: its own vector did not arrive, so it must reveal nothing")
    if present - {name} - set(seeds):
        raise ValueError(f"{name}: {sorted(present - {name} - set(seeds))} took no part in the key agreement")
    if len(present) < 2:
        raise ValueError(f"{name}: the sum of one vector would be the vector itself")
    return Reveal(own_seed=own_seed, dropped_seeds={peer: seeds[peer] for peer in sorted(set(seeds) - present)})


def unmasked_sum(
    masked: Mapping[str, Words], reveals: Mapping[str, Reveal], participants: Sequence[str], point: FixedPoint
) -> NDArray[np.float64]:
    """Return the sum of the vectors that arrived, exact to fixed point, in any order of arrival.

    Raises:
        SecureSumError: a client sent its vector but no reveal (do the round again), or fewer than two arrived.
    """
    silent = sorted(set(masked) - set(reveals))
    if silent:
        raise SecureSumError(f"secure sum: no reveal from {', '.join(silent)}; the round must be done again")
    if len(masked) < 2:
        raise SecureSumError(f"secure sum: only {len(masked)} of {len(participants)} vectors arrived")
    dropped = sorted(set(participants) - set(masked))
    total: Words | None = None
    for name in sorted(masked):
        words = masked[name] - mask_stream(reveals[name].own_seed, len(masked[name]))
        for peer in dropped:
            if peer not in reveals[name].dropped_seeds:
                raise SecureSumError(f"secure sum: {name} did not reveal its mask with {peer}, which dropped out")
            stream = mask_stream(reveals[name].dropped_seeds[peer], len(words))
            words = words - stream if name < peer else words + stream
        total = words if total is None else total + words
    return point.decode(total if total is not None else np.zeros(0, dtype=np.uint64))


class SecureSumClient:
    """One client's side with its memory: a context is masked once and revealed once, whatever the server asks."""

    def __init__(self, name: str, point: FixedPoint, entropy: Entropy = os.urandom) -> None:
        self.name = name
        self.point = point
        self._entropy = entropy
        self._keys = new_key_pair(entropy)
        self._public_keys: dict[str, bytes] = {}
        self._own_seeds: dict[bytes, bytes] = {}
        self._used: set[bytes] = set()

    @property
    def public_key(self) -> bytes:
        """The half of the key pair that the server passes on."""
        return self._keys.public

    def agree(self, public_keys: Mapping[str, bytes]) -> None:
        """Accept the public keys of all participants, by name.

        Raises:
            ValueError: this client's own key is missing or altered, or two participants share a key.
        """
        if public_keys.get(self.name) != self._keys.public:
            raise ValueError(f"{self.name}: the participants' keys do not contain its own")
        if len(set(public_keys.values())) != len(public_keys):
            raise ValueError(f"{self.name}: two participants have the same key")
        self._public_keys = dict(public_keys)

    def mask(self, values_P: NDArray[Any], context: bytes) -> Words:
        """Return the masked vector; a context that was masked before is a ValueError (its difference would show)."""
        if context in self._used:
            raise ValueError(f"{self.name}: context {context!r} was used before; every vector needs its own")
        own_seed = self._entropy(SEED_BYTES)
        words = masked_vector(values_P, self.name, self._seeds(context), own_seed, self.point)
        self._used.add(context)
        self._own_seeds[context] = own_seed
        return words

    def reveal(self, context: bytes, arrived: Sequence[str]) -> Reveal:
        """Return the seeds for one context and forget its own; a second request is a ValueError."""
        if context not in self._own_seeds:
            raise ValueError(f"{self.name}: nothing to reveal for context {context!r}: not masked, or revealed before")
        found = reveal(self.name, self._seeds(context), self._own_seeds[context], arrived)
        del self._own_seeds[context]
        return found

    def _seeds(self, context: bytes) -> dict[str, bytes]:
        return pair_seeds(self.name, self._keys, self._public_keys, context)


def _join(*parts: bytes) -> bytes:
    """Concatenate with lengths in front, so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
