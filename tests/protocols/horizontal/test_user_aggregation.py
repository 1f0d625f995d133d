"""The server's step as a function of one's own: given as an object or by name, checked, and gone on with."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import fedactors
from fedactors.config import build
from fedactors.errors import BadInput, FedactorsError
from fedactors.protocols.horizontal.config import HorizontalConfig
from tests.protocols.horizontal.federation import changed, cut, play, rounds, state_of, vector_of

HERE = "tests.protocols.horizontal.test_user_aggregation"
SMALL = {"model": "linear", "num_rounds": 3, "num_clients": 4, "num_training": 120}


def mean(state, updates, weights):
    state["model"] += weights @ updates / weights.sum()
    return state


def heavy_ball(state, updates, weights):
    state["momentum"] = 0.9 * state.get("momentum", 0) + weights @ updates / weights.sum()
    return state | {"model": state["model"] + state["momentum"]}


def trimmed(state, updates, weights):
    return state | {"model": state["model"] + stats.trim_mean(updates, 0.25, axis=0)}


def noisy(state, updates, weights):
    return mean(state | {"rounds": state.get("rounds", 0) + 1}, updates + np.random.normal(size=updates.shape), weights)


@pytest.mark.parametrize(("name", "known"), [("mean", "fedavg"), ("heavy_ball", "fedavgm")])
def test_a_known_method_as_a_function_gives_its_numbers(name, known):
    _, given, _ = play(changed(aggregation=f"{HERE}:{name}"))
    _, expected, _ = play(changed(algorithm=known))
    np.testing.assert_allclose(vector_of(given), vector_of(expected), rtol=0, atol=1e-12)
    assert [entry["test/accuracy"] for entry in given.rounds] == [entry["test/accuracy"] for entry in expected.rounds]


def test_a_function_of_scipy_is_the_trimmed_mean():
    given = fedactors.simulate("horizontal", aggregation=trimmed, weighting="uniform", **SMALL)
    expected = fedactors.simulate("horizontal", aggregation="trimmed-mean", num_byzantine=1, **SMALL)
    assert given.metrics == pytest.approx(expected.metrics, abs=1e-6)


def test_its_state_and_its_chance_are_gone_on_with_exactly():
    config = changed(aggregation=f"{HERE}:noisy")
    whole, recorder, _ = play(config)
    before, snapshot = cut(config, after=2)
    after, going_on, _ = play(config, resume=snapshot)
    assert rounds(before) + rounds(going_on) == rounds(recorder)
    assert after.metrics == whole.metrics
    assert state_of(going_on)["model"]["kept"] == {"rounds": 4}
    assert rounds(play(config)[1]) == rounds(recorder)


def test_with_local_parameters_it_gets_what_is_shared():
    sizes = []

    def looking(state, updates, weights):
        sizes.append((state["model"].shape, updates.shape, weights.tolist()))
        return mean(state, updates, weights)

    given = {**SMALL, "model": "mlp", "hidden_size": 4, "local_parameters": "4", "validation_fraction": 0.2}
    fedactors.simulate("horizontal", aggregation=looking, weighting="uniform", **given)
    shared = 64 * 4 + 4 + 4 * 4 + 4
    assert set(map(str, sizes[-3:])) == {str(((shared,), (4, shared), [1.0] * 4))}


def test_an_object_is_needed_again_and_a_poisoned_state_is_refused(tmp_path):
    run = fedactors.simulate("horizontal", aggregation=heavy_ball, out=tmp_path / "a", **SMALL)
    assert run.config["aggregation"].startswith("object:heavy_ball:")
    opened = fedactors.load_run(run.path)
    assert opened.resume(aggregation=heavy_ball, out=tmp_path / "b").metrics == run.metrics
    with pytest.raises(BadInput, match="aggregation: differs from the run's"):
        opened.resume(aggregation=mean, out=tmp_path / "c")
    assert {"server"} == set(opened.export(tmp_path / "model", aggregation=heavy_ball))


def late(state, updates, weights):
    """Fails in the second round of a run, which it tells from the trial before by the clients' weights."""
    state["calls"] = state.get("calls", 0) + (weights.sum() > 10)
    return state | {"model": state["model"] * (np.nan if state["calls"] == 2 else 1.0)}


def test_a_function_that_fails_in_a_later_round_ends_the_run_with_its_name():
    with pytest.raises(
        FedactorsError, match=r"aggregation: late is not allowed: its 'model' must be 650 finite numbers"
    ):
        fedactors.simulate("horizontal", aggregation=late, **SMALL)


class Momentum:
    """Keeps its momentum where no checkpoint has it."""

    def __init__(self):
        self.momentum = 0.0

    def __call__(self, state, updates, weights):
        self.momentum = 0.9 * self.momentum + updates.mean(0)
        return state | {"model": state["model"] + self.momentum}


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda state, updates, weights: None, "it must return the state, a dictionary with 'model', not a NoneType"),
        (lambda state, updates, weights: {"m": 1}, "it must return the state, a dictionary with 'model', not a dict"),
        (lambda state, updates, weights: {"model": updates}, r"must be 650 finite numbers, .* of shape \(3, 650\)"),
        (
            lambda state, updates, weights: state | {"model": state["model"] * np.inf},
            "must be 650 finite numbers.*not all",
        ),
        (
            lambda state, updates, weights: state | {"own": object()},
            "a checkpoint cannot hold its state: state holds a",
        ),
        (
            Momentum(),
            "called twice with the same arguments it returns different values; keep what it needs later in the state",
        ),
        (lambda state, updates: state, "given state, 3 updates and weights it fails: TypeError"),
    ],
)
def test_a_wrong_function_is_refused_before_the_run(function, why):
    with pytest.raises(BadInput, match=f"aggregation: .* is not allowed: .*{why}"):
        fedactors.simulate("horizontal", aggregation=function, **SMALL)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"secure_aggregation": True}, "secure_aggregation: the server reads sums only"),
        ({"client_clip_norm": 1, "client_noise_multiplier": 1}, "client_clip_norm: the noise is on the sum"),
        ({"algorithm": "scaffold"}, "algorithm=scaffold: its controls are summed"),
        ({"algorithm": "fedadam"}, "algorithm=fedadam: a function is the server's whole step"),
        ({"server_learning_rate": 0.5}, "server_learning_rate: a function is the server's whole step"),
    ],
)
def test_what_a_function_cannot_join_is_refused(words, why):
    with pytest.raises(BadInput, match=f"aggregation: {HERE}:mean is not allowed with {why}"):
        build(HorizontalConfig, {"aggregation": f"{HERE}:mean", **words})


def test_another_word_is_refused():
    with pytest.raises(BadInput, match="aggregation: 'middle' is not allowed: one of mean, median, trimmed-mean"):
        build(HorizontalConfig, {"aggregation": "middle"})


@pytest.mark.slow
def test_a_pool_changes_nothing():
    config = changed(aggregation=f"{HERE}:heavy_ball", num_rounds=2)
    assert rounds(play(config)[1]) == rounds(play(config, pool=2)[1])


@pytest.mark.ray
def test_on_ray_an_object_gives_the_numbers_of_the_simulation(ray_cluster):
    here, there = (run("horizontal", aggregation=heavy_ball, **SMALL) for run in (fedactors.simulate, fedactors.run))
    assert there.metrics == pytest.approx(here.metrics, abs=1e-6)
