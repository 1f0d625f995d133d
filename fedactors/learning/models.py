"""Models by name, built from a small frozen description and a seed; and what a task makes of their outputs.

A `ModelSpec` is a plain value: it can be a configuration entry, an argument of a compute function or a key.
`build_model` initialises under a forked random state (`fork_draws`), so that a model depends on its spec and seed alone
and torch's one generator is left as it was. Hidden layers before a ReLU get He initialisation (a ten-layer MLP with
torch's default loses its signal by about 1/6 per layer), output layers keep unit gain.

A name with a colon is the address of a user's model: ``package.module:function``, or of an object of Python,
``object:NAME:DIGEST``. A function or class that asks for something is called with the shape of a sample and the width
of the output, ``function(inputs, outputs)``, another one with nothing; a module is taken as it is. What it initialises
stays as it is. `fedactors.learning.user_models` checks such a module before a run begins.

Shapes: B batch, F input features, E output width, C channels, H/W image height and width, O outputs: 1 for ``binary``,
the number of classes for ``multiclass`` and ``tokens``, of labels for ``multilabel``, of values for ``regression``; K
positions, those of a sequence where each has an output of its own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import math
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fedactors.config import is_code, load_code
from fedactors.errors import BadInput
from fedactors.learning.metrics import IGNORED, Task
from fedactors.messages.codec import wire_type
from fedactors.runtime.snapshots import is_object, object_at
from fedactors.validation import first_line

_DRAWING = threading.RLock()
_BASE_SEED = 0
"""Of what a module of the user's own draws that is not trained."""


@contextmanager
def fork_draws(seed: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """Draw within the block from `seed` (or from where generators are); afterwards they are as they were.

    They are those that a module may draw from: torch's, `random`'s and numpy's global ones.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _DRAWING, torch.random.fork_rng(devices=devices):
        before = random.getstate(), np.random.get_state()
        if seed is not None:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


Norm = Literal["group", "batch", "none"]
Shape = tuple[int, ...]


@wire_type
class ModelSpec:
    """What a model is: its name in `MODEL_NAMES` and its sizes; fields that a model does not use are ignored."""

    name: str
    """One of `MODEL_NAMES`, or ``package.module:function``."""
    inputs: Shape
    """Shape of one sample: ``(F,)`` for tables, ``(C, H, W)`` for images."""
    outputs: int
    """Width of the output: embedding, classes, or 1."""
    hidden_size: int = 64
    """Hidden width of the MLPs, channels of the first stage of ``narrow-resnet18`` and ``view-cnn``."""
    layers: int = 10
    """Number of linear layers of ``mlp`` and of the MLP in ``skip-mlp``, of residual blocks of ``residual-mlp``."""
    norm: Norm = "group"
    """Normalisation of ``resnet18`` and ``vgg16``; ``batch`` adds running statistics to the state."""
    bias: bool = True
    """Whether ``linear`` has a bias."""
    float64: bool = False
    """Whether parameters are double precision."""
    positions: Shape = ()
    """Shape of the positions of a sample that have an output each, ``(T,)`` of a sequence; none: the sample has one."""

    @property
    def output_shape(self) -> Shape:
        """Shape of what the model returns for a sample."""
        return (*self.positions, self.outputs)

    @property
    def dtype(self) -> torch.dtype:
        """The torch type of the parameters."""
        return torch.float64 if self.float64 else torch.float32


class ResidualBlock(nn.Module):
    """``x + Linear(ReLU(Linear(LayerNorm(x))))``: no running statistics, so samples stay independent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x_BE: Tensor) -> Tensor:
        """Map ``(B, width)`` to ``(B, width)``."""
        grown: Tensor = x_BE + self.second(torch.relu(self.first(self.norm(x_BE))))
        return grown


