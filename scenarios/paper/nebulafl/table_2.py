"""Table II: hours and dollars until two target accuracies, each method with each hardware policy; the best is its own.

python scenarios/paper/nebulafl/table_2.py [--only fedavg] [--full]

For methods without versions NebulaFL's assignment is the cheapest policy, so only NebulaFL and GitFL have that row.
"""

from _study import BASELINES, DIGITS, POLICIES, Row, chosen, measure

ROWS = {
    f"{name}-{policy}": Row({**chosen(name), "resource_policy": policy, "dirichlet": 0.5})
    for name in ("nebulafl", *BASELINES)
    for policy in (*POLICIES, *(("nebulafl",) if name in ("nebulafl", "gitfl") else ()))
    if name != "fedhkt"  # it reaches neither target within the time
}
COMMON = {**DIGITS, "duration": 8000.0, "evaluation_interval": 250.0}

if __name__ == "__main__":
    measure(__doc__, "table-2", ROWS, seeds=(0, 1), targets=(0.9, 0.94), common=COMMON)
