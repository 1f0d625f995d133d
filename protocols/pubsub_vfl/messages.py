"""Everything that leaves a worker in PubSub-VFL: this file is the privacy review.

Shapes: B rows of a batch, E width of the cut layer, P parameters of a model, N aligned rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.network.codec import message
from fedactors.runtime.base import Ref
from protocols.pubsub_vfl.config import PubSubVflConfig

Floats = NDArray[np.floating[Any]]


@message(receiver="active worker", reveals="an embedding of each row of the batch; inversion attacks apply")
class Embedding:
    """A passive party's cut-layer output at a time of the sender's clock; values (B x E)."""

    batch_id: int
    epoch: int
    sequence: int
    time: float
    values: Floats


@message(
    receiver="passive worker", reveals="the loss's gradient per row; for classification its sign can tell the label"
)
class Gradient:
    """The gradient with respect to the embedding of that batch and sequence; values (B x E)."""

    batch_id: int
    epoch: int
    sequence: int
    time: float
    values: Floats


@message(receiver="passive worker", reveals="what the gradient that it carries reveals; which batch comes next")
class PairRequest:
    """For algorithms of fixed pairs: apply a gradient (None: there is none), then embed a batch (-1: none).

    A gradient of no rows only takes part in the step that a party's workers take together.
    """

    epoch: int
    gradient: Gradient | None
    batch_id: int


@message(receiver="broker", reveals="which batches a worker holds; batch ids are positions in a shared random order")
class PassiveReport:
    """What a passive worker has done since its last report, and how many more batches it would take."""

    worker: str
    published: tuple[tuple[int, int, Ref], ...]
    done: tuple[tuple[int, int], ...]
    room: int
    wait: bool


@message(receiver="passive worker", reveals="nothing about other parties' data")
class PassiveOrders:
    """Batches to compute, gradients to fetch, batches abandoned (batch id, sequence)."""

    assigned: tuple[tuple[int, int], ...]
    gradients: tuple[tuple[int, int, Ref], ...]
    abandoned: tuple[tuple[int, int], ...]
    finished: bool


@message(receiver="broker", reveals="which batches a worker holds")
class ActiveReport:
    """Gradients that an active worker has published (batch id, sequence, one reference per passive party)."""

    worker: str
    gradients: tuple[tuple[int, int, tuple[Ref, ...]], ...]
    room: int
    wait: bool


@message(receiver="active worker", reveals="nothing about other parties' data")
class ActiveOrders:
    """Batches whose embeddings are all there (batch id, sequence, one reference per party), and those done with."""

    claims: tuple[tuple[int, int, tuple[Ref, ...]], ...]
    released: tuple[tuple[int, int], ...]
    finished: bool


@message(receiver="the party's own parameter server", reveals="nothing to other parties")
class Parameters:
    """Flat parameters, gradients or changes of a worker's models, one vector (P) each; `weight` in an average.

    `epoch` and `step` name the round of an average; a step of 0 is the average at the end of an epoch.
    """

    worker: str
    epoch: int
    step: int
    weight: float
    vectors: tuple[Floats, ...]


@message(receiver="active worker 0", reveals="an embedding of each row of the part; released like training embeddings")
class PartEmbedding:
    """A passive party's embedding of the validation or test rows; values (rows x E)."""

    part: str
    values: Floats


@message(receiver="the party's own workers", reveals="nothing to other parties: the party's own row order")
class RowOrder:
    """For each aligned position the party's own row; rows (N)."""

    rows: NDArray[np.int64]


def shapes(config: PubSubVflConfig) -> dict[str, dict[str, object]]:
    """Return the shapes of the arrays in each message, for `fedactors inspect`."""
    batch: tuple[int, ...] = (config.batch_size, config.embedding_size)
    return {
        "Embedding": {"values": batch},
        "Gradient": {"values": batch},
        "PairRequest": {"gradient": f"{batch[0]} x {batch[1]}, or none"},
        "PartEmbedding": {"values": f"rows of the part x {config.embedding_size}"},
        "Parameters": {"vectors": "one vector per model, all its parameters"},
        "RowOrder": {"rows": "aligned rows"},
    }
