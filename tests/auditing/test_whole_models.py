"""Whole models tell whose rows made them and which classes these have; the mean of all of them does not say whose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedactors
from fedactors.auditing.attacks import models_surface, run_attacks
from fedactors.auditing.audit import Attack
from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, train_locally, weighted_mean
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.plugins import find_protocol
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime

SPEC = ModelSpec(name="linear", inputs=(12,), outputs=3)


def attacked(is_summed: bool) -> dict[str, Attack]:
    """Four holders; each lacks no class, but has more of one."""
    rng, common = np.random.default_rng(0), initial_vector(SPEC, 0)
    rows, models = {}, {}
    for number in range(4):
        x = rng.normal(size=(60, 12)).astype(np.float32)
        y = rng.choice(3, 60, p=np.roll([0.6, 0.2, 0.2], number))
        rows[f"site-{number}"] = (x, y.astype(np.int64))
        models[f"site-{number}"] = train_locally(SPEC, common, x, y, seed=0, training=LocalTraining()).vector
    if is_summed:
        models = dict.fromkeys(models, weighted_mean(list(models.values()), [1.0] * 4))
    others = (rng.normal(size=(240, 12)).astype(np.float32), rng.integers(0, 3, 240))
    surface = models_surface(SPEC, "multiclass", 3, common, models, rows, others, 0)
    return {one.name.partition(":")[0]: one for one in run_attacks(surface)}


def test_models_show_their_rows_holders_and_their_classes_and_a_mean_shows_neither() -> None:
    bare, summed = attacked(False), attacked(True)
    assert set(bare) == {"membership", "source", "classes held, by output bias"}
    assert bare["source"].low > 0.4 > bare["source"].chance == 0.25
    assert bare["classes held, by output bias"].estimate > 0.95
    assert summed["source"].is_chance
    assert summed["classes held, by output bias"].estimate == 0.5


RUNS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "horizontal": ("horizontal", "digits", {"num_clients": 6, "num_rounds": 2, "model": "linear"}, {}),
    "nebulafl": (
        "nebulafl",
        "digits",
        {"algorithm": "fedhisyn", "on_party_loss": "stop", "num_centers": 3, "num_containers": 12},
        {},
    ),
    "mtcd": (
        "mtcd",
        "breast-cancer",
        {"num_clients": 3, "num_tokens": 1, "relaxed_protocol": True, "learning_rate": 0.1, "num_rounds": 6},
        {"problem": "sparse-logistic"},
    ),
}
PROTECTED = {
    "horizontal": {"secure_aggregation": True},
    "nebulafl": {"secure_aggregation": True},
    "mtcd": {"noise": "gaussian", "noise_multiplier": 4.0},
}


def attacks_on(name: str, words: dict[str, Any]) -> dict[str, Attack]:
    protocol, data_name, small, more = RUNS[name]
    plugin = find_protocol(protocol)
    config = build(plugin.Config, {**plugin.smoke, **small, **more, **words})
    assert plugin.load_data is not None
    assert plugin.surface is not None
    data = plugin.load_data(config, data_name, 0)
    recorder = MemoryRecorder()
    runtime = SimulatedRuntime(seed=0, recorder=recorder)
    runtime.execute(lambda: plugin.run(config, data, runtime))
    states = list(recorder.checkpoints.values())[-1].actors
    return {one.name: one for one in run_attacks(plugin.surface(config, data, states, 0))}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_attacks_succeed_on_an_open_run_and_not_on_a_protected_one(name: str) -> None:
    """Membership is not told by every model; what must succeed in the open is what each protocol's messages show."""
    bare, hidden = attacks_on(name, {}), attacks_on(name, PROTECTED[name])
    assert bare.keys() == hidden.keys()
    telling = [one for one in bare if not one.startswith("membership")]
    assert len(telling) >= 2
    for one in telling:
        assert bare[one].low > bare[one].chance, one
        assert hidden[one].is_chance, one


@pytest.mark.slow
@pytest.mark.parametrize("name", ["horizontal", "nebulafl"])
def test_where_clients_are_hidden_by_noise_their_accounts_pass_the_audit_with_attacks(
    name: str, tmp_path: Path
) -> None:
    """Figures of the ledger follow from their ingredients; a server that is trusted shows one model for all clients."""
    small: dict[str, dict[str, Any]] = {
        "horizontal": {"num_clients": 8, "num_rounds": 2},
        "nebulafl": {"num_centers": 2, "num_containers": 4, "active_per_center": 1, "duration": 40.0},
    }
    noise = {"client_clip_norm": 0.5, "client_noise_multiplier": 2.0}
    words = {"model": "linear", "num_training": 400, **small[name], **noise}
    run = fedactors.simulate(name, "digits", out=tmp_path, **words)
    assert any(line.get("epsilon") for line in run.privacy.to_arrow().to_pylist())
    found = run.audit(attacks=True)
    assert found.ledger.agrees
    assert not found.refuted
    attacks = {one.name.partition(":")[0]: one for one in found.attacks}
    assert {"membership", "source"} <= attacks.keys()
    assert attacks["membership"].low < 0.6
    if name == "horizontal":  # of NebulaFL each center's noised master is seen: near chance, on either side of it
        assert attacks["source"].is_chance


def test_public_data_have_no_attacker() -> None:
    plugin = find_protocol("mtcd")
    config = build(plugin.Config, {})
    assert plugin.load_data is not None
    assert plugin.surface is not None
    with pytest.raises(BadInput, match="--attacks: client-0 has public data"):
        plugin.surface(config, plugin.load_data(config, "synthetic", 0), {}, 0)
