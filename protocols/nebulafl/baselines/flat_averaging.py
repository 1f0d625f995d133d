"""The flat baselines: a server that trains containers of all centers directly.

A `FlatMethod` decides; `FlatServer` knows which tasks are under way.

    FedAvg     a sample; when all have answered or are lost: mean, next sample              (McMahan et al., 2017)
    FedAsync   an arrival is mixed in at once                                               (Xie et al., 2019)
    FedBuff    the model moves when the buffer is full                                      (Nguyen et al., 2022)
    FedSA      so many arrivals or a time window; who is too stale starts anew              (Ma et al., 2021)
    Pisces     the idle container of greatest utility; aggregates by the clock              (Jiang et al., 2022)
    GitFL      branches that pull a master after every push; rewards choose                 (Hu et al., 2023)

A *slot* is one of the trainings that may be under way at once. Models are replaced, never written to.

Shapes: P length of a flat model, C containers of all centers.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedactors.learning.local_training import blend, weighted_mean
from fedactors.protocols.nebulafl.algorithm import Floats, master_model, version_gap
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.messages import TrainingResult
from fedactors.protocols.nebulafl.scheduler import ContainerTable
from fedactors.runtime.snapshots import Stateful

RATE_LIMITS = (0.1, 2.0)
"""FedSA: least and greatest factor of the learning rate."""
HISTORY = 5
"""Pisces: trainings over which the staleness of a container is averaged."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A training that a server has ordered: in which container, and from which model and version."""

    number: int
    container: int
    slot: int
    """Which of the trainings that may be under way at once."""
    version: int
    """Of the server's model at dispatch."""
    start: Floats
    """The model that is handed out."""
    gap: float = 0.0
    """Version gap by which hardware is assigned."""
    rate_factor: float = 1.0
    """Factor of the learning rate."""


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
    return sorted(idle[slot] for slot in chosen)


class FlatMethod(Stateful, ABC):
    """What a server decides; trained models in, choices and models out. Defaults are those of most methods."""

    def __init__(self, model_P: Floats) -> None:
        self.model_P = model_P
        self.version = 0

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
        """Tell whether free slots may be given to containers now."""
        return True

    def choose(
        self, table: ContainerTable, free: Sequence[int], generator: np.random.Generator
    ) -> list[tuple[int, int]]:
        """Give free slots to idle containers, and mark those busy; return (slot, container)."""
        return [(slot, self.pick(table, idle, slot, generator)) for slot in free if (idle := table.idle())]

    def pick(self, table: ContainerTable, idle: Sequence[int], slot: int, generator: np.random.Generator) -> int:
        """Choose an idle container for a slot, and mark it busy."""
        container = idle[min(int(generator.random() * len(idle)), len(idle) - 1)]
        table.occupy(container)
        return container

    def start(self, slot: int) -> tuple[Floats, int]:
        """Return the model that a slot trains from, and its version."""
        return self.model_P, self.version

    def gap(self, slot: int) -> float:
        """Return the version gap by which hardware is assigned."""
        return 0.0

    def rate_factor(self, container: int) -> float:
        """Return the factor of a container's learning rate."""
        return 1.0

    # --- aggregation ---

    @abstractmethod
    def arrive(self, task: Task, trained: TrainingResult) -> None:
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


class AnswerMethod(FlatMethod):
    """The newest model of each container is kept until all are averaged, in the order of container numbers."""

    def __init__(self, model_P: Floats) -> None:
        super().__init__(model_P)
        self.answers: dict[int, tuple[Floats, int]] = {}

    def arrive(self, task: Task, trained: TrainingResult) -> None:
        """Keep a model; a container's second one replaces its first."""
        self.answers[task.container] = (trained.parameters, trained.num_samples)

    def aggregate(self, now: float) -> None:
        """Average what has arrived and count the version."""
        models, sizes = zip(*(self.answers[container] for container in sorted(self.answers)), strict=True)
        self.model_P = self.average(models, sizes)
        self.answers = {}
        self.version += 1

    def average(self, models: Sequence[Floats], sizes: Sequence[int]) -> Floats:
        """Return the mean, weighted by samples."""
        return weighted_mean(models, sizes)


class FedAvg(AnswerMethod):
    """Rounds of sampled containers, mean weighted by samples; every round crosses the network between centers."""

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

    def due(self, now: float, running: Sequence[float]) -> bool:
        """When everyone called has answered or is lost."""
        return bool(self.answers) and not running


