"""Everything that leaves a party in NebulaFL and its baselines: this file is the privacy review.

Shapes: P parameters of a model, C containers of a center, N proxy samples, K classes, G clusters.

What a trained model reveals of the rows behind it (membership, inversion) holds for every message that carries one.
No message carries a row or its features.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedactors.inspection import Protection
from fedactors.learning.optimizers import SIGNS_SHOW
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.protocols.nebulafl.config import BY_CENTER, NebulaFLConfig
from fedactors.secure_sums.actors import MESSAGES

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]

# --- models between centers ---


@message(reveals="a mean over models trained in many containers of the center")
class MasterModel:
    """A center's master and its mean version; parameters (P)."""

    center: str
    rotation: int
    version: float
    parameters: Annotated[Floats, Dimensions("parameters")]


@message(reveals="a mean over the masters or trained models of all centers")
class SharedModel:
    """What the exchange made; parameters (P)."""

    rotation: int
    version: float
    parameters: Annotated[Floats, Dimensions("parameters")]


# --- the baselines: one model per container each way, or one per center ---


@message(reveals="how many feature columns the center's containers hold, and the names of own tables' columns")
class Columns:
    """Asked only of tables, where nothing but the rows tells the shape of a sample."""

    count: int
    names: tuple[str, ...]


@message(reveals="how many samples each container holds, and how long it trains")
class CenterFacts:
    """Samples and predicted seconds of each container (C)."""

    center: str
    sizes: Annotated[Integers, Dimensions("containers")]
    seconds: Annotated[Floats, Dimensions("containers")]


@message(reveals="the exchange's model, and that this container is wanted")
class TrainingOrder:
    """Train this model in this container; parameters (P)."""

    task: int
    container: int
    gap: float
    rate_factor: float
    parameters: Annotated[Floats, Dimensions("parameters")]


@message(reveals="that a training is no longer wanted")
class Withdrawal:
    """Break these tasks off."""

    tasks: tuple[int, ...]


@message(reveals="one container's trained model, its losses and its time")
class TrainingResult:
    """A container's trained model; parameters (P)."""

    task: int
    center: str
    num_samples: int
    loss_rms: float
    seconds: float
    parameters: Annotated[Floats, Dimensions("parameters")]


@message(reveals="that a container is gone or back")
class ContainerEvent:
    """A container of a center was lost (and the task it trained, or -1) or is back."""

    center: str
    container: int
    present: bool
    task: int


@message(reveals="the exchange's model")
class RoundOrder:
    """Train this model in so many containers of your choice; parameters (P).

    The rate is the schedule's at the exchange, for all centers alike: what a mean follows from is no center's clock.
    """

    round: int
    num_containers: int
    parameters: Annotated[Floats, Dimensions("parameters")]
    rate_factor: float = 1.0


@message(reveals="a mean over models trained in the center's containers")
class RoundResult:
    """A center's share of a round; parameters (P); num_samples 0 when all its containers were lost."""

    center: str
    round: int
    num_samples: int
    num_models: int
    parameters: Annotated[Floats, Dimensions("parameters")]


@message(reveals="that a center's share of a round is ready to be summed under masks")
class RoundDone:
    """A center's answer with `secure_aggregation`: the model itself leaves as `Masked`."""

    center: str
    round: int


@message(reveals="what all containers of all centers weigh together")
class TotalWeight:
    """What a center's model is weighted against under masks: samples, or containers where all count alike."""

    value: float


@message(reveals="mean predictions of clusters of containers on public samples, and their label counts")
class ClusterLogits:
    """A center's share of a FedHKT round: logits (G x N x K) and label counts (G x K)."""

    center: str
    round: int
    logits: Annotated[Floats, Dimensions("clusters", "public rows", "classes")]
    counts: Annotated[Integers, Dimensions("clusters", "classes")]


# --- between a center and containers that are processes of their own ---


@message(reveals="how many samples a container holds, and of an own table its columns and what fills their gaps")
class ContainerFacts:
    """Samples, the shape of one, and how rows are read (`fedactors.data.layouts.horizontal.Reading.text`)."""

    num_samples: int
    shape: tuple[int, ...]
    reading: str


@message(reveals="the center's model, and that this container is wanted")
class ContainerOrder:
    """Train this model, the `turn`-th in this container, for `seconds` of its hardware; parameters (P)."""

    number: int
    turn: int
    seconds: float
    rate_factor: float
    parameters: Annotated[Floats, Dimensions("parameters")]


@message(reveals="one container's trained model and its losses, to its own center")
class ContainerResult:
    """What came of the center's training with this number; parameters (P)."""

    number: int
    num_samples: int
    loss_rms: float
    parameters: Annotated[Floats, Dimensions("parameters")]


# --- what the auditor is told of hardware ---


@message(reveals="which container trains on which hardware at what price; no data")
class LeaseOpened:
    """A unit was let, for the training with this number of its center's."""

    center: str
    number: int
    unit: str
    container: str
    start: float
    price: float


@message(reveals="when a training ended; no data")
class LeaseClosed:
    """A training's unit came back; `useful` is False when it was given up."""

    center: str
    number: int
    end: float
    useful: bool


# --- what the driver orders and learns ---


@message(reveals="when the run's first second began, and how long a local training took at the slowest center")
class RunStart:
    """Begin; `time` in seconds of the runtime's clock, and those of a training: 0 where no time follows them."""

    time: float
    training_seconds: float


@message(reveals="how long the center's containers train")
class TrainingTime:
    """Seconds of a local training, tried before the run begins."""

    center: str
    seconds: float


@message(reveals="which data centers are there")
class PresentCenters:
    """Names, in the order of the catalogue."""

    centers: tuple[str, ...]


