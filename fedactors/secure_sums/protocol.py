"""Secure aggregation: the server learns the sum of the clients' vectors and nothing about a single one.

SecAgg for a server that may lie (Bonawitz et al., 2017), on the graph of neighbours of SecAgg+ (Bell et al., 2020)
above 20 clients. Keys and shares are prepared for several sums at once; no key serves two:

    who           sends                                                     method of the client, of the server
    server    ->  which sums, among whom                                    `SecureSumServer.call`
    client    ->  public keys, signed by its identity                       `advertise`        `roster`
    client    ->  for each neighbour, sealed: shares of its secrets         `share`, `take`    `deliver`
    then for each sum
    client    ->  x_i + PRG(b_i) + sum_{j>i} PRG(s_ij) - sum_{j<i} PRG(s_ij)  `mask`
    server    ->  whose vectors arrived; each client signs it               `confirm`          `arrived`
    server    ->  these signatures, of more than half; each client gives    `unmask`           `confirmations`
                  of each neighbour a share: of b_i if it arrived, else of its key
    server        the sum over those who arrived                                               `unmasked_sum`

What a client refuses, whatever the server asks: fewer than three members, or not more than half of the run's
clients; keys without their owner's signature, or signed for other sums; to mask a slot twice; to confirm
two sets of survivors for one sum; to reveal anything without the signatures of more than half for the set that it
confirmed itself, for values of the same kind, shape and grid as its own, and for what it was told itself to add up; and
to confirm a sum over values, or with a row in it, that it has been summed with before, in another company (the
difference of the two would show somebody's). One set
of survivors can gather these signatures as long as fewer than ``2 * threshold - n`` of the n clients help the server;
where a loss ends the run there is one set only, of all, however many help (`only`).

Not promised: that a client's vector is honest, that a sum of few hides much of each, or anything from other rounds
whose values are close but not equal; noise is for that (`fedactors.privacy.noise`). Identities must reach
the clients past the server; see `fedactors.secure_sums.actors`.

Pure state machines: no clock, no input or output. Shapes: P numbers of a vector, K sums prepared at once.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from fedactors.errors import FedactorsError
from fedactors.privacy.noise import Gaussian, discrete_gaussian, released
from fedactors.secure_sums.messages import (
    SEED_BYTES,
    Arrived,
    Bytes,
    Confirmation,
    Confirmations,
    DeliveredShares,
    Entropy,
    Identity,
    Masked,
    MaskedSum,
    Roster,
    SealedShares,
    Session,
    SumCall,
    SumKeys,
    Unmasking,
    agree,
    arrived_text,
    framed,
    keys_text,
    mask_stream,
    new_key,
    pair_seed,
    parties_of,
    raw_private,
    session_of,
    signed_by,
    summed_text,
)
from fedactors.secure_sums.primitives import FixedPoint, Words, join, minus, plus, split, threshold_of

MOST_SUMS = 4096
MOST_UNUSED = 1 << 16
"""Sums for which a client makes keys one after the other and masks nothing: a key takes some 50 microseconds."""
MOST_REMEMBERED = 1 << 16
"""Values of which a client remembers with whom they were summed; the oldest are forgotten."""
MOST_ROWS = 1 << 18
"""Single rows of which it remembers the same, for as long as its process lives."""
EXACT = "#"
"""Begins the id that values have by their hash."""


class SecureSumError(FedactorsError):
    """A secure sum is refused or cannot be completed; the message names who, and what is missing or wrong."""

    exit_code = 3


class TooFewLeft(SecureSumError):
    """So many were lost during a sum that nobody can read it, or what is left of it."""


# --- a client ---


def noise_part(sigma: float, threshold: int) -> float:
    """Return the deviation of one client's noise, of which any ``threshold - 1`` together have `sigma`."""
    return sigma / math.sqrt(threshold - 1)


