"""Figure 6: convergence with label DP (lambda 0.5) and feature DP (epsilon 1, delta 1e-5, clip 1).

FEDACTORS_DATA=... python -m scenarios.paper.tablepuppet.figure6 [--only nycflights13] [--again]; then --plot
"""

import sys

from scenarios.paper.tablepuppet.measure import Panel, measure

V = ("rfl-admm-v", "rfl-sgd-v")
PANELS = (
    Panel(data="movielens-1m", private=True, algorithms=V),
    Panel(data="movielens-1m", private=True, num_partitions=2),
    Panel(data="nycflights13", task="binary", private=True, algorithms=V),
    Panel(data="nycflights13", task="binary", private=True, num_partitions=2),
)

if __name__ == "__main__":
    sys.exit(measure("figure6", PANELS))
