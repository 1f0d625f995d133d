"""Alignment of row ids: which rows all parties have in common, and in which order all of them take these rows.

Every passive party intersects with the label party, which intersects the results and announces the common order:

    passive party k                         label party
        <- PSI request --------------------     psi_request
    psi_answer
        - (setup, response) --------------->    psi_intersect        (once per passive party)
                                                common_rows, announce_order
        <- (salt, digests) ----------------
    follow_order

With ``hash`` the first two messages are one: ``hash_ids`` under a key that the parties share. With ``already-aligned``
each party sends one fingerprint of its ids. Between actors these are the messages below: a passive party's actor offers
`AlignmentPeer`'s two methods as endpoints (see `answer` and `follow`), its label party's actor awaits `align`.

What is learnt. Being in the intersection is itself personal data ("is a customer of both"). The label party learns
which of its own ids each single passive party holds, not only which are common to all; a passive party learns how many
ids the label party has, and which of its own ids all parties share. Pairwise intersections among many parties
therefore leak more than one intersection of all. ``hash`` is weaker: a holder of the key can test guessed ids, and ids
such as telephone numbers can all be guessed; use it only where the label party may know every party's ids. ``psi``
(elliptic-curve Diffie-Hellman, from the openmined library) reveals nothing about ids outside the intersection but
their number, to honest-but-curious parties; a malicious one can still ask for ids that it made up.

Cost of ``psi`` on one core: about 70 microseconds per id at the label party for the request and 40 for the result, 100
per id at the passive party; with 40,000 ids on both sides 9 seconds. ``hash`` takes 0.1 seconds.

The common order is a random permutation made for the run, so that a row's place tells nothing about its id.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import Actor
from fedactors.actors.context import Work
from fedactors.errors import BadInput, Refused
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.runtime.interface import ALIGNING
from fedactors.validation import first_line

Alignment = Literal["already-aligned", "hash", "psi"]
Index = NDArray[np.int64]
Ids = NDArray[Any]
Digests = NDArray[np.uint8]
_NOTHING = np.zeros((0, 32), np.uint8)
T = TypeVar("T")

# --- between actors -------------------------------------------------------------------------------------------------


@message(
    reveals="psi: the number of the label party's ids; hash: a key under which both parties hash their ids",
)
class AlignmentQuestion:
    """The label party's question; `content` is a PSI request, or a key."""

    how: str
    content: bytes


@message(
    reveals="which of its own ids the passive party has too; hash: digests on which the key lets one test guesses",
)
class AlignmentAnswer:
    """A passive party's answer: a fingerprint, digests, or PSI setup and response."""

    parts: tuple[bytes, ...]
    digests: Annotated[NDArray[np.uint8], Dimensions("ids", 32, or_none=True)]


@message(reveals="which of its own ids all parties share, and their parts of the split if these are by class or given")
class AlignmentOrder:
    """The common order: salted digests of the shared ids (N x 32); no digests mean that rows are aligned already.

    `parts` has the part of the split of each shared row (N), or nothing where all parties draw it from their seed.
    """

    salt: bytes
    digests: Annotated[NDArray[np.uint8], Dimensions("ids", 32, or_none=True)]
    parts: Annotated[NDArray[np.uint8], Dimensions("rows", or_none=True)]


@dataclass(frozen=True, eq=False)
class CommonRows:
    """What the label party knows after an alignment."""

    rows: Index
    """Its own rows in the common order (N)."""
    parts: NDArray[np.uint8]
    """Their parts of the split, as announced (N, or none)."""
    absent: Mapping[str, Index]
    """By passive party, the own rows that it does not have."""
    announced: AlignmentOrder
    """What all passive parties were told alike."""


class AlignmentPeer(Protocol):
    """What a passive party's actor offers."""

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Return `answer(local ids, question, as agreed)`."""

    async def take_order(self, order: AlignmentOrder) -> None:
        """Keep `follow(local ids, order, agreed)`."""


async def answer_beside(actor: Actor, ids_N: Ids, question: AlignmentQuestion, agreed: Alignment) -> AlignmentAnswer:
    """Return `answer`, computed beside the actor's other calls: of many ids it takes minutes."""
    return await _computed(actor, ids_N, answer, question, agreed)


async def follow_beside(actor: Actor, ids_N: Ids, order: AlignmentOrder, agreed: Alignment) -> Index:
    """Return `follow`, computed beside the actor's other calls."""
    return await _computed(actor, ids_N, follow, order, agreed)


async def _computed(actor: Actor | None, ids_N: Ids, function: Callable[..., T], *args: Any) -> T:
    if actor is None:
        return function(ids_N, *args)
    return await actor.compute(function, ids_N, *args, work=Work(ALIGNING, float(len(ids_N))))


