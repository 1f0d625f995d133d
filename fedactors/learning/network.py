"""A party's network as a value that computes wherever it is needed; what an actor trains is `optimizers.Network`.

    actor:  network = Network(spec, optimizer, seed)
            z = await self.compute(algorithm.embed, network.model, x_BF, work=...)      # embed(model, x) -> array
            network.apply(gradient_P)                                                   # network.model is another now

A `Model` is a specification at fixed parameters. A compute function takes it as an argument like any other: in the
actor's own process it is used as it stands, to another process it travels as specification and flat vector and is
built again there, from a skeleton that each process makes once. So there is one function and one call, whether the
run has a pool or not. Parameters are never changed in place: they are views of one flat vector, and a step makes a new
one. A graph that was built with the views of an earlier step stays valid, and a snapshot costs no copy.

Flat vectors hold what clients share of a module, in the order of its state dict and row-major (`shared_entries`): the
parameters that are trained, tied ones once, and running statistics. Frozen parameters and other buffers stay where they
are: each process builds them again, and `base_digest` tells whether they are the same.

An actor asks once for its device (``auto``, ``cpu``, ``cuda`` or ``cuda:N``) and keeps parameters, moments and rows
there; what leaves it is an array on the host. On Ray a process sees the GPUs of its share (`Resources.num_gpus`) and no
others, so that ``auto`` without a share is the CPU. Values move here alone: `to_device` and `on_device` there, through
pinned memory and without waiting; `on_host` back.

Shapes: B batch, F features, O outputs, P parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import threading
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedactors.config import DEVICE_PATTERN, is_code
from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec, build_model, build_skeleton

Array = NDArray[Any]


def as_tensor(array: Array, dtype: torch.dtype | None = None) -> Tensor:
    """Return a private tensor copy of `array`, which may be read-only."""
    return torch.tensor(array, dtype=dtype)


def is_frozen_norm(part: nn.Module) -> bool:
    """Say whether a layer is a normalisation whose scale and shift are not trained; it keeps its statistics then."""
    found = list(part.parameters(recurse=False)) if isinstance(part, nn.modules.batchnorm._NormBase) else []
    return bool(found) and not any(parameter.requires_grad for parameter in found)


def train_mode(module: nn.Module) -> nn.Module:
    """Return the module as it trains: frozen normalisation layers use the statistics that they have."""
    module.train()
    for part in module.modules():
        if is_frozen_norm(part):
            part.eval()
    return module


def statistics_of(module: nn.Module) -> set[str]:
    """Return the names of the buffers that clients share.

    These are the running statistics of normalisation layers that are trained, and what a module declares by name,
    ``shared_buffers = ("mean",)``.
    """
    found = set()
    for prefix, part in module.named_modules():
        usual = isinstance(part, nn.modules.batchnorm._NormBase) and not is_frozen_norm(part)
        names = ("running_mean", "running_var") if usual else getattr(part, "shared_buffers", ())
        found |= {f"{prefix}.{name}" if prefix else name for name in names}
    return found


def shared_entries(module: nn.Module) -> dict[str, Tensor]:
    """Return the entries of the state dict that a flat vector holds, as the module has them: each tensor once."""
    statistics, found = statistics_of(module), dict[int, tuple[str, Tensor]]()
    for name, value in module.state_dict(keep_vars=True).items():
        is_trained = isinstance(value, nn.Parameter) and value.requires_grad
        if isinstance(value, Tensor) and value.is_floating_point() and (is_trained or name in statistics):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def base_digest(module: nn.Module) -> str:
    """Return a digest of what stays at home, frozen parameters and constants; empty where there is nothing of the kind.

    Counters (whole numbers of normalisation layers) are no constants.
    """
    shared = {id(value) for value in shared_entries(module).values()}
    entries = module.state_dict(keep_vars=True).items()
    kept = {
        name: value
        for name, value in entries
        if isinstance(value, Tensor) and id(value) not in shared and not name.endswith("num_batches_tracked")
    }
    made = hashlib.sha256()
    for name, value in kept.items():
        tensor = value.detach().cpu().contiguous()
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        made.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()[:32] if kept else ""


def trained_slices(module: nn.Module) -> list[tuple[nn.Parameter, slice]]:
    """Return the parameters that are trained, each once, and where they are in the module's flat vector."""
    found, start = [], 0
    for value in shared_entries(module).values():
        if isinstance(value, nn.Parameter):
            found.append((value, slice(start, start + value.numel())))
        start += value.numel()
    return found


