"""What is wrong or odd with each party's data, all of it at once: `fedactors data check`, and the notes of a run.

    check_data(description) --> DataFinding of every party, found in its own files alone; clients' scales side by side

An error ends a run, a warning does not. A finding has the line of TOML that answers it, and where the line belongs;
what several findings ask of one column is one rule. Whatever is found, the rows are also read as a run would read them.
All checks are one file because they share a party's findings, from which the one edit of its description is made.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import tomllib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedactors.data.columns import NUMBERS, ColumnRule, may_merge_in_single, merges_in_single, told_apart
from fedactors.data.databases import ParsedFile
from fedactors.data.description import Described, load_description
from fedactors.data.layouts.graph import GraphTables, UserGraph, odd_arrays
from fedactors.data.layouts.horizontal import HorizontalData
from fedactors.data.layouts.relational import (
    Schema,
    Schemas,
    column_of,
    fit_table,
    partitions_of,
    query_over_partitions,
    resolve_plan,
    rows_with_keys,
    rules_of_features,
)
from fedactors.data.layouts.vertical import RelationalData, RelationalPartition, VerticalData
from fedactors.data.query import shown_key
from fedactors.data.readers import hidden_parts, is_csv
from fedactors.data.schema import VerticalParty
from fedactors.data.sources import NULL_IS_VALUE, FileSource, is_pandas_index, pandas_index, spread, usual_nulls
from fedactors.data.values import (
    NO_DAY,
    Column,
    CsvFormat,
    alike,
    class_text,
    compared_names,
    formats_of,
    formats_of_dates,
)
from fedactors.errors import BadInput, DataMissing

Level = Literal["error", "warning"]
_FEW_ROWS = 20
"""Rows below which nothing is said of how values are distributed."""
_LOST, _MOST_TOLD_APART = 0.1, 1 << 20
"""The share of a column's different numbers that may be merged, and how many different ones are looked at: of more,
single precision merges some wherever they lie."""
_WIDE, _FACTOR, _UNITS = 100.0, 1000.0, 100.0
"""Scales differ from these on: a column's deviation, that over another column's, one client's median over another's."""
_SCARCE = 0.05
"""Share of rows below which a class is told."""
_MOST_NULLS, _LONGEST_NULL = 3, 12
_MOST_SHOWN = 3
_ID_NAME = re.compile(r"(.*[_\- ])?(id|uuid|guid|key|nr|number)|.*Id", re.DOTALL)
_IN_THOUSANDS = re.compile(r"-?[1-9][0-9]{0,2}\.[0-9]{3}")
_TOTALS = {"total", "totals", "grand total", "sum", "gesamt", "summe", "somme", "totale", "suma"}
_WHOLE_AS_FLOAT = re.compile(r"[0-9]+\.0")
_GIVEN_CSV = re.compile(r"csv = \{[^{}]*\}")
_CSV = "csv"
"""Stands for the line that says how a file is written until all findings are known."""
_MOST_TRIES = 4
"""Ways of writing that are looked for one after the other: encoding, separator, lines on top."""
_MANY = 8
"""Columns beyond which a rule of all of them is for a pattern of their names."""


@dataclass(frozen=True, kw_only=True)
class DataFinding:
    """One thing that is wrong or odd."""

    party: str
    """Empty: of the whole description."""
    level: Level
    column: str = ""
    """Empty: of the whole table."""
    text: str
    suggestion: str = ""
    """A line of TOML; empty: nothing that a description can say."""
    table: str = ""
    """Where the line belongs: ``parties.shop.columns``."""

    @property
    def line(self) -> str:
        """The finding as one line."""
        column = f"column {self.column}" if self.column else ""
        return ": ".join(filter(None, (self.party, column, self.text)))


def check_data(path: Path, party: str | None = None) -> list[DataFinding]:
    """Return what is wrong or odd with a description and with each party's data.

    Args:
        path: of the description.
        party: the only one whose files are read; None: all, which must be on this machine.

    Raises:
        BadInput: the party is not in the description.
    """
    try:
        data = load_description(path)
    except BadInput as error:
        return [DataFinding(party="", level="error", text=str(error))]
    if party is not None and party not in data.parties:
        raise BadInput(f"--party: {party!r} is not allowed: the parties are {', '.join(data.parties)}")
    return list(_checked(data, [name for name in data.parties if party in (None, name)], is_run=False))


def warnings_of(data: Any, *, is_scaled: bool = False) -> list[str]:
    """Return what a run tells of data whose files are on this machine: all but what ends it anyway.

    Args:
        data: of the run.
        is_scaled: whether the run standardises columns over all clients, so that their scales do not matter.
    """
    if not isinstance(data, Described):
        return []
    try:
        found = list(_checked(data, data.parties, is_run=True, is_scaled=is_scaled))
    except (BadInput, DataMissing):
        return []  # the run says it where it happens
    return [
        f"{one.line}{f'; {one.suggestion} under [{one.table}]' if one.suggestion else ''}"
        for one in found
        if one.level == "warning"
    ]


def edits_of(findings: Iterable[DataFinding]) -> str:
    """Return all suggestions as the TOML that a description is to have, by table; of a key the last one."""
    tables: dict[str, dict[str, str]] = {}
    for one in findings:
        if one.suggestion:
            tables.setdefault(one.table, {})[one.suggestion.partition(" = ")[0]] = one.suggestion
    return "\n\n".join("\n".join([f"[{table}]", *lines.values()]) for table, lines in sorted(tables.items()))


def _checked(data: Described, names: Sequence[str], *, is_run: bool, is_scaled: bool = False) -> Iterator[DataFinding]:
    rows = data.rows if isinstance(data, GraphTables) else data
    if isinstance(rows, VerticalData):
        for name in names:
            found = list(_vertical(rows, name, is_run))
            yield from found
            if isinstance(data, GraphTables) and not is_run and all(one.level != "error" for one in found):
                yield from _trial(name, data.part(name).check)
    elif isinstance(rows, HorizontalData):
        yield from _horizontal(rows, names, is_run, is_scaled)
    elif isinstance(rows, RelationalData):
        yield from _relational(rows, names, is_run)
    elif isinstance(rows, UserGraph):
        blocks = dict[str, Any]()
        for name in names:
            yield from _trial(name, rows.part(name).load, blocks)
        for name, told in odd_arrays(blocks):
            yield DataFinding(party=name, level="warning", text=told)


def _trial(party: str, load: Callable[[], Any], loaded: dict[str, Any] | None = None) -> Iterator[DataFinding]:
    """Read a party's rows as a run does, keep them in `loaded`, and yield what ends it."""
    try:
        ({} if loaded is None else loaded)[party] = load()
    except (BadInput, DataMissing) as error:
        yield DataFinding(party=party, level="error", text=str(error).removeprefix(f"{party}: "))


