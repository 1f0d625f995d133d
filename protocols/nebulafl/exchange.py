"""The exchange of the aggregation ablation: the mean of all masters goes back to all centers (2 |C| transfers)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from fedactors.errors import PartyLost
from fedactors.roles import DataCenter
from protocols.nebulafl.algorithm import weighted_mean
from protocols.nebulafl.messages import MasterModel, SharedModel

if TYPE_CHECKING:
    from protocols.nebulafl.actors import NebulaCenter


class MeanExchange(DataCenter):
    """Collects one master per center and exchange, and sends their mean to everyone who is there."""

    state: ClassVar[tuple[str, ...]] = ("present", "collected")

    def __init__(self, centers: tuple[str, ...]) -> None:
        self.present = list(centers)
        self.collected: dict[int, dict[str, tuple[float, object]]] = {}

    async def collect(self, master: MasterModel) -> None:
        """Take a master; the last one of an exchange sends the mean to all."""
        collected = self.collected.setdefault(master.rotation, {})
        collected[master.center] = (master.version, master.parameters)
        self._settle(master.rotation)

    def _settle(self, rotation: int) -> None:
        collected = self.collected[rotation]
        if set(self.present) - set(collected):
            return
        del self.collected[rotation]
        names = sorted(collected)
        mean_P = weighted_mean([collected[name][1] for name in names], [1.0] * len(names))  # type: ignore[misc]
        mean_P.setflags(write=False)
        version = sum(collected[name][0] for name in names) / len(names)
        self.background(self._share(SharedModel(rotation, version, mean_P)))

    async def _share(self, model: SharedModel) -> None:
        async def send(center: str) -> None:
            handle: NebulaCenter = self.peer(center, object)  # type: ignore[assignment]
            try:
                await handle.receive(model)
            except PartyLost:
                return  # who is gone gets the next one

        await asyncio.gather(*(send(center) for center in list(self.present)))

    async def set_present(self, centers: tuple[str, ...]) -> None:
        """Learn which centers are there; an exchange that waited for one that is gone goes on."""
        self.present = list(centers)
        for rotation in sorted(self.collected):
            self._settle(rotation)
