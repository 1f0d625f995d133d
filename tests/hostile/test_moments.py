"""Sums are of states of one moment: a driver that takes checkpoints when it likes reads no client alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedactors.config import build
from fedactors.data.new_rows import StoredState
from fedactors.errors import FedactorsError
from fedactors.plugins import find_protocol
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.serving.predictions import Application
from tests.keeping import Keeping

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]
TRAINED: Mapping[str, Mapping[str, Any]] = {
    "mtcd": {"num_clients": 3, "problem": "sparse-logistic", "learning_rate": 0.1, "relaxed_protocol": True},
    "glasu": {"num_clients": 3},
    "tablepuppet": {"algorithm": "rfl-sgd-v"},
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_prediction_is_of_states_of_one_moment(tmp_path: Path, name: str) -> None:
    """Of all but one the state of before the training is taken: the sum would be what is known and one's part."""
    protocol = find_protocol(name)
    words = {**protocol.smoke, **TRAINED[name], "on_party_loss": "stop", "secure_aggregation": True}
    config, recorder = build(protocol.Config, words), Keeping()
    assert protocol.load_data is not None
    data = protocol.load_data(config, protocol.default_data, 1)
    runtime = SimulatedRuntime(seed=1, recorder=recorder)
    runtime.execute(lambda: protocol.run(config, data, runtime))
    moments = [point.actors for point in recorder.all]
    clients = [one for one in moments[-1] if not one.startswith("server") and one in moments[0]]

    def predicted(states: Mapping[str, bytes]) -> None:
        stored = {actor: StoredState(actor=actor, frame=frame) for actor, frame in states.items()}
        predict, asked = protocol.predict, Application(stored=stored, to=str(tmp_path / "p.csv"))
        assert predict is not None
        again = SimulatedRuntime(seed=1)
        again.execute(lambda: predict(config, data, again, asked))

    predicted(moments[-1])
    heard = [StoredState(actor=clients[0], frame=one[clients[0]]).read()["history"] for one in moments]
    before = next(one for one, told in zip(reversed(moments), reversed(heard), strict=True) if told != heard[-1])
    with pytest.raises(FedactorsError, match="or was told otherwise what to add up"):
        predicted({**moments[-1], **{name: before[name] for name in clients[1:]}})


def test_where_sites_return_a_sum_follows_from_nothing_that_they_keep() -> None:
    """Of two sums in which what one site keeps alone differs the difference is that site's."""
    kept = {"personal": {"algorithm": "ditto"}, "local parameters": {"local_parameters": "norm"}}
    kept |= {"controls": {"algorithm": "scaffold"}}
    for words in kept.values():
        assert not HorizontalConfig(on_party_loss="continue", **words).secure_aggregation
        with pytest.raises((FedactorsError, ValueError), match="not allowed with secure_aggregation"):
            HorizontalConfig(min_sites=4, secure_aggregation=True, on_party_loss="continue", **words)
