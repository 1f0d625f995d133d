"""Models of the user's own, ``model=package.module:function``: what is asked of them, checked before a run begins.

    def net(inputs, outputs):                    # (1, 28, 28), 10: the shape of a sample, the width of the output
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, outputs))

The function returns a `torch.nn.Module` from (B, *inputs) to (B, outputs). It is called in each process that needs the
module, under a seed of the run, so that all of them start from the same numbers; it may load a file for that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedactors.config import is_code, load_code
from fedactors.errors import BadInput
from fedactors.learning.local_training import draws
from fedactors.learning.models import MODEL_NAMES, ModelSpec, build_model, build_skeleton, fork_draws

_BATCH = 2


def check_name(name: str) -> None:
    """Check all that can be checked of a model before the shape of a sample is known.

    Raises:
        BadInput: it names code that cannot be imported, or nothing that is known.
    """
    if is_code(name):
        load_code("model", name)
    elif name and name not in MODEL_NAMES:
        raise BadInput(
            f"model: {name!r} is not known (known: {', '.join(MODEL_NAMES)}; your own: package.module:function)"
        )


def check_model(spec: ModelSpec, *, split: bool = False, num_arguments: int = 1) -> None:
    """Check a run's model before anything is started: an own one by calling it once, forward and backward.

    Args:
        spec: the model; with no `inputs` (only the rows tell the shape) no more than its name is checked.
        split: whether it is a part of a split network, whose samples must not influence one another.
        num_arguments: tensors of samples that it is called with.

    Raises:
        BadInput: one line that says what is wrong with it.
    """
    if not spec.inputs:
        check_name(spec.name)
        return
    if not is_code(spec.name):
        build_skeleton(spec)
        return
    where = f"model: {spec.name} is not allowed"
    try:
        module = build_model(spec, 0)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{where}: called with {spec.inputs}, {spec.outputs} it fails: {_line(error)}") from error
    if split and (names := [name for name, _ in module.named_buffers()]):
        raise BadInput(
            f"{where} in a split network: buffer {names[0]!r} (running statistics, for instance) would let samples "
            "influence one another; use group or layer normalisation"
        )
    if split and draws(module):
        raise BadInput(
            f"{where} in a split network: it draws at random (dropout), and activations may be computed again"
        )
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise BadInput(f"{where}: parameter {frozen[0]!r} is not trained; make it a buffer")
    named = dict(module.named_parameters())
    if not named:
        raise BadInput(f"{where}: it has no parameters")
    x = torch.zeros(_BATCH, *spec.inputs, dtype=spec.dtype)
    try:
        with fork_draws():
            output = module.train()(*[x] * num_arguments)
    except Exception as error:
        raise BadInput(f"{where}: given {_BATCH} samples of shape {spec.inputs} it fails: {_line(error)}") from error
    if not isinstance(output, Tensor) or tuple(output.shape) != (_BATCH, spec.outputs):
        shape = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise BadInput(
            f"{where}: given {_BATCH} samples of shape {spec.inputs} it returns {shape}, not {(_BATCH, spec.outputs)}"
        )
    if not output.requires_grad:
        raise BadInput(f"{where}: what it returns does not depend on its parameters")
    found = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    unused = [name for name, gradient in zip(named, found, strict=True) if gradient is None]
    if unused:
        raise BadInput(f"{where}: parameter {unused[0]!r} is not used, so that it gets no gradient")

    if split and _samples_meet(module, spec, num_arguments):
        raise BadInput(f"{where} in a split network: what it makes of a sample depends on the others beside it")


def _samples_meet(module: torch.nn.Module, spec: ModelSpec, num_arguments: int) -> bool:
    """Say whether a sample's output is another one when it comes alone."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(_BATCH, *spec.inputs, dtype=spec.dtype, generator=generator) for _ in range(num_arguments)]
    try:
        with torch.no_grad():
            whole, alone = module(*drawn), module(*(x[:1] for x in drawn))
    except Exception:
        return True  # it takes no sample alone
    return alone.shape != whole[:1].shape or not torch.allclose(whole[:1], alone, rtol=1e-4, atol=1e-5)


def _line(error: Exception) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
