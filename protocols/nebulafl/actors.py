"""NebulaFL's actors: the data centers, the auditor, and the exchange of the ablation that aggregates masters.

    planet 1..J --ask--> Trainings --trained--> PlanetUpdate, version += 1, ask again     (no planet waits for another)
    every t_c   : (master, mean version) --> partner of the round, or the exchange where masters are aggregated
    any time    : a master that arrives is the new stellar model
    container   : where it is a process of its own, trains what its center orders, on rows that it alone opens
    auditor     : told of leases by the centers; asks for models, measures their mean on the test rows; decides nothing

Who waits for whom: a planet for an idle container and a free unit; a center for nobody; the exchange for all centers.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, ClassVar

import numpy as np

from fedactors.actors.actor import DataCenter, Server
from fedactors.actors.context import Work
from fedactors.actors.groups import surviving_loss
from fedactors.actors.remote import DATA_CENTER, DRIVER, SERVER, remote
from fedactors.data.layouts.horizontal import HorizontalPart, reading_of, rows_key, rows_of
from fedactors.errors import BadInput, Refused
from fedactors.learning.local_training import weighted_mean
from fedactors.learning.network import find_device
from fedactors.protocols.nebulafl import messages
from fedactors.protocols.nebulafl.algorithm import Floats, rotation_partners
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.containers import ContainerCenter, RunMembers, check_speaker
from fedactors.protocols.nebulafl.hardware import Bill, Rental
from fedactors.protocols.nebulafl.scheduler import Assignment, Request
from fedactors.protocols.nebulafl.staleness import CenterModels, RotationTimer
from fedactors.protocols.nebulafl.training import (
    Model,
    Trained,
    evaluate,
    initial_parameters,
    run_model,
    train,
    train_batched,
)

AUDITOR = "auditor"
EVALUATION = "evaluation"


class NebulaCenter(ContainerCenter):
    """See the module."""

    state: ClassVar[tuple[str, ...]] = ("models", "trainings", "timer", "present", "model_facts", "reading")
    jobs = (train, train_batched)

    def __init__(self, config: NebulaFLConfig, part: HorizontalPart, members: RunMembers) -> None:
        self._config, self._part, self._members = config, part, members
        self.present = list(members.centers)
        self.model_facts: Model | None = None
        self.reading = ""
        """How the containers' rows are read (`fedactors.data.layouts.horizontal`)."""

    async def load(self) -> None:
        """Learn what the containers hold, and build models, hardware and timers."""
        config = self._config
        self.trainings = self._make_trainings(
            self._part,
            self.peer(AUDITOR, Auditor),
            gap_of=lambda slot: self.models.gap(slot),
            done=self._trained,
            broken=lambda request: self._ask(request.slot),
        )
        self.timer = RotationTimer(config.times.rotation_interval, paper_literal=config.paper_literal)
        self._make_models(np.zeros(0, np.float32))  # what a snapshot is put into
        if not config.container_processes:
            self._learned()

    def _learned(self) -> None:
        self.model_facts, self.reading = self.trainings.model, self.trainings.reading.text
        self._make_models(initial_parameters(self.model_facts, self._members.run_seed))

    def _make_models(self, start_P: Floats) -> None:
        config = self._config
        planets = [start_P] * config.active_per_center
        interval = config.times.rotation_interval
        self.models = CenterModels(planets, start_P, interval, config.paper_literal, config.planet_rule)

    def _set_times(self) -> None:
        super()._set_times()
        self.timer.interval = self.models.rotation_interval = self._config.times.rotation_interval

    def _go_on(self) -> None:
        super()._go_on()
        for planet in range(len(self.models.planets)):
            if planet not in self.trainings.scheduler.requests:
                self._ask(planet)
        self.timer.catch_up(self.trainings.now)
        self.background(self._rotate())

    # --- planets (Algorithm 1, lines 4 to 13) ---

    def _ask(self, planet: int) -> None:
        if not self.trainings.stopped and self.trainings.now < self._config.times.duration:
            self.trainings.ask(Request(planet, self.models.planets[planet]))

    def _trained(self, assignment: Assignment, request: Request, trained: Trained) -> None:
        self.models.trained(request.slot, trained[0], self.trainings.now, request.parameters)
        self.models.planets[request.slot].setflags(write=False)
        self._ask(request.slot)

    def _lose_container(self, container: int) -> None:
        """Its planet trains elsewhere, from the model it had."""
        broken = self.trainings.lose(container)
        if broken is not None:
            self._ask(broken.slot)

    # --- rotation (lines 14 to 24) ---

    async def _rotate(self) -> None:
        while not self.trainings.stopped and self.timer.due_at() <= self._config.end:
            due = self.timer.due_at()
            await self.clock.sleep_until((self.trainings.began_at or 0.0) + due, key="rotation")
            rotation = self.timer.take(max(self.trainings.now, due))  # now may be less by rounding
            if rotation is not None and not self.trainings.stopped:
                await self._send(rotation)

    async def _send(self, rotation: int) -> None:
        parameters_P, version = self.models.send()
        parameters_P.setflags(write=False)
        master = messages.MasterModel(self.name, rotation, version, parameters_P)
        if not self._config.rules.rotate:
            await self.peer(self._members.exchange, MeanExchange).collect(master)
            return
        partner = rotation_partners(self.present, rotation)[self.name]
        if partner == self.name:
            self._take(master)
            return
        with surviving_loss("this master reaches nobody, and the ring closes without that center"):
            await self.peer(partner, NebulaCenter).receive(master)

    @remote(caller=DATA_CENTER, at_most=lambda config: config.num_rotations + config.num_changes)
    async def receive(self, model: messages.MasterModel | messages.SharedModel) -> None:
        """Make a master that arrived the stellar model.

        Raises:
            Refused: it is no center's of the run, or none that these settings exchange, or of no rotation.
        """
        is_master, members = isinstance(model, messages.MasterModel), self._members
        check_speaker(self, model.center if isinstance(model, messages.MasterModel) else members.exchange)
        is_due = is_master == self._config.rules.rotate and (not is_master or self.caller in members.centers)
        if not (is_due and model.rotation >= 0 and 0 <= model.version < math.inf):
            kind = "master" if is_master else "mean"
            said = f"sends {self.name} a {kind} of rotation {model.rotation}, version {model.version:g}"
            approved = f"masters of {', '.join(members.centers)}" if self._config.rules.rotate else "means"
            raise Refused(self.caller, f"{said}; approved: {approved}")
        self._take(model)

    def _take(self, model: messages.MasterModel | messages.SharedModel) -> None:
        if model.parameters.shape != self.models.stellar.shape:
            raise BadInput(
                f"{self.name}: a model of {model.parameters.size} numbers does not fit one of "
                f"{self.models.stellar.size}: all containers must hold the same columns"
            )
        self.models.receive(model.parameters, model.version, self.trainings.now)

    @remote(caller=DRIVER, at_most="num_changes")
    async def set_present(self, news: messages.PresentCenters) -> None:
        """Learn which centers are there: the ring runs over those."""
        if self.name not in news.centers or not set(news.centers) <= set(self._members.centers):
            said = f"tells {self.name} that {', '.join(news.centers) or 'nobody'} are there"
            raise Refused(self.caller, f"{said}; approved: of {', '.join(self._members.centers)}")
        self.present = list(news.centers)

    # --- what others ask ---

    @remote(caller=SERVER, at_most=lambda config: config.num_measurements + config.num_changes)
    async def model(self) -> messages.MasterModel:
        """Return the master of this moment."""
        return messages.MasterModel(self.name, self.timer.rotation, self.models.mean_version, self.models.master())

    def _versions(self) -> tuple[int, ...]:
        return tuple(self.models.versions)


