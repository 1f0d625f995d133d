"""The training floor of one center: its containers and its hardware, who trains where, who waits. No clock, no I/O.

    request --> place --> (container, unit, seconds) --> finish | give up --> the unit is free for the next request

A *slot* is what asks for a training: a planet, or an order of a baseline's coordinator. Every slot has at most one
assignment, every container and every unit at most one slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from protocols.nebulafl import resources
from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.baselines.ablations import Switches
from protocols.nebulafl.resources import HardwareType, ResourcePool
from protocols.nebulafl.selection import ContainerTable


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
    """Version gap; None: asked for when the training is placed."""
    rate_factor: float = 1.0
    """Factor of the learning rate."""


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


class Floor:
    """Events in, assignments out.

    Args:
        types: the hardware types of the center.
        counts: units of each.
        sizes: samples of each container.
        model: name of the model, for the throughput.
        num_epochs: local epochs, for the predicted time.
        spread: relative deviation of a run time.
        switches: which rules hold.
        paper_literal: keep printed signs.
        generator: draws containers, hardware and run times.
    """

    def __init__(
        self,
        types: Sequence[HardwareType],
        counts: Mapping[str, int],
        sizes: Sequence[int],
        *,
        model: str,
        num_epochs: int,
        spread: float,
        switches: Switches,
        paper_literal: bool,
        generator: np.random.Generator,
    ) -> None:
        self.types = tuple(types)
        self.table = ContainerTable(resources.predicted_times(sizes, num_epochs, self.types, model))
        self.pool = ResourcePool(counts)
        self.requests: dict[int, Request] = {}
        self.running: dict[int, Assignment] = {}
        self.dropped: list[int] = []
        """Numbers of assignments given up whose training has not come to its end yet."""
        self.num_assigned = 0
        self._place_of = {hardware.name: place for place, hardware in enumerate(self.types)}
        self._prices_R = np.array([hardware.price for hardware in self.types])
        self._spread, self._switches, self._literal = spread, switches, paper_literal
        self._generator = generator

    def request(self, request: Request) -> None:
        """Let a slot wait for a container and hardware; asking twice is a ValueError."""
        if request.slot in self.requests:
            raise ValueError(f"slot {request.slot} is trained or waits already")
        self.requests[request.slot] = request
        self.pool.wait(str(request.slot))

    def place(self, now: float, gap_of: Callable[[int], float]) -> list[Assignment]:
        """Place those that wait, first come, first served, and return the new assignments.

        Who finds no idle container keeps its turn; when no hardware is free nobody is placed.
        """
        made, still = [], []
        while self.pool.waiting and self.pool.available():
            key = self.pool.waiting.pop(0)
            request = self.requests[int(key)]
            gap = gap_of(request.slot) if request.gap is None else request.gap
            container = self._container(request, gap)
            if container is None:
                still.append(key)
            else:
                made.append(self._assign(request.slot, container, gap, now))
        self.pool.waiting[:0] = still
        return made

    def _container(self, request: Request, gap: float) -> int | None:
        table = self.table
        if request.container is None:
            random = self._switches.random_container
            uniform = self._generator.random()
            return table.choose(gap, uniform, random=random, paper_literal=self._literal)
        if table.busy[request.container] or table.lost[request.container]:
            return None
        table.occupy(request.container)
        return request.container

    def _assign(self, slot: int, container: int, gap: float, now: float) -> Assignment:
        switches = self._switches
        places = [self._place_of[name] for name in self.pool.available()]
        chosen = places[
            resources.choose_type(
                switches.resource_policy,
                self._prices_R[places],
                self.table.times(container)[places],
                gap,
                self._generator.random(),
                use_cost=switches.use_cost,
                use_time=switches.use_time,
                paper_literal=self._literal,
            )
        ]
        lease = self.pool.acquire(self.types[chosen].name, str(container), now)
        seconds = resources.run_time(float(self.table.predicted[chosen, container]), self._spread, self._generator)
        self.num_assigned += 1
        assignment = Assignment(
            number=self.num_assigned,
            slot=slot,
            container=container,
            hardware=chosen,
            unit=lease.unit,
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
        """Forget a request that was not placed yet."""
        del self.requests[slot]
        self.pool.waiting.remove(str(slot))

    def lose(self, container: int) -> tuple[Assignment, Request] | None:
        """Take a container out; return the training that it broke off, if any."""
        broken = next((a.slot for a in self.running.values() if a.container == container), None)
        given_up = None if broken is None else self.give_up(broken)
        self.table.lose(container)
        return given_up

    def regain(self, container: int) -> None:
        """Take a lost container in again."""
        self.table.regain(container)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        fields = [field.name for field in dataclasses.fields(Request)]
        return {
            "generator": self._generator,
            "table": self.table.state_dict(),
            "pool": self.pool.state_dict(),
            "requests": [tuple(getattr(r, name) for name in fields) for r in self.requests.values()],
            "running": [dataclasses.astuple(assignment) for assignment in self.running.values()],
            "dropped": list(self.dropped),
            "num_assigned": self.num_assigned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self._generator.bit_generator.state = state["generator"].bit_generator.state
        self.table.load_state_dict(state["table"])
        self.pool.load_state_dict(state["pool"])
        self.requests = {values[0]: Request(*values) for values in state["requests"]}
        self.running = {values[1]: Assignment(*values) for values in state["running"]}
        self.dropped = list(state["dropped"])
        self.num_assigned = state["num_assigned"]
