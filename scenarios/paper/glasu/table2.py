"""Table 2: GLASU-1 and GLASU-4 (K = 2) against centralised, standalone and simulated-centralised training.

The runs are those of `choose.py`. What is put here are the paired differences of test accuracies: each method at its
step with the best validation accuracy, and, for those that have the same steps, the mean over all steps.

python scenarios/paper/glasu/table2.py --data cora
"""

import dataclasses
import statistics
from collections.abc import Sequence

from _study import GlasuStudy, asked, put_differences
from choose import STEPS

from fedactors.records.compare import difference_row
from fedactors.records.table import RunRow

CASES = ("simulated-centralised", "centralised", "standalone")


def over_steps(study: GlasuStudy, case: str) -> Sequence[RunRow]:
    """Return a row for each seed with the mean test accuracy over the steps at which Q = 1 and all cases were run."""
    names = {rate: [f"{one}-rate={rate}" for one in ("Q=01", *CASES)] for rate in STEPS}
    common = [rate for rate in STEPS if all(study.rows(study.study("choose"), name) for name in names[rate])]
    found: dict[int, list[RunRow]] = {}
    for rate in common:
        for row in study.rows(study.study("choose"), f"{case}-rate={rate}"):
            found.setdefault(row.seed, []).append(row)
    means = {seed: statistics.fmean(row.metrics["test/accuracy"] for row in rows) for seed, rows in found.items()}
    return [dataclasses.replace(found[seed][0], metrics={"test/accuracy": mean}) for seed, mean in means.items()]


if __name__ == "__main__":
    given = asked(__doc__)
    pairs = [(f"Q={q:02d}", case) for q in (1, 4) for case in CASES]
    put_differences(given, "table2", "choose", [*pairs, ("centralised", "simulated-centralised")])
    for case in CASES:
        row = difference_row(over_steps(given, "Q=01"), over_steps(given, case), "test/accuracy")
        if row is not None:
            given.put(given.study("table2"), f"Q=01 - {case}, mean over steps", [row])
