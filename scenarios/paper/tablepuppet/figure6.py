"""Figure 6: convergence with label DP (lambda 0.5) and feature DP (epsilon 1, delta 1e-5).

FEDACTORS_DATA=... python -m scenarios.paper.tablepuppet.figure6 [--only nycflights13] [--again]
"""

import sys
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import guarded

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.tablepuppet._drawing import draw
from scenarios.paper.tablepuppet._study import Panel, run_panels, study_of

V: dict[str, dict[str, Any]] = {
    "rfl-admm-v": {},
    "rfl-sgd-v": {},
    "rfl-sgd-v clip=1": {"batch_size": 10240, "clip": 1, "learning_rate": 0.1},
}
PARTITIONED: dict[str, dict[str, Any]] = {"rfl-admm": {}, "rfl-sgd": {}}
PANELS = (
    Panel(data="movielens-1m", private=True, rows=V),
    Panel(data="movielens-1m", private=True, num_partitions=2, rows=PARTITIONED),
    Panel(data="nycflights13", task="binary", private=True, rows=V),
    Panel(data="nycflights13", task="binary", private=True, num_partitions=2, rows=PARTITIONED),
)


def main() -> int:
    """Measure what is missing, and draw."""
    study = study_of(__doc__)
    print(draw("figure6", run_panels(PANELS, study), study))
    return 0


if __name__ == "__main__":
    with guarded():
        sys.exit(main())
