"""Figure 5: rotation against aggregation of masters, and the interval t_c between them.

python scenarios/paper/nebulafl/figure_5.py [--full]
"""

from _curves import draw
from _study import Row, chosen, measure

INTERVALS = (500, 1000, 1500, 2000)
ROWS = [
    Row(
        f"{word}-{interval}",
        {
            **chosen("nebulafl"), "resource_policy": "fastest", "dirichlet": 0.1, "rotation_interval": float(interval),
            "ablation": ablation,
        },
    )
    for interval in INTERVALS
    for word, ablation in (("rotation", "none"), ("aggregation", "aggregation"))
]  # fmt: skip

if __name__ == "__main__":
    study = measure(__doc__, "figure-5", ROWS, seeds=(0, 1, 2))
    panels = {
        f"every {interval} s": {word: f"figure-5/{word}-{interval}" for word in ("rotation", "aggregation")}
        for interval in INTERVALS
    }
    panels["rotation"] = {f"{interval} s": f"figure-5/rotation-{interval}" for interval in INTERVALS}
    draw(study, "figure-5", panels, columns=5)
