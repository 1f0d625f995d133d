"""The planner's prediction beside the measured epoch of every point of the simulated grids (Section 4.3).

Predicted from the committed cost model and the link alone; measured by `comparison.py`, without the evaluation. `epoch`
is the default objective, `decoupled` that in which the parties' workers may differ in number; `without_hops` is the
latter as the paper models it, without latency.
"""

from __future__ import annotations

import dataclasses
import json

from _predict import problem
from _study import RESULTS, flags, write

from fedactors.records.metrics import Summary
from fedactors.records.study import Study
from protocols.pubsub_vfl import planner
from protocols.pubsub_vfl.planner import Objective

OBJECTIVES: tuple[Objective, ...] = ("epoch", "decoupled")


def main() -> None:
    given = flags(__doc__).parse_intermixed_args(namespace=Study())
    for folder in sorted(RESULTS.glob("grid-*")):
        files = sorted(folder.glob("pubsub-vfl*.json"))
        for file in files[:1] if given.smoke else files:
            if not given.wants(file.stem):
                continue
            values = json.loads(file.read_text())
            run = Summary.from_dict(values["runs"][0] if "runs" in values else values)
            settings = {key: value for key, value in run.extra["settings"].items() if value is not None}
            made = problem(
                settings,
                "breast-cancer" if given.smoke else run.extra["data"],
                run.extra["cores"],
                run.extra["num_rows"],
            )
            setting = (settings["num_active_workers"], settings["num_passive_workers"], settings["batch_size"])
            predicted = {name: planner.cost(made, *setting, name) for name in OBJECTIVES}
            plain = planner.cost(dataclasses.replace(made, latency=0.0), *setting, "decoupled")
            measured = run.metrics["training_per_epoch"]
            metrics = {
                "measured": measured,
                **predicted,
                "without_hops": plain,
                "measured_over_decoupled": measured / predicted["decoupled"],
            }
            target = given.out / folder.name.replace("grid", "planning") / file.name
            write(target, [dataclasses.replace(run, metrics=metrics, extra={})])


if __name__ == "__main__":
    main()
