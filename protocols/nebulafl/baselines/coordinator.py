"""The coordinator of the flat baselines: which container trains next, from which model. Events in, orders out.

    arrived, lost, back, tick --> Coordinator --> Orders(dispatch, withdraw)
                                      |
                                  FlatMethod: takes arrivals, says when to aggregate, whom to call

Shapes: C containers of all centers, P parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.baselines.flat import Arrival, flat_method
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.scheduler import ContainerTable


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
    place: int
    start: Floats


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
        sizes_C: Sequence[int],
        seconds_C: Sequence[float],
        generator: np.random.Generator,
    ) -> None:
        self._config, self._generator = config, generator
        self._num_places = config.active_per_center * config.num_centers
        self.table = ContainerTable(np.asarray(seconds_C, np.float64)[None, :])
        self.flights: dict[int, Flight] = {}
        self.num_tasks = 0
        self.method = flat_method(config, model_P, sizes_C, self._num_places)

    def finished(self, now: float) -> bool:
        """Tell whether nothing new is started."""
        rounds = self._config.num_rounds
        return now >= self._config.duration or (rounds is not None and self.method.num_aggregations >= rounds)

    def arrived(
        self, task: int, parameters_P: Floats, num_samples: int, loss_rms: float, seconds: float, now: float
    ) -> Orders:
        """Take a trained model; one whose task is not under way is ignored."""
        flight = self.flights.pop(task, None)
        if flight is None:
            return Orders()
        self.table.finished(flight.container, 0, seconds)
        self.method.arrive(
            Arrival(
                container=flight.container,
                start=flight.start,
                parameters=parameters_P,
                version=flight.version,
                num_samples=num_samples,
                loss_rms=loss_rms,
                seconds=seconds,
                place=flight.place,
            )
        )
        return self.advance(now)

    def advance(self, now: float) -> Orders:
        """Aggregate if that is due, and give free places to containers; also how a run begins."""
        method = self.method
        if not method.due(now, self._latencies()):
            return Orders(self._fill(now, False))
        method.aggregate(now)
        withdrawn, again = [], []
        running = {flight.container: flight for flight in self.flights.values()}
        for container in method.outdated({c: flight.version for c, flight in running.items()}):
            flight = self.flights.pop(running[container].task)
            withdrawn.append((flight.task, container))
            if self.finished(now):
                self.table.busy[container] = False
            else:
                again.append(self._dispatch(flight.place, container))
        return Orders((*again, *self._fill(now, True)), tuple(withdrawn))

    def wake_at(self) -> float | None:
        """Return when to `advance` next, if the clock decides."""
        return self.method.due_at(self._latencies())

    def lost(self, task: int, now: float) -> Orders:
        """A task's training was lost: its place is free again, nothing is counted."""
        flight = self.flights.pop(task, None)
        if flight is None:
            return Orders()
        self.table.busy[flight.container] = False
        return self.advance(now)

    def container_lost(self, container: int) -> None:
        """Nobody may train there now; `lost` is told of its task, if it had one."""
        self.table.lost[container] = True

    def container_back(self, container: int, now: float) -> Orders:
        """It may be called again."""
        self.table.regain(container)
        return self.advance(now)

    def _fill(self, now: float, has_aggregated: bool) -> tuple[Dispatch, ...]:
        if self.finished(now) or not self.method.is_open(len(self.flights), has_aggregated):
            return ()
        taken = {flight.place for flight in self.flights.values()}
        free = [place for place in range(self._num_places) if place not in taken]
        chosen = self.method.choose(self.table, free, self._generator)
        return tuple(self._dispatch(place, container) for place, container in chosen)

    def _dispatch(self, place: int, container: int) -> Dispatch:
        method = self.method
        start_P, version = method.start(place)
        start_P.setflags(write=False)
        self.num_tasks += 1
        self.flights[self.num_tasks] = Flight(self.num_tasks, container, version, place, start_P)
        return Dispatch(self.num_tasks, container, start_P, method.gap(place), method.rate_factor(container))

    def _latencies(self) -> list[float]:
        return [float(self.table.scores[flight.container]) for flight in self.flights.values()]

    # --- snapshots ---

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "generator": self._generator,
            "table": self.table.state_dict(),
            "flights": [(f.task, f.container, f.version, f.place, f.start) for f in self.flights.values()],
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
