"""Everything that leaves a party in MTCD and its baselines: this file is the privacy review.

Shapes: B rows of the round's mini-batch (N for the full batch), E numbers of a representation per sample (1 for
generalised linear models, then the axis is dropped), K clients, P_0 parameters of the fusion model (0 for linear
models). With aggregation by concatenation Z is (B, K E).

All clients know the labels. With two clients, Z minus one's own h is the other's h exactly; with few clients it is
close to that. Parameters theta_k never leave a client, and raw features do so in one case: **the representation of a
client with a single column is that column times a number**, so a reader of it, or of Z before and after its visit, or
of an image of its kernel, knows the column up to that number.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment.ids import AlignmentAnswer, AlignmentOrder, AlignmentQuestion
from fedactors.data.new_rows import Predicted, PredictOrder
from fedactors.inspection import Protection
from fedactors.messages.codec import encode, message
from fedactors.messages.compression import Encoded
from fedactors.messages.fields import Dimensions
from fedactors.secure_sums.actors import MESSAGES

if TYPE_CHECKING:
    from fedactors.protocols.mtcd.config import MtcdConfig

FloatArray = NDArray[np.floating]
_ONE_COLUMN = "; of a client with one column, that column times a number"

# --- before the first round ---


@message(reveals="how many rows the label party has, can use, and shares with each party and with all")
class Aligned:
    """The end of the alignment: numbers of rows of the label party's.

    Shared by all, loaded, left out for what they miss; and by party those that it does not have.
    """

    num_shared: int
    num_local: int
    num_rejected: int
    absent: tuple[tuple[str, int], ...]


@message(
    reveals="the labels of all aligned training and test rows, and training rows' weights where they do not count "
    "alike (the relaxed protocol)",
)
class Labels:
    """What the label party tells every other party at the start of a run on data that it alone has labels for."""

    train: Annotated[NDArray[Any], Dimensions("training rows")]
    test: Annotated[NDArray[Any], Dimensions("test rows")]
    weights: Annotated[NDArray[np.floating], Dimensions("training rows", or_none=True)]
    """Of the training rows; none where all count alike."""


@message(reveals="nothing")
class NormOrder:
    """Asks a client for `SquaredNorm` (only with automatic step sizes, or after a divergence)."""


@message(reveals="the largest eigenvalue of the client's X_k^T X_k, computed from its raw features: one number")
class SquaredNorm:
    """||X_k||^2, from which a safe step size follows; of a client with one column, the sum of its squares."""

    value: float


@message(reveals="a vector that depends on all clients' kernels X_k X_k^T")
class Probe:
    """One step of the power iteration that finds the step size (only with learning_rate=auto and parallel blocks)."""

    vector: Annotated[FloatArray, Dimensions("rows of the first batch")]
    """On the rows of round 0's mini-batch, or on all."""


@message(reveals="X_k X_k^T u, a linear image of the client's kernel, for one vector u" + _ONE_COLUMN)
class ProbeImage:
    """The answer to `Probe`."""

    image: Annotated[FloatArray, Dimensions("rows of the first batch")]


# --- between clients and the server, and from client to client ---


@message(reveals="the client's representation of each sample of the mini-batch" + _ONE_COLUMN)
class Representation:
    """h_k(theta_k; X_k) at a sync (Algorithm 2, line 5), and r(theta_k), without which the objective is not known.

    With compression and error feedback `h` is the difference to what the server has; with noise `penalty` is 0.
    """

    round_: int
    h: FloatArray | Encoded
    penalty: float


@message(
    reveals="Z, the sum (or the slots) of all clients' representations, and theta_0; what a visit changes in Z is the "
    "visited client's" + _ONE_COLUMN
)
class Token:
    """{Z, theta_0} on its way, from the server or a neighbour; `hop` counts hops made, `hops_left` those to come.

    The walk follows from (round, token, attempt) and a seed that all clients share, so each holder draws the next
    client by itself. `attempt` counts how often the token was issued in this round; `issuer` (a client, or -1 for the
    server) is told when the roaming is over. Bit k of `visited` says that client k was visited.
    """

    round_: int
    token: int
    attempt: int
    hop: int
    hops_left: int
    step: float
    issuer: int
    visited: int
    z: FloatArray | Encoded
    theta_0: Annotated[FloatArray, Dimensions("fusion parameters")]


@message(reveals="the sum (or the slots) of the representations of those visited so far, and theta_0" + _ONE_COLUMN)
class Prelude:
    """STCD with a network: on its way along `tour` it adds up the first representations, then becomes a token."""

    position: int
    tour: tuple[int, ...]
    visited: int
    hops_left: int
    step: float
    issuer: int
    z: FloatArray | Encoded
    theta_0: Annotated[FloatArray, Dimensions("fusion parameters")]


