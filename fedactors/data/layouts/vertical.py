"""Vertical and relational data: who holds which columns or tables, described without any row.

A description is small enough to be sent to every actor (only `ArraySource`, in tests, holds rows): each actor takes its
own source and loads it itself. `replaced_rows` and `replaced_labels` give adjacent data sets, which privacy claims
speak of: one row or label replaced, by typical values and by extreme ones that no data set has.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from sqlglot import exp

from fedactors.data.alignment.ids import Alignment
from fedactors.data.columns import ColumnRule, Preprocessing
from fedactors.data.databases import TableSource, parse_address
from fedactors.data.datasets.catalogue import Task, describe
from fedactors.data.partitioners import ColumnPartitioner
from fedactors.data.party_rows import (
    Float32,
    PartyBlock,
    SplitKind,
    check_block,
    check_usable,
    prepare_like,
    with_clear_ids,
)
from fedactors.data.query import named_tables
from fedactors.data.sources import EditedSource, FileSource, HolderSource, NamedSource, Source, named_sources
from fedactors.data.values import IdRule
from fedactors.errors import BadInput
from fedactors.messages.codec import wire_type

_NAMED: WeakValueDictionary[VerticalPart, PartyBlock] = WeakValueDictionary()
"""Blocks of named data sets that somebody in this process holds."""
_SHARED: dict[str, PartyBlock] = {}
"""Blocks of `shared_rows`, by party."""


@wire_type
class VerticalPart:
    """What one party is told of vertical data: the names of all parties, and where its own rows are."""

    name: str
    task: Task
    num_classes: int
    """1 for regression."""
    party: str
    parties: tuple[str, ...]
    label_party: str
    source: Source
    alignment: Alignment
    split: SplitKind = "random"

    def load(self) -> PartyBlock:
        """Load and check the party's rows, in the process of its actor.

        Of a named data set, which does not change, the actors of a party that share a process share one block too,
        which none of them can write to.

        Raises:
            BadInput: rows that cannot be trained on; the message names party, file and column.
            DataMissing: a file of a named data set is not on this machine.
        """
        if self.party in _SHARED:
            return _SHARED[self.party]
        if not isinstance(self.source, NamedSource):
            return self._load()
        block = _NAMED.get(self)
        if block is None:
            block = _NAMED[self] = self._load()
            for array in vars(block).values():
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False
        return block

    def _load(self) -> PartyBlock:
        block = replace(self.source.load(), alignment=self.alignment)
        check_block(block, self.party, self.task, self.num_classes)
        if self.party == self.label_party and block.labels is None:
            raise BadInput(f"{self.party}: {block.origin}: label: the label party holds no labels")
        return block

    def load_new(self, trained: Preprocessing) -> tuple[PartyBlock, Float32]:
        """Load rows to predict: the block, and what the model sees of it (N, D); nobody's labels are read.

        Raises:
            BadInput: no rows, none that can be used, other columns than those trained on, or another alignment.
            DataMissing: a file of a named data set is not on this machine.
        """
        source = self.source
        self._check_alignment(trained)
        if isinstance(source, FileSource) and source.csv is None:
            source = replace(source, csv=trained.csv)
        if isinstance(source, FileSource) and source.id_rules != trained.id_rules:
            if source.id_rules:
                raise BadInput(
                    f"parties.{self.party}.id_rules: {list(source.id_rules)} is not allowed: training compared ids by "
                    f"{list(trained.id_rules)}"
                )
            source = replace(source, id_rules=trained.id_rules)
        block = with_clear_ids(source.load(trained.columns), self.alignment)
        check_usable(block, f"{self.party}: {block.origin}")
        return block, prepare_like(block, trained)

    def _check_alignment(self, trained: Preprocessing) -> None:
        """Check that rows to predict find each other as those did that were trained on.

        Raises:
            BadInput: they would in another way, or by another column.
        """
        if trained.alignment is None:  # of a checkpoint that does not say
            return
        if self.alignment != trained.alignment:
            raise BadInput(
                f"task.alignment: {self.alignment!r} is not allowed: the model was trained with {trained.alignment!r}"
            )
        id_column = self.source.id_column if isinstance(self.source, FileSource) else trained.id_column
        if id_column != trained.id_column and self.alignment != "already-aligned":
            raise BadInput(
                f"parties.{self.party}.id: {id_column!r} is not allowed: training aligned rows by {trained.id_column!r}"
            )

    @property
    def passive_parties(self) -> tuple[str, ...]:
        """The parties without labels, in the order in which they were given."""
        return tuple(party for party in self.parties if party != self.label_party)


@wire_type
class VerticalData:
    """Parties that hold different columns of the same rows; one of them holds the labels.

    The driver has the whole description; an actor is built with its own `part` of it.
    """

    name: str
    task: Task
    num_classes: int
    """1 for regression."""
    parties: tuple[str, ...]
    sources: tuple[Source, ...]
    label_party: str
    alignment: Alignment = "already-aligned"
    split: SplitKind = "random"
    """How training, validation and test rows are drawn; a column of the label party's file has precedence."""
    query: RelationalData | None = None
    """Where rows are what a query joins: its tables and who holds them (`fedactors.data.alignment.rows`)."""

    @property
    def weighted_by(self) -> str:
        """What says that rows do not count alike, as it stands in the description; empty: nothing does."""
        said = (one.weighted_by for one in self.sources if isinstance(one, FileSource))
        return next(filter(None, said), "")

    def part(self, party: str) -> VerticalPart:
        """Return what the actors of `party` are built with.

        Raises:
            BadInput: no such party.
        """
        if party not in self.parties:
            raise BadInput(f"party: {party!r} is not allowed: the parties are {', '.join(self.parties)}")
        return VerticalPart(
            name=self.name,
            task=self.task,
            num_classes=self.num_classes,
            party=party,
            parties=self.parties,
            label_party=self.label_party,
            source=self.sources[self.parties.index(party)],
            alignment=self.alignment,
            split=self.split,
        )

    def load(self, party: str) -> PartyBlock:
        """Load and check the rows of `party`; see `VerticalPart.load`."""
        return self.part(party).load()

    @property
    def passive_parties(self) -> tuple[str, ...]:
        """The parties without labels, in the order in which they were given."""
        return tuple(party for party in self.parties if party != self.label_party)


