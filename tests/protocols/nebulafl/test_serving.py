"""Predictions and exports of finished runs."""

import json

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec, build_skeleton
from protocols.nebulafl.data import load_data
from protocols.nebulafl.plugin import PROTOCOL
from protocols.nebulafl.serving import export, predict
from tests.protocols.nebulafl.runs import changed, play

SHORT = changed(duration=1300.0)


@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "gitfl", "fedhisyn", "fedbuff"])
def test_predictions_are_those_that_were_measured(algorithm):
    config = changed(SHORT, algorithm=algorithm)
    result, recorder, _ = play(config)
    data = load_data(config, "digits", 0)
    classes = predict(config, data, recorder.checkpoints["final"].actors)
    labels = data.test().load().labels
    assert (classes == labels).mean() == pytest.approx(result.metrics["test/accuracy"])


def test_each_center_exports_its_master_by_layer(tmp_path):
    _, recorder, _ = play(SHORT)
    states = recorder.checkpoints["final"].actors
    weights, description = export(SHORT, "oregon", {"oregon": states["oregon"]}, tmp_path)
    facts = json.loads(description.read_text())
    spec = ModelSpec(name=facts["model"], inputs=tuple(facts["inputs"]), outputs=facts["outputs"])
    module = build_skeleton(spec, "cpu")
    with np.load(weights) as found:
        module.load_state_dict({name: torch.tensor(found[name]) for name in found.files})
    alone = predict(SHORT, load_data(SHORT, "digits", 0), {"oregon": states["oregon"]})
    features = load_data(SHORT, "digits", 0).test().load().features
    with torch.no_grad():
        np.testing.assert_array_equal(module(torch.tensor(features)).argmax(1).numpy(), alone)


def test_who_has_no_model_exports_none(tmp_path):
    config = changed(SHORT, algorithm="fedavg")
    _, recorder, _ = play(config)
    states = recorder.checkpoints["final"].actors
    for party in ("auditor", "oregon"):
        with pytest.raises(BadInput, match=f"{party}.*no part of the model"):
            export(config, party, {party: states[party]}, tmp_path)
    assert [path.name for path in export(config, "exchange", {"exchange": states["exchange"]}, tmp_path)] == [
        "exchange.npz",
        "exchange.json",
    ]


def test_rows_of_another_shape_are_refused():
    _, recorder, _ = play(SHORT)
    other = load_data(changed(SHORT, model="linear"), "breast-cancer", 0)
    with pytest.raises(BadInput, match="shape"):
        predict(SHORT, other, recorder.checkpoints["final"].actors)


def test_the_plugin_names_both():
    assert PROTOCOL.predict is predict
    assert PROTOCOL.export is export
