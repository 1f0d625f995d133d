"""Everything that leaves a party in the plain horizontal methods: this file is the privacy review.

Shapes: P parameters of the model that travel: what `local_parameters` names, and Ditto's own models, never leave their
client. What a change of a model reveals of the rows behind it (membership, inversion) holds
for every `Change`; over a site with several clients, or an aggregator's sites, it is their mean. No message carries a
row.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedactors.inspection import Protection
from fedactors.learning.optimizers import SIGNS_SHOW
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.protocols.horizontal.config import BY_ROWS, HorizontalConfig
from fedactors.secure_sums.actors import MESSAGES
from fedactors.secure_sums.messages import MaskedSum

Floats = NDArray[np.floating[Any]]

# --- between the server and the sites ---


@message(
    reveals="how many clients a site has; of own tables the names of the feature columns where their description lists "
    "none, and how the CSV file is written where it says so; a digest of what of the model is not trained"
)
class Introduction:
    """What the server must know before the first round.

    A width of 0: the data's description tells it; `csv` is of `fedactors.data.layouts.horizontal.csv_text`.
    """

    num_clients: int
    width: int
    columns: tuple[str, ...]
    csv: str
    base: str = ""
    """Of the frozen parameters and constants of a user's model, as the site has them."""


@message(reveals="the weight of all clients of all sites")
class TotalWeight:
    """What a site's changes are weighted against under masks: samples, or clients where all count alike."""

    value: float


@message(reveals="the means of the columns (a regression: and targets) over all sites' rows, or nothing before that")
class ColumnMeans:
    """What squares are counted from: a mean of each column that is standardised (S), or nothing (0)."""

    values: Annotated[Floats, Dimensions("columns", or_none=True)]


@message(
    reveals="how many rows a site's clients have, and of each column (a regression: and of the targets) their sum, or "
    "that of differences and squares"
)
class ColumnSums:
    """Rows, then sums of columns, without means (1 + S), or of differences from them and of their squares (1 + 2S)."""

    values: Annotated[Floats, Dimensions("sums of columns")]


@message(reveals="mean and deviation of each column (a regression: and of the targets) over all sites' rows")
class ColumnScale:
    """What columns are brought to mean 0 and deviation 1 by (D each); one that is left alone has 0 and 1."""

    mean: Annotated[tuple[float, ...], Dimensions("numbers of a row")]
    deviation: Annotated[tuple[float, ...], Dimensions("numbers of a row")]
    target: Annotated[tuple[float, ...], Dimensions("mean and deviation")] = (0.0, 1.0)
    """Mean and deviation of a regression's targets."""


@message(reveals="the server's model (SCAFFOLD: and the mean control), and which of a site's clients are wanted")
class TrainOrder:
    """Train from this model in these clients, counted from 0 at each site; parameters (P), control (P or 0).

    Local parameters are not in it.
    """

    round: int
    clients: tuple[int, ...]
    parameters: Annotated[Floats, Dimensions("shared parameters")]
    control: Annotated[Floats, Dimensions("controls")]


@message(reveals="the mean change that a site's clients made to the model, their mean loss, and their total weight")
class Change:
    """Of the clients that answer; change (P), or (0) when none does; control_change, SCAFFOLD's sum of them (P or 0).

    Local parameters are not in it. The weight is their number of samples, or of clients where all count alike.
    """

    num_clients: int
    weight: float
    loss: float
    change: Annotated[Floats, Dimensions("shared parameters", or_none=True)]
    control_change: Annotated[Floats, Dimensions("controls", or_none=True)]


@message(reveals="the server's model, under noise; which of a site's clients are wanted; the clip norm, under noise")
class PrivateOrder:
    """Train from this model, clip and sum (`fedactors.protocols.horizontal.client_dp`); parameters (P)."""

    round: int
    clients: tuple[int, ...]
    parameters: Annotated[Floats, Dimensions("shared parameters")]
    clip_norm: float
    bit_share: float
    """c, the part of the sum's bound that the count of clients within the norm has."""


