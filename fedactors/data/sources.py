"""Where a party's rows come from: small frozen values that an actor is built with and that it loads inside itself."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedactors.data.columns import (
    NO_ID,
    NUMBERS,
    UNSEEN_ID,
    ColumnRule,
    FittedColumn,
    Id,
    encode,
    fit,
    merges_in_single,
    refuse_merged,
    resolve_rules,
    told_apart,
)
from fedactors.data.databases import TableSource
from fedactors.data.datasets.catalogue import describe
from fedactors.data.datasets.load import load_tabular
from fedactors.data.partitioners import ColumnPartitioner, Partitions, VerticalEvenPartitioner
from fedactors.data.party_rows import NO_PART, PARTS, PartyBlock, class_weighted, one_hot
from fedactors.data.readers import is_csv, list_of, named_columns, names_of_columns, read_columns, with_lists
from fedactors.data.values import (
    Column,
    CsvFormat,
    IdRule,
    class_text,
    hold_unseen,
    listed_as_missing,
    moment_texts,
    row_name_array,
)
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task
from fedactors.messages.codec import wire_type
from fedactors.runtime.snapshots import is_object
from fedactors.validation import files_at, is_in_library, opened

_LESS = "take off what all of them have in common"


@wire_type
class NamedSource:
    """Columns of a named data set: partition `index` of `partitioner`; row numbers are the ids."""

    dataset: str
    partitioner: ColumnPartitioner
    index: int
    has_labels: bool
    overlap: float = 1.0
    """Share of the rows that this party holds, drawn by `order_seed`: below 1 the parties' rows differ."""
    order_seed: int | None = None
    """When given, the party holds its rows in an order of its own, so that alignment has something to do."""

    def load(self, trained: Sequence[FittedColumn] | None = None) -> PartyBlock:
        """Load this party's columns.

        Raises:
            BadInput: unknown data set or partition, or a damaged file.
            DataMissing: a file is not on this machine.
        """
        columns = _columns(self.dataset, self.partitioner).load_partition(self.index)
        found = load_tabular(self.dataset, [int(column) for column in columns])
        fitted = tuple(_named_column(column, found.categories) for column in found.columns)
        features, names, flags = one_hot(found.features, found.columns, found.categories)
        ids = np.arange(len(features))
        labels = found.labels if self.has_labels else None
        if self.overlap < 1 or self.order_seed is not None:
            ids = np.random.default_rng([self.order_seed or 0, self.index]).permutation(len(features))
            ids = ids[: max(1, round(len(ids) * self.overlap))]
            if self.order_seed is None:
                ids = np.sort(ids)
            features = features[ids]
            labels = None if labels is None else labels[ids]
        return PartyBlock(
            origin=self.dataset,
            ids=ids,
            features=features,
            feature_names=names,
            keeps_scale=flags,
            labels=labels,
            columns=fitted,
        )


def _named_column(name: str, categories: Mapping[str, tuple[str, ...]]) -> FittedColumn:
    if name not in categories:
        return FittedColumn(name=name, rule=ColumnRule())
    return FittedColumn(name=name, rule=ColumnRule(type="categorical"), categories=categories[name])


@functools.lru_cache(maxsize=16)
def _columns(dataset: str, partitioner: ColumnPartitioner) -> Partitions:
    described = describe(dataset)
    if described.kind not in ("tabular", "images"):
        raise BadInput(f"data: {dataset} is of kind {described.kind}; columns of a table are needed here")
    return partitioner.over(described.columns)


Duplicates = Literal["refuse", "first", "drop"]
"""What becomes of rows of one id: the file is refused, the first row that can be used is kept, or none is."""
DOUBLED = "another row has its id"


