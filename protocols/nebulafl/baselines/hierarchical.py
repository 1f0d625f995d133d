"""The baselines that aggregate center by center. One interface, `CenterMethod`.

    FedAvg, hierarchical   center_rounds rounds inside the centers, then once across           (McMahan et al., 2017)
    FedHiSyn               rings of containers of like speed inside a center                   (Li et al., 2022)
    FedHKT                 logits on public rows, distilled where the centers' answers meet    (Deng et al., 2023)

    exchange --RoundOrder--> center: new_round --starts--> containers --finished, lose--> ... complete
    exchange <-- answer ----- center                     weighted mean, or distillation of an ensemble

Shapes: P length of a flat model, N public samples, K classes, M members, G clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedactors.learning.local_training import weighted_mean
from fedactors.protocols.nebulafl.algorithm import Floats, Numbers
from fedactors.protocols.nebulafl.baselines.flat_averaging import sample
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.messages import ClusterLogits, RoundOrder, RoundResult
from fedactors.protocols.nebulafl.training import Trained
from fedactors.serving.parts import softmax

MAX_PASSES = 100
"""Passes of Lloyd's algorithm at most."""


# --- rounds inside a center ---


class Start(NamedTuple):
    """Let a container train from a model."""

    container: int
    parameters: Floats


class CenterRound:
    """A round of a center: containers done in, starts out, and a mean when it is complete."""

    def __init__(self, parameters_P: Floats) -> None:
        self.parameters_P = parameters_P
        self.num_samples = self.num_models = 0
        """Behind the last mean."""
        self.logits: dict[int, Floats] = {}

    def average(self, answers: Mapping[int, tuple[Floats, int]], *, equally: bool = False) -> None:
        """Make the mean of models with their samples, added in the order of container numbers."""
        models, sizes = zip(*(answers[container] for container in sorted(answers)), strict=True)
        self.parameters_P = weighted_mean(models, [1.0] * len(models) if equally else sizes)
        self.parameters_P.setflags(write=False)
        self.num_samples, self.num_models = sum(sizes), len(models)


class MeanRound(CenterRound):
    """Rounds of a center, one sample of containers each: their mean is the next model; complete after the last."""

    def __init__(self, samples: Sequence[Sequence[int]], parameters_P: Floats) -> None:
        super().__init__(parameters_P)
        self.samples = [list(called) for called in samples]
        self.index = 0
        self.pending = set(self.samples[0]) if samples else set()
        self.answers: dict[int, tuple[Floats, int]] = {}

    @property
    def complete(self) -> bool:
        """Whether all rounds are over."""
        return self.index >= len(self.samples)

    def starts(self) -> list[Start]:
        """Return the first starts."""
        return [Start(container, self.parameters_P) for container in sorted(self.pending)] or self._advance()

    def finished(self, container: int, trained: Trained, now: float) -> list[Start]:
        """Take an answer; the last one of a round starts the next."""
        if container not in self.pending:
            raise ValueError(f"container {container} was not called in this round")
        parameters_P, _, num_samples, logits_NK = trained
        self.pending.remove(container)
        self.answers[container] = (parameters_P, num_samples)
        if logits_NK is not None:
            self.logits[container] = logits_NK
        return self._advance()

    def lose(self, container: int) -> list[Start]:
        """Stop waiting for a container."""
        self.pending.discard(container)
        return self._advance()

    def _advance(self) -> list[Start]:
        while not self.pending and not self.complete:
            if self.answers:
                self.average(self.answers)
                self.answers = {}
            self.index += 1
            if not self.complete:
                self.pending = set(self.samples[self.index])
                if self.pending:
                    return self.starts()
        return []


class RingRound(CenterRound):
    """FedHiSyn's round: containers done in, starts out, complete when everyone rests.

    fast cluster   a -> b -> c -> a -> b ...     each hands its model on when it is done and goes on with
    slow cluster   d -> e -> d                   the newest model it was handed, until the slowest container
                                                 of the round is done; then the server averages them all

    A reconstruction from the description: k-means on training time, the ring from fast to slow, no hand-over that
    would end after the slowest container, equal weight of containers in the average.
    """

    def __init__(self, seconds: Mapping[int, float], num_clusters: int, parameters_P: Floats, now: float) -> None:
        super().__init__(parameters_P)
        self.seconds = dict(seconds)
        self.successor: dict[int, int] = {}
        for ring in rings(seconds, num_clusters) if seconds else []:
            self.successor |= dict(zip(ring, ring[1:] + ring[:1], strict=True))
        self.ends_at = now + max(seconds.values(), default=0.0)
        self.training = set(seconds)
        self.latest: dict[int, tuple[Floats, int]] = {}
        self.handed: dict[int, Floats] = {}

    @property
    def complete(self) -> bool:
        """Whether everyone rests."""
        return not self.training

    def starts(self) -> list[Start]:
        """Return the first starts, all from the server's model."""
        return [Start(container, self.parameters_P) for container in sorted(self.successor)]

    def finished(self, container: int, trained: Trained, now: float) -> list[Start]:
        """Hand a model on; its maker goes on with what it was handed, if that would end within the round."""
        if container not in self.training:
            raise ValueError(f"container {container} is not training")
        parameters_P = trained[0]
        self.training.remove(container)
        self.latest[container] = (parameters_P, trained[2])
        self.handed[self.successor[container]] = parameters_P
        if now + self.seconds[container] > self.ends_at:
            self._conclude()
            return []
        self.training.add(container)
        return [Start(container, self.handed.pop(container, parameters_P))]

    def lose(self, container: int) -> list[Start]:
        """Take a lost container out of its ring; its last model still counts."""
        self.training.discard(container)
        follower = self.successor.pop(container)
        for before, after in self.successor.items():
            if after == container:
                self.successor[before] = follower
        self._conclude()
        return []

    def _conclude(self) -> None:
        if not self.training and self.latest:
            self.average(self.latest, equally=True)


