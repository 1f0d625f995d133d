import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.nebulafl import versioning
from protocols.nebulafl.versioning import CenterModels

numbers = st.floats(-1e3, 1e3, width=32)
vectors = arrays(np.float32, 4, elements=numbers)


def vector(value: float) -> np.ndarray:
    return np.full(3, value, dtype=np.float32)


@pytest.mark.parametrize(
    ("planet", "stellar", "version", "stellar_version", "decay", "expected"),
    [
        (1, 0, 12, 4, 1, 8 / 9),
        (1, 0, 3, 4, 1, 5 / 6),
        (1, 0, 3, 4, 0.5, 10 / 11),
        (2, -1, 20, 5.5, 0.75, 1.8524590),
    ],
)
def test_planet_update_by_hand(planet, stellar, version, stellar_version, decay, expected):
    made = versioning.planet_update(vector(planet), vector(stellar), version, stellar_version, decay)
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    assert made.dtype == np.float32


def test_master_by_hand():
    np.testing.assert_allclose(versioning.master_model([vector(1), vector(3)], [1, 2]), 7 / 3, rtol=1e-6)
    np.testing.assert_allclose(versioning.master_model([vector(1), vector(3)], [0, 0]), 2.0)


def test_decay_falls_from_one_to_a_half_and_stays():
    at = [versioning.stellar_decay(now, 100.0, 1000.0) for now in (100, 600, 1100, 5000)]
    assert at == [1.0, 0.75, 0.5, 0.5]


def test_pull_weight_is_limited():
    assert [versioning.pull_weight(gap) for gap in (-20, -8, 0, 7.5, 90)] == [2, 2, 10, 17.5, 50]
    np.testing.assert_allclose(versioning.pull(vector(1), vector(0), 0), 10 / 11, rtol=1e-6)


def test_a_lagging_center_is_sped_up_by_default_and_slowed_by_the_print():
    offset = versioning.version_offset(mean_version=4.0, stellar_version=10.0)
    assert versioning.version_gap(4, 4.0, offset) == -6
    assert versioning.version_gap(4, 4.0, offset, paper_literal=True) == 6


@given(vectors, vectors, st.integers(0, 60), st.floats(0, 60), st.floats(0, 1))
def test_planet_update_stays_between_its_inputs(planet, stellar, version, stellar_version, decay):
    made = versioning.planet_update(planet, stellar, version, stellar_version, decay)
    assert (made >= np.minimum(planet, stellar)).all()
    assert (made <= np.maximum(planet, stellar)).all()


@given(vectors, vectors, st.floats(-100, 100))
def test_pull_stays_between_its_inputs(branch, master, gap):
    made = versioning.pull(branch, master, gap)
    assert (made >= np.minimum(branch, master)).all()
    assert (made <= np.maximum(branch, master)).all()


@given(st.lists(st.tuples(vectors, st.integers(0, 50)), min_size=1, max_size=6))
@settings(max_examples=60)
def test_master_stays_between_its_planets(planets):
    models, versions = [m for m, _ in planets], [v for _, v in planets]
    made = versioning.master_model(models, versions)
    slack = 1e-6 * (1 + np.abs(models).max())
    assert (made >= np.min(models, axis=0) - slack).all()
    assert (made <= np.max(models, axis=0) + slack).all()


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


def test_synchronous_planets_of_one_center_with_equal_versions_are_fedavg():
    trained = [np.array([1.0, 5.0, -2.0], np.float32), np.array([3.0, 1.0, 4.0], np.float32)]
    np.testing.assert_allclose(versioning.master_model(trained, [7, 7]), np.mean(trained, axis=0), rtol=1e-6)


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
