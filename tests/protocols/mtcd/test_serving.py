"""Predictions of the trained model from its checkpoint, and each party's own part of it."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import CLIENT, remote
from fedactors.api import load_part
from fedactors.data.alignment.ids import AlignmentOrder, hash_ids
from fedactors.data.layouts.vertical import replaced_rows, vertical
from fedactors.data.new_rows import NoPart
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.inspection import describe_predictions
from fedactors.plugins import find_protocol
from fedactors.privacy.noise import observing
from fedactors.protocols.mtcd import serving
from fedactors.protocols.mtcd.data import load_data
from fedactors.secure_sums.actors import SecureSums
from fedactors.serving.parts import write_part
from fedactors.serving.predictions import RowOrder, Summed
from tests.protocols.mtcd.running import config_of, merged, simulate
from tests.serving.predicting import predicted

TABLE = "num_clients=3 num_tokens=1 num_hops=2 relaxed_protocol=true"


def trained(words, data="synthetic"):
    """Return (config, data, the actors' last states)."""
    _, kept, _ = simulate(words, data=data)
    config = config_of(merged(words, data))
    label, point = kept.checkpoints[-1]
    assert label == "final"
    return config, load_data(config, data, 3), point.actors


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mtcd", "stcd", "svfl", "dcpa"])
def test_predictions_of_a_linear_model_are_z(algorithm, tmp_path):
    config, data, states = trained(f"algorithm={algorithm} topology=complete num_rounds=30")
    targets = data.labels()[0]
    said, _ = predicted(serving.predict, config, data, states, tmp_path)
    assert len(said["prediction"]) == len(targets)
    assert np.mean((said["prediction"] - targets) ** 2) < 0.5 * np.mean(targets**2)


@pytest.mark.slow
def test_classes_of_named_data_come_in_the_order_of_its_rows(tmp_path):
    config, data, states = trained(f"{TABLE} problem=sparse-logistic num_rounds=60", "breast-cancer")
    labels = vertical("breast-cancer", data.parties).load(data.label_party).labels
    for words in (f"{TABLE} problem=sparse-logistic num_rounds=60", f"{TABLE} num_rounds=30"):
        config, data, states = trained(words, "breast-cancer")
        said, _ = predicted(serving.predict, config, data, states, tmp_path)
        assert np.mean(said["prediction"] == labels) > 0.9
        assert all(0 <= share <= 1 for share in said["probability_1"])


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "algorithm=stcd", "aggregation=concatenation"])
def test_classes_of_a_network(words, tmp_path):
    words = f"problem=network num_clients=4 num_samples=120 hidden_size=8 num_local_steps=20 num_rounds=15 {words}"
    config, data, states = trained(words)
    said, _ = predicted(serving.predict, config, data, states, tmp_path)
    labels = np.concatenate(data.labels())
    assert len(said["prediction"]) == len(labels)
    assert np.mean(said["prediction"] == labels) > 0.5


@pytest.mark.slow
def test_exported_parts_together_say_what_prediction_says(tmp_path):
    config, data, states = trained(f"{TABLE} problem=network hidden_size=4 batch_size=64", "breast-cancer")
    said, _ = predicted(serving.predict, config, data, states, tmp_path)
    parts = {}
    for party in (*data.parties, "server"):
        write_part(serving.part(config, party, {party: states[party]}), tmp_path / party)
        parts[party] = load_part(tmp_path / party)
    rows = {party: data.load(party) for party in data.parties}
    with torch.no_grad():
        z = 0
        for party in data.parties:
            columns = dict(zip(rows[party].feature_names, rows[party].features.T, strict=True))
            z = z + parts[party].bottom(parts[party].preprocess(columns))
        found = torch.softmax(parts["server"].top(torch.relu(z)), dim=1)
    np.testing.assert_allclose(found[:, 1], said["probability_1"], atol=1e-6)


