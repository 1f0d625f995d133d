"""Messages say who receives them and what they reveal, and survive the codec."""

import numpy as np
import pytest

from fedactors.messages import codec
from fedactors.protocols.mtcd import messages
from fedactors.protocols.mtcd.message_compression import Transforms
from tests.protocols.mtcd.running import config_of

ENCODED = Transforms.of(config_of("compression=quantise")).representation.encode(
    np.arange(3.0), None, np.random.default_rng(0)
)[0]
SAMPLES = [
    messages.Representation(1, np.arange(3.0), 0.5),
    messages.Representation(1, ENCODED, 0.0),
    messages.Token(1, 0, 1, 2, 7, 1e-3, -1, 1 << 900, np.arange(4.0), np.ones(4, np.float32)),
    messages.Prelude(1, (0, 1, 0, 2), 3, 7, 1e-3, 0, np.arange(4.0), np.ones(4, np.float32)),
    messages.RoamingDone(1, 0, 0, 1 << 4),
    messages.Gather(1),
    messages.SyncTokens(1, ((1, 2),), 0.5, True),
    messages.SyncedZ(1, 1e-3, np.arange(4.0), np.zeros(0), True),
    messages.Relayed(("client-1",), 3, bytes(32), messages.Gather(1)),
    messages.RelayedZ(("client-1",), 4, bytes(32), messages.SyncedZ(1, 1e-3, np.arange(4.0), np.zeros(0), True)),
    messages.OrderKey(bytes(range(32))),
    messages.Links((0, 1), "client-1", -1),
    messages.LostClient("client-1"),
    messages.Aligned(3, 5, 1, (("shop", 2),)),
    messages.Labels(np.arange(3.0), np.arange(2), np.ones(3)),
    messages.NormOrder(),
    messages.SquaredNorm(3.0),
    messages.SafeStep(3.0),
    messages.RoundOrder(1, 1e-3, False),
    messages.WalkOrder(9, 1e-3, (0, 1)),
    messages.TokenAtRest(4),
    messages.IterateOrder(0, 5, 1e-3, 0.1, 0.2),
    messages.RowCount(70, 30),
    messages.MeasureOrder("test"),
    messages.ScoreOrder("test", np.arange(4.0), np.zeros(0)),
    messages.Quality({"loss": 0.5, "rmse": 0.25}),
    messages.Objective(0.5),
    messages.FusionParameters(np.ones(4, np.float32)),
    messages.Probe(np.arange(3.0)),
    messages.ProbeImage(np.arange(3.0)),
    messages.DualVector(5, np.arange(4.0)),
    messages.Measured(np.arange(4.0), 0.5),
]


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if hasattr(type(a), "__message__"):
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
    assert all(cls.__message__.reveals for cls in declared)  # type: ignore[attr-defined]


def test_a_token_of_a_linear_model_costs_its_n_numbers():
    token = messages.Token(0, 0, 0, 0, 9, 1e-3, -1, (1 << 1000) - 1, np.zeros(1000), np.zeros(0))
    assert codec.measure(token) == 8000 + 126  # and a bit for each client that it has visited
    assert codec.measure(messages.Representation(0, np.zeros(1000), 1.0)) == 8000
