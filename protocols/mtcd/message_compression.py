"""What happens to an array between a party and the link: clipping, noise, compression; and what it costs in privacy.

    h_k --[clip, noise]--> h' --(minus what the server has)--[top-k, quantise]--> message --> server adds it up
    change of Z at a visit --[clip, noise]--> Z' --[quantise]--> token --> next holder

Compression with error feedback sends the difference to what the server already has of this client (its estimate per
row), so what one message drops the next one holds again; the same idea as in Richtárik, Sokolov and Fatkhullin (2021).
A token goes to the next client, which has no estimate of it, so it is quantised as it is and never thinned out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedactors.messages.compression import Clip, Encoded, Noise, Pipeline, Quantise, TopK, decode
from fedactors.privacy.accounting import GaussianReleases
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.runtime.snapshots import Stateful

FloatArray = NDArray[np.floating]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Transforms:
    """The pipelines of a config; each part is None where nothing is to be done."""

    noise: Pipeline | None
    representation: Pipeline | None
    token: Pipeline | None
    has_estimate: bool
    """Whether representations travel as differences to an estimate that both ends keep."""

    @classmethod
    def of(cls, config: MtcdConfig) -> Transforms:
        """Build the pipelines."""
        noise = None
        if config.noise is not None:
            sigma = config.noise_multiplier * config.clip_norm
            noise = Pipeline(stages=(Clip(clip_norm=config.clip_norm), Noise(sigma=sigma)))
        quantise = Pipeline(compressors=(Quantise(bits=config.quantise_bits),), error_feedback=False)
        if config.compression == "top-k":
            top = Pipeline(compressors=(TopK(fraction=config.compression_ratio),), error_feedback=False)
            return cls(noise, top, None, config.error_feedback)
        if config.compression == "quantise":
            return cls(noise, quantise, quantise, config.error_feedback)
        return cls(noise, None, None, False)

    def noised(self, rows_BE: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return clipped and noised rows (B, E)."""
        if self.noise is None:
            return rows_BE
        return np.asarray(decode(self.noise.encode(rows_BE, None, rng)[0]))

    def pack_token(self, z: FloatArray, *seed: int) -> FloatArray | Encoded:
        """Return the travelling form of Z; `seed` (party, round, token, ...) fixes the stochastic rounding."""
        return z if self.token is None else self.token.encode(z, None, np.random.default_rng(seed))[0]


def unpack(array: FloatArray | Encoded) -> FloatArray:
    """Return an array that was encoded here; of another party's, see `compression.decode_from`."""
    return np.asarray(decode(array)) if isinstance(array, Encoded) else array


class Estimates(Stateful):
    """What the server has of clients' representations, per training row, when differences travel: both ends keep it."""

    state = ("values",)

    def __init__(self, num_samples: int = 0) -> None:
        self.num_samples = num_samples
        self.values: dict[int, FloatArray] = {}

    def known(self, client: int, like: FloatArray, rows_B: Rows | None) -> FloatArray:
        """Return the estimate of a client's representations at the rows, zeros at first."""
        if client not in self.values:
            self.values[client] = np.zeros((self.num_samples, *like.shape[1:]), like.dtype)
        values = self.values[client]
        return values.copy() if rows_B is None else values[rows_B]

    def add(self, client: int, difference: FloatArray, rows_B: Rows | None) -> FloatArray:
        """Add a difference that has travelled; return the estimate at the rows."""
        now: FloatArray = self.known(client, difference, rows_B) + difference
        self.values[client][slice(None) if rows_B is None else rows_B] = now
        return now


def releases_of(config: MtcdConfig, message_type: str) -> GaussianReleases:
    """Return what counts a client's noised releases of one message type.

    The nominal mu takes theta_k as given: a sample moves its own row, by at most twice the clipping norm. But theta_k
    was trained on that sample, which moves all rows of a release: the rigorous mu bounds every one of them.
    """
    return GaussianReleases(
        message_type,
        clip_norm=config.clip_norm,
        sigma=config.noise_multiplier * config.clip_norm,
        delta=config.delta,
        note="replace-one-sample neighbours; rigorous: all rows of a release move by up to twice the clipping norm, "
        "since theta_k depends on every sample; nominal: theta_k taken as given; labels are known to all",
    )
