"""The auditor: measures models on test rows and keeps the bill. It decides nothing, and its links cost nothing.

center --lease opened, lease closed--> auditor <--models-- driver
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from fedactors.roles import Server
from fedactors.runtime.base import Work
from protocols.nebulafl.algorithm import weighted_mean
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import NebulaData
from protocols.nebulafl.messages import LeaseClosed, LeaseOpened, MasterModel, Measurement, SharedModel
from protocols.nebulafl.money import Bill, Rental
from protocols.nebulafl.training import evaluate
from protocols.nebulafl.workshop import run_model

EVALUATION = "evaluation"


class Auditor(Server):
    """See the module. A lease is known here before anything can be lost with its center."""

    state: ClassVar[tuple[str, ...]] = ("bill", "open_leases")

    def __init__(self, config: NebulaFLConfig, data: NebulaData) -> None:
        self._config, self._data = config, data
        self._model = run_model(config, data)
        self.bill = Bill()
        self.open_leases: dict[tuple[str, str], tuple[str, float, float]] = {}

    async def open_lease(self, news: LeaseOpened) -> None:
        """Note that a unit was let."""
        key = (news.center, news.unit)
        if key in self.open_leases:
            raise ValueError(f"{news.unit} of {news.center} is let twice")
        self.open_leases[key] = (news.container, news.start, news.price)

    async def close_lease(self, news: LeaseClosed) -> None:
        """Put a rental on the bill; one that was closed with its center's loss is there already."""
        lease = self.open_leases.pop((news.center, news.unit), None)
        if lease is not None:
            self._add(news.center, news.unit, lease, news.end, news.useful)

    async def center_lost(self, center: str, now: float) -> None:
        """Bill what a lost center had let, until now."""
        for key in [key for key in self.open_leases if key[0] == center]:
            self._add(*key, self.open_leases.pop(key), now, False)

    def _add(self, center: str, unit: str, lease: tuple[str, float, float], end: float, useful: bool) -> None:
        container, start, price = lease
        rental = Rental(center=center, unit=unit, container=container, start=start, end=end, price=price, useful=useful)
        self.bill.add(rental)

    async def account(self, now: float) -> dict[str, float]:
        """Return the dollars and hours of all rentals that ended, and what is open as if it ended now."""
        closed = self.bill.rentals
        running = [(now - start) * price / 3600.0 for _, start, price in self.open_leases.values()]
        return {
            "rent": self.bill.dollars() + sum(running),
            "trainings": float(sum(rental.useful for rental in closed)),
            "given_up": float(sum(not rental.useful for rental in closed)),
        }

    async def bills(self, units: dict[str, int], duration: float) -> dict[str, dict[str, float]]:
        """Return each center's rent, hours and utilisation; `units` is how many units it has."""
        return {center: dataclasses.asdict(bill) for center, bill in self.bill.centers(units, duration).items()}

    async def measure(self, models: tuple[MasterModel | SharedModel, ...]) -> Measurement:
        """Measure the plain mean of some models on the test rows (the final model of Algorithm 1)."""
        ordered: list[Any] = list(models)
        mean_P = ordered[0].parameters
        if len(ordered) > 1:
            mean_P = weighted_mean([m.parameters for m in ordered], [1.0] * len(ordered))
        found = await self.compute(evaluate, self._model, mean_P, self._data.test_key, work=Work(EVALUATION, 1.0))
        return Measurement(*found)
