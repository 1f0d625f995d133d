"""Settings of a GLASU run, and what the special cases of Section 2.4 and the baselines fix."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedactors.config import Device, NamedCode, OnlyWith, config
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
    """Number of graph clients M; the centralised special case merges them into one."""

    edge_share: float = Field(0.8, gt=0, le=1)
    """Share of the edges of a named graph that each client keeps, drawn for each client on its own."""

    backbone: Literal["gcn", "gat", "gcnii"] = "gcnii"
    """Graph layer of every client."""

    user_layer: NamedCode = ""
    """A graph layer of your own instead, ``package.module:function``: called with its input's width and `hidden_size`,
    it returns a module from each node's row and the weighted mean over it and its neighbours to the node's next row."""

    num_layers: int = Field(4, ge=1, le=1000)
    """Number of layers L."""

    aggregation_layers: Annotated[tuple[int, ...] | None, BeforeValidator(_layers)] = None
    """Layers l, counted from 0, after which the server aggregates (lazy aggregation); the last must be among them.
    None takes every second layer, or what the special case fixes."""

    aggregation: Literal["average", "concatenation"] = "average"
    """What the server makes of the clients' representations."""

    mode: Literal["paper", "joint"] = "paper"
    """`paper`: Algorithm 4, nothing is sent backward. `joint`: the server sends back gradients of the mean loss."""

    num_local_updates: int = Field(1, ge=1)
    """Updates Q that a client makes on one joint inference (stale updates)."""

    special_case: SpecialCase = "none"
    """A known method as a configuration: `zhou` aggregates once, `ni` at every layer, `vfl` ignores the edges,
    `simulated-centralised` gives every client all edges and aggregates at every layer, `centralised` is one client
    with everything, `standalone` never communicates."""

    hidden_size: int = Field(64, ge=1, le=16384)
    """Width D of every representation."""

    num_heads: int = Field(4, ge=1, le=1024)
    """Attention heads of `gat`; must divide the hidden size."""

    alpha: float = Field(0.1, ge=0, le=1)
    """Weight of the initial representation in `gcnii`."""

    lam: float = Field(0.5, gt=0)
    """Strength of the layer weights in `gcnii` (lambda in the paper of that backbone)."""

    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of entries dropped at each layer's input in training; the same ones in joint inference and first update."""

    num_rounds: int = Field(150, ge=1)
    """Training rounds T, one joint inference each."""

    batch_size: int | None = Field(None, ge=1)
    """Training nodes in a round; None trains on the full graph."""

    num_neighbours: int | None = Field(None, ge=1)
    """Neighbours sampled for each node and layer, over the client's own edges; None takes all. Needs a batch size."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """Rule of the local updates."""

    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"  # type: ignore[assignment]
    """Step size at the start; auto is 0.01 / Q: the others' parts stand still while a client makes its Q updates."""

    weight_decay: float = Field(3e-3, ge=0)
    """Penalty on the size of parameters; each of the M clients applies its M-th part."""

    scale_features: bool = True
    """Whether each client scales its feature block, by one number, to rows of a common mean length; with noise each row
    on its own, since a mean lets one node move all rows."""

    average_classifiers: bool = False
    """Whether the clients' classifiers are averaged after every round; with stale updates they drift apart."""

    evaluate_every: int = Field(10, ge=1)
    """Rounds between two evaluations on all nodes."""

    evaluation_nodes: int = Field(65536, ge=1)
    """Nodes at a time in an evaluation of a network that is trained on batches: a client holds two representations of
    all nodes, and beside them what that many nodes and their neighbours need."""

    patience: int | None = Field(None, ge=1)
    """Evaluations without a better ``validation/accuracy`` after which the run stops; None never stops early."""

    secure_aggregation: bool = False
    """Whether the server sees only the masked sum; needs `average` and at least three clients."""

    secure_range: float = Field(64.0, gt=0, le=1e9)
    """Largest absolute value of a number under masks: representations without a clip norm, logits, classifiers; a
    64th of it for gradients. The error of a sum of M numbers is at most M^2 2^-32 times that; larger is an error."""

    noise_multiplier: float = Field(0.0, ge=0)
    """Standard deviation of the Gaussian noise on sent representations, in units of the clip norm."""

    clip_norm: float | None = Field(None, gt=0)
    """Largest length of a node's representation at an aggregation; needed for noise."""

    float64: bool = False
    """Whether representations and parameters are double precision, for equal numbers on different machines."""

    device: Device = "cpu"
    """Where clients compute: `cpu`, `cuda`, `cuda:N`, or `auto` for a GPU if there is one."""

    num_gpus: float = Field(0.0, ge=0, le=1024)
    """Share of a GPU that each client asks Ray for."""

    client_timeout: float = Field(600.0, gt=0)
    """Seconds that the server waits for a client's answer; one that gives none in time counts as lost."""

    on_party_loss: Literal["stop", "continue"] = "stop"
    """What follows when a client is lost: `stop` ends the run with its name, `continue` trains on without its block."""

    reproducible_noise: bool = False
    """Draw noise and masks from the run's seed: for tests and simulation, without any privacy guarantee."""

    delta: float = Field(1e-5, gt=0, lt=1)
    """The delta of the privacy statement."""

    max_degree: int | None = Field(None, ge=1)
    """Bound on a node's degree in the privacy statement: one node changes the rows of its neighbours too."""

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