# --- tables of rows -------------------------------------------------------------------------------------------------


@dataclass
class _Party:
    """The findings of one party, and what a description is to say of each column in answer."""

    name: str
    source: FileSource
    rules_at: str
    """Where rules of columns stand."""
    is_public: bool = False
    """Whether rules may measure nothing, as of horizontal data."""
    is_double: bool = False
    """Whether its numbers become those of double precision, as of a query's tables."""
    findings: list[DataFinding] = field(default_factory=list)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Columns that are better no features."""
    scales: dict[str, _Scale] = field(default_factory=dict)
    """Finite numbers of each column without a public range."""
    csv: dict[str, Any] = field(default_factory=dict)
    """What a description is to say of how the file is written."""
    seen: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By column of texts, and by label: the categories of all clients that were looked at, this one's too."""

    def add(self, level: Level, text: str, column: str = "", *, leave_out: bool = False, **rule: Any) -> None:
        """Note a finding, and what a rule of its column says in answer."""
        self.findings.append(DataFinding(party=self.name, level=level, column=column, text=text))
        if leave_out:
            self.left_out.add(column)
        if rule:
            self.rules.setdefault(column, {}).update(rule)

    def say(self, level: Level, text: str, suggestion: str = "", table: str = "") -> None:
        """Note a finding of the whole table."""
        where = table or f"parties.{self.name}" if suggestion else ""
        self.findings.append(DataFinding(party=self.name, level=level, text=text, suggestion=suggestion, table=where))

    def say_csv(self, text: str, **said: Any) -> None:
        """Note a finding that the file's own way of writing answers."""
        self.say("error", text, _CSV, f"parties.{self.name}")
        for key, value in said.items():
            known = self.csv.get(key, [])
            self.csv[key] = sorted({*known, *value}) if isinstance(value, list) else value

    def refuse(self, error: BadInput) -> None:
        """Note what ends a run, with the way of writing that its message gives, if it gives a single one."""
        text = str(error).removeprefix(f"{self.name}: ")
        given = _GIVEN_CSV.findall(text)
        if len(given) == 1 and "..." not in given[0]:
            self.say_csv(text, **tomllib.loads(given[0])["csv"])
        else:
            self.say("error", text)

    def answered(self, features: Sequence[str]) -> list[DataFinding]:
        """Return the findings, each of a column with the one rule, or the features, that answer all of the column's.

        Columns of which many have the same rule share one, for a pattern of their names.
        """
        made = []
        kept = [name for name in features if name not in self.left_out]
        written = {} if self.source.csv is None else _changed(self.source.csv)
        if "null" in self.csv:
            known = written["null"] if "null" in written else usual_nulls(self.source)
            self.csv["null"] = list(dict.fromkeys([*self.csv["null"], *known]))
        csv = ", ".join(f"{key} = {_toml(said)}" for key, said in {**written, **self.csv}.items())
        for one in self.findings:
            if one.suggestion == _CSV:
                one = replace(one, suggestion=f"csv = {{ {csv} }}")
            elif one.column in self.left_out and kept:
                and_rule = ", and drop its rule" if one.column in dict(self.source.rules) else ""
                line = f"features = {_toml(kept)}"
                one = replace(one, text=f"{one.text}{and_rule}", suggestion=line, table=f"parties.{self.name}")
            elif one.column in self.rules and (rule := self._rule(one.column)):
                one = replace(one, suggestion=f"{_key(one.column)} = {rule}", table=self.rules_at)
            made.append(one)
        made = self._together(made, features)
        ruled = [name for name in self.source.categorical if name in self.rules and name not in self.left_out]
        if ruled:
            others = [name for name in self.source.categorical if name not in ruled]
            made.append(
                DataFinding(
                    party=self.name,
                    level="warning",
                    text=f"{', '.join(ruled)}: a column with a rule does not stand under categorical too",
                    suggestion=f"categorical = {_toml(others)}",
                    table=f"parties.{self.name}",
                )
            )
        return made

    def _together(self, findings: Sequence[DataFinding], features: Sequence[str]) -> list[DataFinding]:
        """Return findings of which those of many columns with one rule are one."""
        by_rule: dict[str, list[DataFinding]] = {}
        for one in findings:
            if one.table == self.rules_at and one.column in self.rules:
                by_rule.setdefault(one.suggestion.partition(" = ")[2], []).append(one)
        ruled = self.source.rules_of(features)
        made = list(findings)
        for rule, found in by_rule.items():
            names = list(dict.fromkeys(one.column for one in found))
            others = [name for name in features if name not in names and name not in ruled and name not in self.rules]
            pattern = _pattern(names, others, fills="type" not in rule)
            if len(names) <= _MANY or not pattern or any(name in ruled for name in names):
                continue
            told = f"{len(names)} columns, such as {', '.join(names[:_MOST_SHOWN])}: {found[0].text}, and the like"
            line = f"{_key(pattern)} = {rule}"
            first, gone = found[0], set(map(id, found))
            whole = replace(first, column="", text=told, suggestion=line)
            made = [whole if one is first else one for one in made if one is first or id(one) not in gone]
        return made

    def _rule(self, column: str) -> str:
        """Return the rule of a column that answers its findings, as TOML; empty: no rule is allowed to say it."""
        written = self.source.rules_of([column]).get(column, ColumnRule())
        given = {**_changed(written), **self.rules[column]}
        if given.get("type") in ("categorical", "text") and given.get("missing") in ("median", "constant"):
            given["missing"] = "indicator"
            given.pop("fill", None)
        try:
            ColumnRule(**given)
        except ValueError:
            return ""
        return "{ " + ", ".join(f"{name} = {_toml(value)}" for name, value in given.items()) + " }"


