"""Differential privacy for clients: changes clipped, summed and noised (McMahan et al., 2018), and the account.

    client i     u_i = (a clip(Delta_i / C), c (2 b_i - 1)),  a^2 + c^2 = 1,  b_i = 1 if |Delta_i| <= C
    sum          s = sum over the round's clients of u_i + N(0, z^2)
    server       mean change = C s[:P] / (a m),  share within the norm = (s[P] / (c m) + 1) / 2
                 C <- C exp(-eta (share - gamma))                                  (Andrew et al., 2021, with c > 0)

|u_i| <= 1 whatever C is, so that one client moves the sum by at most 1 where it is there or not, and by 2 where its
rows are replaced; nothing of it depends on what a server says. A fixed clip norm has c = 0. Split into its two parts
the noise is Andrew's: z / a on clipped changes in units of C, z / (2 c) on the count of those within. m is how many
clients are expected in a round, a number that follows from the settings alone.

Who draws the noise: with `secure_aggregation` the sites together, as discrete Gaussians under the masks, and each
writes its own account. Else the server does, which reads the changes and is trusted; the account is its own, and holds
against all who see its models. A sample is secret, and amplifies, only where that server draws it (Poisson).

Shapes: P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedactors.data.layouts.horizontal import rows_of, weights_of
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining
from fedactors.learning.many_clients import rows_on, train_clients
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import statistics_mask
from fedactors.privacy.accounting import CLIENT_PRESENCE, PrivacyRecord
from fedactors.privacy.mechanisms import clip_rows
from fedactors.protocols.horizontal.algorithm import Doubles, ServerModel
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.messages import Floats
from fedactors.secure_sums.primitives import FixedPoint
from fedactors.secure_sums.protocol import noise_part

RELEASE = "clients' changes"
"""What the server's releases are called in an audit."""
LARGEST_BIT = 0.5


def expected_clients(config: HorizontalConfig, num_clients: int) -> float:
    """Return m, how many of all clients are expected in a round."""
    if config.client_sampling_rate is not None:
        return config.client_sampling_rate * num_clients
    return float(config.clients_per_round or num_clients)


def bit_share(config: HorizontalConfig, expected: float) -> float:
    """Return c: the count of clients within the norm has noise of a twentieth of them (Andrew et al.), or c is 0.5."""
    if config.clip_quantile is None:
        return 0.0
    return min(10 * config.client_noise_multiplier / expected, LARGEST_BIT)


def check_model(spec: ModelSpec) -> None:
    """Check that a model has parameters only.

    Raises:
        BadInput: it has running statistics.
    """
    if statistics_mask(spec).any():
        raise BadInput(
            f"client_clip_norm: not allowed with {spec.name}, whose running statistics are no changes along gradients; "
            "use group normalisation (normalisation=group, torch.nn.GroupNorm)"
        )


def private_sum(
    spec: ModelSpec,
    model_P: Floats,
    keys: Sequence[bytes],
    seeds: Sequence[int],
    training: LocalTraining,
    clip_norm: float,
    bit: float,
    together: bool,
    device: str,
) -> Doubles:
    """Return the sum of u_i over some clients that train from the model (P + 1); of nobody zeros."""
    total = np.zeros(model_P.size + 1)
    if not keys:
        return total
    results = train_clients(
        spec,
        [model_P] * len(keys),
        [rows_on(rows_of, key, device) for key in keys],
        seeds=seeds,
        training=training,
        weights=[weights_of(key) for key in keys],
        together=together,
        device=device,
    )
    for result in results:
        total += unit_change(result.vector.astype(np.float64) - model_P, clip_norm, bit)
    return total


def unit_change(change_P: Doubles, clip_norm: float, bit: float) -> Doubles:
    """Return u_i (P + 1), of norm 1 at most."""
    if not clip_norm > 0 or not 0 <= bit <= LARGEST_BIT:
        raise BadInput(f"client_clip_norm: the server orders clip norm {clip_norm:g} and share {bit:g}")
    scaled_P = change_P / clip_norm
    is_within = bool(np.linalg.norm(scaled_P) <= 1)
    clipped_P = clip_rows(scaled_P[None], 1.0)[0]
    return np.append(math.sqrt(1 - bit**2) * clipped_P, bit * (1 if is_within else -1))


def advance(
    config: HorizontalConfig,
    spec: ModelSpec,
    model: ServerModel,
    total: Doubles,
    clip_norm: float,
    num_clients: int,
    present: float = 1.0,
) -> tuple[ServerModel, float]:
    """Return the model and the clip norm after a round whose noised sum is `total` (P + 1).

    `present` is the share of the clients that were asked, whose sites are in the sum: who is lost adds nothing to it.
    """
    expected = expected_clients(config, num_clients)
    bit = bit_share(config, expected)  # as it was ordered
    expected *= present
    made = replace(model)
    mean_P = clip_norm * total[:-1] / (math.sqrt(1 - bit**2) * expected)
    made.follow(config, mean_P, statistics_mask(spec))
    if config.clip_quantile is not None:
        share = min(max((float(total[-1]) / (bit * expected) + 1) / 2, 0.0), 1.0)
        clip_norm *= math.exp(-config.clip_learning_rate * (share - config.clip_quantile))
    return made, clip_norm


def point_of(config: HorizontalConfig, num_sites: int, most_clients: int) -> FixedPoint:
    """Return how sums and their noise become words under masks; a site adds at most its number of clients."""
    noise = noise_part(config.client_noise_multiplier, config.fewest_sites(num_sites))
    return FixedPoint(limit=most_clients + 10 * noise, num_clients=num_sites)


def record(
    config: HorizontalConfig, party: str, num_rounds: int, *, is_restored: bool, is_server: bool
) -> PrivacyRecord:
    """Return the line of a party of the privacy ledger: of who adds noise, or of a site that trusts the server.

    Args:
        config: of the run.
        party: whose line it is.
        num_rounds: in which a client of it may have been in the sum.
        is_restored: whether the party went on from a checkpoint.
        is_server: whether it is the server that draws the noise.
    """
    if not is_server and not (config.secure_aggregation and config.is_private):
        return PrivacyRecord(
            party=party,
            message_type="ClippedChanges",
            mechanism="none",
            neighbour=CLIENT_PRESENCE,
            releases=num_rounds,
            epsilon=math.inf,
            note="the server reads them, and is trusted to add the noise of its own line"
            if config.is_private
            else "no noise is added",
        )
    who = "the server is trusted: holds against all who see its models" if is_server else "discrete Gaussian, in sums"
    message_type = "PrivateOrder" if is_server else "ClippedChanges"
    return config.client_privacy.record(party, message_type, num_rounds, config.delta, who, is_restored=is_restored)
