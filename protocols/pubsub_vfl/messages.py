"""Everything that leaves an actor in PubSub-VFL: this file is the privacy review.

Shapes: B rows of a batch, E width of the cut layer, P parameters of a model, N aligned rows.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import Ref
from fedactors.data.alignment.ids import AlignmentAnswer, AlignmentOrder, AlignmentQuestion
from fedactors.inspection import Protection
from fedactors.messages.codec import message
from fedactors.messages.compression import Encoded
from fedactors.messages.fields import Dimensions
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.runs.progress import format_bytes

Floats = NDArray[np.floating[Any]]
Stamp = tuple[int, int]
"""A batch's id and the number of its attempt."""

# --- between the parties --------------------------------------------------------------------------------------------


@message(
    reveals="an embedding of each row of the batch; inversion attacks apply",
    readers="the active party's workers (with local_updates they and their checkpoints keep the last ones); where "
    "payloads are sent, the broker too",
)
class Embedding:
    """A passive party's cut-layer output at a time of the sender's clock; values (B x E)."""

    batch_id: int
    epoch: int
    sequence: int
    time: float
    values: Floats | Encoded


@message(
    reveals="the loss's gradient per row; for classification its sign can tell the label",
    readers="workers of the passive party that it is for (with local_updates they and their checkpoints keep the last "
    "ones); where payloads are sent, the broker too",
)
class Gradient:
    """The gradient with respect to the embedding of that batch and sequence; values (B x E)."""

    batch_id: int
    epoch: int
    sequence: int
    time: float
    values: Floats | Encoded


Payload = Ref | Embedding | Gradient
"""Where an embedding or gradient can be fetched, or the thing itself."""


@message(reveals="what the gradient that it carries reveals; which batch comes next")
class PairRequest:
    """For algorithms of fixed pairs: apply a gradient (None: there is none), then embed a batch (-1: none).

    A gradient of no rows only takes part in the step that a party's workers take together.
    """

    epoch: int
    gradient: Gradient | None
    batch_id: int


@message(reveals="which of the validation and test rows are looked at")
class PartRequest:
    """Names a part of the rows: validation or test."""

    part: str


@message(reveals="an embedding of each row of the part; released like training embeddings")
class PartEmbedding:
    """A passive party's embedding of the validation or test rows; values (rows x E)."""

    part: str
    values: Annotated[Floats, Dimensions("rows of the part", "embedding size")]


# --- workers and the broker -----------------------------------------------------------------------------------------


@message(
    reveals="which batches a worker holds and when; batch ids are positions in a shared random order; "
    "where payloads are sent, what these reveal"
)
class Report:
    """What a worker has done since its last report, and how many more batches it would take.

    `published` has a passive worker's embedding, or an active worker's gradients, one for each passive party; no
    payload says that the batch's payload was gone. `done` are the gradients that a passive worker has applied. Whose
    report it is is known from the connection; a report of another `epoch` than the broker's comes too late.
    """

    published: tuple[tuple[int, int, tuple[Payload, ...]], ...]
    done: tuple[Stamp, ...]
    room: int
    wait: bool
    epoch: int = 0


@message(reveals="which batches other workers hold; where payloads are sent, what these reveal")
class Orders:
    """Batches to embed, payloads to fetch, batches that are done with or abandoned, and whether the epoch is over."""

    assigned: tuple[Stamp, ...]
    payloads: tuple[tuple[int, int, tuple[Payload, ...]], ...]
    dropped: tuple[Stamp, ...]
    finished: bool


@message(reveals="which batches a worker is to embed first; batch ids are positions in a shared random order")
class InitialOrders:
    """The batches that a passive worker begins an epoch with, where payloads are sent: it has not asked for them."""

    epoch: int
    assigned: tuple[Stamp, ...]


# --- within a party -------------------------------------------------------------------------------------------------


@message(reveals="nothing to other parties: a worker's models")
class Parameters:
    """Flat parameters, gradients or changes of a worker's models, one vector (P) each; `weight` in an average.

    `epoch` and `step` name the round of an average; a step of 0 is the average at the end of an epoch.
    """

    epoch: int
    step: int
    weight: float
    vectors: tuple[Floats, ...]


@message(reveals="nothing to other parties: the party's own row order, scale and exchanged labels")
class RowOrder:
    """For each aligned position the party's own row and, where it was announced, its part of the split; both (N).

    Where they were drawn with noise, once for all workers: mean and deviation of the columns (D), and the labels of the
    party's own rows; else these are empty.
    """

    rows: NDArray[np.int64]
    parts: NDArray[np.uint8]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    labels: NDArray[np.int64]


