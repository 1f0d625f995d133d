"""What stands in a ``parties.toml``: the keys of each layout with their types, checked before anything is read.

`parse` makes each table an instance of its class, which layouts are built from: what was validated is what is used. The
same classes are the keys that errors name, the tables of the reference page, and the JSON schema that editors take
(``docs/reference/parties-toml.schema.json``). What keys mean together `fedactors.data.description` checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter

from fedactors.config import WIDEST, config, from_table
from fedactors.data.alignment.ids import Alignment
from fedactors.data.columns import ONLY_OF, ColumnRule
from fedactors.data.datasets.catalogue import Task
from fedactors.data.readers import Size
from fedactors.data.sources import Duplicates
from fedactors.data.values import CsvFormat, IdRule
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task as TargetTask
from fedactors.runtime.snapshots import is_held
from fedactors.validation import address_of, library_address, path_of, shown, unreplaced, without_password

T = TypeVar("T", bound="Table")
ON_HOST = "a location on the party's host"
Text = Annotated[str, Field(min_length=1)]
Location = Annotated[str, Field(min_length=1), ON_HOST]
"""A file or a folder, or an address in its stead."""


def _different(names: Any) -> Any:
    if isinstance(names, list) and len(set(names)) < len(names):
        raise ValueError('give "all" or a list of different column names')
    return names


Names = Annotated[list[str], AfterValidator(_different)]
Id = Text | Annotated[list[Text], Field(min_length=1), AfterValidator(_different)]
"""One column, or several that make an id together."""
Columns = Annotated[Literal["all"] | list[str], AfterValidator(_different)]
Weights = dict[str, Annotated[float, Field(gt=0, le=WIDEST)]]
MOST_CLASSES = 65536
SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class Table:
    """A table of a description: its values as attributes, its place, and how it is written."""

    where: str
    """``task`` or ``parties.NAME``, for errors."""
    written: Mapping[str, Any]
    """The keys that stand in the file, and their values there, for errors."""
    folder: Path
    """Of the description."""

    def refused(self, key: str, why: str) -> BadInput:
        """Return the error for a value that is not allowed."""
        return BadInput(f"{self.where}.{key}: {shown(self.written.get(key))} is not allowed{why}")

    def refuse(self, keys: Iterable[str], why: str) -> None:
        """Refuse keys that may not stand in this table."""
        for key in keys:
            if key in self.written:
                raise self.refused(key, why)

    def path_at(self, key: str, given: str | None = None) -> str:
        """Return the absolute path that a key gives, relative to the description, or an address; of an object too.

        Args:
            key: its name.
            given: what stands there; None: the key's value.
        """
        given = getattr(self, key) if given is None else given
        if is_held(given):
            return str(given)
        if address := library_address(given, f"{self.where}.{key}", self.folder):
            return address
        if address_of(given):
            if variable := unreplaced(given):
                raise BadInput(f"{self.where}.{key}: {shown(given)} is not allowed: {variable}")
            return without_password(given, f"{self.where}.{key}")
        return str(path_of(given, f"{self.where}.{key}", self.folder))


class RowsParty(Table):
    """A party whose rows are in a file; a key that its layout does not have has the usual value."""

    path: str | None
    tables: Mapping[str, str] = MappingProxyType({})
    sql: str | None = None
    id: str | list[str] | None
    features: Literal["all"] | list[str]
    label: str | list[str] | None
    csv: CsvFormat
    split: str | None
    categorical: Sequence[str] = ()
    columns: Mapping[str, ColumnRule] = MappingProxyType({})
    id_rules: Sequence[IdRule] = ()
    weight: str | None = None
    duplicates: Duplicates = "refuse"
    unlabelled: Literal["refuse", "drop"] = "refuse"

    @property
    def names(self) -> tuple[str, ...] | None:
        """The columns to learn from; None: all."""
        return None if isinstance(self.features, str) else tuple(self.features)

    @property
    def files(self) -> list[str]:
        """The files of its table, as they are written."""
        return [file for file in (self.path, *self.tables.values()) if file is not None]


@config
class VerticalTask(Table):
    """Rows whose columns lie with several parties."""

    type: Task
    """What is predicted."""
    layout: Literal["vertical"] = "vertical"
    """The same rows, other columns."""
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | list[str | int | float] | None = None
    """Number of classes, for ``multiclass`` only; or the labels in the order in which they are numbered."""
    alignment: Alignment = "already-aligned"
    """How rows find each other."""
    positive: str | int | float | None = None
    """The class that is numbered 1, of a ``binary`` task; the last one unless given."""
    split: Literal["random", "stratified"] = "random"
    """How training, validation and test rows are drawn."""
    class_weights: Weights = Field(default_factory=dict)
    """How much rows of a class count; a class without counts 1."""


@config
class VerticalParty(RowsParty):
    """A party with some columns of the rows."""

    path: Location | None = None
    """File of the rows: CSV, Parquet or npy; unless ``sql`` is given."""
    tables: dict[str, Location] = Field(default_factory=dict)
    """The party's own tables that ``sql`` reads, by their names in it: files, or databases as in ``relational``."""
    sql: Text | None = None
    """A SELECT over ``tables`` whose rows are the party's: joins, aggregates, whatever DuckDB has."""
    id: Id | None = None
    """Column by which rows are aligned, or a list of columns that make an id together."""
    id_rules: list[IdRule] = Field(default_factory=list)
    """What does not count in ids: ``nfkc``, ``casefold``, ``strip-zeros``."""
    features: Columns = "all"
    """Columns to learn from."""
    label: Text | None = None
    """Column of the label; exactly one party names one."""
    categorical: Names = Field(default_factory=list)
    """Columns of text that become categories."""
    columns: dict[str, ColumnRule] = Field(default_factory=dict)
    """Rules of columns that are no plain numbers."""
    csv: CsvFormat = CsvFormat()
    """How the CSV file is written."""
    split: Text | None = None
    """At the party with the label: column that says train, validation or test."""
    weight: Text | None = None
    """At the party with the label: column that says how much each row counts."""
    duplicates: Duplicates = "refuse"
    """What becomes of rows to train on that have one id: ``refuse`` the file, keep the ``first`` that can be used, or
    ``drop`` all of them."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """At the party with the label: what becomes of rows to train on without one."""
    checkpoint_dir: Location | None = None
    """Where its process keeps its checkpoints."""
    checkpoint_key: Location | None = None
    """Key that they are encrypted with: ``file:PATH`` or ``env:NAME``."""


@config
class HorizontalTask(Table):
    """Rows that lie with several clients, with the same columns; or images."""

    type: TargetTask
    """What is predicted; ``multilabel``: 0 or 1 of each of several labels; ``tokens``: a class of each token of a
    sequence, or -100 where it does not count."""
    layout: Literal["horizontal"]
    """Other rows, the same columns."""
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | list[str | int | float] | None = None
    """The labels, because no client sees the others'; of ``multilabel`` and ``tokens`` their number will do."""
    target_shape: Annotated[list[Size], Field(min_length=1, max_length=3)] | None = None
    """Of targets that are an array each: values of a ``regression``, steps and values, or of ``tokens`` positions,
    which are the first of ``shape`` unless given."""
    test: Location | None = None
    """File of the server's public test rows."""
    class_weights: Weights = Field(default_factory=dict)
    """How much rows of a class count; a class without counts 1."""
    columns: dict[str, ColumnRule] = Field(default_factory=dict)
    """Rules of columns, the same for every client; nothing is measured."""
    shape: Annotated[list[Size], Field(min_length=1, max_length=3)] | None = None
    """Of samples that are images: channels, height, width; of sequences: length, or length and numbers of a step."""
    peak: Annotated[float, Field(gt=0)] | None = None
    """What an image's values are divided by."""
    mean: list[float] = Field(default_factory=list)
    """Taken off each channel after that."""
    deviation: list[float] = Field(default_factory=list)
    """What each channel is divided by at last."""


