"""From a description of organisations' tables to one client's rows as numbers.

    parties.toml, a named data set, or what a scenario states --> RelationalData      (the driver)
    --seat_clients--> Seat: a client with one partition and its source                (the driver)
    --column_facts--> Facts --design_matrix--> x_nD, y_n                              (that client alone)

What a query means over tables that others hold, and how a client's rows are read: `fedactors.data.layouts.relational`.

Partitions of one vertical table must agree on categories, means and deviations: each tells its `Facts`, which the
first of them merges.

Legend: n rows of a client, D columns of the design matrix.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import scipy.sparse
from numpy.typing import NDArray

from fedactors.data.columns import ColumnRule, Encoded, FittedColumn, Preprocessing, encode
from fedactors.data.datasets.catalogue import Task
from fedactors.data.description import load_description_as
from fedactors.data.layouts.relational import TableOwner, column_of, fit_table, partitions_of
from fedactors.data.layouts.vertical import RelationalData, RelationalQuery, relational
from fedactors.data.party_rows import SparseRows
from fedactors.data.query import Feature, FeatureTypeError, LabelError
from fedactors.data.values import allocate, class_text
from fedactors.errors import BadInput
from fedactors.privacy.mechanisms import randomised_labels, randomised_values
from fedactors.protocols.tablepuppet.algorithm import Loss
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.messages import Facts
from fedactors.secure_sums.primitives import FEWEST

Array = NDArray[np.float64]

# --- who holds what ------------------------------------------------------------------------------------------------


def load_data(config: TablePuppetConfig, name: str | RelationalData, seed: int) -> RelationalData:
    """Return who holds what: a file's description, or the tables of a named set dealt to the organisations."""
    if isinstance(name, str) and not name.endswith(".toml"):
        return relational(name, num_partitions=config.partitions, task=config.task, num_classes=config.num_classes)
    for key in ("num_partitions", "task", "num_classes"):
        if (value := getattr(config, key)) is not None:
            where = name if isinstance(name, str) else name.name
            raise BadInput(f"{key}: {value!r} is not allowed: it is for named data sets; {where} states its own")
    return _ruled(config, load_description_as(Path(name), RelationalData) if isinstance(name, str) else name)


def _ruled(config: TablePuppetConfig, user_data: RelationalData) -> RelationalData:
    for partition in user_data.partitions:
        if not partition.rules:
            continue
        if config.declared_facts:
            raise BadInput(
                f"parties.{partition.party}.columns: rules are not allowed with declared_facts: both say how rows "
                "become numbers"
            )
        if (count := len(user_data.of(partition.table))) > 1:
            raise BadInput(
                f"parties.{partition.party}.columns: rules are not allowed in tablepuppet where table "
                f"{partition.table!r} has {count} partitions, each of which would find its own medians and categories"
            )
    return user_data


def name_tables(
    config: TablePuppetConfig, table_owners: Sequence[TableOwner]
) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return the names of each table's clients, and the server's: a party of its own, or an actor of `server_in`'s."""
    tables: dict[str, tuple[str, ...]] = {}
    for table_owner in table_owners:
        tables[table_owner.table] = (*tables.get(table_owner.table, ()), table_owner.name)
    if config.secure_aggregation and (len(tables) < FEWEST or any(len(parties) > 1 for parties in tables.values())):
        sizes = ", ".join(f"{table} {len(parties)}" for table, parties in tables.items())
        raise BadInput(f"secure_aggregation: {FEWEST} tables of one partition each are needed, there are {sizes}")
    server = "server"
    if config.server_in is not None:
        if config.server_in not in tables:
            raise BadInput(f"server_in: {config.server_in!r} is not allowed: one of the tables {', '.join(tables)}")
        server = f"{tables[config.server_in][0].partition('/')[0]}/server"
    if any(table_owner.name == server for table_owner in table_owners):
        raise BadInput(f"parties: the name {server!r} is the server's")
    return tables, server


def loss_of(config: TablePuppetConfig, task: Task) -> Loss:
    """Return the loss that the model and the task imply."""
    by_task: dict[str, Loss] = {"regression": "squared", "binary": "logistic", "multiclass": "softmax"}
    by_model: dict[str, Loss] = {"linear": "squared", "logistic": "logistic", "softmax": "softmax"}
    loss = by_model.get(config.model, by_task[task])
    if loss == "softmax" and task == "regression":
        raise BadInput("model: 'softmax' is not allowed: the labels of a regression are numbers, no classes")
    if config.label_dp is not None and loss == "squared" and config.label_range is None:
        raise BadInput("label_dp: numeric labels need a declared label_range=LOW,HIGH to be clipped to")
    if loss != "squared" and config.join_by == "tree":
        raise BadInput(f"join_by: tree is not allowed with the {loss} loss, which needs single joined rows; use rows")
    return loss


