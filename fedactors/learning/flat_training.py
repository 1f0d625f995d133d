"""Local training, evaluation and distillation of a classifier on flat parameter vectors: fast where tasks are small.

A model crosses these functions as one float32 vector: the floating-point entries of its state dict (parameters
and the running statistics of batch normalisation), in that order. A process builds a model
once, lays it over one buffer and refills that buffer for every task, because building and loading a small
model costs more than training it on sixty samples. The plain form of the same training, which a test holds this one
against, is `fedactors.learning.averaging.train_locally`.

Shapes: P length of the flat vector, N samples, B samples of a batch, F... features of a sample, K classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import kl_div, log_softmax

from fedactors.learning.averaging import batches, draws, smallest_batch
from fedactors.learning.losses import weighted_loss
from fedactors.learning.metrics import known, task_metrics
from fedactors.learning.randomness import own_draws

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Model = Hashable
"""A name or a frozen description of a model."""
ModelFactory = Callable[[Any], nn.Module]
"""Makes the module that a `Model` stands for; module-level, so that every process finds the same one."""


class Sgd(NamedTuple):
    """How a model is trained by stochastic gradient descent with momentum."""

    num_epochs: int = 5
    """Passes over the samples."""
    batch_size: int = 50
    """Samples a step; the last batch of a pass may be smaller."""
    learning_rate: float = 0.01
    """Step length."""
    momentum: float = 0.9
    """Share of the last step kept; it starts at zero."""


class FlatTraining(NamedTuple):
    """What training gives: `parameters` (P,), mean `loss` of the last epoch, `loss_rms` over all batches."""

    parameters: Floats
    loss: float
    loss_rms: float
    num_samples: int


class _Workspace:
    """One module laid over one flat buffer, with a gradient and a momentum buffer of the same length.

    Where the vector holds running statistics the gradient stays zero, so a step leaves them alone.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self.device = device
        entries = [v for v in module.state_dict(keep_vars=True).values() if v.is_floating_point()]
        self.counters = [b for b in module.buffers() if not b.is_floating_point()]
        self.smallest_batch = smallest_batch(module)
        self.draws = draws(module)
        self.size: int = sum(entry.numel() for entry in entries)
        self.flat_P, self.gradient_P, self.momentum_P = (torch.zeros(self.size, device=device) for _ in range(3))
        start = 0
        for entry in entries:
            place = slice(start, start + entry.numel())
            view = self.flat_P[place].view(entry.shape)
            view.copy_(entry.detach())
            entry.data = view
            if isinstance(entry, nn.Parameter):
                entry.grad = self.gradient_P[place].view(entry.shape)
            start += entry.numel()

    def fill(self, parameters_P: Floats) -> None:
        if parameters_P.shape != (self.size,):
            raise ValueError(f"a vector of shape {parameters_P.shape} does not fit a model of {self.size} numbers")
        if self.device.type == "cpu":
            np.copyto(self.flat_P.numpy(), parameters_P)
        else:
            self.flat_P.copy_(torch.tensor(parameters_P))
        for counter in self.counters:
            counter.zero_()

    def start_training(self, parameters_P: Floats) -> None:
        self.fill(parameters_P)
        self.momentum_P.zero_()
        self.module.train()

    def step(self, loss: torch.Tensor, learning_rate: float, momentum: float) -> float:
        """Take one step of SGD with momentum: u <- momentum u + g; w <- w - learning_rate u."""
        self.gradient_P.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self.momentum_P.mul_(momentum).add_(self.gradient_P)
        self.flat_P.add_(self.momentum_P, alpha=-learning_rate)
        return loss.item()


@lru_cache(maxsize=4)
def _workspace(factory: ModelFactory, model: Model, device: str = "cpu") -> _Workspace:
    torch.set_num_threads(1)  # sums in another order are not equal to the bit
    with own_draws():
        return _Workspace(factory(model), torch.device(device))


def num_parameters(factory: ModelFactory, model: Model) -> int:
    """Return P, the length of the flat vector of `model`."""
    return _workspace(factory, model).size


