"""A client's part of a trained network, applied alone: what it makes of its own nodes between two aggregations.

    bank, shop = (load_part(f"model/{name}").network for name in ("bank", "shop"))
    h = None
    for segment in range(bank.num_segments):
        h = bank.aggregate([bank(segment, x_bank, edges_bank, h), shop(segment, x_shop, edges_shop, h)])
    logits = bank.classify(h) + shop.classify(h)       # what `predict` takes the softmax of

Shapes: N nodes, F features of the client, E edges, D hidden size, W width after an aggregation, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from fedactors.data.layouts.graph import NodeSplit
from fedactors.errors import BadInput
from fedactors.protocols.glasu import algorithm
from fedactors.protocols.glasu.backbones import Network, Parameters, initial_parameters
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import ClientGraph, scale_features
from fedactors.protocols.glasu.sampling import adjacency
from fedactors.serving.parts import Part
from fedactors.validation import first_line

_NOTHING = np.zeros(0, np.int64)


def settings_of(config: GlasuConfig, num_features: int, num_classes: int, factor: float) -> dict[str, Any]:
    """Return what else is needed to apply a client's parameters, as plain values."""
    network = replace(Network.of(config, num_features, num_classes, position=0), dropout=0.0)
    by_row = config.scale_features and config.noise_multiplier > 0
    return {"network": asdict(network), "feature_factor": factor, "scaled_by_row": by_row}


def network_of(part: Part) -> ClientNetwork:
    """Return the network of an exported part."""
    where = f"the part of {part.party}"
    try:
        network = TypeAdapter(Network).validate_python(part.settings["network"])
        factor = None if part.settings["scaled_by_row"] else float(part.settings["feature_factor"])
        if network.num_layers > len(part.arrays) or network.user_layer not in ("", *part.code):
            raise ValueError("settings.network does not fit the arrays")
        parameters = {name: torch.from_numpy(np.array(array)) for name, array in part.arrays.items()}
        rng = np.random.default_rng(0)
        wanted = initial_parameters(network, rng, rng, parameters["classifier.bias"].dtype)
        if {name: one.shape for name, one in wanted.items()} != {n: one.shape for n, one in parameters.items()}:
            raise ValueError("the arrays are of other shapes than settings.network says")
    except ValidationError as error:
        raise BadInput(f"{where} is damaged: settings.network: {error.errors()[0]['msg']}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where} is damaged: {first_line(error)}") from None
    return ClientNetwork(network, parameters, factor)


class ClientNetwork(nn.Module):
    """A client's trained layers and classifier.

    Args:
        factor: what features are multiplied by; None: each row by a number of its own.
    """

    def __init__(self, network: Network, parameters: Mapping[str, Tensor], factor: float | None) -> None:
        super().__init__()
        self._network, self._factor = network, factor
        self._names = {name.replace(".", "/"): name for name in parameters}
        self.weights = nn.ParameterDict({name: nn.Parameter(parameters[key]) for name, key in self._names.items()})

    @property
    def num_segments(self) -> int:
        """How often the clients' representations are aggregated."""
        return len(self._network.segments)

    def forward(self, segment: int, features_NF: Tensor, edges_2E: Tensor, below_NW: Tensor | None = None) -> Tensor:
        """Return the own representation of all nodes (N, D), up to an aggregation.

        Args:
            segment: which one, from 0.
            features_NF: of the nodes, as `Part.preprocess` returns them; then sparse ones, if the party has any.
            edges_2E: node numbers, from 0; direction, repetition and edges from a node to itself do not count.
            below_NW: what the last aggregation gave; None for the first.
        """
        parameters, network = self._named, self._network
        batch = self._batch(features_NF, edges_2E)
        h_SW, h0_SD = algorithm.initial_representation(parameters, network, batch)
        if segment > 0:
            if below_NW is None:
                raise BadInput(
                    f"below_NW: None is not allowed for segment {segment}: give what the last aggregation gave"
                )
            h_SW = below_NW
        return algorithm.segment(parameters, network, batch, segment, h_SW, h0_SD)

    def aggregate(self, parts: Sequence[Tensor]) -> Tensor:
        """Return what the server makes of the clients' representations, given in the order of the clients."""
        if self._network.aggregation == "concatenation":
            return torch.cat(list(parts), dim=1)
        return torch.stack(list(parts)).mean(dim=0)

    def classify(self, last_NW: Tensor) -> Tensor:
        """Return the own logits (N, C) from the last aggregation; the clients' sum decides."""
        return algorithm.classify(self._named, last_NW)

    @property
    def _named(self) -> Parameters:
        return {key: self.weights[name] for name, key in self._names.items()}

    def _batch(self, features_NF: Tensor, edges_2E: Tensor) -> algorithm.ClientBatch:
        num_nodes = len(features_NF)
        labels = NodeSplit(np.zeros(num_nodes, np.int64), _NOTHING, _NOTHING, _NOTHING)
        graph = adjacency(np.asarray(edges_2E, np.int64).reshape(2, -1), num_nodes)
        local = ClientGraph("", graph, np.asarray(features_NF, np.float32), labels, self._network.num_classes)
        if self._factor is None:
            local = scale_features(local, by_row=True)
        else:
            local = replace(local, features_NF=local.features_NF * np.float32(self._factor))
        return algorithm.full_batch(local, self._network.num_layers, self.weights["classifier/bias"].dtype)
