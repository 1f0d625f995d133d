"""A run of NebulaFL or of a baseline: the centers go on by themselves, the driver measures and keeps the account.

nebulafl            centers, auditor (and the exchange that averages masters, in the ablation without rotation)
flat baselines      centers as order takers, FlatExchange, auditor
baselines by center centers as order takers, RoundExchange, auditor
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedactors.actors.actor import Resources
from fedactors.data.datasets.catalogue import describe
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalPart, forget_blocks
from fedactors.errors import PartyLost
from fedactors.learning.metrics import Split, of_split, task_metrics
from fedactors.learning.models import build_skeleton
from fedactors.learning.network import num_values
from fedactors.messages.codec import HEADER_BYTES
from fedactors.messages.ledger import INTER_DATA_CENTER, Total
from fedactors.protocols.nebulafl import messages
from fedactors.protocols.nebulafl.actors import AUDITOR, EVALUATION, Auditor, MeanExchange, NebulaCenter
from fedactors.protocols.nebulafl.baselines.actors import DISTILLATION, FlatExchange, OrderCenter, RoundExchange
from fedactors.protocols.nebulafl.baselines.secure_sums import UNMASKING
from fedactors.protocols.nebulafl.config import BY_CENTER, NebulaFLConfig
from fedactors.protocols.nebulafl.containers import Container, RunMembers
from fedactors.protocols.nebulafl.data import (
    catalogue_for,
    center_part,
    containers_of,
    exchange_name,
    read_catalogue,
    read_network,
    said_throughput,
)
from fedactors.protocols.nebulafl.hardware import Catalogue
from fedactors.protocols.nebulafl.training import TRAINING, model_spec, run_model
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Costs, Runtime
from fedactors.runtime.rounds import Remedy, Rounds, RunState

_log = logging.getLogger(__name__)

EVALUATION_SECONDS = 0.0
MODEL_MESSAGES = (
    "MasterModel", "SharedModel", "TrainingOrder", "TrainingResult", "RoundOrder", "RoundResult", "ClusterLogits",
    "Masked",
)  # fmt: skip
STANDARD = frozenset(task_metrics("multiclass", [0, 1, 0, 1], [[1.0, 0.0], [0.0, 1.0]] * 2))
"""Metrics that every run has."""
CURVE = ("accuracy", "time", "dollars", "center_bytes", "transfers")


@dataclass
class State(RunState):
    """What the driver keeps between measurements."""

    began_at: float = 0.0
    training_seconds: float = 0.0
    """Of a local training at the slowest center, 0 where no time follows them."""
    rent: float = 0.0
    """Dollars for hardware that are on the run's price already."""
    gone: list[str] = field(default_factory=list)
    """Centers, and containers that are processes of their own, that were lost for good."""
    curve: list[list[float]] = field(default_factory=list)
    """The values of `CURVE` at each measurement."""
    scores: dict[str, float] = field(default_factory=dict)
    """What the user's own metric found at the last measurement."""
    bills: dict[str, dict[str, float]] = field(default_factory=dict)
    """What each place had cost by the last measurement, by name; together they are its dollars."""


async def run(config: NebulaFLConfig, data: HorizontalData, runtime: Runtime) -> RunResult:
    """Train until the duration (or the number of rounds) is over; a round of the records is a measurement."""
    forget_blocks()
    catalogue = read_catalogue(config.catalogue)
    state = State()

    def may_checkpoint() -> bool:
        interval = config.checkpoint_interval
        return not federation.away and (state.over or (interval > 0 and state.round % interval == 0))

    remedy = Remedy("learning_rate", config.learning_rate)
    rounds = Rounds(runtime, state, num_rounds=None, remedy=remedy, may_checkpoint=may_checkpoint)
    prepare(config, data, runtime, catalogue)
    federation = Federation(config, data, runtime, catalogue, state)
    if await rounds.start():
        await federation.begin()
    config = config.timed(state.training_seconds)
    end, evaluation_interval = config.end, config.times.evaluation_interval
    async for number in rounds:
        due = min(number * evaluation_interval, end)
        await runtime.clock.sleep_until(state.began_at + due, key="measurement")
        is_over = due >= end or await federation.finished()
        if is_over:
            await federation.finish()
            rounds.stop()
        rounds.record(await measure(federation, runtime, state))
        if not is_over and has_reached(config, state):
            await federation.finish()
            rounds.stop()
    return await rounds.result(*await conclude(config, federation, runtime, catalogue, state))


