"""Table III: NebulaFL with a part taken away: container choice, hardware choice, its cost or its time factor.

On cited hardware and links, with a model of 44.7 MB, until 94 % of the digits.

python scenarios/paper/nebulafl/table_3.py
"""

from _study import Row, cloud, cloud_nebulafl, measure

ABLATIONS = ("random", "random-resource", "random-container", "without-cost", "without-time")
BASE = cloud_nebulafl()
ROWS = {"nebulafl": Row(BASE), **{name: Row({**BASE, "ablation": name}) for name in ABLATIONS}}
ROWS["paper-literal"] = Row({**BASE, "paper_literal": True})

if __name__ == "__main__":
    measure(__doc__, "table-3", ROWS, seeds=range(5), targets=(0.9, 0.94), common=cloud())
