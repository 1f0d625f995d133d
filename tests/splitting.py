"""A sound protocol in one file, logistic regression on columns of two parties, and the parties that break it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedactors.config import config
from fedactors.data.partitions import VerticalData, vertical
from fedactors.network.codec import message
from fedactors.plugins import Headline, RunResult
from fedactors.roles import Client
from fedactors.runtime.base import Costs, Runtime, Work
from fedactors.scenario import Scenario

Floats = NDArray[np.float64]


@config
class SplitConfig:
    """Settings."""

    num_rounds: int = Field(default=3, ge=1)
    """Rounds to run."""
    batch_size: int = Field(default=64, ge=8)
    """Rows a round."""


@message(receiver="left", reveals="a weighted sum of the sender's columns, per row of the batch")
class Part:
    """A party's part of the score; values (B)."""

    values: Floats


@message(receiver="right", reveals="the error per row of the batch, whose sign is the label")
class Error:
    """Prediction minus label; values (B)."""

    values: Floats


def score(x_BF: Floats, weights_F: Floats) -> Floats:
    return x_BF @ weights_F


class Party(Client):
    """Holds columns and their weights."""

    state: ClassVar[tuple[str, ...]] = ("weights", "order")

    def __init__(self, data: VerticalData, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size

    async def load(self) -> None:
        block = self.data.load(self.party)
        self.features = block.features
        self.scaled = ((block.features - block.features.mean(0)) / block.features.std(0)).astype(np.float64)
        self.labels = block.labels
        self.weights = self.rng("weights").normal(size=self.scaled.shape[1]) * 0.1
        # both parties draw the same rows: the generator is of the run, not of the party
        self.order = np.random.default_rng(self._context.seed)

    def rows(self) -> NDArray[np.int64]:
        return self.order.choice(len(self.scaled), self.batch_size, replace=False)


class Right(Party):
    async def part(self) -> Part:
        self.batch = self.rows()
        return Part(await self.compute(score, self.scaled[self.batch], self.weights, work=Work("score", 1)))

    async def learn(self, error: Error) -> None:
        self.weights = self.weights - 0.1 * self.scaled[self.batch].T @ error.values / len(self.batch)


class Left(Party):
    async def step(self) -> float:
        right = self.peer("right", Right)
        batch, theirs = self.rows(), await right.part()
        ours = await self.compute(score, self.scaled[batch], self.weights, work=Work("score", 1))
        assert self.labels is not None
        error = 1 / (1 + np.exp(-(ours + theirs.values))) - self.labels[batch]
        self.weights = self.weights - 0.1 * self.scaled[batch].T @ error / len(batch)
        await right.learn(Error(error))
        return float(np.mean(error**2))


def make_run(left: type[Left] = Left, right: type[Right] = Right) -> Any:
    async def run(settings: SplitConfig, data: VerticalData, runtime: Runtime) -> RunResult:
        runtime.use_costs(Costs({"score": (0.001, 0.0)}))
        first = runtime.spawn(left, "left", data, settings.batch_size)
        runtime.spawn(right, "right", data, settings.batch_size)
        await runtime.start()
        loss = 0.0
        for index in range(runtime.state.get("round", 0) + 1, settings.num_rounds + 1):
            loss = await first.step()
            runtime.state.update(round=index, loss=loss)
            await runtime.record_round(index, {"loss": loss})
            await runtime.checkpoint()
        return RunResult(rounds=settings.num_rounds, metrics={"loss": runtime.state["loss"]})

    return run


def load_data(settings: SplitConfig, name: str, seed: int) -> VerticalData:
    return vertical(name, ("left", "right"))


def protocol(left: type[Left] = Left, right: type[Right] = Right, **changes: Any) -> Scenario:
    fields: dict[str, Any] = {
        "name": "splitting",
        "summary": "logistic regression on columns of two parties",
        "partition": "vertical",
        "default_data": "breast-cancer",
        "headline": Headline(name="loss", mode="min"),
        "Config": SplitConfig,
        "run": make_run(left, right),
        "load_data": load_data,
        "messages": sys.modules[__name__],
    }
    return Scenario(**{**fields, **changes})


# --- parties that break the contract ---


class LeaksColumn(Right):
    """Sends a raw column, shuffled, as if it were a score."""

    async def part(self) -> Part:
        await super().part()
        return Part(np.sort(self.features[self.batch, 3]).astype(np.float64))


class LeaksScaledRows(Right):
    """Sends raw rows in a message of the right type."""

    async def part(self) -> Part:
        await super().part()
        return Part(self.features[self.batch].astype(np.float64).reshape(-1, self.features.shape[1])[:, 0])


class LosesMessage(Right):
    """Keeps the last error for the next round, and forgets to say so."""

    async def load(self) -> None:
        await super().load()
        self.inbox: list[Floats] = []

    async def learn(self, error: Error) -> None:
        self.inbox.append(error.values)
        if len(self.inbox) > 1:
            self.weights = self.weights - 0.1 * self.scaled[self.batch].T @ self.inbox.pop(0)


class ReadsWallClock(Left):
    async def step(self) -> float:
        start = time.perf_counter()
        loss = await super().step()
        return loss if time.perf_counter() - start < 1e9 else 0.0


class DrawsUnseeded(Right):
    async def load(self) -> None:
        await super().load()
        self.weights = np.random.default_rng().normal(size=self.scaled.shape[1])


class DrawsFromGlobal(Right):
    async def load(self) -> None:
        await super().load()
        np.random.seed(0)
        self.weights = np.random.normal(size=self.scaled.shape[1])


class SendsBareArray(Right):
    async def part(self) -> Part:
        made = await super().part()
        await self.peer("left", TakesBareArray).take(made.values)
        return made


class TakesBareArray(Left):
    async def take(self, values: Floats) -> None:
        self.taken = values


class Whispers(Left):
    async def step(self) -> float:
        hidden = self.data.__dict__.setdefault("hidden", [])
        hidden.append(1.0)
        return await super().step()


class Overhears(Right):
    async def part(self) -> Part:
        made = await super().part()
        return Part(made.values + len(self.data.__dict__.get("hidden", [])))


class Hangs(Right):
    """Waits for what nobody will say."""

    async def learn(self, error: Error) -> None:
        await asyncio.Event().wait()


class Scattered(Left):
    """Depends on the process it is in."""

    async def step(self) -> float:
        loss = await super().step()
        return loss + float("default_worker" in sys.argv[0])
