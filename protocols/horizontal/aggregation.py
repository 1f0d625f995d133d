"""Robust means of the sites' changes: few sites that send anything move them little.

    median         of each number (Yin et al., 2018)
    trimmed-mean   of each number, without the f highest and lowest (Yin et al., 2018)
    multi-krum     the mean of the S - f sites with the smallest score, the sum of squared distances to the S - f - 2
                   nearest others (Blanchard et al., 2017)

All sites count alike, since a weight is what a site says of itself. A change with a number that is not finite is left
out, and counts as one of the f. Running statistics are joined by the same rule as parameters.

A function of the user's own is the server's whole step:

    def aggregate(state, updates, weights):              # {"model": (P)} and what it keeps; (S, P), (S)
        state["model"] += weights @ updates / weights.sum()
        return state

Shapes: S sites that answer, P parameters that travel.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec, code_name, find_code, fork_draws
from fedactors.learning.network import local_mask
from fedactors.learning.user_models import check_repeats
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.runtime.snapshots import pack
from fedactors.validation import first_line

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


# --- a function of the user's own -------------------------------------------------------------------------------------

_SITES = 3
"""That a function is tried with before a run."""
MODEL = "model"


def user_step(
    address: str, state: Mapping[str, Any], changes: Sequence[NDArray[Any]], weights: Sequence[float], seed: int
) -> dict[str, Any]:
    """Return what a user's function makes of the state, in which `MODEL` is the model (P), and of the sites' changes.

    It is given copies in double precision; what it draws follows `seed`.

    Raises:
        BadInput: it fails, or returns no state with a finite model of the same length that a checkpoint can hold.
    """
    where = f"aggregation: {code_name(address)} is not allowed"
    given = {**copy.deepcopy(dict(state)), MODEL: np.array(state[MODEL], np.float64)}
    updates_SP, weights_S = np.stack(changes).astype(np.float64), np.asarray(weights, np.float64)
    try:
        with fork_draws(seed):
            made = find_code("aggregation", address)(given, updates_SP, weights_S)
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"{where}: given state, {len(changes)} updates and weights it fails: {said}") from error
    if not isinstance(made, Mapping) or MODEL not in made:
        raise BadInput(f"{where}: it must return the state, a dictionary with {MODEL!r}, not {_kind(made)}")
    size, model_P = np.shape(state[MODEL]), np.asarray(made[MODEL])
    if model_P.shape != size or model_P.dtype.kind != "f" or not np.isfinite(model_P).all():
        raise BadInput(f"{where}: its {MODEL!r} must be {size[0]} finite numbers, as it was, not {_kind(made[MODEL])}")
    try:
        pack(dict(made), "state")
    except Exception as error:
        raise BadInput(f"{where}: a checkpoint cannot hold its state: {first_line(error)}") from error
    return dict(made)


def check_aggregation(config: HorizontalConfig, spec: ModelSpec) -> None:
    """Check a user's function before a run, by two rounds of three sites.

    Raises:
        BadInput: one line that says what is wrong with it.
    """
    find_code("aggregation", config.aggregation)
    if not spec.inputs:
        return
    size = int(np.count_nonzero(~local_mask(spec, config.local_parameters)))
    rng = np.random.default_rng(0)
    begin: dict[str, Any] = {MODEL: rng.normal(size=size).astype(np.float64 if config.float64 else np.float32)}
    rounds = [[0.01 * rng.normal(size=size) for _ in range(_SITES)] for _ in range(2)]
    made: list[dict[str, Any]] = []

    def step(number: int) -> Any:
        state = made[0] if number else begin
        made.append(user_step(config.aggregation, state, rounds[number], [1.0, 2.0, 3.0], number))
        return made[-1][MODEL]

    where = f"aggregation: {code_name(config.aggregation)} is not allowed"
    check_repeats(where, step, f"keep what it needs later in the state, {{{MODEL!r}: ..., 'momentum': ...}}")


def _kind(value: Any) -> str:
    """Return how an error calls what a function returned."""
    shape = getattr(value, "shape", None)
    finite = "" if shape is None or np.isfinite(np.asarray(value, np.float64)).all() else ", not all finite"
    return f"a {type(value).__name__}" if shape is None else f"a {type(value).__name__} of shape {shape}{finite}"
