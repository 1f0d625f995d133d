"""What comes after training: predictions of the joint model, and each party's own part of it with its scale.

    h_k of new rows, by each client's theta_k and the scale of its training rows --> Z = sum (or slots) --> prediction

A checkpoint holds messages (labels, STCD's token), so the types of `messages` must be known where one is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.blocks import standardise_like
from fedactors.data.partitions import VerticalData
from fedactors.errors import BadInput
from fedactors.serving import ActorState, actor_state, shared_rows, task_predictions, write_part
from protocols.mtcd import messages
from protocols.mtcd.algorithm import aggregate, represent
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import MtcdData

Array = NDArray[Any]
SERVER = "server"


def predict(config: MtcdConfig, data: MtcdData, states: Mapping[str, bytes]) -> Array:
    """Return one prediction per row that all parties have, in the label party's order; labels are not needed.

    Sparse logistic: the probability of class 1. Ridge: the value in original units, or on classes the class (0 or 1).
    Networks: the class. Generated data and images: training rows, then test rows.

    Raises:
        BadInput: columns differ from those trained on, a party took no part in the run or was lost in it, or no row
            is shared.
    """
    parts = [_trained(actor_state(states, party)) for party in data.parties]
    label_scale = {"label_mean": 0.0, "label_deviation": 1.0}
    if isinstance(data, VerticalData):
        features = _aligned(data, [part["rows"]["scale"] for part in parts])
        known = parts[data.parties.index(data.label_party)]["rows"]["scale"]
        label_scale = {name: known[name] for name in label_scale}
    else:
        loaded = [data.load(client) for client in range(len(data.parties))]
        features = [np.concatenate([part.train, part.test]) for part in loaded]
    thetas = [part["theta"] for part in parts]
    if config.problem == "network":
        found = (_theta_0(states, name) for name in (SERVER, *data.parties))
        theta_0 = next((theta for theta in found if theta is not None), None)
        if theta_0 is None:
            raise BadInput("the checkpoint holds no fusion model: the run was stopped before its first round")
        return _classes(config, thetas, theta_0, features, data.num_classes)
    pairs = enumerate(zip(features, thetas, strict=True))
    z_N = aggregate({client: represent(x_ND.astype(np.float64), theta) for client, (x_ND, theta) in pairs})
    if config.problem == "sparse-logistic":
        return task_predictions("binary", z_N)
    if isinstance(data, VerticalData) and data.task == "binary":
        return (z_N > 0).astype(np.int64)
    return task_predictions("regression", z_N, **label_scale)


def export(config: MtcdConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a party's theta_k (the server's theta_0), the scale of its columns, and how to build the model again.

    Raises:
        BadInput: the party has no part of the model.
    """
    arrays: dict[str, Any] = {}
    facts: dict[str, Any] = {"problem": config.problem}
    theta_0 = _theta_0(states, party)
    if party != SERVER:
        state = _trained(actor_state(states, party))
        arrays["theta"], scale = state["theta"], state["rows"]["scale"]
        if scale is not None:
            arrays |= {name: scale[name] for name in ("mean", "deviation")}
            facts |= {name: value for name, value in scale.items() if name not in arrays}
        if config.problem == "network":
            from protocols.mtcd.networks import bottom_spec, named_parameters

            arrays["theta"] = named_parameters(bottom_spec(config, state["rows"]["input_shape"]), state["theta"])
    elif config.problem != "network" or theta_0 is None:
        raise BadInput(f"--party: {party!r} is not allowed: problem={config.problem} has no part at the server")
    if config.problem == "network" and theta_0 is not None:
        from protocols.mtcd.networks import fusion_spec, named_parameters

        spec = fusion_spec(config, 1)
        num_classes = theta_0.size // (spec.inputs[0] + 1)
        arrays["theta_0"] = named_parameters(fusion_spec(config, num_classes), theta_0)
    return write_part(folder, party, arrays=arrays, facts=facts, config=config)


def _classes(config: MtcdConfig, thetas: list[Array], theta_0: Array, features: list[Array], num_classes: int) -> Array:
    """Return the class of each row by the split network."""
    from protocols.mtcd import networks

    parts = {}
    for client, (theta, x_N) in enumerate(zip(thetas, features, strict=True)):
        spec = networks.bottom_spec(config, x_N.shape[1:])
        parts[client] = networks.represent(spec, theta, x_N.astype(np.float32), None)
    z = aggregate(parts, len(parts) if config.aggregation == "concatenation" else None)
    return task_predictions("multiclass", networks.logits(networks.fusion_spec(config, num_classes), theta_0, z))


def _trained(state: ActorState) -> ActorState:
    if state["theta"] is None:
        raise BadInput("the run was stopped before its rows were aligned: it has no trained model")
    return state


def _theta_0(states: Mapping[str, bytes], name: str) -> Array | None:
    """Return theta_0 where it rests with an actor: at the server, or with STCD's token."""
    if name not in states:
        return None
    state = actor_state(states, name)
    held: messages.Token | None = state.get("held")
    theta_0: Array | None = state.get("theta_0") if held is None else held.theta_0
    return theta_0


def _aligned(data: VerticalData, scales: list[dict[str, Any]]) -> list[Array]:
    """Return each party's standardised features of the rows that all have, in the label party's order."""
    blocks = {party: data.part(party).source.load() for party in data.parties}
    rows = shared_rows(blocks, data.label_party)
    return [
        standardise_like(blocks[party], tuple(scale["feature_names"]), scale["mean"], scale["deviation"])[rows[party]]
        for party, scale in zip(data.parties, scales, strict=True)
    ]
