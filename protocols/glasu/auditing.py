"""What an audit of a run replays and attacks: neighbouring graphs, and what leaks the edges of a trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedactors.auditing.attacks import Surface, pair_scores, sample_pairs
from fedactors.auditing.audit import attack_by_auc
from fedactors.data.layouts.graph import GraphBlock
from fedactors.data.layouts.vertical import Neighbour
from fedactors.data.new_rows import actor_state
from fedactors.messages.codec import wire_type
from fedactors.protocols.glasu import algorithm
from fedactors.protocols.glasu.backbones import Network
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import AnyPart, GraphSource, load_client, parts_of, read_blocks
from fedactors.protocols.glasu.messages import Floats
from fedactors.protocols.glasu.privacy import noise_of
from fedactors.protocols.glasu.sampling import IntArray
from fedactors.protocols.glasu.serving import best_of


@wire_type(eq=False)
class OtherNode:
    """A client's part with other features of one node."""

    part: Any
    node: int
    features: NDArray[np.float32]

    @property
    def party(self) -> str:
        """The client's name."""
        name: str = self.part.party
        return name

    def load(self) -> GraphBlock:
        """Load the block and change the one row."""
        block: GraphBlock = self.part.load()
        features = block.features.copy()
        features[self.node] = self.features
        return replace(block, features=features)


@dataclass(frozen=True)
class OtherGraph:
    """A graph in which one client's part is another."""

    source: GraphSource
    other: OtherNode

    @property
    def parties(self) -> tuple[str, ...]:
        """The clients' names, in order."""
        return self.source.parties

    def part(self, party: str) -> AnyPart:
        """Return what the actor of `party` is built with."""
        return self.other if party == self.other.party else self.source.part(party)


def neighbours(config: GlasuConfig, data: GraphSource, party: str, count: int, seed: int) -> Sequence[Neighbour]:
    """Return `count` neighbours of kind ``node``: another node's features, zeros, or a million in each column."""
    part = data.part(party)
    block, rng = read_blocks([part])[party], np.random.default_rng(seed)
    found = []
    for number in range(count):
        node, other = rng.integers(0, block.num_nodes, 2).tolist()
        row, what = (
            (block.features[other], f"those of node {other}"),
            (np.zeros_like(block.features[node]), "zeros"),
            (np.full_like(block.features[node], 1e6), "a million each"),
        )[number % 3]
        changed = OtherGraph(data, OtherNode(part=part, node=node, features=row))
        found.append(Neighbour(label=f"features of node {node} by {what}", kind="node", data=changed))
    return found


def first_representations(
    config: GlasuConfig, data: GraphSource, states: Mapping[str, bytes]
) -> tuple[dict[str, Floats], dict[str, IntArray]]:
    """Return what each client would send of all nodes at the first aggregation (N x D), and its edges (2 x E)."""
    parts: dict[str, Floats] = {}
    edges: dict[str, IntArray] = {}
    for position, name in enumerate(data.parties):
        if name not in states:
            continue
        blocks = read_blocks(parts_of(config, data, name))
        local, _ = load_client(config, blocks, position)
        network = Network.of(config, local.features_NF.shape[1], local.num_classes, position)
        dtype = torch.float64 if config.float64 else torch.float32
        batch = algorithm.full_batch(local, config.num_layers, dtype)
        parameters = best_of(actor_state(states, name))
        parts[name] = algorithm.first_segment(parameters, replace(network, dropout=0.0), batch)[0].numpy()
        edges[name] = local.graph.edges
    return parts, edges


def surface(config: GlasuConfig, data: GraphSource, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what a server sees of the first aggregation of a trained model, and link stealing on it.

    The attacker has each client's own representation (without secure aggregation) or their sum, with the noise of the
    configuration drawn anew, and looks for that client's edges.
    """
    parts, edges = first_representations(config, data, states)
    rng, sigma = np.random.default_rng(seed), noise_of(config)
    total = sum(parts.values()) + sigma * rng.standard_normal(next(iter(parts.values())).shape)
    attacks = []
    for name, local in parts.items():
        seen = total if config.secure_aggregation else local + sigma * rng.standard_normal(local.shape)
        pairs, truth = sample_pairs(edges[name], len(local), 2000, seed)
        attacks.append(attack_by_auc(f"link stealing: {name}", truth, pair_scores(seen, pairs)))
    return Surface(others=tuple(attacks))
