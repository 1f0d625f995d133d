"""What the tests of whole runs share: a small block graph, a simulated run, everything that was sent in it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedactors.config import build
from fedactors.data.layouts.graph import GraphBlock, GraphData, GraphPart, graph
from fedactors.messages.codec import message_types, wire_type
from fedactors.protocols.glasu import messages
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.glasu.run import run
from fedactors.runs.metrics import RunResult
from fedactors.runtime import calls
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime

DATA = "blocks:120x9x3"
SMALL = {"hidden_size": "8", "num_rounds": "4", "evaluate_every": "2", "num_heads": "2"}


@dataclass
class Memory:
    """A recorder that keeps everything."""

    keeps_checkpoints = True

    rounds: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)

    def record_round(self, index, metrics):
        self.rounds.append({"round": index, **metrics})

    def record_span(self, actor, kind, label, start, end):
        self.spans.append((actor, kind, label, start, end))

    def ledger_sink(self, rows):
        self.rows.extend(rows)

    def privacy(self, records):
        self.records.extend(records)

    def save_checkpoint(self, label, actors, driver):
        self.snapshots.append(Snapshot(dict(actors), driver))

    def count(self, *types: str) -> int:
        return sum(row[4] in types for row in self.rows)


def settings(**words) -> GlasuConfig:
    return build(GlasuConfig, {**SMALL, **words})


def simulate(
    config: GlasuConfig, *, data: Any = None, name: str = DATA, seed: int = 0, resume: Snapshot | None = None, **options
) -> tuple[RunResult, Memory]:
    memory = Memory()
    source = data if data is not None else load_data(config, name, seed)
    runtime = SimulatedRuntime(seed=seed, recorder=memory, **options)
    result = runtime.execute(lambda: run(config, source, runtime), resume)
    return result, memory


@dataclass
class Eavesdropper:
    """Sees every value that travels between two actors, as the receiver sees it."""

    monkeypatch: Any
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self):
        freeze = calls._freeze_checked

        def listen(endpoints, speaker, value, copy):
            frozen, size = freeze(endpoints, speaker, value, copy)
            self.seen.append(frozen)
            return frozen, size

        self.monkeypatch.setattr(calls, "_freeze_checked", listen)

    def messages(self) -> list[Any]:
        kinds = tuple(message_types(messages))
        return [value for value in self.seen if isinstance(value, kinds)]

    def of(self, *kinds) -> list[Any]:
        return [value for value in self.seen if isinstance(value, kinds)]

    def arrays(self) -> list[np.ndarray]:
        found: list[np.ndarray] = []

        def walk(value):
            if isinstance(value, np.ndarray):
                found.append(value)
            elif isinstance(value, (tuple, list)):
                for item in value:
                    walk(item)
            elif isinstance(value, dict):
                walk(list(value.values()))
            elif hasattr(type(value), "__message__"):
                walk([getattr(value, name) for name in value.__dataclass_fields__])

        walk(self.seen)
        return found


@wire_type
class AlteredPart:
    """A client's part whose block is changed before it is used."""

    part: GraphPart
    changes: dict[str, Any]

    @property
    def party(self) -> str:
        return self.part.party

    def load(self) -> GraphBlock:
        return dataclasses.replace(self.part.load(), **self.changes)


@dataclass(frozen=True)
class Altered:
    """A graph whose first client's block is changed."""

    source: GraphData
    changes: dict[str, Any]

    @property
    def parties(self) -> tuple[str, ...]:
        return self.source.parties

    def part(self, party: str) -> GraphPart | AlteredPart:
        part = self.source.part(party)
        return AlteredPart(part=part, changes=self.changes) if party == "client-0" else part

    def load(self, client: int) -> GraphBlock:
        return self.part(self.parties[client]).load()


def altered(**changes) -> Altered:
    return Altered(source=graph(DATA, 3), changes=changes)
