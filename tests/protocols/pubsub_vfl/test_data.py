import numpy as np
import pytest

from fedactors.errors import BadInput
from protocols.pubsub_vfl.data import PartyRows, batches, num_batches
from tests.protocols.pubsub_vfl.runs import arrays, config_of


def test_batches_cover_the_rows_once_and_differ_between_epochs():
    first, second = (batches(103, 10, 7, epoch) for epoch in (1, 2))
    assert len(first) == num_batches(103, 10) == 11
    assert sorted(np.concatenate(first)) == list(range(103))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))
    assert all(map(np.array_equal, first, batches(103, 10, 7, 1)))


def test_a_peer_may_name_validation_and_test_rows_only():
    rows = PartyRows(config_of(), arrays("multiclass").part("passive-1"), 0)
    rows.follow(np.arange(400))
    sizes = {name: len(rows.part(name).features) for name in ("validation", "test")}
    assert sum(sizes.values()) + rows.num_train == 400
    for name in ("train", "block"):
        with pytest.raises(BadInput, match=f"part: '{name}' is not allowed: use validation, test"):
            rows.part(name)
