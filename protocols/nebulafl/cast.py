"""The actors of a run: who is spawned under which name, and what follows when a center's process is lost.

nebulafl            centers, auditor (and the exchange that averages masters, in the ablation without rotation)
flat baselines      centers as order takers, TaskExchange, auditor
baselines by center centers as order takers, RoundExchange, auditor
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from fedactors.errors import PartyLost
from fedactors.resources import Resources
from fedactors.runtime.base import Runtime
from protocols.nebulafl.actors import NebulaCenter
from protocols.nebulafl.auditor import Auditor
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import NebulaData
from protocols.nebulafl.exchange import MeanExchange
from protocols.nebulafl.exchanges import RoundExchange, TaskExchange
from protocols.nebulafl.inputs import read_catalogue, read_network
from protocols.nebulafl.messages import CenterReport, MasterModel, SharedModel
from protocols.nebulafl.order_center import OrderCenter
from protocols.nebulafl.workshop import AUDITOR, Site

BY_CENTER = ("fedavg-hierarchical", "fedhisyn", "fedhkt")


@dataclass
class Cast:
    """Handles of all actors, and who of the centers is away."""

    config: NebulaFLConfig
    runtime: Runtime
    auditor: Auditor
    centers: dict[str, NebulaCenter | OrderCenter]
    exchange: Any = None
    away: list[str] = field(default_factory=list)

    @property
    def present(self) -> dict[str, NebulaCenter | OrderCenter]:
        """The centers that are there."""
        return {name: center for name, center in self.centers.items() if name not in self.away}

    @property
    def rotates(self) -> bool:
        """Whether the run is NebulaFL's (with or without a part taken away)."""
        return self.config.algorithm == "nebulafl"

    async def begin(self, now: float) -> None:
        """Let the centers begin, and the baselines' exchange give its first orders."""
        await asyncio.gather(*(center.begin_run(now) for center in self.centers.values()))
        if not self.rotates:
            await self.exchange.begin_run(now)

    async def finished(self) -> bool:
        """Tell whether the method wants nothing more."""
        return not self.rotates and bool(await self.exchange.finished())

    async def finish(self) -> None:
        """Stop all centers; what is under way is given up."""
        for center in self.present.values():
            await center.finish()

    async def models(self) -> list[MasterModel | SharedModel]:
        """Return the models whose mean is the result: the masters of the centers that are there, or the shared one."""
        if not self.rotates:
            return [await self.exchange.model()]
        found: list[MasterModel | SharedModel] = []
        for center in self.present.values():
            assert isinstance(center, object)
            try:
                found.append(await center.master())  # type: ignore[union-attr]
            except PartyLost:
                continue  # its loss is handled where it is noticed
        return found

    async def reports(self) -> list[CenterReport]:
        """Return what each center that is there did."""
        return [await center.report() for center in self.present.values()]

    # --- losses ---

    async def lost(self, name: str) -> None:
        """A center's process is gone: bill it, close the ring without it, and bring it back if that is wanted."""
        self.away.append(name)
        await self.auditor.center_lost(name, self.runtime.clock.now())
        await self._tell_present()
        if not self.rotates:
            await self.exchange.center_lost(name)
        if self.config.on_party_loss == "continue":
            self.runtime.state["gone"] = sorted(self.away)
            return
        await self.runtime.clock.sleep(self.config.restart_seconds)
        await self.runtime.respawn(name)
        await self.centers[name].begin_run(self.runtime.state["began_at"])
        self.away.remove(name)
        await self._tell_present()
        if not self.rotates:
            await self.exchange.center_back(name)

    async def _tell_present(self) -> None:
        names = tuple(self.present)
        for center in self.present.values():
            await center.set_present(names)
        if self.rotates and self.exchange is not None:
            await self.exchange.set_present(names)


def exchange_name(config: NebulaFLConfig) -> str:
    """Return where the methods that aggregate do so: at the network's hub, without one at the first center."""
    if read_network(config.network).hub is not None:
        return "exchange"
    return f"{read_catalogue(config.catalogue).first_centers(1)[0]}/exchange"


def assemble(config: NebulaFLConfig, data: NebulaData, runtime: Runtime) -> Cast:
    """Spawn the actors and say what follows a loss."""
    catalogue = read_catalogue(config.catalogue)
    names = catalogue.first_centers(config.num_centers)
    gone = list(runtime.state.get("gone", ()))
    exchange = exchange_name(config)
    auditor = runtime.spawn(Auditor, AUDITOR, config, data)
    centers: dict[str, NebulaCenter | OrderCenter] = {}
    for place, name in enumerate(names):
        if name in gone:
            continue
        resources = Resources(
            labels={f"dc-{name}": 0.001} if config.place_by_label else {},
            # the center itself lets its hardware; a training that was given up may still hold a core
            simulated_cores=sum(catalogue.centers[name].values()) + 2 * config.center_sizes[place],
        )
        cls: type[Any] = NebulaCenter if config.algorithm == "nebulafl" else OrderCenter
        site = Site(place=place, centers=names, exchange=exchange, run_seed=runtime.seed)
        centers[name] = runtime.spawn(cls, name, config, data, site, resources=resources)
    cast = Cast(config, runtime, auditor, centers)
    present = tuple(centers)
    if config.algorithm in BY_CENTER:
        cast.exchange = runtime.spawn(RoundExchange, exchange, config, data, names, runtime.seed)
    elif config.algorithm != "nebulafl":
        cast.exchange = runtime.spawn(TaskExchange, exchange, config, data, names, runtime.seed)
    elif config.ablation == "aggregation":
        cast.exchange = runtime.spawn(MeanExchange, exchange, present)
    may_go = config.on_party_loss != "stop"
    runtime.on_loss(lambda name: "continue" if may_go and name in names else "stop", cast.lost)
    return cast
