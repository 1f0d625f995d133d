import pickle

import numpy as np
import pytest

from fedactors.data.partitioners import (
    DirichletPartitioner,
    IidPartitioner,
    ShardPartitioner,
    VerticalEvenPartitioner,
    VerticalSizePartitioner,
)
from fedactors.errors import BadInput

LABELS = np.repeat(np.arange(10), 100)
ROWS = [
    IidPartitioner(num_partitions=7),
    DirichletPartitioner(num_partitions=7, alpha=0.5),
    DirichletPartitioner(num_partitions=7, alpha=0.1, self_balancing=True),
    ShardPartitioner(num_partitions=7, num_shards_per_partition=3),
]


@pytest.mark.parametrize("recipe", ROWS)
def test_every_row_is_dealt_once_and_the_seed_decides(recipe):
    dealt = recipe.over(LABELS)
    assert dealt.num_partitions == recipe.num_partitions == 7
    together = np.concatenate([dealt.load_partition(i) for i in range(7)])
    np.testing.assert_array_equal(np.sort(together), np.arange(1000))
    again = pickle.loads(pickle.dumps(recipe)).over(LABELS)
    np.testing.assert_array_equal(again.load_partition(3), dealt.load_partition(3))
    other = type(recipe)(**{**vars(recipe), "seed": 1}).over(LABELS)
    assert not np.array_equal(other.load_partition(3), dealt.load_partition(3))
    with pytest.raises(BadInput, match=r"there are 7 partitions"):
        dealt.load_partition(7)


def test_iid_sizes_differ_by_one():
    assert set(IidPartitioner(num_partitions=7).over(LABELS).sizes()) == {142, 143}


def test_a_small_alpha_is_more_skewed_than_a_large_one():
    def mean_largest_share(alpha):
        dealt = DirichletPartitioner(num_partitions=5, alpha=alpha).over(LABELS)
        shares = [np.bincount(LABELS[dealt.load_partition(i)]).max() / dealt.sizes()[i] for i in range(5)]
        return np.mean(shares)

    assert mean_largest_share(0.1) > mean_largest_share(1.0) > mean_largest_share(100.0)
    assert mean_largest_share(100.0) < 0.2


def test_self_balancing_bounds_the_largest_partition():
    plain = DirichletPartitioner(num_partitions=10, alpha=0.1).over(LABELS).sizes()
    balanced = DirichletPartitioner(num_partitions=10, alpha=0.1, self_balancing=True).over(LABELS).sizes()
    assert balanced.max() <= 100 + 100  # an even share, and one class more
    assert balanced.std() < plain.std()


def test_an_empty_container_is_named():
    with pytest.raises(BadInput, match=r"alpha: 0\.001 leaves container \d+ of 20 empty.*self_balancing"):
        DirichletPartitioner(num_partitions=20, alpha=0.001).over(LABELS)
    with pytest.raises(BadInput, match=r"min_partition_size: 60"):
        DirichletPartitioner(num_partitions=20, alpha=1.0, min_partition_size=60).over(LABELS)
    sizes = DirichletPartitioner(num_partitions=5, alpha=0.5, min_partition_size=100).over(LABELS).sizes()
    assert sizes.min() >= 100


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(BadInput, match=r"alpha"):
        DirichletPartitioner(num_partitions=5, alpha=alpha).over(LABELS)


def test_shards_hold_few_classes():
    dealt = ShardPartitioner(num_partitions=10, num_shards_per_partition=2).over(LABELS)
    assert set(dealt.sizes()) == {100}
    assert max(len(np.unique(LABELS[dealt.load_partition(i)])) for i in range(10)) <= 2
    with pytest.raises(BadInput, match=r"give 1 to 100"):
        ShardPartitioner(num_partitions=10, num_shards_per_partition=101).over(LABELS)


def test_ten_thousand_partitions_are_two_arrays():
    labels = np.tile(np.arange(10), 5000)
    dealt = DirichletPartitioner(num_partitions=10_000, alpha=1.0, min_partition_size=0).over(labels)
    assert dealt.sizes().sum() == 50_000
    assert dealt.order.nbytes + dealt.offsets.nbytes < 1_000_000


def test_columns_even_and_by_size():
    even = VerticalEvenPartitioner(num_partitions=3, shuffle=False).over(10)
    assert [list(even.load_partition(i)) for i in range(3)] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    sized = VerticalSizePartitioner(partition_sizes=(50, 450)).over(500)
    assert list(sized.sizes()) == [50, 450]
    assert len(set(sized.load_partition(0)) | set(sized.load_partition(1))) == 500
    shares = VerticalSizePartitioner(partition_sizes=(0.4, 0.6), shuffle=False).over(30)
    assert list(shares.sizes()) == [12, 18]
    left = VerticalSizePartitioner(partition_sizes=(2, 3), shuffle=False).over(10)
    assert [list(left.load_partition(i)) for i in range(2)] == [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize("sizes", [(), (0, 3), (400, 200), (1.5, 2), (0.6, 0.6)])
def test_sizes_that_do_not_fit(sizes):
    with pytest.raises(BadInput, match=r"partition_sizes"):
        VerticalSizePartitioner(partition_sizes=sizes).over(500)


@pytest.mark.parametrize("count", [0, -1, 11])
def test_the_number_of_partitions_is_checked(count):
    with pytest.raises(BadInput, match=r"give 1 to 10"):
        VerticalEvenPartitioner(num_partitions=count).over(10)
    with pytest.raises(BadInput, match=r"give 1 to 10"):
        IidPartitioner(num_partitions=count).over(np.zeros(10))
