"""Figures 3 and 4: other numbers of centers, of containers, and of containers active at a time.

python scenarios/paper/nebulafl/figure_3_4.py [--only centers] [--full]

Time until 94 % on cited hardware and links, with the bytes and work of ResNet-18 (cell 44.7-MB-x1 of `map.py`), all on
the fastest free hardware: NebulaFL over hierarchical FedAvg, which is the best baseline there. 28 s are the most.
"""

from _study import SPAN, TARGET, Row, cloud, cloud_chosen, compared, measure

METHODS = ("nebulafl", "fedavg-hierarchical")
SETTINGS = (
    {f"{count}-centers": {"num_centers": count, "num_containers": 10 * count} for count in (4, 6, 8)}
    | {f"{count}-containers": {"num_containers": count} for count in (100, 200)}
    | {f"{count}-active-in-a-center": {"num_containers": 60, "active_per_center": count} for count in (2, 5, 10, 15)}
)
ROWS = {
    f"{name}/{method}": Row({**cloud_chosen(method), **settings})
    for name, settings in SETTINGS.items()
    for method in METHODS
}
COMMON = {**cloud(), "duration": 2 * SPAN, "resource_policy": "fastest"}

if __name__ == "__main__":
    given = measure(__doc__, "figure-3-4", ROWS, seeds=(0, 1, 2, 3, 4), targets=(TARGET,), common=COMMON, full={})
    for name in SETTINGS:
        ours, theirs = (given.rows(f"figure-3-4/{name}", method) for method in METHODS)
        for metric in ("hours", "dollars") if ours and theirs else ():
            given.put(f"figure-3-4-{metric}", name, [compared(ours, theirs, metric)])
