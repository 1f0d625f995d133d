"""From a description of organisations' tables to one client's rows as numbers.

    parties.toml, a named data set or a scenario's `stated` --> RelationalData        (the driver)
    --seat_clients--> Seat: a client with one partition and its source                (the driver)
    --read_rows--> OwnRows --column_facts--> Facts --design_matrix--> x_nD, y_n       (that client alone)

Partitions of one vertical table must agree on categories, means and deviations: each tells its `Facts`, which the
first of them merges.

Legend: n rows of a client, D columns of the design matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray
from sqlglot import exp

from fedactors.data.own import load_own_as
from fedactors.data.partitions import RelationalData, RelationalPartition, RelationalQuery, relational
from fedactors.data.relational import TableSource, in_memory, parse_address
from fedactors.errors import BadInput
from fedactors.network.codec import plain
from fedactors.privacy.mechanisms import randomised_labels, randomised_values
from protocols.tablepuppet.algorithm import Loss
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.messages import Facts, Schemas
from protocols.tablepuppet.query import (
    Encoding,
    Feature,
    FeatureTypeError,
    JoinPlan,
    LabelError,
    Query,
    UnknownTableError,
    VerticalTable,
    make_plan,
    parse_query,
)

Array = NDArray[np.float64]

# --- who holds what ------------------------------------------------------------------------------------------------


def load_data(config: TablePuppetConfig, name: str, seed: int) -> RelationalData:
    """Return who holds what: a file's description, or the tables of a named set dealt to the organisations.

    Raises:
        BadInput: a file that is not relational, settings that such a file states itself, or a data set that is not
            made of tables.
    """
    if name.endswith(".toml"):
        for key in ("num_partitions", "task", "num_classes"):
            if (value := getattr(config, key)) is not None:
                raise BadInput(f"{key}: {value!r} is not allowed: it is for named data sets; {name} states its own")
        return load_own_as(Path(name), RelationalData)
    return relational(name, num_partitions=config.partitions, task=config.task, num_classes=config.num_classes)


def stated(
    sql: str | exp.Expression,
    addresses: Mapping[str, str | TableSource],
    *,
    label: str,
    task: str = "regression",
    num_classes: int = 1,
    categorical: tuple[str, ...] = (),
) -> RelationalData:
    """Return a training set stated in a scenario: SQL, and for each table in it the organisation's database.

    Args:
        sql: the union of conjunctive queries, as text or as a tree made with sqlglot.
        addresses: table (or partition) in the SQL to its address (see `fedactors.data.relational.parse_address`); the
            organisation is called like the table.
        label: ``table.column``, or ``column`` where one table has it.
        task: regression, binary or multiclass.
        num_classes: of a multiclass task; 2 for binary, 1 for regression.
        categorical: columns that are categories.

    Raises:
        BadInput: an address that cannot be understood, or a task that is none.
    """
    if task not in ("regression", "binary", "multiclass"):
        raise BadInput(f"task: {task!r} is not allowed: give one of regression, binary, multiclass")
    return RelationalData(
        name="stated",
        sql=sql if isinstance(sql, str) else sql.sql(dialect="duckdb"),
        label=label,
        task=task,  # type: ignore[arg-type]
        num_classes=num_classes,
        partitions=tuple(
            RelationalPartition(
                party=table,
                table=table,
                partition=0,
                source=parse_address(address) if isinstance(address, str) else address,
            )
            for table, address in addresses.items()
        ),
        categorical=categorical,
    )


def loss_of(config: TablePuppetConfig, query: RelationalQuery) -> Loss:
    """Return the loss that the model and the task imply.

    Raises:
        BadInput: classes where labels are numbers; numeric labels under label_dp without a declared range.
    """
    by_task: dict[str, Loss] = {"regression": "squared", "binary": "logistic", "multiclass": "softmax"}
    by_model: dict[str, Loss] = {"linear": "squared", "logistic": "logistic", "softmax": "softmax"}
    loss = by_model.get(config.model, by_task[query.task])
    if loss == "softmax" and query.task == "regression":
        raise BadInput("model: 'softmax' is not allowed: the labels of a regression are numbers, no classes")
    if config.label_dp is not None and loss == "squared" and config.label_range is None:
        raise BadInput("label_dp: numeric labels need a declared label_range=LOW,HIGH to be clipped to")
    return loss


@plain
class Seat:
    """One client: the actor's name, its table and partition in the query, and its own partition of the data."""

    name: str
    table: str
    index: int
    """Of the partition, in the order of the query's."""
    own: RelationalPartition


