"""The fitted delay constants of this machine as a table (Figure 8 and Table 8), from the committed cost model.

Measured by `scenarios/benchmarks/compute_costs.py`: seconds per batch on one core, ten layers of width 64 over 250
columns. The paper's constants are of its own machine, in seconds per sample.
"""

from __future__ import annotations

import json

from _study import RESULTS, flags, write

from fedactors.records.metrics import Summary
from fedactors.records.study import Study

KINDS = ("bottom-forward", "bottom-backward", "top-forward", "top-step", "active-step")


def main() -> None:
    given = flags(__doc__).parse_intermixed_args(namespace=Study())
    model = json.loads((RESULTS / "cost_model.json").read_text())
    for kind in KINDS:
        law, affine = model["power_laws"][kind], model["kinds"][kind]
        metrics = {
            **law,
            "fixed": affine["fixed"],
            "per_layer": affine["per_layer"],
            "per_operation": affine["per_operation"],
            "median_error": affine["median_relative_error"],
            "largest_error": affine["largest_relative_error"],
        }
        nothing = {"bytes": 0, "messages": 0, "seconds": 0.0, "wall_seconds": 0.0}
        summary = Summary(
            run=kind,
            protocol="pubsub-vfl",
            runtime="none",
            seed=0,
            rounds=0,
            metrics=metrics,
            cpu_utilisation=0.0,
            waiting_seconds=0.0,
            **nothing,  # type: ignore[arg-type]
        )
        write(given.out / "delays" / f"{kind}.json", [summary])


if __name__ == "__main__":
    main()