@functools.lru_cache(maxsize=8)
def statistics_mask(spec: ModelSpec) -> NDArray[np.bool_]:
    """Return which numbers of a model's flat vector are running statistics, which follow no gradient (P)."""
    entries = shared_entries(build_skeleton(spec)).values()
    return np.concatenate([np.full(value.numel(), not isinstance(value, nn.Parameter)) for value in entries])


NORM = "norm"
"""As a pattern: parameters and running statistics of all normalisation layers."""
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@functools.lru_cache(maxsize=8)
def local_entries(spec: ModelSpec, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a model's shared entries that `patterns` choose, in the order of its flat vector.

    A pattern is a name, that of a module around it, one with ``*``, or `NORM`.

    Raises:
        BadInput: a pattern chooses nothing, or all of them choose everything.
    """
    module = build_skeleton(spec)
    entries = {id(value): name for name, value in shared_entries(module).items()}
    called = [(name, id(value)) for name, value in module.state_dict(keep_vars=True).items() if id(value) in entries]
    norms = {
        id(value)
        for part in module.modules()
        if isinstance(part, _NORMS) or type(part).__name__.endswith("Norm")
        for value in (*part.parameters(recurse=False), *part.buffers(recurse=False))
    }
    chosen: set[int] = set()
    for pattern in patterns:
        found = {
            one for name, one in called
            if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") or (pattern == NORM and one in norms)
        }  # fmt: skip
        if not found:
            raise BadInput(f"local_parameters: {pattern!r} names nothing that is trained{_nearest(pattern, called)}")
        chosen |= found
    if len(chosen) == len(entries):
        raise BadInput(f"local_parameters: {','.join(patterns)} names the whole model, and nothing is left to share")
    return tuple(name for one, name in entries.items() if one in chosen)


def _nearest(pattern: str, called: Sequence[tuple[str, int]]) -> str:
    """Return what a pattern may have meant: names of entries, or of modules around them."""
    names = [name for name, _ in called]
    around = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    near = get_close_matches(pattern, [*names, *sorted(around)], n=3, cutoff=0.5)
    rest = "" if near or len(names) <= 6 else ", ..."
    return f"; did you mean {', '.join(near)}?" if near else f" (there are {', '.join(names[:6])}{rest})"


@functools.lru_cache(maxsize=8)
def local_mask(spec: ModelSpec, patterns: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return which numbers of a model's flat vector `patterns` choose (P); see `local_entries`."""
    names = local_entries(spec, patterns) if patterns else ()
    entries = shared_entries(build_skeleton(spec)).items()
    mask_P = np.concatenate([np.full(value.numel(), name in names) for name, value in entries])
    mask_P.setflags(write=False)
    return mask_P


def num_values(module: nn.Module) -> int:
    """Return the length of the module's flat vector."""
    return sum(value.numel() for value in shared_entries(module).values())


def to_vector(module: nn.Module) -> Array:
    """Return a flat copy of what clients share of a module."""
    vector: Array = torch.cat([value.detach().cpu().reshape(-1) for value in shared_entries(module).values()]).numpy()
    return vector


def load_vector(module: nn.Module, vector: Array) -> None:
    """Copy a flat vector into the module in place; a wrong length is a ValueError."""
    entries = [value.detach() for value in shared_entries(module).values()]
    total = sum(value.numel() for value in entries)
    if np.shape(vector) != (total,):
        raise ValueError(f"the model has {total} values, the vector has shape {np.shape(vector)}")
    for value, part in zip(entries, torch.split(as_tensor(vector), [one.numel() for one in entries]), strict=True):
        value.copy_(part.view_as(value))


Device = str | torch.device
T = TypeVar("T")


def find_device(text: str) -> torch.device:
    """Return the device that `text` names in this process; ``auto`` is the first GPU that it sees, else the CPU.

    Raises:
        BadInput: another word, or a GPU that this process does not see.
    """
    if not re.fullmatch(DEVICE_PATTERN, text):
        raise BadInput(f"device: {text!r} is not allowed: use auto, cpu, cuda or cuda:N")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        text = "cuda" if num_gpus else "cpu"
    device = torch.device(text)
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise BadInput(f"device: {text!r} is not allowed: this process sees {num_gpus} GPUs (num_gpus= asks for them)")
    return device


def to_device(values: Array | Tensor, device: Device, dtype: torch.dtype | None = None) -> Tensor:
    """Return values as a tensor on a device: an array's copy, or the tensor itself where it is there already."""
    if isinstance(values, Tensor):
        return values.to(device, dtype)
    made = as_tensor(values, dtype)
    return made if torch.device(device).type == "cpu" else made.pin_memory().to(device, non_blocking=True)


def on_device(value: T, device: Device) -> T:
    """Return a value with all tensors in it on a device; dataclasses, mappings, tuples and lists are gone through."""
    made: Any = value
    if isinstance(value, Tensor):
        made = value.to(device)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        made = dataclasses.replace(value, **{name: on_device(getattr(value, name), device) for name in names})
    elif isinstance(value, dict):
        made = {name: on_device(one, device) for name, one in value.items()}
    elif isinstance(value, (tuple, list)):
        made = type(value)(on_device(one, device) for one in value)
    return made  # type: ignore[no-any-return]


def on_host(values: Array | Tensor) -> Array:
    """Return values as an array of the host; what is there already is not copied."""
    if not isinstance(values, Tensor):
        return values
    detached = values.detach()
    if detached.device.type == "cpu":
        return detached.numpy()  # type: ignore[no-any-return]
    buffer = torch.empty(detached.shape, dtype=detached.dtype, pin_memory=True)
    buffer.copy_(detached, non_blocking=True)
    torch.cuda.current_stream(detached.device).synchronize()
    return buffer.numpy()  # type: ignore[no-any-return]


def resident(tensor: Tensor) -> Array | Tensor:
    """Return what stays with an actor: on a GPU the tensor, on the host its array, which may go to a pool's process."""
    return tensor.detach() if tensor.device.type != "cpu" else on_host(tensor)


class DeviceArrays:
    """An actor's arrays on its device, each copied there once; on the host they are what they are.

    Args:
        device: where.
    """

    def __init__(self, device: Device) -> None:
        self.device = torch.device(device)
        self._held: dict[str, tuple[Array, Tensor]] = {}

    def take(self, name: str, array_N: Array, rows_B: NDArray[np.integer[Any]]) -> Array | Tensor:
        """Return rows of an array; another array under the same name takes the former one's place."""
        if self.device.type == "cpu":
            chosen: Array = array_N[rows_B]
            return chosen
        if name not in self._held or self._held[name][0] is not array_N:
            self._held[name] = (array_N, to_device(array_N, self.device))
        return self._held[name][1][torch.from_numpy(rows_B).to(self.device, non_blocking=True)]


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
        self._layouts: list[tuple[torch.Size, tuple[int, ...], int]] = []
        for shape in self.shapes:
            self._layouts.append((shape, torch.empty(shape, device="meta").stride(), self.num_values))
            self.num_values += shape.numel()

    def views(self, vector_P: Tensor) -> list[Tensor]:
        """Return leaf views of `vector_P`, one per parameter, that record gradients."""
        if vector_P.numel() != self.num_values:
            raise ValueError(f"the model has {self.num_values} values, the vector has {vector_P.numel()}")
        with torch.no_grad():
            vector = vector_P.detach().contiguous()
            first = vector.storage_offset()
            # one call for each parameter: a split and a view of each part take twice as long, at each step
            return [
                vector.as_strided(shape, stride, first + at).requires_grad_() for shape, stride, at in self._layouts
            ]

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


def skeleton(spec: ModelSpec) -> nn.Module:
    """Return a module without numbers; one per thread is kept, because `functional_call` sets its parameters."""
    known: dict[ModelSpec, nn.Module] = _SKELETONS.__dict__.setdefault("modules", {})
    if spec not in known:
        known[spec] = build_skeleton(spec)
    return known[spec]


def initial_vector(spec: ModelSpec, seed: int) -> Array:
    """Return the flat initial parameters of `spec`, which depend on `seed` alone."""
    if is_code(spec.name):
        return to_vector(build_model(spec, seed))
    return _initial_vector(spec, seed).copy()


@functools.lru_cache(maxsize=32)
def _initial_vector(spec: ModelSpec, seed: int) -> Array:
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
        self._vector = to_device(vector_P, device, spec.dtype)
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
            return on_host(self(self.to_device(x_BF)))

    def flat_gradient(self, output: Tensor, upstream: Tensor | None = None) -> Tensor:
        """Return the gradient (P) of `output`, which was computed with this model; its graph is then freed."""
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(output, self.views, upstream)])

    def at(self, vector_P: Array | Tensor) -> Model:
        """Return the same network at other parameters; graphs of these stay valid."""
        return Model(self.spec, vector_P, self.device)

    def to_device(self, values: Array | Tensor) -> Tensor:
        """Return values as the network computes with them, on its device."""
        return to_device(values, self.device, self.spec.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self.spec, on_host(self._vector), str(self.device))
