"""The distributed runs against split learning written down plainly in torch, in double precision."""

from typing import Any

import numpy as np
import pytest
import torch

from fedactors.actors.context import derived_seed
from fedactors.learning.models import task_loss
from fedactors.protocols.pubsub_vfl.data import batches as batches_of
from tests.protocols.pubsub_vfl.reference import beginning
from tests.protocols.pubsub_vfl.runs import arrays, config_of, simulate

TOLERANCE: dict[str, Any] = {"rtol": 0, "atol": 1e-12}


def flat(module: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def plain_split_learning(source, config, num_batches_per_step: int = 1) -> list[dict[str, np.ndarray]]:
    """Train centrally; return each party's parameters before the first and after each epoch."""
    data, features, target, bottoms, top = beginning(source, config)
    seed = derived_seed(0, "all parties", "batches")
    modules = [*bottoms.values(), top]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[config.optimizer]
    options = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    parameters = [p for m in modules for p in m.parameters()]
    optimizer = kind(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, **options)

    def snapshot() -> dict[str, np.ndarray]:
        return {**{p: flat(m) for p, m in bottoms.items()}, "top": flat(top)}

    history = [snapshot()]
    for epoch in range(1, config.num_epochs + 1):
        if config.schedule == "cosine":
            share = 0.5 * (1 + np.cos(np.pi * (epoch - 1) / config.num_epochs))
        else:
            share = config.decay_factor ** ((epoch - 1) // config.decay_every) if config.schedule == "step" else 1.0
        optimizer.param_groups[0]["lr"] = config.learning_rate * share
        batches = batches_of(len(target), config.batch_size, seed, epoch)
        for start in range(0, len(batches), num_batches_per_step):
            rows = np.concatenate(batches[start : start + num_batches_per_step])
            z = torch.cat([bottoms[p](features[p][rows]) for p in data.parties], dim=1)
            optimizer.zero_grad()
            task_loss(data.task, top(z), target[rows]).backward()
            if config.max_gradient_norm is not None:
                for module in modules:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), config.max_gradient_norm)
            optimizer.step()
        history.append(snapshot())
    return history


def compare(done, history, workers=("worker-0",)) -> None:
    for index, expected in enumerate(history):
        for worker in workers:
            bottom, top = done.vectors(index, f"active/{worker}")
            np.testing.assert_allclose(bottom, expected["active"], **TOLERANCE)
            np.testing.assert_allclose(top, expected["top"], **TOLERANCE)
            for party in expected.keys() - {"active", "top"}:
                np.testing.assert_allclose(done.vectors(index, f"{party}/{worker}")[0], expected[party], **TOLERANCE)


SYNCHRONOUS = {"algorithm": "vfl"}
ONE_IN_FLIGHT = {"algorithm": "pubsub-vfl", "max_in_flight": 1}
SENT = {**ONE_IN_FLIGHT, "transfer": "push"}


@pytest.mark.slow
@pytest.mark.parametrize("how", [SYNCHRONOUS, ONE_IN_FLIGHT, SENT], ids=["vfl", "pubsub", "push"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_step_is_plain_split_learning(how, optimizer):
    """One batch per epoch, so that the checkpoint after each epoch is the state after each step."""
    config = {**how, "float64": True, "batch_size": 1000, "num_epochs": 6, "optimizer": optimizer}
    compare(simulate(**config), plain_split_learning("breast-cancer", config_of(**config)))


@pytest.mark.slow
@pytest.mark.parametrize("how", [SYNCHRONOUS, ONE_IN_FLIGHT], ids=["vfl", "pubsub"])
@pytest.mark.parametrize(
    ("data", "changes"),
    [
        ("breast-cancer", {}),
        (arrays("regression"), {}),
        (arrays("multiclass", 3), {"num_parties": 3}),
        ("breast-cancer", {"model": "resnet", "feature_split": (4, 26)}),
    ],
)
def test_epochs_of_several_batches_are_plain_split_learning(how, data, changes):
    config = {**how, **changes, "float64": True, "batch_size": 50}
    compare(simulate(data, **config), plain_split_learning(data, config_of(**config)))


@pytest.mark.slow
@pytest.mark.parametrize("how", [SYNCHRONOUS, ONE_IN_FLIGHT], ids=["vfl", "pubsub"])
@pytest.mark.parametrize(
    "rule",
    [
        {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.02, "schedule": "cosine"},
        {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "step", "decay_every": 1, "decay_factor": 0.5},
        {"optimizer": "adam", "weight_decay": 0.1, "max_gradient_norm": 0.05},
    ],
    ids=lambda rule: rule["optimizer"],
)
def test_every_rule_of_steps_is_torchs(how, rule):
    config = {**how, **rule, "float64": True, "batch_size": 50, "num_epochs": 3}
    compare(simulate(**config), plain_split_learning("breast-cancer", config_of(**config)))


def test_a_frozen_bottom_does_not_shrink():
    done = simulate(bottom_training="frozen", weight_decay=0.5, num_epochs=2, float64=True)
    np.testing.assert_array_equal(done.vectors(0, "passive/worker-0")[0], done.vectors(2, "passive/worker-0")[0])


@pytest.mark.slow
@pytest.mark.parametrize("how", [SYNCHRONOUS, {"algorithm": "avfl", "embedding_buffer": 1}, SENT])
def test_epochs_without_a_pause_are_plain_split_learning(how):
    config = {**how, "float64": True, "batch_size": 50, "num_epochs": 5}
    done = simulate(**config, epochs_per_round=2)
    history = plain_split_learning("breast-cancer", config_of(**config))
    assert done.result.rounds == 5
    compare(done, [history[epoch] for epoch in (0, 2, 4, 5)])


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [30, 64])
def test_synchronous_workers_together_are_one_worker_on_the_concatenated_batch(batch_size):
    """358 rows: 12 batches of 30 are 4 whole steps of 3 workers, 6 batches of 64 leave none over, 5 would."""
    config = {"algorithm": "vfl-ps", "float64": True, "batch_size": batch_size}
    done = simulate(**config, num_active_workers=4, num_passive_workers=4)
    expected = plain_split_learning("breast-cancer", config_of(**config), num_batches_per_step=4)
    compare(done, expected, workers=[f"worker-{i}" for i in range(4)])


@pytest.mark.slow
def test_asynchronous_pair_with_a_window_of_one_is_synchronous():
    done = simulate(algorithm="avfl", float64=True, embedding_buffer=1)
    compare(done, plain_split_learning("breast-cancer", config_of(float64=True)))


def test_one_pair_with_a_parameter_server_of_its_own_changes_nothing():
    """With a window of one and one pair at a time, pushing changes and pulling their sum must give the same run."""
    done = simulate(algorithm="avfl-ps", float64=True, embedding_buffer=1, batch_size=1000)
    compare(done, plain_split_learning("breast-cancer", config_of(float64=True, batch_size=1000)))