class SecureSumClient:
    """One client's side.

    Args:
        name: its own.
        identity: its key pair.
        identities: the public identity of each client by name, its own included, learnt past the server.
        num_clients: of the run, whether their identities are known or not; they decide the threshold.
        num_parties: organisations that every sum needs, however many clients they have.
        fewest: members that every sum needs, if that is more than the threshold of `num_clients`.
        company: with whom values were summed, by their id; its owner keeps it for as long as these values may return.
        only: it is in sums among exactly these: all clients where a loss ends the run, and of a client that does not
            know all sums it was in those of its last; None: any.
        entropy: of all its secrets.
        noise: of its noise; None: the same.
        rounding: a secret that says how its values are rounded: equal ones of one sum alike; None: drawn.
    """

    def __init__(
        self,
        name: str,
        identity: Identity,
        identities: Mapping[str, bytes],
        *,
        num_clients: int,
        num_parties: int = 1,
        fewest: int = 0,
        company: dict[str, tuple[str, ...]] | None = None,
        only: tuple[str, ...] | None = None,
        entropy: Entropy = os.urandom,
        noise: Entropy | None = None,
        rounding: bytes | None = None,
    ) -> None:
        self.name = name
        self.threshold = max(threshold_of(num_clients), fewest)
        """Members and signatures that every sum needs."""
        self._num_parties = num_parties
        self._identity, self._identities, self._entropy = identity, dict(identities), entropy
        self._noise = entropy if noise is None else noise
        self._rounding = entropy(SEED_BYTES) if rounding is None else rounding
        self._company = {} if company is None else company
        self._only = only
        self._rows_company: dict[bytes, tuple[str, ...]] = {}
        self._call = SumCall(0, 0, ())
        self._num_unused = 0
        """Sums for which keys were made since it last masked something."""
        self._forget_session()
        if identities.get(name) != identity.public or len(set(identities.values())) != len(identities):
            raise SecureSumError(f"{name}: the identities do not hold its own, or two are the same")

    def meet(self, name: str, identity: bytes) -> None:
        """Know a client by another identity from now on: its process is a new one, which has none of the old keys."""
        self._identities[name] = identity

    def _forget_session(self) -> None:
        self._keys: SumKeys | None = None
        self._session: Session | None = None
        self._masking: list[X25519PrivateKey] = []
        self._seeds: list[bytes] = []
        self._held: dict[str, Bytes] = {}
        self._ids: list[list[str]] = []
        self._rows: list[set[bytes]] = []
        self._summed: list[bytes] = []
        self._confirmed: dict[int, Arrived] = {}
        self._revealed: set[int] = set()
        self._ready = False

    # --- keys and shares, once for several sums ---

    def advertise(self, call: SumCall) -> SumKeys:
        """Make fresh keys for the sums of a call; whatever was prepared before is forgotten."""
        members = call.members
        if call.number <= self._call.number:
            self._refuse(f"call {call.number} is not newer than call {self._call.number}")
        if self.name not in members or list(members) != sorted(set(members)):
            self._refuse("the members are not a sorted list of names with its own")
        if unknown_members := sorted(set(members) - set(self._identities)):
            self._refuse(f"it knows no identity of {', '.join(unknown_members)}")
        if len(members) < self.threshold:
            self._refuse(f"{len(members)} members are not allowed: {self.threshold} at least")
        self._check_parties(members)
        self._check_fellows(members)
        if not 1 <= call.num_sums <= MOST_SUMS:
            self._refuse(f"{call.num_sums} sums are not allowed: 1 to {MOST_SUMS}")
        self._num_unused += call.num_sums
        if self._num_unused > MOST_UNUSED:
            self._refuse(f"it has made keys for {self._num_unused} sums in turn and masked none: {MOST_UNUSED} at most")
        self._forget_session()
        self._call = call
        self._sealing = new_key(self._entropy)
        self._masking = [new_key(self._entropy) for _ in range(call.num_sums)]
        self._seeds = [self._entropy(SEED_BYTES) for _ in range(call.num_sums)]
        sealing = self._sealing.public_key().public_bytes_raw()
        raw = b"".join(key.public_key().public_bytes_raw() for key in self._masking)
        masking = np.frombuffer(raw, dtype=np.uint8).reshape(call.num_sums, SEED_BYTES)
        signature = self._identity.sign(keys_text(call, self.name, sealing, masking))
        self._keys = SumKeys(sealing, masking, signature)
        return self._keys

    def share(self, roster: Roster) -> SealedShares:
        """Check everybody's keys, and seal for each neighbour its share of the own secrets."""
        keys = self._keys
        if keys is None or self._session is not None:
            self._refuse("it was given a roster without having advertised keys for it")
        if tuple(sorted(roster.keys)) != self._call.members or roster.keys[self.name].signature != keys.signature:
            self._refuse("the roster does not hold exactly the members' keys, its own among them")
        for name, one in roster.keys.items():
            text = keys_text(self._call, name, one.sealing, one.masking)
            if one.masking.shape != keys.masking.shape or not signed_by(self._identities[name], one.signature, text):
                self._refuse(f"the keys of {name} do not carry {name}'s signature for these sums")
        self._session = session = session_of(roster)
        secrets = b"".join(seed + raw_private(key) for seed, key in zip(self._seeds, self._masking, strict=True))
        holders = session.holders[self.name]
        shares = split(
            np.frombuffer(secrets, dtype=np.uint8), len(holders), session.threshold(self.name), self._entropy
        )
        by_holder = dict(zip(holders, shares, strict=True))
        self._held[self.name] = by_holder.pop(self.name).reshape(-1, 2, SEED_BYTES)
        return SealedShares({peer: self._box(self.name, peer, part.tobytes()) for peer, part in by_holder.items()})

    def take(self, delivered: DeliveredShares) -> None:
        """Open the shares of all neighbours' secrets."""
        session = self._agreed()
        if sorted(delivered.sealed) != session.neighbours(self.name):
            self._refuse("the shares are not those of its neighbours")
        for peer, sealed in delivered.sealed.items():
            try:
                opened = self._box(peer, self.name, sealed)
            except (InvalidTag, ValueError):
                self._refuse(f"the shares of {peer} do not open: it was shown other keys, or they are not its own")
            self._held[peer] = np.frombuffer(opened, dtype=np.uint8).reshape(-1, 2, SEED_BYTES).copy()
        self._ready = True

    # --- each sum ---

    def mask(
        self,
        values: NDArray[Any],
        point: FixedPoint,
        values_id: str | None = None,
        sigma: float = 0.0,
        *,
        grain: NDArray[Any] | float = 0.0,
        what: str = "",
        heard: bytes = b"",
        at_random: NDArray[np.bool_] | None = None,
    ) -> Masked:
        """Return an array under the masks of the next sum.

        Args:
            values: the array; the rows of a matrix (along its first axis) are remembered one by one, too.
            point: how its numbers become words, the same for all clients.
            values_id: what these values are, such as a layer's output under some parameters; values of one id, like
                equal ones whatever their id, are summed in one company only.
            sigma: deviation of the noise that the sum has, even without one member's part and with the fewest members,
                in the unit of the values; the client's own part of it is discrete Gaussian.
            grain: of what each value may be a whole multiple, such as the last place of a number that it is the change
                of: so much is added at random, from minus a half of it to a half. Else a sum of multiples, each times
                its client's known share, could be of certain ones only, and tell all of them.
            what: what the values are, the same for all: a sum is of values of one kind, shape and grid.
            heard: a digest of what the values follow from, the same for all: a sum is of those who heard the same.
            at_random: where random words take the place of values (none: nowhere), so that nobody reads anything of the
                sum there: of a client that has no such values, and may not say so by itself.

        Raises:
            ValueError: a value that fixed point cannot hold; nothing has been masked then.
        """
        session, slot = self._agreed(), len(self._ids)
        if not self._ready or slot >= self._call.num_sums:
            self._refuse("it has no keys for another sum")
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        digest = EXACT + hashlib.sha256(framed(flat.tobytes())).hexdigest()
        if sigma > 0:
            words = self._noisy(flat, point, sigma)
        else:  # a sum that is done again has the same words
            of_sum = framed(self._rounding, what.encode(), heard, digest.encode())
            drawn = mask_stream(hashlib.sha256(of_sum).digest(), len(flat))
            if np.any(grain):
                smoothing = mask_stream(hashlib.sha256(framed(b"grain", of_sum)).digest(), len(flat))
                flat = flat + np.asarray(grain) * (smoothing * 2.0**-32 - 0.5)
            words = point.encode(flat, drawn=drawn)
        if at_random is not None:
            words = np.where(at_random.reshape(-1), mask_stream(self._entropy(SEED_BYTES), len(flat)), words)
        words = plus(words, mask_stream(self._seeds[slot], len(flat)), point.num_words)
        for peer in session.neighbours(self.name):
            theirs = session.keys[peer].masking[slot].tobytes()
            stream = mask_stream(pair_seed(self._masking[slot], theirs, session.id, slot, self.name, peer), len(flat))
            words = (plus if self.name < peer else minus)(words, stream, point.num_words)
        self._num_unused = 0
        is_told = at_random is None  # else no values are
        self._ids.append([one for one in (values_id, digest if flat.any() and is_told else None) if one is not None])
        self._rows.append(_digests(values) if is_told else set())
        self._summed.append(summed_text(what, np.shape(values), point, heard))
        return Masked(slot, tuple(np.shape(values)), words)

    def confirm(self, arrived: Arrived) -> Confirmation:
        """Sign the survivors of a sum, one set for each sum and for each id of values."""
        session, slot, members = self._agreed(), arrived.slot, arrived.members
        if not 0 <= slot < len(self._ids) or slot in self._confirmed:
            self._refuse(f"sum {slot} was not masked, or its survivors were confirmed before")
        if list(members) != sorted(set(members)) or not {self.name} <= set(members) <= set(session.keys):
            self._refuse("the survivors are not a sorted list of members with its own name")
        if len(members) < self.threshold:
            self._refuse(f"{len(members)} survivors are not allowed: {self.threshold} at least")
        self._check_parties(members)
        self._check_fellows(members)
        if any(self._company.get(one, members) != members for one in self._ids[slot]):
            self._refuse("these values were summed before, among others; the difference would show somebody's")
        if repeated := sum(self._rows_company.get(one, members) != members for one in self._rows[slot]):
            rows = f"{repeated} of the {len(self._rows[slot])} different rows"
            self._refuse(f"{rows} were summed before, among others; the difference would show somebody's")
        _remember(self._company, self._ids[slot], members, MOST_REMEMBERED)
        _remember(self._rows_company, self._rows[slot], members, MOST_ROWS)
        self._confirmed[slot] = arrived
        return Confirmation(self._identity.sign(arrived_text(session.id, arrived, self._summed[slot])))

    def unmask(self, proof: Confirmations) -> Unmasking:
        """Give the shares that remove the masks of a sum, once, if enough members were told the same.

        All must have been, where sums are of all.
        """
        session, slot = self._agreed(), proof.slot
        arrived = self._confirmed.get(slot)
        if arrived is None or slot in self._revealed:
            self._refuse(f"the survivors of sum {slot} were not confirmed, or its shares were given before")
        text = arrived_text(session.id, arrived, self._summed[slot])
        for name, signature in proof.signatures.items():
            if name not in arrived.members or not signed_by(self._identities[name], signature, text):
                self._refuse(f"{name} has not confirmed the same survivors, or was told otherwise what to add up")
        needed = self.threshold if self._only is None else len(arrived.members)
        if len(proof.signatures) < needed:
            self._refuse(f"{len(proof.signatures)} confirmations are not allowed: {needed} at least")
        self._revealed.add(slot)
        self._seeds[slot] = b""
        shares = {}
        for peer, held in self._held.items():
            shares[peer] = held[slot, 0 if peer in arrived.members else 1].tobytes()
            held[slot] = 0
        return Unmasking(shares)

    # --- inside ---

    def _noisy(self, flat: NDArray[np.float64], point: FixedPoint, sigma: float) -> Words:
        """Return words with the own part of the sum's noise: a party that knows its own part still faces `sigma`."""

        def draw() -> Words:
            noise = discrete_gaussian(point.noise_steps(noise_share), len(flat), self._noise)
            return point.encode(flat, towards_zero=True) + noise.astype(np.uint32)

        noise_share = noise_part(sigma, self.threshold)
        return released(flat, Gaussian(sigma), draw, "masked sum")

    def _check_fellows(self, members: tuple[str, ...]) -> None:
        if self._only is not None and members != self._only:
            missing, more = sorted(set(self._only) - set(members)), sorted(set(members) - set(self._only))
            what = [f"without {name}" for name in missing] + [f"with {name}" for name in more]
            self._refuse(
                f"its sums are of {', '.join(self._only)} together, and {', '.join(what)} a sum would show, beside "
                "another, somebody's part; resume when the same clients are there"
            )

    def _agreed(self) -> Session:
        if self._session is None:
            self._refuse("no keys were agreed upon")
        return self._session

    def _box(self, sender: str, receiver: str, content: bytes) -> bytes:
        """Seal for a receiver, or open what a sender has sealed; each key seals one text, so the nonce is constant."""
        session = self._agreed()
        peer = receiver if sender == self.name else sender
        about = (session.id, sender.encode(), receiver.encode())
        box = AESGCM(agree(self._sealing, session.keys[peer].sealing, b"shares", *about))
        if sender == self.name:
            return box.encrypt(bytes(12), content, framed(*about))
        return box.decrypt(bytes(12), content, framed(*about))

    def _check_parties(self, members: Iterable[str]) -> None:
        parties = sorted(parties_of(members))
        if len(parties) < self._num_parties:
            self._refuse(f"its clients are of {', '.join(parties)}: {self._num_parties} at least")

    def _refuse(self, why: str) -> NoReturn:
        raise SecureSumError(f"{self.name}: a secure sum is refused: {why}")


