import dataclasses

import pytest
from pydantic import Field

from fedactors.config import build, config
from fedactors.plugins import resolve_address
from fedactors.protocols.mtcd.plugin import PROTOCOL as MTCD
from fedactors.testing.conformance import NotConforming, check_protocol
from tests.testing.reviewed import check_remarks
from tests.testing.scattered import Scattered, Stuck
from tests.testing.sound import SOUND, Right, protocol, run_split

pytestmark = pytest.mark.slow

SPLIT = SOUND["split learning"]


def test_messages_must_be_in_the_module_of_messages():
    check_remarks(dataclasses.replace(SPLIT, messages=None), "the protocol names no module of messages")
    check_remarks(dataclasses.replace(SPLIT, messages=pytest), "the privacy review, does not know it")


def test_a_policy_that_no_actor_survives_is_refused():
    loss = {"party_loss": frozenset({"restart"}), "default_party_loss": "restart"}
    check_remarks(dataclasses.replace(SPLIT, **loss), "party_loss names 'restart', but the loss of none of")


def test_a_run_without_checkpoints_is_refused(monkeypatch):
    async def none(self, label="last"):
        return None

    monkeypatch.setattr("fedactors.runtime.simulation.runtime.SimulatedRuntime.checkpoint", none)
    check_remarks(SPLIT, "the run takes no checkpoint")


@config
class Careless:
    """Settings without care."""

    num_rounds: int = 3
    """Rounds to run."""
    noise: float = 0.5
    """Standard deviation."""
    batch_size: int = Field(default=64, ge=8)


def test_a_careless_config_is_refused():
    with pytest.raises(NotConforming) as caught:
        check_protocol(dataclasses.replace(SPLIT, Config=Careless), on_ray=False)
    assert "batch_size: no docstring under the field" in str(caught.value)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_result_that_depends_on_the_process_is_refused():
    with pytest.raises(NotConforming, match=r"in simulation and .* on Ray"):
        check_protocol(protocol(run_split, Scattered, Right))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_run_that_hangs_on_ray_is_refused():
    with pytest.raises(NotConforming, match=r"ends on Ray with: the run: it had not ended 2 s after its start"):
        check_protocol(protocol(run_split, Stuck, Right), timeout=2.0)


def test_one_column_a_party_leaves_as_an_affine_map_of_itself():
    settings = {"num_rounds": 2, "num_samples": 60, "num_clients": 4, "num_features": 4}
    check_remarks(MTCD, "Representation", "affine map", config=settings, raw_columns=generated(MTCD, settings))


def generated(protocol, settings):
    """The features that the clients of a protocol make themselves, by the name of the client."""
    data = protocol.load_data(build(protocol.Config, {**protocol.smoke, **settings}), protocol.default_data, 0)
    return {party: data.load(index).train for index, party in enumerate(data.parties)}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        ("mtcd", {"num_rounds": 2, "num_samples": 60, "num_clients": 4}, {}),
        ("tablepuppet", {"num_rounds": 3}, {"data": "orders:300"}),
        (
            "glasu",
            {"num_rounds": 2, "hidden_size": 8, "evaluate_every": 1, "num_clients": 2},
            {"data": "blocks:120x9x3"},
        ),
        ("horizontal", {"num_training": 200, "num_clients": 3}, {}),
        ("nebulafl", {"duration": 1200}, {"deterministic": False, "agree": {"test/accuracy": 0.5}}),
        ("pubsub_vfl", {}, {"deterministic": False, "agree": {"test/auc": 0.2}}),
        ("pubsub_vfl", {"algorithm": "vfl", "float64": True, "on_party_loss": "stop"}, {}),
    ],
)
def test_built_in_protocols_conform_on_both_runtimes(name, settings, options):
    address = f"fedactors.protocols.{name}.plugin:PROTOCOL"
    protocol = resolve_address(address)
    raw = generated(protocol, settings) if name == "mtcd" else {}
    check_protocol(protocol, config=settings, raw_columns=raw, **options)
