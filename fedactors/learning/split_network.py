"""Split networks: bottoms at the feature holders, a top at the label holder, several batches in flight.

        x_BF --bottom--> z_BE  ...embedding travels...   [z_1, .., z_M] --top--> loss
        step <--backward-- g_BE ...gradient travels...   dloss/dz_m

A gradient must be back-propagated through the activation *of its own publication*, however many optimiser steps came
between. Parameters are therefore never changed in place: they are views of one flat vector, a step makes a new vector
(`fedactors.learning.optimizers`), and a `Publication` keeps the graph over the views it was computed with. A snapshot
thus costs no copy; old vectors are freed with the last publication that uses them.

`BottomNetwork` and `TopNetwork` keep state for an actor's lifetime. `bottom_forward`, `bottom_gradient` and
`top_gradient` are their pure counterparts on plain values (they recompute the activation from its parameters), for
compute pools and for work that must survive a snapshot; both give the same numbers.

Shapes: B batch, F features of one party, E embedding width, O outputs, P parameters, M parties.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedactors.learning.losses import Task, task_loss
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, optimizer_step
from fedactors.learning.parameters import Array, as_tensor, to_vector

Fusion = Literal["concatenate", "sum"]


class FunctionalModel:
    """A module whose parameters are given from outside, as views of one flat vector.

    Modules with running statistics are refused: samples of a split network must not influence one another through
    state that is not a parameter.
    """

    def __init__(self, skeleton: nn.Module) -> None:
        self._module = skeleton
        self._slots: list[tuple[dict[str, nn.Parameter | None], str]] = []
        self.shapes: list[torch.Size] = []
        if any(True for _ in skeleton.buffers()):
            raise ValueError("a split network cannot have buffers (use group or layer normalisation)")
        for part in skeleton.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    self._slots.append((part._parameters, name))
                    self.shapes.append(parameter.shape)
        self._sizes = [shape.numel() for shape in self.shapes]
        self.num_values = sum(self._sizes)

    def views(self, vector_P: Tensor) -> list[Tensor]:
        """Return leaf views of `vector_P`, one per parameter, that record gradients."""
        if vector_P.numel() != self.num_values:
            raise ValueError(f"the model has {self.num_values} values, the vector has {vector_P.numel()}")
        with torch.no_grad():
            parts = torch.split(vector_P.detach(), self._sizes)
            return [part.view(shape).requires_grad_() for part, shape in zip(parts, self.shapes, strict=True)]

    def __call__(self, views: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Run the module with `views` as its parameters."""
        for (slots, name), view in zip(self._slots, views, strict=True):
            slots[name] = view  # type: ignore[assignment]
        output: Tensor = self._module(inputs)
        return output


_SKELETONS = threading.local()


def functional_model(spec: ModelSpec) -> FunctionalModel:
    """Return the parameter-free form of `spec`; one per thread is kept, because a call fills its slots."""
    known: dict[ModelSpec, FunctionalModel] = _SKELETONS.__dict__.setdefault("known", {})
    if spec not in known:
        known[spec] = FunctionalModel(build_skeleton(spec))
    return known[spec]


def initial_vector(spec: ModelSpec, seed: int) -> Array:
    """Return the flat initial parameters of `spec`, which depend on `seed` alone."""
    return to_vector(build_model(spec, seed))


@dataclasses.dataclass(frozen=True, eq=False)
class Publication:
    """An activation and the parameters that made it, kept until its gradient returns."""

    views: list[Tensor]
    activation: Tensor
    version: int

    @property
    def embedding(self) -> Array:
        """The activation as a private array, ready to be sent."""
        array: Array = self.activation.detach().numpy().copy()
        return array


class _Trainable:
    """A flat vector, its optimiser state and the number of steps taken so far."""

    def __init__(self, spec: ModelSpec, optimizer: OptimizerSpec, seed: int) -> None:
        self.spec = spec
        self.optimizer = optimizer
        self._model = FunctionalModel(build_skeleton(spec))
        self._vector = as_tensor(initial_vector(spec, seed))
        self._views = self._model.views(self._vector)
        self._moments = OptimizerState()
        self.version = 0

    @property
    def vector(self) -> Array:
        """A copy of the flat parameters (P)."""
        copied: Array = self._vector.numpy().copy()
        return copied

    def load(self, vector: Array) -> None:
        """Replace the parameters (after an average, say); moments stay, publications in flight stay valid."""
        self._replace(as_tensor(vector, self._vector.dtype))

    def apply(self, gradient_P: Array | Tensor) -> None:
        """Take one optimiser step with a flat gradient."""
        gradient = gradient_P if isinstance(gradient_P, Tensor) else as_tensor(gradient_P, self._vector.dtype)
        self._replace(optimizer_step(self.optimizer, self._vector, gradient, self._moments))
        self.version += 1

    def state_dict(self) -> dict[str, object]:
        """Return parameters, moments and version as plain values."""
        return {"vector": self.vector, "moments": self._moments.to_arrays(), "version": self.version}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore what `state_dict` returned."""
        vector, moments, version = state["vector"], state["moments"], state["version"]
        if not isinstance(vector, np.ndarray) or not isinstance(moments, dict) or not isinstance(version, int):
            raise ValueError("this is not the state of a split network")
        self._replace(as_tensor(vector, self._vector.dtype))
        self._moments = OptimizerState.from_arrays(moments)
        self.version = version

    def _replace(self, vector: Tensor) -> None:
        self._vector = vector
        self._views = self._model.views(vector)


class BottomNetwork(_Trainable):
    """A party's bottom model with publications in flight."""

    def publish(self, x_BF: Array | Tensor) -> Publication:
        """Compute the embedding of a batch with the present parameters and keep its graph."""
        inputs = x_BF if isinstance(x_BF, Tensor) else as_tensor(x_BF, self._vector.dtype)
        return Publication(self._views, self._model(self._views, inputs), self.version)

    def gradient(self, publication: Publication, gradient_BE: Array) -> Tensor:
        """Return the flat gradient (P) through the activation of `publication`, whose graph is then freed."""
        upstream = as_tensor(gradient_BE, self._vector.dtype)
        return _flat_gradient(publication.activation, publication.views, upstream)

    def step(self, publication: Publication, gradient_BE: Array) -> None:
        """Back-propagate through `publication` and take one optimiser step from the present parameters."""
        self.apply(self.gradient(publication, gradient_BE))

    def embed(self, x_BF: Array) -> Array:
        """Return the embedding without keeping a graph, for evaluation."""
        with torch.no_grad():
            embedding: Array = self._model(self._views, as_tensor(x_BF, self._vector.dtype)).numpy()
        return embedding


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TopGradient:
    """What one batch gives at the label holder."""

    loss: float
    output: Array
    embedding_gradients: tuple[Array, ...]
    """dloss/dz_m for each party, each B x E_m."""
    gradient: Array
    """Flat gradient of the top's own parameters."""


