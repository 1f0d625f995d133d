"""Parties that do something else in a process of their own, which only a Ray worker shows."""

from __future__ import annotations

import asyncio
import dataclasses
import sys

from fedactors.actors.remote import DRIVER, remote
from tests.testing.sound import Left, Order, Report


def on_ray() -> bool:
    return "default_worker" in sys.argv[0]


class Scattered(Left):
    """Its result depends on the process that it is in."""

    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        report = await super().train_round(order)
        shifted = report.loss + float(on_ray())
        return dataclasses.replace(report, loss=shifted, details={"loss": shifted})


class Stuck(Left):
    """Never ends its first round."""

    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        if on_ray():
            await asyncio.Event().wait()
        return await super().train_round(order)
