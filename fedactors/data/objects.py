"""Objects of Python as data: what a ``parties.toml`` says of files, said of tables, arrays and data sets in memory.

    data = fedactors.vertical({"bank": bank_df, "shop": shop_df}, id="customer", label=("bank", "defaulted"))
    run = fedactors.simulate("pubsub-vfl", data)

An object becomes what a file would be: tables of pandas, Polars, Arrow, DuckDB, Hugging Face `datasets` and numpy an
Arrow table; samples and labels of more dimensions, and graphs, arrays by name. Where a file has its path an object has
its address, ``object:PARTY:DIGEST`` (`fedactors.runtime.snapshots.object_at`), of its values and not of how a library
lays them out: the same object in another process has the same address, and a run goes on with it. Keys, rules and
errors are a ``parties.toml``'s. No package is imported for an object: each is told by what it can do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedactors.config import from_table
from fedactors.data.columns import ColumnRule
from fedactors.data.databases import rows_of_relation
from fedactors.data.description import load_description
from fedactors.data.layouts.graph import WEIGHTS, refuse_weights
from fedactors.data.readers import is_list, shape_of_lists, table_of_hugging_face
from fedactors.data.sources import named_classes
from fedactors.data.values import Column, in_arrows_unit, plain_values, texts_of_numpy
from fedactors.errors import BadInput
from fedactors.runtime.snapshots import OBJECT, HeldObject, hold
from fedactors.validation import first_line, party_name, shown

Keys = Mapping[str, Any]
"""Keys of a table of a ``parties.toml``, with Python values."""
LABEL = "label"
"""What the column of labels is called that were given as an array."""


class Objects:
    """Objects that `fedactors.run` and `fedactors.simulate` take as data, with what a ``parties.toml`` says of them.

    Keep it as long as the data are needed: objects live in the process that made it.

    Args:
        layout: as ``task.layout``.
        task: the other keys of ``[task]``; without a type these are rows to predict.
        parties: keys of each ``[parties.NAME]``.
        kept: the objects whose addresses stand there.
    """

    def __init__(self, layout: str, task: Keys, parties: Mapping[str, Keys], kept: Sequence[HeldObject]) -> None:
        self.layout = layout
        self._kept = tuple(kept)
        given = {
            "task": {"layout": layout, **_given(task)},
            "parties": {n: _given(keys) for n, keys in parties.items()},
        }
        try:
            text = json.dumps(given, default=_plain)
        except (TypeError, ValueError) as error:
            raise BadInput(f"data: {first_line(error)}: give texts, numbers, lists and mappings as keys") from None
        tables = json.loads(text)
        self.address = f"{OBJECT}{layout}:{hashlib.sha256(text.encode()).hexdigest()[:32]}.toml"
        self._described = hold(self.address, tables)
        if "type" in tables["task"] or layout == "graph":
            load_description(Path(self.address), is_new=layout == "horizontal" and len(parties) == 1)

    @property
    def task(self) -> dict[str, Any]:
        """The keys of ``[task]``."""
        return dict(self._described.content["task"])

    @property
    def parties(self) -> dict[str, dict[str, Any]]:
        """The keys of each ``[parties.NAME]``."""
        return {name: dict(keys) for name, keys in self._described.content["parties"].items()}

    def to_predict(self, trained: Mapping[str, Any]) -> Objects:
        """Return rows to predict, which have no label: what is predicted is the run's.

        Args:
            trained: ``config.json`` of the run.
        """
        if "type" in self.task or self.layout == "graph":
            return self
        before = (trained.get("objects") or {}).get("task") or {}
        if "type" not in before:
            raise BadInput("task: missing: no object has the label: say what is predicted, task='binary'")
        known = {key: before[key] for key in ("type", "classes", "positive") if key in before}
        return Objects(self.layout, {**known, **self.task}, self.parties, self._kept)

    def __repr__(self) -> str:
        kind = self.task.get("type", "to predict")
        return f"<{self.layout} data, {kind}, of {', '.join(self.parties)}>"


def vertical(
    tables: Mapping[str, Any],
    *,
    label: tuple[str, str],
    id: str | Sequence[str] | Mapping[str, Any] | None = None,
    task: str | None = None,
    alignment: str | None = None,
    parties: Mapping[str, Keys] | None = None,
    **more: Any,
) -> Objects:
    """Return rows whose columns lie with several parties, a table (or the path of a file) of each.

    Args:
        tables: by party: a table of pandas, Polars, Arrow, DuckDB, Hugging Face or numpy, or columns by name.
        label: the party that has the labels, and the column.
        id: column by which rows are aligned, or several, the same at every party or by party; None: they are aligned
            already.
        task: ``binary``, ``multiclass`` or ``regression``; by default what the labels are, where they leave no doubt.
        alignment: ``already-aligned``, ``hash`` or ``psi``; ``psi`` by default where there are ids.
        parties: by party, further keys of ``[parties.NAME]``, such as ``features``, ``columns`` or ``split``.
        more: further keys of ``[task]``, such as ``classes``, ``positive`` or ``class_weights``.

    Raises:
        BadInput: an object is no table, a key is not allowed, or the labels could be of several tasks.
    """
    further = _further(tables, parties)
    holder, column = _label_of(label, tables)
    ids = id if isinstance(id, Mapping) else dict.fromkeys(tables, id)
    kept: list[HeldObject] = []
    keys = {
        name: {"id": ids.get(name), "label": column if name == holder else None, **further[name]} for name in tables
    }
    for name, value in _different(tables).items():
        keys[name]["path"] = _table_at(name, value, keys[name], kept)
    if alignment is None and any(value is not None for value in ids.values()):
        alignment = "psi"
    kind = _task({holder: keys[holder]["path"]}, column, task, more, _rule(keys[holder], column, holder), kept)
    return Objects("vertical", {**kind, "alignment": alignment, **more}, keys, kept)


def horizontal(
    clients: Mapping[str, Any] | Sequence[Any],
    *,
    label: str | Sequence[str] | None = None,
    test: Any = None,
    task: str | None = None,
    parties: Mapping[str, Keys] | None = None,
    **more: Any,
) -> Objects:
    """Return rows, or images, that lie with several clients.

    Args:
        clients: by name, or in a list (``client-0``, ``client-1``, ...): a table with the column of the label; or
            samples and labels as arrays ``(x, y)``; or a torch ``Dataset`` of such pairs. Labels of several values
            each, (N, O) or (N, T, O), are those of a regression, of several labels, or of tokens.
        label: column of the label, or several of a target that has several values; of tables only.
        test: public rows to measure on, of the same kind.
        task: ``binary``, ``multiclass``, ``regression``, ``multilabel`` (0 or 1 of each of several labels) or
            ``tokens`` (a class of each token of a sequence, -100 where it does not count; ``classes=`` their number);
            by default what the labels are, where they leave no doubt.
        parties: by client, further keys of ``[parties.NAME]``, such as ``features`` or ``center``.
        more: further keys of ``[task]``, such as ``columns``, ``classes``, ``peak`` or ``mean``.

    Raises:
        BadInput: an object is nothing of that kind, a key is not allowed, or the labels could be of several tasks.
    """
    named = clients if isinstance(clients, Mapping) else {f"client-{n}": one for n, one in enumerate(clients)}
    further = _further(named, parties)
    every = _different({**named, **({} if test is None else {"test": test})})
    kept: list[HeldObject] = []
    keys: dict[str, dict[str, Any]] = {}
    for name, value in every.items():
        keys[name] = {"label": label, **further.get(name, next(iter(further.values()), {}))}
        if label is None and not isinstance(value, str | Path):
            made = _samples(value, name, task, has_shape="shape" in more)
            keys[name]["label"] = _label_columns(made) or LABEL if isinstance(made, pa.Table) else None
            keys[name]["path"] = _keep(name, made, kept)
            if not isinstance(made, pa.Table):
                more = {"shape": list(made["images"].shape[1:]), **more}
        else:
            keys[name]["path"] = _table_at(name, value, keys[name], kept)
    held_out = keys.pop("test", {}).get("path") if test is not None else None
    found = {name: one["path"] for name, one in keys.items()} | ({"test": held_out} if held_out else {})
    if task == "tokens" and (length := _shape_of_samples(kept, label)):
        more = {"shape": length, **more}
    if shape := _shape_of_targets(kept, label):
        kind = _array_task(shape, task, more, kept)
    else:
        kind = _task(found, label if isinstance(label, str) else LABEL, task, more, None, kept, listed=True)
    return Objects("horizontal", {**kind, "test": held_out, **more}, keys, kept)


def relational(
    tables: Mapping[str, Any],
    *,
    sql: str,
    label: str,
    task: str | None = None,
    parties: Mapping[str, Keys] | None = None,
    **more: Any,
) -> Objects:
    """Return tables of several organisations that a query joins.

    Args:
        tables: by party: a table, as `vertical` takes it, or the path of a file or database.
        sql: the query; a party's table has its name, unless ``parties`` says ``table``.
        label: column of the label, as the query names it.
        task: ``binary``, ``multiclass`` or ``regression``; by default what the labels are, where they leave no doubt.
        parties: by party, further keys of ``[parties.NAME]``, such as ``table``, ``id`` or ``columns``.
        more: further keys of ``[task]``, such as ``classes`` or ``categorical``.

    Raises:
        BadInput: an object is no table, a key is not allowed, or the labels could be of several tasks.
    """
    further = _further(tables, parties)
    kept: list[HeldObject] = []
    keys = {name: dict(further[name]) for name in tables}
    for name, value in _different(tables).items():
        keys[name]["path"] = _table_at(name, value, {**keys[name], "sql": re.findall(r"\w+", sql)}, kept)
    table, _, column = label.rpartition(".")
    named = {name: one.get("table", name) for name, one in keys.items()}
    having = {name: one["path"] for name, one in keys.items() if column in _columns_at(one["path"], kept)}
    having = {name: path for name, path in having.items() if table in ("", named[name]) or table not in named.values()}
    owners = having if len({named[name] for name in having}) == 1 else {}
    rule = _rule(keys[next(iter(owners))], column, next(iter(owners))) if owners else None
    kind = _task(owners, column, task, more, rule, kept)
    return Objects("relational", {**kind, "sql": sql, "label": label, **more}, keys, kept)


def graph(
    parties: Mapping[str, Any],
    *,
    nodes: Any = None,
    id: str | Sequence[str] | None = None,
    label: tuple[str, str] | None = None,
    task: str | None = None,
    alignment: str | None = None,
    keys: Mapping[str, Keys] | None = None,
    **more: Any,
) -> Objects:
    """Return a graph whose nodes are the parties', each with its own columns and edges.

    Args:
        parties: of numbered nodes each party's ``edges`` (2, E) and ``features`` (N, F) by name, or a ``Data`` of
            PyTorch Geometric; of nodes with ids its tables by name: ``nodes``, ``edges``, and perhaps ``sparse``.
        nodes: of numbered nodes what all parties know: ``labels``, ``train``, ``validation`` and ``test`` by name, or a
            ``Data`` with ``y`` and masks; by default the first party's.
        id: of tables, the column of the nodes' ids, or several that make one together.
        label: of tables, the party that has the labels, and the column.
        task: of tables, ``binary`` or ``multiclass``.
        alignment: of tables, as `vertical` takes it.
        keys: of tables, by party, further keys of ``[parties.NAME]``, such as ``ends`` or ``columns``.
        more: further keys of ``[task]``.

    Raises:
        BadInput: an object is nothing of that kind, or a key is not allowed.
    """
    further, kept = _further(parties, keys), list[HeldObject]()
    _different(parties)
    if label is None:
        first = next(iter(parties.values()), None)
        known = _keep("nodes", _known_nodes(first if nodes is None else nodes), kept)
        files = {
            name: {"file": _keep(name, _local_graph(one, name), kept), **further[name]} for name, one in parties.items()
        }
        return Objects("graph", {"nodes": known, **more}, files, kept)
    holder, column = _label_of(label, parties)
    made: dict[str, dict[str, Any]] = {}
    for name, given in parties.items():
        if not isinstance(given, Mapping) or not {"nodes", "edges"} <= set(given) <= {"nodes", "edges", "sparse"}:
            raise BadInput(f"{name}: its tables are needed by name: nodes, edges, and perhaps sparse")
        one = made[name] = {"id": id, "label": column if name == holder else None, **further[name]}
        asked = {**one, "ends": one.get("ends", ["source", "target"]), "sparse": ["node", "feature", "value"]}
        for key, table in given.items():
            one["path" if key == "nodes" else key] = _table_at(name, table, asked, kept)
    kind = _task({holder: made[holder]["path"]}, column, task, more, _rule(made[holder], column, holder), kept)
    return Objects("graph-tables", {**kind, "alignment": alignment or "psi", **more}, made, kept)


# --- what a caller gives ----------------------------------------------------------------------------------------------


def _given(keys: Keys) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{shown(value)} of type {type(value).__name__} is not allowed")


def _further(parties: Mapping[str, Any], further: Mapping[str, Keys] | None) -> dict[str, Keys]:
    """Return the further keys of each party."""
    if not isinstance(parties, Mapping):
        raise BadInput(f"data: {type(parties).__name__} is not allowed: give each party's object by its name")
    for name in parties:
        party_name(name)
    for name in further or {}:
        if name not in parties:
            raise BadInput(f"parties: {name!r} is not allowed: the parties are {', '.join(parties)}")
    return {name: (further or {}).get(name, {}) for name in parties}


def _label_of(label: Any, parties: Mapping[str, Any]) -> tuple[str, str]:
    if not (isinstance(label, tuple | list) and len(label) == 2) or label[0] not in parties:
        raise BadInput(
            f"label: {shown(label)} is not allowed: give (party, column); the parties are {', '.join(parties)}"
        )
    return str(label[0]), str(label[1])


def _different(parties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parties' objects; one that is given for two parties is refused."""
    seen: dict[int, str] = {}
    for name, value in parties.items():
        if (other := seen.setdefault(id(value), name)) != name:
            raise BadInput(
                f"{name}: its object is {other}'s already: each party has data of its own; give its own rows, or if "
                "several are to have the same rows, a copy: copy.copy(rows)"
            )
    return parties