@message(reveals="that a data center is gone or back")
class CenterNews:
    """A center was lost, or is back, at this time."""

    center: str
    present: bool
    time: float


@message(reveals="whether a method starts anything more")
class Progress:
    """What the exchange of a baseline says."""

    finished: bool


@message(reveals="whose models are measured")
class MeasureOrder:
    """Measure the plain mean of the models that these actors hold."""

    holders: tuple[str, ...]


@message(reveals="how good the model is on rows that belong to no container")
class Measurement:
    """What the auditor measured: metrics by name."""

    metrics: dict[str, float]


@message(reveals="for which time an account is asked")
class AccountOrder:
    """State the account at `time`; utilisation is over `duration` seconds."""

    time: float
    duration: float


@message(reveals="what a center's hardware cost and how busy it was; no data")
class CenterBill:
    """Dollars of the rentals (those still open as if they ended now), hours let, and their share of the unit hours."""

    center: str
    rent: float
    busy_hours: float
    utilisation: float


@message(reveals="what hardware cost so far, and how many trainings ended; no data")
class Account:
    """Dollars of all rentals (those still open as if they ended now), trainings that counted and that were given up."""

    rent: float
    trainings: int
    given_up: int
    centers: tuple[CenterBill, ...]


@message(reveals="counts of a center's trainings and versions")
class CenterReport:
    """What a center did so far, and how much of it its process found done in the state that it began with."""

    center: str
    trainings: int
    restored: int
    versions: tuple[int, ...]


def sent(config: NebulaFLConfig) -> tuple[type, ...]:
    """Return the messages that a run with this configuration can send."""
    found: list[type] = [
        LeaseOpened, LeaseClosed, RunStart, MeasureOrder, Measurement, AccountOrder, Account, CenterBill, CenterReport,
    ]  # fmt: skip
    survives = config.on_party_loss != "stop"
    if config.follows_trainings:
        found.append(TrainingTime)
    if survives:
        found += [PresentCenters, CenterNews]
    if config.container_processes:
        found += [ContainerFacts, ContainerOrder, ContainerResult, *([ContainerEvent] if survives else [])]
    if config.algorithm == "nebulafl":
        return (*found, MasterModel, *([SharedModel] if config.ablation == "aggregation" else []))
    found += [SharedModel, Progress, Columns]
    if config.algorithm in BY_CENTER:
        answer = ClusterLogits if config.algorithm == "fedhkt" else RoundResult
        return (*found, RoundOrder, *((RoundDone, TotalWeight, *MESSAGES) if config.secure_aggregation else (answer,)))
    found += [CenterFacts, TrainingOrder, TrainingResult]
    if (config.outages or config.max_epsilon is not None) and ContainerEvent not in found:
        found.append(ContainerEvent)
    if config.algorithm == "fedsa" or config.on_party_loss == "restart":
        found.append(Withdrawal)
    return tuple(found)


def protections(config: NebulaFLConfig) -> tuple[Protection, ...]:
    """Return which protection is on."""
    summed = "the exchange reads the weighted mean of the centers' models only"
    alone = "each center's model crosses by itself, to its partner, the exchange and the auditor"
    counted = config.algorithm == "fedhkt"
    labels = "label counts of clusters leave" if counted else "they stay in their container; models depend on them"
    return (
        Protection(
            kind="secure sums",
            settings=("secure_aggregation",),
            on=config.secure_aggregation,
            means=summed if config.secure_aggregation else alone,
        ),
        Protection(
            kind="noise",
            settings=("client_noise_multiplier", "record_noise_multiplier"),
            on=config.is_noised,
            means=noised(config),
        ),
        Protection(kind="labels", settings=("algorithm",), on=not counted, means=labels),
        Protection(kind="standardisation", on=True, means="none is done: rows are taken as they are given"),
    )


def noised(config: NebulaFLConfig) -> str:
    """Return what noise hides."""
    if not config.is_noised:
        return "models leave without noise, and no budget is promised"
    who = "what a training changes" if config.record_clip_norm is None else "the steps of each training (DP-SGD)"
    most = "as often as the run lasts" if config.max_epsilon is None else f"up to epsilon {config.max_epsilon:g} each"
    return (
        f"{who} is hidden where the container is, and no loss leaves; containers train {most}, at delta "
        f"{config.delta:g}; numbers of rows are public"
    )


def bounds(config: NebulaFLConfig) -> dict[str, str]:
    """Return how often what answers an order later leaves a center."""
    masters = f"at most {config.num_rotations:,} times to another center (num_rotations)"
    return {
        "MasterModel": masters,
        "TrainingResult": "one for each TrainingOrder",
        "RoundResult": "one for each RoundOrder",
        "RoundDone": "one for each RoundOrder",
        "ClusterLogits": "one for each RoundOrder",
    }


def left_open(config: NebulaFLConfig, purpose: str) -> tuple[str, ...]:
    """Return what a coordinator may still do in a run under masks, a sentence each."""
    is_open = config.secure_aggregation and config.optimizer != "sgd" and not config.is_noised and purpose != "predict"
    return (SIGNS_SHOW,) if is_open else ()


def shapes(config: NebulaFLConfig) -> dict[str, dict[str, tuple[int | str, ...]]]:
    """Return the shapes of the array fields; P, C, G and K depend on the data."""
    models = (MasterModel, SharedModel, TrainingOrder, TrainingResult, RoundOrder, RoundResult)
    found: dict[str, dict[str, tuple[int | str, ...]]] = {
        cls.__name__: {"parameters": ("P",)} for cls in (*models, ContainerOrder, ContainerResult)
    }
    found["CenterFacts"] = {"sizes": ("C",), "seconds": ("C",)}
    found["ClusterLogits"] = {"logits": ("G", config.num_proxy, "K"), "counts": ("G", "K")}
    return found