def _pattern(names: Sequence[str], others: Sequence[str], *, fills: bool) -> str:
    """Return a pattern that these names are like, and no other that its rule would change; empty: there is none."""
    if fills and "*" not in "".join(names):
        return "*"  # what is filled where nothing is missing stays as it is
    first, last = min(names), max(names)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    start = first[:same].rstrip("0123456789")
    return f"{start}*" if start and not any(name.startswith(start) for name in others) else ""


def _changed(rule: Any) -> dict[str, Any]:
    """Return what a rule says that is not as usual."""
    return {
        one.name: getattr(rule, one.name)
        for one in fields(rule)  # type: ignore[arg-type]
        if one.default is not NO_DEFAULT and getattr(rule, one.name) != one.default
    }


def _toml(value: Any) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f"{value:.12g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _vertical(data: VerticalData, name: str, is_run: bool) -> Iterator[DataFinding]:
    part = data.part(name)
    if not isinstance(part.source, FileSource):
        return
    party = _Party(name, part.source, f"parties.{name}.columns")
    yield from _file(party, aligned=data.alignment != "already-aligned", classes=())
    is_of_nodes = part.source.unlabelled == "keep"  # of which not every one has a label
    if not is_run and not is_of_nodes and not any(one.level == "error" for one in party.findings):
        yield from _trial(name, part.load)


def _file(party: _Party, *, aligned: bool, classes: Sequence[str]) -> list[DataFinding]:
    """Return the findings of a party's file: its columns, ids and labels."""
    table = _readable(party)
    if table is None:
        return party.answered(())
    source = party.source
    num_rows = len(next(iter(table.values()), ()))
    if source.view is None and (unseen := hidden_parts(Path(source.path), party.name)):
        party.say("warning", f"{unseen} of the workbook are hidden or filtered out, and read; delete what is none")
    if table and not num_rows:
        party.say("error", f"{source.path} has the names of columns and no row")
        return party.findings
    called = [*_flat((source.id_column, source.label)), *source.targets]
    if any(name not in table and name in map(str.strip, table) for name in called):
        party.refuse(source.absent("id", next(name for name in called if not spread((name,), table))))
        party.source = source = replace(source, csv=replace(source.csv or CsvFormat(), trim=True))
        table = source.read()
    features = source.names_of_features(table)
    wanted: dict[str, tuple[Any, ...]] = {
        "id": (source.id_column,),
        "label": (source.label, *source.targets),
        "split": (source.split_column,),
    }
    wanted |= {"weight": (source.weight,), "features": features}
    for role, names in wanted.items():
        for name in _flat(names):
            if not spread((name,), table):
                party.refuse(source.absent(role, name))
    for name in pandas_index(Path(source.path)) if source.features is None else ():
        if name not in table:
            party.say("warning", f"column {name} is the index that pandas wrote, and no feature")
    for column in table.values():
        _encoded_twice(party, column)
    ruled = source.rules_of(features)
    rules = {name: ruled.get(name, NUMBERS) for name in features if name in table}
    clear = _clear_numbers(party, {name: table[name] for name in rules}, rules)
    for name, rule in rules.items():
        if name not in clear:
            _column(party, table[name], rule)
    party.scales = {name: party.scales[name] for name in rules if name in party.scales}
    if source.id_column is not None and all(name in table for name in _flat((source.id_column,))):
        _ids(party, source.ids_of(table), aligned)
    for label in (source.label, *spread(source.targets, table)):
        if label in table:
            _labels(party, table[label], classes, num_rows)
    return party.answered(features)


def _readable(party: _Party) -> dict[str, Column] | None:
    """Read a party's file, as it is written by what refusals say of it; None: nobody knows how."""
    for _ in range(_MOST_TRIES):
        before = dict(party.csv)
        try:
            return party.source.read()
        except BadInput as error:
            party.refuse(error)
        except DataMissing as error:
            party.say("error", str(error))
            return None
        if party.csv == before:
            return None
        party.source = replace(party.source, csv=replace(party.source.csv or CsvFormat(), **party.csv))
    return None


def _encoded_twice(party: _Party, column: Column) -> None:
    """Note a name or a text whose UTF-8 was taken for an encoding of one byte a letter, and encoded once more."""
    texts: list[str] = [column.name]
    if pa.types.is_string(column.values.type) or pa.types.is_large_string(column.values.type):
        is_ascii = pc.string_is_ascii(column.values)
        texts += (
            pc.unique(column.values.filter(pc.invert(is_ascii))).to_pylist()
            if pc.any(pc.invert(is_ascii)).as_py()
            else []
        )
    for text in texts:
        if text and (once := _encoded_once(text)):
            told = f"{text!r} is {once!r} in UTF-8 that was encoded twice; write the file anew from its source"
            party.add("warning", told, column.name)
            return


def _encoded_once(text: str) -> str:
    """Return what a text was before its UTF-8 was encoded again; empty: it was not."""
    for encoding in ("cp1252", "latin-1") if not text.isascii() else ():
        with contextlib.suppress(UnicodeError):
            return text.encode(encoding).decode()
    return ""


def _flat(names: Iterable[Any]) -> Iterator[str]:
    """Yield names of columns, of which several may stand together."""
    for one in names:
        if isinstance(one, str):
            yield one
        elif one is not None:
            yield from one