def _table_at(name: str, value: Any, keys: Keys, kept: list[HeldObject]) -> str:
    """Keep a party's table and return its address; a path stays one."""
    if isinstance(value, str | Path):
        return str(value)
    listed = [one for given in keys.values() if isinstance(given, str | list | tuple) for one in _texts(given)]
    return _keep(name, table_of(value, name, listed), kept)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for one in value if isinstance(one, str | list | tuple) for text in _texts(one)]


def _keep(name: str, content: Any, kept: list[HeldObject]) -> str:
    """Keep an object as it is read, and return its address."""
    one = hold(f"{OBJECT}{name}:{digest_of(content)}", content)
    kept.append(one)
    return one.address


def _columns_at(path: str, kept: Sequence[HeldObject]) -> list[str]:
    return next((one.content.column_names for one in kept if one.address == path), [])


def _rule(keys: Keys, column: str, party: str) -> ColumnRule | None:
    given = keys.get("columns", {}).get(column)
    return None if given is None else from_table(ColumnRule, given, f"parties.{party}.columns.{column}")


# --- what is predicted ------------------------------------------------------------------------------------------------

_MOST_LIKELY_CLASSES = 20


def _task(
    paths: Mapping[str, str],
    column: str,
    task: str | None,
    more: Keys,
    rule: ColumnRule | None,
    kept: Sequence[HeldObject],
    *,
    listed: bool = False,
) -> dict[str, Any]:
    """Return type and classes of a task by its labels, without the type where no object has the label.

    Args:
        paths: by party, addresses of tables that may have the column, or of arrays with labels.
        column: of the label.
        task: the type that the caller says.
        more: keys of the task that the caller says.
        rule: of the label.
        kept: the objects.
        listed: whether the classes are listed, and not only counted.
    """
    labels = [
        found for one in kept if one.address in paths.values() and (found := _labels(one.content, column)) is not None
    ]
    if not labels:
        return {} if task is None else {"type": task}
    if task == "regression":
        return {"type": task}
    where = " and ".join(paths)
    whole = Column(column, _of_one_type(labels, column, where))
    names, _ = named_classes(whole, rule, where)
    rows = sum(map(len, labels))
    is_many = 2 * len(names) > rows > _MOST_LIKELY_CLASSES and any("." in name for name in names)
    if task and "classes" not in more and is_many and not whole.first_text():
        raise BadInput(
            f"{where}: label {column!r} has {len(names)} classes in {rows} rows, which are no whole numbers: give "
            "task='regression', or list them if they are classes: classes=[...]"
        )
    kind = task or _kind_of(whole, names, where)
    if kind == "regression" or "classes" in more or (kind == "binary" and not listed):
        return {"type": kind}
    return {"type": kind, "classes": names if listed else len(names)}


