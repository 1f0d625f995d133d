"""Runs side by side: grouped over seeds, with mean, standard deviation, and differences with 95 % confidence intervals.

Runs are run folders, or the finished rows of the tables of sweeps. Runs that differ in nothing but their seed form a
group. The first group is the baseline of the differences, which are taken seed by seed over the seeds that both have
(paired t interval): two runs with the same seed share data split and initial weights, so that their difference scatters
less than they do. With fewer than `FEWEST` common seeds nothing is claimed. Curves are means over seeds with a band of
one deviation, against a chosen axis.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import Summary, is_number, read_events, read_rounds, read_summary, shown_metric
from fedactors.runs.storage import is_remote
from fedactors.runs.table import RunRow, is_table, read_facts, read_table

FEWEST = 3
"""Seeds that two groups must have in common before it is said that they differ: two pairs have one degree of freedom,
so that their interval is wider than any difference."""
NO_INTERVAL = (
    f"No difference is stated where two have fewer than {FEWEST} seeds in common, too few to say that they differ; "
    "run both with the same seeds, such as --seeds 0,1,2."
)
AXES = {"round": "round", "seconds": "seconds", "bytes": "bytes", "cost_usd": "cost_usd"}
USAGE = ("bytes", "messages", "cost_usd", "seconds", "wall_seconds", "cpu_utilisation", "idle_seconds")


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A finished run, read from its folder or from a row of a table."""

    summary: Summary
    config: Mapping[str, Any]
    folder: RunFolder | None = None
    row: RunRow | None = None

    @property
    def name(self) -> str:
        """Name for people."""
        return self.summary.run if self.folder is None else self.folder.path.name

    def rounds(self) -> list[dict[str, Any]]:
        """Return the metrics of every round, in the order they were recorded; each has the key ``round``."""
        if self.folder is not None:
            return read_rounds(self.folder)
        columns = {name: values for name, values in self._curve.items() if name not in AXES or name == "round"}
        return _lines(columns)

    def marks(self) -> dict[int, dict[str, Any]]:
        """Return what had been used by each round: seconds, bytes, cost_usd."""
        if self.folder is not None:
            lines = [line for line in read_events(self.folder) if line["type"] == "round"]
        else:
            lines = _lines({name: values for name, values in self._curve.items() if name in AXES})
        return {line["round"]: line for line in lines if "round" in line}

    @property
    def _curve(self) -> Mapping[str, Sequence[Any]]:
        return {} if self.row is None else self.row.curve

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that makes two runs comparable: all of config.json but the seed."""
        settings = {f"config.{key}": value for key, value in self.config.get("config", {}).items()}
        names = ("scenario", "protocol", "runtime", "data")
        return {name: self.config.get(name) for name in names} | settings

    @property
    def headline(self) -> tuple[str, str]:
        """Name and mode of the main metric."""
        headline = self.config.get("headline") or {}
        name = headline.get("name") or next(iter(self.summary.metrics), "")
        return str(name), str(headline.get("mode", "max"))


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ only in their seed, sorted by it."""

    label: str
    runs: tuple[LoadedRun, ...]

    def values(self, name: str) -> dict[int, float]:
        """Return a metric or a usage figure by seed, where it is a number."""
        found = {}
        for run in self.runs:
            value = run.summary.metrics.get(name, getattr(run.summary, name, None) if name in USAGE else None)
            if is_number(value):
                found[run.summary.seed] = float(value)
        return found


def load_runs(paths: Sequence[str | Path]) -> list[LoadedRun]:
    """Read finished runs: run folders, and all finished rows of tables.

    Raises:
        BadInput: a folder or table that is foreign or damaged, a run that is unfinished, or anything given twice.
    """
    seen = [str(path) if is_remote(path) else _followed(path) for path in paths]
    for path in seen:
        if seen.count(path) > 1:
            raise BadInput(f"{path}: given twice")
    found: list[LoadedRun] = []
    for given in paths:
        if is_table(given):
            found += _runs_of_table(given)
        else:
            folder = RunFolder.open(given)
            folder.verify()
            found.append(LoadedRun(folder=folder, summary=read_summary(folder), config=folder.config))
    return found


def _followed(path: str | Path) -> str:
    """Return where a path leads; what leads nowhere stays as it is, and is refused when it is opened."""
    try:
        return str(Path(path).resolve())
    except (OSError, RuntimeError, ValueError):
        return str(path)


def _runs_of_table(path: str | Path) -> list[LoadedRun]:
    headline = read_facts(path).get("headline")
    runs = []
    for row in read_table(path):
        scenario = "/".join(part for part in (row.study, row.name) if part) or None
        config = {"scenario": scenario, "headline": headline, "config": row.config}
        config |= {"protocol": row.protocol, "runtime": row.runtime, "data": row.data, "seed": row.seed}
        if row.status == "finished":
            runs.append(LoadedRun(summary=row.summary, config=config, row=row))
    if not runs:
        raise BadInput(f"{path}: holds no finished run")
    return runs


