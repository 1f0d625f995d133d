"""What each part of PubSub-VFL contributes (Table 4), in the simulated setting of 32:32 cores.

"Without deadline" is an infinite one (the paper's 0 would drop every batch); "without planner" has equal workers on
both sides; "without Delta T" averages at every epoch's end; "without pub/sub" keeps the averages but joins workers in
fixed pairs. One active worker is four times slower than the others, so that there is something to deal with.
Reduced: synthetic data of 20,000 rows, small network, 8 epochs; ``--full`` has the paper's sizes.
"""

from __future__ import annotations

import math

from _study import Point, flags, perform_all

PLANNED = {"num_active_workers": 8, "num_passive_workers": 10}
EQUAL = {"num_active_workers": 8, "num_passive_workers": 8}
ABLATIONS = {
    "0-all": {**PLANNED},
    "1-without-deadline": {**PLANNED, "deadline": math.inf},
    "2-without-planner": {**EQUAL},
    "3-without-delta-t": {**PLANNED, "sync_schedule": "every"},
    "3b-never-averaging": {**PLANNED, "sync_schedule": "never"},
    "3c-decreasing-delta-t": {**PLANNED, "sync_schedule": "decreasing"},
    "4-without-pubsub": {**EQUAL, "algorithm": "avfl-ps", "push_every": 0},
    "5-without-deadline-and-delta-t": {**PLANNED, "deadline": math.inf, "sync_schedule": "every"},
}


def main() -> None:
    given = flags(__doc__).parse_intermixed_args()
    small = {"num_layers": 4, "hidden_size": 32, "embedding_size": 16, "num_epochs": 8, "batch_size": 64}
    common = {"num_epochs": 50, "batch_size": 256} if given.full else small
    points = [
        Point(
            name=name,
            data="synthetic:1000000x500" if given.full else "synthetic:20000x40",
            settings={**common, "max_in_flight": 50, "prefetch": 4, "deadline": 0.05, **settings},
            cores={"active": 32, "passive": 32},
            speed={"active/worker-1": 0.25},
        )
        for name, settings in ABLATIONS.items()
    ]
    perform_all(points, given.out / "ablations", given)


if __name__ == "__main__":
    main()
