"""Models of the user's own: built in every process from the same numbers, and refused in one line before a run."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedactors
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, batches, evaluate_model, train_locally
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.learning.network import Model, initial_vector, load_vector, to_vector
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.learning.user_models import check_model
from tests.learning.user_networks import Masked, scripted

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
        ("spectral", r"buffer '1.parametrizations.weight.0._u' changes .*shared_buffers = \('_u', '_v'\)$"),
        ("complex_parameter", "parameter 'filter' is complex; keep torch.view_as_real of it"),
        ("Sparse", r"parameter 'mix' is sparse; make it dense \(to_dense\)"),
        ("TiedByMemory", "parameters 'first.weight' and 'second.weight' share memory"),
        ("Halving", "it fails: RuntimeError: .* parameters and samples are float32 here"),
        ("scripted", r"takes no hooks; give a function that makes it and returns torch.nn.Sequential\(module\)"),
        ("counting_in_whole_numbers", "shared_buffers names 'seen', which would not travel"),
        ("counting_calls", "called twice with the same arguments it returns different values; draw from torch"),
        ("drawing_alone", "called twice with the same arguments it returns different values; draw from torch"),
        ("unseeded", "'weight' is different each time that it is built"),
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


@pytest.mark.parametrize("name", ["complex_by_parts", "spectral_shared", "scripted_within", "halved"])
def test_what_an_error_advises_is_trained_as_torch_trains_it(name):
    check_model(spec(name))
    start, (x, y) = initial_vector(spec(name), 0), rows(40)
    module, order = build_skeleton(spec(name)).train(), np.random.default_rng(3)
    load_vector(module, start)
    steps = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    for index in batches(40, 10, order):
        steps.zero_grad()
        functional.cross_entropy(module(torch.from_numpy(x[index])), torch.from_numpy(y[index])).backward()
        steps.step()
    rule = OptimizerSpec(learning_rate=0.05, momentum=0.9)
    training = LocalTraining(optimizer=rule, batch_size=10, num_epochs=1)
    found = train_locally(spec(name), start, x, y, seed=3, training=training).vector
    np.testing.assert_allclose(found, to_vector(module), atol=1e-6)
    assert np.abs(found - start).max() > 0.01


def rows(number):
    rng = np.random.default_rng(0)
    return rng.normal(size=(number, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, number)


def test_complex_constants_keep_both_parts():
    check_model(spec("Turned"))
    assert build_skeleton(spec("Turned")).turns.imag.abs().max() > 0.9


def test_a_module_that_computes_in_half_precision_is_measured():
    check_model(spec("HalfPrecision"))
    start, (x, y) = initial_vector(spec("HalfPrecision"), 0), rows(20)
    assert evaluate_model(spec("HalfPrecision"), start, x, y)["loss"] == pytest.approx(
        evaluate_model(spec("good"), start, x, y)["loss"], abs=0.02
    )


def test_hooks_of_parameters_work_in_a_function_and_are_refused_where_a_copy_loses_them():
    start, (x, y) = initial_vector(spec("Masked"), 0), rows(20)
    found = train_locally(spec("Masked"), start, x, y, seed=0, training=LocalTraining()).vector
    is_still = (found == start)[:640].reshape(10, 64)
    assert is_still[:, ::2].all()
    assert not is_still[:, 1::2].any()
    with pytest.raises(BadInput, match=r"its parameter 'head.weight' has a hook, which copies lose; give a function"):
        fedactors.simulate("horizontal", model=Masked(), num_rounds=1, num_clients=3, num_training=90)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_modules_that_cannot_be_copied_are_made_by_a_function():
    def made():
        with pytest.warns(FutureWarning, match="weight_norm"):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.utils.weight_norm(torch.nn.Linear(64, 10)))

    small = {"num_rounds": 1, "num_clients": 3, "num_training": 90, "local_baseline": False}
    with pytest.raises(BadInput, match=r"it cannot be copied .*; give a function that makes it"):
        fedactors.simulate("horizontal", model=made(), **small)
    with pytest.raises(BadInput, match=r"parameter '0.1.weight' is trained, and the state dict has another tensor"):
        fedactors.simulate("horizontal", model=torch.nn.Sequential(scripted(None, 10)), **small)
    assert np.isfinite(fedactors.simulate("horizontal", model=made, **small).metrics["test/loss"])


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
