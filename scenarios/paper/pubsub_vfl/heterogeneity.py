"""Unequal cores (50:14 to 36:28) and unequal features (50:450 to 200:300) of the two parties (Figure 4).

PubSub-VFL has the numbers of workers that the planner chooses from the committed cost model; the baselines have one
pair for each core of the party with fewer. Batches of 256 rows; seconds of the training of an epoch.
Reduced: 50,000 synthetic rows, 2 epochs, and of the baselines those with a parameter server; ``--full`` has a million
rows and 50 epochs.
"""

from __future__ import annotations

from _planning import choice
from _study import Point, asked, perform_all, settings
from _watch import network

CORES = ((50, 14), (48, 16), (40, 24), (36, 28))
FEATURES = ((50, 450), (100, 400), (150, 350), (200, 300))
METHODS = ("pubsub-vfl", "avfl-ps", "vfl-ps")
WINDOW = 8
NUM_ROWS = 31_500
"""Training rows; they do not change which numbers of workers are best."""


def points(cores: tuple[int, int], features: tuple[int, int], name: str, data: str, epochs: int) -> list[Point]:
    """Return the methods' runs in one situation."""
    by_party = dict(zip(("active", "passive"), cores, strict=True))
    common = {"num_epochs": epochs, "feature_split": features}
    plan = choice({**common, "batch_size": 256}, data, by_party, NUM_ROWS)
    made = []
    for method in METHODS:
        pair = (min(cores), min(cores))
        w_a, w_p = (plan.num_active_workers, plan.num_passive_workers) if method == "pubsub-vfl" else pair
        made.append(
            Point(
                name=f"{name}-{method}",
                data=data,
                settings={**common, **settings(method, w_a, w_p, 256, WINDOW)},
                cores=by_party,
                network=network(),
            )
        )
    return made


def main() -> None:
    given = asked(__doc__)
    size = ("synthetic:1000000x500", 50) if given.full else ("synthetic:50000x500", 2)
    size = ("synthetic:500x500", 1) if given.smoke else size
    for cores in CORES[:1] if given.smoke else CORES:
        made = points(cores, (250, 250), f"{cores[0]}-{cores[1]}", *size)
        perform_all(made, "figure4-cores", given)
    for features in FEATURES[:1] if given.smoke else FEATURES:
        made = points((32, 32), features, f"{features[0]:03d}-{features[1]}", *size)
        perform_all(made, "figure4-features", given)


if __name__ == "__main__":
    main()
