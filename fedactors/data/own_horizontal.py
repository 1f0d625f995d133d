"""A description's parts about rows in tables: the file of a party, and what all clients of a horizontal task share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedactors.config import from_table
from fedactors.data.catalogue import Task
from fedactors.data.csv_files import is_csv
from fedactors.data.files import class_text
from fedactors.data.horizontal import HorizontalData, HorizontalFile
from fedactors.data.own_schema import (
    MOST_CLASSES,
    GraphTask,
    HorizontalParty,
    HorizontalTask,
    RelationalTask,
    RowsParty,
    VerticalTask,
    parse,
)
from fedactors.data.pictures import Pictures
from fedactors.data.preprocessing import columns_text, fit_public
from fedactors.data.sources import FileSource
from fedactors.errors import BadInput
from fedactors.validation import different_files, party_name, shown

PICTURES = ("shape", "peak", "mean", "deviation")


def horizontal_data(name: str, task: HorizontalTask, parties: Mapping[str, HorizontalParty]) -> HorizontalData:
    """Return who holds which rows to train on; see `fedactors.data.own.load_own`."""
    num_classes_of(task)
    classes = class_labels(task)
    counts = class_weights(task)
    for one, _ in counts:
        if one not in classes:
            raise BadInput(f"task.class_weights: {one!r} is not allowed: classes are {', '.join(classes)}")
    pictures = pictures_of(task, parties)
    columns = _common_columns(parties, pictures)
    _check_public_rules(task, columns)
    meant = fit_public(columns or (), task.columns)
    width = sum(len(one.names) for one in meant)
    centers = _centers(parties)
    split = [one for one, party in parties.items() if party.split is not None]
    if split and len(split) < len(parties):
        one = next(one for one in parties if one not in split)
        raise BadInput(f"parties.{one}.split: missing: every client names such a column, or none does")

    def file(one: str, party: HorizontalParty) -> HorizontalFile:
        source = replace(file_source(one, party, task.type, 0, class_weights=counts), rules=tuple(task.columns.items()))
        return HorizontalFile(file=source, classes=classes, pictures=pictures)

    files = {one: file(one, party) for one, party in parties.items()}
    different_files({one: found.file.path for one, found in files.items()})
    for one, found in files.items() if task.test is not None else ():
        if task.path_at("test") == found.file.path:
            raise task.refused("test", f": parties.{one} trains on it, and a model is measured on rows of nobody")
    first = next(iter(parties.values()))
    test = {key: value for key, value in first.written.items() if key != "split"} | {"path": task.test}
    return HorizontalData(
        name=name,
        task=task.type,
        num_classes=len(classes) or 1,
        num_clients=len(parties),
        shape=pictures.shape if pictures is not None else () if columns is None else (width,),
        columns=columns_text(meant if pictures is None else ()),
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
    pictures = pictures_of(task, parties)
    files = {}
    for one, party in parties.items():
        source = replace(file_source(one, party, task.type, 0), split_column=None, weight=None, unlabelled="refuse")
        files[one] = HorizontalFile(file=source, classes=classes, pictures=pictures)
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


def num_classes_of(task: VerticalTask | HorizontalTask | RelationalTask | GraphTask) -> int:
    """Return the number of classes that a task states; 1 of a regression."""
    count = len(task.classes) if isinstance(task.classes, list) else task.classes
    if task.type == "regression":
        task.refuse(["classes"], " for type=regression")
        return 1
    if task.type == "binary":
        if count not in (None, 2):
            raise task.refused("classes", " for type=binary: leave it out")
        return 2
    if count is None or not 2 <= count <= MOST_CLASSES:
        said = "missing" if count is None else f"{shown(task.classes)} is not allowed"
        raise BadInput(f"task.classes: {said}; type=multiclass needs the number of classes, 2 to {MOST_CLASSES}")
    return count


def class_labels(task: HorizontalTask) -> tuple[str, ...]:
    """Return the text of each class that a horizontal task lists; none of a regression."""
    if task.type == "regression":
        return ()
    listed = [0, 1] if task.classes is None and task.type == "binary" else task.classes or []
    if len(set(map(class_text, listed))) < 2 or (task.type == "binary" and len(listed) != 2):
        raise BadInput(
            f"task.classes: {shown(task.classes)} is not allowed: with layout=horizontal list the labels, such as "
            "[0, 1], because no client sees the others'"
        )
    return tuple(map(class_text, listed))


def pictures_of(task: HorizontalTask, parties: Mapping[str, HorizontalParty]) -> Pictures | None:
    """Return what images look like, None where rows are no images."""
    given = {key: task.written[key] for key in PICTURES if key in task.written}
    if not given:
        return None
    if task.shape is None:
        raise task.refused(next(iter(given)), " without shape = [channels, height, width]")
    for party in parties.values():
        if party.label is None:
            party.refuse(
                ("id", "features", "csv", "weight", "unlabelled", "split"),
                " for images that are no table: with a table of pixels, name its label column",
            )
    if "columns" in task.written:
        raise BadInput("task.columns: rules are not allowed for images")
    return from_table(Pictures, given, "task")


def _common_columns(parties: Mapping[str, HorizontalParty], pictures: Pictures | None) -> tuple[str, ...] | None:
    """Return the columns to learn from, the same for every client; None: all."""
    labels = {str(party.label) for party in parties.values()}
    if len(labels) != 1 or ("None" in labels and pictures is None):
        raise BadInput(f"label: {', '.join(sorted(labels))} is not allowed: every client names the same label column")
    columns = next(iter(parties.values())).names
    if columns == ():
        raise BadInput("features: [] is not allowed: every client needs at least one feature column")
    for name, party in parties.items():
        if party.names != columns:
            raise BadInput(f"parties.{name}.features: every client must name the same columns in the same order")
    return columns


def _check_public_rules(task: HorizontalTask, columns: tuple[str, ...] | None) -> None:
    """Check that rules are of columns that every client lists, and that nothing is measured by them."""
    for name, rule in task.columns.items():
        if columns is None or name not in columns:
            raise BadInput(f"task.columns: {name!r} is not allowed: list it under features, at every client")
        if rule.measures:
            raise BadInput(
                f"task.columns.{name}: {rule.measures} is not allowed with layout=horizontal, for each client would "
                "find its own: list categories, fill with a constant, give a range of days"
            )


def _centers(parties: Mapping[str, HorizontalParty]) -> tuple[str, ...]:
    centers = {name: party.center for name, party in parties.items() if party.center is not None}
    for name in parties:
        if centers and name not in centers:
            raise BadInput(f"parties.{name}.center: missing: every client names its center, or none does")
    return tuple(party_name(center, f"parties.{name}.center") for name, center in centers.items())


def class_weights(task: VerticalTask | HorizontalTask) -> tuple[tuple[str, float], ...]:
    """Return how much rows of a class count, by its text; none where all count alike."""
    if task.class_weights and task.type == "regression":
        raise task.refused("class_weights", " for type=regression: it has no classes")
    return tuple((class_text(name), float(value)) for name, value in task.class_weights.items())


def file_source(
    name: str,
    party: RowsParty,
    kind: Task,
    num_classes: int,
    positive: str | int | float | None = None,
    class_weights: tuple[tuple[str, float], ...] = (),
) -> FileSource:
    """Return where the rows of a party are, of the name that errors give it."""
    for column in party.columns:
        if column in party.categorical:
            raise BadInput(f"{party.where}.columns: {column!r} is not allowed: it stands under categorical too")
    if "csv" in party.written and not any(map(is_csv, map(Path, party.files))):
        raise party.refused("csv", f": {party.files[0]} is no CSV file")
    return FileSource(
        party=name,
        path=party.path_at("path"),
        task=kind,
        num_classes=num_classes,
        id_column=party.id,
        features=party.names,
        label=party.label,
        categorical=tuple(party.categorical),
        rules=tuple(party.columns.items()),
        csv=party.csv if "csv" in party.written else None,
        positive=None if positive is None or party.label is None else class_text(positive),
        split_column=party.split,
        weight=party.weight,
        class_weights=class_weights,
        unlabelled=party.unlabelled,
    )
