"""Figure 5: convergence without privacy, VFL and RFL-V beside RFL with 2 and 4 clients in each organisation.

FEDACTORS_DATA=... python -m scenarios.paper.tablepuppet.figure5 [--only nycflights13] [--again] [--paper]
"""

import sys
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import guarded

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.tablepuppet._drawing import draw
from scenarios.paper.tablepuppet._study import Panel, run_panels, study_of

V: dict[str, dict[str, Any]] = {"rfl-admm-v": {}, "rfl-sgd-v": {}}
VERTICAL: dict[str, dict[str, Any]] = {**V, "vfl-admm": {}, "vfl-sgd": {}}
PARTITIONED: dict[str, dict[str, Any]] = {"rfl-admm": {}, "rfl-sgd": {}}
EXACT: dict[str, dict[str, Any]] = {
    "centralised lbfgs": {"centralised": "exact", "num_rounds": 1, "lbfgs_iterations": 200}
}
"""Beside the centralised SGD of ten epochs that the neural models are compared with: what far more steps reach."""
MOVIELENS, FLIGHTS = "movielens-1m", "nycflights13"
PANELS = (
    Panel(data=MOVIELENS, rows=VERTICAL),
    Panel(data=MOVIELENS, num_partitions=2, rows=PARTITIONED),
    Panel(data=MOVIELENS, num_partitions=4, rows=PARTITIONED),
    Panel(data=MOVIELENS, task="multiclass", rows=VERTICAL),
    Panel(data=MOVIELENS, task="multiclass", num_partitions=2, rows=PARTITIONED),
    Panel(data=MOVIELENS, neural=True, rows=V | EXACT),
    Panel(data=MOVIELENS, neural=True, num_partitions=2, rows=PARTITIONED),
    Panel(data=FLIGHTS, rows=VERTICAL),
    Panel(data=FLIGHTS, num_partitions=2, rows=PARTITIONED),
    Panel(data=FLIGHTS, num_partitions=4, rows=PARTITIONED),
    Panel(data=FLIGHTS, task="binary", rows=VERTICAL),
    Panel(data=FLIGHTS, task="binary", num_partitions=2, rows=PARTITIONED),
    Panel(data=FLIGHTS, task="binary", num_partitions=4, rows=PARTITIONED),
    Panel(data=FLIGHTS, neural=True, rows=V | EXACT),
    Panel(data=FLIGHTS, neural=True, num_partitions=2, rows=PARTITIONED),
)
"""VFL on the neural models is left to ``--paper``: it takes the steps of RFL-V, in many times its seconds."""
FULL = (
    *PANELS[:5],
    Panel(data=MOVIELENS, neural=True, rows=VERTICAL | EXACT),
    *PANELS[6:13],
    Panel(data=FLIGHTS, neural=True, rows=VERTICAL | EXACT),
    PANELS[14],
    Panel(data=MOVIELENS, task="multiclass", num_partitions=4, rows=PARTITIONED),
    Panel(data=MOVIELENS, neural=True, num_partitions=4, rows=PARTITIONED),
    Panel(data=FLIGHTS, neural=True, num_partitions=4, rows=PARTITIONED),
)


def main() -> int:
    """Measure what is missing, and draw."""
    study = study_of(__doc__)
    print(draw("figure5", run_panels(FULL if study.paper else PANELS, study), study))
    return 0


if __name__ == "__main__":
    with guarded():
        sys.exit(main())
