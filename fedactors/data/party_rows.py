"""What one party holds after loading: its rows, checked, brought into the aligned order, split and standardised.

`SparseRows` keep only what is not zero, for categories of many values; they stand where a dense array of rows (n, D)
does in products: ``x @ theta``, ``x.T @ dh``, ``x[rows]``.

Shapes: N rows, D columns after one-hot encoding.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment.ids import Alignment
from fedactors.data.columns import SEVERAL, FittedColumn, Id, Preprocessing, kind_of, tell_unlike, without_values
from fedactors.data.values import CsvFormat, IdRule, blocks_of, hold_unseen, taken
from fedactors.errors import BadInput
from fedactors.learning.metrics import IGNORED, Task

Float32 = NDArray[np.float32]
Index = NDArray[np.int64]
PARTS = ("train", "validation", "test")
NO_PART = len(PARTS)
"""The number of no part: of nodes of a graph that are there without being trained or measured on."""
SplitKind = Literal["random", "stratified"]


@dataclass(frozen=True, kw_only=True)
class PartyBlock:
    """One party's rows as it holds them, categorical columns one-hot encoded, nothing standardised."""

    origin: str
    """Where it came from, for error messages: a file, or a data set's name."""
    ids: NDArray[Any]
    """One id per row: whole numbers or text."""
    features: Float32
    feature_names: tuple[str, ...]
    keeps_scale: NDArray[np.bool_]
    """Which columns are never standardised: the zero-one columns of categories, and those that a rule says so of."""
    labels: NDArray[Any] | None = None
    """int64 classes, float32 targets, or None for a party that has no labels."""
    class_names: tuple[str, ...] = ()
    weights: Float32 | None = None
    """How much each row counts in the loss, at the party with the labels; None: all alike."""
    columns: tuple[FittedColumn, ...] = ()
    """What the numbers were made of; those to be filled are NaN."""
    csv: CsvFormat | None = None
    """How their file is written, where the description says so."""
    id_column: Id = None
    """The column of the ids; None: rows are called by their numbers."""
    id_rules: tuple[IdRule, ...] = ()
    """What does not count in ids."""
    alignment: Alignment | None = None
    """How they find the other parties' rows; None: nobody has said."""
    parts: NDArray[np.uint8] | None = None
    """For each row the index in `PARTS` that a column of the label party's file says."""
    groups: NDArray[np.integer[Any]] | None = None
    """At the label party: rows of one number are in one part of the split, as they are one row of its table."""
    num_table_rows: int | None = None
    """Of joined rows, how many of the table stand in them, which the mapper says; None: at least half of it."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Ids of rows that are left out of training, and why."""
    unusable: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Of rows to predict, those that cannot be used, and why."""
    keys: NDArray[Any] | None = None
    """Of rows to predict, what they are aligned by in place of ids that are no single row's; None: their ids."""

    @property
    def aligned_by(self) -> NDArray[Any]:
        """What rows find those of other parties by (N)."""
        return self.ids if self.keys is None else self.keys

    @property
    def moved(self) -> str:
        """The first column whose numbers are counted from what was measured on all rows; empty: there is none."""
        return next((one.name for one in self.columns if one.origin), "")

    @property
    def fills(self) -> tuple[str, ...]:
        """For each column what is measured to stand for missing numbers: mean, median, or nothing."""
        return tuple(how for one in self.columns for how in one.fills) or ("",) * len(self.feature_names)

    def without(self, rejected: Mapping[int, str]) -> PartyBlock:
        """Return the other rows, with the ids and reasons of these."""
        if not rejected:
            return self
        kept = np.setdiff1d(np.arange(len(self.ids)), list(rejected))
        gone = tuple((str(self.ids[row]), reason) for row, reason in sorted(rejected.items()))
        return dataclasses.replace(
            self,
            ids=self.ids[kept],
            features=taken(self.features, kept),
            labels=None if self.labels is None else self.labels[kept],
            weights=None if self.weights is None else self.weights[kept],
            parts=None if self.parts is None else self.parts[kept],
            rejected=(*self.rejected, *gone),
        )


