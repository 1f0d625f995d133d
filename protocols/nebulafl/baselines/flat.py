"""The flat baselines: a server that trains containers of all centers directly. One interface, `FlatMethod`.

    FedAvg     a sample; when all have answered or are lost: mean, next sample              (McMahan et al., 2017)
    FedAsync   an arrival is mixed in at once                                               (Xie et al., 2019)
    FedBuff    the model moves when the buffer is full                                      (Nguyen et al., 2022)
    FedSA      so many arrivals or a time window; who is too stale starts anew              (Ma et al., 2021)
    Pisces     the idle container of greatest utility; aggregates by the clock              (Jiang et al., 2022)
    GitFL      branches that pull a master after every push; rewards choose                 (Hu et al., 2023)

A *place* is one of the trainings that may be under way at once. Models are replaced, never written to.

Shapes: P length of a flat model, C containers of all centers.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.learning.averaging import blend, weighted_mean
from protocols.nebulafl.algorithm import Floats, master_model, version_gap
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.scheduler import ContainerTable

RATE_LIMITS = (0.1, 2.0)
"""FedSA: least and greatest factor of the learning rate."""
HISTORY = 5
"""Pisces: trainings over which the staleness of a container is averaged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """A trained model, with the model and version it was trained from."""

    container: int
    """Who."""
    start: Floats
    """The model handed out at dispatch."""
    parameters: Floats
    """The model that came back."""
    version: int
    """Version of the server's model at dispatch."""
    num_samples: int
    """Samples behind it."""
    loss_rms: float
    """Root mean square of the batch losses."""
    seconds: float
    """How long it took."""
    place: int = 0
    """Which of the trainings that are under way at once it was."""


def staleness(current: int, version: int) -> int:
    """Return how many versions the server moved on since a model was handed out."""
    if version > current:
        raise ValueError(f"version {version} is from the future, the server is at {current}")
    return current - version


def polynomial(value: float, exponent: float) -> float:
    """Return (staleness + 1)^-exponent."""
    return float((value + 1.0) ** -exponent)


def sample(idle: Sequence[int], count: int, generator: np.random.Generator) -> list[int]:
    """Return `count` different idle containers (all of them if there are fewer), in ascending order."""
    chosen: NDArray[np.int64] = generator.permutation(len(idle))[:count]
    return sorted(idle[place] for place in chosen)


class FlatMethod(ABC):
    """What a server decides; arrivals in, choices and models out. Defaults are those of most methods.

    Subclasses say in `kept` which attributes make up a snapshot.
    """

    kept: ClassVar[tuple[str, ...]] = ("model_P", "version")
    model_P: Floats
    version: int = 0

    def __init__(self, model_P: Floats) -> None:
        self.model_P = model_P

    @property
    def model(self) -> Floats:
        """The shared model now."""
        return self.model_P

    @property
    def num_aggregations(self) -> int:
        """How often the shared model was made."""
        return self.version

    # --- dispatch ---

    def is_open(self, num_running: int, has_aggregated: bool) -> bool:
        """Tell whether free places may be given to containers now."""
        return True

    def choose(
        self, table: ContainerTable, free: Sequence[int], generator: np.random.Generator
    ) -> list[tuple[int, int]]:
        """Give free places to idle containers, and mark those busy; return (place, container)."""
        chosen = []
        for place in free:
            idle = table.idle()
            if not idle:
                break
            container = idle[min(int(generator.random() * len(idle)), len(idle) - 1)]
            table.occupy(container)
            chosen.append((place, container))
        return chosen

    def start(self, place: int) -> tuple[Floats, int]:
        """Return the model that a place trains from, and its version."""
        return self.model_P, self.version

    def gap(self, place: int) -> float:
        """Return the version gap by which hardware is assigned."""
        return 0.0

    def rate_factor(self, container: int) -> float:
        """Return the factor of a container's learning rate."""
        return 1.0

    # --- aggregation ---

    @abstractmethod
    def arrive(self, arrival: Arrival) -> None:
        """Take a trained model."""

    def due(self, now: float, running: Sequence[float]) -> bool:
        """Tell whether to aggregate, given the expected seconds of the trainings under way."""
        return False

    def due_at(self, running: Sequence[float]) -> float | None:
        """Return when to aggregate next, if the clock decides."""
        return None

    def aggregate(self, now: float) -> None:
        """Make the new model of what has arrived; nothing is left to do where each arrival does so."""
        return None

    def outdated(self, running: Mapping[int, int]) -> list[int]:
        """Return the running containers (with the version each started from) that must start anew."""
        return []

    # --- snapshots ---

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        for name in self.kept:
            setattr(self, name, state[name])