def test_new_rows_leave_under_the_noise_of_training(tmp_path):
    words = f"{TABLE} problem=sparse-logistic num_rounds=2 noise=gaussian noise_multiplier=4.0 learning_rate=0.1"
    config, data, states = trained(words, "breast-cancer")
    said, runtime = predicted(serving.predict, config, data, states, tmp_path)
    assert [record.party for record in runtime.privacy_records] == ["client-1", "client-2"]
    assert all(record.rigorous_mu == pytest.approx(0.5) for record in runtime.privacy_records)
    again, _ = predicted(serving.predict, config, data, states, tmp_path)
    assert said["probability_1"] != again["probability_1"]


def heard(config, data, states, folder):
    """Return what client-1 put under noise in a prediction, its law, and the ledger's line."""
    found = []

    def keep(exact, law, draw, name):
        found.append((name, exact, law))
        return draw()

    with observing(keep):
        _, runtime = predicted(serving.predict, config, data, states, folder)
    line = next(record for record in runtime.privacy_records if record.party == "client-1")
    (one, _) = [(exact, law) for name, exact, law in found if name == "Contribution"]
    return *one, line


def test_a_new_row_moves_no_more_than_its_line_says_whatever_it_holds(tmp_path):
    """Also a row that was trained on: the model stays; what training told of it is in the account of the training."""
    words = f"{TABLE} problem=sparse-logistic num_rounds=2 noise=gaussian noise_multiplier=4.0 learning_rate=0.1"
    config, data, states = trained(words, "breast-cancer")
    exact, law, line = heard(config, data, states, tmp_path)
    moved = []
    for neighbour in replaced_rows(data, "client-1", 6, 0, keep_label=True):
        other, _, _ = heard(config, neighbour.data, states, tmp_path)
        assert np.count_nonzero((other != exact).reshape(len(exact), -1).any(axis=1)) <= 1
        moved.append(law.mu(exact, other))
    assert (line.neighbour, line.covered) == ("new row", True)
    assert 0.5 * line.rigorous_mu < max(moved) <= line.rigorous_mu * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["sparse-logistic", "network hidden_size=4 batch_size=64"])
def test_new_rows_leave_under_the_masks_of_training(problem, tmp_path):
    words = f"{TABLE} problem={problem} num_rounds=2 secure_aggregation=true learning_rate=0.1"
    config, data, states = trained(words, "breast-cancer")
    said, runtime = predicted(serving.predict, config, data, states, tmp_path)
    sent = {total.type for total in runtime.ledger.totals() if not total.type.endswith("()")}  # calls without content
    assert {"Masked", "Summed"} <= sent
    assert "Contribution" not in sent
    listed = {entry["message"] for entry in describe_predictions(find_protocol("mtcd"), config)}
    assert sent <= listed
    assert "Contribution" not in listed
    # what the same parameters say in the open
    bare, _ = predicted(serving.predict, dataclasses.replace(config, secure_aggregation=False), data, states, tmp_path)
    assert said["prediction"] == bare["prediction"]
    np.testing.assert_allclose(said["probability_1"], bare["probability_1"], atol=1e-6)


NO_PARTS, NO_DIGESTS = np.zeros(0, np.uint8), np.zeros((0, 32), np.uint8)


class CrookedLabels(serving.SummedLabels):
    """Has one party add up the same rows in another order: the difference to an honest question is of its rows."""

    async def _contributions(self, peers, rows):
        turned = np.random.default_rng(0).permutation(rows)
        salt = b"s" * 32
        order = AlignmentOrder(salt, hash_ids(self._new.ids[turned], salt), NO_PARTS)
        await peers["client-1"].take_order(order)
        return await super()._contributions(peers, rows)


class LateLabels(serving.SummedLabels):
    """Turns a party's order while the parties compare theirs."""

    @remote(caller=CLIENT, unbounded="hostile")
    async def tell_order(self) -> RowOrder:
        told = await super().tell_order()
        await self.peer("client-1", serving.SummedClient).take_order(AlignmentOrder(b"", NO_DIGESTS, NO_PARTS))
        return told


class EarlyLabels(serving.SummedLabels):
    """Asks for the fingerprint before there is a key that it is under, to test guesses with."""

    async def _contributions(self, peers, rows):
        await peers["client-1"].tell_order()


SUMMED = f"{TABLE} problem=sparse-logistic num_rounds=1 secure_aggregation=true learning_rate=0.1"