def seat_clients(config: TablePuppetConfig, data: RelationalData) -> tuple[Seat, ...]:
    """Return a client for each horizontal partition, tables in the order of the query.

    A table that several parties hold is the union of their partitions. An actor is called like its party, or
    ``party/table`` where a party takes several seats.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
        BadInput: partitions where the algorithm needs whole tables.
    """
    by_source = {_source_name(data.query, p.table, p.partition): p for p in data.partitions}
    query = held_query(data.query)
    taken = [(t, i, by_source[source]) for t, parts in query.tables.items() for i, (source, _) in enumerate(parts)]
    for table, partitions in query.tables.items():
        if len(partitions) > 1 and config.algorithm in ("rfl-sgd-v", "rfl-admm-v", "vfl-sgd", "vfl-admm"):
            allowed = "rfl-admm" if config.is_admm else "rfl-sgd"
            raise BadInput(
                f"algorithm: {config.algorithm!r} is not allowed: table {table!r} has {len(partitions)}"
                f" partitions; use {allowed} or centralised"
            )
    seats = []
    for table, index, own in taken:
        name = own.party
        if sum(other.party == own.party for _, _, other in taken) > 1:
            several = sum(t == table and other.party == own.party for t, _, other in taken) > 1
            name = f"{name}/{table}-{index}" if several else f"{name}/{table}"
        seats.append(Seat(name=name, table=table, index=index, own=own))
    return tuple(seats)


def held_query(stated_query: RelationalQuery) -> Query:
    """Return the query over one source for each partition that somebody holds.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
    """
    query = parse_query(stated_query.sql)
    sources: dict[str, list[str]] = {}
    for source in {source for parts in query.tables.values() for source, _ in parts}:
        held = [(t, p) for _, t, p in stated_query.holders if t == source]
        held = held or [(t, p) for _, t, p in stated_query.holders if t.lower() == source.lower()]
        if not held:
            known = ", ".join(stated_query.tables) or "none"
            raise UnknownTableError(f"sql: unknown table {source!r} (known: {known})")
        held.sort(key=lambda one: one[1])
        sources[source] = [_source_name(stated_query, table, partition) for table, partition in held]
    return query.held_in(sources)


def resolve_plan(stated_query: RelationalQuery, schemas: Schemas) -> JoinPlan:
    """Return what the query means over the columns of all sources; see `query.make_plan`."""
    kinds = {name: dict(zip(s.columns, s.kinds, strict=True)) for name, s in schemas.by_source.items()}
    encodings: dict[str, Encoding] = dict.fromkeys(stated_query.categorical, "one_hot")
    return make_plan(held_query(stated_query), kinds, stated_query.label, encodings)


def _source_name(query: RelationalQuery, table: str, partition: int) -> str:
    return table if sum(t == table for _, t, _ in query.holders) == 1 else f"{table}#{partition}"


# --- a client's own rows -------------------------------------------------------------------------------------------


class RowsChangedError(BadInput):
    """A table's rows are others than when the run began, so a resumed run would train on the wrong ones."""


@dataclass(frozen=True)
class OwnRows:
    """The rows of one client in the order of this run."""

    data: pa.Table
    num_null: int
    """Rows left out because a key was NULL."""
    fingerprint: bytes
    """SHA-256 of the rows, whatever their order in the database."""


