"""A tiny protocol and a tiny runtime: real objects that implement the interfaces, for tests of launch and commands."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from fedactors.config import config
from fedactors.errors import BadInput, DataMissing, PartyFailed, Stopped
from fedactors.messages.ledger import Usage
from fedactors.plugins import Headline, Planning
from fedactors.runs.metrics import RunResult
from fedactors.runs.recorder import Recorder
from fedactors.runtime import snapshots
from fedactors.runtime.interface import Snapshot
from fedactors.scenario import Scenario


@config
class TinyConfig:
    """Settings of the tiny protocol."""

    num_rounds: int = Field(default=4, ge=1)
    """Rounds to run."""
    batch_size: int = Field(default=8, ge=1)
    """Samples a step."""
    epsilon: float = Field(default=float("inf"), allow_inf_nan=True)
    """Privacy budget."""
    names: str = "a, b"
    """A text with a comma, which a config folder must give back as it was."""
    trouble: str = "none"
    """What goes wrong, and when: party, bug, input, data, interrupt, terminate, with ``@round``."""


class TinyRuntime:
    """Runs the coroutine in this process; its clock ticks once a round."""

    def __init__(self, *, seed: int, recorder: Recorder | None) -> None:
        self.seed = seed
        self.recorder = recorder
        self.random = random.Random(seed)
        self.round = 0
        self.privacy_records: list[Any] = []
        self._exit_code: int | None = None

    def execute(self, main: Callable[[], Awaitable[RunResult]], resume: Snapshot | None = None) -> RunResult:
        if resume is not None:
            state = json.loads(snapshots.unseal_driver(resume.driver)["text"])
            self.round = state["round"]
            self.random.setstate((state["random"][0], tuple(state["random"][1]), state["random"][2]))
            assert resume.actors == {"bank": b"bank", "shop/worker-0": b"worker"}
        return asyncio.run(main())  # type: ignore[arg-type]

    def record_round(self, metrics: dict[str, float]) -> None:
        assert self.recorder is not None
        self.round += 1
        self.recorder.record_span("bank", "compute", "step", self.round - 1.0, self.round - 0.25)
        self.recorder.record_span("bank", "wait", "reply", self.round - 0.25, float(self.round))
        rows = [
            (self.round - 0.5, "bank", "shop/worker-0", "client-client", "Embedding", 1000),
            (self.round - 0.1, "shop/worker-0", "bank", "client-client", "Gradient", 500),
        ]
        self.recorder.ledger_sink(rows)
        self.recorder.record_round(self.round, metrics)

    def checkpoint(self) -> None:
        assert self.recorder is not None
        actors = {"bank": b"bank", "shop/worker-0": b"worker"}
        text = json.dumps({"round": self.round, "random": self.random.getstate()})
        driver = snapshots.seal_driver({"text": text}, actors)
        self.recorder.save_checkpoint(f"round-{self.round}", actors, driver)
        if self._exit_code is not None:
            raise Stopped("stopped on request", self._exit_code)

    def request_stop(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def usage(self) -> Usage:
        return Usage(
            bytes=1500 * self.round,
            header_bytes=128 * self.round,
            price=0.25 * self.round,
            messages=2 * self.round,
            seconds=float(self.round),
            wall_seconds=0.5,
            cpu_utilisation=0.75,
            idle_seconds=0.25 * self.round,
        )


async def run(settings: TinyConfig, data: Any, runtime: TinyRuntime) -> RunResult:
    kind, _, when = settings.trouble.partition("@")
    score = 0.0
    while runtime.round < settings.num_rounds:
        if kind != "none" and runtime.round + 1 == int(when or 1):
            make_trouble(kind)
        score = 1.0 - 1.0 / (runtime.round + 2) + 0.01 * runtime.random.random()
        runtime.record_round({"score": score, "loss": 1.0 - score})
        runtime.checkpoint()
    return RunResult(rounds=runtime.round, metrics={"score": score}, extra={"data": data})


TRACE = """Traceback (most recent call last):
  File "shop.py", line 7, in load
    table[name]
ValueError: could not read '4711 hush street'
"""


def make_trouble(kind: str) -> None:
    if kind == "party":
        raise PartyFailed("shop/worker-0", "ValueError: no such column", TRACE)
    if kind == "bug":
        raise RuntimeError("a bug")
    if kind == "input":
        raise BadInput("num_cpus: 64 is not allowed: the cluster has 2")
    if kind == "data":
        raise DataMissing("bank: fedactors data fetch bank")
    os.kill(os.getpid(), {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}[kind])


def load_data(settings: TinyConfig, name: str, seed: int) -> str:
    return f"{name}/{seed}"


async def predict(settings: TinyConfig, data: Any, runtime: TinyRuntime, asked: Any) -> list[Any]:
    from fedactors.data.new_rows import Predicted
    from fedactors.serving.predictions import Outcome

    Path(asked.to).write_text(f"{data} {sorted(asked.stored)}")
    return [Outcome(party="bank", to=asked.to, counts=Predicted(3, 2, 1, (("not at shop", 1),)))]


def export(settings: TinyConfig, party: str, states: Mapping[str, bytes]) -> Any:
    """The weight of a model of one number: how many states the party has."""
    import numpy as np

    from fedactors.learning.models import ModelSpec
    from fedactors.serving.parts import Part, TrainedModel

    local = [name for name in states if name.partition("/")[0] == party]
    model = TrainedModel(ModelSpec(name="linear", inputs=(1,), outputs=1, bias=False), np.array([float(len(local))]))
    return Part(
        protocol="tiny-one",
        party=party,
        task="regression",
        num_classes=1,
        class_names=(),
        parties=(party,),
        models={"bottom": model},
    )


def plan(settings: TinyConfig, profiles: list[dict[str, Any]], planning: Planning) -> dict[str, Any]:
    return {"batch_size": settings.batch_size, "num_profiles": len(profiles), "speeds": [p["speed"] for p in profiles]}


PROTOCOL = Scenario(
    name="tiny-one",
    summary="a protocol for tests",
    partition="vertical",
    default_data="breast-cancer",
    headline=Headline(name="score"),
    Config=TinyConfig,
    run=run,
    load_data=load_data,
    predict=predict,
    export=export,
    plan=plan,
    party_loss=frozenset({"stop", "restart"}),
    smoke={"num_rounds": 2},
    paper={"num_rounds": 6},
)


def make_runtime(options: Any, seed: int, recorder: Recorder | None) -> TinyRuntime:
    return TinyRuntime(seed=seed, recorder=recorder)


def install_plugin(folder: Path, **points: str) -> None:
    """Write a distribution into `folder` whose entry points are `points`, name to value."""
    info = folder / "tiny_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[fedactors.protocols]\n{lines}")
