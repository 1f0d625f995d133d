"""A run of PubSub-VFL or of a baseline, top to bottom as in Algorithm 1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from fedactors.actors.actor import Resources
from fedactors.actors.context import derived_seed
from fedactors.actors.groups import ActorGroup
from fedactors.data.alignment.ids import row_notes
from fedactors.data.alignment.rows import join_rows, with_joining
from fedactors.data.layouts.vertical import VerticalData
from fedactors.errors import BadInput
from fedactors.learning.metrics import HEADLINES, Split, gain_note, of_split
from fedactors.privacy.accounting import budgets
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PartyWorker, PassiveWorker
from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.baselines import PairedActiveWorker, PairedPassiveWorker
from fedactors.protocols.pubsub_vfl.broker import BROKER, BatchBroker
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import num_batches
from fedactors.protocols.pubsub_vfl.messages import (
    Aligned,
    BatchCount,
    EpochCounts,
    EpochEnd,
    EpochLoss,
    EpochOrder,
    Evaluated,
    LostWorker,
    PairOrder,
    PartRequest,
)
from fedactors.protocols.pubsub_vfl.replicas import AveragingServer, averages_after
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from fedactors.runtime.rounds import Mode, Remedy, Rounds, RunState, Watch

HEADLINE: dict[str, tuple[str, Mode]] = {
    "binary": ("validation/auc", "max"),
    "multiclass": ("validation/accuracy", "max"),
    "regression": ("validation/rmse", "min"),
}
DEEP = 4
"""Layers of a plain bottom that few rows hardly train beyond."""
_RESTART_SECONDS = 300.0
_LONGEST_CALL = 30 * 86_400.0


@dataclass
class TrainingState(RunState):
    """What a run keeps between epochs."""

    num_rows: int = 0
    """Training rows."""
    notes: list[str] = field(default_factory=list)
    """What the label party's rows lost in the alignment."""


async def run(config: PubSubVflConfig, data: VerticalData, runtime: Runtime) -> RunResult:
    """Train on vertically partitioned data and return the test metrics of the best epoch."""
    runtime.use_costs(with_joining(default_costs(config)))
    notes = await join_rows(data, runtime)
    federation = assemble(config, data, runtime)
    workers, (metric, mode) = federation.workers, HEADLINE[data.task]
    watch = Watch(metric, mode, patience=config.patience, target=config.target)
    remedy = Remedy("learning_rate", config.learning_rate)
    rounds = Rounds(runtime, TrainingState(), num_rounds=config.most_epochs, watch=watch, remedy=remedy)
    state = rounds.state
    if await rounds.start():
        with runtime.phase("alignment"):
            aligned = await federation.align()
            if config.steps_at_server:
                await federation.average(0)
        counts = (aligned.num_local, aligned.num_rejected, aligned.num_shared)
        state.num_rows = aligned.num_rows
        state.notes = notes or row_notes(data.label_party, *counts, dict(aligned.absent))
        await rounds.checkpoint()
    config = federation.config = config.at(state.num_rows)
    rounds.end_at(config.num_epochs, min(config.epochs_per_round, config.num_epochs))
    async for epoch in rounds:
        with runtime.phase("training"):
            begun = state.round + 1
            trained = await federation.train(EpochOrder(epoch, epoch - state.round), state.num_rows)
            if any(averages_after(config, e) for e in range(begun, epoch + 1)):
                await federation.average(epoch)
        with runtime.phase("evaluation"):
            found = of_split("validation", (await federation.evaluate("validation")).metrics)
        rounds.record({**trained, **found})
        if metric not in found:
            raise BadInput(
                f"validation_fraction: {config.validation_fraction:g} is not allowed with these data: all "
                f"validation rows "
                f"are of one class, so that {metric} is not defined"
            )
        end = EpochEnd(rounds.judge(found))
        await federation.end_epoch(end)
    if config.keeps_best:
        await workers.ask(lambda worker: worker.recall())
    tested = await federation.evaluate("test")
    test = of_split("test", tested.metrics)
    alone = (await federation.active.measure_alone()).metrics if config.local_baseline else {}
    await workers.ask(lambda worker: worker.account(), of=federation.first)
    await runtime.settle()
    notes = [*state.notes, *unlearned(config, data.label_party, tested.unpredicted)]
    notes += gain_note(data.label_party, data.task, tested.metrics, alone)
    chosen = {"num_epochs": config.num_epochs, "batch_size": config.batch_size}
    kept = {"num_rows": state.num_rows, "notes": notes, "task": data.task, **chosen}
    extra = {**kept, "privacy": budgets(runtime.privacy_records)}
    baseline = {f"test/local_{name}": value for name, value in alone.items() if name == HEADLINES[data.task]}
    return await rounds.result({**test, **baseline, "best_epoch": state.best_round}, extra)


