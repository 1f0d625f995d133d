"""NebulaFL's data center: planets trained side by side, masters handed around.

    planet 1..J --ask--> Workshop --trained--> PlanetUpdate, version += 1, ask again      (no planet waits for another)
    every t_c   : (master, mean version) --> partner of the round, or the exchange where masters are aggregated
    any time    : a master that arrives is the new stellar model

Who waits for whom: a planet for an idle container and a free unit; a center for nobody.
"""

from __future__ import annotations

from typing import ClassVar

from fedactors.errors import PartyLost
from fedactors.roles import DataCenter
from fedactors.runtime.base import derived_seed
from protocols.nebulafl.baselines.ablations import switches
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import NebulaData
from protocols.nebulafl.exchange import MeanExchange
from protocols.nebulafl.floor import Assignment, Request
from protocols.nebulafl.messages import CenterReport, MasterModel, SharedModel
from protocols.nebulafl.rotation import RotationTimer, rotation_partners
from protocols.nebulafl.training import Trained, initial_parameters
from protocols.nebulafl.versioning import CenterModels
from protocols.nebulafl.workshop import Site, Workshop, center_containers


class NebulaCenter(DataCenter):
    """See the module.

    Args:
        config: of the run.
        data: who holds what.
        site: where the center is among the others.
    """

    state: ClassVar[tuple[str, ...]] = (
        "models", "floor", "timer", "present", "num_trained", "stopped", "began_at", "model_facts",
    )  # fmt: skip

    def __init__(self, config: NebulaFLConfig, data: NebulaData, site: Site) -> None:
        self._config, self._data, self._site = config, data, site
        self.present = list(site.centers)
        self.num_trained = 0
        self.stopped = False
        self.began_at: float | None = None

    async def load(self) -> None:
        """Deal the containers' rows and build models, hardware and timers."""
        config = self._config
        self._workshop = Workshop(
            self,
            config,
            self._data,
            center_containers(config, self._data, self._site.place),
            self.rng("decisions"),
            self._site.run_seed,
            gap_of=lambda slot: self.models.gap(slot),
            done=self._trained,
            broken=lambda request: self._ask(request.slot),
        )
        self.floor = self._workshop.floor
        self.model_facts = self._workshop.model
        start_P = initial_parameters(self.model_facts, derived_seed(self._site.run_seed, "all parties", "model"))
        planets = [start_P] * config.active_per_center
        self.models = CenterModels(planets, start_P, config.rotation_interval, config.paper_literal)
        self.timer = RotationTimer(config.rotation_interval, paper_literal=config.paper_literal)
        self._rotates = switches(config).rotate

    async def open(self) -> None:
        """Go on with what a snapshot left."""
        if self.began_at is not None:
            self._go_on()

    async def begin_run(self, time: float) -> None:
        """Let every planet train and the masters rotate; `time` is when the run's first second began.

        Told again (this center was away), nothing happens unless it never began.
        """
        if self.began_at is None:
            self.began_at = time
            self._go_on()

    @property
    def now(self) -> float:
        """Seconds since every center was there."""
        return self.clock.now() - (self.began_at or 0.0)

    def _go_on(self) -> None:
        self._workshop.open(self.began_at or 0.0)
        for planet in range(len(self.models.planets)):
            if planet not in self.floor.requests:
                self._ask(planet)
        self.timer.catch_up(self.now)
        self.background(self._rotate())

    # --- planets (Algorithm 1, lines 4 to 13) ---

    def _ask(self, planet: int) -> None:
        if not self.stopped and self.now < self._config.duration:
            self._workshop.ask(Request(planet, self.models.planets[planet]))

    def _trained(self, assignment: Assignment, request: Request, trained: Trained) -> None:
        self.models.trained(request.slot, trained[0], self.now)
        self.models.planets[request.slot].setflags(write=False)
        self.num_trained += 1
        self._ask(request.slot)

    # --- rotation (lines 14 to 24) ---

    async def _rotate(self) -> None:
        while not self.stopped and self.timer.due_at() <= self._config.duration:
            await self.clock.sleep_until((self.began_at or 0.0) + self.timer.due_at(), key="rotation")
            rotation = self.timer.take(self.now)
            if rotation is not None and not self.stopped:
                await self._send(rotation)

    async def _send(self, rotation: int) -> None:
        parameters_P, version = self.models.send()
        parameters_P.setflags(write=False)
        master = MasterModel(self.name, rotation, version, parameters_P)
        receiver = rotation_partners(self.present, rotation)[self.name] if self._rotates else self._site.exchange
        if receiver == self.name:
            await self.receive(master)
            return
        try:
            if self._rotates:
                await self.peer(receiver, NebulaCenter).receive(master)
            else:
                await self.peer(self._site.exchange, MeanExchange).collect(master)
        except PartyLost:
            if not self._rotates:
                raise
            # the partner is gone: this master reaches nobody, and the ring closes without it

    async def receive(self, model: MasterModel | SharedModel) -> None:
        """Make a master that arrived the stellar model."""
        self.models.receive(model.parameters, model.version, self.now)

    # --- losses ---

    async def set_present(self, centers: tuple[str, ...]) -> None:
        """Learn which centers are there: the ring runs over those."""
        self.present = list(centers)

    async def lose_container(self, container: int) -> None:
        """A container is gone: its planet trains elsewhere, from the model it had."""
        broken = self._workshop.lose(container)
        if broken is not None:
            self._ask(broken.slot)

    async def regain_container(self, container: int) -> None:
        """A container is back."""
        self._workshop.regain(container)

    # --- the driver's questions ---

    async def master(self) -> MasterModel:
        """Return the master of this moment."""
        parameters_P = self.models.master()
        return MasterModel(self.name, self.timer.rotation, self.models.mean_version, parameters_P)

    async def report(self) -> CenterReport:
        """Return what was done so far."""
        versions = tuple(self.models.versions)
        return CenterReport(self.name, self.num_trained, sum(versions), self.timer.rotation, versions)

    async def finish(self) -> None:
        """Stop: whatever is under way is given up and paid until now."""
        self.stopped = True
        self._workshop.stop()
