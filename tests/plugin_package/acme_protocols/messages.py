"""Everything that leaves a party in the two protocols. Shapes: B rows of a batch, E width of the cut, P parameters."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.messages.codec import message


@message(reveals="the average of all clients' models")
class Model:
    """The shared model; vector (P)."""

    round: int
    vector: NDArray[np.float32]


@message(reveals="the client's model and its number of rows; inversion attacks apply")
class Update:
    """A client's model after local training; vector (P)."""

    vector: NDArray[np.float32]
    num_samples: int


@message(reveals="an embedding and the label of each row of the batch; inversion attacks apply")
class Smashed:
    """What the bottom model makes of a batch; values (B x E), labels (B)."""

    values: NDArray[np.float32]
    labels: NDArray[Any]


@message(reveals="the gradient of the loss of the client's own batch")
class CutGradient:
    """The gradient with respect to `Smashed.values`, and the batch's loss."""

    values: NDArray[np.float32]
    loss: float


@message(
    reveals="the bottom model, trained on the rows of all clients before; inversion attacks apply",
)
class Bottom:
    """The bottom model's parameters; vector (P)."""

    vector: NDArray[np.float32]


@message(reveals="which round it is, and who comes next")
class Turn:
    """The driver's order to one client or to the server."""

    round: int
    next_client: str = ""


@message(reveals="the mean loss of one client's rows")
class Loss:
    """What a client's turn came to."""

    value: float


@message(reveals="how good the shared model is on the test rows, and how many clients took part")
class Score:
    """Metrics on the test rows."""

    loss: float
    accuracy: float
    num_clients: int = 0
