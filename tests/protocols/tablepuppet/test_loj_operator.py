from __future__ import annotations

import numpy as np
import pytest

from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.local_solvers import (
    TableModel,
    initial_theta,
    partial_gradient,
    predict,
    pull_back,
)
from fedactors.protocols.tablepuppet.mapping import JoinSplit
from tests.protocols.tablepuppet.conftest import touched_rows


def sgd_epochs(joined, models, theta, loss, batches, beta, rate, sizes):
    """RFL-SGD on distinct rows and partitions: LoJ and LoU gather, compute, scatter (Eq. 4, 10, 11, 17-19)."""
    rows, scratch = joined.rows, [np.empty(n, dtype=np.int64) for n in joined.mapping.num_rows]
    for batch in batches:
        touched = [algorithm.batch_rows(r[batch], s) for r, s in zip(rows, scratch, strict=True)]
        h = [predict(m, t, x[b.rows_u]) for m, t, x, b in zip(models, theta, joined.x, touched, strict=True)]
        total = algorithm.gather_join(h, [b.position_B for b in touched])
        derivative = algorithm.loss_gradient(loss, total, joined.y_N[batch])
        for i, b in enumerate(touched):
            Y, G = algorithm.scatter_join(derivative, b.position_B, len(b.rows_u)), b.counts()
            ends = np.cumsum(sizes[i]) - sizes[i]
            partial = [
                partial_gradient(models[i], theta[i], joined.x[i][start + local], Y[positions], G[positions], beta)
                for start, (positions, local) in zip(ends, algorithm.split_rows(b.rows_u, sizes[i]), strict=True)
            ]
            theta[i] = algorithm.gradient_step(theta[i], algorithm.combine_gradients(partial, len(batch)), rate)
    return theta


def centralised_epochs(joined, models, theta, loss, batches, beta, rate):
    """Mini-batch SGD on the materialised join."""
    slices = [x[r] for x, r in zip(joined.x, joined.rows, strict=True)]
    for batch in batches:
        total = sum(predict(m, t, x[batch]) for m, t, x in zip(models, theta, slices, strict=True))
        derivative = algorithm.loss_gradient(loss, total, joined.y_N[batch]) / len(batch)
        theta = [
            t - rate * (pull_back(m, t, x[batch], derivative) + beta * t)
            for m, t, x in zip(models, theta, slices, strict=True)
        ]
    return theta


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, 10_000])
@pytest.mark.parametrize("sizes", [[[60], [16], [6]], [[20, 40], [3, 13], [1, 5]], [[15] * 4, [4] * 4, [2, 0, 1, 3]]])
@pytest.mark.parametrize(("kind", "loss"), [("linear", "squared"), ("linear", "softmax"), ("neural", "logistic")])
def test_rfl_sgd_is_mini_batch_sgd_on_the_joined_table(make_star, batch_size, sizes, kind, loss):
    joined = make_star()
    if loss != "squared":
        joined.y_N = np.floor(3 * (joined.y_N - joined.y_N.min()) / np.ptp(joined.y_N)).clip(max=2).astype(int)
    if loss == "logistic":
        joined.y_N = (joined.y_N > 0).astype(float)
    rng = np.random.default_rng(5)
    outputs = 3 if loss == "softmax" else 1
    models = [TableModel(kind, x.shape[1], outputs, 4, i == 0) for i, x in enumerate(joined.x)]
    start = [initial_theta(m, rng) for m in models]
    batches = [b for _ in range(2) for b in algorithm.epoch_batches(joined.mapping.num_joined, batch_size, rng)]
    ours = sgd_epochs(joined, models, list(start), loss, batches, 0.01, 0.05, sizes)
    oracle = centralised_epochs(joined, models, list(start), loss, batches, 0.01, 0.05)
    for a, b, first in zip(ours, oracle, start, strict=True):
        assert np.abs(a - b).max() < 1e-12
        assert np.abs(a - first).max() > 1e-4


def test_joined_predictions_are_those_on_the_materialised_join(make_star):
    joined = make_star(3)
    theta = [np.random.default_rng(6).normal(size=(x.shape[1], 2)) for x in joined.x]
    gathered = algorithm.gather_join([x @ t for x, t in zip(joined.x, theta, strict=True)], joined.rows)
    assert gathered == pytest.approx(joined.materialised @ np.vstack(theta), abs=1e-12)


def test_scatter_sums_over_the_duplicates(make_star):
    joined = make_star(4)
    values = np.random.default_rng(7).normal(size=(joined.mapping.num_joined, 3))
    for i, rows in enumerate(joined.rows):
        expected = np.zeros((joined.mapping.num_rows[i], 3))
        np.add.at(expected, rows, values)
        assert algorithm.scatter_join(values, rows, len(expected)) == pytest.approx(expected)
        one = algorithm.scatter_join(values[:, :1], rows, len(expected))
        assert one == pytest.approx(expected[:, :1])


def test_batch_rows_are_the_distinct_rows_with_counts():
    scratch = np.empty(10, dtype=np.int64)
    batch = np.array([7, 2, 7, 7, 3, 2])
    made = algorithm.batch_rows(batch, scratch)
    assert sorted(made.rows_u.tolist()) == [2, 3, 7]
    assert made.rows_u[made.position_B].tolist() == batch.tolist()
    assert dict(zip(made.rows_u.tolist(), made.counts().tolist(), strict=True)) == {7: 3, 2: 2, 3: 1}


def matched(mapping):
    return tuple(int(np.count_nonzero(count)) for count in mapping.duplicate_counts)


def test_an_epoch_visits_every_joined_row_once_and_touched_rows_lie_between_n_and_joined(make_star):
    mapping = make_star().mapping
    batches = algorithm.epoch_batches(mapping.num_joined, 13, np.random.default_rng(0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(mapping.num_joined))
    for alpha, least in zip(touched_rows(mapping, batches), matched(mapping), strict=True):
        assert least <= alpha <= mapping.num_joined
    whole = touched_rows(mapping, [np.arange(mapping.num_joined)])
    assert whole == matched(mapping)


def test_union_gather_and_scatter_are_inverse():
    values = np.arange(10.0).reshape(5, 2)
    parts = algorithm.scatter_union(values, [2, 0, 3])
    assert [len(p) for p in parts] == [2, 0, 3]
    assert np.array_equal(algorithm.gather_union(parts), values)


def test_vertical_slices_have_the_joined_rows_in_every_table():
    rows = (np.array([0, 0, 2], dtype=np.int32), np.array([1, 3, 3], dtype=np.int32))
    split = JoinSplit(rows, tuple(r[:2] for r in rows), (3, 4))
    sliced = split.vertical_slices()
    assert sliced.num_rows == (3, 3)
    assert [r.tolist() for r in sliced.train] == [[0, 1, 2]] * 2
    assert [r.tolist() for r in sliced.test] == [[0, 1]] * 2


def test_renumbering_keeps_the_rows_that_take_part_in_order():
    rows = (np.array([0, 0, 2], dtype=np.int32), np.array([3, 1, 3], dtype=np.int32))
    test = (np.array([1], dtype=np.int32), np.array([1], dtype=np.int32))
    split = JoinSplit(rows, test, (3, 4))
    (counts, in_test), (others, _) = split.counts()
    assert counts.tolist() == [2, 0, 1]
    assert others.tolist() == [0, 1, 0, 2]
    assert in_test.tolist() == [False, True, False]
    made = split.renumbered()
    assert made.num_rows == (2, 2)
    assert [r.tolist() for r in made.train] == [[0, 0, 1], [1, 0, 1]]
    assert [r.tolist() for r in made.test] == [[0], [0]]