class BasicBlock(nn.Module):
    """The two-convolution block of ResNet-18 (He et al., 2016) with the normalisation of one's choice."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        biased = norm == "none"
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=biased),
            normalisation(norm, channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=biased),
            normalisation(norm, channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=biased), normalisation(norm, channels_out)
            )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return ``relu(body(x) + shortcut(x))``."""
        return torch.relu(self.body(x_BCHW) + self.shortcut(x_BCHW))


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """Return the normalisation layer for `channels`; groups are at most 32 and divide the channels."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(32, channels), channels)
    return nn.Identity()


def _linear(spec: ModelSpec) -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Initializing zero-element tensors")  # of no column
        return nn.Linear(_width(spec), spec.outputs, bias=spec.bias)


def _mlp(spec: ModelSpec) -> nn.Module:
    widths = [_width(spec)] + [spec.hidden_size] * (spec.layers - 1)
    parts: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths):
        parts += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(widths[-1], spec.outputs))


def _top_mlp(spec: ModelSpec) -> nn.Module:
    return _mlp(dataclasses.replace(spec, layers=2))


class SkipMlp(nn.Module):
    """``Linear(x) + MLP(x)``, where the last layer of the MLP starts at 0: a linear model that grows beyond it."""

    def __init__(self, inputs: int, hidden_size: int, outputs: int, layers: int) -> None:
        super().__init__()
        widths = [inputs] + [hidden_size] * (layers - 1)
        parts: list[nn.Module] = []
        for width_in, width_out in itertools.pairwise(widths):
            parts += [nn.Linear(width_in, width_out), nn.ReLU()]
        self.body, self.last = nn.Sequential(*parts), nn.Linear(widths[-1], outputs, bias=False)
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x_BF: Tensor) -> Tensor:
        """Map ``(B, inputs)`` to ``(B, outputs)``."""
        joined: Tensor = self.linear(x_BF) + self.last(self.body(x_BF))
        return joined


def _skip_mlp(spec: ModelSpec) -> nn.Module:
    return SkipMlp(_width(spec), spec.hidden_size, spec.outputs, max(2, spec.layers))


def nonlinear_weights(spec: ModelSpec) -> Tensor:
    """Return which values of a model's flat vector are weights of the MLP beside a linear skip (P, booleans)."""
    marks = []
    for name, value in build_skeleton(spec).state_dict().items():
        if value.is_floating_point():
            inside = spec.name == "skip-mlp" and name.startswith(("body.", "last.")) and name.endswith(".weight")
            marks.append(torch.full((value.numel(),), inside))
    return torch.cat(marks)


def _residual_mlp(spec: ModelSpec) -> nn.Module:
    blocks = [ResidualBlock(spec.hidden_size) for _ in range(spec.layers)]
    head = (nn.LayerNorm(spec.hidden_size), nn.ReLU(), nn.Linear(spec.hidden_size, spec.outputs))
    return nn.Sequential(nn.Linear(_width(spec), spec.hidden_size), *blocks, *head)


def _cnn28(spec: ModelSpec) -> nn.Module:
    channels, height, width = _image(spec)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, spec.outputs),
    )


def _cnn8(spec: ModelSpec) -> nn.Module:
    channels, height, width = _image(spec)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 2) * (width // 2), 64),
        nn.ReLU(),
        nn.Linear(64, spec.outputs),
    )


def _resnet18(spec: ModelSpec) -> nn.Module:
    channels, _, _ = _image(spec)
    parts: list[nn.Module] = [
        nn.Conv2d(channels, 64, 3, 1, 1, bias=spec.norm == "none"),
        normalisation(spec.norm, 64),
        nn.ReLU(),
    ]
    before = 64
    for channels_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        parts += [
            BasicBlock(before, channels_out, stride, spec.norm),
            BasicBlock(channels_out, channels_out, 1, spec.norm),
        ]
        before = channels_out
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, spec.outputs))


