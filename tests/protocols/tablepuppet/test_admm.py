from __future__ import annotations

import numpy as np
import pytest

from fedactors.data.join import TableMapping
from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.local_solvers import (
    Subproblem,
    TableModel,
    factorise,
    initial_theta,
    partial_gradient,
    predict,
    pull_back,
    row_gradients,
    solve_lbfgs,
    solve_linear,
    solve_sgd,
)
from tests.protocols.tablepuppet.conftest import centralised_ridge


@pytest.mark.slow
@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("rho", [0.3, 1.0])
def test_boyd_reaches_centralised_ridge_also_on_correlated_tables(make_star, run_admm, constants, rho):
    joined = make_star(1, constants)
    theta = np.concatenate(run_admm(joined, "boyd", rho, 0.05, 1500))
    exact = centralised_ridge(joined.materialised, joined.y_N[:, None], 0.05)[:, 0]
    assert theta == pytest.approx(exact, abs=1e-8)


def test_paper_exact_diverges_when_every_table_has_a_constant_column(make_star, run_admm):
    joined = make_star(1, constants=True)
    exact = centralised_ridge(joined.materialised, joined.y_N[:, None], 1e-3)[:, 0]
    theta = np.concatenate(run_admm(joined, "paper_exact", 1.0, 1e-3, 100))
    assert np.abs(theta - exact).max() > 1e20


def unreduced(mapping):
    every = np.arange(mapping.num_joined, dtype=np.int32)
    return TableMapping((every,) * 3, (mapping.num_joined,) * 3)


def test_vfl_admm_on_vertical_slices_takes_the_same_steps(make_star, run_admm):
    joined = make_star(2)
    slices = [x[r] for x, r in zip(joined.x, joined.rows, strict=True)]
    ours = run_admm(joined, "boyd", 1.0, 0.01, 7)
    vertical = run_admm(joined, "boyd", 1.0, 0.01, 7, unreduced(joined.mapping), slices)
    for a, b in zip(ours, vertical, strict=True):
        assert a == pytest.approx(b, abs=1e-11)


@pytest.mark.parametrize("mode", ["paper_exact", "boyd"])
def test_the_duplicate_reduced_objective_is_the_joined_one_up_to_a_constant(make_star, mode):
    joined, rho, M = make_star(3), 0.7, 3
    rng = np.random.default_rng(8)
    mapping, rows, N = joined.mapping, joined.rows, joined.mapping.num_joined
    h = [rng.normal(size=(n, 2)) for n in mapping.num_rows]
    dual, z = rng.normal(size=(N, 2)), rng.normal(size=(N, 2))
    total = algorithm.gather_join(h, rows)
    shared = algorithm.shared_term(dual, total, z, rho)
    for i in range(M):
        G, slice_N = mapping.duplicate_counts[i], rows[i]
        summed = algorithm.scatter_join(shared, slice_N, mapping.num_rows[i])
        Y = algorithm.linear_term(mode, summed, G, h[i], rho, M)
        residual = total - h[i][slice_N] - z
        gaps = []
        for _ in range(5):
            f = rng.normal(size=h[i].shape)
            f_N = f[slice_N]
            joined_form = np.sum(dual * f_N) / N + rho / 2 * np.sum((residual + f_N) ** 2) / N
            if mode == "boyd":
                joined_form += (M - 1) * rho / 2 * np.sum((f_N - h[i][slice_N]) ** 2) / N
            kappa = algorithm.quadratic_weight(mode, rho, M)
            gaps.append(joined_form - (np.sum(Y * f) + kappa / 2 * np.sum(G[:, None] * f * f)) / N)
        assert np.ptp(gaps) < 1e-12


def problem(kind="linear", tau=0.1, outputs=2, seed=9):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3))
    G = rng.integers(0, 4, 40)
    model = TableModel(kind, 3, outputs, 5, output_bias=True)
    return Subproblem(model, x, G, 0.8, tau, int(G.sum())), rng.normal(size=(40, outputs)), rng


def gradient(p, Y, theta, anchor):
    dh = (Y + p.kappa * p.G_n[:, None] * predict(p.model, theta, p.x_nD)) / p.num_joined
    return pull_back(p.model, theta, p.x_nD, dh) + p.tau * (theta - anchor)


@pytest.mark.parametrize("anchored", [False, True])
def test_exact_solvers_agree_and_are_stationary(anchored):
    p, Y, rng = problem()
    anchor = rng.normal(size=p.model.num_parameters) if anchored else np.zeros(p.model.num_parameters)
    exact = solve_linear(p, factorise(p), Y, anchor)
    assert np.abs(gradient(p, Y, exact, anchor)).max() < 1e-12
    start = np.zeros_like(exact)
    Y_joining = np.where(p.G_n[:, None] > 0, Y, 0.0)
    exact = solve_linear(p, factorise(p), Y_joining, anchor)
    assert solve_lbfgs(p, Y_joining, start, anchor, 300) == pytest.approx(exact, abs=1e-4)


