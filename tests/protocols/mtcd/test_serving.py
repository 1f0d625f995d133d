"""Predictions of the trained model from its checkpoint, and each party's own part of it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fedactors.data.partitions import vertical
from fedactors.errors import BadInput
from fedactors.plugins import find_protocol
from protocols.mtcd.data import load_data
from protocols.mtcd.serving import export, predict
from tests.protocols.mtcd.running import config_of, merged, simulate

TABLE = "num_clients=3 num_tokens=1 num_hops=2 relaxed_protocol=true"


def trained(words, data="synthetic"):
    """Return (config, data, the actors' last states)."""
    _, kept, _ = simulate(words, data=data)
    config = config_of(merged(words))
    label, point = kept.checkpoints[-1]
    assert label == "final"
    return config, load_data(config, data, 3), point.actors


@pytest.mark.parametrize("algorithm", ["mtcd", "stcd", "svfl", "dcpa"])
def test_predictions_of_a_linear_model_are_z(algorithm):
    config, data, states = trained(f"algorithm={algorithm} topology=complete num_rounds=30")
    targets = data.labels()[0]
    found = predict(config, data, states)
    assert found.shape == targets.shape
    assert np.mean((found - targets) ** 2) < 0.5 * np.mean(targets**2)


def test_classes_of_named_data_come_in_the_order_of_its_rows():
    config, data, states = trained(f"{TABLE} problem=sparse-logistic num_rounds=60", "breast-cancer")
    labels = vertical("breast-cancer", data.parties).load(data.label_party).labels
    probability = predict(config, data, states)
    assert 0 <= probability.min() < probability.max() <= 1
    assert np.mean((probability > 0.5) == labels) > 0.9
    config, data, states = trained(f"{TABLE} num_rounds=30", "breast-cancer")
    classes = predict(config, data, states)
    assert set(classes) == {0, 1}
    assert np.mean(classes == labels) > 0.9


@pytest.mark.parametrize("words", ["", "algorithm=stcd", "aggregation=concatenation"])
def test_classes_of_a_network(words):
    words = f"problem=network num_clients=4 num_samples=120 network_width=8 num_local_steps=20 num_rounds=15 {words}"
    config, data, states = trained(words)
    found = predict(config, data, states)
    labels = np.concatenate(data.labels())
    assert found.shape == labels.shape
    assert np.mean(found == labels) > 0.5


def test_each_party_exports_its_own_part_with_its_scale(tmp_path):
    config, data, states = trained(f"{TABLE} problem=network network_width=4 batch_size=64", "breast-cancer")
    party = data.parties[1]
    weights, description = export(config, party, {party: states[party]}, tmp_path)
    facts = json.loads(description.read_text())
    block = data.load(party)
    assert facts["feature_names"] == list(block.feature_names)
    with np.load(weights) as found:
        assert sorted(found.files) == facts["arrays"]
        assert found["mean"].shape == (len(block.feature_names),)
        assert found["theta/0.weight"].shape == (4, len(block.feature_names))
    weights, _ = export(config, "server", {"server": states["server"]}, tmp_path)
    with np.load(weights) as found:
        assert found["theta_0/weight"].shape == (2, config.representation_size)


def test_what_is_not_there_is_named(tmp_path):
    config, data, states = trained("num_rounds=1")
    with pytest.raises(BadInput, match="no part at the server"):
        export(config, "server", states, tmp_path)
    with pytest.raises(BadInput, match="'client-2' has no part of the model"):
        predict(config, data, {name: state for name, state in states.items() if name != "client-2"})


def test_the_plugin_names_them():
    protocol = find_protocol("mtcd")
    assert (protocol.predict, protocol.export) == (predict, export)


def test_a_fresh_process_knows_the_messages_that_a_checkpoint_holds():
    code = "import sys, protocols.mtcd.serving; sys.exit('protocols.mtcd.messages' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
