"""Sequential loops of STCD, MTCD and SVFL, written as formulas, against the functions; and facts of convergence."""

import networkx as nx
import numpy as np
import pytest

from fedactors.network.topology import inside_clusters
from fedactors.protocols.mtcd import algorithm as al
from fedactors.protocols.mtcd import objective as ob
from fedactors.protocols.mtcd import roaming as walk
from fedactors.protocols.mtcd.data import load_data
from tests.protocols.mtcd import by_hand
from tests.protocols.mtcd.running import config_of, merged, simulate


def generate(num_samples, num_features, num_clients, seed=1):
    x, y = by_hand.synthetic_regression(np.random.default_rng(seed), num_samples, num_features)
    return [np.ascontiguousarray(b) for b in np.split(x, num_clients, axis=1)], y


def gap(problem, blocks, y, thetas, optimum):
    return ob.relative_gap(ob.objective(problem, blocks, y, thetas), optimum)


def zeros(blocks):
    return [np.zeros(x.shape[1]) for x in blocks]


def visit(problem, x, y, theta, z, step, num_steps):
    return al.visit(problem, x, y, theta, z, step=step, num_local_steps=num_steps, num_samples=len(y))


def mtcd(problem, blocks, y, graph, clusters, mode, step, num_steps, num_hops, num_rounds, num_tokens=None, seed=0):
    """Algorithm 2 in order, full batch; overlapping tokens take the whole graph as their one cluster."""
    thetas = zeros(blocks)
    num_clients = len(blocks)
    num_tokens = num_tokens or len(clusters)
    roamed = inside_clusters(graph, clusters)
    for round_ in range(num_rounds):
        start = by_hand.rebuild_token([al.represent(x, t) for x, t in zip(blocks, thetas, strict=True)])
        copies = [{} for _ in range(num_clients)]
        for token in range(num_tokens):
            seed_here = walk.walk_seed(seed, round_, token)
            clients = clusters[token] if mode == "token-per-cluster" else range(num_clients)
            z = start
            for k in by_hand.lazy_walk(roamed, walk.start_client(seed_here, clients), num_hops, seed_here):
                theta = copies[k].get(token, thetas[k])
                copies[k][token], z = visit(problem, blocks[k], y, theta, z, step, num_steps)
        if mode == "token-per-cluster":
            weight = 1.0
        else:
            weight = 1 / num_tokens
        thetas = [al.combine(thetas[k], copies[k], weight) for k in range(num_clients)]
    return thetas


def svfl(problem, blocks, y, step, num_steps, num_rounds):
    thetas = zeros(blocks)
    for _ in range(num_rounds):
        z = by_hand.rebuild_token([al.represent(x, t) for x, t in zip(blocks, thetas, strict=True)])
        thetas = [visit(problem, x, y, t, z, step, num_steps)[0] for x, t in zip(blocks, thetas, strict=True)]
    return thetas


def stcd(problem, blocks, y, route, step, num_steps):
    thetas, z = zeros(blocks), np.zeros(len(y))
    for k in route:
        thetas[k], z = visit(problem, blocks[k], y, thetas[k], z, step, num_steps)
    return thetas


@pytest.mark.parametrize("problem", [ob.Ridge(10.0), ob.SparseLogistic(0.01)])
def test_no_edges_is_svfl_exactly(problem):
    blocks, y = generate(40, 24, 6)
    y = np.sign(y)
    step = by_hand.parallel_step(problem, blocks, 12)
    clusters = [(k,) for k in range(6)]
    ours = mtcd(problem, blocks, y, nx.empty_graph(6), clusters, "token-per-cluster", step, 4, 2, 10)
    theirs = svfl(problem, blocks, y, step, 12, 10)
    for a, b in zip(ours, theirs, strict=True):
        assert a.tobytes() == b.tobytes()