@message(reveals="nothing to other parties: how often its rows were released by one worker")
class RowCounts:
    """Releases of each training row and gradient steps with it (N each), releases of all validation and test rows.

    `interrupted`: the worker was restored, and may have released more.
    """

    embedded: NDArray[np.int64]
    stepped: NDArray[np.int64]
    validation: int
    test: int
    interrupted: bool


# --- the run's driver -----------------------------------------------------------------------------------------------


@message(reveals="how many rows the label party has, can use, and shares with each party and with all")
class Aligned:
    """The end of the alignment: numbers of rows of the label party's.

    For training, shared by all, loaded, left out for what they miss; and by party those that it does not have.
    """

    num_rows: int
    num_shared: int
    num_local: int
    num_rejected: int
    absent: tuple[tuple[str, int], ...]


@message(reveals="nothing: the epoch's number")
class EpochOrder:
    """Train so many epochs that end with this one, counted from 1, or average at its end."""

    epoch: int
    num_epochs: int = 1


@message(reveals="nothing: numbers of the epoch and of pairs")
class PairOrder:
    """Train the share of the pair of this number, counted from 0, of so many epochs that end with this one."""

    epoch: int
    pair: int
    num_pairs: int
    num_epochs: int = 1


@message(reveals="the mean training loss of the rows that one worker trained on, which depends on features and labels")
class EpochLoss:
    """The loss summed over the rows that an active worker trained on, and their number."""

    loss_sum: float
    num_rows: int


@message(reveals="how well the joint model does on validation or test rows; functions of their labels and features")
class Evaluated:
    """Metrics of a task by name, without those that are not defined on these rows."""

    metrics: dict[str, float]
    unpredicted: int
    """Classes with ten rows or more that are predicted for none."""


@message(reveals="whether the epoch was the best so far")
class EpochEnd:
    """The end of an epoch; the best one's parameters are kept."""

    is_best: bool


@message(reveals="nothing: the number of batches of an epoch, and of those in flight")
class BatchCount:
    """Puts that many batches in the broker's queue; `epoch` is what the workers are told.

    `max_in_flight` follows from the rows, which the broker does not know; 0: as the settings have it.
    """

    num_batches: int
    epoch: int = 0
    max_in_flight: int = 0


@message(reveals="how many batches were trained, how often they were assigned anew, and which workers were late")
class EpochCounts:
    """An epoch's batches that were trained, and abandoned; discarded entries, most attempts of one, late workers."""

    batches: int
    abandoned: int
    discarded: int
    max_attempts: int
    stragglers_excluded: tuple[str, ...]


@message(reveals="which worker's process was lost")
class LostWorker:
    """Gives the batches of a worker to others."""

    worker: str


# --- `fedactors plan --measure` ---


@message(reveals="how fast the party's machine trains its models: fitted constants, no data")
class PowerLaw:
    """Seconds (or bytes) as ``scale * B ** exponent``."""

    scale: float
    exponent: float


@message(reveals="the party's cores, memory and fitted constants; nothing of its rows")
class PartyProfile:
    """What a party tells of its machine.

    `phases` are, of a passive party, those before an embedding leaves and, as many, those after its gradient has come.
    """

    role: str
    cores: int
    phases: tuple[PowerLaw, ...]
    memory_base: float
    """Bytes of a worker without a batch (M_0)."""
    memory_per_batch: PowerLaw
    """Bytes more for a batch (rho B^chi)."""
    memory_available: float
    """Bytes that a worker may use."""
    sync_seconds: float
    """Seconds by which each worker lengthens an average of parameters."""
    message_seconds: float = 0.0
    """Processor seconds of a worker for the messages of a batch, but for those that its rows take."""
    message_row_seconds: float = 0.0
    """Likewise for each row of the batch."""
    step_seconds: float = 0.0
    """Seconds of `phases` that are a worker's own step: where the parameter server steps it takes none."""
    server_step_seconds: float = 0.0
    """Seconds of a step at the parameter server."""
    parameter_bytes: float = 0.0
    """Bytes that a worker and the parameter server send one another for a step."""
    local_latency: float = 0.0
    """Seconds of one way between two processes of the party."""
    local_bandwidth: float = math.inf
    """Bytes a second between two processes of the party."""
    broker_seconds: float = 0.0
    """Processor seconds of the broker for a report (the active party's)."""
    broker_row_seconds: float = 0.0
    """Likewise for each row whose embedding or gradient is published."""
    host: str = ""
    """Names the machine: parties that name the same one share its cores, and its memory instead of a link."""


@message(reveals="how fast the party's machine trains its models, its cores and memory, and how many rows it has")
class Machine:
    """What a party measured of its machine, and its rows."""

    profile: PartyProfile
    num_rows: int