def _digests(values: NDArray[Any]) -> set[bytes]:
    """Return a hash of each row of a matrix that is not zero throughout; a vector has none."""
    if np.ndim(values) < 2 or not np.size(values):
        return set()
    rows = np.ascontiguousarray(values, dtype=np.float64).reshape(len(values), -1)
    return {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows[rows.any(axis=1)]}


def _remember(known: dict[Any, tuple[str, ...]], ids: Iterable[Any], members: tuple[str, ...], most: int) -> None:
    known |= dict.fromkeys(ids, members)
    for oldest in list(itertools.islice(known, max(0, len(known) - most))):
        del known[oldest]


# --- the server ---


class SecureSumServer:
    """The server's side of the sums of one call; it keeps public keys and sealed shares only."""

    def __init__(self, call: SumCall, num_clients: int, fewest: int = 0) -> None:
        self.call = call
        self.threshold = max(threshold_of(num_clients), fewest)
        self.session = Session(b"", {}, {})

    def roster(self, keys: Mapping[str, SumKeys]) -> Roster:
        """Return everybody's keys for everybody."""
        roster = Roster(dict(keys))
        self.session = session_of(roster)
        return roster

    def deliver(self, sealed: Mapping[str, SealedShares]) -> dict[str, DeliveredShares]:
        """Sort sealed shares by their receivers."""
        receivers = self.call.members
        found = {to: {one: box.sealed[to] for one, box in sealed.items() if to in box.sealed} for to in receivers}
        return {to: DeliveredShares(boxes) for to, boxes in found.items()}

    def arrived(self, masked: Mapping[str, Masked | MaskedSum]) -> Arrived:
        """State whose vectors arrived, each by itself or in a sum.

        Raises:
            SecureSumError: they belong to different sums or have different shapes.
            TooFewLeft: too few arrived.
        """
        _check_alike(masked)
        if len(masked) < self.threshold:
            raise TooFewLeft(f"secure sum: {len(masked)} vectors arrived, too few: {self.threshold} are needed")
        return Arrived(next(iter(masked.values())).slot, tuple(sorted(masked)))

    def confirmations(self, arrived: Arrived, found: Mapping[str, Confirmation]) -> Confirmations:
        """Collect signatures.

        Raises:
            TooFewLeft: too few.
        """
        if len(found) < self.threshold:
            raise TooFewLeft(f"secure sum: {len(found)} confirmed the survivors, too few: {self.threshold} are needed")
        return Confirmations(arrived.slot, {name: one.signature for name, one in found.items()})


