"""Mode joint and sampled training beside Table 2's mode paper on the full graph, each at the same number of steps.

python scenarios/paper/glasu/joint.py --data cora [--seeds 0,1,2,3,4] [--full]

Sampled: 64 training nodes a round, three neighbours a node and layer. What is compared with Table 2 is each at its best
step by validation accuracy.
"""

from typing import Any

from _study import asked, glasu, measure, put_differences
from choose import GRID

HOW: dict[str, dict[str, Any]] = {"joint": {"mode": "joint"}, "sampled": {"batch_size": 64, "num_neighbours": 3}}
ROWS = {
    f"GLASU-{q}-{name}-rate={rate}": glasu(q, learning_rate=rate, **settings)
    for name, settings in HOW.items()
    for q in (1, 4)
    for rate in GRID[q]
}

if __name__ == "__main__":
    given = asked(__doc__)
    measure(given, "joint", ROWS)
    pairs = [(f"GLASU-{q}-{name}", f"Q={q:02d}") for name in HOW for q in (1, 4)]
    put_differences(given, "joint-differences", "joint", pairs)