def _column(party: _Party, column: Column, rule: ColumnRule) -> None:
    """Note what is wrong or odd with a feature."""
    num_missing = column.num_missing
    if num_missing == len(column):
        if rule.missing != "constant":
            party.add("error", "no row has a value", column.name, leave_out=True)
        return
    look = _numbers if rule.type == "numeric" else _categories if rule.is_category else _dates
    try:
        look(party, column, rule)
    except BadInput as error:
        said = str(error).partition(f"column {column.name}: ")[2] or str(error)
        kind = _kind_of_moments(column) if rule.type == "numeric" else {}
        party.add("error", said, column.name, leave_out=not kind, **kind)
        return
    if num_missing and rule.missing == "refuse":
        fill: dict[str, Any] = {"missing": "indicator" if rule.is_category else "median"}
        if party.is_public and not rule.is_category:
            fill = {"missing": "constant", "fill": 0 if rule.type == "numeric" else "1970-01-01"}
        first = column.row(int(np.flatnonzero(column.is_missing())[0]))
        told = f"{num_missing} of {len(column)} values are missing (first in {first})"
        if column.first_text() and (party.source.csv is None or party.source.csv.null is None):
            told += NULL_IS_VALUE
        party.add("error", told, column.name, **fill)


def _numbers(party: _Party, column: Column, rule: ColumnRule) -> None:
    name = column.name
    values_N, wrong = column.readable_numbers(party.source.where)
    if wrong:
        _texts_for_numbers(party, column, list(wrong.values()))
        return
    finite = values_N[np.isfinite(values_N)]
    is_within = np.ones(len(values_N), np.bool_) if party.is_double else ~(np.abs(values_N) > np.finfo(np.float32).max)
    if rule.range is None and (num_infinite := int((np.isinf(values_N) | ~is_within).sum())):
        precision = "" if is_within[np.isfinite(values_N)].all() else " in single precision"
        party.add("error", f"{num_infinite} values are infinite{precision}", name, **_ranged(values_N[is_within]))
    if not len(finite):
        return
    if rule.range is None and party.is_public:
        (party.scales[name],) = _scales_of(finite[None], np.ones((1, len(finite)), np.bool_))
    if _may_be_thousands(column):
        told = 'if it stands between thousands: csv = { decimal = ",", thousands = "." }'
        party.add("warning", f"all have three digits behind the point; {told}", name)
    is_whole = bool((finite == np.floor(finite)).all())
    if finite.min() == finite.max():
        party.add("warning", f"every value is {finite[0]:g}: it tells a model nothing", name, leave_out=True)
    elif is_pandas_index(name) or _counts_rows(values_N):
        level: Level = "error" if is_pandas_index(name) else "warning"
        told = "it counts rows, and tells at most how they were sorted" if level == "warning" else "it is pandas' index"
        party.add(level, told, name, leave_out=True)
    elif is_whole and len(finite) >= _FEW_ROWS and _ID_NAME.fullmatch(name) and len(np.unique(finite)) == len(finite):
        party.add("warning", "every row has another whole number: an id is no feature", name, leave_out=True)
    elif (pair := column.merged(finite, all_differ=False)) is not None:
        party.add("warning", f"{pair[0]} and {pair[1]} are one number in double precision; write ids as texts", name)
    elif rule.range is None and not party.is_double and merges_in_single(finite):
        told = f"single precision merges values such as {finite[0]:.15g}, which differ by {np.ptp(finite):g} at most"
        party.add("warning", told, name, **_ranged(finite))
    elif not party.is_double and (lost := _lost_in_single(finite)):  # a 0 beside seconds since 1970 makes a deviation
        first, second = told_apart(finite)
        told = (
            f"single precision merges {lost:.0%} of its values, such as {first} and {second}, beside the others; name "
            f"what is none (a 0, say) under null, or leave the column out"
        )
        party.add("warning", told, name)


_CLEAR_CELLS = 1 << 18
"""Numbers of columns that are looked at together."""


def _clear_numbers(party: _Party, table: Mapping[str, Column], rules: Mapping[str, ColumnRule]) -> set[str]:
    """Return the columns of numbers of which `_column` has nothing to say, and note their scales as it does.

    Columns are looked at together, so that each of thousands takes no call of numpy of its own.
    """
    numbers, clear = dict[str, NDArray[np.float64]](), set[str]()
    for name, column in table.items():
        rule, missing = rules[name], column.num_missing
        is_usual = rule.type == "numeric" and not is_pandas_index(name) and column.csv.separator != ";"
        if is_usual and missing < len(column) and not (missing and rule.missing == "refuse") and not column.is_large:
            with contextlib.suppress(BadInput):
                values_N, wrong = column.readable_numbers(party.source.where)
                numbers |= {} if wrong else {name: values_N}
    step = _CLEAR_CELLS // max(1, len(next(iter(numbers.values()), ())))
    for first in range(0, len(numbers) if step > 1 else 0, max(1, step)):
        names = list(numbers)[first : first + step]
        values_CN = np.stack([numbers[name] for name in names])
        is_clear_C = _are_clear(values_CN, is_double=party.is_double)
        are_ids = [bool(_ID_NAME.fullmatch(name)) for name in names]
        is_clear_C &= ~(np.asarray(are_ids) & (np.floor(values_CN) == values_CN).any(1))
        clear.update(itertools.compress(names, is_clear_C))
        if party.is_public:
            scales = _scales_of(values_CN, np.isfinite(values_CN))
            party.scales |= {
                name: scale
                for name, scale in zip(names, scales, strict=True)
                if name in clear and rules[name].range is None
            }
    return clear


