"""Step sizes from the smoothness constants that clients and server report; see `objective` for why they are safe."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from fedactors.network import topology
from fedactors.runtime.base import Runtime
from protocols.mtcd.algorithm import stale_steps
from protocols.mtcd.baselines import dcpa
from protocols.mtcd.cast import Cast
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.glm import problem_of

_NETWORK_STEP = 0.05


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


async def safe_step_of(config: MtcdConfig, cast: Cast) -> float:
    """Return a step size that is safe for the algorithm on the clients' blocks."""
    if cast.server is None:
        found: list[float] = await asyncio.gather(*(client.smoothness() for client in cast.clients))
        return 1.0 / max(found)
    alone = await cast.server.block_smoothness()
    if not moves_in_parallel(config):
        return 1.0 / alone
    return safe_step(config, alone, await cast.server.joint_smoothness(), cast.smallest_cluster)


def moves_in_parallel(config: MtcdConfig) -> bool:
    """Say whether several blocks move between two syncs without seeing each other."""
    return config.algorithm == "svfl" or (config.mode == "token-per-cluster" and config.num_tokens > 1)


async def settle_steps(config: MtcdConfig, cast: Cast, num_samples: int) -> dict[str, Any]:
    """Return the run's step sizes: `step`, or `dcpa_steps`, as asked for or found with the clients' constants."""
    if config.algorithm == "dcpa":
        largest: float = max(await asyncio.gather(*(client.largest_eigenvalue() for client in cast.clients)))
        laplacian_KK = dcpa.consensus_matrix(topology.metropolis_weights(cast.graph))
        dual = None if config.dcpa_dual_step == "auto" else float(config.dcpa_dual_step)
        norm = float(np.linalg.norm(laplacian_KK, 2))
        found = dcpa.steps_within(problem_of(config), largest, num_samples, config.num_clients, norm, dual)
        return {"dcpa_steps": [found.primal, found.dual, found.consensus]}
    if config.learning_rate != "auto":
        return {"step": float(config.learning_rate)}
    return {"step": _NETWORK_STEP if config.problem == "network" else await safe_step_of(config, cast)}


def step_of(config: MtcdConfig, runtime: Runtime, round_: int) -> float:
    """Return the round's step size: halved every so many epochs if the config says so."""
    step = float(runtime.state["step"])
    if config.halve_every == 0:
        return step
    epoch = round_ // int(runtime.state["rounds_per_epoch"])
    return step * float(0.5 ** (epoch // config.halve_every))
