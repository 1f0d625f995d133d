"""Table II: hours and dollars until a target accuracy, each method with each resource policy; the best is its own.

python -m scenarios.paper.nebulafl.table_2 [--workers 2] [--rows fedavg] [--full]
"""

from scenarios.paper.nebulafl.measure import BASELINES, POLICIES, Row, measure

ROWS = [
    Row(f"{name}-{policy}", {"algorithm": name, "resource_policy": policy})
    for name in ("nebulafl", *BASELINES)
    for policy in POLICIES
]

if __name__ == "__main__":
    measure("table-2", ROWS, seeds="0", target=0.85, dirichlet=0.5, duration=8000.0, evaluation_interval=500.0)
