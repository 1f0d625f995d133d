"""DP-SGD on one client's rows (Abadi et al., 2016): Poisson batches, Opacus's per-sample gradients, Gaussian noise.

    step    rows, each with probability q = B / N, of which nobody else knows
            g = (sum of the rows' gradients, each clipped to norm C, + N(0, (z C)^2)) / B
            the optimiser's step along g, with FedProx's pull and SCAFFOLD's correction, which follow from no row

A row that is there or not moves a sum by at most C; what follows from the sums alone costs nothing more. So a client's
model is private, and no loss of its rows leaves. Only parameters that are trained have gradients: frozen ones (LoRA)
are left out of norm and noise.

Shapes: N samples, B expected rows of a step, P flat parameters.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, Samples
from fedactors.learning.models import ModelSpec, build_skeleton, fork_draws, weighted_loss
from fedactors.learning.network import Array, load_vector, to_device, to_vector, train_mode, trained_slices
from fedactors.learning.optimizers import OptimizerState, optimizer_step
from fedactors.privacy.accounting import RecordPrivacy
from fedactors.privacy.mechanisms import add_gaussian
from fedactors.validation import first_line

RELEASE = "noised gradients"
"""What the sums are called in an audit."""
_SLICE_ROWS = 256
"""Rows whose gradients are held at once."""


@functools.lru_cache(maxsize=8)
def check_private(spec: ModelSpec) -> None:
    """Check that each row of a model has a gradient of its own.

    Raises:
        BadInput: it has batch normalisation or other layers that mix rows, or that Opacus does not know.
    """
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    module = train_mode(build_skeleton(spec, device="cpu"))
    problems = [*ModuleValidator.validate(module, strict=False)]
    problems = problems or list(GradSampleModule.validate(module, strict=False))
    if problems:
        raise BadInput(
            f"record_clip_norm: not allowed with {spec.name}: {first_line(problems[0])}; use group normalisation "
            "(normalisation=group, torch.nn.GroupNorm), and layers that treat each row by itself"
        )


def train_privately(
    spec: ModelSpec,
    vector_P: Array,
    x_N: Array | Tensor,
    y_N: Array | Tensor,
    *,
    secret: tuple[int, ...],
    privacy: RecordPrivacy,
    training: LocalTraining,
    correction_P: Array | None = None,
    weights_N: Array | None = None,
    device: str | torch.device = "cpu",
) -> Array:
    """Return the parameters (P) after DP-SGD from `vector_P`.

    Args:
        spec: the model.
        vector_P: where to start.
        x_N: samples.
        y_N: targets.
        secret: seeds of batches, of what the model draws and of the noise, that nobody else knows.
        privacy: clipping, noise and batches.
        training: the rule of a step, the task and FedProx's pull.
        correction_P: added to each gradient (SCAFFOLD's c - c_i).
        weights_N: how much each row counts in its loss, before clipping.
        device: where to compute.

    Raises:
        BadInput: no samples, or a model whose rows have no gradients of their own.
    """
    if not len(x_N):
        raise BadInput("local training: the client has no samples")
    check_private(spec)
    rng = np.random.default_rng(secret)
    with fork_draws(int(rng.integers(0, 2**62)), torch.device(device)), warnings.catch_warnings():
        # Opacus hooks layers whose inputs are rows, which need no gradient
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        return _trained(spec, vector_P, x_N, y_N, rng, privacy, training, correction_P, weights_N, torch.device(device))


def _trained(
    spec: ModelSpec,
    vector_P: Array,
    x_N: Array | Tensor,
    y_N: Array | Tensor,
    rng: np.random.Generator,
    privacy: RecordPrivacy,
    training: LocalTraining,
    correction_P: Array | None,
    weights_N: Array | None,
    device: torch.device,
) -> Array:
    from opacus import GradSampleModule

    module = build_skeleton(spec, device="cpu").to(device)
    load_vector(module, vector_P)
    train_mode(module)
    slices = trained_slices(module)
    samples, targets = Samples(x_N, device, spec.dtype), to_device(y_N, device)
    weights = None if weights_N is None else to_device(weights_N, device, spec.dtype)
    hooked = GradSampleModule(module, loss_reduction="sum")

    def clipped_sum(index_B: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.zeros(sum(parameter.numel() for parameter, _ in slices))
        for first in range(0, len(index_B), _SLICE_ROWS):
            rows = torch.from_numpy(index_B[first : first + _SLICE_ROWS]).to(device)
            hooked.zero_grad()
            output, held = hooked(samples[rows]), None if weights is None else weights[rows]
            (weighted_loss(training.task, output, targets[rows], held) * len(rows)).backward()  # type: ignore[no-untyped-call]
            gradient_BP = torch.cat([_of_rows(parameter, len(rows)) for parameter, _ in slices], dim=1)
            total += _clip(gradient_BP, privacy.clip_norm).sum(dim=0).cpu().numpy()
        return total

    rate, moments, rule = privacy.sample_rate(len(samples)), OptimizerState(), training.optimizer
    values = torch.cat([parameter.detach().reshape(-1) for parameter, _ in slices])
    start = values.clone()
    for _ in range(privacy.num_steps(len(samples))):
        index_B = np.flatnonzero(rng.random(len(samples)) < rate)
        sigma = privacy.noise_multiplier * privacy.clip_norm
        noised = add_gaussian(clipped_sum(index_B), sigma, rng, RELEASE, sample_rate=rate)
        gradient = torch.from_numpy(noised / privacy.batch_size).to(values)
        if training.proximal:
            gradient = gradient + training.proximal * (values - start)
        if correction_P is not None:
            whole = to_device(correction_P, device, values.dtype)
            gradient = gradient + torch.cat([whole[part] for _, part in slices])
        values = optimizer_step(rule, values, gradient, moments)
        parts = torch.split(values, [parameter.numel() for parameter, _ in slices])
        with torch.no_grad():
            for (parameter, _), part in zip(slices, parts, strict=True):
                parameter.copy_(part.view_as(parameter))
    made = to_vector(module)
    hooked.remove_hooks()
    return made


def _of_rows(parameter: torch.nn.Parameter, num_rows: int) -> Tensor:
    """Return each row's gradient of a parameter, flat; zeros where the output does not depend on it."""
    found = getattr(parameter, "grad_sample", None)
    if isinstance(found, list):  # one for each use of the layer
        found = torch.stack(found).sum(dim=0)
    return parameter.new_zeros(num_rows, parameter.numel()) if found is None else found.reshape(num_rows, -1)


def _clip(gradient_BP: Tensor, clip_norm: float) -> Tensor:
    """Scale each row down to `clip_norm` in double precision; one that is no finite number counts as zero."""
    exact_BP = gradient_BP.detach().double()
    norm_B1 = exact_BP.norm(dim=1, keepdim=True)
    finite_BP = torch.where(norm_B1.isfinite(), exact_BP, torch.zeros_like(exact_BP))
    return finite_BP * (clip_norm / norm_B1.nan_to_num(torch.inf).clamp(min=clip_norm))