def _of_one_type(labels: Sequence[pa.ChunkedArray], column: str, where: str) -> pa.ChunkedArray:
    """Return the labels of all objects: whole numbers of several widths, numbers, and none at all go together.

    Raises:
        BadInput: texts, numbers or truth values at some of them, and others elsewhere.
    """
    try:
        kind = pa.unify_schemas(
            [pa.schema([("x", one.type)]) for one in labels], promote_options="permissive"
        ).field("x").type  # fmt: skip
        return pa.chunked_array([part for one in labels for part in one.cast(kind).chunks], type=kind)
    except pa.ArrowException:
        kinds = ", ".join(sorted({str(one.type) for one in labels}))
        raise BadInput(f"{where}: label {column!r} holds {kinds}; give it one type, as .astype(str) does") from None


def _label_columns(table: pa.Table) -> list[str]:
    """Return the columns of labels that were given as an array of several values each."""
    return [name for name in table.column_names if name.startswith(f"{LABEL}.")]


def _shape_of_targets(kept: Sequence[HeldObject], label: str | Sequence[str] | None) -> tuple[int, ...]:
    """Return the shape of a sample's target where it has several values, as the first object has it."""
    if isinstance(label, str):
        tables = [
            one.content for one in kept if isinstance(one.content, pa.Table) and label in one.content.column_names
        ]
        return shape_of_lists(tables[0].column(label), f"label {label}") if tables else ()
    if label is not None:
        return (len(label),)
    for content in (one.content for one in kept):
        if isinstance(content, pa.Table):
            shape: tuple[int, ...] = (len(_label_columns(content)),)
            if shape > (1,):
                return shape
        elif "labels" in content and content["labels"].ndim > 1:
            return tuple(content["labels"].shape[1:])
    return ()


