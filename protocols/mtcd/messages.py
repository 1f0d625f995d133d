"""Everything that leaves a party in MTCD and its baselines: this file is the privacy review.

Shapes: B rows of the round's mini-batch (N for the full batch), E numbers of a representation per sample (1 for
generalised linear models, then the axis is dropped), K clients. With aggregation by concatenation Z is (B, K E).

All clients know the labels. With two clients, Z minus one's own h is the other's h exactly; with few clients it is
close to that. Raw features and parameters theta_k never leave a client.

`route` names the clients along which an order is relayed to one that has no link to the server.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.network.codec import message
from fedactors.network.transforms import Encoded

FloatArray = NDArray[np.floating]


@message(receiver="client", reveals="the labels of all aligned training and test rows (the relaxed protocol)")
class Labels:
    """What the label party tells every other party at the start of a run on data that it alone has labels for."""

    train: NDArray[Any]
    test: NDArray[Any]


@message(receiver="server", reveals="the client's representation of each sample of the mini-batch, nothing on its rows")
class Representation:
    """h_k(theta_k; X_k) at a sync (Algorithm 2, line 5), and r(theta_k), without which the objective is not known.

    With compression and error feedback `h` is the difference to what the server has; with noise `penalty` is 0.
    """

    round_: int
    client: int
    h: FloatArray | Encoded
    penalty: float


@message(receiver="client", reveals="Z: the sum (or the slots) of all clients' representations, and theta_0")
class Token:
    """{Z, theta_0} on its way, from the server or a neighbour; `hop` counts hops made, `hops_left` those to come.

    `walk_seed` fixes the whole walk, so each holder draws the next client by itself; `route`, where given, is a fixed
    route instead (a sweep, or with `is_prelude` the tour on which STCD adds up the first representations). `attempt`
    counts how often the token was issued in this round, `moves` the hops that crossed a link, and `issuer` (a client,
    or -1 for the server) is told when the roaming is over. Bit k of `visited` says that client k was visited.
    """

    round_: int
    token: int
    attempt: int
    hop: int
    hops_left: int
    moves: int
    walk_seed: int
    step: float
    issuer: int
    z: FloatArray | Encoded
    theta_0: dict[str, FloatArray]
    visited: int = 0
    route: tuple[int, ...] = ()
    is_prelude: bool = False


@message(receiver="server", reveals="that the token's roaming is over and which clients it visited")
class RoamingDone:
    """The last holder's word to the issuer; Z itself stays, the server rebuilds it from representations."""

    round_: int
    token: int
    attempt: int
    holder: int
    visited: int
    moves: int


@message(receiver="client", reveals="which round begins")
class Gather:
    """Asks a client for its representation of the round's rows."""

    round_: int
    route: tuple[str, ...] = ()


@message(receiver="client", reveals="that the round is over, how many tokens it had, and which were issued again")
class SyncTokens:
    """Asks a client to combine its copies and to send its representation for the next round (Algorithm 2, line 12).

    `attempts` maps each token to the issue that counts: copies of another one are dropped.
    """

    round_: int
    attempts: tuple[tuple[int, int], ...]
    weight: float
    send_representation: bool
    route: tuple[str, ...] = ()


@message(receiver="client", reveals="Z: the sum of all clients' representations, and theta_0")
class SyncedZ:
    """What SVFL sends to every client in every round."""

    round_: int
    step: float
    z: FloatArray | Encoded
    theta_0: dict[str, FloatArray]
    send_representation: bool
    route: tuple[str, ...] = ()


@message(receiver="client", reveals="which of its neighbours are reachable, and by whom its word goes to the server")
class Links:
    """Where a client may pass a token (itself included), and the next station towards the server."""

    options: tuple[int, ...]
    uplink: str
    route: tuple[str, ...] = ()


@message(receiver="client", reveals="a vector that depends on all clients' kernels X_k X_k^T")
class Probe:
    """One step of the power iteration that finds the step size (only with learning_rate=auto and parallel blocks)."""

    vector: FloatArray
    route: tuple[str, ...] = ()


@message(receiver="server", reveals="X_k X_k^T u, a linear image of the client's kernel, for one vector u")
class ProbeImage:
    """The answer to `Probe`."""

    client: int
    image: FloatArray


@message(receiver="client", reveals="the sender's copy of the dual variable, at the end the residuals of all samples")
class DualVector:
    """y_k (N,), what DCPA's clients send to each neighbour in every iteration."""

    iteration: int
    client: int
    y: FloatArray


@message(receiver="driver", reveals="the client's representation of each sample of a part of the data")
class Measured:
    """For measuring only, and no communication of the algorithm: never sent where noise is to protect something."""

    client: int
    h: FloatArray
    penalty: float
