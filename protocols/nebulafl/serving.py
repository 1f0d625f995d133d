"""What comes after training: predictions of the model that a run ended with, and one party's part of it.

NebulaFL's model is the mean of the masters of the centers that have a checkpoint; a baseline's is its exchange's.

Shapes: P length of a flat model, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.config import as_dict
from fedactors.data.horizontal import HorizontalData
from fedactors.errors import BadInput
from fedactors.learning.averaging import weighted_mean
from fedactors.learning.flat_training import logits
from fedactors.learning.models import build_skeleton
from fedactors.learning.parameters import load_vector
from fedactors.records.metrics import json_line, jsonable
from fedactors.runtime import snapshot
from protocols.nebulafl.algorithm import Floats, master_model
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.training import Model, make_module, model_spec


def predict(config: NebulaFLConfig, data: HorizontalData, states: Mapping[str, bytes]) -> NDArray[np.int64]:
    """Return the class of each test row of `data`, in their order.

    Raises:
        BadInput: rows of another shape than those trained on, or a checkpoint without a model.
    """
    found = [part for part in (_part(name, states) for name in sorted(states)) if part is not None]
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
    """Write a party's model by layer (``.npz``, named as in torch's state dict) and how to build it (``.json``).

    Raises:
        BadInput: the party has no part of the model.
    """
    parts = [part for part in (_part(name, states) for name in sorted(states)) if part is not None]
    if not parts:
        raise BadInput(
            f"--party: {party!r} is not allowed: it has no part of the model of algorithm={config.algorithm}"
        )
    model, parameters_P = parts[-1]
    module = build_skeleton(model_spec(model), device="cpu")
    load_vector(module, parameters_P)
    weights, description = folder / f"{party}.npz", folder / f"{party}.json"
    arrays = {name: value.numpy() for name, value in module.state_dict().items()}
    np.savez(weights, **arrays)  # type: ignore[arg-type]
    name, shape, num_classes, normalisation = model
    facts = {
        "party": party, "model": name, "inputs": shape, "outputs": num_classes, "normalisation": normalisation,
        "config": as_dict(config),
    }  # fmt: skip
    description.write_text(json_line(jsonable(facts)))
    return [weights, description]


def _part(actor: str, states: Mapping[str, bytes]) -> tuple[Model, Floats] | None:
    """Return an actor's model as facts and parameters (P,); None for one that has none."""
    state: dict[str, Any] = snapshot.unseal(states[actor], f"the checkpoint of {actor}")["state"]
    if "model_facts" not in state:
        return None
    name, shape, num_classes, normalisation = snapshot.unpack(state["model_facts"])
    model = (name, tuple(shape), num_classes, normalisation)
    if "models" in state:
        center = snapshot.unpack(state["models"][1])
        return model, master_model(center["planets"], center["versions"])
    if "coordinator" not in state:
        return model, snapshot.unpack(state["parameters_P"])
    method = snapshot.unpack(state["coordinator"][1])["method"]
    if "branches" in method:
        return model, master_model(method["branches"], method["versions"])
    return model, method["model_P"]
