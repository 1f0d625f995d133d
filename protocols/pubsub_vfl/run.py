"""A run of PubSub-VFL or of a baseline, top to bottom as in Algorithm 1."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fedactors.data.partitions import VerticalData
from fedactors.plugins import RunResult
from fedactors.records.stopping import BestKeeper, EarlyStopping, Mode
from fedactors.runtime.base import Runtime
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.accounts import account
from protocols.pubsub_vfl.baselines import avfl, avfl_ps, vfl, vfl_ps
from protocols.pubsub_vfl.cast import BROKER, Cast, assemble
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.costs import default_costs

HEADLINE: dict[str, tuple[str, Mode]] = {
    "binary": ("auc", "max"),
    "multiclass": ("accuracy", "max"),
    "regression": ("rmse", "min"),
}


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
        everyone = list(cast.workers)
        with runtime.phase("alignment"):
            state["num_rows"] = await cast.persist(everyone, lambda: cast.first_active.align(cast.first_passive))
        state.update(epoch=0, releases=0, best=keeper.state_dict(), stopping=stopping.state_dict())
        await runtime.checkpoint()
    else:
        state["releases"] += 1  # the epoch that was interrupted may have published every batch
        keeper.load_state_dict(state["best"])
        stopping.load_state_dict(state["stopping"])
    while state["epoch"] < config.num_epochs and stopping.num_bad < patience and not state.get("reached"):
        epoch = state["epoch"] + 1
        with runtime.phase("training"):
            trained = await train_epoch(config, epoch, state["num_rows"], cast)
            if averages_after(config, epoch):
                await cast.with_server("average", epoch)
        with runtime.phase("evaluation"):
            found = await evaluate("validation", cast)
        is_best = keeper.update(epoch, found[metric])
        await cast.everyone("end_epoch", is_best)
        stopping.update(found[metric])
        state["reached"] = config.target is not None and not is_better(config.target, found[metric], mode)
        releases = state["releases"] + trained.get("max_attempts", 1)
        state.update(epoch=epoch, releases=releases, best=keeper.state_dict(), stopping=stopping.state_dict())
        # the loss is of the training rows, every other metric of the validation rows
        found["validation_loss"] = found.pop("loss")
        await runtime.record_round(epoch, {**trained, **found})
        await cast.persist(list(cast.workers), runtime.checkpoint)
    await cast.everyone("recall")
    test = await evaluate("test", cast)
    privacy = await account(config, state["num_rows"], state["releases"], cast)
    await runtime.checkpoint("final")
    extra = {"num_rows": state["num_rows"], "task": data.task, "privacy": privacy}
    return RunResult(rounds=state["epoch"], metrics={**test, "best_epoch": keeper.best_round}, extra=extra)


def averages_after(config: PubSubVflConfig, epoch: int) -> bool:
    """Say whether the workers of each party average their parameters at the end of an epoch (Algorithm 1, line 30)."""
    if not config.averages:
        return False
    if config.sync_unit == "batch" or epoch == config.num_epochs:
        return True
    return algorithm.syncs(epoch, config.sync_interval, config.sync_schedule)


def is_better(one: float, other: float, mode: Mode) -> bool:
    """Say whether a metric is better than another."""
    return one > other if mode == "max" else one < other


async def train_epoch(config: PubSubVflConfig, epoch: int, num_rows: int, cast: Cast) -> dict[str, float]:
    """Train one epoch; all messages of it have arrived when this returns."""
    match config.algorithm:
        case "vfl":
            return await vfl.train_epoch(epoch, cast)
        case "vfl-ps":
            return await vfl_ps.train_epoch(epoch, cast)
        case "avfl":
            return await avfl.train_epoch(epoch, cast)
        case "avfl-ps":
            return await avfl_ps.train_epoch(epoch, cast, config.push_every)
    return await train_over_broker(config, epoch, num_rows, cast)


async def train_over_broker(config: PubSubVflConfig, epoch: int, num_rows: int, cast: Cast) -> dict[str, float]:
    """Train one epoch of PubSub-VFL: workers of all parties take batches from the broker until all are done."""
    await cast.broker.begin_epoch(algorithm.num_batches(num_rows, config.batch_size))
    workers: dict[str, Any] = dict(cast.workers)

    async def work(name: str) -> Any:
        return await cast.persist([name], lambda: workers[name].run_epoch(epoch, BROKER))

    served, *found = await asyncio.gather(cast.broker.serve_epoch(), *map(work, workers))
    abandoned, discarded, attempts = served
    # reduced in the order of names: the order of arrival must not change a sum
    by_name = dict(zip(workers, found, strict=True))
    active = [by_name[name] for name in sorted(cast.active)]
    rows = sum(f["rows"] for f in active)
    loss = sum(f["loss_sum"] for f in active) / rows if rows else math.nan
    return {"loss": loss, "abandoned": abandoned, "discarded": discarded, "max_attempts": attempts}


async def evaluate(part: str, cast: Cast) -> dict[str, float]:
    """Return the metrics of the parties' first workers' models on the validation or test rows."""
    first = [next(iter(cast.active)), *cast.first_passive]
    return await cast.persist(first, lambda: cast.first_active.evaluate(part, cast.first_passive))
