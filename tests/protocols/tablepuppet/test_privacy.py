from __future__ import annotations

import numpy as np
import pytest

from protocols.tablepuppet import privacy
from protocols.tablepuppet.models import TableModel
from protocols.tablepuppet.subproblem import Subproblem, factorise, solve_linear


def test_clipping_bounds_every_row_whatever_its_duplicates():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]) * np.array([[100.0], [1.0], [1.0]])
    total = privacy.noisy_gradient_sum(rows, 1.0, 0.0, np.random.default_rng(0))
    assert total == pytest.approx([0.6 + 0.3, 0.8 + 0.4])


def test_budgets_add_over_tables():
    assert privacy.compose_over_tables([1.0, 2.0], [1e-5, 1e-5]) == pytest.approx((3.0, 2e-5))


def subproblem(num_rows=400):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(num_rows, 3))
    G = rng.integers(0, 5, num_rows)
    return Subproblem(TableModel("linear", 3, 1), x, G, 1.0, 0.0, int(G.sum())), rng.normal(size=(num_rows, 1)) * G[
        :, None
    ]


def test_dp_sgd_without_noise_or_clipping_reaches_the_exact_solution():
    problem, Y = subproblem()
    exact = solve_linear(problem, factorise(problem), Y)
    made = privacy.solve_dp_sgd(
        problem, Y, np.zeros(3), np.random.default_rng(0), np.random.default_rng(1), steps=400, sampling_rate=1.0,
        clip=1e9, noise_multiplier=0.0, learning_rate=0.3,
    )  # fmt: skip
    assert made == pytest.approx(exact, abs=1e-8)


def test_one_row_moves_a_clipped_step_by_no_more_than_the_clip():
    problem, Y = subproblem()
    Y2 = Y.copy()
    Y2[7] = 1e9
    step = [
        privacy.solve_dp_sgd(
            problem, y, np.zeros(3), np.random.default_rng(0), np.random.default_rng(1), steps=1, sampling_rate=1.0,
            clip=0.5, noise_multiplier=0.0, learning_rate=1.0,
        )
        for y in (Y, Y2)
    ]  # fmt: skip
    assert np.linalg.norm(step[0] - step[1]) * 400 <= 2 * 0.5 * (1 + 1e-9)


def test_the_noise_has_the_stated_deviation():
    rows = np.zeros((2, 100_000))
    made = privacy.noisy_gradient_sum(rows, 0.5, 3.0, np.random.default_rng(0))
    assert made.std() == pytest.approx(1.5, rel=0.02)
