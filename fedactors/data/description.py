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

The file is checked here (`load_description`); each party's data are read by that party alone, in its own process. The
same tables describe a site's data in its ``site.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from fedactors.config import from_table
from fedactors.data.columns import columns_text, fit_public, resolve_rules
from fedactors.data.databases import POSTGRES_SECRETS, SourceError, TableKind, TableSource, postgres_settings
from fedactors.data.layouts.graph import EdgeFile, GraphFiles, GraphTables, UserGraph
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalFile
from fedactors.data.layouts.vertical import RelationalData, RelationalPartition, VerticalData
from fedactors.data.query import QueryError, named_tables, view_of, views_of
from fedactors.data.readers import ImageFolder, ending_of, is_csv
from fedactors.data.schema import (
    LAYOUTS,
    MOST_CLASSES,
    ArraysParty,
    ArraysTask,
    GraphParty,
    GraphTask,
    HorizontalParty,
    HorizontalTask,
    RelationalParty,
    RelationalTask,
    RowsParty,
    SiteArraysTask,
    Table,
    VerticalParty,
    VerticalTask,
    parse,
)
from fedactors.data.sources import FileSource
from fedactors.data.values import OF_VALUES, CsvFormat, class_text
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task as TargetTask
from fedactors.runtime.snapshots import is_held, is_object, object_at
from fedactors.validation import (
    check_keys,
    choice_of,
    different_files,
    different_names,
    is_in_library,
    party_name,
    path_of,
    read_text,
    read_tree,
    shown,
    unreplaced,
)

IMAGE_FOLDERS = ("shape", "peak", "mean", "deviation")


def horizontal_data(name: str, task: HorizontalTask, parties: Mapping[str, HorizontalParty]) -> HorizontalData:
    """Return who holds which rows to train on; see `fedactors.data.description.load_description`."""
    num_classes = num_classes_of(task)
    classes = class_labels(task)
    counts = class_weights(task)
    targets = target_shape_of(task, num_classes, next(iter(parties.values())).label)
    for one, _ in counts:
        if one not in classes:
            raise BadInput(f"task.class_weights: {one!r} is not allowed: classes are {', '.join(classes)}")
    image_folder = image_folder_of(task, parties)
    columns = _common_columns(parties, image_folder)
    _check_public_rules(task, columns, next(iter(parties.values())).label)
    meant = fit_public(columns or (), task.columns)
    width = sum(len(one.names) for one in meant)
    centers = _centers(parties)
    for party in parties.values() if task.type == "tokens" else ():
        party.refuse(["weight"], " for type=tokens, whose loss is a mean over those that count: label the others -100")
    split = [one for one, party in parties.items() if party.split is not None]
    if split and len(split) < len(parties):
        one = next(one for one in parties if one not in split)
        raise BadInput(f"parties.{one}.split: missing: every client names such a column, or none does")

    def file(one: str, party: HorizontalParty) -> HorizontalFile:
        source = replace(file_source(one, party, task.type, 0, class_weights=counts), rules=tuple(task.columns.items()))
        if targets and source.label is not None:
            source = replace(source, label=None, targets=(source.label,))
        return HorizontalFile(
            file=source,
            classes=classes,
            image_folder=image_folder,
            targets=targets,
            num_classes=num_classes if task.type == "tokens" else 0,
        )

    files = {one: file(one, party) for one, party in parties.items()}
    different_files({one: found.file.path for one, found in files.items()})
    for one, found in files.items() if task.test is not None else ():
        if task.path_at("test") == found.file.path:
            raise task.refused("test", f": parties.{one} trains on it, and a model is measured on rows of nobody")
    first = next(iter(parties.values()))
    test = {key: value for key, value in first.written.items() if key not in ("split", "sql", "tables")}
    test["path"] = task.test
    return HorizontalData(
        name=name,
        task=task.type,
        num_classes=num_classes,
        num_clients=len(parties),
        shape=image_folder.shape if image_folder is not None else () if columns is None else (width,),
        targets=targets,
        columns=columns_text(meant if image_folder is None else ()),
        files=tuple(files.values()),
        parties=tuple(parties),
        centers=centers,
        test_file=None
        if task.test is None
        else file("test", parse(HorizontalParty, test, "parties.test", task.folder)),
    )


