"""Table I: accuracy after the same virtual time, for three label distributions, of NebulaFL and every baseline.

python -m scenarios.paper.nebulafl.table_1 [--workers 2] [--rows dirichlet-0.5] [--full]

Baselines train on the fastest free hardware, which gives each of them the most trainings in the time; NebulaFL is
shown with its own assignment and with the same policy.
"""

from scenarios.paper.nebulafl.measure import BASELINES, Row, measure

METHODS = {"nebulafl": {}, "nebulafl-fastest": {"resource_policy": "fastest"}} | {
    name: {"algorithm": name, "resource_policy": "fastest"} for name in BASELINES
}
ROWS = [
    Row(f"dirichlet-{alpha:g}/{name}", {"dirichlet": alpha, **settings})
    for alpha in (0.1, 0.5, 1.0)
    for name, settings in METHODS.items()
]

if __name__ == "__main__":
    measure("table-1", ROWS)
