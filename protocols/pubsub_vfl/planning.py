"""`fedactors plan pubsub-vfl`: from the parties' profile files to a setting, with what it is predicted to cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedactors.errors import BadInput
from fedactors.network.links import LAN
from protocols.pubsub_vfl import planner
from protocols.pubsub_vfl.config import PubSubVflConfig

_SHOWN = 10


def plan(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best setting for the profiles of one active and one or more passive parties.

    A profile may carry ``num_rows``, ``bandwidth`` (bytes per second) and ``latency`` (seconds) beside the fields of
    `PartyProfile`.

    Raises:
        BadInput: not exactly one active party, no passive one, or a profile that is incomplete.
    """
    parties = [planner.profile_from(values) for values in profiles]
    active = [profile for profile in parties if profile.role == "active"]
    passive = [profile for profile in parties if profile.role == "passive"]
    if len(active) != 1 or not passive:
        raise BadInput(f"--profile: {len(active)} active and {len(passive)} passive given: one and at least one needed")
    itemsize = 8 if config.float64 else 4
    problem = planner.Problem(
        active=active[0],
        passive=planner.weakest(passive),
        num_rows=int(max(values.get("num_rows", 0) for values in profiles) or 100_000),
        row_bytes=2.0 * config.embedding_size * itemsize,
        bandwidth=float(min(values.get("bandwidth", LAN.bandwidth) for values in profiles)),
        latency=float(max(values.get("latency", 0.0) for values in profiles)),
    )
    found: dict[str, Any] = {}
    for objective in ("epoch", "decoupled", "literal"):
        plans = planner.search(problem, objective)
        found[objective] = [dataclasses.asdict(made) for made in plans[:_SHOWN]]
    best = found["epoch"][0]
    return {
        "num_active_workers": best["num_active_workers"],
        "num_passive_workers": best["num_passive_workers"],
        "batch_size": best["batch_size"],
        "predicted_epoch_seconds": best["cost"],
        "max_batch_size": planner.max_batch_size((problem.active, problem.passive)),
        "num_rows": problem.num_rows,
        "bandwidth": problem.bandwidth,
        "best_by_objective": found,
    }
