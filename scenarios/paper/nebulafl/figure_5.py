"""Figure 5: rotation against aggregation of masters, and the interval t_c between them.

python scenarios/paper/nebulafl/figure_5.py [--paper]
"""

from _curves import draw
from _study import Row, chosen, measure

from scenarios.paper.pairs import difference_row

INTERVALS = (500, 1000, 1500, 2000)
FIXED = {**chosen("nebulafl"), "resource_policy": "fastest", "dirichlet": 0.1}
ROWS = {
    f"{word}-{interval}": Row({**FIXED, "rotation_interval": float(interval), "ablation": ablation})
    for interval in INTERVALS
    for word, ablation in (("rotation", "none"), ("aggregation", "aggregation"))
}

if __name__ == "__main__":
    study = measure(__doc__, "figure-5", ROWS, seeds=(0, 1, 2))
    panels = {
        f"every {interval} s": {word: ("figure-5", f"{word}-{interval}") for word in ("rotation", "aggregation")}
        for interval in INTERVALS
    }
    panels["rotation"] = {f"{interval} s": ("figure-5", f"rotation-{interval}") for interval in INTERVALS}
    draw(study, "figure-5", panels, columns=5)
    pairs = [(f"rotation-{interval}", f"aggregation-{interval}") for interval in INTERVALS]
    for names in (*pairs, ("rotation-500", "rotation-2000")):
        ours, theirs = (study.rows("figure-5", name) for name in names)
        row = difference_row(ours, theirs, "test/accuracy")
        if row is not None:
            study.put("figure-5-differences", " - ".join(names), [row])
