"""What comes after training: predictions of the federation's best parameters, and one client's part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedactors.errors import BadInput
from fedactors.runtime import snapshot
from protocols.glasu import steps
from protocols.glasu.aggregation import Floats, add, average, concatenate
from protocols.glasu.algorithm import ClientBatch
from protocols.glasu.backbones import Network, Parameters
from protocols.glasu.config import GlasuConfig
from protocols.glasu.graphs import GraphSource, client_names, load_share, scale_features

Member = tuple[Parameters, Network, ClientBatch]


def predict(config: GlasuConfig, data: GraphSource, states: Mapping[str, bytes]) -> NDArray[np.int64]:
    """Return each node's class, in the order of the data's nodes: one joint inference of the best parameters.

    A client that was lost in the run has no checkpoint and is left out, as it was in the run.
    """
    names = client_names(data)
    members: dict[int, Member] = {}
    for position, name in enumerate(names[:1] if config.special_case == "centralised" else names):
        if name not in states:
            continue
        share, split, _ = load_share(config.special_case, data, names, position)
        share = scale_features(share) if config.scale_features else share
        network = steps.network_of(config, share.features_NF.shape[1], data.num_classes, position)
        graph = steps.build_graph(share, len(split.labels_N))
        batch = steps.full_batch(graph, share, split, config.num_layers, config.float64)
        members[position] = (best_parameters(name, states), replace(network, dropout=0.0), batch)
    if config.num_networks == 1:
        logits = [steps.predict_alone(*member).numpy() for member in members.values()]
    else:
        last = _joint_inference(config, members)
        logits = [steps.predict(parameters, last).numpy() for parameters, _, _ in members.values()]
    classes: NDArray[np.int64] = add(logits).argmax(axis=1)
    return classes


def _joint_inference(config: GlasuConfig, members: Mapping[int, Member]) -> Floats:
    """Algorithm 3 in one process."""
    last: Floats = np.empty(0)
    h0: dict[int, Tensor | None] = {}
    for index in range(len(config.resolved_layers)):
        parts: dict[int, Floats] = {}
        for position, (parameters, network, batch) in members.items():
            if index == 0:
                part, h0[position] = steps.first_segment(parameters, network, batch)
            else:
                part = steps.next_segment(parameters, network, batch, index, last, h0[position])
            parts[position] = part.numpy()
        if config.aggregation == "concatenation":
            last = concatenate(parts, config.num_networks)
        else:
            last = average(add([parts[position] for position in sorted(parts)]), len(parts))
    return last


def export(config: GlasuConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a client's best parameters, by layer, as one ``.npz`` file.

    Raises:
        BadInput: the party has no part of the model.
    """
    if party == "server":
        raise BadInput("--party: 'server' is not allowed: the server has no part of the model")
    parameters = best_parameters(party, states)
    path = folder / f"{party}.npz"
    arrays = {name: value.numpy() for name, value in parameters.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return [path]


def best_parameters(party: str, states: Mapping[str, bytes]) -> Parameters:
    """Return the parameters with which a client's network did best on validation nodes."""
    state = snapshot.unseal(states[party], f"the checkpoint of {party}")["state"]
    best: Parameters = snapshot.unpack(state["best"])
    return best or snapshot.unpack(state["parameters"])
