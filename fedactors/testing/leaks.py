"""Finding raw data in what left a party: verbatim copies, and affine ones (a x + b), of columns, rows and labels.

Exactness is the only evidence: a learned embedding may correlate with a raw column to .99, a copy agrees with it to
a few parts in a million. What is found, of the feature columns, the rows and the label vectors that were given:

    verbatim  ten or more distinct values of one vector, in any order, among anything else
    affine    ten or more values of one vector that stand side by side in its own order, or a column of 32 values in
              the order of an index array that an actor held (a batch)
    coarse    of class labels, counts and categories, whose few values are everywhere: 49 entries that stand side by
              side in their own order, or 32 in the order of a batch

`decoded` reads numbers in texts and bytes: as text, in their binary form, and either of them in base64 or compressed
with zlib or gzip. The search is against accidents of an honest author, who does not hide values. It does not find
values behind noise or rounding, mixtures, affine copies in an order that nobody held, and less than that of one vector.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Singles = NDArray[np.float32]
Index = NDArray[np.int64]

MIN_DISTINCT = 10
"""Fewer different values than this are no evidence."""
MIN_DRAWN = 32
"""Entries that identify class labels in the order of a batch that was drawn."""
_MOST_VALUES = 1 << 22
_MOST_SENT = 1 << 16
COARSE_RUN = 49
"""Entries in a row that identify a vector of few different values: two to the 48 is more than any search compares."""
_LEAST_TURNS = 8
_MOST_NEIGHBOURS = 1000
_DECIMALS = (0.001, 0.01, 0.1, 1.0)
_CHUNK = 200_000
_SINGLE = float(np.finfo(np.float32).eps)
_SAME = 1e-5
_CLEAR = 4e-3
_DOUBLE = 1e-12
_ENOUGH_BITS = 24.0


class RawData:
    """Vectors of raw data, searched by value."""

    def __init__(self) -> None:
        self._blocks: list[tuple[str, Floats]] = []
        self._seen: set[tuple[tuple[int, ...], bytes]] = set()
        self._index: _Index | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def widths(self) -> set[int]:
        """How many columns the feature matrices have: a flattened one is a table of so many."""
        return {vectors.shape[1] for name, vectors in self._blocks if name.startswith("row ")} - {1}

    def add_features(self, name: str, features: NDArray[Any]) -> None:
        """Add the columns and rows of a feature matrix (samples first; what follows the first axis is one row)."""
        if features.size == 0:
            return
        width = features.size // len(features)
        matrix = np.asarray(features[: max(1, _MOST_VALUES // width)], dtype=np.float64).reshape(-1, width)
        if self._is_new(matrix):
            self._add(f"column {{}} of {name}", matrix.T)
            self._add(f"row {{}} of {name}", matrix)

    def add_labels(self, name: str, labels: NDArray[Any]) -> None:
        """Add a vector of labels."""
        vector = np.asarray(labels, dtype=np.float64).reshape(1, -1)
        if vector.size and self._is_new(vector):
            self._add(f"the labels of {name}", vector)

    def find_drawn(self, sent: NDArray[Any], orders: Iterable[Index]) -> str | None:
        """Return which column or label vector was sent, verbatim or affine, in one of `orders`, or None.

        Args:
            sent: a vector, or samples of several numbers, of which one may be raw.
            orders: index arrays that actors held.
        """
        if sent.dtype.kind not in "biuf" or not sent.ndim or len(sent) < MIN_DRAWN or not self._blocks:
            return None
        columns_FN = np.asarray(sent, dtype=np.float64).reshape(len(sent), -1).T
        columns_FN = columns_FN[[_is_telling(column) for column in columns_FN]]
        for order in orders if len(columns_FN) else ():
            if len(order) != len(sent) or order.min() < 0 or len(np.unique(order)) < len(order) // 2:
                continue
            for name, vectors in reversed(self._blocks):
                if not name.startswith("row ") and order.max() < vectors.shape[1]:
                    for number in _affine_among(columns_FN, vectors[:, order]):
                        return f"{name.format(number)}, in the order of a batch"
        return None

    def find(self, sent: NDArray[Any]) -> str | None:
        """Return what raw data an array that was sent holds, or None; only numbers are looked at."""
        if sent.dtype.kind not in "biuf" or sent.size < MIN_DISTINCT or not self._blocks:
            return None
        with np.errstate(all="ignore"):
            return self._indexed().find(sent)

    def _indexed(self) -> _Index:
        if self._index is None:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # equal neighbours have no ratio
                self._index = _index_of(_Blocks.of(self._blocks))
        return self._index

    def _is_new(self, matrix: Floats) -> bool:
        mark = (matrix.shape, matrix.tobytes())
        is_new = mark not in self._seen
        self._seen.add(mark)
        return is_new

    def _add(self, name: str, vectors_VN: Floats) -> None:
        self._blocks.append((name, np.nan_to_num(np.ascontiguousarray(vectors_VN))))
        self._index = None


@dataclass(frozen=True)
class _Blocks:
    """Raw vectors, equal where their names and numbers are."""

    digest: bytes
    content: tuple[tuple[str, Floats], ...] = field(compare=False)

    @classmethod
    def of(cls, blocks: Iterable[tuple[str, Floats]]) -> _Blocks:
        content, digest = tuple(blocks), hashlib.sha256()
        for name, vectors in content:
            digest.update(f"{name} {vectors.shape} ".encode() + vectors.tobytes())
        return cls(digest.digest(), content)


@lru_cache(maxsize=4)
def _index_of(blocks: _Blocks) -> _Index:
    """Return the index of some vectors; checks of several protocols on one data set share it."""
    return _Index(blocks.content)


class _Index:
    """What is computed once of all raw vectors: V of them, laid end to end in P places."""

    def __init__(self, blocks: Sequence[tuple[str, Floats]]) -> None:
        self._names = [name.format(number) for name, vectors in blocks for number in range(len(vectors))]
        self._values_P = np.concatenate([vectors.ravel() for _, vectors in blocks])
        lengths_V = np.concatenate([np.full(len(vectors), vectors.shape[1]) for _, vectors in blocks])
        self._ends_V = np.cumsum(lengths_V)
        self._owner_P = np.repeat(np.arange(len(lengths_V)), lengths_V)
        fine_V = np.concatenate([_are_fine(vectors) for _, vectors in blocks])
        fine_P = fine_V[self._owner_P]

        table, owners = self._values_P[fine_P].astype(np.float32), self._owner_P[fine_P]
        order = np.lexsort((owners, table))
        table, owners = table[order], owners[order]
        is_new = np.append(True, (np.diff(table) != 0) | (np.diff(owners) != 0))[: len(table)]
        self._table, self._table_owner = table[is_new], owners[is_new]
        self._flags = np.zeros(1 << 24, np.bool_)  # says quickly of nearly all numbers that they are not in the table
        self._flags[_marks_of(self._table)] = True

        self._ratios_P = np.where(fine_P, _ratios(self._values_P, _DOUBLE)[0], np.nan)
        self._ratios_P[self._leaves_vector(2)] = np.nan
        self._by_ratio = np.argsort(self._ratios_P, kind="stable")[: np.isfinite(self._ratios_P).sum()]

        codes_P, turns_P = _codes_of_runs(self._values_P)
        turns_P &= ~fine_P & ~self._leaves_vector(COARSE_RUN - 1)
        indices = np.flatnonzero(turns_P)
        self._by_code = indices[np.argsort(codes_P[indices], kind="stable")]
        self._codes = codes_P[self._by_code]
        self._found: dict[Any, str | None] = {}

    def find(self, sent: NDArray[Any]) -> str | None:
        key = (sent.shape, sent.dtype.str, hashlib.sha256(sent.tobytes()).digest())
        if key not in self._found:
            self._found[key] = self._search(sent)
        return self._found[key]

    def _search(self, sent: NDArray[Any]) -> str | None:
        values = np.asarray(sent, dtype=np.float64)
        eps = _DOUBLE if np.any(values != values.astype(np.float32)) else _SINGLE
        table = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[:, None]
        rows = values.reshape(len(values), -1) if values.ndim > 1 else values[None, :]
        owner = self._verbatim(values, [*table.T, *rows] if values.ndim > 1 else [])
        if owner is not None:
            return f"{self._names[owner]} unchanged"
        for order in (rows.ravel(), table.T.ravel()) if values.ndim > 1 else (values,):
            owner = self._in_order(order[:_MOST_SENT], eps)
            if owner is not None:
                return f"{self._names[owner]}, or an affine map of it"
        return None

    # --- verbatim, in any order ---

    def _verbatim(self, values: Floats, vectors: list[Floats]) -> int | None:
        if not self._is_raw(values).sum() >= MIN_DISTINCT:
            return None
        for vector in [values.ravel(), *(v for v in vectors if self._is_raw(v).sum() >= MIN_DISTINCT)]:
            sent = np.unique(vector[np.isfinite(vector) & (vector != 0)].astype(np.float32))
            first, last = np.searchsorted(self._table, sent), np.searchsorted(self._table, sent, "right")
            owners = self._table_owner[_ranges(first, last)]
            hits = np.bincount(owners, minlength=len(self._names))
            # of equal columns the one that was loaded last: a party's own, not the whole data set's
            for owner in np.argsort(hits, kind="stable")[::-1]:
                if hits[owner] < MIN_DISTINCT:
                    break
                if self._bits(int(owner), int(hits[owner]), sent.astype(np.float64)) >= _ENOUGH_BITS:
                    return int(owner)
        return None

    def _is_raw(self, values: Floats) -> Flags:
        if not len(self._table):
            return np.zeros(values.shape, np.bool_)
        singles = values.astype(np.float32)
        is_raw = np.asarray(self._flags[_marks_of(singles)] & (singles != 0))
        likely = singles[is_raw]
        indices = np.searchsorted(self._table, likely).clip(max=len(self._table) - 1)
        is_raw[is_raw] = self._table[indices] == likely
        return is_raw

    def _bits(self, owner: int, num_hits: int, sent: Floats) -> float:
        """Return how surprising it is that so much of `sent` is in one vector, as its neighbours are by chance."""
        taken = self._table[self._table_owner == owner].astype(np.float64)

        def hits(at: Floats) -> Flags:
            return np.asarray(_distance(at, taken) <= 4 * _SINGLE * np.abs(at))

        least = 8 * _SINGLE * float(np.abs(taken).max())
        steps = [step for step in (*_steps(taken), *_DECIMALS) if step > least]
        few = sent[:: -(-len(sent) // _MOST_NEIGHBOURS)]
        share, chance = num_hits / len(sent), _chance(hits, few, steps)
        if share <= chance:
            return 0.0
        rest = (1 - share) * np.log2((1 - share) / (1 - chance)) if share < 1 else 0.0
        return float(len(sent) * (share * np.log2(share / chance) + rest))

    # --- in its own order, verbatim or affine ---

    def _in_order(self, sent: Floats, eps: float) -> int | None:
        if len(sent) >= MIN_DISTINCT and (owner := self._in_order_fine(sent, eps)) is not None:
            return owner
        return self._in_order_coarse(sent) if len(sent) >= COARSE_RUN and len(self._codes) else None

    def _in_order_fine(self, sent: Floats, eps: float) -> int | None:
        if len(np.unique(sent)) < MIN_DISTINCT:
            return None
        ratios, errors = _ratios(sent, eps)
        valid = np.flatnonzero(np.isfinite(ratios))
        known, allowed = self._ratios_P[self._by_ratio], errors[valid]
        first = np.searchsorted(known, ratios[valid] - allowed)
        last = np.searchsorted(known, ratios[valid] + allowed, "right")
        ends = np.cumsum(last - first)
        for start in range(0, int(ends[-1]) if len(ends) else 0, _CHUNK):
            chosen = slice(*np.searchsorted(ends, (start, start + _CHUNK)))
            indices = self._by_ratio[_ranges(first[chosen], last[chosen])]
            anchors = np.repeat(valid[chosen], (last - first)[chosen])
            near = np.any([self._agrees(ratios, errors, anchors, indices, ahead) for ahead in (-2, -1, 1, 2)], axis=0)
            for i, p in zip(anchors[near], indices[near], strict=True):
                if self._same_run(sent, ratios, errors, int(i), int(p)):
                    return int(self._owner_P[p])
        return None

    def _agrees(self, ratios: Floats, errors: Floats, anchors: Index, indices: Index, ahead: int) -> Flags:
        there = (anchors + ahead).clip(0, len(ratios) - 1)
        known = self._ratios_P[(indices + ahead).clip(0, len(self._ratios_P) - 1)]
        return np.asarray(np.abs(ratios[there] - known) <= errors[there])

    def _same_run(self, sent: Floats, ratios: Floats, errors: Floats, anchor: int, index: int) -> bool:
        """Say whether ten values around `anchor` are an affine map of those around `index`."""
        num_ratios = MIN_DISTINCT - 2
        for back in range(num_ratios):
            i, p = anchor - back, index - back
            if i < 0 or p < 0 or i + MIN_DISTINCT > len(sent) or p + MIN_DISTINCT > len(self._values_P):
                continue
            if self._owner_P[p] != self._owner_P[p + MIN_DISTINCT - 1]:
                continue
            one, other = ratios[i : i + num_ratios], self._ratios_P[p : p + num_ratios]
            both = np.isfinite(one) & np.isfinite(other)
            agree = np.abs(one - other) <= errors[i : i + num_ratios]
            if agree.sum() < num_ratios - 2 or np.any(both & ~agree):
                continue
            if _are_affine(sent[i : i + MIN_DISTINCT], self._values_P[p : p + MIN_DISTINCT][None])[0]:
                return True
        return False

    def _in_order_coarse(self, sent: Floats) -> int | None:
        for signed in (sent, -sent):
            codes, turns = _codes_of_runs(signed)
            likely = np.flatnonzero(turns & np.isin(codes, self._codes))
            firsts, lasts = (np.searchsorted(self._codes, codes[likely], side) for side in ("left", "right"))
            for i, first, last in zip(likely, firsts, lasts, strict=True):
                for p in self._by_code[first:last]:
                    if _are_affine(sent[i : i + COARSE_RUN], self._values_P[p : p + COARSE_RUN][None])[0]:
                        return int(self._owner_P[p])
        return None

    def _leaves_vector(self, ahead: int) -> Flags:
        """Say of each place whether `ahead` places later there is another vector, or nothing."""
        return np.arange(len(self._owner_P)) + ahead >= self._ends_V[self._owner_P]


def _steps(ordered: Floats) -> list[float]:
    """Return the step of the grid on which distinct ascending values may lie, and coarser ones: they may mix digits."""
    gap = float(np.diff(ordered).min())
    return [gap, 10 * gap, 100 * gap]


def _chance(hits: Callable[[Floats], Flags], sent: Floats, steps: Iterable[float]) -> float:
    """Return the share of hits of the neighbours of what was sent, a few steps away."""
    near = [shift for shift in range(-8, 9) if shift]
    shares = [np.mean([hits(sent + shift * step).mean() for shift in near]) for step in steps]
    return max([1 / (len(near) * len(sent)), *map(float, shares)])


def _are_fine(vectors_VN: Floats) -> Flags:
    """Say of each vector whether its values are more than counts or codes, which are everywhere.

    Few places on the grid of its smallest gap, or most of them taken, make it coarse.
    """
    ordered = np.sort(vectors_VN, axis=1)
    steps, span = np.diff(ordered, axis=1), ordered[:, -1] - ordered[:, 0]
    apart = steps > 1e-6 * span[:, None]
    num_distinct = 1 + apart.sum(axis=1)
    num_steps = span / np.where(apart, steps, np.inf).min(axis=1, initial=np.inf) + 1
    return np.asarray((num_distinct >= MIN_DISTINCT) & (num_distinct < 0.5 * num_steps) & (num_steps >= 200))


def _ranges(first: Index, last: Index) -> Index:
    """Return the numbers from each `first` to its `last`, end to end."""
    counts = last - first
    total = int(counts.sum())
    return np.asarray(np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts))


def _ratios(values: Floats, eps: float) -> tuple[Floats, Floats]:
    """Return of each place (x[1] - x[0]) / (x[2] - x[0]), which no affine map changes, and its error by rounding.

    NaN where rounding leaves too little of it.
    """
    ratios, errors = np.full(len(values), np.nan), np.zeros(len(values))
    if len(values) > 2:
        near, far = values[1:-1] - values[:-2], values[2:] - values[:-2]
        size = np.maximum(np.maximum(np.abs(values[:-2]), np.abs(values[1:-1])), np.abs(values[2:]))
        ratio = near / far
        error = (_SAME + 4 * eps * size / np.abs(far)) * (1 + np.abs(ratio))
        clear = (error < _CLEAR * (1 + np.abs(ratio))) & (np.abs(near) > 1e3 * eps * size)
        ratios[:-2], errors[:-2] = np.where(clear, ratio, np.nan), error
    return ratios, errors


def _are_affine(one_N: Floats, others_VN: Floats) -> Flags:
    """Say of each of `others_VN` whether `one_N` is an affine map of it, to rounding; never of a constant."""
    centred_VN = others_VN - others_VN.mean(axis=1, keepdims=True)
    centred_N = one_N - one_N.mean()
    with np.errstate(all="ignore"):
        slope_V = centred_VN @ centred_N / np.square(centred_VN).sum(axis=1)
        left_V = np.abs(centred_N - slope_V[:, None] * centred_VN).max(axis=1)
        return np.asarray((slope_V != 0) & (np.ptp(others_VN, axis=1) > 0) & (left_V <= _SAME * np.ptp(one_N)))


def _is_telling(values: Floats) -> bool:
    """Say whether values are so many and so different that their order is no chance."""
    counts = np.unique(values, return_counts=True)[1]
    return bool(-np.sum(counts * np.log2(counts / len(values))) >= _ENOUGH_BITS)


def _affine_among(columns_FN: Floats, others_VN: Floats) -> Iterator[int]:
    """Yield which of `others_VN` one of the columns is an affine map of: those that correlate are looked at closely."""
    with np.errstate(all="ignore"):
        one, other = (_unit(columns_FN), _unit(others_VN))
        alike = np.argwhere(np.abs(other @ one.T) > 1 - 1e-6)
    for number, column in alike:
        if _are_affine(columns_FN[column], others_VN[[number]])[0]:
            yield int(number)


def _unit(vectors_VN: Floats) -> Floats:
    centred = vectors_VN - vectors_VN.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.linalg.norm(centred, axis=1, keepdims=True))


def _marks_of(singles: Singles) -> NDArray[np.uint32]:
    return np.asarray((np.ascontiguousarray(singles).view(np.uint32) * np.uint32(0x9E3779B1)) >> np.uint32(8))


def _codes_of_runs(values: Floats) -> tuple[NDArray[np.uint64], Flags]:
    """Return of each place a code of the ups and downs of the run that begins there, and whether both are frequent."""
    codes, turns = np.zeros(len(values), np.uint64), np.zeros(len(values), np.bool_)
    num = len(values) - COARSE_RUN + 1
    if num > 0:
        signs = np.sign(np.diff(values))
        ups, downs = (np.cumsum(np.append(False, signs == way)) for way in (1, -1))
        digits = (1 + signs).astype(np.uint64)
        for at in range(COARSE_RUN - 1):
            codes[:num] = codes[:num] * np.uint64(0x9E3779B97F4A7C15) + digits[at : at + num]
        turns[:num] = np.all([way[-num:] - way[:num] >= _LEAST_TURNS for way in (ups, downs)], axis=0)
    return codes, turns


def _distance(at: Floats, values: Floats) -> Floats:
    right = np.searchsorted(values, at).clip(1, len(values) - 1)
    return np.asarray(np.minimum(np.abs(at - values[right - 1]), np.abs(at - values[right])))


Form = str | bytes

_NUMBER = re.compile(r"(?:(?<![\w.])[-+])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_CLASSES = 12
_MOST_FORMS = 300
_MOST_UNPACKED = 1 << 20


def decoded(forms: Iterable[Form]) -> Iterator[NDArray[Any]]:
    """Yield arrays of numbers that `forms`, and what is packed in them, can be read as; so many forms at most."""
    level, seen = list(forms), set[Form]()
    while level:
        packed: list[Form] = []
        for form in level:
            if form in seen or len(seen) >= _MOST_FORMS or len(form) < MIN_DISTINCT:
                continue
            seen.add(form)
            yield from _in_text(form) if isinstance(form, str) else _in_bytes(form)
            packed.extend(_words(form) if isinstance(form, str) else _unpacked(form))
        level = packed


def _in_text(text: str) -> Iterator[NDArray[Any]]:
    """Yield the numbers in a text, those with decimals apart as well; and letters or words, one for each label."""
    words = _NUMBER.findall(text)
    decimals = [word for word in words if not word.lstrip("+-").isdigit()]
    for chosen in (decimals, words) if len(decimals) < len(words) else (words,):
        if len(chosen) >= MIN_DISTINCT:
            yield np.array(chosen, np.float64)
    for letters in (list(text), text.split()):
        if len(letters) >= COARSE_RUN and 1 < len(set(letters)) <= _CLASSES:
            yield np.unique(letters, return_inverse=True)[1].astype(np.float64)


def _in_bytes(blob: bytes) -> Iterator[NDArray[Any]]:
    """Yield bytes read as floats from every offset, behind a header say; and as whole numbers."""
    for kind in ("<f4", "<f8", ">f4", ">f8"):
        size = int(kind[-1])
        for offset in range(size):
            numbers = np.frombuffer(blob, kind, (len(blob) - offset) // size, offset)
            with np.errstate(invalid="ignore"):
                sizes = np.abs(numbers.astype(np.float64))
            yield numbers[(sizes > 1e-30) & (sizes < 1e30)]
    for kind in ("u1", "<f2", "<i2", "<i4", "<i8"):
        if len(blob) % int(kind[-1]) == 0:
            yield np.frombuffer(blob, kind)


def _words(text: str) -> Iterator[Form]:
    """Yield the bytes of words in base64, of the usual alphabet or that of addresses, in lines or in one."""
    for word in {*_BASE64.findall(text), "".join(text.split())}:
        plain = word.translate(str.maketrans("-_", "+/")).rstrip("=")
        try:
            yield base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            continue


def _unpacked(blob: bytes) -> Iterator[Form]:
    """Yield what is compressed with zlib or gzip, and what is text or base64 in bytes."""
    try:
        yield zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(blob, _MOST_UNPACKED)
    except zlib.error:
        if blob.isascii():
            yield blob.decode()
