"""Final quality of PubSub-VFL and of centralised training of the same network (Table 1; `--model resnet`: Table 7).

Centralised training is the synchronous baseline with one worker each: the tests show it equal to plain split learning
at every step, and that is what the same network does on all columns in one place. Test metrics are those of the epoch
that was best on validation rows. Regression: in the labels' units. `rounds` averages within epochs at twice the rate,
as two workers that average take half the steps. Tables of paired differences are made from the rows.
Reduced: 15 epochs, with the small model Energy 60, Blog 40 (``--paper``: 100), 20,000 of the synthetic rows. Bank also
without `duration`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from _study import Point, flags, perform_all, put_difference

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.study import Study

DATA = ("bank", "credit", "energy", "blog", "synthetic:20000x500", "bank-no-duration")
REGRESSION = ("energy", "blog")
EPOCHS = {"energy": 60, "blog": 40}
"""Where 15 are too few for either, of the small model."""
SEEDS = (0, 1, 2, 3, 4)
CENTRALISED = "centralised"
METHODS: dict[str, dict[str, Any]] = {
    CENTRALISED: {"algorithm": "vfl"},
    "pubsub-w2": {
        "algorithm": "pubsub-vfl",
        "num_active_workers": 2,
        "num_passive_workers": 2,
        "max_in_flight": 10,
    },
    "pubsub-w2-rounds": {
        "algorithm": "pubsub-vfl",
        "num_active_workers": 2,
        "num_passive_workers": 2,
        "max_in_flight": 10,
        "sync_unit": "batch",
        "learning_rate": 0.002,
    },
}


def main() -> None:
    parser = flags(__doc__, SEEDS)
    parser.add_argument("--model", choices=("mlp", "resnet"), default="mlp", help="Table 1 or Table 7")
    given = parser.parse_args(namespace=Study())
    points = [
        Point(
            name=f"{data.partition(':')[0]}-{method}",
            data="synthetic:1000000x500" if given.paper and data.startswith("synthetic") else data,
            settings={
                **settings,
                "model": given.model,
                "num_layers": 10 if given.model == "mlp" else 5,
                "num_epochs": 100 if given.paper else EPOCHS.get(data, 15) if given.model == "mlp" else 15,
                "batch_size": 256,
            },
        )
        for data in DATA
        for method, settings in METHODS.items()
    ]
    for metric in ("auc", "rmse"):
        study = f"accuracy-{given.model}-{metric}"
        chosen = [point for point in points if (point.data in REGRESSION) == (metric == "rmse")]
        perform_all(chosen, study, given)
        for point in chosen:
            baseline = f"{point.data.partition(':')[0]}-{CENTRALISED}"
            if point.name != baseline:
                put_difference(given, study, point.name, baseline, f"test/{metric}", relative=metric == "rmse")


if __name__ == "__main__":
    main()
