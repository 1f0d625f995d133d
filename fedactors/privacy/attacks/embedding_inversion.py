"""Embedding inversion: from the embeddings a party publishes back to its features (PubSub-VFL, Appendix G).

Three attackers of rising generality: one who can list the possible inputs (`nearest_neighbour`), one who holds the
bottom model (`invert_by_optimisation`), one who holds a shadow set of inputs with their embeddings
(`train_decoder`). Success is the share of features within a tolerance, and the AUC on binary features.

Shapes: B attacked rows, S shadow or candidate rows, E embedding width, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedactors.learning.metrics import auc
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.parameters import as_tensor

Array = NDArray[Any]


def nearest_neighbour(embedding_BE: Array, candidate_SE: Array, chunk: int = 1024) -> NDArray[np.int64]:
    """Return for each row the index of the candidate whose embedding is nearest in L2 (ties: the lowest index)."""
    square_S = np.sum(np.asarray(candidate_SE, dtype=np.float64) ** 2, axis=1)
    parts = [
        np.argmin(square_S - 2 * embedding_BE[first : first + chunk].astype(np.float64) @ candidate_SE.T, axis=1)
        for first in range(0, len(embedding_BE), chunk)
    ]
    return np.concatenate(parts).astype(np.int64)


def invert_by_optimisation(
    bottom: Callable[[Tensor], Tensor],
    embedding_BE: Array,
    num_features: int,
    *,
    seed: int,
    steps: int = 500,
    learning_rate: float = 0.05,
    prior_weight: float = 1e-3,
) -> Array:
    """Return inputs (B x F) whose embeddings under `bottom` come nearest to those observed.

    Adam on ``||bottom(x) - z||^2 + prior_weight ||x||^2`` from small random starts; the prior is right for
    standardised features.
    """
    target_BE = as_tensor(embedding_BE)
    start = np.random.default_rng(seed).normal(scale=0.1, size=(len(embedding_BE), num_features))
    guess_BF = as_tensor(start, target_BE.dtype).requires_grad_()
    optimizer = torch.optim.Adam([guess_BF], lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((bottom(guess_BF) - target_BE) ** 2).sum() + prior_weight * (guess_BF**2).sum()
        (guess_BF.grad,) = torch.autograd.grad(loss, [guess_BF])
        optimizer.step()
    found: Array = guess_BF.detach().numpy()
    return found


def train_decoder(
    shadow_embedding_SE: Array,
    shadow_input_SF: Array,
    *,
    seed: int,
    hidden: int = 128,
    layers: int = 3,
    num_epochs: int = 50,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
) -> Callable[[Array], Array]:
    """Train a decoder on the shadow set and return it as a function from embeddings (B x E) to inputs (B x F)."""
    mean_E = shadow_embedding_SE.mean(axis=0)
    deviation_E = shadow_embedding_SE.std(axis=0) + 1e-8
    spec = ModelSpec(
        name="mlp",
        inputs=(shadow_embedding_SE.shape[1],),
        outputs=shadow_input_SF.shape[1],
        hidden=hidden,
        layers=layers,
    )
    decoder = build_model(spec, seed)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=learning_rate)
    z, x = as_tensor((shadow_embedding_SE - mean_E) / deviation_E, torch.float32), as_tensor(shadow_input_SF).float()
    order = np.random.default_rng(seed)
    parameters = list(decoder.parameters())
    for _ in range(num_epochs):
        permutation = torch.from_numpy(order.permutation(len(x)))
        for chosen in torch.split(permutation, batch_size):
            loss = ((decoder(z[chosen]) - x[chosen]) ** 2).mean()
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            optimizer.step()

    def decode(embedding_BE: Array) -> Array:
        with torch.no_grad():
            decoded: Array = decoder(as_tensor((embedding_BE - mean_E) / deviation_E, torch.float32)).numpy()
        return decoded

    return decode


def success_rate(true_BF: Array, guess_BF: Array, tolerance: float) -> float:
    """Return the share of features that the attack reconstructed to within `tolerance` (absolute)."""
    return float(np.mean(np.abs(np.asarray(true_BF) - np.asarray(guess_BF)) <= tolerance))


def baseline_success_rate(true_BF: Array, shadow_input_SF: Array, tolerance: float) -> float:
    """Return the success of guessing each feature's shadow median: what an attacker has without any message."""
    return success_rate(true_BF, np.median(shadow_input_SF, axis=0)[None, :], tolerance)


def binary_feature_auc(true_BF: Array, guess_BF: Array) -> float:
    """Return the mean AUC over the features that take exactly two values here; NaN if there are none."""
    found = []
    for column in range(true_BF.shape[1]):
        values = np.unique(true_BF[:, column])
        if len(values) == 2:
            found.append(auc(true_BF[:, column] == values[1], guess_BF[:, column]))
    return float(np.mean(found)) if found else float("nan")
