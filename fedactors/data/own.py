"""One's own data: a ``parties.toml`` that says for each party which file it has and what the columns mean.

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

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from fedactors.config import from_table
from fedactors.data.alignment import Alignment
from fedactors.data.blocks import SplitKind
from fedactors.data.catalogue import Task
from fedactors.data.client_graphs import GraphArrays
from fedactors.data.files import CsvFormat, class_text
from fedactors.data.node_tables import EdgeFile, GraphTables
from fedactors.data.own_schema import LAYOUTS, MOST_CLASSES, check_table, public_rules, rules_of
from fedactors.data.partitions import (
    HorizontalData,
    HorizontalFile,
    RelationalData,
    RelationalPartition,
    VerticalData,
)
from fedactors.data.pictures import Pictures
from fedactors.data.preprocessing import columns_text, fit_public
from fedactors.data.relational import POSTGRES_SECRETS, SourceError, TableKind, TableSource, postgres_settings
from fedactors.data.sources import FileSource
from fedactors.data.sql import named_tables
from fedactors.errors import BadInput
from fedactors.validation import (
    choice_of,
    different_files,
    different_names,
    names_of,
    party_name,
    path_of,
    read_tree,
    shown,
    text_of,
)

_PICTURES = ("shape", "peak", "mean", "deviation")
_KINDS = {
    ".duckdb": "duckdb",
    ".db": "sqlite",
    ".sqlite": "sqlite",
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
}

Own = TypeVar("Own", VerticalData, HorizontalData, RelationalData)


def layout_of(data: VerticalData | HorizontalData | RelationalData | GraphArrays | GraphTables | type) -> str:
    """Return what a description's ``layout`` is called, by what was read of it."""
    kinds = {
        VerticalData: "vertical",
        HorizontalData: "horizontal",
        RelationalData: "relational",
        GraphArrays: "graph",
        GraphTables: "graph-tables",
    }
    return kinds[data if isinstance(data, type) else type(data)]


def load_own_as(path: Path, wanted: type[Own]) -> Own:
    """Read and check a ``parties.toml`` for a protocol that needs one type of partition.

    Raises:
        BadInput: as `load_own`, or another layout.
    """
    made = load_own(path)
    if not isinstance(made, wanted):
        raise BadInput(f"task.layout: {layout_of(made)!r} is not allowed: give {layout_of(wanted)!r}")
    return made


def load_own(path: Path) -> VerticalData | HorizontalData | RelationalData | GraphArrays | GraphTables:
    """Read and check a ``parties.toml``.

    Raises:
        BadInput: not readable, not TOML, or a wrong key or value; the message names field, value and what is allowed.
    """
    given = read_tree(path, "data")
    _known(given, {"task", "parties"}, str(path))
    task, parties = _table(given, "task", path), _table(given, "parties", path)
    layout = choice_of(task.get("layout", "vertical"), tuple(LAYOUTS), "task.layout")
    of_task, of_party = LAYOUTS[layout]
    check_table(of_task, task, "task")
    for name, party in parties.items():
        party_name(name)
        check_table(of_party, party, f"parties.{name}")
    different_names(parties)
    fewest = 1 if layout == "graph" else 2
    if len(parties) < fewest:
        raise BadInput(f"parties: {len(parties)} given in {path}, at least {fewest} are needed")
    if layout == "graph":
        return _graph_arrays(path, task, parties)
    kind, num_classes = _task(task)
    if layout == "graph-tables":
        return _graph_tables(path, task, parties, kind, num_classes)
    if layout == "relational":
        return _relational(path, task, parties, kind, num_classes)
    if layout == "horizontal":
        return _horizontal(path, task, parties, kind)
    return _vertical(path, task, parties, kind, num_classes)


