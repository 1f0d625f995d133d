"""Time to a target AUC with the learning rate tuned too, for every method over one grid (simulated, 64 cores).

The paper trains all methods with 0.001. A method that averages w workers takes w times fewer or smaller steps than one
that adds up their steps, so that one rate is not fair to all: each method is run with 0.003 and 0.01, AVFL-PS, which
adds up, also with 0.0003; rows with 0.001 are those of `comparison.py`. PubSub-VFL averages at epochs' ends
(``pubsub-vfl``) or within epochs (``pubsub-vfl-rounds``, `sync_unit=batch`), where it is run with 0.001 too.
Of 50:14 only what differs from 32:32 is run. Reduced: Bank, batches of 64 rows, at 32:32 with up to eight workers also
of 256 (``--full``: 64, 256 and 1024 throughout), 8 epochs at most, one window.
"""

from __future__ import annotations

from typing import Any

from _study import Point, flags, perform_all
from comparison import SPLITS, network, settings

from fedactors.sweeps.study import Study

WORKERS = (16, 4, 8, 32, 2)
BATCH_SIZES = (64, 256, 1024)
MOST_WORKERS = {64: 64, 256: 8, 1024: 0}
"""In the reduced grid at 32:32, by batch size; at 50:14 there are batches of 64 rows only."""
RATES = (0.01, 0.003, 0.03)
MORE_RATES = {"avfl-ps": (0.0003,), "pubsub-vfl-rounds": (0.001,)}
METHODS = ("pubsub-vfl-rounds", "avfl-ps", "vfl-ps", "pubsub-vfl", "avfl", "vfl")
TARGET = 0.94


def pairs(method: str, split: str) -> list[tuple[int, int]]:
    """Return the numbers of workers to try, (w_a, w_p)."""
    passive = SPLITS[split][1]
    if split == "32-32":
        return [(1, 1)] if method in ("avfl", "vfl") else [(w, w) for w in WORKERS]
    # up to 14 workers have a core each in both splits; the parties' workers may differ in number only in PubSub-VFL
    if method in ("avfl", "vfl"):
        return []
    return [(passive, passive), *([(18, passive), (32, passive)] if method.startswith("pubsub") else [])]


def points(split: str, full: bool) -> list[Point]:
    """Return the runs of one split of the cores, the most telling first."""
    active, passive = SPLITS[split]
    return [
        Point(
            name=f"{method}-w{w_a:02d}-{w_p:02d}-b{size:04d}-lr{rate:g}",
            data="bank",
            settings=_settings(method, w_a, w_p, size, rate),
            cores={"active": active, "passive": passive},
            network=network(),
        )
        for size in (BATCH_SIZES if full or split == "32-32" else BATCH_SIZES[:1])
        for method in METHODS
        for rate in (*RATES, *MORE_RATES.get(method, ()))
        for w_a, w_p in pairs(method, split)
        if full or w_a <= MOST_WORKERS[size]
    ]


def _settings(method: str, w_a: int, w_p: int, size: int, rate: float) -> dict[str, Any]:
    chosen = {"num_epochs": 8, "target": TARGET, "learning_rate": rate}
    if not method.startswith("pubsub"):
        return {**chosen, **settings(method, w_a, w_p, size, 5)}
    unit = "batch" if method.endswith("rounds") else "epoch"
    return {**chosen, **settings("pubsub-vfl", w_a, w_p, size, 8), "sync_unit": unit}


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--split", choices=sorted(SPLITS), action="append", help="cores of both parties (default: all)")
    given = parser.parse_args(namespace=Study())
    for split in given.split or (list(SPLITS)[:1] if given.smoke else SPLITS):
        perform_all(points(split, given.full), f"rates-{split}", given)


if __name__ == "__main__":
    main()
