"""Containers, the data owners, and what every center does for its own: in its process, or as processes of their own.

    center --ContainerOrder--> container (own process): trains on rows that it alone opens --ContainerResult--> center

An order returns at once: the training is the container's job, which survives a snapshot, and the result a call of its
own. Who is lost is told by the driver; what it was training is given to another, and a result that nobody waits for
any more is dropped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from fedactors.actors.actor import Actor, Client, DataCenter
from fedactors.actors.groups import surviving_loss
from fedactors.actors.remote import DRIVER, SAME_PARTY, remote
from fedactors.data.layouts.horizontal import HorizontalPart, check_names, read_reading, reading_of, rows_key, rows_of
from fedactors.errors import Refused
from fedactors.learning.network import find_device
from fedactors.messages.codec import wire_type
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.protocols.nebulafl import messages
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.training import (
    LeaseBook,
    Trainings,
    begin_training,
    job_key,
    run_model,
    train,
    train_batched,
)
from fedactors.validation import shown

_log = logging.getLogger(__name__)


@wire_type
class RunMembers:
    """The centers of a run, and which of them an actor is."""

    position: int
    """Its number among the centers; -1: an exchange."""
    centers: tuple[str, ...]
    """Names of all centers, in their order."""
    sizes: tuple[int, ...]
    """Containers of each center."""
    exchange: str
    """Name of the actor that aggregates, or gives the orders of a baseline."""
    run_seed: int
    """Seed of the run, of which the first model and the order of samples are made."""


WHILE_IT_LASTS = "one at a time in each container, until the duration is over by the center's own clock"
"""What bounds trainings where the configuration does not say how many rounds there are."""
ON_THE_WAY = 600.0
"""Seconds that an order may be under way, or the word that the run is over."""
CLOCKS_DIFFER = 120.0
"""Seconds by which another site's clock may differ, with the time that a word is under way."""


def check_speaker(actor: Actor, name: str) -> None:
    """Check that who calls an endpoint is the one for whom it speaks."""
    if actor.caller != name:
        raise Refused(actor.caller, f"speaks to {actor.name} for {name!r}; everybody speaks for itself only")


class Container(Client):
    """A data owner that is a process of its own, of its center's party; only its center may call it."""

    state: ClassVar[tuple[str, ...]] = ("orders",)
    jobs = (train, train_batched)

    def __init__(self, config: NebulaFLConfig, part: HorizontalPart, run_seed: int) -> None:
        self._config, self._part, self._run_seed = config, part, run_seed
        self.orders: list[int] = []
        """Numbers of the trainings under way."""

    async def load(self) -> None:
        """Open the own rows."""
        find_device(self._config.device)
        self._key = rows_key(self._part.clients[0], self.scope)
        x_NF, _ = rows_of(self._key)
        self._shape = x_NF.shape[1:]
        self._facts = messages.ContainerFacts(len(x_NF), self._shape, reading_of(self._part, self.scope).text)
        self._model = run_model(self._config, self._part, self._shape)

    async def open(self) -> None:
        """Go on with what a snapshot left."""
        for number in list(self.orders):
            self.background(self._answer(number))

    @remote(caller=SAME_PARTY)
    async def introduce(self) -> messages.ContainerFacts:
        """Say what the center must know before the first order."""
        check_speaker(self, self.party)
        return self._facts

    @remote(caller=SAME_PARTY)
    async def train(self, order: messages.ContainerOrder) -> None:
        """Begin a training; its result is sent when it is there."""
        check_speaker(self, self.party)
        begin_training(self, self._config, self._model, self.name, self._key, self._run_seed, order)
        self.orders.append(order.number)
        self.background(self._answer(order.number))

    @remote(caller=SAME_PARTY)
    async def try_training(self, order: messages.ContainerOrder) -> None:
        """Train once and keep nothing of it: the center learns how long that takes."""
        check_speaker(self, self.party)
        await begin_training(self, self._config, self._model, self.name, self._key, self._run_seed, order)

    async def _answer(self, number: int) -> None:
        job = self.job(job_key(number))
        if job is not None:
            parameters_P, loss_rms, num_samples, _ = await job
            result = messages.ContainerResult(number, num_samples, loss_rms, parameters_P)
            with surviving_loss("its center begins this training again when it is back"):
                await self.peer(self.party, ContainerCenter).container_trained(result)
        self.orders.remove(number)


