"""The fitted delay constants of this machine as a table (Figure 8 and Table 8), from the committed cost model.

Measured by `scenarios/benchmarks/compute_costs.py`: seconds per batch on one core, ten layers of width 64 over 250
columns. The paper's constants are of its own machine, in seconds per sample.
"""

from __future__ import annotations

import json

from _study import RESULTS, study_of

from fedactors.runs.table import RunRow

COST_MODEL = RESULTS / "data" / "pubsub_vfl" / "cost_model.json"
KINDS = ("bottom-forward", "bottom-backward", "top-forward", "top-step", "active-step")


def main() -> None:
    given = study_of(__doc__)
    model = json.loads(COST_MODEL.read_text())
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
        given.put("delays", kind, [RunRow(protocol="pubsub-vfl", seed=0, runtime="none", metrics=metrics)])


if __name__ == "__main__":
    main()
