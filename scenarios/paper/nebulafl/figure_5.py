"""Figure 5: rotation against aggregation of masters, and the interval t_c between them.

python -m scenarios.paper.nebulafl.figure_5 [--workers 2]
"""

from scenarios.paper.nebulafl.measure import Row, measure

ROWS = [
    Row(f"{word}-{interval}", {"rotation_interval": float(interval), "ablation": ablation})
    for interval in (500, 1000, 2000)
    for word, ablation in (("rotation", "none"), ("aggregation", "aggregation"))
]

if __name__ == "__main__":
    measure("figure-5", ROWS, seeds="0,1,2", dirichlet=0.5)