class ContainerCenter(DataCenter):
    """A center and its containers, in its own process or in processes of their own."""

    trainings: Trainings
    is_account_level = False  # the most of its containers' rows
    _is_restored = False
    """Whether this process goes on from a snapshot, after which trainings may have left that it does not know of."""
    _config: NebulaFLConfig
    _members: RunMembers
    _learned: Callable[[], None]
    """Called when it is known what the containers hold."""
    _lose_container: Callable[[int], None]

    def _make_trainings(self, part: HorizontalPart, book: LeaseBook, **told: Any) -> Trainings:
        order, spent = self._order if self._config.container_processes else None, self._spend
        return Trainings(self, self._config, part, self._members.run_seed, book, order=order, spent=spent, **told)

    def _spend(self, container: int) -> None:
        """Take a container out whose budget is spent."""
        _log.info("%s has trained as often as max_epsilon allows", self.trainings.names[container])
        self._lose_container(container)

    async def open(self) -> None:
        """Go on with what a snapshot left."""
        self._is_restored = self.trainings.began_at is not None
        if self._is_restored:
            self._set_times()
            self._go_on()

    @remote(caller=DRIVER, at_most=lambda config: config.follows_trainings * (1 + config.num_changes))
    async def training_time(self) -> messages.TrainingTime:
        """Return the seconds of a local training while as many containers train as the center has planets."""
        await self._know_containers()
        chosen = self.trainings.admitted()[: self._config.active_per_center]
        await self._try(chosen[0])  # rows are read, and code is loaded, before time counts
        began = self.clock.now()
        await asyncio.gather(*map(self._try, chosen))
        # who finds no free unit waits for one
        waits = max(1.0, self._config.active_per_center / sum(self.trainings.scheduler.pool.counts.values()))
        return messages.TrainingTime(self.name, waits * (self.clock.now() - began))

    async def _try(self, container: int) -> None:
        trainings, name = self.trainings, self.trainings.names[container]
        order = trainings.trial(container)
        if self._config.container_processes:
            await self.peer(name, Container).try_training(order)
            return
        key, run_seed = trainings.keys[container], self._members.run_seed
        await begin_training(self, self._config, trainings.model, name, key, run_seed, order)

    @remote(caller=DRIVER, at_most=lambda config: 1 + config.num_changes)
    async def begin_run(self, start: messages.RunStart) -> None:
        """Begin; told again (this center was away), only what containers' own processes train is begun anew."""
        if self.trainings.began_at is None:
            self._check_start(start)
            await self._know_containers()
            self.trainings.training_seconds = start.training_seconds
            self._set_times()
            self.trainings.began_at = min(self.clock.now(), start.time)  # nobody puts its end off
            self._go_on()
        elif self._config.container_processes:
            self.trainings.begin_again()

    def _check_start(self, start: messages.RunStart) -> None:
        """Refuse another site's word that the run began at another time than now."""
        now = self.clock.now()
        if self._context.is_between_organisations and not abs(now - start.time) <= CLOCKS_DIFFER:
            said = f"says to {self.name} that the run began at {start.time:.0f} s, where it is {now:.0f} s"
            raise Refused(self.caller, f"{said}; approved: {CLOCKS_DIFFER:.0f} s of difference")

    def _check_time(self) -> None:
        """Refuse an order that comes long after the run's end: an honest exchange gives none then."""
        now, duration, has_begun = self.trainings.now, self._config.times.duration, self.trainings.began_at is not None
        if now > duration + ON_THE_WAY if has_begun else self._config.on_party_loss == "stop":  # else it is just back
            when = f"{now:.0f} s after the run began" if has_begun else "before the run began"
            raise Refused(self.caller, f"orders work of {self.name} {when}; approved: duration={duration:g}")

    def _go_on(self) -> None:
        self.trainings.open()
        self._start_outages()

    def _set_times(self) -> None:
        """Set the times of the run, which may follow those of trainings."""
        self._config = self.trainings.timed()

    async def _know_containers(self) -> None:
        if self._config.container_processes and not self.trainings.names:
            await self._meet_containers()
            self._learned()

    async def _meet_containers(self) -> None:
        names = [f"{self.name}/{number}" for number in range(self._members.sizes[self._members.position])]
        facts = await asyncio.gather(*(self.peer(name, Container).introduce() for name in names))
        readings = [read_reading(one.reading) for one in facts]
        check_names({name: one.names for name, one in zip(names, readings, strict=True)})
        self.trainings.learn(
            {name: one.num_samples for name, one in zip(names, facts, strict=True)},
            {name: one.shape for name, one in zip(names, facts, strict=True)},
            dataclasses.replace(readings[0], csv={k: v for one in readings for k, v in one.csv.items()}),
        )

    async def _order(self, container: str, order: messages.ContainerOrder) -> None:
        with surviving_loss("its training is given to another container"):
            await self.peer(container, Container).train(order)

    @remote(caller=SAME_PARTY)
    async def container_trained(self, result: messages.ContainerResult) -> None:
        """Take what a container trained."""
        self.trainings.take(self.caller, result)

    @remote(caller=DRIVER, at_most="num_changes")
    async def container_news(self, news: messages.ContainerEvent) -> None:
        """Learn that a container's process is gone, or that a fresh one is there."""
        if news.center != self.name or not 0 <= news.container < len(self.trainings.names):  # the last one is -1 too
            said = f"tells {self.name} of container {news.container} of {shown(news.center)}"
            raise Refused(self.caller, f"{said}; approved: its own, 0 to {len(self.trainings.names) - 1}")
        if news.present:
            self._regain_container(news.container)
        elif not self.trainings.scheduler.table.lost[news.container]:
            self._lose_container(news.container)

    def _regain_container(self, container: int) -> None:
        self.trainings.regain(container)

    def _versions(self) -> tuple[int, ...]:
        return ()

    @remote(caller=DRIVER, at_most=lambda config: 1 + config.num_changes)
    async def report(self) -> messages.CenterReport:
        """Return what was done so far."""
        return messages.CenterReport(self.name, self.trainings.num_done, self.trainings.num_restored, self._versions())

    @remote(caller=DRIVER, at_most=lambda config: int(config.is_noised))
    async def account(self) -> None:
        """Write what was released, and what that guarantees, to the privacy ledger."""
        trainings = self.trainings
        line = trainings.privacy_line(trainings.trainings_made(), is_restored=self._is_restored)
        self.record_privacy(line)

    def planned_privacy(self) -> Iterable[PrivacyRecord]:
        """Return what the containers release at most, where `max_epsilon` bounds it."""
        most = self.trainings.most_trainings()
        return [self.trainings.privacy_line(most, is_restored=False)] if most else []

    @remote(caller=DRIVER, once=True)
    async def finish(self) -> None:
        """Stop: whatever is under way is given up and paid until now."""
        self.trainings.stop()

    # --- outages, for experiments ---

    def _start_outages(self) -> None:
        """Let the outages of this center's containers happen; they count from the run's first second."""
        began_at = self.trainings.began_at or 0.0
        for center, number, begin, end in self._config.container_outages():
            if center == self.name:
                self.background(self._outage(number, began_at + begin, began_at + end))

    async def _outage(self, number: int, begin: float, end: float) -> None:
        if not self.trainings.scheduler.table.lost[number]:
            if self.clock.now() > begin:
                return
            await self.clock.sleep_until(begin, key=f"away {number} {begin:g}")
            self._lose_container(number)
        await self.clock.sleep_until(end, key=f"back {number} {end:g}")
        self._regain_container(number)