def answer(ids_N: Ids, question: AlignmentQuestion, agreed: Alignment) -> AlignmentAnswer:
    """Answer the label party's question about the passive party's own ids.

    Args:
        ids_N: the party's own ids.
        question: of the label party.
        agreed: how all parties have agreed to align.

    Raises:
        BadInput: it is asked in another way; hashed ids, say, would tell more than was agreed to.
    """
    if question.how != agreed:
        raise BadInput(f"alignment: {question.how!r} is asked for, {agreed!r} was agreed upon")
    if question.how == "already-aligned":
        return AlignmentAnswer((fingerprint(ids_N, question.content),), _NOTHING)
    if question.how == "hash":
        return AlignmentAnswer((), hash_ids(ids_N, question.content))
    return AlignmentAnswer(psi_answer(ids_N, question.content), _NOTHING)


def follow(ids_N: Ids, order: AlignmentOrder, agreed: Alignment) -> Index:
    """Return the passive party's own rows in the common order.

    Args:
        ids_N: the party's own ids.
        order: of the label party.
        agreed: how all parties have agreed to align.

    Raises:
        BadInput: the order is of another alignment, names an id that is not here, or names one twice: privacy accounts
            are of rows that occur once; or parts of the split are not of these rows.
    """
    if bool(order.salt) != (agreed != "already-aligned"):
        raise BadInput(f"alignment: the order announced is none of {agreed!r}, which was agreed upon")
    rows = follow_order(ids_N, order.salt, order.digests) if order.salt else np.arange(len(ids_N))
    if len(order.parts) not in (0, len(rows)):
        raise BadInput(f"alignment: {len(order.parts)} rows are told their part of the split, {len(rows)} are aligned")
    if len(np.unique(rows)) < len(rows):
        raise BadInput("alignment: an id is announced twice")
    return rows


_log = logging.getLogger(__name__)


def tell_partners(actor: Actor, num_found: int, num_local: int, num_rejected: int = 0) -> None:
    """Tell a party, in the log of its own process and nowhere else, how many of its rows found partners.

    Args:
        actor: of the party.
        num_found: those rows.
        num_local: rows that could find some.
        num_rejected: rows that were left out before.
    """
    before = f"; {num_rejected} more were left out before, for what they miss or for their ids" if num_rejected else ""
    level = logging.INFO if num_found == num_local and not num_rejected else logging.WARNING
    _log.log(level, "%s: %d of its %d rows found partners%s", actor.party, num_found, num_local, before)


def check_number(
    actor: Actor,
    rows: Index,
    fewest: int,
    num_local: int,
    num_rejected: int = 0,
    num_table_rows: int | None = None,
    *,
    num_train: Callable[[], int],
) -> Index:
    """Return a party's rows in the common order, if there are enough of them, and tell the party how many there are.

    Args:
        actor: of the party.
        rows: in the common order.
        fewest: approved.
        num_local: as `tell_partners` has it.
        num_rejected: likewise.
        num_table_rows: rows of the party's table that stand in joined rows, where these are less than half; else None.
        num_train: returns how many of them are to train on, whether their parts were announced or all draw them alike.

    Raises:
        Refused: naming who ordered so few that what leaves would tell of each.
    """
    tell_partners(actor, len(rows), num_local, num_rejected)
    num_aligned = len(rows) if num_table_rows is None else min(len(rows), num_table_rows)
    if num_aligned < fewest:
        said = f"aligns {num_aligned} rows of {actor.name}; approved: at least {fewest} (min_aligned_rows)"
        raise Refused(actor.caller, said + _fewer(num_aligned))
    if (trained := num_train()) < fewest:
        said = f"has {trained} rows of {actor.name} trained on; approved: at least {fewest} (min_aligned_rows)"
        raise Refused(actor.caller, said + _fewer(trained))
    return rows


def _fewer(count: int) -> str:
    return f"; align more rows, or set min_aligned_rows={count} if all parties agree" if count else ""


