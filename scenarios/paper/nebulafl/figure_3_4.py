"""Figures 3 and 4: NebulaFL with other numbers of centers, containers, and containers active at a time.

python -m scenarios.paper.nebulafl.figure_3_4 [--workers 2]
"""

from scenarios.paper.nebulafl.measure import Row, measure

ROWS = (
    [Row(f"centers-{count}", {"num_centers": count, "num_containers": 48}) for count in (4, 6, 8)]
    + [Row(f"containers-{count}", {"num_containers": count}) for count in (40, 100, 200)]
    + [Row(f"active-{count}", {"num_containers": 60, "active_per_center": count}) for count in (2, 5, 10, 15)]
)

if __name__ == "__main__":
    measure("figure-3-4", ROWS, seeds="0", dirichlet=0.5)
