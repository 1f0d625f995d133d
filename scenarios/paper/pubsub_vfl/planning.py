"""The planner's prediction beside the measured epoch of every point of the simulated grids (Section 4.3).

Predicted from the committed cost model and the link alone; measured by `comparison.py`, without the evaluation. `epoch`
is the default objective, `decoupled` that in which the parties' workers may differ in number; `without_hops` is the
latter as the paper models it, without latency.
"""

from __future__ import annotations

import dataclasses

from _predict import problem
from _study import asked, measured

from protocols.pubsub_vfl import planner
from protocols.pubsub_vfl.planner import Objective

OBJECTIVES: tuple[Objective, ...] = ("epoch", "decoupled")


def main() -> None:
    given = asked(__doc__)
    for split in ("32-32", "50-14"):
        found = {name: row for name, row in measured(f"grid-{split}").items() if name.startswith("pubsub-vfl")}
        for name, row in list(found.items())[: 1 if given.smoke else None]:
            if not given.wants(name):
                continue
            settings = row.config
            data = "breast-cancer" if given.smoke else row.data
            made = problem(settings, data, row.extra["cores"], row.extra["num_rows"])
            setting = (settings["num_active_workers"], settings["num_passive_workers"], settings["batch_size"])
            predicted: dict[str, float] = {
                objective: planner.cost(made, *setting, objective) for objective in OBJECTIVES
            }
            plain = planner.cost(dataclasses.replace(made, latency=0.0), *setting, "decoupled")
            epoch = row.metrics["training_per_epoch"]
            metrics = {
                "measured": epoch,
                **predicted,
                "without_hops": plain,
                "measured_over_decoupled": epoch / predicted["decoupled"],
            }
            given.put(f"planning-{split}", name, [dataclasses.replace(row, metrics=metrics, extra={}, curve={})])


if __name__ == "__main__":
    main()
