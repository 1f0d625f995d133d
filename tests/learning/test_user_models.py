"""Models of the user's own: built in every process from the same numbers, and refused in one line before a run."""

import numpy as np
import pytest
import torch

import fedactors
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.network import Model, initial_vector, to_vector
from fedactors.learning.user_models import check_model

HERE = "tests.learning.user_networks"


def spec(name, inputs=(1, 8, 8), outputs=10):
    return ModelSpec(name=f"{HERE}:{name}", inputs=inputs, outputs=outputs)


def test_a_good_one_passes_and_starts_from_the_seed_alone():
    check_model(spec("good"), split=True)
    torch.manual_seed(1)
    first = initial_vector(spec("good"), 5)
    torch.manual_seed(2)
    assert np.array_equal(first, initial_vector(spec("good"), 5))
    assert not np.array_equal(first, initial_vector(spec("good"), 6))


def test_its_own_initialisation_stays():
    torch.manual_seed(5)
    by_torch = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)
    )
    assert torch.equal(torch.from_numpy(to_vector(build_model(spec("good"), 5))), torch.from_numpy(to_vector(by_torch)))


def test_it_trains_and_works_as_a_part_of_a_split_network():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 20)
    start = initial_vector(spec("good"), 0)
    result = train_locally(spec("good"), start, x, y, seed=0, training=LocalTraining())
    assert result.loss < 2.5
    assert Model(spec("good"), result.vector).output(x).shape == (20, 10)


def test_lazy_layers_take_their_widths_from_the_shape_of_a_sample():
    check_model(spec("lazy"))
    start = initial_vector(spec("lazy"), 0)
    assert len(start) == 4 * 9 + 4 + 4 * 4 + 144 * 10 + 10  # running statistics travel too
    assert (start == initial_vector(spec("lazy"), 0)).all()
    run = fedactors.simulate("horizontal", model=f"{HERE}:lazy", num_rounds=1, num_clients=3, num_training=90)
    assert np.isfinite(run.metrics["test/loss"])


def test_running_statistics_and_dropout_are_refused_in_a_split_network_only():
    check_model(spec("normalised"))
    with pytest.raises(BadInput, match=r"in a split network: buffer '1.running_mean'"):
        check_model(spec("normalised"), split=True)
    check_model(spec("dropping"))
    with pytest.raises(BadInput, match="in a split network: it draws at random"):
        check_model(spec("dropping"), split=True)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("too_wide", r"it returns \(2, 11\), not \(2, 10\)"),
        ("all_frozen", "all its parameters are frozen"),
        ("counting", r"buffer '1.seen' changes while it trains.*shared_buffers = \('seen',\)"),
        ("counting_in_whole_numbers", "shared_buffers names 'seen', which would not travel"),
        ("counting_calls", "called again with the same it returns something else; draw from torch"),
        ("drawing_alone", "called again with the same it returns something else; draw from torch"),
        ("unseeded", "'weight' is another one each time that it is built"),
        ("constant", "does not depend on its parameters"),
        ("nothing", "returned a NoneType, not a torch.nn.Module"),
        ("without_parameters", "it has no parameters"),
        ("fails", r"called with \(1, 8, 8\), 10 it fails: RuntimeError: no such weights$"),
        ("lazy_mismatch", r"called with \(1, 8, 8\), 10 it fails: RuntimeError"),
        ("mismatch", r"given 2 samples of shape \(1, 8, 8\) it fails: RuntimeError"),
        ("not_callable", "it is a int, not a function"),
        ("absent", "user_networks has no absent"),
    ],
)
def test_a_bad_one_is_refused_in_one_line(name, line):
    with pytest.raises(BadInput, match=line) as caught:
        check_model(spec(name))
    assert "\n" not in str(caught.value)


def test_what_a_module_keeps_in_a_shared_buffer_or_does_not_use_is_allowed():
    check_model(spec("counting_in_a_buffer"))
    check_model(spec("looking_back"))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("frozen", "in a split network: parameter '1.bias' is frozen"),
        ("unused", "in a split network: parameter 'forgotten.weight' is not used"),
        ("dropping_by_function", "in a split network: it draws at random"),
    ],
)
def test_what_a_split_network_cannot_have_a_whole_model_may(name, line):
    check_model(spec(name))
    with pytest.raises(BadInput, match=line):
        check_model(spec(name), split=True)


@pytest.mark.parametrize("address", ["no.such.module:net", ":net", "module:", "a b:net", "os.path:join:x"])
def test_an_address_that_leads_nowhere_is_refused_before_the_shape_is_known(address):
    with pytest.raises(BadInput, match="model: "):
        check_model(ModelSpec(name=address, inputs=(), outputs=2))