def illustrative(config: NebulaFLConfig) -> str:
    """Return the line that says what its dollars are worth."""
    given = "your catalogue says so" if "\n" in config.catalogue else f"catalogue={config.catalogue}"
    return f"illustrative prices: dollars and hours are no offer's ({given}); catalogue=cloud network=cloud are cited"


def said_times(config: NebulaFLConfig, state: State) -> str:
    """Return the line that says which times follow trainings."""
    times = vars(config.timed(state.training_seconds).times)
    chosen = " ".join(f"{name}={value:.4g}" for name, value in times.items())
    return f"auto: {chosen}; a local training at the slowest center takes {state.training_seconds:.3g} s"


def prepare(config: NebulaFLConfig, data: HorizontalData, runtime: Runtime, catalogue: Catalogue) -> None:
    """Offer the runtime what trainings take and how models travel.

    A training's work is stated in seconds of the unit that it runs on; the exchange distils on as much hardware as the
    first center lets. Ways between centers are chosen for models of about this size: how wide the rows of tables are
    once categories are columns, only the parties know.
    """
    centers = catalogue.first_centers(config.num_centers)
    columns = 1 if data.files else describe(data.name).columns
    model = run_model(config, data, (columns,))
    catalogue, units = catalogue_for(config, model_spec(model)), catalogue.centers[centers[0]]
    speed = sum(units[kind.name] * kind.samples_per_second(model[0]) for kind in catalogue.types_of(centers[0]))
    distillation = config.work_factor / speed
    costs = {EVALUATION: (0.0, EVALUATION_SECONDS), DISTILLATION: (0.0, distillation), UNMASKING: (0.0, 1e-8)}
    runtime.use_costs(Costs({TRAINING: (0.0, 1.0), **costs}))
    num_bytes = 4 * num_values(build_skeleton(model_spec(model)))
    network = read_network(config.network).heavier(config.bytes_factor)
    runtime.use_network(network.links(centers, exchange_name(config), num_bytes))


def has_reached(config: NebulaFLConfig, state: State) -> bool:
    """Say whether the last measurement ends the run."""
    return config.stop_at_target and state.curve[-1][0] >= (config.target_accuracy or math.inf)


def measured_split(config: NebulaFLConfig) -> Split:
    """Return which rows the auditor measures on: those held out, or the test rows."""
    return "validation" if config.num_validation else "test"


def actors(config: NebulaFLConfig) -> dict[str, type]:
    """Return the kinds of actors of a run."""
    found: dict[str, type] = {"data center": OrderCenter, "auditor": Auditor}
    if config.container_processes:
        found["container"] = Container
    if config.algorithm in BY_CENTER:
        found["exchange"] = RoundExchange
    elif config.algorithm != "nebulafl":
        found["exchange"] = FlatExchange
    else:
        found["data center"] = NebulaCenter
        if config.ablation == "aggregation":
            found["exchange"] = MeanExchange
    return found