@message(
    reveals="without noise the sum of the clipped changes of a site's clients, to a server that is trusted to noise it"
)
class ClippedChanges:
    """In units of the clip norm (P + 1)."""

    values: Annotated[NDArray[np.float64], Dimensions("clipped changes")]


@message(
    reveals="what is ordered of an aggregator's sites, without masks of at least two of them, and which clients of "
    "each of them are wanted"
)
class GroupOrder:
    """What an aggregator orders of each of its sites that is named; the order has no clients itself."""

    order: TrainOrder | PrivateOrder
    clients: dict[str, tuple[int, ...]]


@message(
    reveals="the mean change of the clients of at least two sites, their mean loss and total weight, and who answered; "
    "the aggregator vouches for it"
)
class GroupChange:
    """As one site with all these clients would send it; of fewer than two sites with clients that answer: nothing."""

    members: tuple[str, ...]
    change: Change


@message(reveals="the server's model")
class MeasureOrder:
    """Measure this model (P) on the validation rows of a site's clients."""

    parameters: Annotated[Floats, Dimensions("shared parameters")]


@message(
    reveals="how good the model, or each client's own model, is on a site's validation rows, and how many there are"
)
class LocalScores:
    """Metrics by name, of several clients the means over their rows."""

    num_rows: int
    metrics: dict[str, float]


@message(reveals="the server's model, and which of an aggregator's sites are to measure it")
class GroupMeasureOrder:
    """What an aggregator orders of each of these sites."""

    order: MeasureOrder
    sites: tuple[str, ...]


@message(reveals="what each of an aggregator's sites says of the model, or of its clients' own models")
class GroupScores:
    """By site, of those that answered."""

    scores: dict[str, LocalScores]


@message(
    reveals="how good a model of one client's rows alone is on its own validation rows, of a named set on rows that "
    "belong to nobody"
)
class Baselines:
    """Headline metric of each client's own model, by client; none where it has too few rows."""

    scores: dict[str, float]


# --- what the driver orders and learns ---


@message(reveals="nothing about data: which round is to be done")
class RoundOrder:
    """Train, or measure."""

    round: int


@message(reveals="how many clients there are, how many numbers of the model travel, and which parameters stay")
class Federation:
    """What the server found."""

    num_clients: int
    num_parameters: int
    local: tuple[str, ...] = ()
    """Names of the parameters and running statistics that stay at their client."""


@message(reveals="the mean training loss of a round, and how many clients took part")
class Progress:
    """A round of training; the loss is not a number when nobody answered."""

    loss: float
    num_clients: int


@message(reveals="nothing about data: which round a site last took part in")
class LastRound:
    """0: none that it knows of."""

    number: int


@message(reveals="nothing about data: whether a site is lost, or is there again")
class SiteStatus:
    """Its name, and which of both."""

    site: str
    is_there: bool


@message(reveals="of which sites no answer was passed on, and by which aggregators")
class LeftOut:
    """Site to its aggregator."""

    sites: dict[str, str]


@message(reveals="which sites' changes are in a round's model, and which sites were away")
class Attendance:
    """Names of sites."""

    present: tuple[str, ...]
    away: tuple[str, ...]


@message(
    reveals="how good the model is on rows that belong to no client, or on all clients' validation rows together and "
    "each client's, and how many classes it predicts for none of the former"
)
class Scores:
    """Metrics by name."""

    metrics: dict[str, float]
    unpredicted: int = 0
    """Classes that are predicted for no row, of those that some have."""
    clients: dict[str, dict[str, float]] = field(default_factory=dict)
    """Each client's, where they measure on their own rows."""


