"""A run of a plain horizontal method, top to bottom: rounds of training, measured now and then."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import pstdev

from fedactors.actors.actor import Actor, Resources
from fedactors.actors.groups import ActorGroup
from fedactors.data.layouts.horizontal import HorizontalData, forget_blocks
from fedactors.errors import BadInput
from fedactors.learning.metrics import HEADLINES, LOCAL_BASELINE, Split, gain_note, of_split
from fedactors.privacy.accounting import budgets
from fedactors.protocols.horizontal.actors import (
    FEWEST_OF_GROUP,
    SERVER_NAME,
    Aggregator,
    ClientProcess,
    HorizontalServer,
)
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import groups_of, sites_of
from fedactors.protocols.horizontal.messages import Progress, RoundOrder, Scores, SiteStatus
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Costs, Runtime
from fedactors.runtime.rounds import Remedy, Rounds, RunState, Watch
from fedactors.secure_sums.primitives import FEWEST

SERVER = SERVER_NAME


@dataclass
class State(RunState):
    """What the driver keeps beside the rounds."""

    num_clients: int = 0
    num_parameters: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    """Of the last measurement."""
    of_clients: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of the best round on each client's own validation rows."""
    unpredicted: int = 0
    """Classes that the model predicts for no row of it."""
    local: list[str] = field(default_factory=list)
    """Names of what stays at each client."""
    missed: dict[str, int] = field(default_factory=dict)
    """Rounds in which a site had no part, of those that had a quorum."""
    unchanged: int = 0
    """Rounds without a quorum."""


