"""The rows of a query's join: each table's owner keeps its own columns of them, and nobody sees another's.

    mapper or server ──describe──▶ owners: columns       ──prepare──▶ owners: resolve the query, read their rows
    one owner ──HashSecret──▶ the other owners, past the mapper
    owners ──KeyHashes──▶ mapper: `fedactors.data.join`, the row of every table behind every joined row
    mapper ──RowPositions──▶ each owner: which of its rows stands in which joined row, in random order
    owner ──TableSlice, or NewSlice──▶ its own party's actors alone: its rows, and their positions

A protocol that joins by itself uses `JoinMember`, `agree_on_plan` and `collect_keys`. One of vertical data uses
`join_rows`, after which joined row j is row j at every party. Joined rows of one row of the label's table are in one
part of the split. A table in partitions is a column block of each of their owners: in another's joined rows its values
are missing. Rows to predict are joined alike, by a query that means what it meant in training, without the label.

What is learnt. The mapper sees which rows have equal keys, how often each key occurs and how rows join; neither keys
nor any other column. An owner is told what the protocol needs of the mapping. Owners have the key of the hashes: one
that gave it to the mapper would let it test guessed keys.

Legend: n rows of a table, N joined rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedactors.actors.actor import Actor, Client, Server
from fedactors.actors.context import Work
from fedactors.actors.remote import CLIENT, DRIVER, SAME_PARTY, SERVER, remote
from fedactors.data.alignment.ids import tell_partners
from fedactors.data.columns import COLUMNS, NO_ID, FittedColumn, Preprocessing
from fedactors.data.databases import ParsedFile, SourceError, in_memory, rows_of
from fedactors.data.datasets.catalogue import Task
from fedactors.data.description import layout_of, load_description
from fedactors.data.join import empty_join, hash_rows, partners_of
from fedactors.data.layouts.relational import (
    RowsToPredict,
    Schema,
    Schemas,
    TableOwner,
    UserRows,
    check_meaning,
    column_of,
    compared_keys,
    dropped_for,
    meaning_of,
    partitions_of,
    query_over_partitions,
    read_rows,
    read_rows_to_predict,
    resolve_plan,
    rules_of_features,
    without_label,
)
from fedactors.data.layouts.vertical import RelationalData, RelationalQuery, VerticalData, VerticalPart
from fedactors.data.new_rows import ActorState, Fault, Listing, NewRows, NoPart, StoredState, check_called
from fedactors.data.party_rows import PartyBlock, check_block, prepare_like
from fedactors.data.query import JoinPlan
from fedactors.data.sources import FileSource, HolderSource
from fedactors.data.values import Column
from fedactors.errors import BadInput, FedactorsError, Refused, RowsChangedError
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.runtime.interface import Costs, Runtime
from fedactors.validation import shown

C = TypeVar("C")
T = TypeVar("T")
COSTS: Mapping[str, tuple[float, float]] = {"read-table": (0.1, 0.0), "hash-keys": (2e-5, 5e-7), "join": (0.01, 2e-7)}
"""Seconds in the simulated runtime: of reading, of hashing (rows times columns), of joining (rows of all tables)."""


@message(reveals="the key of the hashes, and which columns its sender was told of, to those who hash with it")
class HashSecret:
    """The random key under which all owners hash their join keys."""

    key: bytes
    schemas: bytes
    """A digest of what the sender was told of all tables' columns."""


@message(
    reveals="which rows have equal keys, with which rows of other tables they join, and how often each key occurs; "
    "not the keys themselves, unless the receiver gets the secret from an owner",
)
class KeyHashes:
    """A keyed hash of each row's join key for each edge (n x 16 bytes), and how many rows had NULL keys."""

    num_rows: int
    num_null: int
    hashes: Annotated[tuple[NDArray[np.uint8], ...], Dimensions("num_rows", 16)]


MESSAGES = (Schema, Schemas, HashSecret, KeyHashes)
"""All that travels before tables are joined: for a protocol's ``sent``."""


