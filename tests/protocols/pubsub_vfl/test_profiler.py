import numpy as np
import pytest

from protocols.pubsub_vfl.data import load_data
from protocols.pubsub_vfl.profiler import fit_affine, fit_power_law, profile_party
from tests.protocols.pubsub_vfl.runs import config_of

SIZES = np.array([2, 8, 32, 128, 512])


def test_fits_recover_what_made_the_measurements():
    law, r2 = fit_power_law(SIZES, 0.02 * SIZES**-0.8)
    assert (law.scale, law.exponent, r2) == pytest.approx((0.02, -0.8, 1.0))
    (fixed, per_row), error = fit_affine(SIZES, 1e-4 + 2e-6 * SIZES)
    assert (fixed.scale, fixed.exponent) == pytest.approx((1e-4, 0.0))
    assert (per_row.scale, per_row.exponent) == pytest.approx((2e-6, 1.0))
    assert error < 1e-9


def test_goodness_of_fit_shows_a_law_that_does_not_fit():
    assert fit_power_law(SIZES, 1e-3 + 1e-6 * SIZES)[1] < 0.95


def test_a_profile_holds_constants_only():
    config = config_of()
    data = load_data(config, "breast-cancer", 0)
    active, passive = (profile_party(config, data, p, num_cores=4, repetitions=1) for p in ("active", "passive"))
    assert (active.role, passive.role) == ("active", "passive")
    assert (len(active.phases), len(passive.phases)) == (6, 4)
    assert all(phase.scale >= 0 for phase in (*active.phases, *passive.phases))
    assert active.cores == 4
