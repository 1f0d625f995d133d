"""Generalised linear models as the actors see them: what a client computes, and what the server does with Z.

The work itself is in `algorithm`; here each piece becomes a module-level function with plain arguments, as `compute`
wants it. `GlmBlock` is a client's side, `GlmHead` the server's; `network_parts` offers the same two for networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedactors.runtime.base import Work
from protocols.mtcd import algorithm
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.objective import Array, Problem, Ridge, SparseLogistic, smoothness

Theta0 = dict[str, Any]
Rows = algorithm.Rows


@dataclass(frozen=True, slots=True)
class VisitOptions:
    """What a visit needs beside arrays."""

    step: float
    num_local_steps: int
    num_samples: int


def problem_of(config: MtcdConfig) -> Problem:
    """Return the objective that the config names."""
    return Ridge(config.ridge_penalty) if config.problem == "ridge" else SparseLogistic(config.l1_penalty)


def visit_block(
    problem: Problem,
    x_ND: Array,
    gram_DD: Array | None,
    y_N: Array,
    theta_D: Array,
    z_B: Array,
    rows_B: Rows | None,
    options: VisitOptions,
) -> tuple[Array, Array]:
    """Do a visit's local steps on the data or, where the client keeps it, on the Gram matrix."""
    step, num_local_steps = options.step, options.num_local_steps
    if gram_DD is not None and isinstance(problem, Ridge):
        return algorithm.visit_ridge_gram(
            problem, x_ND, gram_DD, y_N, theta_D, z_B, step=step, num_local_steps=num_local_steps
        )
    x_BD, y_B = (x_ND, y_N) if rows_B is None else (x_ND[rows_B], y_N[rows_B])
    return algorithm.visit(
        problem,
        x_BD,
        y_B,
        theta_D,
        z_B,
        step=step,
        num_local_steps=num_local_steps,
        num_samples=options.num_samples,
    )


class GlmBlock:
    """A client's features and labels (training rows, and test rows for measuring).

    Args:
        config: the run's settings.
        x_ND: training features.
        test_ND: test features.
        y_N: training labels.
    """

    def __init__(self, config: MtcdConfig, x_ND: Array, test_ND: Array, y_N: Array) -> None:
        self.problem = problem_of(config)
        self.num_samples, self.num_features = x_ND.shape
        self._x = {"train": x_ND, "test": test_ND}
        self._y = y_N
        self._num_local_steps = config.num_local_steps
        self._gram = algorithm.gram(x_ND) if config.local_arithmetic == "gram" else None

    @property
    def features(self) -> Array:
        """Training features (N, D)."""
        return self._x["train"]

    @property
    def labels(self) -> Array:
        """Training labels (N,)."""
        return self._y

    def initial(self, generator: np.random.Generator) -> Array:
        """Return theta = 0, so that Z = 0."""
        return np.zeros(self.num_features)

    def initial_theta_0(self, generator: np.random.Generator) -> Theta0:
        """Return the empty theta_0."""
        return {}

    def represent(self, theta_D: Array, rows_B: Rows | None, part: str = "train") -> tuple[Any, ...]:
        """Return (function, its arguments, work) for h_k over rows of a part."""
        x_ND = self._x[part]
        units = (x_ND.shape[0] if rows_B is None else len(rows_B)) * self.num_features
        return algorithm.represent, (x_ND, theta_D, rows_B), Work("represent", units)

    def visit(
        self, theta_D: Array, theta_0: Theta0, z_B: Array, rows_B: Rows | None, step: float, update_theta_0: bool
    ) -> tuple[Any, ...]:
        """Return (function, its arguments, work) for a visit."""
        options = VisitOptions(step, self._num_local_steps, self.num_samples)
        arguments = (self.problem, self._x["train"], self._gram, self._y, theta_D, z_B, rows_B, options)
        return visit_block, arguments, Work("visit", len(z_B) * self.num_features * self._num_local_steps)

    def visited(self, result: tuple[Array, Array], theta_0: Theta0) -> tuple[Array, Theta0, Array]:
        """Return (theta_k, theta_0, Z) of what the visit's function returned."""
        return result[0], theta_0, result[1]

    def combine(self, theta_D: Array, copies: Mapping[int, Array], weights_G: Array) -> Array:
        """Return theta_k after a sync."""
        return algorithm.combine(theta_D, copies, weights_G)

    def penalty(self, theta_D: Array) -> float:
        """Return r(theta_k)."""
        return self.problem.penalty(theta_D)

    def own_change(self, change_B: Array, client: int) -> tuple[Array, Any]:
        """Return the part of a change of Z that is this client's, as rows (B, 1), and where it belongs."""
        return change_B[:, None], (slice(None),)

    def with_own(self, z_B: Array, h_B: Array, client: int) -> Array:
        """Return Z with this client's representation added."""
        return z_B + h_B

    def blank(self, h_B: Array, client: int) -> Array:
        """Return Z of this client's representation alone."""
        return h_B

    def smoothness(self) -> float:
        """Return this block's smoothness constant L_block."""
        return smoothness(self.problem, [self._x["train"]])

    def kernel_image(self, u_N: Array) -> Array:
        """Return X_k X_k^T u."""
        x_ND = self._x["train"]
        return x_ND @ (u_N @ x_ND)


class GlmHead:
    """The server's side: labels, the loss of Z, and no theta_0.

    Args:
        config: the run's settings.
        y_N: training labels.
    """

    def __init__(self, config: MtcdConfig, y_N: Array) -> None:
        self.problem = problem_of(config)
        self._y = y_N

    def initial(self, generator: np.random.Generator) -> Theta0:
        """Return the empty theta_0."""
        return {}

    def merge(self, z_B: Array | None, before: Mapping[int, Array], after: Mapping[int, Array], fresh: bool) -> Array:
        """Return Z with the representations in `after` in place of those in `before`, in the clients' order.

        `fresh` says that the rows are new ones, so that Z is the sum of `after` alone.
        """
        z_B = np.zeros_like(next(iter(after.values()))) if fresh or z_B is None else z_B.copy()
        for client in sorted(after):
            z_B += after[client]
            if not fresh and client in before:
                z_B -= before[client]
        return z_B

    def nothing(self) -> Array:
        """Return Z of theta = 0 over all rows."""
        return np.zeros(len(self._y))

    def steps(
        self, theta_0: Theta0, z_B: Array, rows_B: Rows | None, step: float, num_steps: int
    ) -> tuple[Any, ...] | None:
        """Return nothing: there is no theta_0 to train."""
        return None

    def loss(self, theta_0: Theta0, z_B: Array, rows_B: Rows | None) -> float:
        """Return phi(Z) over the rows, scaled to all rows."""
        return self.problem.loss(z_B, self._y if rows_B is None else self._y[rows_B], len(self._y))