class JoinMember(Client):
    """The owner of one horizontal partition of one table.

    Args:
        query: what everybody knows of the join.
        table_owner: which table and partition it has, and where its rows lie; no other owner's location is known here.
        members: names of all owners.
    """

    state: ClassVar[tuple[str, ...]] = ("schemas",)

    def __init__(self, query: RelationalQuery, table_owner: TableOwner, members: Sequence[str]) -> None:
        self._query, self._table_owner = query, table_owner
        self._members = tuple(members)
        self.schemas: Schemas | None = None
        self._secret = b""
        self._parsed: ParsedFile | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all owners of tables in the join."""
        return self._members

    @property
    def joiners(self) -> tuple[str, ...]:
        """The servers that join; other servers of the run ask for nothing here."""
        raise TypeError(f"{type(self).__name__} does not say who joins")

    async def load(self) -> None:
        """Look at the table's columns in its database; the rows are read when the query's names are resolved."""
        with self._named():
            columns = self._columns()
        self._schema = Schema(tuple(columns), tuple(columns.values()))

    @remote(caller=SERVER, only="joiners", once=True)
    async def describe(self) -> Schema:
        """Return the columns of the table."""
        return self._schema

    @remote(caller=SERVER, only="joiners", once=True)
    async def prepare(self, schemas: Schemas) -> None:
        """Resolve the query over all schemas, and read the own rows.

        Raises:
            Refused: the own table's columns are others there: a name could then mean another table's column.
        """
        self._resolve(schemas)
        source = self._table.partitions[self._table_owner.index].source
        if schemas.by_source[source] != self._schema:
            raise Refused(self.caller, f"tells {self.name} of other columns of its table than it has")
        with self._named():
            self._local = await self._read()
        self.schemas = schemas

    @remote(caller=DRIVER, once=True)
    async def share_secret(self) -> None:
        """Draw the key of the hashes and give it to the other owners, never to the server."""
        self._secret = self.noise_rng("hash key").bytes(32)
        others = [self.peer(name, JoinMember) for name in self.members if name != self.name]
        secret = HashSecret(self._secret, self._told)
        await asyncio.gather(*(other.receive_secret(secret) for other in others))

    @remote(caller=CLIENT, only="members", once=True)
    async def receive_secret(self, secret: HashSecret) -> None:
        """Take the key of the hashes, if its sender was told of the same columns of all tables.

        Raises:
            Refused: it was told of others, so that the query means something else here and there.
        """
        if secret.schemas != self._told:
            said = f"tells {self.name} and {self.caller} of different columns of the tables that are joined"
            raise Refused(self.joiners[0], said)
        self._secret = secret.key

    @remote(caller=SERVER, only="joiners", once=True)
    async def send_keys(self) -> KeyHashes:
        """Return the keyed hashes of the join keys; the key is then forgotten."""
        if not self._secret:
            raise FedactorsError(f"{self.name}: no hash key was shared")
        rows, table, local = self._local.data, self._table_owner.table, self._table_owner.partition
        keys = compared_keys(rows, self._table.keys, local.id_rules, f"parties.{local.party}.id_rules")
        args = (keys, self._plan.edges_of(table), table, self._secret)
        work = Work("hash-keys", float(rows.num_rows * max(len(self._table.features), 1)))
        hashes = await self.compute(hash_rows, *args, work=work)
        self._secret = b""
        return KeyHashes(rows.num_rows, self._local.num_null, hashes)

    # --- inside ---

    @property
    def _told(self) -> bytes:
        """A digest of all tables' columns, as they were told here."""
        if self.schemas is None:
            raise FedactorsError(f"{self.name}: a hash key is shared before columns are told")
        told = [(source, one.columns, one.kinds) for source, one in self.schemas.by_source.items()]
        return hashlib.sha256(repr(told).encode()).digest()

    def _columns(self) -> dict[str, str]:
        """Return the columns that the query is resolved with, and their kinds."""
        source = self._table_owner.partition.source
        self._parsed = source.parsed()  # which is read as soon as all parties' columns are known
        return source.describe()

    def _resolve(self, schemas: Schemas) -> None:
        self._plan = resolve_plan(self._query, schemas)
        self._table = self._plan.table(self._table_owner.table)
        self._rules = rules_of_features(self._table.features, self._table_owner.partition)

    async def _read(self) -> UserRows:
        args = (
            self._table_owner.partition.source,
            self._table,
            self._table_owner.index,
            self._shuffle,
            dropped_for(self._rules),
        )
        found = await self.compute(read_rows, *args, work=Work("read-table"))
        self._parsed = None
        return found

    @property
    def _shuffle(self) -> np.random.Generator:
        """What shuffles rows that are in the order of their keys: who knows it knows the ranks of hashed keys."""
        return self.noise_rng("row order")

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the party whose database is at fault."""
        try:
            yield
        except SourceError as error:
            raise SourceError(f"{self.name}: {error}") from None


class NewRowsMember(JoinMember):
    """The owner of one partition of a table of rows to predict.

    The query must mean what it meant in training. The label's column need not be there: what the query asks of it is
    left out.
    """

    trained: Mapping[str, Any]
    """What the query of training meant for the table (`meaning_of`); set before `load`."""
    new: RowsToPredict

    def _columns(self) -> dict[str, str]:
        found, label = super()._columns(), self.trained["label_column"]
        if label is not None and label.lower() not in map(str.lower, found):
            found[label] = self.trained["label_kind"]  # only its name is asked for: it is never read
        return found

    def _resolve(self, schemas: Schemas) -> None:
        self._query = replace(self._query, is_new=True)
        super()._resolve(schemas)
        check_meaning(self.trained, meaning_of(self._plan, self._table, self._query, schemas))
        self._table = without_label(self._table)

    @property
    def called_by(self) -> tuple[str, ...]:
        """The columns that rows are called by in predictions."""
        return self._table_owner.partition.id_columns or self._table.called_by

    def nameless(self, rows: pa.Table) -> dict[int, str]:
        """Return which rows of the label's table miss the ids that predictions are found by, and why they have none."""
        names = self._table_owner.partition.id_columns if self.trained["label_column"] is not None else ()
        missing = [Column(name, rows.column(name)).is_missing() for name in names]
        return dict.fromkeys(np.flatnonzero(np.any(missing, axis=0)).tolist() if missing else (), NO_ID)

    async def _read(self) -> UserRows:
        check_called(self.called_by, self.name)
        args = (self._table_owner.partition.source, self._table, self._table_owner.index, self.called_by, self._shuffle)
        self.new = await self.compute(read_rows_to_predict, *args, work=Work("read-table"))
        whole, order = self.new.whole, self.new.order
        return UserRows(whole.take(order), whole.num_rows - len(order), b"")


