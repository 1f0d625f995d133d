"""The functions that actors hand to `compute` and `begin`: plain values in and out, data loaded once a process.

A task carries row numbers and parameters; the rows themselves are loaded by whichever process runs it, and kept there.
A model is named by (name, shape of a sample, classes, normalisation).

Shapes: P length of the flat vector, N samples, K classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from protocols.nebulafl import algorithm
from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.data import cached_rows

Model = tuple[str, tuple[int, ...], int, str]
Hyper = tuple[int, int, float, float]
"""The values of an `algorithm.Sgd`."""
Trained = tuple[Floats, float, int, Floats | None]
"""(parameters (P,), root mean square of the batch losses, samples, logits (N, K) or None)."""


def model_spec(model: Model) -> ModelSpec:
    """Return the description of a model."""
    name, shape, num_classes, norm = model
    return ModelSpec(name=name, inputs=tuple(shape), outputs=num_classes, norm=norm)  # type: ignore[arg-type]


def make_module(model: Model) -> nn.Module:
    """Build the module that a model's name stands for, to be filled with parameters."""
    spec = model_spec(model)
    module = build_skeleton(spec, device="cpu")
    # models for tables and ``linear`` take flat samples
    flat = ("linear", "mlp", "top-mlp", "residual-mlp")
    return module if spec.name not in flat else nn.Sequential(nn.Flatten(), module)


def initial_parameters(model: Model, seed: int) -> Floats:
    """Return the vector (P,) that training starts from, read-only."""
    entries = [v for v in build_model(model_spec(model), seed).state_dict().values() if v.is_floating_point()]
    vector_P = np.concatenate([entry.numpy().ravel() for entry in entries]).astype(np.float32)
    vector_P.setflags(write=False)
    return vector_P


def train(
    model: Model,
    parameters_P: Floats,
    key: str,
    rows_N: NDArray[np.int64],
    seed: int,
    hyper: Hyper,
    proxy_key: str = "",
    proxy_rows_N: NDArray[np.int64] | None = None,
) -> Trained:
    """Train a model on a container's rows; with proxy rows also say what it thinks of those (FedHKT)."""
    found = algorithm.shard_training(
        make_module,
        _hashable(model),
        parameters_P,
        cached_rows,
        key,
        rows_N,
        seed=seed,
        sgd=algorithm.Sgd(*hyper),
    )
    found.parameters.setflags(write=False)
    logits_NK = None
    if proxy_rows_N is not None:
        proxy_x = cached_rows(proxy_key)[0][proxy_rows_N]
        logits_NK = algorithm.logits(make_module, _hashable(model), found.parameters, proxy_x)
    return found.parameters, found.loss_rms, found.num_samples, logits_NK


def evaluate(model: Model, parameters_P: Floats, key: str) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy on a row set."""
    x_NF, y_N = cached_rows(key)
    found = algorithm.evaluate(make_module, _hashable(model), parameters_P, x_NF, y_N)
    return found.accuracy, found.loss


def distil(
    model: Model,
    parameters_P: Floats,
    key: str,
    rows_N: NDArray[np.int64],
    target_NK: Floats,
    seed: int,
    hyper: Hyper,
) -> Floats:
    """Fit a model to class probabilities of the proxy rows (FedHKT)."""
    found = algorithm.distil(
        make_module,
        _hashable(model),
        parameters_P,
        cached_rows(key)[0][rows_N],
        target_NK,
        seed=seed,
        sgd=algorithm.Sgd(*hyper),
    )
    found.parameters.setflags(write=False)
    return found.parameters


def _hashable(model: Model) -> Model:
    name, shape, num_classes, norm = model
    return name, tuple(shape), num_classes, norm
