"""DCPA (Condat-Vu form): fixed point, step condition, convergence on small graphs."""

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedactors.network.topology import metropolis_weights
from fedactors.protocols.mtcd import objective as ob
from fedactors.protocols.mtcd.baselines import dcpa
from tests.protocols.mtcd.by_hand import synthetic_regression

NUM_CLIENTS = 10


def run(problem, graph, num_iterations):
    x, y = synthetic_regression(np.random.default_rng(1), 100, 60)
    if isinstance(problem, ob.SparseLogistic):
        y = np.sign(y)
    blocks = np.split(x, NUM_CLIENTS, axis=1)
    consensus = dcpa.consensus_matrix(metropolis_weights(graph))
    largest = max(ob.largest_gram_eigenvalue([b]) for b in blocks)
    steps = dcpa.steps_within(problem, largest, 100, NUM_CLIENTS, float(np.linalg.norm(consensus, 2)))
    primal = largest * steps.primal / (1.0 - 0.5 * steps.primal * problem.smooth_penalty)
    assert steps.dual * (primal + steps.consensus * np.linalg.norm(consensus, 2)) <= 1.0  # the sufficient condition
    states = [dcpa.DcpaState(np.zeros(6), np.zeros(100), np.zeros(100)) for _ in blocks]
    for _ in range(num_iterations):
        exchanged = consensus @ np.stack([state.y for state in states])
        states = [
            dcpa.iterate(problem, b, y, state, heard, steps, NUM_CLIENTS)
            for b, state, heard in zip(blocks, states, exchanged, strict=True)
        ]
    theta, optimum = ob.solve(problem, x, y)
    value = ob.objective(problem, blocks, y, [state.w for state in states])
    return states, ob.relative_gap(value, optimum), problem.slope(x @ theta, y, 100, np.empty(100))


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "num_iterations"), [(nx.complete_graph(10), 1000), (nx.path_graph(10), 3000)])
def test_ridge_reaches_the_minimum_and_the_duals_agree_on_the_residual(graph, num_iterations):
    states, gap, residual = run(ob.Ridge(10.0), graph, num_iterations)
    assert abs(gap) < 1e-13
    for state in states:
        np.testing.assert_allclose(state.y, residual, atol=1e-6)


@pytest.mark.slow
def test_sparse_logistic_reaches_the_minimum_on_the_complete_graph():
    states, gap, slope = run(ob.SparseLogistic(0.02), nx.complete_graph(10), 1500)
    assert abs(gap) < 1e-6
    for state in states:
        np.testing.assert_allclose(state.y, slope, atol=1e-4)


@pytest.mark.parametrize("problem", [ob.Ridge(1.0), ob.SparseLogistic(0.1)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_prox_of_the_conjugate_agrees_with_moreau_and_a_scalar_minimiser(problem, scale):
    labels, v = np.array([1.0, -1.0, 1.0]), np.array([0.7, 2.0, -3.0])
    got = dcpa.prox_conjugate(problem, v, labels, scale)
    for i in range(3):

        def value(z, i=i):
            share = 1.0 if isinstance(problem, ob.Ridge) else 1.0 / 3.0
            return share * problem.loss(np.array([z]), labels[i : i + 1], 1) / scale + 0.5 * (z - v[i] / scale) ** 2

        inner = minimize_scalar(value, tol=1e-12).x
        assert got[i] == pytest.approx(v[i] - scale * inner, abs=1e-5 * (1 + scale))


def test_consensus_matrix_is_a_laplacian():
    consensus = dcpa.consensus_matrix(metropolis_weights(nx.star_graph(9)))
    np.testing.assert_allclose(consensus.sum(axis=1), 0.0, atol=1e-15)
    assert np.linalg.eigvalsh(consensus)[0] == pytest.approx(0.0, abs=1e-12)
    assert np.linalg.eigvalsh(consensus)[-1] <= 1.0


def test_unknown_loss_is_an_error():
    with pytest.raises(TypeError, match="no conjugate"):
        dcpa.prox_conjugate(object(), np.zeros(1), np.zeros(1), 1.0)
