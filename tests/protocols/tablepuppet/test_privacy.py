from __future__ import annotations

import numpy as np
import pytest

from protocols.tablepuppet import privacy
from protocols.tablepuppet.models import TableModel
from protocols.tablepuppet.subproblem import Subproblem, factorise, solve_linear


def test_label_budgets():
    assert privacy.label_epsilon(0.5) == pytest.approx(5.657, abs=1e-3)
    assert privacy.numeric_label_epsilon(0.5, (1.0, 5.0)) == pytest.approx(4 * np.sqrt(2) / 0.5)


@pytest.mark.parametrize(("num_classes", "kept"), [(2, 0.929), (5, 0.811), (6, 0.780)])
def test_how_many_labels_survive_the_noise(num_classes, kept):
    rng = np.random.default_rng(0)
    y = rng.integers(0, num_classes, 400_000)
    assert np.mean(privacy.noisy_classes(y, num_classes, 0.5, rng) == y) == pytest.approx(kept, abs=0.003)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="num_classes"):
        privacy.noisy_classes(np.zeros(3, dtype=int), 1, 0.5, np.random.default_rng(0))


def test_numbers_are_clipped_and_noised_with_the_stated_deviation():
    rng = np.random.default_rng(1)
    noisy = privacy.noisy_numbers(np.full(200_000, 9.0), (1.0, 5.0), 0.5, rng)
    assert noisy.mean() == pytest.approx(5.0, abs=0.01)
    assert noisy.std() == pytest.approx(0.5, abs=0.01)


def test_clipping_bounds_every_row_whatever_its_duplicates():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]) * np.array([[100.0], [1.0], [1.0]])
    clipped = privacy.clip_row_gradients(rows, 1.0)
    assert np.linalg.norm(clipped, axis=1) == pytest.approx([1.0, 0.5, 0.0])


def test_budgets_add_over_tables():
    assert privacy.compose_over_tables([1.0, 2.0], [1e-5, 1e-5]) == pytest.approx((3.0, 2e-5))


def test_theta_and_predictions_give_the_rows_away():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30, 6))
    thetas = rng.normal(size=(6, 6, 1))
    predictions = np.stack([x @ theta for theta in thetas])
    assert np.abs(privacy.reconstruct_rows(thetas, predictions) - x).max() < 1e-10
    assert np.abs(privacy.reconstruct_rows(thetas[:4], predictions[:4]) - x).max() > 0.1
    noisy = predictions + rng.normal(scale=0.5, size=predictions.shape)
    assert np.abs(privacy.reconstruct_rows(thetas, noisy) - x).max() > 0.1


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