@contextlib.contextmanager
def shared_rows(blocks: Mapping[str, PartyBlock]) -> Iterator[None]:
    """Let the actors of this process have these rows, by party, as long as this lasts: nobody loads any.

    Raises:
        BadInput: others are shared already.
    """
    if _SHARED:
        raise BadInput(f"data: rows of {', '.join(_SHARED)} are shared in this process already: end that run first")
    _SHARED.update(blocks)
    try:
        yield
    finally:
        _SHARED.clear()


def vertical(
    dataset: str,
    parties: tuple[str, ...] = ("active", "passive"),
    *,
    label_party: str | None = None,
    partitioner: ColumnPartitioner | None = None,
    alignment: Alignment = "already-aligned",
    overlap: float = 1.0,
    order_seed: int | None = None,
) -> VerticalData:
    """Deal the columns of a named data set to `parties`; the first has the labels unless `label_party` says otherwise.

    Raises:
        BadInput: unknown data set, or one without columns to deal, or fewer columns than parties.
    """
    described = describe(dataset)
    if "vertical" not in described.layouts:
        raise BadInput(f"data: {dataset} is of kind {described.kind} and cannot be split by columns")
    if len(parties) > described.columns:
        raise BadInput(f"data: {dataset} has {described.columns} columns for {len(parties)} parties")
    if (overlap < 1 or order_seed is not None) and alignment == "already-aligned":
        raise BadInput("alignment: 'already-aligned' is not allowed when the parties' rows differ: give hash or psi")
    holder = label_party or parties[0]
    if holder not in parties:
        raise BadInput(f"label_party: {holder!r} is not allowed: the parties are {', '.join(parties)}")
    return VerticalData(
        name=dataset,
        task=described.task,
        num_classes=described.num_classes,
        parties=parties,
        sources=named_sources(
            dataset,
            len(parties),
            label_index=parties.index(holder),
            partitioner=partitioner,
            overlap=overlap,
            order_seed=order_seed,
        ),
        label_party=holder,
        alignment=alignment,
    )


@wire_type
class RelationalPartition:
    """One horizontal partition of one table of the query, and the organisation that holds it."""

    party: str
    table: str
    partition: int
    source: TableSource
    id_columns: tuple[str, ...] = ()
    """What rows are called by in predictions; none: by the columns on which they join."""
    rules: tuple[tuple[str, ColumnRule], ...] = ()
    """What the owner says of its columns, by name or pattern; the others are numbers, or categories if the query has
    them so."""
    id_rules: tuple[IdRule, ...] = ()
    """What does not count in keys that are texts."""


@wire_type
class RelationalQuery:
    """What every party knows of a training set that is stated in SQL: the query, and who holds which table of it."""

    name: str
    sql: str
    label: str
    task: Task
    num_classes: int
    categorical: tuple[str, ...]
    holders: tuple[tuple[str, str, int], ...]
    """(party, table, number of the partition) of every partition; where its rows lie only its party knows."""
    ruled: tuple[str, ...] = ()
    """Columns, as ``table.column``, of which their owners say how they become numbers."""
    is_new: bool = False
    """Rows to predict: how columns become numbers was settled in training."""
    classes: tuple[str, ...] = ()
    """The labels in the order in which they are numbered; none: their own order."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables, each once, in the order in which they were given."""
        return tuple(dict.fromkeys(table for _, table, _ in self.holders))