def _lines(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def group_runs(runs: Sequence[LoadedRun]) -> list[Group]:
    """Group runs that differ only in their seed; a repeated seed counts as a run of its own group."""
    grouped: dict[str, list[LoadedRun]] = {}
    for run in runs:
        key = json.dumps(run.identity, sort_keys=True)
        copies = 0
        while any(other.summary.seed == run.summary.seed for other in grouped.get(f"{copies} {key}", [])):
            copies += 1
        grouped.setdefault(f"{copies} {key}", []).append(run)
    members = list(grouped.values())
    labels = _labels([group[0] for group in members])
    return [
        Group(label=label, runs=tuple(sorted(group, key=lambda run: run.summary.seed)))
        for label, group in zip(labels, members, strict=True)
    ]


def _labels(representatives: Sequence[LoadedRun]) -> list[str]:
    identities = [run.identity for run in representatives]
    labels = []
    for run, identity in zip(representatives, identities, strict=True):
        name = str(identity["scenario"] or run.summary.protocol)
        peers = [other for other in identities if other["scenario"] == identity["scenario"]]
        differing = [
            f"{key.removeprefix('config.')}={value}"
            for key, value in identity.items()
            if key != "scenario" and any(other.get(key) != value for other in peers)
        ]
        labels.append(" ".join([name, *differing]))
    numbered = []
    for index, label in enumerate(labels):
        repeats = labels[:index].count(label)
        numbered.append(label if repeats == 0 else f"{label} ({repeats + 1})")
    return numbered


# --- the comparison ---------------------------------------------------------------------------------------------------


def compare(runs: Sequence[LoadedRun]) -> dict[str, Any]:
    """Return groups with mean, std and interval of every metric, their differences from the first, and notes on these.

    All of it can be written as JSON.
    """
    groups = group_runs(runs)
    named = dict.fromkeys(name for run in runs for name in run.summary.metrics)
    # what runs are judged by comes first
    main = (shown_metric(run.headline[0], run.summary.metrics) for run in runs)
    names = list({**dict.fromkeys(name for name in main if name is not None), **named})
    names = [name for name in [*names, *USAGE] if any(group.values(name) for group in groups)]
    described = [
        {
            "label": group.label,
            "protocol": group.runs[0].summary.protocol,
            "runs": [run.summary.run for run in group.runs],
            "seeds": [run.summary.seed for run in group.runs],
            "metrics": {
                name: describe_values(list(values.values())) for name in names if (values := group.values(name))
            },
        }
        for group in groups
    ]
    baseline = groups[0]
    differences: list[dict[str, Any]] = []
    for group in groups[1:]:
        found = {}
        for name in names:
            ours, theirs = group.values(name), baseline.values(name)
            if ours and theirs:
                found[name] = difference(ours, theirs)
        differences.append({"label": group.label, "baseline": baseline.label, "metrics": found})
    gaps = [gap for entry in differences for gap in entry["metrics"].values()]
    unclaimed = any(gap["difference"] is None for gap in gaps)
    notes = [NO_INTERVAL] if unclaimed else []
    if len(protocols := list(dict.fromkeys(group["protocol"] for group in described))) > 1:
        notes.append(
            f"{' and '.join(map(str, protocols))}: each chooses the rows that it is measured on, so that their metrics "
            "may be of different rows"
        )
    return {"schema_version": 1, "groups": described, "differences": differences, "notes": notes}


def describe_values(values: Sequence[float]) -> dict[str, Any]:
    """Return n, mean, standard deviation (n - 1) and the 95 % t interval; the interval is None for one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"n": len(values), "mean": mean, "std": None, "ci95": None}
    return {"n": len(values), "mean": mean, "std": statistics.stdev(values), "ci95": t_interval(values)}


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, Any]:
    """Return the mean difference (ours - theirs) over the seeds that both have, with its 95 % interval.

    Args:
        ours: values by seed.
        theirs: values of the baseline by seed.

    Returns:
        n (pairs), difference and ci95 (t); the last two are None for fewer than `FEWEST` pairs.
    """
    found = paired_difference(ours, theirs)
    claimed = found["n"] >= FEWEST
    return {
        "n": found["n"],
        "difference": found["difference"] if claimed else None,
        "ci95": found["interval"] if claimed else None,
    }


def table_rows(comparison: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Return the comparison as tables (header, rows) for people: the groups, then the differences if any is stated."""
    groups, differences = comparison["groups"], comparison["differences"]
    names = list(dict.fromkeys(name for group in groups for name in group["metrics"]))
    # what is free in every run says nothing
    names = [
        name for name in names if name != "cost_usd" or any(g["metrics"].get(name, {}).get("mean") for g in groups)
    ]
    said = {_means(groups, name) for name in names if name not in USAGE}
    names = [name for name in names if name not in USAGE or _means(groups, name) not in said]  # each figure once
    rows = [
        [group["label"], str(len(group["runs"])), *(_mean_text(group["metrics"].get(name)) for name in names)]
        for group in groups
    ]
    tables = [(["run", "n", *names], rows)]
    if any(gap["difference"] is not None for entry in differences for gap in entry["metrics"].values()):
        rows = [
            [f"{entry['label']} - {entry['baseline']}", *(_gap_text(entry["metrics"].get(name)) for name in names)]
            for entry in differences
        ]
        tables.append((["difference [95 % interval]", *names], rows))
    return tables


def _means(groups: Sequence[Mapping[str, Any]], name: str) -> tuple[float | None, ...]:
    return tuple(group["metrics"].get(name, {}).get("mean") for group in groups)


def _mean_text(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "-"
    return _number(entry["mean"]) + (f" ± {_number(entry['std'])}" if entry["std"] else "")


def _gap_text(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["difference"] is None:
        return "-"
    low, high = entry["ci95"]
    shown = "" if low == high else f" [{_number(low, sign=True)}, {_number(high, sign=True)}]"
    return _number(entry["difference"], sign=True) + shown


def _number(value: float, *, sign: bool = False) -> str:
    plus = "+" if sign and value > 0 else ""
    if value == int(value) and abs(value) < 1e15:
        return f"{plus}{int(value):,}"
    return f"{plus}{value:.4g}"


# --- intervals --------------------------------------------------------------------------------------------------------


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, Any]:
    """Return the mean of ours - theirs over the seeds that both have, with its 95 % interval of Student's t.

    Not the bootstrap's: with five pairs a percentile interval covers the truth in 82 % of cases, and t in 95.

    Args:
        ours: values by seed.
        theirs: values of the other setting by seed.

    Returns:
        n, difference and interval [low, high]; the interval is None for fewer than two common seeds, and the
        difference for none.
    """
    gaps = [ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys())]
    if len(gaps) < 2:
        return {"n": len(gaps), "difference": gaps[0] if gaps else None, "interval": None}
    return {"n": len(gaps), "difference": statistics.fmean(gaps), "interval": t_interval(gaps)}


def t_interval(values: Sequence[float]) -> list[float]:
    """Return the 95 % interval [low, high] of Student's t for the mean of at least two values."""
    from scipy.stats import t

    mean, freedom = statistics.fmean(values), len(values) - 1
    half = float(t.ppf(0.975, freedom)) * statistics.stdev(values) / math.sqrt(len(values))
    return [mean - half, mean + half]


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line with its band: x, mean and standard deviation, all of the same length."""

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def make_curve(group: Group, metric: str, axis: str = "round") -> Curve | None:
    """Return the curve of `metric` against `axis`, over the rounds that all runs of the group have; None if none."""
    tables = [_points(run, metric, axis) for run in group.runs]
    rounds = sorted(set.intersection(*(set(table) for table in tables)))
    if not rounds:
        return None
    columns = [[table[index] for table in tables] for index in rounds]
    return Curve(
        label=group.label,
        x=tuple(statistics.fmean(x for x, _ in column) for column in columns),
        mean=tuple(statistics.fmean(y for _, y in column) for column in columns),
        std=tuple(statistics.stdev([y for _, y in column]) if len(column) > 1 else 0.0 for column in columns),
    )


def shared_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the metrics recorded per round in any run: main ones first, then in order of appearance."""
    headlines = [run.headline[0] for group in groups for run in group.runs]
    recorded: dict[str, None] = {}
    for group in groups:
        for run in group.runs:
            for line in run.rounds():
                recorded |= dict.fromkeys(key for key, value in line.items() if is_number(value) and key != "round")
    wanted = dict.fromkeys(name for main in headlines if (name := shown_metric(main, recorded)) is not None)
    return list({**wanted, **recorded})


def _points(run: LoadedRun, metric: str, axis: str) -> dict[int, tuple[float, float]]:
    marks = {} if axis == "round" else {index: mark.get(axis) for index, mark in run.marks().items()}
    points = {}
    for line in run.rounds():
        index: int = line["round"]
        value: Any = line.get(metric)
        x: Any = index if axis == "round" else marks.get(index)
        if is_number(x) and is_number(value):
            points[index] = (float(x), float(value))
    return points


def is_of_decades(curves: Sequence[Curve]) -> bool:
    """Return whether means span more than two decades, all above 0: then a logarithmic axis shows more of them."""
    means = [mean for curve in curves for mean in curve.mean]
    return min(means) > 0 and max(means) > 100 * min(means)