class FedAsync(FlatMethod):
    """Each arrival is mixed into the server's model at once, less so the staler it is.

    The proximal term of the paper's local objective is left out; its weight is a free parameter there.
    """

    def __init__(self, model_P: Floats, mixing: float = 0.6, exponent: float = 0.5) -> None:
        super().__init__(model_P)
        self.mixing, self.exponent = mixing, exponent

    def arrive(self, task: Task, trained: TrainingResult) -> None:
        """Set w <- (1 - a_t) w + a_t w_i with a_t = mixing * (staleness + 1)^-exponent."""
        share = self.mixing * polynomial(staleness(self.version, task.version), self.exponent)
        self.model_P = blend(self.model_P, trained.parameters, share)
        self.version += 1


class DifferenceMethod(FlatMethod):
    """Differences to the models handed out are added up; aggregating moves the model by their mean."""

    def __init__(self, model_P: Floats, exponent: float) -> None:
        super().__init__(model_P)
        self.exponent = exponent
        self.sum_P = np.zeros(model_P.shape, dtype=np.float64)
        self.num_added = 0
        """By how much the sum is divided."""
        self.aggregated_at = 0.0

    def add(self, task: Task, trained: TrainingResult, weight: float, count: int) -> None:
        """Add a weighted difference, which counts so much in the divisor."""
        self.sum_P = self.sum_P + weight * (trained.parameters - task.start)
        self.num_added += count

    def aggregate(self, now: float) -> None:
        """Set w <- w + sum / divisor and count the version."""
        moved_P = self.model_P + self.sum_P / self.num_added
        self.model_P = moved_P.astype(self.model_P.dtype)
        self.sum_P, self.num_added = np.zeros_like(self.sum_P), 0
        self.version += 1
        self.aggregated_at = now


class FedBuff(DifferenceMethod):
    """Arrivals gather in a buffer; when it is full their differences are averaged, each weighted by s(staleness)."""

    def __init__(self, model_P: Floats, buffer_size: int = 10, exponent: float = 0.5) -> None:
        super().__init__(model_P, exponent)
        self.buffer_size = buffer_size

    def arrive(self, task: Task, trained: TrainingResult) -> None:
        """Add s(staleness) (w_i - w_start) to the buffer."""
        self.add(task, trained, polynomial(staleness(self.version, task.version), self.exponent), 1)

    def due(self, now: float, running: Sequence[float]) -> bool:
        """When the buffer is full."""
        return self.num_added == self.buffer_size


class FedSA(AnswerMethod):
    """The server aggregates after some arrivals (or a time window); the rest of w stays.

        w <- sum over arrivals (n_i / n) w_i + (1 - sum over arrivals n_i / n) w,   n = samples of all containers

    Who arrived, and who fell more than the staleness bound behind, gets the new model; everybody else goes on with
    the model handed out before. The learning rate falls with the share of arrivals a container made so far. The
    limits of that scaling are ours.
    """

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

    def is_open(self, num_running: int, has_aggregated: bool) -> bool:
        """After each aggregation, or when nobody is left to bring one about."""
        return has_aggregated or (num_running == 0 and (self.window is None or not self.answers))

    def rate_factor(self, container: int) -> float:
        """Return mean participation over this container's, within `RATE_LIMITS`."""
        mean = float(self.participation_C.mean())
        least, greatest = RATE_LIMITS
        if mean == 0:
            return 1.0
        return min(greatest, max(least, mean / max(float(self.participation_C[container]), mean / greatest)))

    def arrive(self, task: Task, trained: TrainingResult) -> None:
        """Keep a model, and count whose it is."""
        staleness(self.version, task.version)
        self.participation_C = self.participation_C + (np.arange(len(self.participation_C)) == task.container)
        super().arrive(task, trained)

    def due(self, now: float, running: Sequence[float]) -> bool:
        """Enough arrivals, or, with a window, its end and at least one arrival."""
        if self.window is not None:
            return bool(self.answers) and now >= self.aggregated_at + self.window
        return len(self.answers) >= self.num_arrivals

    def due_at(self, running: Sequence[float]) -> float | None:
        """Return the end of the window."""
        return self.aggregated_at + self.window if self.window is not None and self.answers else None

    def aggregate(self, now: float) -> None:
        """Note when."""
        super().aggregate(now)
        self.aggregated_at = now

    def average(self, models: Sequence[Floats], sizes: Sequence[int]) -> Floats:
        """Return the mean with the rest of the model."""
        weights = [size / self.total_samples for size in sizes]
        return weighted_mean([*models, self.model_P], [*weights, max(0.0, 1.0 - sum(weights))])

    def outdated(self, running: Mapping[int, int]) -> list[int]:
        """Return who fell more than the staleness bound behind."""
        return sorted(c for c, version in running.items() if staleness(self.version, version) > self.staleness_bound)


