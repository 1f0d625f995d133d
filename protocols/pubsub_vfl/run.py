"""A run of PubSub-VFL or of a baseline, top to bottom as in Algorithm 1."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedactors.data.partitions import VerticalData
from fedactors.errors import PartyLost
from fedactors.plugins import RunResult
from fedactors.records.stopping import BestKeeper, EarlyStopping, Mode
from fedactors.resources import Resources
from fedactors.runtime.base import Runtime, derived_seed
from protocols.pubsub_vfl.actors import ActiveWorker, PartyWorker, PassiveWorker
from protocols.pubsub_vfl.algorithm import default_costs
from protocols.pubsub_vfl.averaging import AveragingServer, averages_after
from protocols.pubsub_vfl.baselines import PairedActiveWorker, PairedPassiveWorker
from protocols.pubsub_vfl.broker import BROKER, BatchBroker
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.data import num_batches
from protocols.pubsub_vfl.messages import (
    BatchCount,
    EpochEnd,
    EpochLoss,
    EpochOrder,
    LostWorker,
    PairOrder,
    PartRequest,
    Releases,
)

T = TypeVar("T")
HEADLINE: dict[str, tuple[str, Mode]] = {
    "binary": ("auc", "max"),
    "multiclass": ("accuracy", "max"),
    "regression": ("rmse", "min"),
}
_RESTART_TIMEOUT = 300.0


async def run(config: PubSubVflConfig, data: VerticalData, runtime: Runtime) -> RunResult:
    """Train on vertically partitioned data and return the test metrics of the best epoch."""
    runtime.use_costs(default_costs(config))
    cast = assemble(config, data, runtime)
    await runtime.start()
    state = runtime.state
    metric, mode = HEADLINE[data.task]
    patience = config.patience or config.num_epochs
    keeper, stopping = BestKeeper(mode=mode), EarlyStopping(patience=patience, mode=mode)
    if not runtime.resumed:
        with runtime.phase("alignment"):
            state["num_rows"] = await cast.align()
        state.update(epoch=0, releases=0, best=keeper.state_dict(), stopping=stopping.state_dict())
        await runtime.checkpoint()
    else:
        state["releases"] += 1  # the epoch that was interrupted may have published every batch
        keeper.load_state_dict(state["best"])
        stopping.load_state_dict(state["stopping"])
    while state["epoch"] < config.num_epochs and stopping.num_bad < patience and not state.get("reached"):
        epoch = state["epoch"] + 1
        with runtime.phase("training"):
            trained = await cast.train_epoch(epoch, state["num_rows"])
            if averages_after(config, epoch):
                await cast.average(epoch)
        with runtime.phase("evaluation"):
            found = await cast.evaluate("validation")
        is_best = keeper.update(epoch, found[metric])
        await cast.end_epoch(EpochEnd(is_best))
        stopping.update(found[metric])
        state["reached"] = config.target is not None and not is_better(config.target, found[metric], mode)
        releases = state["releases"] + trained.get("max_attempts", 1)
        state.update(epoch=epoch, releases=releases, best=keeper.state_dict(), stopping=stopping.state_dict())
        # the loss is of the training rows, every other metric of the validation rows
        found["validation_loss"] = found.pop("loss")
        await runtime.record_round(epoch, {**trained, **found})
        await cast.persist(list(cast.workers), runtime.checkpoint)
    await cast.ask(lambda worker: worker.recall())
    test = await cast.evaluate("test")
    accounts = await cast.ask(lambda worker: worker.account(Releases(state["releases"])), cast.first)
    await runtime.checkpoint("final")
    privacy = {name.partition("/")[0]: dataclasses.asdict(account) for name, account in accounts.items()}
    extra = {"num_rows": state["num_rows"], "task": data.task, "privacy": privacy}
    return RunResult(rounds=state["epoch"], metrics={**test, "best_epoch": keeper.best_round}, extra=extra)


def is_better(one: float, other: float, mode: Mode) -> bool:
    """Say whether a metric is better than another."""
    return one > other if mode == "max" else one < other


@dataclass
class Cast:
    """Handles of all actors, by name."""

    config: PubSubVflConfig
    runtime: Runtime
    broker: BatchBroker | None
    active: dict[str, ActiveWorker]
    passive: dict[str, PassiveWorker]
    back: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def workers(self) -> Mapping[str, Any]:
        """All workers, the active party's first."""
        return {**self.active, **self.passive}

    @property
    def with_siblings(self) -> list[str]:
        """Names of the workers of parties that have several."""
        active = list(self.active) if self.config.num_active_workers > 1 else []
        return active + (list(self.passive) if self.config.num_passive_workers > 1 else [])

    @property
    def first(self) -> list[str]:
        """Worker 0 of each party: it answers for the party."""
        return [name for name in self.workers if name.endswith("/worker-0")]

    @property
    def first_active(self) -> ActiveWorker:
        """The active party's worker 0."""
        return next(iter(self.active.values()))

    async def align(self) -> int:
        """Align all parties' rows; return the number of training rows."""
        return (await self.persist(list(self.workers), self.first_active.align)).num_rows

    async def evaluate(self, part: str) -> dict[str, float]:
        """Return the metrics of the parties' first workers' models on the validation or test rows."""
        found = await self.persist(self.first, lambda: self.first_active.evaluate(PartRequest(part)))
        return {name: value for name, value in dataclasses.asdict(found).items() if value is not None}

    async def train_epoch(self, epoch: int, num_rows: int) -> dict[str, float]:
        """Train one epoch; all messages of it have arrived when this returns."""
        if self.broker is None:
            return await self._train_pairs(epoch)
        return await self._train_over_broker(epoch, self.broker, num_batches(num_rows, self.config.batch_size))

    async def average(self, epoch: int) -> None:
        """Let the workers of each party go on from their average."""
        await self.ask(lambda worker: worker.average(EpochOrder(epoch)), self.with_siblings)

    async def end_epoch(self, end: EpochEnd) -> None:
        """Tell all workers how the epoch ended."""
        await self.ask(lambda worker: worker.end_epoch(end))

    async def _train_over_broker(self, epoch: int, broker: BatchBroker, count: int) -> dict[str, float]:
        """Workers of all parties take batches from the broker until all are done."""
        await broker.begin_epoch(BatchCount(count))
        order = EpochOrder(epoch)
        counts, found = await asyncio.gather(broker.serve_epoch(), self.ask(lambda worker: worker.run_epoch(order)))
        # reduced in the order of names: the order of arrival must not change a sum
        losses: list[EpochLoss] = [found[name] for name in sorted(self.active)]
        return {"loss": mean_loss(losses), **dataclasses.asdict(counts)}

    async def _train_pairs(self, epoch: int) -> dict[str, float]:
        """Every pair trains its share; then all workers catch up with their parameter server."""
        active: list[Any] = list(self.active.values())
        orders = [PairOrder(epoch, pair, len(active)) for pair in range(len(active))]
        losses = await asyncio.gather(*(w.train_pair(order) for w, order in zip(active, orders, strict=True)))
        if self.config.pushes:
            # the first time pushes what is left, the second pulls what all have pushed
            for _ in range(2):
                await self.ask(lambda worker: worker.follow(EpochOrder(epoch)), self.with_siblings)
        return {"loss": mean_loss(losses), "abandoned": 0}

    async def lost(self, name: str) -> None:
        """A worker was lost and is back: its batches go to others, and whoever waits for it goes on."""
        if self.broker is not None:
            await self.broker.lose(LostWorker(name))
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

    async def ask(self, call: Callable[[Any], Awaitable[T]], of: list[str] | None = None) -> dict[str, T]:
        """Call all workers (or `of` these) at once, again where one was lost and is back; return replies by name."""
        names, workers = list(self.workers) if of is None else of, self.workers

        async def one(name: str) -> T:
            return await self.persist([name], lambda: call(workers[name]))

        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