async def run(config: HorizontalConfig, data: HorizontalData, runtime: Runtime) -> RunResult:
    """Train one model over all clients' rows; return how good it is on rows that belong to none."""
    forget_blocks()
    runtime.use_costs(default_costs())
    resources = Resources(num_gpus=config.num_gpus)
    sites = sites_of(config, data)
    if config.secure_aggregation and len(sites) < FEWEST:
        raise BadInput(
            f"secure_aggregation: {len(sites)} sites are too few: of a sum of two each knows the other's "
            f"part; use {FEWEST}"
        )
    if (config.min_sites or 0) > len(sites):
        raise BadInput(f"min_sites: {config.min_sites} is not allowed: there are {len(sites)} sites")
    if FEWEST_OF_GROUP * config.num_aggregators > len(sites):
        raise BadInput(
            f"num_aggregators: {config.num_aggregators} is not allowed: there are {len(sites)} sites, and each "
            f"aggregator needs {FEWEST_OF_GROUP}: the mean of one is its own change"
        )
    most = max(map(len, sites.values()))
    if config.secure_aggregation and config.clients_per_round and config.clients_per_round <= (FEWEST - 1) * most:
        raise BadInput(
            f"clients_per_round: {config.clients_per_round} is not allowed with secure_aggregation: they may all be at "
            f"{math.ceil(config.clients_per_round / most)} of the sites, and the others add zeros; use more than "
            f"{(FEWEST - 1) * most}"
        )
    processes = runtime.shared_processes(list(sites), sites_per_process(config, data))
    for name, clients in sites.items():
        arguments = (config, data.part(clients), clients[0], runtime.seed, tuple(sites))
        runtime.spawn(ClientProcess, name, *arguments, resources=resources, process=processes[name])
    sizes = {name: len(clients) for name, clients in sites.items()}
    groups = groups_of(config, tuple(sites))
    processes = runtime.shared_processes(list(groups))
    beside = [name for name in groups if (site := runtime.site_of(name)) and site == runtime.site_of(SERVER)]
    if beside:
        raise BadInput(
            f"num_aggregators: {config.num_aggregators} is not allowed while {', '.join(beside)} is at the server's "
            f"site, {runtime.site_of(SERVER)}, whose link it would not relieve: let other sites host them, fedactors "
            f"federation admit FOLDER REQUEST --renew --host {beside[0]}"
        )
    for name, group in groups.items():
        runtime.spawn(Aggregator, name, config, group, process=processes[name])
    handle = runtime.spawn(
        HorizontalServer, SERVER, config, data.part(test=True), sizes, runtime.seed, resources=resources
    )
    waits = 0.0 if config.min_sites is None else config.quorum_timeout + 4 * config.client_timeout
    server = ActorGroup(runtime, {SERVER: handle}, timeout=3 * config.client_timeout + waits)

    async def note(name: str, is_there: bool) -> None:
        await server.ask_one(lambda one: one.note_site(SiteStatus(name, is_there)))

    if config.min_sites is None:
        runtime.on_loss(lambda name: "stop" if name == SERVER else config.on_party_loss)
    else:
        # a new process in one cluster does not know which sums it was in
        returns = runtime.keeps_journals or not config.secure_aggregation
        runtime.deadline = config.client_timeout
        runtime.on_loss(
            lambda name: "stop" if name == SERVER else "restart" if returns else "continue",
            (lambda name: note(name, is_there=True)) if returns else None,
            lambda name: note(name, is_there=False),
        )
    split: Split = "validation" if config.num_validation or data.holds_out else "test"
    watch = Watch(f"{split}/accuracy", patience=config.patience, target=config.target_accuracy)
    if data.task == "regression":
        watch = Watch(f"{split}/rmse", "min", patience=config.patience)
    if data.task == "tokens":
        watch = Watch(f"{split}/loss", "min", patience=config.patience)
    remedy = Remedy("learning_rate", config.at(data.shape or (1,)).step_size)
    rounds = Rounds(runtime, State(), num_rounds=config.num_rounds, watch=watch, remedy=remedy)
    state = rounds.state
    if await rounds.start():
        found = await server.ask_one(lambda one: one.prepare())
        state.num_clients, state.num_parameters = found.num_clients, found.num_parameters
        state.local = list(found.local)
        await rounds.checkpoint()
    async for t in rounds:
        order = RoundOrder(t)
        progress = await train(server, order)
        # where every client dropped out, or losses would leave without noise, there is none: no divergence
        loss = progress.loss if progress.num_clients and not config.is_noised else None
        rounds.record({"training/loss": loss, "clients": progress.num_clients})
        if config.min_sites is not None:
            rounds.record(await attendance(server, state, runtime))
        if t % config.evaluate_every == 0 or t == config.num_rounds:
            measured = await measure(server, order, by_clients=data.holds_out)
            scores = of_split(split, measured.metrics)
            is_best = rounds.judge(scores)
            rounds.record(scores | of_split(split, of_clients(measured.clients)))
            if not data.holds_out:
                state.scores, state.unpredicted = scores, measured.unpredicted
            elif is_best:
                await remember(server, order)
                state.scores = scores | of_split(split, spread_of(measured.clients))
                state.of_clients = measured.clients
    # of the round that the clients' validation rows chose; with local parameters no whole model is the server's
    if data.holds_out and not config.local_parameters:
        tested = await measure(server, RoundOrder(state.round))
        state.scores |= of_split("test", tested.metrics)
        state.unpredicted = tested.unpredicted
    best = f"{split}/best_{watch.metric.removeprefix(f'{split}/')}"
    # the best of several test measurements would be a score that the test rows chose
    chosen = {best: state.best, "best_round": state.best_round} if split == "validation" else {}
    alone, gains = await compare_alone(config, data, server, state, split)
    metrics = {**state.scores, **alone, **chosen}
    as_given = bool(data.files) and config.standardisation == "none"
    notes = unlearned(state.unpredicted, "validation" if config.num_validation else "test", data, as_given)
    if config.num_aggregators:
        notes += omissions((await server.ask_one(lambda one: one.tell_left_out())).sites)
    notes += absences(state) + gains + worst_client(state.of_clients, watch)
    extra = {"clients": state.num_clients, "parameters": state.num_parameters, **({"notes": notes} if notes else {})}
    if config.local_parameters:
        extra["local_parameters"] = state.local
    if config.is_noised:
        await server.ask_one(lambda one: one.account())
        await runtime.settle()
        extra["privacy"] = budgets(runtime.privacy_records)
    return await rounds.result(metrics, extra)


def sites_per_process(config: HorizontalConfig, data: HorizontalData) -> int | None:
    """Return how many sites share a process where each has messages of its own; None: as the machines' cores say.

    An organisation's own files are opened by its own process, unless it is said otherwise.
    """
    if config.clients_per_process is not None:
        return config.clients_per_process // config.clients_per_site
    return 1 if data.parties or config.num_gpus else None


async def compare_alone(
    config: HorizontalConfig, data: HorizontalData, server: ActorGroup[HorizontalServer], state: State, split: Split
) -> tuple[dict[str, float], list[str]]:
    """Return how good models of single clients' own tables are, and a line on each beside the joint model."""
    is_measured = data.holds_out or not data.files
    if not config.measures_alone or not is_measured or len(data.shape) > 1 or data.targets:
        return {}, []
    name, found = HEADLINES[data.task], (await server.ask_one(lambda one: one.measure_alone())).scores
    joint = state.of_clients or {key: {name: state.scores.get(f"{split}/{name}", math.nan)} for key in found}
    notes = [gain_note(client, data.task, joint.get(client, {}), {name: one}, "rows") for client, one in found.items()]
    metrics = {f"{split}/{client}/local_{name}": one for client, one in found.items()}
    return metrics, [line for lines in notes for line in lines]


async def train(server: ActorGroup[HorizontalServer], order: RoundOrder) -> Progress:
    """Let a round be done."""
    return await server.ask_one(lambda one: one.train(order))