# --- at the server ----------------------------------------------------------------------------------------------------


async def ask_all(called: Iterable[C], call: Callable[[C], Awaitable[T]]) -> list[T]:
    """Call everybody at once, and return their replies in order."""
    return list(await asyncio.gather(*(call(one) for one in called)))


async def ask_each(called: Iterable[C], call: Callable[[C, Any], Awaitable[T]], messages: Iterable[Any]) -> list[T]:
    """Call everybody at once, each with a message of its own."""
    return list(await asyncio.gather(*(call(one, given) for one, given in zip(called, messages, strict=True))))


async def agree_on_plan(
    query: RelationalQuery, members: Mapping[str, Sequence[JoinMember]]
) -> tuple[JoinPlan, Schemas]:
    """Check a query against everybody's columns, and let everybody read what it needs.

    Args:
        query: what everybody knows of the join.
        members: by table, its owners in the order of its partitions, tables in the order of the query.

    Raises:
        QueryError: the query does not fit the columns.
    """
    everybody = [member for local in members.values() for member in local]
    found = await ask_all(everybody, lambda member: member.describe())
    sources = [source for partitions in query_over_partitions(query).tables.values() for source, _ in partitions]
    schemas = Schemas(dict(zip(sources, found, strict=True)))
    plan = resolve_plan(query, schemas)
    await ask_all(everybody, lambda member: member.prepare(schemas))
    return plan, schemas


@dataclass(frozen=True)
class TableKeys:
    """The hashed keys of one table, its partitions one after the other."""

    hashes: tuple[NDArray[np.uint8], ...]
    sizes: tuple[int, ...]
    """Rows of each partition."""
    num_null: int

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return sum(self.sizes)


def check_keys(owner: str, found: KeyHashes, plan: JoinPlan, table: str) -> None:
    """Check that an owner sends a hash of each row for each edge of its table.

    Raises:
        Refused: naming the owner.
    """
    num_edges = len(plan.edges_of(table))
    if len(found.hashes) != num_edges or found.num_rows < 0 or found.num_null < 0:
        said = f"sends hashed keys of {len(found.hashes)} edges of {table}, {found.num_rows:,} rows"
        raise Refused(owner, f"{said} and {found.num_null:,} without a key; expected: {num_edges} edges")


