"""Mode joint and sampled training beside Table 2's mode paper on the full graph, each at the same steps.

python scenarios/paper/glasu/joint.py --data cora [--seeds 0,1,2,3,4] [--only joint]

Sampled: 64 training nodes a round, three neighbours a node and layer. A pass over Cora's 420 training nodes takes seven
such rounds, so that a run may have four times as many and is evaluated a quarter as often: it is chosen from as many
evaluations as one on the full graph, and stopped after 23 passes without a better one. What is compared is each at its
best step by validation accuracy, if all were run, and the mean over the steps at which both were.
"""

from typing import Any

from _study import glasu, measure, put_differences, put_mean_differences, steps_of, study_of
from choose import GRID

HOW: dict[str, dict[str, Any]] = {
    "joint": {"mode": "joint"},
    "sampled": {"batch_size": 64, "num_neighbours": 3, "num_rounds": 600, "evaluate_every": 20},
}
ROWS = {
    f"GLASU-{q}-{name}-rate={rate}": glasu(q, learning_rate=rate, **settings)
    for name, settings in HOW.items()
    for q in (1, 4)
    for rate in GRID[q]
}

if __name__ == "__main__":
    given = study_of(__doc__)
    measure(given, "joint", ROWS)
    pairs = {q: [(f"GLASU-{q}-{name}", f"Q={q:02d}") for name in HOW] for q in (1, 4)}
    for q, of_q in pairs.items():
        put_mean_differences(given, "joint-differences", "joint", of_q)
        # a best step is one of all steps
        whole = [(ours, theirs) for ours, theirs in of_q if set(GRID[q]) <= steps_of(given, "joint", ours)]
        put_differences(given, "joint-differences", "joint", whole)