class _PlainBlock(nn.Module):
    """A two-convolution block whose shortcut is not normalised, and whose groups have 16 channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.first_norm = _wide_groups(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = _wide_groups(after)
        same = before == after and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(x_BCHW)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(x_BCHW))


def _wide_groups(channels: int) -> nn.GroupNorm:
    # 16 channels a group: in groups of two, a map of one pixel would keep nothing but signs
    return nn.GroupNorm(max(1, channels // 16), channels)


class _SpatialMean(nn.Module):
    def forward(self, x_BCHW: Tensor) -> Tensor:
        return x_BCHW.mean(dim=(2, 3))


def _narrow_resnet18(spec: ModelSpec) -> nn.Module:
    channels, _, _ = _image(spec)
    parts: list[nn.Module] = [
        nn.Conv2d(channels, spec.hidden_size, 3, padding=1, bias=False),
        _wide_groups(spec.hidden_size),
        nn.ReLU(),
    ]
    before = spec.hidden_size
    for stage in range(4):
        after = spec.hidden_size * 2**stage
        parts += [_PlainBlock(before, after, 1 if stage == 0 else 2), _PlainBlock(after, after, 1)]
        before = after
    return nn.Sequential(*parts, _SpatialMean(), nn.Linear(before, spec.outputs))


def _view_cnn(spec: ModelSpec) -> nn.Module:
    channels, _, _ = _image(spec)
    sizes = (channels, spec.hidden_size, 2 * spec.hidden_size, 4 * spec.hidden_size)
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        parts += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*parts, _SpatialMean(), nn.Linear(sizes[-1], spec.outputs))


def _vgg16(spec: ModelSpec) -> nn.Module:
    before, height, width = _image(spec)
    parts: list[nn.Module] = []
    for channels_out, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            parts += [nn.Conv2d(before, channels_out, 3, padding=1), normalisation(spec.norm, channels_out), nn.ReLU()]
            before = channels_out
        if min(height, width) >= 2:
            parts.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, spec.outputs))


_BUILDERS: dict[str, Callable[[ModelSpec], nn.Module]] = {
    "linear": _linear,
    "mlp": _mlp,
    "top-mlp": _top_mlp,
    "skip-mlp": _skip_mlp,
    "residual-mlp": _residual_mlp,
    "cnn28": _cnn28,
    "cnn8": _cnn8,
    "resnet18": _resnet18,
    "narrow-resnet18": _narrow_resnet18,
    "view-cnn": _view_cnn,
    "vgg16": _vgg16,
}

_OF_TABLES = ("linear", "mlp", "top-mlp", "skip-mlp", "residual-mlp")
"""Models of flat samples; images are flattened for them."""
_OF_SHAPE: dict[Shape, str] = {(1, 8, 8): "cnn8", (1, 28, 28): "cnn28", (3, 32, 32): "resnet18"}

MODEL_NAMES = tuple(_BUILDERS)
"""``mlp`` (ten layers), ``skip-mlp`` (a linear model plus a small MLP that starts at 0), ``residual-mlp`` (the large
"ResNet" for tables), ``top-mlp`` (two layers), ``linear``,
``cnn28`` (McMahan et al., 2017: 1,663,370 parameters at 28x28 and ten classes), ``cnn8`` (8x8 digits), ``resnet18``
and ``vgg16`` (their 3x3-stem, one-head forms for small images), ``narrow-resnet18`` (its first stage ``hidden_size``
channels wide, for parts of images) and ``view-cnn`` (three convolutions from ``hidden_size`` channels on, for views of
an object)."""


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """Return the model that `spec` describes, initialised from `seed` alone.

    Raises:
        BadInput: an unknown name, or sizes that the model cannot have.
    """
    with fork_draws(seed):
        if is_code(spec.name):
            return _user_model(spec)
        module = build_skeleton(spec, device="cpu")
        _initialise(module)
    return module


def build_skeleton(spec: ModelSpec, device: str = "meta") -> nn.Module:
    """Return the model without meaningful parameters, for use with parameters given from outside.

    A module of the user's own is on the CPU whatever `device` says: it may hold constants that are no parameters. These
    and its frozen parameters are the same in all processes: what they are drawn from is no seed of a run.
    """
    if is_code(spec.name):
        with fork_draws(_BASE_SEED):
            return _user_model(spec)
    if spec.name not in _BUILDERS:
        raise BadInput(
            f"model: {spec.name!r} is not known (known: {', '.join(MODEL_NAMES)}; your own: package.module:function)"
        )
    least = 0 if spec.name == "linear" else 1  # a linear model of no column is its bias
    if spec.outputs < 1 or spec.hidden_size < 1 or spec.layers < 1 or any(size < least for size in spec.inputs):
        raise BadInput(f"model {spec.name}: inputs, outputs, hidden and layers must all be at least 1, got {spec}")
    if spec.norm not in ("group", "batch", "none"):
        raise BadInput(f"norm: {spec.norm!r} is not allowed (group, batch, none)")
    check_size(f"model {spec.name}", _num_bytes(spec))
    module = _built(spec, device)
    if spec.positions:
        module.register_forward_hook(lambda module, inputs, output: output.unflatten(-1, spec.output_shape))
    if spec.name in _OF_TABLES and len(spec.inputs) > 1:
        module.register_forward_pre_hook(_flattened)
    return module


def _built(spec: ModelSpec, device: str) -> nn.Module:
    with fork_draws(), torch.device(device):
        width = math.prod(spec.output_shape)
        return _BUILDERS[spec.name](dataclasses.replace(spec, outputs=width, positions=())).to(spec.dtype)


@functools.lru_cache(maxsize=64)
def _num_bytes(spec: ModelSpec) -> int:
    module = _built(spec, "meta")
    return sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))


MOST_MODEL_BYTES = 1 << 31
"""Of one of our models: sizes that are allowed each for itself would fill a machine's memory together."""