def test_dependent_columns_without_a_penalty_give_the_least_norm_solution():
    p, Y, _ = problem(tau=0.0)
    doubled = Subproblem(TableModel("linear", 6, 2), np.hstack([p.x_nD, p.x_nD]), p.G_n, p.kappa, 0.0, p.num_joined)
    Y[p.G_n == 0] = 0
    single = solve_linear(p, factorise(p), Y).reshape(3, 2)
    assert solve_linear(doubled, factorise(doubled), Y).reshape(6, 2) == pytest.approx(
        np.vstack([single, single]) / 2, abs=1e-10
    )


def test_sgd_lowers_the_objective_and_ignores_rows_that_do_not_join():
    p, Y, _ = problem()
    p = Subproblem(p.model, p.x_nD, p.G_n, p.kappa, 0.0, p.num_joined)
    Y[p.G_n == 0] = np.nan
    theta = solve_sgd(p, Y, np.zeros(6), np.random.default_rng(0), epochs=300, batch_size=8, learning_rate=0.05)
    Y[p.G_n == 0] = 0
    exact = solve_linear(p, factorise(p), Y)
    assert np.abs(theta - exact).max() < 0.3 * np.abs(exact).max()


def test_a_table_of_which_nothing_joins_keeps_its_theta():
    p, Y, _ = problem()
    nothing = Subproblem(p.model, p.x_nD, np.zeros(40, dtype=int), p.kappa, 0.0, 10)
    start = np.ones(6)
    assert np.array_equal(solve_sgd(nothing, Y, start, np.random.default_rng(0)), start)


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_gradients_of_the_models_match_differences_and_rows_add_up(kind):
    p, dh, rng = problem(kind)
    theta = initial_theta(p.model, rng) + 0.1 * rng.normal(size=p.model.num_parameters)
    analytic = pull_back(p.model, theta, p.x_nD, dh)
    assert row_gradients(p.model, theta, p.x_nD, dh).sum(axis=0) == pytest.approx(analytic, abs=1e-12)
    for k in range(len(theta)):
        step = np.zeros_like(theta)
        step[k] = 1e-6
        up, down = (np.sum(dh * predict(p.model, theta + s, p.x_nD)) for s in (step, -step))
        assert analytic[k] == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_a_neural_theta_update_lowers_its_objective():
    p, Y, rng = problem("neural")
    start = initial_theta(p.model, rng)
    zero = np.zeros_like(start)
    after = solve_lbfgs(p, np.where(p.G_n[:, None] > 0, Y, 0.0), start, iterations=500)
    masked = np.where(p.G_n[:, None] > 0, Y, 0.0)
    assert np.linalg.norm(gradient(p, masked, after, zero)) < 0.05 * np.linalg.norm(gradient(p, masked, start, zero))


def test_a_label_only_table_has_a_model_of_its_bias_alone():
    model = TableModel("linear", 1, 1)
    p = Subproblem(model, np.ones((4, 1)), np.array([1, 2, 0, 1]), 1.0, 0.0, 4)
    Y = np.array([[-1.0], [-4.0], [0.0], [-3.0]])
    assert solve_linear(p, factorise(p), Y)[0] == pytest.approx(2.0)
    assert partial_gradient(model, np.array([0.0]), p.x_nD, Y, p.G_n, 0.1)[0] == pytest.approx(-8.0)


def test_a_table_without_features_predicts_zero():
    model = TableModel("linear", 0, 2)
    p = Subproblem(model, np.zeros((3, 0)), np.ones(3, dtype=int), 1.0, 0.1, 3)
    theta = solve_linear(p, factorise(p), np.ones((3, 2)))
    assert predict(model, theta, p.x_nD).tolist() == [[0.0, 0.0]] * 3


def test_consensus_over_partitions_gives_the_undivided_theta():
    p, Y, _ = problem(tau=0.2)
    whole = solve_linear(p, factorise(p), Y)
    cuts = [slice(0, 10), slice(10, 40)]
    inner = [Subproblem(p.model, p.x_nD[c], p.G_n[c], p.kappa, 0.5, p.num_joined) for c in cuts]
    systems = [factorise(q) for q in inner]
    w, u = np.zeros(6), [np.zeros(6)] * 2
    for _ in range(300):
        theta = [solve_linear(q, s, Y[c], w - v) for q, s, c, v in zip(inner, systems, cuts, u, strict=True)]
        w = algorithm.update_consensus(theta, u, 0.2, 0.5)
        u = [algorithm.update_u(v, t, w) for v, t in zip(u, theta, strict=True)]
    assert w == pytest.approx(whole, abs=1e-10)