class Federation:
    """Handles of all actors, who of the centers is away, and what follows when a center's process is lost."""

    def __init__(
        self, config: NebulaFLConfig, data: HorizontalData, runtime: Runtime, catalogue: Catalogue, state: State
    ) -> None:
        self.config, self._runtime, self._state = config, runtime, state
        self.away: list[str] = []
        """Whose processes are gone: centers, and containers that have one."""
        self.containers: dict[str, tuple[str, int]] = {}
        """Center and number of each container that is a process of its own, by name."""
        self._returns = 0
        self._news = asyncio.Event()
        self._rotates = config.algorithm == "nebulafl"
        kinds: dict[str, Any] = actors(config)
        names = catalogue.first_centers(config.num_centers)
        self._exchange_name = exchange_name(config)
        sizes = tuple(map(len, containers_of(config, data)))
        units = {name: sum(catalogue.centers[name].values()) for name in names}
        columns = 1 if data.files else describe(data.name).columns
        self.said_throughput = said_throughput(config, model_spec(run_model(config, data, (columns,))))
        """Whose throughput the run's model has; empty: its own."""
        self.auditor: Auditor = runtime.spawn(
            Auditor, AUDITOR, config, data.part(test=True), units, resources=Resources(num_gpus=config.num_gpus)
        )
        self.centers: dict[str, NebulaCenter | OrderCenter] = {}
        for position, name in enumerate(names):
            trains = Resources(
                num_gpus=config.num_gpus,
                labels={f"dc-{name}": 0.001} if config.placement_by_label else {},
                # the center itself lets its hardware; a training that was given up may still hold a core
                simulated_cores=units[name] + 2 * sizes[position],
            )
            resources, part = trains, center_part(config, data, position)
            if config.container_processes:
                self._spawn_containers(name, part, trains)
                resources, part = replace(trains, num_gpus=0.0), replace(part, clients=(), validation=())
            if name in state.gone:
                continue
            members = self._members(position, names, sizes)
            self.centers[name] = runtime.spawn(kinds["data center"], name, config, part, members, resources=resources)
        self._exchange: Any = None
        if self._rotates and "exchange" in kinds:
            self._exchange = runtime.spawn(MeanExchange, self._exchange_name, tuple(self.centers))
        elif "exchange" in kinds:
            members = self._members(-1, names, sizes)
            self._exchange = runtime.spawn(kinds["exchange"], self._exchange_name, config, data.part(), members)
        may_go, losable = config.on_party_loss != "stop", {*names, *self.containers}
        runtime.on_loss(lambda name: "continue" if may_go and name in losable else "stop", self._lost)

    def _spawn_containers(self, center: str, part: HorizontalPart, resources: Resources) -> None:
        for number, source in enumerate(part.clients):
            name, local = f"{center}/{number}", replace(part, clients=(source,), validation=())
            self.containers[name] = (center, number)
            if name not in self._state.gone:
                self._runtime.spawn(Container, name, self.config, local, self._runtime.seed, resources=resources)

    def _members(self, position: int, centers: tuple[str, ...], sizes: tuple[int, ...]) -> RunMembers:
        run_seed = self._runtime.seed
        return RunMembers(
            position=position, centers=centers, sizes=sizes, exchange=self._exchange_name, run_seed=run_seed
        )

    @property
    def present(self) -> dict[str, NebulaCenter | OrderCenter]:
        """The centers that are there."""
        return {name: center for name, center in self.centers.items() if name not in self.away}

    async def begin(self) -> None:
        """Let the centers begin, and the baselines' exchange give its first orders."""
        if self.config.follows_trainings:
            tried = await asyncio.gather(*(center.training_time() for center in self.centers.values()))
            self._state.training_seconds = max(one.seconds for one in tried)
            _log.info("%s", said_times(self.config, self._state))
        self._state.began_at = self._runtime.clock.now()
        start = self._start()
        await asyncio.gather(*(center.begin_run(start) for center in self.centers.values()))
        if not self._rotates:
            await self._exchange.begin_run(start)

    def _start(self) -> messages.RunStart:
        return messages.RunStart(self._state.began_at, self._state.training_seconds)

    async def finished(self) -> bool:
        """Tell whether the method wants nothing more."""
        return not self._rotates and bool((await self._exchange.progress()).finished)

    async def finish(self) -> None:
        """Stop all centers; what is under way is given up."""
        for center in self.present.values():
            await center.finish()
        if self.config.is_noised:
            for center in self.present.values():
                await center.account()

    async def measure(self) -> messages.Measurement:
        """Measure the mean of the masters of all centers that are there, or a baseline's shared model.

        While all centers are away it waits for the first that is back.
        """
        while True:
            returns = self._returns
            holders = tuple(self.present) if self._rotates else (self._exchange_name,)
            found = await self.auditor.measure(messages.MeasureOrder(holders)) if holders else None
            if found is not None:
                return found
            await self._return_after(returns)

    async def somebody(self) -> None:
        """Wait until a center is there, if all are away and a measurement needs one."""
        while self._rotates and not self.present:
            await self._return_after(self._returns)

    async def _return_after(self, returns: int) -> None:
        while returns == self._returns:
            await self._news.wait()

    async def versions(self) -> dict[str, list[int]]:
        """Return the versions of the planets of each center that is there."""
        return {name: list((await center.report()).versions) for name, center in self.present.items()}

    # --- losses ---

    async def _lost(self, name: str) -> None:
        """Bill a center, close the ring without it, and bring it back if that is wanted."""
        if name in self.containers:
            await self._lost_container(name)
            return
        self.away.append(name)
        news = messages.CenterNews(name, False, self._runtime.clock.now())
        await self.auditor.center_lost(news)
        if self.config.on_party_loss == "continue" and not self.present:
            raise PartyLost(name, "its process is gone, and no data center is left")
        await self._tell_present()
        if not self._rotates:
            unanswered = await self._exchange.center_news(news)
            if unanswered is not None:
                await self.auditor.round_lost(unanswered)
        if self.config.on_party_loss == "continue":
            self._state.gone = sorted(self.away)
            return
        await self._brought_back(name)
        while any(self.containers.get(one, ("",))[0] == name for one in self.away):
            await self._return_after(self._returns)
        if self._rotates:
            await self.auditor.center_back(await self.centers[name].report())
        await self.centers[name].begin_run(self._start())
        self.away.remove(name)
        await self._tell_present()
        if not self._rotates:
            await self._exchange.center_news(messages.CenterNews(name, True, self._runtime.clock.now()))
        self._tell_returned()

    def _tell_returned(self) -> None:
        self._returns += 1
        self._news.set()
        self._news = asyncio.Event()

    async def _lost_container(self, name: str) -> None:
        """Let its center train elsewhere, and bring it back if that is wanted."""
        self.away.append(name)
        await self._tell_of(name, present=False)
        if self.config.on_party_loss == "continue":
            self._state.gone = sorted(self.away)
            return
        await self._brought_back(name)
        self.away.remove(name)
        await self._tell_of(name, present=True)
        self._tell_returned()

    async def _tell_of(self, container: str, *, present: bool) -> None:
        """Tell a center of one of its containers; one that is away is told when it is back."""
        center, number = self.containers[container]
        if center not in self.away:
            await self.centers[center].container_news(messages.ContainerEvent(center, number, present, -1))

    async def _brought_back(self, name: str) -> None:
        _log.warning("%s: a fresh process takes its place after %g s", name, self.config.restart_seconds)
        await self._runtime.clock.sleep(self.config.restart_seconds)
        await self._runtime.respawn(name)

    async def _tell_present(self) -> None:
        news = messages.PresentCenters(tuple(self.present))
        for center in self.present.values():
            await center.set_present(news)
        if self._rotates and self._exchange is not None:
            await self._exchange.set_present(news)


