"""Step sizes from the smoothness constants that clients and server report; see `objective` for the whole story."""

from __future__ import annotations

from protocols.mtcd.algorithm import stale_steps
from protocols.mtcd.config import MtcdConfig


def safe_step(config: MtcdConfig, block: float, joint: float, smallest_cluster: int) -> float:
    """Return the step for blocks that move at once: min(1/L_block, 1/(L stale steps)); see `objective.parallel_step`.

    Args:
        config: the run's settings.
        block: max_k L_block.
        joint: L of all blocks together.
        smallest_cluster: clients of the smallest cluster.
    """
    num_stale, num_moving = config.num_local_steps, config.num_clients
    if config.algorithm == "mtcd":
        num_stale = stale_steps(config.num_local_steps, config.num_hops, smallest_cluster)
        num_moving = min(num_moving, config.num_tokens * (config.num_hops + 1))
    return min(1.0 / block, 1.0 / (min(joint, num_moving * block) * num_stale))