async def attendance(server: ActorGroup[HorizontalServer], state: State, runtime: Runtime) -> dict[str, int]:
    """Note who had a part in a round, tell who had none, and return how many sites had one."""
    found = await server.ask_one(lambda one: one.attend())
    if not found.present:
        state.unchanged += 1
        runtime.tell("the round changes nothing: fewer sites than min_sites answered in time")
    elif found.away:
        state.missed |= {name: state.missed.get(name, 0) + 1 for name in found.away}
        runtime.tell(f"goes on without {', '.join(found.away)}")
    return {"sites": len(found.present), "sites_away": len(found.away)} | {f"{name}/away": 1 for name in found.away}


def absences(state: State) -> list[str]:
    """Return what to tell of sites that were lost or late."""
    told = [
        f"{name} had no part in {count} of {state.round} rounds; their models follow from the other sites"
        for name, count in sorted(state.missed.items())
    ]
    if state.unchanged:
        told.append(f"{state.unchanged} of {state.round} rounds changed nothing: fewer sites than min_sites answered")
    return told


def omissions(left_out: Mapping[str, str]) -> list[str]:
    """Return what to tell of sites of which an aggregator passed on no answer."""
    groups: dict[str, list[str]] = {}
    for site, aggregator in left_out.items():
        groups.setdefault(aggregator, []).append(site)
    return [
        f"{aggregator} passed on no answer of {', '.join(sites)}: lost, late, alone in the group or left out by "
        f"{aggregator}; later models follow from the other sites"
        for aggregator, sites in sorted(groups.items())
    ]


async def remember(server: ActorGroup[HorizontalServer], order: RoundOrder) -> None:
    """Let the model be kept as the best so far."""
    await server.ask_one(lambda one: one.remember(order))


def of_clients(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return each client's metrics, ``client-0/accuracy``, and their spread."""
    each = {f"{client}/{name}": value for client, metrics in found.items() for name, value in metrics.items()}
    return each | spread_of(found)


def spread_of(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return of each metric that all clients have the lowest, the highest and the standard deviation over them."""
    names = [name for name in next(iter(found.values()), {}) if all(name in one for one in found.values())]
    made: dict[str, float] = {}
    for name in names:
        values = [one[name] for one in found.values()]
        made |= {f"lowest_{name}": min(values), f"highest_{name}": max(values), f"spread_{name}": pstdev(values)}
    return made


def worst_client(found: Mapping[str, Mapping[str, float]], watch: Watch) -> list[str]:
    """Return the line that names the client that the model serves worst, of several that measure."""
    name = watch.metric.partition("/")[2]
    values = {client: metrics[name] for client, metrics in found.items() if name in metrics}
    if len(values) < 2:
        return []
    lowest, highest = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    best, worst = (highest, lowest) if watch.mode == "max" else (lowest, highest)
    return [f"worst client: {worst} with {name} {values[worst]:.4g}; best: {best} with {values[best]:.4g}"]


def unlearned(unpredicted: int, split: Split, data: HorizontalData, as_given: bool) -> list[str]:
    """Return what to tell of a model that predicts some classes for no row; nothing of one that predicts all.

    `as_given`: its columns were not standardised.
    """
    if not unpredicted:
        return []
    what = "1 class is" if unpredicted == 1 else f"{unpredicted} classes are"
    ranges = "standardisation=sums, " if as_given else ""
    weights = ", or weights of classes" if data.files else ""
    return [f"{what} predicted for no {split} row; try {ranges}another learning_rate, more rounds{weights}"]


async def measure(server: ActorGroup[HorizontalServer], order: RoundOrder, *, by_clients: bool = False) -> Scores:
    """Return the metrics of the model on the server's rows, or on the clients' own validation rows."""
    return await server.ask_one(lambda one: one.validate(order) if by_clients else one.measure(order))


def actors(config: HorizontalConfig) -> dict[str, type[Actor]]:
    """Return the kinds of actors of a run, for `fedactors inspect`."""
    between: dict[str, type[Actor]] = {"aggregators": Aggregator} if config.num_aggregators else {}
    return {"sites": ClientProcess, **between, "server": HorizontalServer}


def default_costs() -> Costs:
    """Return seconds for each kind of work on one core: calls x overhead + units x rate.

    Units are rows that a step or a measurement goes through, or vectors added, times the numbers of the model.
    Between what ``scenarios/benchmarks/batched_clients.py`` measured on one core: 0.7e-9 (wide layers) to 7e-9
    (convolutions) seconds a unit of training.
    """
    kinds = {"train": (2e-3, 3e-9), "measure": (1e-3, 1e-9), "aggregate": (1e-5, 3e-9)}
    return Costs({**kinds, LOCAL_BASELINE: (0.0, 0.0)})
