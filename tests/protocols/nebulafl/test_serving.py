"""Predictions and exports of finished runs."""

import numpy as np
import pytest
import torch

from fedactors.api import load_part
from fedactors.data.new_rows import NoPart
from fedactors.errors import BadInput
from fedactors.protocols.nebulafl import serving
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.plugin import PROTOCOL
from fedactors.serving.parts import write_part
from tests.protocols.nebulafl.runs import changed, play
from tests.serving.predicting import predicted

SHORT = changed(duration=1300.0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "gitfl", "fedhisyn", "fedbuff"])
def test_predictions_are_those_that_were_measured(algorithm, tmp_path):
    config = changed(SHORT, algorithm=algorithm)
    result, recorder, _ = play(config)
    data = load_data(config, "digits", 0)
    states = recorder.checkpoints["final"].actors
    said, runtime = predicted(serving.predict, config, data, states, tmp_path)
    block = data.test().load()
    assert np.mean(said["prediction"] == block.labels) == pytest.approx(result.metrics["test/accuracy"])
    # the global model alone travels, and is an artefact of its own
    write_part(serving.part(config, "auditor", {"auditor": states["auditor"]}), tmp_path / "auditor")
    part = load_part(tmp_path / "auditor")
    with torch.no_grad():
        found = part.bottom(torch.tensor(block.features)).argmax(1).numpy()
    np.testing.assert_array_equal(found, said["prediction"])
    size = sum(value.numel() for value in part.bottom.state_dict().values())
    models = [t.bytes for t in runtime.ledger.totals() if t.type == "WholeModel"]
    assert 4 * size <= sum(models) < 8 * size


@pytest.mark.slow
def test_each_center_exports_its_master_whose_mean_is_the_global_model(tmp_path):
    _, recorder, _ = play(SHORT)
    states = recorder.checkpoints["final"].actors
    centers = [name for name in states if name != "auditor"]
    masters = [serving.part(SHORT, name, {name: states[name]}).models["bottom"].vector for name in centers]
    found = serving.part(SHORT, "auditor", {"auditor": states["auditor"]}).models["bottom"].vector
    np.testing.assert_allclose(found, np.mean(masters, axis=0), rtol=0, atol=1e-6)
    assert not np.array_equal(masters[0], masters[1])
    with pytest.raises(BadInput, match="the checkpoint holds no model"):
        predicted(serving.predict, SHORT, load_data(SHORT, "digits", 0), {"oregon": states["oregon"]}, tmp_path)


@pytest.mark.slow
def test_who_has_no_model_exports_none():
    config = changed(SHORT, algorithm="fedavg")
    _, recorder, _ = play(config)
    states = recorder.checkpoints["final"].actors
    with pytest.raises(NoPart, match=r"oregon.*no part of the model"):
        serving.part(config, "oregon", {"oregon": states["oregon"]})
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