def _are_clear(values_CN: NDArray[np.float64], *, is_double: bool) -> NDArray[np.bool_]:
    """Return of which columns `_numbers` has nothing to say, whatever they are called; of some others it has not."""
    finite_CN = np.isfinite(values_CN)
    with np.errstate(over="ignore", invalid="ignore"):
        sorted_CN = np.sort(np.where(finite_CN, values_CN, np.inf), axis=1)
        counts_C = finite_CN.sum(1)
        rows = np.arange(len(values_CN))
        low_C, high_C = sorted_CN[:, 0], sorted_CN[rows, np.maximum(counts_C, 1) - 1]
        largest_C = np.maximum(np.abs(low_C), np.abs(high_C))
        is_clear_C = (counts_C > 0) & ~np.isinf(values_CN).any(1) & (low_C < high_C)
        is_clear_C &= (largest_C < 2.0**53) & (largest_C >= np.finfo(np.float64).tiny)
        if values_CN.shape[1] >= _FEW_ROWS:
            is_clear_C &= ~(np.isin(values_CN[:, 0], (0, 1)) & (np.diff(values_CN, axis=1) == 1).all(1))
        if is_double:
            return np.asarray(is_clear_C, np.bool_)
        mean_C = np.where(finite_CN, values_CN, 0.0).sum(1) / np.maximum(counts_C, 1)
        deviation_C = np.sqrt(np.square(np.where(finite_CN, values_CN - mean_C[:, None], 0.0)).sum(1) / counts_C)
        is_clear_C &= largest_C <= np.finfo(np.float32).max
        is_clear_C &= ~may_merge_in_single(largest_C, deviation_C)
        single_CN = (sorted_CN - mean_C[:, None]).astype(np.float32)
        is_next_CN = np.arange(1, values_CN.shape[1]) < counts_C[:, None]
        different_C, single_C = (
            1 + ((one[:, 1:] != one[:, :-1]) & is_next_CN).sum(1) for one in (sorted_CN, single_CN)
        )
    return np.asarray(is_clear_C & (1.0 - single_C / different_C <= _LOST), np.bool_)


def _lost_in_single(finite: NDArray[np.float64]) -> float:
    """Return the share of different numbers that single precision merges, counted from their mean; 0 if it is small."""
    if not len(finite):
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # what single precision cannot hold is refused
        centred = finite - finite.mean()
        single = centred.astype(np.float32)
    if bool((centred == single).all()) or not np.isfinite(single).all():
        return 0.0
    different = len(np.unique(finite))
    lost = 1.0 - len(np.unique(single)) / different
    return lost if lost > _LOST and different <= _MOST_TOLD_APART else 0.0


def _may_be_thousands(column: Column) -> bool:
    """Say whether a file that separates by semicolons, as where the comma is decimal, may have points in thousands."""
    csv = column.csv
    if not column.is_text or csv.separator != ";" or csv.decimal != "." or csv.thousands is not None:
        return False
    texts = [text for text in column.texts() if text is not None]
    return len(set(texts)) > 1 and all(map(_IN_THOUSANDS.fullmatch, texts))


def _kind_of_moments(column: Column) -> dict[str, Any]:
    """Return what a rule says of a column of dates or of times of day; nothing of another one."""
    kind = column.values.type
    if pa.types.is_time(kind):
        return {"type": "datetime", "parts": ["hour"]}
    return {"type": "datetime"} if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else {}


def _counts_rows(values_N: NDArray[np.float64]) -> bool:
    """Say whether values are the numbers of their rows."""
    return len(values_N) >= _FEW_ROWS and values_N[0] in (0, 1) and bool((np.diff(values_N) == 1).all())


def _ranged(values_N: NDArray[np.float64]) -> dict[str, Any]:
    """Return the rule of a public range that holds all finite values, in round numbers."""
    finite = values_N[np.isfinite(values_N)]
    if not len(finite):
        return {}
    low, high = float(finite.min()), float(finite.max())
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    return {"scaling": "range", "range": [math.floor(low / step) * step, (math.floor(high / step) + 1) * step]}


def _texts_for_numbers(party: _Party, column: Column, texts: list[str]) -> None:
    """Note texts where numbers must be, with what they may be instead."""
    name, counts = column.name, Counter(texts)
    such = ", ".join(repr(text[:40]) for text, _ in counts.most_common(_MOST_SHOWN))
    told = f"{len(texts)} of {len(column)} values are no numbers, such as {such}"
    ways = formats_of_dates(list(counts))
    distinct = len({text for text in column.texts() if text is not None})
    if (written := column.written_as(texts, _MOST_NULLS)) is not None:
        said, nulls = written
        party.say_csv(f"column {name}: {told}", **said, **({"null": sorted(nulls)} if nulls else {}))
        if nulls:
            _then_missing(party, name)
    elif (
        len(counts) <= _MOST_NULLS
        and 2 * len(texts) < len(column)
        and max(map(len, counts)) <= _LONGEST_NULL
        and not {text.strip().lower() for text in counts} & {"true", "false"}
        and not any(map(str.isdigit, "".join(counts)))  # what holds a digit is a number, written in another way
    ):
        party.say_csv(f"column {name}: {told}, which may mean that one is missing", null=sorted(counts))
        _then_missing(party, name)
    elif len(ways) > 1:
        party.add("error", f"{told}: {_several(ways)}", name)
    elif ways:
        party.add("error", f"{told}: dates", name, type="datetime", **_format_of(ways[0]))
    elif 2 * distinct > len(column) and len(column) >= _FEW_ROWS:
        party.add("error", f"{told}: nearly every row has a text of its own", name, leave_out=True)
    else:
        categories = {text for text in column.texts(party.source.where) if text is not None}
        is_alike = len(set(map(alike, categories))) < len(categories)
        rule = ColumnRule(type="text" if is_alike else "categorical")
        party.seen[name] |= set(map(rule.plain, categories))
        listed: dict[str, Any] = {"categories": sorted(party.seen[name])} if party.is_public else {}
        party.add("error", told, name, type=rule.type, **listed)


def _then_missing(party: _Party, name: str, public: Any = 0) -> None:
    if party.source.rules_of([name]).get(name, ColumnRule()).missing == "refuse":
        fill = {"missing": "constant", "fill": public} if party.is_public else {"missing": "median"}
        party.add("error", "then values are missing", name, **fill)