async def measure(federation: Federation, runtime: Runtime, state: State) -> dict[str, Any]:
    """Measure the model of this moment and what it cost so far."""
    await federation.somebody()
    now = runtime.clock.now()
    account = await federation.auditor.account(messages.AccountOrder(now, now - state.began_at))
    await runtime.settle()
    runtime.spend(account.rent - state.rent)
    state.rent = account.rent
    egress = runtime.ledger.price(runtime.network.link)
    totals = totals_between_hosts(runtime)
    state.bills = bills_of(account, totals, runtime)
    found = await federation.measure()
    metrics = {
        **of_split(measured_split(federation.config), found.metrics),
        "time": now - state.began_at,
        "hours": (now - state.began_at) / 3600.0,
        "dollars": account.rent + egress,
        "rent": account.rent,
        "egress": egress,
        "center_bytes": sum(t.bytes for t in totals),
        "transfers": sum(t.messages for t in totals if t.type in MODEL_MESSAGES),
        "trainings": account.trainings,
        "given_up": account.given_up,
    }
    if federation.config.user_metric:
        state.scores = {name: value for name, value in found.metrics.items() if name not in STANDARD}
    state.curve.append([found.metrics["accuracy"], *(metrics[name] for name in CURVE[1:])])
    return metrics


def totals_between_hosts(runtime: Runtime) -> list[Total]:
    """Return what went from one place to another; an exchange at a center is at home there."""
    host = runtime.network.host
    return [t for t in runtime.ledger.totals() if t.kind == INTER_DATA_CENTER and host(t.sender) != host(t.receiver)]


