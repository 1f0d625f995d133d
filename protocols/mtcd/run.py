"""A run of MTCD or of a baseline, top to bottom as in the paper's Algorithms 1 and 2."""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import networkx as nx
import numpy as np

from fedactors.actors.actor import Resources
from fedactors.actors.context import derived_seed
from fedactors.actors.groups import ActorGroup
from fedactors.data.alignment.ids import row_notes
from fedactors.data.alignment.rows import join_rows, with_joining
from fedactors.data.layouts.vertical import VerticalData
from fedactors.errors import BadInput, Diverged, PartyLost
from fedactors.learning.metrics import of_split
from fedactors.network import topology
from fedactors.privacy.accounting import budgets
from fedactors.protocols.mtcd import messages
from fedactors.protocols.mtcd.actors import TokenClient
from fedactors.protocols.mtcd.algorithm import (
    NETWORK_STEP,
    NO_THETA_0,
    aggregate,
    default_costs,
    has_diverged,
    scheduled,
)
from fedactors.protocols.mtcd.baselines import dcpa
from fedactors.protocols.mtcd.baselines.stcd import StcdClient
from fedactors.protocols.mtcd.baselines.svfl import SvflClient, SvflServer
from fedactors.protocols.mtcd.config import MtcdConfig, small_cluster_warnings
from fedactors.protocols.mtcd.data import GeneratedData, MtcdData, part_of, stack
from fedactors.protocols.mtcd.objective import problem_of, relative_gap, solve
from fedactors.protocols.mtcd.roaming import (
    Roaming,
    make_graph,
    plan_roaming,
    require_connected,
    start_client,
    walk_seed,
)
from fedactors.protocols.mtcd.server import TokenServer
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from fedactors.runtime.rounds import Remedy, Rounds, RunState, Watch

T = TypeVar("T")
SERVER = "server"
OBJECTIVE = "training/objective"
COUNTED = frozenset({"Representation", "Token", "Prelude", "SyncedZ", "RelayedZ", "DualVector", "Probe", "ProbeImage"})
"""Message types of the algorithms, the search for a step size included; other orders and words carry no array, and
labels are sent once."""


@dataclass
class MtcdState(RunState):
    """What the driver keeps between rounds."""

    iterations: int = 0
    step: float = 0.0
    """The step size; of DCPA mu_y."""
    dcpa_steps: tuple[float, ...] = ()
    num_train: int = 0
    """Rows that all parties share, for training and for testing."""
    num_test: int = 0
    start: float = 0.0
    """The objective before the first round."""
    least_visits: float | None = None
    """p_min of Assumption 4: the least probability that a client is visited in a round."""
    holder: int = -1
    """Where STCD's token rests."""
    lost: list[str] = field(default_factory=list)
    measurements: dict[str, float] = field(default_factory=dict)
    """The last measurements."""
    notes: list[str] = field(default_factory=list)
    """What the label party's rows lost in a query's join."""


@dataclass(frozen=True)
class Federation:
    """The actors of a run; `server` is None for the decentralised algorithms."""

    config: MtcdConfig
    data: MtcdData
    runtime: Runtime
    state: MtcdState
    graph: nx.Graph
    clients: ActorGroup[Any]
    server: Any

    async def ask(self, call: Callable[[Any], Awaitable[T]]) -> list[T]:
        """Ask all clients that are there; return their replies in the clients' order.

        Raises:
            PartyLost: there is none left.
        """
        replies = await self.clients.ask(call)
        if not replies:
            raise self.nobody("no client is left")
        return list(replies.values())

    def nobody(self, text: str) -> PartyLost:
        """Return the error of a run that cannot go on, with the name of who was lost last."""
        return PartyLost(self.clients.last_lost or self.data.parties[-1], text)

    def holder(self, client: int) -> StcdClient:
        """Return STCD's client of this number."""
        handle: StcdClient = self.clients.handle(self.data.parties[client])
        return handle


