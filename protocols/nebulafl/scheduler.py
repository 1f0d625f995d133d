"""The scheduler of one center: its containers and its hardware, who trains where, who waits. No clock, no I/O.

    request --> assign --> (container, unit, seconds) --> finish | give up --> the unit is free for the next request

A *slot* is what asks for a training: a planet, or an order of a baseline's exchange. Every slot has at most one
assignment, every container and every unit at most one slot.

Shapes: C containers of a center, R hardware types of a center.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.protocols.nebulafl.algorithm import (
    Floats,
    Mask,
    Numbers,
    choose_type,
    draw,
    predicted_times,
    random_probabilities,
    run_time,
    selection_probabilities,
)
from fedactors.protocols.nebulafl.config import Rules
from fedactors.protocols.nebulafl.hardware import HardwarePool, HardwareType
from fedactors.runtime.snapshots import Stateful


@dataclasses.dataclass
class ContainerTable(Stateful):
    """What a center knows of its containers: who is busy or lost, how often chosen, how long they took.

    RTime is the mean of the measured times of a container on a type of hardware, the prediction until there is
    one; PSc is the mean of RTime over the types, so that having met slow hardware does not make a container slow.
    """

    state = ("predicted", "counts", "busy", "lost", "measured", "runs", "scores")
    predicted: Numbers
    """(R, C): seconds predicted from samples, epochs, throughput and start-up."""
    most: Sequence[int | None] = ()
    """How often each container may be chosen at most, None as often as wanted; empty: all of them."""
    counts: NDArray[np.int64] = dataclasses.field(init=False)
    """(C,): Cnt, times chosen."""
    busy: Mask = dataclasses.field(init=False)
    """(C,): chosen and not back yet."""
    lost: Mask = dataclasses.field(init=False)
    """(C,): cannot be called."""
    measured: Numbers = dataclasses.field(init=False)
    """(R, C): sum of measured seconds."""
    runs: NDArray[np.int64] = dataclasses.field(init=False)
    """(R, C): number of measurements."""
    scores: Numbers = dataclasses.field(init=False)
    """(C,): PSc in seconds."""

    def __post_init__(self) -> None:
        num_types, num_containers = self.predicted.shape
        self.counts = np.zeros(num_containers, dtype=np.int64)
        self.busy = np.zeros(num_containers, dtype=np.bool_)
        self.lost = np.zeros(num_containers, dtype=np.bool_)
        self.measured = np.zeros((num_types, num_containers))
        self.runs = np.zeros((num_types, num_containers), dtype=np.int64)
        self.scores = self.predicted.mean(axis=0)

    @property
    def unavailable(self) -> Mask:
        """Containers that cannot be chosen now."""
        return self.busy | self.lost | self.spent

    @property
    def spent(self) -> Mask:
        """Containers that were chosen as often as they may be."""
        if not any(most is not None for most in self.most):
            return np.zeros_like(self.lost)
        return np.array([most is not None and cnt >= most for cnt, most in zip(self.counts, self.most, strict=True)])

    def idle(self) -> list[int]:
        """Return the containers that can be chosen now."""
        found: list[int] = np.flatnonzero(~self.unavailable).tolist()
        return found

    def times(self, container: int) -> Numbers:
        """Return RTime of a container on each type, shape (R,), in seconds."""
        runs_R = self.runs[:, container]
        return np.where(runs_R > 0, self.measured[:, container] / np.maximum(runs_R, 1), self.predicted[:, container])

    def choose(self, gap: float, uniform: float, *, random: bool = False, paper_literal: bool = False) -> int | None:
        """Return the container for a planet of version gap `gap` and mark it busy, or None when none is idle."""
        unavailable_C = self.unavailable
        if unavailable_C.all():
            return None
        if random:
            probabilities_C = random_probabilities(unavailable_C)
        else:
            probabilities_C = selection_probabilities(
                self.scores, self.counts, unavailable_C, gap, paper_literal=paper_literal
            )
        container = draw(probabilities_C, uniform)
        self.occupy(container)
        return container

    def occupy(self, container: int) -> None:
        """Mark an idle container busy and count it as chosen."""
        if self.busy[container] or self.lost[container]:
            raise ValueError(f"container {container} is not idle")
        self.busy[container] = True
        self.counts[container] += 1

    def finished(self, container: int, hardware: int, seconds: float) -> None:
        """Take a container back with the seconds that its training took on a type of hardware."""
        self.busy[container] = False
        self.measured[hardware, container] += seconds
        self.runs[hardware, container] += 1
        self.scores[container] = self.times(container).mean()

    def lose(self, container: int) -> None:
        """Take a container out: what it was training is given up, and not counted as measured."""
        self.busy[container] = False
        self.lost[container] = True

    def regain(self, container: int) -> None:
        """Make a lost container idle again."""
        self.lost[container] = False


@dataclasses.dataclass(frozen=True)
class Request:
    """A slot's wish to be trained."""

    slot: int
    """Who asks."""
    parameters: Floats
    """From what."""
    container: int | None = None
    """In which container; None: the center chooses."""
    gap: float | None = None
    """Version gap; None: asked for when the training is assigned."""
    rate_factor: float = 1.0
    """Factor of the learning rate."""
    has_schedule: bool = False
    """Whether that of the schedule is in it; else it is that of the moment at which the training begins."""


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A training under way."""

    number: int
    """Counts the assignments of this center."""
    slot: int
    """For whom."""
    container: int
    """Where, numbered within the center."""
    hardware: int
    """Place of the type among the center's."""
    unit: str
    """Type and number of the unit."""
    price: float
    """Dollars an hour."""
    start: float
    """Seconds since the run began."""
    seconds: float
    """How long it takes."""
    turn: int
    """How often the container was chosen before."""


