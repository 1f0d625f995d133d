"""Figures 3 and 4: other numbers of centers, of containers, and of containers active at a time, on cited hardware.

python scenarios/paper/nebulafl/figure_3_4.py [--only centers]

Time to 94 % of digits with a model of 44.7 MB, all methods on the fastest free hardware, and NebulaFL's over the best
baseline's. Four centers with 40 containers, five active in each, are the cell 44.7-MB-x1 of `map.py`.
"""

from _study import Row, chosen, cloud, cloud_nebulafl, compared, measure, spent

from fedactors.records.compare import median_spent

METHODS = ("nebulafl", "fedavg", "fedavg-hierarchical", "fedhisyn", "fedasync")
SETTINGS = (
    {f"{count}-centers": {"num_centers": count, "num_containers": 10 * count} for count in (6, 8)}
    | {f"{count}-containers": {"num_containers": count} for count in (100, 200)}
    | {f"{count}-active": {"num_containers": 60, "active_per_center": count} for count in (2, 5, 10, 15)}
)
COMMON = {**cloud(), "resource_policy": "fastest", "duration": 20.0}
ROWS = {
    f"{name}/{method}": Row({**(cloud_nebulafl() if method == "nebulafl" else chosen(method)), **settings})
    for name, settings in SETTINGS.items()
    for method in METHODS
}

if __name__ == "__main__":
    given = measure(__doc__, "figure-3-4", ROWS, seeds=(0, 1, 2), targets=(0.94,), common=COMMON)
    for setting in SETTINGS:
        found = {method: given.rows(f"figure-3-4/{setting}", method) for method in METHODS}
        if all(found.values()):
            best = min(METHODS[1:], key=lambda method: median_spent(found[method], spent("hours")))
            row = compared(found["nebulafl"], found[best], "hours")
            given.put("figure-3-4-hours", f"{setting}, nebulafl over {best}", [row])