@dataclass(frozen=True)
class Split:
    """Positions in the aligned order: the same at every party, because all of them draw it from one seed."""

    train: Index
    validation: Index
    test: Index

    @property
    def numbers(self) -> NDArray[np.uint8]:
        """The index in `PARTS` of each position."""
        made = np.zeros(len(self.train) + len(self.validation) + len(self.test), np.uint8)
        made[self.validation], made[self.test] = PARTS.index("validation"), PARTS.index("test")
        return made


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one part of a split: features, and labels and weights at the party that has them."""

    features: Float32
    labels: NDArray[Any] | None
    weights: Float32 | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedBlock:
    """One party's rows in the aligned order, split, standardised by the training part alone."""

    train: Part
    validation: Part
    test: Part
    preprocessing: Preprocessing
    label_mean: float
    """Mean of the training targets of a regression, which are standardised too; 0 for classes."""
    label_deviation: float
    """A root mean squared error in original units is this times the one on standardised targets; 1 for classes."""
    class_names: tuple[str, ...] = ()

    @property
    def num_features(self) -> int:
        """Columns after one-hot encoding."""
        return len(self.preprocessing.feature_names)

    @property
    def scale(self) -> dict[str, Any]:
        """What predictions on new rows need, as plain values for a snapshot."""
        return {
            "preprocessing": self.preprocessing.text,
            "label_mean": self.label_mean,
            "label_deviation": self.label_deviation,
            "class_names": list(self.class_names),
        }


def one_hot(
    features_NF: Float32, columns: tuple[str, ...], categories: Mapping[str, tuple[str, ...]]
) -> tuple[Float32, tuple[str, ...], NDArray[np.bool_]]:
    """Replace each column of codes by one zero-one column per category (``column=text``), numeric columns in place."""
    if not any(column in categories for column in columns):
        return features_NF, columns, np.zeros(len(columns), np.bool_)
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


def class_weighted(
    weights_N: Float32 | None, labels_N: NDArray[Any], class_names: Sequence[str], class_weights: Mapping[str, float]
) -> Float32 | None:
    """Return rows' weights times those of their classes; a class that has none counts 1, None stays None without any.

    Args:
        weights_N: of the rows; None: 1 each.
        labels_N: numbers of classes.
        class_names: by number.
        class_weights: by name.
    """
    if not class_weights:
        return weights_N
    by_class: Float32 = np.asarray([class_weights.get(name, 1.0) for name in class_names], np.float32)[labels_N]
    return by_class if weights_N is None else weights_N * by_class


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
        lost = Counter(reason for _, reason in block.rejected).most_common(1)
        why = f"; all are left out, {lost[0][1]} of them for {lost[0][0]!r}" if lost else ""
        raise BadInput(f"{where}: no rows{why}")
    check_ids(block.ids, where)
    bad: dict[str, tuple[int, str]] = {}
    counts_D, first_D = _unusable_values(block.features, np.asarray([bool(how) for how in block.fills]))
    for column in np.flatnonzero(counts_D):
        first = "" if block.rejected else f"row {first_D[column] + 1}"  # its number in the file, if none is gone
        bad[block.feature_names[column]] = (int(counts_D[column]), first)
    if bad:
        raise BadInput(f"{where}: {without_values(bad, 'NaN, missing or infinite')}")
    if block.labels is not None:
        check_labels(block.labels, where, task, num_classes)


def _unusable_values(features_ND: Float32, may_miss_D: NDArray[np.bool_]) -> tuple[Index, Index]:
    """Return how many values of each column are infinite, or missing where they may not be, and the first one's row."""
    counts_D, first_D = np.zeros((2, features_ND.shape[1]), np.int64)
    for rows in blocks_of(len(features_ND), features_ND.strides[0]):
        bad_BD = ~np.isfinite(features_ND[rows])
        if not bad_BD.any():
            continue
        bad_BD &= ~(may_miss_D & np.isnan(features_ND[rows]))
        new_D = bad_BD.any(0) & (counts_D == 0)
        first_D[new_D] = rows.start + bad_BD.argmax(0)[new_D]
        counts_D += bad_BD.sum(0)
    return counts_D, first_D


