"""What GLASU's tables share: settings chosen on validation nodes, and runs over the US-UK link.

Every row is run once per seed in the simulated runtime (arithmetic real, time virtual), into ``glasu.parquet`` of
docs/results or of the folder that --out names; its study is ``<table>-<data>``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedactors.network.links import Link, Network
from fedactors.runs.table import RunRow
from fedactors.sweeps import Done, run_once

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.glasu.plugin import PROTOCOL
from scenarios.paper.pairs import difference_row
from scenarios.paper.study import Study, study_flags

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"

COMMON = {"hidden_size": 64, "dropout": 0.5, "evaluate_every": 5, "num_rounds": 150, "patience": 8}
FULL = {"hidden_size": 192, "num_rounds": 400, "patience": 20}
"""The published width, and as many rounds as anything here needs; ``--paper``."""
SMOKE = {"hidden_size": 8, "num_rounds": 2, "evaluate_every": 1}

LEARNING_RATES = {
    "cora": {1: 0.01, 2: 0.004, 4: 0.001, 8: 0.0005, 16: 0.00025},
    "pubmed": {1: 0.01, 2: 0.004, 4: 0.004, 8: 0.002, 16: 0.001},
}
"""Adam's step for each number of local updates where a table sets none. On Cora those of Q = 1 and 4 were the best by
validation accuracy in earlier grids (K = 2), smaller than that of `choose`; of the others it is not on record how they
were come by."""

US_UK = Network(by_kind={"client-server": Link(latency=0.0375, bandwidth=1.25e7)})
"""Server in London, clients in the east of the United States: 75 ms there and back, 100 Mbit/s a transfer. Assumed."""
WEIGHT_DECAY = {"cora": 3e-3, "pubmed": 1e-3}
Rows = Mapping[str, Mapping[str, Any]]
"""Name to what a row sets beside the common settings."""


class GlasuStudy(Study):
    """What the command line asks for, the graph included."""

    data: str

    def layered(self, *layers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the common settings, then `layers`, then what --paper, --smoke and the words set."""
        made: dict[str, Any] = {**COMMON, "weight_decay": WEIGHT_DECAY.get(self.data, 3e-3)}
        for layer in (*layers, FULL if self.paper else {}, SMOKE if self.smoke else {}, self.settings):
            made |= layer
        if "num_local_updates" in made:
            rates = LEARNING_RATES.get(self.data, LEARNING_RATES["cora"])
            made.setdefault("learning_rate", rates[made["num_local_updates"]])
        return made

    def study(self, table: str) -> str:
        """Return the study of a table on the graph."""
        return f"{table}-{self.data.partition(':')[0]}"


def study_of(description: str | None, argv: Sequence[str] | None = None) -> GlasuStudy:
    """Read the command line of a script of this folder."""
    flags = study_flags(description, "glasu", RESULTS, seeds=range(5))
    flags.add_argument("--data", help="graph (default: cora, in smoke mode a small generated one)")
    given = flags.parse_args(argv, namespace=GlasuStudy())
    given.data = given.data or ("blocks:120x9x3" if given.smoke else "cora")
    return given


def glasu(num_local_updates: int, **more: Any) -> dict[str, Any]:
    """Return the settings of GLASU with Q local updates; its learning rate is the graph's."""
    return {"num_local_updates": num_local_updates, **more}


def measure(
    study: GlasuStudy, table: str, rows: Rows, *, target: Mapping[str, float] | None = None, **common: Any
) -> None:
    """Run the rows of a table that are asked for; seeds that are there with the same settings are left alone.

    Args:
        study: what the command line asks for.
        table: first part of the study's name.
        rows: what to run.
        target: test accuracy by data set; what it took to reach it is measured too.
        common: settings of this table beside the common ones.
    """
    points = {name: study.layered(common, settings) for name, settings in rows.items()}
    run = functools.partial(once, study.data, (target or {}).get(study.data))
    study.measure(study.study(table), points, run, all_seeds=True, as_set=True)


def once(data: str, target: float | None, settings: Mapping[str, Any], seed: int) -> RunRow:
    """Run one row with one seed."""
    done = run_once(PROTOCOL, settings, data, seed, network=US_UK, checkpoint_every=0)
    result, training = done.result, done.result.extra["training"]
    updates = result.rounds * done.config.num_local_updates
    metrics = {
        **result.metrics,
        "updates": updates,
        "tensors_per_update": tensors(done) / updates,
        "training_seconds": training["seconds"],
        "training_messages": training["messages"],
        "training_megabytes": training["bytes"] / 1e6,
        "seconds_per_round": training["seconds"] / result.rounds,
        "messages_per_update": training["messages"] / updates,
        "megabytes_per_update": training["bytes"] / 1e6 / updates,
    }
    if target is not None:
        metrics |= until(target, result.extra["curve"])
    return done.row(metrics, extra={})