def added(masked: Mapping[str, Masked], num_words: int = 1) -> MaskedSum:
    """Return the sum of arrays under masks, which hides as much as each of them.

    Raises:
        SecureSumError: they belong to different sums or have different shapes.
    """
    first, *others = masked.values()
    _check_alike(masked)
    words = first.words
    for one in others:
        words = plus(words, one.words, num_words)
    return MaskedSum(tuple(masked), first.slot, first.shape, words)


def _check_alike(masked: Mapping[str, Masked | MaskedSum]) -> None:
    if len({(one.slot, one.shape, len(one.words)) for one in masked.values()}) > 1:
        raise SecureSumError(f"secure sum: {', '.join(sorted(masked))} sent vectors of different sums or shapes")


def unmasked_sum(
    session: Session,
    masked: Mapping[str, Masked | MaskedSum],
    unmaskings: Mapping[str, Unmasking],
    num_words: int = 1,
    whose: Sequence[str] | None = None,
) -> Words:
    """Return the sum of the vectors that arrived (flat), of numbers of so many words; exact, in any order of arrival.

    Args:
        session: of these sums.
        masked: the clients' vectors by name; or sums of them, by who has added them up.
        unmaskings: of the clients.
        num_words: of a number.
        whose: names of the clients whose vectors the sums hold; None: those of `masked`.

    Raises:
        TooFewLeft: too few shares of somebody's secret.
        SecureSumError: shares that do not fit its key.
    """
    names, some = sorted(masked if whose is None else whose), next(iter(masked.values()))
    slot, length = some.slot, len(some.words)
    total = np.zeros(length, dtype=np.uint32)
    for one in masked.values():
        total = plus(total, one.words, num_words)
    for name in names:
        total = minus(total, mask_stream(_secret(session, name, unmaskings), length), num_words)
    for name in sorted(set(session.keys) - set(names)):
        present = [peer for peer in session.neighbours(name) if peer in names]
        if not present:
            continue
        key = X25519PrivateKey.from_private_bytes(_secret(session, name, unmaskings))
        if key.public_key().public_bytes_raw() != session.keys[name].masking[slot].tobytes():
            raise SecureSumError(f"secure sum: the shares of {name}'s key do not fit it")
        for peer in present:
            theirs = session.keys[peer].masking[slot].tobytes()
            stream = mask_stream(pair_seed(key, theirs, session.id, slot, name, peer), length)
            total = (minus if peer < name else plus)(total, stream, num_words)
    return total


def _secret(session: Session, name: str, unmaskings: Mapping[str, Unmasking]) -> bytes:
    holders, threshold = session.holders[name], session.threshold(name)
    indices = [p for p, one in enumerate(holders, 1) if one in unmaskings and name in unmaskings[one].shares][
        :threshold
    ]
    if len(indices) < threshold:
        raise TooFewLeft(f"secure sum: {len(indices)} shares of {name}'s secret, too few: {threshold} are needed")
    shares = [np.frombuffer(unmaskings[holders[index - 1]].shares[name], dtype=np.uint8) for index in indices]
    return join(np.stack(shares), np.array(indices)).tobytes()
