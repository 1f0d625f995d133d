"""Everything that leaves a party in TablePuppet: this file is the privacy review.

Row numbers are positions in a permutation of each client's rows that is drawn for the run, from the run's seed, over
rows ordered by their content: without the seed they tell nothing. No message but `DesignMatrix`, which
only the centralised baseline sends, holds a feature.

Shapes: n rows of a client or table, n_i those of them that join, u distinct rows of a batch, C outputs, P parameters,
N joined rows, E edges of the join tree at a table.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment import rows as joining
from fedactors.inspection import Protection
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.secure_sums.actors import MESSAGES, STOPS_SHOW

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]


@message(reveals="which categories occur, and count, sum and sum of squares of each numeric column; no row")
class Facts:
    """What partitions of one table must agree on; one entry for each feature (shapes F)."""

    categories: Annotated[tuple[tuple[str, ...], ...], Dimensions("features")]
    counts: Annotated[Integers, Dimensions("features")]
    totals: Annotated[Floats, Dimensions("features")]
    squares: Annotated[Floats, Dimensions("features")]
    classes: tuple[str, ...]


@message(reveals="the same facts over the whole table")
class Agreement:
    """The merged facts, and the seed of the first theta."""

    facts: Facts
    seed: int


@message(
    reveals="the label of each training row, after label noise if label_dp is set; which rows are kept for the test",
)
class Labels:
    """Labels of the training rows in row order, and which rows (n) are test rows, whose labels show in scores."""

    train: Annotated[NDArray[Any], Dimensions("training rows")]
    is_test: Annotated[NDArray[np.bool_], Dimensions("rows")]
    num_classes: int


@message(reveals="how often each of its rows occurs in the join, that is how many partners it has in other tables")
class DuplicateCounts:
    """G_ij in the training join (n), whether a row is in the test join (n), and N of the training join."""

    train: Annotated[Integers, Dimensions("rows")]
    in_test: Annotated[NDArray[np.bool_], Dimensions("rows")]
    num_joined: int
    num_classes: int
    base: Annotated[Floats, Dimensions("num_classes", or_none=True)]
    """Where the bias of the label's table begins (C): the mean of the joined rows' labels, or the logarithms of their
    shares, noisy labels' under label_dp; nothing to other tables."""


@message(reveals="which of its rows stands in which joined row: the join itself, which these baselines assume")
class JoinedRows:
    """p_i(j) of the training join (N) and of the test join."""

    train: Annotated[Integers, Dimensions("joined rows")]
    test: Annotated[Integers, Dimensions("joined test rows")]
    num_classes: int
    base: Annotated[Floats, Dimensions("num_classes", or_none=True)]
    """As in `DuplicateCounts`."""


@message(reveals="how often each of its rows occurs in the join; joined rows come in a random order of the server's")
class JoinPositions:
    """p_i(j) of the training join (N) and of the test join, for predictions that are summed under masks."""

    train: Annotated[Integers, Dimensions("joined rows")]
    test: Annotated[Integers, Dimensions("joined test rows")]


@message(
    reveals="one number for each row and output; together with theta over d rounds the linear features themselves",
)
class Predictions:
    """h_i = f(theta; x) of the rows that join (n_i x C) or of a batch's distinct rows (u x C)."""

    values: Annotated[Floats, Dimensions("rows predicted", "outputs")]


@message(reveals="as Predictions, on the rows of the test join; only evaluation needs it")
class TestPredictions:
    """h_i of the rows in the test join (rows x C)."""

    values: Annotated[Floats, Dimensions("rows predicted", "outputs")]


@message(reveals="the sum over a row's partners of the loss's derivative; with the predictions it tells labels")
class Derivatives:
    """Y_u of the last batch (u x C, none at an epoch's start), its size, and the rows that the next batch touches (u').

    Each row number is sent once in a batch, or once for each joined row of it where predictions are summed under masks;
    row numbers are four bytes, derivatives eight.
    """

    values: Annotated[Floats, Dimensions("rows of the batch", "outputs")]
    batch_size: int
    next_rows: Annotated[NDArray[np.int32], Dimensions("next rows")]


@message(reveals="the partition's gradient over its rows of a batch, noisy if feature_dp is set")
class PartialGradient:
    """Eq. 18 of one partition (P)."""

    values: Annotated[Floats, Dimensions("parameters")]


@message(reveals="the gradient over all partitions of the table")
class AggregatedGradient:
    """Eq. 17 (P), and the rows that the next batch touches."""

    values: Annotated[Floats, Dimensions("parameters", or_none=True)]
    next_rows: Annotated[NDArray[np.int32], Dimensions("next rows")]