async def collect_keys(
    members: Mapping[str, Sequence[JoinMember]], owners: Mapping[str, Sequence[str]], plan: JoinPlan
) -> dict[str, TableKeys]:
    """Return every table's hashed keys; one of the owners must have shared a secret before.

    Args:
        members: by table, handles of its owners.
        owners: their names.
        plan: of the join.
    """
    found: dict[str, TableKeys] = {}
    replies = await ask_all(members.values(), lambda local: ask_all(local, lambda member: member.send_keys()))
    for table, parts in zip(members, replies, strict=True):
        for owner, part in zip(owners[table], parts, strict=True):
            check_keys(owner, part, plan, table)
        hashes = tuple(np.concatenate(columns) for columns in zip(*(part.hashes for part in parts), strict=True))
        sizes = tuple(part.num_rows for part in parts)
        found[table] = TableKeys(hashes, sizes, sum(part.num_null for part in parts))
    return found


MAPPER = "mapper"


@message(
    reveals="which of its rows stands in which joined row, in random order: how often each of its rows occurs, and for "
    "one partition of several how many joined rows are another's",
)
class RowPositions:
    """p_i: the own row of each joined row (N); -1 where it is another partition's."""

    rows: Annotated[NDArray[np.int32], Dimensions("joined rows")]


@message(reveals="nothing: it stays within the party")
class TableSlice:
    """A party's rows (n x D), their labels (n, or none), and the row of each joined row (N)."""

    features: NDArray[np.float32]
    feature_names: tuple[str, ...]
    keeps_scale: NDArray[np.bool_]
    columns: bytes
    """The fitted columns, as JSON."""
    labels: NDArray[Any]
    has_labels: bool
    class_names: tuple[str, ...]
    positions: NDArray[np.int32]


@message(
    reveals="how large the label's table and the join are, how many of its rows miss a key, and how many find no "
    "partner in which other table",
)
class JoinSummary:
    """Of the label's table: its rows, those without a key, and by table those that find no partner in it."""

    num_joined: int
    num_rows: int
    num_null: int
    unmatched: tuple[tuple[str, int], ...]


@message(reveals="which rows of the label's table find no partner in which other table")
class UnmatchedRows:
    """For each own row (n) the number of the first of the `tables` in which it finds no partner, -1 if it joins."""

    tables: tuple[str, ...]
    unmatched: Annotated[NDArray[np.int16], Dimensions("rows")]


@message(reveals="nothing: it stays within the party")
class ColumnsTrained:
    """The party's columns as training saw them, as JSON."""

    columns: bytes


@message(reveals="nothing: it stays within the party")
class NewSlice:
    """A party's rows to predict (n x D), which of them cannot be used and why, and the row of each joined row (N)."""

    features: NDArray[np.float32]
    unusable: tuple[tuple[int, str], ...]
    positions: NDArray[np.int32]
    called: bytes
    """What all rows of the source are called by, as an Arrow stream; more than n where keys are missing."""
    order: NDArray[np.int64]
    """The row of the source behind each of the n rows."""
    lost: tuple[tuple[int, str], ...]
    """Rows of the source that do not join, and why as far as the owner knows it."""


def check_tables(owner: JoinMember, plan: JoinPlan, tables: Sequence[str], *indices: NDArray[Any]) -> None:
    """Check what an owner is told of rows without a partner: the file of predictions says it in these words.

    Raises:
        Refused: tables are named that are not joined, or a number is none of theirs.
    """
    approved = tuple(one.name for one in plan.tables)
    most = max((int(one.max(initial=-1)) for one in indices), default=-1)
    if tuple(tables) != approved or most >= len(approved):
        said = f"tells {owner.name} of partners in tables {', '.join(map(shown, tables))}, the {most + 1}th too"
        raise Refused(owner.caller, f"{said}; approved: {', '.join(approved)}")


