"""Figure 2: bytes and transfers of models between centers: rotation, aggregation, baselines by center and flat.

python -m scenarios.paper.nebulafl.figure_2 [--workers 2]

NebulaFL's first self turn comes at rotation |C| - 1; the counts are over whole cycles of |C| rotations.
"""

from scenarios.paper.nebulafl.measure import Row, measure

METHODS = {"nebulafl": {}, "aggregation": {"ablation": "aggregation"}} | {
    name: {"algorithm": name} for name in ("fedavg", "fedavg-hierarchical", "fedbuff")
}
ROWS = [
    Row(f"{centers}-centers-{name}", {"num_centers": centers, "num_containers": 10 * centers, **settings})
    for centers in (4, 6, 8)
    for name, settings in METHODS.items()
]

if __name__ == "__main__":
    measure(
        "figure-2", ROWS, seeds="0", num_epochs=1, rotation_interval=250.0, duration=2100.0, evaluation_interval=2100.0,
        active_per_center=2,
    )  # fmt: skip
