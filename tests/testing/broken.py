"""Broken copies of the sound protocols, each with one change."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedactors.actors.context import Work
from fedactors.actors.remote import DRIVER, remote
from fedactors.data.layouts.vertical import VerticalData
from fedactors.errors import PartyError
from fedactors.messages.codec import message
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from tests.testing import sound
from tests.testing.sound import (
    Ask,
    Error,
    Floats,
    Left,
    Model,
    Order,
    Part,
    Report,
    Right,
    RingClient,
    RowClient,
    SoundConfig,
    Summary,
    run_split,
    score,
)

COLUMN = 3
FILE = Path(tempfile.gettempdir()) / "rows-of-a-broken-party.npy"


class Telling(Right):
    """Says something else in its summary."""

    @remote
    async def describe(self, ask: Ask) -> Summary:
        made = await super().describe(ask)
        return Summary(**{name: getattr(made, name) for name in Summary.__annotations__} | self.content(ask))

    def content(self, ask: Ask) -> dict[str, Any]:
        raise AssertionError(ask)

    def column(self) -> Floats:
        """A raw column of this round's rows, shuffled."""
        rows = self.rng(f"other {len(self.batch)}").permutation(len(self.features))[: self.settings.batch_size]
        return self.features[rows, COLUMN].astype(np.float64)


# --- raw data in messages ---