@config
class HorizontalParty(RowsParty):
    """A client with some of the rows."""

    path: Location | None = None
    """File of its rows; of images also a folder; unless ``sql`` is given."""
    tables: dict[str, Location] = Field(default_factory=dict)
    """The client's own tables that ``sql`` reads, by their names in it: files, or databases as in ``relational``."""
    sql: Text | None = None
    """A SELECT over ``tables`` whose rows are the client's: joins, aggregates, whatever DuckDB has."""
    id: Id | None = None
    """Column that rows are called by in predictions, or a list of columns; no features."""
    features: Columns = "all"
    """Columns to learn from, the same for every client."""
    label: Id | None = None
    """Column of the label, the same for every client; a list of columns: of a target that has several values."""
    csv: CsvFormat = CsvFormat()
    """How the CSV file is written."""
    center: Text | None = None
    """``nebulafl``: the data center that holds this client."""
    weight: Text | None = None
    """Column that says how much each row counts."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """What becomes of rows to train on without a label."""
    split: Text | None = None
    """Column that says train or validation of each row."""


@config
class RelationalTask(Table):
    """Tables of several organisations that a query joins."""

    type: Task
    """What is predicted."""
    layout: Literal["relational"]
    """Tables that a query joins."""
    sql: Text
    """The query that states the training set."""
    label: Text
    """Column of the label, as the query names it."""
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | list[str | int | float] | None = None
    """Number of classes, for ``multiclass`` only; or the labels in the order in which they are numbered."""
    categorical: Names = Field(default_factory=list)
    """Columns of text that become categories."""


@config
class RelationalParty(Table):
    """A party with a table, or a part of one."""

    path: Location | None = None
    """File, ``postgresql://...`` without a password, or ``env:VARIABLE``; unless ``tables`` are given."""
    tables: dict[str, Location] = Field(default_factory=dict)
    """Several tables, by their names in the query, each with a path as of ``path``."""
    sql: Text | None = None
    """A SELECT over ``tables`` whose rows are the party's one table: joins, aggregates, whatever DuckDB has."""
    kind: Literal["csv", "duckdb", "parquet", "postgres", "sqlite"] | None = None
    """By the path's ending unless given."""
    table: Text | None = None
    """Name of the table in the query; the party's name unless given."""
    source_table: Text | None = None
    """Name of the table in the database."""
    id: Id | None = None
    """Column that names a row's predictions, or a list of columns."""
    id_rules: list[IdRule] = Field(default_factory=list)
    """What does not count in keys that are texts: ``nfkc``, ``casefold``, ``strip-zeros``, and blanks at the ends."""
    columns: dict[str, ColumnRule] = Field(default_factory=dict)
    """Rules of columns that are no plain numbers."""
    csv: CsvFormat = CsvFormat()
    """How the CSV file is written."""
    checkpoint_dir: Location | None = None
    """Where its process keeps its checkpoints."""
    checkpoint_key: Location | None = None
    """Key that they are encrypted with: ``file:PATH`` or ``env:NAME``."""


