"""Predictions and exports of finished runs."""

import numpy as np
import pytest
import torch

from fedactors.api import load_part
from fedactors.data.new_rows import NoPart
from fedactors.errors import BadInput
from fedactors.serving.parts import write_part
from protocols.nebulafl import serving
from protocols.nebulafl.data import load_data
from protocols.nebulafl.plugin import PROTOCOL
from tests.protocols.nebulafl.runs import changed, play
from tests.serving.predicting import predicted

SHORT = changed(duration=1300.0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "gitfl", "fedhisyn", "fedbuff"])
def test_predictions_are_those_that_were_measured(algorithm, tmp_path):
    config = changed(SHORT, algorithm=algorithm)
    result, recorder, _ = play(config)
    data = load_data(config, "digits", 0)
    said, _ = predicted(serving.predict, config, data, recorder.checkpoints["final"].actors, tmp_path)
    labels = data.test().load().labels
    assert np.mean(said["prediction"] == labels) == pytest.approx(result.metrics["test/accuracy"])


@pytest.mark.slow
def test_each_center_exports_its_master_by_layer(tmp_path):
    _, recorder, _ = play(SHORT)
    states = recorder.checkpoints["final"].actors
    write_part(serving.part(SHORT, "oregon", {"oregon": states["oregon"]}), tmp_path / "oregon")
    data = load_data(SHORT, "digits", 0)
    alone, _ = predicted(serving.predict, SHORT, data, {"oregon": states["oregon"]}, tmp_path)
    with torch.no_grad():
        found = load_part(tmp_path / "oregon").bottom(torch.tensor(data.test().load().features))
    np.testing.assert_array_equal(found.argmax(1).numpy(), alone["prediction"])


@pytest.mark.slow
def test_who_has_no_model_exports_none():
    config = changed(SHORT, algorithm="fedavg")
    _, recorder, _ = play(config)
    states = recorder.checkpoints["final"].actors
    for party in ("auditor", "oregon"):
        with pytest.raises(NoPart, match=f"{party}.*no part of the model"):
            serving.part(config, party, {party: states[party]})
    assert set(serving.part(config, "exchange", {"exchange": states["exchange"]}).models) == {"bottom"}


@pytest.mark.slow
def test_rows_of_another_shape_are_refused(tmp_path):
    _, recorder, _ = play(SHORT)
    other = load_data(changed(SHORT, model="linear"), "breast-cancer", 0)
    with pytest.raises(BadInput, match="shape"):
        predicted(serving.predict, SHORT, other, recorder.checkpoints["final"].actors, tmp_path)


def test_the_plugin_names_both():
    assert PROTOCOL.predict is serving.predict
    assert PROTOCOL.export is serving.part
