"""Sums along a join tree against the same sums over the listed join."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedactors.data.join import MOST_JOINED, JoinTooLargeError, JoinTree, TreeSums

TREES = {
    "alone": ([7], []),
    "pair": ([9, 8], [(0, 1)]),
    "star": ([14, 6, 5, 4], [(0, 1), (0, 2), (0, 3)]),
    "path": ([5, 9, 8, 6], [(0, 1), (1, 2), (2, 3)]),
    "bush": ([6, 7, 8, 5, 4], [(2, 0), (2, 1), (1, 3), (1, 4)]),
}


def random_tree(kind, seed, lonely=True):
    """Return rows and steps of a random tree; some keys are at one end of their edge only."""
    rng = np.random.default_rng(seed)
    sizes, edges = TREES[kind]
    steps = []
    for a, b in edges:
        local, other = (rng.integers(0, 4, sizes[i]).astype(np.int32) for i in (a, b))
        if lonely:
            local[~np.isin(local, other)] = -1  # as `join_keys` says it
        steps.append((a, b, local, other))
    return sizes, tuple(steps)


def listed(sizes, steps):
    """Return all joined rows, by trying every combination of rows."""
    fits = [
        rows
        for rows in itertools.product(*map(range, sizes))
        if all(local[rows[a]] == other[rows[b]] for a, b, local, other in steps)
    ]
    return np.array(fits, dtype=np.int64).reshape(len(fits), len(sizes))


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_the_listed_join(kind, seed):
    sizes, steps = random_tree(kind, seed)
    rows = listed(sizes, steps)
    kept = np.random.default_rng(seed).random(sizes[0]) < 0.6
    for root in range(len(sizes)):
        tree = JoinTree(tuple(sizes), steps, root)
        for mask, rows_in in ((None, rows), (kept, rows[kept[rows[:, 0]]])):
            found = tree.counts([mask, *[None] * (len(sizes) - 1)])
            for table, size in enumerate(sizes):
                assert found[table].tolist() == np.bincount(rows_in[:, table], minlength=size).tolist()


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("seed", range(1, 4))  # of these all have joined rows
def test_sums_and_squares_are_those_of_the_listed_join(kind, seed):
    sizes, steps = random_tree(kind, seed)
    rows = listed(sizes, steps)
    assert len(rows)
    rng = np.random.default_rng(seed)
    whole = JoinTree(tuple(sizes), steps)
    counts = whole.counts([None] * len(sizes))
    kept = [np.flatnonzero(count) for count in counts]
    values = [rng.normal(size=n) + 1e4 * (i == 0) for i, n in enumerate(sizes)]
    parts = [value[rows_in] for value, rows_in in zip(values, kept, strict=True)]
    total = sum(value[rows[:, i]] for i, value in enumerate(values))
    for root in range(len(sizes)):
        sums = TreeSums(JoinTree(tuple(sizes), steps, root).restricted(counts))
        assert sums.num_joined == len(rows)
        for table, found in enumerate(sums.sums(parts)):
            expected = np.bincount(rows[:, table], weights=total, minlength=sizes[table])[kept[table]]
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert sums.square(parts) == pytest.approx(float(total @ total), rel=1e-12)
        mean, around = sums.at_root(parts)
        for index, row in enumerate(kept[root]):
            local = total[rows[:, root] == row]
            assert mean[index] == pytest.approx(local.mean(), rel=1e-12)
            assert around[index] == pytest.approx(((local - local.mean()) ** 2).sum(), rel=1e-9, abs=1e-12)


def test_small_squares_beside_large_parts_that_cancel():
    sizes, steps = random_tree("star", 1)
    rows = listed(sizes, steps)
    counts = JoinTree(tuple(sizes), steps).counts([None] * len(sizes))
    sums = TreeSums(JoinTree(tuple(sizes), steps).restricted(counts))
    rng = np.random.default_rng(0)
    values = [1e-3 * rng.normal(size=n) + far for n, far in zip(sizes, (3e6, -1e6, -1e6, -1e6), strict=True)]
    parts = [value[count > 0] for value, count in zip(values, counts, strict=True)]
    total = sum(value[rows[:, i]] for i, value in enumerate(values))
    assert sums.square(parts) == pytest.approx(float(total @ total), rel=1e-5)


def test_the_tree_has_the_counts_of_the_mapping_that_lists():
    sizes, steps = random_tree("star", 3)
    rows = JoinTree(tuple(sizes), steps).listed()
    found = JoinTree(tuple(sizes), steps).counts([None] * len(sizes))
    for table, size in enumerate(sizes):
        assert found[table].tolist() == np.bincount(rows[table], minlength=size).tolist()


def test_a_join_without_rows_counts_none():
    steps = ((0, 1, np.full(3, -1, np.int32), np.zeros(2, np.int32)),)
    assert [c.tolist() for c in JoinTree((3, 2), steps).counts([None, None])] == [[0, 0, 0], [0, 0]]


def test_more_rows_than_can_be_counted_are_refused():
    n = 1 << 11
    zeros = np.zeros(n, np.int32)
    steps = tuple((i, i + 1, zeros, zeros) for i in range(4))
    assert n**5 > MOST_JOINED
    with pytest.raises(JoinTooLargeError, match="joined rows, more than 9007199254740992"):
        JoinTree((n,) * 5, steps).counts([None] * 5)
    assert int(JoinTree((n,) * 4, steps[:3]).counts([None] * 4)[0].sum()) == n**4