def _format_of(found: Sequence[str]) -> dict[str, Any]:
    """Return the format of dates, or all of them; none where dates are ISO 8601."""
    return {} if list(found) == ["iso"] else {"format": found[0] if len(found) == 1 else list(found)}


def _several(ways: Sequence[Sequence[str]]) -> str:
    return f"dates, by {' or '.join(f'format = {_toml(one)}' for (one, *_) in ways)}: nobody can tell which"


def _categories(party: _Party, column: Column, rule: ColumnRule) -> None:
    counts = Counter(rule.plain(text) for text in column.texts() if text is not None)
    once = [text for text, count in counts.items() if count == 1]
    by_plain: dict[str, list[str]] = {}
    for text in counts:
        by_plain.setdefault(alike(text), []).append(text)
    same = next((found for found in by_plain.values() if len(found) > 1), None)
    if same is not None:
        party.add("warning", f"{_named(same)} are different categories", column.name, type="text")
    elif not rule.declared and len(column) >= _FEW_ROWS and 2 * len(counts) > len(column):
        told = f"{len(counts)} categories in {len(column)} rows: nearly every row has its own"
        party.add("warning", told, column.name, leave_out=True)
    elif once and not rule.declared and rule.rare == 1 and len(column) >= _FEW_ROWS and not party.is_public:
        told = f"{len(once)} of {len(counts)} categories occur once, such as {once[0][:40]!r}"
        party.add("warning", told, column.name, type=rule.type, rare=2)


def _named(values: Sequence[str]) -> str:
    some = [value[:40] for value in values[:_MOST_SHOWN]]
    looks_same = len({unicodedata.normalize("NFC", one) for one in some}) < len(some)  # in a terminal
    return " and ".join(ascii(one) if looks_same else repr(one) for one in some)


def _dates(party: _Party, column: Column, rule: ColumnRule) -> None:
    moments_N, texts = column.moments(rule.format, party.source.where)
    counts = Counter(texts.values())
    if zeros := sorted(text for text in counts if NO_DAY.fullmatch(text.strip())):
        party.say_csv(f"column {column.name}: {zeros[0]!r} means that a date is missing", null=zeros)
        _then_missing(party, column.name, "1970-01-01")
    wrong = [text for text in counts if text not in zeros]
    if not wrong:
        is_later = moments_N > np.datetime64("now")
        if any("%y" in one for one in formats_of(rule.format)) and is_later.any():
            row = int(np.flatnonzero(is_later)[0])
            such = f"{column.texts()[row]!r} ({moments_N[row]!s:.4})"
            told = f"{int(is_later.sum())} dates lie in the future, such as {such}"
            party.add("warning", f"{told}: of two digits, years to 68 are of this century; write four", column.name)
        return
    given = [] if rule.format == "" else [rule.format] if isinstance(rule.format, str) else list(rule.format)
    every = [text for text in dict.fromkeys(column.texts(party.source.where)) if text is not None and text not in zeros]
    ways = formats_of_dates(every) or [
        (*given, *way) for way in formats_of_dates(wrong) if given and len(texts) < len(column)
    ]
    found = _format_of(ways[0]) if len(ways) == 1 else {}
    how = f"by format = {_toml(rule.format)}" if rule.format else "(ISO 8601)"
    several = "; there are dates of several formats" if isinstance(found.get("format"), list) else ""
    several = f"; {_several(ways)}" if len(ways) > 1 else several
    count = sum(counts[text] for text in wrong)
    party.add("error", f"{count} values are no dates {how}, such as {_named(wrong[:1])}{several}", column.name, **found)


def _ids(party: _Party, ids: Sequence[str], aligned: bool) -> None:
    """Note ids that will not meet those of other parties."""
    level: Level = "error" if aligned else "warning"
    given = [text for text in ids if text]
    if told := _rounded(part for text in given for part in text.split("/")):
        party.say("warning", f"id: {told}")
    if len(given) < len(ids) and aligned:
        party.say(level, f"id: {len(ids) - len(given)} rows have no id")
    if doubled := [text for text, count in Counter(given).items() if count > 1]:
        told = f"id: {len(doubled)} ids stand in several rows, such as {doubled[0]!r}"
        if party.source.duplicates == "refuse":
            party.say(level, told, 'duplicates = "first"', f"parties.{party.name}")
        else:
            party.say("warning", f"{told}; rule: {party.source.duplicates}")
    if given and given[-1].strip(" :").casefold() in _TOTALS:
        party.say("warning", f"id: the last row is called {given[-1]!r}: leave it out if it sums the others up")
    if not given or not aligned:
        return
    if all(map(_WHOLE_AS_FLOAT.fullmatch, given)):
        party.say("warning", f"id: all ids end in .0, such as {given[0]!r}; write whole numbers, as others do")
    letters = [text for text in given if text.lower() != text.upper()]
    if len({text == text.upper() for text in letters}) > 1 and len({text == text.lower() for text in letters}) > 1:
        party.say("warning", f"id: letters of ids are large and small, such as {letters[0]!r}", *_id_rule("casefold"))
    if composed := [text for text in given if unicodedata.normalize("NFKC", text) != text]:
        told = f"id: {len(composed)} ids are not in the usual Unicode form (NFKC), such as {composed[0]!r}"
        party.say("warning", told, *_id_rule("nfkc"))
    lengths = {len(text) for text in given}
    if all(map(str.isdecimal, given)) and len(lengths) > 1 and any(text != "0" and text[0] == "0" for text in given):
        party.say("warning", "id: some ids begin with 0 and are of other lengths", *_id_rule("strip-zeros"))


_LONG_NUMBER, _HELD_DIGITS = re.compile(r"[1-9][0-9]{15,}"), 15
_LEAST_ROUNDED, _MOST_OTHERS = 3, 0.1


