"""Figure 2: bytes and transfers of models between centers: rotation, aggregation, baselines by center and flat.

python scenarios/paper/nebulafl/figure_2.py

NebulaFL's first self turn comes at rotation |C| - 1; eight rotations are whole cycles for four and eight centers.
"""

from _study import DIGITS, Row, measure

METHODS = {"nebulafl": {}, "aggregation": {"ablation": "aggregation"}} | {
    name: {"algorithm": name} for name in ("fedavg", "fedavg-hierarchical", "fedhisyn", "fedsa", "pisces", "fedbuff")
}
ROWS = {
    f"{centers}-centers-{name}": Row({"num_centers": centers, "num_containers": 10 * centers, **settings})
    for centers in (4, 6, 8)
    for name, settings in METHODS.items()
}
COMMON = {
    **DIGITS, "num_epochs": 1, "rotation_interval": 250.0, "duration": 2100.0, "evaluation_interval": 2100.0,
    "active_per_center": 2,
}  # fmt: skip

if __name__ == "__main__":
    measure(__doc__, "figure-2", ROWS, seeds=(0,), common=COMMON)
