"""What comes after training: predictions of the server's model, and the model itself as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedactors.data.horizontal import HorizontalData
from fedactors.errors import BadInput
from fedactors.learning.averaging import model_outputs
from fedactors.learning.losses import Task
from fedactors.learning.models import ModelSpec, build_skeleton
from fedactors.learning.parameters import Array, load_vector
from fedactors.serving import actor_state, task_predictions, write_part
from protocols.horizontal.config import HorizontalConfig
from protocols.horizontal.data import model_spec
from protocols.horizontal.run import SERVER


def predict(config: HorizontalConfig, data: HorizontalData, states: Mapping[str, bytes]) -> Array:
    """Return what the model says of each test row of `data`, in their order.

    Raises:
        BadInput: rows of another shape than those trained on.
    """
    spec, task, vector_P = _trained(config, states)
    features = data.test().load().features
    if features.shape[1:] != spec.inputs:
        shape = features.shape[1:]
        raise BadInput(f"data: samples of shape {shape} are not allowed: the model was trained on {spec.inputs}")
    return task_predictions(task, model_outputs(spec, vector_P, features))


def export(config: HorizontalConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write the model by layer (named as in torch's state dict), and how to build it.

    Raises:
        BadInput: the party is not the server; sites keep no model.
    """
    if party != SERVER:
        raise BadInput(f"--party: {party!r} is not allowed: the model is the {SERVER}'s")
    spec, task, vector_P = _trained(config, states)
    module = build_skeleton(spec, device="cpu")
    load_vector(module, vector_P)
    arrays = {name: value.numpy() for name, value in module.state_dict().items()}
    facts = {"model": spec.name, "inputs": spec.inputs, "outputs": spec.outputs, "task": task}
    return write_part(folder, party, arrays=arrays, facts=facts, config=config)


def _trained(config: HorizontalConfig, states: Mapping[str, bytes]) -> tuple[ModelSpec, Task, Array]:
    """Return the model: what it is, as the configuration says; for which shape, and its numbers, as the state does."""
    state = actor_state(states, SERVER)
    facts = state["facts"]
    return model_spec(config, **facts), facts["task"], state["model"]["vector"]
