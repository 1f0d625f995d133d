"""Configuration of a TablePuppet run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedactors.config import OnlyWith, config

_ADMM = ("rfl-admm-v", "rfl-admm", "vfl-admm")
_SGD = ("rfl-sgd-v", "rfl-sgd", "vfl-sgd")


@config
class TablePuppetConfig:
    """What is trained and how; the query, its sources and the label belong to the data."""

    by_rows: ClassVar = ("num_rounds",)
    """Settings of which 0 stands for what follows from the run."""

    sections: ClassVar = {
        "algorithm": "Method",
        "num_partitions": "Data",
        "admm": "Method",
        "model": "Models",
        "num_rounds": "Training",
        "centralised": "Method",
        "standardise": "Data",
        "lou_coordinator": "Placement",
        "secure_aggregation": "Privacy",
        "join_by": "Table mapping",
        "local_baseline": "Results",
        "on_party_loss": "Lost parties",
    }
    only_with: ClassVar[OnlyWith] = {
        **{name: {"algorithm": _ADMM} for name in ("admm", "rho", "over_relaxation")},
        **{name: {"algorithm": ("rfl-admm",)} for name in ("inner_rounds", "inner_rho")},
        **{name: {"algorithm": _SGD, "centralised": ("sgd",)} for name in ("learning_rate", "batch_size")},
        "max_batches": {"algorithm": _SGD},
        **{
            name: {"admm": ("paper_sgd",)}
            for name in ("local_epochs", "local_batch_size", "local_learning_rate", "local_weight_decay")
        },
        **{name: {"feature_dp": None} for name in ("feature_delta", "clip", "prediction_clip", "prediction_noise")},
        "hidden_size": {"model": ("neural",)},
        "lbfgs_iterations": {"model": ("neural",), "algorithm": ("centralised",)},
        "centralised": {"algorithm": ("centralised",)},
        "secure_range": {"secure_aggregation": (True,)},
    }

    algorithm: Literal["rfl-admm-v", "rfl-sgd-v", "rfl-admm", "rfl-sgd", "vfl-admm", "vfl-sgd", "centralised"] = (
        "rfl-admm-v"
    )
    """Algorithm of Table 5, or a baseline; ``rfl-...-v`` and ``vfl-...`` need one partition per table."""
    num_partitions: int | None = Field(default=None, ge=1, le=1000)
    """Horizontal partitions of each table of a named data set; `none` is 2 for rfl-sgd and rfl-admm, else 1."""
    task: Literal["regression", "binary", "multiclass"] | None = None
    """Task on a named data set's label; `none` takes the data set's task."""
    num_classes: int | None = Field(default=None, ge=2, le=65536)
    """Classes of a multiclass task; `none` takes the data's."""
    test_fraction: float = Field(default=0.15, gt=0, lt=1)
    """Fraction of the label table's rows held out for the test, with all joined rows that contain them."""
    admm: Literal["boyd", "paper_exact", "paper_sgd"] = "boyd"
    """Form of the theta update: sharing ADMM (converges), Eq. 16 solved exactly (may diverge), Eq. 16 by SGD."""
    model: Literal["auto", "linear", "logistic", "softmax", "neural"] = "auto"
    """Each table's local model; ``auto`` is linear, logistic or softmax by the task; ``neural`` has a hidden layer."""
    hidden_size: int = Field(default=16, ge=1, le=16384)
    """Hidden units of a neural local model."""
    num_rounds: int = Field(default=0, ge=0)
    """Outer rounds of ADMM, or epochs of SGD. 0 trains until the training loss moves in six rounds by less than 1 % of
    its whole gain, at most 200 rounds; with `feature_dp`, whose budget the rounds divide, it is 10."""
    tolerance: float = Field(default=0.0, ge=0)
    """ADMM: stop when both residuals are at most this fraction of their scales (Boyd et al. 2011, Section 3.3.1); 0
    runs all rounds."""
    rho: Annotated[float, Field(gt=0)] | Literal["curvature", "auto"] = "curvature"
    """Penalty of the outer ADMM (paper: 0.1 to 10). With ``admm=boyd``, ``curvature`` is 0.3 times the curvature of the
    loss at the start of training (for classes 0.15 times). ``auto`` starts at 1 and balances the residuals in the first
    half of the rounds (Boyd et al. 2011, Section 3.4.1, relative to their scales). With another form of ADMM both are
    1."""
    over_relaxation: float = Field(default=1.6, ge=1, lt=2)
    """Over-relaxation of ``admm=boyd`` (Boyd et al. 2011, Section 3.4.3); 1 disables it. It has no effect with
    ``rho=auto``."""
    inner_rounds: int = Field(default=10, ge=1)
    """Consensus rounds over a table's partitions in each outer round; u and w carry over."""
    inner_rho: float | None = Field(default=None, gt=0)
    """Penalty of the consensus rounds (Eq. 20-22); `none` takes the first `rho`."""
    beta: float = Field(default=1e-5, ge=0)
    """Weight of R(theta) = |theta|^2 / 2."""
    learning_rate: float = Field(default=0.1, gt=0)
    """Learning rate of the SGD algorithms (paper: 0.01 to 0.5)."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Joined rows per batch of the SGD algorithms; ``auto`` is the paper's 10,240, at most a tenth of all rows."""
    max_batches: int = Field(default=1000, ge=1)
    """Maximum number of batches per epoch of the SGD algorithms. The server states how many rows the join has, and may
    ask for no more batches than this."""
    local_epochs: int = Field(default=10, ge=1)
    """Epochs of each theta update in ``paper_sgd``."""
    local_batch_size: int = Field(default=1024, ge=1)
    """Rows per batch of ``paper_sgd``."""
    local_learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of ``paper_sgd``."""
    local_weight_decay: float = Field(default=1e-5, ge=0)
    """Weight decay of ``paper_sgd``."""
    lbfgs_iterations: int = Field(default=50, ge=1)
    """Maximum number of L-BFGS iterations of a neural theta update in the exact modes."""
    centralised: Literal["exact", "sgd"] = "exact"
    """Training of the centralised baseline on the joined table: ``exact`` (ridge or L-BFGS), or mini-batch ``sgd`` as
    in the SGD algorithms."""
    centre_labels: bool = True
    """Start the label table's bias at the best predictor without features: the labels' mean, or the logarithms of the
    classes' shares. The training problem stays the same."""
    standardise: bool = True
    """Scale numeric features to mean 0 and standard deviation 1 over their table."""
    declared_facts: tuple[str, ...] = ()
    """Facts to encode every feature by, instead of the tables' own: ``column=LOW:HIGH`` for numbers, ``column=A|B|C``
    for categories and for the label of a multiclass task. No facts of the rows then leave or count."""
    lou_coordinator: Literal["server", "organisation"] = "server"
    """Location of the LoU operator; in the organisation the server never sees theta."""
    server_in: str | None = None
    """Table whose first client also hosts the server (Section 3); `none` for an independent server."""
    secure_aggregation: bool = False
    """Secure aggregation: a server that follows the protocol sees only the sum of the tables' predictions. Needs three
    or more tables of one partition each. Joined rows that differ in one table only still reveal that table's
    differences; a warning counts them."""
    secure_range: float = Field(default=100.0, gt=0, le=1e6)
    """Largest absolute prediction in secure sums; the error of a sum over M tables is at most M^2 2^-32 times this."""
    label_dp: float | None = Field(default=None, gt=0)
    """Standard deviation lambda of the Laplace noise on labels (paper: 0.5); `none` adds no noise."""
    label_range: tuple[float, float] | None = None
    """Range to which numeric labels are clipped; required for `label_dp` with the squared loss."""
    feature_dp: float | None = Field(default=None, gt=0)
    """Budget epsilon of DP-SGD on features over the whole run (paper: 1); `none` adds no noise."""
    feature_delta: float = Field(default=1e-5, gt=0, lt=1)
    """Delta of `feature_dp`."""
    clip: float = Field(default=1.0, gt=0)
    """With `feature_dp`: clip a base row's aggregated gradient to this L2 norm."""
    prediction_clip: float | None = Field(default=None, gt=0)
    """With `feature_dp`: clip each prediction to this L2 norm; `none` reports predictions as "not covered"."""
    prediction_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of the Gaussian noise on predictions, in units of `prediction_clip`."""
    join_by: Literal["auto", "rows", "tree"] = "auto"
    """``rows``: the server lists the joined rows. ``tree``: it passes sums along the join tree, which costs as much as
    the tables' rows whatever the join's size; it needs the squared loss and rfl-admm-v or rfl-admm. Numbers are equal
    up to rounding, but ``tree`` has no mean absolute error. ``auto`` uses it where the join has more than four times
    the tables' rows."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of each DuckDB; `none` uses all cores."""
    memory_limit: str | None = Field(default=None, pattern=r"^[0-9]{1,6}(\.[0-9]{1,3})? ?[MGT]i?B$")
    """DuckDB's memory limit for the table mapping, such as 4GB."""

    local_baseline: bool = True
    """Also train a model on the label owner's own columns, to report what the others' columns add. No message is
    involved, and only its test metrics are reported. Not with a privacy budget of rows, nor for a table in several
    partitions."""

    on_party_loss: Literal["stop"] = "stop"
    """A lost client takes its table with it: the run stops with its name, and can be resumed."""

    @model_validator(mode="after")
    def _check(self) -> TablePuppetConfig:
        if self.tolerance > 0 and not self.is_admm:
            raise ValueError(f"tolerance: {self.tolerance:g} is not allowed for {self.algorithm}: residuals are ADMM's")
        if self.feature_dp is not None and self.is_admm and self.admm != "paper_sgd":
            raise ValueError(f"feature_dp: exact solves (admm={self.admm}) have no DP; choose admm=paper_sgd or SGD")
        if self.feature_dp is not None and self.algorithm == "centralised":
            raise ValueError("feature_dp: the centralised baseline has none; leave it out")
        if self.feature_dp is not None and self.is_vertical:
            raise ValueError(f"feature_dp: not with {self.algorithm}, whose slices repeat base rows; use rfl-...")
        for entry in self.declared_facts:
            if "=" not in entry:
                raise ValueError(f"declared_facts: {entry!r} is not allowed: use column=LOW:HIGH or column=A|B|C")
        if self.memory_limit is not None and _bytes(self.memory_limit) < _LEAST_MEMORY:
            raise ValueError(f"memory_limit: {self.memory_limit} is not allowed: at least 16MB")
        if self.join_by == "tree" and not self.may_follow_tree:
            name, value = ("secure_aggregation", True) if self.secure_aggregation else ("algorithm", self.algorithm)
            raise ValueError(f"join_by: tree is not allowed with {name}={value}, which needs joined rows; use rows")
        if self.secure_aggregation and self.algorithm not in ("rfl-admm-v", "rfl-sgd-v"):
            raise ValueError(f"secure_aggregation: only with rfl-admm-v and rfl-sgd-v, not with {self.algorithm}")
        if self.label_range is not None and not self.label_range[0] < self.label_range[1]:
            raise ValueError(f"label_range: {self.label_range} is not allowed: the first number must be the smaller")
        low, high = self.label_range or (0.0, 1.0)
        if self.label_dp is not None and max(high - low, 1.0) > _MOST_LAMBDAS * self.label_dp:
            least = max(high - low, 1.0) / _MOST_LAMBDAS
            raise ValueError(
                f"label_dp: {self.label_dp:g} is not allowed: {least:g} at least, which hides nothing already"
            )
        if self.prediction_noise > 0 and self.prediction_clip is None:
            raise ValueError("prediction_noise: needs prediction_clip, which bounds what it hides")
        return self

    def batch_of(self, num_joined: int) -> int:
        """Return the joined rows in a batch of so many in all."""
        return min(_BATCH, max(num_joined // 10, 1)) if self.batch_size == "auto" else self.batch_size

    @property
    def first_rho(self) -> float:
        """The penalty of the first round."""
        return 1.0 if isinstance(self.rho, str) else self.rho

    @property
    def measures_alone(self) -> bool:
        """Whether the label's owner also trains on its own columns."""
        is_open = self.feature_dp is None and self.label_dp is None
        return self.local_baseline and is_open and not self.is_vertical and self.algorithm != "centralised"

    @property
    def relaxation(self) -> float:
        """The over-relaxation that the form of ADMM has."""
        return self.over_relaxation if self.admm == "boyd" and not self.adapts_rho else 1.0

    @property
    def most_rounds(self) -> int:
        """Rounds at most."""
        return self.num_rounds or (10 if self.feature_dp is not None else 200)

    @property
    def adapts_rho(self) -> bool:
        """Whether the penalty follows the residuals."""
        return self.is_admm and self.rho == "auto" and self.admm == "boyd"

    @property
    def partitions(self) -> int:
        """Horizontal partitions of each table of a named data set."""
        return self.num_partitions or (2 if self.algorithm in ("rfl-sgd", "rfl-admm") else 1)

    @property
    def may_follow_tree(self) -> bool:
        """Whether what the server computes may be passed along the join tree, if the loss is squared."""
        return self.algorithm in ("rfl-admm-v", "rfl-admm") and not self.secure_aggregation

    @property
    def num_solutions(self) -> int:
        """Rounds in which a table of one partition solves for theta; 0 where another algorithm trains."""
        return self.most_rounds if self.is_admm else 0

    @property
    def num_tests(self) -> int:
        """How often the tables predict the rows that are kept for the test."""
        return 0 if self.algorithm == "centralised" else self.most_rounds

    @property
    def num_consensus_rounds(self) -> int:
        """Rounds in which the partitions of a table agree on theta."""
        return self.most_rounds if self.algorithm == "rfl-admm" else 0

    @property
    def is_admm(self) -> bool:
        """Whether the algorithm is one of the ADMM family."""
        return self.algorithm.endswith(("admm", "admm-v"))

    @property
    def is_vertical(self) -> bool:
        """Whether the algorithm trains on vertical slices of the joined table (VFL-SGD, VFL-ADMM)."""
        return self.algorithm.startswith("vfl")


_BATCH = 10_240
"""The paper's."""
_MOST_LAMBDAS = 2.0**28
"""Of a label's range: what the grid of its noise can hold."""
_LEAST_MEMORY = 16e6
"""Bytes without which DuckDB joins nothing."""


def _bytes(text: str) -> float:
    number = text.rstrip("BiMGT ")
    return float(number) * {"M": 1e6, "G": 1e9, "T": 1e12}[text.removeprefix(number).strip()[0]]
