"""A run of TablePuppet or of one of its baselines, top to bottom as Algorithm 1.

Table 5, with the rows that the tables hold:

    algorithm    tables hold        LoJ computes (each round)      tables compute              LoU
    rfl-sgd-v    rows that join     dl/dh of a batch (Eq. 4)       step of Eq. 12, 13          -
    rfl-admm-v   rows that join     z, lambda (Eq. 7, 8)           theta of Eq. 16             -
    rfl-sgd      partitions         dl/dh of a batch               gradient of Eq. 18          Eq. 17, 19
    rfl-admm     partitions         z, lambda                      theta of Eq. 22             Eq. 20, 21
    vfl-sgd      slices of the join dl/dh of a batch               step of Eq. 3               -
    vfl-admm     slices of the join z, lambda                      theta of Eq. 9              -
    centralised  nothing: the server holds the joined table and trains on it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedactors.actors.context import derived_seed
from fedactors.data.join import join_notes
from fedactors.data.layouts.vertical import RelationalData
from fedactors.learning.metrics import HEADLINES, gain_note, of_split
from fedactors.privacy.accounting import EVERYBODY, JOINED, budgets, claims
from fedactors.protocols.tablepuppet.actors import TableClient, coordinator_of
from fedactors.protocols.tablepuppet.algorithm import SCORE_NAMES, Loss
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.costs import account_communication, default_costs
from fedactors.protocols.tablepuppet.data import assign_clients, loss_of, name_tables
from fedactors.protocols.tablepuppet.loj_operator import JoinServer, Side
from fedactors.protocols.tablepuppet.lou_operator import UnionCoordinator
from fedactors.protocols.tablepuppet.messages import JoinFacts, RoundOrder, TestScore
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from fedactors.runtime.rounds import Remedy, Rounds, RunState

SETTLED_ROUNDS, SETTLED_SHARE = 6, 0.01
"""A run ends when its training loss has moved by less than this share of its gain in so many rounds."""


@dataclass
class State(RunState):
    """What the driver keeps between rounds."""

    facts: JoinFacts = field(default_factory=lambda: JoinFacts(0, 0, 0, {}, {}, {}))
    trivial: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


async def run(config: TablePuppetConfig, data: RelationalData, runtime: Runtime) -> RunResult:
    """Train over the join that the data's query states, and return the score on the joined test rows."""
    runtime.use_costs(default_costs(config))
    loss = loss_of(config, data.task)
    server, clients = assemble(config, data, runtime)
    rounds = Rounds(runtime, State(), num_rounds=num_rounds(config, loss), remedy=remedy(config))
    state = rounds.state
    if await rounds.start():
        await server.agree()
        await next(iter(clients.values())).share_secret()
        state.facts = await server.map_tables()  # line 3
        state.trivial = named(loss, await server.trivial())
        await rounds.checkpoint()
    async for number in rounds:
        trained = await server.train_round(RoundOrder(number))  # lines 4-16
        train_loss = trained.value
        rounds.record({"training/loss": train_loss})
        if config.is_admm:
            rounds.record({"primal_residual": trained.primal, "dual_residual": trained.dual, "rho": trained.rho})
            if max(trained.primal, trained.dual) <= config.tolerance:
                rounds.stop()
        found = await server.evaluate()
        scores = {**named(loss, found), **found.more}
        state.losses = [*state.losses, train_loss]
        if not config.num_rounds and has_settled(state):
            rounds.stop()
        state.metrics = {**of_split("test", scores), "training/loss": train_loss}
        state.curve = [*state.curve, scores[SCORE_NAMES[loss]]]
        rounds.record(state.metrics)
    for client in clients.values():
        await client.account()
    communication = await account_communication(config, state.facts, state.round, runtime)
    trivial = {f"test/trivial_{name}": value for name, value in state.trivial.items()}
    facts = {name: getattr(state.facts, name) for name in JoinFacts.__dataclass_fields__}
    num_joined = state.facts.joined_rows + state.facts.joined_test_rows
    notes = join_notes(num_joined, state.facts.rows, state.facts.rows_that_join)
    notes += unconverged(config, state)
    alone = await measured_alone(config, clients, data)
    scores = {name.removeprefix("test/"): value for name, value in state.metrics.items()}
    notes += gain_note(next(iter(alone), ""), data.task, scores, next(iter(alone.values()), {}))
    baseline = {
        f"test/local_{name}": found[name]
        for found in alone.values()
        for name in [HEADLINES[data.task]]
        if name in found
    }
    return await rounds.result(
        {**state.metrics, **baseline, **trivial, **left_out(state.facts)},
        {
            **facts,
            **({"notes": notes} if notes else {}),
            "task": data.task,
            "curve": state.curve,
            "privacy": guarantees(config, runtime),
            "communication": communication,
        },
    )


