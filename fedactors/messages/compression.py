"""Transforms of an array on its way into a message: clip and noise, then compression with error feedback.

    array --[Clip, Noise]--> array --[TopK, Quantise]--> Encoded ...message... Encoded --decode--> array
                              ^------ residual -------'

A `Pipeline` runs its stages in order and is itself without state: what must be remembered from message to message,
the residual of error feedback (Stich et al., 2018), goes in and comes out, so that an actor can checkpoint it.
Noise always comes before compression: the residual is then a function of what was already noised, and sending it
later is post-processing; the other way round error feedback would add the noise's missing part back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput, Refused
from fedactors.messages.codec import message
from fedactors.privacy.mechanisms import add_gaussian, clip_rows
from fedactors.validation import shown

Array = NDArray[Any]
_DTYPES, _MOST_BITS = ("<f4", "<f8"), 16
"""Of an encoded array's numbers, and of each one's code."""


@message(reveals="the array it stands for, as far as clipping, noise, compression or masks left it")
class Encoded:
    """An array as it travels: dense or sparse values, plain or quantised.

    ``indices`` (flat positions) is empty for a dense array; ``bits`` is 0 for plain values, else ``values`` holds
    packed codes of that many bits each, and an entry is ``low + step * code``.
    """

    shape: tuple[int, ...]
    dtype: str
    values: Array
    indices: Array
    bits: int = 0
    low: float = 0.0
    step: float = 0.0
    count: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.values.nbytes + self.indices.nbytes)


class ArrayStage(Protocol):
    """A stage that maps an array to an array."""

    def apply(self, array: Array, rng: np.random.Generator) -> Array:
        """Return the changed array; `rng` is the party's noise generator."""


class Compressor(Protocol):
    """A lossy stage on the travelling form."""

    def compress(self, encoded: Encoded, rng: np.random.Generator) -> Encoded:
        """Return the smaller form; `rng` serves stochastic rounding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip:
    """Clip each row (the last axis) to an L2 norm."""

    clip_norm: float
    """Largest norm of a row; inf leaves the array."""

    def apply(self, array: Array, rng: np.random.Generator) -> Array:
        """Return the clipped array."""
        return clip_rows(array.reshape(-1, array.shape[-1]), self.clip_norm).reshape(array.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """Add Gaussian noise; put a `Clip` before it, or it guarantees nothing."""

    sigma: float
    """Standard deviation of each entry's noise."""

    def apply(self, array: Array, rng: np.random.Generator) -> Array:
        """Return the noised array."""
        return add_gaussian(array, self.sigma, rng)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopK:
    """Keep the entries that are largest in magnitude (ties: the first ones)."""

    fraction: float
    """Share of the entries to keep, at least one."""

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 < self.fraction <= 1:
            raise BadInput(f"fraction: {self.fraction!r} is not allowed: it must be in (0, 1]")

    def compress(self, encoded: Encoded, rng: np.random.Generator) -> Encoded:
        """Return the sparse form of a dense, plain array."""
        if encoded.bits or encoded.indices.size:
            raise BadInput("top-k must come before quantisation, and only once")
        num_kept = min(encoded.count, max(1, math.ceil(self.fraction * encoded.count)))
        order = np.argsort(-np.abs(encoded.values), kind="stable")[:num_kept]
        kept = np.sort(order)
        width = np.uint32 if encoded.count <= np.iinfo(np.uint32).max else np.uint64
        return dataclasses.replace(encoded, values=encoded.values[kept], indices=kept.astype(width), count=len(kept))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantise:
    """Round the values to ``2^bits`` levels between their least and greatest."""

    bits: int
    """Bits per value, 1 to 16."""
    stochastic: bool = True
    """Round up with the probability that makes the result unbiased, instead of to the nearest level."""

    def __post_init__(self) -> None:
        """Check the range."""
        if not 1 <= self.bits <= _MOST_BITS:
            raise BadInput(f"bits: {self.bits!r} is not allowed: it must be in 1..{_MOST_BITS}")

    def compress(self, encoded: Encoded, rng: np.random.Generator) -> Encoded:
        """Return the form with packed codes."""
        if encoded.bits:
            raise BadInput("quantisation may be given only once")
        exact = encoded.values.astype(np.float64)
        low, high = (float(exact.min()), float(exact.max())) if exact.size else (0.0, 0.0)
        top = 2**self.bits - 1
        step = (high - low) / top
        level = (exact - low) / step if step > 0 else np.zeros_like(exact)
        rounded = np.floor(level + rng.random(level.shape)) if self.stochastic else np.rint(level)
        codes = np.clip(rounded, 0, top).astype(np.uint16)
        return dataclasses.replace(encoded, values=_pack(codes, self.bits), bits=self.bits, low=low, step=step)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Array stages, then compressors; with `error_feedback` what compression lost is added to the next array."""

    stages: Sequence[ArrayStage] = ()
    """Clipping and noise, in order."""
    compressors: Sequence[Compressor] = ()
    """Compression, in order: `TopK` before `Quantise`."""
    error_feedback: bool = True
    """Whether a residual is kept; it matters only with compressors."""

    def __post_init__(self) -> None:
        """Check that noise is not among the compressors and that a clip comes before noise."""
        if any(hasattr(compressor, "apply") for compressor in self.compressors):
            raise BadInput("transforms: clipping and noise are stages, and come before compression")
        for index, stage in enumerate(self.stages):
            if isinstance(stage, Noise) and not any(isinstance(earlier, Clip) for earlier in self.stages[:index]):
                raise BadInput("transforms: noise without a clip before it guarantees nothing")

    def encode(self, array: Array, residual: Array | None, rng: np.random.Generator) -> tuple[Encoded, Array | None]:
        """Return the travelling form and the residual for the next call (None without error feedback).

        Raises:
            ValueError: a residual of another shape; keep one residual per receiver and kind of message.
        """
        for stage in self.stages:
            array = stage.apply(array, rng)
        keep = self.error_feedback and bool(self.compressors)
        if keep and residual is not None:
            if residual.shape != array.shape:
                raise ValueError(f"residual of shape {residual.shape} for an array of shape {array.shape}")
            array = (array + residual).astype(array.dtype)
        encoded = dense(array)
        for compressor in self.compressors:
            encoded = compressor.compress(encoded, rng)
        return encoded, array - decode(encoded) if keep else None


def dense(array: Array) -> Encoded:
    """Return the plain travelling form of an array."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return Encoded(
        shape=tuple(array.shape),
        dtype=array.dtype.str,
        values=flat,
        indices=np.zeros(0, dtype=np.uint32),
        count=flat.size,
    )


