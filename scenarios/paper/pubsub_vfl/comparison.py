"""Time to a target AUC of every method over one grid of (w, B), in simulated settings of 64 cores (Figures 3 and 4).

Costs are the fitted ones (`compute_costs.py`); a worker computes on one core; links have 1 Gbit/s and 0.5 ms, and
the broker runs at the active party.
Reduced: synthetic data of 20,000 rows and 40 columns and a smaller network; ``--full`` has the paper's sizes.
"""

from __future__ import annotations

from _study import Point, parser, perform_all

from fedactors.network.links import Network

SPLITS = {"32-32": (32, 32), "50-14": (50, 14)}
ALONE = ("vfl", "avfl")
PAIRED = ("vfl-ps", "avfl-ps", "pubsub-vfl")
WINDOWED = ("avfl", "avfl-ps", "pubsub-vfl")
SMALL = {"num_layers": 4, "hidden_size": 32, "embedding_size": 16, "num_epochs": 12, "target": 0.93}
FULL = {"num_epochs": 50, "target": 0.91}


def grid(split: str, full: bool) -> list[tuple[str, int, int, int, int]]:
    """Return (method, w_a, w_p, B, batches in flight per worker) of one split of the cores."""
    active, passive = SPLITS[split]
    workers = (2, 4, 8, 16, 32, 50) if full else (2, 8, min(32, passive))
    sizes = (16, 32, 64, 128, 256, 512, 1024) if full else (32, 128)
    if split != "32-32" and not full:
        sizes = (32,)
    chosen = [(method, 1, 1, size, 5) for method in ALONE for size in sizes]
    chosen += [(method, w, w, size, 5) for method in PAIRED for w in workers for size in sizes]
    # a window of 16 instead of the paper's 5, for every method that has one
    chosen += [(method, w, w, sizes[0], 16) for method in WINDOWED for w in ((1,) if method == "avfl" else workers)]
    # what only PubSub-VFL can do: as many workers as each party has cores
    chosen += [("pubsub-vfl", active, passive, size, 16) for size in sizes if active != passive]
    return chosen


def points(split: str, full: bool) -> list[Point]:
    """Return the runs of one split of the cores."""
    active, passive = SPLITS[split]
    return [
        Point(
            name=f"{method}-w{w_a}-{w_p}-b{size}" + (f"-p{window}" if window != 5 else ""),
            data="synthetic:1000000x500" if full else "synthetic:20000x40",
            settings={
                **(FULL if full else SMALL),
                "algorithm": method,
                "num_active_workers": w_a,
                "num_passive_workers": w_p,
                "batch_size": size,
                "embedding_buffer": window,
                "max_in_flight": window * w_p,
                "prefetch": window,
            },
            cores={"active": active, "passive": passive},
            network=Network(hosts={"broker": "active"}),
        )
        for method, w_a, w_p, size, window in grid(split, full)
    ]


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--split", choices=sorted(SPLITS), action="append", help="cores of both parties (default: all)")
    given = flags.parse_args()
    for split in given.split or SPLITS:
        perform_all(points(split, given.full), given.to / f"grid-{split}", given)


if __name__ == "__main__":
    main()
