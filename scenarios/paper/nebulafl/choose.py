"""Choose each method's settings on validation rows: the learning rate, and the one number that is its own.

python scenarios/paper/nebulafl/choose.py [--again]

300 training rows of the digits are held out and models are measured on them, never on test rows. Every method tries
the same learning rates with the default of its own number, then its other values with the best rate; what counts is
the mean accuracy over the last three measurements and two label distributions. The digits' tables read what is chosen.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _study import DIGITS, Row, flags, once, resized, tried

from fedactors.config import as_dict, build
from fedactors.errors import Diverged
from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.nebulafl.config import NebulaFLConfig
from scenarios.paper.study import Study

RATES = (0.01, 0.03, 0.1, 0.3)
CHOSEN_BY: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nebulafl": ("rotation_interval", (500.0, 250.0, 1000.0, 125.0)),
    "fedavg-hierarchical": ("center_rounds", (2, 1, 3, 4)),
    "fedhisyn": ("num_clusters", (3, 2, 4, 1)),
    "fedhkt": ("distillation_epochs", (20, 60, 10, 40)),
    "fedsa": ("buffer_size", (5, 10, 2, 20)),
    "pisces": ("staleness_bound", (5, 2, 10, 1)),
    "fedasync": ("mixing", (0.6, 0.3, 0.9, 0.15)),
    "fedbuff": ("buffer_size", (5, 10, 2, 20)),
}
"""The number that is a method's own, the default first; FedAvg and GitFL have none."""
FINER = {"fedavg": (0.02, 0.05, 0.2)}
"""Rates between those of the grid, to see how much is between them; what is chosen is of the grid."""
METHODS = ("nebulafl", "fedavg", *(name for name in CHOSEN_BY if name != "nebulafl"), "gitfl")
SHARES = (0.1, 0.5)
NUM_VALIDATION = 300


def attempt(given: Study, method: str, settings: Mapping[str, Any], study: str = "choice") -> RunRow:
    """Measure a method's mean validation accuracy with some settings, keep it, and return its row.

    The row's configuration is that of its last run; the others differ in the distribution of labels alone.
    """
    name = " ".join([method, *(f"{key}={value:g}" for key, value in settings.items())])
    if not given.lacks(study, name):
        return given.rows(study, name)[0]
    found: list[float] = []
    for dirichlet in SHARES[-1:] if given.smoke else SHARES:
        fixed = {**DIGITS, "dirichlet": dirichlet, "num_validation": NUM_VALIDATION, "resource_policy": "fastest"}
        row = measured(Row({**resized(fixed, given), "algorithm": method, **settings}))
        found += row.curve.get("validation/accuracy", [0.0])[-3:]
    metrics = {"validation/accuracy": round(sum(found) / len(found), 4)}
    extra = {"chosen": {"algorithm": method, **settings}, "dirichlet": list(SHARES)}
    row = dataclasses.replace(row, metrics=metrics, extra=extra, curve={}, usage={})
    given.put(study, name, [row])
    return row


def measured(row: Row) -> RunRow:
    """Measure a row; one that diverges has learned nothing, and has no curve."""
    try:
        return once(row, 0)
    except Diverged:
        return RunRow(protocol="", seed=0, data=row.data, config=as_dict(build(NebulaFLConfig, dict(row.settings))))


def main() -> None:
    """Try every method's values and keep what was found; the best is what is chosen."""
    given = flags(__doc__, (0,)).parse_args(namespace=Study())
    wanted = [
        name for name in METHODS if given.wants(name) and (given.again or given.row or not tried(given.out, name))
    ]
    for method in wanted[:1] if given.smoke else wanted:
        name, values = CHOSEN_BY.get(method, ("", ("",)))
        first = {name: values[0]} if name else {}
        trials = [attempt(given, method, {"learning_rate": rate, **first}) for rate in RATES]
        best = max(trials, key=lambda row: float(row.metrics["validation/accuracy"])).config["learning_rate"]
        for value in values[1:]:
            attempt(given, method, {"learning_rate": best, name: value})
        for rate in FINER.get(method, ()):
            attempt(given, method, {"learning_rate": rate}, "choice-finer")


if __name__ == "__main__":
    main()
