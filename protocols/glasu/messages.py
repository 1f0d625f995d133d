"""Everything that leaves a client or the server in GLASU: this file is the privacy review.

Nodes are known to the server under numbers that the clients have shuffled for the run. No message holds a feature, an
edge or a label. Shapes: S nodes of an index set, D hidden size, W width after Agg, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedactors.network.codec import message

if TYPE_CHECKING:
    from protocols.glasu.config import GlasuConfig

Floats = NDArray[np.floating[Any]]
Index = NDArray[np.int64]


@message(receiver="everyone", reveals="nothing about data: which round this is and who takes part")
class Stamp:
    """What every message of a round carries: its number, how often rounds were begun anew, who takes part.

    ``members`` are places in the order of the clients' names; ``scoring`` tells an evaluation from training.
    """

    round: int
    attempt: int
    scoring: bool
    members: tuple[int, ...]


@message(
    receiver="server", reveals="the number of nodes and classes, the training nodes' shuffled numbers, a public key"
)
class Introduction:
    """A client's answer at the start of a run; ``remarks`` say what is allowed but unusual about its data."""

    num_nodes: int
    num_classes: int
    train: Index
    public_key: bytes
    remarks: tuple[str, ...]


@message(receiver="clients", reveals="the clients' public keys for secure aggregation")
class PublicKeys:
    """Everyone's key, by name."""

    keys: dict[str, bytes]


@message(receiver="clients", reveals="which nodes other clients sampled, merged over all of them")
class Targets:
    """Nodes at the output level of a segment: S[L] or a union (Algorithm 2); empty on the full graph."""

    stamp: Stamp
    segment: int
    nodes: Index


@message(receiver="server", reveals="which nodes this client sampled, so some of its neighbourhoods' members")
class IndexSet:
    """S_m at the input level of a sampled segment (Algorithm 2); nodes (S)."""

    segment: int
    nodes: Index


@message(receiver="server", reveals="a representation of each node in the index set; inversion attacks apply")
class Representation:
    """H_m^+[l] at an aggregation layer (Algorithm 3), clipped and noised where configured; values (S x D)."""

    segment: int
    values: Floats


@message(receiver="clients", reveals="the aggregate of the clients' representations: with two clients, the other's")
class Aggregated:
    """H[l+1] (Algorithm 3); values (S x W)."""

    stamp: Stamp
    segment: int
    values: Floats


@message(receiver="server", reveals="the loss's gradient at each node, which for training nodes can tell the label")
class GradientPart:
    """A client's part of dL/dH[l+1], mode joint only; values (S x W)."""

    segment: int
    values: Floats


@message(receiver="clients", reveals="the clients' summed gradient")
class GradientShare:
    """What Agg's backward pass gives to one client: 1/M of dL/dH[l+1], or its block; values (S x D)."""

    stamp: Stamp
    segment: int
    values: Floats


@message(receiver="server", reveals="nothing alone: uniformly random words; only the sum over the clients is readable")
class Masked:
    """A representation, gradient, classifier or logits under masks (secure aggregation); words (flat)."""

    segment: int
    shape: tuple[int, ...]
    words: NDArray[np.uint64]


@message(receiver="clients", reveals="whose vectors arrived")
class RevealRequest:
    """The server asks for the seeds that remove the masks of one sum."""

    context: bytes
    arrived: tuple[str, ...]


@message(receiver="server", reveals="the seed of a mask that only hides a vector together with the pair masks")
class Revealed:
    """A client's own mask seed, and those it shares with clients that dropped out."""

    own_seed: bytes
    dropped_seeds: dict[str, bytes]


@message(receiver="server", reveals="the client's mean training loss before its first and its last local update")
class Report:
    """What a client says of its local updates (Algorithm 4)."""

    first_loss: float
    last_loss: float


@message(receiver="server", reveals="the parameters of this client's classifier")
class Classifier:
    """W_m[L] as one flat vector, only with average_classifiers; values (W C + C)."""

    values: Floats


@message(receiver="clients", reveals="the mean of the clients' classifiers")
class AveragedClassifier:
    """The averaged classifier; values (W C + C)."""

    stamp: Stamp
    values: Floats


@message(receiver="server", reveals="how many validation and test nodes are predicted correctly")
class Scores:
    """Accuracies on validation and test nodes."""

    validation: float
    test: float


@message(receiver="server", reveals="this client's predictions for validation and test nodes")
class Logits:
    """Predictions in an evaluation; values (validation and test nodes x C)."""

    values: Floats


@message(
    receiver="server", reveals="what its parts reveal: the client's accuracy and its predictions or their masked form"
)
class Prediction:
    """A client's answer to the last aggregate of an evaluation."""

    part: Logits | Masked
    scores: Scores


@message(receiver="first client", reveals="the clients' mean predictions for validation and test nodes")
class AveragedLogits:
    """The mean of the clients' logits; values (validation and test nodes x C)."""

    stamp: Stamp
    values: Floats


def shapes(config: GlasuConfig) -> Mapping[str, Mapping[str, Any]]:
    """Return the arrays' shapes under `config`, for `fedactors inspect`."""
    width = config.hidden_size
    joined = width * config.num_networks if config.aggregation == "concatenation" else width
    nodes = "all nodes" if config.batch_size is None else "S nodes"
    return {
        "Targets": {"nodes": "(0)" if config.batch_size is None else "(S)"},
        "IndexSet": {"nodes": "(S)"},
        "Representation": {"values": f"({nodes}, {width})"},
        "Aggregated": {"values": f"({nodes}, {joined})"},
        "GradientPart": {"values": f"({nodes}, {joined})"},
        "GradientShare": {"values": f"({nodes}, {width})"},
        "Masked": {"words": f"({nodes} x {width})"},
    }
