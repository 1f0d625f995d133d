"""The configuration of the plain horizontal methods."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedactors.config import Device, NamedCode, OnlyWith, UserCode, config, is_code
from fedactors.learning.metrics import Task
from fedactors.learning.optimizers import OptimizerSpec, Schedule, StepSettings
from fedactors.privacy.accounting import ClientPrivacy, RecordPrivacy
from fedactors.secure_sums.primitives import threshold_of

Algorithm = Literal["fedavg", "fedprox", "scaffold", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedrep", "ditto"]
ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")
AGGREGATIONS = ("mean", "median", "trimmed-mean", "multi-krum")
BY_ROWS = ("fedavg", "fedprox")
"""Methods whose local steps on tables follow from the rows; the others' papers take plain steps."""
DEFAULT_CLIENTS = 10
PLAIN_ROWS, PLAIN_PASSES = 32, 1
"""Rows of a step and passes where they do not follow from the rows."""
LEAST_STEPS, MOST_ROWS = 50, 256
"""Local steps of a round at least, and rows of a step at most, that follow from a client's rows."""


def rows_per_step(num_rows: int) -> int:
    """Return an eighth of a client's rows as a power of two between 16 and 256."""
    return int(min(MOST_ROWS, max(16, 2 ** round(math.log2(max(num_rows, 1) / 8)))))


def enough_passes(num_rows: int, batch_size: int) -> int:
    """Return the passes that make 50 steps or more of a client's rows."""
    return math.ceil(LEAST_STEPS / math.ceil(max(num_rows, 1) / batch_size))


def informative_rows(task: Task, num_rows: int, counts: Sequence[int], num_classes: int) -> float:
    """Return how many rows with classes of equal size are worth as much: of one positive in fifty 8 % of the rows.

    Args:
        task: what is learned; where rows have no one class each, every row counts.
        num_rows: of a client.
        counts: of each class that it has.
        num_classes: of the task.
    """
    if task not in ("binary", "multiclass"):
        return float(num_rows)
    apart = 1.0 - sum((count / num_rows) ** 2 for count in counts)
    return num_rows * apart * num_classes / (num_classes - 1)


