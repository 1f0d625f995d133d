import json

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.learning.metrics import auc
from fedactors.learning.network import Model
from fedactors.plugins import find_protocol
from protocols.pubsub_vfl import algorithm, messages
from protocols.pubsub_vfl.data import load_data
from protocols.pubsub_vfl.serving import export, predict
from tests.protocols.pubsub_vfl.runs import arrays, config_of, simulate


def test_predictions_are_those_of_the_trained_model():
    done = simulate(num_epochs=8)
    states = done.recorder.checkpoints["final"].actors
    config = config_of(num_epochs=8)
    data = load_data(config, "breast-cancer", 0)
    probability = predict(config, data, states)
    labels = data.load("active").labels
    assert probability.shape == labels.shape
    assert 0 <= probability.min() < probability.max() <= 1
    assert auc(labels, probability) == pytest.approx(done.result.metrics["test/auc"], abs=0.05)


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_other_tasks_predict_in_the_units_of_the_labels(task):
    done = simulate(arrays(task), num_epochs=20, hidden_size=16, embedding_size=8)
    labels = arrays(task).load("active").labels
    found = predict(
        config_of(hidden_size=16, embedding_size=8), arrays(task), done.recorder.checkpoints["final"].actors
    )
    if task == "regression":
        assert np.sqrt(np.mean((found - labels) ** 2)) < 0.7 * labels.std()
    else:
        assert np.mean(found == labels) > 0.6


def test_each_party_exports_its_own_part_with_its_scale(tmp_path):
    done = simulate(num_epochs=1)
    states = done.recorder.checkpoints["final"].actors
    config = config_of(num_epochs=1)
    for party, names in (("active", {"bottom", "top"}), ("passive", {"bottom"})):
        weights, description = export(config, party, {k: v for k, v in states.items() if k.startswith(party)}, tmp_path)
        with np.load(weights) as found:
            assert set(found.files) == names | {"mean", "deviation"}
            bottom = found["bottom"]
        facts = json.loads(description.read_text())
        block = load_data(config, "breast-cancer", 0).load(party)
        assert facts["feature_names"] == list(block.feature_names)
        spec = algorithm.bottom_spec(config, len(facts["feature_names"]))
        assert algorithm.embed_rows(Model(spec, bottom), block.features).shape == (569, 4)
    with pytest.raises(BadInput, match="broker"):
        export(config, "broker", {}, tmp_path)


def test_the_plugin_names_all_of_it_and_messages_have_shapes():
    protocol = find_protocol("pubsub-vfl")
    assert protocol.predict is predict
    assert protocol.export is export
    assert messages.shapes(config_of(batch_size=32))["Embedding"]["values"] == (32, 4)
