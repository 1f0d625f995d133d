"""Split networks as the actors see them: the counterpart of `glm` (loads torch).

Modules only say what to compute; they are made from a frozen `Shapes` value, once in each process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedactors.runtime.base import Work
from protocols.mtcd import network
from protocols.mtcd.config import MtcdConfig

FloatArray = NDArray[np.floating]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shapes:
    """What the modules of a run are made from; `input_shape` is empty at the server, which has no features."""

    kind: Literal["mlp", "resnet18", "multi-view-cnn"]
    input_shape: tuple[int, ...]
    width: int
    representation_size: int
    aggregation: network.Aggregation
    num_clients: int
    num_classes: int


def shapes_of(config: MtcdConfig, input_shape: tuple[int, ...], num_classes: int) -> Shapes:
    """Return the shapes for samples of `input_shape`."""
    return Shapes(
        config.network,
        input_shape,
        config.network_width,
        config.representation_size,
        config.aggregation,
        config.num_clients,
        num_classes,
    )


@functools.lru_cache(maxsize=64)
def bottom(shapes: Shapes) -> nn.Module:
    """Return the representation model."""
    return network.representation_model(shapes.kind, shapes.input_shape, shapes.width, shapes.representation_size)


@functools.lru_cache(maxsize=64)
def fusion(shapes: Shapes) -> network.Fusion:
    """Return the fusion model."""
    return network.fusion_model(shapes.aggregation, shapes.num_clients, shapes.representation_size, shapes.num_classes)


def represent(shapes: Shapes, theta: network.Parameters, x_N: FloatArray, rows_B: Rows | None) -> FloatArray:
    """Return h_k (B, E)."""
    return network.represent(bottom(shapes), theta, x_N if rows_B is None else x_N[rows_B])


def visit(
    shapes: Shapes,
    theta: network.Parameters,
    theta_0: network.Parameters,
    x_N: FloatArray,
    labels_N: Labels,
    z: FloatArray,
    rows_B: Rows | None,
    client: int,
    step: float,
    num_local_steps: int,
    update_theta_0: bool,
) -> tuple[network.Parameters, network.Parameters, FloatArray]:
    """Do a visit's local steps; see `network.visit`."""
    x_B, labels_B = (x_N, labels_N) if rows_B is None else (x_N[rows_B], labels_N[rows_B])
    return network.visit(
        bottom(shapes),
        fusion(shapes),
        theta,
        theta_0,
        x_B,
        labels_B,
        z,
        client=client,
        aggregation=shapes.aggregation,
        step=step,
        num_local_steps=num_local_steps,
        update_fusion=update_theta_0,
    )


def fusion_steps(
    shapes: Shapes, theta_0: network.Parameters, z: FloatArray, labels_B: Labels, step: float, num_steps: int
) -> network.Parameters:
    """Do token 0's steps."""
    return network.fusion_steps(fusion(shapes), theta_0, z, labels_B, step=step, num_steps=num_steps)


def classes(
    config: MtcdConfig, theta_0: network.Parameters, representations: list[FloatArray], num_classes: int
) -> Labels:
    """Return the likeliest class of each row, from all clients' representations in their order."""
    z = network.aggregate(representations, config.aggregation)
    return network.classify(fusion(shapes_of(config, (), num_classes)), theta_0, z)


