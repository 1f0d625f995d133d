"""The learning rate for each method of Table 2 and each number Q of local updates, by validation accuracy.

Over all seeds. Every method of Table 2 is tried at as many steps; a row's test accuracy is the method's at this step.

python scenarios/paper/glasu/choose.py --data cora [--only Q=04] [--seeds 0,1,2,3,4]
"""

from _study import glasu, measure, study_of

CASES = ("centralised", "standalone", "simulated-centralised")
STEPS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
GRID = {
    1: STEPS,
    4: (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016),
    8: (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008),
    16: (0.000125, 0.00025, 0.0005, 0.001, 0.002, 0.004),
}
ROWS = {f"Q={q:02d}-rate={rate}": glasu(q, learning_rate=rate) for q in GRID for rate in GRID[q]}
ROWS |= {f"{case}-rate={rate}": {"special_case": case, "learning_rate": rate} for case in CASES for rate in STEPS}

if __name__ == "__main__":
    measure(study_of(__doc__), "choose", ROWS)
