"""Split networks: bottoms at the feature holders, a top at the label holder, several batches in flight.

        x_BF --bottom--> z_BE  ...embedding travels...   [z_1, .., z_M] --top--> loss
        step <--backward-- g_BE ...gradient travels...   dloss/dz_m

A gradient must be back-propagated through the activation *of its own publication*, however many optimiser steps came
between: a `Publication` is a batch at the model of its time. Nothing is computed when it is made; the activation is
computed where it is first asked for, and kept there with its graph. So `compute` takes it as an argument:

    publication = Publication(self.bottom.model, x_BF)
    z_BE = await self.compute(Publication.embed, publication, work=...)
    g_P = await self.compute(Publication.gradient, publication, g_BE, work=...)

In the actor's own process the second call finds the graph of the first. To another process a publication travels as
plain values, and the activation is computed again: the same numbers, to the bit.

Cached local updates (CELU-VFL: Fu et al., PVLDB 15(10), 2022) step again on batches that were exchanged before, with
what was then received, and send nothing. A row counts by how near what it gives now is to what it gave then (instance
weighting); batches take turns (uniform sampling).

Shapes: B batch, F features of one party, E embedding width, O outputs, P parameters, M parties.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedactors.learning.metrics import Task
from fedactors.learning.models import weighted_loss
from fedactors.learning.network import Array, Model, on_host, resident, to_device

Fusion = Literal["concatenate", "sum"]


class Publication:
    """A batch at the model that it is embedded with, kept until its gradient returns.

    Args:
        model: the bottom at the parameters of that moment.
        x_BF: the batch; not to be changed any more.
        version: the steps that the network had taken.
    """

    def __init__(self, model: Model, x_BF: Array | Tensor, version: int = 0) -> None:
        self.model = model
        self.version = version
        self.inputs = x_BF
        self._activation: Tensor | None = None

    def activate(self) -> Tensor:
        """Return the embedding with its graph (B x E), computed by the first call."""
        if self._activation is None:
            self._activation = self.model(self.model.to_device(self.inputs))
        return self._activation

    def embed(self) -> Array:
        """Return the activation as a private array, ready to be sent (B x E)."""
        return on_host(self.activate()).copy()

    def gradient(self, gradient_BE: Array | Tensor) -> Array | Tensor:
        """Return the flat gradient (P) through this activation, whose graph is then freed; it stays on its device."""
        activation, self._activation = self.activate(), None
        upstream = self.model.to_device(gradient_BE)
        return resident(self.model.flat_gradient(activation, upstream))

    def __reduce__(self) -> tuple[Any, ...]:
        return Publication, (self.model, self.inputs, self.version)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TopGradient:
    """What one batch gives at the label holder."""

    loss: float
    output: Array
    embedding_gradients: tuple[Array | Tensor, ...]
    """dloss/dz_m for each party, each B x E_m; on the model's device."""
    gradient: Array | Tensor
    """Flat gradient of the top's own parameters, likewise."""


def loss_gradients(
    top: Model,
    embeddings: Sequence[Array | Tensor],
    target_B: Array | Tensor,
    task: Task,
    fusion: Fusion = "concatenate",
    weights_B: Array | Tensor | None = None,
) -> TopGradient:
    """Return loss, outputs and all gradients of one batch at the top's parameters; rows count by their weights."""
    leaves = [top.to_device(z_BE).detach().requires_grad_() for z_BE in embeddings]
    output_BO = top(fuse(leaves, fusion))
    weights = None if weights_B is None else to_device(weights_B, top.device)
    loss = weighted_loss(task, output_BO, to_device(target_B, top.device), weights)
    found = torch.autograd.grad(loss, [*leaves, *top.views])
    return TopGradient(
        loss=loss.item(),
        output=on_host(output_BO),
        embedding_gradients=tuple(resident(gradient) for gradient in found[: len(leaves)]),
        gradient=resident(torch.cat([gradient.reshape(-1) for gradient in found[len(leaves) :]])),
    )


@dataclass(frozen=True, eq=False)
class ActiveGradients:
    """What one batch gives at a label holder with features: the loss, and gradients.

    dloss/dz for each other party (B x E), and flat ones of the own models, which stay on their device.
    """

    loss: float
    embeddings: tuple[Array, ...]
    bottom: Array | Tensor
    top: Array | Tensor


def active_gradients(
    bottom: Model,
    top: Model,
    task: Task,
    x_BF: Array | Tensor,
    embeddings: Sequence[Array],
    target_B: Array | Tensor,
    weights_B: Array | Tensor | None = None,
) -> ActiveGradients:
    """Return the loss and all gradients of one batch at the parameters of the label holder's bottom and top."""
    publication = Publication(bottom, x_BF)
    found = loss_gradients(top, [publication.activate(), *embeddings], target_B, task, weights_B=weights_B)
    local = publication.gradient(found.embedding_gradients[0])
    return ActiveGradients(found.loss, tuple(map(on_host, found.embedding_gradients[1:])), local, found.gradient)


def joint_output(top: Model, embeddings: Sequence[Array], fusion: Fusion = "concatenate") -> Array:
    """Return the outputs (B x O) without keeping a graph, for evaluation."""
    with torch.no_grad():
        return on_host(top(fuse([top.to_device(z_BE) for z_BE in embeddings], fusion)))


