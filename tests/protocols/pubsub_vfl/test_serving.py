import dataclasses

import pytest

from fedactors.data.new_rows import NoPart, actor_state
from fedactors.errors import BadInput
from fedactors.learning.metrics import auc
from fedactors.plugins import find_protocol
from fedactors.privacy.accounting import claims
from fedactors.protocols.pubsub_vfl import algorithm, messages, serving
from fedactors.protocols.pubsub_vfl.data import load_data
from tests.protocols.pubsub_vfl.runs import arrays, config_of, simulate
from tests.serving.predicting import predicted


@pytest.mark.slow
def test_predictions_are_those_of_the_trained_model(tmp_path):
    done = simulate(num_epochs=8)
    config = config_of(num_epochs=8)
    data = load_data(config, "breast-cancer", 0)
    said, _ = predicted(serving.predict, config, data, done.recorder.checkpoints["final"].actors, tmp_path)
    labels = data.load("active").labels
    assert said["id"] == list(range(569))
    assert auc(labels, said["probability_1"]) == pytest.approx(done.result.metrics["test/auc"], abs=0.05)
    assert [p == (q > 0.5) for p, q in zip(said["prediction"], said["probability_1"], strict=True)] == [True] * 569


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_other_tasks_predict_in_the_units_of_the_labels(task, tmp_path):
    settings = {"num_epochs": 20, "hidden_size": 16, "embedding_size": 8}
    data = arrays(task)
    done = simulate(data, **settings)
    labels = data.load("active").labels
    said, _ = predicted(
        serving.predict, config_of(**settings), data, done.recorder.checkpoints["final"].actors, tmp_path
    )
    if task == "regression":
        gaps = [(found - label) ** 2 for found, label in zip(said["prediction"], labels, strict=True)]
        assert (sum(gaps) / len(gaps)) ** 0.5 < 0.7 * labels.std()
    else:
        assert sum(found == label for found, label in zip(said["prediction"], labels, strict=True)) > 0.6 * len(labels)
        assert sum(said[f"probability_{c}"][0] for c in range(3)) == pytest.approx(1)


@pytest.mark.parametrize("noisy", [{"embedding_mu": 2.0, "bottom_training": "frozen"}, {"privacy_mu": 2.0}])
def test_new_rows_leave_under_the_noise_of_training_and_the_ledger_claims_nothing_of_others(noisy, tmp_path):
    noisy = {"num_epochs": 1, **noisy}
    done = simulate(**noisy)
    config = config_of(**noisy)
    data = load_data(config, "breast-cancer", 0)
    states = done.recorder.checkpoints["final"].actors
    (first, runtime), (second, _) = (predicted(serving.predict, config, data, states, tmp_path) for _ in range(2))
    assert first["probability_1"] != second["probability_1"]
    (record,) = runtime.privacy_records
    assert (record.party, record.message_type, record.neighbour) == ("passive", "Contribution", "new row")
    assert "training rows, and which rows can be used, are not covered" in record.note
    assert set(claims([record])) == {("passive", "new row")}  # nothing on rows of the training
    sigma = algorithm.embedding_sigma(config, actor_state(states, "passive/worker-0")["rows"]["num_train"])
    assert record.rigorous_mu == pytest.approx(2 * config.clip_norm / sigma)
    if "privacy_mu" in noisy:  # the paper's noise: what is nominal for a row of the training is claimed of no row
        assert record.rigorous_mu > 2.0
        lines = done.recorder.privacy_records
        assert not any(one.covered for one in claims(lines).values())


def test_each_party_has_its_own_part_and_others_have_none():
    done = simulate(num_epochs=1)
    states = done.recorder.checkpoints["final"].actors
    config = config_of(num_epochs=1)
    for party, names in (("active", {"bottom", "top"}), ("passive", {"bottom"})):
        part = serving.part(config, party, {k: v for k, v in states.items() if k.startswith(party)})
        block = load_data(config, "breast-cancer", 0).load(party)
        assert set(part.models) == names
        assert part.preprocessing.feature_names == block.feature_names
        assert part.bottom(part.preprocess({name: [0.0] for name in block.feature_names})).shape == (1, 4)
    with pytest.raises(NoPart, match="broker"):
        serving.part(config, "broker", states)
    with pytest.raises(BadInput, match=r"passive has no top model"):
        _ = part.top


def test_the_labels_party_is_that_of_training(tmp_path):
    done = simulate(num_epochs=1)
    data = dataclasses.replace(load_data(config_of(), "breast-cancer", 0), label_party="passive")
    with pytest.raises(BadInput, match=r"label: 'passive' is not allowed: active had the labels in training"):
        predicted(serving.predict, config_of(), data, done.recorder.checkpoints["final"].actors, tmp_path)


def test_the_plugin_names_all_of_it_and_messages_have_shapes():
    protocol = find_protocol("pubsub-vfl")
    assert protocol.predict is serving.predict
    assert protocol.export is serving.part
    assert messages.shapes(config_of(batch_size=32))["Embedding"]["values"] == (32, 4)