def refuse_moved(block: PartyBlock, where: str, why: str) -> None:
    """Refuse numbers that single precision merges where nothing may be measured on the rows.

    Raises:
        BadInput: naming the column and what to do.
    """
    if block.moved:
        raise BadInput(
            f"{where}: column {block.moved}: single precision cannot tell its numbers apart, and {why}; give a public "
            f'range under columns: {block.moved} = {{ scaling = "range", range = [LOWEST, LARGEST] }}'
        )


def check_ids(ids_N: NDArray[Any], where: str) -> None:
    """Raise `BadInput`, naming the first duplicate, unless all ids differ."""
    values, counts = np.unique(ids_N, return_counts=True)
    if len(values) < len(ids_N):
        first = values[counts > 1][0]
        raise BadInput(
            f"{where}: {int((counts > 1).sum())} ids occur more than once, the first is {first!s}; keep one "
            'row of each, or say duplicates = "first", or "drop" for none of them'
        )


def with_clear_ids(block: PartyBlock, alignment: Alignment) -> PartyBlock:
    """Return rows to predict of which those cannot be used that have no id, or one that another row has too.

    An id that holds what nobody sees is none. Where rows find each other by their ids, such a row (of several the first
    apart) has a key that nobody else has.
    """
    if block.id_column is None:
        return block
    _, first, index_N, counts = np.unique(block.ids, return_index=True, return_inverse=True, return_counts=True)
    empty_N = block.ids == ""
    several = np.flatnonzero((counts[index_N] > 1) & ~empty_N).tolist()
    keys = block.ids
    if alignment != "already-aligned":
        apart_N = empty_N | hold_unseen(block.ids) | (first[index_N] != np.arange(len(block.ids)))
        keys = keys.astype(object)
        keys[apart_N] = [f"\0{secrets.token_hex(16)}" for _ in range(int(apart_N.sum()))]
    unusable = {**block.unusable, **dict.fromkeys(several, SEVERAL)}
    return dataclasses.replace(block, keys=keys.astype(np.str_), unusable=unusable)


def check_usable(block: PartyBlock, where: str) -> None:
    """Refuse rows to predict none of which can be used.

    Raises:
        BadInput: naming the most common kind of reason, with the first.
    """
    if not len(block.ids):
        raise BadInput(f"{where}: no rows")
    if len(block.unusable) < len(block.ids):
        return
    kinds = Counter(map(kind_of, block.unusable.values()))
    kind, count = kinds.most_common(1)[0]
    reason = next(one for one in block.unusable.values() if kind_of(one) == kind)
    raise BadInput(f"{where}: none of {len(block.ids)} rows can be predicted, {count} of them for such as: {reason}")


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