def check_size(what: str, num_bytes: int) -> None:
    """Check that a model is no larger than one may be, before any of it is in memory.

    Raises:
        BadInput: naming its size, and the largest.
    """
    if num_bytes > MOST_MODEL_BYTES:
        raise BadInput(
            f"{what}: its sizes together make {num_bytes / (1 << 30):,.1f} GiB of parameters; at most "
            f"{MOST_MODEL_BYTES >> 30}: fewer layers, or smaller ones, or a model of your own"
        )


def check_hidden(spec: ModelSpec) -> None:
    """Check the size of what is hidden in a model of tables, whatever its rows are like: see `check_size`."""
    if spec.name in _OF_TABLES:
        check_size(f"model {spec.name}", _num_bytes(dataclasses.replace(spec, inputs=(1,))))


def model_for(name: str, inputs: Shape) -> str:
    """Return the model that a name stands for: ``auto`` goes by the shape of a sample, ``linear`` if nothing fits."""
    return _OF_SHAPE.get(inputs, "linear") if name == "auto" else name


def find_code(field: str, address: str) -> Any:
    """Return what an address stands for: an object of Python that this process has, or what its module has.

    Raises:
        BadInput: nothing is there.
    """
    if is_object(address):
        return object_at(address, field)
    return load_code(field, address, several=field == "metric")


def instance_of(found: Any) -> Any:
    """Return code as it is called with outputs and targets: of a class an instance, with the arguments that it has."""
    is_class = isinstance(found.func if isinstance(found, functools.partial) else found, type)
    return found() if is_class else found


def code_name(address: str) -> str:
    """Return how errors call code: an object by its name, else its address."""
    return address.split(":")[1] if is_object(address) else address


