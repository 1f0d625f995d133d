"""Table III: NebulaFL with a part taken away: container choice, hardware choice, its cost or its time factor.

python scenarios/paper/nebulafl/table_3.py [--full]
"""

from _study import DIGITS, Row, chosen, measure

ROWS = [Row("nebulafl", {**chosen("nebulafl"), "dirichlet": 0.5})] + [
    Row(name, {**chosen("nebulafl"), "dirichlet": 0.5, "ablation": name})
    for name in ("random", "random-resource", "random-container", "without-cost", "without-time")
]
ROWS.append(Row("paper-literal", {**chosen("nebulafl"), "dirichlet": 0.5, "paper_literal": True}))
COMMON = {**DIGITS, "duration": 8000.0, "evaluation_interval": 250.0}

if __name__ == "__main__":
    measure(__doc__, "table-3", ROWS, seeds=(0, 1, 2), targets=(0.9, 0.94), common=COMMON)
