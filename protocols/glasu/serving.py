"""What comes after training: predictions of the federation's best parameters, and one client's part of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedactors.errors import BadInput
from fedactors.serving import actor_state, write_part
from protocols.glasu import algorithm
from protocols.glasu.aggregation import add, average, concatenate
from protocols.glasu.algorithm import ClientBatch
from protocols.glasu.backbones import Network, Parameters
from protocols.glasu.config import GlasuConfig
from protocols.glasu.data import ClientGraph, GraphSource, load_client, parts_of
from protocols.glasu.messages import Floats

Member = tuple[Parameters, Network, ClientBatch]


def predict(config: GlasuConfig, data: GraphSource, states: Mapping[str, bytes]) -> NDArray[np.int64]:
    """Return each node's class, in the order of the data's nodes: one joint inference of the best parameters.

    A client that was lost in the run has no checkpoint and is left out, as it was in the run.
    """
    members = {name: member for name, (member, _) in _members(config, data, states).items()}
    if config.works_alone:
        logits = [algorithm.local_forward(*member, [])[0].numpy() for member in members.values()]
    else:
        last = _joint_inference(config, data.parties, members)
        logits = [algorithm.classify(parameters, last).numpy() for parameters, _, _ in members.values()]
    classes: NDArray[np.int64] = add(logits).argmax(axis=1)
    return classes


def first_representations(
    config: GlasuConfig, data: GraphSource, states: Mapping[str, bytes]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.int64]]]:
    """Return what each client would send of all nodes at the first aggregation (N x D), and its edges (2 x E)."""
    members = _members(config, data, states)
    parts = {name: algorithm.first_segment(*member)[0].numpy() for name, (member, _) in members.items()}
    return parts, {name: own.graph.edges for name, (_, own) in members.items()}


def _members(
    config: GlasuConfig, data: GraphSource, states: Mapping[str, bytes]
) -> dict[str, tuple[Member, ClientGraph]]:
    """Return the clients that have a checkpoint, on the whole graph."""
    found: dict[str, tuple[Member, ClientGraph]] = {}
    for position, name in enumerate(data.parties):
        if name not in states:
            continue
        own, _ = load_client(config, parts_of(config, data, name), position)
        network = algorithm.network_of(config, own.features_NF.shape[1], own.num_classes, position)
        dtype = torch.float64 if config.float64 else torch.float32
        batch = algorithm.full_batch(own, config.num_layers, dtype)
        found[name] = ((best_parameters(name, states), replace(network, dropout=0.0), batch), own)
    return found


def _joint_inference(config: GlasuConfig, names: Sequence[str], members: Mapping[str, Member]) -> Tensor:
    """Algorithm 3 in one process; returns H[L]."""
    started = {name: algorithm.first_segment(*member) for name, member in members.items()}
    parts = {name: part for name, (part, _) in started.items()}
    for index in range(1, len(config.resolved_layers)):
        last = _aggregate(config, names, parts)
        parts = {name: algorithm.segment(*member, index, last, started[name][1]) for name, member in members.items()}
    return _aggregate(config, names, parts)


def _aggregate(config: GlasuConfig, names: Sequence[str], parts: Mapping[str, Tensor]) -> Tensor:
    values: dict[str, Floats] = {name: part.numpy() for name, part in parts.items()}
    if config.aggregation == "concatenation":
        return algorithm.tensor(concatenate(values, names))
    return algorithm.tensor(average(add(list(values.values())), len(values)))


def export(config: GlasuConfig, party: str, states: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a client's best parameters, by layer, as ``.npz``, and how to build the network again as ``.json``.

    Raises:
        BadInput: the party has no part of the model.
    """
    if party == "server":
        raise BadInput("--party: 'server' is not allowed: the server has no part of the model")
    parameters = best_parameters(party, states)
    arrays = {name: value.numpy() for name, value in parameters.items()}
    facts = {"num_classes": len(arrays["classifier.bias"])}
    return write_part(folder, party, arrays=arrays, facts=facts, config=config)


def best_parameters(party: str, states: Mapping[str, bytes]) -> Parameters:
    """Return the parameters with which a client's network did best on validation nodes."""
    state = actor_state(states, party)
    best: Parameters = state["best"]
    return best or state["parameters"]
