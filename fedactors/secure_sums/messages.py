"""What travels in a secure sum, the keys, and what all its members know; see `fedactors.secure_sums.protocol`.

Shapes: P numbers of a vector, K sums prepared at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedactors.messages.codec import message
from fedactors.secure_sums.primitives import FEWEST, FixedPoint, Words, neighbour_graph

Entropy = Callable[[int], bytes]
"""A source of random bytes: `os.urandom`, or ``generator.bytes`` of a numpy Generator in a test."""
Bytes = NDArray[np.uint8]

SEED_BYTES = 32


def parties_of(clients: Iterable[str]) -> frozenset[str]:
    """Return the organisations of clients: those of one organisation count as one."""
    return frozenset(name.partition("/")[0] for name in clients)


# --- what travels ---


@message(reveals="nothing about data: which sums are prepared, and among whom")
class SumCall:
    """The server calls for fresh keys; `number` grows with each call."""

    number: int
    num_sums: int
    members: tuple[str, ...]


@message(reveals="nothing about data: public keys, made for these sums alone")
class SumKeys:
    """A client's X25519 keys: one that shares are sealed for (32 bytes), one for each sum's masks (K x 32), signed."""

    sealing: bytes
    masking: Bytes
    signature: bytes


@message(reveals="nothing about data: everybody's public keys")
class Roster:
    """All members' keys, by name."""

    keys: dict[str, SumKeys]


@message(reveals="nothing to the server: shares of mask seeds and keys, sealed for one neighbour each (AES-GCM)")
class SealedShares:
    """A client's shares by receiver."""

    sealed: dict[str, bytes]


@message(
    reveals="a share of each neighbour's mask seeds and keys, which is worth nothing without more than half of them"
)
class DeliveredShares:
    """The shares for one client, by their sender."""

    sealed: dict[str, bytes]


@message(reveals="nothing alone: uniformly random words; only the sum over the clients is readable")
class Masked:
    """An array under masks; words (P, flat)."""

    slot: int
    shape: tuple[int, ...]
    words: Words


@message(reveals="nothing alone: a sum of uniformly random words; whose arrays are in it")
class MaskedSum:
    """Several clients' arrays of one sum, added up by somebody who cannot read them; words (P, flat)."""

    members: tuple[str, ...]
    slot: int
    shape: tuple[int, ...]
    words: Words


@message(reveals="whose vectors arrived")
class Arrived:
    """The set of survivors of one sum that the server states."""

    slot: int
    members: tuple[str, ...]


@message(reveals="nothing about data: that the sender was told this set of survivors")
class Confirmation:
    """A signature of the set of survivors."""

    signature: bytes


@message(reveals="nothing about data: that more than half were told the same set of survivors")
class Confirmations:
    """Signatures by name."""

    slot: int
    signatures: dict[str, bytes]


@message(reveals="of each neighbour one share: of a mask that hides its vector no more if it arrived, else of its key")
class Unmasking:
    """Shares of one sum's secrets by the neighbour whose they are, 32 bytes each."""

    shares: dict[str, bytes]


# --- keys ---


class Identity:
    """An Ed25519 key pair by which a client is known; the private half never leaves it."""

    def __init__(self, entropy: Entropy = os.urandom) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(entropy(SEED_BYTES))
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """Return the signature of `text`."""
        return self._private.sign(text)


def signed_by(public: bytes, signature: bytes, text: bytes) -> bool:
    """Say whether a signature is that of an identity."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def mask_stream(seed: bytes, length: int) -> Words:
    """Return `length` uniform words: the ChaCha20 key stream of `seed`, which must be used for one vector only."""
    encryptor = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * length)), dtype="<u4").astype(np.uint32)


def new_key(entropy: Entropy) -> X25519PrivateKey:
    """Make a private key."""
    return X25519PrivateKey.from_private_bytes(entropy(SEED_BYTES))


def raw_private(key: X25519PrivateKey) -> bytes:
    """Return the 32 bytes of a private key, to be shared as a secret."""
    raw = serialization.Encoding.Raw, serialization.PrivateFormat.Raw
    return key.private_bytes(*raw, serialization.NoEncryption())


def agree(private: X25519PrivateKey, public: bytes, *purpose: bytes) -> bytes:
    """Return the 32 bytes that the owners of two keys can derive for a purpose, and nobody else.

    Raises:
        ValueError: a public key of low order.
    """
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=framed(*purpose)).derive(shared)


def pair_seed(private: X25519PrivateKey, public: bytes, session: bytes, slot: int, name: str, peer: str) -> bytes:
    """Return the seed of the mask that two clients share in one sum."""
    first, second = sorted((name, peer))
    return agree(private, public, b"pair mask", session, number(slot), first.encode(), second.encode())


def framed(*parts: bytes) -> bytes:
    """Concatenate with lengths in front, so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in (b"fedactors secure sum", *parts))


def number(value: int) -> bytes:
    """Return a whole number as 8 bytes."""
    return value.to_bytes(8, "big")


def names_of(names: Sequence[str]) -> bytes:
    """Return names as bytes."""
    return framed(*(name.encode() for name in names))


def keys_text(call: SumCall, name: str, sealing: bytes, masking: Bytes) -> bytes:
    """What a client signs when it advertises: nothing of it can be used for other sums, or among others."""
    plan = (number(call.number), number(call.num_sums), names_of(call.members))
    return framed(b"keys", *plan, name.encode(), sealing, masking.tobytes())


def summed_text(what: str, shape: Sequence[int], point: FixedPoint, heard: bytes) -> bytes:
    """What all parts of one sum have in common: what they are, their shape and grid, and what they follow from.

    Masks are key streams: of vectors of two lengths, or of two kinds, the common beginning would add up all the same.
    """
    kind = float(point.limit), point.num_clients, point.num_words, point.counts
    grid = repr((tuple(map(int, shape)), *kind)).encode()
    return hashlib.sha256(framed(b"summed", what.encode(), grid, heard)).digest()


def arrived_text(session: bytes, arrived: Arrived, summed: bytes) -> bytes:
    """What a client signs when it confirms who arrived; `summed` is the `summed_text` of its own part."""
    return framed(b"arrived", session, number(arrived.slot), names_of(arrived.members), summed)


@dataclasses.dataclass(frozen=True)
class Session:
    """What all members of some sums know: whose keys, and who is whose neighbour."""

    id: bytes
    """Hash of everybody's keys: a client that is shown other keys has another one, and can open no share."""
    keys: Mapping[str, SumKeys]
    holders: Mapping[str, tuple[str, ...]]
    """Who holds shares of a client's secrets, in order: its neighbours and itself."""

    def neighbours(self, name: str) -> list[str]:
        """Return those with whom a client shares masks."""
        return [other for other in self.holders[name] if other != name]

    def threshold(self, name: str) -> int:
        """Return how many shares give a client's secrets."""
        return max(FEWEST, len(self.holders[name]) // 2 + 1)


def session_of(roster: Roster) -> Session:
    """Return what follows from everybody's keys."""
    names = sorted(roster.keys)
    keys = [roster.keys[name] for name in names]
    parts = [(name.encode(), one.sealing, one.masking.tobytes()) for name, one in zip(names, keys, strict=True)]
    digest = hashlib.sha256(framed(*(part for three in parts for part in three))).digest()
    graph = neighbour_graph(names, digest)
    holders = {name: tuple(sorted({name, *graph[name]})) for name in names}
    return Session(digest, {name: roster.keys[name] for name in names}, holders)
