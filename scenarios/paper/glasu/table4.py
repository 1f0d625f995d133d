"""Table 4: time and bytes to a test accuracy with Q = 1, 2, 4, 8 and 16 local updates, over the US-UK link.

Each Q has as many steps. A run is cut off after a few rounds, since what counts is how soon the target is reached; each
Q is then taken at the step at which all its seeds reach it soonest, and compared with Q = 1 over the same seeds.

python scenarios/paper/glasu/table4.py --data cora [--seeds 0,1,2,3,4] [--only Q=01,Q=04] [--paper]
"""

import statistics

from _study import GlasuStudy, glasu, measure, study_of

from scenarios.paper.pairs import difference_row

GRID = {
    1: (0.01, 0.02, 0.04, 0.08),
    2: (0.004, 0.008, 0.016, 0.032),
    4: (0.002, 0.004, 0.008, 0.016),
    8: (0.001, 0.002, 0.004, 0.008),
    16: (0.0005, 0.001, 0.002, 0.004),
}
ROWS = {f"Q={q:02d}-rate={rate}": glasu(q, learning_rate=rate) for q in GRID for rate in GRID[q]}
TIME = "seconds_to_target"


def quickest(study: GlasuStudy, q: int) -> str:
    """Return the row of Q whose seeds all reach the target, soonest on average; empty if there is none."""
    times = {}
    for name in (f"Q={q:02d}-rate={rate}" for rate in GRID[q]):
        rows = study.rows(study.study("table4"), name)
        if rows and all(TIME in row.metrics for row in rows):
            times[name] = statistics.fmean(row.metrics[TIME] for row in rows)
    return min(times, key=times.__getitem__, default="")


if __name__ == "__main__":
    given = study_of(__doc__)
    target = {"cora": 0.80, "pubmed": 0.82}
    measure(given, "table4", ROWS, target=target, evaluate_every=1, num_rounds=30, patience=None)
    one = quickest(given, 1)
    for more in filter(None, (quickest(given, q) for q in GRID if q > 1)):
        ours, theirs = (given.rows(given.study("table4"), name) for name in (more, one))
        row = difference_row(ours, theirs, TIME) if one else None
        if row is not None:
            given.put(given.study("table4-differences"), f"{more} - {one}", [row])
