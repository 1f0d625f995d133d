"""A run of GLASU, of its special cases or of a baseline, top to bottom as in Algorithm 1."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fedactors.plugins import RunResult
from fedactors.records.stopping import BestKeeper, EarlyStopping
from fedactors.resources import Resources
from fedactors.runtime.base import Runtime, derived_seed
from protocols.glasu.actors import GraphClient
from protocols.glasu.baselines.alone import Alone
from protocols.glasu.config import GlasuConfig
from protocols.glasu.costs import default_costs
from protocols.glasu.graphs import GraphSource, client_names
from protocols.glasu.servers import AggregationServer

SERVER = "server"
T = TypeVar("T")
_log = logging.getLogger(__name__)


async def run(config: GlasuConfig, data: GraphSource, runtime: Runtime) -> RunResult:
    """Train on a vertically distributed graph; return the accuracies at the round that validation chose."""
    runtime.use_costs(default_costs())
    federation = assemble(config, data, runtime)
    await runtime.start()
    state, keeper = runtime.state, BestKeeper(mode="max")
    stopping = EarlyStopping(patience=config.patience or config.num_rounds, mode="max")
    if runtime.resumed:
        keeper.load_state_dict(state["best"])
        stopping.load_state_dict(state["stopping"])
        await aside(runtime, federation.rejoin)
    else:
        state.update(round=0, best=keeper.state_dict(), stopping=stopping.state_dict(), chosen={}, curve=[], aside={})
        state["remarks"] = await aside(runtime, federation.gather_introductions)
        for remark in state["remarks"]:
            _log.warning("%s", remark)
        await runtime.checkpoint()
    while state["round"] < config.num_rounds and stopping.num_bad < stopping.patience:
        t = state["round"] + 1
        # Algorithm 2, Algorithm 3 and, at every client, Q times Algorithm 4
        metrics = await federation.train_round(t)
        if t % config.evaluate_every == 0 or t == config.num_rounds:
            found = await evaluate(federation, runtime, t)
            metrics |= found
            stopping.update(found["validation_accuracy"])
            if keeper.update(t, found["validation_accuracy"]):
                state["chosen"] = found
                await aside(runtime, federation.remember)
        state.update(round=t, best=keeper.state_dict(), stopping=stopping.state_dict())
        await runtime.record_round(t, metrics)
        await runtime.checkpoint()
    training = await spent(runtime)
    budgets = await federation.account()
    await runtime.checkpoint("final")
    extra = {"remarks": list(state["remarks"]), "privacy": budgets, "curve": state["curve"], "training": training}
    chosen = {"accuracy": state["chosen"]["test_accuracy"], **state["chosen"], "best_round": keeper.best_round}
    return RunResult(rounds=state["round"], metrics=chosen, extra=extra)


def assemble(config: GlasuConfig, data: GraphSource, runtime: Runtime) -> AggregationServer | Alone:
    """Spawn the clients and, where they communicate, the server; say what follows a loss."""
    names = client_names(data)
    common_seed = derived_seed(runtime.seed, "all clients", "nodes")
    cast = names[:1] if config.special_case == "centralised" else names
    clients = {
        name: runtime.spawn(
            GraphClient, name, config, data, names, place, common_seed, resources=Resources(num_cpus=0.1)
        )
        for place, name in enumerate(cast)
    }
    runtime.on_loss(lambda name: "stop" if name == SERVER else config.on_party_loss)
    if config.special_case in ("centralised", "standalone"):
        return Alone(clients, config.on_party_loss)
    return runtime.spawn(AggregationServer, SERVER, config, names)


async def evaluate(federation: AggregationServer | Alone, runtime: Runtime, t: int) -> dict[str, float]:
    """Return the accuracies after round `t`, and note them on the curve beside what training had cost by then."""
    cost = await spent(runtime)
    found = await aside(runtime, lambda: federation.evaluate(t))
    accuracies = {name: found[f"{name}_accuracy"] for name in ("validation", "test")}
    runtime.state["curve"] = [*runtime.state["curve"], {"round": t, **accuracies, **cost}]
    return found


async def aside(runtime: Runtime, action: Callable[[], Awaitable[T]]) -> T:
    """Await something that is not training; its messages, bytes and seconds are kept apart."""
    before = await used(runtime)
    result = await action()
    after, sums = await used(runtime), runtime.state["aside"]
    runtime.state["aside"] = {name: sums.get(name, 0) + after[name] - before[name] for name in after}
    return result


async def spent(runtime: Runtime) -> dict[str, float]:
    """Return what training alone has cost so far."""
    total, sums = await used(runtime), runtime.state["aside"]
    return {name: total[name] - sums.get(name, 0) for name in total}


async def used(runtime: Runtime) -> dict[str, float]:
    """Return messages, bytes and seconds so far."""
    await runtime.settle()
    usage = runtime.usage()
    return {"messages": usage.messages, "bytes": usage.bytes, "seconds": usage.seconds}