def unlearned(config: PubSubVflConfig, party: str, unpredicted: int) -> list[str]:
    """Return what to tell of a model that predicts some classes for no test row; nothing of one that predicts all."""
    if not unpredicted:
        return []
    is_deep = config.model == "mlp" and not config.bottom_model and config.num_layers > DEEP
    fewer = f"num_layers=2 (it is {config.num_layers}), " if is_deep else ""
    what = "1 class is" if unpredicted == 1 else f"{unpredicted} classes are"
    remedies = f"{fewer}a larger learning_rate, more epochs, or weights of classes"
    return [f"{party}: {what} predicted for no test row; try {remedies}"]


@dataclass
class Federation:
    """The run's actors, and what the driver asks of several of them at once."""

    config: PubSubVflConfig
    broker: BatchBroker | None
    """None for fixed pairs."""
    workers: ActorGroup[PartyWorker]
    """All workers, the active party's first."""
    pairs: ActorGroup[PairedActiveWorker]
    """The active party's workers, one for each pair."""
    active: ActiveWorker
    """The active party's worker 0."""
    first: tuple[str, ...]
    """Worker 0 of each party: it answers for the party."""
    with_server: tuple[str, ...]
    """Workers of parties that have a parameter server."""

    async def align(self) -> Aligned:
        """Align all parties' rows; return how many there are."""
        return await self.workers.repeat(self.active.align)

    async def train(self, order: EpochOrder, num_rows: int) -> dict[str, float]:
        """Train one or several epochs; all messages of them have arrived when this returns."""
        if self.broker is None:
            return await self._train_pairs(order)
        count = order.num_epochs * num_batches(num_rows, self.config.batch_size)
        await self.broker.begin_epoch(BatchCount(count, order.epoch, self.config.max_in_flight))
        counts, found = await asyncio.gather(
            self._serve(self.broker), self.workers.ask(lambda worker: worker.run_epoch(order), timeout=_LONGEST_CALL)
        )
        # reduced in the order of names: the order of arrival must not change a sum
        loss = _mean_loss(found[name] for name in sorted(found))
        return {**loss, **asdict(counts), "stragglers_excluded": len(counts.stragglers_excluded)}

    async def _serve(self, broker: BatchBroker) -> EpochCounts:
        """See an epoch to its end, also for workers that are too late for it."""
        counts = await broker.serve_epoch()
        await self.workers.ask(lambda worker: worker.leave_epoch(), of=counts.stragglers_excluded)
        return counts

    async def _train_pairs(self, order: EpochOrder) -> dict[str, float]:
        """Every pair trains its share; then all workers catch up with their parameter server."""
        epoch, names = order.epoch, self.pairs.names
        orders = {name: PairOrder(epoch, pair, len(names), order.num_epochs) for pair, name in enumerate(names)}
        found = await self.pairs.ask_each(lambda worker, order: worker.train_pair(order), orders, timeout=_LONGEST_CALL)
        if self.config.pushes:
            # the first time pushes what is left, the second pulls what all have pushed
            for _ in range(2):
                await self.workers.ask(lambda worker: worker.follow(EpochOrder(epoch)), of=self.with_server)
        return {**_mean_loss(found.values()), "abandoned": 0}

    async def average(self, epoch: int) -> None:
        """Let the workers of each party go on from their average, or from where their server has stepped to."""
        # a server that steps: the first time waits for what is under way, the second takes what came of all of it
        for _ in range(2 if self.config.steps_at_server else 1):
            await self.workers.ask(lambda worker: worker.average(EpochOrder(epoch)), of=self.with_server)

    async def end_epoch(self, end: EpochEnd) -> None:
        """Tell all workers how an epoch ended."""
        await self.workers.ask(lambda worker: worker.end_epoch(end))

    async def evaluate(self, part: Split) -> Evaluated:
        """Return how the parties' first workers' models do on the validation or test rows."""
        return await self.workers.repeat(lambda: self.active.evaluate(PartRequest(part)), of=self.first)

    async def lost(self, worker: str) -> None:
        """A worker was lost and is back: its batches go to others, and who waits for it goes on."""
        if self.broker is not None:
            await self.broker.lose(LostWorker(worker))
        self.workers.back(worker)


