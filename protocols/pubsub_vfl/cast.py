"""The actors of a run: who is spawned under which name, and what is done when a worker's process is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedactors.data.partitions import VerticalData
from fedactors.errors import PartyLost
from fedactors.resources import Resources
from fedactors.runtime.base import Runtime, derived_seed
from protocols.pubsub_vfl.active import ActiveWorker
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.dispatch import Dispatch
from protocols.pubsub_vfl.mixing import MixingActiveWorker, MixingPassiveWorker
from protocols.pubsub_vfl.passive import PassiveWorker
from protocols.pubsub_vfl.servers import AveragingServer, BatchBroker

T = TypeVar("T")
BROKER = "broker"
_RESTART_TIMEOUT = 300.0


@dataclass
class Cast:
    """Handles of all actors, by name; `server_of` maps a party to its parameter server's name."""

    runtime: Runtime
    broker: BatchBroker
    active: dict[str, ActiveWorker]
    passive: dict[str, PassiveWorker]
    server_of: dict[str, str]
    back: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def workers(self) -> dict[str, ActiveWorker | PassiveWorker]:
        """All workers, the active party's first."""
        return {**self.active, **self.passive}

    @property
    def first_passive(self) -> tuple[str, ...]:
        """Worker 0 of each passive party: it answers for the party."""
        return self.partners(0)

    @property
    def first_active(self) -> ActiveWorker:
        """The active party's worker 0."""
        return next(iter(self.active.values()))

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the parameter servers, the active party's first; empty when parties have one worker each."""
        return tuple(self.server_of.values())

    def partners(self, pair: int) -> tuple[str, ...]:
        """Return the names of the passive parties' workers of that number."""
        return tuple(name for name in self.passive if name.endswith(f"/worker-{pair}"))

    async def lost(self, name: str) -> None:
        """A worker was lost and is back: its batches go to others, and whoever waits for it goes on."""
        await self.broker.lose(name)
        self.back.setdefault(name, asyncio.Event()).set()

    async def persist(self, names: list[str], action: Callable[[], Awaitable[T]]) -> T:
        """Await `action`; when it fails because a worker of `names` was lost, wait until it is back and do it again."""
        while True:
            for name in names:
                self.back.setdefault(name, asyncio.Event()).clear()
            try:
                return await action()
            except PartyLost as loss:
                if loss.party not in names or self.runtime.loss_policy(loss.party) != "restart":
                    raise
                async with self.runtime.clock.timeout(_RESTART_TIMEOUT):
                    await self.back[loss.party].wait()

    async def everyone(self, method: str, *args: Any) -> None:
        """Call a method of all workers at once, again where a worker was lost and is back."""
        await self._ask([(name, args) for name in self.workers], method)

    async def with_server(self, method: str, epoch: int) -> None:
        """Call a method of all workers that have a parameter server, with its name."""
        server_of = {name: self.server_of.get(name.partition("/")[0]) for name in self.workers}
        await self._ask([(name, (epoch, server)) for name, server in server_of.items() if server], method)

    async def _ask(self, calls: list[tuple[str, tuple[Any, ...]]], method: str) -> None:
        workers: dict[str, Any] = dict(self.workers)

        async def one(name: str, args: tuple[Any, ...]) -> None:
            await self.persist([name], lambda: getattr(workers[name], method)(*args))

        await asyncio.gather(*(one(name, args) for name, args in calls))


def assemble(config: PubSubVflConfig, data: VerticalData, runtime: Runtime) -> Cast:
    """Spawn broker, parameter servers and workers, and say what follows a loss.

    A lost worker of PubSub-VFL is restarted from the last checkpoint, its batches given to others; a lost broker or
    parameter server, or a lost worker of a fixed pair, stops the run, which can be resumed.
    """
    seed = derived_seed(runtime.seed, "all parties", "batches")
    dispatch = Dispatch(
        data.passive_parties,
        embedding_buffer=config.embedding_buffer,
        gradient_buffer=config.gradient_buffer,
        max_in_flight=config.max_in_flight,
        deadline=config.deadline,
        max_attempts=config.max_attempts,
        applies_stale=config.stale_gradients == "apply",
    )
    broker = runtime.spawn(BatchBroker, BROKER, dispatch)
    active: dict[str, ActiveWorker] = {}
    passive: dict[str, PassiveWorker] = {}
    server_of: dict[str, str] = {}
    for party in (data.label_party, *data.passive_parties):
        is_active = party == data.label_party
        count = config.num_active_workers if is_active else config.num_passive_workers
        names = tuple(f"{party}/worker-{i}" for i in range(count))
        mixes = config.algorithm == "pubsub-vfl" and config.sync_unit == "batch" and count > 1
        for name in names:
            siblings = names[1:] if name == names[0] else ()
            resources = Resources(num_cpus=config.cpus_per_worker)
            if is_active:
                active_kind = MixingActiveWorker if mixes else ActiveWorker
                active[name] = runtime.spawn(active_kind, name, config, data, seed, siblings, resources=resources)
            else:
                passive_kind = MixingPassiveWorker if mixes else PassiveWorker
                passive[name] = runtime.spawn(passive_kind, name, config, data, seed, siblings, resources=resources)
        if count > 1:
            server_of[party] = f"{party}/ps"
            runtime.spawn(AveragingServer, server_of[party], names)
    cast = Cast(runtime, broker, active, passive, server_of)
    restarts = config.on_party_loss == "restart" and not config.is_paired
    runtime.on_loss(lambda name: "restart" if restarts and "/worker-" in name else "stop", cast.lost)
    return cast
