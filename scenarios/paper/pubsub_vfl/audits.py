"""What each mechanism claims, what a replay of one record finds, and what attackers find with it off and on.

Replay: ten neighbours of each kind, two epochs; `replay_mu` is the largest root of the sum of squares of all that one
record moved, in units of the noise: no smaller mu can be right. `inf`: something left without noise.
Attacks, on the models of the same settings: membership by loss, labels from gradients at the cut (AUC), inversion of
embeddings (share of features within half a deviation; of rows found among 1,000), each beside its chance level.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from _privacy import BASE, DEEP, PrivacyStudy, frozen, private
from _study import Point, flags, perform_with_states

from fedactors.auditing.attacks import run_attacks
from fedactors.auditing.replay import audit_by_replay
from fedactors.config import as_dict, build, parse_words
from fedactors.launch import load_data
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL
from fedactors.protocols.pubsub_vfl.privacy import neighbours, surface
from fedactors.runs.table import RunRow
from fedactors.runtime.compute import one_torch_thread

DATA = ("breast-cancer", "bank", "credit")
MECHANISMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "off": ("passive", "row", {**BASE, **DEEP}),
    "paper-mu-1": ("passive", "row", {"privacy_mu": 1.0}),
    "frozen-mu-2": ("passive", "row", frozen(2.0)),
    "private-mu-2": ("passive", "row", private(2.0)),
    "label-epsilon-1": ("active", "label", {**BASE, **DEEP, "label_epsilon": 1.0}),
}
"""The audited party, the kind of neighbour, and settings; the paper's noise on its ten-layer bottom."""


def once(point: Point, seed: int) -> RunRow:
    """Audit one mechanism on one data set."""
    one_torch_thread()
    party, kind, _ = MECHANISMS[point.name.partition("/")[2]]
    config = build(PROTOCOL.Config, point.settings)
    data = load_data(PROTOCOL, config, point.data, seed)
    others = [one for one in neighbours(config, data, party, 10, seed) if one.kind == kind]
    audit = audit_by_replay(PROTOCOL, config, data, party, others, seed=seed)
    claim, worst = audit.claims.get(kind), audit.worst[kind]
    covered = claim is not None and claim.covered
    metrics: dict[str, Any] = {
        "claimed_mu": claim.mu if claim is not None and covered else "none",
        "claimed_epsilon": claim.epsilon if claim is not None and covered else "none",
        "replay_mu": "inf" if math.isinf(worst.mu) else worst.mu,
        "refuted": "yes" if audit.refuted else "no",
        "neighbours": len(others),
    }
    return RunRow(protocol=PROTOCOL.name, seed=seed, data=point.data, config=as_dict(config), metrics=metrics)


def attacked(point: Point, seed: int) -> RunRow:
    """Attack one mechanism on one data set."""
    row, states = perform_with_states(dataclasses.replace(point, reproducible_noise=True), seed)
    config = build(PROTOCOL.Config, point.settings)
    found = run_attacks(surface(config, load_data(PROTOCOL, config, point.data, seed), states, seed), seed)
    metrics: dict[str, Any] = {"test/auc": row.metrics["test/auc"]}
    for one in found:
        name = one.name.partition(":")[0].replace(" ", "_")
        metrics[name] = f"{one.estimate:.3f} ({one.low:.3f} to {one.high:.3f}; chance {one.chance:.3f})"
    return dataclasses.replace(row, metrics=metrics)


def main() -> None:
    given = flags(__doc__).parse_args(namespace=PrivacyStudy())
    words = parse_words(given.words)
    points = {
        f"{data}/{name}": Point(name=f"{data}/{name}", data=data, settings={"num_epochs": 2, **settings, **words})
        for data in DATA[: 1 if given.smoke else None]
        for name, (_, _, settings) in MECHANISMS.items()
    }
    given.measure("audits", points, once, smoke_rows=3)
    given.measure("attacks", points, attacked, smoke_rows=1)


if __name__ == "__main__":
    main()
