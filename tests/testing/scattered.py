"""A party whose result depends on the process it is in, which only a Ray worker shows."""

from __future__ import annotations

import dataclasses
import sys

from fedactors.remote import DRIVER, remote
from tests.testing.sound import Left, Order, Report


class Scattered(Left):
    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        report = await super().train_round(order)
        shifted = report.loss + float("default_worker" in sys.argv[0])
        return dataclasses.replace(report, loss=shifted, details={"loss": shifted})
