"""Five sound protocols of a few lines: split learning, averaging, passing a token, payloads, and noise for privacy."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedactors.actors.actor import Client, Server
from fedactors.actors.context import Ref, Work
from fedactors.actors.remote import DRIVER, remote
from fedactors.config import config
from fedactors.data.layouts.horizontal import HorizontalData, horizontal
from fedactors.data.layouts.vertical import VerticalData, VerticalPart, vertical
from fedactors.data.partitioners import IidPartitioner
from fedactors.messages.codec import message
from fedactors.plugins import Headline
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Costs, Runtime
from fedactors.scenario import Scenario

Floats = NDArray[np.float64]
NUM_COLUMNS = 30
COSTS = Costs({"score": (1e-3, 1e-6), "error": (1e-3, 1e-6), "step": (1e-3, 1e-6), "summary": (1e-3, 0.0)})


@config
class SoundConfig:
    """Settings of all five."""

    num_rounds: int = Field(default=12, ge=1)
    """Rounds to run."""
    batch_size: int = Field(default=64, ge=8)
    """Rows of a round."""
    noise: float = Field(default=0.5, ge=0)
    """Standard deviation of the noise on a part, where there is any."""


# --- messages: B rows of a batch, F columns ---


@message(reveals="which round it is")
class Order:
    """What the driver asks for."""

    round: int


@message(reveals="the loss, and the sender's weights for the run folder")
class Report:
    """What a round came to; weights (F)."""

    loss: float
    weights: Floats
    details: dict[str, float]


@message(reveals="which round it is")
class Ask:
    """What one party asks of another."""

    round: int


@message(reveals="a weighted sum of the sender's columns, per row of the batch", readers="the left party")
class Part:
    """A party's part of the score; values (B)."""

    values: Floats


@message(reveals="where the part is, and nothing of it")
class Offer:
    """A part that can be fetched."""

    ref: Ref


@message(reveals="statistics of the sender's weights")
class Summary:
    """Statistics of the sender's weights, in every form that a message may have."""

    norm: float
    quantiles: Floats
    largest: tuple[float, ...]
    comment: str
    by_name: dict[str, float]
    packed: bytes


@message(reveals="the error per row of the batch, whose sign is the label")
class Error:
    """Prediction minus label; values (B)."""

    values: Floats


@message(reveals="the model of all clients")
class Model:
    """Weights (F)."""

    vector: Floats


# --- mathematics ---


def score(x_BF: Floats, weights_F: Floats) -> Floats:
    return x_BF @ weights_F


def errors(ours_B: Floats, theirs_B: Floats, labels_B: NDArray[Any]) -> tuple[Floats, float]:
    error_B = 1 / (1 + np.exp(-(ours_B + theirs_B))) - labels_B
    return error_B, float(np.mean(error_B**2))


def step(weights_F: Floats, x_BF: Floats, error_B: Floats) -> Floats:
    return weights_F - 0.1 * x_BF.T @ error_B / len(x_BF)


def summarise(weights_F: Floats) -> tuple[float, Floats]:
    return float(np.linalg.norm(weights_F)), np.quantile(weights_F, np.linspace(0, 1, 5))


def average(vectors: list[Floats]) -> Floats:
    return np.mean(vectors, axis=0)


def local_round(weights_F: Floats, x_NF: Floats, labels_N: NDArray[Any]) -> tuple[Floats, float]:
    error_N, loss = errors(score(x_NF, weights_F), np.zeros(len(x_NF)), labels_N)
    return step(weights_F, x_NF, error_N), loss


# --- split learning: two parties hold columns of the same rows ---