@message(reveals="nothing: zeros")
class Probe:
    """A message of some length."""

    values: NDArray[np.uint8]


@message(reveals="the name of another party")
class Neighbour:
    """The actor to which the link is measured."""

    name: str


@message(reveals="nothing: how much to try")
class TrialOrder:
    """Batches of so many rows to exchange over the broker, by models that are thrown away."""

    num_batches: int
    batch_size: int
    epoch: int


@message(reveals="how fast the party's machine works; no data")
class Spent:
    """Processor seconds of the thread that works and talks in a trial, and the reports that it took.

    `process` tells processes apart.
    """

    processor_seconds: float
    num_reports: int
    process: int


@message(reveals="how fast the link between two parties is")
class Link:
    """Seconds of one way, and bytes a second of it."""

    latency: float
    bandwidth: float


def sent(config: PubSubVflConfig) -> tuple[type, ...]:
    """Return the messages that a run with this configuration can send."""
    alignment = (AlignmentQuestion, AlignmentAnswer, AlignmentOrder, Aligned)
    always = (*alignment, PartRequest, PartEmbedding, Evaluated, EpochEnd, EpochLoss)
    several = config.num_active_workers > 1 or config.num_passive_workers > 1
    within = (RowOrder, RowCounts, *((Parameters,) if config.uses_servers else ())) if several else ()
    if config.is_paired:
        orders = (EpochOrder,) if several and (config.averages or config.pushes) else ()
        return (*always, *within, *orders, PairOrder, PairRequest, Embedding, Gradient)
    losses = (LostWorker,) if config.on_party_loss == "restart" else ()
    first = (InitialOrders,) if config.sends_payloads else ()
    broker = (BatchCount, EpochCounts, Report, Orders, *first, EpochOrder, *losses)
    return (*always, *within, *broker, Embedding, Gradient)


def protections(config: PubSubVflConfig) -> tuple[Protection, ...]:
    """Return which protection is on."""
    covers = config.bottom_training != "plain" and config.standardisation != "measured"
    is_noised = math.isfinite(config.embedding_mu) or math.isfinite(config.privacy_mu)
    noise = "embeddings leave as they are"
    if is_noised:
        noise = "embeddings are clipped and noised" + (
            "" if covers else "; bottom or scale read the rows without noise"
        )
    is_flipped = math.isfinite(config.label_epsilon)
    labels = "labels are exchanged at random once, before anything is computed from them"
    scale = {
        "measured": "the scale of columns is measured on the training rows, without noise",
        "private": "the scale of columns is measured with noise",
        "none": "none is done: columns must be on a public scale already",
    }[config.standardisation]
    return (
        Protection(kind="secure sums", on=False, means="each passive party's embeddings are read by the active party"),
        Protection(
            kind="noise",
            settings=("embedding_mu", "privacy_mu", "bottom_training", "gradient_mu"),
            on=is_noised,
            means=noise,
        ),
        Protection(
            kind="labels",
            settings=("label_epsilon",),
            on=is_flipped,
            means=labels if is_flipped else "labels stay; gradients at the cut depend on them",
        ),
        Protection(
            kind="standardisation",
            settings=("standardisation", "standardisation_mu"),
            on=config.standardisation != "measured",
            means=scale,
        ),
    )


def bounds(config: PubSubVflConfig) -> dict[str, str]:
    """Return how often what leaves without a call may leave a party, which counts it before it is drawn."""
    most = "once" if config.is_paired else f"at most {config.max_attempts} times"
    times = f"each batch {most} in each of {config.most_epochs} epochs"
    size = format_bytes(8 * config.most_rows * config.embedding_size)
    workers = {"Embedding": config.num_passive_workers, "Gradient": config.num_active_workers}
    return {
        name: f"{times}{f', by each of {number} workers' if number > 1 else ''}, {size} each"
        for name, number in workers.items()
    }


def shapes(config: PubSubVflConfig) -> dict[str, dict[str, object]]:
    """Return the shapes of the arrays in each message, for `fedactors inspect`."""
    batch: tuple[int, ...] = (config.most_rows, config.embedding_size)
    return {
        "Embedding": {"values": batch},
        "Gradient": {"values": batch},
        "PairRequest": {"gradient": f"{batch[0]} x {batch[1]}, or none"},
        "PartEmbedding": {"values": f"rows of the part x {config.embedding_size}"},
        "Parameters": {"vectors": "one vector per model, all its parameters"},
        "RowOrder": {
            "parts": "aligned rows, or none",
            "rows": "aligned rows",
            "mean": "columns",
            "deviation": "columns",
            "labels": "own rows",
        },
        "RowCounts": {"embedded": "training rows", "stepped": "training rows"},
    }
