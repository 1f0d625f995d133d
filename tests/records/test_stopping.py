import math

import pytest

from fedactors.records.stopping import BestKeeper, EarlyStopping, improves


def test_best_keeper_keeps_the_earlier_of_equals():
    keeper = BestKeeper(mode="max")
    assert [keeper.update(i, v) for i, v in enumerate([0.5, 0.7, 0.7, 0.6, 0.8])] == [True, True, False, False, True]
    assert (keeper.best, keeper.best_round) == (0.8, 4)


def test_min_mode_and_min_delta():
    keeper = BestKeeper(mode="min", min_delta=0.1)
    assert [keeper.update(i, v) for i, v in enumerate([1.0, 0.95, 0.85])] == [True, False, True]


def test_not_a_number_never_improves():
    assert not improves(math.nan, None, "max")
    assert not improves(math.nan, 0.1, "min")


def test_early_stopping_counts_rounds_in_a_row():
    stopping = EarlyStopping(patience=2)
    assert [stopping.update(v) for v in [0.5, 0.4, 0.6, 0.6, 0.5]] == [False, False, False, False, True]


def test_state_goes_on_exactly():
    values = [0.5, 0.4, 0.6, 0.6, 0.5, 0.4]
    whole, first = EarlyStopping(patience=3), EarlyStopping(patience=3)
    expected = [whole.update(v) for v in values]
    got = [first.update(v) for v in values[:4]]
    second = EarlyStopping(patience=3)
    second.load_state_dict(first.state_dict())
    assert got + [second.update(v) for v in values[4:]] == expected
    keeper = BestKeeper()
    keeper.update(3, 0.9)
    other = BestKeeper()
    other.load_state_dict(keeper.state_dict())
    assert not other.update(4, 0.9)
    assert other.best_round == 3


def test_patience_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        EarlyStopping(patience=0)
