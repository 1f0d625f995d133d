"""Finding raw features in what was sent: exact copies of a feature column or of a sample, in any order and any part.

It finds values that were copied, not values that were encoded: a feature times two, or an embedding that can be
inverted, passes. The attacks in `fedactors.privacy.attacks` measure the latter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MIN_DISTINCT = 8
"""Fewer different values than this are no evidence: zeros, ones and small codes are everywhere."""
_MIN_WHOLE_NUMBERS = 32


class RawColumns:
    """Columns and samples of the parties' feature matrices, searched by value."""

    def __init__(self) -> None:
        self._columns: list[tuple[str, Array]] = []
        self._samples: dict[int, dict[bytes, str]] = {}
        self._seen: set[tuple[str, bytes]] = set()

    def __len__(self) -> int:
        return len(self._columns)

    def add(self, name: str, features_ND: Array) -> None:
        """Add a feature matrix (samples first); columns with few different values are known by their samples only."""
        matrix = np.ascontiguousarray(features_ND, dtype=np.float32).reshape(len(features_ND), -1)
        mark = (name, matrix.shape[0].to_bytes(8, "big") + matrix[: MIN_DISTINCT * 4].tobytes())
        if mark in self._seen or matrix.size == 0:
            return
        self._seen.add(mark)
        for index in range(matrix.shape[1]):
            values = np.unique(matrix[:, index])
            if len(values) >= 2 * MIN_DISTINCT:
                self._columns.append((f"column {index} of {name}", values))
        known = self._samples.setdefault(matrix.shape[1], {})
        for row in matrix:
            if len(np.unique(row)) > 1:
                known.setdefault(row.tobytes(), name)

    def find(self, sent: Array) -> str | None:
        """Return what raw feature values an array that was sent consists of, or None."""
        if sent.dtype.kind not in "iuf" or sent.size < MIN_DISTINCT:
            return None
        values = np.ascontiguousarray(sent, dtype=np.float32)
        vectors = [values] if values.ndim == 1 else []
        if values.ndim > 1:
            if found := self._find_sample(values.reshape(len(values), -1)):
                return found
            table = values.reshape(-1, values.shape[-1])
            vectors = [*table.T, *table]
        least = _MIN_WHOLE_NUMBERS if sent.dtype.kind in "iu" else MIN_DISTINCT
        for vector in vectors:
            if len(vector) >= least and (found := self._find_column(vector)):
                return found
        return None

    def _find_sample(self, table: Array) -> str | None:
        known = self._samples.get(table.shape[1], {})
        if table.shape[1] < 2:
            return None
        for row in table:
            if row.tobytes() in known:
                return f"a whole sample of {known[row.tobytes()]}"
        return None

    def _find_column(self, vector: Array) -> str | None:
        values = np.unique(vector)
        if len(values) < MIN_DISTINCT:
            return None
        for name, known in self._columns:
            places = np.searchsorted(known, values).clip(max=len(known) - 1)
            if np.array_equal(known[places], values):
                return name
        return None
