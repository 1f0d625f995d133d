import json
from pathlib import Path

import pytest

from fedactors.actors.context import Work
from fedactors.protocols.pubsub_vfl.algorithm import FITTED, default_costs, operations
from tests.protocols.pubsub_vfl.runs import config_of, simulate

COMMITTED = Path(__file__).resolve().parents[3] / "docs/results/data/pubsub_vfl/cost_model.json"


def test_default_costs_are_the_committed_fit():
    kinds = json.loads(COMMITTED.read_text())["kinds"]
    for kind, constants in FITTED.items():
        expected = [kinds[kind][name] for name in ("fixed", "per_layer", "per_operation")]
        assert constants == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_the_fit_meets_its_measurements():
    committed = json.loads(COMMITTED.read_text())
    costs = default_costs(config_of(num_layers=10))
    for row in committed["measured"]:
        if row["layers"] == 10 and row["kind"] in FITTED:
            updates = row["kind"] in ("bottom-backward", "active-step", "top-step")
            units = operations(row["batch_size"], row["parameters"], updates=updates)
            assert costs.seconds("a", Work(row["kind"], units)) == pytest.approx(row["seconds"], rel=0.4)


@pytest.mark.slow
def test_a_party_with_more_features_takes_longer():
    def seconds(split: tuple[int, int]) -> float:
        rows = simulate(algorithm="vfl", feature_split=split, num_epochs=1, hidden_size=64)
        return rows.runtime.usage().seconds

    assert seconds((25, 5)) > seconds((5, 5))
