"""Table 2: accuracy of GLASU-1 and GLASU-4 (K = 2) against centralised, standalone and simulated-centralised training.

python scenarios/paper/glasu/table2.py --data pubmed [--seeds 0,1,2,3,4] [--full]
"""

from _study import Row, asked, glasu, measure

ROWS = [
    Row("centralised", {"special_case": "centralised"}),
    Row("standalone", {"special_case": "standalone"}),
    Row("simulated-centralised", {"special_case": "simulated-centralised"}),
    Row("GLASU-1", glasu(1)),
    Row("GLASU-4", glasu(4)),
]

if __name__ == "__main__":
    measure(asked(__doc__), "table2", ROWS)
