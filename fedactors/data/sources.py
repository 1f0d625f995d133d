"""Where a party's rows come from: small frozen values that an actor is built with and that it loads inside itself."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.blocks import PartyBlock, one_hot
from fedactors.data.catalogue import Task, describe
from fedactors.data.partitioners import ColumnPartitioner, Partitions, VerticalEvenPartitioner
from fedactors.data.tabular import encode_text, load_tabular
from fedactors.errors import BadInput
from fedactors.network.codec import plain
from fedactors.validation import reading

_MOST_CELLS = 1 << 28
"""Numbers that one categorical column may become: 1 GiB."""


@plain
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

    def load(self) -> PartyBlock:
        """Load this party's columns.

        Raises:
            BadInput: unknown data set or partition, or a damaged file.
            DataMissing: a file is not on this machine.
        """
        columns = _columns(self.dataset, self.partitioner).load_partition(self.index)
        found = load_tabular(self.dataset, [int(column) for column in columns])
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
            is_one_hot=flags,
            labels=labels,
        )


@functools.lru_cache(maxsize=16)
def _columns(dataset: str, partitioner: ColumnPartitioner) -> Partitions:
    described = describe(dataset)
    if described.kind not in ("tabular", "images"):
        raise BadInput(f"data: {dataset} is of kind {described.kind}; columns of a table are needed here")
    return partitioner.over(described.columns)


@plain
class FileSource:
    """One party's own file: CSV, Parquet or npy, read where the party runs."""

    party: str
    path: str
    """An absolute path; a npy file holds a structured array, or a matrix whose columns are called c0, c1, ..."""
    task: Task
    num_classes: int
    """0: as many as the file has, because no single file need hold every class."""
    id_column: str | None = None
    """None: rows are already aligned, and their numbers are their ids."""
    features: tuple[str, ...] | None = None
    """None means every column that is neither id nor label."""
    label: str | None = None
    categorical: tuple[str, ...] = ()

    def load(self) -> PartyBlock:
        """Read the file.

        Raises:
            BadInput: the file cannot be read, a column is absent, text stands where numbers must, or ids are missing.
        """
        self._check_roles()
        table = _read_table(Path(self.path), self._wanted(), self.id_column, self.party)
        self._check_columns(table)
        features = self.features if self.features is not None else self._remaining(tuple(table))
        made = np.empty((_length(table), len(features)), np.float32)
        categories: dict[str, tuple[str, ...]] = {}
        for index, column in enumerate(features):
            if column in self.categorical:
                self._refuse_missing(column, table[column])
                self._refuse_numbers(column, table[column])
                made[:, index], categories[column] = encode_text(table[column].tolist())
            else:
                made[:, index] = self._numbers(column, table[column])
        self._refuse_too_many(categories, len(made))
        encoded, names, flags = one_hot(made, features, categories)
        labels, class_names = self._labels(table)
        if self.id_column is None:
            ids = np.arange(len(made))
        else:
            self._refuse_missing(self.id_column, table[self.id_column])
            ids = np.asarray([_id_text(value) for value in table[self.id_column].tolist()])
        return PartyBlock(
            origin=self.path,
            ids=ids,
            features=encoded,
            feature_names=names,
            is_one_hot=flags,
            labels=labels,
            class_names=class_names,
        )

    def _check_roles(self) -> None:
        if self.features == ():
            raise BadInput(f"{self.party}: {self.path}: no feature column: every party needs at least one")
        if self.label is not None and self.label == self.id_column:
            raise BadInput(f"{self.party}: label: {self.label!r} is the id column too")
        for column in self.features or ():
            if column in (self.label, self.id_column):
                raise BadInput(f"{self.party}: features: {column!r} is the label or the id, and may not be a feature")
        for column in self.categorical:
            if self.features is not None and column not in self.features:
                raise BadInput(f"{self.party}: categorical: {column!r} is not among the features")

    def _wanted(self) -> list[str] | None:
        if self.features is None:
            return None
        others = [column for column in (self.id_column, self.label) if column is not None]
        return [*others, *self.features]

    def _remaining(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(column for column in columns if column not in (self.id_column, self.label))

    def _check_columns(self, table: dict[str, NDArray[Any]]) -> None:
        for kind, columns in (
            ("id", (self.id_column,)),
            ("label", (self.label,)),
            ("features", self.features or ()),
            ("categorical", self.categorical),
        ):
            for column in columns:
                if column is not None and column not in table:
                    raise BadInput(
                        f"{self.party}: {kind}: {column!r} is not a column of {self.path} (its columns: "
                        f"{', '.join(list(table)[:20])})"
                    )

    def _refuse_missing(self, column: str, values: NDArray[Any]) -> None:
        missing = sum(value is None or value != value for value in values.tolist())
        if missing:
            raise BadInput(f"{self.party}: {self.path}: column {column}: {missing} values are missing")

    def _refuse_numbers(self, column: str, values: NDArray[Any]) -> None:
        """Refuse measurements where categories are said to be; whole numbers may well be codes."""
        if values.dtype.kind == "f" and (values % 1 != 0).any():
            raise BadInput(
                f"{self.party}: categorical: {column!r} holds numbers such as {values[values % 1 != 0][0]:g}, "
                "no categories"
            )

    def _refuse_too_many(self, categories: Mapping[str, tuple[str, ...]], rows: int) -> None:
        for column, found in categories.items():
            if len(found) * rows > _MOST_CELLS:
                raise BadInput(
                    f"{self.party}: categorical: {column!r} has {len(found)} different values in {rows} rows: one "
                    f"column for each is more than {_MOST_CELLS} numbers"
                )

    def _numbers(self, column: str, values: NDArray[Any]) -> NDArray[np.float32]:
        try:
            if values.dtype.kind in "MmcV":
                raise ValueError("dates, complex numbers and raw bytes are not numbers here")
            if values.dtype.kind == "O":
                values = np.asarray([np.nan if value is None else value for value in values.tolist()])
            if values.ndim != 1:
                raise ValueError("lists are not numbers")
            with np.errstate(over="ignore"):  # what overflows becomes infinite, and infinite values are refused
                return values.astype(np.float32)
        except (ValueError, TypeError):
            kind = "text" if values.dtype.kind in "OUS" else "values"
            raise BadInput(
                f"{self.party}: {self.path}: column {column}: holds {kind} such as {_first_text(values)!r}; "
                "give numbers, or name the column under categorical"
            ) from None

    def _labels(self, table: dict[str, NDArray[Any]]) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
        if self.label is None:
            return None, ()
        values = table[self.label]
        if self.task == "regression":
            return self._numbers(self.label, values), ()
        self._refuse_missing(self.label, values)
        # Numbers are ordered as numbers and not as text, so that class 10 follows class 9.
        found, codes = np.unique(values if values.dtype.kind in "iufb" else values.astype(str), return_inverse=True)
        if self.num_classes and len(found) != self.num_classes:
            raise BadInput(
                f"{self.party}: {self.path}: label {self.label}: {len(found)} different values "
                f"({', '.join(str(value) for value in found[:5])}, ...), expected {self.num_classes} classes"
            )
        return codes.astype(np.int64), tuple(str(value) for value in found)


@plain(eq=False)
class ArraySource:
    """Rows that are in memory already: for tests and for callers of the library, small arrays only."""

    ids: NDArray[Any]
    features: NDArray[np.float32]
    labels: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()

    def load(self) -> PartyBlock:
        """Return the rows."""
        width = self.features.shape[1]
        return PartyBlock(
            origin="arrays",
            ids=self.ids,
            features=self.features.astype(np.float32),
            feature_names=self.feature_names or tuple(f"c{index}" for index in range(width)),
            is_one_hot=np.zeros(width, np.bool_),
            labels=self.labels,
        )


@plain(eq=False)
class EditedSource:
    """Another source with one row otherwise: a neighbour, for audits."""

    source: NamedSource | FileSource | ArraySource
    row: int
    features: NDArray[np.float32]
    """The row's columns after one-hot encoding."""
    label: float | None = None
    """Another label; None keeps it."""

    def load(self) -> PartyBlock:
        """Load the rows and change the one."""
        block = self.source.load()
        features = block.features.copy()
        features[self.row] = self.features
        labels = block.labels
        if labels is not None and self.label is not None:
            labels = labels.copy()
            labels[self.row] = self.label
        return dataclasses.replace(block, features=features, labels=labels)


Source = NamedSource | FileSource | ArraySource | EditedSource


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


def _id_text(value: Any) -> str:
    """Return the text of an id: 7, 7.0 and "7" are the same id."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _length(table: dict[str, NDArray[Any]]) -> int:
    return len(next(iter(table.values())))


def _first_text(values: NDArray[Any]) -> str:
    for value in values.tolist():
        try:
            float(value)
        except (ValueError, TypeError):
            return str(value)
    return ""


def _read_table(path: Path, wanted: list[str] | None, id_column: str | None, party: str) -> dict[str, NDArray[Any]]:
    """Read the wanted columns (absent ones are left out, to be named by the caller) into arrays."""
    if not os.path.isfile(path):
        raise BadInput(f"{party}: path: {path} is not a file")
    with reading(party, path):
        table = _read_npy(path) if path.suffix == ".npy" else _read_arrow(path, wanted, id_column, party)
    if not table:
        raise BadInput(f"{party}: path: {path} has no column")
    return table


def _read_npy(path: Path) -> dict[str, NDArray[Any]]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.names:
        if array.ndim != 1 or any(array[name].ndim != 1 for name in array.dtype.names):
            raise ValueError("a structured array needs one dimension, and one value in each field")
        return {name: array[name] for name in array.dtype.names}
    if array.ndim != 2:
        raise ValueError(f"an array of {array.ndim} dimensions; a matrix or a structured array is needed")
    return {f"c{index}": array[:, index] for index in range(array.shape[1])}


def _read_arrow(path: Path, wanted: list[str] | None, id_column: str | None, party: str) -> dict[str, NDArray[Any]]:
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    if path.suffix in (".parquet", ".pq"):
        present = pa_parquet.read_schema(path).names
        table = pa_parquet.read_table(path, columns=None if wanted is None else [c for c in wanted if c in present])
    elif path.name.endswith((".csv", ".csv.gz", ".tsv")):
        parse = pa_csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        with pa_csv.open_csv(path, parse_options=parse) as reader:
            present = reader.schema.names
        columns = None if wanted is None else [c for c in wanted if c in present]
        convert = pa_csv.ConvertOptions(
            include_columns=columns,
            strings_can_be_null=True,
            # Ids are read as text everywhere: 007 at one party must not become 7 at another.
            column_types={id_column: pa.string()} if id_column is not None else None,
        )
        table = pa_csv.read_csv(path, parse_options=parse, convert_options=convert)
    else:
        raise BadInput(f"{party}: path: {path} is not allowed: give a .csv, .tsv, .parquet or .npy file")
    doubled = {name for name in table.column_names if table.column_names.count(name) > 1}
    if doubled:
        raise BadInput(f"{party}: {path}: columns of the same name: {', '.join(sorted(doubled))}")
    return {name: table[name].to_numpy() for name in table.column_names}
