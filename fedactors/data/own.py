"""User-provided data: a ``parties.toml`` says for each party which file it has and what the columns mean.

    [task]
    type = "binary"            # binary, multiclass (with classes = 3) or regression
    layout = "vertical"        # vertical (default), horizontal, relational, graph or graph-tables
    alignment = "psi"          # vertical only: already-aligned (default), hash or psi

    [parties.bank]
    path = "bank.csv"          # relative to this file
    id = "customer"
    label = "defaulted"
    features = ["income", "age", "region", "since"]    # or "all" (default)
    csv = { separator = ";", decimal = ",", null = ["?"] }

    [parties.bank.columns]     # numbers that are all there need no rule
    region = { type = "categorical", missing = "indicator" }
    since = { type = "datetime", missing = "median" }

The file is checked here; each party's data are read by that party alone, in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from fedactors.data.catalogue import Task
from fedactors.data.graph_files import GraphFiles, OwnGraph
from fedactors.data.horizontal import HorizontalData
from fedactors.data.node_tables import EdgeFile, GraphTables
from fedactors.data.own_horizontal import (
    PICTURES,
    class_labels,
    class_weights,
    file_source,
    horizontal_data,
    new_horizontal_data,
    num_classes_of,
)
from fedactors.data.own_schema import (
    LAYOUTS,
    ArraysParty,
    ArraysTask,
    GraphParty,
    GraphTask,
    HorizontalTask,
    RelationalParty,
    RelationalTask,
    SiteArraysTask,
    Table,
    VerticalParty,
    VerticalTask,
    parse,
)
from fedactors.data.partitions import RelationalData, RelationalPartition, VerticalData
from fedactors.data.relational import POSTGRES_SECRETS, SourceError, TableKind, TableSource, postgres_settings
from fedactors.data.sources import FileSource
from fedactors.data.sql import named_tables
from fedactors.errors import BadInput
from fedactors.validation import (
    check_keys,
    choice_of,
    different_files,
    different_names,
    party_name,
    path_of,
    read_tree,
    shown,
)

_KINDS = {
    ".duckdb": "duckdb",
    ".db": "sqlite",
    ".sqlite": "sqlite",
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
}

Own = TypeVar("Own", VerticalData, HorizontalData, RelationalData)


Described = VerticalData | HorizontalData | RelationalData | OwnGraph | GraphTables


def layout_of(data: Described | type) -> str:
    """Return what a description's ``layout`` is called, by what was read of it."""
    kinds = {
        VerticalData: "vertical",
        HorizontalData: "horizontal",
        RelationalData: "relational",
        OwnGraph: "graph",
        GraphTables: "graph-tables",
    }
    return kinds[data if isinstance(data, type) else type(data)]


def load_own_as(path: Path, wanted: type[Own], *, is_new: bool = False) -> Own:
    """Read and check a ``parties.toml`` for a protocol that needs one type of partition; see `load_own`.

    Raises:
        BadInput: as `load_own`, or another layout.
    """
    made = load_own(path, is_new=is_new)
    if not isinstance(made, wanted):
        raise BadInput(f"task.layout: {layout_of(made)!r} is not allowed: give {layout_of(wanted)!r}")
    return made


def load_new_rows(name: str | HorizontalData, load_named: Callable[[str], HorizontalData]) -> HorizontalData:
    """Return who has which rows to predict; they need no test rows, and not every client need have some.

    Args:
        name: of a description of user-provided data, or of a data set.
        load_named: loads a data set as for training.

    Raises:
        BadInput: as `load_own_as`.
    """
    if isinstance(name, HorizontalData):
        return name
    return load_own_as(Path(name), HorizontalData, is_new=True) if name.endswith(".toml") else load_named(name)


def load_own(path: Path, *, is_new: bool = False) -> Described:
    """Read and check a ``parties.toml``.

    Args:
        path: of the file.
        is_new: rows to predict: of the layout horizontal only what prediction reads is asked for.

    Raises:
        BadInput: not readable, not TOML, or a wrong key or value; the message names field, value and what is allowed.
    """
    layout, task, parties = _read(path)
    is_new_rows = layout == "horizontal" and is_new
    fewest = 1 if layout == "graph" or is_new_rows else 2
    if len(parties) < fewest:
        raise BadInput(f"parties: {len(parties)} given in {path}, at least {fewest} are needed")
    build = new_horizontal_data if is_new_rows else _BUILDERS[layout]
    return build(path.stem, task, parties)


def _read(path: Path) -> tuple[str, Any, dict[str, Any]]:
    """Return layout, task and parties of a description, each table checked by itself."""
    given = read_tree(path, "data")
    check_keys(given, {"task", "parties"}, str(path))
    for key in ("task", "parties"):
        if not isinstance(given.get(key), dict):
            raise BadInput(f"data: {path}: no table [{key}{'.NAME' if key == 'parties' else ''}]")
    layout = choice_of(given["task"].get("layout", "vertical"), tuple(LAYOUTS), "task.layout")
    of_task, of_party = LAYOUTS[layout]
    task, parties = parse(of_task, given["task"], "task", path.parent), {}
    for name, party in given["parties"].items():
        parties[party_name(name)] = parse(of_party, party, f"parties.{name}", path.parent)
    different_names(parties)
    return layout, task, parties


