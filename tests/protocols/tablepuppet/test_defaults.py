"""The penalty, the step and the end of a run that sets nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fedactors
from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.plugin import PROTOCOL, PUBLISHED
from fedactors.protocols.tablepuppet.run import State, has_settled, unconverged


@pytest.mark.parametrize(
    ("loss", "base", "curvature"),
    [("squared", [3.0], 1.0), ("logistic", [0.0], 0.25), ("logistic", [-9.0], 0.02), ("softmax", [1.0] * 4, 3 / 16)],
)
def test_curvature_at_the_base_outputs(loss, base, curvature):
    assert algorithm.curvature(loss, np.array(base)) == pytest.approx(curvature)


def test_over_relaxation_steps_beyond_the_last_z():
    rng = np.random.default_rng(0)
    y, h, before, dual = rng.normal(size=9), *rng.normal(size=(3, 9, 1))
    args = ("squared", [y], [dual], [h], 0.5, [before], [np.zeros(1)], lambda parts: float(np.linalg.norm(parts[0])))
    (updated,), (shared,), (z,), _ = algorithm.admm_server_round(*args, 1.6)
    over = 1.6 * h - 0.6 * before
    expected = algorithm.update_z("squared", y, dual, over, 0.5)
    assert np.allclose(z, expected)
    assert np.allclose(updated, dual + 0.5 * (over - expected))
    assert np.allclose(shared, updated + 0.5 * (h - expected))


def test_a_run_ends_when_its_loss_has_settled_and_says_where_it_has_not():
    settled = State(losses=[1.0, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], round=8)
    moving = dataclasses.replace(settled, losses=[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    assert has_settled(settled)
    assert not has_settled(moving)
    assert not has_settled(State(losses=[0.1] * 5))
    assert unconverged(TablePuppetConfig(), settled) == []
    assert "not converged after 8 rounds" in unconverged(TablePuppetConfig(), moving)[0]
    assert "num_rounds=16" in unconverged(TablePuppetConfig(), moving)[0]
    assert "leave num_rounds out" in unconverged(TablePuppetConfig(num_rounds=8), moving)[0]
    assert unconverged(TablePuppetConfig(feature_dp=1.0, admm="paper_sgd"), moving) == []


def test_by_default_a_run_comes_to_the_optimum_and_says_what_the_join_brings():
    found = fedactors.simulate("tablepuppet", "orders:400")
    published = fedactors.simulate("tablepuppet", "orders:400", **PUBLISHED)
    best = fedactors.simulate("tablepuppet", "orders:400", algorithm="centralised", num_rounds=1, lbfgs_iterations=300)
    gap = found.metrics["test/trivial_loss"] - best.metrics["training/loss"]
    assert found.metrics["training/loss"] - best.metrics["training/loss"] < 0.01 * gap
    assert found.metrics["training/loss"] < published.metrics["training/loss"]
    assert found.summary.rounds <= 25
    assert any("with its own alone" in note for note in found.summary.extra.get("notes", ()))
    assert "test/local_auc" in found.metrics
    assert not any("with its own alone" in note for note in published.summary.extra.get("notes", ()))


def test_the_published_settings_are_one_preset():
    assert dict(PROTOCOL.paper) == PUBLISHED
    assert (TablePuppetConfig(feature_dp=1.0, admm="paper_sgd").most_rounds, TablePuppetConfig().most_rounds) == (
        10,
        200,
    )
