"""What comes after training: predictions of the joint model, and each party's own part of it with its scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.blocks import standardise_like
from fedactors.data.partitions import VerticalData
from fedactors.errors import BadInput
from fedactors.learning.network import Model
from fedactors.learning.split_network import joint_output
from fedactors.serving import actor_state, shared_rows, task_predictions, write_part
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
    rows = shared_rows(blocks, data.label_party)
    embeddings = []
    for party in (data.label_party, *data.passive_parties):
        scale, vectors = trained(party, states)
        x_NF = standardise_like(blocks[party], tuple(scale["feature_names"]), scale["mean"], scale["deviation"])
        bottom = Model(algorithm.bottom_spec(config, x_NF.shape[1]), vectors[0])
        embeddings.append(algorithm.embed_rows(bottom, x_NF[rows[party]]))
    scale, vectors = trained(data.label_party, states)
    output_NO = joint_output(Model(algorithm.top_spec(config, data), vectors[1]), embeddings)
    units = {name: scale[name] for name in ("label_mean", "label_deviation")}
    return task_predictions(data.task, output_NO, **units)


def export(config: PubSubVflConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a party's models (flat parameters), the scale of its columns and how to build the models again.

    Raises:
        BadInput: the party has no part of the model.
    """
    scale, vectors = trained(party, states)
    models = dict(zip(("bottom", "top"), vectors, strict=False))
    arrays = {"mean": scale["mean"], "deviation": scale["deviation"], **models}
    told = ("feature_names", "label_mean", "label_deviation", "class_names")
    facts = {"models": tuple(models), **{name: scale[name] for name in told}}
    return write_part(folder, party, arrays=arrays, facts=facts, config=config)


def trained(party: str, states: Mapping[str, bytes]) -> tuple[Mapping[str, Any], list[Array]]:
    """Return the scale of a party's rows and its models' parameters."""
    state = actor_state(states, f"{party}/worker-0")
    if state["rows"]["order"] is None:
        raise BadInput("the run was stopped before its rows were aligned: it has no trained model")
    return state["rows"], [np.asarray(network["vector"]) for network in state["replica"]["networks"]]
