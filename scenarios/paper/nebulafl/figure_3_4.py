"""Figures 3 and 4: other numbers of centers, of containers, and of containers active at a time.

python scenarios/paper/nebulafl/figure_3_4.py [--only centers] [--paper]

Time until 94 % on cited hardware and links, with the bytes and work of ResNet-18 (cell 44.7-MB-x1 of `map.py`):
NebulaFL on the fastest free hardware over hierarchical FedAvg, which is the best baseline there, on the fastest or the
cheapest, whichever serves it better. 28 s are the most. No other baseline is run with the other numbers.
"""

from _study import SPAN, TARGET, Row, cloud, cloud_chosen, compared, measure, spent

from fedactors.runs.table import RunRow
from scenarios.paper.pairs import median_spent

OURS = "nebulafl"
BASELINE = "fedavg-hierarchical"
CHEAPEST = f"{BASELINE}-cheapest"
METHODS = {
    OURS: cloud_chosen(OURS),
    BASELINE: cloud_chosen(BASELINE),
    CHEAPEST: {**cloud_chosen(BASELINE), "resource_policy": "cheapest", "price_rule": "training"},
}
SETTINGS = (
    {f"{count}-centers": {"num_centers": count, "num_containers": 10 * count} for count in (4, 6, 8)}
    | {f"{count}-containers": {"num_containers": count} for count in (100, 200)}
    | {f"{count}-active-in-a-center": {"num_containers": 60, "active_per_center": count} for count in (2, 5, 10, 15)}
)
ROWS = {
    f"{name}/{method}": Row({**how, **settings})
    for name, settings in SETTINGS.items()
    for method, how in METHODS.items()
}
COMMON = {**cloud(), "duration": 2 * SPAN, "resource_policy": "fastest"}

if __name__ == "__main__":
    given = measure(__doc__, "figure-3-4", ROWS, seeds=(0, 1, 2, 3, 4), targets=(TARGET,), common=COMMON, paper={})
    for metric in ("hours", "dollars"):
        ratios: dict[str, RunRow] = {}
        for name in SETTINGS:
            found = {method: given.rows(f"figure-3-4/{name}", method) for method in METHODS}
            ours = found.pop(OURS)
            if ours and all(found.values()):
                best = min(found, key=lambda method: median_spent(found[method], spent(metric)))
                ratios[f"{name}, over {best}"] = compared(ours, found[best], metric)
        if ratios:
            given.replace(f"figure-3-4-{metric}", ratios)
