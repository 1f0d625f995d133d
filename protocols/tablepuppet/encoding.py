"""From a table's columns to its design matrix: numbers standardised or not, categories one-hot, ones for the bias.

Partitions of one vertical table must agree on categories, means and deviations; each computes `column_facts` on its
own rows and the organisation's coordinator merges them. Those facts say which categories occur and two moments.

Legend: n rows, D columns of the design matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from protocols.tablepuppet.faults import FeatureTypeError, LabelError
from protocols.tablepuppet.plan import Feature

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnFacts:
    """What a partition knows of one feature: categories (one_hot), or count, sum and sum of squares (numeric)."""

    categories: tuple[str, ...] = ()
    count: int = 0
    total: float = 0.0
    squares: float = 0.0


def column_facts(data: pa.Table, features: Sequence[Feature]) -> tuple[ColumnFacts, ...]:
    """Return the facts of every feature on these rows.

    Raises:
        FeatureTypeError: a numeric feature holds NULL or NaN.
    """
    found = []
    for feature in features:
        if feature.encoding == "one_hot":
            found.append(ColumnFacts(categories=tuple(sorted(set(_texts(data, feature))))))
        else:
            values = _numbers(data, feature)
            found.append(ColumnFacts(count=len(values), total=float(values.sum()), squares=float(values @ values)))
    return tuple(found)


def merge_facts(parts: Sequence[Sequence[ColumnFacts]]) -> tuple[ColumnFacts, ...]:
    """Return the facts of the vertical table from those of its partitions."""
    return tuple(
        ColumnFacts(
            categories=tuple(sorted({c for fact in facts for c in fact.categories})),
            count=sum(fact.count for fact in facts),
            total=sum(fact.total for fact in facts),
            squares=sum(fact.squares for fact in facts),
        )
        for facts in zip(*parts, strict=True)
    )


def label_classes(labels: pa.ChunkedArray) -> tuple[str, ...]:
    """Return the distinct labels of a partition as texts, sorted (numbers by value); the coordinator merges them."""
    values = pyarrow.compute.unique(labels).drop_null().to_pylist()
    return tuple(str(value) for value in sorted(values))


def merge_classes(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the classes of the vertical table: numbers by value, then texts."""

    def rank(text: str) -> tuple[int, float, str]:
        try:
            return (0, float(text), text)
        except ValueError:
            return (1, 0.0, text)

    return tuple(sorted({c for part in parts for c in part}, key=rank))


def label_values(labels: pa.ChunkedArray, loss: str, name: str, classes: Sequence[str] = ()) -> NDArray[Any]:
    """Return y_n: numbers for the squared loss, 0 or 1 for the logistic, places in `classes` for the softmax.

    Raises:
        LabelError: a missing label, a text where a number is needed, or a class that is not known.
    """
    if labels.null_count:
        raise LabelError(f"label: {name} is missing in {labels.null_count} of {len(labels)} rows; filter them out")
    if loss == "softmax":
        places = {text: i for i, text in enumerate(classes)}
        texts = [str(value) for value in labels.to_pylist()]
        unknown = sorted(set(texts) - set(places))
        if unknown:
            raise LabelError(f"label: {name} holds {unknown[0]!r}, which is none of the classes {', '.join(classes)}")
        return np.array([places[text] for text in texts], dtype=np.int64)
    try:
        values = np.asarray(pyarrow.compute.cast(labels, pa.float64()).to_numpy(), dtype=np.float64)
    except pa.ArrowInvalid:
        raise LabelError(f"label: {name} is {labels.type}, not a number") from None
    if not np.isfinite(values).all():
        raise LabelError(f"label: {name} holds values that are no finite numbers")
    if loss == "logistic" and not np.isin(values, (0.0, 1.0)).all():
        raise LabelError(f"label: {name} must hold 0 and 1 only for the logistic loss")
    return values


def column_names(features: Sequence[Feature], facts: Sequence[ColumnFacts], bias: bool) -> tuple[str, ...]:
    """Return the names of the design matrix's columns, such as ``genre=Drama``."""
    names: list[str] = []
    for feature, fact in zip(features, facts, strict=True):
        hot = feature.encoding == "one_hot"
        names += [f"{feature.column}={c}" for c in fact.categories] if hot else [feature.column]
    return (*names, "1") if bias else tuple(names)


def design_matrix(
    data: pa.Table, features: Sequence[Feature], facts: Sequence[ColumnFacts], bias: bool, standardise: bool = True
) -> Array:
    """Return x_nD: each feature's columns in order, and a last column of ones for the label's table (`bias`).

    Standardised numbers have mean 0 and deviation 1 over the vertical table (a constant column becomes 0). NULL is
    a category of its own, written as an empty text; a category that `facts` lacks gives zeros.
    """
    columns = []
    for feature, fact in zip(features, facts, strict=True):
        if feature.encoding == "one_hot":
            known = {category: i for i, category in enumerate(fact.categories)}
            texts = _texts(data, feature)
            hot = np.zeros((len(texts), len(known)))
            places = np.array([known.get(text, -1) for text in texts], dtype=np.int64)
            rows = np.flatnonzero(places >= 0)
            hot[rows, places[rows]] = 1.0
            columns.append(hot)
        else:
            values = _numbers(data, feature)
            if standardise:
                mean = fact.total / max(fact.count, 1)
                deviation = np.sqrt(max(fact.squares / max(fact.count, 1) - mean * mean, 0.0))
                values = (values - mean) / deviation if deviation > 1e-12 * (1.0 + abs(mean)) else np.zeros(len(values))
            columns.append(values[:, None])
    if bias:
        columns.append(np.ones((data.num_rows, 1)))
    return np.hstack(columns) if columns else np.zeros((data.num_rows, 0))


def _texts(data: pa.Table, feature: Feature) -> list[str]:
    found: list[str] = data.column(feature.column).cast(pa.string()).fill_null("").to_pylist()
    return found


def _numbers(data: pa.Table, feature: Feature) -> Array:
    column = data.column(feature.column)
    values = np.asarray(pyarrow.compute.cast(column, pa.float64()).to_numpy(), dtype=np.float64)
    if not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise FeatureTypeError(
            f"features: {feature.column} has no finite number in {bad} of {len(values)} rows; filter them in the query"
        )
    return values
