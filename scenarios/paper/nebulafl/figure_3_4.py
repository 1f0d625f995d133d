"""Figures 3 and 4: other numbers of centers, of containers, and of containers active at a time.

python scenarios/paper/nebulafl/figure_3_4.py [--only centers] [--full]

All methods train on the fastest free hardware.
"""

from _curves import draw
from _study import Row, chosen, measure

METHODS = ("nebulafl", "fedavg", "fedhisyn", "pisces")
SETTINGS = (
    {f"{count} centers": {"num_centers": count, "num_containers": 10 * count} for count in (4, 6, 8)}
    | {f"{count} containers": {"num_containers": count} for count in (40, 100, 200)}
    | {f"{count} active in a center": {"num_containers": 60, "active_per_center": count} for count in (2, 5, 10, 15)}
)
FIXED = {"resource_policy": "fastest", "dirichlet": 0.5}
ROWS = {
    f"{name.replace(' ', '-')}/{method}": Row({**chosen(method), **FIXED, **settings})
    for name, settings in SETTINGS.items()
    for method in METHODS
}

if __name__ == "__main__":
    study = measure(__doc__, "figure-3-4", ROWS, seeds=(0,))
    for number, word in (("3", "centers"), ("4a", "containers"), ("4b", "active")):
        panels = {
            name: {method: (f"figure-3-4/{name.replace(' ', '-')}", method) for method in METHODS}
            for name in SETTINGS
            if f" {word}" in name
        }
        draw(study, f"figure-{number}", panels)
