"""A tiny protocol of two real actors: a walk whose steps one party draws and the other adds up."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedactors.actors.actor import Actor
from fedactors.actors.context import Work
from fedactors.actors.remote import DRIVER, remote
from fedactors.config import config
from fedactors.messages.codec import message
from fedactors.plugins import Headline
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Costs, Runtime
from fedactors.scenario import Scenario


@config
class WalkConfig:
    """Settings of the walk."""

    num_rounds: int = Field(default=4, ge=1)
    """Rounds to run."""
    stop_after: int = 0
    """Round after which the run asks itself to stop; 0 for never."""


@message(reveals="the step itself")
class Step:
    """One step of the walk."""

    values: NDArray[np.float64]


@message(reveals="how far the walk has come")
class Distance:
    """Of the walk from its beginning."""

    value: float


def scale(values: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    return values * factor


class Drawer(Actor):
    """Draws steps."""

    state: ClassVar[tuple[str, ...]] = ("generator",)

    async def load(self) -> None:
        self.generator = self.rng("steps")

    @remote(caller=DRIVER)
    async def step(self) -> None:
        drawn = self.generator.normal(size=16)
        values = await self.compute(scale, drawn, 0.5, work=Work("scale", 16))
        await self.peer("shop", Adder).add(Step(values))


class Adder(Actor):
    """Adds them up."""

    state: ClassVar[tuple[str, ...]] = ("position",)

    async def load(self) -> None:
        self.position = np.zeros(16)

    @remote
    async def add(self, step: Step) -> None:
        self.position = self.position + step.values

    @remote(caller=DRIVER)
    async def distance(self) -> Distance:
        return Distance(float(np.linalg.norm(self.position)))


def actor_classes(settings: WalkConfig) -> dict[str, type[Actor]]:
    """Return the kinds of actors."""
    return {"drawer": Drawer, "adder": Adder}


async def run(settings: WalkConfig, data: Any, runtime: Runtime) -> RunResult:
    runtime.use_costs(Costs({"scale": (0.001, 0.0001)}))
    drawer, adder = runtime.spawn(Drawer, "bank"), runtime.spawn(Adder, "shop")
    await runtime.start()
    distance = 0.0
    for index in range(runtime.state.get("round", 0) + 1, settings.num_rounds + 1):
        await drawer.step()
        distance = (await adder.distance()).value
        await runtime.record_round(index, {"distance": distance})
        runtime.state["round"] = index
        if index == settings.stop_after and not runtime.resumed:
            runtime.request_stop(143)
        await runtime.checkpoint()
    return RunResult(rounds=settings.num_rounds, metrics={"distance": distance})


def load_data(settings: WalkConfig, name: str, seed: int) -> None:
    return None


PROTOCOL = Scenario(
    name="walk",
    summary="a walk",
    partition="vertical",
    default_data="breast-cancer",
    headline=Headline(name="distance"),
    Config=WalkConfig,
    run=run,
    load_data=load_data,
)