def local_training(
    factory: ModelFactory,
    model: Model,
    parameters_P: Floats,
    x_NF: Floats,
    y_N: Labels,
    *,
    seed: int,
    sgd: Sgd = Sgd(),
    weights_N: Floats | None = None,
    device: str = "cpu",
) -> FlatTraining:
    """Train a classifier on one client's samples by SGD with a fresh momentum.

    The result is a pure function of the arguments, to the bit, in every process of a machine. The inputs may
    be read-only and are not changed. Not to be called from two threads of one process at once.

    Args:
        factory: makes the module.
        model: what it makes it from.
        parameters_P: the model to start from.
        x_NF: samples, first axis N.
        y_N: class of each sample.
        seed: draws the order of samples, and dropout where the model has it.
        sgd: passes, batches and steps; a single sample that is left joins the batch before it where batch normalisation
            needs two.
        weights_N: how much each sample counts: a batch's loss is the mean of loss times weight; None: 1 each.
        device: where to compute; the arrays are the host's.
    """
    if len(y_N) == 0:
        raise ValueError("a client without samples cannot train")
    space = _workspace(factory, model, device)

    def loss_of(index_B: NDArray[np.integer]) -> torch.Tensor:
        scores_BK = space.module(_inputs(x_NF[index_B], space.device))
        target_B = torch.from_numpy(y_N[index_B]).to(space.device)
        weights_B = None if weights_N is None else torch.from_numpy(weights_N[index_B]).to(space.device)
        return weighted_loss("multiclass", scores_BK, target_B, weights_B)

    return _train(space, parameters_P, len(y_N), loss_of, seed, sgd)


def _train(
    space: _Workspace,
    parameters_P: Floats,
    num_samples: int,
    loss_of: Callable[[NDArray[np.integer]], torch.Tensor],
    seed: int,
    sgd: Sgd,
) -> FlatTraining:
    space.start_training(parameters_P)
    order = np.random.Generator(np.random.PCG64(seed))
    total, squares, num_batches = 0.0, 0.0, 0
    with _dropout_seed(space, seed):
        for _ in range(sgd.num_epochs):
            total = 0.0
            for index_B in batches(num_samples, sgd.batch_size, order, space.smallest_batch):
                value = space.step(loss_of(index_B), sgd.learning_rate, sgd.momentum)
                total += value * len(index_B)
                squares += value * value
                num_batches += 1
    return FlatTraining(
        parameters=space.flat_P.cpu().numpy().copy(),
        loss=total / num_samples,
        loss_rms=float(np.sqrt(squares / max(num_batches, 1))),
        num_samples=num_samples,
    )


def _inputs(x_BF: Floats, device: torch.device) -> torch.Tensor:
    """Copy samples into a tensor there; images with channels last, in which CPU convolutions are up to twice as fast.

    The strides are stated because torch takes images of one channel for channels first otherwise.
    """
    x = torch.tensor(x_BF, device=device)
    if x.ndim != 4:
        return x
    _, channels, height, width = x.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, strides)


@contextlib.contextmanager
def _dropout_seed(space: _Workspace, seed: int) -> Iterator[None]:
    if not space.draws:
        yield
        return
    with own_draws(seed, space.device):
        yield


def logits(
    factory: ModelFactory,
    model: Model,
    parameters_P: Floats,
    x_NF: Floats,
    batch_size: int = 100,
    device: str = "cpu",
) -> Floats:
    """Return what a model says of each sample before the softmax, shape (N, K)."""
    space = _workspace(factory, model, device)
    space.fill(parameters_P)
    space.module.eval()
    with torch.no_grad():
        parts = [
            space.module(_inputs(x_NF[first : first + batch_size], space.device)).cpu().numpy()
            for first in range(0, len(x_NF), batch_size)
        ]
    return np.concatenate(parts)


def evaluate(
    factory: ModelFactory, model: Model, parameters_P: Floats, x_NF: Floats, y_N: Labels, device: str = "cpu"
) -> dict[str, float]:
    """Return a model's metrics on labelled samples."""
    return known(task_metrics("multiclass", y_N, logits(factory, model, parameters_P, x_NF, device=device)))


def distil(
    factory: ModelFactory,
    model: Model,
    parameters_P: Floats,
    x_NF: Floats,
    target_NK: Floats,
    *,
    seed: int,
    sgd: Sgd = Sgd(),
    device: str = "cpu",
) -> FlatTraining:
    """Fit a model to the class probabilities `target_NK` of unlabelled samples by Kullback-Leibler divergence."""
    space = _workspace(factory, model, device)

    def loss_of(index_B: NDArray[np.integer]) -> torch.Tensor:
        said_BK = log_softmax(space.module(_inputs(x_NF[index_B], space.device)), dim=1)
        return kl_div(said_BK, torch.from_numpy(target_NK[index_B]).to(space.device), reduction="batchmean")

    return _train(space, parameters_P, len(x_NF), loss_of, seed, sgd)
