"""What Gaussian noise on sent representations guarantees, and what it does not.

Neighbouring relation: one client's block of one node's features is replaced; edges, labels and which nodes are in a
batch are not protected. Rows are clipped to `clip_norm`, so one row moves by at most twice that. With its weights held
fixed, a client's representation of a node depends on its neighbourhood: over h layers one node reaches at most
``1 + D + ... + D (D - 1)^(h-1)`` rows, D being the bound on degrees (the nominal account); where blocks are scaled by
their mean length, it reaches all of them. The weights, however, are trained on the same features without noise: after
the first update one node may move every row of a release, and only the account over all rows holds (the rigorous one).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.client_graphs import GraphBlock
from fedactors.network.codec import plain
from fedactors.plugins import Neighbour
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.privacy.attacks.link_stealing import pair_scores, sample_pairs
from fedactors.privacy.attacks.suite import Surface
from fedactors.privacy.audit import attack_by_auc
from fedactors.privacy.fixed_point import FixedPoint
from fedactors.privacy.releases import GaussianReleases
from fedactors.privacy.secure_aggregation import noise_part
from fedactors.privacy.secure_sessions import threshold_of
from protocols.glasu.config import GlasuConfig
from protocols.glasu.data import GraphPart, GraphSource
from protocols.glasu.messages import Classifier, GradientPart, IndexSet, Logits, Report, Representation

SECURE_NOTE = "; server and clients see masked sums only, whose noise is discrete Gaussian and counts without one's own"
GRADIENT_SHARE = 1 / 64
"""Range of gradients, as a part of `secure_range`."""


def point_of(config: GlasuConfig, what: str) -> FixedPoint:
    """Return how numbers of one kind (`forward`, `backward`, `classifier`, `logits`) become words of a masked sum."""
    limit = config.secure_range
    if what == "backward":
        limit *= GRADIENT_SHARE
    elif what == "forward" and config.clip_norm is not None:
        limit = config.clip_norm + 10 * noise_part(noise_of(config), threshold_of(config.num_clients))
    return FixedPoint(limit=limit, num_clients=config.num_clients)


def noise_of(config: GlasuConfig) -> float:
    """Return the standard deviation of the noise on a representation, or on the sum of all; 0 is none."""
    return config.noise_multiplier * config.clip_norm if config.clip_norm is not None else 0.0


def reached_rows(max_degree: int, hops: int, num_rows: int) -> int:
    """Return how many of `num_rows` rows one node's features reach over `hops` layers, at most."""
    reached, ring = 1, max_degree
    for _ in range(hops):
        reached += ring
        if reached >= num_rows:
            return num_rows
        ring *= max(max_degree - 1, 1)
    return reached


def noised_releases(config: GlasuConfig) -> GaussianReleases:
    """Return the account of one client's noised representations, empty."""
    clip_norm = math.inf if config.clip_norm is None else config.clip_norm
    note = "one node's features at this client replaced; edges, labels and batches not covered; "
    note += f"nominal mu holds the weights fixed, at degree up to {config.max_degree}"
    return GaussianReleases(
        Representation.__name__,
        clip_norm=clip_norm,
        sigma=noise_of(config),
        delta=config.delta,
        sampling="full" if config.batch_size is None else "known-batches",
        note=note + (SECURE_NOTE if config.secure_aggregation else ""),
    )


def count_release(releases: GaussianReleases, config: GlasuConfig, hops: int, num_rows: int, *, first: bool) -> None:
    """Count one release of `num_rows` rows over `hops` layers; `first`: the weights have seen no data yet."""
    assert config.max_degree is not None
    near = reached_rows(config.max_degree, hops, num_rows)
    releases.add(near if first else num_rows, nominal_rows=near)


def records(config: GlasuConfig, party: str, releases: GaussianReleases) -> Iterator[PrivacyRecord]:
    """Yield a client's lines of the privacy ledger, the representations' first."""
    if config.works_alone:
        return
    bare: list[type] = [Report, Logits, *([GradientPart] if config.mode == "joint" else [])]
    bare += [Classifier] if config.average_classifiers else []
    bare += [IndexSet] if config.batch_size is not None else []
    if config.noise_multiplier:
        uncovered = tuple(f"{cls.__name__} without noise" for cls in bare)
        yield replace(releases.record(party, uncovered=uncovered), neighbour="node")
    else:
        bare.insert(0, Representation)
    for cls in bare:
        hidden = config.secure_aggregation and cls not in (Report, IndexSet)
        mechanism = "secure-sum" if hidden else "none"
        yield PrivacyRecord(
            party=party,
            message_type=cls.__name__,
            mechanism=mechanism,
            neighbour="node",
            epsilon=math.inf,
            note="no noise: not covered",
        )


# --- what audits change, and what attackers see ---


@plain(eq=False)
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

    def part(self, party: str) -> GraphPart:
        """Return what the actor of `party` is built with."""
        return self.other if party == self.other.party else self.source.part(party)


def neighbours(config: GlasuConfig, data: GraphSource, party: str, count: int, seed: int) -> Sequence[Neighbour]:
    """Return `count` neighbours of kind ``node``: another node's features, zeros, or a million in each column."""
    part = data.part(party)
    block, rng = part.load(), np.random.default_rng(seed)
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


def surface(config: GlasuConfig, data: GraphSource, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what a server sees of the first aggregation of a trained model, and link stealing on it.

    The attacker has each client's own representation (without secure aggregation) or their sum, with the noise of the
    configuration drawn anew, and looks for that client's edges.
    """
    from protocols.glasu.serving import first_representations

    parts, edges = first_representations(config, data, states)
    rng, sigma = np.random.default_rng(seed), noise_of(config)
    total = sum(parts.values()) + sigma * rng.standard_normal(next(iter(parts.values())).shape)
    attacks = []
    for name, own in parts.items():
        seen = total if config.secure_aggregation else own + sigma * rng.standard_normal(own.shape)
        pairs, truth = sample_pairs(edges[name], len(own), 2000, seed)
        attacks.append(attack_by_auc(f"link stealing: {name}", truth, pair_scores(seen, pairs)))
    return Surface(others=tuple(attacks))