def _rounded(texts: Iterable[str]) -> str:
    """Return what to say of long numbers that nearly all end in zeros, as a spreadsheet leaves them; else nothing."""
    long = {text for text in texts if _LONG_NUMBER.fullmatch(text)}
    others = [text for text in long if text[_HELD_DIGITS:].strip("0")]
    rounded = sorted(long.difference(others))
    if len(rounded) < _LEAST_ROUNDED or len(others) > _MOST_OTHERS * len(long):
        return ""
    told = f"{len(rounded)} of {len(long)} long numbers end in zeros, such as {rounded[0]!r}"
    return (
        f"{told}: they were rounded to 15 digits, as a spreadsheet does; export them as text from where they are whole"
    )


def _id_rule(rule: str) -> tuple[str, ...]:
    """Return the line by which forms of ids do not count, where a description may have one."""
    known = {one.name for one in fields(VerticalParty)}  # type: ignore[arg-type]
    return (f"id_rules = {_toml([rule])}",) if "id_rules" in known else ()


def _labels(party: _Party, column: Column, classes: Sequence[str], num_rows: int) -> None:
    """Note labels that are missing, of unknown or of scarce classes."""
    source = party.source
    num_missing = int(column.is_missing().sum())
    if num_missing and source.unlabelled == "refuse":
        null = NULL_IS_VALUE if column.is_text and (source.csv is None or source.csv.null is None) else ""
        party.say("error", f"label: {num_missing} of {num_rows} rows have none{null}", 'unlabelled = "drop"')
    if source.task not in ("binary", "multiclass"):
        return
    rule = dict(source.rules).get(column.name, ColumnRule())
    classes = [rule.plain(name) for name in classes]
    known, codes_N = column.coded("")
    counts = Counter[str]()
    for text, count in zip(known, np.bincount(codes_N[codes_N >= 0], minlength=len(known)).tolist(), strict=True):
        counts[class_text(rule.plain(text))] += count
    num_labels = counts.total()
    unknown = [text for text in counts if classes and text not in classes]
    if unknown:
        told = f"label: {_named(unknown)} of {len(unknown)} values that are no classes ({', '.join(classes)})"
        plain = {text.strip().casefold() for text in classes}
        if {text.strip() for text in unknown} <= set(classes) and source.view is None and is_csv(Path(source.path)):
            party.say_csv(told, trim=True)
        elif len(plain) == len(classes) and {text.strip().casefold() for text in unknown} <= plain:
            party.add("error", told, column.name, type="text")
        else:
            party.seen[column.name] |= set(counts)
            seen = sorted(party.seen[column.name])
            are_others = not set(seen) & set(classes) and (len(seen) == 2 or source.task == "multiclass")
            party.say("error", told, *((f"classes = {_toml(seen)}", "task") if are_others else ()))
    by_plain = Counter(text.strip().casefold() for text in counts)
    if not classes and any(count > 1 for count in by_plain.values()):
        told = f"label: classes that differ in letters' case or blanks: {', '.join(map(repr, sorted(counts)[:6]))}"
        party.add("error", told, column.name, type="text")
    scarce, count = min(counts.items(), key=lambda one: one[1], default=("", 0))
    if not unknown and len(counts) > 1 and num_labels >= _FEW_ROWS and count < _SCARCE * num_labels:
        weights = {text: round(num_labels / len(counts) / one, 2) for text, one in sorted(counts.items())}
        line = ", ".join(f"{json.dumps(text)} = {value:g}" for text, value in weights.items())
        suggestion = () if source.class_weights else (f"class_weights = {{ {line} }}", "task")
        party.say("warning", f"label: {scarce!r} has {count} of {num_labels} rows", *suggestion)


# --- clients with the same columns ----------------------------------------------------------------------------------


def _horizontal(data: HorizontalData, names: Sequence[str], is_run: bool, is_scaled: bool) -> Iterator[DataFinding]:
    tables: list[_Party] = []
    seen = defaultdict[str, set[str]](set)
    for name, file in zip(data.parties, data.files, strict=True):
        if name not in names:
            continue
        is_images = file.image_folder is not None
        if not is_images:
            tables.append(_Party(name, file.file, "task.columns", is_public=True, seen=seen))
            yield from _file(tables[-1], aligned=False, classes=file.classes)
        if not is_run and (is_images or not any(one.level == "error" for one in tables[-1].findings)):
            yield from _trial(name, file.load)
    if not is_run and data.test_file is not None and len(names) == len(data.parties):
        yield from _trial("test", data.test_file.load)
    if not is_scaled:
        yield from _scales(tables)


class _Scale(NamedTuple):
    """What is kept of a client's column: no value of its own."""

    num_values: int
    mean: float
    deviation: float
    low: float
    high: float
    size: float
    """Median of the absolute values."""


