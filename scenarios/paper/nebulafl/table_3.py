"""Table III: NebulaFL with a part taken away: container choice, hardware choice, its cost or its time factor.

python scenarios/paper/nebulafl/table_3.py [--full]
"""

from _study import DIGITS, Row, chosen, measure

ABLATIONS = ("random", "random-resource", "random-container", "without-cost", "without-time")
BASE = {**chosen("nebulafl"), "dirichlet": 0.5}
ROWS = {"nebulafl": Row(BASE), **{name: Row({**BASE, "ablation": name}) for name in ABLATIONS}}
ROWS["paper-literal"] = Row({**BASE, "paper_literal": True})
COMMON = {**DIGITS, "duration": 8000.0, "evaluation_interval": 250.0}

if __name__ == "__main__":
    measure(__doc__, "table-3", ROWS, seeds=(0, 1, 2), targets=(0.9, 0.94), common=COMMON)