@wire_type
class FileSource:
    """One party's file: CSV, Parquet or npy, read where the party runs."""

    party: str
    path: str
    """An absolute path; a npy file holds a structured array, or a matrix whose columns are called c0, c1, ..."""
    task: Task
    num_classes: int
    """0: as many as the file has, because no single file need hold every class."""
    view: TableSource | None = None
    """What the rows are of the party's own tables; None: those of the file."""
    id_column: Id = None
    """None: rows are already aligned, and their numbers are their ids."""
    id_rules: tuple[IdRule, ...] = ()
    """What does not count in ids; see `row_names`."""
    features: tuple[str, ...] | None = None
    """None means every column that is neither id nor label."""
    label: str | None = None
    targets: tuple[str, ...] = ()
    """Columns of a target that has several values, or one of lists; then `label` is None."""
    needs_label: bool = True
    """Whether the label must be there: not in rows to predict."""
    categorical: tuple[str, ...] = ()
    """Columns of categories that `rules` says nothing of."""
    rules: tuple[tuple[str, ColumnRule], ...] = ()
    """By column, or by a pattern of names; a column without a rule is of numbers. The label may have one too."""
    csv: CsvFormat | None = None
    """How a CSV file is written; None: as usual, and rows to predict as those were that were trained on."""
    positive: str | None = None
    """The class that is numbered 1; None: the last in the order of numbers or letters."""
    classes: tuple[str, ...] = ()
    """The labels in the order in which they are numbered; none: the order of numbers or letters."""
    split_column: str | None = None
    """At the party with the labels: which rows are train, validation and test."""
    weight: str | None = None
    """At the party with the labels: the column that says how much each row counts in the loss."""
    class_weights: tuple[tuple[str, float], ...] = ()
    """At the party with the labels: how much rows of a class count; others count 1."""
    duplicates: Duplicates = "refuse"
    """What becomes of rows to train on that have one id."""
    unlabelled: Literal["refuse", "drop", "keep"] = "refuse"
    """What becomes of rows to train on that have no label: kept ones have the label -1, and may be in no part."""

    @property
    def user_files(self) -> tuple[str, ...]:
        """The files that it reads; databases are none."""
        if self.view is None:
            return () if is_in_library(self.path) else (self.path,)
        return tuple(one.where for one in self.view.tables if not one.is_of_rows)

    @property
    def user_tables(self) -> tuple[TableSource, ...]:
        """The tables of databases, and the data sets of libraries, that it reads."""
        if self.view is None:
            return (TableSource(kind="library", where=self.path),) if is_in_library(self.path) else ()
        return tuple(one for one in self.view.tables if one.is_of_rows)

    @property
    def where(self) -> str:
        """Party and file, for errors."""
        return f"{self.party}: {self.path}"

    @property
    def is_labelled(self) -> bool:
        """Whether a column, or several, have labels."""
        return self.label is not None or bool(self.targets)

    @property
    def id_columns(self) -> tuple[str, ...]:
        """The columns that make an id together."""
        return (self.id_column,) if isinstance(self.id_column, str) else self.id_column or ()

    @property
    def _roles(self) -> dict[str, str]:
        """What the columns that are no features are: ids, and what only training reads."""
        others = {"label": self.label, "split": self.split_column, "weight": self.weight}
        of_rows = dict.fromkeys(self.id_columns, "id") | dict.fromkeys(self.targets, "label")
        return {one: role for role, one in others.items() if one is not None} | of_rows

    @property
    def weighted_by(self) -> str:
        """What says that rows do not count alike, as it stands in the description; empty: nothing does."""
        if self.weight is not None:
            return f"parties.{self.party}.weight: {self.weight!r}"
        return f"task.class_weights: {dict(self.class_weights)}" if self.class_weights else ""

    def load(self, trained: Sequence[FittedColumn] | None = None, *, table: Any = None) -> PartyBlock:
        """Read the file.

        Args:
            trained: rows to predict: the columns as training saw them; no label is read. None: rows to train on.
            table: the library's data set that the path names, where it was loaded before.

        Raises:
            BadInput: the file cannot be read, a column is absent, text stands where numbers must, or ids are missing.
        """
        columns = self.read(trained, table=table)
        if trained is None:
            self._refuse_empty(columns)
            self._refuse_index(columns)
        return self.block_of(columns, trained)

    def read(self, trained: Sequence[FittedColumn] | None = None, *, table: Any = None) -> dict[str, Column]:
        """Read the columns that are there; what their values mean is looked at by `block_of`.

        Raises:
            BadInput: the file cannot be read.
        """
        self._check_roles()
        wanted = self.features if trained is None else tuple(one.name for one in trained)
        others = self._roles if trained is None and self.needs_label else self.id_columns
        asked = None if wanted is None else [*others, *wanted]
        whole = set(self._roles) - set(self.targets)
        is_new = trained is not None and self.features is None
        if self.view is not None:
            found, chosen = self.view.load(), with_lists(asked)
            arrays = {n: found.column(n) for n in found.column_names if chosen is None or n in chosen}
            return named_columns(arrays, found.column_names, self.where, asked, whole=whole, is_complete=is_new)
        columns = read_columns(
            Path(self.path), self.party, wanted=asked, csv=self.csv, whole=whole, is_complete=is_new, table=table
        )
        index = () if wanted is not None else pandas_index(Path(self.path))
        return {name: column for name, column in columns.items() if name not in index or name in self._roles}

    def names_of_features(self, table: Mapping[str, Column]) -> tuple[str, ...]:
        """Return the columns to learn from."""
        return self._remaining(tuple(table)) if self.features is None else spread(self.features, table)

    def rules_of(self, names: Sequence[str]) -> dict[str, ColumnRule]:
        """Return the rules of those of these columns that have one."""
        return self._rules_of(names)

    def ids_of(self, table: Mapping[str, Column]) -> list[str]:
        """Return what each row is called by; empty: it has no id."""
        names_N: NDArray[Any] = np.arange(len(next(iter(table.values()))))
        if self.id_columns:
            names_N = row_name_array([table[name] for name in self.id_columns], self.id_rules, self.where)
        ids: list[str] = names_N.tolist()
        return ids

    def _refuse_index(self, table: Mapping[str, Column]) -> None:
        """Refuse the index of a data frame among features that nobody listed: it tells how rows were sorted."""
        for name in self._remaining(tuple(table)) if self.features is None else ():
            if is_pandas_index(name):
                raise BadInput(
                    f"{self.where}: column {name}: is called as pandas calls an index, which counts rows; list the "
                    "other columns under features, or write the file with index=False"
                )

    def _refuse_empty(self, table: Mapping[str, Column]) -> None:
        """Refuse rows to train on in which a feature has no value at all, unless a constant stands for them."""
        names = self.names_of_features(table)
        rules = self._rules_of(names)
        for name in names:
            if not name.strip():
                number = list(table).index(name) + 1
                raise BadInput(
                    f"{self.where}: column {number} has no name; name it, or list the columns to learn from "
                    "under features"
                )
            has_placeholder = rules.get(name, NUMBERS).missing == "constant"
            if (
                name in table
                and len(table[name])
                and not has_placeholder
                and table[name].num_missing == len(table[name])
            ):
                raise BadInput(
                    f"{self.where}: column {name}: no row has a value; list the other columns under features"
                )

    def block_of(self, table: Mapping[str, Column], trained: Sequence[FittedColumn] | None = None) -> PartyBlock:
        """Return rows that were read, by column; see `load`."""
        where = self.where
        wanted = self.features if trained is None else tuple(one.name for one in trained)
        is_training = trained is None and self.needs_label
        self._check_columns(table, wanted or (), is_training)
        names = wanted if trained is not None and wanted is not None else self.names_of_features(table)
        if (of_lists := next((name for name in names if name not in table), None)) is not None:
            raise BadInput(f"{where}: column {of_lists}: holds lists, and in training it held one value in each row")
        self._check_rules(names if trained is None else ())
        columns = {name: table[name] for name in names}
        num_rows = len(next(iter(table.values())))
        if not num_rows:
            raise BadInput(f"{where}: no rows")
        fitted = fit(columns, self._rules_of(names), where) if trained is None else tuple(trained)
        encoded = encode(columns, fitted, where, new=trained is not None)
        unlabelled = self._unlabelled(table) if is_training else ()
        labels, class_names = self._labels(table, unlabelled) if is_training else (None, ())
        ids, without_id = self._ids(table, num_rows, new=trained is not None)
        block = PartyBlock(
            origin=self.path,
            ids=ids,
            id_column=self.id_column,
            id_rules=self.id_rules,
            features=encoded.features if names else np.zeros((num_rows, 0), np.float32),
            feature_names=tuple(name for one in fitted for name in one.names),
            keeps_scale=np.asarray([kept for one in fitted for kept in one.keeps_scale], np.bool_),
            labels=labels,
            class_names=class_names,
            weights=None if labels is None else self._weights(table, labels, class_names),
            columns=fitted,
            csv=self.csv,
            parts=None if self.split_column is None or not is_training else self._parts(table[self.split_column]),
        )
        if trained is not None:
            return dataclasses.replace(block, unusable=encoded.rejected | without_id)
        gone = () if self.unlabelled == "keep" else unlabelled
        rejected = {**encoded.rejected, **dict.fromkeys(gone, "no label")}
        return block.without({**rejected, **self._doubled(ids, rejected)})

    def _doubled(self, ids_N: NDArray[Any], rejected: Mapping[int, str]) -> dict[int, str]:
        """Return the rows that are left out because another one has their id."""
        if self.duplicates == "refuse" or not self.id_columns:
            return {}
        usable = np.setdiff1d(np.arange(len(ids_N)), list(rejected))
        _, number_N, counts = np.unique(ids_N, return_inverse=True, return_counts=True)
        if self.duplicates == "drop":
            return dict.fromkeys(usable[counts[number_N[usable]] > 1].tolist(), DOUBLED)
        first = np.unique(number_N[usable], return_index=True)[1]
        return dict.fromkeys(np.delete(usable, first).tolist(), DOUBLED)

    def _rules_of(self, names: Sequence[str]) -> dict[str, ColumnRule]:
        return resolve_rules(self.rules, names, self.categorical)

    def _check_roles(self) -> None:
        if self.features == ():
            raise BadInput(f"{self.where}: no feature column: every party needs at least one")
        if self.label is not None and self.label in self.id_columns:
            raise BadInput(f"{self.party}: label: {self.label!r} is the id column too")
        for column in self.features or ():
            if column in self._roles:
                raise BadInput(
                    f"{self.party}: features: {column!r} is the label or the id (or tells split or weight), and may "
                    "not be a feature"
                )

    def _check_rules(self, names: Sequence[str]) -> None:
        ruled = [("categorical", name) for name in self.categorical] + [("columns", name) for name, _ in self.rules]
        known = set(names)
        for kind, column in ruled if names else ():
            if column not in known and not ("*" in column and self._rules_like(column, names)):
                if kind == "columns" and column == self.label:
                    continue
                columns = [name for name in names if list_of(name) == column]
                of_lists = columns and (
                    f": its lists have {len(columns)} places, and each is a feature, such as {columns[0]}; "
                    f'under columns "{column}.*" is a rule of all of them'
                )
                raise BadInput(f"{self.party}: {kind}: {column!r} is not among the features{of_lists or ''}")

    def _rules_like(self, pattern: str, names: Sequence[str]) -> dict[str, ColumnRule]:
        return resolve_rules([(pattern, ColumnRule())], names)

    def _remaining(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        others = set(self._roles)
        lists = others - set(columns)  # which are spread; beside a column y, y.1 is one of its own
        return tuple(column for column in columns if column not in others and list_of(column) not in lists)

    def _check_columns(self, table: Mapping[str, Column], features: Sequence[str], is_training: bool) -> None:
        roles = [(role, column) for column, role in self._roles.items()]
        needed = sorted(roles) if is_training else [("id", column) for column in self.id_columns]
        needed += [("features", name) for name in features]
        if is_training and self.features is None:
            needed += [("categorical", name) for name in self.categorical]
            needed += [("columns", name) for name, _ in self.rules if "*" not in name]
        for kind, column in needed:
            if not spread((column,), table):
                raise self.absent(kind, column)

    def absent(self, role: str, column: str) -> BadInput:
        """Return the error for a column that is not in the file."""
        if self.view is not None:
            present = list(self.view.describe())
        else:
            present = names_of_columns(Path(self.path), self.party, self.csv)
        advice = ""
        if self.view is None and is_csv(Path(self.path)):
            blanks = column in map(str.strip, present)
            advice = _TRIM if blanks else _NAMES if any(_NUMBER.fullmatch(name.strip()) for name in present) else ""
        if alike := [one for one in present if _looks(one) == _looks(column) and _clear(one) == one]:
            advice = f"; its column {alike[0]!a} looks like {column!a}, whose characters are others"
        return BadInput(
            f"{self.party}: {role}: {column!r} is not a column of {self.path} (its columns: "
            f"{', '.join(map(_clear, present[:20]))}{', ...' if len(present) > 20 else ''}){advice}"
        )

    def _ids(self, table: Mapping[str, Column], num_rows: int, *, new: bool) -> tuple[NDArray[Any], dict[int, str]]:
        """Return the ids, and of rows to predict why some have none that they could be found by."""
        if not self.id_columns:
            return np.arange(num_rows), {}
        columns = [table[name] for name in self.id_columns]
        names_N = row_name_array(columns, self.id_rules, self.where, new=new)
        nameless = np.flatnonzero(names_N == "").tolist()
        if nameless and not new:
            raise BadInput(
                f"{self.where}: column {' and '.join(self.id_columns)}: {len(nameless)} values are missing (first in "
                f"{columns[0].row(nameless[0])}); each row needs an id"
            )
        unseen = np.flatnonzero(hold_unseen(names_N)).tolist() if new else []
        return names_N, dict.fromkeys(nameless, NO_ID) | dict.fromkeys(unseen, UNSEEN_ID)

    def _refuse_missing(self, column: Column) -> None:
        missing = np.flatnonzero(column.is_missing())
        if len(missing):
            raise BadInput(
                f"{self.where}: column {column.name}: {len(missing)} values are missing (first in "
                f'{column.row(missing[0])}); unlabelled = "drop" leaves such rows out'
                f"{NULL_IS_VALUE if column.is_text and (self.csv is None or self.csv.null is None) else ''}"
            )

    def _unlabelled(self, table: Mapping[str, Column]) -> tuple[int, ...]:
        """Return the rows that have no label, where they are left out."""
        labels = [table[name] for name in (self.label, *spread(self.targets, table)) if name is not None]
        if not labels or self.unlabelled == "refuse":
            return ()
        rows = tuple(np.flatnonzero(np.any([one.is_missing() for one in labels], axis=0)).tolist())
        if len(rows) == len(labels[0]):
            raise BadInput(f"{self.where}: column {labels[0].name}: no row has a label")
        return rows

    def _weights(
        self, table: Mapping[str, Column], labels_N: NDArray[Any], class_names: Sequence[str]
    ) -> NDArray[np.float32] | None:
        weights_N = None
        if self.weight is not None:
            weights_N = table[self.weight].numbers(self.where).astype(np.float32)
            if not (np.isfinite(weights_N) & (weights_N >= 0)).all():
                raise BadInput(f"{self.where}: column {self.weight}: weights must be finite numbers, 0 or more")
            if not weights_N.any():
                raise BadInput(f"{self.where}: column {self.weight}: every row has the weight 0")
        for name, _ in self.class_weights:
            if self.num_classes and name not in class_names:
                raise BadInput(
                    f"task.class_weights: {name!r} is no value of {self.label} ({', '.join(class_names[:5])})"
                )
        return class_weighted(weights_N, labels_N, class_names, dict(self.class_weights))

    def _labels(
        self, table: Mapping[str, Column], unlabelled: Sequence[int]
    ) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
        if self.targets:
            return self._target_values(spread(self.targets, table), table, unlabelled), ()
        if self.label is None:
            return None, ()
        whole = table[self.label]
        labelled = np.delete(np.arange(len(whole)), np.asarray(unlabelled, np.int64))
        found, class_names = self._labels_of(whole.take(labelled) if len(unlabelled) else whole)
        if not len(unlabelled):
            return found, class_names
        labels = np.full(len(whole), -1, found.dtype)
        labels[labelled] = found
        return labels, class_names

    def _target_values(
        self, names: Sequence[str], table: Mapping[str, Column], unlabelled: Sequence[int]
    ) -> NDArray[np.float32]:
        """Return targets of several columns (N x O); of rows that are left out zeros."""
        made = np.zeros((len(table[names[0]]), len(names)), np.float32)
        is_gone_N = np.isin(np.arange(len(made)), unlabelled)
        for number, name in enumerate(names):
            values_N = np.where(is_gone_N, 0.0, table[name].numbers(self.where))
            refuse_merged(table[name], values_N, f"{self.where}: label {name}", _LESS)
            if merges_in_single(values_N):
                raise BadInput(
                    f"{self.where}: label {name}: {' and '.join(told_apart(values_N))} are one number in single "
                    f"precision; {_LESS}"
                )
            with np.errstate(over="ignore"):  # infinite targets are refused
                made[:, number] = values_N
        return made

    def _labels_of(self, column: Column) -> tuple[NDArray[Any], tuple[str, ...]]:
        if self.task == "regression":
            targets_N = column.numbers(self.where)
            refuse_merged(column, targets_N, f"{self.where}: label {column.name}", _LESS)
            with np.errstate(over="ignore"):  # infinite targets are refused
                return targets_N if merges_in_single(targets_N) else targets_N.astype(np.float32), ()
        self._refuse_missing(column)
        rule = dict(self.rules).get(column.name)
        if rule is not None and not rule.is_category:
            raise BadInput(
                f'{self.party}: columns.{column.name}: type={rule.type} is not allowed for a label of classes: "text" '
                '(letters\' case and blanks do not count) or "categorical"'
            )
        names, codes = named_classes(column, rule, self.where)
        if self.classes:
            names, codes = self._as_listed(names, codes)
        else:
            self._refuse_mark(column, names)
        if self.num_classes and len(names) != self.num_classes:
            raise BadInput(
                f"{self.where}: label {self.label}: {len(names)} classes ({_first_of(names)}), "
                f"{self.num_classes} are expected; {self._other_task(column, len(names))}"
                f"{self._no_label(column, names)}"
            )
        if self.positive is not None:
            positive = self.positive if rule is None else rule.plain(self.positive)
            if positive not in names:
                raise BadInput(
                    f"task.positive: {self.positive!r} is no value of {self.label}: give {' or '.join(names)}"
                )
            if names.index(positive) == 0:
                names, codes = names[::-1], 1 - codes
        return codes, tuple(names)

    def _refuse_mark(self, column: Column, names: Sequence[str]) -> None:
        """Refuse a class such as ``?`` beside classes with letters or digits: it may mean that a row has none."""
        marks = [name for name in names if not any(map(str.isalnum, name))]
        if len(names) > 1 and len(marks) == 1 and marks != ["+"]:
            others, listed = [name for name in names if name not in marks], json.dumps(list(names), ensure_ascii=False)
            raise BadInput(
                f"{self.where}: label {self.label}: {marks[0]!r} stands beside {_first_of(others)}; if it is a class: "
                f"classes = {listed} under [task]; if it means that a row has no label: "
                f'unlabelled = "drop" and {listed_as_missing(marks[0], column.csv)}'
            )

    def _as_listed(self, names: Sequence[str], codes_N: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
        """Return the listed classes, and the number of each row's among them."""
        codes = self.numbers_of_classes(names, self.classes)
        if absent := [name for code, name in enumerate(self.classes) if code not in codes]:
            raise BadInput(f"{self.where}: label {self.label}: no row is {absent[0]!r}, which task.classes lists")
        return list(self.classes), codes[codes_N]

    def numbers_of_classes(self, names: Sequence[str], listed: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of classes among those that a description lists, compared as the label's rule says.

        Raises:
            BadInput: one is not among them.
        """
        rule = dict(self.rules).get(str(self.label), ColumnRule())
        number = {rule.plain(name): code for code, name in enumerate(listed)}
        if unknown := [name for name in names if name not in number]:
            are_padded = all(name.strip() in number for name in unknown)
            advice = "; csv = { trim = true } leaves blanks round values out" if are_padded else ""
            raise BadInput(
                f"{self.where}: label {self.label}: {_first_of(list(map(repr, unknown)))} not among task.classes "
                f"({_first_of(listed)}){advice}"
            )
        return np.asarray([number[name] for name in names], np.int64)

    def _no_label(self, column: Column, names: Sequence[str]) -> str:
        """Return how to say that -1 means that a row has no label, where there is a class too many with it."""
        if "-1" not in names or len(names) != self.num_classes + 1 or "-1" in column.csv.nulls:
            return ""
        listed = listed_as_missing("-1", column.csv)
        return f'; if -1 means that a row has no label: unlabelled = "drop" and, for every column, {listed}'

    def _other_task(self, column: Column, num_found: int) -> str:
        """Return what the description has to say for as many classes as there are."""
        if num_found == 1:
            return "a model needs rows of at least two"
        plain = ColumnRule(type="text")
        if len({plain.plain(text) for text in column.coded(self.where)[0]}) == self.num_classes:
            return (
                "where letters' case and blanks do not count, say so in the party's columns: "
                f'{column.name} = {{ type = "text" }}'
            )
        if num_found > _MOST_LIKELY_CLASSES and not column.first_text():
            return 'numbers are predicted with type = "regression" under [task]'
        if num_found == 2:
            return 'give type = "binary" under [task]'
        left_out = ", or filter the rows" if self.task == "binary" else ""
        return f'give type = "multiclass" and classes = {num_found} under [task]{left_out}'

    def _parts(self, column: Column) -> NDArray[np.uint8]:
        texts = column.texts(self.where)
        may_miss = self.unlabelled == "keep"
        for row, text in enumerate(texts):
            if text not in PARTS and not (may_miss and text is None):
                raise BadInput(
                    f"{self.where}: column {column.name}: {text!r} in row {row + 1} is not allowed: "
                    f"give {', '.join(PARTS)}"
                )
        return np.asarray([NO_PART if text is None else PARTS.index(text) for text in texts], np.uint8)


def spread(names: Sequence[str], table: Mapping[str, Column]) -> tuple[str, ...]:
    """Return columns of a table, those of lists by their places (`fedactors.data.readers.read_columns`)."""
    return tuple(
        found
        for name in names
        for found in ((name,) if name in table else [one for one in table if list_of(one) == name])
    )


def usual_nulls(source: FileSource) -> list[str]:
    """Return the texts of a file that mean that a value is missing as long as its description lists none."""
    csv = source.csv or CsvFormat()
    known = [text for text in csv.nulls if text]
    table = read_columns(Path(source.path), source.party, wanted=None, csv=dataclasses.replace(csv, null=()))
    found = {text for column in table.values() if column.is_text for text in column.coded(source.where)[0]}
    return [text for text in known if text in found]


_INDEX = re.compile(r"Unnamed: [0-9]+|__index_level_[0-9]+__")


def is_pandas_index(name: str) -> bool:
    """Say whether a column is called as pandas calls an index that has no name."""
    return _INDEX.fullmatch(name) is not None


def pandas_index(path: Path) -> tuple[str, ...]:
    """Return the columns of a Parquet file that pandas' own metadata call its index; none of another file."""
    import pyarrow.parquet as pa_parquet

    first = () if is_object(path) or is_in_library(path) else files_at(path)[:1]
    if not first or first[0].is_dir():
        return ()
    with opened(first[0]) as file:
        if file.read(4) != b"PAR1":
            return ()
        file.seek(0)
        found = json.loads((pa_parquet.read_schema(file).metadata or {}).get(b"pandas", b"{}"))
    return tuple(name for name in found.get("index_columns", ()) if isinstance(name, str))


_TRIM = "; csv = { trim = true } leaves blanks round names and values out"
_NAMES = '; where the first line is a row and names no columns, name all in their order: csv = { names = ["...", ...] }'
NULL_IS_VALUE = "; where NA or null is a value: csv = { null = [] }"
_MOST_LIKELY_CLASSES = 20
_MOST_NAMED = 5


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def _looks(name: str) -> str:
    """Return a name as it looks: letters composed, without what nobody sees."""
    seen = "".join(one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) != "Cf")
    return seen.translate(_ALIKE)


_ALIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0391\u0392\u0395\u0397\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7",
    "aeopcxyiABEHKMNOPTX",
)
"""Letters of Cyrillic and Greek that look like Latin ones."""


def _clear(name: str) -> str:
    """Return the name of a column so that blanks at its ends are seen."""
    return name if name == name.strip() and name else repr(name)


def named_classes(column: Column, rule: ColumnRule | None, where: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of the classes in their order, and the number of each row's (N).

    Numbers are ordered and compared as numbers, so that class 10 follows class 9; anything else as text, and so are
    codes with zeros in front: 007 is not 7.
    """
    known, codes_N = column.coded(where)
    moments = moment_texts(known)
    known = [moments.get(text, text) for text in known]
    texts = [class_text(text if rule is None else rule.plain(text)) for text in known]
    order: dict[Any, list[str]] = {text: [text] for text in sorted(set(texts))}
    keys: list[Any] = texts
    plain_texts = [text.strip().replace(column.csv.decimal, ".") for text in texts]
    if all(map(_NUMBER.fullmatch, plain_texts)) and not any(map(_CODE.match, plain_texts)):
        keys = list(map(Decimal, plain_texts))
        order = {key: [] for key in sorted(keys)}
        for key, text in zip(keys, plain_texts, strict=True):
            order[key].append(class_text(text))
    index_of = {key: number for number, key in enumerate(order)}
    names = [min(texts, key=len) for texts in order.values()]
    return names, np.asarray([index_of[key] for key in keys], np.int64)[codes_N]


_CODE = re.compile(r"[+-]?0[0-9]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@wire_type(eq=False)
class ArraySource:
    """Rows that are in memory already: for tests and for callers of the library, small arrays only."""

    ids: NDArray[Any]
    features: NDArray[np.float32]
    labels: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()

    def load(self, trained: Sequence[FittedColumn] | None = None) -> PartyBlock:
        """Return the rows."""
        width = self.features.shape[1]
        names = self.feature_names or tuple(f"c{index}" for index in range(width))
        return PartyBlock(
            origin="arrays",
            ids=self.ids,
            features=self.features.astype(np.float32),
            feature_names=names,
            keeps_scale=np.zeros(width, np.bool_),
            labels=self.labels,
            columns=tuple(FittedColumn(name=name, rule=ColumnRule()) for name in names),
        )


@wire_type(eq=False)
class EditedSource:
    """Another source with one row otherwise: a neighbour, for audits."""

    source: NamedSource | FileSource | ArraySource
    row: int
    features: NDArray[np.float32]
    """The row's columns after one-hot encoding."""
    label: float | None = None
    """Another label; None keeps it."""

    def load(self, trained: Sequence[FittedColumn] | None = None) -> PartyBlock:
        """Load the rows and change the one."""
        block = self.source.load(trained)
        features = block.features.copy()
        features[self.row] = self.features
        labels = block.labels
        if labels is not None and self.label is not None:
            labels = labels.copy()
            labels[self.row] = self.label
        return dataclasses.replace(block, features=features, labels=labels)


@wire_type
class HolderSource:
    """Rows that another actor of the party holds: its columns of joined rows; see `fedactors.data.alignment.rows`."""

    holder: str

    def load(self, trained: Sequence[FittedColumn] | None = None) -> PartyBlock:
        """Refuse: rows that a query joins are asked of their holder, not read.

        Raises:
            BadInput: always.
        """
        raise BadInput("data: rows that a query joins are not allowed here: give each party's file, with ids")


Source = NamedSource | FileSource | ArraySource | EditedSource | HolderSource


def named_sources(
    dataset: str,
    num_parties: int,
    *,
    label_index: int = 0,
    partitioner: ColumnPartitioner | None = None,
    overlap: float = 1.0,
    order_seed: int | None = None,
) -> tuple[NamedSource, ...]:
    """Return one source per party over a named data set; party `label_index` has the labels."""
    recipe = partitioner or VerticalEvenPartitioner(num_partitions=num_parties)
    if recipe.num_partitions != num_parties:
        raise BadInput(f"partitioner: makes {recipe.num_partitions} partitions for {num_parties} parties")
    return tuple(
        NamedSource(
            dataset=dataset,
            partitioner=recipe,
            index=index,
            has_labels=index == label_index,
            overlap=overlap,
            order_seed=order_seed,
        )
        for index in range(num_parties)
    )
