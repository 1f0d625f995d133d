"""A party's network: a value that computes wherever it is needed, and the parameters that an actor trains.

    actor:  network = Network(spec, optimizer, seed)
            z = await self.compute(algorithm.embed, network.model, x_BF, work=...)      # embed(model, x) -> array
            network.apply(gradient_P)                                                   # network.model is another now

A `Model` is a specification at fixed parameters. A compute function takes it as an argument like any other: in the
actor's own process it is used as it stands, to another process it travels as specification and flat vector and is
built again there, from a skeleton that each process makes once. So there is one function and one call, whether the
run has a pool or not.

Parameters are never changed in place: they are views of one flat vector, and a step makes a new one. A graph that was
built with the views of an earlier step therefore stays valid, and a snapshot costs no copy.

Shapes: B batch, F features, O outputs, P parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedactors.learning.devices import Device, on_device, on_host, placed
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, optimizer_step
from fedactors.learning.parameters import Array, to_vector


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
        self.num_values = 0
        self._places: list[tuple[torch.Size, tuple[int, ...], int]] = []
        for shape in self.shapes:
            self._places.append((shape, torch.empty(shape, device="meta").stride(), self.num_values))
            self.num_values += shape.numel()

    def views(self, vector_P: Tensor) -> list[Tensor]:
        """Return leaf views of `vector_P`, one per parameter, that record gradients."""
        if vector_P.numel() != self.num_values:
            raise ValueError(f"the model has {self.num_values} values, the vector has {vector_P.numel()}")
        with torch.no_grad():
            vector = vector_P.detach().contiguous()
            first = vector.storage_offset()
            # one call for each parameter: a split and a view of each part take twice as long, at each step
            return [vector.as_strided(shape, stride, first + at).requires_grad_() for shape, stride, at in self._places]

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


class Model:
    """A network at fixed parameters: a value, never changed, that pickles as (specification, flat vector).

    Args:
        spec: what the network is.
        vector_P: its parameters; an array is copied, a tensor is taken as it is and must not be changed any more.
        device: where they are, and what is computed with them.

    Raises:
        ValueError: a vector of another length, or a network with running statistics.
    """

    def __init__(self, spec: ModelSpec, vector_P: Array | Tensor, device: Device = "cpu") -> None:
        self.spec = spec
        self.device = torch.device(device)
        self._vector = placed(vector_P, device, spec.dtype)
        self.views = functional_model(spec).views(self._vector)
        """The parameters, as leaves that record gradients."""

    @property
    def vector(self) -> Array:
        """A copy of the flat parameters (P)."""
        return on_host(self._vector).copy()

    @property
    def tensor(self) -> Tensor:
        """The flat parameters (P) themselves; not to be changed."""
        return self._vector

    @property
    def num_parameters(self) -> int:
        """P."""
        return self._vector.numel()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs with their graph."""
        return functional_model(self.spec)(self.views, inputs)

    def output(self, x_BF: Array | Tensor) -> Array:
        """Return the outputs (B x O) without keeping a graph, for evaluation."""
        with torch.no_grad():
            return on_host(self(placed(x_BF, self.device, self.spec.dtype)))

    def flat_gradient(self, output: Tensor, upstream: Tensor | None = None) -> Tensor:
        """Return the gradient (P) of `output`, which was computed with this model; its graph is then freed."""
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(output, self.views, upstream)])

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self.spec, on_host(self._vector), str(self.device))


class Network:
    """The parameters that an actor trains: a `Model`, its optimiser's moments and the number of steps taken so far.

    Args:
        spec: what the network is.
        optimizer: how it follows its gradients.
        seed: of its first parameters.
        device: where parameters and moments are.
    """

    def __init__(self, spec: ModelSpec, optimizer: OptimizerSpec, seed: int, device: Device = "cpu") -> None:
        # half a second, which torch would else take at the first gradient, on the run's clock
        import torch.fx.experimental.symbolic_shapes  # noqa: F401

        self.spec = spec
        self.optimizer = optimizer
        self.model = Model(spec, initial_vector(spec, seed), device)
        """The network at the present parameters."""
        self.version = 0
        self.rate = 1.0
        """Factor of the step size, by a schedule; whoever keeps one sets it."""
        self._moments = OptimizerState()

    @property
    def vector(self) -> Array:
        """A copy of the flat parameters (P)."""
        return self.model.vector

    def load(self, vector_P: Array) -> None:
        """Replace the parameters (after an average, say); moments stay, graphs of earlier ones stay valid."""
        self.model = Model(self.spec, vector_P, self.model.device)

    def apply(self, gradient_P: Array | Tensor) -> None:
        """Take one optimiser step with a flat gradient."""
        gradient, device = placed(gradient_P, self.model.device, self.spec.dtype), self.model.device
        rule = self.optimizer.scaled(self.rate)
        self.model = Model(self.spec, optimizer_step(rule, self.model.tensor, gradient, self._moments), device)
        self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, moments and version for a snapshot."""
        return {"vector": self.vector, "moments": self._moments.state_dict(), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.load(state["vector"])
        self._moments.load_state_dict(on_device(state["moments"], self.model.device))
        self.version = state["version"]
