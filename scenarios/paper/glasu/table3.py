"""Table 3: accuracy and runtime over the US-UK link with K = 1, 2 and 4 aggregation layers of L = 4.

python scenarios/paper/glasu/table3.py --data pubmed [--seeds 0,1,2,3,4] [--paper]
"""

from _study import glasu, measure, study_of

from scenarios.paper.pairs import difference_row

LAYERS = {4: "0,1,2,3", 2: "1,3", 1: "3"}
ROWS = {f"K={k}": glasu(1, aggregation_layers=layers) for k, layers in LAYERS.items()}

if __name__ == "__main__":
    given = study_of(__doc__)
    measure(given, "table3", ROWS)
    for other in ("K=4", "K=2"):
        ours, theirs = (given.rows(given.study("table3"), name) for name in ("K=1", other))
        row = difference_row(ours, theirs, "test/accuracy")
        if row is not None:
            given.put(given.study("table3-differences"), f"K=1 - {other}", [row])
