"""Topics as a state machine: events in, decisions out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedactors.channels.topics import Delivery, Entry, Parked, Topic, Topics
from fedactors.errors import BadInput


def entry(sequence: int, publisher: str = "shop") -> Entry:
    return Entry(publisher, sequence, float(sequence), f"value {sequence}")


@given(st.integers(1, 6), st.integers(0, 10))
def test_after_p_plus_k_publications_a_topic_holds_the_last_p(capacity: int, more: int) -> None:
    topic = Topic(capacity)
    discarded = [topic.publish(entry(n)) for n in range(capacity + more)]
    assert [e.sequence for e in topic.entries()] == list(range(more, capacity + more))
    assert discarded == [None] * capacity + [entry(n) for n in range(more)]
    assert len(topic) == capacity


def test_a_take_gives_the_newest_unread_and_counts_older_ones_as_read() -> None:
    topic = Topic(3)
    assert topic.take("bank") is None
    topic.publish(entry(1))
    topic.publish(entry(2))
    assert topic.take("bank") == entry(2)
    assert topic.take("bank") is None
    assert topic.take("other") == entry(2)
    topic.publish(entry(3))
    assert topic.take("bank") == entry(3)
    assert topic.take("bank") is None


def test_what_was_read_stays_read_when_it_is_discarded() -> None:
    topic = Topic(1)
    topic.publish(entry(1))
    assert topic.take("bank") == entry(1)
    topic.publish(entry(2))
    topic.publish(entry(3))
    assert topic.take("bank") == entry(3)
    assert topic.take("bank") is None


@pytest.mark.parametrize("make", [Topic, Topics])
def test_a_topic_keeps_at_least_one_entry(make: type) -> None:
    with pytest.raises(BadInput, match="buffer_size: 0 is not allowed: it must be 1 or more"):
        make(0)


def test_a_parked_take_is_answered_by_the_next_publication_of_its_topic_only() -> None:
    topics = Topics(5)
    parked = topics.take("bank", "embedding", 7, now=1.0, patience=2.0)
    assert isinstance(parked, Parked)
    assert parked.expires == 3.0
    assert topics.publish("embedding", 8, entry(1)) == []
    assert topics.publish("gradient", 7, entry(2)) == []
    assert topics.publish("embedding", 7, entry(3)) == [Delivery(parked, entry(3))]
    assert topics.publish("embedding", 7, entry(4)) == []
    assert topics.take("bank", "embedding", 7, 5.0, 1.0) == entry(4)


def test_parked_takes_are_answered_in_their_order_and_one_subscriber_gets_an_entry_once() -> None:
    topics = Topics(5)
    first = topics.take("bank", "embedding", 1, 0.0, 9.0)
    other = topics.take("shop", "embedding", 1, 0.0, 9.0)
    again = topics.take("bank", "embedding", 1, 0.0, 9.0)
    deliveries = topics.publish("embedding", 1, entry(1))
    assert [d.parked for d in deliveries] == [first, other]
    assert topics.publish("embedding", 1, entry(2)) == [Delivery(again, entry(2))]  # type: ignore[arg-type]


def test_an_expired_take_is_not_answered() -> None:
    topics = Topics(5)
    parked = topics.take("bank", "embedding", 1, 0.0, 1.0)
    assert isinstance(parked, Parked)
    topics.expire(parked)
    topics.expire(parked)
    assert topics.publish("embedding", 1, entry(1)) == []
    assert topics.take("bank", "embedding", 1, 2.0, 1.0) == entry(1)


def test_discards_are_counted_and_a_closed_topic_is_forgotten() -> None:
    topics = Topics(2)
    for n in range(5):
        topics.publish("embedding", 1, entry(n))
    assert topics.num_discarded == 3
    topics.close("embedding", 1)
    assert isinstance(topics.take("bank", "embedding", 1, 0.0, 1.0), Parked)
