"""What GLASU's tables share: settings chosen on validation nodes, runs over the US-UK link, summaries written as JSON.

Every row is run once per seed in the simulated runtime (arithmetic real, time virtual) and written to
``docs/results/data/glasu/<table>-<data>/<row>.json``, or below the folder that --out names; rows that are there
already are left alone unless ``--again`` is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedactors.config import build
from fedactors.launch import combine
from fedactors.records.metrics import Summary
from fedactors.records.study import Study, study_flags, write_summary
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.glasu.config import GlasuConfig
from protocols.glasu.data import load_data
from protocols.glasu.run import run, us_uk

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results" / "data" / "glasu"

COMMON = {"hidden_size": 64, "dropout": 0.5, "evaluate_every": 5, "num_rounds": 150, "patience": 8}
FULL = {"hidden_size": 192, "num_rounds": 400, "patience": 20}
"""The published width, and as many rounds as anything here needs; ``--full``."""
SMOKE = {"hidden_size": 8, "num_rounds": 2, "evaluate_every": 1}

LEARNING_RATES = {
    "cora": {1: 0.01, 2: 0.004, 4: 0.001, 8: 0.0005, 16: 0.00025},
    "pubmed": {1: 0.01, 2: 0.004, 4: 0.004, 8: 0.002, 16: 0.001},
}
"""Adam's step for each number of local updates: for Q = 4 the best by validation accuracy (`choose`), for Q = 1 the
best in an earlier grid on Cora; the others follow their course."""

WEIGHT_DECAY = {"cora": 3e-3, "pubmed": 1e-3}


@dataclass(frozen=True)
class Row:
    """One row of a table: its name and what it sets beside the common settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class GlasuStudy(Study):
    """What the command line asks for, the graph included."""

    data: str

    def layered(self, *layers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the common settings, then `layers`, then what --full, --smoke and the words set."""
        made: dict[str, Any] = {**COMMON, "weight_decay": WEIGHT_DECAY.get(self.data, 3e-3)}
        for layer in (*layers, FULL if self.full else {}, SMOKE if self.smoke else {}, self.settings):
            made |= layer
        if "num_local_updates" in made:
            rates = LEARNING_RATES.get(self.data, LEARNING_RATES["cora"])
            made.setdefault("learning_rate", rates[made["num_local_updates"]])
        return made

    def folder(self, table: str) -> Path:
        """Return where the summaries of a table lie."""
        return self.out / f"{table}-{self.data.partition(':')[0]}"


def asked(description: str | None, argv: Sequence[str] | None = None) -> GlasuStudy:
    """Read the command line of a script of this folder."""
    torch.set_num_threads(1)
    flags = study_flags(description, RESULTS, seeds=range(5))
    flags.add_argument("--data", help="graph (default: cora, in smoke mode a small generated one)")
    given = flags.parse_args(argv, namespace=GlasuStudy())
    given.data = given.data or ("blocks:120x9x3" if given.smoke else "cora")
    given.seeds = given.seeds[:1] if given.smoke else given.seeds
    return given


def glasu(num_local_updates: int, **more: Any) -> dict[str, Any]:
    """Return the settings of GLASU with Q local updates; its learning rate is the graph's."""
    return {"num_local_updates": num_local_updates, **more}


def measure(
    study: GlasuStudy, table: str, rows: Sequence[Row], *, target: Mapping[str, float] | None = None, **common: Any
) -> None:
    """Run the rows of a table that are asked for and write one summary file for each.

    Args:
        study: what the command line asks for.
        table: folder of the summaries, followed by the data set's name.
        rows: what to run.
        target: test accuracy by data set; what it took to reach it is measured too.
        common: settings of this table beside the common ones.
    """
    for row in rows:
        path = study.folder(table) / f"{row.name}.json"
        if not (study.wants(row.name) and study.lacks(path)):
            continue
        config = build(GlasuConfig, study.layered(common, row.settings))
        goal = (target or {}).get(study.data)
        made = combine([once(row.name, config, study.data, seed, goal) for seed in study.seeds])
        write_summary(path, made)
        shown = {name: round(value, 4) for name, value in made["mean"]["metrics"].items()}
        print(row.name, json.dumps(shown), f"{made['mean']['wall_seconds']:.1f} s a run", flush=True)


def once(name: str, config: GlasuConfig, data: str, seed: int, target: float | None) -> Summary:
    """Run one row with one seed."""
    runtime = SimulatedRuntime(seed=seed, network=us_uk(), checkpoint_every=0)
    source = load_data(config, data, seed)
    result = runtime.execute(lambda: run(config, source, runtime))
    usage, training = runtime.usage(), result.extra["training"]
    updates = result.rounds * config.num_local_updates
    metrics = {
        **result.metrics,
        "updates": updates,
        "tensors_per_update": tensors(runtime, config, len(result.extra["curve"])) / updates,
        "training_seconds": training["seconds"],
        "training_messages": training["messages"],
        "training_megabytes": training["bytes"] / 1e6,
        "seconds_per_round": training["seconds"] / result.rounds,
        "messages_per_update": training["messages"] / updates,
        "megabytes_per_update": training["bytes"] / 1e6 / updates,
    }
    if target is not None:
        metrics |= until(target, result.extra["curve"])
    extra = {"settings": {key: str(value) for key, value in sorted(vars(config).items())}}
    facts = {"run": f"{name}-{seed}", "protocol": "glasu", "runtime": "simulated"}
    return Summary.of(result, usage, seed=seed, metrics=metrics, extra=extra, **facts)


def tensors(runtime: SimulatedRuntime, config: GlasuConfig, num_evaluations: int) -> float:
    """Return the ledger's count of representations, aggregates and gradients that training sent."""
    kinds = ("Representation", "Aggregated", "GradientPart", "GradientShare")
    total = sum(entry.messages for entry in runtime.ledger.totals() if entry.type in kinds)
    one_inference = total and 2 * config.num_networks * len(config.resolved_layers)
    return float(total - num_evaluations * one_inference)


def until(target: float, curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what training had cost when test accuracy first reached `target`; its whole cost if it never did."""
    hit = next((point for point in curve if point["test"] >= target), None)
    point = hit or curve[-1]
    return {
        "reached": float(hit is not None),
        "seconds_to_target": point["seconds"],
        "megabytes_to_target": point["bytes"] / 1e6,
        "messages_to_target": point["messages"],
        "rounds_to_target": point["round"],
    }
