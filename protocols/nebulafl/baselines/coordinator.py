"""The coordinator of the flat baselines: which container trains next, from which model. Events in, orders out.

    arrived, lost, back, tick --> Coordinator --> Orders(dispatch, withdraw)

    fedavg     a sample; when all have answered or are lost: mean, next sample
    fedasync   an arrival is mixed in, its place goes to a random idle container
    fedbuff    likewise; the model moves when the buffer is full
    fedsa      places are given again after each aggregation; who is too stale starts anew
    pisces     a free place goes to the idle container of greatest utility; aggregates by the clock
    gitfl      a place is a branch; its container is drawn by NebulaFL's rewards (offset 0)

Shapes: C containers of all centers, P parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.baselines.arrivals import Arrival
from protocols.nebulafl.baselines.fedasync import FedAsync
from protocols.nebulafl.baselines.fedavg import SynchronousRound, Update, sample
from protocols.nebulafl.baselines.fedbuff import FedBuff
from protocols.nebulafl.baselines.fedsa import FedSA
from protocols.nebulafl.baselines.gitfl import GitFL
from protocols.nebulafl.baselines.pisces import Pisces
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.selection import ContainerTable


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Train this model in this container."""

    task: int
    container: int
    parameters: Floats
    gap: float = 0.0
    rate_factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class Orders:
    """What is to be done now: first break tasks off, then dispatch."""

    dispatch: tuple[Dispatch, ...] = ()
    withdraw: tuple[tuple[int, int], ...] = ()
    """(task, container)."""


@dataclasses.dataclass(frozen=True)
class Flight:
    """A task under way."""

    task: int
    container: int
    version: int
    branch: int
    start: Floats


