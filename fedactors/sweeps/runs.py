"""One run of a protocol without a folder, and the row that it becomes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedactors.config import as_dict, build
from fedactors.launch import load_data
from fedactors.plugins import Protocol, RunResult
from fedactors.records.metrics import Summary
from fedactors.records.recorder import MemoryRecorder
from fedactors.records.table import RunRow
from fedactors.runtime.base import Runtime
from fedactors.runtime.simulated import SimulatedRuntime
from fedactors.runtime.simulation.pool import one_torch_thread


class CurveRecorder(MemoryRecorder):
    """Keeps each round's metrics with what had been used by then, as columns; everything else is left out."""

    def __init__(self) -> None:
        super().__init__(keeps_checkpoints=False)  # a run that was interrupted begins anew
        self.runtime: Runtime | None = None

    @property
    def curve(self) -> dict[str, list[Any]]:
        """Return the columns; a metric that a round lacks is None there."""
        names = dict.fromkeys(name for line in self.rounds for name in line)
        return {name: [line.get(name) for line in self.rounds] for name in names}

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Keep the round."""
        spent: dict[str, Any] = {}
        if self.runtime is not None:
            used = self.runtime.usage()
            spent = {"seconds": used.seconds, "bytes": used.bytes, "money": used.price}
        super().record_round(index, {**spent, **metrics})

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Leave the timeline out."""

    def ledger_sink(self, rows: list[Any]) -> None:
        """Leave the ledger's rows out: their sums are in the usage."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that has just ended, with all that its row may need."""

    protocol: Protocol
    config: Any
    data_name: str
    data: Any
    runtime: Runtime
    recorder: Any
    result: RunResult
    seed: int

    def row(self, metrics: Mapping[str, Any] | None = None, **more: Any) -> RunRow:
        """Return the row of the run; `metrics` instead of its own, `more` for other fields."""
        summary = Summary.of(
            self.result,
            self.runtime.usage(),
            run="",
            protocol=self.protocol.name,
            runtime="simulated" if isinstance(self.runtime, SimulatedRuntime) else "ray",
            seed=self.seed,
            metrics=metrics,
        )
        given: dict[str, Any] = {"data": self.data_name, "config": as_dict(self.config)}
        if isinstance(self.recorder, CurveRecorder):
            given["curve"] = self.recorder.curve
        return RunRow.of(summary, **{**given, **more})


def run_once(
    protocol: Protocol,
    settings: Mapping[str, Any],
    data: str,
    seed: int,
    *,
    make: Callable[..., Runtime] = SimulatedRuntime,
    recorder: MemoryRecorder | None = None,
    **keywords: Any,
) -> Done:
    """Run a protocol once, computing on one core, so that results do not depend on how many runs there are at a time.

    Args:
        protocol: what to run.
        settings: of its config, beside the defaults.
        data: name of a data set.
        seed: of the run.
        make: makes the runtime.
        recorder: what hears of the rounds; by default the curve is kept.
        keywords: what `make` takes beside seed and recorder; a function is called with the config.
    """
    gc.collect()  # actors of the run before are cycles; few objects with much in them, which Python looks for too late
    one_torch_thread()
    config = build(protocol.Config, settings)
    source = load_data(protocol, config, data, seed)
    recorder = recorder or CurveRecorder()
    given = {name: value(config) if callable(value) else value for name, value in keywords.items()}
    runtime = make(seed=seed, recorder=recorder, **given)
    if hasattr(recorder, "runtime"):
        recorder.runtime = runtime
    return Done(
        protocol=protocol,
        config=config,
        data_name=data,
        data=source,
        runtime=runtime,
        recorder=recorder,
        result=runtime.execute(lambda: protocol.run(config, source, runtime)),
        seed=seed,
    )
