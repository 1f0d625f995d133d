"""The gradients of DP-SGD (Abadi et al., 2016): each row's own, clipped, and added up.

Per-sample gradients come from torch.func (vmap over grad), so any module without running statistics serves. Noise and
account are the caller's.

Shapes: B samples in a batch, P flat parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedactors.learning.devices import on_host, placed
from fedactors.learning.models import ModelSpec, build_skeleton
from fedactors.learning.network import Model
from fedactors.learning.parameters import Array

SampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Loss of a batch of one: output (1 x O) and target (1) to a scalar."""


def per_sample_gradients(
    module: nn.Module, loss: SampleLoss, x_B: Tensor, y_B: Tensor, views: Sequence[Tensor] | None = None
) -> Tensor:
    """Return the gradient of every sample's own loss, B x P, parameters in `module.parameters()` order.

    `views` are used as the parameters, in that order, instead of the module's own.
    """
    if any(True for _ in module.buffers()):
        raise ValueError("DP-SGD cannot use modules with running statistics (use group or layer normalisation)")
    named = dict(module.named_parameters())
    given = named.values() if views is None else views
    parameters = {name: parameter.detach() for name, parameter in zip(named, given, strict=True)}

    def sample_loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(module, values, (x.unsqueeze(0),))
        return loss(output, y.unsqueeze(0))

    gradients = torch.func.vmap(torch.func.grad(sample_loss), in_dims=(None, 0, 0))(parameters, x_B, y_B)
    return torch.cat([gradients[name].reshape(len(x_B), -1) for name in parameters], dim=1)


_SLICE_ROWS = 64


def clipped_gradient_sum(model: Model, x_BF: Array | Tensor, upstream_BO: Array, clip_norm: float) -> Array:
    """Return the sum (P) of each row's gradient of ``<output, upstream>``, clipped to L2 norm `clip_norm`.

    One row moves it by at most twice `clip_norm`. Rows go through in slices, to bound memory.
    """
    module = _skeleton(model.spec)
    x = placed(x_BF, model.device, model.spec.dtype)
    upstream = placed(upstream_BO, model.device, model.spec.dtype)
    total_P = torch.zeros(model.num_parameters, dtype=model.spec.dtype, device=model.device)
    for first in range(0, len(x), _SLICE_ROWS):
        rows = slice(first, first + _SLICE_ROWS)
        gradient_BP = per_sample_gradients(module, _inner_product, x[rows], upstream[rows], model.views)
        total_P += _clip(gradient_BP, clip_norm).sum(dim=0)
    return on_host(total_P)


@functools.lru_cache(maxsize=8)
def _skeleton(spec: ModelSpec) -> nn.Module:
    return build_skeleton(spec)


def _clip(gradient_BP: Tensor, clip_norm: float) -> Tensor:
    """Scale each row down to `clip_norm`; a gradient that is no finite number counts as zero."""
    norm_B1 = gradient_BP.norm(dim=1, keepdim=True)
    finite_BP = torch.where(norm_B1.isfinite(), gradient_BP, torch.zeros_like(gradient_BP))
    clipped: Tensor = finite_BP * (clip_norm / norm_B1.nan_to_num(torch.inf).clamp(min=clip_norm))
    return clipped


def _inner_product(output: Tensor, upstream: Tensor) -> Tensor:
    return (output * upstream).sum()
