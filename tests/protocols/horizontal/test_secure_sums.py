"""Changes summed under masks: the numbers of the open run, and nothing of a single site."""

from __future__ import annotations

import numpy as np
import pytest

from fedactors.errors import BadInput, PartyLost
from fedactors.inspection import describe_messages
from fedactors.protocols.horizontal import algorithm
from fedactors.protocols.horizontal.messages import sent
from fedactors.protocols.horizontal.plugin import PROTOCOL
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.network import Wire
from fedactors.secure_sums.messages import Masked
from fedactors.secure_sums.primitives import FixedPoint
from tests.arrays import arrays_in
from tests.protocols.horizontal.federation import changed, cut, play, rounds, vector_of

FEW = {"num_rounds": 2, "local_epochs": 1, "num_training": 120}


@pytest.mark.parametrize(
    "words",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "fedavgm"},
        {"algorithm": "fedadam", "clients_per_round": 3},
        {"weighting": "uniform", "clients_per_site": 2, "dropout_rate": 0.4},
    ],
)
def test_the_model_is_that_of_the_open_run(words):
    plain, opened, _ = play(changed(**FEW, **words))
    masked, hidden, _ = play(changed(**FEW, **words, secure_aggregation=True))
    # six sites are off by half a step each, in each of two rounds; steps of the training spread that
    assert np.abs(vector_of(opened) - vector_of(hidden)).max() < 2e-6
    assert np.abs(vector_of(opened) - vector_of(hidden)).max() > 0
    assert masked.metrics["test/accuracy"] == pytest.approx(plain.metrics["test/accuracy"], abs=0.01)
    told = [[entry[name] for entry in recorder.rounds] for recorder in (opened, hidden) for name in ("clients",)]
    assert told[0] == told[1]


def test_no_single_site_crosses(monkeypatch):
    """Whoever reads all that arrives anywhere finds no change of a site, and masks that are not its numbers."""
    crossed, made = [], []
    send, summand = Wire.send, algorithm.summand

    def listen(self, sender, receiver, method, value):
        crossed.append((sender, receiver, method, value))
        return send(self, sender, receiver, method, value)

    def keep(*args):
        made.append(summand(*args))
        return made[-1]

    bring = Wire._send_back

    def listen_back(self, call, reply):
        crossed.append((call.receiver.name, call.sender, "reply", reply))
        return bring(self, call, reply)

    monkeypatch.setattr(Wire, "send", listen)
    monkeypatch.setattr(Wire, "_send_back", listen_back)
    monkeypatch.setattr(algorithm, "summand", keep)
    config = changed(**FEW, secure_aggregation=True)
    _, _, runtime = play(config)
    point = FixedPoint(limit=config.secure_range, num_clients=6)
    secret = [point.encode(part) for part in made]
    masked = [value for *_, value in crossed if isinstance(value, Masked) and value.words.size > 1]
    assert len(masked) == len(secret) == 12
    for one in masked:
        assert all((one.words != words).mean() > 0.99 for words in secret)
    for sender, _, _, value in crossed:
        for array in arrays_in(value):
            if sender != "server" and array.dtype.kind == "f":
                assert array.size < 10  # no site sends numbers in the open
    types = {total.type for total in runtime.ledger.totals() if not total.type.endswith("()")}
    assert types <= {cls.__name__ for cls in sent(config)}
    assert "Change" not in types | {entry["message"] for entry in describe_messages(PROTOCOL, config)}


@pytest.mark.slow
def test_a_lost_site_leaves_its_sum_to_the_others():
    config = changed(**{**FEW, "num_rounds": 3}, secure_aggregation=True)
    _, _, runtime = play(config)
    _, recorder, _ = play(config, faults={"client-2": runtime.usage().seconds * 0.5})
    counts = [entry["clients"] for entry in recorder.rounds]
    assert counts[0] == 6
    assert counts[-1] == 5
    assert np.isfinite(vector_of(recorder)).all()


def test_too_few_that_are_left_end_the_run_with_a_name():
    config = changed(**{**FEW, "num_rounds": 4}, secure_aggregation=True, num_clients=3)
    _, _, runtime = play(config)
    with pytest.raises(PartyLost, match="secure aggregation needs 3"):
        play(config, faults={"client-1": runtime.usage().seconds * 0.5})


@pytest.mark.slow
def test_a_resumed_run_goes_on_exactly():
    config = changed(**{**FEW, "num_rounds": 4}, secure_aggregation=True)
    _, whole, _ = play(config, reproducible_noise=True)
    _, half = cut(config, 2, reproducible_noise=True)
    _, resumed, _ = play(config, resume=Snapshot(half.actors, half.driver), reproducible_noise=True)
    assert rounds(resumed)[-1] == rounds(whole)[-1]
    assert np.array_equal(vector_of(resumed), vector_of(whole))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"num_clients": 2}, "secure_aggregation: 2 sites are too few"),
        ({"clients_per_site": 3}, "secure_aggregation: 2 sites are too few"),
        ({"clients_per_round": 2}, "clients_per_round: 2 is not allowed .* use more than 2"),
        ({"clients_per_site": 2, "clients_per_round": 4}, "clients_per_round: 4 is not allowed .* use more than 4"),
        ({"secure_range": 1e-6}, "secure_range: 1e-06 is too small for a change of a client, or learning_rate: "),
    ],
)
def test_what_makes_a_sum_meaningless_is_refused(words, why):
    with pytest.raises(BadInput, match=why):
        play(changed(**FEW, **words, secure_aggregation=True))