def sent(config: HorizontalConfig) -> tuple[type, ...]:
    """Return the messages that a run sends."""
    quorum = (LastRound, SiteStatus, Attendance) if config.min_sites is not None else ()
    groups: tuple[type, ...] = ()
    if config.num_aggregators:
        groups = (
            GroupOrder,
            LeftOut,
            *((MaskedSum,) if config.secure_aggregation else (GroupChange, GroupMeasureOrder, GroupScores)),
        )
    if config.is_private:
        summed = MESSAGES if config.secure_aggregation else (ClippedChanges,)
        return (Introduction, PrivateOrder, *summed, *groups, RoundOrder, Federation, Progress, Scores, *quorum)
    parts = (TotalWeight, *MESSAGES, *groups) if config.secure_aggregation else (Change, *groups)
    local = () if config.secure_aggregation else (MeasureOrder, LocalScores)
    scale = (ColumnMeans, ColumnScale, *(() if config.secure_aggregation else (ColumnSums,)))
    if not config.measures_columns:
        scale = ()
    alone = (Baselines,) if config.measures_alone else ()
    return (Introduction, *scale, TrainOrder, *parts, *local, *alone, RoundOrder, Federation, Progress, Scores, *quorum)


def protections(config: HorizontalConfig) -> tuple[Protection, ...]:
    """Return which protection is on."""
    summed = "each site's change is read"
    if config.num_aggregators:
        summed = (
            "each site's change is read by its aggregator, which passes on the mean of at least two of its sites to "
            "the server"
        )
    if config.secure_aggregation:
        summed = "the server reads the sum over all sites only"
    whose = "over all sites only" if config.secure_aggregation else "of each site"
    scaled = (
        f"of tables of your own the server reads the number of rows and sums of columns {whose}; of a regression sums "
        "of targets too"
    )
    noised = "changes leave without noise, and no budget is promised"
    if config.is_private:
        who = "the sites add" if config.secure_aggregation else "the server, which reads changes and is trusted, adds"
        cost = f"{config.num_rounds} rounds cost epsilon {config.epsilon_of(config.num_rounds):.4g}"
        noised = f"{who} it to clipped sums; {cost} at delta {config.delta:g} of a client that is there or not"
    elif config.record_privacy is not None:
        noised = (
            "each client adds it to its steps (DP-SGD), and no loss leaves; each client's account goes by its "
            "number of rows, which is public"
        )
    return (
        Protection(kind="secure sums", settings=("secure_aggregation",), on=config.secure_aggregation, means=summed),
        Protection(
            kind="noise",
            settings=("client_noise_multiplier", "record_noise_multiplier"),
            on=config.is_noised,
            means=noised,
            is_joint=config.is_private and config.secure_aggregation,
        ),
        Protection(
            kind="labels",
            settings=("local_parameters",) if config.local_parameters else (),
            on=True,
            means=f"they stay with their client; changes of the model depend on them{stays(config)}",
        ),
        Protection(
            kind="standardisation",
            settings=("standardisation",),
            on=not config.measures_columns,
            means="none is done: rows are taken as they are given" if not config.measures_columns else scaled,
        ),
    )


def stays(config: HorizontalConfig) -> str:
    """Return what of the clients' models never leaves them, as the end of a sentence."""
    if config.algorithm == "ditto":
        return "; each client's own model (Ditto) stays too"
    if not config.local_parameters:
        return ""
    names = ",".join(config.local_parameters)
    return f"; parameters and running statistics that {names} names stay too, all others travel"


def left_open(config: HorizontalConfig, purpose: str) -> tuple[str, ...]:
    """Return what a coordinator may still do in a run under masks, a sentence each."""
    is_adaptive = config.optimizer in ("adam", "adamw") or (config.optimizer == "auto" and config.algorithm in BY_ROWS)
    is_open = config.secure_aggregation and is_adaptive and not config.is_noised and purpose != "predict"
    return (SIGNS_SHOW,) if is_open else ()


def shapes(config: HorizontalConfig) -> dict[str, dict[str, tuple[int | str, ...]]]:
    """Return the shapes of the array fields; P depends on the model."""
    size = "P less local" if config.local_parameters else "P"
    control = (size,) if config.algorithm == "scaffold" else (0,)
    return {
        "TrainOrder": {"parameters": (size,), "control": control},
        "MeasureOrder": {"parameters": (size,)},
        "Change": {"change": (size,), "control_change": control},
        "PrivateOrder": {"parameters": ("P",)},
        "ClippedChanges": {"values": ("P + 1",)},
    }
