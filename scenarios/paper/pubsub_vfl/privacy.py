"""What true privacy costs: AUC against a budget that holds, beside the paper's nominal mu (Figure 5's question).

`open`: no noise. `active-alone`: embeddings clipped to nothing and noised, so that only the active party's columns are
left: what any budget must beat. `nominal`: Eq. 17's noise with a bottom that is trained on the rows, as in the paper;
it covers nothing. `frozen` and `private`: a passive party's row is covered (scale 0.25, embeddings and, where it is
trained, the bottom at the rest); budgets are those of the ledger, recomputed. `label`: labels exchanged at random.
Noise comes from the operating system: rows differ from run to run by more than their seeds. What each differs from
`active-alone` by is put into a table of paired differences, in points of AUC.
Reduced: 3 epochs and small models; ``--paper`` 20 epochs.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from _privacy import BASE, DEEP, PrivacyStudy, frozen, private
from _study import Point, flags, put_difference

from fedactors.config import parse_words
from fedactors.privacy.accounting import claims
from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL
from fedactors.runs.table import RunRow
from fedactors.sweeps import run_once

DATA = ("bank", "credit")
ALONE = "active-alone"
METHODS: dict[str, dict[str, Any]] = {
    "open": {**BASE, **DEEP},
    ALONE: {**BASE, "bottom_training": "frozen", "clip_norm": 1e-6, "embedding_mu": 1e-3},
    **{f"nominal-mu-{mu:g}": {**BASE, **DEEP, "privacy_mu": mu} for mu in (1.0, 10.0)},
    **{f"frozen-mu-{mu:g}": frozen(mu) for mu in (0.5, 2.0, 8.0)},
    **{f"private-mu-{mu:g}": private(mu) for mu in (2.0, 8.0)},
    **{f"label-epsilon-{epsilon:g}": {**BASE, **DEEP, "label_epsilon": epsilon} for epsilon in (0.5, 2.0)},
}


def once(point: Point, seed: int) -> RunRow:
    """Run a point; its row has the final metrics and what the ledger covers."""
    done = run_once(PROTOCOL, point.settings, point.data, seed, costs=lambda config: default_costs(config))
    found = claims(done.runtime.privacy_records)
    covered = [claim for claim in found.values() if claim.covered]
    line = next(r for r in done.runtime.privacy_records if (r.party, r.message_type) == ("passive", "Embedding"))
    mu = line.rigorous_mu
    metrics: dict[str, Any] = {
        **done.result.metrics,
        "nominal_mu": "none" if line.nominal_mu is None else line.nominal_mu,
        "own_rows_mu": "none" if mu is None or math.isinf(mu) else mu,
        "protects": " and ".join(f"{claim.party} {claim.neighbour}" for claim in covered) or "nothing",
        "mu": max((claim.mu for claim in covered), default="none"),
        "epsilon": max((claim.epsilon for claim in covered), default="none"),
    }
    return done.row(metrics)


def main() -> None:
    given = flags(__doc__, seeds=(0, 1, 2, 3, 4)).parse_args(namespace=PrivacyStudy())
    epochs, words = 20 if given.paper else 3, parse_words(given.words)
    for data in DATA:
        points = {
            name: Point(name=name, data=data, settings={"num_epochs": epochs, **settings, **words})
            for name, settings in METHODS.items()
        }
        if given.smoke:
            points = {
                name: dataclasses.replace(point, data="breast-cancer", settings={**point.settings, "num_epochs": 1})
                for name, point in points.items()
            }
        given.measure(f"privacy-{data}", points, once, all_seeds=True, as_set=True, smoke_rows=2)
        for name in METHODS:
            if name != ALONE:
                put_difference(given, f"privacy-{data}", name, ALONE, "test/auc")


if __name__ == "__main__":
    main()
