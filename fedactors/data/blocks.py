"""What one party holds after loading: its rows, checked, brought into the aligned order, split and standardised.

Shapes: N rows, D columns after one-hot encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.catalogue import Task
from fedactors.errors import BadInput

Float32 = NDArray[np.float32]
Index = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PartyBlock:
    """One party's rows as it holds them, categorical columns one-hot encoded, nothing standardised."""

    origin: str
    """Where it came from, for error messages: a file, or a data set's name."""
    ids: NDArray[Any]
    """One id per row: whole numbers or text."""
    features: Float32
    feature_names: tuple[str, ...]
    is_one_hot: NDArray[np.bool_]
    """Which columns are zero-one columns of a categorical one: they are never standardised."""
    labels: NDArray[Any] | None = None
    """int64 classes, float32 targets, or None for a party that has no labels."""
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """Positions in the aligned order: the same at every party, because all of them draw it from one seed."""

    train: Index
    validation: Index
    test: Index


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one part of a split: features, and labels at the party that has them."""

    features: Float32
    labels: NDArray[Any] | None


@dataclass(frozen=True, kw_only=True)
class PreparedBlock:
    """One party's rows in the aligned order, split, standardised by the training part alone."""

    train: Part
    validation: Part
    test: Part
    feature_names: tuple[str, ...]
    mean: Float32
    deviation: Float32
    label_mean: float
    """Mean of the training targets of a regression, which are standardised too; 0 for classes."""
    label_deviation: float
    """A root mean squared error in original units is this times the one on standardised targets; 1 for classes."""
    class_names: tuple[str, ...] = ()

    @property
    def num_features(self) -> int:
        """Columns after one-hot encoding."""
        return len(self.feature_names)

    @property
    def scale(self) -> dict[str, Any]:
        """What predictions on new rows need, as plain values for a snapshot."""
        return {
            "feature_names": list(self.feature_names),
            "mean": self.mean,
            "deviation": self.deviation,
            "label_mean": self.label_mean,
            "label_deviation": self.label_deviation,
            "class_names": list(self.class_names),
        }


def one_hot(
    features_NF: Float32, columns: tuple[str, ...], categories: Mapping[str, tuple[str, ...]]
) -> tuple[Float32, tuple[str, ...], NDArray[np.bool_]]:
    """Replace each column of codes by one zero-one column per category (``column=text``), numeric columns in place."""
    widths = [len(categories[column]) if column in categories else 1 for column in columns]
    made = np.zeros((len(features_NF), sum(widths)), np.float32)
    names: list[str] = []
    rows = np.arange(len(features_NF))
    for index, column in enumerate(columns):
        start = len(names)
        if column in categories:
            made[rows, start + features_NF[:, index].astype(np.int64)] = 1
            names += [f"{column}={text}" for text in categories[column]]
        else:
            made[:, start] = features_NF[:, index]
            names.append(column)
    flags = np.asarray(
        [column in categories for column, width in zip(columns, widths, strict=True) for _ in range(width)]
    )
    return made, tuple(names), flags.astype(np.bool_)


def check_block(block: PartyBlock, party: str, task: Task, num_classes: int) -> None:
    """Refuse rows that cannot be trained on.

    Raises:
        BadInput: no feature, no row, duplicate ids, NaN or infinite features, missing, constant or unexpected labels;
            the message names the party, the file and the column.
    """
    where = f"{party}: {block.origin}"
    if not block.feature_names:
        raise BadInput(f"{where}: no feature column: every party needs at least one")
    if not len(block.ids):
        raise BadInput(f"{where}: no rows")
    check_ids(block.ids, where)
    finite_D = np.asarray([np.isfinite(block.features[:, d]).all() for d in range(len(block.feature_names))])
    if not finite_D.all():
        column = int(np.flatnonzero(~finite_D)[0])
        bad = int((~np.isfinite(block.features[:, column])).sum())
        raise BadInput(
            f"{where}: column {block.feature_names[column]}: {bad} values are NaN, missing or infinite; "
            "only finite numbers are allowed"
        )
    if block.labels is not None:
        check_labels(block.labels, where, task, num_classes)


def check_ids(ids_N: NDArray[Any], where: str) -> None:
    """Raise `BadInput`, naming the first duplicate, unless all ids differ."""
    values, counts = np.unique(ids_N, return_counts=True)
    if len(values) < len(ids_N):
        first = values[counts > 1][0]
        raise BadInput(f"{where}: {int((counts > 1).sum())} ids occur more than once, the first is {first!s}")


def check_labels(labels_N: NDArray[Any], where: str, task: Task, num_classes: int) -> None:
    """Raise `BadInput` where labels are missing, constant, or not the classes that the task states."""
    missing = int((~np.isfinite(labels_N.astype(np.float64))).sum())
    if missing:
        raise BadInput(f"{where}: label: {missing} values are missing, NaN or infinite")
    found = np.unique(labels_N)
    if len(found) < 2:
        raise BadInput(f"{where}: label: every row has the label {found[0]}; at least two different ones are needed")
    if task != "regression" and (found.min() < 0 or found.max() >= num_classes):
        raise BadInput(
            f"{where}: label: {len(found)} classes from {found.min()} to {found.max()}, expected {num_classes} "
            f"(0 to {num_classes - 1})"
        )