@config
class GraphTask(Table):
    """A graph whose nodes lie in tables, each party with its own columns and edges."""

    type: Literal["binary", "multiclass"]
    """What is predicted of a node."""
    layout: Literal["graph-tables"]
    """Nodes with ids, columns and edges of their own at each party."""
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | list[str | int | float] | None = None
    """Number of classes, for ``multiclass`` only; or the labels in the order in which they are numbered."""
    alignment: Alignment = "already-aligned"
    """How nodes find each other."""
    positive: str | int | float | None = None
    """The class that is numbered 1, of a ``binary`` task; the last one unless given."""
    split: Literal["random", "stratified"] = "random"
    """How training, validation and test nodes are drawn of those with a label."""


def _usual_ends() -> list[str | list[str]]:
    return ["source", "target"]


@config
class GraphParty(RowsParty):
    """A party with some columns and some edges of the nodes."""

    path: Location
    """File of the nodes, a row each: CSV, Parquet or npy."""
    id: Id
    """Column of the nodes' ids, or a list of columns that make an id together."""
    id_rules: list[IdRule] = Field(default_factory=list)
    """What does not count in ids: ``nfkc``, ``casefold``, ``strip-zeros``."""
    edges: Location
    """File of the edges, a row each: two ids."""
    ends: Annotated[list[Id], Field(min_length=2, max_length=2)] = Field(default_factory=_usual_ends)
    """Columns of the edges' file with the ids of an edge's ends; of ids of several columns a list for each end."""
    sparse: Location | None = None
    """File of sparse features: columns ``node``, ``feature`` and, unless all are 1, ``value``."""
    duplicates: Duplicates = "refuse"
    """What becomes of rows of one id: ``refuse`` the file, keep the ``first`` that can be used, or ``drop`` all."""
    features: Columns = "all"
    """Columns to learn from."""
    label: Text | None = None
    """Column of the label; exactly one party names one. Nodes may have none."""
    categorical: Names = Field(default_factory=list)
    """Columns of text that become categories."""
    columns: dict[str, ColumnRule] = Field(default_factory=dict)
    """Rules of columns that are no plain numbers."""
    csv: CsvFormat = CsvFormat()
    """How the CSV files are written."""
    split: Text | None = None
    """At the party with the label: column that says train, validation or test, or nothing."""
    checkpoint_dir: Location | None = None
    """Where its process keeps its checkpoints."""
    checkpoint_key: Location | None = None
    """Key that they are encrypted with: ``file:PATH`` or ``env:NAME``."""

    @property
    def files(self) -> list[str]:
        """The files of its tables, as they are written."""
        return [file for file in (self.path, self.edges, self.sparse) if file is not None]


@config
class ArraysTask(Table):
    """A graph whose nodes are numbered alike at every party, in arrays."""

    layout: Literal["graph"]
    """Numbered nodes in ``.npz`` files."""
    nodes: Location
    """``.npz`` file of what all parties know: ``labels``, and ``train``, ``validation`` and ``test``."""


@config
class SiteArraysTask(Table):
    """The task of a graph in arrays at a site, whose data name the file of the nodes."""

    layout: Literal["graph"]