def utility(num_samples: int, loss_rms: float, seconds: float, stale: float, exponent: float = 0.5) -> float:
    """Return how much a training of a container is worth to Pisces."""
    return num_samples * loss_rms / math.sqrt(seconds) * polynomial(stale, exponent)


class Pisces(DifferenceMethod):
    """Utility decides who trains, the slowest running container how often to aggregate.

        utility = n * rms loss * latency^-0.5 * (staleness + 1)^-beta
        aggregate every (greatest latency of those running) / (staleness bound) seconds

    Left out: the clustering of losses that finds corrupted clients. Latency and loss of a container are those of its
    last training, its staleness the mean of its last five; who never trained comes first. Differences to the model
    handed out are averaged, weighted by samples.
    """

    def __init__(self, model_P: Floats, staleness_bound: int = 5, exponent: float = 0.5) -> None:
        super().__init__(model_P, exponent)
        self.staleness_bound = staleness_bound
        self.seen: dict[int, tuple[int, float, float]] = {}
        self.stale: dict[int, deque[int]] = {}

    def utility_of(self, container: int) -> float:
        """Return the utility of a container, infinite before its first training."""
        if container not in self.seen:
            return float("inf")
        history = self.stale[container]
        return utility(*self.seen[container], sum(history) / len(history), self.exponent)

    def pick(self, table: ContainerTable, idle: Sequence[int], slot: int, generator: np.random.Generator) -> int:
        """Take the idle container of greatest utility; the lower number first at a tie."""
        container = min(idle, key=lambda container: (-self.utility_of(container), container))
        table.occupy(container)
        return container

    def arrive(self, task: Task, trained: TrainingResult) -> None:
        """Buffer an arrival and note what it tells about its container."""
        stale = staleness(self.version, task.version)
        self.seen[task.container] = (trained.num_samples, trained.loss_rms, trained.seconds)
        self.stale.setdefault(task.container, deque(maxlen=HISTORY)).append(stale)
        self.add(task, trained, float(trained.num_samples), trained.num_samples)

    def due(self, now: float, running: Sequence[float]) -> bool:
        """When something is buffered and the interval is over."""
        at = self.due_at(running)
        return at is not None and now >= at

    def due_at(self, running: Sequence[float]) -> float | None:
        """Return when to aggregate next; None while nothing is buffered."""
        if self.num_added == 0:
            return None
        return self.aggregated_at + max(running, default=0.0) / self.staleness_bound


def pull_weight(gap: float) -> float:
    """Return GitFL's weight of a branch against the master, min(50, max(2, dv + 10)), when it pulls."""
    return min(50.0, max(2.0, gap + 10.0))


def pull(branch_P: Floats, master_P: Floats, gap: float) -> Floats:
    """Return (w m_branch + m_master) / (w + 1) with w = `pull_weight(gap)`; the gap counts the new version."""
    return blend(branch_P, master_P, 1.0 / (pull_weight(gap) + 1.0))


class GitFL(FlatMethod):
    """NebulaFL's ancestor: branches that pull a master after every push; a slot is a branch.

        push: version += 1 --> master = MasterGen(branches, versions) --> pull: branch <- (w branch + master) / (w + 1)

    The branch that was pushed is the one that pulls. Containers are chosen by NebulaFL's rewards with an offset of
    zero, which descend from GitFL's (the ancestor's own table of times has no hardware to choose).
    """

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

    def pick(self, table: ContainerTable, idle: Sequence[int], slot: int, generator: np.random.Generator) -> int:
        """Draw a container for a branch by its version gap."""
        container = table.choose(self.gap(slot), generator.random())
        assert container is not None
        return container

    def start(self, slot: int) -> tuple[Floats, int]:
        """Return the branch."""
        return self.branches[slot], 0

    def gap(self, slot: int) -> float:
        """Return how far a branch is ahead of the mean version."""
        return version_gap(self.versions[slot], sum(self.versions) / len(self.versions), 0.0)

    def arrive(self, task: Task, trained: TrainingResult) -> None:
        """Push a trained branch and let it pull the new master."""
        slot = task.slot
        self.versions[slot] += 1
        self.branches[slot] = trained.parameters
        self.branches[slot] = pull(trained.parameters, self.model, self.gap(slot))