def refuse_settings(config: Any, why: Mapping[str, str], *, but: Mapping[str, Any] | None = None) -> None:
    """Refuse settings that do not apply to user-provided files.

    Args:
        config: of the run.
        why: by setting, what says it instead.
        but: by setting, a value that is what the files say, and allowed.

    Raises:
        BadInput: one of them is not as usual.
    """
    usual = type(config)()
    for name, reason in why.items():
        value = getattr(config, name)
        if value != getattr(usual, name) and not (but and name in but and but[name] == value):
            shown_value = f"{value:g}" if isinstance(value, float) else shown(value)
            raise BadInput(f"{name}: {shown_value} is not allowed with own files: {reason}")


def load_states(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return where parties keep their states, and the names of the keys that they seal them with, by party.

    A folder is relative to the file; on the party's own host it is found by its absolute path. A protocol may
    read another kind of description: nothing else of the file is checked here.

    Raises:
        BadInput: not readable, not TOML, or a value that is no text.
    """
    parties = read_tree(path, "data").get("parties")
    found: dict[str, dict[str, str]] = {"state": {}, "state_key": {}}
    for name, party in parties.items() if isinstance(parties, dict) else ():
        for key, places in found.items() if isinstance(party, dict) else ():
            if key in party and not (isinstance(party[key], str) and party[key]):
                raise BadInput(f"parties.{name}.{key}: {shown(party[key])} is not allowed: give a text")
            if key in party:
                places[name] = party[key]
    return {name: _state_place(place, path.parent) for name, place in found["state"].items()}, found["state_key"]


def _state_place(place: str, folder: Path) -> str:
    return place if "://" in place else str((folder / Path(place).expanduser()).resolve())


def _vertical(
    name: str, task: VerticalTask | GraphTask, parties: Mapping[str, VerticalParty] | Mapping[str, GraphParty]
) -> VerticalData:
    num_classes = num_classes_of(task)
    holders = [name for name, party in parties.items() if party.label is not None]
    if len(holders) != 1:
        raise BadInput(
            f"label: {len(holders)} parties name one ({', '.join(holders) or 'none'}); exactly one party must, of rows "
            "to predict as well, whose file need not have the column"
        )
    for party in parties.values():
        if task.alignment != "already-aligned" and party.id is None:
            raise BadInput(f"{party.where}.id: missing; alignment={task.alignment} needs an id column at every party")
    if task.split == "stratified" and task.type == "regression":
        raise task.refused("split", " for type=regression: it has no classes")
    if task.positive is not None and task.type != "binary":
        raise task.refused("positive", ": name a class, for type=binary only")
    for one, party in parties.items():
        if one != holders[0] or task.split != "random":
            party.refuse(["split"], ": the party with the label names the column, and task.split is left out")
    for one, party in parties.items():
        if one != holders[0]:
            party.refuse(["weight", "unlabelled"], ": only the party with the label has it")
    counts = class_weights(task) if isinstance(task, VerticalTask) else ()
    sources = {
        one: file_source(one, party, task.type, num_classes, task.positive, counts) for one, party in parties.items()
    }
    different_files({one: source.path for one, source in sources.items()})
    return VerticalData(
        name=name,
        task=task.type,
        num_classes=num_classes,
        parties=tuple(sources),
        sources=tuple(sources.values()),
        label_party=holders[0],
        alignment=task.alignment,
        split=task.split,
    )


def _graph_arrays(name: str, task: ArraysTask, parties: Mapping[str, ArraysParty]) -> OwnGraph:
    files = {one: party.path_at("file") for one, party in parties.items()}
    different_files(files, "file")
    nodes = task.path_at("nodes")
    return OwnGraph(tuple(files), tuple(GraphFiles(party=one, nodes=nodes, file=file) for one, file in files.items()))


def _graph_tables(name: str, task: GraphTask, parties: Mapping[str, GraphParty]) -> GraphTables:
    rows = _vertical(name, task, parties)
    edges = {}
    for one, party in parties.items():
        if party.ends[0] == party.ends[1]:
            raise party.refused("ends", ": give two columns")
        edges[one] = EdgeFile(
            party=one,
            path=party.path_at("edges"),
            ends=(party.ends[0], party.ends[1]),
            sparse=None if party.sparse is None else party.path_at("sparse"),
            csv=party.csv,
        )
    different_files({one: edge.path for one, edge in edges.items()}, "edges")
    sources = tuple(replace(source, unlabelled="keep") for source in rows.sources if isinstance(source, FileSource))
    return GraphTables(rows=replace(rows, sources=sources), edges=tuple(edges.values()))


def _relational(name: str, task: RelationalTask, parties: Mapping[str, RelationalParty]) -> RelationalData:
    num_classes, wanted = num_classes_of(task), named_tables(task.sql)
    made: list[RelationalPartition] = []
    for one, party in parties.items():
        table = choice_of(party.table or one, wanted, f"{party.where}.table")
        for column in party.columns:
            if column in task.categorical or f"{table}.{column}" in task.categorical:
                raise BadInput(f"{party.where}.columns: {column!r} is not allowed: it stands in task.categorical too")
        made.append(
            RelationalPartition(
                party=one,
                table=table,
                partition=sum(partition.table == table for partition in made),
                source=_table_source(party, table),
                id_column=party.id or "",
                rules=tuple(party.columns.items()),
            )
        )
    different_files({one.party: (one.source.where, one.source.table) for one in made})
    missing = [table for table in wanted if table not in {partition.table for partition in made}]
    if missing:
        raise BadInput(f"sql: table {missing[0]!r} is with no party; name it under [parties.NAME] table = ...")
    return RelationalData(
        name=name,
        sql=task.sql,
        label=task.label,
        task=task.type,
        num_classes=num_classes,
        partitions=tuple(made),
        categorical=tuple(task.categorical),
    )


_BUILDERS: Mapping[str, Callable[[str, Any, Any], Described]] = {
    "vertical": _vertical,
    "horizontal": horizontal_data,
    "relational": _relational,
    "graph": _graph_arrays,
    "graph-tables": _graph_tables,
}
"""What makes the data of a layout, of the description's name, its task and its parties."""


def _table_source(party: RelationalParty, table: str) -> TableSource:
    where = party.path
    address = where.startswith(("env:", "postgresql://", "postgres://"))
    if address and not where.startswith("env:"):
        try:
            settings = postgres_settings(where)
        except SourceError as error:
            raise BadInput(f"{party.where}.path: {error}") from None
        if any(settings.get(secret) is not None for secret in POSTGRES_SECRETS):
            raise BadInput(f"{party.where}.path: a password is not allowed in a file: give env:NAME or use ~/.pgpass")
    suffix = next((known for known in _KINDS if where.endswith(known)), "")
    guess = "postgres" if address else _KINDS.get(suffix)
    kind = choice_of(party.kind or guess, (*sorted(set(_KINDS.values())), "postgres"), f"{party.where}.kind")
    if kind != "postgres":
        where = party.path_at("path")
    return TableSource(kind=cast(TableKind, kind), where=where, table=party.source_table or table)


# --- the same tables at a site of a federation --------------------------------------------------------------------


def read_task(given: Any, where: str, folder: Path) -> Table:
    """Return what a site's data say of a task, in the table `where` of the site's file.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    if not isinstance(given, dict):
        raise BadInput(f"{where}: {shown(given)} is not allowed: give a table")
    layout = choice_of(given.get("layout", "vertical"), tuple(LAYOUTS), f"{where}.layout")
    task: Table = parse(SiteArraysTask if layout == "graph" else LAYOUTS[layout][0], given, where, folder)
    for key in ("class_weights", "columns", *PICTURES):
        if key in task.written:
            raise BadInput(f"{where}: {key} is not allowed at a site")
    return task


def facts_of(task: Table) -> dict[str, Any]:
    """Return what all parties may know of a task: its layout and type, ``classes``, and what the layout needs.

    Raises:
        BadInput: classes that do not fit the type.
    """
    if isinstance(task, HorizontalTask):
        labels = class_labels(task)
        return {"layout": task.layout, "type": task.type, "classes": len(labels) or 1, "labels": labels}
    if not isinstance(task, VerticalTask | RelationalTask | GraphTask):
        return {"layout": "graph", "type": "multiclass", "classes": 0}
    facts: dict[str, Any] = {"layout": task.layout, "type": task.type, "classes": num_classes_of(task)}
    if isinstance(task, RelationalTask):
        return {**facts, "sql": task.sql, "label": task.label, "categorical": tuple(task.categorical)}
    return {**facts, "alignment": task.alignment, "split": task.split}


def read_files(keys: Any, where: str, folder: Path, party: str) -> GraphFiles:
    """Return where one party's arrays of a graph are, from a site's table with the keys ``nodes`` and ``file``.

    Raises:
        BadInput: missing or unknown keys.
    """
    check_keys(keys, {"nodes", "file"}, where)
    nodes, file = (str(path_of(keys.get(key), f"{where}.{key}", folder)) for key in ("nodes", "file"))
    return GraphFiles(party=party, nodes=nodes, file=file)


def read_table(given: Any, where: str, folder: Path, table: str) -> TableSource:
    """Return where a site's `table` of a query is, from the table `where` of the site's file.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    party = parse(RelationalParty, given, where, folder)
    if "columns" in party.written:
        raise BadInput(f"{where}.columns: rules are not allowed at a site for tables that a query joins")
    return _table_source(party, table)


def read_party(
    given: Any,
    where: str,
    folder: Path,
    name: str,
    layout: str,
    kind: Task,
    num_classes: int,
    positive: str | int | float | None = None,
) -> FileSource:
    """Return where a site's rows of vertical or horizontal data are, from the table `where` of the site's file.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    party = parse(LAYOUTS[layout][1], given, where, folder)
    return file_source(name, party, kind, num_classes if layout == "vertical" else 0, positive)