def enough_decay(task: Task, num_rows: float, *, by_loss: bool = False) -> float:
    """Return the decay of the non-linear weights: the fewer rows, the nearer to a linear model.

    `by_loss`: of a regression with standardised targets, where steps take it times the loss, the share of the targets'
    variance that is left: a weight's best penalty grows with the noise.
    """
    if by_loss:
        return min(30.0, 4500.0 / max(num_rows, 1.0))
    return min(10.0, (1500.0 if task == "regression" else 1000.0) / max(num_rows, 1.0))


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Several names, ``a,b`` as text."""


@config
class HorizontalConfig(UserCode, StepSettings):
    """Options of a run of FedAvg and its relatives.

    On tables FedAvg and FedProx take local steps that follow from each client's own rows unless they are given. FedAvg
    as in its paper: model=linear optimizer=sgd schedule=constant batch_size=32 local_epochs=1 standardisation=none.
    """

    by_rows: ClassVar = ("local_epochs", "batch_size")
    """Settings of which 0 stands for what follows from the rows."""
    sections: ClassVar = {
        "algorithm": "Method",
        "model": "Model",
        "num_clients": "Clients",
        "num_rounds": "Rounds",
        "local_epochs": "Local training",
        "schedule": "Local training",
        "secure_aggregation": "Privacy",
        "standardisation": "Data",
        "local_baseline": "Results",
        "together": "Running",
    }
    only_with: ClassVar[OnlyWith] = {
        "proximal": {"algorithm": ("fedprox", "ditto")},
        "server_momentum": {"algorithm": ("fedavgm", *ADAPTIVE)},
        "second_moment": {"algorithm": ("fedadam", "fedyogi")},
        "adaptivity": {"algorithm": ADAPTIVE},
        "secure_range": {"secure_aggregation": (True,)},
        "num_byzantine": {"aggregation": ("trimmed-mean", "multi-krum")},
        "min_sites": {"on_party_loss": ("continue",)},
        "quorum_timeout": {"min_sites": None},
        "clip_quantile": {"client_clip_norm": None},
        "clip_learning_rate": {"clip_quantile": None},
        "client_sampling_rate": {"client_clip_norm": None},
        "delta": {"client_clip_norm": None, "record_clip_norm": None},
        "max_epsilon": {"client_clip_norm": None, "record_clip_norm": None},
    }

    algorithm: Algorithm = "fedavg"
    """Training method: the server's step (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi), or a change of the clients'
    steps (FedProx, SCAFFOLD). ``fedrep``: clients train `local_parameters` first, then the others. ``ditto``:
    ``fedavg``, and each client also trains a personal model near the server's."""
    proximal: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Weight of the distance to the server's model: in a client's loss for FedProx (mu), in its personal model's loss
    for Ditto (lambda)."""
    local_parameters: Names = ()
    """Names of parameters and running statistics that stay at each client, such as ``head`` or ``*.bias``; ``norm``
    means those of all normalisation layers (FedBN). Each client then has a personal model, and evaluates it on its own
    rows."""
    weighting: Literal["auto", "samples", "uniform"] = "auto"
    """Weight of a client in a mean; ``auto`` is the number of samples, and for SCAFFOLD uniform, as in its paper."""
    server_learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Step size of the server; `none` is 1, or 0.03 for the adaptive methods."""
    server_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of FedAvgM, and decay of the adaptive methods' first moment (beta 1)."""
    second_moment: float = Field(default=0.99, ge=0, lt=1)
    """FedAdam and FedYogi: decay of the second moment (beta 2)."""
    adaptivity: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Adaptive methods: constant added to the root of the second moment (tau)."""
    aggregation: NamedCode = "mean"
    """Aggregation of the sites' changes: ``mean``, ``median``, ``trimmed-mean`` or ``multi-krum``. The last three
    tolerate a few sites that send anything, and weigh sites equally. Your own ``package.module:function`` replaces the
    server's whole step."""
    num_byzantine: int = Field(default=1, ge=1)
    """``trimmed-mean``: number of highest, and of lowest, values left out; ``multi-krum``: number of sites that may
    send anything (f)."""
    model: NamedCode = "auto"
    """Model name, or your own ``package.module:function``. ``auto`` chooses by the shape of a sample: for tables
    ``skip-mlp`` (linear plus a small MLP that starts at 0), with noise ``linear``."""
    nonlinear_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of the MLP in ``skip-mlp``, for a step of size 1. `none` follows each client's rows and classes,
    times the number of clients: 1000 / rows, at most 10. For a regression with standardised targets it is 4500 / rows,
    at most 30, times the loss of a round's first pass; for other regressions 1500 / rows. With plain steps it is 0."""
    loss: NamedCode = "auto"
    """Your own loss of a batch, ``package.module:function``, called with outputs and targets; ``auto`` follows the
    task."""
    metric: NamedCode = "none"
    """Additional metric, ``package.module:function``: your own, or one of scikit-learn or torchmetrics."""
    hidden_size: int = Field(default=64, ge=1, le=16384)
    """Width of ``mlp`` and ``residual-mlp``."""
    layers: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Linear layers of ``mlp`` and of the MLP in ``skip-mlp``, or blocks of ``residual-mlp``; `none` is 2 for
    ``skip-mlp``, else 3."""
    normalisation: Literal["group", "batch", "none"] = "group"
    """Normalisation of ``resnet18`` and ``vgg16``; running statistics are averaged like parameters."""
    num_clients: int | None = Field(default=None, ge=1)
    """Number of clients of a named data set; `none` is ten. Your own files state their clients."""
    clients_per_site: int = Field(default=1, ge=1)
    """Clients per process, for many small clients of one organisation or of a simulation."""
    num_aggregators: int = Field(default=0, ge=0)
    """A tree for many sites: aggregators between server and sites. Each sends the model to its share of the sites, adds
    up their changes and sends the server one; it needs two sites. 0: the server does so with each site itself."""
    clients_per_round: int | None = Field(default=None, ge=1)
    """Clients drawn for a round, without replacement; `none` takes all available ones."""
    dropout_rate: float = Field(default=0.0, ge=0, lt=1)
    """For experiments: probability that a client receives a round's model and does not answer."""
    num_rounds: int = Field(default=20, ge=1)
    """Rounds of training."""
    evaluate_every: int = Field(default=1, ge=1)
    """Rounds between evaluations; the last round is always evaluated."""
    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Stop when ``test/accuracy`` reaches this value; with `num_validation`, ``validation/accuracy``."""
    patience: int | None = Field(default=None, ge=1)
    """Early stopping: evaluations without a better ``validation/accuracy`` (regression: ``validation/rmse``). Needs
    `num_validation`, or validation rows at the clients."""
    client_timeout: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds to wait for a site's answer; with `min_sites` the deadline of each round."""
    on_party_loss: Literal["stop", "continue"] = "continue"
    """On a lost site: ``stop`` ends the run, ``continue`` trains without its clients. Between sites the default is
    ``stop``, unless `min_sites` is given."""
    min_sites: int | None = Field(default=None, ge=1)
    """Quorum: number of sites that must answer for a round to change the model. A lost or late site misses the round,
    and takes part again when it is back. `none`: a lost site does not return."""
    quorum_timeout: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds that a round waits for `min_sites` sites; then the run ends, and can be resumed."""
    optimizer: Literal["auto", "sgd", "adam", "adamw"] = "auto"  # type: ignore[assignment]
    """Optimiser of local steps; ``auto`` is adam for tables with fedavg or fedprox and without noise, else sgd."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"  # type: ignore[assignment]
    """Step size of local steps; ``auto`` is 0.01 for adam and adamw, 0.05 for sgd."""
    schedule: Literal["auto", "constant", "cosine", "step"] = "auto"  # type: ignore[assignment]
    """Learning-rate schedule over rounds: constant, half a cosine to 0, or steps. ``auto`` is cosine for tables with
    fedavg or fedprox and without noise, else constant."""
    local_epochs: int = Field(default=0, ge=0)
    """Passes over a client's rows per round. 0: for tables with fedavg or fedprox and without noise as many as make 50
    steps, else 1."""
    batch_size: int = Field(default=0, ge=0)
    """Rows per local step. 0: for tables with fedavg or fedprox and without noise an eighth of the client's rows, as a
    power of two between 16 and 256, else 32."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Gradient accumulation: rows whose gradients are computed at once, if memory is too small for `batch_size` rows;
    `none` computes all at once."""
    precision: Literal["full", "bf16"] = "full"
    """``bf16`` computes local steps in bfloat16 where torch can (autocast), for large models. Parameters, losses,
    messages and evaluations keep full precision."""
    secure_aggregation: bool = False
    """Secure aggregation: the server sees only the sum of the clients' changes over all sites. Needs three or more
    sites. Every site takes part in every round's sum, with zeros if none of its clients was drawn."""
    secure_range: float = Field(default=10.0, gt=0, le=1e4)
    """Largest absolute value of changes and losses in secure sums; the error of a sum over M sites is at most M^2 2^-32
    times this."""
    client_clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Differential privacy for clients: clip each client's change of the model to this L2 norm; `none` disables it."""
    client_noise_multiplier: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Standard deviation of the Gaussian noise on the sum of all changes, in units of the clip norm. With
    `secure_aggregation` the sites draw it together, else the server, which must then be trusted."""
    clip_quantile: float | None = Field(default=None, gt=0, lt=1)
    """Adaptive clipping: the clip norm starts at `client_clip_norm` and follows this quantile of the changes' norms
    (Andrew et al., 2021); `none` keeps it fixed."""
    clip_learning_rate: float = Field(default=0.2, gt=0, allow_inf_nan=False)
    """Learning rate of the adaptive clip norm."""
    client_sampling_rate: float | None = Field(default=None, gt=0, lt=1)
    """Probability that a client takes part in a round. The trusted server draws in secret (Poisson), and the account
    claims amplification; `none` claims none."""
    record_clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Differential privacy for rows (DP-SGD at each client): clip each row's gradient to this L2 norm; `none` disables
    it. `batch_size` is then the expected size of a Poisson batch."""
    record_noise_multiplier: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Standard deviation of the Gaussian noise on each step's sum of gradients, in units of the clip norm."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Delta at which epsilon is reported."""
    max_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Refuse a run at the start if its rounds cost a client, or one of its rows, more than this epsilon (data with and
    without it)."""
    standardisation: Literal["sums", "none"] = "sums"
    """Scaling of your own tables. ``sums`` scales columns to mean 0 and standard deviation 1 over all clients' rows, by
    sums over the sites (under masks with `secure_aggregation`); columns with a ``range`` or ``none`` rule stay
    unchanged. It also scales the targets of a regression, for named data sets too, unless model or loss are your own.
    With differential privacy no sums leave and nothing is scaled: give ranges."""
    dirichlet: float | None = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Dirichlet concentration of the clients' label distributions; `none` for an even random split."""
    num_training: int | None = Field(default=None, ge=1)
    """Use only this many training rows, drawn at random; `none` uses all."""
    num_validation: int = Field(default=0, ge=0)
    """Training rows of a named data set to hold out and evaluate on instead of the test rows, to choose settings."""
    validation_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of each client's rows that the client holds out, to choose the best round. For your own files it applies
    if no column states the ``split`` (``parties.toml``)."""
    local_baseline: bool = True
    """Also train a model on each client's table alone (ten clients at most), to report what the others' rows add. It is
    evaluated on the client's validation rows, for a named data set on rows that no client has. Only this score leaves
    the client."""
    together: bool = True
    """Train a site's clients in batched calls where the model allows it and it is faster, else one by one."""
    device: Device = "cpu"
    """Device of sites and server: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` (a GPU if available)."""
    num_gpus: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Fraction of a GPU that each process requests from Ray."""
    clients_per_process: int | None = Field(default=None, ge=1)
    """Ray: clients that share a process, each with its own messages and state. `none`: for a named data set with more
    clients than cores, one process per core; else, and with `num_gpus`, one process per client."""
    float64: bool = False
    """Use double precision."""

    @model_validator(mode="after")
    def _check(self) -> HorizontalConfig:
        if self.algorithm == "scaffold" and (
            self.optimizer not in ("auto", "sgd") or self.momentum or self.max_gradient_norm
        ):
            raise ValueError(
                "algorithm: scaffold is not allowed with momentum, max_gradient_norm or another optimizer than sgd: "
                "its controls are the mean gradients of plain steps"
            )
        self._check_aggregation()
        self._check_aggregators()
        self._check_personal()
        if self.precision == "bf16" and self.float64:
            raise ValueError("precision: bf16 is not allowed with float64")
        self._check_privacy()
        self._check_record_privacy()
        self.check_user_code()
        if self.clients_per_process is not None and self.clients_per_process < self.clients_per_site:
            raise ValueError(
                f"clients_per_process: {self.clients_per_process} is not allowed: the {self.clients_per_site} clients "
                "of a site (clients_per_site) are in one process"
            )
        if self.min_sites is not None and self.on_party_loss == "stop":
            raise ValueError("min_sites: not allowed with on_party_loss=stop: with a quorum the run goes on")
        if self.min_sites is not None and self.secure_aggregation and self.clients_per_round is not None:
            raise ValueError(
                "clients_per_round: not allowed with min_sites and secure_aggregation: of those who are drawn all but "
                "one may be lost, and the others add zeros"
            )
        if self.secure_aggregation and self.algorithm == "scaffold":
            raise ValueError(
                "algorithm: scaffold is not allowed with secure_aggregation: a control is the change divided by the "
                "client's own number of steps, so that the sums of both tell the changes of two sites; use fedavg"
            )
        if self.num_clients is not None and (self.clients_per_round or 0) > self.num_clients:
            raise ValueError(f"clients_per_round: {self.clients_per_round} is more than the {self.num_clients} clients")
        return self

    def _check_aggregation(self) -> None:
        if not self.user_aggregation and self.aggregation not in AGGREGATIONS:
            raise ValueError(
                f"aggregation: {self.aggregation!r} is not allowed: one of {', '.join(AGGREGATIONS)}, or "
                "package.module:function"
            )
        if self.aggregation == "mean":
            return
        stated = f"aggregation: {self.aggregation} is not allowed with"
        if self.secure_aggregation:
            raise ValueError(f"{stated} secure_aggregation: the server reads sums only")
        if self.algorithm == "scaffold":
            raise ValueError(f"{stated} algorithm=scaffold: its controls are summed")
        if self.client_clip_norm is not None:
            raise ValueError(f"{stated} client_clip_norm: the noise is on the sum")
        if self.user_aggregation:
            if self.algorithm in ("fedavgm", *ADAPTIVE):
                raise ValueError(f"{stated} algorithm={self.algorithm}: a function is the server's whole step")
            if self.server_learning_rate is not None:
                raise ValueError(f"{stated} server_learning_rate: a function is the server's whole step")
        elif self.weighting == "samples":
            raise ValueError(f"{stated} weighting=samples: sites count alike")

    def _check_aggregators(self) -> None:
        if not self.num_aggregators:
            return
        if self.aggregation != "mean":
            raise ValueError(
                f"num_aggregators: {self.num_aggregators} is not allowed with aggregation={self.aggregation}, which "
                "needs each site's change: aggregators pass on sums"
            )
        if self.min_sites is not None:
            raise ValueError(
                f"num_aggregators: {self.num_aggregators} is not allowed with min_sites: a site that was lost returns "
                "to the server itself"
            )
        if self.clients_per_round is not None and not self.secure_aggregation:
            raise ValueError(
                f"num_aggregators: {self.num_aggregators} is not allowed with clients_per_round without "
                "secure_aggregation: where one site of a group is drawn, the server would read its change; add "
                "secure_aggregation=true"
            )
        if self.client_clip_norm is not None and not self.secure_aggregation:
            raise ValueError(
                f"num_aggregators: {self.num_aggregators} is not allowed with client_clip_norm without "
                "secure_aggregation: changes have no noise yet when an aggregator reads them; add "
                "secure_aggregation=true"
            )

    def _check_personal(self) -> None:
        if self.algorithm == "fedrep" and not self.local_parameters:
            raise ValueError("algorithm: fedrep is not allowed without local_parameters: name the head, by name")
        if not self.is_personal:
            return
        stated = (
            "algorithm: ditto" if self.algorithm == "ditto" else f"local_parameters: {','.join(self.local_parameters)}"
        )
        if self.algorithm == "ditto" and self.local_parameters:
            raise ValueError("local_parameters: not allowed with algorithm=ditto, whose clients own a whole model each")
        if self.secure_aggregation:
            raise ValueError(f"{stated} is not allowed with secure_aggregation: the server reads each client's scores")
        if self.is_noised:
            name = "client_clip_norm" if self.is_private else "record_clip_norm"
            raise ValueError(f"{stated} is not allowed with {name}: clients' scores leave without noise")
        if self.num_validation:
            raise ValueError(
                f"{stated} is not allowed with num_validation: give validation_fraction, of each client's rows"
            )

    def _check_privacy(self) -> None:
        if (self.client_clip_norm is None) != (self.client_noise_multiplier == 0):
            raise ValueError(
                "client_noise_multiplier: it is allowed with client_clip_norm only, and both are needed: noise is in "
                "units of the clip norm"
            )
        if self.client_clip_norm is None:
            return
        if self.algorithm == "scaffold":
            raise ValueError("client_clip_norm: not allowed with algorithm=scaffold, whose controls have no noise")
        if self.weighting == "samples":
            raise ValueError("client_clip_norm: not allowed with weighting=samples: every client counts alike")
        if self.client_sampling_rate is not None and self.secure_aggregation:
            raise ValueError(
                "client_sampling_rate: not allowed with secure_aggregation: the server draws who takes part, so that "
                "nothing is amplified against it"
            )
        if self.client_sampling_rate is not None and self.clients_per_round is not None:
            raise ValueError("client_sampling_rate: not allowed with clients_per_round, which draws a fixed number")
        if self.max_epsilon is not None and (epsilon := self.epsilon_of(self.num_rounds)) > self.max_epsilon:
            raise ValueError(
                f"max_epsilon: {self.num_rounds} rounds cost epsilon {epsilon:.4g} at delta {self.delta:g}, more than "
                f"{self.max_epsilon:g}; use fewer rounds, or a larger client_noise_multiplier"
            )

    def _check_record_privacy(self) -> None:
        if (self.record_clip_norm is None) != (self.record_noise_multiplier == 0):
            raise ValueError(
                "record_noise_multiplier: it is allowed with record_clip_norm only, and both are needed: noise is in "
                "units of the clip norm"
            )
        if self.record_clip_norm is not None and self.client_clip_norm is not None:
            raise ValueError("record_clip_norm: not allowed with client_clip_norm: choose rows or clients")
        if self.record_clip_norm is not None and (self.precision != "full" or self.micro_batch_size is not None):
            name = "micro_batch_size" if self.precision == "full" else "precision"
            raise ValueError(f"{name}: not allowed with record_clip_norm, which has a gradient of each row in full")
        if self.record_clip_norm is not None and is_code(self.loss):
            raise ValueError("record_clip_norm: not allowed with your own loss, which is a mean over a batch")

    def fewest_sites(self, num_sites: int) -> int:
        """Return how many sites' changes a round needs; under masks more than half of them at least."""
        return max(self.min_sites or 1, threshold_of(num_sites) if self.secure_aggregation else 1)

    @property
    def record_privacy(self) -> RecordPrivacy | None:
        """How each row is hidden; None: not at all."""
        if self.record_clip_norm is None:
            return None
        return RecordPrivacy(
            clip_norm=self.record_clip_norm,
            noise_multiplier=self.record_noise_multiplier,
            batch_size=self.batch_size or PLAIN_ROWS,
            num_epochs=self.local_epochs or PLAIN_PASSES,
        )

    def at(self, inputs: Sequence[int]) -> HorizontalConfig:
        """Return the settings with those that follow from the shape of a sample."""
        return _resolved(self, tuple(inputs))

    def follows_rows(self, inputs: Sequence[int]) -> bool:
        """Whether local steps follow from the rows, for samples of this shape."""
        return len(inputs) == 1 and self.algorithm in BY_ROWS and not self.is_noised

    def decay_at(self, task: Task, rows: float, *, by_loss: bool = False) -> float:
        """Return the decay of the non-linear weights, of settings that `at` resolved and a number of rows in all."""
        if self.nonlinear_decay is not None:
            return self.nonlinear_decay
        return 0.0 if self.optimizer == "sgd" else enough_decay(task, rows, by_loss=by_loss)

    @property
    def step_size(self) -> float:
        """The size of a step, before the schedule."""
        if not isinstance(self.learning_rate, str):
            return self.learning_rate
        return 0.05 if self.optimizer in ("auto", "sgd") else 0.01

    @property
    def step_rule(self) -> OptimizerSpec:
        """The rule of a step, before the schedule; of images where `at` did not resolve it."""
        return OptimizerSpec(
            name="sgd" if self.optimizer == "auto" else self.optimizer,
            learning_rate=self.step_size,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip_norm=self.max_gradient_norm,
        )

    @property
    def rate_schedule(self) -> Schedule:
        """The schedule; of images where `at` did not resolve it."""
        name = "constant" if self.schedule == "auto" else self.schedule
        return Schedule(name=name, every=self.decay_every, factor=self.decay_factor)

    def measures_targets(self, task: Task, targets: Sequence[int] = ()) -> bool:
        """Whether targets are standardised by sums: single numbers of a regression whose model and loss are ours."""
        is_ours = not self.user_loss and not is_code(self.model)
        return self.measures_columns and task == "regression" and not targets and is_ours

    @property
    def measures_alone(self) -> bool:
        """Whether clients say how good a model of their own rows is."""
        return self.local_baseline and not self.secure_aggregation and not self.is_noised

    @property
    def is_noised(self) -> bool:
        """Whether clients or rows are hidden by noise."""
        return self.is_private or self.record_clip_norm is not None

    @property
    def num_private_rounds(self) -> int:
        """Rounds whose changes are clipped and noised for each client."""
        return self.num_rounds if self.is_private else 0

    @property
    def num_open_rounds(self) -> int:
        """Rounds whose changes are not."""
        return self.num_rounds - self.num_private_rounds

    @property
    def is_private(self) -> bool:
        """Whether clients' changes are clipped, summed and noised."""
        return self.client_clip_norm is not None

    def epsilon_of(self, num_rounds: int) -> float:
        """Return what so many rounds cost a client whose rows are there or not, at `delta`."""
        return self.client_privacy.epsilon(num_rounds, self.delta)

    @property
    def client_privacy(self) -> ClientPrivacy:
        """How each client is hidden, where it is."""
        return ClientPrivacy(self.client_noise_multiplier, self.client_sampling_rate or 1.0)

    @property
    def measures_columns(self) -> bool:
        """Whether columns are standardised by sums: never where noise hides clients or rows."""
        return self.standardisation == "sums" and not self.is_noised

    @property
    def user_aggregation(self) -> str:
        """Address of the user's server step; empty: none."""
        return self.aggregation if is_code(self.aggregation) else ""

    @property
    def is_personal(self) -> bool:
        """Whether each client has a model of its own."""
        return bool(self.local_parameters) or self.algorithm == "ditto"

    @property
    def num_measurements(self) -> int:
        """How often the model is measured while it is trained."""
        return -(-self.num_rounds // self.evaluate_every)

    @property
    def counts_samples(self) -> bool:
        """Whether clients count by their samples."""
        return self.weighting == "samples" or (self.weighting == "auto" and self.algorithm != "scaffold")

    @property
    def server_rate(self) -> float:
        """The server's step size."""
        return self.server_learning_rate or (0.03 if self.algorithm in ADAPTIVE else 1.0)


@functools.lru_cache(maxsize=16)
def _resolved(config: HorizontalConfig, inputs: tuple[int, ...]) -> HorizontalConfig:
    """Return `config.at(inputs)`, which each client asks for in each round: checking settings takes 0.2 ms."""
    is_by_rows = config.follows_rows(inputs)
    rule = ("adam" if is_by_rows and not config.momentum else "sgd") if config.optimizer == "auto" else config.optimizer
    schedule = ("cosine" if is_by_rows else "constant") if config.schedule == "auto" else config.schedule
    model = config.model
    if model == "auto" and len(inputs) == 1:
        model = "linear" if config.is_noised else "skip-mlp"
    layers = config.layers or (2 if model == "skip-mlp" else 3)
    return replace(config, model=model, layers=layers, optimizer=rule, schedule=schedule)