class FedAvg(FlatMethod):
    """Rounds of sampled containers, mean weighted by samples; every round crosses the network between centers."""

    kept = ("model_P", "version", "answers")

    def __init__(self, model_P: Floats) -> None:
        super().__init__(model_P)
        self.answers: dict[int, tuple[Floats, int]] = {}

    def is_open(self, num_running: int, has_aggregated: bool) -> bool:
        """Between two rounds only."""
        return num_running == 0

    def choose(
        self, table: ContainerTable, free: Sequence[int], generator: np.random.Generator
    ) -> list[tuple[int, int]]:
        """Draw a sample of different containers."""
        chosen = sample(table.idle(), len(free), generator)
        for container in chosen:
            table.occupy(container)
        return list(zip(free, chosen, strict=False))

    def arrive(self, arrival: Arrival) -> None:
        """Take an answer of this round."""
        self.answers[arrival.container] = (arrival.parameters, arrival.num_samples)

    def due(self, now: float, running: Sequence[float]) -> bool:
        """When everyone called has answered or is lost."""
        return bool(self.answers) and not running

    def aggregate(self, now: float) -> None:
        """Average, added in the order of container numbers."""
        models, weights = zip(*(self.answers[container] for container in sorted(self.answers)), strict=True)
        self.model_P = weighted_mean(models, weights)
        self.answers = {}
        self.version += 1


class FedAsync(FlatMethod):
    """Each arrival is mixed into the server's model at once, less so the staler it is.

    The proximal term of the paper's local objective is left out; its weight is a free parameter there.
    """

    def __init__(self, model_P: Floats, mixing: float = 0.6, exponent: float = 0.5) -> None:
        super().__init__(model_P)
        self.mixing, self.exponent = mixing, exponent

    def arrive(self, arrival: Arrival) -> None:
        """Set w <- (1 - a_t) w + a_t w_i with a_t = mixing * (staleness + 1)^-exponent."""
        share = self.mixing * polynomial(staleness(self.version, arrival.version), self.exponent)
        self.model_P = blend(self.model_P, arrival.parameters, share)
        self.version += 1


class FedBuff(FlatMethod):
    """Arrivals gather in a buffer; when it is full their differences are averaged."""

    kept = ("model_P", "version", "sum_P", "num_buffered")

    def __init__(self, model_P: Floats, buffer_size: int = 10, exponent: float = 0.5) -> None:
        super().__init__(model_P)
        self.buffer_size, self.exponent = buffer_size, exponent
        self.sum_P = np.zeros(model_P.shape, dtype=np.float64)
        self.num_buffered = 0

    def arrive(self, arrival: Arrival) -> None:
        """Add s(staleness) (w_i - w_start) to the buffer; when it is full, w <- w + sum / K."""
        weight = polynomial(staleness(self.version, arrival.version), self.exponent)
        self.sum_P = self.sum_P + weight * (arrival.parameters - arrival.start)
        self.num_buffered += 1
        if self.num_buffered == self.buffer_size:
            moved_P = self.model_P + self.sum_P / self.buffer_size
            self.model_P = moved_P.astype(self.model_P.dtype)
            self.sum_P = np.zeros_like(self.sum_P)
            self.num_buffered = 0
            self.version += 1


