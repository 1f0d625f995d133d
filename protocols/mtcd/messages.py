"""Everything that leaves a party in MTCD and its baselines: this file is the privacy review.

Shapes: B rows of the round's mini-batch (N for the full batch), E numbers of a representation per sample (1 for
generalised linear models, then the axis is dropped), K clients. With aggregation by concatenation Z is (B, K E).

All clients know the labels. With two clients, Z minus one's own h is the other's h exactly; with few clients it is
close to that. Raw features and parameters theta_k never leave a client.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedactors.network.codec import message

FloatArray = NDArray[np.floating]


@message(receiver="server", reveals="the client's representation of each sample of the mini-batch, nothing on its rows")
class Representation:
    """h_k(theta_k; X_k) at a sync (Algorithm 2, line 5)."""

    round_: int
    client: int
    h: FloatArray


@message(receiver="client", reveals="Z: the sum (or the slots) of all clients' representations, and theta_0")
class Token:
    """{Z, theta_0} on its way, from the server or a neighbour; `hop` counts hops made, `hops_left` those to come.

    `walk_seed` fixes the whole walk, so each holder draws the next client by itself. `route`, where given, is a sweep
    fixed by the server instead.
    """

    round_: int
    token: int
    hop: int
    hops_left: int
    walk_seed: int
    z: FloatArray
    theta_0: dict[str, FloatArray]
    route: tuple[int, ...] = ()


@message(receiver="server", reveals="that the token's roaming is over and which clients it visited")
class RoamingDone:
    """The last holder's word to the server; Z itself stays, the server rebuilds it from representations."""

    round_: int
    token: int
    visited: tuple[int, ...]


@message(receiver="client", reveals="that the round is over and how many tokens it had")
class SyncTokens:
    """Asks a client to combine its copies and to send its representation for `next_round` (Algorithm 2, line 12)."""

    round_: int
    num_tokens: int
    send_representation: bool


@message(receiver="client", reveals="that a token was lost and that its copy is to be dropped")
class DropCopy:
    """Tells a client to forget its copy for a token that is issued again from its last sync."""

    round_: int
    token: int


@message(receiver="client", reveals="Z: the sum of all clients' representations, and theta_0")
class SyncedZ:
    """What SVFL sends to every client in every round."""

    round_: int
    z: FloatArray
    theta_0: dict[str, FloatArray]


@message(receiver="client", reveals="the sender's copy of the dual variable, at the end the residuals of all samples")
class DualVector:
    """y_k (N,), what DCPA's clients send to each neighbour in every iteration."""

    iteration: int
    client: int
    y: FloatArray


@message(receiver="driver", reveals="the value of the client's regulariser, one number")
class Penalty:
    """r(theta_k): the objective is phi(Z) plus the sum of these."""

    round_: int
    client: int
    value: float
