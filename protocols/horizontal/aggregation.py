"""Robust means of the sites' changes: few sites that send anything move them little.

    median         of each number (Yin et al., 2018)
    trimmed-mean   of each number, without the f highest and lowest (Yin et al., 2018)
    multi-krum     the mean of the S - f sites with the smallest score, the sum of squared distances to the S - f - 2
                   nearest others (Blanchard et al., 2017)

All sites count alike, since a weight is what a site says of itself. A change with a number that is not finite is left
out, and counts as one of the f. Running statistics are joined by the same rule as parameters.

Shapes: S sites that answer, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput
from protocols.horizontal.config import HorizontalConfig

Doubles = NDArray[np.float64]


def robust_mean(config: HorizontalConfig, changes: Sequence[NDArray[Any]]) -> Doubles:
    """Return what the sites' changes (P each) are joined to.

    Raises:
        BadInput: too few sites answered for what is to be borne.
    """
    stacked_SP = np.stack(changes).astype(np.float64)
    finite_SP = stacked_SP[np.isfinite(stacked_SP).all(axis=1)]
    rest = config.num_byzantine - (len(stacked_SP) - len(finite_SP))
    name, bad = config.aggregation, max(0, rest)
    fewest = {"median": 1, "trimmed-mean": 2 * bad + 1, "multi-krum": 2 * bad + 3}[name]
    if len(finite_SP) < fewest:
        about = "" if name == "median" else f" with num_byzantine={config.num_byzantine}"
        raise BadInput(
            f"aggregation: {name}{about} needs {fewest} sites with finite changes, {len(finite_SP)} of "
            f"{len(stacked_SP)} answered so; use more sites or a smaller num_byzantine"
        )
    if name == "median":
        found: Doubles = np.median(finite_SP, axis=0)
    elif name == "trimmed-mean":
        found = np.sort(finite_SP, axis=0)[bad : len(finite_SP) - bad].mean(axis=0)
    else:
        found = finite_SP[krum_chosen(finite_SP, bad)].mean(axis=0)
    return found


def krum_chosen(changes_SP: Doubles, num_byzantine: int) -> NDArray[np.int64]:
    """Return the numbers of the S - f sites with the smallest score, of equal scores the first ones."""
    square_S = (changes_SP**2).sum(axis=1)
    distance_SS = square_S[:, None] + square_S - 2 * changes_SP @ changes_SP.T
    np.fill_diagonal(distance_SS, np.inf)
    nearest = len(changes_SP) - num_byzantine - 2
    score_S = np.sort(distance_SS, axis=1)[:, :nearest].sum(axis=1)
    return np.sort(np.argsort(score_S, kind="stable")[: len(changes_SP) - num_byzantine])
