"""A run of GLASU, of its special cases or of a baseline, top to bottom as in Algorithm 1."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedactors.actors.actor import Actor, Resources
from fedactors.actors.groups import ActorGroup, OnLoss
from fedactors.data.alignment.nodes import align_nodes
from fedactors.learning.metrics import of_split
from fedactors.privacy.accounting import budgets
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.aggregation import AggregationServer, mean
from fedactors.protocols.glasu.baselines import LoneClient
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import GraphSource, parts_of
from fedactors.protocols.glasu.messages import RoundOrder
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Costs, Runtime
from fedactors.runtime.rounds import Remedy, Rounds, RunState, Watch

SERVER = "server"
_MOST_WAITS = 1000
"""How often the server may wait for clients in one round: the driver's patience with it, in client timeouts."""
_OVERHEAD, _PER_OPERATION = 2.0e-4, 5.0e-11
Trainer = AggregationServer | LoneClient
_log = logging.getLogger(__name__)


@dataclass
class State(RunState):
    """What the driver keeps beside the rounds."""

    chosen: dict[str, float] = field(default_factory=dict)
    """Metrics of the best evaluation by validation accuracy."""
    curve: list[dict[str, float | None]] = field(default_factory=list)
    """Accuracies at each evaluation, beside what training had cost by then."""
    remarks: tuple[str, ...] = ()
    """What is unusual about the data."""
    lost: list[str] = field(default_factory=list)
    """Clients that worked alone until they were lost."""


async def run(config: GlasuConfig, data: GraphSource, runtime: Runtime) -> RunResult:
    """Train on a vertically distributed graph; return the accuracies at the round that validation chose."""
    runtime.use_costs(default_costs())
    notes = await align_nodes(data, runtime)
    federation = assemble(config, data, runtime)
    remedy = Remedy("learning_rate", config.learning_rate)
    watch = Watch("validation/accuracy", patience=config.patience)
    rounds = Rounds(runtime, State(), num_rounds=config.num_rounds, watch=watch, remedy=remedy)
    state = rounds.state
    is_fresh = await rounds.start()
    for name in state.lost:
        federation.leave(name)
    if is_fresh or config.secure_aggregation:  # keys are in no checkpoint
        async with rounds.aside("introductions"):
            found = await federation.ask(lambda one: one.prepare())
        state.remarks = tuple(dict.fromkeys(text for one in found.values() for text in one.texts))
    if is_fresh:
        for remark in state.remarks:
            _log.warning("%s", remark)
        await rounds.checkpoint()
    async for t in rounds:
        # Algorithm 2, Algorithm 3 and, at every client, Q times Algorithm 4
        rounds.record(await train(federation, RoundOrder(t)))
        state.lost = [name for name in federation.names if name not in federation.members]
        if t % config.evaluate_every == 0 or t == config.num_rounds:
            cost = await rounds.spent()
            async with rounds.aside():
                measured = await evaluate(federation, RoundOrder(t))
            rounds.record(measured)
            scores = {split: measured.get(f"{split}/accuracy") for split in ("validation", "test")}
            state.curve.append({"round": t, **scores, **cost})
            if watch.metric not in measured:  # nothing to select by
                state.chosen, state.best_round = measured, t
            elif rounds.judge(measured):
                state.chosen = measured
                async with rounds.aside():
                    await federation.ask(lambda one: one.remember())
    training = await rounds.spent()
    await federation.ask(lambda one: one.account())
    await runtime.settle()
    chosen = {**state.chosen, "best_round": state.best_round}
    extra = {
        "remarks": list(state.remarks),
        "privacy": budgets(runtime.privacy_records),
        "curve": state.curve,
        "training": training,
        **({"notes": notes} if notes else {}),
    }
    return await rounds.result(chosen, extra)


def assemble(config: GlasuConfig, data: GraphSource, runtime: Runtime) -> ActorGroup[Trainer]:
    """Spawn the clients and, where they communicate, the server; return whom the driver gives its orders."""
    names = data.parties[:1] if config.special_case == "centralised" else data.parties
    cls = LoneClient if config.works_alone else GraphClient
    clients: dict[str, Any] = {}
    resources = Resources(num_cpus=0.1, num_gpus=config.num_gpus)
    for position, name in enumerate(names):
        arguments = (config, parts_of(config, data, name), position, runtime.seed, tuple(names))
        clients[name] = runtime.spawn(cls, name, *arguments, resources=resources)
    runtime.on_loss(lambda name: "stop" if name == SERVER else config.on_party_loss)
    if config.works_alone:
        on_loss: OnLoss = "drop" if config.on_party_loss == "continue" else "stop"
        return ActorGroup(runtime, clients, on_loss=on_loss, timeout=config.client_timeout)
    server: Trainer = runtime.spawn(AggregationServer, SERVER, config, names, runtime.seed)
    return ActorGroup(runtime, {SERVER: server}, timeout=_MOST_WAITS * config.client_timeout)


def actors(config: GlasuConfig) -> dict[str, type[Actor]]:
    """Return the kinds of actors of a run, for `fedactors inspect`."""
    if config.works_alone:
        return {"clients": LoneClient}
    return {"clients": GraphClient, "server": AggregationServer}


async def train(federation: ActorGroup[Trainer], order: RoundOrder) -> dict[str, float]:
    """Let a round be done; return its metrics, over the clients that work alone their means."""
    found = list((await federation.ask(lambda one: one.train(order))).values())
    return {
        "training/loss": mean([one.first_loss for one in found]),
        "training/last_loss": mean([one.last_loss for one in found]),
        "num_members": sum(one.num_members for one in found),
    }


async def evaluate(federation: ActorGroup[Trainer], order: RoundOrder) -> dict[str, float]:
    """Let the clients infer on the whole graph; return metrics, as far as there are nodes to measure them on."""
    found = list((await federation.ask(lambda one: one.evaluate(order))).values())
    measured = {
        **of_split("test", _means([one.test for one in found])),
        **of_split("validation", _means([one.validation for one in found])),
    }
    if "test/accuracy" in measured:
        measured["test/mean_client_accuracy"] = mean([one.mean_client for one in found])
        least = min(one.least_client for one in found)
        measured |= {"test/least_client_accuracy": least} if math.isfinite(least) else {}  # of a sum it is not known
    return measured


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric that all clients have."""
    names = [name for name in found[0] if all(name in one for one in found)]
    return {name: mean([one[name] for one in found]) for name in names}


def default_costs() -> Costs:
    """Return seconds for each kind of work on one core: calls x overhead + units x rate.

    Units are floating-point operations for what runs in torch, sampled pairs for sampling, numbers for sums. Measured
    on one core (Cora and PubMed, width 64, one thread); ``scenarios/benchmarks/glasu_speed.py costs`` measures again.
    """
    return Costs(
        {
            "sample": (_OVERHEAD, 3.2e-7),
            "build": (_OVERHEAD, 5.0e-7),
            "segment": (_OVERHEAD, _PER_OPERATION),
            "gradient": (2 * _OVERHEAD, 2.6 * _PER_OPERATION),
            "update": (4 * _OVERHEAD, 2.6 * _PER_OPERATION),
            "backward": (3 * _OVERHEAD, 1.6 * _PER_OPERATION),  # an update whose forward pass is the joint inference
            "union": (_OVERHEAD, 2.0e-8),
            "aggregate": (_OVERHEAD / 10, 1.0e-10),
            "unmask": (_OVERHEAD, 1.0e-8),
        }
    )