class FedSA(FlatMethod):
    """The server aggregates after some arrivals (or a time window); the rest of w stays.

        w <- sum over arrivals (n_i / n) w_i + (1 - sum over arrivals n_i / n) w,   n = samples of all containers

    Who arrived, and who fell more than the staleness bound behind, gets the new model; everybody else goes on with
    the model handed out before. The learning rate falls with the share of arrivals a container made so far. The
    limits of that scaling are ours.
    """

    kept = ("model_P", "version", "total_samples", "aggregated_at", "participation_C", "buffer")

    def __init__(
        self,
        model_P: Floats,
        total_samples: int,
        num_containers: int,
        num_arrivals: int = 5,
        staleness_bound: int = 5,
        window: float | None = None,
    ) -> None:
        super().__init__(model_P)
        self.total_samples, self.num_arrivals = total_samples, num_arrivals
        self.staleness_bound, self.window = staleness_bound, window
        self.aggregated_at = 0.0
        self.participation_C = np.zeros(num_containers, dtype=np.int64)
        self.buffer: dict[int, tuple[Floats, int]] = {}

    def is_open(self, num_running: int, has_aggregated: bool) -> bool:
        """After each aggregation, or when nobody is left to bring one about."""
        return has_aggregated or (num_running == 0 and (self.window is None or not self.buffer))

    def rate_factor(self, container: int) -> float:
        """Return mean participation over this container's, within `RATE_LIMITS`."""
        mean = float(self.participation_C.mean())
        least, greatest = RATE_LIMITS
        if mean == 0:
            return 1.0
        return min(greatest, max(least, mean / max(float(self.participation_C[container]), mean / greatest)))

    def arrive(self, arrival: Arrival) -> None:
        """Put an arrival into the round's buffer; a container's second one replaces its first."""
        staleness(self.version, arrival.version)
        self.participation_C = self.participation_C + (np.arange(len(self.participation_C)) == arrival.container)
        self.buffer[arrival.container] = (arrival.parameters, arrival.num_samples)

    def due(self, now: float, running: Sequence[float]) -> bool:
        """Enough arrivals, or, with a window, its end and at least one arrival."""
        if self.window is not None:
            return bool(self.buffer) and now >= self.aggregated_at + self.window
        return len(self.buffer) >= self.num_arrivals

    def due_at(self, running: Sequence[float]) -> float | None:
        """Return the end of the window."""
        return self.aggregated_at + self.window if self.window is not None and self.buffer else None

    def aggregate(self, now: float) -> None:
        """Average what arrived, in the order of container numbers, with the rest of the model."""
        arrived = sorted(self.buffer)
        models = [self.buffer[c][0] for c in arrived]
        weights = [self.buffer[c][1] / self.total_samples for c in arrived]
        rest = max(0.0, 1.0 - sum(weights))
        self.model_P = weighted_mean([*models, self.model_P], [*weights, rest])
        self.buffer = {}
        self.version += 1
        self.aggregated_at = now

    def outdated(self, running: Mapping[int, int]) -> list[int]:
        """Return who fell more than the staleness bound behind."""
        return sorted(c for c, version in running.items() if staleness(self.version, version) > self.staleness_bound)


def utility(num_samples: int, loss_rms: float, seconds: float, stale: float, exponent: float = 0.5) -> float:
    """Return how much a training of a container is worth to Pisces."""
    return num_samples * loss_rms / math.sqrt(seconds) * polynomial(stale, exponent)


class Pisces(FlatMethod):
    """Utility decides who trains, the slowest running container how often to aggregate.

        utility = n * rms loss * latency^-0.5 * (staleness + 1)^-beta
        aggregate every (greatest latency of those running) / (staleness bound) seconds

    Left out: the clustering of losses that finds corrupted clients. Latency and loss of a container are those of its
    last training, its staleness the mean of its last five; who never trained comes first. Differences to the model
    handed out are averaged, weighted by samples.
    """

    kept = ("model_P", "version", "aggregated_at", "seen", "stale", "sum_P", "buffered_samples")

    def __init__(self, model_P: Floats, staleness_bound: int = 5, exponent: float = 0.5) -> None:
        super().__init__(model_P)
        self.staleness_bound, self.exponent = staleness_bound, exponent
        self.aggregated_at = 0.0
        self.seen: dict[int, tuple[int, float, float]] = {}
        self.stale: dict[int, deque[int]] = {}
        self.sum_P = np.zeros(model_P.shape, dtype=np.float64)
        self.buffered_samples = 0

    def utility_of(self, container: int) -> float:
        """Return the utility of a container, infinite before its first training."""
        if container not in self.seen:
            return float("inf")
        history = self.stale[container]
        return utility(*self.seen[container], sum(history) / len(history), self.exponent)

    def choose(
        self, table: ContainerTable, free: Sequence[int], generator: np.random.Generator
    ) -> list[tuple[int, int]]:
        """Take the idle containers of greatest utility; the lower number first at a tie."""
        best = sorted(table.idle(), key=lambda container: (-self.utility_of(container), container))
        chosen = list(zip(free, best, strict=False))
        for _, container in chosen:
            table.occupy(container)
        return chosen

    def arrive(self, arrival: Arrival) -> None:
        """Buffer an arrival and note what it tells about its container."""
        stale = staleness(self.version, arrival.version)
        self.seen[arrival.container] = (arrival.num_samples, arrival.loss_rms, arrival.seconds)
        self.stale.setdefault(arrival.container, deque(maxlen=HISTORY)).append(stale)
        self.sum_P = self.sum_P + float(arrival.num_samples) * (arrival.parameters - arrival.start)
        self.buffered_samples += arrival.num_samples

    def due(self, now: float, running: Sequence[float]) -> bool:
        """When something is buffered and the interval is over."""
        at = self.due_at(running)
        return at is not None and now >= at

    def due_at(self, running: Sequence[float]) -> float | None:
        """Return when to aggregate next; None while nothing is buffered."""
        if self.buffered_samples == 0:
            return None
        return self.aggregated_at + max(running, default=0.0) / self.staleness_bound

    def aggregate(self, now: float) -> None:
        """Set w <- w + sum n_i (w_i - w_start) / sum n_i over the buffer and count the version."""
        moved_P = self.model_P + self.sum_P / self.buffered_samples
        self.model_P = moved_P.astype(self.model_P.dtype)
        self.sum_P = np.zeros_like(self.sum_P)
        self.buffered_samples = 0
        self.version += 1
        self.aggregated_at = now