def _user_model(spec: ModelSpec) -> nn.Module:
    found = find_code("model", spec.name)
    if isinstance(found, nn.Module):
        module = _copy_of(found, code_name(spec.name))
    else:
        module = found(spec.inputs, spec.outputs) if _takes_shape(found) else found()
    if not isinstance(module, nn.Module):
        raise BadInput(f"model: {code_name(spec.name)} returned a {type(module).__name__}, not a torch.nn.Module")
    try:
        module.register_forward_hook(_logits)
    except RuntimeError:  # of a ScriptModule
        raise BadInput(
            f"model: {code_name(spec.name)} is not allowed: a {type(module).__name__} takes no hooks; give a "
            "function that makes it and returns torch.nn.Sequential(module)"
        ) from None
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.register_forward_pre_hook(_whole_numbers)
    if hasattr(module, "get_input_embeddings"):  # of `transformers`, which computes with tokens before it looks them up
        module.register_forward_pre_hook(_whole_numbers)
    # of complex constants .to(dtype) would drop the imaginary part
    module = module.cpu().double() if spec.dtype == torch.float64 else module.cpu().float()
    if any(
        isinstance(entry, UninitializedParameter | UninitializedBuffer)
        for entry in (*module.parameters(), *module.buffers())
    ):
        modes = [(part, part.training) for part in module.modules()]
        with torch.no_grad():  # lazy layers learn their widths from a first call, which leaves running statistics alone
            module.eval()(torch.zeros(2, *spec.inputs, dtype=spec.dtype))
        for part, mode in modes:
            part.training = mode
    return module


def _copy_of(module: nn.Module, name: str) -> nn.Module:
    """Return a copy of a module that a user gave.

    Raises:
        BadInput: it cannot be copied, or a copy would do something else.
    """
    for called, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise BadInput(
                f"model: {name} is not allowed: its parameter {called!r} has a hook, which copies lose; give a "
                "function that makes the module and registers the hook"
            )
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise BadInput(
            f"model: {name} is not allowed: it cannot be copied ({first_line(error)}); give a function that makes it"
        ) from error


def _whole_numbers(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give tokens as whole numbers to who looks them up: samples arrive as floats.

    Raises:
        BadInput: they are no whole numbers, which would be cut off in silence.
    """
    first = inputs[0] if inputs else None
    if not (isinstance(first, Tensor) and first.is_floating_point()):
        return inputs
    tokens = first.long()
    if torch.compiler.is_compiling():  # or exporting: there are no values
        return (tokens, *inputs[1:])
    with contextlib.suppress(RuntimeError):  # nobody can look into batched clients, which are measured one by one
        if not torch.equal(tokens.to(first.dtype), first):
            raise BadInput(
                "model: it looks up tokens, and is given numbers that are not whole: standardised columns "
                "(standardisation=none leaves them alone), or columns that are no tokens"
            )
    return (tokens, *inputs[1:])


def _takes_shape(factory: Any) -> bool:
    """Say whether a factory is called with the shape of a sample and the width of the output: it asks for something."""
    try:
        asked = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        return True
    return any(one.default is one.empty and one.kind <= one.POSITIONAL_OR_KEYWORD for one in asked) or (
        bool(asked) and asked[0].name == "inputs"
    )


def _logits(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Take the logits from what models of `transformers` return; of a module's autocast in single precision."""
    found = getattr(output, "logits", None)
    taken = found if isinstance(found, Tensor) and not isinstance(output, Tensor) else output
    is_half = isinstance(taken, Tensor) and taken.dtype in (torch.bfloat16, torch.float16)
    return taken.float() if is_half else taken


def _flattened(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].flatten(1),)


