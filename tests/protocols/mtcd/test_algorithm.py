"""Invariants of a visit and of syncing."""

import networkx as nx
import numpy as np
import pytest

from fedactors.config import build
from fedactors.network.topology import inside_clusters
from fedactors.protocols.mtcd import algorithm as al
from fedactors.protocols.mtcd import objective as ob
from fedactors.protocols.mtcd import roaming as walk
from fedactors.protocols.mtcd.config import MtcdConfig
from tests.protocols.mtcd import by_hand

PROBLEMS = [ob.Ridge(10.0), ob.SparseLogistic(0.01)]


def make(problem, num_samples=50, num_features=24, num_clients=6, seed=0):
    x, y = by_hand.synthetic_regression(np.random.default_rng(seed), num_samples, num_features)
    if isinstance(problem, ob.SparseLogistic):
        y = np.sign(y)
    blocks = [np.ascontiguousarray(b) for b in np.split(x, num_clients, axis=1)]
    for array in (*blocks, y):
        array.setflags(write=False)
    thetas = [np.random.default_rng(k).standard_normal(b.shape[1]) for k, b in enumerate(blocks)]
    return blocks, y, thetas


def token_of(blocks, thetas):
    return by_hand.rebuild_token([al.represent(x, t) for x, t in zip(blocks, thetas, strict=True)])


def plain_visit(problem, x, y, theta, z, step, num_steps):
    """The same steps, written as the formulas."""
    num_samples = len(y)
    for _ in range(num_steps):
        if isinstance(problem, ob.Ridge):
            new = theta - step * (x.T @ (z - y) + problem.alpha * theta)
        else:
            gradient = x.T @ (-y / (1.0 + np.exp(y * z))) / num_samples
            new = theta - step * gradient
            new = np.sign(new) * np.maximum(np.abs(new) - step * problem.beta, 0.0)
        z = z + x @ (new - theta)
        theta = new
    return theta, z


@pytest.mark.parametrize("problem", PROBLEMS)
def test_visit_equals_the_plain_loop(problem):
    blocks, y, thetas = make(problem)
    z = token_of(blocks, thetas)
    step = by_hand.block_step(problem, blocks)
    got = al.visit(problem, blocks[2], y, thetas[2], z, step=step, num_local_steps=7, num_samples=50)
    expected = plain_visit(problem, blocks[2], y, thetas[2], z, step, 7)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-10, atol=1e-12)


def test_visit_hand_computed():
    """x = 2, y = 1, theta = 1, Z = 3 (another client adds 1): gradient 2 (3 - 1) + 10 = 14, step .01."""
    theta, z = al.visit(
        ob.Ridge(10.0),
        np.array([[2.0]]),
        np.ones(1),
        np.ones(1),
        np.array([3.0]),
        step=0.01,
        num_local_steps=1,
        num_samples=1,
    )
    np.testing.assert_allclose(theta, [0.86])
    np.testing.assert_allclose(z, [2.72])