def pull_weight(gap: float) -> float:
    """Return GitFL's weight of a branch against the master, min(50, max(2, dv + 10)), when it pulls."""
    return min(50.0, max(2.0, gap + 10.0))


def pull(branch_P: Floats, master_P: Floats, gap: float) -> Floats:
    """Return (w m_branch + m_master) / (w + 1) with w = `pull_weight(gap)`; the gap counts the new version."""
    return blend(branch_P, master_P, 1.0 / (pull_weight(gap) + 1.0))


class GitFL(FlatMethod):
    """NebulaFL's ancestor: branches that pull a master after every push; a place is a branch.

        push: version += 1 --> master = MasterGen(branches, versions) --> pull: branch <- (w branch + master) / (w + 1)

    The branch that was pushed is the one that pulls. Containers are chosen by NebulaFL's rewards with an offset of
    zero, which descend from GitFL's (the ancestor's own table of times has no hardware to choose).
    """

    kept = ("branches", "versions")

    def __init__(self, branches: Sequence[Floats], versions: Sequence[int] = ()) -> None:
        super().__init__(branches[0])
        self.branches = list(branches)
        self.versions = list(versions) or [0] * len(self.branches)

    @property
    def model(self) -> Floats:
        """The master of all branches now."""
        return master_model(self.branches, self.versions)

    @property
    def num_aggregations(self) -> int:
        """All pushes."""
        return sum(self.versions)

    def choose(
        self, table: ContainerTable, free: Sequence[int], generator: np.random.Generator
    ) -> list[tuple[int, int]]:
        """Draw a container for each branch by its version gap."""
        chosen = []
        for place in free:
            if not table.idle():
                break
            container = table.choose(self.gap(place), generator.random())
            assert container is not None
            chosen.append((place, container))
        return chosen

    def start(self, place: int) -> tuple[Floats, int]:
        """Return the branch."""
        return self.branches[place], 0

    def gap(self, place: int) -> float:
        """Return how far a branch is ahead of the mean version."""
        return version_gap(self.versions[place], sum(self.versions) / len(self.versions), 0.0)

    def arrive(self, arrival: Arrival) -> None:
        """Push a trained branch and let it pull the new master."""
        place = arrival.place
        self.versions[place] += 1
        self.branches[place] = arrival.parameters
        self.branches[place] = pull(arrival.parameters, self.model, self.gap(place))


def flat_method(config: NebulaFLConfig, model_P: Floats, sizes_C: Sequence[int], num_places: int) -> FlatMethod:
    """Return the method that a configuration names, for containers that hold so many samples."""
    match config.algorithm:
        case "fedavg":
            return FedAvg(model_P)
        case "fedasync":
            return FedAsync(model_P, config.mixing, config.staleness_exponent)
        case "fedbuff":
            return FedBuff(model_P, config.buffer_size, config.staleness_exponent)
        case "fedsa":
            return FedSA(
                model_P,
                sum(sizes_C),
                len(sizes_C),
                min(config.buffer_size, num_places),
                config.staleness_bound,
                config.aggregation_window,
            )
        case "pisces":
            return Pisces(model_P, config.staleness_bound, config.staleness_exponent)
        case _:
            return GitFL([model_P] * num_places)