def mean_loss(losses: list[EpochLoss]) -> float:
    """Return the mean over all rows that were trained on."""
    rows = sum(loss.num_rows for loss in losses)
    return sum(loss.loss_sum for loss in losses) / rows if rows else math.nan


def assemble(config: PubSubVflConfig, data: VerticalData, runtime: Runtime) -> Cast:
    """Spawn broker, parameter servers and workers, and say what follows a loss.

    A lost worker of PubSub-VFL is restarted from the last checkpoint, its batches given to others; a lost broker or
    parameter server, or a lost worker of a fixed pair, stops the run, which can be resumed.
    """
    seed = derived_seed(runtime.seed, "all parties", "batches")
    broker = None if config.is_paired else runtime.spawn(BatchBroker, BROKER, config, data.passive_parties)
    kinds = (PairedActiveWorker, PairedPassiveWorker) if config.is_paired else (ActiveWorker, PassiveWorker)
    resources = Resources(num_cpus=config.cpus_per_worker)

    def party(name: str, cls: type[PartyWorker], count: int) -> dict[str, Any]:
        names = tuple(f"{name}/worker-{i}" for i in range(count))
        made = {w: runtime.spawn(cls, w, config, data.part(name), seed, names, resources=resources) for w in names}
        if count > 1 and config.uses_servers:
            runtime.spawn(AveragingServer, f"{name}/ps", names)
        return made

    active = party(data.label_party, kinds[0], config.num_active_workers)
    passive: dict[str, PassiveWorker] = {}
    for name in data.passive_parties:
        passive |= party(name, kinds[1], config.num_passive_workers)
    cast = Cast(config, runtime, broker, active, passive)
    restarts = config.on_party_loss == "restart" and not config.is_paired
    runtime.on_loss(lambda name: "restart" if restarts and "/worker-" in name else "stop", cast.lost)
    return cast
