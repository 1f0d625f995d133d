"""Settings of a GLASU run, and what the special cases of Section 2.4 and the baselines fix."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedactors.config import Device, DrawsFromSeed, NamedCode, OnlyWith, config
from fedactors.learning.optimizers import StepSettings

SpecialCase = Literal["none", "centralised", "standalone", "simulated-centralised", "zhou", "ni", "vfl"]


_STEP = 0.01
"""Of one update on a joint inference; with Q of them each takes its Q-th part, a rule and no tuned value."""


def _layers(value: Any) -> Any:
    return (value,) if isinstance(value, str | int) else value


@config
class GlasuConfig(StepSettings):
    """One training run of GLASU; values are validated, contradictions are errors that name the field."""

    sections: ClassVar = {
        "num_clients": "Federation",
        "backbone": "Model",
        "schedule": "Training",
        "num_rounds": "Training",
        "secure_aggregation": "Privacy",
        "float64": "Running",
        "reproducible_noise": "Privacy",
    }
    only_with: ClassVar[OnlyWith] = {
        "backbone": {"user_layer": ("",)},
        "num_heads": {"backbone": ("gat",)},
        "alpha": {"backbone": ("gcnii",)},
        "lam": {"backbone": ("gcnii",)},
        "evaluation_nodes": {"batch_size": None},
        "secure_range": {"secure_aggregation": (True,)},
        "delta": {"noise_multiplier": None},
    }

    num_clients: int = Field(3, ge=1, le=1000)
    """Number of graph clients (M); the `centralised` special case merges them into one."""

    edge_share: float = Field(0.8, gt=0, le=1)
    """Fraction of a named graph's edges that each client keeps, drawn independently per client."""

    backbone: Literal["gcn", "gat", "gcnii"] = "gcnii"
    """Graph layer of all clients."""

    user_layer: NamedCode = ""
    """Your own graph layer, ``package.module:function``. Called with the input width and `hidden_size`, it returns a
    module that maps each node's row, and the weighted mean over the node and its neighbours, to the node's next row."""

    num_layers: int = Field(4, ge=1, le=1000)
    """Number of layers L."""

    aggregation_layers: Annotated[tuple[int, ...] | None, BeforeValidator(_layers)] = None
    """Layers after which the server aggregates (lazy aggregation), counted from 0 and including the last. `none` takes
    every second layer, or the special case's layers."""

    aggregation: Literal["average", "concatenation"] = "average"
    """Aggregation of the clients' representations at the server."""

    mode: Literal["paper", "joint"] = "paper"
    """Training mode: `paper` (Algorithm 4, no backward messages) or `joint` (the server returns gradients of the mean
    loss)."""

    num_local_updates: int = Field(1, ge=1)
    """Local updates per joint inference (Q, stale updates)."""

    special_case: SpecialCase = "none"
    """Run a known method: `zhou` aggregates once, `ni` at every layer, `vfl` ignores edges, `simulated-centralised`
    gives every client all edges and aggregates at every layer, `centralised` is one client with everything,
    `standalone` never communicates."""

    hidden_size: int = Field(64, ge=1, le=16384)
    """Width of all representations (D)."""

    num_heads: int = Field(4, ge=1, le=1024)
    """Attention heads of `gat`; must divide the hidden size."""

    alpha: float = Field(0.1, ge=0, le=1)
    """Weight of the initial representation in `gcnii`."""

    lam: float = Field(0.5, gt=0)
    """Strength of the layer weights in `gcnii` (lambda in its paper)."""

    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout rate at each layer's input, with the same entries in joint inference and the first update."""

    num_rounds: int = Field(150, ge=1)
    """Training rounds (T), with one joint inference each."""

    batch_size: int | None = Field(None, ge=1)
    """Training nodes per round; `none` trains on the full graph."""

    num_neighbours: int | None = Field(None, ge=1)
    """Neighbours sampled per node and layer over the client's own edges; `none` takes all. Needs `batch_size`."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """Optimiser of local updates."""

    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"  # type: ignore[assignment]
    """Initial learning rate; `auto` is 0.01 / Q, because the other clients' parts stay fixed during Q local updates."""

    weight_decay: float = Field(3e-3, ge=0)
    """Weight decay; each of the M clients applies 1/M of it."""

    scale_features: bool = True
    """Scale each client's features by one factor, to rows of a common mean norm. With noise each row is scaled on its
    own, because a mean would let one node change all rows."""

    average_classifiers: bool = False
    """Average the clients' classifiers after every round; with stale updates they drift apart otherwise."""

    evaluate_every: int = Field(10, ge=1)
    """Rounds between evaluations on all nodes."""

    evaluation_nodes: int = Field(65536, ge=1)
    """Nodes per block when evaluating a network trained on batches. A client holds two representations of all nodes,
    plus the memory of one block and its neighbours."""

    patience: int | None = Field(None, ge=1)
    """Early stopping: evaluations without a better ``validation/accuracy``; `none` disables it."""

    secure_aggregation: bool = False
    """Secure aggregation: the server sees only the sum. Needs `aggregation=average` and at least three clients."""

    secure_range: float = Field(64.0, gt=0, le=1e4)
    """Largest absolute value in secure sums (representations without a clip norm, logits, classifiers; 1/64 of it for
    gradients); a larger value is an error. The error of a sum of M values is at most M^2 2^-32 times this."""

    noise_multiplier: float = Field(0.0, ge=0)
    """Standard deviation of Gaussian noise on sent representations, in units of `clip_norm`."""

    clip_norm: float | None = Field(None, gt=0)
    """Clip a node's representation to this norm at an aggregation; required with noise."""

    float64: bool = False
    """Use double precision, for equal results on different machines."""

    device: Device = "cpu"
    """Device of the clients: `cpu`, `cuda`, `cuda:N`, or `auto` (a GPU if available)."""

    num_gpus: float = Field(0.0, ge=0, le=1024)
    """Fraction of a GPU that each client requests from Ray."""

    client_timeout: float = Field(600.0, gt=0)
    """Seconds to wait for a client's reply before it counts as lost."""

    on_party_loss: Literal["stop", "continue"] = "stop"
    """On a lost client: `stop` ends the run, `continue` trains without its block."""

    reproducible_noise: DrawsFromSeed = False
    """Draw noise and masks from the run's seed: for tests and simulation, without any privacy guarantee."""

    delta: float = Field(1e-5, gt=0, lt=1)
    """Delta of the privacy guarantee."""

    max_degree: int | None = Field(None, ge=1)
    """Largest node degree assumed by the privacy guarantee, because one node also changes its neighbours' rows."""

    @property
    def step_size(self) -> float:
        """The step size at the start."""
        return _STEP / self.num_local_updates if self.learning_rate == "auto" else self.learning_rate

    @property
    def num_evaluations(self) -> int:
        """How often the network is measured."""
        return -(-self.num_rounds // self.evaluate_every)

    @property
    def num_inferences(self) -> int:
        """Passes through the network, for training and to measure it."""
        return self.num_rounds + self.num_evaluations

    @property
    def num_passes(self) -> int:
        """Segments above the lowest one in all passes."""
        return self.num_inferences * (len(self.resolved_layers) - 1)

    @property
    def num_samples(self) -> int:
        """Segments above the lowest one in all rounds, whose neighbours are sampled; none of a graph that is whole."""
        return 0 if self.batch_size is None else self.num_rounds * (len(self.resolved_layers) - 1)

    @property
    def num_joint_rounds(self) -> int:
        """Rounds whose gradients go back through the aggregations."""
        return self.num_rounds if self.mode == "joint" else 0

    @property
    def num_averages(self) -> int:
        """How often the classifiers are averaged."""
        return self.num_rounds if self.average_classifiers else 0

    @property
    def works_alone(self) -> bool:
        """Whether clients never communicate, and there is no server."""
        return self.special_case in ("centralised", "standalone")

    @property
    def sees_everything(self) -> bool:
        """Whether this is a baseline whose clients load everybody's part."""
        return self.special_case in ("centralised", "simulated-centralised")

    @property
    def num_networks(self) -> int:
        """Clients whose representations meet in one aggregation: M, or 1 without communication."""
        return 1 if self.works_alone else self.num_clients

    @property
    def resolved_layers(self) -> tuple[int, ...]:
        """The aggregation layers in force."""
        fixed = _fixed_layers(self.special_case, self.num_layers)
        if fixed is not None:
            return fixed
        return self.aggregation_layers or tuple(range(self.num_layers - 1, -1, -2))[::-1]

    @model_validator(mode="after")
    def _consistent(self) -> GlasuConfig:
        layers, last = self.aggregation_layers, self.num_layers - 1
        if layers is not None:
            if any(layer < 0 or layer > last for layer in layers):
                raise ValueError(f"aggregation_layers: {layers} is not allowed: layers are 0 to {last}")
            if last not in layers:
                raise ValueError(f"aggregation_layers: {layers} is not allowed: the last layer, {last}, must be in it")
            if any(after <= before for before, after in pairwise(layers)):
                raise ValueError(f"aggregation_layers: {layers} is not allowed: each layer once, in ascending order")
            fixed = _fixed_layers(self.special_case, self.num_layers)
            if fixed is not None and layers != fixed:
                raise ValueError(f"aggregation_layers: {layers} is not allowed: {self.special_case} fixes {fixed}")
        if self.backbone == "gat" and self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} is not allowed: must divide hidden_size {self.hidden_size}")
        if self.num_neighbours is not None and self.batch_size is None:
            raise ValueError(
                f"num_neighbours: {self.num_neighbours} is not allowed: the full graph is not sampled, give batch_size"
            )
        if self.secure_aggregation and self.aggregation != "average":
            raise ValueError("secure_aggregation: True is not allowed: only with aggregation average")
        if self.secure_aggregation and self.num_networks < 3:
            raise ValueError("secure_aggregation: True is not allowed: it needs at least three communicating clients")
        if self.noise_multiplier and self.clip_norm is None:
            raise ValueError(f"noise_multiplier: {self.noise_multiplier} is not allowed: noise needs clip_norm")
        if self.noise_multiplier and self.max_degree is None:
            raise ValueError(f"noise_multiplier: {self.noise_multiplier} is not allowed: the account needs max_degree")
        if self.noise_multiplier and self.num_networks == 1:
            raise ValueError(
                f"noise_multiplier: {self.noise_multiplier} is not allowed: {self.special_case} sends nothing"
            )
        return self


def _fixed_layers(special_case: SpecialCase, num_layers: int) -> tuple[int, ...] | None:
    if special_case in ("ni", "simulated-centralised"):
        return tuple(range(num_layers))
    if special_case in ("zhou", "centralised", "standalone"):
        return (num_layers - 1,)
    return None