def checked_targets(
    labels: tuple[str, ...] | NDArray[Any], where: str, task: Task, shape: tuple[int, ...], num_classes: int
) -> NDArray[Any]:
    """Return targets that are an array each: numbers, 0 or 1 of each label, or a class of each token.

    Raises:
        BadInput: they are of another shape, or no such values.
    """
    if isinstance(labels, tuple) or labels.dtype.kind not in "buif":
        raise BadInput(f"{where}: labels: {task} needs numbers, in an .npz file or columns of a table")
    if labels.shape[1:] != shape:
        raise BadInput(
            f"{where}: labels of shape {list(labels.shape[1:])} are not allowed: targets are of shape {list(shape)}"
        )
    if not np.isfinite(labels.astype(np.float64)).all():
        raise BadInput(f"{where}: label: {int((~np.isfinite(labels)).sum())} values are missing, NaN or infinite")
    if task == "regression":
        check_labels(labels, where, task, 1)
        if np.isinf(made := labels.astype(np.float32)).any():
            raise BadInput(f"{where}: label: values are too large for single precision")
        return made
    if task == "multilabel":
        wrong = labels[(labels != 0) & (labels != 1)]
        allowed = "0 or 1 of each label"
    else:
        wrong = labels[((labels < 0) | (labels >= num_classes) | (labels % 1 != 0)) & (labels != IGNORED)]
        allowed = f"0 to {num_classes - 1}, or {IGNORED} of tokens that do not count"
    if wrong.size:
        raise BadInput(f"{where}: label: {wrong[0]} is not allowed: {allowed}")
    if task == "tokens" and (labels == IGNORED).all():
        raise BadInput(f"{where}: label: no token counts: all are {IGNORED}")
    return labels.astype(np.float32 if task == "multilabel" else np.int64)


def split(
    num_rows: int,
    *,
    seed: int,
    test_fraction: float = 0.3,
    validation_fraction: float = 0.1,
    parts_N: NDArray[np.uint8] | None = None,
) -> Split:
    """Draw the split of `num_rows` aligned rows; `validation_fraction` is a share of what is not test.

    Args:
        num_rows: of all parts.
        seed: shared by all parties.
        test_fraction: of the rows.
        validation_fraction: of the others.
        parts_N: for each row its index in `PARTS` as it was announced (`draw_parts`); nothing is drawn then.

    Raises:
        BadInput: a part would be empty (validation only when its share is above 0).
    """
    if parts_N is not None and len(parts_N):
        if len(parts_N) != num_rows:
            raise BadInput(f"data: parts of {len(parts_N)} rows were announced for {num_rows} aligned ones")
        made = Split(*(np.flatnonzero(parts_N == part) for part in range(len(PARTS))))
        for name in PARTS:
            if not len(getattr(made, name)) and (name != "validation" or validation_fraction > 0):
                raise BadInput(f"data: of {num_rows} aligned rows none is in the {name} part of the split")
        return made
    num_test = round(num_rows * test_fraction)
    num_validation = round((num_rows - num_test) * validation_fraction)
    num_train = num_rows - num_test - num_validation
    if num_train < 1 or num_test < 1 or (validation_fraction > 0 and num_validation < 1):
        raise BadInput(
            f"data: {num_rows} aligned rows cannot be split with test_fraction={test_fraction:g} and "
            f"validation_fraction={validation_fraction:g} of the rest: a part would have no row"
        )
    order = np.random.default_rng([seed, 7]).permutation(num_rows)
    return Split(order[num_test + num_validation :], order[num_test : num_test + num_validation], order[:num_test])


def draw_parts(
    block: PartyBlock, order_N: Index, how: SplitKind, *, seed: int, test_fraction: float, validation_fraction: float
) -> NDArray[np.uint8]:
    """Return the part of each aligned row that the label party announces; none where all draw it from their seed.

    Args:
        block: the label party's rows; a column of its file that tells the parts has precedence.
        order_N: for each aligned position the party's own row.
        how: "random": nothing is announced; "stratified": each class has its share of every part.
        seed: of the drawing.
        test_fraction: of each class.
        validation_fraction: of the others of each class.
    """
    if block.parts is not None:
        return block.parts[order_N]
    if block.groups is not None:
        found, member_N = np.unique(block.groups[order_N], return_inverse=True)
        drawn = split(len(found), seed=seed, test_fraction=test_fraction, validation_fraction=validation_fraction)
        return drawn.numbers[member_N]
    if how == "random" or block.labels is None:
        return np.zeros(0, np.uint8)
    made = np.zeros(len(order_N), np.uint8)
    rng = np.random.default_rng([seed, 8])
    labels_N = block.labels[order_N]
    for label in np.unique(labels_N):
        rows = rng.permutation(np.flatnonzero(labels_N == label))
        num_test = round(len(rows) * test_fraction)
        num_validation = round((len(rows) - num_test) * validation_fraction)
        made[rows[:num_test]] = PARTS.index("test")
        made[rows[num_test : num_test + num_validation]] = PARTS.index("validation")
    return made


