"""Time to a target AUC on the paper's million rows of 500 columns: PubSub-VFL and AVFL, not tuned there.

Both have the setting that `time_to_target.py` chose for them on 100,000 such rows, and its targets, link and cores.
The models are watched every 0.5 % of an epoch, which is as many rows as 5 % of the smaller set. `ratios` are paired.
Reduced: two seeds, and of the baselines only the best of the smaller set; ``--full`` has all and ten seeds.
"""

from __future__ import annotations

from _watch import RESULTS, Watched, watch
from time_to_target import METHODS, MOST_EPOCHS, OURS, SEEDS, TARGETS, grid, ratio_row, settings, tuned

from fedactors.sweeps.study import Study, study_flags

SMALLER = "synthetic:100000x500"
DATA = "synthetic:1000000x500"
EVERY = 0.005
LATENCY = 0.0005
BEST = "avfl"


def main() -> None:
    given = study_flags(__doc__, "pubsub_vfl", RESULTS, seeds=SEEDS[:2]).parse_args(namespace=Study())
    seeds = SEEDS if given.full else given.seeds
    best = {method: grid(method)[0] for method in METHODS} if given.smoke else tuned(given, SMALLER)
    data = "breast-cancer" if given.smoke else DATA
    size = {"num_layers": 2, "hidden_size": 8, "embedding_size": 4} if given.smoke else {}
    points = {
        method: Watched(
            data=data,
            settings={**settings(method, best[method], LATENCY), "num_epochs": MOST_EPOCHS, **size},
            targets=TARGETS[SMALLER],
            latency=LATENCY,
            every=EVERY,
        )
        for method in (METHODS if given.full else (OURS, BEST))
    }
    given.measure(f"untuned-{DATA}", points, watch, seeds=seeds, all_seeds=True, as_set=True)
    ours = given.rows(f"untuned-{DATA}", OURS)
    for target in TARGETS[SMALLER]:
        for method in points:
            theirs = given.rows(f"untuned-{DATA}", method)
            if method != OURS and ours and theirs:
                given.put(f"untuned-ratios-{DATA}", f"{target:g}-{method}", [ratio_row(ours, theirs, target)])


if __name__ == "__main__":
    main()
