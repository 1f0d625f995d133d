from __future__ import annotations

import numpy as np
import pytest

from protocols.tablepuppet.algorithm import mean_loss
from protocols.tablepuppet.scoring import final_scores, score_rows, trivial_outputs


def test_scores_are_sums_over_rows():
    h = np.array([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0]])
    assert score_rows("softmax", h, np.array([0, 1, 1])) == 2
    assert score_rows("logistic", np.array([[1.0], [-1.0]]), np.array([1.0, 1.0])) == 1
    assert score_rows("squared", np.array([[1.0], [2.0]]), np.array([1.0, 4.0])) == pytest.approx(4.0)
    assert final_scores("squared", 4.0, 2.0, 2) == pytest.approx({"rmse": np.sqrt(2), "test_loss": 1.0})
    assert final_scores("softmax", 2, 0.9, 3) == pytest.approx({"accuracy": 2 / 3, "test_loss": 0.3})


def test_trivial_outputs_are_the_best_constants_for_the_loss():
    for loss, y, outputs in (("squared", np.array([1.0, 3.0, 8.0]), 1), ("logistic", np.array([1.0, 0.0, 1.0, 1.0]), 1),
                             ("softmax", np.array([1, 1, 2, 0, 1]), 3)):  # fmt: skip
        best = trivial_outputs(loss, y, outputs)
        value = mean_loss(loss, np.tile(best, (len(y), 1)), y)
        for shift in np.random.default_rng(0).normal(scale=0.1, size=(20, outputs)):
            assert mean_loss(loss, np.tile(best + shift, (len(y), 1)), y) >= value - 1e-12
    assert np.argmax(trivial_outputs("softmax", np.array([1, 1, 2]), 4)) == 1
    assert trivial_outputs("logistic", np.array([1.0, 1.0]), 1)[0] > 10