class RowHolder(JoinMember):
    """The owner of one table, or of one partition, which keeps its place in every joined row.

    Args:
        query, table_owner, members: see `JoinMember`.
        task, num_classes: of the data.
        label: the label's column, where it is in this table.
        is_alone: whether nobody else holds partitions of the table.
    """

    state: ClassVar[tuple[str, ...]] = (*JoinMember.state, "meaning", "fingerprint", "row_order", "positions")

    def __init__(self, query: Any, table_owner: TableOwner, members: tuple[str, ...],
                 task: Task, num_classes: int, label: str,
                 is_alone: bool) -> None:  # fmt: skip
        super().__init__(query, table_owner, members)
        self._task, self._num_classes = task, num_classes
        self._label, self._is_alone = label or None, is_alone
        self.meaning: dict[str, Any] = {}
        self.fingerprint = b""
        self.row_order: tuple[int, ...] = ()
        self.positions: NDArray[Any] | None = None

    async def open(self) -> None:
        """After a resume, or in the place of a process that was lost, read the rows again.

        Raises:
            RowsChangedError: they are others than when the run began.
        """
        if self.schemas is not None:
            self._resolve(self.schemas)
            local = self._table_owner.partition
            self._local = read_rows(
                local.source, self._table, self._table_owner.index, self._shuffle, dropped_for(self._rules)
            )
            if self._local.fingerprint != self.fingerprint:
                raise RowsChangedError(
                    f"{self.name}: the rows of table {self._table_owner.table!r} have changed since the run began"
                )

    def _resolve(self, schemas: Schemas) -> None:
        super()._resolve(schemas)
        self.meaning = meaning_of(self._plan, self._table, self._query, schemas)

    async def _read(self) -> UserRows:
        self.row_order = tuple(self.noise_rng("row order").integers(0, 2**63, 4).tolist())
        local = await super()._read()
        self.fingerprint = local.fingerprint
        return local

    @property
    def _shuffle(self) -> np.random.Generator:
        return np.random.default_rng(self.row_order)

    @property
    def joiners(self) -> tuple[str, ...]:
        """The mapper alone joins."""
        return (MAPPER,)

    @remote(caller=SERVER, only="joiners", once=True)
    async def take_positions(self, positions: RowPositions) -> None:
        """Take the own row of each joined row.

        Raises:
            Refused: a row that there is not; -1 is another partition's, of which this table may have none.
        """
        rows, num_local = positions.rows, self._local.data.num_rows
        least = 0 if self._is_alone else -1
        if rows.size and not least <= rows.min() <= rows.max() < num_local:
            said = f"names rows of {self.name} that there are not: {num_local} are here"
            raise Refused(self.caller, said)
        tell_partners(self, len(np.unique(rows[rows >= 0])), num_local, self._local.num_null)
        self.positions = rows

    @remote(caller=SAME_PARTY)
    async def give_slice(self) -> TableSlice:
        """Return the own rows and their positions to an actor of the own party."""
        assert self.positions is not None
        block = self._block()
        return TableSlice(
            block.features,
            block.feature_names,
            block.keeps_scale,
            COLUMNS.dump_json(block.columns),
            np.zeros(0) if block.labels is None else block.labels,
            block.labels is not None,
            block.class_names,
            self.positions.astype(np.int32),
        )

    def _block(self, trained: Sequence[FittedColumn] | None = None) -> PartyBlock:
        """Return the own rows as a file of them would be read; where others have some, with an empty one at the end.

        Args:
            trained: of rows to predict, the columns as training saw them.
        """
        rows, table = self._local.data, self._table
        rules = self._rules if trained is None else {one.name: one.rule for one in trained}
        if not self._is_alone:
            rules = {
                name: replace(rule, missing="indicator") if rule.missing in ("refuse", "drop") else rule
                for name, rule in rules.items()
            }
        columns = {feature.column: column_of(rows, feature.column, rules[feature.column]) for feature in table.features}
        if self._label is not None:
            columns[self._label] = Column(self._label, rows.column(self._label))
        if not self._is_alone:
            columns = {name: _with_one_missing(column) for name, column in columns.items()}
        source = FileSource(
            party=self.party,
            path=self._table_owner.table,
            task=self._task,
            num_classes=self._num_classes,
            features=tuple(feature.column for feature in table.features),
            label=self._label,
            classes=() if self._label is None else self._query.classes,
            rules=tuple(rules.items()),
        )
        return source.block_of(columns, trained)


def _with_one_missing(column: Column) -> Column:
    return Column(column.name, pa.concat_arrays([column.values, pa.nulls(1, column.values.type)]))


