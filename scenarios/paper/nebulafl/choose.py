"""Choose each method's settings on validation rows: the learning rate, and the one number that is its own.

python -m scenarios.paper.nebulafl.choose [--again]

300 training rows of the digits are held out and models are measured on them, never on test rows. Every method tries
the same learning rates with the default of its own number, then its other values with the best rate; what counts is
the mean accuracy over the last three measurements and two label distributions. All tables read what is chosen here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scenarios.paper.nebulafl._study import DIGITS, RESULTS, once, study

RATES = (0.01, 0.03, 0.1)
OWN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nebulafl": ("rotation_interval", (500.0, 1000.0)),
    "fedavg-hierarchical": ("center_rounds", (2, 1)),
    "fedhisyn": ("num_clusters", (3, 2)),
    "fedhkt": ("distillation_epochs", (20, 60)),
    "fedsa": ("buffer_size", (5, 10)),
    "pisces": ("staleness_bound", (5, 10)),
    "fedasync": ("mixing", (0.6, 0.3)),
    "fedbuff": ("buffer_size", (5, 10)),
}
METHODS = ("nebulafl", "fedavg", *(name for name in OWN if name != "nebulafl"), "gitfl")
SHARES = (0.1, 0.5)
NUM_VALIDATION = 300


def score(settings: Mapping[str, Any], common: Mapping[str, Any]) -> float:
    """Return the mean validation accuracy of a method with some settings."""
    found = []
    for dirichlet in SHARES:
        fixed = {**DIGITS, "dirichlet": dirichlet, "num_validation": NUM_VALIDATION, "resource_policy": "fastest"}
        curve = once("choice", {**fixed, **settings, **common}, "digits", 0)["extra"]["curve"]
        found += [point["accuracy"] for point in curve[-3:]]
    return sum(found) / len(found)


def main() -> None:
    """Try every method's values and write what was found and chosen."""
    args, given = study(__doc__ or "", seeds="0")
    path = args.out / "choice.json"
    if path.exists() and not args.again:
        return
    choice: dict[str, Any] = {}
    for method in METHODS[:1] if args.smoke else METHODS:
        tried = [({"algorithm": method, "learning_rate": rate}, 0.0) for rate in RATES]
        tried = [(settings, score(settings, given)) for settings, _ in tried]
        best = max(tried, key=lambda entry: entry[1])[0]
        name, values = OWN.get(method, ("", ("",)))
        tried += [({**best, name: value}, 0.0) for value in values[1:]]
        tried = [(settings, found or score(settings, given)) for settings, found in tried]
        settings, accuracy = max(tried, key=lambda entry: entry[1])
        chosen = {key: value for key, value in settings.items() if key != "algorithm"}
        trials = [{**{k: v for k, v in s.items() if k != "algorithm"}, "accuracy": round(a, 4)} for s, a in tried]
        choice[method] = {"chosen": chosen, "validation_accuracy": round(accuracy, 4), "tried": trials}
        print(method, chosen, round(accuracy, 4), flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(choice, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
