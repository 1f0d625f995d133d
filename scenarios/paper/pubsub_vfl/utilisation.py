"""What bounds the utilisation of 64 cores: the same run over more and more rows (the paper's 0.9107, Figure 3b).

32 workers a side with a core each, batches of 256 rows, one epoch, synthetic rows with 20 columns. The rest is the
difference between the parties' work per batch, and an epoch's beginning and end. With 36 and 28 workers, each with its
core, the parties' work is nearly even: only PubSub-VFL allows that.
"""

from __future__ import annotations

from _study import Point, asked, perform_all
from comparison import network, settings

ROWS = (40_000, 200_000, 1_000_000)
METHODS = ("pubsub-vfl", "avfl-ps")


def main() -> None:
    given = asked(__doc__)
    points = [
        Point(
            name=f"{rows:07d}-rows-{method}",
            data=f"synthetic:{rows}x20",
            settings={"num_epochs": 1, **settings(method, 32, 32, 256, 8)},
            cores={"active": 32, "passive": 32},
            network=network(),
        )
        for rows in ROWS
        for method in METHODS
    ]
    rows = ROWS[-1]
    # without slack on either side a larger window keeps both busy
    uneven = {"num_epochs": 1, **settings("pubsub-vfl", 36, 28, 256, 16)}
    points.append(
        Point(
            name=f"{rows:07d}-rows-pubsub-vfl-36-28",
            data=f"synthetic:{rows}x20",
            settings=uneven,
            cores={"active": 36, "passive": 28},
            network=network(),
        )
    )
    perform_all(points, "utilisation", given)


if __name__ == "__main__":
    main()