async def run(config: MtcdConfig, data: MtcdData, runtime: Runtime) -> RunResult:
    """Train on vertically partitioned data; return the last measurements."""
    runtime.use_costs(with_joining(default_costs(config)))
    notes = await join_rows(data, runtime) if isinstance(data, VerticalData) else []
    solvable = data if isinstance(data, GeneratedData) and data.is_linear and config.measure_gap else None
    watch = Watch("gap", "min", target=config.target_gap) if config.target_gap > 0 and solvable else None
    name = "dcpa_dual_step" if config.algorithm == "dcpa" else "learning_rate"
    remedy = Remedy(name, getattr(config, name))
    rounds = Rounds(
        runtime, MtcdState(), num_rounds=config.num_rounds, every=config.record_every, watch=watch, remedy=remedy
    )
    state = rounds.state
    warnings, federation = assemble(config, data, runtime, state)
    is_fresh = await rounds.start()
    optimum = None if solvable is None else solve(problem_of(config), *stack(solvable))[1]
    if is_fresh:
        state.notes = notes
        for line in warnings:
            print(f"warning: {line}", file=sys.stderr)
        await prepare(federation)
        state.measurements = await measure(federation, optimum)
        state.start = objective_of(state.measurements)
        rounds.judge(state.measurements)
        await rounds.end(0, state.measurements)
    methods = {"mtcd": mtcd_rounds, "stcd": stcd_stretches, "svfl": svfl_rounds, "dcpa": dcpa_iterations}
    async for last in rounds:
        state.iterations += await methods[config.algorithm](federation, state.round, last)
        if not federation.clients.members:
            raise federation.nobody("no client is left")
        state.measurements = await measure(federation, optimum)
        await check_divergence(federation, last)
        rounds.judge(state.measurements)
        rounds.record(state.measurements)
    if config.noise is not None:
        await federation.clients.ask(lambda client: client.account())
        await runtime.settle()
    extra = {
        "optimum": optimum,
        "learning_rate": None if config.algorithm == "dcpa" else state.step,
        "privacy": budgets(runtime.privacy_records),
        "warnings": warnings,
        "least_visit_probability": state.least_visits,
        **({"notes": state.notes} if state.notes else {}),
    }
    return await rounds.result(state.measurements, extra)


# --- rounds: from round `first` on to before round `last`; each returns the iterations that it did ---


async def mtcd_rounds(federation: Federation, first: int, last: int) -> int:
    """Do rounds of Algorithm 2: roam, then sync; Z for the first is formed already."""
    config, server = federation.config, federation.server
    for round_ in range(first, last):
        order = messages.RoundOrder(round_, step_of(federation, round_), round_ + 1 == config.num_rounds)
        await server.roam(order)
        await server.sync(order)
    return (last - first) * (config.num_hops + 1)


async def svfl_rounds(federation: Federation, first: int, last: int) -> int:
    """Do rounds of SVFL (FedBCD-parallel)."""
    for round_ in range(first, last):
        is_last = round_ + 1 == federation.config.num_rounds
        await federation.server.step_all(messages.RoundOrder(round_, step_of(federation, round_), is_last))
    return last - first


async def stcd_stretches(federation: Federation, first: int, last: int) -> int:
    """Do stretches of Algorithm 1's walk, num_hops + 1 visits each, from where the token rests."""
    config, state = federation.config, federation.state
    for round_ in range(first, last):
        num_hops, way = config.num_hops + 1, tuple[int, ...]()
        if state.holder < 0:
            num_hops = config.num_hops
            seed = walk_seed(derived_seed(federation.runtime.seed, "all parties", "walks"), 0, 0)
            clients = range(config.num_clients)
            state.holder = config.start[0] if isinstance(config.start, tuple) else start_client(seed, clients)
            if config.problem == "network" and config.num_clients > 1:
                way = topology.tour(federation.graph, state.holder)
        order = messages.WalkOrder(num_hops, step_of(federation, round_), way)
        state.holder = (await federation.holder(state.holder).walk_on(order)).holder
    return (last - first) * (config.num_hops + 1)


async def dcpa_iterations(federation: Federation, first: int, last: int) -> int:
    """Do iterations of DCPA, all clients in step."""
    primal, dual, consensus = federation.state.dcpa_steps
    order = messages.IterateOrder(first, last - first, primal, dual, consensus)
    seconds = federation.config.visit_timeout * (last - first)
    await federation.clients.ask(lambda client: client.run_iterations(order), timeout=seconds)
    return last - first


# --- before the first round ---


def actors(config: MtcdConfig) -> Mapping[str, type]:
    """Return the kinds of actors of a configuration."""
    clients = {"mtcd": TokenClient, "stcd": StcdClient, "svfl": SvflClient, "dcpa": dcpa.DcpaClient}
    servers = {"mtcd": TokenServer, "svfl": SvflServer}
    served = {"server": servers[config.algorithm]} if config.algorithm in servers else {}
    return {"clients": clients[config.algorithm], **served}