Round = MeanRound | RingRound


class CenterMethod:
    """What a center does in a round and how the answers of all centers become one model; hierarchical FedAvg's."""

    distils: ClassVar[bool] = False
    """Whether the model is fitted to predictions instead of averaged."""
    round_type: ClassVar[type[Round]] = MeanRound

    def __init__(self, config: NebulaFLConfig) -> None:
        self._config = config

    def new_round(
        self, order: RoundOrder, idle: Sequence[int], seconds_C: Numbers, now: float, generator: np.random.Generator
    ) -> Round:
        """Return the round that an order stands for, among the idle containers."""
        rounds = range(self.num_rounds)
        return MeanRound([sample(idle, order.num_containers, generator) for _ in rounds], order.parameters)

    @property
    def num_rounds(self) -> int:
        """Rounds inside a center between two aggregations over all."""
        return self._config.center_rounds

    def answer(
        self, center: str, number: int, found: Round, labels: Sequence[NDArray[np.int64]], num_classes: int
    ) -> RoundResult | ClusterLogits:
        """Return what a center sends when a round is complete; `labels` are its containers'."""
        return RoundResult(center, number, found.num_samples, found.num_models, found.parameters_P)

    def total_weight(self, sizes: Sequence[int]) -> int:
        """Return how much a center's answer counts at most, with containers of so many samples."""
        return sum(sizes)

    def weight(self, result: RoundResult | ClusterLogits) -> int:
        """Return how much a center's answer counts; 0 for one without any model."""
        assert isinstance(result, RoundResult)
        return result.num_samples

    def combine(self, results: Sequence[Any]) -> Floats:
        """Return the next model (P), or, where it is distilled, class probabilities (N, K)."""
        return weighted_mean([result.parameters for result in results], [self.weight(result) for result in results])


class FedHiSyn(CenterMethod):
    """Rings inside a center; every container counts the same."""

    round_type = RingRound

    def new_round(
        self, order: RoundOrder, idle: Sequence[int], seconds_C: Numbers, now: float, generator: np.random.Generator
    ) -> Round:
        """Return the rings of a sample of containers."""
        called = sample(idle, order.num_containers, generator)
        seconds = {container: float(seconds_C[container]) for container in called}
        return RingRound(seconds, self._config.num_clusters, order.parameters, now)

    def total_weight(self, sizes: Sequence[int]) -> int:
        """Return the number of containers."""
        return len(sizes)

    def weight(self, result: RoundResult | ClusterLogits) -> int:
        """Return the number of containers."""
        assert isinstance(result, RoundResult)
        return result.num_models


class FedHKT(CenterMethod):
    """Containers share logits on public rows, the server distils their ensemble.

    container: train, then logits on the public rows --> center: mean of its clusters --> server: weighted ensemble
    server: distil the ensemble into its model --> centers --> containers

    A reconstruction from the description: clusters by label distribution (k-means), inside a cluster a mean weighted
    by samples, over clusters a weight per class by how many samples of that class a cluster has. The public rows are
    held-out training data, so the method sees samples that the others do not.
    """

    distils = True

    @property
    def num_rounds(self) -> int:
        """One."""
        return 1

    def answer(
        self, center: str, number: int, found: Round, labels: Sequence[NDArray[np.int64]], num_classes: int
    ) -> RoundResult | ClusterLogits:
        """Return the logits and label counts of clusters of containers."""
        members = sorted(found.logits)
        if not members:
            none_GK = np.zeros((0, num_classes), np.int64)
            return ClusterLogits(center, number, np.zeros((0, 0, num_classes)), none_GK)
        counts_MK = np.stack([np.bincount(labels[member], minlength=num_classes) for member in members])
        made, counts = [], []
        for cluster in label_clusters(counts_MK, self._config.num_clusters):
            logits = [found.logits[members[index]] for index in cluster]
            made.append(cluster_logits(logits, counts_MK[cluster].sum(axis=1).tolist()))
            counts.append(counts_MK[cluster].sum(axis=0))
        return ClusterLogits(center, number, np.stack(made).astype(np.float32), np.stack(counts))

    def weight(self, result: RoundResult | ClusterLogits) -> int:
        """Return the number of clusters."""
        assert isinstance(result, ClusterLogits)
        return len(result.logits)

    def combine(self, results: Sequence[Any]) -> Floats:
        """Return the class probabilities of the ensemble of all clusters."""
        logits = [np.asarray(one, np.float64) for result in results for one in result.logits]
        return ensemble(logits, np.concatenate([result.counts for result in results]))


