"""What joins a center's training floor to its actor: trainings as work in flight, their hardware on the bill.

slot --ask--> Floor.place --> job (survives a snapshot) --> Floor.finish --> owner.trained(slot, ...)
                                                       `-> auditor: lease opened, lease closed
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedactors.actor import Actor
from fedactors.runtime.base import Work, derived_seed
from protocols.nebulafl.baselines.ablations import switches
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.containers import Container, attestation_hook
from protocols.nebulafl.data import NebulaData, Shard, model_name
from protocols.nebulafl.floor import Assignment, Floor, Request
from protocols.nebulafl.inputs import read_catalogue
from protocols.nebulafl.messages import LeaseClosed, LeaseOpened
from protocols.nebulafl.training import Model, Trained, train

AUDITOR = "auditor"
TRAINING = "training"
"""Kind of work whose units are seconds on the rented hardware."""

Done = Callable[[Assignment, Request, Trained], None]
Broken = Callable[[Request], None]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A center's place in the run."""

    place: int
    """Its number among the centers of the run."""
    centers: tuple[str, ...]
    """Names of all centers, in their order."""
    exchange: str
    """Name of the actor that aggregates, or gives the orders of a baseline."""
    run_seed: int
    """Seed of the run, of which the first model and the order of samples are made."""


def run_model(config: NebulaFLConfig, data: NebulaData) -> Model:
    """Return the model of a run as the training functions name it."""
    return model_name(config, data), data.shape, data.num_classes, config.normalisation


def center_containers(config: NebulaFLConfig, data: NebulaData, place: int) -> list[Container]:
    """Return the containers of center number `place`; they are dealt to the centers in order."""
    sizes = config.center_sizes
    first = sum(sizes[:place])
    names = read_catalogue(config.catalogue).first_centers(config.num_centers)
    shards = data.shards()[first : first + sizes[place]]
    return [Container(f"{names[place]}/{number}", shard) for number, shard in enumerate(shards)]


