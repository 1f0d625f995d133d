"""Each method equals an implementation of its paper that shares nothing with ours but the draws of chance."""

import numpy as np
import pytest

from fedactors.actors.context import derived_rng, derived_seed
from fedactors.protocols.horizontal.data import load_data
from tests.protocols.horizontal.federation import METHODS, changed, play, state_of, vector_of


def gradient(w, x, y):
    """Of the mean cross-entropy of softmax regression; w holds the weights (10 x 64), then the biases."""
    weights, biases = w[:640].reshape(10, 64), w[640:]
    scores = x @ weights.T + biases
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    return np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)])


def client_update(w, x, y, seed, config, rate, more):
    """Mini-batch descent from w; returns the end and the number of steps."""
    w, order, steps, momentum = w.copy(), np.random.default_rng(seed), 0, 0.0
    for _ in range(config.local_epochs):
        shuffled = order.permutation(len(y))
        for first in range(0, len(y), config.batch_size):
            rows = shuffled[first : first + config.batch_size]
            g = gradient(w, x[rows], y[rows]) + more(w) + config.weight_decay * w
            momentum = config.momentum * momentum + g
            w = w - rate * momentum
            steps += 1
    return w, steps


def extra(config, x, c, local):
    """What a method adds to a client's gradients."""

    def more(w):
        if config.algorithm == "fedprox":
            return config.proximal * (w - x)
        return c - local if config.algorithm == "scaffold" else np.zeros_like(w)

    return more


def seed_of(client, t):
    return derived_seed(0, f"client {client}", f"rows {t}")


def by_hand(config, start):
    """The papers' algorithms, one after the other, on the clients' rows; returns (x, c)."""
    data = load_data(config, "digits", 0)
    blocks = [data.client(number).load() for number in range(data.num_clients)]
    rows = [(block.features.reshape(len(block.labels), -1).astype(float), block.labels) for block in blocks]
    x = start.astype(float)
    m, v, c = np.zeros(650), np.full(650, config.adaptivity**2), np.zeros(650)
    local = [np.zeros(650) for _ in rows]
    for t in range(1, config.num_rounds + 1):
        chosen = list(range(len(rows)))
        if config.clients_per_round:
            draw = derived_rng(0, "all clients", f"round {t}")
            chosen = sorted(draw.choice(len(rows), config.clients_per_round, replace=False).tolist())
        rate = config.learning_rate
        if config.schedule == "step":
            rate *= config.decay_factor ** ((t - 1) // config.decay_every)
        ends, lengths = {}, {}
        for i in chosen:
            ends[i], steps = client_update(x, *rows[i], seed_of(i, t), config, rate, extra(config, x, c, local[i]))
            lengths[i] = steps * rate
        if config.algorithm == "scaffold":
            delta = np.mean([ends[i] - x for i in chosen], axis=0)
            new = {i: local[i] - c + (x - ends[i]) / lengths[i] for i in chosen}
            c = c + sum(new[i] - local[i] for i in chosen) / len(rows)
            for i in chosen:
                local[i] = new[i]
        else:
            n = sum(len(rows[i][1]) for i in chosen)
            delta = sum(len(rows[i][1]) / n * (ends[i] - x) for i in chosen)
        b1, b2 = config.server_momentum, config.second_moment
        if config.algorithm == "fedavgm":
            m = b1 * m + delta
            x = x + m
        elif config.algorithm in ("fedadagrad", "fedadam", "fedyogi"):
            m = b1 * m + (1 - b1) * delta
            v = {
                "fedadagrad": v + delta**2,
                "fedadam": b2 * v + (1 - b2) * delta**2,
                "fedyogi": v - (1 - b2) * delta**2 * np.sign(v - delta**2),
            }[config.algorithm]
            x = x + 0.03 * m / (np.sqrt(v) + config.adaptivity)
        else:
            x = x + delta
    return x, c


def start_of(config):
    _, recorder, _ = play(changed(**{**{"algorithm": config.algorithm}, "num_rounds": 1, "learning_rate": 1e-15}))
    return vector_of(recorder)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize(
    "setting",
    [
        {"clients_per_site": 1},
        {"clients_per_site": 6, "together": True},
        {"clients_per_site": 4, "together": False, "clients_per_round": 3},
        {"num_aggregators": 2},
    ],
    ids=["each client alone", "all together", "sampled, one after the other", "over two aggregators"],
)
def test_a_method_is_that_of_its_paper(algorithm, setting):
    config = changed(algorithm=algorithm, learning_rate=0.02, proximal=0.3, **setting)
    _, recorder, _ = play(config)
    start = start_of(changed(algorithm="fedavg"))
    expected, control = by_hand(config, start)
    assert np.abs(expected - start).max() > 1e-3
    np.testing.assert_allclose(vector_of(recorder), expected, rtol=0, atol=1e-12)
    if algorithm == "scaffold":
        np.testing.assert_allclose(state_of(recorder)["model"]["control"], control, rtol=0, atol=1e-12)
        assert np.abs(control).max() > 1e-3


def test_with_momentum_weight_decay_and_a_schedule():
    options = {"momentum": 0.8, "weight_decay": 0.05, "schedule": "step", "decay_every": 2, "decay_factor": 0.5}
    config = changed(learning_rate=0.02, **options)
    expected, _ = by_hand(config, start_of(config))
    np.testing.assert_allclose(vector_of(play(config)[1]), expected, rtol=0, atol=1e-12)
