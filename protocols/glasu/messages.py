"""Everything that the driver, the clients and the server of GLASU tell one another: this file is the privacy review.

No message holds a feature, an edge or a label. Nodes travel under shuffled numbers: with secure aggregation in an order
that the clients have agreed upon past the server, else in one that follows from the run's seed, which the server has
too. What masked sums send besides is declared in `fedactors.secure_sums.messages` and `secure_aggregation`.

Shapes: S nodes of an index set, D hidden size, W width after Agg, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.new_rows import Predicted, PredictOrder
from fedactors.inspection import Protection
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.secure_sums.actors import MESSAGES, STOPS_SHOW

if TYPE_CHECKING:
    from fedactors.protocols.glasu.config import GlasuConfig

Floats = NDArray[np.floating[Any]]
Index = NDArray[np.int64]

# --- between the run's driver and the server, or a client that works alone ---


@message(reveals="nothing about data: which round is to be done")
class RoundOrder:
    """The driver's order to train or to evaluate."""

    round: int


@message(reveals="what is unusual about the data: who has no edges, and whether there are validation nodes")
class Remarks:
    """What is allowed, and worth saying before the run."""

    texts: tuple[str, ...]


@message(reveals="the mean of the clients' training losses, or of the one that works alone, and how many take part")
class Progress:
    """A round of training: losses before the first and the last local update."""

    first_loss: float
    last_loss: float
    num_members: int


@message(reveals="how well validation and test nodes are predicted, together and by single clients")
class Evaluation:
    """Metrics of the averaged logits by name (validation, test), and the clients' mean and least test accuracy.

    Test metrics are NaN where there are no test nodes, and the least is where only a sum of accuracies is known.
    """

    validation: dict[str, float]
    test: dict[str, float]
    mean_client: float
    least_client: float


# --- between the server and the clients ---


@message(reveals="nothing about data: which round this is and who takes part")
class Stamp:
    """A round's number, how often rounds were begun anew, whether it is an evaluation, and who takes part."""

    round: int
    attempt: int
    scoring: bool
    members: tuple[str, ...]


@message(reveals="the number of nodes, the names of classes, the training nodes' shuffled numbers, and `Remarks`")
class Introduction:
    """A client's answer at the start of a run."""

    num_nodes: int
    num_classes: int
    class_names: tuple[str, ...]
    train: Annotated[Index, Dimensions("training nodes")]
    remarks: tuple[str, ...]


@message(reveals="which nodes other clients sampled, merged over all of them")
class Targets:
    """Nodes at the output level of a segment: S[L] or a union (Algorithm 2); empty on the full graph."""

    stamp: Stamp
    segment: int
    nodes: Annotated[Index, Dimensions("nodes")]


@message(reveals="which nodes this client sampled, so some of its neighbourhoods' members")
class IndexSet:
    """S_m at the input level of a sampled segment (Algorithm 2); nodes (S)."""

    nodes: Annotated[Index, Dimensions("nodes")]


@message(reveals="a representation of each node in the index set; inversion attacks apply")
class Representation:
    """H_m^+[l] at an aggregation layer (Algorithm 3), clipped and noised where configured; values (S x D)."""

    values: Annotated[Floats, Dimensions("nodes", "width")]


@message(reveals="the aggregate of the clients' representations: with two clients, the other's")
class Aggregated:
    """H[l+1] above a segment (Algorithm 3); values (S x W)."""

    segment: int
    values: Annotated[Floats, Dimensions("nodes", "joined width")]


@message(reveals="the loss's gradient at each node, which for training nodes can tell the label")
class GradientPart:
    """A client's part of dL/dH[l+1], mode joint only; values (S x W)."""

    values: Annotated[Floats, Dimensions("nodes", "joined width")]


@message(reveals="the clients' summed gradient")
class GradientShare:
    """What Agg's backward pass gives to one client: 1/M of dL/dH[l+1], or its block; values (S x D)."""

    segment: int
    values: Annotated[Floats, Dimensions("nodes", "width")]


@message(reveals="the client's mean training loss before its first and its last local update; without masks only")
class Report:
    """What a client says of its local updates (Algorithm 4); under masks it is part of a sum."""

    first_loss: float
    last_loss: float


@message(reveals="the parameters of this client's classifier")
class Classifier:
    """W_m[L] as one flat vector, only with average_classifiers; values (W C + C)."""

    values: Annotated[Floats, Dimensions("classifier parameters")]


