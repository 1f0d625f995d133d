"""k-means as the clustered baselines use it: deterministic, sorted, without empty clusters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_PASSES = 100
"""Passes of Lloyd's algorithm at most."""


def kmeans(points_ND: NDArray[np.float64], num_clusters: int) -> list[list[int]]:
    """Return the members of each cluster, in ascending order; clusters are ordered by their centers.

    Starts from the point nearest to the mean, then takes the point farthest from the starts so far: no random
    number is drawn. There are never more clusters than different points.
    """
    num_clusters = min(num_clusters, len(np.unique(points_ND, axis=0)))
    first = int(_distances(points_ND, points_ND.mean(axis=0)[None]).argmin())
    starts = [first]
    while len(starts) < num_clusters:
        starts.append(int(_distances(points_ND, points_ND[starts]).min(axis=1).argmax()))
    centers_KD = points_ND[starts]
    label_N = _distances(points_ND, centers_KD).argmin(axis=1)
    for _ in range(MAX_PASSES):
        centers_KD = np.stack(
            [
                points_ND[label_N == k].mean(axis=0) if (label_N == k).any() else centers_KD[k]
                for k in range(num_clusters)
            ]
        )
        moved_N = _distances(points_ND, centers_KD).argmin(axis=1)
        if (moved_N == label_N).all():
            break
        label_N = moved_N
    order = np.lexsort(centers_KD.T[::-1])
    members = [np.flatnonzero(label_N == k).tolist() for k in order]
    return [cluster for cluster in members if cluster]


def _distances(points_ND: NDArray[np.float64], centers_KD: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(((points_ND[:, None, :] - centers_KD[None, :, :]) ** 2).sum(axis=2))