def new_horizontal_data(name: str, task: HorizontalTask, parties: Mapping[str, HorizontalParty]) -> HorizontalData:
    """Return who holds which rows to predict: what only training needs is not read, and the model knows the rest."""
    classes = () if task.classes is None else class_labels(task)
    image_folder = image_folder_of(task, parties)
    files = {}
    for one, party in parties.items():
        source = replace(file_source(one, party, task.type, 0), split_column=None, weight=None, unlabelled="refuse")
        files[one] = HorizontalFile(file=source, classes=classes, image_folder=image_folder)
    different_files({one: found.file.path for one, found in files.items()})
    return HorizontalData(
        name=name,
        task=task.type,
        num_classes=len(classes) or 1,
        num_clients=len(parties),
        shape=(),
        files=tuple(files.values()),
        parties=tuple(parties),
    )


def target_shape_of(task: HorizontalTask, num_classes: int, label: str | list[str] | None) -> tuple[int, ...]:
    """Return the shape of a row's target; none: it is one number or class."""
    columns = label if isinstance(label, list) else []
    given = tuple(task.target_shape or ())
    if task.type in ("binary", "multiclass"):
        task.refuse(["target_shape"], f" for type={task.type}: a row has one class")
        if columns:
            raise BadInput(f"label: {', '.join(columns)} is not allowed for type={task.type}: a row has one class")
        return ()
    made: tuple[int, ...]
    if task.type == "multilabel":
        made = (num_classes,)
    elif task.type == "tokens":
        if task.shape is None:
            raise BadInput("task.shape: missing; type=tokens needs the length of a sequence: shape = [LENGTH]")
        made = given or tuple(task.shape)[:1]
    else:
        made = given or ((len(columns),) if columns else ())
    if given not in ((), made) or (columns and made != (len(columns),)):
        told = f"target_shape {list(given)}" if given else f"label: {len(columns)} columns"
        raise BadInput(f"{told} is not allowed: targets of type={task.type} are of shape {list(made)} here")
    return () if task.type == "regression" and made == (1,) and not columns else made


def num_classes_of(task: VerticalTask | HorizontalTask | RelationalTask | GraphTask) -> int:
    """Return the number of classes that a task states; 1 of a regression."""
    count = len(task.classes) if isinstance(task.classes, list) else task.classes
    if task.type == "regression":
        task.refuse(["classes"], " for type=regression")
        return 1
    if task.type == "binary":
        if count not in (None, 2):
            raise task.refused("classes", " for type=binary: leave it out, or list both labels")
        return 2
    if count is None or not 2 <= count <= MOST_CLASSES:
        said = "missing" if count is None else f"{shown(task.classes)} is not allowed"
        raise BadInput(f"task.classes: {said}; type={task.type} needs the number of classes, 2 to {MOST_CLASSES}")
    return count


def class_labels(task: HorizontalTask) -> tuple[str, ...]:
    """Return the text of each class that a horizontal task lists; none of a regression, or of tokens without texts."""
    if task.type == "regression" or (task.type == "tokens" and isinstance(task.classes, int)):
        return ()
    if task.type == "multilabel" and isinstance(task.classes, int):
        return tuple(map(str, range(task.classes)))
    if isinstance(task.classes, int):
        raise BadInput(
            f"task.classes: {task.classes} is not allowed: with layout=horizontal list the labels, such as [0, 1], "
            "because no client sees the others'"
        )
    listed = [0, 1] if task.classes is None and task.type == "binary" else task.classes or []
    if len(set(map(class_text, listed))) < 2 or (task.type == "binary" and len(listed) != 2):
        raise BadInput(
            f"task.classes: {shown(task.classes)} is not allowed: with layout=horizontal list the labels, such as "
            "[0, 1], because no client sees the others'"
        )
    return tuple(map(class_text, listed))


def image_folder_of(task: HorizontalTask, parties: Mapping[str, HorizontalParty]) -> ImageFolder | None:
    """Return what images look like, None where rows are no images."""
    given = {key: task.written[key] for key in IMAGE_FOLDERS if key in task.written}
    if not given:
        return None
    if task.shape is None:
        raise task.refused(next(iter(given)), " without shape = [channels, height, width]")
    for party in parties.values():
        if party.label is None:
            _refuse_table_keys(party)
    if "columns" in task.written:
        raise BadInput("task.columns: rules are not allowed for images")
    return from_table(ImageFolder, given, "task")


def _refuse_table_keys(party: HorizontalParty) -> None:
    party.refuse(
        ("id", "features", "csv", "weight", "unlabelled", "split", "sql"),
        " for images that are no table: with a table of pixels, name its label column",
    )