Scale = tuple[NDArray[Any], NDArray[Any]]
"""What is taken off each column, and what it is divided by."""


def measured_fill(features_ND: Float32, fills: Sequence[str], rows_n: Index | None = None) -> Float32:
    """Return for each column what stands for its missing numbers; 0 where nothing is, or none of these rows has any.

    Args:
        features_ND: of all rows.
        fills: of each column, mean, median or nothing.
        rows_n: the rows that are measured; None: all.
    """
    made = np.zeros(features_ND.shape[1], features_ND.dtype)
    for column, how in enumerate(fills):
        if not how:
            continue
        values = features_ND[:, column] if rows_n is None else features_ND[rows_n, column]
        present = values[~np.isnan(values)]
        if len(present):
            made[column] = (np.mean if how == "mean" else np.median)(np.asarray(present, np.float64))
    return made


def measured_scale(
    features_ND: Float32, keeps_scale: NDArray[np.bool_], fill_D: NDArray[Any], rows_n: Index | None = None
) -> Scale:
    """Return mean and deviation of each column; columns that keep their scale stay as they are.

    Args:
        features_ND: of all rows.
        keeps_scale: of which columns.
        fill_D: what stands for missing numbers.
        rows_n: the rows that are measured, in this order; None: all.
    """
    count = len(features_ND) if rows_n is None else len(rows_n)

    def filled(rows: slice) -> NDArray[Any]:
        chosen = features_ND[rows] if rows_n is None else features_ND[rows_n[rows]]
        return np.where(np.isnan(chosen), fill_D, chosen)

    if features_ND.shape[1] == 1:  # numpy adds a single column in pairs, and several row by row
        whole_N1 = filled(slice(0, count))
        mean_D, deviation_D = whole_N1.mean(axis=0, dtype=np.float64), whole_N1.std(axis=0, dtype=np.float64)
    else:
        blocks = list(blocks_of(count, features_ND.shape[1] * 8))
        mean_D = _summed(map(filled, blocks)) / count
        squares_D = _summed(np.square(filled(rows) - mean_D) for rows in blocks)
        deviation_D = np.sqrt(squares_D / count)
    mean_D, deviation_D = np.where(keeps_scale, 0.0, mean_D), np.where(keeps_scale, 1.0, deviation_D)
    # A column that is constant over the training part tells nothing: it becomes 0 there, and stays bounded elsewhere.
    return mean_D, np.where(deviation_D > 1e-7 * np.maximum(1.0, np.abs(mean_D)), deviation_D, 1.0)


