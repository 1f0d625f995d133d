"""The private scale: near the true one, its sensitivity as stated, whatever the rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedactors.privacy.mechanisms import private_scale, scale_sensitivity, scale_sigma
from fedactors.privacy.noise import observing


def test_it_is_near_the_true_scale() -> None:
    rng = np.random.default_rng(0)
    rows = np.stack([rng.normal(50, 3, 20_000), rng.exponential(1000, 20_000), rng.normal(0, 1e-3, 20_000)], axis=1)
    mean, deviation = private_scale(rows, 0.5, rng)
    assert (np.abs(mean - rows.mean(axis=0)) < 0.2 * rows.std(axis=0)).all()
    np.testing.assert_allclose(deviation, rows.std(axis=0), rtol=0.3)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e30, -1e-30, np.inf])
def test_one_row_moves_each_release_by_no_more_than_stated(value: float) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(200, 4))
    other = rows.copy()
    other[7] = min(value, float(np.finfo(np.float32).max))
    kept: list[np.ndarray] = []

    def keep(exact: Any, law: Any, draw: Any, name: str) -> Any:
        kept.append(exact)
        made.append(draw())
        return made[-1]

    def compare(exact: Any, law: Any, draw: Any, name: str) -> Any:
        index = len(distances)
        distances.append(float(np.linalg.norm(exact - kept[index])))
        assert law.sigma == scale_sigma(4, 1.5)
        return made[index]

    made: list[np.ndarray] = []
    distances: list[float] = []
    with observing(keep):
        private_scale(rows, 1.5, rng)
    with observing(compare):
        private_scale(other, 1.5, rng)
    assert len(distances) == 2
    assert max(distances) <= scale_sensitivity(4) + 1e-9
    total = math.sqrt(sum((distance / scale_sigma(4, 1.5)) ** 2 for distance in distances))
    assert total <= 1.5 + 1e-9


def test_constant_columns_and_few_rows_have_a_scale() -> None:
    rng = np.random.default_rng(2)
    mean, deviation = private_scale(np.full((5, 2), 7.0), 1.0, rng)
    assert np.isfinite(mean).all()
    assert (deviation > 0).all()