async def measured_alone(
    config: TablePuppetConfig, clients: Mapping[str, TableClient], data: RelationalData
) -> dict[str, dict[str, float]]:
    """Return the metrics of the label owner's own columns, by its name; nothing where they are not measured."""
    if not config.measures_alone:
        return {}
    found = {name: (await client.measure_alone()).more for name, client in clients.items()}
    return {name: metrics for name, metrics in found.items() if metrics}


def actors(config: TablePuppetConfig) -> Mapping[str, type]:
    """Return the kinds of actors that a run with this configuration has."""
    found: dict[str, type] = {"tables' clients": TableClient, "server": JoinServer}
    may_be_partitioned = config.algorithm in ("rfl-admm", "rfl-sgd", "centralised")
    if config.lou_coordinator == "organisation" and may_be_partitioned:
        found["tables' coordinators"] = UnionCoordinator
    return found


def assemble(
    config: TablePuppetConfig, data: RelationalData, runtime: Runtime
) -> tuple[JoinServer, dict[str, TableClient]]:
    """Spawn a client for each partition, coordinators where they live in the organisation, and the server.

    The server is a party of its own, or an actor of the party that holds the first partition of `server_in`.

    Raises:
        BadInput: the query or a name is at fault; nothing has been spawned then.
    """
    table_owners, query = assign_clients(config, data), data.query
    names = tuple(table_owner.name for table_owner in table_owners)
    tables, server_name = name_tables(config, table_owners)
    clients = {
        table_owner.name: runtime.spawn(
            TableClient, table_owner.name, config, query, table_owner, tables[table_owner.table], names, server_name
        )
        for table_owner in table_owners
    }
    sides = []
    for table, local in tables.items():
        coordinator = None
        if config.lou_coordinator == "organisation" and len(local) > 1:
            coordinator = coordinator_of(local, table)
            runtime.spawn(UnionCoordinator, coordinator, config, local, server_name)
        sides.append(Side(table=table, clients=local, coordinator=coordinator))
    batch_seed = derived_seed(runtime.seed, "all parties", "batches")
    server = runtime.spawn(JoinServer, server_name, config, query, tuple(sides), batch_seed)
    runtime.on_loss(config.on_party_loss)
    return server, clients


def remedy(config: TablePuppetConfig) -> Remedy:
    """Return what to try when the training loss is not finite: the step size, or the penalty of ADMM."""
    if config.model == "neural" and config.algorithm == "centralised" and config.centralised == "exact":
        return Remedy("beta", config.beta, "larger")
    if not config.is_admm:
        return Remedy("learning_rate", config.learning_rate)
    if config.admm == "paper_sgd":
        return Remedy("local_learning_rate", config.local_learning_rate)
    return Remedy("rho", config.first_rho, "larger")


def guarantees(config: TablePuppetConfig, runtime: Runtime) -> dict[str, Any]:
    """Return the budgets by party, and that of a joined tuple, which composes all of them."""
    made: dict[str, Any] = dict(budgets(runtime.privacy_records))
    if config.feature_dp is not None or config.label_dp is not None:
        joint = claims(runtime.privacy_records, as_if_secret=True).get((EVERYBODY, JOINED))
        if joint is not None:  # over a federation each site has its own lines
            made[JOINED] = {"epsilon": joint.epsilon, "delta": joint.delta, "uncovered": list(joint.uncovered)}
    if config.algorithm == "centralised":
        made["centralised"] = "every feature was given away"
    if runtime.reproducible_noise:
        made["reproducible_noise"] = "no privacy guarantee"
    return made


def left_out(facts: JoinFacts) -> dict[str, float]:
    """Return how many rows a NULL key kept out of the join, to be printed with the result; nothing if none."""
    count = sum(facts.rows_with_null_keys.values())
    return {"rows_with_null_keys": float(count)} if count else {}


def named(loss: Loss, found: TestScore) -> dict[str, float]:
    """Return a score under its metric's name, beside the mean loss."""
    return {SCORE_NAMES[loss]: found.score, "loss": found.loss}


def num_rounds(config: TablePuppetConfig, loss: Loss) -> int:
    """Return the rounds to run; the closed form of the ridge needs one."""
    is_closed = config.centralised == "exact" and loss == "squared" and config.model != "neural"
    return 1 if config.algorithm == "centralised" and is_closed else config.most_rounds


def has_settled(state: State) -> bool:
    """Say whether the training loss has moved by less than 1 % of its gain in the last rounds."""
    last = state.losses[-SETTLED_ROUNDS:]
    gain = max(state.trivial.get("loss", -math.inf), *state.losses) - last[-1]
    return len(last) == SETTLED_ROUNDS and max(last) - min(last) <= SETTLED_SHARE * gain


def unconverged(config: TablePuppetConfig, state: State) -> list[str]:
    """Return what to tell of a run that ended while its loss still moved; nothing of one that may not go on."""
    if config.feature_dp is not None or len(state.losses) < SETTLED_ROUNDS or has_settled(state):
        return []
    way = f"num_rounds={2 * state.round}" if not config.num_rounds else "leave num_rounds out, or give a larger one"
    return [f"not converged after {state.round} rounds: the training loss still moves; {way}"]
