import numpy as np

from protocols.pubsub_vfl.data import batches, num_batches


def test_batches_cover_the_rows_once_and_differ_between_epochs():
    first, second = (batches(103, 10, 7, epoch) for epoch in (1, 2))
    assert len(first) == num_batches(103, 10) == 11
    assert sorted(np.concatenate(first)) == list(range(103))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))
    assert all(map(np.array_equal, first, batches(103, 10, 7, 1)))