class FlattenedMatrix(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": self.features[:40].astype(np.float64).ravel()}


class ScaledFlattenedMatrix(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": 0.01 * self.features[:40].astype(np.float64).ravel() - 3}


class ShuffledMatrix(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": self.rng("other").permutation(self.features[:40].ravel()).astype(np.float64)}


class RowPlusConstant(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": self.features[ask.round].astype(np.float64) + 100.0}


class ScaledColumn(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": self.features[self.batch, COLUMN].astype(np.float64) * -2.5}


class StandardisedBatch(Right):
    @remote
    async def part(self, ask: Ask) -> Part:
        await super().part(ask)
        return Part(self.scaled[self.batch, COLUMN])


class ShuffledColumn(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": self.rng("other").permutation(self.features[:, COLUMN]).astype(np.float64)}


class SortedColumn(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": np.sort(self.column())}


class PartOfColumn(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": 3 - 0.5 * self.features[9:41, COLUMN].astype(np.float64)}


class ColumnAmongNoise(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        noise = self.rng(f"noise {ask.round}").normal(size=(64, 8))
        noise[:, 5] = 1e-3 * self.features[:64, COLUMN].astype(np.float64) + 0.25
        return {"quantiles": noise}


class ColumnAsText(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"comment": "; ".join(f"patient {i}: {value:.2f}" for i, value in enumerate(self.features[:40, 0]))}


class ColumnAsBytes(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"packed": b"head" + self.column().astype(np.float32).tobytes()}


class RowInKeys(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"by_name": {f"w{value}": 0.0 for value in self.column()}}


class ColumnAsNumbers(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"largest": tuple(map(float, self.column()))}


class ScalarPerMessage(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"norm": float(self.features[ask.round, COLUMN]) * 7 + 1}


class NumberPerSmallArray(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": np.append(self.rng(f"noise {ask.round}").normal(size=3), self.scaled[ask.round, COLUMN])}


class InPayload(sound.OfferingRight):
    @remote
    async def offer(self, ask: Ask) -> sound.Offer:
        made = await super().offer(ask)
        self.free(made.ref)
        return sound.Offer(self.put(Part(self.scaled[self.batch, COLUMN]), to="left"))


class AllLabels(Left):
    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        report = await super().train_round(order)
        assert self.labels is not None
        await self.peer("right", Right).learn(Error(np.zeros(len(self.batch))))
        await self.peer("right", Curious).look(Error(2.0 * self.labels - 1))
        return report


class LabelsOfBatch(Left):
    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        report = await super().train_round(order)
        assert self.labels is not None
        return Report(report.loss, self.labels[self.batch].astype(np.float64), report.details)


class Curious(Right):
    @remote
    async def look(self, error: Error) -> None:
        self.seen = error.values


class MatrixToDriver(Left):
    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        report = await super().train_round(order)
        return Report(report.loss, self.features.astype(np.float64), report.details)


class InMetrics(Left):
    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        report = await super().train_round(order)
        hidden = {f"detail-{i}": float(value) for i, value in enumerate(self.features[:30, COLUMN])}
        return Report(report.loss, report.weights, {**report.details, **hidden})


class ClientSendsRow(RowClient):
    @remote
    async def train(self, model: Model) -> Report:
        report = await super().train(model)
        return Report(report.loss, self.features[0] * 0.1, {})


class InError(Right):
    @remote
    async def part(self, ask: Ask) -> Part:
        made = await super().part(ask)
        if ask.round == 1 and not hasattr(self, "failed"):
            self.failed = True
            raise ValueError(" ".join(f"{value:.2f}" for value in self.features[:30, 0]))
        return made


class Forgiving(Left):
    async def fetch(self, order: Order) -> Floats:
        try:
            return await super().fetch(order)
        except PartyError:
            return await super().fetch(order)


class InTimeline(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        now = self.clock.now()
        self.record_span("wait", f"row {self.features[self.batch[0]].tolist()}", now, now)


class InPrivacyRecord(Right):
    async def load(self) -> None:
        await super().load()
        note = f"clipped at {self.features[:, COLUMN].tolist()}"
        self.record_privacy(PrivacyRecord(party=self.party, message_type="Part", mechanism="none", note=note))


class Prints(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        print(self.features[self.batch[:20], 0])


class InTypeName(Right):
    @remote
    async def part(self, ask: Ask) -> Part:
        made = await super().part(ask)
        name = "Part_" + "_".join(f"{value}" for value in self.features[ask.round])
        made_up: Any = type(name, (), {})
        await self.peer("left", Listening).listen(message(reveals="nothing")(made_up)())
        return made


class Listening(Left):
    @remote
    async def listen(self, content: Part) -> None:
        self.heard = type(content)


async def run_with_names(
    settings: SoundConfig, data: VerticalData, runtime: Runtime, left: type[Left], right: type[Right]
) -> RunResult:
    row = data.load("right").features[0]
    runtime.spawn(sound.Averager, "helper-" + "-".join(f"{value}" for value in row), ())
    return await run_split(settings, data, runtime, left, right)


async def run_with_extra(
    settings: SoundConfig, data: VerticalData, runtime: Runtime, left: type[Left], right: type[Right]
) -> RunResult:
    result = await run_split(settings, data, runtime, left, right)
    return RunResult(
        rounds=result.rounds, metrics=result.metrics, extra={"rows": data.load("left").features[:, 1].tolist()}
    )


# --- channels past the ledger ---


class WritesFile(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        np.save(FILE, self.features)


class SendsDatagram(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.sendto(self.features[0].tobytes(), ("127.0.0.1", 9))


class StartsProcess(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        subprocess.run(["true", str(self.features[0, 0])], check=True)


class StartsThread(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        thread = threading.Thread(target=np.sort, args=(self.features,))
        thread.start()
        thread.join()


class SetsEnvironment(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        os.environ["SOUND_ROW"] = " ".join(map(str, self.features[0]))


SHARED: dict[str, Any] = {}


class WritesGlobal(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        SHARED["row"] = self.features[0]


class PassesThroughGlobal(Right):
    """Puts and takes: nothing is left of it when the run is over."""

    @remote
    async def part(self, ask: Ask) -> Part:
        made = await super().part(ask)
        SHARED["values"] = made.values
        return made


class TakesFromGlobal(Left):
    async def fetch(self, order: Order) -> Floats:
        await super().fetch(order)
        values: Floats = SHARED.pop("values")
        return values


class WritesClass(Right):
    seen: ClassVar[list[Floats]] = []

    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        self.seen.append(self.features[0])


class SetsClass(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        Right.hidden = self.features[0]  # type: ignore[attr-defined]


def remember(value: Any, seen: list[Any] = []) -> None:  # noqa: B006
    seen.append(value)


class WritesDefault(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        remember(self.features[0])


@functools.cache
def table_of_squares(size: int) -> Floats:
    return np.square(np.arange(size, dtype=np.float64))


class Caches(Right):
    """Sound: a cache of a pure function is no channel."""

    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        table_of_squares(len(error.values))


# --- arithmetic that costs no virtual time ---


class ScoresDirectly(Right):
    @remote
    async def part(self, ask: Ask) -> Part:
        await super().part(ask)
        return Part(score(self.scaled[self.batch], self.weights))


class WorksInHandler(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        kernel = self.scaled @ self.scaled.T
        for _ in range(3):
            kernel = np.tanh(kernel) @ np.ones_like(kernel[:, :50]) @ np.ones_like(kernel[:50])
        self.weights = self.weights + 0.0 * kernel[0, 0]


class WorksInBackground(Right):
    async def open(self) -> None:
        self.background(self.search())

    async def search(self) -> None:
        while True:
            await self.clock.sleep(0.002, key="search")
            self.found = sum(range(600_000))  # no calls, which the kit would look at one by one


# --- time and chance ---


class ReadsWallClock(Left):
    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        start = time.perf_counter()
        report = await super().train_round(order)
        return report if time.perf_counter() - start < 1e9 else Report(0.0, report.weights, {})


class DrawsFromGlobal(Right):
    async def load(self) -> None:
        await super().load()
        np.random.seed(0)
        self.weights = np.random.normal(size=self.scaled.shape[1])


class DrawsUnseeded(Right):
    async def load(self) -> None:
        await super().load()
        self.weights = np.random.default_rng().normal(size=self.scaled.shape[1])


class OrderOfSet(Right):
    async def load(self) -> None:
        await super().load()
        names = {f"column-{i}" for i in range(self.scaled.shape[1])}
        self.scaled = self.scaled * [1 + int(name.partition("-")[2]) for name in names]


# --- state, losses, declarations ---


class LosesMessage(Right):
    """Learns one round late, and forgets to say what it keeps for that."""

    async def load(self) -> None:
        await super().load()
        self.inbox: list[Floats] = []

    @remote
    async def learn(self, error: Error) -> None:
        self.inbox.append(error.values)
        if len(self.inbox) > 1:
            await self.descend(self.inbox.pop(0))


class LosesModel(RingClient):
    state: ClassVar[tuple[str, ...]] = ()


class SwallowsLoss(Left):
    @remote(caller=DRIVER)
    async def train_round(self, order: Order) -> Report:
        try:
            return await super().train_round(order)
        except PartyError:
            await asyncio.Event().wait()
            raise


async def run_on(
    settings: SoundConfig, data: VerticalData, runtime: Runtime, left: type[Left], right: type[Right]
) -> RunResult:
    """Says that it goes on after a loss."""
    runtime.on_loss("continue")
    return await run_split(settings, data, runtime, left, right)


class Hangs(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await asyncio.Event().wait()


@dataclass
class Undeclared:
    values: Floats


class SendsUndeclared(Right):
    @remote
    async def describe(self, ask: Ask) -> Summary:
        made = await super().describe(ask)
        return Undeclared(made.quantiles)  # type: ignore[return-value]


@message(reveals="what no review has seen")
class Unreviewed:
    values: Floats


class SendsUnreviewed(Right):
    @remote
    async def part(self, ask: Ask) -> Unreviewed:  # type: ignore[override]
        made = await super().part(ask)
        return Unreviewed(made.values)


class CallsNoEndpoint(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        await self.peer("left", Left).descend(error.values)


class TakesNoAnswer(Right):
    """Calls, does not wait, and never learns that it failed."""

    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        self.peer("left", FailingLeft).listen(Part(error.values))  # type: ignore[unused-coroutine]


class FailingLeft(Left):
    @remote
    async def listen(self, content: Part) -> None:
        raise ValueError("nobody hears this")


async def run_with_object(
    settings: SoundConfig, data: VerticalData, runtime: Runtime, left: type[Left], right: type[Right]
) -> RunResult:
    runtime.spawn(sound.Averager, "third", {"shared": object()})
    return await run_split(settings, data, runtime, left, right)


class CostsNothing(Right):
    """Says of its work that it is of a kind that nobody has a cost for."""

    async def score(self) -> Floats:
        return await self.compute(score, self.scaled[self.batch], self.weights, work=Work("gift", 1))