def _shape_of_samples(kept: Sequence[HeldObject], label: str | Sequence[str] | None) -> list[int]:
    """Return the shape of sequences that are one column of lists beside the labels; none: they are something else."""
    for table in (one.content for one in kept if isinstance(one.content, pa.Table)):
        names = [name for name in table.column_names if name not in (label, *(label or ())) and is_list(table[name])]
        if len(names) == 1:
            return [*shape_of_lists(table[names[0]], f"column {names[0]}")]
    return []


def _array_task(shape: tuple[int, ...], task: str | None, more: Keys, kept: Sequence[HeldObject]) -> dict[str, Any]:
    """Return type, classes and shape of targets that have several values each.

    Raises:
        BadInput: they could be of several tasks, or are not of the task that is given.
    """
    if task is None and any(_has_fractions(one.content) for one in kept):
        task = "regression"
    if task not in ("regression", "multilabel", "tokens"):
        said = "task: missing" if task is None else f"task: {task} is not allowed"
        raise BadInput(
            f"{said}: a sample's label is of shape {list(shape)}: give task='regression' of numbers, 'multilabel' of 0 "
            "or 1 for each label, or 'tokens' of a class for each token"
        )
    if task == "multilabel":
        return {"type": task, "classes": shape[0]} if "classes" not in more and len(shape) == 1 else {"type": task}
    return {"type": task} if "target_shape" in more else {"type": task, "target_shape": list(shape)}


