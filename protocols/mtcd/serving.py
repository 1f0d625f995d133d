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

from fedactors.config import as_dict
from fedactors.data.blocks import PartyBlock, standardise_like
from fedactors.data.partitions import VerticalData
from fedactors.errors import BadInput
from fedactors.records.metrics import json_line, jsonable
from fedactors.runtime import snapshot
from protocols.mtcd import algorithm
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import MtcdData
from protocols.mtcd.messages import Token

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
    parts = {party: _part_of(party, states) for party in data.parties}
    if isinstance(data, VerticalData):
        features, label_scale = _aligned(data, parts)
    else:
        loaded = [data.load(client) for client in range(len(data.parties))]
        features, label_scale = [np.concatenate([part.train, part.test]) for part in loaded], (0.0, 1.0)
    if config.problem == "network":
        return _classes(config, data, [parts[party]["theta"] for party in data.parties], features, states)
    z_N = np.zeros(len(features[0]))
    for party, x_ND in zip(data.parties, features, strict=True):
        z_N += algorithm.represent(x_ND.astype(np.float64), parts[party]["theta"])
    if config.problem == "sparse-logistic":
        probability_N: Array = 1.0 / (1.0 + np.exp(-z_N))
        return probability_N
    if isinstance(data, VerticalData) and data.task == "binary":
        return (z_N > 0).astype(np.int64)
    mean, deviation = label_scale
    return np.asarray(z_N * deviation + mean)


def export(config: MtcdConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a party's theta_k (the server's theta_0), the scale of its columns, and how to build the model again.

    Raises:
        BadInput: the party has no part of the model.
    """
    arrays: dict[str, Array] = {}
    facts: dict[str, Any] = {"party": party, "problem": config.problem, "config": as_dict(config)}
    theta_0 = _theta_0_of(party, states)
    if party != SERVER:
        part = _part_of(party, states)
        arrays |= _named("theta", part["theta"])
        if part["scale"] is not None:
            arrays |= {"mean": part["scale"]["mean"], "deviation": part["scale"]["deviation"]}
            facts |= {name: value for name, value in part["scale"].items() if name not in arrays}
    elif not theta_0:
        raise BadInput(f"--party: {party!r} is not allowed: problem={config.problem} has no part at the server")
    arrays |= _named("theta_0", theta_0 or {})
    facts["arrays"] = sorted(arrays)
    weights = folder / f"{party}.npz"
    np.savez(weights, **arrays)  # type: ignore[arg-type]
    description = folder / f"{party}.json"
    description.write_text(json_line(jsonable(facts)))
    return [weights, description]


def _classes(
    config: MtcdConfig, data: MtcdData, thetas: list[Any], features: list[Array], states: Mapping[str, bytes]
) -> Array:
    """Return the class of each row by the split network."""
    from protocols.mtcd import network_parts

    found = (_theta_0_of(name, states) for name in (SERVER, *data.parties))
    theta_0 = next((theta for theta in found if theta), None)
    if theta_0 is None:
        raise BadInput("the checkpoint holds no fusion model: the run was stopped before its first round")
    parts = []
    for theta, x_N in zip(thetas, features, strict=True):
        shapes = network_parts.shapes_of(config, tuple(x_N.shape[1:]), data.num_classes)
        parts.append(network_parts.represent(shapes, theta, x_N.astype(np.float32), None))
    return network_parts.classes(config, theta_0, parts, data.num_classes)


def _part_of(party: str, states: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a client's `theta`, and the `scale` of its columns (None for generated data and images)."""
    if party not in states:
        raise BadInput(f"{party!r} has no part of the model (the checkpoint holds {', '.join(sorted(states))})")
    state = snapshot.unseal(states[party], f"the checkpoint of {party}")["state"]
    theta = snapshot.unpack(state["theta" if "theta" in state else "w"])
    if theta is None:
        raise BadInput("the run was stopped before its rows were aligned: it has no trained model")
    return {"theta": theta, "scale": snapshot.unpack(state["local"][1]).get("scale")}


def _theta_0_of(name: str, states: Mapping[str, bytes]) -> dict[str, Array] | None:
    """Return theta_0 where it rests with an actor: at the server, or with STCD's token."""
    if name not in states:
        return None
    state = snapshot.unseal(states[name], f"the checkpoint of {name}")["state"]
    if "theta_0" in state:
        return dict(snapshot.unpack(state["theta_0"]))
    held: Token | None = snapshot.unpack(state["held"]) if "held" in state else None
    return None if held is None else dict(held.theta_0)


def _named(name: str, value: Any) -> dict[str, Array]:
    """Return an array, or a network's parameters, under names fit for a file."""
    if isinstance(value, Mapping):
        return {f"{name}/{key}": np.asarray(array) for key, array in value.items()}
    return {name: np.asarray(value)}


def _aligned(data: VerticalData, parts: Mapping[str, Mapping[str, Any]]) -> tuple[list[Array], tuple[float, float]]:
    """Return each party's standardised features of the shared rows, and mean and deviation of the labels."""
    blocks = {party: data.source(party).load() for party in data.parties}
    rows = _shared_rows(blocks, data.label_party)
    features = []
    for party in data.parties:
        scale = parts[party]["scale"]
        x_NF = standardise_like(blocks[party], tuple(scale["feature_names"]), scale["mean"], scale["deviation"])
        features.append(x_NF[rows[party]])
    labels = parts[data.label_party]["scale"]
    return features, (labels["label_mean"], labels["label_deviation"])


def _shared_rows(blocks: Mapping[str, PartyBlock], label_party: str) -> dict[str, NDArray[np.int64]]:
    """Return each party's rows with the ids that all have, in the label party's order."""
    where = {party: {id_: row for row, id_ in enumerate(block.ids.tolist())} for party, block in blocks.items()}
    shared = [id_ for id_ in blocks[label_party].ids.tolist() if all(id_ in rows for rows in where.values())]
    if not shared:
        raise BadInput("data: the parties share no row id")
    return {party: np.asarray([rows[id_] for id_ in shared], np.int64) for party, rows in where.items()}
