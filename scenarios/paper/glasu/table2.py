"""Table 2: accuracy of GLASU-1 and GLASU-4 (K = 2) against centralised, standalone and simulated-centralised training.

python -m scenarios.paper.glasu.table2 --data cora [--seeds 0,1,2,3,4] [--full]
"""

from scenarios.paper.glasu.measure import Row, glasu, measure

ROWS = [
    Row("centralised", {"special_case": "centralised"}),
    Row("standalone", {"special_case": "standalone"}),
    Row("simulated-centralised", {"special_case": "simulated-centralised"}),
    Row("GLASU-1", glasu(1)),
    Row("GLASU-4", glasu(4)),
    Row("GLASU-1-joint", glasu(1, mode="joint")),
    Row("GLASU-4-joint", glasu(4, mode="joint")),
]

if __name__ == "__main__":
    measure("table2", ROWS)