class TopNetwork(_Trainable):
    """The label holder's top model."""

    def __init__(
        self, spec: ModelSpec, optimizer: OptimizerSpec, seed: int, *, task: Task, fusion: Fusion = "concatenate"
    ) -> None:
        super().__init__(spec, optimizer, seed)
        self.task = task
        self.fusion = fusion

    def gradient(self, embeddings: Sequence[Array], target_B: Array) -> TopGradient:
        """Return loss and all gradients of one batch without changing the parameters."""
        return _top_gradient(self._model, self._views, embeddings, target_B, self.task, self.fusion)

    def step(self, embeddings: Sequence[Array], target_B: Array) -> TopGradient:
        """Compute `gradient` and take one optimiser step with it."""
        found = self.gradient(embeddings, target_B)
        self.apply(found.gradient)
        return found

    def output(self, embeddings: Sequence[Array]) -> Array:
        """Return the outputs (B x O) without keeping a graph, for evaluation."""
        with torch.no_grad():
            leaves = [as_tensor(z_BE, self._vector.dtype) for z_BE in embeddings]
            output: Array = self._model(self._views, _fuse(leaves, self.fusion)).numpy()
        return output


def bottom_forward(spec: ModelSpec, vector_P: Array, x_BF: Array) -> Array:
    """Return the embedding z_BE of a batch at the given parameters."""
    model = functional_model(spec)
    with torch.no_grad():
        embedding: Array = model(model.views(as_tensor(vector_P, spec.dtype)), as_tensor(x_BF, spec.dtype)).numpy()
    return embedding


def bottom_gradient(spec: ModelSpec, vector_P: Array, x_BF: Array, gradient_BE: Array) -> Array:
    """Return the flat gradient at the parameters *of the publication*, by recomputing its activation."""
    model = functional_model(spec)
    views = model.views(as_tensor(vector_P, spec.dtype))
    activation_BE = model(views, as_tensor(x_BF, spec.dtype))
    gradient: Array = _flat_gradient(activation_BE, views, as_tensor(gradient_BE, spec.dtype)).numpy()
    return gradient


def top_gradient(
    spec: ModelSpec,
    vector_P: Array,
    embeddings: Sequence[Array],
    target_B: Array,
    task: Task,
    fusion: Fusion = "concatenate",
) -> TopGradient:
    """Return loss, outputs and gradients of one batch at the given top parameters."""
    model = functional_model(spec)
    return _top_gradient(model, model.views(as_tensor(vector_P, spec.dtype)), embeddings, target_B, task, fusion)


def _top_gradient(
    model: FunctionalModel,
    views: list[Tensor],
    embeddings: Sequence[Array],
    target_B: Array,
    task: Task,
    fusion: Fusion,
) -> TopGradient:
    leaves = [as_tensor(z_BE, views[0].dtype).requires_grad_() for z_BE in embeddings]
    output_BO = model(views, _fuse(leaves, fusion))
    loss = task_loss(task, output_BO, as_tensor(target_B))
    found = torch.autograd.grad(loss, [*leaves, *views])
    return TopGradient(
        loss=loss.item(),
        output=output_BO.detach().numpy(),
        embedding_gradients=tuple(gradient.numpy() for gradient in found[: len(leaves)]),
        gradient=torch.cat([gradient.reshape(-1) for gradient in found[len(leaves) :]]).numpy(),
    )


def _fuse(embeddings: Sequence[Tensor], fusion: Fusion) -> Tensor:
    if fusion == "concatenate":
        return torch.cat(list(embeddings), dim=1)
    total = embeddings[0]
    for z_BE in embeddings[1:]:
        total = total + z_BE
    return total


def _flat_gradient(activation: Tensor, views: list[Tensor], upstream: Tensor) -> Tensor:
    return torch.cat([gradient.reshape(-1) for gradient in torch.autograd.grad(activation, views, upstream)])
