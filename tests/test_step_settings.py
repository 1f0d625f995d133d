"""Settings of steps mean the same in every protocol that has them."""

import numpy as np
import pytest
import torch

from fedactors.config import build, parse_words
from fedactors.errors import BadInput
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.plugins import find_protocol
from fedactors.sweeps import run_once

HAVE = ("glasu", "horizontal", "pubsub-vfl")
STOPS = {"schedule": "step", "decay_every": 1, "decay_factor": 1e-12}
"""From the second round (epoch) on steps are too small to be seen."""


@pytest.mark.parametrize("name", HAVE)
def test_the_rule_of_steps_is_what_the_settings_say(name):
    words = "optimizer=adamw learning_rate=0.02 weight_decay=0.3 max_gradient_norm=2 schedule=cosine"
    config = build(find_protocol(name).Config, parse_words(words.split()))
    rule = OptimizerSpec(name="adamw", learning_rate=0.02, weight_decay=0.3, clip_norm=2.0)
    assert config.step_rule == rule
    assert config.rate_schedule.name == "cosine"


@pytest.mark.parametrize("name", [*HAVE, "mtcd"])
@pytest.mark.parametrize("words", ["momentum=0.9 optimizer=adam", "optimizer=rmsprop", "schedule=linear"])
def test_what_is_no_rule_is_refused(name, words):
    with pytest.raises(BadInput, match=r"momentum|optimizer|schedule"):
        build(find_protocol(name).Config, parse_words(words.split()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", [*HAVE, "nebulafl", "mtcd"])
def test_a_gpu_that_is_not_there_is_refused_in_one_line(name):
    protocol = find_protocol(name)
    settings = {**protocol.smoke, "device": "cuda", "num_gpus": 0.5}
    if name == "mtcd":
        with pytest.raises(
            BadInput, match=r"device: .*'?cuda'? is not allowed for problem=ridge, which numpy computes"
        ):
            build(protocol.Config, settings)
        settings |= {"problem": "network", "num_samples": 60}
    with pytest.raises(BadInput, match=r"^device: 'cuda' is not allowed: this process sees 0 GPUs \(num_gpus= asks"):
        run_once(protocol, settings, protocol.default_data, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "metric"),
    [
        ("glasu", {"num_rounds": 4, "hidden_size": 16, "dropout": 0.0}, "training/loss"),
        ("mtcd", {"num_rounds": 4, "num_samples": 60, "num_features": 48, "num_clients": 8}, "training/objective"),
    ],
)
def test_a_schedule_changes_the_steps_of_later_rounds(name, settings, metric):
    protocol = find_protocol(name)

    def curve(**more):
        done = run_once(protocol, {**protocol.smoke, **settings, **more}, protocol.default_data, 0)
        return np.array([value for value in done.recorder.curve[metric] if value is not None])

    still, moving = curve(**STOPS), curve()
    assert still[-1] == pytest.approx(still[-3], rel=1e-9)
    assert moving[-1] != pytest.approx(moving[-3], rel=1e-4)
    assert still[0] == moving[0]
