"""The mathematics of PubSub-VFL as functions on arrays.

Shapes: B rows of a batch, F a party's features, E width of the cut layer, P parameters, N training rows.
Equations and algorithm lines are those of the paper; docs/protocols/pubsub_vfl.md lists the deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.learning.losses import Task
from fedactors.learning.models import ModelSpec
from fedactors.learning.split_network import (
    BottomNetwork,
    Publication,
    TopNetwork,
    bottom_forward,
    bottom_gradient,
    top_gradient,
)
from fedactors.privacy.accounting import epsilon_of_mu, gaussian_mu
from fedactors.privacy.mechanisms import pubsub_sigma
from protocols.pubsub_vfl.config import PubSubVflConfig

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


def backward(bottom: BottomNetwork, publication: Publication, gradient_BE: Array) -> Array:
    """Return the flat gradient (P) through the activation of `publication` (line 26)."""
    gradient_P: Array = bottom.gradient(publication, gradient_BE).numpy()
    return gradient_P


def forward_pure(spec: ModelSpec, vector_P: Array, x_BF: Array) -> Array:
    """Do `forward` on plain values: the embedding at the given parameters."""
    return bottom_forward(spec, vector_P, x_BF)


def backward_pure(spec: ModelSpec, vector_P: Array, x_BF: Array, gradient_BE: Array) -> Array:
    """Do `backward` on plain values: the flat gradient at the parameters of the publication."""
    return bottom_gradient(spec, vector_P, x_BF, gradient_BE)


# --- an active worker's batch ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ActiveGradients:
    """What one batch gives at the active party: the loss, dloss/dz for each passive party (B x E), flat gradients."""

    loss: float
    embeddings: tuple[Array, ...]
    bottom: Array
    top: Array


def active_gradients(
    bottom: BottomNetwork, top: TopNetwork, x_BF: Array, embeddings: Sequence[Array], target_B: Array
) -> ActiveGradients:
    """Compute the own embedding, the loss and all gradients of one batch (lines 16 and 17)."""
    publication = bottom.publish(x_BF)
    found = top.gradient([publication.embedding, *embeddings], target_B)
    own: Array = bottom.gradient(publication, found.embedding_gradients[0]).numpy()
    return ActiveGradients(found.loss, found.embedding_gradients[1:], own, found.gradient)


def active_gradients_pure(
    bottom: tuple[ModelSpec, Array],
    top: tuple[ModelSpec, Array],
    task: Task,
    x_BF: Array,
    embeddings: Sequence[Array],
    target_B: Array,
) -> ActiveGradients:
    """Do `active_gradients` on plain values."""
    z_BE = bottom_forward(*bottom, x_BF)
    found = top_gradient(*top, [z_BE, *embeddings], target_B, task)
    own = bottom_gradient(*bottom, x_BF, found.embedding_gradients[0])
    return ActiveGradients(found.loss, found.embedding_gradients[1:], own, found.gradient)


# --- evaluation -----------------------------------------------------------------------------------------------------

_SLICE_ROWS = 8192


def embed_rows(spec: ModelSpec, vector_P: Array, x_NF: Array) -> Array:
    """Return the embeddings of many rows (N x E), computed in slices to bound memory."""
    slices = range(0, len(x_NF), _SLICE_ROWS)
    return np.concatenate([bottom_forward(spec, vector_P, x_NF[s : s + _SLICE_ROWS]) for s in slices])


def top_outputs(spec: ModelSpec, vector_P: Array, embeddings: Sequence[Array]) -> Array:
    """Return the top model's outputs (N x O) on the concatenated embeddings of all parties."""
    return bottom_forward(spec, vector_P, np.concatenate(embeddings, axis=1))


# --- privacy --------------------------------------------------------------------------------------------------------


def embedding_sigma(config: PubSubVflConfig, num_rows: int) -> float:
    """Return Eq. 17's noise deviation of the embeddings over `num_rows` training rows; 0 for an infinite budget."""
    if math.isinf(config.privacy_mu):
        return 0.0
    return pubsub_sigma(
        mu=config.privacy_mu,
        clip_norm=config.clip_norm,
        batch_size=config.batch_size,
        num_samples=num_rows,
        num_epochs=config.num_epochs,
    )


def gradient_sigma(mu: float, clip_norm: float, releases: int) -> float:
    """Return the noise deviation that makes `releases` gradients of one record cost `mu` in all (sensitivity 2c)."""
    return 0.0 if math.isinf(mu) else 2 * clip_norm * math.sqrt(releases) / mu


def rigorous_budget(clip_norm: float, sigma: float, releases: int, delta: float) -> tuple[float, float]:
    """Return (mu, epsilon at `delta`) of `releases` noisy releases of one record; infinite without noise."""
    if sigma <= 0:
        return math.inf, math.inf
    mu = gaussian_mu(clip_norm=clip_norm, sigma=sigma, releases=releases)
    return mu, epsilon_of_mu(mu, delta)
