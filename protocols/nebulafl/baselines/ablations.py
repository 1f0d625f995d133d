"""NebulaFL with a part taken away (Table III; Figure 5)."""

from __future__ import annotations

import dataclasses

from protocols.nebulafl.config import Ablation, NebulaFLConfig
from protocols.nebulafl.resources import ResourcePolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switches:
    """Which rules a center follows."""

    random_container: bool
    """Draw idle containers with equal probability."""
    resource_policy: ResourcePolicy
    """How hardware is chosen."""
    use_cost: bool
    """Count the cost factor in NebulaFL's assignment."""
    use_time: bool
    """Count the time factor in NebulaFL's assignment."""
    rotate: bool
    """Rotate masters; otherwise average them at one place and send the mean back to all centers."""


def switches(config: NebulaFLConfig) -> Switches:
    """Return the rules that a configuration stands for."""
    ablation: Ablation = config.ablation
    policy: ResourcePolicy = "random" if ablation in ("random", "random-resource") else config.resource_policy
    return Switches(
        random_container=ablation in ("random", "random-container"),
        resource_policy=policy,
        use_cost=ablation != "without-cost",
        use_time=ablation != "without-time",
        rotate=ablation != "aggregation",
    )
