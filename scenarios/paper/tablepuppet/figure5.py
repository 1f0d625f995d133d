"""Figure 5: convergence without privacy, VFL and RFL-V beside RFL with 2 and 4 clients in each organisation.

FEDACTORS_DATA=... python -m scenarios.paper.tablepuppet.figure5 [--only nycflights13] [--again]; then --plot
"""

import sys

from scenarios.paper.tablepuppet.measure import Panel, measure

PANELS = (
    Panel(data="movielens-1m"),
    Panel(data="movielens-1m", num_partitions=2),
    Panel(data="movielens-1m", num_partitions=4),
    Panel(data="movielens-1m", task="multiclass"),
    Panel(data="movielens-1m", task="multiclass", num_partitions=2),
    Panel(data="movielens-1m", neural=True, algorithms=("rfl-admm-v", "rfl-sgd-v")),
    Panel(data="movielens-1m", neural=True, num_partitions=2),
    Panel(data="nycflights13"),
    Panel(data="nycflights13", num_partitions=2),
    Panel(data="nycflights13", num_partitions=4),
    Panel(data="nycflights13", task="binary"),
    Panel(data="nycflights13", task="binary", num_partitions=2),
)
"""Without VFL on the neural model: it takes the steps of RFL-V, in minutes instead of seconds."""

if __name__ == "__main__":
    sys.exit(measure("figure5", PANELS))