@pytest.fixture(scope="module")
def summed():
    data = load_data(config_of(merged(SUMMED)), "breast-cancer", 3)
    return trained(SUMMED, dataclasses.replace(data, alignment="hash"))


@pytest.mark.parametrize(
    ("liar", "why"),
    [
        (CrookedLabels, r"client-0: has client-\d and client-\d add up different rows, or in other orders"),
        (LateLabels, "client-0: orders the rows of client-1 anew when they are being added up"),
        (EarlyLabels, "client-0: asks client-1 for the order of rows that are not being added up"),
    ],
)
def test_two_questions_cannot_pair_one_partys_rows_with_others_of_the_others(liar, why, summed, tmp_path, monkeypatch):
    config, data, states = summed
    said, runtime = predicted(serving.predict, config, data, states, tmp_path)
    assert [(one.mechanism, one.neighbour) for one in runtime.privacy_records] == [("secure-sum", "new row")] * 3
    again, _ = predicted(serving.predict, config, data, states, tmp_path)  # in another order, drawn anew
    np.testing.assert_allclose(said["probability_1"], again["probability_1"], atol=1e-6)
    monkeypatch.setattr(serving, "SummedLabels", liar)
    with pytest.raises(Refused, match=why):
        predicted(serving.predict, config, data, states, tmp_path)


class Omitting(serving.RepresentationExchange):
    """Adds up without one party, once all have a key in common: the difference to an honest sum is its part."""

    @remote(caller=CLIENT, only="label_party", unbounded="hostile")
    async def sum_up(self) -> Summed:
        await SecureSums(self, ActorGroup(self, self._parties, timeout=60.0), num_sums=1).prepare(1)
        parties = ActorGroup(self, self._parties[:-1], timeout=60.0)
        sums = SecureSums(self, parties, num_sums=1)
        sums._number = 1  # a second call for keys, of fewer
        await sums.prepare(1)
        parts = await parties.ask(lambda party: party.add_up())
        total, whose = await sums.total(parts, self.point, Work("unmask", 1.0))
        assert whose == ("client-0", "client-1", "client-2")
        return Summed(total)


def test_an_exchange_cannot_leave_a_party_out(tmp_path, monkeypatch):
    """Four parties, of whom three are enough for a sum; nobody remembers from one prediction to the next."""
    config, data, states = trained(SUMMED.replace("num_clients=3", "num_clients=4"), "breast-cancer")
    predicted(serving.predict, config, data, states, tmp_path)
    monkeypatch.setattr(serving, "RepresentationExchange", Omitting)
    with pytest.raises(FedactorsError, match="without client-3 a sum would show"):
        predicted(serving.predict, config, data, states, tmp_path)


class NosyLabels(serving.SummedLabels):
    """Asks for a contribution in the open."""

    async def _contributions(self, peers, rows):
        await next(iter(peers.values())).contribute()


def test_a_label_party_is_given_the_sum_alone(tmp_path, monkeypatch):
    words = f"{TABLE} problem=sparse-logistic num_rounds=1 secure_aggregation=true learning_rate=0.1"
    config, data, states = trained(words, "breast-cancer")
    monkeypatch.setattr(serving, "SummedLabels", NosyLabels)
    with pytest.raises(Refused, match="a contribution that sums are to hide"):
        predicted(serving.predict, config, data, states, tmp_path)


def test_what_is_not_there_is_named(tmp_path):
    config, data, states = trained("num_rounds=1")
    with pytest.raises(NoPart, match="no part at the server"):
        serving.part(config, "server", states)
    with pytest.raises(BadInput, match="'client-2' has no part of the model"):
        predicted(serving.predict, config, data, {n: state for n, state in states.items() if n != "client-2"}, tmp_path)


def test_the_plugin_names_them():
    protocol = find_protocol("mtcd")
    assert (protocol.predict, protocol.export) == (serving.predict, serving.part)


@pytest.mark.slow
def test_a_fresh_process_knows_the_messages_that_a_checkpoint_holds():
    code = (
        "import sys, fedactors.protocols.mtcd.serving; sys.exit('fedactors.protocols.mtcd.messages' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