def test_one_token_that_never_syncs_is_stcd_and_follows_the_formulas():
    problem = ob.Ridge(10.0)
    blocks, y = generate(40, 24, 6)
    graph, seed, step = nx.cycle_graph(6), walk.walk_seed(0, 0, 0), by_hand.block_step(ob.Ridge(10.0), blocks)
    route = by_hand.lazy_walk(graph, walk.start_client(seed, range(6)), 30, seed)
    ours = mtcd(problem, blocks, y, graph, [tuple(range(6))], "token-per-cluster", step, 3, 30, 1)
    single = stcd(problem, blocks, y, route, step, 3)
    plain = zeros(blocks)
    for k in route:
        for _ in range(3):
            z = sum(x @ t for x, t in zip(blocks, plain, strict=True))
            plain[k] = plain[k] - step * (blocks[k].T @ (z - y) + 10.0 * plain[k])
    for a, b, c in zip(ours, single, plain, strict=True):
        assert a.tobytes() == b.tobytes()
        np.testing.assert_allclose(a, c, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "clusters", "num_tokens"),
    [("token-per-cluster", [(0, 1, 2), (3, 4, 5)], 2), ("overlapping", [tuple(range(6))], 3)],
)
def test_ridge_gap_vanishes_in_both_modes(mode, clusters, num_tokens):
    problem = ob.Ridge(10.0)
    blocks, y = generate(60, 24, 6)
    _, optimum = ob.solve(problem, np.concatenate(blocks, axis=1), y)
    parallel = by_hand.parallel_step(problem, blocks, al.stale_steps(5, 4, 3))
    step = parallel if mode == "token-per-cluster" else by_hand.block_step(problem, blocks)
    graph = nx.complete_graph(6)
    thetas = mtcd(problem, blocks, y, graph, clusters, mode, step, 5, 4, 600, num_tokens)
    assert abs(gap(problem, blocks, y, thetas, optimum)) < 1e-12


@pytest.mark.slow
def test_sparse_logistic_converges_by_proximal_steps():
    problem = ob.SparseLogistic(0.02)
    blocks, y = generate(60, 24, 6)
    y = np.sign(y)
    _, optimum = ob.solve(problem, np.concatenate(blocks, axis=1), y)
    route = by_hand.lazy_walk(nx.complete_graph(6), 0, 4000, 1)
    thetas = stcd(problem, blocks, y, route, by_hand.block_step(problem, blocks), 5)
    assert gap(problem, blocks, y, thetas, optimum) < 1e-9


@pytest.mark.slow
def test_svfl_diverges_at_the_block_step_and_not_at_the_parallel_step():
    """On the paper's ridge problem (N = 1000, d = 2000, K = 40, Q = 20) the gap explodes within five rounds."""
    problem = ob.Ridge(10.0)
    blocks, y = generate(1000, 2000, 40)
    _, optimum = ob.solve(problem, np.concatenate(blocks, axis=1), y)
    grams = [x.T @ x for x in blocks]

    def rounds(step, num_rounds):
        thetas = zeros(blocks)
        for _ in range(num_rounds):
            z = by_hand.rebuild_token([al.represent(x, t) for x, t in zip(blocks, thetas, strict=True)])
            thetas = [
                al.visit_ridge_gram(problem, x, g, y, t, z, step=step, num_local_steps=20)[0]
                for x, g, t in zip(blocks, grams, thetas, strict=True)
            ]
        return thetas

    start = ob.objective(problem, blocks, y, zeros(blocks))
    wild = ob.objective(problem, blocks, y, rounds(by_hand.block_step(problem, blocks), 5))
    assert ob.relative_gap(wild, optimum) > 1e6
    assert al.has_diverged(wild, start)
    calm = ob.objective(problem, blocks, y, rounds(by_hand.parallel_step(problem, blocks, 20), 5))
    assert calm < 0.1 * start