def _common_columns(parties: Mapping[str, HorizontalParty], image_folder: ImageFolder | None) -> tuple[str, ...] | None:
    """Return the columns to learn from, the same for every client; None: all."""
    labels = {", ".join(one) if isinstance(one := party.label, list) else str(one) for party in parties.values()}
    if len(labels) != 1 or ("None" in labels and image_folder is None):
        raise BadInput(f"label: {', '.join(sorted(labels))} is not allowed: every client names the same label column")
    columns = next(iter(parties.values())).names
    if columns == ():
        raise BadInput("features: [] is not allowed: every client needs at least one feature column")
    for name, party in parties.items():
        if party.names != columns:
            raise BadInput(f"parties.{name}.features: every client must name the same columns in the same order")
    return columns


def _check_public_rules(task: HorizontalTask, columns: tuple[str, ...] | None, label: str | list[str] | None) -> None:
    """Check that rules are of columns that clients have, or of their label, and that nothing is measured by them."""
    for name, rule in task.columns.items():
        if name == label:
            if not rule.is_category or task.type == "regression":
                raise BadInput(
                    f"task.columns.{name}: it is the label: a rule is for labels of classes, type = text or categorical"
                )
            continue
        if columns is not None and name not in columns and not ("*" in name and resolve_rules([(name, rule)], columns)):
            raise BadInput(f"task.columns: {name!r} is not allowed: list it under features, at every client")
        if rule.measures:
            raise BadInput(
                f"task.columns.{name}: {rule.measures} is not allowed with layout=horizontal, where clients do not see "
                f"each other's rows: {_public_rule(rule)}"
            )


def _public_rule(rule: Any) -> str:
    """Return what a rule says in place of what it would measure."""
    if rule.is_category:
        return f'list them, {{ type = "{rule.type}", categories = ["A", "B"] }}'
    if rule.fills_with:
        return 'fill gaps with a constant, missing = "constant" and fill = 0'
    return 'give a range of days since 1970, scaling = "range" and range = [0, 25000]'


def _centers(parties: Mapping[str, HorizontalParty]) -> tuple[str, ...]:
    centers = {name: party.center for name, party in parties.items() if party.center is not None}
    for name in parties:
        if centers and name not in centers:
            raise BadInput(f"parties.{name}.center: missing: every client names its center, or none does")
    return tuple(party_name(center, f"parties.{name}.center") for name, center in centers.items())


def class_weights(task: VerticalTask | HorizontalTask) -> tuple[tuple[str, float], ...]:
    """Return how much rows of a class count, by its text; none where all count alike."""
    if task.class_weights and task.type not in ("binary", "multiclass"):
        raise task.refused("class_weights", f" for type={task.type}: a row has no one class")
    return tuple((class_text(name), float(value)) for name, value in task.class_weights.items())


def file_source(
    name: str,
    party: RowsParty,
    kind: TargetTask,
    num_classes: int,
    positive: str | int | float | None = None,
    class_weights: tuple[tuple[str, float], ...] = (),
) -> FileSource:
    """Return where the rows of a party are, of the name that errors give it."""
    for column in party.columns:
        if column in party.categorical:
            raise BadInput(f"{party.where}.columns: {column!r} is not allowed: it stands under categorical too")
    if "csv" in party.written and not any(map(is_csv, map(Path, party.files))):
        others = [one.name for one in fields(CsvFormat) if one.name not in OF_VALUES]
        if (
            any(map(is_object, party.files))
            or any(map(is_in_library, party.files))
            or any(getattr(party.csv, one) != getattr(CsvFormat(), one) for one in others)
        ):
            told = ", ".join(OF_VALUES)
            raise party.refused("csv", f": {party.files[0]} is no CSV file, of whose texts {told} alone count")
    view = _party_view(name, party)
    return FileSource(
        party=name,
        path=f"{name}.sql" if view is not None else party.path_at("path"),
        view=view,
        task=kind,
        num_classes=num_classes,
        id_column=tuple(party.id) if isinstance(party.id, list) else party.id,
        id_rules=tuple(party.id_rules),
        features=party.names,
        label=None if isinstance(party.label, list) else party.label,
        targets=tuple(party.label) if isinstance(party.label, list) else (),
        categorical=tuple(party.categorical),
        rules=tuple(party.columns.items()),
        csv=party.csv if "csv" in party.written else None,
        positive=None if positive is None or party.label is None else class_text(positive),
        split_column=party.split,
        weight=party.weight,
        class_weights=class_weights,
        unlabelled=party.unlabelled,
        duplicates=party.duplicates,
    )


