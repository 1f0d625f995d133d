"""Time to a target AUC of every method over one grid of (w, B), simulated with 64 cores (Figure 3, Tables 2 and 3).

Costs are the committed ones (`compute_costs.py`); a worker computes on one core. Parties are joined by 1 Gbit/s and
0.5 ms, processes of one party by what `local_link.py` measured; the broker runs at the active party.
Two windows are tried for every method that has one. Hyperparameters are compared on validation rows only.
Reduced: Bank instead of a million synthetic rows, five numbers of workers, three batch sizes, 15 epochs at most;
``--full`` has the paper's. Of 50:14 only what differs from 32:32 is run: up to 14 workers have a core each in both.
"""

from __future__ import annotations

from typing import Any

from _study import Point, flags, measured, perform_all

from fedactors.network.links import Link, Network
from fedactors.sweeps.study import Study

SPLITS = {"32-32": (32, 32), "50-14": (50, 14)}
ALONE = ("vfl", "avfl")
WINDOWED = ("avfl", "avfl-ps", "pubsub-vfl")
PAIRED = ("vfl-ps", "avfl-ps", "pubsub-vfl")
SMALL = {"num_epochs": 15, "target": 0.94}
FULL = {"num_epochs": 50, "target": 0.91}
WINDOWS = (5, 12)


def network() -> Network:
    """Return the links of the comparisons."""
    found = measured("local-link")["local-link"].metrics
    local = Link(latency=found["latency"], bandwidth=found["bandwidth"])
    return Network(local=local, hosts={"broker": "active"})


def settings(method: str, w_a: int, w_p: int, batch_size: int, window: int) -> dict[str, Any]:
    """Return what a point of the grid sets; `window` batches are in flight for each worker of the passive party.

    Messages cost no processor time in the simulation, so that PubSub-VFL's workers report at once and hold few batches.
    """
    return {
        "algorithm": method,
        "num_active_workers": w_a,
        "num_passive_workers": w_p,
        "batch_size": batch_size,
        "embedding_buffer": window,
        "max_in_flight": window * w_p,
        "prefetch": 2,
        "report_interval": 0.0,
    }


def grid(split: str, full: bool) -> list[tuple[str, int, int, int, int]]:
    """Return (method, w_a, w_p, B, window) of one split of the cores."""
    active, passive = SPLITS[split]
    sizes = (16, 32, 64, 128, 256, 512, 1024) if full else (256, 64, 1024)
    if split == "32-32":
        workers = (4, 5, 8, 10, 20, 30, 50) if full else (8, 2, 32, 16, 4)
        pairs = {method: [(w, w) for w in (workers if method in PAIRED else (1,))] for method in (*ALONE, *PAIRED)}
    else:
        pairs = {method: [(passive, passive), (32, 32)] for method in PAIRED}
        # what only PubSub-VFL can do: the parties' workers differ in number
        pairs["pubsub-vfl"] += [(18, passive), (32, passive), (active, passive)]
    return [
        (method, w_a, w_p, size, window)
        for size in sizes
        for method in pairs
        for w_a, w_p in pairs[method]
        for window in (WINDOWS if method in WINDOWED else (1,))
    ]


def points(split: str, full: bool) -> list[Point]:
    """Return the runs of one split of the cores."""
    active, passive = SPLITS[split]
    return [
        Point(
            name=f"{method}-w{w_a:02d}-{w_p:02d}-b{size:04d}" + (f"-p{window:02d}" if method in WINDOWED else ""),
            data="synthetic:1000000x500" if full else "bank",
            settings={**(FULL if full else SMALL), **settings(method, w_a, w_p, size, window)},
            cores={"active": active, "passive": passive},
            network=network(),
        )
        for method, w_a, w_p, size, window in grid(split, full)
    ]


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--split", choices=sorted(SPLITS), action="append", help="cores of both parties (default: all)")
    given = parser.parse_args(namespace=Study())
    for split in given.split or (list(SPLITS)[:1] if given.smoke else SPLITS):
        perform_all(points(split, given.full), f"grid-{split}", given)


if __name__ == "__main__":
    main()