def load_states(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return where parties keep their states, and the names of the keys that they seal them with, by party.

    A folder is relative to the file; on the party's own host it is found by its absolute path.

    Raises:
        BadInput: not readable, not TOML, or a value that is no text. What else is wrong, `load_own` says.
    """
    where: dict[str, str] = {}
    keys: dict[str, str] = {}
    parties = read_tree(path, "data").get("parties")
    for name, party in parties.items() if isinstance(parties, dict) else ():  # `load_own` refuses what is none
        if isinstance(party, dict) and "state" in party:
            place = text_of(party["state"], f"parties.{name}.state")
            where[name] = place if "://" in place else str((path.parent / Path(place).expanduser()).resolve())
        if isinstance(party, dict) and "state_key" in party:
            keys[name] = text_of(party["state_key"], f"parties.{name}.state_key")
    return where, keys


def _vertical(path: Path, task: dict[str, Any], parties: dict[str, Any], kind: Task, num_classes: int) -> VerticalData:
    alignment = choice_of(
        task.get("alignment", "already-aligned"), ("already-aligned", "hash", "psi"), "task.alignment"
    )
    holders = [name for name, party in parties.items() if "label" in party]
    if len(holders) != 1:
        raise BadInput(
            f"label: {len(holders)} parties name one ({', '.join(holders) or 'none'}); exactly one party must"
        )
    for name, party in parties.items():
        if alignment != "already-aligned" and "id" not in party:
            raise BadInput(f"parties.{name}.id: missing; alignment={alignment} needs an id column at every party")
    how = choice_of(task.get("split", "random"), ("random", "stratified"), "task.split")
    if how == "stratified" and kind == "regression":
        raise BadInput("task.split: 'stratified' is not allowed for type=regression: it has no classes")
    positive = task.get("positive")
    if positive is not None and (kind != "binary" or not isinstance(positive, (str, int, float))):
        raise BadInput(f"task.positive: {shown(positive)} is not allowed: name a class, for type=binary only")
    for name, party in parties.items():
        if "split" in party and (name != holders[0] or how != "random"):
            raise BadInput(
                f"parties.{name}.split: {shown(party['split'])} is not allowed: the party with the label names the "
                "column, and task.split is left out"
            )
    for name, party in parties.items():
        for key in ("weight", "unlabelled"):
            if key in party and name != holders[0]:
                raise BadInput(
                    f"parties.{name}.{key}: {shown(party[key])} is not allowed: only the party with the label has it"
                )
    counts = _class_weights(task, kind)
    sources = {name: _file(path, name, party, kind, num_classes, positive, counts) for name, party in parties.items()}
    different_files({name: source.path for name, source in sources.items()})
    return VerticalData(
        name=path.stem,
        task=kind,
        num_classes=num_classes,
        parties=tuple(sources),
        sources=tuple(sources.values()),
        label_party=holders[0],
        alignment=cast(Alignment, alignment),
        split=cast(SplitKind, how),
    )


def _graph_arrays(path: Path, task: dict[str, Any], parties: dict[str, Any]) -> GraphArrays:
    files = {name: str(path_of(party["file"], f"parties.{name}.file", path.parent)) for name, party in parties.items()}
    different_files(files, "file")
    nodes = str(path_of(task["nodes"], "task.nodes", path.parent))
    return GraphArrays(parties=tuple(files), files=tuple(files.values()), nodes=nodes)


def _graph_tables(
    path: Path, task: dict[str, Any], parties: dict[str, Any], kind: Task, num_classes: int
) -> GraphTables:
    rows = _vertical(path, task, parties, kind, num_classes)
    edges = {}
    for name, party in parties.items():
        sparse = path_of(party["sparse"], f"parties.{name}.sparse", path.parent) if "sparse" in party else None
        ends = party.get("ends", ["source", "target"])
        if ends[0] == ends[1]:
            raise BadInput(f"parties.{name}.ends: {shown(ends)} is not allowed: give two columns")
        edges[name] = EdgeFile(
            party=name,
            path=str(path_of(party["edges"], f"parties.{name}.edges", path.parent)),
            ends=(ends[0], ends[1]),
            sparse=None if sparse is None else str(sparse),
            csv=from_table(CsvFormat, party.get("csv", {}), f"parties.{name}.csv"),
        )
    different_files({name: one.path for name, one in edges.items()}, "edges")
    sources = tuple(replace(source, unlabelled="keep") for source in rows.sources if isinstance(source, FileSource))
    return GraphTables(rows=replace(rows, sources=sources), edges=tuple(edges.values()))


def _horizontal(path: Path, task: dict[str, Any], parties: dict[str, Any], kind: Task) -> HorizontalData:
    names = _class_labels(task, kind)
    counts = _class_weights(task, kind)
    for name, _ in counts:
        if name not in names:
            raise BadInput(f"task.class_weights: {name!r} is not allowed: classes are {', '.join(names)}")
    pictures = _pictures(task, parties)
    labels = {str(party.get("label")) for party in parties.values()}
    if len(labels) != 1 or ("None" in labels and pictures is None):
        raise BadInput(f"label: {', '.join(sorted(labels))} is not allowed: every client names the same label column")
    first = next(iter(parties.values()))
    columns = names_of(first.get("features", "all"), "features")
    if columns == ():
        raise BadInput("features: [] is not allowed: every client needs at least one feature column")
    for name, party in parties.items():
        if names_of(party.get("features", "all"), f"parties.{name}.features") != columns:
            raise BadInput(f"parties.{name}.features: every client must name the same columns in the same order")

    rules = public_rules(task, columns)
    meant = fit_public(columns or (), rules) if rules else ()
    width = len(columns or ()) if not rules else sum(len(one.names) for one in meant)

    centers = {name: text_of(p["center"], f"parties.{name}.center") for name, p in parties.items() if "center" in p}
    for name in parties:
        if centers and name not in centers:
            raise BadInput(f"parties.{name}.center: missing: every client names its center, or none does")
    for name, center in centers.items():
        party_name(center, f"parties.{name}.center")

    split = [name for name, party in parties.items() if "split" in party]
    if split and len(split) < len(parties):
        name = next(name for name in parties if name not in split)
        raise BadInput(f"parties.{name}.split: missing: every client names such a column, or none does")

    def file(name: str, party: dict[str, Any]) -> HorizontalFile:
        source = replace(_file(path, name, party, kind, 0, class_weights=counts), rules=tuple(rules.items()))
        return HorizontalFile(file=source, classes=names, pictures=pictures)

    files = {name: file(name, party) for name, party in parties.items()}
    different_files({name: one.file.path for name, one in files.items()})
    test = {key: value for key, value in first.items() if key != "split"} | {"path": task.get("test")}
    for name, one in files.items() if "test" in task else ():
        if str(path_of(task["test"], "task.test", path.parent)) == one.file.path:
            raise BadInput(
                f"task.test: {shown(task['test'])} is not allowed: parties.{name} trains on it, and a model is "
                "measured on rows of nobody"
            )
    return HorizontalData(
        name=path.stem,
        task=kind,
        num_classes=len(names) or 1,
        num_clients=len(parties),
        shape=pictures.shape if pictures is not None else () if columns is None else (width,),
        columns=columns_text(meant),
        files=tuple(files.values()),
        parties=tuple(parties),
        centers=tuple(centers.values()),
        test_file=file("test", test) if "test" in task else None,
    )


def _class_labels(task: dict[str, Any], kind: Task) -> tuple[str, ...]:
    """Return the text of each class that a horizontal task lists; none of a regression."""
    if kind == "regression":
        return ()
    listed = task.get("classes", [0, 1] if kind == "binary" else None)
    if not isinstance(listed, list) or len(set(map(class_text, listed))) < 2 or (kind == "binary" and len(listed) != 2):
        raise BadInput(
            f"task.classes: {shown(listed)} is not allowed: with layout=horizontal list the labels, such as "
            "[0, 1], because no client sees the others'"
        )
    return tuple(class_text(value) for value in listed)


def _pictures(task: dict[str, Any], parties: dict[str, Any]) -> Pictures | None:
    """Return what images look like, None where rows are no images."""
    given = {key: task[key] for key in _PICTURES if key in task}
    if given and "shape" not in given:
        key = next(iter(given))
        raise BadInput(f"task.{key}: {shown(task[key])} is not allowed without shape = [channels, height, width]")
    for name, party in parties.items():
        for key in ("features", "csv", "weight", "unlabelled", "split") if given and "label" not in party else ():
            if key in party:
                raise BadInput(
                    f"parties.{name}.{key}: {shown(party[key])} is not allowed for images that are no table: with a "
                    "table of pixels, name its label column"
                )
    if given and "columns" in task:
        raise BadInput("task.columns: rules are not allowed for images")
    return from_table(Pictures, given, "task") if given else None


def _relational(
    path: Path, task: dict[str, Any], parties: dict[str, Any], kind: Task, num_classes: int
) -> RelationalData:
    sql, label = (text_of(task.get(key), f"task.{key}") for key in ("sql", "label"))
    categorical = names_of(task.get("categorical", []), "task.categorical") or ()
    wanted = named_tables(sql)
    made: list[RelationalPartition] = []
    for name, party in parties.items():
        table = choice_of(party.get("table", name), wanted, f"parties.{name}.table")
        source = _table_source(path, f"parties.{name}", table, party)
        number = sum(partition.table == table for partition in made)
        ids = text_of(party["id"], f"parties.{name}.id") if "id" in party else ""
        made.append(RelationalPartition(party=name, table=table, partition=number, source=source, id_column=ids))
    different_files({one.party: (one.source.where, one.source.table) for one in made})
    missing = [table for table in wanted if table not in {partition.table for partition in made}]
    if missing:
        raise BadInput(f"sql: table {missing[0]!r} is with no party; name it under [parties.NAME] table = ...")
    return RelationalData(
        name=path.stem,
        sql=sql,
        label=label,
        task=kind,
        num_classes=num_classes,
        partitions=tuple(made),
        categorical=categorical,
    )


def read_table(path: Path, where: str, table: str, party: dict[str, Any]) -> TableSource:
    """Return where a party's `table` of a query is, from the table `where` of the file `path`.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    check_table(LAYOUTS["relational"][1], party, where)
    return _table_source(path, where, table, party)


def _table_source(path: Path, field: str, table: str, party: dict[str, Any]) -> TableSource:
    where = text_of(party.get("path"), f"{field}.path")
    address = where.startswith(("env:", "postgresql://", "postgres://"))
    if address and not where.startswith("env:"):
        try:
            settings = postgres_settings(where)
        except SourceError as error:
            raise BadInput(f"{field}.path: {error}") from None
        if any(settings.get(secret) is not None for secret in POSTGRES_SECRETS):
            raise BadInput(f"{field}.path: a password is not allowed in a file: give env:NAME or use ~/.pgpass")
    suffix = next((known for known in _KINDS if where.endswith(known)), "")
    guess = "postgres" if address else _KINDS.get(suffix)
    kind = choice_of(party.get("kind", guess), (*sorted(set(_KINDS.values())), "postgres"), f"{field}.kind")
    if kind != "postgres":
        where = str(path_of(where, f"{field}.path", path.parent))
    named = text_of(party.get("source_table", table), f"{field}.source_table")
    return TableSource(kind=cast(TableKind, kind), where=where, table=named)


def _class_weights(task: dict[str, Any], kind: Task) -> tuple[tuple[str, float], ...]:
    given = task.get("class_weights", {})
    if given and kind == "regression":
        raise BadInput(f"task.class_weights: {shown(given)} is not allowed for type=regression: it has no classes")
    return tuple((class_text(name), float(value)) for name, value in given.items())


def read_party(
    path: Path,
    where: str,
    name: str,
    party: dict[str, Any],
    layout: str,
    kind: Task,
    num_classes: int,
    positive: Any = None,
) -> FileSource:
    """Return where a party's rows of vertical or horizontal data are, from the table `where` of the file `path`.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    check_table(LAYOUTS[layout][1], party, where)
    return _file(path, name, party, kind, num_classes if layout == "vertical" else 0, positive, where=where)


def read_task(task: dict[str, Any], where: str) -> dict[str, Any]:
    """Return what a table says of a task: its layout and type, the number of ``classes``, and what the layout needs.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    layout = choice_of(task.get("layout", "vertical"), (*LAYOUTS, "graph"), f"{where}.layout")
    if layout == "graph":
        _known(task, {"layout"}, where)
        return {"layout": layout, "type": "multiclass", "classes": 0}
    check_table(LAYOUTS[layout][0], task, where)
    for key in ("class_weights", "columns", *_PICTURES):
        if key in task:
            raise BadInput(f"{where}: {key} is not allowed at a site")
    if layout == "horizontal":
        labels = _class_labels(task, task["type"])
        return {"layout": layout, "type": task["type"], "classes": len(labels) or 1, "labels": labels}
    kind, num_classes = _task(task)
    facts = {"layout": layout, "type": kind, "classes": num_classes}
    if layout == "relational":
        categorical = tuple(task.get("categorical", ()))
        return {**facts, "sql": task["sql"], "label": task["label"], "categorical": categorical}
    alignment = choice_of(
        task.get("alignment", "already-aligned"), ("already-aligned", "hash", "psi"), "task.alignment"
    )
    split = choice_of(task.get("split", "random"), ("random", "stratified"), "task.split")
    return {**facts, "alignment": alignment, "split": split}


def _file(
    path: Path,
    name: str,
    party: dict[str, Any],
    kind: Task,
    num_classes: int,
    positive: Any = None,
    class_weights: tuple[tuple[str, float], ...] = (),
    where: str = "",
) -> FileSource:
    where = where or f"parties.{name}"
    rules = rules_of(party, where)
    categorical = names_of(party.get("categorical", []), f"{where}.categorical") or ()
    for column in rules:
        if column in categorical:
            raise BadInput(f"{where}.columns: {column!r} is not allowed: it stands under categorical too")
    return FileSource(
        party=name,
        path=str(path_of(party.get("path"), f"{where}.path", path.parent)),
        task=kind,
        num_classes=num_classes,
        id_column=text_of(party["id"], f"{where}.id") if "id" in party else None,
        features=names_of(party.get("features", "all"), f"{where}.features"),
        label=text_of(party["label"], f"{where}.label") if "label" in party else None,
        categorical=categorical,
        rules=tuple(rules.items()),
        csv=from_table(CsvFormat, party["csv"], f"{where}.csv") if "csv" in party else None,
        positive=None if positive is None or "label" not in party else class_text(positive),
        split_column=text_of(party["split"], f"{where}.split") if "split" in party else None,
        weight=text_of(party["weight"], f"{where}.weight") if "weight" in party else None,
        class_weights=class_weights,
        unlabelled=cast(
            Literal["refuse", "drop"],
            choice_of(party.get("unlabelled", "refuse"), ("refuse", "drop"), f"{where}.unlabelled"),
        ),
    )


def _task(task: dict[str, Any]) -> tuple[Task, int]:
    kind: Task = task["type"]
    classes = task.get("classes")
    if kind == "regression":
        if classes is not None:
            raise BadInput(f"task.classes: {shown(classes)} is not allowed for type=regression")
        return kind, 1
    count = len(classes) if isinstance(classes, list) else classes
    if kind == "binary":
        if count not in (None, 2):
            raise BadInput(f"task.classes: {shown(classes)} is not allowed for type=binary: leave it out")
        return kind, 2
    if count is None or not 2 <= count <= MOST_CLASSES:
        raise BadInput(
            f"task.classes: {shown(classes)} is not allowed: give the number of classes, 2 to {MOST_CLASSES}"
        )
    return kind, count


def _known(table: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise BadInput(f"{where}: unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")


def _table(given: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    found = given.get(key)
    if not isinstance(found, dict):
        raise BadInput(f"data: {path}: no table [{key}{'.NAME' if key == 'parties' else ''}]")
    return found