def tensors(done: Done) -> float:
    """Return the ledger's count of representations, aggregates and gradients that training sent."""
    kinds = ("Representation", "Aggregated", "GradientPart", "GradientShare")
    total = sum(entry.messages for entry in done.runtime.ledger.totals() if entry.type in kinds)
    one_inference = total and 2 * done.config.num_networks * len(done.config.resolved_layers)
    return float(total - len(done.result.extra["curve"]) * one_inference)


def until(target: float, curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what training had cost when test accuracy first reached `target`; infinite, censored, if it never did."""
    nowhere = dict.fromkeys(("seconds", "bytes", "messages", "round"), math.inf)
    point = next((point for point in curve if point["test"] >= target), nowhere)
    return {
        "reached": float(point is not nowhere),
        "seconds_to_target": point["seconds"],
        "megabytes_to_target": point["bytes"] / 1e6,
        "messages_to_target": point["messages"],
        "rounds_to_target": point["round"],
    }


def best_rates(study: GlasuStudy, table: str = "choose") -> dict[str, float]:
    """Return for each name ``CASE-rate=RATE`` of a table the case's rate with the best mean validation accuracy."""
    scores: dict[str, dict[float, list[float]]] = {}
    for row in study.rows(study.study(table)):
        case, _, rate = row.name.partition("-rate=")
        scores.setdefault(case, {}).setdefault(float(rate), []).append(row.metrics["validation/accuracy"])
    means = {case: {rate: statistics.fmean(found[rate]) for rate in found} for case, found in scores.items()}
    return {case: max(found, key=found.__getitem__) for case, found in means.items()}


def best_row(study: GlasuStudy, case: str, table: str = "choose") -> str:
    """Return the name of a case's row at its best step; empty if there is none."""
    rate = best_rates(study, table).get(case)
    return "" if rate is None else f"{case}-rate={rate}"


def by_step(study: GlasuStudy, table: str, case: str) -> dict[int, dict[float, RunRow]]:
    """Return a case's rows in a grid by their seed and step."""
    found: dict[int, dict[float, RunRow]] = {}
    for row in study.rows(study.study(table)):
        name, _, rate = row.name.partition("-rate=")
        if name == case:
            found.setdefault(row.seed, {})[float(rate)] = row
    return found


def steps_of(study: GlasuStudy, table: str, case: str) -> set[float]:
    """Return the steps at which a case was run with every one of its seeds."""
    grids = [set(found) for found in by_step(study, table, case).values()]
    return set.intersection(*grids) if grids else set()


def mean_over(steps: Collection[float], rows: Mapping[int, Mapping[float, RunRow]]) -> list[RunRow]:
    """Return a row for each seed with the mean test accuracy over some steps."""
    means = {
        seed: statistics.fmean(found[step].metrics["test/accuracy"] for step in steps) for seed, found in rows.items()
    }
    return [
        dataclasses.replace(rows[seed][min(steps)], metrics={"test/accuracy": mean}) for seed, mean in means.items()
    ]


def put_mean_differences(
    study: GlasuStudy, made: str, table: str, pairs: Sequence[tuple[str, str]], against: str = "choose"
) -> None:
    """Put the paired differences of test accuracy, mean over the steps at which both cases were run; see below."""
    for ours, theirs in pairs:
        steps = steps_of(study, table, ours) & steps_of(study, against, theirs)
        sides = [mean_over(steps, by_step(study, *of)) for of in ((table, ours), (against, theirs))] if steps else []
        row = difference_row(sides[0], sides[1], "test/accuracy") if sides else None
        if row is not None:
            study.put(study.study(made), f"{ours} - {theirs}, mean over steps", [row])


def put_differences(
    study: GlasuStudy, made: str, table: str, pairs: Sequence[tuple[str, str]], against: str = "choose"
) -> None:
    """Put the paired differences of test accuracy between cases of two grids, each at its best step, into a table.

    Args:
        study: what the command line asks for.
        made: table that they are put into.
        table: grid of the first case of each pair.
        pairs: cases.
        against: grid of the second.
    """
    for ours, theirs in pairs:
        names = best_row(study, ours, table), best_row(study, theirs, against)
        sides = study.rows(study.study(table), names[0]), study.rows(study.study(against), names[1])
        row = difference_row(*sides, "test/accuracy")
        if row is not None:
            study.put(study.study(made), " - ".join(names), [row])
