from __future__ import annotations

import numpy as np

from fedactors.protocols.nebulafl.staleness import CenterModels, RotationTimer


def vector(value: float) -> np.ndarray:
    return np.full(3, value, dtype=np.float32)


def center(num_planets: int = 2) -> CenterModels:
    return CenterModels([vector(0)] * num_planets, stellar=vector(0), rotation_interval=1000.0)


def test_update_uses_the_version_before_this_training_and_counts_it_once():
    models = center()
    models.versions = [12, 0]
    models.receive(vector(0), 4.0, now=0.0)
    models.trained(0, vector(1), now=0.0)
    np.testing.assert_allclose(models.planets[0], 8 / 9, rtol=1e-6)
    assert models.versions == [13, 0]


def test_a_rotation_resets_the_decay_and_gives_the_offset():
    models = center()
    models.trained(0, vector(1), now=1500.0)
    np.testing.assert_allclose(models.planets[0], 10 / 11, rtol=1e-6)
    models.trained(1, vector(2), now=1600.0)
    master, version = models.send()
    np.testing.assert_allclose(master, (10 / 11 + 20 / 11) / 2, rtol=1e-6)
    assert version == 1.0
    models.receive(vector(5), 3.0, now=1700.0)
    assert models.gap(0) == 1 - 1 + (1 - 3)
    models.trained(0, vector(1), now=1700.0)
    np.testing.assert_allclose(models.planets[0], (5 * 1 + 5) / 6, rtol=1e-6)


def test_the_self_turn_leaves_no_offset():
    models = center()
    models.trained(0, vector(1), now=10.0)
    models.receive(*models.send(), now=20.0)
    assert models.gap(0) == 0.5
    assert models.gap(1) == -0.5


def test_a_snapshot_gives_the_same_future():
    first, second = center(), center()
    first.trained(0, vector(1), now=30.0)
    first.receive(*first.send(), now=40.0)
    second.load_state_dict(first.state_dict())
    for models in (first, second):
        models.trained(1, vector(2), now=500.0)
    assert first.versions == second.versions == [1, 1]
    np.testing.assert_array_equal(first.planets, second.planets)
    assert first.gap(0) == second.gap(0)


def test_models_handed_out_are_never_written_to():
    models = center()
    before = models.planets[0]
    models.trained(0, vector(1), now=0.0)
    assert (before == 0).all()


# --- when masters are sent ---


def test_the_first_master_is_sent_after_one_interval():
    timer = RotationTimer(1000.0)
    assert timer.take(999.9) is None
    assert timer.take(1000.0) == 0
    assert timer.take(1000.0) is None
    assert timer.due_at() == 2000.0


def test_the_print_sends_at_once():
    assert RotationTimer(1000.0, paper_literal=True).take(0.0) == 0


def test_a_center_that_comes_back_counts_like_the_others():
    stayed, lost = RotationTimer(10.0), RotationTimer(10.0)
    for now in (10.0, 20.0, 30.0):
        stayed.take(now)
    lost.catch_up(35.0)
    assert stayed.due_at() == lost.due_at() == 40.0
    assert stayed.take(40.0) == lost.take(40.0) == 3


def test_received_pulls_to_nothing_until_a_trained_model_has_come():
    models = CenterModels([vector(0)] * 2, vector(9), 1000.0, rule="received")
    models.trained(0, vector(1), now=10.0)
    np.testing.assert_array_equal(models.planets[0], vector(1))  # the paper's rule would give (5 + 9 d) / (5 + d)
    models.receive(vector(7), 1.0, now=20.0)
    models.trained(0, vector(1), now=20.0)
    np.testing.assert_allclose(models.planets[0], (5 * 1 + 7) / 6, rtol=1e-6)


def test_shifted_moves_planets_by_half_of_the_difference_and_pulls_to_the_own_master():
    models = CenterModels([vector(0), vector(0)], vector(0), 1000.0, rule="shifted")
    models.versions, models.planets = [1, 1], [vector(2), vector(4)]
    handed_out = models.planets[0]
    models.receive(vector(9), 5.0, now=0.0)  # own master 3: all planets move by 3
    np.testing.assert_allclose(models.planets, [vector(5), vector(7)])
    # a training that began before the shift gave 2 -> 3: its progress of 1 is kept on top of the shifted planet
    models.trained(0, vector(3), now=0.0, handed_out_P=handed_out)
    local_master = 6.0
    np.testing.assert_allclose(models.planets[0], (5 * 6.0 + local_master) / 6, rtol=1e-6)
    # one that began after it counts as it is
    models.trained(1, vector(8), now=1000.0, handed_out_P=models.planets[1])
    master = (2 * 6.0 + 1 * 7.0) / 3  # versions 2 and 1
    np.testing.assert_allclose(models.planets[1], (5 * 8 + 0.5 * master) / 5.5, rtol=1e-6)


def test_a_snapshot_keeps_what_was_received():
    first, second = (CenterModels([vector(0)], vector(0), 1000.0, rule="received") for _ in range(2))
    first.receive(vector(5), 1.0, now=1.0)
    second.load_state_dict(first.state_dict())
    second.trained(0, vector(1), now=1.0)
    np.testing.assert_allclose(second.planets[0], 10 / 6, rtol=1e-6)
