"""Everything that leaves a center in NebulaFL and its baselines: this file is the privacy review.

Shapes: P parameters of a model, C containers of a center, N proxy samples, K classes, G clusters.

What a trained model reveals of the rows behind it (membership, inversion) holds for every message that carries one.
No message carries a row or its features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.network.codec import message

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]


@message(receiver="another data center, or the exchange", reveals="a mean over models trained in many containers")
class MasterModel:
    """A center's master and its mean version; parameters (P)."""

    center: str
    rotation: int
    version: float
    parameters: Floats


@message(receiver="data center", reveals="a mean over the masters or trained models of all centers")
class SharedModel:
    """What the exchange made; parameters (P)."""

    rotation: int
    version: float
    parameters: Floats


@message(receiver="exchange", reveals="how many samples each container holds, and how long it trains")
class CenterFacts:
    """Samples and predicted seconds of each container (C)."""

    center: str
    sizes: Integers
    seconds: Floats


@message(receiver="data center", reveals="the exchange's model, and that this container is wanted")
class TrainingOrder:
    """Train this model in this container; parameters (P)."""

    task: int
    container: int
    gap: float
    rate_factor: float
    parameters: Floats


@message(receiver="data center", reveals="that a training is no longer wanted")
class Withdrawal:
    """Break these tasks off."""

    tasks: tuple[int, ...]


@message(receiver="exchange", reveals="one container's trained model, its losses and its time")
class TrainingResult:
    """A container's trained model; parameters (P)."""

    task: int
    center: str
    num_samples: int
    loss_rms: float
    seconds: float
    parameters: Floats


@message(receiver="exchange", reveals="that a container is gone or back")
class ContainerNews:
    """A container of a center was lost (and the task it trained, or -1) or is back."""

    center: str
    container: int
    present: bool
    task: int


@message(receiver="data center", reveals="the exchange's model")
class RoundOrder:
    """Train this model in so many containers of your choice; parameters (P)."""

    round: int
    num_containers: int
    parameters: Floats


@message(receiver="exchange", reveals="a mean over models trained in the center's containers")
class RoundResult:
    """A center's share of a round; parameters (P); num_samples 0 when all its containers were lost."""

    center: str
    round: int
    num_samples: int
    num_models: int
    parameters: Floats


@message(
    receiver="exchange", reveals="mean predictions of clusters of containers on public samples, and their label counts"
)
class ClusterLogits:
    """A center's share of a FedHKT round: logits (G x N x K) and label counts (G x K)."""

    center: str
    round: int
    logits: Floats
    counts: Integers


@message(receiver="auditor", reveals="which container trains on which hardware at what price; no data")
class LeaseOpened:
    """A unit was let."""

    center: str
    unit: str
    container: str
    start: float
    price: float


@message(receiver="auditor", reveals="when a training ended; no data")
class LeaseClosed:
    """A unit came back; `useful` is False when the training was given up."""

    center: str
    unit: str
    end: float
    useful: bool


@message(receiver="driver", reveals="counts of a center's trainings and versions")
class CenterReport:
    """What a center did so far."""

    center: str
    trainings: int
    given_up: int
    rotations: int
    versions: tuple[int, ...]


@message(receiver="driver", reveals="accuracy and loss on test rows that belong to no container")
class Measurement:
    """What the auditor measured."""

    accuracy: float
    loss: float