def test_gram_arithmetic_gives_the_same_numbers():
    problem = ob.Ridge(10.0)
    blocks, y, thetas = make(problem)
    z = token_of(blocks, thetas)
    step = by_hand.block_step(problem, blocks)
    on_data = al.visit(problem, blocks[1], y, thetas[1], z, step=step, num_local_steps=20, num_samples=50)
    on_gram = al.visit_ridge_gram(
        problem, blocks[1], blocks[1].T @ blocks[1], y, thetas[1], z, step=step, num_local_steps=20
    )
    np.testing.assert_allclose(on_gram[0], on_data[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(on_gram[1], on_data[1], rtol=1e-10, atol=1e-12)


def test_visit_takes_frozen_arrays_and_leaves_them_alone():
    problem = ob.Ridge(10.0)
    blocks, y, thetas = make(problem)
    z = token_of(blocks, thetas)
    before = z.copy(), thetas[0].copy()
    z.setflags(write=False)
    thetas[0].setflags(write=False)
    al.visit(problem, blocks[0], y, thetas[0], z, step=1e-3, num_local_steps=3, num_samples=50)
    np.testing.assert_array_equal(z, before[0])
    np.testing.assert_array_equal(thetas[0], before[1])


@pytest.mark.parametrize("problem", PROBLEMS)
def test_token_stays_in_accordance_and_the_objective_never_rises(problem):
    blocks, y, thetas = make(problem)
    z, step = token_of(blocks, thetas), by_hand.block_step(problem, blocks)
    graph, client = nx.cycle_graph(6), 0
    value = ob.objective(problem, blocks, y, thetas)
    for hop in range(1, 200):
        thetas[client], z = al.visit(
            problem, blocks[client], y, thetas[client], z, step=step, num_local_steps=3, num_samples=50
        )
        np.testing.assert_allclose(z, token_of(blocks, thetas), rtol=0, atol=1e-11)
        new_value = ob.objective(problem, blocks, y, thetas)
        assert new_value <= value * (1 + 1e-13)
        value = new_value
        client = walk.next_client(5, hop, by_hand.links(graph, client))
    assert value < 0.9 * ob.objective(problem, blocks, y, [np.zeros(4)] * 6)


def roam(problem, blocks, y, thetas, z, route, step, num_steps, rows=None):
    """One token's roaming on its own copies: returns the copies and its Z."""
    copies = {}
    for client in route:
        x, labels = (blocks[client], y) if rows is None else (blocks[client][rows], y[rows])
        theta = copies.get(client, thetas[client])
        copies[client], z = al.visit(
            problem, x, labels, theta, z, step=step, num_local_steps=num_steps, num_samples=len(y)
        )
    return copies, z


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("rows", [None, np.array([3, 4, 10, 30])])
def test_sync_identity_of_a_token_per_cluster(problem, rows):
    blocks, y, thetas = make(problem)
    graph, clusters = nx.path_graph(6), [(0, 1, 2), (3, 4, 5)]
    start = by_hand.rebuild_token([al.represent(x, t, rows) for x, t in zip(blocks, thetas, strict=True)])
    copies, tokens = {}, []
    for token, cluster in enumerate(clusters):
        route = by_hand.lazy_walk(inside_clusters(graph, clusters), cluster[1], 5, walk.walk_seed(0, 0, token))
        assert set(route) <= set(cluster)
        local, z = roam(problem, blocks, y, thetas, start, route, 1e-3, 4, rows)
        tokens.append(z)
        copies |= {client: {token: theta} for client, theta in local.items()}
    synced = [al.combine(thetas[k], copies.get(k, {}), 1.0) for k in range(6)]
    rebuilt = by_hand.rebuild_token([al.represent(x, t, rows) for x, t in zip(blocks, synced, strict=True)])
    np.testing.assert_allclose(by_hand.merge_cluster_tokens(start, tokens), rebuilt, atol=1e-11)
    assert np.abs(by_hand.average_tokens(tokens) - rebuilt).max() > 1e-6


def test_sync_identity_of_overlapping_tokens_with_separate_copies_at_one_client():
    problem = ob.Ridge(10.0)
    blocks, y, thetas = make(problem)
    start = token_of(blocks, thetas)
    routes = [(0, 1, 1, 2), (1, 2, 3, 3), (1, 1, 0, 1)]
    copies: dict[int, dict[int, np.ndarray]] = {k: {} for k in range(6)}
    tokens = []
    for token, route in enumerate(routes):
        local, z = roam(problem, blocks, y, thetas, start, route, 1e-3, 4)
        tokens.append(z)
        for client, theta in local.items():
            copies[client][token] = theta
            mine = [local.get(k, thetas[k]) for k in range(6)]
        np.testing.assert_allclose(z, token_of(blocks, mine), atol=1e-11)
    assert sorted(copies[1]) == [0, 1, 2]
    assert not np.allclose(copies[1][0], copies[1][2])
    synced = [al.combine(thetas[k], copies[k], 1 / 3) for k in range(6)]
    np.testing.assert_allclose(by_hand.average_tokens(tokens), token_of(blocks, synced), atol=1e-11)
    np.testing.assert_allclose(synced[3], (2 * thetas[3] + copies[3][1]) / 3)
    assert synced[5].tobytes() == thetas[5].tobytes()
    assert np.abs(by_hand.merge_cluster_tokens(start, tokens) - token_of(blocks, synced)).max() > 1e-6


def test_average_of_overlapping_tokens_never_raises_a_convex_objective_at_the_block_step():
    problem = ob.Ridge(10.0)
    blocks, y, thetas = make(problem)
    step, graph = by_hand.block_step(problem, blocks), nx.complete_graph(6)
    value = ob.objective(problem, blocks, y, thetas)
    for round_ in range(30):
        start = token_of(blocks, thetas)
        copies: dict[int, dict[int, np.ndarray]] = {k: {} for k in range(6)}
        for token in range(3):
            seed = walk.walk_seed(0, round_, token)
            route = by_hand.lazy_walk(graph, walk.start_client(seed, range(6)), 4, seed)
            for client, theta in roam(problem, blocks, y, thetas, start, route, step, 5)[0].items():
                copies[client][token] = theta
        thetas = [al.combine(thetas[k], copies[k], 1 / 3) for k in range(6)]
        new_value = ob.objective(problem, blocks, y, thetas)
        assert new_value <= value
        value = new_value


def test_batches_are_shared_by_seed_and_change_by_round():
    first = al.batch_rows(3, 0, 100, 10)
    np.testing.assert_array_equal(first, al.batch_rows(3, 0, 100, 10))
    assert not np.array_equal(first, al.batch_rows(3, 1, 100, 10))
    assert len(np.unique(first)) == 10
    assert al.batch_rows(3, 0, 100, None) is None
    assert al.batch_rows(3, 0, 100, 100) is None


def test_stale_steps_and_divergence():
    assert al.stale_steps(20, 9, 10) == 20
    assert al.stale_steps(20, 9, 1) == 200
    assert al.stale_steps(20, 10, 10) == 40
    assert al.has_diverged(float("nan"), 1.0)
    assert al.has_diverged(11.0, 1.0)
    assert not al.has_diverged(9.0, 1.0)


def test_the_safe_step_counts_the_blocks_that_move_and_their_stale_steps():
    def step(block=4.0, joint=30.0, smallest=3, **words):
        tokens = {} if words.get("algorithm") == "svfl" else {"num_tokens": 2}
        config = build(MtcdConfig, {"num_clients": 12, **tokens, "num_hops": 4, "num_local_steps": 5, **words})
        return al.safe_step(config, block, joint, smallest)

    # 5 steps twice before the sync (5 visits among 3 clients); 2 tokens of 5 visits move ten blocks
    assert step() == 1 / (30.0 * 10)
    assert step(joint=300.0) == 1 / (10 * 4.0 * 10)
    assert step(joint=300.0, num_tokens=4) == 1 / (12 * 4.0 * 10)  # never more blocks than there are clients
    assert step(algorithm="svfl") == 1 / (30.0 * 5)
    assert step(algorithm="svfl", joint=300.0) == 1 / (12 * 4.0 * 5)
    assert step(block=4.0, joint=2.0, num_local_steps=1, algorithm="svfl") == 1 / 4.0


def linear(**words):
    """The settings, a client's block of 5 training and 3 test rows, and the server's labels."""
    config = build(
        MtcdConfig,
        {"problem": "ridge", "ridge_penalty": 2.0, "num_local_steps": 3, "acceleration": False, **words},
    )
    rng = np.random.default_rng(0)
    x = {"train": rng.normal(size=(5, 4)), "test": rng.normal(size=(3, 4))}
    y = {"train": np.array([1.0, 0.5, 2.0, -1.0, 3.0]), "test": np.array([0.0, 1.0, 2.0])}
    return config, al.LinearBlock(config, x, y), al.LinearHead(config, y["train"])


def test_a_block_says_what_to_compute_on_which_rows_and_how_much_work_it_is():
    _, block, _ = linear()
    theta, rows = np.arange(4.0), np.array([3, 1])
    for task, expected, units in [
        (block.represent(theta, None), block.x["train"] @ theta, 5 * 4),
        (block.represent(theta, rows), block.x["train"][rows] @ theta, 2 * 4),
        (block.represent(theta, None, "test"), block.x["test"] @ theta, 3 * 4),
        (block.kernel_image(np.ones(5)), block.x["train"] @ block.x["train"].T @ np.ones(5), 5),
    ]:
        np.testing.assert_allclose(task.function(*task.arguments), expected, rtol=1e-12)
        assert task.work.units == units
    norm = block.squared_norm()
    assert norm.function(*norm.arguments) == pytest.approx(np.linalg.norm(block.x["train"], 2) ** 2, rel=1e-4)
    assert block.penalty(theta) == 0.5 * 2.0 * 14
    assert (block.blank(2) == 0).all()
    assert block.blank(2).shape == (2,)


def test_a_visit_of_a_block_takes_the_local_steps_of_the_settings():
    _, block, _ = linear()
    theta, z = np.arange(4.0), np.zeros(5)
    task = block.visit(theta, al.NO_THETA_0, z, None, 0.01, False)
    found, empty, moved = task.function(*task.arguments)
    expected, z_expected = plain_visit(block.problem, block.x["train"], block.y["train"], theta, z, 0.01, 3)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(moved, z_expected)
    assert (len(empty), task.work.units) == (0, 5 * 4 * 3)


def test_scores_are_of_the_part_that_is_asked_for():
    _, block, _ = linear()
    z = np.array([0.0, 1.0, 4.0])
    task = block.score("test", z, al.NO_THETA_0)
    found = task.function(*task.arguments)
    assert found["rmse"] == pytest.approx(np.sqrt(4 / 3))
    assert found["loss"] == 0.5 * 4.0
    classes = al.LinearBlock(linear()[0], block.x, {part: np.sign(y - 0.7) for part, y in block.y.items()})
    task = classes.score("test", np.array([-1.0, -2.0, 1.0]), al.NO_THETA_0)
    assert task.function(*task.arguments)["accuracy"] == pytest.approx(2 / 3)


def test_the_server_puts_new_representations_in_the_place_of_old_ones():
    _, _, head = linear()
    z = np.full(5, 10.0)
    before, after = {1: np.full(5, 2.0), 3: np.full(5, 4.0)}, {1: np.full(5, 3.0), 2: np.full(5, 0.5)}
    assert (head.merge(z, before, after, fresh=False) == 10 - 2 + 3 + 0.5).all()
    assert (z == 10).all()
    assert (head.merge(z, before, after, fresh=True) == 3.5).all()
    assert (head.merge(None, {}, after, fresh=False) == 3.5).all()
    assert (head.nothing() == np.zeros(5)).all()


def test_the_servers_loss_is_that_of_the_rows_scaled_to_all():
    _, _, head = linear()
    y = np.array([1.0, 0.5, 2.0, -1.0, 3.0])
    assert head.loss(al.NO_THETA_0, np.zeros(5), None) == pytest.approx(0.5 * (y @ y))
    rows = np.array([2, 4])
    assert head.loss(al.NO_THETA_0, np.zeros(2), rows) == pytest.approx(0.5 * (4 + 9) * 5 / 2)


def test_sums_under_masks_come_apart_again():
    config, _, _ = linear()
    parts = [(np.arange(5.0), 1.5), (np.ones(5), 0.25)]
    z, penalty = al.parts_of(sum(al.summand(h, r) for h, r in parts), config)
    assert (z == np.arange(5.0) + 1).all()
    assert penalty == 1.75
    assert z.dtype == np.float64
    assert al.point_of(config).num_clients == config.num_clients
    network = build(MtcdConfig, {"problem": "network"})
    z, penalty = al.parts_of(al.summand(np.arange(6.0).reshape(3, 2), 0.5), network)
    assert (z == np.arange(6.0).reshape(3, 2)).all()
    assert (z.dtype, penalty) == (np.float32, 0.5)


# --- steps that know what they see ---


def test_the_norm_that_mini_batches_meet_bounds_those_of_others():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 12))
    batches = [al.batch_rows(1, round_, 100, 10) for round_ in range(60)]
    found = al.squared_norm(x, batches[:10])
    met = [np.linalg.norm(x[rows], 2) ** 2 * 10 for rows in batches]
    assert max(met[10:]) <= found <= 1.5 * max(met)
    assert al.squared_norm(x) == pytest.approx(np.linalg.norm(x, 2) ** 2)
    assert found > 1.5 * al.squared_norm(x)


