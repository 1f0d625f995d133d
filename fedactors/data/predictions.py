"""The file of predictions that a party keeps: a row for each of its rows, in their order.

Columns: ``id`` (or what else a row is called by),
``prediction``, for classes ``probability_NAME`` of each, and ``reason``: why there is no prediction.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput
from fedactors.records.storage import write_atomic

ENDINGS = (".parquet", ".csv")
LEAST_EACH = 10
"""Predicted rows for each class from which on it is told that one is never predicted."""


def check_ending(to: str) -> str:
    """Return the name of a file of predictions.

    Raises:
        BadInput: another kind of file.
    """
    if not to.endswith(ENDINGS):
        raise BadInput(f"--to: {to!r} is not allowed: give the name of a {' or '.join(ENDINGS)} file")
    return to


@dataclass(frozen=True, eq=False)
class Listing:
    """The lines of the file: one for each of a party's rows, or of what a query joins them to."""

    called: Mapping[str, Sequence[Any]]
    """What the lines are called by, by column."""
    lines: NDArray[np.int64]
    """The line of each row that may be predicted."""
    lost: Mapping[int, str]
    """Other lines, and why they have no row."""


def check_called(columns: Sequence[str], party: str) -> None:
    """Check the columns that a party's rows are called by.

    Raises:
        BadInput: one has the name of a column that the file has for itself.
    """
    for name in columns:
        if name in ("prediction", "reason") or name.startswith("probability_"):
            raise BadInput(f"{party}: rows called by {name!r} are not allowed: name another column as id")


def write_predictions(
    path: Path,
    *,
    ids: NDArray[Any] | Mapping[str, Sequence[Any]],
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
    class_names: Sequence[str],
    is_regression: bool,
    reasons: Mapping[int, str],
) -> int:
    """Write the predictions of a party's rows.

    Returns:
        How many classes are predicted for no row, if there are `LEAST_EACH` rows for each.

    Args:
        path: ends with ``.parquet`` or ``.csv``.
        ids: of all rows of the party (N of them); by column where a row is called by several.
        rows: those that were computed, in the order of `values`.
        values: the probability of each class, or the value of a regression in a single column.
        class_names: names of the columns.
        is_regression: whether there is a value instead of classes.
        reasons: by row, why it has no prediction.

    Raises:
        BadInput: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    called = ids if isinstance(ids, Mapping) else {"id": ids.tolist()}
    num_rows = len(next(iter(called.values())))
    whole = np.full((num_rows, values.shape[1]), np.nan)
    whole[rows] = values
    is_known = np.ones(num_rows, np.bool_)
    is_known[list(reasons)] = False
    unpredicted = 0
    columns = {name: pa.array(values) for name, values in called.items()}
    if is_regression:
        columns["prediction"] = pa.array(whole[:, 0], mask=~is_known)
    else:
        best = np.nan_to_num(whole).argmax(axis=1)
        if is_known.sum() >= LEAST_EACH * len(class_names):
            unpredicted = len(class_names) - len(np.unique(best[is_known]))
        columns["prediction"] = pa.array([class_names[index] for index in best], mask=~is_known)
        for index, name in enumerate(class_names):
            columns[f"probability_{name}"] = pa.array(whole[:, index], mask=~is_known)
    columns["reason"] = pa.array([reasons.get(row) for row in range(num_rows)], pa.string())
    buffer = io.BytesIO()
    if path.suffix == ".csv":
        pa_csv.write_csv(pa.table(columns), buffer)
    else:
        pa_parquet.write_table(pa.table(columns), buffer)
    write_atomic(path, buffer.getvalue(), "--to")
    return unpredicted