def read_rows(source: TableSource, table: VerticalTable, index: int, order: np.random.Generator) -> OwnRows:
    """Read the columns and rows that the plan needs from the client's own database, and shuffle them.

    They are ordered by their content first, keys before features: a database may give them in another order each
    time, and row k must be the same row after a resume.
    """
    found = source.load(table.needed_columns(), table.partitions[index].where)
    kept = rows_with_keys(found.select(table.keys)) if table.keys else np.ones(found.num_rows, dtype=bool)
    data = _ordered(found if kept.all() else found.filter(pa.array(kept)))
    fingerprint = hashlib.sha256(in_memory(data).rows).digest()
    shuffled = data.take(pa.array(order.permutation(data.num_rows)))
    return OwnRows(shuffled, int(np.count_nonzero(~kept)), fingerprint)


def rows_with_keys(keys: pa.Table) -> NDArray[np.bool_]:
    """Return which rows have no NULL in any key column; the others join with nothing and are left out."""
    complete = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        if column.null_count:
            complete &= column.is_valid().to_numpy(zero_copy_only=False)
    return complete


def _ordered(data: pa.Table) -> pa.Table:
    if not data.num_columns:
        return data
    columns = {f"c{i}": _sortable(column) for i, column in enumerate(data.columns)}
    places = pyarrow.compute.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return data.take(places).combine_chunks()


def _sortable(column: pa.ChunkedArray) -> Any:
    """Return a column that Arrow can sort: itself, or what it holds as texts (categories, intervals, lists)."""
    kind, types = column.type, pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_string(kind):
        return column
    if types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return column
    return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())


def secret_order(numbers: Sequence[int]) -> np.random.Generator:
    """Return what shuffles a client's rows where their order is its secret, drawn as four numbers."""
    return np.random.default_rng(tuple(numbers))