async def align(
    ids_N: Ids,
    label_party: str,
    how: Alignment,
    peers: Mapping[str, AlignmentPeer],
    rng: np.random.Generator,
    parts: Callable[[Index], NDArray[np.uint8]] | None = None,
    *,
    actor: Actor | None = None,
) -> CommonRows:
    """Align all parties' rows from the label party's side; return its own rows in the common order.

    Args:
        ids_N: the label party's ids.
        label_party: its name.
        how: see the module.
        peers: a handle per passive party.
        rng: for the common order; from the operating system's entropy where the order must tell nothing.
        parts: from the own rows in the common order to their parts of the split, to be announced with it.
        actor: the label party's, which computes beside its other calls; None: here.

    Raises:
        BadInput: rows that are not aligned although stated so, or nothing in common.
        Refused: naming who answers with what is no answer.
    """
    pairwise: dict[str, Index] = {}
    if how == "already-aligned":
        key = make_key()
        prints = {label_party: await _computed(actor, ids_N, fingerprint, key)}
        for name, peer in peers.items():
            (prints[name],) = _parts(await peer.answer_alignment(AlignmentQuestion(how, key)), name, how)
        check_fingerprints(prints, label_party)
        order, salt, digests = np.arange(len(ids_N)), b"", _NOTHING
    else:
        pairwise = {name: await _intersect(ids_N, how, name, peer, actor) for name, peer in peers.items()}
        rows = common_rows(len(ids_N), pairwise)
        order, salt, digests = announce_order(ids_N, rows, rng)
    found = np.zeros(0, np.uint8) if parts is None else parts(order)
    announced = AlignmentOrder(salt, digests, found)
    for peer in peers.values():
        await peer.take_order(announced)
    absent = {name: np.setdiff1d(np.arange(len(ids_N)), rows) for name, rows in pairwise.items()}
    return CommonRows(order, found, absent, announced)


_NUM_PARTS: dict[Alignment, int] = {"already-aligned": 1, "hash": 0, "psi": 2}


def _parts(found: AlignmentAnswer, name: str, how: Alignment) -> tuple[bytes, ...]:
    if len(found.parts) != (most := _NUM_PARTS[how]) or (how != "hash" and len(found.digests)):
        raise Refused(name, f"answers an alignment by {how} with {len(found.parts)} parts: {most} belong to it")
    return found.parts


async def _intersect(ids_N: Ids, how: Alignment, name: str, peer: AlignmentPeer, actor: Actor | None) -> Index:
    if how == "hash":
        key = make_key()
        found = await peer.answer_alignment(AlignmentQuestion(how, key))
        _parts(found, name, how)
        return intersect_digests(await _computed(actor, ids_N, hash_ids, key), found.digests)
    secret, request = await _computed(actor, ids_N, psi_request)
    setup, response = _parts(await peer.answer_alignment(AlignmentQuestion(how, request)), name, how)
    try:
        rows = await _computed(actor, ids_N, _psi_rows, secret, setup, response)
    except Exception as error:  # of a library, of whatever kind
        raise Refused(name, f"sends an invalid PSI answer: {first_line(error)}") from None
    if len(rows) and (len(np.unique(rows)) < len(rows) or not 0 <= rows[0] <= rows[-1] < len(ids_N)):
        raise Refused(name, "answers an alignment by psi with rows that were not asked for")
    return rows


def row_notes(party: str, num_local: int, num_rejected: int, num_shared: int, absent: Mapping[str, int]) -> list[str]:
    """Return what became of the label party's rows, a line each, or nothing if all of them are used.

    Args:
        party: its name.
        num_local: rows that could be aligned.
        num_rejected: rows that were left out before, for what they miss.
        num_shared: rows that all parties have.
        absent: by passive party, how many it does not have.
    """
    num_all = num_local + num_rejected
    if num_shared == num_all:
        return []
    gone = [f"{count} not at {name}, or missing values there" for name, count in absent.items() if count]
    gone += [f"{num_rejected} with missing values, without a label or with another row's id"] if num_rejected else []
    return [f"{party}: {num_shared} of {num_all} rows are used ({', '.join(gone)})"]


# --- the steps ------------------------------------------------------------------------------------------------------


def id_texts(ids_N: NDArray[Any]) -> list[str]:
    """Return the canonical text of each id, which is what is hashed and compared."""
    return [str(value) for value in ids_N.tolist()]


def _text_blocks(ids_N: NDArray[Any]) -> Iterator[tuple[int, list[str]]]:
    """Yield the first row of each block of rows, and their canonical texts."""
    return ((first, id_texts(ids_N[first : first + _TEXTS])) for first in range(0, len(ids_N), _TEXTS))


_TEXTS = 1 << 16


def make_key() -> bytes:
    """Return a fresh key of 32 bytes, from the operating system's entropy."""
    return secrets.token_bytes(32)


def hash_ids(ids_N: NDArray[Any], key: bytes) -> Digests:
    """Return the HMAC-SHA256 of each id under `key`, (N, 32) bytes, in the party's own order."""
    found = np.zeros((len(ids_N), 32), np.uint8)
    for first, texts in _text_blocks(ids_N):
        joined = b"".join(hmac.digest(key, text.encode(), "sha256") for text in texts)
        found[first : first + len(texts)] = np.frombuffer(joined, np.uint8).reshape(-1, 32)
    return found


def fingerprint(ids_N: NDArray[Any], key: bytes) -> bytes:
    """Return one HMAC-SHA256 over all ids in their order: equal at two parties iff their rows are already aligned."""
    made = hmac.new(key, digestmod="sha256")
    for _, texts in _text_blocks(ids_N):
        made.update(b"".join(f"{len(text)}:{text}".encode() for text in texts))
    return made.digest()


