"""Table III: NebulaFL with a part taken away: container choice, hardware choice, its cost or its time factor.

python -m scenarios.paper.nebulafl.table_3 [--workers 2] [--full]
"""

from scenarios.paper.nebulafl.measure import Row, measure

ROWS = [Row("nebulafl")] + [
    Row(name, {"ablation": name})
    for name in ("random", "random-resource", "random-container", "without-cost", "without-time")
]
ROWS.append(Row("paper-literal", {"paper_literal": True}))

if __name__ == "__main__":
    measure("table-3", ROWS, seeds="0,1,2", target=0.85, dirichlet=0.5, duration=8000.0, evaluation_interval=500.0)