def choose_test(num_rows: int, test_share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which rows of a partition of the label's table are kept for the test."""
    chosen = np.ones(num_rows, dtype=bool)
    chosen[rng.permutation(num_rows)[: int(num_rows * (1.0 - test_share))]] = False
    return chosen


def noisy_labels(
    y_n: NDArray[Any], config: TablePuppetConfig, loss: Loss, num_classes: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Return labels as `label_dp` asks: as they are, through Eq. 25, or clipped numbers with additive noise."""
    if config.label_dp is None:
        return y_n
    if loss != "squared":
        return randomised_labels(y_n.astype(np.int64), max(num_classes, 2), config.label_dp, rng).astype(y_n.dtype)
    low, high = config.label_range or (0.0, 0.0)  # `loss_of` refuses a run without one
    return randomised_values(y_n, low, high, config.label_dp, rng)


MOST_CATEGORIES = 10_000
"""Of one column: `Facts` name all of them to the other partitions of a table."""

# --- rows as numbers -----------------------------------------------------------------------------------------------


def column_facts(data: pa.Table, features: Sequence[Feature], classes: Sequence[str] = ()) -> Facts:
    """Return what a partition knows of its features: categories (one_hot), or count, sum and sum of squares (numeric).

    Raises:
        FeatureTypeError: a numeric feature holds NULL or NaN.
    """
    categories: list[tuple[str, ...]] = []
    numbers = np.zeros((3, len(features)))
    for i, feature in enumerate(features):
        if feature.encoding == "one_hot":
            categories.append(tuple(sorted(set(_texts(data, feature)))))
        else:
            values = _numbers(data, feature)
            categories.append(())
            numbers[:, i] = len(values), values.sum(), values @ values
    return Facts(tuple(categories), numbers[0].astype(np.int64), numbers[1], numbers[2], tuple(classes))


def declared_facts(declared: Sequence[str], features: Sequence[Feature], label: str | None) -> Facts:
    """Return facts that the configuration states, so that none of the rows' own are used.

    A range stands for a uniform distribution: mean and deviation are its.

    Args:
        declared: see the configuration.
        features: of the table.
        label: the label's column where its classes are needed.

    Raises:
        BadInput: an entry that cannot be read, or a feature without one.
    """
    stated: dict[str, str] = {}
    for entry in declared:
        name, equals, value = entry.partition("=")
        if not equals or not value:
            raise BadInput(f"declared_facts: {entry!r} is not allowed: use column=LOW:HIGH or column=A|B|C")
        stated[name] = value
    missing = [f.column for f in features if f.column not in stated] + (
        [label] if label and label not in stated else []
    )
    if missing:
        raise BadInput(f"declared_facts: {missing[0]} is missing: every feature needs an entry, or none has one")
    categories: list[tuple[str, ...]] = []
    numbers = np.zeros((2, len(features)))
    for i, feature in enumerate(features):
        value = stated[feature.column]
        categories.append(tuple(sorted(value.split("|"))) if feature.encoding == "one_hot" else ())
        if feature.encoding != "one_hot":
            try:
                low, high = map(float, value.split(":"))
            except ValueError:
                raise BadInput(f"declared_facts: {value!r} of {feature.column} is no range LOW:HIGH") from None
            mean = (low + high) / 2
            numbers[:, i] = mean, mean * mean + (high - low) ** 2 / 12
    classes = merge_classes([stated[label].split("|")]) if label else ()
    return Facts(tuple(categories), np.ones(len(features), dtype=np.int64), numbers[0], numbers[1], classes)


def check_facts(facts: Facts, table: str) -> Facts:
    """Refuse facts that would tell rows one by one: a category for each is no category.

    Raises:
        BadInput: more categories than `MOST_CATEGORIES` in a column.
    """
    most = max((len(one) for one in (*facts.categories, facts.classes)), default=0)
    if most > MOST_CATEGORIES:
        raise BadInput(f"features of {table}: {most} categories in one column, at most {MOST_CATEGORIES} are allowed")
    return facts


def merge_facts(parts: Sequence[Facts]) -> Facts:
    """Return the facts of the vertical table from those of its partitions, added in the order given."""
    categories = tuple(
        tuple(sorted(set().union(*found))) for found in zip(*(part.categories for part in parts), strict=True)
    )
    counts, totals, squares = (
        np.sum([getattr(part, name) for part in parts], axis=0) for name in ("counts", "totals", "squares")
    )
    return Facts(categories, counts, totals, squares, merge_classes([part.classes for part in parts]))


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


def check_classes(classes: Sequence[str], query: RelationalQuery, name: str) -> None:
    """Check that a label has no more classes than the description of the data states, if it states any.

    Raises:
        LabelError: it has.
    """
    if 1 < query.num_classes < len(classes):
        some = ", ".join(classes[:5])
        raise LabelError(f"label: {name} has {len(classes)} classes ({some}...), {query.num_classes} were announced")


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


def design_matrix(
    data: pa.Table, features: Sequence[Feature], facts: Facts, bias: bool, standardise: bool = True
) -> Array:
    """Return x_nD: each feature's columns in order, and a last column of ones for the label's table (`bias`).

    Standardised numbers have mean 0 and deviation 1 over the vertical table (a constant column becomes 0). NULL is
    a category of its own, written as an empty text; a category that `facts` lacks gives zeros.
    """
    columns = []
    for i, feature in enumerate(features):
        if feature.encoding == "one_hot":
            known = {category: place for place, category in enumerate(facts.categories[i])}
            texts = _texts(data, feature)
            hot = np.zeros((len(texts), len(known)))
            places = np.array([known.get(text, -1) for text in texts], dtype=np.int64)
            rows = np.flatnonzero(places >= 0)
            hot[rows, places[rows]] = 1.0
            columns.append(hot)
        else:
            values = _numbers(data, feature)
            if standardise:
                count = max(int(facts.counts[i]), 1)
                mean = float(facts.totals[i]) / count
                deviation = np.sqrt(max(float(facts.squares[i]) / count - mean * mean, 0.0))
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