def decode(encoded: Encoded) -> Array:
    """Return the array that an `Encoded` stands for; entries that were not sent are zero."""
    dtype = np.dtype(encoded.dtype)
    values = encoded.values
    if encoded.bits:
        values = (encoded.low + encoded.step * _unpack(values, encoded.bits, encoded.count)).astype(dtype)
    size = math.prod(encoded.shape)
    if encoded.count == size and not encoded.indices.size:
        return values.reshape(encoded.shape)
    flat = np.zeros(size, dtype=dtype)
    flat[encoded.indices.astype(np.int64)] = values
    return flat.reshape(encoded.shape)


def decode_from(array: Array | Encoded, shape: tuple[int, ...], sender: str) -> Array:
    """Return an array that another party sent, if it has the shape that is expected here.

    What an `Encoded` says of itself costs its sender nothing: a few bytes may stand for any number of values, and an
    array of another shape makes as many in the first sum with one of this.

    Raises:
        Refused: it is of another shape, or its parts do not fit each other; nothing was made of it.
    """
    if not isinstance(array, Encoded):
        if array.shape != shape:
            raise Refused(sender, f"sends an array of shape {array.shape}; {shape} is expected")
        return array
    size, values, indices = math.prod(shape), array.values, array.indices
    num_sent, is_sparse = (len(indices) if indices.size else size), indices.size > 0
    num_bytes = -(-num_sent * array.bits // 8)
    fits = array.shape == shape and array.dtype in _DTYPES and array.count == num_sent
    fits = fits and values.ndim == indices.ndim == 1 and 0 <= array.bits <= _MOST_BITS
    fits = fits and (values.dtype == np.uint8 if array.bits else values.dtype.kind == "f")
    fits = fits and len(values) == (num_bytes if array.bits else num_sent)
    fits = fits and (not is_sparse or (indices.dtype.kind == "u" and int(indices.max()) < size))
    if not fits:
        raise Refused(sender, f"sends {shown(array.shape)} values of {shown(array.dtype)}; {shape} is expected")
    return decode(array)


def _pack(codes: NDArray[np.uint16], bits: int) -> NDArray[np.uint8]:
    if bits in (8, 16):
        return codes.astype(f"<u{bits // 8}").view(np.uint8)
    planes = (codes[:, None] >> np.arange(bits, dtype=np.uint16)) & 1
    return np.packbits(planes.astype(np.uint8))


def _unpack(packed: Array, bits: int, count: int) -> NDArray[np.float64]:
    if bits in (8, 16):
        return np.ascontiguousarray(packed).view(f"<u{bits // 8}").astype(np.float64)
    planes = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    return planes.astype(np.float64) @ (2.0 ** np.arange(bits))
