"""Messages say who receives them and what they reveal, and survive the codec."""

import numpy as np
import pytest

from fedactors.network import codec
from protocols.mtcd import messages, walk

SAMPLES = [
    messages.Representation(1, 2, np.arange(3.0)),
    messages.Token(1, 0, 2, 7, walk.walk_seed(0, 1, 0), np.arange(4.0), {"w": np.ones((2, 2), np.float32)}, (1, 2)),
    messages.RoamingDone(1, 0, (3, 3, 4)),
    messages.SyncTokens(1, 4, True),
    messages.DropCopy(1, 3),
    messages.SyncedZ(1, np.arange(4.0), {}),
    messages.DualVector(5, 1, np.arange(4.0)),
    messages.Penalty(1, 2, 0.5),
]


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


@pytest.mark.parametrize("sent", SAMPLES, ids=lambda sent: type(sent).__name__)
def test_messages_survive_the_codec(sent):
    received = codec.decode(codec.encode(sent))
    assert type(received) is type(sent)
    assert all(same(getattr(received, name), getattr(sent, name)) for name in type(sent).__slots__)


def test_every_message_is_reviewed_and_sampled_here():
    declared = codec.message_types(messages)
    assert {type(sample) for sample in SAMPLES} == set(declared)
    assert all(cls.__message__.receiver and cls.__message__.reveals for cls in declared)


def test_a_token_of_a_linear_model_costs_its_n_numbers():
    token = messages.Token(0, 0, 0, 9, 1, np.zeros(1000), {})
    assert codec.measure(token) == 8000
    assert codec.measure(messages.Representation(0, 0, np.zeros(1000))) == 8000
