"""The mathematics of PubSub-VFL as functions on arrays.

Shapes: B rows of a batch, F a party's features, E width of the cut layer, P parameters, N training rows.
Equations and algorithm lines are those of the paper; docs/protocols/pubsub_vfl.md lists the deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.layouts.vertical import VerticalData, VerticalPart
from fedactors.data.values import blocks_of
from fedactors.learning.local_training import clipped_gradient_sum
from fedactors.learning.metrics import LOCAL_BASELINE, Task, num_unpredicted, task_metrics
from fedactors.learning.models import ModelSpec, output_width
from fedactors.learning.network import Model
from fedactors.learning.split_learning import Publication, joint_output
from fedactors.learning.user_models import check_model
from fedactors.messages.compression import Encoded, Quantise, dense
from fedactors.privacy.mechanisms import pubsub_sigma
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.runtime.interface import Costs

Array = NDArray[Any]


# --- models and what they cost ----------------------------------------------------------------------------------------


_BOTTOMS = {"skip": "skip-mlp", "mlp": "mlp", "resnet": "residual-mlp"}


def bottom_spec(config: PubSubVflConfig, num_features: int) -> ModelSpec:
    """Return a party's bottom model: features to the cut layer.

    Raises:
        BadInput: it is the user's own, and not what a split network can have.
    """
    made = ModelSpec(
        name=config.bottom_model or _BOTTOMS[config.model],
        inputs=(num_features,),
        outputs=config.embedding_size,
        hidden_size=config.hidden_size,
        layers=config.num_layers,
        float64=config.float64,
    )
    check_model(made, split=True)
    return made


def top_spec(config: PubSubVflConfig, data: VerticalData | VerticalPart) -> ModelSpec:
    """Return the two-layer top model, or the user's own: all parties' embeddings, concatenated, to the outputs.

    Raises:
        BadInput: it is the user's own, and not what a split network can have.
    """
    return fusion_spec(config, len(data.parties), output_width(data.task, data.num_classes))


def fusion_spec(config: PubSubVflConfig, num_parties: int, outputs: int) -> ModelSpec:
    """Return `top_spec` of so many parties and outputs."""
    made = ModelSpec(
        name=config.top_model or ("skip-mlp" if config.model == "skip" else "top-mlp"),
        inputs=(config.embedding_size * num_parties,),
        outputs=outputs,
        hidden_size=config.hidden_size,
        layers=2,
        float64=config.float64,
    )
    check_model(made, split=True)
    return made


UPDATE_ROWS = 72
"""An optimiser step takes as long as the gradients of about this many rows (fitted, see `FITTED`)."""


def operations(num_rows: int, num_parameters: int, *, updates: bool = False) -> float:
    """Return the units of work that a batch is, with or without the optimiser's step."""
    return float(num_rows + (UPDATE_ROWS if updates else 0)) * num_parameters


FITTED: dict[str, tuple[float, float, float]] = {
    "bottom-forward": (3.195e-06, 7.974e-06, 2.005e-11),
    "bottom-backward": (9.547e-05, 9.559e-06, 3.649e-11),
    "active-step": (0.0002989, 7.55e-06, 5.48e-11),
    "top-forward": (2.027e-05, 0, 2.195e-11),
    "top-step": (1.423e-04, 0, 5.38e-11),
    "average": (1.017e-05, 0, 3.825e-10),
    "compress": (2.690e-05, 0, 4.0810e-09),
    "decompress": (3.793e-06, 0, 5.205e-10),
    "server-step": (3.3206e-05, 0, 2.1490e-09),
    "weigh": (4.1471e-05, 0, 1.18453e-09),
    "local-step": (3.3432e-04, 8.4438e-06, 6.1286e-11),
}
"""Kind of work to (fixed, per_layer, per_operation), in seconds.

Fitted on one core (torch 2.13, one thread) by `scenarios/benchmarks/compute_costs.py`, before any method was compared
with another; the measurements lie in docs/results/data/pubsub_vfl/cost_model.json, and a test compares.
"""