def _scales_of(values_CN: NDArray[np.float64], finite_CN: NDArray[np.bool_]) -> list[_Scale]:
    """Return what is kept of columns by their finite numbers, of which each has at least one."""
    counts_C = finite_CN.sum(1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean_C = np.where(finite_CN, values_CN, 0.0).sum(1) / counts_C
        squares_CN = np.square(np.where(finite_CN, values_CN - mean_C[:, None], 0.0))
    sizes_CN = np.sort(np.where(finite_CN, np.abs(values_CN), np.inf), axis=1)
    columns = np.arange(len(values_CN))
    median_C = sizes_CN[columns, (counts_C - 1) // 2] / 2 + sizes_CN[columns, counts_C // 2] / 2
    low_C, high_C = (
        values_CN.min(1, where=finite_CN, initial=np.inf),
        values_CN.max(1, where=finite_CN, initial=-np.inf),
    )
    found = (counts_C, mean_C, np.sqrt(squares_CN.sum(1) / counts_C), low_C, high_C, median_C)
    return [_Scale(int(count), *rest) for count, *rest in zip(*(one.tolist() for one in found), strict=True)]


def _joint_deviation(scales: Sequence[_Scale]) -> float:
    """Return the deviation of all clients' values together."""
    counts = np.asarray([one.num_values for one in scales], np.float64)
    means, deviations = (np.asarray([getattr(one, name) for one in scales]) for name in ("mean", "deviation"))
    if len(scales) == 1:
        return float(deviations[0])
    mean = counts @ means / counts.sum()
    return float(np.sqrt(counts @ (deviations**2 + (means - mean) ** 2) / counts.sum()))


def _scales(tables: Sequence[_Party]) -> Iterator[DataFinding]:
    """Yield columns of clients whose scales differ: not every protocol standardises them, and a rule is for all."""
    found: dict[str, list[_Scale]] = {}
    for party in tables:
        for name, values in party.scales.items():
            found.setdefault(name, []).append(values)
    if not found:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        deviations = {name: _joint_deviation(scales) for name, scales in found.items()}
    spread = {name: deviation for name, deviation in deviations.items() if deviation > 0}
    widest, narrowest = max(spread.values(), default=0.0), min(spread.values(), default=0.0)
    if widest >= _WIDE or widest > _FACTOR * narrowest:
        for name, value in spread.items():
            told = (
                f"its deviation is {value:.3g}, and columns' go from {narrowest:.3g} to {widest:.3g}; nebulafl and "
                "standardisation=none take numbers as they are: give public ranges"
            )
            limits = np.asarray([min(one.low for one in found[name]), max(one.high for one in found[name])])
            line = ", ".join(f"{key} = {_toml(one)}" for key, one in _ranged(limits).items())
            rule = f"{_key(name)} = {{ {line} }}"
            yield DataFinding(party="", level="warning", column=name, text=told, suggestion=rule, table="task.columns")
    for name, of_clients in found.items():
        sizes = [one.size for one in of_clients]
        if len(sizes) > 1 and min(sizes) > 0 and max(sizes) >= _UNITS * min(sizes):
            small, large = tables[int(np.argmin(sizes))].name, tables[int(np.argmax(sizes))].name
            told = f"{large} has {max(sizes):.3g} where {small} has {min(sizes):.3g} (medians): another unit?"
            yield DataFinding(party="", level="warning", column=name, text=told)


# --- tables of a query ----------------------------------------------------------------------------------------------


def _keys_as_written(party: _Party, keys: Any, *, is_ruled: bool) -> None:
    """Note keys that were rounded, or unless rules bring them to one form hold as texts what an id would not count."""
    for name, texts in zip(keys.column_names, keys.columns, strict=True):
        is_text = pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)
        is_exact = is_text or pa.types.is_integer(texts.type) or pa.types.is_decimal(texts.type)
        if is_exact and (told := _rounded(pc.unique(texts.drop_null()).cast(pa.string()).to_pylist())):
            party.say("warning", f"key {name}: {told}")
        if not is_text or is_ruled:
            continue
        plain = pa.chunked_array([compared_names(texts, ())], pa.string())
        odd = texts.filter(pc.fill_null(pc.not_equal(texts.cast(pa.string()), plain), False))
        if len(odd):
            told = f"{len(odd)} keys of {name}, such as {odd[0].as_py()[:40]!a}, have blanks at their ends or accents "
            party.say("warning", f"{told}composed otherwise, which count (both owners need the rule)", _ANY_BLANKS)


_ANY_BLANKS = 'id_rules = ["nfkc"]'


def _relational(data: RelationalData, names: Sequence[str], is_run: bool) -> Iterator[DataFinding]:
    """Yield the findings of the tables that a query joins: rows without keys, and the columns that it selects."""
    kinds: dict[str, Schema] = {}
    parsed: dict[RelationalPartition, ParsedFile | None] = {}
    try:
        owners = partitions_of(data)
        sources = [source for parts in query_over_partitions(data.query).tables.values() for source, _ in parts]
    except BadInput as error:
        yield DataFinding(party="", level="error", text=str(error))
        return
    for name, (_, _, partition) in zip(sources, owners, strict=True):
        try:
            parsed[partition] = partition.source.parsed()
            columns = partition.source.describe()
        except (BadInput, DataMissing) as error:
            yield DataFinding(party=partition.party, level="error", text=str(error))
            continue
        kinds[name] = Schema(tuple(columns), tuple(columns.values()))
    if len(kinds) < len(owners):
        return
    try:
        plan = resolve_plan(data.query, Schemas(kinds))
    except BadInput as error:
        yield DataFinding(party="", level="error", text=str(error))
        return
    for table, index, partition in owners:
        if partition.party not in names:
            continue
        planned = plan.table(table)
        try:
            rows = partition.source.load(
                planned.needed_columns(),
                planned.partitions[index].where,
                planned.computed,
                planned.called_by,
                planned.exact,
            )
            del parsed[partition]
            rules = rules_of_features(planned.features, partition)
            given = {one.column: column_of(rows, one.column, rules[one.column]) for one in planned.features}
        except (BadInput, DataMissing) as error:
            yield DataFinding(
                party=partition.party, level="error", text=str(error).removeprefix(f"{partition.party}: ")
            )
            continue
        source = FileSource(party=partition.party, path=table, task=data.task, num_classes=0, rules=partition.rules)
        party = _Party(partition.party, source, f"parties.{partition.party}.columns", is_double=True)
        if planned.keys and (lost := int((~rows_with_keys(rows.select(planned.keys))).sum())):
            keys = ", ".join(map(shown_key, planned.keys))
            party.say("warning", f"{lost} of {rows.num_rows} rows have no value in {keys}: they join with nothing")
        _keys_as_written(party, rows.select(planned.keys), is_ruled=bool(partition.id_rules))
        for name, column in given.items():
            _column(party, column, rules[name])
        party.left_out.clear()  # what a table gives is said by the query
        yield from party.answered(list(given))
        if given and not is_run and not any(one.level == "error" for one in party.findings):
            where = f"{partition.party}: {table}"
            yield from _trial(partition.party, lambda: fit_table(given, rules, where, scales=True))  # noqa: B023