def bills_of(account: messages.Account, totals: Sequence[Total], runtime: Runtime) -> dict[str, dict[str, float]]:
    """Return rent, egress and use of each center, and of the hub where the exchange has a place of its own."""
    network = runtime.network
    bills = {
        bill.center: {"rent": bill.rent, "busy_hours": bill.busy_hours, "utilisation": bill.utilisation}
        for bill in account.centers
    }
    nothing = dict.fromkeys(("rent", "busy_hours", "utilisation"), 0.0)
    for host in {**bills, **dict.fromkeys(network.host(t.sender) for t in totals)}:
        sent = [t for t in totals if network.host(t.sender) == host]
        paid = (network.link(t.sender, t.receiver, t.kind).price(t.bytes + HEADER_BYTES * t.messages) for t in sent)
        bills[host] = bills.get(host, nothing) | {"bytes_sent": sum(t.bytes for t in sent), "egress": sum(paid)}
    return bills


async def conclude(
    config: NebulaFLConfig, federation: Federation, runtime: Runtime, catalogue: Catalogue, state: State
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the final metrics, and beside them each center's bill."""
    curve = [dict(zip(CURVE, point, strict=True)) for point in state.curve]
    last, split = curve[-1], measured_split(config)
    # the best of several test measurements would be a score that the test rows chose
    best = {"best_accuracy": max(point["accuracy"] for point in curve)} if split == "validation" else {}
    account = await federation.auditor.account(messages.AccountOrder(runtime.clock.now(), last["time"]))
    if not account.trainings:
        _log.warning(
            "no training ended within duration=%g: the model is the one that it began with", config.times.duration
        )
    metrics: dict[str, Any] = {
        **of_split(split, {"accuracy": last["accuracy"], **best, **state.scores}),
        "hours": last["time"] / 3600.0,
        "dollars": last["dollars"],
        "center_bytes": last["center_bytes"],
        "transfers": last["transfers"],
        "trainings": float(account.trainings),
    }
    if config.target_accuracy is not None:
        reached = next((point for point in curve if point["accuracy"] >= config.target_accuracy), None)
        for name in ("time", "dollars", "center_bytes"):
            metrics[f"{name}_to_target"] = reached[name] if reached else math.nan
    notes = [illustrative(config)] if catalogue.illustrative else []
    notes += [said_times(federation.config, state)] if state.training_seconds else []
    notes += [said] if (said := federation.said_throughput) else []
    extra = {
        "centers": state.bills,
        "versions": await federation.versions(),
        "illustrative": catalogue.illustrative,
        **({"notes": notes} if notes else {}),
        "curve": curve,
    }
    return metrics, extra
