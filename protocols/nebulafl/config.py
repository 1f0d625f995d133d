"""The configuration of NebulaFL and of the methods it is measured against."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedactors.config import Device, NamedCode, OnlyWith, UserCode, config, is_code, named_files
from fedactors.errors import BadInput
from fedactors.learning.optimizers import OptimizerSpec, StepSettings
from fedactors.privacy.accounting import ClientPrivacy, RecordPrivacy
from fedactors.secure_sums.primitives import FEWEST
from fedactors.validation import read_tree, shown

Algorithm = Literal[
    "nebulafl", "fedavg", "fedavg-hierarchical", "fedhisyn", "fedhkt", "fedsa", "pisces", "gitfl", "fedasync", "fedbuff"
]
Ablation = Literal[
    "none", "random", "random-resource", "random-container", "without-cost", "without-time", "aggregation"
]
ResourcePolicy = Literal["nebulafl", "random", "cheapest", "fastest"]
PlanetRule = Literal["paper", "received", "shifted"]
PriceRule = Literal["hour", "training"]
BY_CENTER = ("fedavg-hierarchical", "fedhisyn", "fedhkt")
"""Baselines that aggregate center by center; the others send every container's model across."""
SUMMED = ("fedavg-hierarchical", "fedhisyn")
"""Those of them whose exchange averages one model of each center, in one go."""
EXAMPLES = ("market", "scarce", "cloud")
"""Pairs of catalogue and network that come with the protocol: two illustrative ones, and one of cited numbers."""
_MOST_INSTANTS = 1e6
"""Measurements, rotations or aggregations in one run."""
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ROTATIONS = 20
"""Rotations of a run whose duration is ``auto``."""
TRAININGS = 10
"""Local trainings between two rotations where both times are ``auto``."""
SHORTEST_TRAINING = 1e-6
"""Seconds of a local training at least: what others say of theirs is not taken as it comes."""
LONGEST_INTERVAL = 1000.0
"""Seconds between rotations at most then, whatever trainings are said to take."""


def path_of(kind: str, given: str) -> Path:
    """Return the path that a setting names."""
    if not Path(given).exists():
        raise BadInput(f"{kind}: {shown(given)} is neither an example ({', '.join(EXAMPLES)}) nor a file")
    return Path(given)


