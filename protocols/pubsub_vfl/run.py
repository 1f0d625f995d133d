"""A run of PubSub-VFL or of its synchronous baseline, top to bottom as in Algorithm 1."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fedactors.data.partitions import VerticalData
from fedactors.plugins import RunResult
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.records.stopping import BestKeeper, EarlyStopping, Mode
from fedactors.runtime.base import Runtime
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.baselines import vfl
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
        state["num_rows"] = await cast.first_active.align(cast.first_passive)
        state.update(epoch=0, best=keeper.state_dict(), stopping=stopping.state_dict())
        await runtime.checkpoint()
    else:
        keeper.load_state_dict(state["best"])
        stopping.load_state_dict(state["stopping"])
    while state["epoch"] < config.num_epochs and stopping.num_bad < patience:
        epoch = state["epoch"] + 1
        trained = await train_epoch(config, epoch, state["num_rows"], cast)
        if algorithm.syncs(epoch, config.sync_interval, config.sync_schedule) or epoch == config.num_epochs:
            await average_parameters(epoch, cast)
        found = await evaluate("validation", cast)
        if keeper.update(epoch, found[metric]):
            await everyone(cast, "remember")
        stopping.update(found[metric])
        state.update(epoch=epoch, best=keeper.state_dict(), stopping=stopping.state_dict())
        # the loss is of the training rows, every other metric of the validation rows
        found["validation_loss"] = found.pop("loss")
        await runtime.record_round(epoch, {**trained, **found})
        await runtime.checkpoint()
    await everyone(cast, "recall")
    test = await evaluate("test", cast)
    extra = await account(config, data, state, cast, runtime)
    await runtime.checkpoint("final")
    return RunResult(rounds=state["epoch"], metrics={**test, "best_epoch": keeper.best_round}, extra=extra)


async def train_epoch(config: PubSubVflConfig, epoch: int, num_rows: int, cast: Cast) -> dict[str, float]:
    """Train one epoch; all messages of it have arrived when this returns."""
    if config.algorithm == "vfl":
        return await vfl.train_epoch(epoch, cast.first_active, cast.first_passive)
    # before any worker reports: to a worker that comes early the epoch before would seem to be over again
    await cast.broker.begin_epoch(algorithm.num_batches(num_rows, config.batch_size))
    served = asyncio.ensure_future(cast.broker.serve_epoch())
    workers: dict[str, Any] = {**cast.active, **cast.passive}

    async def work(name: str, worker: Any) -> Any:
        return await cast.persist([name], lambda: worker.run_epoch(epoch, BROKER))

    found = await asyncio.gather(*(work(name, worker) for name, worker in workers.items()))
    abandoned, discarded, attempts = await served
    # reduced in the order of names: the order of arrival must not change a sum
    active = [found[list(workers).index(name)] for name in sorted(cast.active)]
    rows = sum(f["rows"] for f in active)
    loss = sum(f["loss_sum"] for f in active) / rows if rows else math.nan
    return {"loss": loss, "abandoned": abandoned, "discarded": discarded, "max_attempts": attempts}


async def average_parameters(epoch: int, cast: Cast) -> None:
    """Let the workers of every party average their parameters (Algorithm 1, line 31, for all parties)."""

    async def average(party: str, server: str) -> None:
        both: dict[str, Any] = {**cast.active, **cast.passive}
        workers = [worker for name, worker in both.items() if name.partition("/")[0] == party]
        await asyncio.gather(*(worker.sync(epoch, server) for worker in workers))

    await asyncio.gather(*(average(party, server) for party, server in cast.server_of.items()))


async def evaluate(part: str, cast: Cast) -> dict[str, float]:
    """Return the metrics of the parties' first workers' models on the validation or test rows."""
    first = [next(iter(cast.active)), *cast.first_passive]
    return await cast.persist(first, lambda: cast.first_active.evaluate(part, cast.first_passive))


async def everyone(cast: Cast, verb: str) -> None:
    """Tell all workers to remember or to recall their best parameters."""
    for name, worker in {**cast.active, **cast.passive}.items():
        await cast.persist([name], getattr(worker, verb))


async def account(
    config: PubSubVflConfig, data: VerticalData, state: dict[str, Any], cast: Cast, runtime: Runtime
) -> dict[str, Any]:
    """Record what each passive party's embeddings and the gradients cost, nominally and rigorously."""
    budgets: dict[str, Any] = {}
    for name in cast.first_passive:
        party = name.partition("/")[0]
        facts = await cast.passive[name].privacy_facts()
        releases = int(facts["releases"])
        mu, epsilon = algorithm.rigorous_budget(config.clip_norm, facts["sigma"], releases, config.delta)
        runtime.record_privacy(
            PrivacyRecord(
                party=party,
                message_type="Embedding",
                mechanism="gaussian" if facts["sigma"] else "none",
                clip_norm=config.clip_norm if facts["sigma"] else math.inf,
                noise_scale=facts["sigma"],
                releases=releases,
                nominal_mu=None if math.isinf(config.privacy_mu) else config.privacy_mu,
                rigorous_mu=mu,
                epsilon=epsilon,
                delta=config.delta,
                covered=math.isfinite(mu) and not runtime.reproducible_noise,
                note="replace-one-record neighbours; nominal mu is the paper's, whose amplification known batch ids "
                "do not give; membership and row order are not covered"
                + ("; no privacy guarantee: reproducible noise" if runtime.reproducible_noise else ""),
            )
        )
        budgets[party] = {"nominal_mu": config.privacy_mu, "rigorous_mu": mu, "epsilon": epsilon, "releases": releases}
    return {"num_rows": state["num_rows"], "task": data.task, "privacy": budgets}
