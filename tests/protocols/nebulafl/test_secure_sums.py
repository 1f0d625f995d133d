"""Models of centers summed under masks: the numbers of the open run, nothing of one center, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput, FedactorsError, PartyLost, Refused
from fedactors.inspection import describe_messages
from fedactors.messages.codec import freeze
from fedactors.protocols.nebulafl.baselines import actors, secure_sums
from fedactors.protocols.nebulafl.baselines.actors import RoundExchange
from fedactors.protocols.nebulafl.messages import RoundResult, TotalWeight, sent
from fedactors.protocols.nebulafl.plugin import PROTOCOL
from fedactors.runtime.simulation.network import Wire
from fedactors.secure_sums.messages import Masked
from fedactors.secure_sums.primitives import FixedPoint
from tests.arrays import arrays_in
from tests.protocols.nebulafl.runs import changed, cut, play

ALGORITHMS = ("fedavg-hierarchical", "fedhisyn")
BASE = {"num_centers": 3, "num_rounds": 2, "num_training": 240, "on_party_loss": "stop", "model": "linear"}


def config_of(**words):
    return changed(**{**BASE, "algorithm": "fedhisyn", **words})


def model_of(recorder):
    return actor_state(recorder.checkpoints["final"].actors, "exchange")["parameters_P"]


@pytest.fixture(scope="module", params=ALGORITHMS)
def pair(request):
    """An open run and the masked one, and what crossed and was summed in the latter."""
    opened = play(config_of(algorithm=request.param))
    crossed, made = [], []
    with pytest.MonkeyPatch.context() as patch:
        listen(patch, crossed, made)
        masked = play(config_of(algorithm=request.param, secure_aggregation=True))
    return opened, masked, crossed, made


def listen(patch, crossed, made):
    send, bring, summand = Wire.send, Wire._send_back, secure_sums.summand

    def hear(self, sender, receiver, method, value):
        crossed.append((sender, receiver, value))
        return send(self, sender, receiver, method, value)

    def hear_back(self, call, reply):
        crossed.append((call.receiver.name, call.sender, reply))
        return bring(self, call, reply)

    def keep(*args):
        made.append(summand(*args))
        return made[-1]

    patch.setattr(Wire, "send", hear)
    patch.setattr(Wire, "_send_back", hear_back)
    patch.setattr(secure_sums, "summand", keep)


def test_the_model_is_that_of_the_open_run(pair):
    opened, masked, _, _ = pair
    one, other = (model_of(made[1]) for made in (opened, masked))
    assert 0 < np.abs(one - other).max() < 1e-5
    assert masked[0].metrics["test/accuracy"] == pytest.approx(opened[0].metrics["test/accuracy"], abs=0.02)
    assert masked[0].metrics["trainings"] == opened[0].metrics["trainings"]


def test_no_single_centers_model_crosses(pair):
    _, (_, _, runtime), crossed, made = pair
    centers = {sender for sender, _, _ in crossed} - {"exchange", "driver", "auditor"}
    assert len(centers) == 3
    point = FixedPoint(limit=100.0, num_clients=3)
    secret = [point.encode(one) for one in made]
    masked = [value for _, _, value in crossed if isinstance(value, Masked) and value.words.size > 1]
    assert len(masked) == len(made) == 6
    for one in masked:
        assert all((one.words[: len(words)] != words).mean() > 0.99 for words in secret)
    for sender, _, value in crossed:
        if sender in centers:
            assert not [array for array in arrays_in(value) if array.dtype.kind == "f" and array.size > 1]
    config = config_of(secure_aggregation=True)
    types = {total.type for total in runtime.ledger.totals() if not total.type.endswith("()")}
    assert types <= {cls.__name__ for cls in sent(config)}
    assert "RoundResult" not in types | {entry["message"] for entry in describe_messages(PROTOCOL, config)}


@pytest.mark.slow
def test_a_lost_center_leaves_its_sum_to_the_others(monkeypatch):
    config = config_of(
        secure_aggregation=True,
        on_party_loss="continue",
        num_rounds=4,
        num_centers=4,
        catalogue="market",
        network="market",
    )
    mean, found = secure_sums.RoundSums.mean, []

    async def keep(self, start):
        members = tuple(self.centers.members)
        found.append((self.centers._caller.clock.now(), members, await mean(self, start)))
        return found[-1][2]

    monkeypatch.setattr(secure_sums.RoundSums, "mean", keep)
    play(config)
    (first, _, _), (second, _, _) = found[:2]
    found.clear()
    play(config, faults={"virginia": (first + second) / 2})
    assert ["virginia" in members for _, members, _ in found] == [True, False, False, False]
    assert all(np.isfinite(model).all() for _, _, model in found)


def test_too_few_centers_end_the_run_with_a_name():
    config = config_of(secure_aggregation=True, on_party_loss="continue", num_rounds=400)
    with pytest.raises(PartyLost, match=r"virginia.*secure aggregation needs 3"):
        play(config, faults={"virginia": 3.0})


@pytest.mark.slow
def test_a_resumed_run_goes_on_exactly():
    config = config_of(secure_aggregation=True, num_rounds=3, evaluation_interval=200.0)
    _, whole, _ = play(config, reproducible_noise=True)
    _, half = cut(config, 5, reproducible_noise=True)
    _, resumed, _ = play(config, resume=half, reproducible_noise=True)
    # the bytes are more: keys are agreed upon anew
    assert np.array_equal(model_of(resumed), model_of(whole))


def test_an_exchange_that_asks_twice_of_other_centers_is_refused(monkeypatch):
    """The difference of two sums over one round is a center's model, be it weighted otherwise."""
    mean, found = secure_sums.RoundSums.mean, []

    async def twice(self, start):
        await mean(self, start)
        self.centers.on_loss = "drop"
        self.centers.leave("virginia")
        found.append("asked again")
        return await mean(self, start)

    monkeypatch.setattr(secure_sums.RoundSums, "mean", twice)
    with pytest.raises(FedactorsError, match="were summed before, among others"):
        play(
            config_of(
                secure_aggregation=True, num_centers=4, catalogue="market", network="market", on_party_loss="continue"
            )
        )
    assert found