def assemble(config: MtcdConfig, data: MtcdData, runtime: Runtime, state: MtcdState) -> tuple[list[str], Federation]:
    """Spawn the clients and, for MTCD and SVFL, the server; return what users should know of their clusters, and all.

    Raises:
        BadInput: a graph, clusters or links that do not fit.
    """
    kinds, names, graph = actors(config), data.parties, make_graph(config, runtime.seed)
    seed = derived_seed(runtime.seed, "all parties", "batches")
    clusters: tuple[tuple[int, ...], ...] = ()
    handles: dict[str, Any] = {}
    server: Any = None
    resources = Resources(num_gpus=config.num_gpus)
    if config.algorithm == "dcpa":
        require_connected(graph, "dcpa")
        laplacian_KK = dcpa.consensus_matrix(topology.metropolis_weights(graph))
        for index, name in enumerate(names):
            row = dcpa.laplacian_row(laplacian_KK, graph, index)
            handles[name] = runtime.spawn(
                kinds["clients"], name, config, part_of(data, index), seed, row, resources=resources
            )
    else:
        plan = plan_roaming(config, graph, runtime.seed)
        roaming = Roaming(plan)
        clusters = roaming.clusters
        if config.algorithm == "mtcd":
            state.least_visits = roaming.least_visit_probability()
        for index, name in enumerate(names):
            known = (config, part_of(data, index), seed, roaming.links(index, names), plan.seed)
            handles[name] = runtime.spawn(kinds["clients"], name, *known, resources=resources)
        if "server" in kinds:
            public, teller = (None, data.label_party) if isinstance(data, VerticalData) else (data, "")
            facts = (config, names, public, data.num_classes, plan, seed, teller)
            server = runtime.spawn(kinds["server"], SERVER, *facts, resources=resources)
    goes_on = config.on_party_loss == "continue"
    clients = ActorGroup[Any](
        runtime, handles, on_loss="skip" if goes_on else "stop", timeout=10 * config.visit_timeout
    )
    for name in state.lost:
        clients.leave(name)

    async def lost(name: str) -> None:
        clients.leave(name)
        state.lost.append(name)
        await server.client_lost(messages.LostClient(name))

    runtime.on_loss(lambda name: "continue" if goes_on and name != SERVER else "stop", lost)
    warnings = small_cluster_warnings(config, clusters) if clusters else []
    return warnings, Federation(config, data, runtime, state, graph, clients, server)


async def prepare(federation: Federation) -> None:
    """Share keys and labels, align vertical data, settle the step size, and form the first Z."""
    state = federation.state
    if federation.server is not None and federation.config.server_links != "all":
        await federation.clients.ask(lambda client: client.share_order_key())
    if isinstance(federation.data, VerticalData):
        label_party = federation.data.label_party
        found = await federation.clients.handle(label_party).align()
        counts = (found.num_local, found.num_rejected, found.num_shared)
        state.notes = state.notes or row_notes(label_party, *counts, dict(found.absent))
    count: messages.RowCount = (await federation.ask(lambda client: client.count_rows()))[0]
    state.num_train, state.num_test = count.num_train, count.num_test
    batch_size = federation.config.batch_size
    if batch_size is not None and batch_size >= state.num_train:
        raise BadInput(
            f"batch_size: {batch_size} is not allowed, there are {state.num_train} training rows: fewer, or none for "
            "the full batch"
        )
    await settle_steps(federation)
    if federation.server is not None:
        await federation.server.gather()


async def settle_steps(federation: Federation) -> None:
    """Settle the run's step sizes, as asked for or found with the clients' constants."""
    config, state = federation.config, federation.state
    if config.algorithm == "dcpa":
        dual = None if config.dcpa_dual_step == "auto" else float(config.dcpa_dual_step)
        laplacian_KK = dcpa.consensus_matrix(topology.metropolis_weights(federation.graph))
        norm, largest = float(np.linalg.norm(laplacian_KK, 2)), await largest_norm(federation)
        found = dcpa.steps_within(problem_of(config), largest, state.num_train, config.num_clients, norm, dual)
        state.dcpa_steps, state.step = (found.primal, found.dual, found.consensus), found.dual
    elif config.learning_rate != "auto":
        state.step = float(config.learning_rate)
    else:
        state.step = NETWORK_STEP if config.problem == "network" else await safe_step_of(federation)


async def largest_norm(federation: Federation) -> float:
    """Return max_k ||X_k||^2, of clients that have no server."""
    norms: list[messages.SquaredNorm] = await federation.ask(lambda client: client.squared_norm(messages.NormOrder()))
    return max(norm.value for norm in norms)


async def safe_step_of(federation: Federation) -> float:
    """Return a step size that is safe for the algorithm on a linear model's blocks."""
    if federation.server is not None:
        return float((await federation.server.safe_step()).value)
    problem = problem_of(federation.config)
    curvature = problem.curvature(federation.state.num_train)
    return 1.0 / (curvature * await largest_norm(federation) + problem.smooth_penalty)