class Party(Client):
    """Holds columns and their weights."""

    state: ClassVar[tuple[str, ...]] = ("weights", "order", "batch")

    def __init__(self, data: VerticalPart, settings: SoundConfig) -> None:
        self.data, self.settings = data, settings

    async def load(self) -> None:
        block = self.data.load()
        self.features = block.features
        self.scaled = ((block.features - block.features.mean(0)) / block.features.std(0)).astype(np.float64)
        self.labels = block.labels
        self.weights = self.rng("weights").normal(size=self.scaled.shape[1]) * 0.1
        self.batch = np.zeros(0, np.int64)
        # both parties draw the same rows: the generator is of the run, not of the party
        self.order = np.random.default_rng(7)

    def draw(self) -> None:
        self.batch = self.order.choice(len(self.scaled), self.settings.batch_size, replace=False)

    async def score(self) -> Floats:
        work = Work("score", len(self.batch))
        return await self.compute(score, self.scaled[self.batch], self.weights, work=work)

    async def descend(self, error: Floats) -> None:
        work = Work("step", len(self.batch))
        self.weights = await self.compute(step, self.weights, self.scaled[self.batch], error, work=work)


class Right(Party):
    """The party without labels."""

    @remote
    async def part(self, ask: Ask) -> Part:
        self.draw()
        return Part(await self.score())

    @remote
    async def describe(self, ask: Ask) -> Summary:
        norm, quantiles = await self.compute(summarise, self.weights, work=Work("summary"))
        largest = tuple(float(value) for value in quantiles[-2:])
        return Summary(norm, quantiles, largest, f"norm {norm:.3f}", {"norm": norm}, quantiles.tobytes())

    @remote
    async def learn(self, error: Error) -> None:
        await self.descend(error.values)


class Left(Party):
    """The party with labels, which leads."""

    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        right = self.peer("right", Right)
        summary = await right.describe(Ask(order.round))
        theirs = await self.fetch(order)
        self.draw()
        assert self.labels is not None
        labels, work = self.labels[self.batch], Work("error", len(self.batch))
        error, loss = await self.compute(errors, await self.score(), theirs, labels, work=work)
        await self.descend(error)
        await right.learn(Error(error))
        return Report(loss, self.weights, {"loss": loss, "norm": summary.norm})

    async def fetch(self, order: Order) -> Floats:
        return (await self.peer("right", Right).part(Ask(order.round))).values


async def run_split(
    settings: SoundConfig, data: VerticalData, runtime: Runtime, left: type[Left], right: type[Right]
) -> RunResult:
    runtime.use_costs(COSTS)
    first = runtime.spawn(left, "left", data.part("left"), settings)
    runtime.spawn(right, "right", data.part("right"), settings)
    await runtime.start()
    for index in range(runtime.state.get("round", 0) + 1, settings.num_rounds + 1):
        report = await first.train_round(Order(index))
        runtime.state.update(round=index, loss=report.loss)
        await runtime.record_round(index, report.details)
        await runtime.checkpoint()
    return RunResult(rounds=settings.num_rounds, metrics={"loss": runtime.state["loss"]})


def load_columns(settings: SoundConfig, name: str, seed: int) -> VerticalData:
    return vertical(name, ("left", "right"))


# --- payloads: the part stays where it is until it is fetched ---


class OfferingRight(Right):
    """Offers its part."""

    payloads = (Part,)

    @remote
    async def offer(self, ask: Ask) -> Offer:
        return Offer(self.put(await self.part(ask), to="left"))

    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)


class FetchingLeft(Left):
    """Fetches the other's part."""

    async def fetch(self, order: Order) -> Floats:
        offer = await self.peer("right", OfferingRight).offer(Ask(order.round))
        part: Part = await self.get(offer.ref)
        return part.values


# --- noise on what leaves ---


class NoisyRight(Right):
    """Adds noise to its part."""

    async def load(self) -> None:
        await super().load()
        self.noise = self.noise_rng("part")

    @remote
    async def part(self, ask: Ask) -> Part:
        made = await super().part(ask)
        clipped = np.clip(made.values, -3, 3)
        return Part(clipped + self.noise.normal(scale=self.settings.noise, size=len(clipped)))

    state: ClassVar[tuple[str, ...]] = (*Right.state, "noise")


# --- averaging, and a model that is passed on: clients hold rows of the same columns ---


class RowClient(Client):
    """Holds rows."""

    def __init__(self, source: Any) -> None:
        self.source = source

    async def load(self) -> None:
        block = self.source.load()
        self.features, self.labels = block.features.astype(np.float64), block.labels

    @remote
    async def train(self, model: Model) -> Report:
        work = Work("step", len(self.features))
        weights, loss = await self.compute(local_round, model.vector, self.features, self.labels, work=work)
        return Report(loss, weights, {})


