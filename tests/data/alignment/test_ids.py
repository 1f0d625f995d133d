from __future__ import annotations

import asyncio

import numpy as np
import pytest

from fedactors.data.alignment import ids as alignment
from fedactors.data.alignment.ids import (
    AlignmentAnswer,
    AlignmentOrder,
    AlignmentQuestion,
    announce_order,
    common_rows,
    follow_order,
    hash_ids,
    id_texts,
    make_key,
    psi_answer,
    psi_intersect,
    psi_request,
)
from fedactors.errors import BadInput


class Passive:
    """A passive party in this process."""

    def __init__(self, ids: np.ndarray, agreed: alignment.Alignment) -> None:
        self.ids, self.agreed = ids, agreed
        self.rows = np.zeros(0, np.int64)

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        return alignment.answer(self.ids, question, self.agreed)

    async def take_order(self, order: AlignmentOrder) -> None:
        self.rows = alignment.follow(self.ids, order, self.agreed)


def align(ids, label_party, how, rng):
    """Let all parties exchange their messages; return each party's rows in the common order."""
    peers = {party: Passive(local, how) for party, local in ids.items() if party != label_party}
    rows = asyncio.run(alignment.align(ids[label_party], label_party, how, peers, rng)).rows
    return {label_party: rows, **{party: peer.rows for party, peer in peers.items()}}


@pytest.mark.parametrize("agreed", ["already-aligned", "hash", "psi"])
@pytest.mark.parametrize("asked", ["already-aligned", "hash", "psi", "plain"])
def test_a_question_in_another_way_than_agreed_is_not_answered(asked, agreed):
    if asked != agreed:
        with pytest.raises(BadInput, match=f"alignment: '{asked}' is asked for, '{agreed}' was agreed upon"):
            alignment.answer(np.arange(3), AlignmentQuestion(asked, b"k" * 32), agreed)


def three_parties(seed=0, n=120):
    """Different orders, different missing rows; 100 ids are with all three."""
    rng = np.random.default_rng(seed)
    everyone = [f"id-{number:04d}" for number in range(100)]
    local = {
        "bank": [*everyone, *(f"b{i}" for i in range(n - 100))],
        "shop": [*everyone, *(f"b{i}" for i in range(7))],
        "post": [*everyone, *(f"p{i}" for i in range(3))],
    }
    return {party: rng.permutation(np.asarray(ids)) for party, ids in local.items()}


@pytest.mark.parametrize("how", ["hash", "psi"])
def test_three_parties_of_different_orders_align(how):
    ids = three_parties()
    rows = align(ids, "bank", how, np.random.default_rng(1))
    taken = {party: ids[party][rows[party]] for party in ids}
    np.testing.assert_array_equal(taken["bank"], taken["shop"])
    np.testing.assert_array_equal(taken["bank"], taken["post"])
    assert sorted(taken["bank"]) == [f"id-{number:04d}" for number in range(100)]


def test_both_ways_give_the_same_rows_and_the_order_is_a_fresh_permutation():
    ids = three_parties()
    by_hash = align(ids, "bank", "hash", np.random.default_rng(1))
    by_psi = align(ids, "bank", "psi", np.random.default_rng(1))
    for party in ids:
        np.testing.assert_array_equal(by_hash[party], by_psi[party])
    other = align(ids, "bank", "hash", np.random.default_rng(2))
    assert not np.array_equal(other["bank"], by_hash["bank"])
    order = ids["bank"][by_hash["bank"]]
    assert list(order) != sorted(order)
    assert list(by_hash["bank"]) != sorted(by_hash["bank"])


def test_numbers_align_with_numbers():
    ids = {"a": np.asarray([5, 3, 9]), "b": np.asarray([9, 5])}
    rows = align(ids, "a", "psi", np.random.default_rng(0))
    np.testing.assert_array_equal(ids["a"][rows["a"]], ids["b"][rows["b"]])
    assert len(rows["a"]) == 2


def test_already_aligned_is_checked():
    ids = np.asarray(["x", "y", "z"])
    rows = align({"a": ids, "b": ids.copy()}, "a", "already-aligned", np.random.default_rng(0))
    np.testing.assert_array_equal(rows["b"], [0, 1, 2])
    for other in (ids[::-1], ids[:2], np.asarray(["x", "yz", ""])):
        with pytest.raises(BadInput, match=r"the ids of b and a do not align"):
            align({"a": ids, "b": other}, "a", "already-aligned", np.random.default_rng(0))


@pytest.mark.parametrize("how", ["hash", "psi"])
def test_nothing_in_common_names_the_parties(how):
    ids = {"a": np.asarray(["x", "y"]), "b": np.asarray(["x"]), "c": np.asarray(["y"])}
    with pytest.raises(BadInput, match=r"no id in common .*b 1, c 1"):
        align(ids, "a", how, np.random.default_rng(0))


def test_no_id_is_in_any_message():
    ids = three_parties()
    secret, request = psi_request(ids["bank"])
    setup, response = psi_answer(ids["shop"], request)
    rows = psi_intersect(secret, setup, response)
    assert len(rows) == 107
    _, salt, digests = announce_order(ids["bank"], rows, np.random.default_rng(0))
    for message in (request, setup, response, salt, digests.tobytes()):
        assert secret not in message
        assert not any(
            text.encode() in message for text in id_texts(ids["bank"]) + id_texts(ids["shop"]) if len(text) > 4
        )


def test_digests_depend_on_the_key_and_a_foreign_order_is_refused():
    ids = np.asarray(["x", "y"])
    assert not np.array_equal(hash_ids(ids, make_key()), hash_ids(ids, make_key()))
    _, salt, digests = announce_order(np.asarray(["x", "w"]), np.asarray([0, 1]), np.random.default_rng(0))
    with pytest.raises(BadInput, match=r"1 of the 2 announced ids"):
        follow_order(ids, salt, digests)


def test_a_malformed_request_is_bad_input():
    with pytest.raises(BadInput, match=r"alignment"):
        psi_answer(np.asarray(["x"]), b"\xff\xff\xff")


def test_common_rows_needs_every_party():
    rows = common_rows(5, {"b": np.asarray([0, 1, 2]), "c": np.asarray([1, 2, 4])})
    np.testing.assert_array_equal(rows, [1, 2])


def test_an_order_that_names_an_id_twice_or_is_of_another_alignment_is_refused() -> None:
    ids, salt = np.array(["a", "b", "c"]), b"salt"
    digests = alignment.hash_ids(ids, salt)
    once, nothing = np.zeros(0, np.uint8), np.zeros((0, 32), np.uint8)
    assert alignment.follow(ids, AlignmentOrder(salt, digests[[2, 0]], once), "hash").tolist() == [2, 0]
    # a privacy account is of rows that occur once: whoever repeats one averages its noise away
    with pytest.raises(BadInput, match="an id is announced twice"):
        alignment.follow(ids, AlignmentOrder(salt, digests[[2, 0, 2]], once), "hash")
    with pytest.raises(BadInput, match="none of 'psi', which was agreed upon"):
        alignment.follow(ids, AlignmentOrder(b"", nothing, once), "psi")
    with pytest.raises(BadInput, match="none of 'already-aligned', which was agreed upon"):
        alignment.follow(ids, AlignmentOrder(salt, digests, once), "already-aligned")
