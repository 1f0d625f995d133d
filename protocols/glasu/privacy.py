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
from collections.abc import Iterator
from dataclasses import replace

from fedactors.privacy.accounting import GaussianReleases, PrivacyRecord
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.messages import (
    Classifier,
    GradientPart,
    IndexSet,
    Logits,
    Prediction,
    Report,
    Representation,
)
from fedactors.secure_sums.primitives import FixedPoint, threshold_of
from fedactors.secure_sums.protocol import noise_part

SECURE_NOTE = "; server and clients see masked sums only, whose noise is discrete Gaussian and counts without one's own"
GRADIENT_SHARE = 1 / 64
"""Range of gradients, as a part of `secure_range`."""


def point_of(config: GlasuConfig, what: str) -> FixedPoint:
    """Return how numbers of one kind (`forward`, `backward`, `classifier`, `logits`, ...) become words of a sum."""
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
    bare: list[type] = [Report, Prediction, *([GradientPart] if config.mode == "joint" else [])]
    bare += [Classifier] if config.average_classifiers else []
    bare += [IndexSet] if config.batch_size is not None else []
    if config.noise_multiplier:
        uncovered = tuple(f"{cls.__name__} without noise" for cls in bare)
        yield replace(releases.record(party, uncovered=uncovered), neighbour="node")
    else:
        bare.insert(0, Representation)
    for cls in bare:
        is_hidden = config.secure_aggregation and cls is not IndexSet
        yield _bare(party, cls, is_hidden)


def prediction_records(
    config: GlasuConfig, party: str, releases: GaussianReleases | None = None
) -> Iterator[PrivacyRecord]:
    """Yield a client's lines for one release of a prediction, where representations are noised or summed under masks.

    Args:
        config: of the run that trained.
        party: the client's.
        releases: of the representation that has just been drawn; None: it is the logits that leave.
    """
    if not (config.noise_multiplier or config.secure_aggregation):
        return
    if releases is None:
        yield _bare(party, Logits, config.secure_aggregation)
    elif config.noise_multiplier:
        yield replace(releases.record(party, uncovered=("Logits without noise",)), neighbour="node")
    else:
        yield _bare(party, Representation, config.secure_aggregation)


def _bare(party: str, cls: type, is_hidden: bool) -> PrivacyRecord:
    return PrivacyRecord(
        party=party,
        message_type=cls.__name__,
        mechanism="secure-sum" if is_hidden else "none",
        neighbour="node",
        epsilon=math.inf,
        note="no noise: not covered",
    )
