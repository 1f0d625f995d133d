"""Choose each method's settings on validation rows: the learning rate, and the one number that is its own.

python scenarios/paper/nebulafl/choose.py [--again]

300 training rows of the digits are held out and models are measured on them, never on test rows. Every method tries
the same learning rates with the default of its own number, then its other values with the best rate; what counts is
the mean accuracy over the last three measurements and two label distributions. The digits' tables read what is chosen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from _study import DIGITS, flags, once, resized

from fedactors.records.storage import write_atomic
from fedactors.records.study import Study

RATES = (0.01, 0.03, 0.1)
OWN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nebulafl": ("rotation_interval", (500.0, 250.0, 1000.0)),
    "fedavg-hierarchical": ("center_rounds", (2, 1)),
    "fedhisyn": ("num_clusters", (3, 2)),
    "fedhkt": ("distillation_epochs", (20, 60)),
    "fedsa": ("buffer_size", (5, 10)),
    "pisces": ("staleness_bound", (5, 2, 10)),
    "fedasync": ("mixing", (0.6, 0.3)),
    "fedbuff": ("buffer_size", (5, 10)),
}
METHODS = ("nebulafl", "fedavg", *(name for name in OWN if name != "nebulafl"), "gitfl")
SHARES = (0.1, 0.5)
NUM_VALIDATION = 300


def score(settings: Mapping[str, Any], given: Study) -> float:
    """Return the mean validation accuracy of a method with some settings."""
    found: list[float] = []
    for dirichlet in SHARES[-1:] if given.smoke else SHARES:
        fixed = {**DIGITS, "dirichlet": dirichlet, "num_validation": NUM_VALIDATION, "resource_policy": "fastest"}
        found += once("choice", {**resized(fixed, given), **settings}, "digits", 0).extra["accuracy"][-3:]
    return sum(found) / len(found)


def best_of(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the trial of greatest accuracy, the first at a tie."""
    return max(trials, key=lambda trial: float(trial["accuracy"]))


def main() -> None:
    """Try every method's values and write what was found and chosen."""
    given = flags(__doc__, (0,)).parse_args(namespace=Study())
    path = given.out / "choice.json"
    choice: dict[str, Any] = {} if given.lacks(path) else json.loads(path.read_text())
    wanted = [name for name in METHODS if given.wants(name) and name not in choice]
    for method in wanted[:1] if given.smoke else wanted:
        name, values = OWN.get(method, ("", ("",)))
        trials = []
        for rate in RATES:
            settings = {"learning_rate": rate, **({name: values[0]} if name else {})}
            trials.append({**settings, "accuracy": round(score({"algorithm": method, **settings}, given), 4)})
        rate = best_of(trials)["learning_rate"]
        for value in values[1:]:
            settings = {"learning_rate": rate, name: value}
            trials.append({**settings, "accuracy": round(score({"algorithm": method, **settings}, given), 4)})
        best = best_of(trials)
        choice[method] = {"chosen": {k: v for k, v in best.items() if k != "accuracy"}, "tried": trials}
        print(method, best, flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(choice, indent=1, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    main()