class Averaging:
    """FedAvg's global model and how often it was made."""

    def __init__(self, model_P: Floats) -> None:
        self.model_P, self.version = model_P, 0
        self.round = SynchronousRound([])

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {"model_P": self.model_P, "version": self.version, "round": self.round.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.model_P, self.version = state["model_P"], state["version"]
        self.round.load_state_dict(state["round"])


Method = Averaging | FedAsync | FedBuff | FedSA | Pisces | GitFL


class Coordinator:
    """See the module.

    Args:
        config: of the run; `algorithm` says which method.
        model_P: the first model.
        sizes_C: samples of each container.
        seconds_C: predicted training time of each container.
        generator: draws containers.
    """

    def __init__(
        self,
        config: NebulaFLConfig,
        model_P: Floats,
        sizes_C: NDArray[np.int64],
        seconds_C: NDArray[np.float64],
        generator: np.random.Generator,
    ) -> None:
        self._config, self._generator = config, generator
        self._num_places = config.active_per_center * config.num_centers
        self.table = ContainerTable(np.asarray(seconds_C, np.float64)[None, :])
        self.flights: dict[int, Flight] = {}
        self.num_tasks = 0
        self.method = _method(config, model_P, sizes_C, self._num_places)

    @property
    def num_aggregations(self) -> int:
        """How often the shared model was made."""
        return sum(self.method.versions) if isinstance(self.method, GitFL) else self.method.version

    def finished(self, now: float) -> bool:
        """Tell whether nothing new is started."""
        rounds = self._config.num_rounds
        return now >= self._config.duration or (rounds is not None and self.num_aggregations >= rounds)

    def model(self) -> Floats:
        """Return the shared model now."""
        return self.method.master() if isinstance(self.method, GitFL) else self.method.model_P

    def begin(self, now: float) -> Orders:
        """Start."""
        return Orders(tuple(self._fill(now)))

    def arrived(
        self, task: int, parameters_P: Floats, num_samples: int, loss_rms: float, seconds: float, now: float
    ) -> Orders:
        """Take a trained model; one whose task is not under way is ignored."""
        flight = self.flights.pop(task, None)
        if flight is None:
            return Orders()
        self.table.finished(flight.container, 0, seconds)
        arrival = Arrival(
            container=flight.container,
            start=flight.start,
            parameters=parameters_P,
            version=flight.version,
            num_samples=num_samples,
            loss_rms=loss_rms,
            seconds=seconds,
        )
        return self._after(arrival, flight.branch, now)

    def _after(self, arrival: Arrival, branch: int, now: float) -> Orders:
        method = self.method
        if isinstance(method, Averaging):
            method.round.arrive(arrival.container, Update(arrival.parameters, arrival.num_samples))
            return self._next_round(now)
        if isinstance(method, GitFL):
            method.push(branch, arrival.parameters)
        else:
            method.arrive(arrival)
        if isinstance(method, FedSA | Pisces):
            return self.tick(now)
        return Orders(tuple(self._fill(now)))

    def tick(self, now: float) -> Orders:
        """Aggregate where that goes by the clock or by a number of arrivals."""
        method = self.method
        if isinstance(method, Pisces):
            if method.due(now, self._latencies()):
                method.aggregate(now)
            return Orders(tuple(self._fill(now)))
        if not isinstance(method, FedSA) or not method.due(now):
            return Orders()
        method.aggregate(now)
        withdrawn, again = [], []
        running = {flight.container: flight.version for flight in self.flights.values()}
        for container in method.outdated(running):
            task = next(f.task for f in self.flights.values() if f.container == container)
            del self.flights[task]
            withdrawn.append((task, container))
            if not self.finished(now):
                again.append(self._dispatch(container))
            else:
                self.table.busy[container] = False
        return Orders((*again, *self._fill(now)), tuple(withdrawn))

    def wake_at(self) -> float | None:
        """Return when to `tick` next, if the clock decides."""
        method = self.method
        if isinstance(method, Pisces) and method.buffered_samples > 0:
            return method.due_at(self._latencies())
        if isinstance(method, FedSA) and method.window is not None and method.buffer:
            return method.aggregated_at + method.window
        return None

    def lost(self, task: int, now: float) -> Orders:
        """A task's training was lost: its place is free again, nothing is counted."""
        flight = self.flights.pop(task, None)
        if flight is None:
            return Orders()
        self.table.busy[flight.container] = False
        if isinstance(self.method, Averaging):
            self.method.round.lose(flight.container)
            return self._next_round(now)
        if isinstance(self.method, FedSA):
            # its place is given again with the next aggregation, unless nobody is left to bring that about
            return Orders() if self.flights else Orders(tuple(self._fill(now)))
        return Orders(tuple(self._fill(now)))

    def container_lost(self, container: int) -> None:
        """Nobody may train there now; `lost` is told of its task, if it had one."""
        self.table.lost[container] = True

    def container_back(self, container: int, now: float) -> Orders:
        """It may be called again."""
        self.table.regain(container)
        if isinstance(self.method, Averaging) and not self.method.round.complete:
            return Orders()
        return Orders(tuple(self._fill(now))) if not isinstance(self.method, FedSA) or not self.flights else Orders()

    # --- who trains ---

    def _next_round(self, now: float) -> Orders:
        method = self.method
        assert isinstance(method, Averaging)
        if not method.round.complete:
            return Orders()
        found = method.round.result()
        if found is not None:
            method.model_P = found.parameters
            method.model_P.setflags(write=False)
            method.version += 1
        method.round = SynchronousRound([])
        return Orders(tuple(self._fill(now)))

    def _fill(self, now: float) -> list[Dispatch]:
        if self.finished(now):
            return []
        if isinstance(self.method, Averaging):
            chosen = sample(self._idle(), self._num_places, self._generator)
            self.method.round = SynchronousRound(chosen)
            return [self._dispatch(container) for container in chosen]
        made = []
        while len(self.flights) < self._num_places:
            branch = self._free_branch()
            container = self._choose(branch)
            if container is None:
                break
            made.append(self._dispatch(container, branch))
        return made

    def _choose(self, branch: int) -> int | None:
        idle = self._idle()
        if not idle:
            return None
        if isinstance(self.method, GitFL):
            return self.table.choose(self.method.gap(branch), self._generator.random())
        if isinstance(self.method, Pisces):
            return self.method.choose(idle, 1)[0]
        return idle[min(int(self._generator.random() * len(idle)), len(idle) - 1)]

    def _dispatch(self, container: int, branch: int = 0) -> Dispatch:
        method = self.method
        if not self.table.busy[container]:
            self.table.occupy(container)
        self.num_tasks += 1
        if isinstance(method, GitFL):
            start_P, version, gap = method.branches[branch], 0, method.gap(branch)
        else:
            start_P, version, gap = method.model_P, method.version, 0.0
        factor = method.rate_factor(container) if isinstance(method, FedSA) else 1.0
        start_P.setflags(write=False)
        self.flights[self.num_tasks] = Flight(self.num_tasks, container, version, branch, start_P)
        return Dispatch(self.num_tasks, container, start_P, gap, factor)

    def _free_branch(self) -> int:
        taken = {flight.branch for flight in self.flights.values()}
        return next(branch for branch in range(self._num_places) if branch not in taken)

    def _idle(self) -> list[int]:
        found: list[int] = np.flatnonzero(~self.table.unavailable).tolist()
        return found

    def _latencies(self) -> list[float]:
        return [float(self.table.scores[flight.container]) for flight in self.flights.values()]

    # --- snapshots ---

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "generator": self._generator,
            "table": self.table.state_dict(),
            "flights": [(f.task, f.container, f.version, f.branch, f.start) for f in self.flights.values()],
            "num_tasks": self.num_tasks,
            "method": self.method.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self._generator.bit_generator.state = state["generator"].bit_generator.state
        self.table.load_state_dict(state["table"])
        self.flights = {values[0]: Flight(*values) for values in state["flights"]}
        self.num_tasks = state["num_tasks"]
        self.method.load_state_dict(state["method"])


def _method(config: NebulaFLConfig, model_P: Floats, sizes_C: Sequence[int] | NDArray[np.int64], places: int) -> Method:
    if config.algorithm == "fedavg":
        return Averaging(model_P)
    if config.algorithm == "fedasync":
        return FedAsync(model_P, config.mixing, config.staleness_exponent)
    if config.algorithm == "fedbuff":
        return FedBuff(model_P, config.buffer_size, exponent=config.staleness_exponent)
    if config.algorithm == "fedsa":
        return FedSA(
            model_P,
            int(np.sum(sizes_C)),
            len(sizes_C),
            min(config.buffer_size, places),
            config.staleness_bound,
            config.aggregation_window,
        )
    if config.algorithm == "pisces":
        return Pisces(model_P, config.staleness_bound, config.staleness_exponent)
    return GitFL([model_P] * places)