@message(
    reveals="for each row a sum over its partners of duals and residuals: of labels and other tables' predictions",
)
class Auxiliary:
    """Y_i of Eq. 14 (n_i x C); where predictions are summed under masks without the receiver's own term."""

    values: Annotated[Floats, Dimensions("own rows that join", "outputs")]
    rho: float
    """The round's penalty, which follows from the residuals over all joined rows."""


@message(reveals="the table's consensus theta, and the receiver's own dual variable")
class Consensus:
    """w and u^q of the inner rounds (P each)."""

    w: Annotated[Floats, Dimensions("parameters")]
    u: Annotated[Floats, Dimensions("parameters")]


@message(
    reveals="the partition's theta, noisy if feature_dp is set; with predictions of d rounds it reveals the rows",
)
class LocalParameters:
    """theta_i^q of Eq. 22 (P)."""

    theta: Annotated[Floats, Dimensions("parameters")]


@message(reveals="which of its test rows stands in which joined test row")
class TestRows:
    """The client's own row of each joined test row that it has a label of."""

    rows: Annotated[Integers, Dimensions("rows to score")]


@message(reveals="the model's output on test rows")
class TestOutputs:
    """h of joined test rows (rows x C), in the order of `TestRows`.

    Where the join is not listed, the mean of h over the joined test rows of each of its rows.
    """

    values: Annotated[Floats, Dimensions("rows to score", "outputs")]
    ranks: Annotated[Integers, Dimensions("rows to score", or_none=True)]
    """Twice the rank of each among all joined test rows' outputs; for two classes alone."""
    counts: Annotated[Integers, Dimensions("rows to score", or_none=True)]
    """Where the join is not listed, the joined test rows of each (rows)."""
    spread: Annotated[Floats, Dimensions("rows to score", or_none=True)]
    """And the sum of squares of h around its mean (rows)."""


@message(
    reveals="the sum of squared errors, or how many were right, under label_dp of labels that were noised once; "
    "without it also sums over the test labels: of them, their squares and absolute errors, or counts and the sum of "
    "ranks by class"
)
class Score:
    """What the outputs scored, and their loss: sums over `count` joined test rows."""

    total: float
    loss: float
    count: int
    tally: Annotated[Floats, Dimensions("sums", or_none=True)]
    """What `algorithm.tally_rows` gives; nothing under label_dp, whose noise would bias it."""


@message(reveals="every feature of every row that joins")
class DesignMatrix:
    """The encoded rows of the training join and of the test join (rows x D), and the first theta (P)."""

    train: Annotated[Floats, Dimensions("training rows", "columns")]
    test: Annotated[Floats, Dimensions("test rows", "columns")]
    theta: Annotated[Floats, Dimensions("parameters")]


# --- rows to predict ---


@message(reveals="which clients have the table of the label, which the query says anyway")
class LabelOwners:
    """To whom the predictions belong, in the order of their partitions."""

    names: tuple[str, ...]


@message(reveals="which of the own rows miss values that the model needs")
class UnusableRows:
    """For each row (n) whether it cannot be used."""

    values: Annotated[NDArray[np.bool_], Dimensions("rows")]


@message(
    reveals="which of its rows have partners in all tables; where predictions are summed under masks also how often",
)
class WantedRows:
    """Rows to predict: each once, or under masks one for each joined row, in random order."""

    rows: Annotated[NDArray[np.int32], Dimensions("rows to predict")]


@message(
    reveals="the model's output for each of its rows that joins, how often it joins, and why the others do not: in "
    "which table they find no partner, or in which one the partner misses values",
)
class JoinedOutputs:
    """What the owner of the label's table is told of its n rows, which occur in N joined rows.

    `rows`: its row of each joined row (N); `values`: h of each (N x C, zeros where a partner misses values); `misses`:
    the table in which it does (N); `unmatched`: the one in which a row has none (n). Indices of `tables`; -1: none.
    """

    tables: tuple[str, ...]
    rows: Annotated[NDArray[np.int32], Dimensions("joined rows")]
    values: Annotated[Floats, Dimensions("joined rows", "outputs")]
    misses: Annotated[NDArray[np.int16], Dimensions("joined rows")]
    unmatched: Annotated[NDArray[np.int16], Dimensions("rows")]


# --- orders of the run's driver, and what it learns ---


@message(reveals="how many rows each table has, how many of them join or lack a key, and how large the join is")
class JoinFacts:
    """Sizes of the join, and by table: its rows, those that join, and those left out for a NULL key."""

    joined_rows: int
    joined_test_rows: int
    outputs: int
    rows: dict[str, int]
    rows_that_join: dict[str, int]
    rows_with_null_keys: dict[str, int]


@message(reveals="the number of the round")
class RoundOrder:
    """Train this round."""

    number: int