def content_of(kind: str, given: str) -> str:
    """Return the content of the file that a setting names, as a line of JSON, which is read in no time.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    return f"{json.dumps(read_tree(path_of(kind, given), kind), default=str)}\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Which rules a center follows; an ablation takes one away (Table III; Figure 5)."""

    random_container: bool
    """Draw idle containers with equal probability."""
    resource_policy: ResourcePolicy
    """Hardware assignment: NebulaFL's, or a random, the cheapest or the fastest free unit."""
    use_cost: bool
    """Count the cost factor in NebulaFL's assignment."""
    use_time: bool
    """Count the time factor in NebulaFL's assignment."""
    price: PriceRule = "hour"
    """Price to compare: of an hour, or of a training."""
    rotate: bool
    """Rotate masters; otherwise average them at one place and send the mean back to all centers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """The times of a run in numbers."""

    rotation_interval: float
    """Seconds between rotations (t_c). ``auto`` is a twentieth of `duration`. If that is ``auto`` too, each center
    tries local trainings before the run, and ``auto`` is the time of ten at the slowest center, at most 1,000 s."""
    duration: float
    """Seconds of the run (T); nothing new starts after it. ``auto`` is 20 rotation intervals, or `num_rounds` of them
    if that is more."""
    evaluation_interval: float
    """Seconds between evaluations of the mean of all masters (baselines: of the server's model); ``auto`` is the
    rotation interval."""


@config
class NebulaFLConfig(UserCode, StepSettings):
    """Options of a run; times are virtual seconds in the simulated runtime and seconds on Ray."""

    sections: ClassVar = {
        "algorithm": "Method",
        "model": "Model",
        "num_centers": "Centers and containers",
        "rotation_interval": "Time and measurements",
        "dirichlet": "Data",
        "catalogue": "Hardware and network",
        "ablation": "Method",
        "local_epochs": "Local training",
        "schedule": "Local training",
        "center_rounds": "Baselines",
        "num_training": "Data",
        "num_proxy": "Baselines",
        "target_accuracy": "Time and measurements",
        "on_party_loss": "Lost parties",
        "attestation": "Trust and placement",
        "secure_aggregation": "Privacy",
        "client_clip_norm": "Privacy",
    }
    files: ClassVar = {"catalogue": EXAMPLES, "network": EXAMPLES}
    only_with: ClassVar[OnlyWith] = {
        "planet_rule": {"algorithm": ("nebulafl",)},
        "price_rule": {"resource_policy": ("nebulafl", "cheapest")},
        "normalisation": {"model": ("auto", "resnet18", "vgg16")},
        "center_rounds": {"algorithm": ("fedavg-hierarchical",)},
        "num_clusters": {"algorithm": ("fedhisyn", "fedhkt")},
        "num_proxy": {"algorithm": ("fedhkt",)},
        "distillation_epochs": {"algorithm": ("fedhkt",)},
        "buffer_size": {"algorithm": ("fedbuff", "fedsa")},
        "aggregation_window": {"algorithm": ("fedsa",)},
        "staleness_bound": {"algorithm": ("pisces", "fedsa")},
        "mixing": {"algorithm": ("fedasync",)},
        "staleness_exponent": {"algorithm": ("fedasync", "fedbuff", "pisces")},
        "restart_seconds": {"on_party_loss": ("restart",)},
        "secure_range": {"secure_aggregation": (True,)},
        "momentum": {"optimizer": ("sgd",)},
        "delta": {"client_clip_norm": None, "record_clip_norm": None},
        "max_epsilon": {"client_clip_norm": None, "record_clip_norm": None},
    }

    algorithm: Algorithm = "nebulafl"
    """NebulaFL, or a baseline on the same centers, containers, hardware and cost model."""
    model: NamedCode = "auto"
    """Model name, or your own ``package.module:function``; ``auto`` chooses by the shape of a sample. For a model that
    the catalogue does not name one step is tried: its throughput follows from its operations, compared with those of
    ``auto``."""
    loss: NamedCode = "auto"
    """Your own loss of a batch, ``package.module:function``, called with outputs and targets; ``auto`` is
    cross-entropy."""
    metric: NamedCode = "none"
    """Additional metric, ``package.module:function``: your own, or one of scikit-learn or torchmetrics."""
    normalisation: Literal["group", "batch", "none"] = "group"
    """Normalisation of ``resnet18`` and ``vgg16``; batch normalisation also averages running statistics."""
    num_centers: int = Field(default=4, ge=1)
    """Number of data centers, taken from the start of the catalogue."""
    num_containers: int = Field(default=40, ge=1, le=100_000)
    """Total number of data owners, spread evenly over the centers."""
    active_per_center: int = Field(default=5, ge=1)
    """Planets per center (K_i), each trained in one container at a time; baselines run as many containers."""
    rotation_interval: Seconds | Literal["auto"] = "auto"
    """Seconds between rotations (t_c). ``auto``: a twentieth of `duration`; where that is ``auto`` too, the time of ten
    local trainings at the slowest center, tried before the run begins, and 1,000 s at most."""
    duration: Seconds | Literal["auto"] = "auto"
    """Seconds of the run (T); nothing new starts after it. ``auto``: 20 rotation intervals, or `num_rounds` of them
    where that is more."""
    num_rounds: int | None = Field(default=None, ge=1)
    """Maximum number of rotations (NebulaFL) or aggregations (baselines), within `duration`."""
    evaluation_interval: Seconds | Literal["auto"] = "auto"
    """Seconds between evaluations of the mean of all masters (or of the server's model); ``auto``: the rotation
    interval."""
    dirichlet: float | None = Field(default=0.5, gt=0)
    """Dirichlet concentration of the containers' label distributions; `none` for an even random split."""
    catalogue: str = "market"
    """Hardware: an illustrative example (``market``, ``scarce``) or a TOML file."""
    network: str = "market"
    """Links between centers: an illustrative example (``market``, ``scarce``) or a TOML file."""
    resource_policy: ResourcePolicy = "nebulafl"
    """Hardware assignment: NebulaFL's, or a random, the cheapest or the fastest free unit."""
    ablation: Ablation = "none"
    """Remove one part of NebulaFL (Table III and Figure 5)."""
    planet_rule: PlanetRule = "paper"
    """Model that a trained planet is pulled to. ``paper`` (Equation 2): the stellar model from the start, though
    untrained. ``received``: the stellar model, once one was received. ``shifted``: the current master of its center,
    and an arriving master shifts all planets by half of its difference to the center's master."""
    price_rule: PriceRule = "hour"
    """Price used by NebulaFL's assignment and by ``cheapest``: per unit hour (Equation 8), or per training."""
    bytes_factor: float = Field(default=1.0, gt=0, le=1e9)
    """Multiply message sizes by this in the links' time and cost, to model a larger network."""
    work_factor: float = Field(default=1.0, gt=0, le=1e9)
    """Multiply the work per sample by this in the hardware's time, to model a larger network."""
    paper_literal: bool = False
    """Use the printed equations where they contradict the paper's text (Equations 4, 5, 6, 9; rotation at time 0)."""
    local_epochs: int = Field(default=5, ge=1)
    """Local epochs per training."""
    batch_size: int = Field(default=50, ge=1)
    """Batch size of local SGD; with `record_clip_norm` the expected size of a Poisson batch."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Gradient accumulation: rows whose gradients are computed at once; `none` computes all at once."""
    precision: Literal["full", "bf16"] = "full"
    """``bf16`` computes local steps in bfloat16 where torch can (autocast). Parameters, losses, messages and
    evaluations keep full precision."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of local steps; a schedule counts rotations, or for baselines intervals of the same length."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of ``sgd``; it starts at zero in every training, as the moments of other optimisers do."""
    center_rounds: int = Field(default=2, ge=1, le=1000)
    """Hierarchical FedAvg: rounds within the centers between global aggregations."""
    num_clusters: int = Field(default=3, ge=1)
    """Clusters of FedHiSyn (by training time) and FedHKT (by labels)."""
    num_training: int | None = Field(default=None, ge=1)
    """Use only this many training samples, drawn at random; `none` uses all."""
    num_validation: int = Field(default=0, ge=0)
    """Training samples to hold out and evaluate on instead of the test rows, to choose settings."""
    num_proxy: int = Field(default=200, ge=1)
    """FedHKT: number of held-out training samples on which clients share logits."""
    distillation_epochs: int = Field(default=20, ge=1)
    """FedHKT: passes over the proxy samples when the server distils."""
    buffer_size: int = Field(default=5, ge=1)
    """FedBuff, FedSA: updates per aggregation."""
    aggregation_window: float | None = Field(default=None, gt=0)
    """FedSA: seconds between aggregations, instead of `buffer_size`."""
    staleness_bound: int = Field(default=5, ge=1)
    """Pisces, FedSA: maximum staleness of a running container, in versions."""
    mixing: float = Field(default=0.6, gt=0, le=1)
    """FedAsync: weight of a fresh update."""
    staleness_exponent: float = Field(default=0.5, ge=0)
    """FedAsync, FedBuff, Pisces: exponent of the staleness discount."""
    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Report the time, dollars and bytes at which ``test/accuracy`` first reaches this."""
    stop_at_target: bool = False
    """Stop at the first evaluation that reaches `target_accuracy`."""
    checkpoint_interval: int = Field(default=1, ge=0)
    """Evaluations between checkpoints; 0 writes only the last one."""
    on_party_loss: Literal["stop", "continue", "restart"] = "restart"
    """On a lost center: `stop` the run, `continue` without it, or `restart` it after `restart_seconds`."""
    restart_seconds: float = Field(default=600.0, ge=0)
    """Seconds before a lost center restarts."""
    outages: str = ""
    """For experiments: containers that are unavailable for a while, such as ``oregon/3@500-900 tokyo/0@100-200``."""
    attestation: NamedCode = Field(default="", pattern="^$|:")
    """Attestation hook ``package.module:function``, called as ``attest(container, nonce) -> bool``; containers that
    fail are skipped."""
    container_processes: bool = False
    """Run each container as a separate process that alone opens its rows; otherwise its center's process does."""
    together: bool = False
    """Train concurrent containers in batched calls, for many small models. Results are equal up to rounding, also after
    a resume."""
    device: Device = "cpu"
    """Device for training and evaluation: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` (a GPU if available)."""
    num_gpus: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Fraction of a GPU that each training or evaluating process requests from Ray."""
    placement_by_label: bool = False
    """Ray: place each center on a host with the label ``dc-<center>``."""
    secure_aggregation: bool = False
    """Secure aggregation: the exchange sees only the sum of the centers' models. For `fedavg-hierarchical` and
    `fedhisyn` with three or more centers per average."""
    secure_range: float = Field(default=100.0, gt=0, le=1e4)
    """Largest absolute change of a parameter in secure sums; the error of a sum over M centers is at most M^2 2^-32
    times this."""
    client_clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Differential privacy for containers: clip the change of the model by each training to this L2 norm; `none`
    disables it."""
    client_noise_multiplier: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Standard deviation of the Gaussian noise on each of these changes, in units of the clip norm; it is drawn at the
    container."""
    record_clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Differential privacy for rows (DP-SGD in each container): clip each row's gradient to this L2 norm; `none`
    disables it."""
    record_noise_multiplier: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Standard deviation of the Gaussian noise on each step's sum of gradients, in units of the clip norm."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Delta at which epsilon is reported."""
    max_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Stop training in a container once another training would cost it, or one of its rows, more than this epsilon
    (data with and without it); `none` sets no limit."""

    @model_validator(mode="after")
    def _check(self) -> NebulaFLConfig:
        smallest = self.num_containers // self.num_centers
        if smallest < 1:
            raise ValueError(
                f"num_containers: {self.num_containers} is fewer than num_centers={self.num_centers}; "
                "every center needs a container"
            )
        duration = self.times.duration
        for name in ("rotation_interval", "evaluation_interval", "aggregation_window"):
            value = getattr(self, name)
            if value not in (None, "auto") and value < duration / _MOST_INSTANTS:
                raise ValueError(
                    f"{name}: {value:g} is not allowed with duration={duration:g}: at least "
                    f"{duration / _MOST_INSTANTS:g}"
                )
        if self.active_per_center > smallest:
            raise ValueError(
                f"active_per_center: {self.active_per_center} is more than the {smallest} containers of a center "
                f"({self.num_containers} containers in {self.num_centers} centers); at most {smallest} is allowed"
            )
        if self.ablation != "none" and self.algorithm != "nebulafl":
            raise ValueError(
                f"ablation: {self.ablation!r} is not allowed with algorithm={self.algorithm}, only nebulafl"
            )
        if self.stop_at_target and self.target_accuracy is None:
            raise ValueError("stop_at_target: true is not allowed without target_accuracy")
        try:
            self.container_outages()
        except ValueError:
            raise ValueError(
                f"outages: {self.outages!r} is not allowed: write center/number@from-to, separated by spaces"
            ) from None
        if self.container_processes and self.algorithm == "fedhkt":
            raise ValueError("container_processes: true is not allowed with algorithm=fedhkt: its centers count labels")
        if self.secure_aggregation:
            self._check_secure_aggregation()
        self._check_noise()
        self.check_user_code()
        if self.ablation in ("random", "random-resource") and self.resource_policy not in ("nebulafl", "random"):
            raise ValueError(
                f"resource_policy: {self.resource_policy!r} is not allowed with ablation={self.ablation}, "
                "which draws hardware at random"
            )
        return self

    def _check_secure_aggregation(self) -> None:
        """Refuse methods that take single models as they arrive: there is no sum that could hide them."""
        why = "its exchange takes each container's model by itself, as it arrives"
        if self.algorithm == "nebulafl":
            why = "its masters go one by one from center to center, and to the auditor"
        elif self.algorithm == "fedhkt":
            why = "its exchange weighs each cluster's predictions by that cluster's labels"
        for name, is_wrong, reason in (
            ("algorithm", self.algorithm not in SUMMED, f"{why}; use {' or '.join(SUMMED)}"),
            ("num_centers", self.num_centers < FEWEST, f"of a sum of two each knows the other's part; use {FEWEST}"),
            (
                "on_party_loss",
                self.on_party_loss == "restart",
                "a center that is brought back would give a round that was summed without it; use stop or continue",
            ),
            (
                "max_epsilon",
                self.max_epsilon is not None,
                "centers with few rows would spend it first and add nothing, and a sum would be of the last one alone",
            ),
        ):
            if is_wrong:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed with secure_aggregation: {reason}")

    def _check_noise(self) -> None:
        """Refuse noise beside what leaves without it."""
        for kind in ("client", "record"):
            name, noise = f"{kind}_clip_norm", f"{kind}_noise_multiplier"
            if (getattr(self, name) is None) != (getattr(self, noise) == 0):
                raise ValueError(
                    f"{noise}: it is allowed with {name} only, and both are needed: noise is in clip norms"
                )
        if not self.is_noised:
            return
        if self.client_clip_norm is not None and self.record_clip_norm is not None:
            raise ValueError("record_clip_norm: not allowed with client_clip_norm: choose rows or containers")
        name = "record_clip_norm" if self.client_clip_norm is None else "client_clip_norm"
        for is_wrong, setting, reason in (
            (self.algorithm == "fedhkt", "algorithm=fedhkt", "label counts of its containers leave without noise"),
            (self.algorithm == "pisces", "algorithm=pisces", "it chooses containers by losses, which have no noise"),
            (self.together, "together", "each training has noise of its own"),
        ):
            if is_wrong:
                raise ValueError(f"{name}: not allowed with {setting}: {reason}")
        if self.record_clip_norm is None:
            return
        if self.precision != "full" or self.micro_batch_size is not None:
            setting = "micro_batch_size" if self.precision == "full" else "precision"
            raise ValueError(f"{setting}: not allowed with record_clip_norm, which has a gradient of each row in full")
        if is_code(self.loss):
            raise ValueError("record_clip_norm: not allowed with your own loss, which is a mean over a batch")

    @property
    def is_noised(self) -> bool:
        """Whether containers or rows are hidden by noise."""
        return self.client_clip_norm is not None or self.record_clip_norm is not None

    @property
    def record_privacy(self) -> RecordPrivacy | None:
        """How each row is hidden in a training; None: not at all."""
        if self.record_clip_norm is None:
            return None
        return RecordPrivacy(
            clip_norm=self.record_clip_norm,
            noise_multiplier=self.record_noise_multiplier,
            batch_size=self.batch_size,
            num_epochs=self.local_epochs,
        )

    def epsilon_of(self, num_trainings: int, num_rows: int) -> float:
        """Return what so many trainings cost a container of so many rows, or each row of it, there or not."""
        if (privacy := self.record_privacy) is not None:
            steps = num_trainings * privacy.num_steps(num_rows)
            return privacy.epsilon(privacy.sample_rate(num_rows), steps, self.delta)
        return ClientPrivacy(self.client_noise_multiplier).epsilon(num_trainings, self.delta)

    def most_trainings(self, num_rows: int) -> int | None:
        """Return how often a container of so many rows may train under `max_epsilon`; None: nothing bounds it."""
        if self.max_epsilon is None:
            return None
        least, most = 0, 1
        while most < _MOST_INSTANTS and self.epsilon_of(most, num_rows) <= self.max_epsilon:
            least, most = most, 2 * most
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if self.epsilon_of(middle, num_rows) <= self.max_epsilon else (least, middle)
        return least

    def container_outages(self) -> list[tuple[str, int, float, float]]:
        """Return (center, container, from, to) of each outage."""
        found = []
        for word in self.outages.split():
            container, _, times = word.partition("@")
            center, _, number = container.partition("/")
            begin, _, end = times.partition("-")
            if int(number) < 0 or not 0 <= float(begin) < float(end) < math.inf:
                raise ValueError(word)
            found.append((center, int(number), float(begin), float(end)))
        return found

    @property
    def step_rule(self) -> OptimizerSpec:
        """The rule of a step, before the schedule; momentum counts with ``sgd`` only."""
        return OptimizerSpec(
            name=self.optimizer,
            learning_rate=self.learning_rate,
            momentum=self.momentum if self.optimizer == "sgd" else 0.0,
            weight_decay=self.weight_decay,
            clip_norm=self.max_gradient_norm,
        )

    def rate_at(self, seconds: float) -> float:
        """Return the schedule's factor of the step size so many seconds after the start."""
        rotation_interval = self.times.rotation_interval
        num_intervals = max(1, math.ceil(self.end / rotation_interval - 1e-9))
        interval = min(max(int(seconds / rotation_interval), 0), num_intervals - 1)
        return self.rate_schedule.at(interval, num_intervals)

    @property
    def smallest_rate(self) -> float:
        """The schedule's smallest factor: that of the last interval."""
        num_intervals = max(1, math.ceil(self.end / self.times.rotation_interval - 1e-9))
        return self.rate_schedule.at(num_intervals - 1, num_intervals)

    @property
    def rules(self) -> Rules:
        """The rules that this configuration stands for."""
        ablation = self.ablation
        policy: ResourcePolicy = "random" if ablation in ("random", "random-resource") else self.resource_policy
        return Rules(
            random_container=ablation in ("random", "random-container"),
            resource_policy=policy,
            use_cost=ablation != "without-cost",
            use_time=ablation != "without-time",
            rotate=ablation != "aggregation",
            price=self.price_rule,
        )

    def with_contents(self) -> NebulaFLConfig:
        """Return the same, with the content of catalogue and network where it has their paths.

        Raises:
            BadInput: a file cannot be read.
        """
        texts = {name: content_of(name, given) for name, given in named_files(self).items()}
        return dataclasses.replace(self, **texts)  # type: ignore[arg-type]

    @property
    def follows_trainings(self) -> bool:
        """Whether the times of the run follow those of trainings, which are tried before it begins."""
        return self.rotation_interval == "auto" and self.duration == "auto"

    @property
    def times(self) -> Times:
        """The times in numbers; where they follow trainings not tried yet, the longest that they may be."""
        rounds = self.num_rounds if self.algorithm == "nebulafl" else None
        rotations = max(ROTATIONS, rounds or 0)
        interval = self.rotation_interval
        if interval == "auto":
            interval = LONGEST_INTERVAL if self.duration == "auto" else self.duration / ROTATIONS
        duration = rotations * interval if self.duration == "auto" else self.duration
        evaluation = interval if self.evaluation_interval == "auto" else self.evaluation_interval
        return Times(rotation_interval=interval, duration=duration, evaluation_interval=evaluation)

    def timed(self, training_seconds: float) -> NebulaFLConfig:
        """Return the same with its times in numbers, once a local training was tried.

        Raises:
            BadInput: trainings that the times would follow take no time.
        """
        interval = self.times.rotation_interval
        if self.follows_trainings:
            if not SHORTEST_TRAINING <= training_seconds < math.inf:
                raise BadInput(f"rotation_interval: auto is not allowed with trainings of {training_seconds:g} s")
            interval = min(interval, TRAININGS * training_seconds)
        timed = dataclasses.replace(self, rotation_interval=interval)
        return dataclasses.replace(timed, **dataclasses.asdict(timed.times))

    @property
    def end(self) -> float:
        """Seconds after which no center rotates or is measured: T, or the last rotation that was asked for."""
        times = self.times
        if self.algorithm != "nebulafl" or self.num_rounds is None:
            return times.duration
        return min(times.duration, self.num_rounds * times.rotation_interval)

    @property
    def num_measurements(self) -> int:
        """How often the model is measured, the last time at the end."""
        interval = self.times.evaluation_interval
        number = math.ceil(self.end / interval - 1e-9)
        return number + (number * interval < self.end)

    @property
    def num_rotations(self) -> int:
        """How often a center's master goes to another, the one at time 0 of `paper_literal` included."""
        return math.floor(self.end / self.times.rotation_interval + 1e-9) + self.paper_literal

    @property
    def num_changes(self) -> int:
        """How often the driver may say that who was lost is gone or back; never where the first loss ends the run."""
        if self.on_party_loss == "stop":
            return 0
        members = self.num_centers + self.num_containers
        if self.on_party_loss == "continue":
            return members
        each = min(_MOST_INSTANTS, self.times.duration / max(self.restart_seconds, 1e-9)) + 1
        return 2 * members * math.ceil(each)

    @property
    def num_center_rounds(self) -> int | None:
        """How many rounds a center is asked for by a method that aggregates center by center; None: see `duration`."""
        if self.algorithm not in BY_CENTER:
            return 0
        return None if self.num_rounds is None else self.num_rounds + self.num_changes

    @property
    def num_summed_rounds(self) -> int | None:
        """The same of rounds whose answers are summed."""
        return self.num_center_rounds if self.secure_aggregation else 0

    @property
    def num_orders(self) -> int | None:
        """How many trainings a flat baseline orders from a center; None: as many as end within `duration`."""
        if self.algorithm in BY_CENTER:
            return 0
        if self.num_rounds is None or self.algorithm == "pisces":
            return None
        num_slots = self.active_per_center * self.num_centers
        arrivals = {"fedasync": 1, "gitfl": 1, "fedbuff": self.buffer_size}.get(self.algorithm, num_slots)
        lost = self.num_changes + 2 * len(self.container_outages())
        return self.num_rounds * arrivals + num_slots * (1 + lost)

    @property
    def center_sizes(self) -> tuple[int, ...]:
        """Containers of each center; the first ones have one more where the division leaves a rest."""
        share, rest = divmod(self.num_containers, self.num_centers)
        return tuple(share + (index < rest) for index in range(self.num_centers))
