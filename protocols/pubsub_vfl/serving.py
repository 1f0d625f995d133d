"""What comes after training: predictions of the joint model, and each party's own part of it with its scale."""

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
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.config import PubSubVflConfig

Array = NDArray[Any]


def predict(config: PubSubVflConfig, data: VerticalData, states: Mapping[str, bytes]) -> Array:
    """Return one prediction per row that all parties have, in the label party's order.

    Binary: the probability of class 1; several classes: the class; regression: the value in original units. Labels are
    not needed.

    Raises:
        BadInput: columns differ from those trained on, a party took no part in the run, or no row is shared.
    """
    blocks = {party: data.part(party).source.load() for party in data.parties}
    rows = _shared_rows(blocks, data.label_party)
    parties = (data.label_party, *data.passive_parties)
    embeddings = []
    for party in parties:
        scale, vectors = _worker_state(party, states)
        x_NF = standardise_like(blocks[party], tuple(scale["feature_names"]), scale["mean"], scale["deviation"])
        spec = algorithm.bottom_spec(config, x_NF.shape[1])
        embeddings.append(algorithm.embed_rows(spec, vectors[0], x_NF[rows[party]]))
    scale, vectors = _worker_state(data.label_party, states)
    output_NO = algorithm.top_outputs(algorithm.top_spec(config, data), vectors[1], embeddings)
    if data.task == "regression":
        value_N: Array = output_NO[:, 0] * scale["label_deviation"] + scale["label_mean"]
        return value_N
    if data.task == "binary":
        probability_N: Array = 1.0 / (1.0 + np.exp(-output_NO[:, 0]))
        return probability_N
    class_N: Array = output_NO.argmax(axis=1)
    return class_N


def export(config: PubSubVflConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a party's models (flat parameters), the scale of its columns and how to build the models again.

    Raises:
        BadInput: the party has no part of the model.
    """
    scale, vectors = _worker_state(party, states)
    names = ("bottom", "top")[: len(vectors)]
    arrays = {"mean": scale["mean"], "deviation": scale["deviation"]}
    arrays |= dict(zip(names, vectors, strict=True))
    weights = folder / f"{party}.npz"
    np.savez(weights, **arrays)
    facts = {
        "party": party,
        "models": names,
        "feature_names": scale["feature_names"],
        "label_mean": scale["label_mean"],
        "label_deviation": scale["label_deviation"],
        "class_names": scale["class_names"],
        "config": as_dict(config),
    }
    description = folder / f"{party}.json"
    description.write_text(json_line(jsonable(facts)))
    return [weights, description]


def _worker_state(party: str, states: Mapping[str, bytes]) -> tuple[dict[str, Any], list[Array]]:
    name = f"{party}/worker-0"
    if name not in states:
        raise BadInput(f"{party!r} has no part of the model (the checkpoint holds {', '.join(sorted(states))})")
    state = snapshot.unseal(states[name], f"the checkpoint of {name}")["state"]
    rows, replica = snapshot.unpack(state["rows"][1]), snapshot.unpack(state["replica"][1])
    if rows["order"] is None:
        raise BadInput("the run was stopped before its rows were aligned: it has no trained model")
    return rows, [np.asarray(network["vector"]) for network in replica["networks"]]


def _shared_rows(blocks: Mapping[str, PartyBlock], label_party: str) -> dict[str, NDArray[np.int64]]:
    """Return each party's rows with the ids that all have, in the label party's order."""
    where = {party: {id_: row for row, id_ in enumerate(block.ids.tolist())} for party, block in blocks.items()}
    shared = [id_ for id_ in blocks[label_party].ids.tolist() if all(id_ in rows for rows in where.values())]
    if not shared:
        raise BadInput("data: the parties share no row id")
    return {party: np.asarray([rows[id_] for id_ in shared], np.int64) for party, rows in where.items()}