_KINDS = {
    ".duckdb": "duckdb",
    ".db": "sqlite",
    ".sqlite": "sqlite",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
}
"""By the ending of a file, whatever packs it: .csv.gz, .csv.zst and .CSV are CSV."""

Data = TypeVar("Data", VerticalData, HorizontalData, RelationalData)


Described = VerticalData | HorizontalData | RelationalData | UserGraph | GraphTables


def layout_of(data: Described | type) -> str:
    """Return what a description's ``layout`` is called, by what was read of it."""
    kinds = {
        VerticalData: "vertical",
        HorizontalData: "horizontal",
        RelationalData: "relational",
        UserGraph: "graph",
        GraphTables: "graph-tables",
    }
    return kinds[data if isinstance(data, type) else type(data)]


def load_description_as(path: Path, wanted: type[Data], *, is_new: bool = False) -> Data:
    """Read and check a ``parties.toml`` for a protocol that needs one type of partition; see `load_description`.

    Raises:
        BadInput: as `load_description`, or another layout.
    """
    made = load_description(path, is_new=is_new)
    if not isinstance(made, wanted):
        raise BadInput(
            f"task.layout: {layout_of(made)!r} is not allowed: give {layout_of(wanted)!r}, or train with another "
            "protocol (fedactors list has each protocol's layout)"
        )
    return made


def load_new_rows(name: str | HorizontalData, load_named: Callable[[str], HorizontalData]) -> HorizontalData:
    """Return who has which rows to predict; they need no test rows, and not every client need have some.

    Args:
        name: of a description of user-provided data, or of a data set.
        load_named: loads a data set as for training.

    Raises:
        BadInput: as `load_description_as`.
    """
    if isinstance(name, HorizontalData):
        return name
    return load_description_as(Path(name), HorizontalData, is_new=True) if name.endswith(".toml") else load_named(name)


def load_description(path: Path, *, is_new: bool = False) -> Described:
    """Read and check a ``parties.toml``.

    Args:
        path: of the file.
        is_new: rows to predict: of the layout horizontal only what prediction reads is asked for.

    Raises:
        BadInput: not readable, not TOML, or a wrong key or value; the message names field, value and what is allowed.
    """
    try:
        layout, task, parties = _read(path)
        is_new_rows = layout == "horizontal" and is_new
        fewest = 1 if layout == "graph" or is_new_rows else 2
        if len(parties) < fewest:
            raise BadInput(f"parties: {len(parties)} given in {path}, at least {fewest} are needed")
        build = new_horizontal_data if is_new_rows else _BUILDERS[layout]
        return build(layout if is_object(path) else path.stem, task, parties)
    except BadInput as error:
        if line := _line_of(path, str(error).partition(": ")[0]):
            error.args = (f"{error} ({path.name}:{line})",)
        raise