def test_another_total_weight_is_refused(monkeypatch):
    weigh = secure_sums.RoundSums.weigh

    async def lie(self):
        await weigh(self)
        await self.centers.ask(lambda center: center.take_weight(TotalWeight(1.0)))

    monkeypatch.setattr(secure_sums.RoundSums, "weigh", lie)
    with pytest.raises(Refused, match="a second time"):
        play(config_of(secure_aggregation=True))


def test_a_fellow_center_may_ask_for_no_sum(monkeypatch):
    """Centers and exchange have one role; only the exchange may ask."""
    begin = actors.OrderCenter._go_on

    def ask(self):
        begin(self)
        if self.name == "oregon":
            self.background(self.peer("virginia", actors.OrderCenter).weigh())

    monkeypatch.setattr(actors.OrderCenter, "_go_on", ask)
    with pytest.raises(Refused, match=r"oregon: calls virginia\.weigh, which is open to its adder only: exchange"):
        play(config_of(secure_aggregation=True))


def test_a_bare_answer_is_refused(monkeypatch):
    async def bare(self):
        answer = RoundResult("oregon", 0, 1, 1, np.zeros(650, np.float32))
        await self.peer("exchange", RoundExchange).take(freeze(answer)[0])

    begin = actors.OrderCenter._go_on

    def speak(self):
        begin(self)
        if self.name == "oregon":
            self.background(bare(self))

    monkeypatch.setattr(actors.OrderCenter, "_go_on", speak)
    with pytest.raises(Refused, match="oregon: its answer is bare"):
        play(config_of(secure_aggregation=True))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"algorithm": "nebulafl"}, "algorithm: nebulafl .*masters go one by one from center to center"),
        ({"algorithm": "nebulafl", "ablation": "aggregation"}, "algorithm: nebulafl .*and to the auditor"),
        ({"algorithm": "fedhkt"}, "algorithm: fedhkt .*by that cluster's labels"),
        ({"algorithm": "fedbuff"}, "algorithm: fedbuff .*each container's model by itself"),
        ({"num_centers": 2, "num_containers": 8}, "num_centers: 2 .*use 3"),
        ({"on_party_loss": "restart"}, "on_party_loss: restart .*use stop or continue"),
    ],
)
def test_where_there_is_no_sum_to_hide_in_it_says_so(words, line):
    with pytest.raises((BadInput, ValueError), match=f"{line}"):
        config_of(secure_aggregation=True, **words)


def test_a_range_that_is_too_small_is_named():
    with pytest.raises(BadInput, match=r"secure_range: 1e-06 is too small for a change of "):
        play(config_of(secure_aggregation=True, secure_range=1e-6))