def fuse(embeddings: Sequence[Tensor], fusion: Fusion) -> Tensor:
    """Return all parties' embeddings as the top takes them: side by side, or their sum."""
    if fusion == "concatenate":
        return torch.cat(list(embeddings), dim=1)
    total = embeddings[0]
    for z_BE in embeddings[1:]:
        total = total + z_BE
    return total


_LEAST_NORM = 1e-12


@dataclass(kw_only=True, eq=False)
class Exchange:
    """What a party keeps of a batch, with one array a feature holder at the label holder, one at a feature holder."""

    rows: Array
    """Positions of the rows (B)."""
    embeddings: tuple[Array, ...]
    """Those received, or the own one; B x E each."""
    gradients: tuple[Array, ...]
    """Those computed, or the one received; B x E each."""
    num_uses: int = 0
    last_use: int | None = None
    """Number of the local update that used it last."""


class ExchangeTable:
    """The last exchanges of a worker, and whose turn it is.

    Args:
        size: exchanges that are kept (W); one more takes the place of the oldest.
        uses: local updates with each (R).
    """

    def __init__(self, size: int, uses: int) -> None:
        self._uses = uses
        self._size = size
        self._kept: deque[Exchange] = deque(maxlen=size)
        self._num_updates = 0

    def add(self, rows: Array, embeddings: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Keep an exchange, if it is to be used again."""
        if self._uses:
            self._kept.append(Exchange(rows=rows, embeddings=tuple(embeddings), gradients=tuple(gradients)))

    def take(self) -> Exchange | None:
        """Return the exchange for the next local update; None if all were used, or too recently.

        None is used twice within W local updates; of the others the one that was used least recently comes first, one
        that never was before all.
        """
        now = self._num_updates
        free = [
            one
            for one in self._kept
            if one.num_uses < self._uses and (one.last_use is None or now - one.last_use >= self._size)
        ]
        if not free:
            return None
        chosen = min(free, key=lambda one: -1 if one.last_use is None else one.last_use)
        chosen.num_uses, chosen.last_use = chosen.num_uses + 1, now
        self._num_updates += 1
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"kept": [vars(one) for one in self._kept], "num_updates": self._num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._kept = deque((Exchange(**one) for one in state["kept"]), maxlen=self._size)
        self._num_updates = state["num_updates"]


def row_weights(now_BE: Tensor, then_BE: Tensor, min_cosine_similarity: float) -> Tensor:
    """Return the cosine of each row with what it was (B), 0 where it is below `min_cosine_similarity`."""
    norms_B = now_BE.norm(dim=1).clamp_min(_LEAST_NORM) * then_BE.norm(dim=1).clamp_min(_LEAST_NORM)
    cosine_B = ((now_BE * then_BE).sum(dim=1) / norms_B).clamp(-1.0, 1.0)
    return torch.where(cosine_B >= min_cosine_similarity, cosine_B, torch.zeros_like(cosine_B))


def weighted_rows(gradient_BE: Array, now_BE: Array, then_BE: Array, min_cosine_similarity: float) -> Array:
    """Return a cached gradient (B x E), its rows weighted by how near their embeddings are to those of then."""
    now, then, gradient = (to_device(values, "cpu") for values in (now_BE, then_BE, gradient_BE))
    weighted: Array = (row_weights(now, then, min_cosine_similarity)[:, None] * gradient).numpy()
    return weighted


def local_gradients(
    bottom: Model,
    top: Model,
    task: Task,
    x_BF: Array | Tensor,
    exchange: Exchange,
    min_cosine_similarity: float,
    target_B: Array | Tensor,
    weights_B: Array | Tensor | None = None,
) -> tuple[Array | Tensor, Array | Tensor]:
    """Return the gradients (P) of the label holder's bottom and top with the embeddings of an earlier exchange.

    They are of mean(weight of a row x its loss), not divided by the sum of weights. A row's weight is the cosine of its
    loss's gradient with respect to the received embeddings, all of them in a row, with that of then.
    """
    publication = Publication(bottom, x_BF)
    local_BE = publication.activate().detach().requires_grad_()
    received = [top.to_device(z_BE).requires_grad_() for z_BE in exchange.embeddings]
    output_BO = top(fuse([local_BE, *received], "concatenate"))
    weights = None if weights_B is None else to_device(weights_B, top.device)
    loss = weighted_loss(task, output_BO, to_device(target_B, top.device), weights)
    # a row's loss depends on its own output alone: weighting that gradient's rows is weighting the losses
    (upstream_BO,) = torch.autograd.grad(loss, output_BO)
    now = torch.autograd.grad(output_BO, received, upstream_BO, retain_graph=True)
    then = [top.to_device(gradient) for gradient in exchange.gradients]
    weight_B = row_weights(torch.cat(now, dim=1), torch.cat(then, dim=1), min_cosine_similarity)
    found = torch.autograd.grad(output_BO, [local_BE, *top.views], weight_B[:, None] * upstream_BO)
    return publication.gradient(found[0]), resident(torch.cat([gradient.reshape(-1) for gradient in found[1:]]))