def _has_fractions(content: Any) -> bool:
    if isinstance(content, pa.Table):
        names = _label_columns(content)
        arrays = [np.asarray(content.column(name)) for name in names]
    else:
        arrays = [content["labels"]] if "labels" in content else []
    return any(one.dtype.kind == "f" and bool((np.isfinite(one) & (one % 1 != 0)).any()) for one in arrays)


def _labels(content: Any, column: str) -> Any:
    """Return the labels of a table or of arrays, chunked; None: it has none."""
    if isinstance(content, pa.Table):
        return content.column(column) if content.column_names.count(column) == 1 else None
    return pa.chunked_array([pa.array(content["labels"])]) if "labels" in content else None


def _kind_of(column: Column, names: Sequence[str], where: str) -> str:
    """Return what is predicted where labels leave no doubt.

    Raises:
        BadInput: they could be classes or numbers.
    """
    kind = column.values.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if pa.types.is_floating(kind) and (numbers := column.numbers(where)).size:
        if (np.isfinite(numbers) & (numbers % 1 != 0)).any():
            return "regression"
    elif len(names) == 2:
        return "binary"
    if not is_number and 2 < len(names) <= _MOST_LIKELY_CLASSES:
        return "multiclass"
    likely = "binary" if len(names) == 2 else "multiclass"
    raise BadInput(
        f"task: missing: label {column.name!r} of {where} has {len(names)} values ({', '.join(names[:5])}"
        f"{', ...' if len(names) > 5 else ''}), which may be classes or numbers: give task='{likely}' or 'regression'"
    )


# --- objects as they are read -----------------------------------------------------------------------------------------