class Workshop:
    """Lets slots be trained in the containers of one center.

    Args:
        actor: the center.
        config: of the run.
        data: who holds what.
        containers: of this center.
        generator: draws containers, hardware and run times.
        run_seed: seed of the run, from which the order of a container's samples is made.
        gap_of: version gap of a slot that gave none.
        done: called with each training that ended.
        broken: called with the request of each training that was given up.
        proxy: rows of which trainings also return logits.
    """

    def __init__(
        self,
        actor: Actor,
        config: NebulaFLConfig,
        data: NebulaData,
        containers: Sequence[Container],
        generator: np.random.Generator,
        run_seed: int,
        *,
        gap_of: Callable[[int], float],
        done: Done,
        broken: Broken,
        proxy: Shard | None = None,
    ) -> None:
        catalogue = read_catalogue(config.catalogue)
        self.actor, self.config, self.containers = actor, config, list(containers)
        self.model = run_model(config, data)
        self.floor = Floor(
            catalogue.types_of(actor.name),
            catalogue.centers[actor.name],
            [container.num_samples for container in containers],
            model=self.model[0],
            num_epochs=config.num_epochs,
            spread=catalogue.spread,
            switches=switches(config),
            paper_literal=config.paper_literal,
            generator=generator,
        )
        self._gap_of, self._done, self._broken, self._proxy = gap_of, done, broken, proxy
        self._run_seed = run_seed

    def open(self, began_at: float) -> None:
        """Admit containers, and take up what a snapshot left in flight; outages count from `began_at`."""
        self._admit()
        now = self.actor.clock.now()
        for number in self.floor.dropped:
            self.actor.background(self._drain(number))
        for slot, assignment in list(self.floor.running.items()):
            job = self.actor.job(_key(assignment.number))
            if job is not None and job.due >= now:
                self.actor.background(self._train(slot))
            else:
                # its process died with this training: it is paid for and begun again
                self._break(slot)
        self.pump()
        self._start_outages(began_at)

    async def _be_away(self, place: Any, number: int, begin: float, end: float) -> None:
        clock = self.actor.clock
        if not self.floor.table.lost[number]:
            if clock.now() > begin:
                return
            await clock.sleep_until(begin, key=f"away {number} {begin:g}")
            await place.lose_container(number)
        await clock.sleep_until(end, key=f"back {number} {end:g}")
        await place.regain_container(number)

    def _start_outages(self, began_at: float) -> None:
        for center, number, begin, end in self.config.container_outages():
            if center == self.actor.name:
                self.actor.background(self._be_away(self.actor, number, began_at + begin, began_at + end))

    def _admit(self) -> None:
        attest = attestation_hook(self.config.attestation)
        for number, container in enumerate(self.containers):
            if attest is not None and not attest(container.name, secrets.token_bytes(16)):
                self.floor.table.lose(number)

    def ask(self, request: Request) -> None:
        """Let a slot be trained as soon as there is a container and hardware for it."""
        self.floor.request(request)
        self.pump()

    def pump(self) -> None:
        """Start whatever can be started now."""
        for assignment in self.floor.place(self.actor.clock.now(), self._gap_of):
            self._begin(assignment)
            self.actor.background(self._train(assignment.slot))

    def _begin(self, assignment: Assignment) -> None:
        request, config = self.floor.requests[assignment.slot], self.config
        container = self.containers[assignment.container]
        proxy = () if self._proxy is None else (self._proxy.key, self._proxy.rows)
        self.actor.begin(
            _key(assignment.number),
            train,
            self.model,
            request.parameters,
            container.shard.key,
            container.shard.rows,
            derived_seed(self._run_seed, container.name, f"training {assignment.turn}"),
            (config.num_epochs, config.batch_size, config.learning_rate * request.rate_factor, config.momentum),
            *proxy,
            work=Work(TRAINING, assignment.seconds),
        )
        self._tell(
            "open_lease",
            LeaseOpened(self.actor.name, assignment.unit, container.name, assignment.start, assignment.price),
        )

    async def _train(self, slot: int) -> None:
        number = self.floor.running[slot].number
        job = self.actor.job(_key(number))
        assert job is not None
        trained = await job
        now_running = self.floor.running.get(slot)
        if now_running is None or now_running.number != number:
            self.floor.dropped.remove(number)
            return
        now = self.actor.clock.now()
        assignment, request = self.floor.finish(slot, now)
        self._close(assignment, useful=True)
        self._done(assignment, request, trained)
        self.pump()

    async def _drain(self, number: int) -> None:
        job = self.actor.job(_key(number))
        if job is not None:
            await job
        self.floor.dropped.remove(number)

    def lose(self, container: int) -> Request | None:
        """Take a container out; return the request whose training it broke off."""
        given_up = self.floor.lose(container)
        if given_up is None:
            return None
        self._close(given_up[0], useful=False)
        self.pump()
        return given_up[1]

    def regain(self, container: int) -> None:
        """Take a container in again."""
        self.floor.regain(container)
        self.pump()

    def withdraw(self, slot: int) -> None:
        """Stop a slot's training, or its wait for one."""
        if slot in self.floor.running:
            self._close(self.floor.give_up(slot)[0], useful=False)
        elif slot in self.floor.requests:
            self.floor.withdraw(slot)

    def stop(self) -> None:
        """Stop everything; hardware is paid until now."""
        for slot in list(self.floor.requests):
            self.withdraw(slot)

    def _break(self, slot: int) -> None:
        assignment, request = self.floor.give_up(slot)
        self._close(assignment, useful=False)
        if self.actor.job(_key(assignment.number)) is not None:
            self.actor.background(self._drain(assignment.number))
        else:
            self.floor.dropped.remove(assignment.number)
        self._broken(request)

    def _close(self, assignment: Assignment, *, useful: bool) -> None:
        now = self.actor.clock.now()
        where = f"{self.containers[assignment.container].name} on {assignment.unit}"
        self.actor.record_span("train" if useful else "given up", where, assignment.start, now)
        self._tell("close_lease", LeaseClosed(self.actor.name, assignment.unit, now, useful))

    def _tell(self, method: str, news: LeaseOpened | LeaseClosed) -> None:
        from protocols.nebulafl.auditor import Auditor

        self.actor.background(getattr(self.actor.peer(AUDITOR, Auditor), method)(news))


def _key(number: int) -> str:
    return f"training-{number:08d}"
