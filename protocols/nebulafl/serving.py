"""What comes after training: predictions of the model that a run ended with, and one party's part of it.

NebulaFL's model is the mean of the masters of the centers that have a checkpoint; a baseline's is its exchange's.

Shapes: P length of a flat model, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedactors.data.horizontal import HorizontalData
from fedactors.errors import BadInput
from fedactors.learning.averaging import weighted_mean
from fedactors.learning.flat_training import logits
from fedactors.learning.models import build_skeleton
from fedactors.learning.parameters import load_vector
from fedactors.serving import actor_state, write_part
from protocols.nebulafl.algorithm import Floats, master_model
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import model_name
from protocols.nebulafl.training import Model, make_module, model_spec


def predict(config: NebulaFLConfig, data: HorizontalData, states: Mapping[str, bytes]) -> NDArray[np.int64]:
    """Return the class of each test row of `data`, in their order.

    Raises:
        BadInput: rows of another shape than those trained on, or a checkpoint without a model.
    """
    found = _models(config, states)
    if not found:
        raise BadInput("the checkpoint holds no model")
    model, mean_P = found[0][0], weighted_mean([parameters_P for _, parameters_P in found], [1.0] * len(found))
    features = data.test().load().features
    if features.shape[1:] != model[1]:
        raise BadInput(
            f"data: samples of shape {features.shape[1:]} are not allowed: the model was trained on {model[1]}"
        )
    classes_N: NDArray[np.int64] = logits(make_module, model, mean_P, features).argmax(axis=1)
    return classes_N


def export(config: NebulaFLConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a party's model by layer (named as in torch's state dict), and how to build it.

    Raises:
        BadInput: the party has no part of the model.
    """
    found = _models(config, states)
    if not found:
        raise BadInput(
            f"--party: {party!r} is not allowed: it has no part of the model of algorithm={config.algorithm}"
        )
    model, parameters_P = found[-1]
    module = build_skeleton(model_spec(model), device="cpu")
    load_vector(module, parameters_P)
    name, shape, num_classes, normalisation = model
    facts = {"model": name, "inputs": shape, "outputs": num_classes, "normalisation": normalisation}
    arrays = {key: value.numpy() for key, value in module.state_dict().items()}
    return write_part(folder, party, arrays=arrays, facts=facts, config=config)


def _models(config: NebulaFLConfig, states: Mapping[str, bytes]) -> list[tuple[Model, Floats]]:
    """Return the models (P,) of the actors that have one, in the order of their names.

    Which model it is the configuration says, never a checkpoint: a name may stand for code.
    """
    found: list[tuple[Model, Floats]] = []
    for actor in sorted(states):
        state = actor_state(states, actor)
        if "model_facts" not in state:
            continue
        _, shape, num_classes, _ = state["model_facts"]
        name = model_name(config, tuple(shape))
        if "models" in state:
            center = state["models"]
            vector_P = master_model(center["planets"], center["versions"])
        elif "coordinator" in state:
            method = state["coordinator"]["method"]
            branches = method.get("branches")
            vector_P = master_model(branches, method["versions"]) if branches else method["model_P"]
        else:
            vector_P = state["parameters_P"]
        found.append(((name, tuple(shape), num_classes, config.normalisation), vector_P))
    return found
