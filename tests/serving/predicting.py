"""Predictions of a trained model in simulation, for tests of protocols."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.csv

from fedactors.data.new_rows import StoredState
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.serving.predictions import Application


def predicted(
    predict: Any, config: Any, data: Any, states: Mapping[str, bytes], folder: Path
) -> tuple[dict[str, list[Any]], SimulatedRuntime]:
    """Return the (first) file of predictions by column, and the runtime that they were made in."""
    stored = {name: StoredState(actor=name, frame=frame) for name, frame in states.items()}
    runtime = SimulatedRuntime(seed=0)
    asked = Application(stored=stored, to=str(folder / "p.csv"))
    outcomes = runtime.execute(lambda: predict(config, data, runtime, asked))
    return pyarrow.csv.read_csv(outcomes[0].to).to_pydict(), runtime
