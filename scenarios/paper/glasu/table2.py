"""Table 2: accuracy of GLASU-1 and GLASU-4 (K = 2) against centralised, standalone and simulated-centralised training.

python scenarios/paper/glasu/table2.py --data pubmed [--seeds 0,1,2,3,4] [--full]
"""

from _study import asked, glasu, measure

CASES = ("centralised", "standalone", "simulated-centralised")
ROWS = {case: {"special_case": case} for case in CASES} | {"GLASU-1": glasu(1), "GLASU-4": glasu(4)}

if __name__ == "__main__":
    measure(asked(__doc__), "table2", ROWS)