class MeanExchange(DataCenter):
    """The aggregation ablation: the mean of all masters goes back to all centers (2 |C| transfers)."""

    state: ClassVar[tuple[str, ...]] = ("present", "collected")

    def __init__(self, centers: tuple[str, ...]) -> None:
        self.present = list(centers)
        self.collected: dict[int, dict[str, tuple[float, Floats]]] = {}

    @remote(caller=DATA_CENTER, unbounded="the exchange has no rows")
    async def collect(self, master: messages.MasterModel) -> None:
        """Take a master; the last one of an exchange sends the mean to all."""
        check_speaker(self, master.center)
        collected = self.collected.setdefault(master.rotation, {})
        collected[master.center] = (master.version, master.parameters)
        self._settle(master.rotation)

    def _settle(self, rotation: int) -> None:
        collected = self.collected[rotation]
        if set(self.present) - set(collected):
            return
        del self.collected[rotation]
        names = sorted(collected)
        mean_P = weighted_mean([collected[name][1] for name in names], [1.0] * len(names))
        mean_P.setflags(write=False)
        version = sum(collected[name][0] for name in names) / len(names)
        self.background(self._share(messages.SharedModel(rotation, version, mean_P)))

    async def _share(self, model: messages.SharedModel) -> None:
        async def send(center: str) -> None:
            with surviving_loss("when it is back it gets the next mean"):
                await self.peer(center, NebulaCenter).receive(model)

        await asyncio.gather(*(send(center) for center in list(self.present)))

    @remote(caller=DRIVER, unbounded="the exchange has no rows")
    async def set_present(self, news: messages.PresentCenters) -> None:
        """Learn which centers are there; an exchange that waited for one that is gone goes on."""
        self.present = list(news.centers)
        for rotation in sorted(self.collected):
            self._settle(rotation)