def _summed(blocks: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the sums of columns, row by row: to the bit what numpy's sum of all blocks together is."""
    total_D: NDArray[np.float64] | None = None
    for rows_BD in blocks:
        if total_D is not None:
            rows_BD = np.concatenate([total_D[None], rows_BD])  # which begins with what there is, and is double
        total_D = np.add.reduce(rows_BD, axis=0, dtype=np.float64)
    assert total_D is not None
    return total_D


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
    local_labels = block.labels if labels_N is None else labels_N
    train_rows = order_N[parts.train]
    fill_D = measured_fill(block.features, block.fills, train_rows)
    if scale is None:
        scale = measured_scale(block.features, block.keeps_scale, fill_D, train_rows)
    mean_D, deviation_D = scale
    preprocessing = Preprocessing(
        columns=block.columns,
        feature_names=block.feature_names,
        fill=fill_D,
        mean=mean_D.astype(np.float32),
        deviation=deviation_D.astype(np.float32),
        csv=block.csv,
        id_column=block.id_column,
        id_rules=block.id_rules,
        alignment=block.alignment,
    )
    label_mean, label_deviation = 0.0, 1.0
    if local_labels is not None:
        train_labels = local_labels[train_rows]
        if train_labels.min() == train_labels.max():
            raise BadInput(f"{block.origin}: label: the training part has the single label {train_labels[0]}")
        if task == "regression":
            label_mean = float(train_labels.mean(dtype=np.float64))
            label_deviation = float(train_labels.std(dtype=np.float64))

    def part(positions: Index) -> Part:
        rows = order_N[positions]
        features = preprocessing.finished(block.features, rows)
        labels = None if local_labels is None else local_labels[rows]
        if labels is not None and task == "regression":
            labels = ((labels - label_mean) / label_deviation).astype(np.float32)
        return Part(features=features, labels=labels, weights=None if block.weights is None else block.weights[rows])

    return PreparedBlock(
        train=part(parts.train),
        validation=part(parts.validation),
        test=part(parts.test),
        preprocessing=preprocessing,
        label_mean=label_mean,
        label_deviation=label_deviation,
        class_names=block.class_names,
    )


_MOST_COMPARED = 1 << 16
"""Rows to predict whose means are compared with training's."""


def prepare_like(block: PartyBlock, trained: Preprocessing) -> Float32:
    """Return rows that were loaded after training as the model sees them (N, D).

    Raises:
        BadInput: they have other columns than those that the model was trained on.
    """
    if block.feature_names != trained.feature_names:
        others = [name for name in block.feature_names if name not in trained.feature_names]
        lacking = [name for name in trained.feature_names if name not in block.feature_names]
        raise BadInput(
            f"{block.origin}: the columns are not those that the model was trained on "
            f"({', '.join([*(f'{n!r} is unknown' for n in others[:3]), *(f'{n!r} is absent' for n in lacking[:3])])})"
        )
    made = trained.finished(block.features, np.arange(len(block.features)))
    usable = np.setdiff1d(np.arange(min(len(made), _MOST_COMPARED)), list(block.unusable))
    measured = np.flatnonzero((trained.mean != 0) | (trained.deviation != 1))
    names = [trained.feature_names[number] for number in measured]
    rows = block.features[usable][:, measured]
    tell_unlike(names, np.stack([trained.mean, trained.deviation])[:, measured], rows, block.origin)
    made[list(block.unusable)] = 0
    return made


Array = NDArray[np.float64]


class SparseRows:
    """Rows as a sparse matrix.

    Args:
        rows: in compressed rows, float64 (n, D).
    """

    def __init__(self, rows: Any) -> None:
        import scipy.sparse  # a site that waits needs none of its 75 modules

        self._rows = scipy.sparse.csr_array(rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self._rows.shape[0]), int(self._rows.shape[1])

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self.shape[0]

    def __getitem__(self, rows: Any) -> SparseRows:
        """Return the rows chosen by numbers, a mask or a slice."""
        return SparseRows(self._rows[rows])

    def __matmul__(self, theta_DC: Array) -> Array:
        """Return x theta (n, C)."""
        return np.asarray(self._rows @ theta_DC, dtype=np.float64)

    @property
    def T(self) -> Columns:  # noqa: N802  (as numpy calls it)
        """The transpose, to be multiplied from the left."""
        return Columns(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return int(self._rows.data.nbytes + self._rows.indices.nbytes + self._rows.indptr.nbytes)

    def gram(self, weights_n: Array) -> Array:
        """Return x^T diag(weights) x, dense (D, D)."""
        scaled = self._rows.multiply(weights_n[:, None]).tocsr()
        return np.asarray((scaled.T @ self._rows).toarray(), dtype=np.float64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the dense rows."""
        made: Array = self._rows.toarray()
        return made if dtype is None else made.astype(dtype)


class Columns:
    """The transpose of `CodedRows`."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __matmul__(self, values_nC: Array) -> Array:
        """Return x^T values (D, C)."""
        return np.asarray(self._rows.T @ values_nC, dtype=np.float64)