@message(reveals="the mean of the clients' classifiers")
class AveragedClassifier:
    """The averaged classifier; values (W C + C)."""

    values: Annotated[Floats, Dimensions("classifier parameters")]


@message(reveals="how well validation and test nodes are predicted; functions of their labels")
class Scores:
    """Metrics by name on validation and test nodes; none where there are no nodes."""

    validation: dict[str, float]
    test: dict[str, float]


@message(reveals="this client's predictions for new nodes")
class Logits:
    """Predictions of all nodes of a graph; values (N x C)."""

    values: Annotated[Floats, Dimensions("nodes", "classes")]


@message(reveals="this client's predictions for validation and test nodes, and its accuracy; without masks only")
class Prediction:
    """A client's answer to the last aggregate of an evaluation; values (validation and test nodes x C)."""

    values: Annotated[Floats, Dimensions("nodes to score", "classes")]
    accuracy: float
    """On test nodes, not a number where there are none."""


@message(reveals="the clients' mean predictions for validation and test nodes")
class AveragedLogits:
    """The mean of the clients' logits, for the first client to score; values (validation and test nodes x C)."""

    values: Annotated[Floats, Dimensions("nodes to score", "classes")]


@message(reveals="the clients' summed predictions for all nodes: they are for the first client")
class SummedLogits:
    """The sum of the clients' logits of new nodes; values (N x C)."""

    values: Annotated[Floats, Dimensions("nodes", "classes")]


def sent(config: GlasuConfig) -> tuple[type, ...]:
    """Return the messages that a run with this configuration can send."""
    to_driver = (RoundOrder, Remarks, Progress, Evaluation)
    if config.works_alone:
        return to_driver
    always = (Stamp, Introduction, Targets, Aggregated, Scores, AveragedLogits)
    found = [*to_driver, *always, *(MESSAGES if config.secure_aggregation else (Representation, Prediction, Report))]
    if config.mode == "joint":
        found += [GradientShare] if config.secure_aggregation else [GradientPart, GradientShare]
    if config.average_classifiers:
        found += [AveragedClassifier] if config.secure_aggregation else [Classifier, AveragedClassifier]
    if config.batch_size is not None and len(config.resolved_layers) > 1:
        found.append(IndexSet)
    return tuple(found)


def sent_in_predictions(config: GlasuConfig) -> tuple[type, ...]:
    """Return the messages that predictions with a run of this configuration can send."""
    always = (PredictOrder, Predicted)
    if config.works_alone:
        return always
    return (*always, Aggregated, SummedLogits, *(MESSAGES if config.secure_aggregation else (Representation, Logits)))


def protections(config: GlasuConfig) -> tuple[Protection, ...]:
    """Return which protection is on."""
    is_secret = not config.reproducible_noise  # else the seed takes masks and noise off
    is_summed, is_noised = config.secure_aggregation and is_secret, config.noise_multiplier > 0 and is_secret
    summed = "the server reads sums over the clients only" if is_summed else "the server reads each client's part"
    noised = "representations are noised; losses, predictions, gradients and index sets are not"
    return (
        Protection(kind="secure sums", settings=("secure_aggregation",), on=is_summed, means=summed),
        Protection(
            kind="noise",
            settings=("noise_multiplier", "clip_norm"),
            on=is_noised,
            means=noised if is_noised else "representations leave as they are",
            is_joint=is_noised and is_summed,
        ),
        Protection(kind="labels", on=False, means="every client knows all labels; the server is told none"),
        Protection(
            kind="standardisation",
            settings=("scale_features",),
            on=not config.scale_features,
            means="blocks are scaled by their own mean length, without noise; it does not leave by itself"
            if config.scale_features
            else "none is done: features are taken as they are given",
        ),
    )


def left_open(config: GlasuConfig, purpose: str) -> Sequence[str]:
    """Return what a coordinator may still do in a run under masks, a sentence each."""
    if not config.secure_aggregation:
        return ()
    if purpose == "predict":
        return (STOPS_SHOW,)
    found = [
        "the server may tell the first organisation predictions of its own making in each evaluation, and is told how "
        "good they are by the labels, which such predictions can spell out",
        STOPS_SHOW,
    ]
    if IndexSet in sent(config):
        found.append(
            "which nodes your edges lead to leaves in each round, as index sets of yours alone, in no sum: from the "
            "nodes of that round's batch, and below the topmost segment from any that the server names besides"
        )
    return found


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
