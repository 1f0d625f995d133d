"""NebulaFL's algorithm as functions of arrays: planets, versions, selection, hardware, rotation (Algorithm 1).

Versions count the trainings of a planet. They decide how much a planet listens to the stellar model, how much it counts
in the master model, and, through the version gap, which container and hardware it gets next: a planet that is ahead is
sent to a slow container and cheap hardware, one that lags to fast ones; curiosity prefers containers seldom chosen.

    rotation    0        1        2        3 (self turn)
    center 1    -> 2     -> 3     -> 4     -> 1
    center 2    -> 3     -> 4     -> 1     -> 2         every rotation is a bijection: each center
    center 3    -> 4     -> 1     -> 2     -> 3         sends one master and receives one
    center 4    -> 1     -> 2     -> 3     -> 4

Shapes: P length of a flat model, C containers of a center, R hardware types of a center.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedactors.learning.local_training import blend, weighted_mean
from fedactors.protocols.nebulafl.config import ResourcePolicy

Floats = NDArray[np.float32]
Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]
MIN_PLANET_WEIGHT = 5.0
"""Least weight of a planet against the stellar model (Equation 2)."""
SHIFT = 0.5
"""Share of the difference between a master that arrives and the own one by which planets are shifted (``shifted``)."""
LEAST_REWARD = 1e-6
"""What a reward is raised to, so that an idle container can always be chosen."""
LEAST_FACTOR = 0.1
"""Smallest factor of a drawn run time, so that a wide normal distribution never gives a time of zero or less."""


# --- planets and versions ---


def stellar_decay(now: float, rotated_at: float, rotation_interval: float) -> float:
    """Return d_t = 1 - 0.5 min(1, (t - t_rot) / t_c): from 1 at a rotation to 0.5 one interval later (Equation 2)."""
    return 1.0 - 0.5 * min(1.0, max(0.0, now - rotated_at) / rotation_interval)


def planet_update(
    planet_P: Floats, stellar_P: Floats, planet_version: float, stellar_version: float, decay: float
) -> Floats:
    """Return (w m_j + d_t m_s) / (w + d_t) with w = max(v_j - v_s, 5) (Equation 2).

    `planet_version` is the version before this training is counted. A `decay` of zero returns the planet itself.
    """
    weight = max(planet_version - stellar_version, MIN_PLANET_WEIGHT)
    return blend(planet_P, stellar_P, decay / (weight + decay))


def master_model(planets: Sequence[Floats], versions: Sequence[float]) -> Floats:
    """Return sum(v_k m_k) / sum(v_k), the plain mean when no planet has been trained (Equation 3)."""
    return weighted_mean(planets, versions)


def version_gap(version: float, mean_version: float, offset: float, *, paper_literal: bool = False) -> float:
    """Return dv = v_p - v_i + v_os: above zero for a planet that is ahead (Equation 4).

    v_os = v_avg - v_s is how far the center is ahead of the one that its stellar model came from.

    The paper prints - v_os, which would call the planets of a lagging center advanced and slow them further;
    `paper_literal` keeps the print.
    """
    return version - mean_version + (-offset if paper_literal else offset)


# --- which container ---


def performance_rewards(scores_C: Numbers, gap: float, *, paper_literal: bool = False) -> Numbers:
    """Return R_p for performance scores PSc (seconds) and a version gap dv (Equation 5).

    dv > 0: PSc / max PSc * dv. dv <= 0: (1 - (PSc - min PSc) / max PSc) |dv|. The print has min - PSc and dv
    instead of |dv|: negative rewards whose ratios favour slow containers, against the text; `paper_literal`
    keeps it.
    """
    slowest = scores_C.max()
    if gap > 0:
        return np.asarray(scores_C / slowest * gap)
    if paper_literal:
        return np.asarray((1.0 - (scores_C.min() - scores_C) / slowest) * gap)
    return np.asarray((1.0 - (scores_C - scores_C.min()) / slowest) * -gap)


def curiosity_rewards(counts_C: NDArray[np.integer], *, paper_literal: bool = False) -> Numbers:
    """Return R_c = 1 / sqrt(Cnt + 1); the print has 1 / sqrt(Cnt), infinite before the first time (Equation 6)."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / np.sqrt(counts_C + (0.0 if paper_literal else 1.0)), dtype=np.float64)