def _line_of(path: Path, field: str) -> int:
    """Return the line of a TOML file that gives a field, such as ``parties.shop.id``, or its table; 0: none does."""
    if is_object(path) or path.suffix != ".toml" or not re.fullmatch(r"(task|parties)(\.[\w-]+)*", field):
        return 0
    table, found, best = "", 0, 0
    for number, line in enumerate(read_text(path, "data").splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table, key = header[1].strip().replace('"', ""), ""
        elif given := re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", line):
            key = given[1]
        else:
            continue
        name = f"{table}.{key}" if key else table
        if (field == name or field.startswith(f"{name}.")) and len(name) > best:
            found, best = number, len(name)
    return found


def _tables(path: Path) -> Any:
    """Return the tables of a description: a file's, or those that stand for objects."""
    return object_at(path) if is_object(path) else read_tree(path, "data")


def _read(path: Path) -> tuple[str, Any, dict[str, Any]]:
    """Return layout, task and parties of a description, each table checked by itself."""
    given = _tables(path)
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
    parties = _tables(path).get("parties")
    found: dict[str, dict[str, str]] = {"checkpoint_dir": {}, "checkpoint_key": {}}
    for name, party in parties.items() if isinstance(parties, dict) else ():
        for key, locations in found.items() if isinstance(party, dict) else ():
            if key in party and not (isinstance(party[key], str) and party[key]):
                raise BadInput(f"parties.{name}.{key}: {shown(party[key])} is not allowed: give a text")
            if key == "checkpoint_dir" and (variable := unreplaced(party.get(key, ""), path.parent)):
                raise BadInput(f"parties.{name}.{key}: {shown(party[key])} is not allowed: {variable}")
            if key in party:
                locations[name] = party[key]
    folders = {name: _state_location(location, path.parent) for name, location in found["checkpoint_dir"].items()}
    return folders, found["checkpoint_key"]


def _state_location(location: str, folder: Path) -> str:
    return location if "://" in location else str((folder / Path(location).expanduser()).resolve())


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
        if party.id is None:
            party.refuse(["duplicates"], " without id: rows are called by their numbers, which all differ")
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
    classes = _listed_classes(task)
    sources = {
        one: replace(
            file_source(one, party, task.type, num_classes, task.positive, counts),
            classes=classes if one == holders[0] else (),
        )
        for one, party in parties.items()
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


def _listed_classes(task: VerticalTask | GraphTask | RelationalTask) -> tuple[str, ...]:
    """Return the labels that a task lists, in the order in which they are numbered; none where it gives a number."""
    if not isinstance(task.classes, list):
        return ()
    found = tuple(map(class_text, task.classes))
    if len(set(found)) < len(found):
        raise task.refused("classes", ": a label is there twice")
    if getattr(task, "positive", None) is not None:
        raise task.refused("positive", " beside a list of classes: the last one of the list is numbered 1")
    return found


def _graph_arrays(name: str, task: ArraysTask, parties: Mapping[str, ArraysParty]) -> UserGraph:
    files = {one: party.path_at("file") for one, party in parties.items()}
    different_files(files, "file")
    nodes = task.path_at("nodes")
    return UserGraph(tuple(files), tuple(GraphFiles(party=one, nodes=nodes, file=file) for one, file in files.items()))


def _graph_tables(name: str, task: GraphTask, parties: Mapping[str, GraphParty]) -> GraphTables:
    rows = _vertical(name, task, parties)
    edges = {}
    for one, party in parties.items():
        ends, count = tuple(map(_columns, party.ends)), len(_columns(party.id))
        if ends[0] == ends[1]:
            raise party.refused("ends", ": give two columns")
        if any(len(end) != count for end in ends):
            raise BadInput(
                f"{party.where}.ends: {shown(party.ends)} is not allowed: an id has {count} columns, each end as many"
            )
        if count > 1:
            party.refuse(["sparse"], f": its column node is one, and an id has {count}; write one column of ids")
        edges[one] = EdgeFile(
            party=one,
            path=party.path_at("edges"),
            ends=ends,
            sparse=None if party.sparse is None else party.path_at("sparse"),
            csv=party.csv,
            id_rules=tuple(party.id_rules),
        )
    different_files({one: edge.path for one, edge in edges.items()}, "edges")
    sources = tuple(replace(source, unlabelled="keep") for source in rows.sources if isinstance(source, FileSource))
    return GraphTables(rows=replace(rows, sources=sources), edges=tuple(edges.values()))


def _columns(given: str | list[str] | None) -> tuple[str, ...]:
    """Return the columns that make an id together."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def _relational(name: str, task: RelationalTask, parties: Mapping[str, RelationalParty]) -> RelationalData:
    num_classes = num_classes_of(task)
    held = {(one, table): source for one, party in parties.items() for table, source in _tables_of(one, party).items()}
    holders: dict[str, list[str]] = {}
    for one, table in held:
        holders.setdefault(table, []).append(one)
    sql, views = views_of(task.sql, holders)
    for view in views:
        (owner,) = holders[view.tables[0]]
        inside = tuple(replace(held[owner, table], label=table) for table in view.tables)
        held[owner, view.name] = TableSource(kind="view", table=view.name, sql=view.sql, tables=inside)
    wanted = named_tables(sql)
    made: list[RelationalPartition] = []
    for (one, table), source in held.items():
        party = parties[one]
        if party.tables and party.sql is None and table not in wanted:
            continue  # read by a view, or by nobody
        is_view = any(view.name == table for view in views)
        if not is_view and any(table in view.tables for view in views) and table not in wanted:
            continue
        choice_of(table, wanted, f"{party.where}.table")
        for column in party.columns:
            if column in task.categorical or f"{table}.{column}" in task.categorical:
                raise BadInput(f"{party.where}.columns: {column!r} is not allowed: it stands in task.categorical too")
        made.append(
            RelationalPartition(
                party=one,
                table=table,
                partition=sum(partition.table == table for partition in made),
                source=source,
                id_columns=() if is_view else _columns(party.id),
                rules=() if is_view else tuple(party.columns.items()),
                id_rules=tuple(party.id_rules),
            )
        )
    files = [one for one in made if one.source.kind != "view"]
    different_files({f"{one.party}": (one.source.where, one.source.table) for one in files})
    missing = [table for table in wanted if table not in {partition.table for partition in made}]
    if missing:
        raise BadInput(f"sql: table {missing[0]!r} is with no party; name it under [parties.NAME] table = ...")
    return RelationalData(
        name=name,
        sql=sql,
        label=task.label,
        task=task.type,
        num_classes=num_classes,
        partitions=tuple(made),
        categorical=tuple(task.categorical),
        classes=_listed_classes(task),
    )


_BUILDERS: Mapping[str, Callable[[str, Any, Any], Described]] = {
    "vertical": _vertical,
    "horizontal": horizontal_data,
    "relational": _relational,
    "graph": _graph_arrays,
    "graph-tables": _graph_tables,
}
"""What makes the data of a layout, of the description's name, its task and its parties."""


def _tables_of(name: str, party: RelationalParty) -> dict[str, TableSource]:
    """Return where a party's tables of the query lie, by their names in it.

    Raises:
        BadInput: keys that do not go together.
    """
    if not party.tables:
        party.refuse(["sql"], " without tables = { NAME = PATH }, which it reads")
        table = party.table or name
        return {table: _table_source(party, table)}
    party.refuse(["path", "kind", "source_table"], ": the party gives tables")
    if party.sql is not None:
        return {party.table or name: _view_source(party, party.table or name)}
    party.refuse(["table", "id"], ": the party gives several tables, by their names in the query")
    if len(party.tables) > 1:
        party.refuse(["columns"], ": the party gives several tables; compute the columns in a view of the query (WITH)")
    return {table: _source_at(party, path, "tables", table) for table, path in party.tables.items()}


def _party_view(name: str, party: RowsParty) -> TableSource | None:
    """Return the view of its own tables that a party's rows are; None: they are a file's."""
    if party.sql is None:
        party.refuse(["tables"], " without sql, a SELECT over them")
        if not party.path:
            raise BadInput(f"{party.where}.path: missing")
        return None
    party.refuse(["path"], ": the party gives sql")
    return _view_source(party, name)


def _view_source(party: RelationalParty | RowsParty, name: str) -> TableSource:
    """Return the view that a party's own SELECT is of its own tables."""
    assert party.sql is not None
    if not party.tables:
        party.refuse(["sql"], " without tables = { NAME = PATH }, which it reads")
    try:
        view = view_of(name, party.sql, tuple(party.tables))
    except QueryError as error:
        raise BadInput(f"{party.where}.{error}") from None
    inside = (_source_at(party, party.tables[table], "tables", table) for table in view.tables)
    tables = tuple(replace(source, label=table) for table, source in zip(view.tables, inside, strict=True))
    return TableSource(kind="view", table=name, sql=view.sql, tables=tables)


def _table_source(party: RelationalParty, table: str) -> TableSource:
    if not party.path:
        raise BadInput(f"{party.where}.path: missing")
    return _source_at(party, party.path, "path", table, party.kind, party.source_table)


def _source_at(
    party: RelationalParty | RowsParty,
    where: str,
    key: str,
    table: str,
    kind: Any = None,
    source_table: str | None = None,
) -> TableSource:
    """Return where a table of a party lies, by what stands at a key of its description."""
    if is_held(where):
        party.refuse(("kind", "source_table", "csv"), ": its path is an object")
        return TableSource(kind="object", where=where, table=table)
    if is_in_library(where):
        party.refuse(("kind", "source_table", "csv"), ": its path is a data set of a library")
        return TableSource(kind="library", where=party.path_at(key, where), table=table)
    address = where.startswith(("env:", "postgresql://", "postgres://"))
    if address and not where.startswith("env:"):
        try:
            settings = postgres_settings(where)
        except SourceError as error:
            raise BadInput(f"{party.where}.path: {error}") from None
        if any(settings.get(secret) is not None for secret in POSTGRES_SECRETS):
            raise BadInput(f"{party.where}.path: a password is not allowed in a file: give env:NAME or use ~/.pgpass")
    guess = "postgres" if address else _KINDS.get(ending_of(where))
    allowed = (*sorted(set(_KINDS.values())), "postgres")
    if guess is None and kind is None and key == "tables":
        raise BadInput(
            f"{party.where}.tables.{table}: {where!r} is not allowed: give a file whose name ends in "
            f"{', '.join(sorted(_KINDS))}, or the address of PostgreSQL; the table is called as it is in its database"
        )
    kind = choice_of(kind or guess, allowed, f"{party.where}.{'kind' if key == 'path' else key}")
    if kind != "postgres":
        where = party.path_at(key, where)
    if kind != "csv" and key == "path":
        party.refuse(["csv"], f": {party.path} is no CSV file but of kind {kind}")
    csv = party.csv if "csv" in party.written and kind == "csv" else None
    return TableSource(kind=cast(TableKind, kind), where=where, table=source_table or table, csv=csv)


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
    if layout != "horizontal" and isinstance(getattr(task, "classes", None), list):
        raise BadInput(f"{where}.classes: a list is not allowed at a site: give the number of classes")
    for key in ("class_weights", "columns"):
        if key in task.written:
            raise BadInput(f"{where}: {key} is not allowed at a site")
    if isinstance(task, HorizontalTask) and task.type == "tokens":
        raise BadInput(f"{where}.type: tokens is not allowed at a site: it needs a model of your own, no site's code")
    return task


def facts_of(task: Table) -> dict[str, Any]:
    """Return what all parties may know of a task: its layout and type, ``classes``, and what the layout needs.

    Raises:
        BadInput: classes that do not fit the type.
    """
    if isinstance(task, HorizontalTask):
        labels, looks = class_labels(task), image_folder_of(task, {})
        count = len(labels) or 1
        targets = target_shape_of(task, count, None)
        seen = {} if looks is None else {name: getattr(looks, name) for name in IMAGE_FOLDERS}
        made = {"layout": task.layout, "type": task.type, "classes": count, "labels": labels, "targets": targets}
        return {**made, **seen}
    if not isinstance(task, VerticalTask | RelationalTask | GraphTask):
        return {"layout": "graph", "type": "multiclass", "classes": 0}
    facts: dict[str, Any] = {"layout": task.layout, "type": task.type, "classes": num_classes_of(task)}
    if isinstance(task, RelationalTask):
        return {**facts, "sql": task.sql, "label": task.label, "categorical": tuple(task.categorical)}
    return {**facts, "alignment": task.alignment, "split": task.split}


def read_samples(
    given: Any,
    where: str,
    folder: Path,
    name: str,
    kind: TargetTask,
    targets: tuple[int, ...],
    looks: Mapping[str, Any],
) -> tuple[FileSource, ImageFolder | None]:
    """Return where a site's rows of horizontal data are, and what they look like if they are no rows of a table.

    Args:
        given: the table `where` of the site's file.
        where: the table.
        folder: that paths are relative to.
        name: of the party.
        kind: what is predicted.
        targets: shape of a row's target; none: it is one number or class.
        looks: keys of an `ImageFolder`; none: rows are a table's.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    found = read_party(given, where, folder, name, "horizontal", kind, 0)
    if targets and found.label is not None:
        found = replace(found, label=None, targets=(found.label,))
    if not looks:
        return found, None
    if not found.is_labelled:
        _refuse_table_keys(parse(HorizontalParty, given, where, folder))
    return found, from_table(ImageFolder, looks, "task")


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
    if "id_rules" in party.written:
        raise party.refused("id_rules", " at a site")
    found = _tables_of(table, party)
    return found.get(table) or next(iter(found.values()))


def read_party(
    given: Any,
    where: str,
    folder: Path,
    name: str,
    layout: str,
    kind: TargetTask,
    num_classes: int,
    positive: str | int | float | None = None,
) -> FileSource:
    """Return where a site's rows of vertical or horizontal data are, from the table `where` of the site's file.

    Raises:
        BadInput: naming the key, its value and what is allowed.
    """
    party = parse(LAYOUTS[layout][1], given, where, folder)
    if isinstance(party.label, list):
        raise BadInput(f"{where}.label: {shown(party.label)} is not allowed at a site: give one column")
    return file_source(name, party, kind, num_classes if layout == "vertical" else 0, positive)
