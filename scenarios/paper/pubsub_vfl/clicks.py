"""All methods on a generated set shaped as Criteo's clicks: 13 counts, 26 categories one-hot (Table 9's shape).

Simulated with 32:32 cores; eight workers a side where a method has several, batches of 256 rows, learning rates 0.001
and 0.01. PubSub-VFL averages at the epochs of its schedule or (``pubsub-vfl-rounds``) within epochs. The terabyte of
the paper is not to be had here; only the shape of its table is.
Reduced: 20,000 rows, 4 epochs; ``--paper`` has a million rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from _study import Point, perform_all, settings, study_of
from _watch import network

ALONE = ("vfl", "avfl")
PAIRED = ("vfl-ps", "avfl-ps", "pubsub-vfl")
RATES = (0.001, 0.01)


def rows() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Yield each row's name, algorithm, workers a side and further settings."""
    for methods, w in ((ALONE, 1), (PAIRED, 8)):
        yield from ((method, method, w, {}) for method in methods)
    yield "pubsub-vfl-rounds", "pubsub-vfl", 8, {"sync_unit": "batch"}


def main() -> None:
    given = study_of(__doc__)
    points = [
        Point(
            name=f"{name}-lr{rate:g}",
            data="criteo-like:1000000" if given.paper else "criteo-like:20000",
            settings={"num_epochs": 4, "learning_rate": rate, **settings(method, w, w, 256, 8), **more},
            cores={"active": 32, "passive": 32},
            network=network(),
        )
        for name, method, w, more in rows()
        for rate in RATES
    ]
    perform_all(points, "clicks", given)


if __name__ == "__main__":
    main()
