"""Trainings under way at the same time, computed in batched calls: the numbers of one after the other, to rounding."""

import numpy as np
import pytest

from fedactors.learning.many_clients import train_clients
from fedactors.protocols.nebulafl import training
from fedactors.protocols.nebulafl.algorithm import master_model
from fedactors.runtime.snapshots import unpack, unseal
from tests.protocols.nebulafl.runs import changed, cut, play, rounds, spans_of

LINEAR = changed(model="linear", duration=60.0, rotation_interval=15.0, evaluation_interval=20.0, batch_size=40)


def masters(recorder):
    """Return what each center, or a baseline's exchange, ended with."""
    found = {}
    for name, frame in recorder.checkpoints["last"].actors.items():
        state = unseal(frame, name)["state"]
        if "models" in state:
            models = unpack(state["models"][1])
            found[name] = master_model(models["planets"], models["versions"])
        elif "server" in state:
            found[name] = unpack(state["server"][1])["method"]["model_P"]
        elif "parameters_P" in state:
            found[name] = unpack(state["parameters_P"])
    return found


@pytest.fixture
def sizes(monkeypatch):
    """How many containers each batched call trained."""
    found = []
    real = train_clients

    def counted(spec, starts, *rest, **more):
        found.append(len(starts))
        return real(spec, starts, *rest, **more)

    monkeypatch.setattr(training, "train_clients", counted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedsa", "pisces", "fedhkt"])
def test_together_as_one_after_the_other(algorithm, sizes):
    config = changed(LINEAR, algorithm=algorithm)
    _, alone, _ = play(config)
    assert sizes == []
    _, made, _ = play(changed(config, together=True))
    assert max(sizes) > 1
    assert spans_of(made) == spans_of(alone)  # who trains where and when is not changed
    ours, theirs = masters(made), masters(alone)
    assert ours.keys() == theirs.keys() != set()
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_most_of_the_trainings_are_in_large_batches(sizes):
    result, _, _ = play(changed(LINEAR, together=True))
    under_way = LINEAR.num_centers * LINEAR.active_per_center
    assert sum(sizes) >= 0.9 * result.metrics["trainings"]
    assert np.mean(sizes) > under_way / 2


@pytest.mark.slow
def test_a_model_that_does_not_pay_in_one_call_is_trained_to_the_bit(monkeypatch, sizes):
    monkeypatch.setattr(training, "can_be_batched", lambda *facts: False)
    assert rounds(play(changed(LINEAR, together=True))[1]) == rounds(play(LINEAR)[1])
    assert sizes == []


@pytest.mark.slow
def test_a_run_that_was_cut_goes_on_to_rounding():
    config = changed(LINEAR, together=True)
    _, whole, _ = play(config)
    before, found = cut(config, 12)
    _, after, _ = play(config, resume=found)
    joined = [*before.rounds, *after.rounds]
    assert [entry["round"] for entry in joined] == [entry["round"] for entry in whole.rounds]
    for one, other in zip(joined, whole.rounds, strict=True):
        assert one["test/accuracy"] == pytest.approx(other["test/accuracy"], abs=0.01)
        assert {name: one[name] for name in ("dollars", "trainings", "time")} == {
            name: other[name] for name in ("dollars", "trainings", "time")
        }
    for name, model_P in masters(whole).items():
        np.testing.assert_allclose(masters(after)[name], model_P, rtol=1e-4, atol=1e-4)