def _mean_loss(losses: Iterable[EpochLoss | None]) -> dict[str, float]:
    """Return the mean over all rows that were trained on, if there were any."""
    loss_sum, rows = 0.0, 0
    for loss in losses:
        if loss is not None:
            loss_sum, rows = loss_sum + loss.loss_sum, rows + loss.num_rows
    return {"training/loss": loss_sum / rows} if rows else {}


def assemble(config: PubSubVflConfig, data: VerticalData, runtime: Runtime) -> Federation:
    """Spawn broker, parameter servers and workers, and say what follows a loss.

    A lost worker of PubSub-VFL is restarted from the last checkpoint, its batches given to others; a lost broker or
    parameter server, or a lost worker of a fixed pair, stops the run, which can be resumed.
    """
    seed = derived_seed(runtime.seed, "all parties", "batches")
    sides = (data.label_party, data.passive_parties)
    broker = None if config.is_paired else runtime.spawn(BatchBroker, BROKER, config, *sides)
    active_cls, passive_cls = (
        (PairedActiveWorker, PairedPassiveWorker) if config.is_paired else (ActiveWorker, PassiveWorker)
    )
    resources = Resources(num_cpus=config.cpus_per_worker, num_gpus=config.num_gpus)
    handles: dict[str, PartyWorker] = {}
    with_server: list[str] = []

    def spawn_party(party: str, cls: type[PartyWorker], count: int) -> list[str]:
        names = [f"{party}/worker-{i}" for i in range(count)]
        for name in names:
            handles[name] = runtime.spawn(cls, name, config, data.part(party), seed, names, resources=resources)
        if count > 1:
            runtime.spawn(AveragingServer, f"{party}/ps", names, config)
            with_server.extend(names)
        return names

    active = spawn_party(data.label_party, active_cls, config.num_active_workers)
    for party in data.passive_parties:
        spawn_party(party, passive_cls, config.num_passive_workers)
    restarts = config.on_party_loss == "restart" and not config.is_paired
    federation = Federation(
        config=config,
        broker=broker,
        workers=ActorGroup(runtime, handles, on_loss="restart" if restarts else "stop", timeout=_RESTART_SECONDS),
        pairs=ActorGroup(runtime, active, timeout=_LONGEST_CALL),
        active=runtime.handle(active[0], ActiveWorker),
        first=tuple(f"{party}/worker-0" for party in (data.label_party, *data.passive_parties)),
        with_server=tuple(with_server),
    )
    runtime.on_loss(lambda name: "restart" if restarts and "/worker-" in name else "stop", federation.lost)
    return federation


def actors(config: PubSubVflConfig) -> Mapping[str, type]:
    """Return the kinds of actors that a run with this configuration has."""
    servers = {"a party's parameter server": AveragingServer} if config.uses_servers else {}
    if not config.is_paired:
        return {
            "active party's workers": ActiveWorker,
            "passive parties' workers": PassiveWorker,
            "broker": BatchBroker,
            **servers,
        }
    return {"active party's workers": PairedActiveWorker, "passive parties' workers": PairedPassiveWorker, **servers}