def default_costs(config: PubSubVflConfig, speed: dict[str, float] | None = None) -> Costs:
    """Return seconds for each kind of work in the simulated runtime: fixed + per_layer layers + per_operation units.

    The units are those of `operations`; for an average, workers x parameters.

    Args:
        config: the number of layers counts.
        speed: per party, how many times faster its cores are.
    """
    layers = {"skip": max(2, config.num_layers) + 1, "mlp": config.num_layers, "resnet": 2 * config.num_layers}
    kinds = {
        kind: (fixed + per_layer * layers[config.model], per_unit)
        for kind, (fixed, per_layer, per_unit) in FITTED.items()
    }
    return Costs({**kinds, LOCAL_BASELINE: (0.0, 0.0)}, speed or {})


# --- a batch --------------------------------------------------------------------------------------------------------


def clipped_backward(publication: Publication, gradient_BE: Array, clip_norm: float) -> Array:
    """Return the sum of each row's own gradient (P), clipped; `gradient_BE` is of the mean loss, the rows are not."""
    return clipped_gradient_sum(publication.model, publication.inputs, gradient_BE * len(gradient_BE), clip_norm)


def compress(values: Array, bits: int, seed: int) -> Encoded:
    """Return values in so many bits each, rounded at random: their mean over the seeds is exact."""
    return Quantise(bits=bits).compress(dense(values), np.random.default_rng(seed))


_SLICE_ROWS = 8192


def embed_rows(bottom: Model, x_NF: Array) -> Array:
    """Return the embeddings of many rows (N x E) without graphs, computed in slices to bound memory."""
    first = bottom.output(x_NF[:_SLICE_ROWS])
    made = np.empty((len(x_NF), *first.shape[1:]), first.dtype)
    made[:_SLICE_ROWS] = first
    for start in range(_SLICE_ROWS, len(x_NF), _SLICE_ROWS):
        made[start : start + _SLICE_ROWS] = bottom.output(x_NF[start : start + _SLICE_ROWS])
    return made


def measured(task: Task, top: Model, embeddings: Sequence[Array], labels_N: Array) -> tuple[dict[str, float], int]:
    """Return the task's metrics of the joint model on rows with these embeddings (N x E a party) and labels.

    The second is how many classes it never predicts.
    """
    blocks = blocks_of(len(labels_N), sum(one.nbytes for one in embeddings) / max(len(labels_N), 1))
    outputs = [joint_output(top, [one[rows] for one in embeddings]) for rows in blocks]
    output = outputs[0] if len(outputs) == 1 else np.concatenate(outputs)
    unpredicted = 0 if task == "regression" else num_unpredicted(labels_N, output)
    return task_metrics(task, labels_N, output), unpredicted


# --- privacy --------------------------------------------------------------------------------------------------------


def embedding_sigma(config: PubSubVflConfig, num_rows: int) -> float:
    """Return the noise deviation of the embeddings: Eq. 17's over `num_rows` training rows, or of a row's own budget.

    A frozen bottom's embedding of a row is released once, any other one in each epoch. 0: no budget is asked for.
    """
    config = config.at(num_rows)
    if math.isfinite(config.embedding_mu):
        releases = 1 if config.bottom_training == "frozen" else config.num_epochs
        return gaussian_sigma(config.embedding_mu, config.clip_norm, releases)
    if math.isinf(config.privacy_mu):
        return 0.0
    return pubsub_sigma(
        mu=config.privacy_mu,
        clip_norm=config.clip_norm,
        batch_size=config.batch_size,
        num_samples=num_rows,
        num_epochs=config.num_epochs,
    )


def gaussian_sigma(mu: float, clip_norm: float, releases: int) -> float:
    """Return the noise deviation at which `releases` clipped values of a record cost `mu` in all (sensitivity 2c)."""
    return 0.0 if math.isinf(mu) else 2 * clip_norm * math.sqrt(releases) / mu
