"""Unequal cores (50:14 to 36:28) and unequal features (50:450 to 200:300) of two parties (Figure 4): an epoch's time.

Two settings a method. PubSub-VFL has the numbers of workers that the planner chooses from the committed cost model for
this link (`planned`), which may be more than a party has cores, and a pair for each core of the party with fewer
(`pairs`); the baselines have these pairs too, or as many as the planner's larger number (`most-pairs`).
Batches of 256 rows, and nobody pauses between epochs. Over 1 Gbit/s the link is the bound of all of them, so that one
situation of each kind is run there, and all of them over 25 Gbit/s. What is read is how long an epoch takes and how
busy the cores are, not what is learned: so many workers share few batches.
Reduced: 50,000 synthetic rows, 2 epochs, and of the baselines those with a parameter server; ``--paper`` has a million
rows and 50 epochs, on both links. ``--only`` chooses situations.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from pathlib import Path
from typing import Any

from _planning import choice
from _study import Point, perform_all, settings, study_of
from _watch import network

from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.pairs import paired_ratio
from scenarios.paper.study import Study

CORES = ((50, 14), (48, 16), (40, 24), (36, 28))
FEATURES = ((50, 450), (100, 400), (150, 350), (200, 300))
LINKS = (25.0, 1.0)
"""Gbit/s, 0.5 ms away."""
OURS = "pubsub-vfl"
BASELINES = ("avfl-ps", "vfl-ps")
WINDOW = 8
NUM_ROWS = 31_500
"""Training rows; they do not change which numbers of workers are best."""
SEEDS = (0, 1, 2)
EPOCH = "training_per_epoch"


def points(
    cores: tuple[int, int], features: tuple[int, int], gigabits: float, data: str, epochs: int
) -> dict[str, Point]:
    """Return the runs of all methods in one situation, by what comes last in their names."""
    by_party = dict(zip(("active", "passive"), cores, strict=True))
    common = {"num_epochs": epochs, "epochs_per_round": epochs, "feature_split": features}
    plan = choice({"batch_size": 256, "feature_split": features}, data, by_party, NUM_ROWS, gigabits)
    pairs = (min(cores), min(cores))
    most = max(plan.num_active_workers, plan.num_passive_workers)
    asked_of: dict[str, tuple[str, int, int]] = {
        f"{OURS}-planned": (OURS, plan.num_active_workers, plan.num_passive_workers),
        f"{OURS}-pairs": (OURS, *pairs),
    }
    for method in BASELINES:
        asked_of |= {f"{method}-pairs": (method, *pairs), f"{method}-most-pairs": (method, most, most)}
    return {
        name: Point(
            name=name,
            data=data,
            settings={**common, **settings(method, w_a, w_p, 256, WINDOW)},
            cores=by_party,
            network=network(gigabits),
        )
        for name, (method, w_a, w_p) in asked_of.items()
    }


def summarise(given: Study, study: str, situation: str) -> None:
    """Put the ratio of an epoch's time to that of the best baseline into the table, each at its better setting."""
    found: dict[str, list[RunRow]] = {}
    for row in given.rows(study):
        if row.name.startswith(f"{situation}-"):
            found.setdefault(row.name.removeprefix(f"{situation}-"), []).append(row)

    if len(found) < 2 * (1 + len(BASELINES)):
        return

    def mean(name: str) -> float:
        return statistics.fmean(row.metrics[EPOCH] for row in found[name])

    ours = min((name for name in found if name.startswith(OURS)), key=mean)
    theirs = min((name for name in found if not name.startswith(OURS)), key=mean)
    by_seed = [{row.seed: float(row.metrics[EPOCH]) for row in found[name]} for name in (ours, theirs)]
    ratio = paired_ratio(*by_seed)
    low, high = ratio["interval"]
    metrics: dict[str, Any] = {
        "ours": ours.removeprefix(f"{OURS}-"),
        "best_baseline": theirs,
        "seconds": mean(ours),
        "others_seconds": mean(theirs),
        "ratio": ratio["ratio"],
        "low": low,
        "high": high,
        "planned_over_pairs": mean(f"{OURS}-planned") / mean(f"{OURS}-pairs"),
        "n": ratio["n"],
    }
    given.put(f"{study}-ratios", situation, [dataclasses.replace(found[ours][0], metrics=metrics, curve={}, extra={})])


def main() -> None:
    given = study_of(__doc__, SEEDS)
    size = ("synthetic:1000000x500", 50) if given.paper else ("synthetic:50000x500", 2)
    size = ("synthetic:500x500", 1) if given.smoke else size
    kinds = {
        "figure4-cores": {f"{a}-{p}": ((a, p), (250, 250)) for a, p in CORES},
        "figure4-features": {f"{a:03d}-{p}": ((32, 32), (a, p)) for a, p in FEATURES},
    }
    for gigabits in LINKS[:1] if given.smoke else LINKS:
        for study, situations in kinds.items():
            number = None if given.paper or (gigabits > 1 and not given.smoke) else 1
            for name, (cores, features) in list(situations.items())[:number]:
                situation = f"{gigabits:g}-gbit-{name}"
                if situation not in (given.row or situation) or not given.wants(f"{study}/{situation}-"):
                    continue
                made = points(cores, features, gigabits, *size)
                perform_all(
                    [dataclasses.replace(point, name=f"{situation}-{end}") for end, point in made.items()], study, given
                )
                summarise(given, study, situation)


if __name__ == "__main__":
    main()