def assign_clients(config: TablePuppetConfig, data: RelationalData) -> tuple[TableOwner, ...]:
    """Return a client for each horizontal partition, tables in the order of the query.

    A table that several parties hold is the union of their partitions. An actor is called like its party, or
    ``party/table`` where a party takes several seats.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
        BadInput: partitions where the algorithm needs whole tables.
    """
    taken = partitions_of(data)
    for table in dict.fromkeys(table for table, _, _ in taken):
        num_partitions = sum(other == table for other, _, _ in taken)
        if num_partitions > 1 and config.algorithm in ("rfl-sgd-v", "rfl-admm-v", "vfl-sgd", "vfl-admm"):
            allowed = "rfl-admm" if config.is_admm else "rfl-sgd"
            raise BadInput(
                f"algorithm: {config.algorithm!r} is not allowed: table {table!r} has {num_partitions}"
                f" partitions; use {allowed} or centralised"
            )
    table_owners = []
    for table, index, partition in taken:
        name = partition.party
        if sum(other.party == partition.party for _, _, other in taken) > 1:
            several = sum(t == table and other.party == partition.party for t, _, other in taken) > 1
            name = f"{name}/{table}-{index}" if several else f"{name}/{table}"
        table_owners.append(TableOwner(name=name, table=table, index=index, partition=partition))
    return tuple(table_owners)


# --- a client's own rows -------------------------------------------------------------------------------------------


