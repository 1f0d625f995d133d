"""The mathematics of PubSub-VFL as functions on arrays.

Shapes: B rows of a batch, F a party's features, E width of the cut layer, P parameters, N training rows.
Equations and algorithm lines are those of the paper; docs/protocols/pubsub_vfl.md lists the deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.learning.losses import Task
from fedactors.learning.models import ModelSpec
from fedactors.learning.split_network import (
    BottomNetwork,
    Publication,
    TopGradient,
    TopNetwork,
    bottom_forward,
    bottom_gradient,
    top_gradient,
)
from fedactors.privacy.accounting import epsilon_of_mu, gaussian_mu
from fedactors.privacy.mechanisms import pubsub_sigma

Array = NDArray[Any]


# --- batches and schedules -----------------------------------------------------------------------------------------


def batches(num_rows: int, batch_size: int, seed: int, epoch: int) -> list[Array]:
    """Return the row positions of each batch of an epoch; every worker of every party derives the same."""
    order = np.random.default_rng([seed, epoch]).permutation(num_rows)
    return [order[start : start + batch_size] for start in range(0, num_rows, batch_size)]


def num_batches(num_rows: int, batch_size: int) -> int:
    """Return ceil(N / B)."""
    return -(-num_rows // batch_size)


def sync_gap(epoch: int, interval: int, schedule: str = "growing") -> int:
    """Return Delta T_t, the interval between parameter averages at an epoch counted from 1 (Section 4.2).

    ``growing``: ceil(i/2 tanh(2t/i - 2) + i/2), as the formula stands; ``decreasing``: its mirror image, as the text
    says, from i down to 1.
    """
    if schedule == "every":
        return 1
    grown = math.ceil(interval / 2 * math.tanh(2 * epoch / interval - 2) + interval / 2)
    gap = max(1, grown)
    return gap if schedule == "growing" else max(1, interval + 1 - gap)


def syncs(epoch: int, interval: int, schedule: str = "growing") -> bool:
    """Say whether the workers of each party average their parameters at the end of an epoch (Algorithm 1, line 31)."""
    if schedule == "never":
        return False
    return epoch % sync_gap(epoch, interval, schedule) == 0


def sync_epochs(interval: int, schedule: str = "growing") -> Iterator[int]:
    """Yield the epochs that end with an average."""
    epoch = 0
    while True:
        epoch += 1
        if syncs(epoch, interval, schedule):
            yield epoch


# --- a passive worker's batch ---------------------------------------------------------------------------------------


def forward(bottom: BottomNetwork, x_BF: Array) -> tuple[Publication, Array]:
    """Return a publication (its graph is kept for its gradient) and the embedding to send (B x E)."""
    publication = bottom.publish(x_BF)
    return publication, publication.embedding


def backward(bottom: BottomNetwork, publication: Publication, gradient_BE: Array) -> None:
    """Back-propagate through the activation of `publication` and step (Eq. 2)."""
    bottom.step(publication, gradient_BE)


def forward_pure(spec: ModelSpec, vector_P: Array, x_BF: Array) -> Array:
    """Do `forward` on plain values: the embedding at the given parameters."""
    return bottom_forward(spec, vector_P, x_BF)


def backward_pure(spec: ModelSpec, vector_P: Array, x_BF: Array, gradient_BE: Array) -> Array:
    """Do `backward` on plain values: the flat gradient at the parameters of the publication."""
    return bottom_gradient(spec, vector_P, x_BF, gradient_BE)


# --- an active worker's batch ---------------------------------------------------------------------------------------


def active_step(
    bottom: BottomNetwork, top: TopNetwork, x_BF: Array, embeddings: Sequence[Array], target_B: Array
) -> tuple[float, tuple[Array, ...]]:
    """Train the active party's models on one batch; return the loss and the passive parties' gradients (each B x E)."""
    publication = bottom.publish(x_BF)
    found = top.step([publication.embedding, *embeddings], target_B)
    bottom.step(publication, found.embedding_gradients[0])
    return found.loss, found.embedding_gradients[1:]


def active_gradients(
    bottom: tuple[ModelSpec, Array],
    top: tuple[ModelSpec, Array],
    task: Task,
    x_BF: Array,
    embeddings: Sequence[Array],
    target_B: Array,
) -> tuple[TopGradient, Array]:
    """Do `active_step`'s arithmetic on plain values: the top's gradients, and the flat gradient of the own bottom."""
    z_BE = bottom_forward(*bottom, x_BF)
    found = top_gradient(*top, [z_BE, *embeddings], target_B, task)
    return found, bottom_gradient(*bottom, x_BF, found.embedding_gradients[0])


# --- privacy --------------------------------------------------------------------------------------------------------


def embedding_sigma(mu: float, clip_norm: float, batch_size: int, num_rows: int, num_epochs: int) -> float:
    """Return Eq. 17's noise deviation; 0 for an infinite budget."""
    if math.isinf(mu):
        return 0.0
    return pubsub_sigma(mu=mu, clip_norm=clip_norm, batch_size=batch_size, num_samples=num_rows, num_epochs=num_epochs)


def gradient_sigma(mu: float, clip_norm: float, releases: int) -> float:
    """Return the noise deviation that makes `releases` gradients of one record cost `mu` in all (sensitivity 2c)."""
    return 0.0 if math.isinf(mu) else 2 * clip_norm * math.sqrt(releases) / mu


def rigorous_budget(clip_norm: float, sigma: float, releases: int, delta: float) -> tuple[float, float]:
    """Return (mu, epsilon at `delta`) of `releases` noisy releases of one record; infinite without noise."""
    if sigma <= 0:
        return math.inf, math.inf
    mu = gaussian_mu(clip_norm=clip_norm, sigma=sigma, releases=releases)
    return mu, epsilon_of_mu(mu, delta)