def check_fingerprints(fingerprints: dict[str, bytes], label_party: str) -> None:
    """Raise `BadInput`, naming the party, unless every fingerprint equals the label party's."""
    for party, value in sorted(fingerprints.items()):
        if not hmac.compare_digest(value, fingerprints[label_party]):
            raise BadInput(
                f"alignment: the ids of {party} and {label_party} do not align; choose alignment=psi or "
                "alignment=hash, or put the rows into the same order"
            )


def intersect_digests(local: Digests, other: Digests) -> Index:
    """Return the rows of `local` whose digest is among `other`, ascending."""
    return np.flatnonzero(np.isin(_as_keys(local), _as_keys(other)))


def psi_request(ids_N: NDArray[Any]) -> tuple[bytes, bytes]:
    """Begin an intersection at the label party: return (secret key, request); only the request may leave the party."""
    import private_set_intersection.python as psi

    client = psi.client.CreateWithNewKey(True)
    return client.GetPrivateKeyBytes(), client.CreateRequest(id_texts(ids_N)).SerializeToString()


def psi_answer(ids_N: NDArray[Any], request: bytes) -> tuple[bytes, bytes]:
    """Answer a request at a passive party: return (setup, response) under a key that is used once and forgotten.

    Raises:
        BadInput: `request` is not a request of this protocol.
    """
    import private_set_intersection.python as psi

    server = psi.server.CreateWithNewKey(True)
    # RAW: the whole encrypted set, exact; the compressed structures have false positives, that is, misaligned rows.
    setup = server.CreateSetupMessage(1e-9, len(ids_N), id_texts(ids_N), psi.DataStructure.RAW)
    try:
        response = server.ProcessRequest(psi.Request.FromString(request))
    except Exception as error:
        raise BadInput(f"alignment: invalid request: {error}") from error
    return setup.SerializeToString(), response.SerializeToString()


def psi_intersect(key: bytes, setup: bytes, response: bytes) -> Index:
    """Return the label party's own rows that the passive party has too, ascending.

    Raises:
        ValueError: the set is none that `psi_answer` gives: of a Bloom filter the sender says how long a look takes.
    """
    import private_set_intersection.python as psi

    client, told = psi.client.CreateFromKey(key, True), psi.ServerSetup.FromString(setup)
    if (kind := told.WhichOneof("data_structure")) != "raw":
        raise ValueError(f"its set is {kind or 'missing'}, not raw")
    rows = client.GetIntersection(told, psi.Response.FromString(response))
    return np.sort(np.asarray(rows, np.int64))


def _psi_rows(ids_N: Ids, key: bytes, setup: bytes, response: bytes) -> Index:
    return psi_intersect(key, setup, response)


def common_rows(num_local: int, pairwise: dict[str, Index]) -> Index:
    """Return the label party's rows that lie in every pairwise intersection, ascending.

    Raises:
        BadInput: nothing is left; the message states each party's share.
    """
    count = np.zeros(num_local, np.int64)
    for rows in pairwise.values():
        count[rows] += 1
    common = np.flatnonzero(count == len(pairwise))
    if not len(common):
        shares = ", ".join(f"{party} {len(rows)}" for party, rows in sorted(pairwise.items()))
        raise BadInput(f"alignment: the parties have no id in common (of {num_local} ids of the label party: {shares})")
    return common


def announce_order(ids_N: NDArray[Any], rows: Index, rng: np.random.Generator) -> tuple[Index, bytes, Digests]:
    """Draw the common order at the label party: return (own rows in that order, salt, digests to send).

    Every digest is of an id that the receiver holds, so that it learns nothing about others; to anyone who has neither
    ids nor salt the digests are noise.
    """
    order = rng.permutation(rows)
    salt = make_key()
    return order, salt, hash_ids(ids_N[order], salt)


def follow_order(ids_N: NDArray[Any], salt: bytes, digests: Digests) -> Index:
    """Return a passive party's own rows in the announced order.

    Raises:
        BadInput: an announced id is not among the party's own.
    """
    local = _as_keys(hash_ids(ids_N, salt))
    sorter = np.argsort(local)
    wanted = _as_keys(digests)
    positions = np.minimum(np.searchsorted(local, wanted, sorter=sorter), len(local) - 1)
    rows = sorter[positions]
    absent = int((local[rows] != wanted).sum())
    if absent:
        raise BadInput(f"alignment: {absent} of the {len(wanted)} announced ids are not among this party's ids")
    return rows.astype(np.int64)


def _as_keys(digests: Digests) -> NDArray[np.bytes_]:
    """View (N, 32) bytes as N texts that numpy sorts and compares; of one length, they are equal iff all bytes are."""
    keys: NDArray[np.bytes_] = np.ascontiguousarray(digests).view("S32").ravel()
    return keys
