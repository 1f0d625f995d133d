"""FedHKT (Deng et al., 2023): containers share logits on a public proxy set, the server distils their ensemble.

    container: train, then logits on the proxy set --> center: mean of its clusters --> server: weighted ensemble
    server: distil the ensemble into its model --> centers --> containers

A reconstruction from the description: clusters by label distribution (k-means), inside a cluster a mean weighted
by samples, over clusters a weight per class by how many samples of that class a cluster has. The proxy set is
held-out training data, so the method sees samples that the others do not.

Shapes: N proxy samples, K classes, M members, G clusters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.baselines.clustering import kmeans

Numbers = NDArray[np.float64]


def label_clusters(counts_MK: NDArray[np.integer], num_clusters: int) -> list[list[int]]:
    """Return clusters of containers by the shares of their labels."""
    counts = np.asarray(counts_MK, dtype=np.float64)
    return kmeans(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0), num_clusters)


def cluster_logits(logits: Sequence[Floats], num_samples: Sequence[int]) -> Numbers:
    """Return the mean logits of a cluster's members, weighted by samples, shape (N, K)."""
    weights_M = np.asarray(num_samples, dtype=np.float64)
    mean_NK = np.zeros(logits[0].shape)
    for weight, logits_NK in zip(weights_M / weights_M.sum(), logits, strict=True):
        mean_NK += weight * logits_NK
    return mean_NK


def class_weights(counts_GK: NDArray[np.integer]) -> Numbers:
    """Return how much each cluster is believed in each class, columns adding to 1; equal where nobody has samples."""
    counts = np.asarray(counts_GK, dtype=np.float64)
    sums_K = counts.sum(axis=0)
    return np.where(sums_K > 0, counts / np.maximum(sums_K, 1.0), 1.0 / len(counts))


def ensemble(logits: Sequence[Numbers], counts_GK: NDArray[np.integer], temperature: float = 1.0) -> Floats:
    """Return the class probabilities that the server distils, shape (N, K), rows adding to 1.

    Each cluster's probabilities are weighted by `class_weights` and made to add to one again.
    """
    weights_GK = class_weights(counts_GK)
    mixed_NK = np.zeros(logits[0].shape)
    for weight_K, logits_NK in zip(weights_GK, logits, strict=True):
        mixed_NK += weight_K * softmax(logits_NK / temperature)
    return np.asarray(mixed_NK / mixed_NK.sum(axis=1, keepdims=True), dtype=np.float32)


def softmax(logits_NK: Numbers) -> Numbers:
    """Return the probabilities that logits stand for."""
    powers_NK = np.exp(logits_NK - logits_NK.max(axis=1, keepdims=True))
    return np.asarray(powers_NK / powers_NK.sum(axis=1, keepdims=True))
