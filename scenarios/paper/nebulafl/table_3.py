"""Table III: NebulaFL with a part taken away: container choice, hardware choice, its cost or its time factor.

python scenarios/paper/nebulafl/table_3.py [--paper]

Time and money until 94 % on cited hardware and links, with the bytes and work of ResNet-18 (cell 44.7-MB-x1 of
`map.py`); the whole method over each ablation, by seed. All of them leave their masters where they are.
"""

from _study import FULL_IN_CLOUD, TARGET, Row, cloud, cloud_nebulafl, compared, measure

ABLATIONS = ("random-container", "random-resource", "random", "without-cost", "without-time")
BASE = cloud_nebulafl()
ROWS = {"nebulafl": Row(BASE), **{name: Row({**BASE, "ablation": name}) for name in ABLATIONS}}
ROWS["paper-literal"] = Row({**BASE, "paper_literal": True})

if __name__ == "__main__":
    given = measure(
        __doc__, "table-3", ROWS, seeds=(0, 1, 2, 3, 4), targets=(TARGET,), common=cloud(), paper=FULL_IN_CLOUD
    )
    whole = given.rows("table-3", "nebulafl")
    for name in ROWS:
        others = given.rows("table-3", name)
        for metric in ("hours", "dollars") if name != "nebulafl" and whole and others else ():
            given.put(f"table-3-{metric}", f"nebulafl over {name}", [compared(whole, others, metric, handed=False)])