class Averager(Server):
    """Averages what the clients send."""

    state: ClassVar[tuple[str, ...]] = ("vector",)

    def __init__(self, clients: tuple[str, ...]) -> None:
        self.clients, self.vector = clients, np.zeros(NUM_COLUMNS)

    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        found = [await self.peer(name, RowClient).train(Model(self.vector)) for name in self.clients]
        self.vector = await self.compute(average, [one.weights for one in found], work=Work("summary"))
        loss = sum(one.loss for one in found) / len(found)
        return Report(loss, self.vector, {"loss": loss})


class RingClient(RowClient):
    """Trains the model that the one before it has passed on, and passes it on."""

    state: ClassVar[tuple[str, ...]] = ("vector",)

    def __init__(self, source: Any, after: str) -> None:
        super().__init__(source)
        self.after, self.vector = after, np.zeros(NUM_COLUMNS)

    @remote
    async def take(self, model: Model) -> None:
        self.vector = model.vector

    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        found = await self.train(Model(self.vector))
        await self.peer(self.after, RingClient).take(Model(found.weights))
        return Report(found.loss, found.weights, {"loss": found.loss})


async def run_averaging(
    settings: SoundConfig, data: HorizontalData, runtime: Runtime, server: type[Averager], client: type[RowClient]
) -> RunResult:
    names = ("client-0", "client-1")
    first = runtime.spawn(server, "server", names)
    for index, name in enumerate(names):
        runtime.spawn(client, name, data.client(index))
    return await run_rows(settings, runtime, [first])


async def run_ring(
    settings: SoundConfig, data: HorizontalData, runtime: Runtime, client: type[RingClient]
) -> RunResult:
    clients = [
        runtime.spawn(client, name, data.client(index), after)
        for index, (name, after) in enumerate([("client-0", "client-1"), ("client-1", "client-0")])
    ]
    return await run_rows(settings, runtime, clients)


async def run_rows(settings: SoundConfig, runtime: Runtime, leaders: list[Any]) -> RunResult:
    runtime.use_costs(COSTS)
    await runtime.start()
    for index in range(runtime.state.get("round", 0) + 1, settings.num_rounds + 1):
        report = await leaders[index % len(leaders)].train_round(Order(index))
        runtime.state.update(round=index, loss=report.loss)
        await runtime.record_round(index, report.details)
        await runtime.checkpoint()
    return RunResult(rounds=settings.num_rounds, metrics={"loss": runtime.state["loss"]})


def load_rows(settings: SoundConfig, name: str, seed: int) -> HorizontalData:
    return horizontal(name, IidPartitioner(num_partitions=2, seed=seed), seed=seed)


# --- protocols ---


@dataclass(frozen=True)
class Play:
    """A run with these actors; not a closure, which could not be sent to another process."""

    play: Callable[..., Awaitable[RunResult]]
    actors: tuple[type, ...]

    async def __call__(self, settings: SoundConfig, data: Any, runtime: Runtime) -> RunResult:
        return await self.play(settings, data, runtime, *self.actors)


def kinds(actors: tuple[type, ...], settings: SoundConfig) -> dict[str, type]:
    return {actor.__name__: actor for actor in actors}


def protocol(play: Callable[..., Awaitable[RunResult]], *actors: type, **changes: Any) -> Scenario:
    fields: Mapping[str, Any] = {
        "name": "sound",
        "summary": "a protocol for tests",
        "partition": "vertical",
        "default_data": "breast-cancer",
        "headline": Headline(name="loss", mode="min"),
        "Config": SoundConfig,
        "run": Play(play, actors),
        "load_data": load_rows if play in (run_averaging, run_ring) else load_columns,
        "messages": sys.modules[__name__],
        "actors": partial(kinds, actors),
    }
    return Scenario(**{**fields, **changes})


SOUND = {
    "split learning": protocol(run_split, Left, Right),
    "transfer": protocol(run_split, FetchingLeft, OfferingRight),
    "noise": protocol(run_split, Left, NoisyRight),
    "averaging": protocol(run_averaging, Averager, RowClient),
    "passing on": protocol(run_ring, RingClient),
}
