"""Table I on larger images: Fashion-MNIST over a long time, on cited hardware and links, each method at its best step.

python scenarios/paper/nebulafl/images.py --part choose
python scenarios/paper/nebulafl/images.py --part table

Sized down: a network of two layers, and a tenth of the training images, 150 in each of 40 containers. A model weighs
44.7 MB on links and a training takes as long as one of ResNet-18 over 250 images of 32 x 32; sixty of them in a row is
when all end. The rate is the best of four on 1,000 held-out training rows with seed 0; all else is what `choose.py`
found on digits.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _study import BASELINES, SPAN, Row, chosen, cloud, cloud_nebulafl, flags, once, resized

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.study import Study

RATES = (0.003, 0.01, 0.03, 0.1)
SHARES = (0.1, 0.5)
PARTS = ("choose", "table")
COMMON: dict[str, Any] = {
    **cloud(), "stop_at_target": False, "batch_size": 25, "num_training": 6000, "duration": SPAN,
    "evaluation_interval": SPAN / 10, "resource_policy": "fastest",
    # of a model of 50,890 numbers, and of 150 images
    "bytes_factor": 44.7e6 / (4 * 50_890), "work_factor": 250 / 150,
}  # fmt: skip
METHODS = {"nebulafl": cloud_nebulafl(), **{name: chosen(name) for name in BASELINES}}
TRIALS = {
    f"{name}-rate={rate}": Row({**COMMON, **METHODS[name], "learning_rate": rate, "num_validation": 1000})
    for name in METHODS
    for rate in RATES
}


def best_rate(given: Study, name: str) -> float:
    """Return the rate whose last three measurements on validation rows are best, over both distributions."""

    def score(rate: float) -> float:
        rows = [row for share in SHARES for row in given.rows(f"images-choice/{share}", f"{name}-rate={rate}")]
        curves = [row.curve["validation/accuracy"][-3:] if row.status == "finished" else [0.0] for row in rows]
        return sum(sum(curve) / len(curve) for curve in curves)

    return max(RATES, key=score)


def main() -> None:
    """Try the rates, then measure each method at its best."""
    parser = flags(__doc__, range(5))
    parser.add_argument("--part", action="append", choices=PARTS, help="(default: all)")
    given = parser.parse_args(namespace=Study())
    parts = given.part or PARTS
    run = functools.partial(once, targets=(0.7, 0.75, 0.8))
    for share in SHARES if "choose" in parts else ():
        given.measure(f"images-choice/{share}", sized(TRIALS, share, given), run, seeds=(0,), smoke_rows=1)
    for share in SHARES if "table" in parts else ():
        tuned = {name: Row({**COMMON, **METHODS[name], "learning_rate": best_rate(given, name)}) for name in METHODS}
        tuned["nebulafl-own"] = Row({**tuned["nebulafl"].settings, "resource_policy": "nebulafl"})
        given.measure(f"images/{share}", sized(tuned, share, given), run, smoke_rows=1, all_seeds=True, as_set=True)


def sized(rows: Mapping[str, Row], share: float, given: Study) -> dict[str, Row]:
    """Return rows for a label distribution, at the size that the command line asks for."""
    data = "digits" if given.smoke else "fashion-mnist"
    return {name: Row(resized({**row.settings, "dirichlet": share}, given), data) for name, row in rows.items()}


if __name__ == "__main__":
    main()
