"""Table 2: accuracy of GLASU-1 and GLASU-4 (K = 2) against centralised, standalone and simulated-centralised training.

Each method at its best step of those that `choose.py` tried, and the paired differences.

python scenarios/paper/glasu/table2.py --data cora [--seeds 0,1,2,3,4] [--full]
"""

from _study import asked, best_rates, glasu, measure, put_differences

CASES = ("simulated-centralised", "centralised", "standalone")
LOCAL_UPDATES = (1, 4, 8, 16)

if __name__ == "__main__":
    given = asked(__doc__)
    rates = best_rates(given)
    rows = {case: {"special_case": case, "learning_rate": rates[case]} for case in CASES if case in rates}
    rows |= {f"GLASU-{q}": glasu(q, learning_rate=rates[f"Q={q:02d}"]) for q in LOCAL_UPDATES if f"Q={q:02d}" in rates}
    measure(given, "table2", rows)
    put_differences(given, "table2", [(f"GLASU-{q}", case) for q in LOCAL_UPDATES for case in CASES], "test/accuracy")
