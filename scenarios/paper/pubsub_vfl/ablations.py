"""What each part of PubSub-VFL contributes (Table 4), simulated with 50:14 cores and a worker that stalls.

"Without deadline" is an infinite one (the paper's 0 would drop every batch); "without planner" has equal workers on
both sides; "without Delta T" averages at every epoch's end; "without pub/sub" keeps the averages but joins workers in
fixed pairs. The planner chooses the numbers of workers from the committed cost model. One worker of the passive party
is 40 times slower than the others, so that there is something for the deadline to do.
Reduced: Bank, 8 epochs of batches of 64 rows; ``--paper`` has the paper's sizes.
"""

from __future__ import annotations

import math
from typing import Any

from _planning import choice
from _study import Point, perform_all, study_of
from _watch import network

CORES = {"active": 50, "passive": 14}
DEADLINE = 0.05
SMALL = {"num_epochs": 8, "batch_size": 64}
FULL = {"num_epochs": 50, "batch_size": 256}
BANK_ROWS = 25_948


def ablations(planned: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Return the settings of each row; `planned` holds the numbers of workers that the planner chose."""
    least = min(planned.values())
    equal = {"num_active_workers": least, "num_passive_workers": least}
    return {
        "0-all": planned,
        "1-without-deadline": {**planned, "deadline": math.inf},
        "2-without-planner": equal,
        "3-without-delta-t": {**planned, "sync_schedule": "every"},
        "3b-never-averaging": {**planned, "sync_schedule": "never"},
        "3c-decreasing-delta-t": {**planned, "sync_schedule": "decreasing"},
        "4-without-pubsub": {**equal, "algorithm": "avfl-ps", "push_every": 0},
        "5-without-deadline-and-delta-t": {**planned, "deadline": math.inf, "sync_schedule": "every"},
    }


def points(data: str, sizes: dict[str, int], num_rows: int) -> list[Point]:
    """Return all rows of the table."""
    plan = choice(sizes, data, CORES, num_rows)
    planned = {"num_active_workers": plan.num_active_workers, "num_passive_workers": plan.num_passive_workers}
    window = {"transfer": "push", "prefetch": 6, "report_interval": 0.0, "max_in_flight": 8 * plan.num_passive_workers}
    common = {**sizes, **window, "deadline": DEADLINE}
    return [
        Point(
            name=name,
            data=data,
            settings={**common, **settings},
            cores=CORES,
            speed={"passive/worker-1": 1 / 40},
            network=network(),
        )
        for name, settings in ablations(planned).items()
    ]


def main() -> None:
    given = study_of(__doc__)
    size = ("synthetic:1000000x500", FULL, 630_000) if given.paper else ("bank", SMALL, BANK_ROWS)
    size = ("breast-cancer", SMALL, 300) if given.smoke else size
    perform_all(points(*size), "ablations", given)


if __name__ == "__main__":
    main()
