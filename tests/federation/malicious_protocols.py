"""A protocol of a few lines as a package that is installed in a folder, sound or with one fault that sites must find.

Each round the first party asks the others for the mean of their columns, and adds it to what it has.
"""

from __future__ import annotations

from pathlib import Path

_PLUGIN = """
from fedactors.plugins import Headline, LazyProtocol

PROTOCOL = LazyProtocol(
    name="{name}", summary="sums of columns", partition="vertical", default_data="breast-cancer",
    headline=Headline(name="total"), config_at="{name}.parts:SumConfig", run_at="{name}.parts:run",
    messages_at="{name}.messages", actors_at="{name}.parts:actors", load_data_at="{name}.parts:load_data",
    smoke={{"num_rounds": 2}},
)
"""
_MESSAGES = '''
from fedactors.messages.codec import message


@message(reveals="which round it is")
class Ask:
    """What is asked for."""

    round: int


@message(reveals="the mean of a party's columns")
class Mean:
    """What is told."""

    value: float


@message(reveals="nothing that is declared at any endpoint")
class Aside:
    """What no endpoint takes."""

    value: float
'''
_PARTS = '''
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from pydantic import Field

from fedactors.config import config
from fedactors.data.layouts.vertical import VerticalData, VerticalPart, vertical
from fedactors.data.alignment.rows import load_described_rows
from fedactors.runs.metrics import RunResult
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.actors.actor import Client
from fedactors.runtime.interface import Costs, Work
from {name}.messages import Aside, Ask, Mean


@config
class SumConfig:
    """Settings."""

    num_rounds: int = Field(default=2, ge=1)
    """Rounds."""


class NotPlain:
    pass


class Holder(Client):
    """Holds columns of its own."""

    state = ("total",)

    def __init__(self, part: VerticalPart, given: object = None) -> None:
        self._part = part
        self.total = 0.0

    async def load(self) -> None:
        self._x = np.asarray(self._part.load().features, np.float64)

    @remote(caller=CLIENT, unbounded="each answer is the same mean")
    async def mean(self, ask: Ask) -> Mean:
        """Return the mean of this party's columns, times the round."""
        found = await self.compute(np.mean, self._x, work=Work("mean", self._x.size))
        return {reply}

    @remote(caller=DRIVER, unbounded="it adds what all have")
    async def add(self, ask: Ask) -> Mean:
        """Add what all have."""
        for party in self._part.parties:
            if party != self.party:
                self.total += (await self.peer(f"{{party}}/holder", Holder).mean({asked})).value
        {before}
        return Mean(self.total)


async def run(config: SumConfig, data: VerticalData, runtime) -> RunResult:
    runtime.use_costs(Costs({{"mean": (1e-4, 1e-7)}}))
    holders = {{
        party: runtime.spawn(Holder, f"{{party}}/holder", data.part({part}){argument}) for party in data.parties
    }}
    await runtime.start()
    first = holders[data.parties[0]]
    for number in range(runtime.state.get("round", 0) + 1, config.num_rounds + 1):
        total = (await first.add(Ask(number))).value
        runtime.state.update(round=number, total=total)
        await runtime.record_round(number, {{"total": total}})
        await runtime.checkpoint()
    return RunResult(rounds=config.num_rounds, metrics={{"total": runtime.state["total"]}})


def actors(config: SumConfig) -> dict[str, type]:
    return {{"holders": Holder}}


def load_data(config: SumConfig, name, seed: int) -> VerticalData:
    if isinstance(name, VerticalData):
        return name
    if name.endswith(".toml"):
        return load_described_rows(Path(name), config, {{}})
    return vertical(name, ("north", "south"))
'''
SOUND = {
    "reply": "Mean(float(found) * ask.round)",
    "asked": "ask",
    "before": "pass",
    "part": "party",
    "argument": "",
}
FAULTS = {
    "undeclared": {"asked": "Aside(1.0)"},
    "mistyped": {"reply": "Mean(str(found))"},
    "not_plain": {"argument": ", NotPlain()"},
    "curious": {"part": "data.parties[0]"},
    "placed": {"reply": "Mean(float(found) + os.getpid())"},
    "busy": {"before": "threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()"},
    "parent": {"before": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"},
}
"""What is changed in the sound one; each by the name of its package."""


def install(folder: Path, name: str, fault: str = "") -> None:
    """Install the package `name` in a folder that is on the path, as pip would: with its entry point."""
    changed = {**SOUND, **FAULTS.get(fault, {})}
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(_PLUGIN.format(name=name))
    (package / "messages.py").write_text(_MESSAGES)
    (package / "parts.py").write_text(_PARTS.format(name=name, **changed))
    facts = folder / f"{name}-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text(f"[fedactors.protocols]\n{name} = {name}.plugin:PROTOCOL\n")
