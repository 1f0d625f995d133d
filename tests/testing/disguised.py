"""Broken copies of the sound protocols that send raw data in another form, or past the ledger by the driver."""

from __future__ import annotations

import base64
import logging
import zlib
from typing import Any

import numpy as np

from fedactors.actors.remote import DRIVER, PEERS, remote
from fedactors.data.layouts.vertical import VerticalData, vertical
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from tests.testing.broken import Telling
from tests.testing.sound import (
    COSTS,
    Ask,
    Error,
    Floats,
    Left,
    Order,
    Part,
    Right,
    SoundConfig,
    Summary,
    run_split,
)


class StandardisedMatrix(Telling):
    """Each column has a scale of its own, and the columns take turns."""

    def content(self, ask: Ask) -> dict[str, Any]:
        return {"quantiles": self.scaled[:40].ravel()}


class Compressed(Telling):
    def content(self, ask: Ask) -> dict[str, Any]:
        return {"comment": base64.b64encode(zlib.compress(self.column().tobytes())).decode()}


class Logs(Right):
    @remote
    async def learn(self, error: Error) -> None:
        await super().learn(error)
        logging.getLogger(__name__).info("batch of %s", self.features[self.batch[:20], 0].tolist())


class LoadsOthers(Right):
    async def load(self) -> None:
        await super().load()
        self.theirs = vertical("breast-cancer", ("left", "right")).load("left").labels


class Hearing(Right):
    @remote
    async def hear(self, summary: Summary) -> None:
        self.heard = summary


class TellsLabels(Left):
    """Tells the other party its labels."""

    async def fetch(self, order: Order) -> Floats:
        nothing = {"norm": 0.0, "quantiles": np.zeros(1), "largest": (), "comment": "", "by_name": {}, "packed": b""}
        assert self.labels is not None
        await self.peer("right", Hearing).hear(Summary(**nothing | self.labels_content(self.labels)))
        return await super().fetch(order)

    def labels_content(self, labels: Any) -> dict[str, Any]:
        raise AssertionError(labels)


class LabelsAsBytes(TellsLabels):
    def labels_content(self, labels: Any) -> dict[str, Any]:
        return {"packed": labels.astype(np.uint8).tobytes()}


class Given(Left):
    """Gets the other's part from the driver."""

    @remote(caller=DRIVER)
    async def take(self, part: Part) -> None:
        self.given = part.values

    async def fetch(self, order: Order) -> Floats:
        return self.given


class Giving(Right):
    @remote(caller=(DRIVER, PEERS))
    async def part(self, ask: Ask) -> Part:
        return await super().part(ask)


async def run_by_driver(
    settings: SoundConfig, data: VerticalData, runtime: Runtime, left: type[Given], right: type[Giving]
) -> RunResult:
    """Let the driver carry the parts, which costs nothing."""
    runtime.use_costs(COSTS)
    first = runtime.spawn(left, "left", data.part("left"), settings)
    second = runtime.spawn(right, "right", data.part("right"), settings)
    await runtime.start()
    for index in range(runtime.state.get("round", 0) + 1, settings.num_rounds + 1):
        await first.take(await second.part(Ask(index)))
        report = await first.train_round(Order(index))
        runtime.state.update(round=index, loss=report.loss)
        await runtime.record_round(index, report.details)
        await runtime.checkpoint()
    return RunResult(rounds=settings.num_rounds, metrics={"loss": runtime.state["loss"]})


async def run_that_looks(
    settings: SoundConfig, data: VerticalData, runtime: Runtime, left: type[Left], right: type[Right]
) -> RunResult:
    """Look at a party's labels in the driver."""
    labels = data.load("left").labels
    assert labels is not None
    result = await run_split(settings, data, runtime, left, right)
    return RunResult(rounds=result.rounds, metrics={**result.metrics, "positive": float(labels.mean())})


# --- sound ---


class Random(Telling):
    """Sound: random bytes, random texts, and an order."""

    def content(self, ask: Ask) -> dict[str, Any]:
        rng = self.rng(f"masks {ask.round}")
        text = rng.bytes(64).hex() + " " + base64.b64encode(rng.bytes(999)).decode()
        order = rng.permutation(len(self.features)).astype(np.float64)
        return {"packed": rng.bytes(4096), "comment": text, "quantiles": order}


class Projects(Telling):
    """Sound: a projection of standardised rows, flattened; logs how many."""

    def content(self, ask: Ask) -> dict[str, Any]:
        width = self.scaled.shape[1]
        rows = self.scaled[ask.round : ask.round + 64] @ self.rng("projection").normal(size=(width, width))
        logging.getLogger(__name__).info("%d rows, of length %.6f", len(rows), np.linalg.norm(rows))
        return {"quantiles": np.tanh(rows).ravel()}
