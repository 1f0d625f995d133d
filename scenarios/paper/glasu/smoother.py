"""Table 2's differences under rules that leave less to chance than the best of all evaluations; no run is made.

``three``: the three evaluations in a row with the best mean validation accuracy. ``last``: the last five evaluations,
wherever the run ended. A run's validation and test accuracies are the means over those evaluations, and a method's step
is the one with the best mean validation accuracy over seeds, as in Table 2.

python scenarios/paper/glasu/smoother.py --data cora
"""

import dataclasses
import statistics

from _study import GlasuStudy, by_step, mean_over, study_of

from fedactors.runs.table import RunRow
from scenarios.paper.pairs import difference_row

WIDTHS = {"three": 3, "last": 5}
CASES = ("simulated-centralised", "centralised", "standalone")
Grid = dict[int, dict[float, RunRow]]


def smoothed(row: RunRow, rule: str) -> RunRow:
    """Return a row with the accuracies that a rule takes from its curve."""
    columns = (row.curve["validation/accuracy"], row.curve["test/accuracy"])
    points = [point for point in zip(*columns, strict=True) if point[0] is not None]
    width = WIDTHS[rule]
    starts = range(len(points) - width + 1)[-1 if rule == "last" else 0 :]
    means = [[statistics.fmean(values) for values in zip(*points[i : i + width], strict=True)] for i in starts]
    best = max(means, key=lambda mean: mean[0])
    return dataclasses.replace(row, metrics=dict(zip(("validation/accuracy", "test/accuracy"), best, strict=True)))


def smooth_grid(study: GlasuStudy, case: str, rule: str) -> Grid:
    """Return a method's rows by seed and step, with the accuracies of a rule."""
    grid = by_step(study, "choose", case)
    return {seed: {rate: smoothed(row, rule) for rate, row in found.items()} for seed, found in grid.items()}


def best_step(grid: Grid) -> float:
    """Return the step with the best mean validation accuracy over seeds."""
    scores = {
        step: statistics.fmean(found[step].metrics["validation/accuracy"] for found in grid.values())
        for step in steps_of_all(grid)
    }
    return max(sorted(scores), key=scores.__getitem__)


def steps_of_all(*grids: Grid) -> set[float]:
    """Return the steps at which all seeds of some grids were run."""
    return set.intersection(*(set(found) for grid in grids for found in grid.values()))


def put_rule(study: GlasuStudy, rule: str) -> None:
    """Put a rule's differences: each method at its best step, and GLASU-1's mean over all steps."""
    grids = {case: smooth_grid(study, case, rule) for case in ("Q=01", "Q=04", *CASES)}
    if not all(grids.values()):
        return
    for ours in ("Q=01", "Q=04"):
        for theirs in CASES:
            steps = {case: best_step(grids[case]) for case in (ours, theirs)}
            sides = [[found[step] for found in grids[case].values()] for case, step in steps.items()]
            name = " - ".join(f"{case}-rate={step}" for case, step in steps.items())
            put(study, f"{rule}: {name}", *sides)
    for theirs in CASES:
        common = steps_of_all(grids["Q=01"], grids[theirs])
        sides = [mean_over(common, grids[case]) for case in ("Q=01", theirs)]
        put(study, f"{rule}: Q=01 - {theirs}, mean over steps", *sides)


def put(study: GlasuStudy, name: str, ours: list[RunRow], theirs: list[RunRow]) -> None:
    """Put a paired difference of test accuracies."""
    row = difference_row(ours, theirs, "test/accuracy")
    if row is not None:
        study.put(study.study("smoother"), name, [row])


if __name__ == "__main__":
    given = study_of(__doc__)
    for each in WIDTHS:
        put_rule(given, each)
