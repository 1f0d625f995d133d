"""A client's theta updates as functions: which solver for which mode, with or without DP.

Legend: n rows that join, u rows of a batch, D columns, C outputs, P parameters.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.privacy.accounting import dpsgd_noise_multiplier
from protocols.tablepuppet.algorithm import quadratic_weight
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.models import Array, TableModel, row_gradients
from protocols.tablepuppet.privacy import noisy_gradient_sum, solve_dp_sgd
from protocols.tablepuppet.subproblem import (
    LinearSystem,
    Subproblem,
    factorise,
    partial_gradient,
    solve_lbfgs,
    solve_linear,
    solve_sgd,
)


def pose(
    config: TablePuppetConfig,
    model: TableModel,
    x_nD: Array,
    G_n: NDArray[Any],
    num_joined: int,
    num_tables: int,
    alone: bool,
) -> Subproblem:
    """Return Eq. 16 (a table of one partition, `alone`) or Eq. 22 (one of several), without Y."""
    kappa = quadratic_weight(config.admm, config.rho, num_tables)
    tau = config.beta if alone else (config.inner_rho or config.rho)
    return Subproblem(model, x_nD, G_n, kappa, tau, num_joined)


def prepare_solver(config: TablePuppetConfig, problem: Subproblem) -> LinearSystem | None:
    """Return the factors that the exact solver of a linear model uses in every round, else None."""
    if config.is_admm and config.admm != "paper_sgd" and problem.model.kind == "linear":
        return factorise(problem)
    return None


def solve_theta(
    config: TablePuppetConfig,
    problem: Subproblem,
    system: LinearSystem | None,
    Y_nC: Array,
    theta_P: Array,
    anchor_P: Array | None,
    order: np.random.Generator,
    noise_seed: tuple[int, ...],
    noise_multiplier: float,
) -> Array:
    """Return the new theta of Eq. 16 or 22 by the solver that the mode and the model ask for."""
    if config.admm != "paper_sgd":
        if system is not None:
            return solve_linear(problem, system, Y_nC, anchor_P)
        return solve_lbfgs(problem, Y_nC, theta_P, anchor_P, config.lbfgs_iterations)
    if config.feature_dp is None:
        return solve_sgd(
            problem,
            Y_nC,
            theta_P,
            order,
            anchor_P,
            epochs=config.local_epochs,
            batch_size=config.local_batch_size,
            learning_rate=config.local_learning_rate,
            weight_decay=config.local_weight_decay,
        )
    steps, rate = local_steps(config, len(problem.x_nD))
    noise = np.random.default_rng(noise_seed)
    return solve_dp_sgd(
        problem,
        Y_nC,
        theta_P,
        noise,  # amplification holds only if nobody else knows which rows were sampled
        noise,
        steps=steps,
        sampling_rate=rate,
        clip=config.clip,
        noise_multiplier=noise_multiplier,
        learning_rate=config.local_learning_rate,
        weight_decay=config.local_weight_decay,
        anchor_P=anchor_P,
    )


def local_steps(config: TablePuppetConfig, num_rows: int) -> tuple[int, float]:
    """Return the steps of one DP-SGD solve and the probability with which each takes a row."""
    batches = max(ceil(num_rows / config.local_batch_size), 1)
    return config.local_epochs * batches, 1.0 / batches


def total_steps(config: TablePuppetConfig, num_rows: int, num_joined: int, alone: bool) -> tuple[int, float]:
    """Return the noisy sums of a run that a row may be in, and the sampling rate that may be claimed (1: none)."""
    if config.is_admm:
        steps, rate = local_steps(config, num_rows)
        return config.rounds * (1 if alone else config.inner_rounds) * steps, rate
    return config.rounds * ceil(num_joined / config.batch_size), 1.0


def choose_noise(config: TablePuppetConfig, num_rows: int, num_joined: int, alone: bool) -> float:
    """Return the noise multiplier with which the whole run stays within `feature_dp`; 0 without it.

    SGD's batches are known to the server and a row with many duplicates may be in all of them, so every batch counts.
    ADMM's local batches are Poisson samples that only the client knows, so Opacus' accountant amplifies.
    """
    if config.feature_dp is None or num_rows == 0:
        return 0.0
    steps, rate = total_steps(config, num_rows, num_joined, alone)
    return dpsgd_noise_multiplier(
        epsilon=config.feature_dp,
        delta=config.feature_delta,
        steps=steps,
        sampling="poisson" if config.is_admm else "full",
        sample_rate=rate,
    )


def batch_gradient(
    config: TablePuppetConfig,
    model: TableModel,
    theta_P: Array,
    x_uD: Array,
    Y_uC: Array,
    num_joined: int,
    noise_seed: tuple[int, ...],
    noise_multiplier: float,
) -> Array:
    """Return Eq. 18 over a batch's rows, which stand for `num_joined` joined rows; noisy under feature DP."""
    if config.feature_dp is None:
        return partial_gradient(model, theta_P, x_uD, Y_uC, np.array(num_joined), config.beta)
    rows_uP = row_gradients(model, theta_P, x_uD, Y_uC)
    noise = np.random.default_rng(noise_seed)
    return noisy_gradient_sum(rows_uP, config.clip, noise_multiplier, noise) + (config.beta * num_joined) * theta_P
