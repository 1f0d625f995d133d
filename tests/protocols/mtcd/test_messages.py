"""Messages say who receives them and what they reveal, and survive the codec."""

import numpy as np
import pytest

from fedactors.network import codec
from fedactors.network.transforms import Encoded
from protocols.mtcd import messages, walk
from protocols.mtcd.wire import Wire
from tests.protocols.mtcd.running import config_of

ENCODED = Wire.of(config_of("compression=quantise")).representation.encode(
    np.arange(3.0), None, np.random.default_rng(0)
)[0]
SAMPLES = [
    messages.Representation(1, 2, np.arange(3.0), 0.5),
    messages.Representation(1, 2, ENCODED, 0.0),
    messages.Token(
        1,
        0,
        1,
        2,
        7,
        2,
        walk.walk_seed(0, 1, 0),
        1e-3,
        -1,
        np.arange(4.0),
        {"w": np.ones((2, 2), np.float32)},
        1 << 900,
    ),
    messages.RoamingDone(1, 0, 0, 4, 1 << 4, 3),
    messages.Gather(1, ("client-1",)),
    messages.SyncTokens(1, ((0, 0), (1, 2)), 0.5, True),
    messages.SyncedZ(1, 1e-3, np.arange(4.0), {}, True),
    messages.Links((0, 1), "client-1"),
    messages.Labels(np.arange(3.0), np.arange(2)),
    messages.Probe(np.arange(3.0)),
    messages.ProbeImage(1, np.arange(3.0)),
    messages.DualVector(5, 1, np.arange(4.0)),
    messages.Measured(1, np.arange(4.0), 0.5),
]


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Encoded):
        return all(same(getattr(a, name), getattr(b, name)) for name in type(a).__slots__)  # type: ignore[attr-defined]
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
    assert all(cls.__message__.receiver and cls.__message__.reveals for cls in declared)  # type: ignore[attr-defined]


def test_a_token_of_a_linear_model_costs_its_n_numbers():
    token = messages.Token(0, 0, 0, 0, 9, 0, 1, 1e-3, -1, np.zeros(1000), {}, (1 << 1000) - 1)
    assert codec.measure(token) == 8000
    assert codec.measure(messages.Representation(0, 0, np.zeros(1000), 1.0)) == 8000