@message(reveals="the mean loss on the training join, and the residuals of ADMM over it")
class TrainingLoss:
    """Mean loss over the joined training rows; of ADMM the residuals' shares and the round's penalty, else 0."""

    value: float
    primal: float
    dual: float
    rho: float


@message(reveals="the model's score and mean loss on the test join")
class TestScore:
    """RMSE or accuracy, mean loss, and other scores by name, over the joined test rows."""

    score: float
    loss: float
    more: dict[str, float]


def sent(config: TablePuppetConfig) -> tuple[type, ...]:
    """Return the messages that a run with this configuration can send."""
    found = [*joining.MESSAGES, Labels, TestRows, TestOutputs, Score]
    found += [JoinFacts, RoundOrder, TrainingLoss, TestScore]
    found += [JoinedRows] if config.is_vertical else [DuplicateCounts]
    may_be_partitioned = config.algorithm in ("rfl-admm", "rfl-sgd", "centralised")
    if may_be_partitioned:
        found += [Facts, Agreement]
    if config.algorithm == "centralised":
        return (*found, DesignMatrix)
    found += [JoinPositions, *MESSAGES] if config.secure_aggregation else [Predictions, TestPredictions]
    found += [Auxiliary if config.is_admm else Derivatives]
    if may_be_partitioned:
        found += [Consensus, LocalParameters] if config.is_admm else [PartialGradient, AggregatedGradient]
    return tuple(found)


def protections(config: TablePuppetConfig) -> tuple[Protection, ...]:
    """Return which protection is on."""
    given = config.algorithm == "centralised"
    summed = (
        "a server that follows the protocol reads the sum of the tables' predictions only"
        if config.secure_aggregation
        else "each table's are read"
    )
    is_noised = config.feature_dp is not None and config.prediction_noise > 0
    if is_noised:
        noise = "theta and predictions are clipped and noised"
    elif config.feature_dp is not None:
        noise = "theta is noised, predictions are not: these read the rows again"
    else:
        noise = "every feature is given away" if given else "theta and predictions leave as they are"
    labels = "labels are noised once, those of test rows, too, by which outputs are scored"
    facts = "rows are encoded by declared facts alone"
    if config.label_dp is None:
        labels = "the server is sent the training labels"
    if not config.declared_facts:
        facts = "categories, means and deviations are the tables' own, without noise"
    noise_settings = ("feature_dp", "prediction_clip", "prediction_noise")
    scales = ("declared_facts", "standardise")
    return (
        Protection(kind="secure sums", settings=("secure_aggregation",), on=config.secure_aggregation, means=summed),
        Protection(kind="noise", settings=noise_settings, on=is_noised, means=noise),
        Protection(kind="labels", settings=("label_dp",), on=config.label_dp is not None, means=labels),
        Protection(kind="standardisation", settings=scales, on=bool(config.declared_facts), means=facts),
    )


def left_open(config: TablePuppetConfig, purpose: str) -> tuple[str, ...]:
    """Return what a coordinator may still do in a run under masks, a sentence each."""
    if not config.secure_aggregation:
        return ()
    return (
        "masks hold against a server that follows the protocol: it says which of your rows is in which sum and what "
        "each table learns, so one that lies lets the others add zeros, or the same twice, and reads your predictions, "
        "from which your rows follow; noise (prediction_noise) alone limits that",
        STOPS_SHOW,
    )


def shapes(config: TablePuppetConfig) -> dict[str, dict[str, Any]]:
    """Return the shapes of the arrays for `fedactors inspect`."""
    rows = "N x C" if config.is_vertical else "n_i x C"
    batch = "rows of the batch x C" if config.is_vertical else "distinct rows of the batch x C"
    return {
        "KeyHashes": {"hashes": "E times n x 16 bytes"},
        "Labels": {"train": "n without test rows", "is_test": "n"},
        "DuplicateCounts": {"train": "n", "in_test": "n"},
        "JoinedRows": {"train": "N", "test": "joined test rows"},
        "JoinPositions": {"train": "N", "test": "joined test rows"},
        "Masked": {"words": "N C" if config.is_admm else "rows of the batch x C, flat"},
        "Predictions": {"values": rows if config.is_admm else batch},
        "TestPredictions": {"values": "rows in the test join x C"},
        "Derivatives": {"values": batch, "next_rows": "distinct rows of the next batch"},
        "PartialGradient": {"values": "P"},
        "AggregatedGradient": {"values": "P", "next_rows": "distinct rows of the next batch"},
        "Auxiliary": {"values": rows},
        "Consensus": {"w": "P", "u": "P"},
        "LocalParameters": {"theta": "P"},
        "TestRows": {"rows": "joined test rows"},
        "TestOutputs": {"values": "joined test rows x C, or rows in the test join x 1"},
        "DesignMatrix": {"train": "n_i x D", "test": "rows in the test join x D", "theta": "P"},
    }
