"""The server's arithmetic by hand: changes come out of a sum as they went in, losses are weighted as changes are."""

from __future__ import annotations

import numpy as np
import pytest

from fedactors.data.layouts.horizontal import rows_key, rows_of
from fedactors.data.sources import ArraySource
from fedactors.learning.local_training import LocalTraining
from fedactors.learning.many_clients import rows_on, train_clients
from fedactors.learning.models import ModelSpec
from fedactors.protocols.horizontal import algorithm
from fedactors.protocols.horizontal.messages import Change, TrainOrder
from tests.protocols.horizontal.federation import changed

LIMIT = 8.0


def change(num_clients, weight, loss, *vector, control=()):
    return Change(num_clients, weight, loss, np.array(vector, np.float32), np.array(control))


def order(size):
    return TrainOrder(1, (), np.zeros(size), np.zeros(0))


def summed(changes, size, total=40.0):
    parts = [algorithm.summand(one, total, order(size), LIMIT) for one in changes]
    return algorithm.mean_of_summands(np.sum(parts, axis=0), LIMIT)


def test_summands_of_sites_add_up_to_the_change_of_all_clients():
    # 30 of 40 samples answer: 10 at one site, 20 at the other, nobody at the third
    sites = [change(1, 10.0, 3.0, 1.0, -2.0), change(3, 20.0, 6.0, 4.0, 1.0)]
    found = summed([*sites, change(0, 0.0, 0.0)], 2)
    assert found.num_clients == 4
    assert found.weight == pytest.approx(30 / 40)
    assert found.loss == pytest.approx((10 * 3 + 20 * 6) / 30)
    np.testing.assert_allclose(found.change, [(10 * 1 + 20 * 4) / 30, (-10 * 2 + 20 * 1) / 30])
    assert found.control_change.size == 0


def test_every_number_of_a_summand_is_within_what_the_sum_takes():
    whole = algorithm.summand(change(1 << 16, 40.0, LIMIT, LIMIT, -LIMIT), 40.0, order(2), LIMIT)
    assert np.abs(whole).max() == LIMIT


def test_where_nobody_answers_nothing_changes():
    found = summed([change(0, 0.0, 0.0)], 3)
    assert (found.num_clients, found.weight, found.loss) == (0, 0.0, 0.0)
    assert (found.change.size, found.control_change.size) == (0, 0)


@pytest.mark.parametrize(("counts_samples", "shares"), [(True, (0.25, 0.75)), (False, (0.5, 0.5))])
def test_a_sites_loss_and_change_are_weighted_alike(counts_samples, shares):
    """As one client after the other makes them by the same training."""
    rng = np.random.default_rng(0)
    spec, training = ModelSpec(name="linear", inputs=(3,), outputs=2), LocalTraining(num_epochs=1, batch_size=8)
    start = rng.normal(size=8).astype(np.float32)
    numbers = [np.arange(n) for n in (10, 30)]
    sources = [
        ArraySource(ids=n, features=rng.normal(size=(len(n), 3)).astype(np.float32), labels=n % 2) for n in numbers
    ]
    keys = [rows_key(source) for source in sources]
    rows = [rows_on(rows_of, key, "cpu") for key in keys]
    alone = train_clients(spec, [start] * 2, rows, seeds=(1, 2), training=training, together=False)
    assert abs(alone[0].loss - alone[1].loss) > 0.01
    found = algorithm.train(spec, start, keys, (1, 2), [training] * 2, [], np.zeros(0), counts_samples, False, "cpu")
    assert found.weight == (40.0 if counts_samples else 2.0)
    assert found.loss == pytest.approx(sum(share * one.loss for share, one in zip(shares, alone, strict=True)))
    change_P = sum(share * (one.vector - start) for share, one in zip(shares, alone, strict=True))
    np.testing.assert_allclose(found.change, change_P, atol=1e-7)
    assert found.controls == ()


def test_all_take_part_or_so_many_of_them_drawn():
    draw = np.random.default_rng(0)
    assert algorithm.participants([5, 2, 9], None, draw) == algorithm.participants([5, 2, 9], 3, draw) == [2, 5, 9]
    drawn = [tuple(algorithm.participants([5, 2, 9], 2, draw)) for _ in range(300)]
    assert {*drawn} == {(2, 5), (2, 9), (5, 9)}
    assert min(drawn.count(pair) for pair in {*drawn}) > 70


def test_the_mean_control_moves_by_the_share_of_the_clients_that_answered():
    model = algorithm.ServerModel(np.zeros(1), control=np.array([1.0]))
    answers = [change(1, 10.0, 0.0, 2.0, control=(3.0,)), change(1, 30.0, 0.0, 4.0, control=(5.0,))]
    spec = ModelSpec(name="linear", inputs=(1,), outputs=1, bias=False)
    config = changed(algorithm="scaffold", server_learning_rate=0.5)
    made = algorithm.advance(config, spec, model, answers, num_clients=16)
    np.testing.assert_allclose(made.vector, [0.5 * (0.25 * 2 + 0.75 * 4)])
    np.testing.assert_allclose(made.control, [1 + 8 / 16])
    assert (model.vector, model.control) == (0.0, 1.0)
