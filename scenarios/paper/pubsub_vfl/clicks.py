"""All methods on a generated set shaped as Criteo's clicks: 13 counts, 26 categories one-hot (Table 9's shape).

Simulated with 32:32 cores; eight workers a side where a method has several, batches of 256 rows. The terabyte of the
paper is not to be had here; only the shape of its table is.
Reduced: 20,000 rows, 4 epochs; ``--full`` has a million rows.
"""

from __future__ import annotations

from _study import Point, flags, perform_all
from comparison import ALONE, PAIRED, network, settings

from fedactors.records.study import Study


def main() -> None:
    given = flags(__doc__).parse_intermixed_args(namespace=Study())
    points = [
        Point(
            name=method,
            data="criteo-like:1000000" if given.full else "criteo-like:20000",
            settings={"num_epochs": 4, **settings(method, w, w, 256, 8)},
            cores={"active": 32, "passive": 32},
            network=network(),
        )
        for methods, w in ((ALONE, 1), (PAIRED, 8))
        for method in methods
    ]
    perform_all(points, given.out / "clicks", given)


if __name__ == "__main__":
    main()