def table_of(value: Any, name: str, asked: Collection[str] = ()) -> pa.Table:
    """Return a table of any library as Arrow's, with plain types: what a Parquet file of it would give.

    Args:
        value: the table, or columns by name.
        name: whose, for errors.
        asked: the columns that the description names: an index of pandas that is not among them is no column.

    Raises:
        BadInput: it is no table, or Arrow has no such values.
    """
    try:
        table = _arrow_table(value, asked)
        columns = (
            []
            if table is None
            else [_plain_column(*one) for one in zip(table.column_names, table.columns, strict=True)]
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        told = _odd_column(value) or first_line(error)
        raise BadInput(f"{name}: {type(value).__module__}.{type(value).__qualname__}: {told}") from None
    if table is None:
        raise BadInput(
            f"{name}: {type(value).__module__}.{type(value).__qualname__} is not allowed: give a table of pandas, "
            "Polars, Arrow, DuckDB, datasets or numpy, or columns by name"
        )
    return pa.Table.from_arrays(columns, names=list(table.column_names)).combine_chunks()


def _arrow_table(value: Any, asked: Collection[str]) -> pa.Table | None:
    package = type(value).__module__.partition(".")[0]
    if isinstance(value, pa.Table):
        return value
    if package == "datasets" and hasattr(value, "with_format"):
        value = _of_hugging_face(value)
    if isinstance(value, Mapping):
        _refuse_other_rows(value)
        for name, one in value.items():
            if isinstance(one, list) or str(getattr(one, "dtype", "")) == "object":
                _refuse_changed(f"column {name}", one)
        if doubled := [name for name, count in Counter(map(str, value)).items() if count > 1]:
            raise ValueError(f"two columns are called {doubled[0]!r}, one of them by what is no text; name them apart")
        return pa.table({str(key): _column(one) for key, one in value.items()})
    if hasattr(value, "to_frame") and not hasattr(value, "columns"):
        raise ValueError(f'one column and no table; give columns by name: {{"{value.name or "x"}": ...}}')
    if package == "pandas" and hasattr(value, "columns") and hasattr(value, "iloc"):
        levels = [level for level in value.index.names if level in asked and level not in value.columns]
        kept = value.reset_index(levels) if levels else value
        for position, (column, kind) in enumerate(kept.dtypes.items()):
            if kind.kind == "O" and str(kind) == "object":
                _refuse_changed(f"column {column}", kept.iloc[:, position])
                _refuse_steps(f"column {column}", kept.iloc[:, position])
        swapped = {name: kind for name, kind in kept.dtypes.items() if getattr(kind, "isnative", True) is False}
        kept = kept.astype({name: kind.newbyteorder("=") for name, kind in swapped.items()}) if swapped else kept
        return pa.Table.from_pandas(kept, preserve_index=False)
    if package == "polars" and hasattr(value, "collect"):
        value = value.collect()
    if package == "polars" and (odd := [name for name, kind in value.schema.items() if str(kind) == "Object"]):
        raise ValueError(f"column {odd[0]}: holds objects of Python, which Arrow does not have; give texts or numbers")
    if package == "polars" and (wide := [name for name, kind in value.schema.items() if str(kind).endswith("Int128")]):
        raise ValueError(
            f"column {wide[0]}: holds whole numbers of 128 bits, which Arrow does not have: cast it to Int64 where "
            "that holds them, to String where they are ids, or to Float64"
        )
    if hasattr(value, "project") and hasattr(value, "to_arrow_table"):
        return rows_of_relation(value)
    for name in ("to_arrow_table", "fetch_arrow_table", "__arrow_c_stream__"):
        if hasattr(value, name):
            return pa.table(value) if name == "__arrow_c_stream__" else getattr(value, name)()
    if getattr(getattr(value, "dtype", None), "names", None) and value.ndim == 1:
        return pa.table({field: _column(value[field]) for field in value.dtype.names})
    if hasattr(value, "__array__") or hasattr(value, "detach"):
        matrix = _array(value)
        if matrix.ndim == 2:
            return pa.table({f"c{index}": matrix[:, index] for index in range(matrix.shape[1])})
        raise ValueError(f"an array of {matrix.ndim} dimensions; a matrix or a structured array is needed")
    return value if isinstance(value, pa.Table) else None


def _odd_column(value: Any) -> str:
    """Return what to say of the first column of which Arrow makes none; empty: it makes one of each."""
    is_frame = hasattr(value, "iloc") and hasattr(value, "columns")
    fields = getattr(getattr(value, "dtype", None), "names", None) or ()
    if isinstance(value, Mapping) or fields:
        columns = [(name, value[name]) for name in fields or value]
    elif is_frame:
        columns = [(name, value.iloc[:, position]) for position, name in enumerate(value.columns)]
    else:
        return ""
    for name, one in columns:
        if isinstance(one, str) or getattr(one, "ndim", int(hasattr(one, "__len__"))) == 0:
            return f"column {name}: {shown(one)} is one value; give one for each row, as [value] * rows"
        try:
            if is_frame:
                pa.Table.from_pandas(one.to_frame("x"), preserve_index=False)
            else:
                pa.array(_column(one), from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            kind = str(getattr(one, "dtype", "object")).rpartition(".")[2]
            kinds = sorted({type(item).__name__ for item in one if item is not None}) if kind == "object" else []
            if len(kinds) > 1 and not set(kinds) <= {"int", "float"}:
                return (
                    f"column {name}: holds values of several types ({', '.join(kinds[:_MOST_NAMED])}); make them "
                    "alike, as .astype(str) or pandas.to_numeric does"
                )
            remedy = next((advice for start, advice in _REMEDIES.items() if kind.startswith(start)), "")
            told = first_line(error).rstrip(".")
            return f"column {name}: {told}{'' if '; give ' in told else remedy or _OTHER_REMEDY}"
    return ""


_MOST_NAMED = 3
_REMEDIES = {
    "complex": "; give real and imaginary parts as two columns",
    "longdouble": "; give float64",
    "float128": "; give float64",
    "bfloat16": "; give float32, as .astype('float32') does, or .float() of torch",
    "timedelta": "; give seconds as numbers",
    "datetime": "; give datetime64[us]",
    "Sparse": "; give it as .sparse.to_dense() does",
}
"""Of columns that Arrow does not take, by how their type is called."""
_OTHER_REMEDY = "; give one number, text or date for each row, whole numbers beyond 64 bits as texts"


def _of_hugging_face(value: Any) -> Any:
    """Return the rows of a Hugging Face data set, with the columns that its format has; what is none as it is.

    Raises:
        ValueError: it holds several splits, or computes its rows when they are read.
    """
    if isinstance(value, Mapping):
        raise ValueError(f'{len(value)} splits ({", ".join(map(str, value))}); give one, as data["train"]')
    how = getattr(value, "format", None)
    if how is None or not hasattr(value, "select_columns"):
        return value
    return table_of_hugging_face(value)


def _refuse_other_rows(columns: Mapping[str, Any]) -> None:
    """Refuse series of pandas whose indices say that their rows are not the same ones, side by side."""
    indices = {str(name): one.index for name, one in columns.items() if hasattr(one, "iloc")}
    first = next(iter(indices), "")
    for name, index in indices.items():
        if len(index) == len(indices[first]) and not index.equals(indices[first]):
            raise ValueError(
                f"{first} and {name} have different indices, and would be put together row by row; bring them into one "
                "order, as pandas.DataFrame does, or leave the index out with reset_index(drop=True)"
            )


def _refuse_changed(name: Any, values: Any) -> None:
    """Refuse objects of which Arrow would drop times of day or zones, take local times for UTC's, or order sets."""
    if any(isinstance(one, set | frozenset) for one in values):
        raise ValueError(f"{name}: holds sets, whose values have no order; give lists, as sorted(one) makes them")
    kinds = {(type(one).__name__, getattr(one, "tzinfo", None) is None) for one in values if hasattr(one, "isoformat")}
    if len({kind for kind in kinds if kind[0] != "NaTType"}) > 1:
        raise ValueError(
            f"{name}: holds dates of several kinds ({', '.join(sorted({kind for kind, _ in kinds}))}, with a "
            "time zone or without); make them alike, as pandas.to_datetime(..., utc=True) does"
        )
    if ("time", False) in kinds:
        raise ValueError(
            f"{name}: holds times of day with a time zone, which Arrow would leave out; give times without one, all of "
            "one zone, or dates"
        )


def _refuse_steps(name: Any, values: Any) -> None:
    """Refuse numpy's dates among objects, of which Arrow takes 5 times 10 s for 5 s."""
    stepped = (one for one in values if isinstance(one, np.datetime64 | np.timedelta64))
    if odd := next((one for one in stepped if np.datetime_data(one.dtype)[1] != 1), None):
        raise ValueError(f"{name}: holds dates in steps, {odd.dtype}; give datetime64[us], as .astype makes it")


def _plain_column(name: str, column: Any) -> Any:
    """Return a column of the types that files have: no dictionaries, and one kind of text."""
    kind = column.type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(inner, pa.ExtensionType) and inner.extension_name.startswith("pandas."):
        raise ValueError(
            f"column {name}: holds values of pandas' type {inner.extension_name.removeprefix('pandas.')}, which Arrow "
            f"holds as others; give texts, as frame[{name!r}].astype(str) makes them"
        )
    if pa.types.is_dictionary(kind):
        column = pa.chunked_array([plain_values(column)])
        kind = column.type
    if pa.types.is_large_string(kind) or str(kind) == "string_view":
        try:
            return pc.cast(column, pa.string())
        except pa.ArrowInvalid:  # more than two gigabytes
            return pc.cast(column, pa.large_string())
    return column


def _column(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        made = pa.array(_column(value.data))
        return pc.if_else(pa.array(np.ma.getmaskarray(value)), pa.scalar(None, made.type), made)
    is_objects = isinstance(value, np.ndarray) and value.dtype == object
    is_many = (is_objects or isinstance(value, list)) and len(value) > 0
    if is_many and all(one is None or isinstance(one, np.datetime64) for one in value):
        return _array([np.datetime64("NaT") if one is None else one for one in value])  # of any unit
    if is_objects:
        return pa.array(value, from_pandas=True)  # NaN among texts is no value
    return value if isinstance(value, list) else _array(value)


def _array(value: Any) -> Any:
    """Return an array, a tensor, a series or a list as a numpy array, or as it is where Arrow takes it."""
    if hasattr(value, "detach"):
        if getattr(value, "is_meta", False):
            raise ValueError("a tensor of the device meta, which has no values; give one of the CPU")
        if value.is_nested or value.is_quantized or str(value.layout) != "torch.strided":
            dense = "dequantize" if value.is_quantized else "to_padded_tensor" if value.is_nested else "to_dense"
            raise ValueError(f"a tensor that is not dense; give what .{dense}() makes of it")
        return value.numpy(force=True)
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        raise ValueError("an array with masked values; give columns by name, or fill them")
    if hasattr(value, "getbands"):
        raise ValueError(
            "an image of Pillow, whose values mean colours of a palette, print or transparency; give an array (C, H, W)"
            ", as torchvision.transforms.ToTensor makes it"
        )
    if hasattr(value, "__arrow_array__") or isinstance(value, pa.Array | pa.ChunkedArray):
        return value
    made = np.asarray(value)
    if made.dtype.kind in "mM" and np.datetime_data(made.dtype)[0] != "generic":
        return in_arrows_unit(made)
    if made.dtype.kind in "UT" and made.ndim == 1:
        return texts_of_numpy(made)
    if made.dtype.kind == "S" and made.ndim == 1:  # which Arrow ends at the first zero
        return pa.array(made.tolist(), pa.binary())
    return made.astype(made.dtype.newbyteorder("="), copy=False)


def _samples(
    value: Any, name: str, task: str | None = None, *, has_shape: bool = False
) -> pa.Table | dict[str, NDArray[Any]]:
    """Return samples, and their labels if they have some: a table of vectors, or images or sequences as arrays by name.

    Args:
        value: samples, a pair of them and labels, or a data set of such pairs.
        name: whose, for errors.
        task: what the caller says that is predicted.
        has_shape: whether the caller says which of their dimensions are the channels.

    Raises:
        BadInput: they are nothing of that kind, or of different shapes.
    """
    try:
        x, y = _pairs(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name}: {type(value).__name__}: {first_line(error)}") from None
    if x.dtype.kind not in "buif":
        raise BadInput(f"{name}: samples of type {x.dtype} are not allowed: give numbers, or a table and label='...'")
    if y is not None and y.shape[1:] == (1,) and task != "tokens":
        y = y[:, 0]
    if y is not None and (not y.ndim or len(y) != len(x) or 0 in y.shape):
        raise BadInput(
            f"{name}: labels of shape {list(y.shape)} for {len(x)} samples are not allowed: give one a sample"
        )
    is_sequence = task == "tokens" or (y is not None and y.ndim > 2)
    if x.ndim == 2 and not is_sequence:
        columns = {f"c{index}": x[:, index] for index in range(x.shape[1])}
        if y is not None and y.ndim == 2:
            columns |= {f"{LABEL}.{index}": y[:, index] for index in range(y.shape[1])}
        return table_of({**columns, **({LABEL: y} if y is not None and y.ndim == 1 else {})}, name)
    if x.ndim not in ((2, 3, 4) if is_sequence else (3, 4)):
        raise BadInput(
            f"{name}: samples of shape {list(x.shape[1:])} are not allowed: give vectors, or images (C, H, W)"
        )
    if x.ndim == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS and not has_shape:
        raise BadInput(
            f"{name}: samples of shape {list(x.shape[1:])} look as if the channels came last; give (C, H, W), as "
            f"x.transpose(0, 3, 1, 2) does, or say that they do not: shape={list(x.shape[1:])}"
        )
    images = x if x.ndim == 4 or is_sequence or has_shape else x[:, None]
    return {"images": images} if y is None else {"images": images, "labels": y}


_CHANNELS = (1, 3, 4)
"""Of grey and colour images, with transparency or without."""


def _pairs(value: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return samples and labels of a pair of arrays, of an array, or of a data set of pairs."""
    if type(value).__name__ == "TensorDataset" and type(value).__module__.startswith("torch."):  # no subclass of it
        value = tuple(value.tensors)
    if isinstance(value, tuple | list) and len(value) == 2 and all(hasattr(one, "shape") for one in value):
        _refuse_other_rows({"x": value[0], "y": value[1]})
        return np.asarray(_array(value[0])), np.asarray(_array(value[1]))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return np.asarray(_array(value)), None
    if (
        not (hasattr(value, "__getitem__") and hasattr(value, "__len__"))
        or isinstance(value, Mapping)
        or not len(value)
    ):
        raise ValueError("not allowed: give (x, y), a data set of such pairs, or a table and label='...'")
    if hasattr(value, "columns") or hasattr(value, "column_names"):
        raise ValueError("a table needs its column of labels: label='...'")
    pairs = [value[index] for index in range(len(value))]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError("each item of a data set must be a sample and its label")
    labels = [np.asarray(_array(y)) for _, y in pairs]
    return np.stack([_array(x) for x, _ in pairs]), np.stack([y[0] if y.shape == (1,) else y for y in labels])


# --- graphs -----------------------------------------------------------------------------------------------------------


def _known_nodes(value: Any) -> dict[str, NDArray[Any]]:
    """Return what all parties know of numbered nodes, of arrays by name or of a ``Data`` of PyTorch Geometric."""
    if isinstance(value, Mapping):
        return _arrays(value, "nodes", value)
    names = {"labels": "y", "train": "train_mask", "validation": "val_mask", "test": "test_mask"}
    found = {key: getattr(value, name, None) for key, name in names.items()}
    return _arrays({key: one for key, one in found.items() if one is not None}, "nodes", value)


def _local_graph(value: Any, party: str) -> dict[str, NDArray[Any]]:
    """Return a party's edges and features, of arrays by name or of a ``Data`` of PyTorch Geometric."""
    if isinstance(value, Mapping):
        found = {name: value.get(name) for name in ("edges", "features")}
    else:
        found = {"edges": getattr(value, "edge_index", None), "features": getattr(value, "x", None)}
    given = dict(value) if isinstance(value, Mapping) else {name: getattr(value, name, None) for name in WEIGHTS}
    refuse_weights([key for key in WEIGHTS if given.get(key) is not None], party)
    if missing := [name for name, one in found.items() if one is None]:
        raise BadInput(
            f"{party}: {type(value).__name__} lacks {' and '.join(missing)}: give edges (2, E) and features (N, F)"
        )
    return _arrays(found, party, value)


def _arrays(found: Mapping[str, Any], where: str, value: Any) -> dict[str, NDArray[Any]]:
    """Return values by name as arrays; `where` and the object that they are of are for errors."""
    try:
        return {name: np.asarray(_array(one)) for name, one in found.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{where}: {type(value).__name__}: {first_line(error)}") from None


# --- digests ----------------------------------------------------------------------------------------------------------


def digest_of(content: pa.Table | Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of the values of a table or of arrays, whatever memory they lie in."""
    digest = hashlib.sha256()
    if not isinstance(content, pa.Table):
        for name, array in sorted(content.items()):
            digest.update(repr((name, array.dtype.str, array.shape)).encode() + array.tobytes())
        return digest.hexdigest()[:32]
    for name, column in zip(content.column_names, content.columns, strict=True):
        digest.update(repr((name, str(column.type), len(column))).encode())
        for chunk in column.chunks or [pa.array([], column.type)]:
            for piece in _bytes_of(chunk):
                digest.update(piece)
    return digest.hexdigest()[:32]


def _bytes_of(array: Any) -> Iterator[Any]:
    """Yield where an array has values, and these values."""
    kind = array.type
    yield np.packbits(np.asarray(pc.is_valid(array).to_numpy(zero_copy_only=False), np.uint8)).data
    if pa.types.is_decimal(kind):
        array, kind = pc.cast(array, pa.string()), pa.string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        lengths = pc.fill_null(pc.binary_length(array), 0)
        yield lengths.to_numpy(zero_copy_only=False).astype(np.int64).tobytes()
        texts = pc.cast(pc.fill_null(array, "" if not pa.types.is_binary(kind) else b""), pa.large_binary())
        offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
        yield memoryview(texts.buffers()[2] or b"")[offsets[0] : offsets[-1]]
        return
    if pa.types.is_temporal(kind) and kind.bit_width in (32, 64):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = pc.fill_null(array, False if pa.types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
        yield (np.where(np.isnan(values), np.nan, values) if values.dtype.kind == "f" else values).tobytes()
        return
    yield repr(array.to_pylist()).encode()