@pytest.mark.parametrize("problem", [ob.Ridge(2.0), ob.SparseLogistic(0.02)])
def test_backtracking_descends_from_any_step_and_leaves_a_safe_one_alone(problem):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 6)), np.sign(rng.normal(size=30))
    start = rng.normal(size=6)
    safe = 1 / ob.smoothness(problem, [x])
    words = {"num_local_steps": 25, "num_samples": 30}

    def value(theta):
        return ob.objective(problem, [x], y, [theta])

    plain = al.visit(problem, x, y, start, x @ start, step=safe, **words)
    same = al.visit(problem, x, y, start, x @ start, step=safe, backtracking=True, **words)
    assert plain[0].tobytes() == same[0].tobytes()
    wild, z = al.visit(problem, x, y, start, x @ start, step=1e6 * safe, backtracking=True, **words)
    assert value(wild) < value(start)
    np.testing.assert_allclose(z, x @ wild, atol=1e-9)
    long = {"num_local_steps": 4000, "num_samples": 30}
    theta, _ = al.visit(problem, x, y, start, x @ start, step=1e6 * safe, backtracking=True, **long)
    assert value(theta) == pytest.approx(ob.solve(problem, x, y)[1], rel=1e-6)


def test_gram_arithmetic_is_taken_where_it_is_cheaper():
    def asks(num_samples, num_features, **words):
        return al.prefers_gram(build(MtcdConfig, words), num_samples, num_features)

    assert asks(1000, 50)
    assert not asks(1000, 50, num_local_steps=1)
    assert not asks(50, 1000)
    assert not asks(1000, 50, problem="sparse-logistic")
    assert not asks(1000, 50, batch_size=10)
    assert not asks(1000, 50, backtracking=True)
    assert not asks(1000, 50, local_arithmetic="data")
    assert asks(50, 1000, local_arithmetic="gram")
