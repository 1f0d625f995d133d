"""Table 2: GLASU-1 and GLASU-4 (K = 2) against centralised, standalone and simulated-centralised training.

The runs are those of `choose.py`. What is put here are the paired differences of test accuracies: each method at its
step with the best validation accuracy, and, for those that have the same steps, the mean over all of them.

python scenarios/paper/glasu/table2.py --data cora
"""

from _study import put_differences, put_mean_differences, study_of

CASES = ("simulated-centralised", "centralised", "standalone")

if __name__ == "__main__":
    given = study_of(__doc__)
    pairs = [(f"Q={q:02d}", case) for q in (1, 4) for case in CASES]
    put_differences(given, "table2", "choose", [*pairs, ("centralised", "simulated-centralised")])
    put_mean_differences(given, "table2", "choose", [("Q=01", case) for case in CASES])
