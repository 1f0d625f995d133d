"""What the studies charge NebulaFL with beside what its runs show is what a round of a baseline pays for its models."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

from fedactors.protocols.nebulafl.plugin import PROTOCOL
from fedactors.runs.recorder import MemoryRecorder
from fedactors.sweeps import run_once

SCRIPTS = Path(__file__).resolve().parents[3] / "scenarios/paper/nebulafl"


@pytest.fixture(scope="module")
def study():
    """The scripts' module; other folders have one of the same name."""
    before = sys.modules.pop("_study", None)
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("_study")
    sys.path.remove(str(SCRIPTS))
    sys.modules.pop("_study", None)
    if before is not None:
        sys.modules["_study"] = before


@pytest.fixture(scope="module")
def one_round(study):
    """A round of FedAvg by centers, whose models are the heaviest of the map."""
    settings = {
        **study.cloud("500"), "algorithm": "fedavg-hierarchical", "resource_policy": "fastest", "num_rounds": 1,
        "center_rounds": 1, "local_epochs": 1, "num_containers": 8, "active_per_center": 2, "stop_at_target": False,
        "target_accuracy": None, "duration": 20.0, "evaluation_interval": 10.0,
    }  # fmt: skip
    recorder = MemoryRecorder()
    return run_once(PROTOCOL, settings, "digits", 0, recorder=recorder), [json.loads(line) for line in recorder.lines]


@pytest.mark.slow
def test_the_ways_of_a_model_are_those_of_a_round(study, one_round):
    done, events = one_round
    (out_seconds, out_dollars), (_, back_dollars) = study.handing(done.config)
    starts = {}
    for event in events:
        if event["type"] == "span" and event["label"] == "training":
            starts[event["actor"]] = min(event["start"], starts.get(event["actor"], event["start"]))
    assert len(starts) == 4
    assert max(starts.values()) == pytest.approx(out_seconds, rel=0.01)  # headers
    egress = sum(bill["egress"] for bill in done.result.extra["centers"].values())
    assert egress == pytest.approx(out_dollars + back_dollars, rel=0.01)


@pytest.mark.slow
def test_nebulafl_owes_both_ways_and_rounds_get_the_next_orders_back(study, one_round):
    row = one_round[0].row(curve={})
    out, back = study.handing(one_round[0].config)

    def owed(**changes):
        return study.owed(dataclasses.replace(row, config={**row.config, **changes}))

    assert owed(algorithm="nebulafl") == pytest.approx((out[0] + back[0], out[1] + back[1]))
    assert owed() == (0.0, -out[1])
    assert owed(algorithm="fedavg") == (0.0, -2 * out[1])
    assert owed(algorithm="fedasync") == (0.0, 0.0)


def test_accuracy_in_equal_time_is_read_earlier_by_what_is_owed(study, one_round):
    row = one_round[0].row(curve={"time": [0.0, 10.0, 20.0], "test/accuracy": [0.0, 0.5, 0.9]})
    row = dataclasses.replace(row, metrics={**row.metrics, "test/accuracy": 0.9})
    ours = dataclasses.replace(row, config={**row.config, "algorithm": "nebulafl"})
    seconds = study.owed(ours)[0]
    theirs, earlier = study.in_equal_time([row, ours])
    assert theirs.metrics["test/accuracy"] == 0.9
    assert 0.0 < seconds < 20.0
    known = 0.9 - 0.4 * seconds / 10.0 if seconds < 10.0 else 0.5 * (20.0 - seconds) / 10.0
    assert earlier.metrics["test/accuracy"] == pytest.approx(known)