@message(reveals="that the token's roaming is over and which clients it visited")
class RoamingDone:
    """The last holder's word to the issuer; Z itself stays, the server rebuilds it from representations."""

    round_: int
    token: int
    attempt: int
    visited: int


@message(reveals="which round begins")
class Gather:
    """Asks a client for its representation of the round's rows."""

    round_: int


@message(reveals="that the round is over, how many tokens it had where they overlap, and which were issued again")
class SyncTokens:
    """Asks a client to combine its copies and to send its representation for the next round (Algorithm 2, line 12).

    `reissued` maps tokens to the issue that counts (else the first): copies of another one are dropped. `momentum`
    times the change since the last sync is added to the parameters.
    """

    round_: int
    reissued: tuple[tuple[int, int], ...]
    weight: float
    send_representation: bool
    momentum: float = 0.0


@message(reveals="Z: the sum (or the slots) of all clients' representations, and theta_0")
class SyncedZ:
    """What SVFL sends to every client in every round."""

    round_: int
    step: float
    z: FloatArray | Encoded
    theta_0: Annotated[FloatArray, Dimensions("fusion parameters")]
    send_representation: bool


@message(reveals="which of its neighbours are reachable, and by whom its word goes to the server")
class Links:
    """Where a client may pass a token (itself included), and the next station towards the server ("": a direct link).

    `successor` is the next client of its cluster's sweep, -1 where walks are lazy.
    """

    options: tuple[int, ...]
    uplink: str
    successor: int


@message(reveals="to every station on the way what the order within reveals, and the way")
class Relayed:
    """An order of the server's to a client without a link to it; `route` names the stations still to come.

    `seal` proves to the client that the server gave this order as its `number`-th (see `seal_of`): no station can give
    another one, or the same one again.
    """

    route: tuple[str, ...]
    number: int
    seal: bytes
    order: Gather | SyncTokens | Links | NormOrder


@message(reveals="to every station on the way Z and theta_0, or what a Probe reveals, and the way")
class RelayedZ:
    """The same of what SVFL sends, and of vectors that find the step size."""

    route: tuple[str, ...]
    number: int
    seal: bytes
    order: SyncedZ | Probe


@message(reveals="a key of the client's, for the server alone")
class OrderKey:
    """What seals the server's orders to a client that others relay: drawn by the client, so that no driver has it."""

    key: bytes


def seal_of(key: bytes, number: int, order: Any) -> bytes:
    """Return the HMAC-SHA256 of the server's `number`-th relayed order under the key that its receiver shares."""
    return hmac.digest(key, encode((number, order)), "sha256")


@message(
    reveals="the sender's copy of the dual variable, at the end the residuals of all samples; one client's copy moves "
    "by its representation" + _ONE_COLUMN
)
class DualVector:
    """y_k (N,), what DCPA's clients send to each neighbour in every iteration."""

    iteration: int
    y: Annotated[FloatArray, Dimensions("training rows")]


# --- between the driver and the actors ---


@message(reveals="which round it is and its step size")
class RoundOrder:
    """Asks the server to do its part of a round."""

    round_: int
    step: float
    is_last: bool


@message(reveals="how far the walk goes; the way along which a network's first representations are added up")
class WalkOrder:
    """Asks STCD's holder to go on for `num_hops` hops; the first time `tour` may be the prelude's way."""

    num_hops: int
    step: float
    tour: tuple[int, ...]


@message(reveals="which client holds the token")
class TokenAtRest:
    """Where a stretch of STCD's walk ended, and the next one is to begin."""

    holder: int


@message(reveals="which iterations of DCPA to do, and the three step sizes")
class IterateOrder:
    """Asks a client for `count` iterations from `first` on, in step with its neighbours."""

    first: int
    count: int
    primal: float
    dual: float
    consensus: float


@message(reveals="how many rows all parties share")
class RowCount:
    """What the driver knows of the rows."""

    num_train: int
    num_test: int


@message(reveals="which client is gone")
class LostClient:
    """The driver's word to the server that a client's process was lost."""

    name: str


@message(reveals="a step size; what it was computed from are the largest eigenvalues of clients' X_k^T X_k")
class SafeStep:
    """The step size that the server holds to be safe."""

    value: float


@message(reveals="nothing")
class MeasureOrder:
    """Asks a client for `Measured` of a part of the rows, "train" or "test"."""

    part: str


@message(reveals="the client's representation of each row of a part of the data" + _ONE_COLUMN)
class Measured:
    """For measuring only, and no communication of the algorithm: never sent where noise is to protect something."""

    h: FloatArray
    penalty: float


@message(reveals="Z: the sum (or the slots) of all clients' representations of a part of the rows, and theta_0")
class ScoreOrder:
    """Asks a client, all of which know the labels, for `Quality`, so that the driver need not know them."""

    part: str
    z: FloatArray
    theta_0: Annotated[FloatArray, Dimensions("fusion parameters")]


