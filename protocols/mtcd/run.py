"""A run of MTCD or of a baseline, top to bottom as in the paper's Algorithms 1 and 2."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from fedactors.data.partitions import VerticalData
from fedactors.errors import Diverged, PartyLost
from fedactors.plugins import RunResult
from fedactors.runtime.base import Runtime, derived_seed
from protocols.mtcd import walk
from protocols.mtcd.actors import SERVER
from protocols.mtcd.algorithm import diverged, divergence_line
from protocols.mtcd.cast import Cast, assemble
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.costs import default_costs
from protocols.mtcd.data import MtcdData, stack
from protocols.mtcd.glm import problem_of
from protocols.mtcd.measure import measurements
from protocols.mtcd.messages import Labels
from protocols.mtcd.objective import solve
from protocols.mtcd.steps import safe_step_of, settle_steps, step_of


async def run(config: MtcdConfig, data: MtcdData, runtime: Runtime) -> RunResult:
    """Train on vertically partitioned data; return the last measurements."""
    runtime.use_costs(default_costs(config))
    cast = assemble(config, data, runtime)
    await runtime.start()
    state = runtime.state
    if not runtime.resumed:
        await prepare(config, data, runtime, cast)
    labels = await known_labels(data, cast)
    optimum = optimum_of(config, data)
    if not runtime.resumed:
        found = await measurements(config, data, runtime, cast, labels, optimum)
        state.update(round=0, iterations=0, start=found["objective"], found=found)
        await runtime.record_round(0, found)
        await runtime.checkpoint()
    rounds = {"mtcd": mtcd_round, "stcd": stcd_stretch, "svfl": svfl_round, "dcpa": dcpa_iterations}
    while state["round"] < config.num_rounds and not reached(config, state["found"]):
        count = min(config.record_every, config.num_rounds - state["round"])
        done = 0
        for round_ in range(state["round"], state["round"] + (1 if config.algorithm == "dcpa" else count)):
            done += await rounds[config.algorithm](config, runtime, cast, round_, count)
        found = await measurements(config, data, runtime, cast, labels, optimum)
        state.update(round=state["round"] + count, iterations=state["iterations"] + done)
        found["iterations"] = state["iterations"]
        await check_divergence(config, runtime, cast, found["objective"])
        state["found"] = found
        await runtime.record_round(state["round"], found)
        await runtime.checkpoint()
    budgets = {} if config.noise is None else await account(data, cast)
    await runtime.checkpoint("final")
    extra = {"optimum": optimum, "learning_rate": state.get("step"), "privacy_mu": budgets, "warnings": cast.warnings}
    return RunResult(rounds=state["round"], metrics=state["found"], extra=extra)


# --- rounds ---


async def mtcd_round(config: MtcdConfig, runtime: Runtime, cast: Cast, round_: int, count: int) -> int:
    """Do one round of Algorithm 2: roam, then sync; Z for it is formed already. Return its visits per token."""
    assert cast.server is not None
    await cast.server.roam(round_, step_of(config, runtime, round_))
    await cast.server.sync(round_, round_ + 1 == config.num_rounds)
    return config.num_hops + 1


async def svfl_round(config: MtcdConfig, runtime: Runtime, cast: Cast, round_: int, count: int) -> int:
    """Do one round of SVFL (FedBCD-parallel)."""
    assert cast.server is not None
    await cast.server.parallel(round_, step_of(config, runtime, round_), round_ + 1 == config.num_rounds)
    return 1


async def stcd_stretch(config: MtcdConfig, runtime: Runtime, cast: Cast, round_: int, count: int) -> int:
    """Do one stretch of Algorithm 1's walk: num_hops + 1 visits, from where the token rests."""
    state = runtime.state
    seed = walk.walk_seed(derived_seed(runtime.seed, "all parties", "walks"), 0, 0)
    num_hops, tour = config.num_hops + 1, tuple[int, ...]()
    if "holder" not in state:
        clients = range(config.num_clients)
        state["holder"] = config.start[0] if isinstance(config.start, tuple) else walk.start_client(seed, clients)
        num_hops = config.num_hops
        if config.problem == "network" and config.num_clients > 1:
            tour = walk.tour(cast.graph, state["holder"])
    holder = cast.clients[state["holder"]]
    done = await holder.walk_on(num_hops, step_of(config, runtime, round_), seed, tour)
    state["holder"] = done.holder
    return config.num_hops + 1


async def dcpa_iterations(config: MtcdConfig, runtime: Runtime, cast: Cast, round_: int, count: int) -> int:
    """Do `count` iterations of DCPA, all clients in step."""
    steps = tuple(runtime.state["dcpa_steps"])
    await asyncio.gather(*(client.run_iterations(round_, count, steps) for client in cast.clients))
    return count


# --- before the first round, and around rounds ---


async def prepare(config: MtcdConfig, data: MtcdData, runtime: Runtime, cast: Cast) -> None:
    """Align vertical data and share labels, settle the step size, and form the first Z."""
    for line in cast.warnings:
        print(f"warning: {line}", file=sys.stderr)
    if isinstance(data, VerticalData):
        others = data.passive_parties
        learners = others if cast.server is None else (*others, SERVER)
        await cast.clients[data.parties.index(data.label_party)].align(data.alignment, others, learners)
    num_samples = len((await known_labels(data, cast)).train)
    runtime.state["rounds_per_epoch"] = max(1, num_samples // (config.batch_size or num_samples))
    runtime.state.update(await settle_steps(config, cast, num_samples))
    if cast.server is not None:
        await cast.server.gather(0)


async def known_labels(data: MtcdData, cast: Cast) -> Labels:
    """Return the labels for measuring: made from the seed, or asked of the label party."""
    if isinstance(data, VerticalData):
        labels: Labels = await cast.clients[data.parties.index(data.label_party)].known_labels()
        return labels
    return Labels(*data.labels())


def optimum_of(config: MtcdConfig, data: MtcdData) -> float | None:
    """Return f* of a generated linear problem, None elsewhere or if the config does not want it."""
    stacked = stack(data) if config.measure_gap else None
    return None if stacked is None else solve(problem_of(config), *stacked)[1]


def reached(config: MtcdConfig, found: dict[str, float]) -> bool:
    """Say whether the gap that the run was to reach is reached."""
    return config.target_gap > 0 and found.get("gap", float("inf")) <= config.target_gap


async def check_divergence(config: MtcdConfig, runtime: Runtime, cast: Cast, value: float) -> None:
    """Stop a run whose objective has left the region where it began, and name a step size that is safe.

    Raises:
        Diverged: it has.
    """
    state = runtime.state
    if not diverged(value, state["start"]) or config.noise is not None:
        return
    if config.algorithm == "dcpa" or config.problem == "network":
        safe = 0.1 * float(state.get("step") or state["dcpa_steps"][1])
    else:
        safe = await safe_step_of(config, cast)
    name = "dcpa_dual_step" if config.algorithm == "dcpa" else "learning_rate"
    given = float(state.get("step") or state["dcpa_steps"][1])
    line = divergence_line(given, value, state["start"], state["round"], safe)
    raise Diverged(line.replace("learning_rate", name, 1))


async def account(data: MtcdData, cast: Cast) -> dict[str, Any]:
    """Let every client enter in the privacy ledger what its releases cost; return mu by party and message type."""
    budgets: dict[str, Any] = {}
    for name, client in zip(data.parties, cast.clients, strict=True):
        try:
            budgets[name] = await client.account()
        except PartyLost:
            budgets[name] = "lost"
    return budgets