class Scheduler(Stateful):
    """Events in, assignments out.

    Args:
        work_factor: how many times the work of a sample of that model a sample here is.
        spread: relative deviation of a run time.
        most: how often each container may be chosen; see `ContainerTable`.
    """

    state = ("generator", "table", "pool", "requests", "running", "dropped", "num_assigned")

    def __init__(
        self,
        types: Sequence[HardwareType],
        counts: Mapping[str, int],
        sizes: Sequence[int],
        *,
        model: str,
        local_epochs: int,
        work_factor: float = 1.0,
        spread: float,
        rules: Rules,
        paper_literal: bool,
        generator: np.random.Generator,
        most: Sequence[int | None] = (),
    ) -> None:
        self.types = tuple(types)
        speeds_R = np.array([hardware.samples_per_second(model) / work_factor for hardware in types])
        self._startups_R = np.array([hardware.startup for hardware in types])
        predicted_RC = predicted_times(sizes, local_epochs, speeds_R) + self._startups_R[:, None]
        self.table = ContainerTable(predicted_RC, tuple(most))
        self.pool = HardwarePool(counts)
        self.requests: dict[int, Request] = {}
        """Of all slots that train or wait, in the order in which they asked."""
        self.running: dict[int, Assignment] = {}
        self.dropped: list[int] = []
        """Numbers of assignments given up whose training has not come to its end yet."""
        self.num_assigned = 0
        self._index_of = {hardware.name: index for index, hardware in enumerate(self.types)}
        self._prices_R = np.array([hardware.price for hardware in self.types])
        self._spread, self._rules, self._literal = spread, rules, paper_literal
        self.generator = generator

    def request(self, request: Request) -> None:
        """Let a slot wait for a container and hardware; asking twice is a ValueError."""
        if request.slot in self.requests:
            raise ValueError(f"slot {request.slot} is trained or waits already")
        self.requests[request.slot] = request

    def assign(self, now: float, gap_of: Callable[[int], float]) -> list[Assignment]:
        """Assign those that wait, first come, first served, and return the new assignments.

        Who finds no idle container keeps its turn; when no hardware is free nobody is assigned.
        """
        made = []
        for request in [r for r in self.requests.values() if r.slot not in self.running]:
            if not self.pool.available():
                break
            gap = gap_of(request.slot) if request.gap is None else request.gap
            container = self._container(request, gap)
            if container is not None:
                made.append(self._assign(request.slot, container, gap, now))
        return made

    def _container(self, request: Request, gap: float) -> int | None:
        table = self.table
        if request.container is None:
            uniform = self.generator.random()
            return table.choose(gap, uniform, random=self._rules.random_container, paper_literal=self._literal)
        if table.unavailable[request.container]:
            return None
        table.occupy(request.container)
        return request.container

    def _assign(self, slot: int, container: int, gap: float, now: float) -> Assignment:
        rules = self._rules
        indices = [self._index_of[name] for name in self.pool.available()]
        prices_R, times_R = self._prices_R[indices], self.table.times(container)[indices]
        chosen = indices[
            choose_type(
                rules.resource_policy,
                prices_R * times_R if rules.price == "training" else prices_R,
                times_R,
                gap,
                self.generator.random(),
                use_cost=rules.use_cost,
                use_time=rules.use_time,
                paper_literal=self._literal,
            )
        ]
        startup = float(self._startups_R[chosen])
        seconds = startup + run_time(
            float(self.table.predicted[chosen, container]) - startup, self._spread, self.generator
        )
        self.num_assigned += 1
        assignment = Assignment(
            number=self.num_assigned,
            slot=slot,
            container=container,
            hardware=chosen,
            unit=self.pool.acquire(self.types[chosen].name),
            price=self.types[chosen].price,
            start=now,
            seconds=seconds,
            turn=int(self.table.counts[container]) - 1,
        )
        self.running[slot] = assignment
        return assignment

    def finish(self, slot: int, now: float) -> tuple[Assignment, Request]:
        """End a training: the unit is free, the container idle, its time measured."""
        assignment = self.running.pop(slot)
        self.pool.release(assignment.unit)
        self.table.finished(assignment.container, assignment.hardware, now - assignment.start)
        return assignment, self.requests.pop(slot)

    def give_up(self, slot: int) -> tuple[Assignment, Request]:
        """Break a training off: nothing is measured; whatever it still gives will be dropped."""
        assignment = self.running.pop(slot)
        self.pool.release(assignment.unit)
        self.table.busy[assignment.container] = False
        self.dropped.append(assignment.number)
        return assignment, self.requests.pop(slot)

    def withdraw(self, slot: int) -> None:
        """Forget a request that was not assigned yet."""
        del self.requests[slot]

    def lose(self, container: int) -> tuple[Assignment, Request] | None:
        """Take a container out; return the training that it broke off, if any."""
        broken = next((a.slot for a in self.running.values() if a.container == container), None)
        given_up = None if broken is None else self.give_up(broken)
        self.table.lose(container)
        return given_up

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs, requests and assignments as plain values."""
        requests = [tuple(vars(one).values()) for one in self.requests.values()]
        running = [tuple(vars(one).values()) for one in self.running.values()]
        return {**super().state_dict(), "requests": requests, "running": running}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        requests = {values[0]: Request(*values) for values in state["requests"]}
        running = {values[1]: Assignment(*values) for values in state["running"]}
        super().load_state_dict({**state, "requests": requests, "running": running})