@wire_type
class RelationalData:
    """A training set stated in SQL over tables that lie with different organisations.

    The driver has the whole description; an actor is built with `query` and its own party's partitions.
    """

    name: str
    sql: str
    """Conjunctive query, or a union of them, over the names in `partitions`."""
    label: str
    """``table.column`` of the label."""
    task: Task
    num_classes: int
    partitions: tuple[RelationalPartition, ...]
    categorical: tuple[str, ...] = ()
    """Feature columns, as ``table.column`` or ``column``, that are categories and not numbers."""
    classes: tuple[str, ...] = ()
    """As of `RelationalQuery`."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The organisations, each once, in the order in which they were given."""
        return tuple(dict.fromkeys(partition.party for partition in self.partitions))

    @property
    def query(self) -> RelationalQuery:
        """What every party knows."""
        return RelationalQuery(
            name=self.name,
            sql=self.sql,
            label=self.label,
            task=self.task,
            num_classes=self.num_classes,
            categorical=self.categorical,
            classes=self.classes,
            holders=tuple((p.party, p.table, p.partition) for p in self.partitions),
            ruled=tuple(dict.fromkeys(f"{p.table}.{name}" for p in self.partitions for name, _ in p.rules)),
        )

    def part(self, party: str) -> tuple[RelationalPartition, ...]:
        """Return the partitions of `party`, which only its own actors are built with.

        Raises:
            BadInput: no such party.
        """
        found = tuple(partition for partition in self.partitions if partition.party == party)
        if not found:
            raise BadInput(f"party: {party!r} is not allowed: the parties are {', '.join(self.parties)}")
        return found

    def of(self, table: str) -> tuple[RelationalPartition, ...]:
        """Return the partitions of `table`.

        Raises:
            BadInput: no such table.
        """
        found = tuple(partition for partition in self.partitions if partition.table == table)
        if not found:
            raise BadInput(f"table: {table!r} is not allowed: the tables are {', '.join(self.query.tables)}")
        return found


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
        addresses: table (or partition) in the SQL to its address (see `fedactors.data.databases.parse_address`); the
            organisation is called like the table.
        label: ``table.column``, or ``column`` where one table has it.
        task: regression, binary or multiclass.
        num_classes: of a multiclass task; 2 for binary, 1 for regression.
        categorical: columns that are categories.
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


# Columns that are known only after the label (such as the delay at departure) are not asked for.
_FLIGHTS = (
    "SELECT flights.{label}, flights.distance, flights.hour, flights.month, airlines.name, planes.engines, "
    "planes.seats, airports.lat, airports.lon, airports.alt, weather.temp, weather.humid, weather.wind_speed, "
    "weather.precip, weather.visib "
    "FROM flights JOIN airlines ON flights.carrier = airlines.carrier JOIN planes ON flights.tailnum = planes.tailnum "
    "JOIN airports ON flights.dest = airports.faa "
    "JOIN weather ON flights.origin = weather.origin AND flights.year = weather.year "
    "AND flights.month = weather.month AND flights.day = weather.day AND flights.hour = weather.hour "
    "WHERE flights.{label} IS NOT NULL AND weather.temp IS NOT NULL AND weather.humid IS NOT NULL "
    "AND weather.wind_speed IS NOT NULL"
)
_QUERIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "movielens-1m": (
        "SELECT ratings.rating, users.gender, users.age, users.occupation, movies.year, movies.genre "
        "FROM ratings JOIN users ON ratings.user_id = users.user_id "
        "JOIN movies ON ratings.movie_id = movies.movie_id",
        "ratings.rating",
        ("users.gender", "users.age", "users.occupation", "movies.genre"),
    ),
    "nycflights13": (
        _FLIGHTS.format(label="late"),
        "flights.late",
        ("airlines.name", "flights.hour", "flights.month"),
    ),
    "orders": (
        "SELECT orders.returned, orders.amount, orders.hour, items.weight, items.price, cards.credit_limit, cards.age "
        "FROM orders JOIN items ON orders.order_id = items.order_id JOIN cards ON orders.card_id = cards.card_id",
        "orders.returned",
        (),
    ),
}
_REGRESSIONS = {"nycflights13": (_FLIGHTS.format(label="arr_delay"), "flights.arr_delay")}
"""Query and label of a regression where they differ from those of the classification."""


