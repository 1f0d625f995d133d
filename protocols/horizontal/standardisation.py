"""Columns to mean 0 and deviation 1 over all clients' rows, by sums: no client tells its own mean under masks.

    first sums     n and sum of x                  ->  m, the mean
    second sums    n, sum of (x - m) and (x - m)^2 ->  mean and deviation

Squares are counted from the mean, so that a column of large numbers that differ little keeps its digits. What secure
sums add are whole numbers of steps of 2^-128, of 288 bits, so that no range of the columns need be known, and sums come
out exactly. The server reads the total, whose digits below the last one of the larger sums would be those of the
smallest: each site moves its sum by up to half of its last digit, drawn uniformly from a seed that between sites it
alone knows.

Shapes: N rows, D numbers of a row after encoding, W words of 32 bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.layouts.horizontal import HorizontalFile, Reading, Rows
from fedactors.data.values import blocks_of
from fedactors.errors import BadInput
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.messages import Floats
from fedactors.secure_sums.messages import mask_stream
from fedactors.secure_sums.primitives import LongIntegers

Doubles = NDArray[np.float64]
_FRACTION = 128
_LARGEST = 2.0**120
_TOO_LARGE = (
    'data: numbers of columns are too large to be standardised: give public ranges, scaling = "range" under '
    "task.columns, or standardisation=none"
)
_NO_SUMS = -(2.0**100)
"""In place of its number of rows, of a site whose sums are none."""
_CONSTANT = 1e-7
"""A deviation below this share of the mean is rounding: the column is left at its scale."""


def scaled_numbers(config: HorizontalConfig, reading: Reading) -> NDArray[np.bool_]:
    """Return which numbers of a row are standardised (D); none where nothing is (images, named data sets)."""
    columns = reading.columns if reading.image_folder is None else ()
    keeps = [kept for column in columns for kept in column.keeps_scale]
    return ~np.asarray(keeps, np.bool_) & config.measures_columns


def column_sums(
    blocks: Sequence[NDArray[Any]],
    scaled_D: NDArray[np.bool_],
    means: Floats,
    targets: Sequence[NDArray[Any]] = (),
) -> Doubles:
    """Return the number of rows and the sums of columns; with `means` of differences from them, and of their squares.

    Targets, where they are given, are the last column.

    Raises:
        BadInput: numbers so large that their squares have no sum.
    """
    pieces = [
        (number, rows)
        for number, block in enumerate(blocks)
        for rows in blocks_of(len(block), max(1, block.nbytes // max(1, len(block))) * 2)
    ]
    scaled = np.flatnonzero(scaled_D)

    def numbers(number: int, rows: Any) -> NDArray[Any]:
        found_ND = blocks[number][rows]
        found_ND = found_ND.reshape(len(found_ND), -1)[:, scaled]
        return np.column_stack([found_ND.astype(np.float64), targets[number][rows]]) if targets else found_ND

    of_powers = [
        np.sum([_powers(numbers(*piece), means, power) for piece in pieces], axis=0)
        for power in ((1, 2) if means.size else (1,))
    ]
    found: Doubles = np.concatenate([[float(sum(map(len, blocks)))], *of_powers])
    if not (np.abs(found) < _LARGEST).all():
        raise BadInput(_TOO_LARGE)
    return found


def no_sums(num_sums: int) -> tuple[Doubles, NDArray[np.bool_]]:
    """Return what a site adds under masks that has no sums, and which words are drawn at random: all but the rows'.

    An error would name it: a server that makes up means could ask whether a single site has a row beyond some bound.
    """
    at_random = np.ones((num_sums, LongIntegers.num_words), np.bool_)
    at_random[0] = False
    return np.append(_NO_SUMS, np.zeros(num_sums - 1)), at_random


def _powers(rows_ND: NDArray[Any], means_D: Floats, power: int) -> Doubles:
    with np.errstate(over="ignore", invalid="ignore"):
        apart_ND = rows_ND.astype(np.float64) - (means_D if means_D.size else 0.0)
        total: Doubles = (apart_ND**power).sum(axis=0)
    return total


def means_of(total: Doubles) -> Doubles:
    """Return the columns' means, of the first sums."""
    found: Doubles = total[1:] / total[0]
    return found


def scale_of(total: Doubles, means: Doubles, scaled_D: NDArray[np.bool_]) -> tuple[Doubles, Doubles]:
    """Return mean and deviation of each number (D), of the second sums; a constant column becomes 0."""
    apart, squares = (part / total[0] for part in np.split(total[1:], 2))
    mean, deviation = means + apart, np.sqrt(np.maximum(squares - apart**2, 0.0))
    deviation = np.where(deviation > _CONSTANT * np.abs(mean), deviation, 1.0)
    mean_D, deviation_D = np.zeros(len(scaled_D)), np.ones(len(scaled_D))
    mean_D[scaled_D], deviation_D[scaled_D] = mean, np.where(deviation > 0, deviation, 1.0)
    return mean_D, deviation_D


def steps_point(num_sites: int) -> LongIntegers:
    """Return how numbers of steps are added up: of fewer than 2^39 sites their sums come out exactly."""
    return LongIntegers(num_clients=num_sites)


def digits_key(seed: Callable[[str], int], means: Floats) -> bytes:
    """Return what a site draws the digits below its sums' last ones from: for the same sums the same.

    Else of sums that are asked for again, among others, nobody would notice that they are (`SecureSumClient.mask`).
    """
    about = hashlib.sha256(means.tobytes()).hexdigest()
    return b"".join(seed(f"digits {part} below sums about {about}").to_bytes(8, "big") for part in range(4))


def words_of(values: Doubles, key: bytes) -> Doubles:
    """Return the words (their number x W) of numbers, each moved by up to half of its last digit."""
    num_words = LongIntegers.num_words
    found = np.zeros((len(values), num_words))
    drawn = mask_stream(key, found.size).reshape(found.shape)
    for row, value in enumerate(values.tolist()):
        digit = int(math.ulp(value) * 2.0**_FRACTION)  # a power of two, like the grid: both are exact
        moved = int.from_bytes(drawn[row].tobytes(), "little") % max(digit, 1) - digit // 2
        whole = (int(value * 2.0**_FRACTION) + moved) % (1 << 32 * num_words)
        found[row] = np.frombuffer(whole.to_bytes(4 * num_words, "little"), "<u4")
    return found


def numbers_of(words: Doubles) -> Doubles:
    """Return the numbers whose words were added up."""
    modulus = 1 << 32 * words.shape[1]
    wholes = (int.from_bytes(row.tobytes(), "little") for row in words.astype("<u4"))
    return np.array([(whole - modulus * (2 * whole >= modulus)) / 2**_FRACTION for whole in wholes])


def check_summed(total: Doubles) -> None:
    """Check that each site had sums; see `no_sums`.

    Raises:
        BadInput: one had none.
    """
    if total[0] < 0:
        raise BadInput(_TOO_LARGE)


def standardised(rows: Rows, mean: Sequence[float], deviation: Sequence[float]) -> Rows:
    """Return where rows are that are read to mean 0 and deviation 1; those of a named data set are already."""
    return replace(rows, mean=tuple(mean), deviation=tuple(deviation)) if isinstance(rows, HorizontalFile) else rows


def as_read(rows: Rows, reading: Reading) -> Rows:
    """Return where rows are, read as those were that were trained on."""
    return standardised(rows, reading.mean, reading.deviation)