class NewRowHolder(NewRowsMember, RowHolder):
    """The owner of one table of rows to predict, or of one partition.

    Args:
        stored: the state of the owner in the run's checkpoint.
        facts: as of `RowHolder`, without a label.
    """

    def __init__(self, stored: StoredState, *facts: Any) -> None:
        RowHolder.__init__(self, *facts)
        self._stored = stored
        self._unmatched = UnmatchedRows((), np.zeros(0, np.int16))

    async def load(self) -> None:
        """Learn what the query meant in training, and look at the table's columns."""
        state: ActorState = self._stored.read()
        if not state["meaning"]:
            raise BadInput(f"{self.name}: the run was stopped before its tables were joined: it has no trained model")
        self.trained = state["meaning"]
        await super().load()

    @remote(caller=SERVER, only="joiners", once=True)
    async def take_unmatched(self, unmatched: UnmatchedRows) -> None:
        """Take which of the own rows do not join."""
        check_tables(self, self._plan, unmatched.tables, unmatched.unmatched)
        self._unmatched = unmatched

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows are here."""
        return {"rows": self._local.data.num_rows}

    @remote(caller=SAME_PARTY)
    async def give_new(self, trained: ColumnsTrained) -> NewSlice:
        """Return the own rows as training encoded them, and their positions, to an actor of the own party."""
        assert self.positions is not None
        block = self._block(COLUMNS.validate_json(trained.columns))
        whole, order, tables, unmatched = (
            self.new.whole,
            self.new.order,
            self._unmatched.tables,
            self._unmatched.unmatched,
        )
        lost = dict.fromkeys(np.setdiff1d(np.arange(whole.num_rows), order).tolist(), "a key is missing")
        lost |= {
            int(order[local]): f"no partner in {tables[unmatched[local]]}" for local in np.flatnonzero(unmatched >= 0)
        }
        return NewSlice(
            block.features,
            tuple({**self.nameless(whole.take(order)), **block.unusable}.items()),
            self.positions,
            in_memory(whole.select(self.called_by)).rows,
            order,
            tuple(lost.items()),
        )


class RowMapper(Server):
    """Joins the hashed keys, and tells each owner its rows' positions.

    Args:
        query: what everybody knows of the join.
        owners: by table the actors that hold its partitions, in the order of the query.
    """

    def __init__(self, query: RelationalQuery, owners: Mapping[str, tuple[str, ...]]) -> None:
        self._query, self._owners = query, owners

    async def open(self) -> None:
        """Make handles of the owners."""
        self._members = {
            table: [self.peer(name, NewRowHolder) for name in names] for table, names in self._owners.items()
        }

    @remote(caller=DRIVER, once=True)
    async def agree(self) -> None:
        """Check the query against everybody's columns, and let everybody read its rows."""
        self._plan, _ = await agree_on_plan(self._query, self._members)

    @remote(caller=DRIVER, once=True)
    async def map_rows(self) -> JoinSummary:
        """Join, and tell each owner which of its rows stands in which joined row.

        Raises:
            EmptyJoinError: no rows join.
        """
        keys = await collect_keys(self._members, self._owners, self._plan)
        hashes = {table: found.hashes for table, found in keys.items()}
        sizes = {table: found.num_rows for table, found in keys.items()}
        side = self._plan.tables.index(self._plan.label_table)
        args = (self._plan, hashes, side, None, None, sizes)
        found = await self.compute(partners_of, *args, work=Work("join", float(sum(sizes.values()))))
        num_joined = found.mapping.num_joined
        if not num_joined:
            raise empty_join(self._plan)
        order = self.noise_rng("order of joined rows").permutation(num_joined)
        for (table, members), rows in zip(self._members.items(), found.mapping.rows, strict=True):
            ends = np.cumsum(keys[table].sizes)
            local = [rows[order] - (end - size) for end, size in zip(ends, keys[table].sizes, strict=True)]
            positions = [
                RowPositions(np.where((row >= 0) & (row < size), row, -1).astype(np.int32))
                for row, size in zip(local, keys[table].sizes, strict=True)
            ]
            await ask_each(members, lambda member, given: member.take_positions(given), positions)
        names = list(sizes)
        if self._query.is_new:
            (owner,) = self._members[names[side]]  # one party has all labels
            await owner.take_unmatched(UnmatchedRows(tuple(names), found.unmatched))
        unmatched = [(names[index], int(np.count_nonzero(found.unmatched == index))) for index in range(len(names))]
        label = keys[names[side]]
        return JoinSummary(
            num_joined, label.num_rows, label.num_null, tuple((n, count) for n, count in unmatched if count)
        )


# --- what a protocol of vertical data needs ---------------------------------------------------------------------------