@config
class ArraysParty(Table):
    """A party with some feature columns and some edges of numbered nodes."""

    file: Location
    """``.npz`` file of ``edges`` (2, E) and ``features`` (N, F)."""
    checkpoint_dir: Location | None = None
    """Where its process keeps its checkpoints."""
    checkpoint_key: Location | None = None
    """Key that they are encrypted with: ``file:PATH`` or ``env:NAME``."""


LAYOUTS: dict[str, tuple[type[Any], type[Any]]] = {
    "vertical": (VerticalTask, VerticalParty),
    "horizontal": (HorizontalTask, HorizontalParty),
    "relational": (RelationalTask, RelationalParty),
    "graph": (ArraysTask, ArraysParty),
    "graph-tables": (GraphTask, GraphParty),
}
"""For each layout what stands in ``[task]``, and in each ``[parties.NAME]``."""


def parse(cls: type[T], given: Any, where: str, folder: Path) -> T:
    """Return a table of a description.

    Args:
        cls: what stands in it.
        given: as TOML has it.
        where: its place in the file, for errors.
        folder: of the file.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    inner = {"columns", "csv"} & {field.name for field in fields(cls)}  # type: ignore[arg-type]
    is_table = isinstance(given, dict)
    made = from_table(cls, {key: given[key] for key in given if key not in inner} if is_table else given, where)
    if "columns" in inner & set(given):
        made = replace(made, columns=_rules(given["columns"], f"{where}.columns"))  # type: ignore[type-var]
    if "csv" in inner & set(given):
        made = replace(made, csv=from_table(CsvFormat, given["csv"], f"{where}.csv"))  # type: ignore[type-var]
    for name, value in (("where", where), ("written", given), ("folder", folder)):
        object.__setattr__(made, name, value)  # no fields: they are no keys of the file
    return made


def _rules(given: Any, where: str) -> dict[str, ColumnRule]:
    """Return what a table says of columns, by name."""
    if not isinstance(given, dict):
        raise BadInput(f"{where}: {shown(given)} is not allowed: give a table [{where}]")
    rules = {column: from_table(ColumnRule, rule, f"{where}.{column}") for column, rule in given.items()}
    for column, rule in rules.items():  # here and not in the rule: parts that were trained so are still read
        _check_rule(rule, given[column], f"{where}.{column}")
    return rules


def _check_rule(rule: ColumnRule, given: Mapping[str, Any], where: str) -> None:
    for key in given:
        if key in ONLY_OF and rule.type not in ONLY_OF[key]:
            raise BadInput(
                f"{where}.{key}: {shown(given[key])} is not allowed for type={rule.type}, which ignores it: it is for "
                f"{' or '.join(ONLY_OF[key])}"
            )
    for key, text in (*(("categories", one) for one in rule.categories), ("fill", rule.fill)):
        if isinstance(text, str) and not text.strip():
            raise BadInput(f"{where}.{key}: {text!r} is not allowed: a value of blanks is a missing one")
    if rule.rare > 1 and rule.unknown == "refuse":
        raise BadInput(
            f"{where}.rare: {rule.rare} is not allowed with unknown='refuse': rare categories share the bucket"
        )


def locations(*, of_party: bool) -> frozenset[str]:
    """Return the keys, of any layout, that name a location on a party's host: in `[parties.NAME]`, or in `[task]`."""
    return frozenset(key for tables in LAYOUTS.values() for key in _locations_of(tables[of_party]))


def _locations_of(cls: type[Any]) -> Iterator[str]:
    def is_location(kind: Any) -> bool:
        return ON_HOST in getattr(kind, "__metadata__", ()) or any(map(is_location, get_args(kind)))

    return (key for key, kind in get_type_hints(cls, include_extras=True).items() if is_location(kind))


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a ``parties.toml``, for editors."""
    found: dict[str, Any] = {}
    kinds = []
    for layout, (task, party) in LAYOUTS.items():
        made = {}
        for name, cls in (("task", task), ("party", party)):
            one = TypeAdapter(cls).json_schema(ref_template="#/$defs/{model}")
            found |= one.pop("$defs", {})
            made[name] = one
        found[f"{layout}-task"], found[f"{layout}-party"] = made["task"], made["party"]
        fewest = 1 if layout == "graph" else 2
        parties = {
            "type": "object",
            "minProperties": fewest,
            "additionalProperties": {"$ref": f"#/$defs/{layout}-party"},
        }
        kinds.append(
            {
                "type": "object",
                "properties": {"task": {"$ref": f"#/$defs/{layout}-task"}, "parties": parties},
                "required": ["task", "parties"],
                "additionalProperties": False,
            }
        )
    return {
        "$schema": SCHEMA,
        "title": "parties.toml of fedactors",
        "oneOf": kinds,
        "$defs": dict(sorted(found.items())),
    }


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=1))