class NetworkBlock:
    """A client's features and labels, and its representation model; see `glm.GlmBlock` for the methods."""

    def __init__(
        self,
        config: MtcdConfig,
        client: int,
        x_N: FloatArray,
        test_N: FloatArray,
        labels_N: Labels,
        num_classes: int,
    ) -> None:
        torch.set_num_threads(1)  # torch comes after the process has begun, and more threads change results
        self._shapes = shapes_of(config, tuple(x_N.shape[1:]), num_classes)
        bottom(self._shapes)  # refuses a shape that does not suit
        self._x = {"train": x_N, "test": test_N}
        self._labels = labels_N
        self._client = client
        self._num_local_steps = config.num_local_steps
        self.num_samples = len(x_N)

    def initial(self, generator: np.random.Generator) -> network.Parameters:
        """Draw theta_k."""
        return network.initial_parameters(bottom(self._shapes), generator)

    def initial_theta_0(self, generator: np.random.Generator) -> network.Parameters:
        """Draw theta_0, for a run without a server."""
        return network.initial_parameters(fusion(self._shapes), generator)

    def represent(self, theta: network.Parameters, rows_B: Rows | None, part: str = "train") -> tuple[Any, ...]:
        """Return (function, its arguments, work) for h_k over rows of a part."""
        x_N = self._x[part]
        units = len(x_N) if rows_B is None else len(rows_B)
        return represent, (self._shapes, theta, x_N, rows_B), Work("represent", units)

    def visit(
        self,
        theta: network.Parameters,
        theta_0: network.Parameters,
        z: FloatArray,
        rows_B: Rows | None,
        step: float,
        update_theta_0: bool,
    ) -> tuple[Any, ...]:
        """Return (function, its arguments, work) for a visit."""
        arguments = (
            self._shapes,
            theta,
            theta_0,
            self._x["train"],
            self._labels,
            z,
            rows_B,
            self._client,
            step,
            self._num_local_steps,
            update_theta_0,
        )
        return visit, arguments, Work("visit", len(z) * self._num_local_steps)

    def visited(
        self, result: tuple[network.Parameters, network.Parameters, FloatArray], theta_0: network.Parameters
    ) -> tuple[network.Parameters, network.Parameters, FloatArray]:
        """Return (theta_k, theta_0, Z)."""
        return result

    def combine(
        self, theta: network.Parameters, copies: Mapping[int, network.Parameters], weights_G: FloatArray
    ) -> network.Parameters:
        """Return theta_k after a sync."""
        return network.combine(theta, copies, weights_G)

    def penalty(self, theta: network.Parameters) -> float:
        """Return 0: networks have no regulariser here."""
        return 0.0

    def own_change(self, change: FloatArray, client: int) -> tuple[FloatArray, Any]:
        """Return the part of a change of Z that is this client's (B, E), and where it belongs."""
        if self._shapes.aggregation == "sum":
            return change, (slice(None), slice(None))
        size = self._shapes.representation_size
        where = (slice(None), slice(client * size, (client + 1) * size))
        return change[where], where

    def with_own(self, z: FloatArray, h_BE: FloatArray, client: int) -> FloatArray:
        """Return Z with this client's representation added, or put in its slot."""
        return network.replace_in_token(z, np.zeros_like(h_BE), h_BE, client, self._shapes.aggregation)

    def blank(self, h_BE: FloatArray, client: int) -> FloatArray:
        """Return Z of this client's representation alone."""
        slots = self._shapes.num_clients if self._shapes.aggregation == "concatenation" else 1
        empty = np.zeros((len(h_BE), slots * h_BE.shape[1]), h_BE.dtype)
        return self.with_own(empty, h_BE, client)


class NetworkHead:
    """The server's side: labels, the fusion model, and theta_0; see `glm.GlmHead` for the methods."""

    def __init__(self, config: MtcdConfig, labels_N: Labels, num_classes: int) -> None:
        torch.set_num_threads(1)  # as in `NetworkBlock`
        self._shapes = shapes_of(config, (), num_classes)
        self._labels = labels_N

    def initial(self, generator: np.random.Generator) -> network.Parameters:
        """Draw theta_0."""
        return network.initial_parameters(fusion(self._shapes), generator)

    def merge(
        self,
        z: FloatArray | None,
        before: Mapping[int, FloatArray],
        after: Mapping[int, FloatArray],
        fresh: bool,
    ) -> FloatArray:
        """Return Z of all representations known, in the clients' order; one that is missing counts as zeros."""
        known = dict(after) if fresh else {**before, **after}
        blank = np.zeros_like(next(iter(known.values())))
        return network.aggregate(
            [known.get(client, blank) for client in range(self._shapes.num_clients)], self._shapes.aggregation
        )

    def nothing(self) -> None:
        """Return None: a drawn theta has no Z that is known beforehand."""
        return None

    def steps(
        self, theta_0: network.Parameters, z: FloatArray, rows_B: Rows | None, step: float, num_steps: int
    ) -> tuple[Any, ...] | None:
        """Return (function, its arguments, work) for token 0's steps."""
        labels_B = self._labels if rows_B is None else self._labels[rows_B]
        return fusion_steps, (self._shapes, theta_0, z, labels_B, step, num_steps), Work("fusion", len(z) * num_steps)

    def loss(self, theta_0: network.Parameters, z: FloatArray, rows_B: Rows | None) -> float:
        """Return the mean cross-entropy on the rows."""
        labels_B = self._labels if rows_B is None else self._labels[rows_B]
        return network.predict(fusion(self._shapes), theta_0, z, labels_B)[0]

    def evaluate(
        self, theta_0: network.Parameters, representations: Mapping[int, FloatArray], labels_N: Labels
    ) -> tuple[float, float]:
        """Return the mean cross-entropy and the accuracy on the rows of a part."""
        z = self.merge(None, {}, representations, fresh=True)
        return network.predict(fusion(self._shapes), theta_0, z, labels_N)