def _initialise(module: nn.Module) -> None:
    layers = [part for part in module.modules() if isinstance(part, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        is_output = layer is layers[-1]
        mode: Literal["fan_in", "fan_out"] = "fan_out" if isinstance(layer, nn.Conv2d) else "fan_in"
        nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="linear" if is_output else "relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for part in module.modules():
        if isinstance(part, ResidualBlock):
            nn.init.zeros_(part.second.weight)
        if isinstance(part, SkipMlp):
            nn.init.zeros_(part.last.weight)


def _width(spec: ModelSpec) -> int:
    return math.prod(spec.inputs)


def _image(spec: ModelSpec) -> tuple[int, int, int]:
    if len(spec.inputs) != 3:
        raise BadInput(f"model {spec.name}: inputs must be (channels, height, width), got {spec.inputs}")
    channels, height, width = spec.inputs
    if min(height, width) < 4:
        raise BadInput(f"model {spec.name}: images must be at least 4 x 4, got {height} x {width}")
    return channels, height, width


# --- what outputs are for ---------------------------------------------------------------------------------------------


def output_width(task: Task, num_classes: int = 2) -> int:
    """Return how many outputs a model for `task` has, where a sample's target is one number."""
    return output_shape(task, num_classes)[-1]


def output_shape(task: Task, num_classes: int = 2, targets: Shape = ()) -> Shape:
    """Return the shape of what a model returns for a sample, whose target is of the shape `targets`; the last is O."""
    if task in ("multiclass", "tokens"):
        return (*targets, num_classes)
    return targets or (1,)


def target_shape(task: Task, spec: ModelSpec) -> Shape:
    """Return the shape of a sample's target; none: it is one number."""
    if task == "tokens":
        return spec.positions
    return spec.output_shape if task == "multilabel" or (task == "regression" and spec.output_shape != (1,)) else ()


def task_loss(
    task: Task, output_BO: Tensor, target_B: Tensor, reduction: Literal["mean", "sum", "none"] = "mean"
) -> Tensor:
    """Return cross-entropy with logits (of classes or labels) or the squared error (``regression``).

    The mean is over rows, and over the values of each; of ``tokens`` over those that count (`IGNORED` ones do not), 0
    where none does. A scalar, or with the reduction ``none`` one value a row (B).
    """
    if task == "multiclass":
        return functional.cross_entropy(output_BO, target_B.long(), reduction=reduction)
    if task == "tokens":
        return _token_loss(output_BO, target_B.long(), reduction)
    output = output_BO if target_B.ndim > 1 else output_BO.squeeze(-1)
    target_B = target_B.to(output.dtype)
    loss = functional.mse_loss if task == "regression" else functional.binary_cross_entropy_with_logits
    found: Tensor = loss(output, target_B, reduction=reduction)
    return found if reduction != "none" or found.ndim == 1 else found.flatten(1).mean(1)


def _token_loss(output_BKO: Tensor, target_BK: Tensor, reduction: Literal["mean", "sum", "none"]) -> Tensor:
    how: Literal["none", "sum"] = "none" if reduction == "none" else "sum"
    losses = functional.cross_entropy(
        output_BKO.flatten(0, -2), target_BK.flatten(), ignore_index=IGNORED, reduction=how
    )
    if reduction == "sum":
        return losses
    if reduction == "mean":
        return losses / (target_BK != IGNORED).sum().clamp(min=1)
    counted_B = (target_BK != IGNORED).flatten(1).sum(1).clamp(min=1)
    return losses.view(target_BK.shape).flatten(1).sum(1) / counted_B


def num_terms(task: Task, target_B: Any) -> int:
    """Return over how many terms the mean loss of rows is: those of ``tokens`` that count, else the rows."""
    return int((target_B != IGNORED).sum()) if task == "tokens" else len(target_B)


def weighted_loss(task: Task, output_BO: Tensor, target_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
    """Return the mean of loss times weight over a batch (a scalar); None: every row counts 1.

    It is not divided by the sum of weights: summed over batches, clients and rows, each row's loss counts its weight.
    """
    if weights_B is None:
        return task_loss(task, output_BO, target_B)
    losses_B = task_loss(task, output_BO, target_B, reduction="none")
    return (losses_B * weights_B.to(losses_B.dtype)).mean()