def center_method(config: NebulaFLConfig) -> CenterMethod:
    """Return the method that a configuration names."""
    return {"fedhisyn": FedHiSyn, "fedhkt": FedHKT}.get(config.algorithm, CenterMethod)(config)


class RoundDesk:
    """The round that a center is in, if any; what a snapshot keeps of it."""

    def __init__(self, method: CenterMethod) -> None:
        self._method = method
        self.number, self.rate_factor = -1, 1.0
        self.round: Round | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        found = None if self.round is None else dict(vars(self.round))
        return {"number": self.number, "rate_factor": self.rate_factor, "round": found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.number, self.rate_factor, self.round = state["number"], state["rate_factor"], None
        if state["round"] is not None:
            self.round = object.__new__(self._method.round_type)
            vars(self.round).update(state["round"])


# --- clusters and ensembles ---


def rings(seconds: Mapping[int, float], num_clusters: int) -> list[list[int]]:
    """Return the rings of a round: clusters by training time, each ordered from fast to slow."""
    containers = sorted(seconds)
    points_N1 = np.array([[seconds[c]] for c in containers])
    clusters = [[containers[index] for index in cluster] for cluster in kmeans(points_N1, num_clusters)]
    return [sorted(cluster, key=lambda c: (seconds[c], c)) for cluster in clusters]


def kmeans(points_ND: NDArray[np.float64], num_clusters: int) -> list[list[int]]:
    """Return the members of each cluster, in ascending order; clusters are ordered by their centers.

    Starts from the point nearest to the mean, then takes the point farthest from the starts so far: no random
    number is drawn. There are never more clusters than different points.
    """
    num_clusters = min(num_clusters, len(np.unique(points_ND, axis=0)))
    first = int(_distances(points_ND, points_ND.mean(axis=0)[None]).argmin())
    starts = [first]
    while len(starts) < num_clusters:
        starts.append(int(_distances(points_ND, points_ND[starts]).min(axis=1).argmax()))
    centers_KD = points_ND[starts]
    label_N = _distances(points_ND, centers_KD).argmin(axis=1)
    for _ in range(MAX_PASSES):
        centers_KD = np.stack(
            [
                points_ND[label_N == k].mean(axis=0) if (label_N == k).any() else centers_KD[k]
                for k in range(num_clusters)
            ]
        )
        moved_N = _distances(points_ND, centers_KD).argmin(axis=1)
        if (moved_N == label_N).all():
            break
        label_N = moved_N
    order = np.lexsort(centers_KD.T[::-1])
    members = [np.flatnonzero(label_N == k).tolist() for k in order]
    return [cluster for cluster in members if cluster]


def _distances(points_ND: NDArray[np.float64], centers_KD: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(((points_ND[:, None, :] - centers_KD[None, :, :]) ** 2).sum(axis=2))


def label_clusters(counts_MK: NDArray[np.integer], num_clusters: int) -> list[list[int]]:
    """Return clusters of containers by the shares of their labels."""
    counts = np.asarray(counts_MK, dtype=np.float64)
    return kmeans(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0), num_clusters)


def cluster_logits(logits: Sequence[Floats], num_samples: Sequence[int]) -> Numbers:
    """Return the mean logits of a cluster's members, weighted by samples, shape (N, K)."""
    weights_M = np.asarray(num_samples, dtype=np.float64)
    mean_NK = np.zeros(logits[0].shape)
    for weight, logits_NK in zip(weights_M / weights_M.sum(), logits, strict=True):
        mean_NK += weight * logits_NK
    return mean_NK


def class_weights(counts_GK: NDArray[np.integer]) -> Numbers:
    """Return how much each cluster is believed in each class, columns adding to 1; equal where nobody has samples."""
    counts = np.asarray(counts_GK, dtype=np.float64)
    sums_K = counts.sum(axis=0)
    return np.where(sums_K > 0, counts / np.maximum(sums_K, 1.0), 1.0 / len(counts))


def ensemble(logits: Sequence[Numbers], counts_GK: NDArray[np.integer]) -> Floats:
    """Return the class probabilities that the server distils, shape (N, K), rows adding to 1.

    Each cluster's probabilities are weighted by `class_weights` and made to add to one again.
    """
    weights_GK = class_weights(counts_GK)
    mixed_NK = np.zeros(logits[0].shape)
    for weight_K, logits_NK in zip(weights_GK, logits, strict=True):
        mixed_NK += weight_K * softmax(logits_NK)
    return np.asarray(mixed_NK / mixed_NK.sum(axis=1, keepdims=True), dtype=np.float32)