def selection_probabilities(
    scores_C: Numbers,
    counts_C: NDArray[np.integer],
    busy_C: Mask,
    gap: float,
    *,
    paper_literal: bool = False,
) -> Numbers:
    """Return the probability of each container, zero for busy ones, proportional to R_p + R_c (Equation 7).

    Rewards below 1e-6 count as 1e-6. With `paper_literal` a container never chosen (infinite curiosity) shares
    all probability with its like, and rewards that are all negative keep their printed ratios.
    """
    if busy_C.all():
        raise ValueError("no container is idle")
    rewards_C = performance_rewards(scores_C, gap, paper_literal=paper_literal)
    rewards_C = rewards_C + curiosity_rewards(counts_C, paper_literal=paper_literal)
    unseen_C = np.isinf(rewards_C) & ~busy_C
    if unseen_C.any():
        weights_C = unseen_C.astype(np.float64)
    elif paper_literal and (rewards_C[~busy_C] < 0).all():
        weights_C = -rewards_C
    else:
        weights_C = np.maximum(rewards_C, LEAST_REWARD)
    weights_C = np.where(busy_C, 0.0, weights_C)
    return np.asarray(weights_C / weights_C.sum())


def random_probabilities(busy_C: Mask) -> Numbers:
    """Return equal probabilities for idle containers (the ablation with random containers)."""
    if busy_C.all():
        raise ValueError("no container is idle")
    idle_C = (~busy_C).astype(np.float64)
    return np.asarray(idle_C / idle_C.sum())


def draw(probabilities_C: Numbers, uniform: float) -> int:
    """Return the container that a number in [0, 1) falls on."""
    edges_C = np.cumsum(probabilities_C)
    index = int(np.searchsorted(edges_C, uniform * edges_C[-1], side="right"))
    last = int(np.flatnonzero(probabilities_C)[-1])
    return min(index, last)


# --- which hardware ---


def predicted_times(sizes: Sequence[int], local_epochs: int, speeds_R: Numbers) -> Numbers:
    """Return the seconds of runs that were never measured, samples * epochs / throughput, shape (R, C)."""
    return np.asarray(np.asarray(sizes, dtype=np.float64)[None, :] * local_epochs / speeds_R[:, None])


def run_time(mean: float, spread: float, generator: np.random.Generator) -> float:
    """Return the seconds of one run, drawn from N(mean, (spread * mean)^2), at least a tenth of the mean."""
    return mean * max(LEAST_FACTOR, generator.normal(1.0, spread))


def cost_factors(prices_R: Numbers) -> Numbers:
    """Return F_cost = (price - mean price) / max price over the available types (Equation 8).

    The print prices hours; by what a training costs (price x RTime) hardware that is dear and quick can be the cheaper.
    """
    dearest = prices_R.max()
    return np.asarray((prices_R - prices_R.mean()) / dearest) if dearest > 0 else np.zeros_like(prices_R)


def time_factors(times_R: Numbers, gap: float, *, paper_literal: bool = False) -> Numbers:
    """Return F_time = -(RTime - mean RTime) / max RTime * dv over the available types (Equation 9).

    The print lacks the minus, so that the least sum would give slow hardware to planets that lag, against the
    text; `paper_literal` keeps it.
    """
    factors_R: Numbers = (times_R - times_R.mean()) / times_R.max() * gap
    return factors_R if paper_literal else -factors_R


def assign(
    prices_R: Numbers,
    times_R: Numbers,
    gap: float,
    *,
    use_cost: bool = True,
    use_time: bool = True,
    paper_literal: bool = False,
) -> int:
    """Return the type with the least F_cost + F_time (ResAssign); the cheaper, then the first, at a tie.

    Args:
        prices_R: dollars of the available types, an hour's or a training's.
        times_R: RTime of the container on them, in seconds.
        gap: version gap of the planet.
        use_cost: count F_cost.
        use_time: count F_time.
        paper_literal: keep the printed sign of F_time.
    """
    sums_R = np.zeros(len(prices_R))
    if use_cost:
        sums_R += cost_factors(prices_R)
    if use_time:
        sums_R += time_factors(times_R, gap, paper_literal=paper_literal)
    return int(np.lexsort((prices_R, sums_R.round(12)))[0])


def choose_type(
    policy: ResourcePolicy,
    prices_R: Numbers,
    times_R: Numbers,
    gap: float,
    uniform: float,
    **factors: bool,
) -> int:
    """Return the available type that a policy takes; `uniform` in [0, 1) is for ``random``, `factors` for `assign`."""
    if policy == "random":
        return min(int(uniform * len(prices_R)), len(prices_R) - 1)
    if policy == "cheapest":
        return int(np.lexsort((times_R, prices_R))[0])
    if policy == "fastest":
        return int(np.lexsort((prices_R, times_R))[0])
    return assign(prices_R, times_R, gap, **factors)


# --- rotation ---


def rotation_target(center: int, rotation: int, num_centers: int) -> int:
    """Return (i + r) mod |C| + 1 for center i = 1 ... |C| in rotation r = 0, 1, ... (Algorithm 1, line 17)."""
    return (center + rotation) % num_centers + 1


def rotation_partners(centers: Sequence[str], rotation: int) -> dict[str, str]:
    """Return who sends to whom among the `centers` present, in their order; r mod |C| = |C| - 1 is the self turn."""
    return {
        sender: centers[rotation_target(index, rotation, len(centers)) - 1]
        for index, sender in enumerate(centers, start=1)
    }
