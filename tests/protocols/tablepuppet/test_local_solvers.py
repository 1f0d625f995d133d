from __future__ import annotations

import numpy as np
import pytest

from fedactors.protocols.tablepuppet import local_solvers
from fedactors.protocols.tablepuppet.local_solvers import Subproblem, TableModel, factorise, solve_linear


def test_clipping_bounds_every_row_whatever_its_duplicates():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]) * np.array([[100.0], [1.0], [1.0]])
    total = local_solvers.noisy_gradient_sum(rows, 1.0, 0.0, np.random.default_rng(0))
    assert total == pytest.approx([0.6 + 0.3, 0.8 + 0.4])


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
    made = local_solvers.solve_dp_sgd(
        problem, Y, np.zeros(3), np.random.default_rng(0), np.random.default_rng(1), steps=400, sampling_rate=1.0,
        clip=1e9, noise_multiplier=0.0, learning_rate=0.3,
    )  # fmt: skip
    assert made == pytest.approx(exact, abs=1e-8)


def test_one_row_moves_a_clipped_step_by_no_more_than_the_clip():
    problem, Y = subproblem()
    Y2 = Y.copy()
    Y2[7] = 1e9
    step = [
        local_solvers.solve_dp_sgd(
            problem, y, np.zeros(3), np.random.default_rng(0), np.random.default_rng(1), steps=1, sampling_rate=1.0,
            clip=0.5, noise_multiplier=0.0, learning_rate=1.0,
        )
        for y in (Y, Y2)
    ]  # fmt: skip
    assert np.linalg.norm(step[0] - step[1]) * 400 <= 2 * 0.5 * (1 + 1e-9)


def test_the_noise_has_the_stated_deviation():
    rows = np.zeros((2, 100_000))
    made = local_solvers.noisy_gradient_sum(rows, 0.5, 3.0, np.random.default_rng(0))
    assert made.std() == pytest.approx(1.5, rel=0.02)


def test_a_step_divides_by_the_expected_batch_and_never_by_the_drawn_one():
    """All rows are alike, so a step tells how many were drawn; divided by that number it would always be the same."""
    n, rate = 60, 0.25
    problem = Subproblem(TableModel("linear", 1, 1), np.ones((n, 1)), np.ones(n, dtype=int), 1.0, 0.0, n)
    drawn, steps = [], []
    for seed in range(40):
        drawn.append(np.random.default_rng(seed).binomial(n, rate))
        (theta,) = local_solvers.solve_dp_sgd(
            problem, -np.ones((n, 1)), np.zeros(1), np.random.default_rng(seed), np.random.default_rng(0), steps=1,
            sampling_rate=rate, clip=1.0, noise_multiplier=0.0, learning_rate=1.0,
        )  # fmt: skip
        steps.append(theta)
    assert len(set(drawn)) > 5
    assert steps == pytest.approx([count / (rate * n) for count in drawn], abs=1e-12)


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_a_batch_of_no_rows_is_a_step_of_noise_alone(kind):
    model = TableModel(kind, 3, 2, 4, output_bias=True)
    problem = Subproblem(model, np.ones((5, 3)), np.ones(5, dtype=int), 1.0, 0.0, 5)
    theta = local_solvers.solve_dp_sgd(
        problem, np.ones((5, 2)), np.zeros(model.num_parameters), np.random.default_rng(0), np.random.default_rng(1),
        steps=1, sampling_rate=1e-9, clip=1.0, noise_multiplier=1.0, learning_rate=1e-9,
    )  # fmt: skip
    assert np.count_nonzero(theta) == model.num_parameters


def test_noise_has_the_same_size_however_many_rows_were_drawn():
    problem, Y = subproblem(40)
    made = []
    for seed in range(600):
        (theta, *_) = local_solvers.solve_dp_sgd(
            problem, 0 * Y, np.zeros(3), np.random.default_rng(seed), np.random.default_rng([1, seed]), steps=1,
            sampling_rate=0.1, clip=1.0, noise_multiplier=2.0, learning_rate=1.0,
        )  # fmt: skip
        made.append(theta)
    assert np.std(made) == pytest.approx(2.0 / (0.1 * 40), rel=0.1)
