"""Row alignment between actors: the messages of `fedactors.data.alignment`, and who sends which when.

    label party ──Question──▶ passive party ──Answer──▶ label party ──Order──▶ passive party

A vertical protocol's passive actor offers `AlignmentPeer`'s two methods (each one line, see `answer` and `follow`); its
label party's actor awaits `align`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedactors.data import alignment
from fedactors.data.alignment import Alignment, Index
from fedactors.network.codec import message

Ids = NDArray[Any]


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
    digests: NDArray[np.uint8]


@message(reveals="which of its own ids all parties share")
class AlignmentOrder:
    """The common order: salted digests of the shared ids (N x 32); no digests mean that rows are aligned already."""

    salt: bytes
    digests: NDArray[np.uint8]


class AlignmentPeer(Protocol):
    """What a passive party's actor offers."""

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Return `answer(own ids, question)`."""

    async def take_order(self, order: AlignmentOrder) -> None:
        """Keep `follow(own ids, order)`."""


_NOTHING = np.zeros((0, 32), np.uint8)


def answer(ids_N: Ids, question: AlignmentQuestion) -> AlignmentAnswer:
    """Answer the label party's question about the passive party's own ids."""
    if question.how == "already-aligned":
        return AlignmentAnswer((alignment.fingerprint(ids_N, question.content),), _NOTHING)
    if question.how == "hash":
        return AlignmentAnswer((), alignment.hash_ids(ids_N, question.content))
    return AlignmentAnswer(alignment.psi_answer(ids_N, question.content), _NOTHING)


def follow(ids_N: Ids, order: AlignmentOrder) -> Index:
    """Return the passive party's own rows in the common order."""
    if not order.salt:
        return np.arange(len(ids_N))
    return alignment.follow_order(ids_N, order.salt, order.digests)


async def align(
    ids_N: Ids, label_party: str, how: Alignment, peers: Mapping[str, AlignmentPeer], rng: np.random.Generator
) -> Index:
    """Align all parties' rows from the label party's side; return its own rows in the common order.

    Args:
        ids_N: the label party's ids.
        label_party: its name.
        how: see `fedactors.data.alignment`.
        peers: a handle per passive party.
        rng: for the common order; from the operating system's entropy where the order must tell nothing.

    Raises:
        BadInput: rows that are not aligned although stated so, or nothing in common.
    """
    if how == "already-aligned":
        key = alignment.make_key()
        prints = {label_party: alignment.fingerprint(ids_N, key)}
        for name, peer in peers.items():
            prints[name] = (await peer.answer_alignment(AlignmentQuestion(how, key))).parts[0]
        alignment.check_fingerprints(prints, label_party)
        order, announced = np.arange(len(ids_N)), AlignmentOrder(b"", _NOTHING)
    else:
        pairwise = {name: await _intersect(ids_N, how, peer) for name, peer in peers.items()}
        rows = alignment.common_rows(len(ids_N), pairwise)
        order, salt, digests = alignment.announce_order(ids_N, rows, rng)
        announced = AlignmentOrder(salt, digests)
    for peer in peers.values():
        await peer.take_order(announced)
    return order


async def _intersect(ids_N: Ids, how: Alignment, peer: AlignmentPeer) -> Index:
    if how == "hash":
        key = alignment.make_key()
        found = await peer.answer_alignment(AlignmentQuestion(how, key))
        return alignment.intersect_digests(alignment.hash_ids(ids_N, key), found.digests)
    secret, request = alignment.psi_request(ids_N)
    found = await peer.answer_alignment(AlignmentQuestion(how, request))
    return alignment.psi_intersect(secret, *found.parts)