def flat_method(config: NebulaFLConfig, model_P: Floats, sizes_C: Sequence[int], num_slots: int) -> FlatMethod:
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
                min(config.buffer_size, num_slots),
                config.staleness_bound,
                config.aggregation_window,
            )
        case "pisces":
            return Pisces(model_P, config.staleness_bound, config.staleness_exponent)
        case _:
            return GitFL([model_P] * num_slots)


class Orders(NamedTuple):
    """What is to be done now: first break tasks off, then begin others."""

    begun: tuple[Task, ...] = ()
    withdrawn: tuple[Task, ...] = ()


class FlatServer(Stateful):
    """Which container trains next, from which model: events in, orders out.

    arrived, lost, container_back, the clock --> FlatServer --> Orders
                                                     `-- FlatMethod: takes models, says when to aggregate, whom to call
    """

    state = ("generator", "table", "tasks", "num_tasks", "method")

    def __init__(
        self,
        config: NebulaFLConfig,
        model_P: Floats,
        sizes_C: Sequence[int],
        seconds_C: Sequence[float],
        generator: np.random.Generator,
    ) -> None:
        self.config, self.generator = config, generator
        self._num_slots = config.active_per_center * config.num_centers
        self.table = ContainerTable(np.asarray(seconds_C, np.float64)[None, :])
        self.tasks: dict[int, Task] = {}
        """Those under way, by number."""
        self.num_tasks = 0
        self.method = flat_method(config, model_P, sizes_C, self._num_slots)

    def finished(self, now: float) -> bool:
        """Tell whether nothing new is started."""
        rounds = self.config.num_rounds
        return now >= self.config.times.duration or (rounds is not None and self.method.num_aggregations >= rounds)

    def arrived(self, trained: TrainingResult, now: float) -> Orders:
        """Take a trained model; one whose task is not under way is ignored."""
        task = self.tasks.pop(trained.task, None)
        if task is None:
            return Orders()
        self.table.finished(task.container, 0, trained.seconds)
        self.method.arrive(task, trained)
        return self.advance(now)

    def advance(self, now: float) -> Orders:
        """Aggregate if that is due, and give free slots to containers; also how a run begins."""
        method = self.method
        if not method.due(now, self._latencies()):
            return Orders(self._fill(now, False))
        method.aggregate(now)
        running = {task.container: task for task in self.tasks.values()}
        outdated = method.outdated({container: task.version for container, task in running.items()})
        withdrawn = tuple(self.tasks.pop(running[container].number) for container in outdated)
        if self.finished(now):
            self.table.busy[list(outdated)] = False
            return Orders((), withdrawn)
        again = tuple(self._begin(task.slot, task.container) for task in withdrawn)
        return Orders((*again, *self._fill(now, True)), withdrawn)

    def wake_at(self) -> float | None:
        """Return when to `advance` next, if the clock decides."""
        return self.method.due_at(self._latencies())

    def lost(self, number: int, now: float) -> Orders:
        """A task's training was lost: its slot is free again, nothing is counted."""
        task = self.tasks.pop(number, None)
        if task is None:
            return Orders()
        self.table.busy[task.container] = False
        return self.advance(now)

    def container_lost(self, container: int) -> None:
        """Nobody may train there now; `lost` is told of its task, if it had one."""
        self.table.lost[container] = True

    def container_back(self, container: int, now: float) -> Orders:
        """It may be called again."""
        self.table.regain(container)
        return self.advance(now)

    def _fill(self, now: float, has_aggregated: bool) -> tuple[Task, ...]:
        if self.finished(now) or not self.method.is_open(len(self.tasks), has_aggregated):
            return ()
        taken = {task.slot for task in self.tasks.values()}
        free = [slot for slot in range(self._num_slots) if slot not in taken]
        return tuple(self._begin(*chosen) for chosen in self.method.choose(self.table, free, self.generator))

    def _begin(self, slot: int, container: int) -> Task:
        method = self.method
        start_P, version = method.start(slot)
        start_P.setflags(write=False)
        self.num_tasks += 1
        gap, rate_factor = method.gap(slot), method.rate_factor(container)
        task = Task(self.num_tasks, container, slot, version, start_P, gap, rate_factor)
        self.tasks[task.number] = task
        return task

    def _latencies(self) -> list[float]:
        return [float(self.table.scores[task.container]) for task in self.tasks.values()]

    # --- snapshots ---

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs, tasks as plain values."""
        return {**super().state_dict(), "tasks": [tuple(vars(task).values()) for task in self.tasks.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        super().load_state_dict({**state, "tasks": {values[0]: Task(*values) for values in state["tasks"]}})