def choose_test(num_rows: int, test_fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which rows of a partition of the label's table are kept for the test."""
    chosen = np.ones(num_rows, dtype=bool)
    chosen[rng.permutation(num_rows)[: int(num_rows * (1.0 - test_fraction))]] = False
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


MOST_NAMED = 5
"""Values that one line names."""
WIDE = 64
"""Columns from which on a table's rows are held without their zeros."""
MOST_CATEGORIES = 10_000
"""Of one column: `Facts` name all of them to the other partitions of a table."""

# --- rows as numbers -----------------------------------------------------------------------------------------------


def column_facts(data: pa.Table, features: Sequence[Feature], classes: Sequence[str] = ()) -> Facts:
    """Return what a partition knows of its features: categories (one_hot), or count, sum and sum of squares (numeric).

    Raises:
        FeatureTypeError: a feature holds NULL, or NaN.
    """
    categories: list[tuple[str, ...]] = []
    numbers = np.zeros((3, len(features)))
    for i, feature in enumerate(features):
        if feature.encoding == "one_hot":
            categories.append(tuple(sorted(pyarrow.compute.unique(_texts(data, feature)).to_pylist())))
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
    """
    stated: dict[str, str] = {}
    for entry in declared:
        name, equals, value = entry.partition("=")
        if not equals or not value:
            raise BadInput(f"declared_facts: {entry!r} is not allowed: use column=LOW:HIGH or column=A|B|C")
        stated[name] = value
    wanted = [feature.column for feature in features] + ([label] if label else [])
    if missing := [name for name in wanted if name not in stated]:
        raise BadInput(f"declared_facts: {missing[0]} is missing: every feature needs an entry, or none has one")
    categories: list[tuple[str, ...]] = []
    numbers = np.zeros((2, len(features)))
    for i, feature in enumerate(features):
        value, is_category = stated[feature.column], feature.encoding == "one_hot"
        categories.append(tuple(sorted(value.split("|"))) if is_category else ())
        if not is_category:
            numbers[:, i] = _moments_of_range(feature.column, value)
    classes = merge_classes([stated[label].split("|")]) if label else ()
    return Facts(tuple(categories), np.ones(len(features), dtype=np.int64), numbers[0], numbers[1], classes)


def _moments_of_range(column: str, text: str) -> tuple[float, float]:
    """Return mean and mean square of a uniform distribution over LOW:HIGH."""
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        raise BadInput(f"declared_facts: {text!r} of {column} is no range LOW:HIGH") from None
    mean = (low + high) / 2
    return mean, mean * mean + (high - low) ** 2 / 12


def check_facts(facts: Facts, table: str) -> Facts:
    """Refuse facts that would tell rows one by one: a category for each is no category."""
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
    """Check that a label has no more classes than the description of the data states, if it states any."""
    if 1 < query.num_classes < len(classes):
        some = ", ".join(classes[:5])
        raise LabelError(f"label: {name} has {len(classes)} classes ({some}...), {query.num_classes} were announced")


def label_values(labels: pa.ChunkedArray, loss: str, name: str, classes: Sequence[str] = ()) -> NDArray[Any]:
    """Return y_n: numbers for the squared loss, places in `classes` for the others; without classes 0 or 1."""
    if labels.null_count:
        raise LabelError(f"label: {name} is missing in {labels.null_count} of {len(labels)} rows; filter them out")
    if classes and loss != "squared":
        indices = {class_text(text): i for i, text in enumerate(classes)}
        found = labels.combine_chunks().dictionary_encode()  # a class is what Python writes for its value
        texts = [class_text(value) for value in found.dictionary.to_pylist()]
        unknown = sorted(set(texts) - set(indices))
        if unknown:
            raise LabelError(f"label: {name} holds {unknown[0]!r}, which is none of the classes {', '.join(classes)}")
        of_text = np.array([indices[text] for text in texts], dtype=np.int64)
        codes = np.asarray(of_text[found.indices.to_numpy()])
        return codes.astype(np.float64) if loss == "logistic" else codes
    try:
        values = np.asarray(pyarrow.compute.cast(labels, pa.float64()).to_numpy(), dtype=np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        some = sorted(map(str, pyarrow.compute.unique(labels).to_pylist()))[:MOST_NAMED]
        advice = f"; list its classes: classes = {json.dumps(some, ensure_ascii=False)} under [task]"
        raise LabelError(f"label: {name} is {labels.type}, not a number{'' if loss == 'squared' else advice}") from None
    if not np.isfinite(values).all():
        raise LabelError(f"label: {name} holds values that are no finite numbers")
    if loss == "logistic" and not np.isin(values, (0.0, 1.0)).all():
        raise LabelError(
            f"label: {name} must hold 0 and 1 only for the logistic loss; of others list the two "
            'classes: classes = ["-1", "1"] under [task]'
        )
    return values


_CELLS_ENCODED = 1 << 20
"""Numbers, each with its column, that are in memory beside the matrix at once."""


def design_matrix(
    data: pa.Table, features: Sequence[Feature], facts: Facts, bias: bool, standardise: bool = True
) -> Array | SparseRows:
    """Return x_nD: each feature's columns in order, and a last column of ones for the label's table (`bias`).

    Standardised numbers have mean 0 and deviation 1 over the vertical table (a constant column becomes 0). A category
    that `facts` lacks gives zeros. Of more than `WIDE` columns, most of them categories, only what is not zero is held.
    """
    encoded = zip(features, facts.categories, strict=True)
    width = bias + sum(len(known) if feature.encoding == "one_hot" else 1 for feature, known in encoded)
    if width > max(WIDE, 2 * len(features)):  # a number takes more room there
        where, what = _encoded_columns(data, features, facts, bias, standardise)
        ends = np.arange(data.num_rows + 1) * len(where)
        columns = np.stack(where, axis=1).astype(np.int32).ravel()
        cells = np.stack(what, axis=1).ravel(), columns, ends
        return SparseRows(scipy.sparse.csr_array(cells, shape=(data.num_rows, width)))
    x_nD = allocate((data.num_rows, width), np.float64)
    step = max(_CELLS_ENCODED // max(len(features), 1), 1)
    for first in range(0, data.num_rows, step):
        rows = slice(first, min(first + step, data.num_rows))
        block = data.slice(first, rows.stop - first)
        try:
            found = _encoded_columns(block, features, facts, bias, standardise)
        except FeatureTypeError:
            _encoded_columns(data, features, facts, bias, standardise)  # the error says of how many rows it is: of all
            raise
        for column, values in zip(*found, strict=True):
            x_nD[rows][np.arange(block.num_rows), column] += values
    return x_nD


def _encoded_columns(
    data: pa.Table, features: Sequence[Feature], facts: Facts, bias: bool, standardise: bool
) -> tuple[list[NDArray[np.int64]], list[Array]]:
    """Return for each feature in which column of the design matrix each row has a number, and the number."""
    n, start = data.num_rows, 0
    where, what = [], []
    for i, feature in enumerate(features):
        if feature.encoding == "one_hot":
            indices = _category_indices(data, feature, facts.categories[i])
            where.append(np.where(indices >= 0, start + indices, 0))
            what.append((indices >= 0).astype(np.float64))
            start += len(facts.categories[i])
        else:
            values = _numbers(data, feature)
            if standardise:
                mean, deviation = scale_of(facts, i)
                values = (values - mean) / deviation if deviation else np.zeros(len(values))
            where.append(np.full(n, start))
            what.append(values)
            start += 1
    if bias:
        where.append(np.full(n, start))
        what.append(np.ones(n))
    return where, what


def scale_of(facts: Facts, feature: int) -> tuple[float, float]:
    """Return mean and deviation of a numeric feature over the vertical table; deviation 0: it is constant."""
    count = max(int(facts.counts[feature]), 1)
    mean = float(facts.totals[feature]) / count
    deviation = float(np.sqrt(max(float(facts.squares[feature]) / count - mean * mean, 0.0)))
    return mean, deviation if deviation > 1e-12 * (1.0 + abs(mean)) else 0.0


def ruled_matrix(
    data: pa.Table, rules: Mapping[str, ColumnRule], bias: bool, standardise: bool, where: str
) -> tuple[Array, Preprocessing]:
    """Return what `design_matrix` does where the owner has rules for its columns, and what was measured by them.

    Raises:
        BadInput: values that the rules do not allow.
    """
    columns = {name: column_of(data, name, rule) for name, rule in rules.items()}
    fitted = fit_table(columns, rules, where, standardise)
    x_nD = fitted.finish(encode(columns, fitted.columns, where, new=False, dtype=np.float64).features)
    return np.hstack([x_nD, np.ones((data.num_rows, int(bias)))]), fitted


# --- rows to predict --------------------------------------------------------------------------------------------------


def encoding_of(features: Sequence[Feature], facts: Facts, standardise: bool) -> Preprocessing:
    """Return what `design_matrix` does, without the column of ones, as what a part of a model keeps."""
    columns, mean, deviation = [], [], []
    for i, feature in enumerate(features):
        if feature.encoding == "one_hot":
            rule = ColumnRule(type="categorical")
            columns.append(FittedColumn(name=feature.column, rule=rule, categories=facts.categories[i]))
            mean += [0.0] * len(facts.categories[i])
            deviation += [1.0] * len(facts.categories[i])
        else:
            columns.append(FittedColumn(name=feature.column, rule=ColumnRule()))
            measured = scale_of(facts, i) if standardise else (0.0, 1.0)
            mean.append(measured[0])
            deviation.append(measured[1] or _CONSTANT)
    return Preprocessing(
        columns=tuple(columns),
        feature_names=tuple(name for one in columns for name in one.names),
        fill=np.zeros(len(mean)),
        mean=np.asarray(mean, np.float64),
        deviation=np.asarray(deviation, np.float64),
    )


_CONSTANT = 1e300
"""Divides a column that was constant in training, which was 0 there, so that any other value is 0 as well."""


def encode_new(rows: pa.Table, features: Sequence[Feature], fitted: Preprocessing, where: str) -> Encoded:
    """Return rows to predict as the model sees them (n, D), without a column of ones; rejected ones are zeros."""
    rules = {one.name: one.rule for one in fitted.columns}
    columns = {one.column: column_of(rows, one.column, rules[one.column]) for one in features}
    if not columns:
        return Encoded(np.zeros((rows.num_rows, 0)), {})
    encoded = encode(columns, fitted.columns, where, new=True, dtype=fitted.dtype)
    x_nD = fitted.finish(encoded.features)
    x_nD[list(encoded.rejected)] = 0.0
    return Encoded(x_nD, encoded.rejected)


def _texts(data: pa.Table, feature: Feature) -> pa.ChunkedArray:
    column = data.column(feature.column)
    if column.null_count:
        raise FeatureTypeError(
            f"features: {feature.column} is missing in {column.null_count} of {len(column)} rows; filter them in the "
            f"query, or say under its party's columns {feature.column} = "
            '{ type = "categorical", missing = "indicator" }'
        )
    try:
        return column.cast(pa.string())
    except pa.ArrowNotImplementedError:
        raise FeatureTypeError(f"features: {feature.column} holds {column.type}, no categories") from None


def _category_indices(data: pa.Table, feature: Feature, categories: Sequence[str]) -> NDArray[np.int64]:
    """Return each row's place among the categories (n), -1 for one that is none of them."""
    found = pyarrow.compute.index_in(_texts(data, feature), value_set=pa.array(categories, pa.string()))
    return np.asarray(found.fill_null(-1).to_numpy(), dtype=np.int64)


def _numbers(data: pa.Table, feature: Feature) -> Array:
    column = data.column(feature.column)
    try:
        values = np.asarray(pyarrow.compute.cast(column, pa.float64()).to_numpy(), dtype=np.float64)
    except pa.ArrowInvalid:
        raise FeatureTypeError(
            f"features: {feature.column} holds whole numbers beyond 2^53, which double precision merges; leave it out, "
            "or take off in a view what all of them have in common"
        ) from None
    if not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise FeatureTypeError(
            f"features: {feature.column} has no finite number in {bad} of {len(values)} rows; filter them in the query "
            f"(NaN too), such as by ABS({feature.column}) < 1e300"
        )
    return values