def split(num_rows: int, *, seed: int, test_share: float = 0.3, validation_share: float = 0.1) -> Split:
    """Draw the split of `num_rows` aligned rows; `validation_share` is a share of what is not test.

    Raises:
        BadInput: a part would be empty (validation only when its share is above 0).
    """
    num_test = round(num_rows * test_share)
    num_validation = round((num_rows - num_test) * validation_share)
    num_train = num_rows - num_test - num_validation
    if num_train < 1 or num_test < 1 or (validation_share > 0 and num_validation < 1):
        raise BadInput(
            f"data: {num_rows} aligned rows cannot be split with test_share={test_share:g} and "
            f"validation_share={validation_share:g} of the rest: a part would have no row"
        )
    order = np.random.default_rng([seed, 7]).permutation(num_rows)
    return Split(order[num_test + num_validation :], order[num_test : num_test + num_validation], order[:num_test])


Scale = tuple[NDArray[Any], NDArray[Any]]
"""What is taken off each column, and what it is divided by."""


def measured_scale(rows_ND: Float32, is_one_hot: NDArray[np.bool_]) -> Scale:
    """Return mean and deviation of each column of these rows; zero-one columns stay as they are."""
    mean_D = np.where(is_one_hot, 0.0, rows_ND.mean(axis=0, dtype=np.float64))
    deviation_D = np.where(is_one_hot, 1.0, rows_ND.std(axis=0, dtype=np.float64))
    # A column that is constant over the training part tells nothing: it becomes 0 there, and stays bounded elsewhere.
    return mean_D, np.where(deviation_D > 1e-7 * np.maximum(1.0, np.abs(mean_D)), deviation_D, 1.0)


def prepare(
    block: PartyBlock, order_N: Index, parts: Split, task: Task, scale: Scale | None = None, labels_N: Any = None
) -> PreparedBlock:
    """Bring a party's rows into the aligned order, split them, and standardise by the training part alone.

    Args:
        block: the party's rows as loaded.
        order_N: for each aligned position the party's own row.
        parts: the split of aligned positions.
        task: a regression's targets are standardised too.
        scale: of the columns; None: measured on the training part.
        labels_N: labels of the party's own rows in place of the block's.

    Raises:
        BadInput: the training part has a single label.
    """
    own_labels = block.labels if labels_N is None else labels_N
    if scale is None:
        scale = measured_scale(block.features[order_N[parts.train]], block.is_one_hot)
    mean_D, deviation_D = scale
    label_mean, label_deviation = 0.0, 1.0
    if own_labels is not None:
        train_labels = own_labels[order_N[parts.train]]
        if train_labels.min() == train_labels.max():
            raise BadInput(f"{block.origin}: label: the training part has the single label {train_labels[0]}")
        if task == "regression":
            label_mean = float(train_labels.mean(dtype=np.float64))
            label_deviation = float(train_labels.std(dtype=np.float64))
    shift_D, scale_D = mean_D.astype(np.float32), deviation_D.astype(np.float32)

    def part(positions: Index) -> Part:
        rows = order_N[positions]
        features = block.features[rows]
        with np.errstate(over="ignore", invalid="ignore"):  # a row may hold any number; what noise must hide is clipped
            features -= shift_D
            features /= scale_D
        labels = None if own_labels is None else own_labels[rows]
        if labels is not None and task == "regression":
            labels = ((labels - label_mean) / label_deviation).astype(np.float32)
        return Part(features=features, labels=labels)

    return PreparedBlock(
        train=part(parts.train),
        validation=part(parts.validation),
        test=part(parts.test),
        feature_names=block.feature_names,
        mean=shift_D,
        deviation=scale_D,
        label_mean=label_mean,
        label_deviation=label_deviation,
        class_names=block.class_names,
    )


def standardise_like(
    block: PartyBlock, feature_names: tuple[str, ...], mean_D: Float32, deviation_D: Float32
) -> Float32:
    """Bring rows that were loaded after training into the columns and the scale that the model was trained on.

    A category that does not occur in the new rows is a column of zeros.

    Raises:
        BadInput: a numeric column is absent, or the new rows have columns or categories that training did not see.
    """
    where = {name: index for index, name in enumerate(block.feature_names)}
    unknown = [name for name in block.feature_names if name not in feature_names]
    if unknown:
        raise BadInput(f"{block.origin}: {unknown[0]!r} is no column or category that the model was trained on")
    categorical = {name.partition("=")[0] for name in block.feature_names if "=" in name}
    made = np.zeros((len(block.features), len(feature_names)), np.float32)
    for index, name in enumerate(feature_names):
        if name in where:
            made[:, index] = block.features[:, where[name]]
        elif name.partition("=")[0] not in categorical:
            raise BadInput(f"{block.origin}: column {name!r}, which the model was trained on, is absent")
    made -= mean_D
    made /= deviation_D
    return made