def joined_vertical(data: RelationalData) -> VerticalData:
    """Return a query's joined rows as vertical data: the parties that hold tables, and who has the label.

    Raises:
        BadInput: the label's table is not told, or held by several parties; or a party holds several tables.
        QueryError: the SQL is at fault, or names a table that nobody holds.
    """
    table_owners = table_owners_of(data)
    table, dot, _ = data.label.rpartition(".")
    known = {table_owner.table.lower(): table_owner.table for table_owner in table_owners}
    if not dot or table.lower() not in known:
        raise BadInput(
            f"task.label: {data.label!r} is not allowed here: write TABLE.COLUMN, the table as the query names it "
            f"({', '.join(known.values())})"
        )
    owners = [table_owner.partition.party for table_owner in table_owners if table_owner.table == known[table.lower()]]
    if len(owners) > 1:
        raise BadInput(f"task.label: {data.label!r} is with {', '.join(owners)}: one party must have all labels")
    for name in data.parties:
        held = [table_owner.table for table_owner in table_owners if table_owner.partition.party == name]
        if len(held) != 1:
            raise BadInput(f"parties.{name}: {len(held)} tables of the query are not allowed here: one table a party")
    return VerticalData(
        name=data.name,
        task=data.task,
        num_classes=data.num_classes,
        parties=tuple(table_owner.partition.party for table_owner in table_owners),
        sources=tuple(HolderSource(holder=table_owner.name) for table_owner in table_owners),
        label_party=owners[0],
        query=data,
    )


def table_owners_of(data: RelationalData) -> list[TableOwner]:
    """Return the seats of the tables' owners, tables and partitions in the order of the query's."""
    return [
        TableOwner(name=f"{partition.party}/table", table=table, index=index, partition=partition)
        for table, index, partition in partitions_of(data)
    ]


def load_described_rows(path: Path, config: Any, accounts: Mapping[str, bool]) -> VerticalData:
    """Read a ``parties.toml`` of files with ids, or of tables that a query joins.

    Args:
        path: of it.
        config: of the run, for what it says of `accounts`.
        accounts: by setting, whether it asks for noise; none is allowed where rows are joined.

    Raises:
        BadInput: as `load_description`; another layout; or noise whose account would not count how often a row occurs.
    """
    local = load_description(path)
    if isinstance(local, VerticalData):
        return local
    if not isinstance(local, RelationalData):
        raise BadInput(
            f"task.layout: {layout_of(local)!r} is not allowed: give vertical or relational, or train with another "
            "protocol (fedactors list has each protocol's layout)"
        )
    for name, is_on in accounts.items():
        if is_on:
            raise BadInput(
                f"{name}: {getattr(config, name)} is not allowed where a query joins the rows: a row of a table may "
                "stand in many joined rows, and the account is of rows that occur once"
            )
    return joined_vertical(local)


def with_joining(costs: Costs) -> Costs:
    """Return a run's cost model with what a join costs."""
    return replace(costs, kinds={**COSTS, **costs.kinds})


async def join_rows(
    data: VerticalData, runtime: Runtime, state_of: Callable[[str], StoredState] | None = None
) -> list[str]:
    """Where data are a query's, let its tables' owners join the rows, before a run or a prediction spawns its actors.

    Args:
        data: to train on, or to predict; nothing is done if they are no query's.
        runtime: where the owners' actors run.
        state_of: of a prediction, the state of an actor in the run's checkpoint.

    Returns:
        What became of the rows of the label's table, to be told; nothing in a run that goes on.

    Raises:
        BadInput: no query joined the rows of training, or the query means something else than that one.
    """
    if data.query is None:
        return []
    query, table_owners = data.query.query, table_owners_of(data.query)
    names, owners = tuple(table_owner.name for table_owner in table_owners), dict[str, tuple[str, ...]]()
    for table_owner in table_owners:
        owners[table_owner.table] = (*owners.get(table_owner.table, ()), table_owner.name)
    holders: list[RowHolder] = []
    for table_owner in table_owners:
        is_labelled = state_of is None and table_owner.partition.party == data.label_party
        label = data.query.label.rpartition(".")[2] if is_labelled else ""
        facts = (query, table_owner, names, data.task, data.num_classes, label, len(owners[table_owner.table]) == 1)
        if state_of is None:
            holders.append(runtime.spawn(RowHolder, table_owner.name, *facts))
        else:
            holders.append(
                runtime.spawn(NewRowHolder, table_owner.name, _trained_state(state_of, table_owner.name), *facts)
            )
    query = query if state_of is None else replace(query, is_new=True)
    mapper = runtime.spawn(RowMapper, MAPPER, query, owners)
    await runtime.start()
    if runtime.resumed:
        return []
    with runtime.phase("alignment") if state_of is None else nullcontext():
        await mapper.agree()
        await holders[0].share_secret()
        told = await mapper.map_rows()
    gone = [f"{count} without a partner in {table}" for table, count in told.unmatched]
    gone += [f"{told.num_null} without a key or a value that they need"] if told.num_null else []
    used = told.num_rows - sum(count for _, count in told.unmatched)
    lost = f" ({', '.join(gone)})" if gone else ""
    return [
        f"{data.label_party}: {used} of {told.num_rows + told.num_null} rows are used{lost}; "
        f"{told.num_joined} joined rows"
    ]


