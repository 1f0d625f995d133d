"""How a named data set, the user's own file or a scenario becomes a training set with a source for every client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedactors.data.own import load_own_as
from fedactors.data.partitions import RelationalData, RelationalPartition, relational
from fedactors.data.relational import TableSource, parse_address
from fedactors.errors import BadInput
from protocols.tablepuppet.algorithm import Loss
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.faults import UnknownTableError
from protocols.tablepuppet.plan import Encoding, JoinPlan, Partition, Query, Schema, make_plan
from protocols.tablepuppet.sql import parse_query


@dataclass(frozen=True)
class TrainingSet:
    """What every party knows of the training set: the query with one source for each partition, label and loss."""

    query: Query
    label: str
    categorical: tuple[str, ...]
    loss: Loss

    def plan(self, schemas: Mapping[str, Schema]) -> JoinPlan:
        """Resolve the query; see `plan.make_plan`."""
        encodings: dict[str, Encoding] = dict.fromkeys(self.categorical, "one_hot")
        return make_plan(self.query, schemas, self.label, encodings)


@dataclass(frozen=True)
class Seat:
    """One client: the actor's name, its table and partition in the query, and where its rows lie."""

    name: str
    table: str
    partition: int
    source_name: str
    source: TableSource


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
    sql: str,
    addresses: Mapping[str, str | TableSource],
    *,
    label: str,
    task: str = "regression",
    num_classes: int = 1,
    categorical: tuple[str, ...] = (),
) -> RelationalData:
    """Return a training set stated in a scenario: SQL, and for each table in it the organisation's database.

    Args:
        sql: the union of conjunctive queries.
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
        sql=sql,
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


def loss_of(config: TablePuppetConfig, data: RelationalData) -> Loss:
    """Return the loss that the model and the task imply.

    Raises:
        BadInput: numeric labels under label_dp without a declared range.
    """
    by_task: dict[str, Loss] = {"regression": "squared", "binary": "logistic", "multiclass": "softmax"}
    by_model: dict[str, Loss] = {"linear": "squared", "logistic": "logistic", "softmax": "softmax"}
    loss = by_model.get(config.model, by_task[data.task])
    if config.label_dp is not None and loss == "squared" and config.label_range is None:
        raise BadInput("label_dp: numeric labels need a declared label_range=LOW,HIGH to be clipped to")
    return loss


def seat_clients(config: TablePuppetConfig, data: RelationalData) -> tuple[TrainingSet, tuple[Seat, ...]]:
    """Return the training set and a client for each horizontal partition, tables in the order of the query.

    A table that several parties hold is the union of their partitions. An actor is called like its party, or
    ``party/table`` where a party takes several seats.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
        BadInput: partitions where the algorithm needs whole tables.
    """
    query = parse_query(data.sql)
    taken: list[tuple[str, int, str, RelationalPartition]] = []
    tables = []
    for table in query.tables:
        partitions: list[Partition] = []
        for stated_partition in table.partitions:
            holders = _holders(data, stated_partition.source)
            for holder in holders:
                source_name = stated_partition.source if len(holders) == 1 else f"{holder.table}#{holder.partition}"
                taken.append((table.name, len(partitions), source_name, holder))
                partitions.append(replace(stated_partition, source=source_name))
        tables.append(replace(table, partitions=tuple(partitions)))
        if len(partitions) > 1 and config.algorithm in ("rfl-sgd-v", "rfl-admm-v", "vfl-sgd", "vfl-admm"):
            allowed = "rfl-admm" if config.is_admm else "rfl-sgd"
            raise BadInput(
                f"algorithm: {config.algorithm!r} is not allowed: table {table.name!r} has {len(partitions)}"
                f" partitions; use {allowed} or centralised"
            )
    parties = [holder.party for _, _, _, holder in taken]
    seats = []
    for name, index, source_name, holder in taken:
        own = holder.party
        if parties.count(own) > 1:
            several = sum(t == name and h.party == own for t, _, _, h in taken) > 1
            own = f"{own}/{name}-{index}" if several else f"{own}/{name}"
        seats.append(Seat(own, name, index, source_name, holder.source))
    training = TrainingSet(replace(query, tables=tuple(tables)), data.label, data.categorical, loss_of(config, data))
    return training, tuple(seats)


def _holders(data: RelationalData, table: str) -> list[RelationalPartition]:
    found = [p for p in data.partitions if p.table == table] or [
        p for p in data.partitions if p.table.lower() == table.lower()
    ]
    if not found:
        raise UnknownTableError(f"sql: unknown table {table!r} (known: {', '.join(data.tables) or 'none'})")
    return sorted(found, key=lambda p: p.partition)
