"""Configuration of PubSub-VFL and its baselines."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedactors.config import Device, NamedCode, OnlyWith, config
from fedactors.learning.optimizers import StepSettings

Positive = Annotated[int, Field(ge=1)]
ByRows = Annotated[int, Field(ge=0)]
Width = Annotated[int, Field(ge=1, le=16384)]
Algorithm = Literal["pubsub-vfl", "vfl", "vfl-ps", "avfl", "avfl-ps"]
BottomTraining = Literal["plain", "frozen", "private"]
Standardisation = Literal["measured", "private", "none"]
Schedule = Literal["growing", "decreasing", "every", "never"]
MOST_EPOCHS, MOST_ROWS = 60, 256
"""The most epochs, and rows a batch, that follow from the number of rows."""
LEAST_IN_FLIGHT, MOST_IN_FLIGHT = 4, 24
"""Batches in flight that follow from the number of rows."""
PRIVATE_EPOCHS = 10
"""Epochs under a budget, which each of them divides."""


def rows_per_batch(num_rows: int) -> int:
    """Return a 16th of the rows as a power of two between 16 and 256."""
    return int(min(MOST_ROWS, max(16, 2 ** round(math.log2(max(num_rows, 1) / 16)))))


def enough_epochs(num_rows: int, batch_size: int) -> int:
    """Return epochs of 800 steps together, of large tables up to 4,000, and between 10 and 60."""
    steps = min(4000, max(800, num_rows // 3))
    return int(min(MOST_EPOCHS, max(10, round(steps / math.ceil(max(num_rows, 1) / batch_size)))))


def enough_in_flight(num_rows: int, batch_size: int, num_workers: int) -> int:
    """Return a quarter of an epoch's batches, at least 4 and two a worker, at most 24.

    With more of a small epoch in flight gradients return to models that have moved on.
    """
    return min(MOST_IN_FLIGHT, max(LEAST_IN_FLIGHT, 2 * num_workers, math.ceil(num_rows / batch_size / 4)))


def enough_decay(num_rows: int) -> float:
    """Return the decay of the non-linear weights: the fewer rows, the nearer to a linear model."""
    return min(10.0, 3000.0 / max(num_rows, 1))


@config
class PubSubVflConfig(StepSettings):
    """Settings of a run; batch size, epochs, decay and window follow from the number of rows unless they are given."""

    unlimited: ClassVar = ("patience", "quantization_bits")
    """Settings of which 0 stands for no limit: no rule that bounds them admits it."""
    by_rows: ClassVar = ("num_epochs", "batch_size", "epochs_per_round", "max_in_flight")
    """Settings of which 0 stands for what follows from the rows."""

    sections: ClassVar = {
        "algorithm": "Method",
        "num_parties": "Data",
        "schedule": "Training",
        "num_epochs": "Training",
        "model": "Models",
        "device": "Workers",
        "embedding_buffer": "Channels",
        "sync_interval": "Averaging",
        "stale_gradients": "Channels",
        "push_every": "Averaging",
        "privacy_mu": "Privacy",
        "test_fraction": "Data",
        "keep": "Training",
        "patience": "Training",
        "local_baseline": "Results",
        "on_party_loss": "Lost parties",
    }
    only_with: ClassVar[OnlyWith] = {
        **{
            name: {"algorithm": ("pubsub-vfl",)}
            for name in (
                "gradient_buffer",
                "max_in_flight",
                "deadline",
                "exclude_stragglers",
                "max_attempts",
                "sync_unit",
                "stale_gradients",
                "prefetch",
                "transfer",
                "report_interval",
            )
        },
        "embedding_buffer": {"algorithm": ("pubsub-vfl", "avfl", "avfl-ps")},
        "sync_interval": {"algorithm": ("pubsub-vfl", "avfl-ps")},
        "sync_schedule": {"algorithm": ("pubsub-vfl", "avfl-ps")},
        "push_every": {"algorithm": ("avfl-ps",)},
        "local_updates": {"algorithm": ("pubsub-vfl",)},
        "cached_batches": {"local_updates": None},
        "min_cosine_similarity": {"local_updates": None},
        "server_window": {"optimizer_at": ("server",)},
        "model": {"bottom_model": ("",)},
        "nonlinear_decay": {"model": ("skip",)},
        "num_layers": {"bottom_model": ("",)},
        "clip_norm": {"privacy_mu": None, "embedding_mu": None},
        "bottom_mu": {"bottom_training": ("private",)},
        "bottom_clip_norm": {"bottom_training": ("private",)},
        "standardisation_mu": {"standardisation": ("private",)},
        "gradient_clip_norm": {"gradient_mu": None},
    }

    algorithm: Algorithm = "pubsub-vfl"
    """``pubsub-vfl``, or a baseline over fixed pairs of workers: ``vfl`` (synchronous, one worker each), ``vfl-ps``
    (synchronous, gradients averaged at parameter servers), ``avfl`` (one pair, a window of batches in flight),
    ``avfl-ps`` (pairs with a window each, asynchronous push and pull)."""
    num_parties: Annotated[int, Field(ge=2, le=10)] = 2
    """Number of parties, including the active one; with your own data the file decides."""
    num_epochs: ByRows = 0
    """Passes over the training rows. 0 follows the number of rows: 800 to 4,000 steps in 10 to 60 epochs, or 10 epochs
    with a privacy budget."""
    batch_size: ByRows = 0
    """Rows per batch (B). 0 follows the number of rows: a 16th of them, between 16 and 256, or 256 with a privacy
    budget."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """Optimiser of every model."""
    learning_rate: float = Field(default=0.003, gt=0, allow_inf_nan=False)
    """Step size of every model."""
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    """Learning-rate schedule over epochs: constant, half a cosine to 0, or steps."""
    keep: Literal["last", "best"] = "last"
    """Model to keep: that of the ``last`` epoch, or of the ``best`` one by the validation rows. `patience` and `target`
    always keep the best one."""
    model: Literal["skip", "mlp", "resnet"] = "skip"
    """Models: ``skip`` (bottoms and top are linear plus a small MLP that starts at 0), ``mlp`` (the paper's small ones,
    with num_layers=10) or ``resnet`` (its large ones, residual MLPs)."""
    nonlinear_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of the non-linear weights of a ``skip`` model, for a step of size 1 of a worker's optimiser. `none`
    follows the number of rows: 3000 / rows, at most 10."""
    bottom_model: NamedCode = ""
    """Your own bottom models: ``package.module:function``, called with (columns,) and `embedding_size`."""
    top_model: NamedCode = ""
    """Your own top model: ``package.module:function``, called with (parties x `embedding_size`,) and the number of
    outputs."""
    num_layers: Annotated[int, Field(ge=1, le=1000)] = 2
    """Linear layers of an ``mlp`` bottom and of the MLP in a ``skip`` one (at least 2), or residual blocks of a
    ``resnet`` one."""
    hidden_size: Width = 64
    """Hidden width of bottom and top models."""
    embedding_size: Width = 64
    """Width of the cut layer (d)."""
    float64: bool = False
    """Use double precision for models and messages."""
    device: Device = "cpu"
    """Device of the workers: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` (a GPU if available)."""
    num_gpus: Annotated[float, Field(ge=0, le=1024)] = 0.0
    """Fraction of a GPU that each worker requests from Ray."""
    num_active_workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Workers of the active party (w_a)."""
    num_passive_workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Workers of each passive party (w_p)."""
    cpus_per_worker: Annotated[float, Field(ge=0, le=1024)] = 0.1
    """Cores that each worker reserves on its host. In the simulated runtime a worker computes on this many, at least
    one."""
    embedding_buffer: Positive = 5
    """Capacity of an embedding topic (p); for ``avfl`` and ``avfl-ps`` the window of batches in flight, at most a
    pair's epoch."""
    gradient_buffer: Positive = 5
    """Capacity of a gradient topic (q)."""
    max_in_flight: ByRows = 0
    """Maximum number of batches per passive party that are published or assigned and not yet returned; bounds staleness
    and memory. With ``transfer=pull`` a batch has returned when its gradient is acknowledged, with ``push`` when its
    gradient leaves. 0: by the number of rows: a quarter of an epoch's batches, at least 4 and two a worker, at most
    24."""
    deadline: Annotated[float, Field(ge=1e-6, allow_inf_nan=True)] = 10.0
    """Seconds without progress after which a batch is abandoned and assigned again (T_ddl); ``inf`` disables it."""
    exclude_stragglers: bool = True
    """Exclude workers that miss a deadline from the rest of the epoch."""
    max_attempts: Positive = 20
    """Assignments of one batch after which the run stops and names it."""
    sync_interval: Positive = 5
    """Epochs between parameter averages that the schedule approaches (Delta T_0)."""
    sync_schedule: Schedule = "growing"
    """Schedule of parameter averages: ``growing`` (the paper's formula), ``decreasing`` (its text), ``every`` epoch, or
    ``never``."""
    sync_unit: Literal["epoch", "batch"] = "epoch"
    """Unit of the schedule: ``epoch``, or each worker's ``batch`` (Algorithm 1's loop taken literally). With ``batch``
    workers average while they train, and all of them after each epoch."""
    stale_gradients: Literal["drop", "apply"] = "drop"
    """Gradient of a batch that was assigned again meanwhile: ``drop`` it, or ``apply`` it to an embedding recomputed at
    the current parameters."""
    prefetch: Positive = 6
    """Batches that a worker holds beyond the current one; more of them hide a longer latency. With ``transfer=push`` an
    active worker holds one, and leaves the others to its siblings."""
    transfer: Literal["pull", "push"] = "push"
    """Transfer of embeddings and gradients. ``pull``: the receiver fetches them from their owner, past the broker.
    ``push``: they travel through the broker with reports and orders, which takes half as many messages in a row; run
    the broker at the active party. Between sites the default is ``pull``."""
    quantization_bits: Literal[0, 8, 16] = 0
    """Bits per value of the embeddings and gradients sent in training, rounded at random with an exact mean (every
    algorithm); 0 sends them unrounded."""
    local_updates: Annotated[int, Field(ge=0, le=1000)] = 0
    """Cached local updates (R of CELU-VFL): steps that a worker takes again on each cached batch while it would wait
    for others; 0 disables them."""
    cached_batches: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Batches whose embeddings and gradients a worker caches for local updates (W): 2 B d values each, at the active
    party times the number of passive parties. No batch is used twice within this many local updates."""
    min_cosine_similarity: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Local updates: weigh a row by the cosine between its current and its cached embedding (at the active party:
    gradient), and ignore it below this value."""
    epochs_per_round: ByRows = 0
    """Epochs trained without a pause (every algorithm); models are then averaged if due, evaluated and saved. 0: a
    tenth of all epochs, at most 10, and 1 with `patience` or `target`."""
    report_interval: Annotated[float, Field(ge=0)] = 0.0
    """Seconds for which a busy worker collects its reports to the broker into one."""
    push_every: Annotated[int, Field(ge=0)] = 1
    """``avfl-ps``: batches between a worker's exchanges with its parameter server; 0 averages by `sync_schedule`, as in
    ``pubsub-vfl``."""
    optimizer_at: Literal["workers", "server"] = "workers"
    """Optimiser of a party with several workers (``pubsub-vfl`` and ``avfl-ps``): one per worker, whose replicas are
    merged (``workers``), or one at the party's parameter server for all gradients as they arrive (``server``)."""
    server_window: Annotated[int, Field(ge=0)] = 1
    """With ``optimizer_at=server``: gradients of a worker that may be in flight before it waits."""
    privacy_mu: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    """Nominal Gaussian-DP budget of the embeddings, counted as in the paper (mu, Eq. 17); ``inf`` sets no budget."""
    embedding_mu: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    """Gaussian-DP budget of a row's embeddings over all epochs; ``inf`` sets no budget. Without this and `privacy_mu`,
    embeddings are neither clipped nor noised."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """With noise: clip each row's embedding to this L2 norm (c)."""
    bottom_training: BottomTraining = "plain"
    """Training of the passive parties' bottom models: ``plain`` (later embeddings depend on every row), ``frozen``
    (none: each row is embedded and noised once), or ``private`` (clipped, noised gradients)."""
    bottom_mu: Annotated[float, Field(gt=0)] = 1.0
    """With ``bottom_training=private``: Gaussian-DP budget of the bottom model's gradients over all epochs."""
    bottom_clip_norm: Annotated[float, Field(gt=0)] = 0.1
    """With ``bottom_training=private``: clip each row's gradient of the bottom model to this L2 norm."""
    standardisation: Standardisation = "measured"
    """Scale of columns: ``measured`` on the training rows, ``private`` (measured with noise), or ``none`` (unchanged:
    bring columns to a public scale before)."""
    standardisation_mu: Annotated[float, Field(gt=0)] = 0.5
    """Gaussian-DP budget of the ``private`` scale."""
    label_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    """Epsilon of each training and validation label under randomised response (classification only): labels are
    replaced at random once, before any computation; ``inf`` keeps them."""
    gradient_mu: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    """Rigorous Gaussian-DP budget of the gradients sent to passive parties; ``inf`` adds no noise."""
    gradient_clip_norm: Annotated[float, Field(gt=0)] = 0.01
    """With a finite `gradient_mu`: clip each row's gradient to this L2 norm."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Delta at which budgets are converted to epsilon."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Fraction of the aligned rows held out for the test."""
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Fraction of the other rows held out to choose the best epoch."""
    alignment: Literal["already-aligned", "hash", "psi"] = "already-aligned"
    """Alignment of row ids for named data; with your own data the file decides."""
    min_aligned_rows: Positive = 10
    """Minimum number of aligned rows, and of rows to train on; a passive party refuses fewer."""
    feature_split: tuple[Positive, ...] = ()
    """Columns per party, the active one first; empty splits evenly."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Early stopping: epochs without a better ``validation/auc`` (several classes: ``validation/accuracy``, regression:
    ``validation/rmse``); 0 disables it."""
    target: float | None = None
    """Stop when the same metric reaches this value; `none` disables it."""

    local_baseline: bool = True
    """Also train a model on the label party's own columns, to report what the others' columns add. No message is
    involved, and only its test metrics are reported."""

    on_party_loss: Literal["stop", "restart"] = "restart"
    """On a lost worker: ``stop`` ends the run, ``restart`` starts the worker again. A lost broker or parameter server,
    or a worker of a fixed pair (every ``algorithm`` except ``pubsub-vfl``), always stops the run."""

    def __post_init__(self) -> None:
        if self.feature_split and len(self.feature_split) != self.num_parties:
            raise ValueError(
                f"feature_split: {self.feature_split} is not allowed: "
                f"it must have num_parties={self.num_parties} entries"
            )
        if math.isfinite(self.privacy_mu) and math.isfinite(self.embedding_mu):
            raise ValueError(
                f"embedding_mu: {self.embedding_mu} is not allowed beside privacy_mu={self.privacy_mu}: "
                "the noise of embeddings follows from one of them"
            )
        if self.optimizer_at == "server" and self.algorithm not in ("pubsub-vfl", "avfl-ps"):
            raise ValueError(
                f"optimizer_at: 'server' is not allowed with algorithm {self.algorithm!r}: pubsub-vfl, avfl-ps"
            )
        if self.local_updates and self.optimizer_at == "server":
            raise ValueError(
                f"local_updates: {self.local_updates} is not allowed with optimizer_at='server': a worker's own steps "
                "would be lost when the server's parameters come"
            )
        if self.local_updates and self.bottom_training != "plain":
            raise ValueError(
                f"local_updates: {self.local_updates} is not allowed with bottom_training={self.bottom_training!r}: "
                "it must be plain, since such a bottom takes no step without a budget, or none at all"
            )
        workers = (self.num_active_workers, self.num_passive_workers)
        if self.algorithm in ("vfl", "avfl") and workers != (1, 1):
            raise ValueError(
                f"algorithm: {self.algorithm!r} has one worker per party: num_active_workers and num_passive_workers "
                f"are {workers[0]} and {workers[1]}, they must be 1"
            )
        if self.algorithm in ("vfl-ps", "avfl-ps") and workers[0] != workers[1]:
            raise ValueError(
                f"algorithm: {self.algorithm!r} pairs workers: num_active_workers and num_passive_workers are "
                f"{workers[0]} and {workers[1]}, they must be equal"
            )

    def at(self, num_rows: int) -> PubSubVflConfig:
        """Return the settings with those that follow from the number of training rows."""
        given = (self.num_epochs, self.batch_size, self.epochs_per_round, self.max_in_flight)
        if all(given) and self.nonlinear_decay is not None:
            return self
        size = self.batch_size or (MOST_ROWS if self.is_private else rows_per_batch(num_rows))
        epochs = self.num_epochs or (PRIVATE_EPOCHS if self.is_private else enough_epochs(num_rows, size))
        decay = enough_decay(num_rows) if self.nonlinear_decay is None else self.nonlinear_decay
        every = self.epochs_per_round or (1 if self.patience or self.target is not None else min(10, -(-epochs // 10)))
        window = self.max_in_flight or enough_in_flight(num_rows, size, self.num_passive_workers)
        return replace(
            self,
            batch_size=size,
            num_epochs=epochs,
            epochs_per_round=every,
            nonlinear_decay=decay,
            max_in_flight=window,
        )

    @property
    def is_private(self) -> bool:
        """Whether each epoch takes from a budget."""
        budgets = (self.privacy_mu, self.embedding_mu, self.gradient_mu)
        return any(map(math.isfinite, budgets)) or self.bottom_training == "private"

    @property
    def keeps_best(self) -> bool:
        """Whether the model of the best epoch is kept, and not that of the last."""
        return self.keep == "best" or self.patience > 0 or self.target is not None

    @property
    def most_epochs(self) -> int:
        """Epochs at most, where the number of rows is not known yet."""
        return self.num_epochs or (PRIVATE_EPOCHS if self.is_private else MOST_EPOCHS)

    @property
    def most_rows(self) -> int:
        """Rows per batch at most, where the number of rows is not known yet."""
        return self.batch_size or MOST_ROWS

    @property
    def num_evaluations(self) -> int:
        """How often all rows of a part are embedded: after each turn of epochs, and once for the test."""
        return -(-self.most_epochs // min(self.epochs_per_round or 1, self.most_epochs)) + 1

    @property
    def is_paired(self) -> bool:
        """Whether workers are joined in fixed pairs, without a broker."""
        return self.algorithm != "pubsub-vfl"

    @property
    def is_asynchronous(self) -> bool:
        """Whether a pair has several batches in flight."""
        return self.algorithm in ("avfl", "avfl-ps")

    @property
    def steps_together(self) -> bool:
        """Whether all workers of a party take each step together."""
        return self.algorithm == "vfl-ps"

    @property
    def sends_payloads(self) -> bool:
        """Whether embeddings and gradients travel with reports and orders."""
        return self.transfer == "push"

    @property
    def averages(self) -> bool:
        """Whether the workers of a party, if it has several, become one model at the end of certain epochs."""
        return self.algorithm == "pubsub-vfl" or (self.algorithm == "avfl-ps" and not self.pushes)

    @property
    def steps_at_server(self) -> bool:
        """Whether the workers of a party, if it has several, let their parameter server step."""
        return self.optimizer_at == "server"

    @property
    def mixes(self) -> bool:
        """Whether the parties' workers average while an epoch is under way."""
        return self.algorithm == "pubsub-vfl" and self.sync_unit == "batch" and not self.steps_at_server

    @property
    def pushes(self) -> bool:
        """Whether workers push changes to their parameter server while an epoch is under way."""
        return self.algorithm == "avfl-ps" and self.push_every > 0 and not self.steps_at_server

    @property
    def uses_servers(self) -> bool:
        """Whether the workers of a party, if it has several, have a parameter server."""
        return self.averages or self.pushes or self.steps_together
