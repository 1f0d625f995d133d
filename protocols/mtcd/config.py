"""MtcdConfig: what an MTCD run, or one of its baselines, is made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from fedactors.config import Device, NamedCode, OnlyWith, config
from fedactors.errors import BadInput
from fedactors.learning.optimizers import ScheduleSettings
from fedactors.network.topology import GRAPH_NAMES, check_partition, graph_text, read_graph
from fedactors.secure_sums.primitives import FEWEST


@config
class MtcdConfig(ScheduleSettings):
    """Settings of MTCD, STCD, SVFL and DCPA on one problem."""

    sections: ClassVar = {
        "algorithm": "Method",
        "problem": "Problem and model",
        "topology": "Clients and tokens",
        "schedule": "Training",
        "num_hops": "Training",
        "walk": "Clients and tokens",
        "relaxed_protocol": "Privacy",
        "compression": "Compression",
        "secure_aggregation": "Privacy",
        "noise": "Privacy",
        "dcpa_dual_step": "Method",
        "device": "Running",
        "visit_timeout": "Lost parties",
    }
    files: ClassVar = {"topology": GRAPH_NAMES}
    only_with: ClassVar[OnlyWith] = {
        "ridge_penalty": {"problem": ("ridge",)},
        "l1_penalty": {"problem": ("sparse-logistic",)},
        "network": {"problem": ("network",)},
        "user_network": {"problem": ("network",)},
        "representation_size": {"problem": ("network",)},
        "hidden_size": {"problem": ("network",)},
        "edge_probability": {"topology": ("erdos-renyi",)},
        "mode": {"algorithm": ("mtcd",)},
        "clusters": {"algorithm": ("mtcd",)},
        "start": {"algorithm": ("mtcd", "stcd")},
        "compression_ratio": {"compression": ("top-k",)},
        "quantise_bits": {"compression": ("quantise",)},
        "error_feedback": {"compression": None},
        "clip_norm": {"noise": None},
        "noise_multiplier": {"noise": None},
        "delta": {"noise": None},
        "dcpa_dual_step": {"algorithm": ("dcpa",)},
        "secure_range": {"secure_aggregation": (True,)},
    }

    algorithm: Literal["mtcd", "stcd", "svfl", "dcpa"] = "mtcd"
    """Training method: `mtcd` (tokens and a server), `stcd` (one token, no server), `svfl` (client-server, every client
    in every round) or `dcpa` (dual consensus)."""

    problem: Literal["ridge", "sparse-logistic", "network"] = "ridge"
    """Objective: ridge regression, sparse logistic regression, or a split neural network."""

    num_samples: int = Field(default=1000, ge=1)
    """Rows of the generated data (N); ignored with your own data."""

    num_features: int = Field(default=2000, ge=1)
    """Features of the generated data, split evenly over the clients; ignored with your own data."""

    ridge_penalty: float = Field(default=10.0, ge=0)
    """Ridge penalty (alpha)."""

    l1_penalty: float = Field(default=1e-3, ge=0)
    """L1 penalty of sparse logistic regression (beta)."""

    network: Literal["mlp", "resnet18", "multi-view-cnn"] = "mlp"
    """Representation model of each client when problem is network."""

    user_network: NamedCode = ""
    """Your own representation model, ``package.module:function``; called with a sample's shape and
    `representation_size`."""

    aggregation: Literal["sum", "concatenation"] = "sum"
    """Combine representations into Z by sum or concatenation; generalised linear models only sum."""

    representation_size: int = Field(default=16, ge=1, le=16384)
    """Values per sample in a client's representation (E), for networks."""

    hidden_size: int = Field(default=64, ge=1, le=16384)
    """Hidden units of the mlp, or channels of the first stage of the convolutional networks."""

    topology: str = Field(default="path", min_length=1)
    """Communication graph: complete, path, ring, erdos-renyi, star, grid, empty, or a graph file."""

    edge_probability: float = Field(default=0.3, ge=0, le=1)
    """Edge probability of an erdos-renyi graph."""

    num_clients: int = Field(default=40, ge=1, le=10000)
    """Number of clients (K)."""

    clusters: (
        Literal["auto", "whole", "components", "greedy-modularity", "louvain", "label-propagation"]
        | tuple[tuple[int, ...], ...]
    ) = "auto"
    """Clusters for token-per-cluster mode: a list such as [[0,1],[2,3]], a networkx method, the graph's components, or
    one cluster (`whole`); `auto` cuts the graph into `num_tokens` connected clusters of similar size."""

    server_links: Literal["all"] | tuple[int, ...] | None = "all"
    """Clients with a link to the server; `none` for no links. Each component of a disconnected graph needs one.
    Messages of the other clients are relayed along edges, except one key per client: it goes to the server directly
    before training, so that no relay learns it."""

    mode: Literal["token-per-cluster", "overlapping"] = "token-per-cluster"
    """Token movement: one token per disjoint cluster (Section 4.1), or overlapping tokens whose blocks are averaged
    (4.2)."""

    num_tokens: int | None = Field(default=None, ge=1, le=10_000)
    """Number of concurrent tokens (Gamma). Fewer tokens than clusters means partial participation. `none` is four, or
    one per ten clients if that is more, but at most one per two clients and one per given cluster. `stcd` has one;
    `svfl` and `dcpa` have none."""

    num_hops: int = Field(default=9, ge=0, le=10_000)
    """Hops between two syncs (S); a token makes S + 1 visits."""

    num_local_steps: int = Field(default=20, ge=1)
    """Local steps per visit (Q)."""

    backtracking: bool = False
    """Choose a linear model's step size by backtracking line search, starting at `learning_rate`; needs no norm of
    anyone's data. Blocks that move in parallel do not see each other's steps."""

    acceleration: bool = True
    """Generalised linear models with the full batch and `learning_rate=auto`, one token per cluster: a token counts
    what its clients change once per token (CoCoA+, Ma et al. 2015), so that steps of 1/(Gamma L_block) are safe for any
    number of visits. Clients add momentum at a sync, which starts again at 0 where the objective rises. `false` is the
    paper's method. It never applies with noise, compression, backtracking or fewer tokens than clusters."""

    num_rounds: int = Field(default=200, ge=1)
    """Sync rounds; for `stcd`, groups of `num_hops` + 1 visits; for `dcpa`, iterations."""

    record_every: int = Field(default=1, ge=1)
    """Rounds between evaluations and checkpoints."""

    measure_gap: bool = True
    """Compute the exact minimum of generated data first and record the relative gap to it."""

    target_gap: float = Field(default=0.0, ge=0)
    """Stop at this relative gap; 0 runs all rounds."""

    batch_size: int | None = Field(default=None, ge=1)
    """Mini-batch size, with the same rows at all clients of a round; `none` uses the full batch."""

    learning_rate: float | Literal["auto"] = "auto"
    """Step size. `auto` uses 1/L_block while one block moves or tokens are averaged, 1/(Gamma L_block) with
    `acceleration`, and 1/(L x stale steps) in parallel without, with L measured on the rows (or some mini-batches);
    0.05 for a network."""

    optimizer: Literal["sgd"] = "sgd"
    """Local optimiser: only `sgd`. Other clients change Z between two visits, so moments of an earlier visit would be
    stale, and the paper's step sizes and proof assume plain gradient steps."""

    local_arithmetic: Literal["auto", "data", "gram"] = "auto"
    """Ridge with the full batch: compute local steps on the data as in the paper, or on X^T X (equal up to rounding;
    cheaper for long visits of clients with fewer features than rows). `auto` takes the cheaper one."""

    walk: Literal["auto", "lazy", "sweep"] = "auto"
    """Token route: a lazy random walk, or a sweep that visits each client of the cluster once and needs as many hops.
    Overlapping tokens follow one closed route over all clients from different starts. `auto` sweeps where
    `acceleration` applies, every cluster has a route and the hops suffice, and is lazy elsewhere."""

    start: Literal["uniform", "all-clients"] | tuple[int, ...] = "uniform"
    """Start of each token: uniform over its clients, token k at client k (`all-clients`), or a list with one client per
    token."""

    link_cost_ratio: float = Field(default=1.0, gt=0)
    """Cost of a client-server link in units of a client-client link."""

    relaxed_protocol: bool = False
    """Agree that all clients know the labels and see Z; required for your own data."""
    min_aligned_rows: int = Field(default=10, ge=1)
    """Minimum number of aligned rows, and of rows to train on; the other parties refuse fewer."""

    min_cluster_size: int = Field(default=3, ge=1)
    """Warn about clusters smaller than this: with two clients a token reveals the other's exact representation."""

    compression: Literal["top-k", "quantise"] | None = None
    """Lossy compression: `top-k` of representations, or `quantise` of representations and tokens."""

    compression_ratio: float = Field(default=0.1, gt=0, le=1)
    """Fraction of entries kept by `top-k`."""

    quantise_bits: int = Field(default=8, ge=1, le=16)
    """Bits per entry of `quantise`."""

    error_feedback: bool = True
    """Error feedback: send representations as differences to the server's copy, so that dropped entries are sent
    later."""

    secure_aggregation: bool = False
    """Secure aggregation: the server sees only the sum of the clients' representations and regularisers, and every
    client takes part in every sync. Tokens still go from client to client, and a visit's change of Z stays visible."""

    secure_range: float = Field(default=100.0, gt=0, le=1e4)
    """Largest absolute value in secure sums; the error of a sum over K clients is at most K^2 2^-32 times this."""

    noise: Literal["gaussian"] | None = None
    """Differential privacy: add noise to representations, and to a visit's change of Z, before they leave a client."""

    clip_norm: float = Field(default=1.0, gt=0)
    """With noise: clip each sample's representation to this norm."""

    noise_multiplier: float = Field(default=1.0, gt=0)
    """Standard deviation of the noise in units of clip_norm."""

    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Delta of the reported privacy budget."""

    dcpa_dual_step: float | Literal["auto"] = "auto"
    """mu_y of DCPA; the two other steps follow from the sufficient condition. Auto balances the rate near the minimum;
    on the ridge problem with 40 clients and 1,000 samples 0.03 reached a gap of 1e-3 about three times sooner."""

    device: Device = "cpu"
    """Where clients and server compute when problem is network: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` for a GPU if
    there is one. Linear models are computed by numpy, on the CPU."""

    num_gpus: float = Field(default=0.0, ge=0, le=1024)
    """Fraction of a GPU that each process requests from Ray, for networks."""

    visit_timeout: float = Field(default=60.0, gt=0)
    """Seconds a client may hold a token before the token counts as lost."""

    on_party_loss: Literal["stop", "continue"] = "stop"
    """On a lost client: `stop` ends the run; `continue` reissues its tokens from the last sync and freezes its
    block."""

    @model_validator(mode="after")
    def _check(self) -> MtcdConfig:
        for name in ("learning_rate", "dcpa_dual_step"):
            value = getattr(self, name)
            if value != "auto" and not 0 < value < float("inf"):
                raise ValueError(f"{name}: {value} is not allowed, give a finite number above 0 or auto")
        self._settle_tokens()
        if isinstance(self.clusters, tuple):
            self._check_clusters(self.clusters)
        elif self.mode == "token-per-cluster" and self.algorithm == "mtcd":
            limit = 1 if self.clusters == "whole" else self.num_clients
            if self.tokens > limit:
                raise ValueError(
                    f"num_tokens: {self.num_tokens} is not allowed, token-per-cluster mode has at most {limit} "
                    f"cluster(s) here (clusters={self.clusters}); use mode=overlapping for more tokens"
                )
        self._check_links_and_starts()
        for name, given in (("device", self.device not in ("cpu", "auto")), ("num_gpus", self.num_gpus > 0)):
            if given and self.problem != "network":
                raise ValueError(
                    f"{name}: {getattr(self, name)} is not allowed for problem={self.problem}, which numpy computes on "
                    "the CPU"
                )
        if self.secure_aggregation:
            self._check_secure_aggregation()
        if self.problem != "network" and self.aggregation == "concatenation":
            raise ValueError(f"aggregation: concatenation is not allowed for problem={self.problem}, which sums")
        if self.algorithm == "dcpa" and self.problem == "network":
            raise ValueError("algorithm: dcpa is not allowed for problem=network, it needs a convex loss")
        if self.algorithm == "dcpa" and self.batch_size is not None:
            raise ValueError(f"batch_size: {self.batch_size} is not allowed for dcpa, which uses the full batch")
        if self.algorithm == "stcd" and self.batch_size is not None:
            raise ValueError(
                f"batch_size: {self.batch_size} is not allowed for stcd: without a server nobody can form Z on new "
                "rows; use none"
            )
        if self.algorithm == "dcpa" and (self.compression or self.noise):
            raise ValueError("compression, noise: not allowed for dcpa; use none")
        if self.algorithm == "stcd" and self.compression == "top-k":
            raise ValueError("compression: top-k is not allowed for stcd: it sends tokens only; use quantise or none")
        if self.local_arithmetic == "gram" and (self.problem != "ridge" or self.batch_size is not None):
            raise ValueError("local_arithmetic: gram is allowed only for problem=ridge with batch_size=none")
        if self.walk == "sweep" and (self.algorithm != "mtcd" or self.start != "uniform"):
            name, value = ("start", self.start) if self.algorithm == "mtcd" else ("algorithm", self.algorithm)
            raise ValueError(f"walk: sweep is not allowed with {name}={value}: only mtcd's tokens follow a route")
        if self.backtracking:
            self._check_backtracking()
        return self

    @property
    def is_accelerated(self) -> bool:
        """Whether tokens are scaled and syncs add momentum."""
        of_all = self.clusters in ("auto", "whole") or (
            isinstance(self.clusters, tuple) and len(self.clusters) == self.tokens
        )
        is_plain = self.batch_size is None and self.compression is None and self.noise is None and not self.backtracking
        is_linear = self.problem != "network" and self.learning_rate == "auto"
        is_parallel = self.algorithm == "mtcd" and self.mode == "token-per-cluster" and of_all
        return self.acceleration and is_parallel and is_linear and is_plain

    @property
    def token_scale(self) -> float:
        """How often a token counts what its clients change: once for each token that moves beside it."""
        return float(self.tokens) if self.is_accelerated else 1.0

    @property
    def num_measurements(self) -> int:
        """How often the model is measured on the rows of a part at most: before the first round and after each turn."""
        return 2 * (-(-self.num_rounds // self.record_every) + 1)

    @property
    def num_norms(self) -> int:
        """How often a client tells its norm: for the step size, and after a divergence."""
        if self.problem == "network" or self.secure_aggregation:
            return 0
        return 2 if self.learning_rate == "auto" and self.algorithm != "dcpa" else 1

    @property
    def num_visits(self) -> int:
        """How often a token comes to one client at most."""
        return self.num_rounds * max(1, self.tokens) * (self.num_hops + 1)

    @property
    def tokens(self) -> int:
        """Gamma; 0 where there is no token."""
        return self.num_tokens or 0

    def with_contents(self) -> MtcdConfig:
        """Return the same, with the edges of its graph where it has the path of a file."""
        if not {".", "/"} & set(self.topology):
            return self  # no path, but a name that is unknown
        if not Path(self.topology).is_file():
            raise BadInput(f"topology: {self.topology!r} is not a file")
        return dataclasses.replace(self, topology=graph_text(read_graph(Path(self.topology), self.num_clients)))

    def _settle_tokens(self) -> None:
        """Give num_tokens its default, or refuse a number that the algorithm does not have."""
        if self.algorithm in ("svfl", "dcpa"):
            if self.num_tokens is not None:
                raise ValueError(
                    f"num_tokens: {self.num_tokens} is not allowed for {self.algorithm}, which has no token; use none"
                )
        elif self.algorithm == "stcd":
            if self.num_tokens not in (None, 1):
                raise ValueError(f"num_tokens: {self.num_tokens} is not allowed for stcd, which has one token; use 1")
            object.__setattr__(self, "num_tokens", 1)
        elif self.num_tokens is None:
            starts = max(4, -(-self.num_clients // 10))
            starts = (
                len(self.clusters) if isinstance(self.clusters, tuple) else 1 if self.clusters == "whole" else starts
            )
            most = self.num_clients if self.start == "all-clients" else min(starts, max(1, self.num_clients // 2))
            object.__setattr__(self, "num_tokens", len(self.start) if isinstance(self.start, tuple) else most)

    def _check_backtracking(self) -> None:
        for name, is_wrong in (
            ("problem", self.problem == "network"),
            ("algorithm", self.algorithm == "dcpa"),
            ("local_arithmetic", self.local_arithmetic == "gram"),
        ):
            if is_wrong:
                raise ValueError(f"backtracking: true is not allowed with {name}={getattr(self, name)}; use false")

    def _check_secure_aggregation(self) -> None:
        """Refuse what sums cannot do, or what would show single clients all the same."""
        linear = self.problem != "network"
        for name, is_wrong, why in (
            ("algorithm", self.algorithm != "mtcd", "only mtcd's server adds up representations at a sync"),
            ("aggregation", self.aggregation != "sum", "the server needs each client's slot"),
            ("num_clients", self.num_clients < FEWEST, f"of a sum of two each knows the other's part; use {FEWEST}"),
            ("server_links", self.server_links != "all", "others cannot relay a client's part of a sum"),
            ("compression", self.compression is not None, "what is compressed cannot be added up under masks"),
            ("on_party_loss", self.on_party_loss != "stop", "what a lost one had sent would be the difference of sums"),
            ("learning_rate", linear and self.learning_rate == "auto", "it is found with the clients' own norms"),
        ):
            if is_wrong:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed with secure_aggregation: {why}")

    def _check_clusters(self, clusters: tuple[tuple[int, ...], ...]) -> None:
        try:
            check_partition(self.num_clients, clusters)
        except BadInput as problem:
            raise ValueError(str(problem)) from None
        if self.mode == "token-per-cluster" and self.algorithm == "mtcd" and self.tokens > len(clusters):
            raise ValueError(
                f"num_tokens: {self.num_tokens} is not allowed, token-per-cluster mode has {len(clusters)} clusters "
                "here; use mode=overlapping for more tokens"
            )

    def _check_links_and_starts(self) -> None:
        for name in ("server_links", "start"):
            given = getattr(self, name)
            if isinstance(given, tuple):
                unknown = [client for client in given if not 0 <= client < self.num_clients]
                if unknown:
                    raise ValueError(f"{name}: client {unknown[0]} is unknown, allowed are 0 to {self.num_clients - 1}")
        if isinstance(self.start, tuple) and len(self.start) != self.tokens:
            raise ValueError(f"start: {len(self.start)} clients for {self.tokens} tokens, give one for each token")
        if self.start == "all-clients" and self.num_tokens != self.num_clients:
            raise ValueError(
                f"start: all-clients needs num_tokens = num_clients, here {self.num_tokens} and {self.num_clients}"
            )
        if self.algorithm in ("stcd", "dcpa") and self.on_party_loss != "stop":
            raise ValueError(
                f"on_party_loss: {self.on_party_loss} is not allowed for {self.algorithm}: without a server nobody can "
                "issue a lost token again; use stop"
            )
        if self.algorithm in ("mtcd", "svfl") and not self.server_links:
            raise ValueError(f"server_links: none is not allowed for {self.algorithm}, which syncs at the server")


def require_relaxed_protocol(settings: MtcdConfig) -> None:
    """Reject a run on data from outside whose owners have not agreed that labels and Z are shared."""
    if not settings.relaxed_protocol:
        raise BadInput(
            "relaxed_protocol: false is not allowed with your own data, all clients would see the labels and the sum "
            "of representations; set relaxed_protocol=true to agree"
        )


def small_cluster_warnings(settings: MtcdConfig, clusters: tuple[tuple[int, ...], ...]) -> list[str]:
    """Return one line for each cluster, and for the whole federation, below `min_cluster_size`."""
    lines = [
        f"cluster {i} has {len(cluster)} client(s), fewer than min_cluster_size={settings.min_cluster_size}: changes "
        "of Z between its visits can be attributed to single clients"
        for i, cluster in enumerate(clusters)
        if len(cluster) < settings.min_cluster_size
    ]
    if settings.num_clients == 2:
        lines.append("with two clients a token minus one's own representation is the other's, exactly")
    return lines