class Auditor(Server):
    """See the module. A lease is known here before anything can be lost with its center; links to here cost nothing.

    News of leases that end and begin at once may come in any order, so that each names its training: what is told of a
    training whose beginning has not been told yet waits for it.
    """

    state: ClassVar[tuple[str, ...]] = (
        "bill", "open_leases", "early_ends", "model_facts", "parameters_P", "reading",
    )  # fmt: skip

    def __init__(self, config: NebulaFLConfig, part: HorizontalPart, units: dict[str, int]) -> None:
        self._config, self._part, self._units = config, part, units
        self.bill = Bill()
        self.open_leases: dict[tuple[str, int], messages.LeaseOpened] = {}
        self.early_ends: dict[tuple[str, int], messages.LeaseClosed] = {}
        self.model_facts: Model | None = None
        """Of the model that was measured last, None before; its parameters, and how rows are read."""
        self.parameters_P: Floats = np.zeros(0, np.float32)
        self.reading = ""
        self._lost_at: dict[str, float] = {}  # no checkpoint is taken while a center is away

    async def load(self) -> None:
        """Name the test rows; they are loaded when they are needed."""
        if self._part.test is None:
            raise BadInput(f"test: {self._part.name} names no test rows")
        find_device(self._config.device)
        self._key = rows_key(self._part.test, self.scope)
        self._model = run_model(self._config, self._part, () if self._part.shape else rows_of(self._key)[0].shape[1:])

    @remote(caller=DATA_CENTER, unbounded="the auditor lets no hardware")
    async def open_lease(self, news: messages.LeaseOpened) -> None:
        """Note that a unit was let; one that is back already goes on the bill."""
        check_speaker(self, news.center)
        key = (news.center, news.number)
        if key in self.open_leases:
            raise ValueError(f"{news.center} lets {news.unit} for training {news.number}, which has begun already")
        self.open_leases[key] = news
        if (end := self.early_ends.pop(key, None)) is not None:
            self._close(key, end.end, end.useful)

    @remote(caller=DATA_CENTER, unbounded="the auditor lets no hardware")
    async def close_lease(self, news: messages.LeaseClosed) -> None:
        """Put a rental on the bill; one that was closed with its center's loss is there already."""
        check_speaker(self, news.center)
        key = (news.center, news.number)
        if key in self.open_leases:
            self._close(key, news.end, news.useful)
        else:
            self.early_ends[key] = news

    @remote(caller=DRIVER, at_most="num_changes")
    async def center_lost(self, news: messages.CenterNews) -> None:
        """Bill what a lost center had let, until now."""
        self._lost_at[news.center] = news.time
        for key in [key for key in self.open_leases if key[0] == news.center]:
            self._close(key, news.time, False)
        # a center that is back may count on from an older number
        self.early_ends = {key: end for key, end in self.early_ends.items() if key[0] != news.center}

    @remote(caller=DRIVER, at_most="num_changes")
    async def center_back(self, report: messages.CenterReport) -> None:
        """Count what a center trained after the state with which it is back as given up: it is trained again."""
        lost_at = self._lost_at.pop(report.center)
        self.bill.take_back(report.center, lambda index, old: index >= report.restored and old.end <= lost_at)

    @remote(caller=DRIVER, at_most="num_changes")
    async def round_lost(self, news: messages.CenterNews) -> None:
        """Count what a center trained since then as given up: it was lost before it answered."""
        self.bill.take_back(news.center, lambda _, old: old.start >= news.time)

    def _close(self, key: tuple[str, int], end: float, useful: bool) -> None:
        rental = self._rental(self.open_leases.pop(key), end, useful)
        if not useful:  # the center may be gone, or not know when its loss was noticed
            self.record_span("given up", f"{rental.container} on {rental.unit}", rental.start, end)
        self.bill.add(rental)

    def _rental(self, lease: messages.LeaseOpened, end: float, useful: bool) -> Rental:
        start, container = lease.start, lease.container
        end = max(start, end)  # who asks may have looked at the clock before news of the rental came in
        return Rental(
            center=lease.center, unit=lease.unit, container=container, start=start, end=end, price=lease.price,
            useful=useful,
        )  # fmt: skip

    @remote(caller=DRIVER, at_most=lambda config: config.num_measurements + 1)
    async def account(self, order: messages.AccountOrder) -> messages.Account:
        """Return the dollars of all rentals so far, and each center's bill."""
        closed = self.bill.rentals
        num_useful = sum(rental.useful for rental in closed)
        now = Bill([*closed, *(self._rental(lease, order.time, False) for lease in self.open_leases.values())])
        return messages.Account(
            rent=now.dollars(),
            trainings=num_useful,
            given_up=len(closed) - num_useful,
            centers=tuple(now.center(name, num_units, order.duration) for name, num_units in self._units.items()),
        )

    @remote(caller=DRIVER, at_most=lambda config: config.num_measurements + config.num_changes)
    async def measure(self, order: messages.MeasureOrder) -> messages.Measurement | None:
        """Measure the plain mean of some models on the test rows (the final model of Algorithm 1).

        None: all who were to give one are gone.
        """
        models = await asyncio.gather(*(self._ask_model(name) for name in order.holders))
        found = [model for model in models if model is not None]
        for name, model in zip(order.holders, models, strict=True):
            if model is not None and model.parameters.shape != found[0].parameters.shape:
                said = f"sends a model of {model.parameters.size:,} numbers"
                raise Refused(name, f"{said}; {order.holders[0]} has one of {found[0].parameters.size:,}")
        if not found:
            return None
        mean_P = found[0].parameters
        if len(found) > 1:
            mean_P = weighted_mean([model.parameters for model in found], [1.0] * len(found))
        self.model_facts, self.parameters_P = self._model, mean_P
        self.reading = reading_of(self._part, self.scope).text
        work = Work(EVALUATION, 1.0)
        return messages.Measurement(
            await self.compute(
                evaluate, self._model, mean_P, self._key, self._config.device, self._config.user_metric, work=work
            )
        )

    async def _ask_model(self, name: str) -> Any:
        model = None
        with surviving_loss("it is not measured"):
            model = await self.peer(name, NebulaCenter).model()  # the baselines' exchanges have this endpoint too
        return model
