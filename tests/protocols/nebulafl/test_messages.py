"""What a configuration says that it can send is what it sends."""

import pytest

from fedactors.inspection import describe_messages
from fedactors.messages.codec import message_types
from fedactors.protocols.nebulafl import messages
from fedactors.protocols.nebulafl.algorithm import rotation_partners
from fedactors.protocols.nebulafl.data import exchange_name
from fedactors.protocols.nebulafl.messages import sent, shapes
from fedactors.protocols.nebulafl.plugin import PROTOCOL
from fedactors.secure_sums.actors import MESSAGES
from tests.protocols.nebulafl.runs import BASELINES, changed, play

AUTO = {"rotation_interval": "auto", "duration": "auto", "evaluation_interval": "auto"}
SHORT = changed(duration=1300.0)
CASES = {
    **{algorithm: ({"algorithm": algorithm}, {}) for algorithm in ("nebulafl", *BASELINES)},
    "aggregation": ({"ablation": "aggregation"}, {}),
    "lost": ({"restart_seconds": 200.0}, {"faults": {"virginia": 700.0}}),
    "flat, lost": ({"algorithm": "fedbuff", "restart_seconds": 200.0}, {"faults": {"virginia": 700.0}}),
    "by centers, lost": ({"algorithm": "fedhisyn", "restart_seconds": 200.0}, {"faults": {"virginia": 700.0}}),
    "container lost": ({"algorithm": "gitfl", "outages": "oregon/0@100-900 virginia/1@200-900"}, {}),
    "processes": ({"container_processes": True, "restart_seconds": 200.0}, {"faults": {"virginia/0": 700.0}}),
    "no restart": ({"on_party_loss": "stop"}, {}),
    "sums": ({"algorithm": "fedhisyn", "secure_aggregation": True, "on_party_loss": "continue"}, {}),
    "times of trainings": ({**AUTO, "model": "linear", "num_rounds": 1}, {"name": "breast-cancer"}),
    "table": ({"algorithm": "fedhisyn", "model": "linear"}, {"name": "breast-cancer"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_undeclared_message_is_in_the_ledger(case):
    values, options = CASES[case]
    config = changed(SHORT, **values)
    _, recorder, _ = play(config, **options)
    declared = {cls.__name__ for cls in sent(config)}
    found = {row[4] for row in recorder.ledger_rows if not row[4].endswith("()")}
    assert found <= declared
    assert {row[4] for row in recorder.ledger_rows} & {"MasterModel", "SharedModel"}


def test_every_message_is_sent_by_some_configuration():
    configs = [changed(SHORT, **values) for values, _ in CASES.values()]
    reachable = {cls for config in configs for cls in sent(config)}
    assert reachable == {*message_types(messages), *MESSAGES}


def test_inspect_lists_what_a_configuration_sends():
    for values, _ in CASES.values():
        config = changed(SHORT, **values)
        assert {entry["message"] for entry in describe_messages(PROTOCOL, config)} == {
            cls.__name__ for cls in sent(config)
        }
    listed = {entry["message"]: entry for entry in describe_messages(PROTOCOL, SHORT)}
    assert listed["MasterModel"]["receiver"] == "data center, auditor"
    assert listed["Measurement"]["control"]
    assert set(shapes(SHORT)) <= {cls.__name__ for cls in message_types(messages)}


@pytest.mark.parametrize("ablation", ["none", "aggregation"])
def test_a_centers_master_goes_to_who_needs_it_only(ablation):
    """To the partner of each rotation, or the exchange that averages; to the auditor once for each measurement."""
    config = changed(SHORT, model="linear", work_factor=20.0, num_training=300, ablation=ablation)
    _, recorder, runtime = play(config)
    found = {(t.sender, t.receiver): t.messages for t in runtime.ledger.totals() if t.type == "MasterModel"}
    centers = ("oregon", "virginia", "frankfurt")
    expected = {(center, "auditor"): config.num_measurements for center in centers}
    for rotation in range(config.num_rotations):
        partners = rotation_partners(centers, rotation)
        for center in centers:
            receiver = partners[center] if ablation == "none" else exchange_name(config)
            if receiver != center:
                expected[center, receiver] = expected.get((center, receiver), 0) + 1
    assert found == expected
    assert len(recorder.rounds) == config.num_measurements
