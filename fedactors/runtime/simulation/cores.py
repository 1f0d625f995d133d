"""The cores of the simulated hosts: an actor's computes queue for them, and results count when the cost model says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedactors.resources import queue_for_core
from fedactors.runtime.base import CostModel, MissingCost, Work
from fedactors.runtime.batched import Batches, computed, is_marked
from fedactors.runtime.simulation.pool import Pool

if TYPE_CHECKING:
    from fedactors.runtime.simulated import SimulatedRuntime


class Cores:
    """When each core is free again, and where functions really run.

    Args:
        runtime: whose clock and actors these are.
        costs: seconds for each kind of work.
        shared: per party, the cores that all its actors share; other actors have those of their resources.
    """

    def __init__(self, runtime: SimulatedRuntime, costs: CostModel | None, shared: Mapping[str, int]) -> None:
        self.costs = costs
        self.pool: Pool | None = None
        self.busy_seconds = 0.0
        self.free_at: dict[str, list[float]] = {}
        self._runtime = runtime
        self._shared = dict(shared)
        self._batches = Batches()

    def start(
        self, actor: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work
    ) -> tuple[float, Callable[[], Any]]:
        """Begin a function and return (the virtual time at which its result counts, how to get it)."""
        if self.costs is None:
            raise MissingCost(f"{actor}: no cost model was given, so {work.kind!r} has no duration")
        seconds = self.costs.seconds(actor, work)
        group = self._group(actor) if self._shared else actor
        free_at = self.free_at.get(group)
        if free_at is None:
            free_at = self.free_at[group] = [0.0] * self._count(group)
        start, due = queue_for_core(free_at, self._runtime.loop.time(), seconds)
        self.busy_seconds += seconds
        self._runtime.record_span(actor, "compute", work.kind, start, due)
        return due, self.run(function, args)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
        """Run `function` here or in the pool; calling what is returned gives the result, or raises its error.

        Here, calls of a function that is marked with `together` wait until one of their results is needed.
        """
        if self.pool is not None:
            return self.pool.submit(function, args).result
        if not is_marked(function):
            return computed(function, args)
        return self._batches.add(function, args)

    def capacity(self) -> int:
        """Return the cores that have been used at all."""
        return sum(map(self._count, self.free_at))

    def _group(self, actor: str) -> str:
        party = actor.partition("/")[0]
        return party if party in self._shared else actor

    def _count(self, group: str) -> int:
        if group in self._shared:
            return self._shared[group]
        return self._runtime.resources_of(group).num_cores
