"""The suite of attacks: it finds what is there, and chance where noise has drowned it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedactors.auditing.attacks import SeenEmbeddings, SeenGradients, SeenScores, Surface, run_attacks
from fedactors.auditing.audit import Attack
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import Model, initial_vector
from fedactors.privacy.mechanisms import clip_and_noise

SPEC = ModelSpec(name="mlp", inputs=(5,), outputs=12, hidden_size=16, layers=2)


def surface(sigma: float) -> Surface:
    rng = np.random.default_rng(0)
    bottom = Model(SPEC, initial_vector(SPEC, 0))
    rows = rng.normal(size=(400, 5)).astype(np.float32)
    clip = np.inf if sigma == 0 else 1.0
    seen = clip_and_noise(bottom.output(rows), clip, sigma, rng)
    labels = rng.integers(0, 2, 300)
    gradients = np.outer(0.3 - labels, np.ones(6)) + 0.01 * rng.normal(size=(300, 6))
    return Surface(
        embeddings=[
            SeenEmbeddings(
                name="bank",
                seen_BE=seen[:200],
                features_BF=rows[:200],
                shadow_seen_SE=seen[200:],
                shadow_features_SF=rows[200:],
                bottom=bottom,
            )
        ],
        gradients=[
            SeenGradients(name="shop", gradients_BE=clip_and_noise(gradients, clip, 10 * sigma, rng), labels_B=labels)
        ],
        scores=[SeenScores(name="model", members_B=rng.normal(1, 1, 200), others_S=rng.normal(0, 1, 200))],
        others=[Attack(name="own", measure="auc", estimate=0.5, low=0.4, high=0.6, chance=0.5, count=9)],
    )


@pytest.mark.slow
def test_without_noise_all_is_found_and_with_much_only_what_noise_does_not_cover() -> None:
    torch.set_num_threads(1)
    bare = {one.name: one for one in run_attacks(surface(0.0))}
    drowned = {one.name: one for one in run_attacks(surface(50.0))}
    assert bare.keys() == drowned.keys()
    assert len(bare) == 8
    for name, one in bare.items():
        assert one.low <= one.estimate <= one.high
        assert one.is_chance == (name == "own"), name
        if name.startswith(("labels", "inversion")):
            assert drowned[name].low < drowned[name].chance + 0.05, name
    assert not drowned["membership: model"].is_chance
    assert bare["inversion by nearest neighbour: bank"].estimate == 1.0