@message(reveals="how good the joint model is on a part of the rows; functions of their labels and features")
class Quality:
    """What a client finds: metrics by name, without those that are not defined on these rows."""

    metrics: dict[str, float]


@message(reveals="the objective on the round's rows")
class Objective:
    """f as the server knows it: phi(Z), and the regularisers that it was told."""

    value: float


@message(reveals="the parameters of the fusion model, which were trained on all labels")
class FusionParameters:
    """theta_0 (P_0), for measuring."""

    theta_0: Annotated[FloatArray, Dimensions("fusion parameters")]


_CONTROL = (RowCount, MeasureOrder, Measured, ScoreOrder, Quality)


_ALIGNMENT = (AlignmentQuestion, AlignmentAnswer, AlignmentOrder)


def sent(config: MtcdConfig) -> tuple[type, ...]:
    """Return the messages that a run with this configuration can send."""
    linear = config.problem != "network"
    norms = () if config.secure_aggregation else (NormOrder, SquaredNorm)
    common = (Labels, *(norms if linear else (FusionParameters,)), *_CONTROL, *_ALIGNMENT, Aligned)
    common += () if config.compression is None else (Encoded,)
    if config.algorithm == "dcpa":
        return (*common, DualVector, IterateOrder)
    if config.algorithm == "stcd":
        return (*common, Token, *(() if linear else (Prelude,)), RoamingDone, WalkOrder, TokenAtRest)
    parts = MESSAGES if config.secure_aggregation else (Representation,)
    served = (
        *parts,
        Gather,
        RoundOrder,
        Objective,
        *((Probe, ProbeImage, SafeStep) if linear and not config.secure_aggregation else ()),
    )
    envelopes = (Relayed, RelayedZ) if config.algorithm == "svfl" else (Relayed,)
    relayed = () if config.server_links == "all" else (*envelopes, OrderKey)
    relinked = (LostClient, Links) if config.on_party_loss == "continue" else ()
    rounds = (SyncedZ,) if config.algorithm == "svfl" else (Token, RoamingDone, SyncTokens)
    return (*common, *served, *relayed, *relinked, *rounds)


def sent_in_predictions(config: MtcdConfig) -> tuple[type, ...]:
    """Return the messages that predictions with a run of this configuration can send."""
    from fedactors.serving.predictions import SENT, Contribution, TopModel

    top = (TopModel,) if config.problem == "network" else ()
    return (PredictOrder, Predicted, *_ALIGNMENT, *top, *(SENT if config.secure_aggregation else (Contribution,)))


def protections(config: MtcdConfig) -> tuple[Protection, ...]:
    """Return which protection is on."""
    noised = "representations and changes of Z are clipped and noised; training on the rows is not covered"
    return (
        Protection(
            kind="secure sums",
            settings=("secure_aggregation",),
            on=config.secure_aggregation,
            means="the server reads the sum of representations only; tokens show what each visit changes"
            if config.secure_aggregation
            else "the server reads each client's representation",
        ),
        Protection(
            kind="noise",
            settings=("noise",),
            on=config.noise is not None,
            means=noised if config.noise is not None else "representations leave as they are",
        ),
        Protection(
            kind="labels",
            settings=("relaxed_protocol",),
            on=False,
            means="all parties are told the labels; with data of one's own they must agree to it",
        ),
        Protection(
            kind="standardisation", on=False, means="columns are scaled by the training rows' own, without noise"
        ),
    )


def left_open(config: MtcdConfig, purpose: str) -> tuple[str, ...]:
    """Return what a coordinator may still do in a run under masks, a sentence each."""
    if not config.secure_aggregation or purpose == "predict":
        return ()
    return (
        "the server sends tokens to whom it likes, of the approved step, with a Z of its own making: of two sums "
        "between which a token came to you alone, the difference is what its visit changed of your part",
    )


def shapes(config: MtcdConfig) -> dict[str, dict[str, Any]]:
    """Return the shapes of the messages' arrays, as far as the configuration says them."""
    rows = "N" if config.batch_size is None else config.batch_size
    linear = config.problem != "network"
    size = config.representation_size
    slots = config.num_clients if config.aggregation == "concatenation" else 1
    z, h = ((rows,), (rows,)) if linear else ((rows, slots * size), (rows, size))
    carried = {"z": z, "theta_0": (0,) if linear else ("P_0",)}
    return {
        "Representation": {"h": h},
        "Token": carried,
        "Prelude": carried,
        "SyncedZ": carried,
        "DualVector": {"y": ("N",)},
        "Probe": {"vector": ("N",)},
        "ProbeImage": {"image": ("N",)},
        "Measured": {"h": ("rows of the part", *h[1:])},
        "ScoreOrder": {"z": ("rows of the part", *z[1:])},
    }
