"""Everything that the stated adversary sees, put together against the most protected mode of each protocol.

A row is one record of one party: in sixty runs, half of the data and half of its neighbour, the adversary says which it
was (`fedactors.auditing.attacks`). ``found`` is the AUC on the second half of them, ``releases`` that of the
noised releases alone on all, ``allowed`` the largest that the claim lets anybody have, ``bare`` what tells the record
without noise. Sums under masks have no claim: who knows the other rows computes from a sum what the one made of it.

    python scenarios/benchmarks/combined_adversary.py         # into docs/results/privacy_audits.parquet
    python -m scenarios.results docs/results            # the tables of the page
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedactors.auditing.attacks import combined_adversary, largest_auc
from fedactors.auditing.audit import Attack
from fedactors.config import as_dict, build
from fedactors.launch import load_data
from fedactors.plugins import Protocol
from fedactors.privacy.accounting import claims
from fedactors.runs.table import RunRow
from fedactors.runtime.compute import one_torch_thread
from fedactors.sweeps import run_once

sys.path.insert(0, str(Path(__file__).parents[2]))

from fedactors.protocols.glasu import auditing as graphs
from fedactors.protocols.glasu.plugin import PROTOCOL as GLASU
from fedactors.protocols.mtcd import privacy as samples
from fedactors.protocols.mtcd.plugin import PROTOCOL as MTCD
from fedactors.protocols.pubsub_vfl import privacy as halves
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL as PUBSUB_VFL
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.protocols.tablepuppet import privacy as joins
from fedactors.protocols.tablepuppet.plugin import PROTOCOL as TABLEPUPPET
from scenarios.benchmarks.privacy_audits import DATA, RESULTS, TOKENS, AuditStudy
from scenarios.paper.study import study_flags

RUNS = 60
SPLIT = {**PUBLISHED, "num_epochs": 1, "num_layers": 2, "hidden_size": 8, "embedding_size": 4, "batch_size": 64}
PRIVATE = {"standardisation": "private", "standardisation_mu": 0.5}
TUPLES = {
    **DATA["orders"].settings, "algorithm": "rfl-sgd-v", "batch_size": 100_000, "num_rounds": 1, "feature_dp": 4.0,
    "prediction_clip": 1.0, "prediction_noise": 4.0, "label_dp": 1.0, "declared_facts": DATA["orders"].declared,
    "rho": "auto",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One record of one party, the kind of change, and how the protocol is protected."""

    protocol: Protocol
    data: str
    settings: Mapping[str, Any]
    party: str
    kind: str
    neighbours: Any
    is_claimed: bool = True
    unclaimed: str = ""


TARGETS = {
    "pubsub-vfl/frozen": Target(
        PUBSUB_VFL,
        "breast-cancer",
        {**SPLIT, **PRIVATE, "bottom_training": "frozen", "embedding_mu": 1.0},
        "passive",
        "row",
        halves.neighbours,
    ),
    "pubsub-vfl/private": Target(
        PUBSUB_VFL,
        "breast-cancer",
        {**SPLIT, **PRIVATE, "bottom_training": "private", "bottom_mu": 1.0, "embedding_mu": 1.0},
        "passive",
        "row",
        halves.neighbours,
    ),
    "pubsub-vfl/labels": Target(
        PUBSUB_VFL, "breast-cancer", {**SPLIT, "label_epsilon": 1.0}, "active", "label", halves.neighbours
    ),
    "mtcd/noise": Target(
        MTCD, "breast-cancer", {**TOKENS, "noise_multiplier": 80.0}, "client-0", "row", samples.neighbours
    ),
    "tablepuppet/items": Target(TABLEPUPPET, "orders:200", TUPLES, "items", "row", joins.neighbours),
    "tablepuppet/labels": Target(
        TABLEPUPPET, "orders:200", TUPLES, "orders", "label", joins.neighbours, unclaimed="Score."
    ),
    "glasu/noise": Target(
        GLASU,
        "blocks:100x16x4",
        {"num_rounds": 2, "evaluate_every": 2, "hidden_size": 8, "dropout": 0.0, "noise_multiplier": 4.0}
        | {"clip_norm": 1.0, "max_degree": 100},
        "client-0",
        "node",
        graphs.neighbours,
        is_claimed=False,
    ),
}


def cell(one: Attack) -> str:
    """Return what an attack found, as the tables of attacks write it."""
    return f"{one.estimate:.3f} ({one.low:.3f} to {one.high:.3f}; chance {one.chance:.3f})"


def attacked(target: Target, seed: int) -> RunRow:
    """Attack one record: of several neighbours the one of the largest change, a million in each column."""
    one_torch_thread()
    protocol, config = target.protocol, build(target.protocol.Config, target.settings)
    data = load_data(protocol, config, target.data, seed)
    others = [one for one in target.neighbours(config, data, target.party, 4, seed) if one.kind == target.kind]
    chosen = next((one for one in others if "million" in one.label), others[0])
    found = combined_adversary(
        protocol, config, data, target.party, chosen, runs=RUNS, seed=1000 * (seed + 1), unclaimed=target.unclaimed
    )
    lines = run_once(protocol, target.settings, target.data, seed).runtime.privacy_records
    claim = claims(lines).get((target.party, target.kind))
    covered = claim is not None and claim.covered and target.is_claimed
    metrics = {
        "found": cell(found.attack),
        "releases": cell(found.by_releases),
        "allowed": largest_auc(claim) if claim is not None and covered else "none",
        "claimed_mu": claim.mu if claim is not None and covered else "none",
        "bare": ", ".join(sorted({transfer.partition(" ")[0] for transfer in found.bare})) or "nothing",
        "refuted": "yes" if claim is not None and covered and found.exceeds(claim) else "no",
        "runs": RUNS,
    }
    return RunRow(protocol=protocol.name, seed=seed, data=target.data, config=as_dict(config), metrics=metrics)


def main() -> None:
    """Measure what is not in the table yet."""
    given: AuditStudy = study_flags(__doc__, "pubsub-vfl", RESULTS, seeds=(0, 1, 2)).parse_args(namespace=AuditStudy())
    for protocol in dict.fromkeys(target.protocol.name for target in TARGETS.values()):
        given.protocol = protocol
        local = {name: target for name, target in TARGETS.items() if target.protocol.name == protocol}
        given.measure("together", local, attacked, smoke_rows=1)


if __name__ == "__main__":
    main()
