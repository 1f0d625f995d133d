"""Figure 2: bytes and transfers of models between centers: rotation, aggregation, baselines by center and flat.

python scenarios/paper/nebulafl/figure_2.py [--only cloud]

NebulaFL's first self turn comes at rotation |C| - 1; eight rotations are whole cycles for four and eight centers.
``cloud`` are the same rows on cited hardware and links, with the bytes and work of ResNet-18 (cell 44.7-MB-x1 of
`map.py`): as many trainings in a row on the fastest card between two rotations, and so many rotations.
"""

from typing import Any

from _study import DIGITS, Row, cloud, cloud_nebulafl, measure

METHODS: dict[str, dict[str, Any]] = {"nebulafl": {}, "aggregation": {"ablation": "aggregation"}} | {
    name: {"algorithm": name} for name in ("fedavg", "fedavg-hierarchical", "fedhisyn", "fedsa", "pisces", "fedbuff")
}
INTERVAL = cloud_nebulafl()["rotation_interval"]
CLOUD = {
    **cloud(), "target_accuracy": None, "stop_at_target": False,
    "rotation_interval": INTERVAL, "duration": 8.4 * INTERVAL, "evaluation_interval": 8.4 * INTERVAL,
}  # fmt: skip
ROWS = {
    f"{folder}{centers}-centers-{name}": Row(
        {**common, "num_centers": centers, "num_containers": 10 * centers, **settings}
    )
    for folder, common in (("", {}), ("cloud/", CLOUD))
    for centers in (4, 6, 8)
    for name, settings in METHODS.items()
}
COMMON = {
    **DIGITS, "local_epochs": 1, "rotation_interval": 250.0, "duration": 2100.0, "evaluation_interval": 2100.0,
    "active_per_center": 2,
}  # fmt: skip

if __name__ == "__main__":
    measure(__doc__, "figure-2", ROWS, seeds=(0,), common=COMMON)
