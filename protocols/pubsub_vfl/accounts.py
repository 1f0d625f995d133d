"""What a run's embeddings and gradients cost in privacy, as the paper counts it and as it holds per record."""

from __future__ import annotations

import math
from typing import Any

from fedactors.privacy.accounting import PrivacyRecord
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.cast import Cast
from protocols.pubsub_vfl.config import PubSubVflConfig

_NEIGHBOURS = "replace-one-record neighbours, known batches; membership and row order are not covered"
_NOMINAL = "; nominal mu is the paper's, whose amplification known batch ids do not give"
_REPRODUCIBLE = "; no privacy guarantee: reproducible noise"


async def account(config: PubSubVflConfig, num_rows: int, releases: int, cast: Cast) -> dict[str, Any]:
    """Record both accounts of each party's releases; return them by party, JSON-ready.

    Args:
        config: the run's settings.
        num_rows: training rows (N).
        releases: how often any record was released at most, re-publications included.
        cast: the run's actors.
    """
    budgets: dict[str, Any] = {}
    for name in (next(iter(cast.active)), *cast.first_passive):
        is_active = name in cast.active
        sigma = await cast.workers[name].noise_deviation()
        clip_norm = config.gradient_clip_norm if is_active else config.clip_norm
        mu, epsilon = algorithm.rigorous_budget(clip_norm, sigma, releases, config.delta)
        nominal = None if is_active or math.isinf(config.privacy_mu) else config.privacy_mu
        reproducible = cast.runtime.reproducible_noise and sigma > 0
        record = PrivacyRecord(
            party=name.partition("/")[0],
            message_type="Gradient" if is_active else "Embedding",
            mechanism="gaussian" if sigma else "none",
            clip_norm=clip_norm if sigma else math.inf,
            noise_scale=sigma,
            releases=releases,
            nominal_mu=nominal,
            rigorous_mu=mu,
            epsilon=epsilon,
            delta=config.delta,
            covered=math.isfinite(mu) and not reproducible,
            note=_NEIGHBOURS + (_NOMINAL if nominal else "") + (_REPRODUCIBLE if reproducible else ""),
        )
        cast.runtime.record_privacy(record)
        budgets[record.party] = {
            "message": record.message_type,
            "nominal_mu": nominal,
            "rigorous_mu": mu,
            "epsilon": epsilon,
            "delta": config.delta,
            "sigma": sigma,
            "releases": releases,
            "covered": record.covered,
        }
    return budgets
