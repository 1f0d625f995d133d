import numpy as np
import pytest

from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.parameters import (
    load_vector,
    num_values,
    to_vector,
    weighted_average,
)

SPEC = ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=2, norm="batch")


@pytest.mark.slow
def test_a_vector_round_trip_with_running_statistics():
    source, target = build_model(SPEC, 0), build_model(SPEC, 1)
    vector = to_vector(source)
    vector.flags.writeable = False
    assert len(vector) == num_values(source) > sum(p.numel() for p in source.parameters())
    load_vector(target, vector)
    assert np.array_equal(to_vector(target), vector)


def test_loading_is_in_place_and_copies():
    module = build_model(ModelSpec(name="linear", inputs=(2,), outputs=1), 0)
    parameter = next(module.parameters())
    vector = np.array([1, 2, 3], dtype=np.float32)
    load_vector(module, vector)
    vector[:] = 0
    assert parameter.tolist() == [[1.0, 2.0]]


def test_wrong_sizes_are_errors():
    module = build_model(ModelSpec(name="linear", inputs=(2,), outputs=1), 0)
    with pytest.raises(ValueError, match="3 values"):
        load_vector(module, np.zeros(4))


def test_average_is_weighted_and_independent_of_arrival():
    rng = np.random.default_rng(0)
    vectors = {name: rng.normal(size=50).astype(np.float32) for name in "cab"}
    weights = {"a": 1.0, "b": 2.0, "c": 3.0}
    mean = weighted_average(vectors, weights)
    assert mean.dtype == np.float32
    assert np.array_equal(mean, weighted_average(dict(sorted(vectors.items())), weights))
    assert mean == pytest.approx((vectors["a"] + 2 * vectors["b"] + 3 * vectors["c"]) / 6, rel=1e-5, abs=1e-6)


def test_average_refuses_bad_weights():
    with pytest.raises(ValueError, match="positive sum"):
        weighted_average({"a": np.zeros(2)}, {"a": 0.0})
    with pytest.raises(ValueError, match="positive sum"):
        weighted_average({}, {})