@pytest.mark.slow
def test_stcd_on_the_complete_graph_reaches_a_thousandth_and_is_slow_on_the_path():
    """N = 1000, d = 2000, K = 40, Q = 20: about 14,000 hops to 1e-3; the path graph is far from it after as many."""
    problem = ob.Ridge(10.0)
    blocks, y = generate(1000, 2000, 40)
    _, optimum = ob.solve(problem, np.concatenate(blocks, axis=1), y)
    step, grams = by_hand.block_step(problem, blocks), [x.T @ x for x in blocks]
    gaps = {}
    for name, graph in (("complete", nx.complete_graph(40)), ("path", nx.path_graph(40))):
        thetas, z = zeros(blocks), np.zeros(1000)
        for k in by_hand.lazy_walk(graph, 0, 16_000, 3):
            thetas[k], z = al.visit_ridge_gram(
                problem, blocks[k], grams[k], y, thetas[k], z, step=step, num_local_steps=20
            )
        gaps[name] = gap(problem, blocks, y, thetas, optimum)
    assert gaps["complete"] < 1e-3
    assert gaps["path"] > 100 * gaps["complete"]


# --- by the defaults: scaled tokens and momentum ---


def by_blocks(config, data, num_rounds):
    """The objectives of rounds of scaled tokens with momentum, in a loop without actors [hand]."""
    problem, blocks, y = ob.problem_of(config), [data.load(k).train for k in range(6)], data.labels()[0]
    scale, largest = 2.0, max(ob.largest_gram_eigenvalue([x]) for x in blocks)
    step = 1 / (scale * problem.curvature(len(y)) * largest + problem.smooth_penalty)
    theta, last, age, before, found = zeros(blocks), zeros(blocks), 1.0, np.inf, []
    for round_ in range(num_rounds):
        value = ob.objective(problem, blocks, y, theta)
        age, before = (age if value <= before else 1.0), value
        new = [each.copy() for each in theta]
        for cluster in ((0, 1, 2), (3, 4, 5)):
            z = sum(x @ each for x, each in zip(blocks, theta, strict=True))
            for k in cluster:
                for _ in range(config.num_local_steps):
                    gradient = problem.slope(z, y, len(y), np.empty_like(z)) @ blocks[k]
                    moved = new[k] - step * (gradient + problem.smooth_penalty * new[k])
                    problem.shrink(moved, step)
                    z += scale * (blocks[k] @ (moved - new[k]))
                    new[k] = moved
        following = (1 + np.sqrt(1 + 4 * age**2)) / 2
        momentum, age = (age - 1) / following, following
        if round_ == num_rounds - 1:
            momentum = 0.0
        theta = [one + momentum * (one - other) for one, other in zip(new, last, strict=True)]
        last = new
        found.append(ob.objective(problem, blocks, y, theta))
    return found


@pytest.mark.parametrize("words", ["problem=ridge", "problem=ridge local_arithmetic=data", "problem=sparse-logistic"])
def test_scaled_tokens_with_momentum_are_those_of_a_plain_loop(words):
    words = f"{words} acceleration=true num_rounds=8"
    _, kept, _ = simulate(words)
    config = config_of(merged(words))
    expected = by_blocks(config, load_data(config, "synthetic", 3), 8)
    np.testing.assert_allclose([found["training/objective"] for _, found in kept.rounds[1:]], expected, rtol=1e-9)


@pytest.mark.parametrize("problem", ["ridge", "sparse-logistic"])
@pytest.mark.parametrize("topology", ["path", "complete"])
def test_by_its_defaults_the_objective_is_that_of_the_optimum(problem, topology):
    words = f"problem={problem} topology={topology} num_samples=80 num_features=60"
    result, _, _ = simulate(f"{words} num_hops=9 num_local_steps=20 num_rounds=200 acceleration=true")
    assert result.metrics["gap"] < 1e-3


@pytest.mark.parametrize("words", ["noise=gaussian", "compression=quantise", "learning_rate=0.001", "batch_size=8"])
def test_what_acceleration_is_not_for_leaves_it_out(words):
    config = config_of(merged(f"{words} acceleration=true"))
    assert not config.is_accelerated
    assert config.token_scale == 1.0