def relational(
    dataset: str,
    *,
    num_partitions: int = 1,
    sql: str | None = None,
    label: str | None = None,
    task: Task | None = None,
    num_classes: int | None = None,
) -> RelationalData:
    """Give each table of a named relational data set to an organisation of its own, in horizontal partitions.

    Query, label, task and number of classes are the data set's own unless given, for example ``task="multiclass",
    num_classes=5`` for the ratings of MovieLens.

    Raises:
        BadInput: unknown data set, or one that is not made of tables.
    """
    described = describe(dataset)
    if described.kind != "tables":
        raise BadInput(f"data: {dataset} is of kind {described.kind}; a data set of several tables is needed here")
    if num_partitions < 1:
        raise BadInput(f"num_partitions: {num_partitions} is not allowed: give at least 1")
    base = dataset.partition(":")[0]
    query, label_column, categorical = _QUERIES[base]
    if task == "regression" and base in _REGRESSIONS:
        query, label_column = _REGRESSIONS[base]
    names = named_tables(sql or query)
    return RelationalData(
        name=dataset,
        sql=sql or query,
        label=label or label_column,
        task=task or described.task,
        num_classes=num_classes or (1 if task == "regression" else described.num_classes),
        categorical=categorical if sql is None else (),
        partitions=tuple(
            RelationalPartition(
                party=table if num_partitions == 1 else f"{table}-{index}",
                table=table,
                partition=index,
                source=TableSource(
                    kind="named", where=dataset, table=table, partition=index, num_partitions=num_partitions
                ),
            )
            for table in names
            for index in range(num_partitions)
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """The data of a run in which one record of one party is another: what a privacy claim speaks of."""

    label: str
    """What was changed, for a reader: ``row 17 by row 3``."""
    kind: str
    """Which claims it is a neighbour for, as in `PrivacyRecord.neighbour`: row, label, node, tuple."""
    data: Any
    """What ``run`` takes."""
    record: int | None = None
    """Number of a record that has a part with several parties: neighbours of one number change parts of one record."""


_HUGE = 1e6


def replaced_rows(
    data: VerticalData, party: str, count: int, seed: int, *, keep_label: bool = False
) -> Sequence[Neighbour]:
    """Return `count` neighbours of kind ``row``; at the party with labels the label is another one too.

    In turn: another row's values, one value times 100, all values 0, all values a million, all signs turned, and the
    largest numbers that there are.

    Args:
        data: to be changed.
        party: whose row is another one.
        count: how many.
        seed: which rows.
        keep_label: for a protocol that tells all parties the labels.
    """
    block = data.load(party)
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        row, other, column = (int(rng.integers(bound)) for bound in (*[len(block.ids)] * 2, block.features.shape[1]))
        values = block.features[row].copy()
        kind = number % 6
        if kind == 0:
            values, what = block.features[other].copy(), f"row {row} by the values of row {other}"
        elif kind == 1:
            values[column] = 100 * (values[column] or 1)
            what = f"row {row} with {block.feature_names[column]} a hundred times as large"
        elif kind == 2:
            values[:] = 0
            what = f"row {row} by zeros"
        elif kind == 3:
            values[:] = _HUGE
            what = f"row {row} by a million in each column"
        elif kind == 4:
            values, what = -values, f"row {row} with its signs turned"
        else:
            values[:] = np.finfo(np.float32).max
            what = f"row {row} by the largest numbers"
        label = None if block.labels is None or keep_label else _other_label(data, block.labels, row, other)
        found.append(Neighbour(label=what, kind="row", data=_edited(data, party, row, values, label)))
    return found


def replaced_labels(data: VerticalData, count: int, seed: int) -> Sequence[Neighbour]:
    """Return `count` neighbours of kind ``label``: one row's label is another one."""
    block = data.load(data.label_party)
    assert block.labels is not None
    rng = np.random.default_rng(seed)
    found = []
    for row in rng.choice(len(block.ids), size=min(count, len(block.ids)), replace=False).tolist():
        label = _other_label(data, block.labels, row, int(rng.integers(len(block.ids))))
        changed = _edited(data, data.label_party, row, block.features[row], label)
        what = f"label {block.labels[row]:g} of row {row} by {label:g}"
        found.append(Neighbour(label=what, kind="label", data=changed))
    return found


def _other_label(data: VerticalData, labels: np.ndarray, row: int, other: int) -> float:
    if data.task == "regression":
        return float(labels[other] + 100 * (labels.std() or 1))
    return float((labels[row] + 1) % data.num_classes)


def _edited(data: VerticalData, party: str, row: int, values: np.ndarray, label: float | None) -> VerticalData:
    index = data.parties.index(party)
    source = data.sources[index]
    if isinstance(source, HolderSource):
        raise BadInput("data: rows that a query joins are not allowed here: a neighbour has one row otherwise")
    assert not isinstance(source, EditedSource)
    edited = EditedSource(source=source, row=row, features=values.astype(np.float32), label=label)
    return dataclasses.replace(data, sources=(*data.sources[:index], edited, *data.sources[index + 1 :]))