def _trained_state(state_of: Callable[[str], StoredState], holder: str) -> StoredState:
    try:
        return state_of(holder)
    except NoPart:
        raise BadInput(
            "task.layout: 'relational' is not allowed: no query joined the rows that the model was trained on"
        ) from None


async def load_block(actor: Actor, part: VerticalPart) -> PartyBlock:
    """Load and check a party's rows, in the process of its actor: from its file, or its columns of joined rows.

    Raises:
        BadInput: rows that cannot be trained on.
    """
    if not isinstance(part.source, HolderSource):
        return part.load()
    found = await actor.peer(part.source.holder, RowHolder).give_slice()
    block = PartyBlock(
        origin=part.name,
        ids=np.arange(len(found.positions)),
        features=found.features[found.positions],
        feature_names=found.feature_names,
        num_table_rows=_num_repeated(found.positions, len(found.features)),
        keeps_scale=found.keeps_scale,
        labels=found.labels[found.positions] if found.has_labels else None,
        class_names=found.class_names,
        columns=COLUMNS.validate_json(found.columns),
        groups=found.positions if found.has_labels else None,
    )
    check_block(block, part.party, part.task, part.num_classes)
    if part.party == part.label_party and block.labels is None:
        raise BadInput(f"{part.party}: {block.origin}: label: the label party holds no labels")
    return block


def _num_repeated(positions_N: NDArray[np.int32], num_rows: int) -> int | None:
    """Return how many rows of a table of so many stand in joined rows; None: at least half, of a table of any size."""
    used = np.unique(positions_N[positions_N >= 0])
    return None if 2 * len(used) >= num_rows - bool((positions_N < 0).any()) else len(used)


async def load_new_rows(actor: Actor, part: VerticalPart, trained: Preprocessing) -> NewRows:
    """Load a party's rows to predict as training encoded them, in the process of its actor; see `load_block`.

    Joined rows have a line each, in the order of the source; and so has each row of the source that does not join.

    Raises:
        BadInput: they cannot be read, or have other columns than those trained on.
    """
    if not isinstance(part.source, HolderSource):
        block, x_ND = part.load_new(trained)
        return NewRows(block.aligned_by, x_ND, Listing.of_ids(block.ids, block.unusable))
    holder = actor.peer(part.source.holder, NewRowHolder)
    found = await holder.give_new(ColumnsTrained(COLUMNS.dump_json(trained.columns)))
    why, num_joined = dict(found.unusable), len(found.positions)
    block = PartyBlock(
        origin=part.name,
        ids=np.arange(num_joined),
        features=found.features[found.positions],
        feature_names=trained.feature_names,
        keeps_scale=np.zeros(len(trained.feature_names), np.bool_),
        labels=None,
        columns=trained.columns,
        unusable={joined: why[row] for joined, row in enumerate(found.positions.tolist()) if row in why},
    )
    lost = dict(found.lost)
    source = np.concatenate([found.order[found.positions], np.array(list(lost), np.int64)])
    line, in_order = np.empty(len(source), np.int64), np.argsort(source, kind="stable")
    line[in_order] = np.arange(len(source))
    alone: dict[int, tuple[Fault, str]] = {
        number: ("alone", reason) for number, reason in zip(line[num_joined:].tolist(), lost.values(), strict=True)
    }
    listing = Listing(rows_of(found.called).take(source[in_order]).to_pydict(), line[:num_joined], alone)
    listing.refuse(block.unusable, "own")
    return NewRows(block.ids, prepare_like(block, trained), listing)