def step_of(federation: Federation, round_: int) -> float:
    """Return the round's step size, by the schedule over epochs."""
    return scheduled(federation.config, federation.state.step, federation.state.num_train, round_)


# --- what a round is measured by; nothing here is communication of the algorithms ---


async def measure(federation: Federation, optimum: float | None) -> dict[str, float]:
    """Return objective, gap, accuracy or error, iterations, bytes, and their weighted cost."""
    runtime = federation.runtime
    await runtime.settle()
    found = await quality(federation)
    if optimum is not None:
        found["gap"] = relative_gap(found[OBJECTIVE], optimum)
    sizes = {"client-server": 0.0, "client-client": 0.0}
    for total in runtime.ledger.totals():
        if total.type in COUNTED and total.kind in sizes:
            sizes[total.kind] += total.bytes
    return {
        **found,
        "iterations": federation.state.iterations,
        "client_server_bytes": sizes["client-server"],
        "client_client_bytes": sizes["client-client"],
        "weighted_cost": federation.config.link_cost_ratio * sizes["client-server"] + sizes["client-client"],
    }


async def quality(federation: Federation) -> dict[str, float]:
    """Return the objective on training rows (a network has none), and the metrics on test rows.

    Where arrays arrive as they are and Z covers all rows, the server's own objective is exact and costs nothing.
    Elsewhere (mini-batches, compression, networks, no server) the driver asks the clients for their representations:
    an instrument of experiments. With noise or secure sums it does so only when these are reproducible, so protect
    nothing; else the server's own view, noise included, is what is reported.
    """
    config, server = federation.config, federation.server
    is_protected = (config.noise is not None or config.secure_aggregation) and not federation.runtime.reproducible_noise
    if config.problem == "network" and not is_protected:
        found, _ = await scored(federation, "test", await fusion_parameters(federation))
        return of_split("test", found.metrics)
    server_knows = server is not None and config.batch_size is None and config.compression is None
    if is_protected or server_knows:
        if server is None:
            raise BadInput(
                "noise: gaussian without reproducible noise is not allowed for stcd: nothing may be measured"
            )
        objective = (await server.objective()).value
    else:
        found, penalty = await scored(federation, "train", NO_THETA_0)
        objective = found.metrics["loss"] + penalty
    if is_protected or (config.noise is not None and server_knows) or federation.state.num_test == 0:
        return {OBJECTIVE: objective}
    found, _ = await scored(federation, "test", NO_THETA_0)
    return {OBJECTIVE: objective, **of_split("test", found.metrics)}


def objective_of(found: Mapping[str, float]) -> float:
    """Return what training makes small: the objective, of a network its test loss."""
    return found.get(OBJECTIVE, found.get("test/loss", math.nan))


async def scored(federation: Federation, part: str, theta_0: Any) -> tuple[messages.Quality, float]:
    """Add up all clients' representations and let one of them, all of which know the labels, judge the sum.

    Returns:
        What it finds, and the sum of all regularisers.
    """
    config, names = federation.config, federation.data.parties
    parts = await federation.clients.ask(lambda client: client.measure(messages.MeasureOrder(part)))
    slots = config.num_clients if config.aggregation == "concatenation" else None
    found = {names.index(name): each.h for name, each in parts.items()}
    if not found:
        raise federation.nobody("no client is left")
    order = messages.ScoreOrder(part, aggregate(found, slots), theta_0)
    for name in parts:
        if judged := await federation.clients.ask(lambda client: client.score(order), of=(name,)):
            return judged[name], sum(each.penalty for each in parts.values())
    raise federation.nobody("no client is left that could judge the model")


async def fusion_parameters(federation: Federation) -> Any:
    """Return theta_0: the server's, or that of the token at rest (of client 0 before STCD's first stretch)."""
    fusion = federation.server or federation.holder(max(0, federation.state.holder))
    return (await fusion.fusion_parameters()).theta_0


async def check_divergence(federation: Federation, round_: int) -> None:
    """Stop a run whose objective has left the region where it began, and name a step size that is safe."""
    config, state = federation.config, federation.state
    value = objective_of(state.measurements)
    if not has_diverged(value, state.start) or config.noise is not None:
        return
    tries = config.algorithm == "dcpa" or config.problem == "network" or config.secure_aggregation
    safe = 0.1 * state.step if tries else min(0.1 * state.step, await safe_step_of(federation))
    name = "dcpa_dual_step" if config.algorithm == "dcpa" else "learning_rate"
    raise Diverged(
        f"{name}: {state.step:g} diverges (objective {value:.3g} in round {round_}, {state.start:.3g} at the start); "
        f"a safe value here is {safe:.3g}"
    )
