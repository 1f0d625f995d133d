"""Figure 2: bytes and transfers of models between centers: rotation, aggregation, baselines by center and flat.

python scenarios/paper/nebulafl/figure_2.py

On cited links, with a model of 44.7 MB. NebulaFL's first self turn comes at rotation |C| - 1; eight rotations are whole
cycles for four and eight centers.
"""

from _study import Row, cloud, cloud_nebulafl, measure

METHODS = {"nebulafl": {}, "aggregation": {"ablation": "aggregation"}} | {
    name: {"algorithm": name} for name in ("fedavg", "fedavg-hierarchical", "fedhisyn", "fedsa", "pisces", "fedbuff")
}
ROWS = {
    f"{centers}-centers-{name}": Row({"num_centers": centers, "num_containers": 10 * centers, **settings})
    for centers in (4, 6, 8)
    for name, settings in METHODS.items()
}
INTERVAL = cloud_nebulafl()["rotation_interval"]
SPAN = 8.4 * INTERVAL
COMMON = {
    **cloud(), "num_epochs": 1, "rotation_interval": INTERVAL, "duration": SPAN, "evaluation_interval": SPAN,
    "active_per_center": 2, "resource_policy": "fastest", "stop_at_target": False,
}  # fmt: skip

if __name__ == "__main__":
    measure(__doc__, "figure-2", ROWS, seeds=(0,), common=COMMON)
