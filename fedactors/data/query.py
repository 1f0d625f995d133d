"""SQL text to the training set that it states: vertical tables with the roles of their columns, and a join tree.

    SQL text, or a tree of sqlglot's --parse_query--> Query: what it says; every party reads it alike
    Query --make_plan(columns of all tables, label)--> JoinPlan: what it means

Accepted: inner joins with ON, USING or comparisons in WHERE, of columns or of expressions over the columns of one table
(`TRIM`, `CAST`, `COALESCE`), which their owner computes; tables; UNION ALL of filtered tables in parentheses; filters
that concern one table; plain columns in the select list. A top-level UNION ALL must be what it means to
join unions: its branches differ only in the partitions they read, and every combination of partitions occurs.
Whatever is not allowed is refused with its name. Names are resolved by sqlglot, as DuckDB does: upper and lower case
are the same.

Kinds of columns: integer, float, decimal, boolean, text, date, timestamp, other; of a CSV file also numeral: whole
numbers, and code: numbers that no program writes so, such as 1.10 beside 1.1; both are texts as well. Whatever their
kinds, numbers are equal if they are the same number, and texts if they are the same text; those that are both are
compared as texts: 007 at one party is not 7 at another.

It is one file because what a query may say is what is then given a meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from math import inf, prod
from typing import Any, Literal

from sqlglot import exp, parse_one
from sqlglot.dialects import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
from sqlglot.optimizer.qualify import qualify

from fedactors.data.values import UNCLEAR
from fedactors.errors import BadInput
from fedactors.validation import shown

_LONGEST = 100_000
_DEEPEST = 150
_TOO_DEEP = f"sql: the query is nested too deeply: at most {_DEEPEST} levels, of parentheses or of AND and OR"


class QueryError(BadInput):
    """Base of every error about a query that states a training set."""


class QuerySyntaxError(QueryError):
    """The SQL text does not parse; ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"sql: line {line}, column {column}: {message}")
        self.line, self.column = line, column


class NotASelectError(QueryError):
    """The SQL text holds something other than one SELECT (or a UNION of SELECTs)."""


def _quoting(sql: str) -> str:
    """Return how names are quoted, where they are as in MySQL or SQL Server."""
    found = re.search(r"`(\w[^`]*)`|(?<![\w\])])\[([A-Za-z_]\w*)\]", sql)
    return "" if found is None else f'; names are quoted so: "{found[1] or found[2]}", not {found[0]}'


def parse_select(sql: str) -> Any:
    """Return sqlglot's tree of one SELECT, or of a UNION or the like of SELECTs.

    Raises:
        QuerySyntaxError: the text does not parse (with line and column).
        NotASelectError: the text holds no SELECT, several statements, or any other statement.
    """
    import sqlglot

    if len(sql) > _LONGEST:
        raise QueryError(f"sql: {len(sql)} characters are not allowed: at most {_LONGEST}")
    try:
        found = sqlglot.parse(sql, dialect="duckdb")
    except RecursionError:
        raise QueryError(_TOO_DEEP) from None
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        what = str(first.get("description", error)).partition(" but got <Token")[0].splitlines()[0]
        what = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", what) + _quoting(sql)
        raise QuerySyntaxError(what, int(first.get("line") or 1), int(first.get("col") or 1)) from None
    except sqlglot.errors.SqlglotError as error:
        line = sql.count("\n") + 1
        raise QuerySyntaxError(
            str(error).splitlines()[0] + _quoting(sql), line, len(sql.splitlines()[-1]) + 1
        ) from None
    statements = [tree for tree in found if tree is not None and not isinstance(tree, exp.Semicolon)]
    if len(statements) != 1:
        raise NotASelectError(f"sql: exactly one SELECT is needed, {len(statements)} statements were given")
    tree = statements[0]
    _check_depth(tree)
    while isinstance(tree, exp.Subquery) and not tree.alias:
        tree = tree.this
    if not isinstance(tree, exp.Select | exp.SetOperation):
        raise NotASelectError(f"sql: only SELECT is allowed, not {tree.key.upper()}")
    return tree


def _check_depth(tree: Any) -> None:
    """Refuse a tree through which sqlglot could not walk: it does so by recursion."""
    layer, depth = [tree], 0
    while layer:
        depth += 1
        if depth > _DEEPEST:
            raise QueryError(_TOO_DEEP)
        layer = [child for node in layer for child in node.iter_expressions()]


def named_tables(sql: str) -> tuple[str, ...]:
    """Return the names of the tables that a query reads, each once, in the order in which they occur.

    Raises:
        QueryError: see `parse_select`; or the query reads no table.
    """
    tree = parse_select(sql)
    _check_constructs(tree)  # before anybody looks for a table that is none, such as a name given by WITH
    names = tuple(dict.fromkeys(table.name for table in tree.find_all(exp.Table, bfs=False)))
    if not names:
        raise QueryError(f"sql: {sql!r} reads no table")
    return names


@dataclass(frozen=True)
class View:
    """What a query asks of one party's tables alone, and that party computes; in the query it is a table of its name.

    It is any SELECT whose rows are always the same.
    """

    name: str
    sql: str
    tables: tuple[str, ...]


def views_of(sql: str, holders: Mapping[str, Sequence[str]]) -> tuple[str, tuple[View, ...]]:
    """Return a query in which each view of one party's own tables is a table, and these views.

    Views are what ``WITH`` names, and a SELECT in FROM that is more than filtered tables.

    Args:
        sql: the query.
        holders: by table, the parties that hold it or a part of it.

    Raises:
        QueryError: a view of several parties' tables, or one whose rows may be others the next time.
    """
    tree = parse_select(sql)
    found: dict[str, View] = {}
    clause = next((tree.args[key] for key in ("with_", "with") if tree.args.get(key)), None)
    earlier: list[Any] = []
    taken = set(map(str.lower, holders))

    def free(name: str) -> str:
        if name.lower() in taken:
            raise QueryError(f"sql: table name {name!r} is used twice")
        taken.add(name.lower())
        return name

    for named in clause.expressions if clause is not None else ():
        free(named.alias)
        found[named.alias] = _view(named.alias, named.this, earlier, holders)
        earlier.append(named)
    if clause is not None:
        clause.pop()
    for item in [one for one in tree.find_all(exp.Subquery) if isinstance(one.parent, exp.From | exp.Join)]:
        if item.alias and item.root() is tree and not all(map(_is_filtered_table, _selects(item.this))):
            free(item.alias)
            found[item.alias] = _view(item.alias, item.this, earlier, holders)
            item.replace(exp.Table(this=exp.to_identifier(item.alias, quoted=True)))
    used = {table.name for table in tree.find_all(exp.Table)}
    return (str(tree.sql(dialect="duckdb")) if found else sql), tuple(v for name, v in found.items() if name in used)


def view_of(name: str, sql: str, tables: Sequence[str]) -> View:
    """Return the view that a party's own SELECT is of its tables.

    Raises:
        QueryError: it is none, reads another table, or its rows may be others the next time.
    """
    return _view(name, parse_select(sql), (), dict.fromkeys(tables, (name,)))


def _is_filtered_table(select: Any) -> bool:
    if not isinstance(select, exp.Select) or select.args.get("joins"):
        return False
    given = {key.removesuffix("_") for key, value in select.args.items() if value}
    return given <= {"expressions", "from", "where"} and all(
        isinstance(one, exp.Column | exp.Star) for one in select.expressions
    )


_OF_ONE_ROW = (
    exp.Abs, exp.And, exp.Case, exp.Cast, exp.Ceil, exp.Coalesce, exp.Concat, exp.DateDiff, exp.Exp, exp.Extract,
    exp.Floor, exp.Greatest, exp.If, exp.Least, exp.Length, exp.Ln, exp.Log, exp.Lower, exp.Nullif, exp.Or, exp.Pow,
    exp.Round, exp.Sign, exp.Sqrt, exp.Substring, exp.Trim, exp.TryCast, exp.Upper,
)  # fmt: skip
"""Functions whose values follow from one row; of others that are not here nobody has said it."""


def is_row_by_row(sql: str) -> bool:
    """Say whether each row of a SELECT follows from one row of one table, and from each row one at most.

    Raises:
        QueryError: see `parse_select`.
    """
    tree = parse_select(sql)
    given = {key.removesuffix("_"): value for key, value in tree.args.items() if value}
    table = given["from"].this if "from" in given else None
    is_plain = isinstance(tree, exp.Select) and given.keys() <= {"expressions", "from", "where", "kind"}
    if not (is_plain and isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier)):
        return False
    if any(value for key, value in table.args.items() if key not in ("this", "db", "catalog", "alias")):
        return False
    inside = (node for node in tree.walk() if node is not tree)
    return not any(
        isinstance(node, exp.Query | exp.Window) or (isinstance(node, exp.Func) and not isinstance(node, _OF_ONE_ROW))
        for node in inside
    )


_CHANGING = ("limit", "fetch", "tablesample", "rand", "uuid", "currentdate", "currenttimestamp", "currenttime", "into",
             "approxquantile", "approxtopk", "localtime", "localtimestamp", "currentuser",
             "currentversion")  # fmt: skip
"""What makes a view's rows others the next time, by sqlglot's names."""
_CHOOSING = ("first", "last", "anyvalue", "mode", "argmax", "argmin")
"""Aggregates whose value is one of several that are as good, unless they order by the value itself."""
_OF_ORDER = (
    *_CHOOSING,
    "rownumber",
    "lag",
    "lead",
    "firstvalue",
    "lastvalue",
    "nthvalue",
    "ntile",
    "arrayagg",
    "groupconcat",
)
"""Functions whose values follow from the order of rows, which they must name by a column."""
_CHANGING_FUNCTIONS = re.compile(
    "now|today|random.*|gen_random_uuid|nextval|setseed|current_.*|getenv|arbitrary|reservoir_quantile|arg_m.*|.*_by"
    "|jsonb?_(object_|group_)?(agg|array|object)|xmlagg|txid_.*|pg_.*|inet_.*|timeofday|(clock|statement|transaction)_"
    "timestamp|get_current_.*|last_insert_rowid|(total_)?changes"
)
"""Functions that sqlglot does not know, by their names in small letters."""


def _view(name: str, body: Any, earlier: Sequence[Any], holders: Mapping[str, Sequence[str]]) -> View:
    for node in body.walk():
        is_of_order = node.key in _OF_ORDER or (isinstance(node, exp.Distinct) and node.args.get("on") is not None)
        is_unordered = is_of_order and not _names_order(node)
        is_changing = isinstance(node, exp.Anonymous) and _CHANGING_FUNCTIONS.fullmatch(node.name.lower())
        if node.key in _CHANGING or is_changing or is_unordered:
            shown_node = node.parent if isinstance(node.parent, exp.Window) else node
            raise UnsupportedQueryError(
                f"sql: {shown_node.sql(dialect='duckdb')!r} in {name} is not supported ({node.key}): its rows may be "
                f"others the next time; {_alternative(node)}"
            )
    inner = {one.alias for one in body.find_all(exp.CTE)}
    before = {one.alias: one for one in earlier}
    needed: dict[str, Any] = {}
    tables: list[str] = []
    waiting = [body]
    while waiting:
        for table in waiting.pop().find_all(exp.Table):
            if table.name in before and table.name not in needed:
                needed[table.name] = before[table.name]
                waiting.append(before[table.name].this)
            elif table.name not in before and table.name not in inner:
                tables.append(table.name)
    if unknown := [table for table in tables if table not in holders]:
        raise UnknownTableError(f"sql: table {unknown[0]!r} of {name} is with no party")
    owners = sorted({owner for table in tables for owner in holders[table]})
    if len(owners) != 1:
        told = " and ".join(owners) or "nobody"
        raise UnsupportedQueryError(
            f"sql: {name} reads tables of {told}: a view is of one party's own; parties' tables join by key = key"
        )
    with_ = ", ".join(one.sql(dialect="duckdb") for one in earlier if one.alias in needed)
    text = f"{f'WITH {with_} ' if with_ else ''}{body.sql(dialect='duckdb')}"
    return View(name, text, tuple(dict.fromkeys(tables)))


def _names_order(node: Any) -> bool:
    """Say whether the order of rows that a function or a ``DISTINCT ON`` goes by is that of a column's values."""
    above = node.find_ancestor(exp.Window, exp.Select)
    is_above = isinstance(above, exp.Window) or isinstance(node, exp.Distinct)
    orders = (node.this, node.args.get("expression"), above.args.get("order") if is_above and above else None)
    named = [one for order in orders if isinstance(order, exp.Order) for one in order.expressions]
    if node.key in _CHOOSING:
        return any(one.this == _value_of(node) for one in named)
    return any(one.find(exp.Column) is not None for one in named)


def _value_of(node: Any) -> Any:
    """Return what an aggregate is of, without its order and DISTINCT."""
    value = node.this.this if isinstance(node.this, exp.Order) else node.this
    return value.expressions[0] if isinstance(value, exp.Distinct) and value.expressions else value


def _alternative(node: Any) -> str:
    """Return what a view may say in place of what may be another the next time."""
    is_named = isinstance(node, exp.Anonymous)
    name = node.name.lower() if is_named else node.key
    first, second = [*node.expressions, None, None][:2] if is_named else (node.this, node.args.get("quantile"))
    if isinstance(node, exp.Distinct):
        return "add ORDER BY and columns that tell its rows apart"
    if name in ("limit", "fetch", "tablesample"):
        return "choose rows by WHERE"
    if name in ("approxquantile", "reservoir_quantile"):
        return f"write QUANTILE_CONT({first}, {second})"
    if name.startswith("arg_m") and second is not None:  # ARG_MAX_NULL, and others that are not known
        node = (exp.ArgMin if name.startswith("arg_min") else exp.ArgMax)(this=first, expression=second)
    elif name == "arbitrary" and first is not None:
        node = exp.AnyValue(this=first)
    elif (
        isinstance(node.parent, exp.Window | exp.IgnoreNulls)
        and node.find_ancestor(exp.Window, exp.Select).key == "window"
    ):
        return "write OVER (ORDER BY ...) with columns that tell its rows apart"
    if node.key in (*_CHOOSING, "arrayagg", "groupconcat") and (value := _value_of(node)) is not None:
        key = "expression" if node.key in ("argmax", "argmin") else "this"
        if key == "expression" and node.args.get("count") is not None:
            side = f"{node.expression} DESC" if node.key == "argmax" else f"{node.expression}"
            return f"write LIST({value} ORDER BY {side}, {value})[:{node.args['count']}]"
        ordered = node.copy()
        order = ordered.args[key] if isinstance(ordered.args[key], exp.Order) else exp.Order(this=ordered.args[key])
        order.append("expressions", exp.Ordered(this=value.copy(), nulls_first=False))
        ordered.set(key, order)
        return f"write {ordered.sql(dialect='duckdb')}"
    if name == "mode" or "agg" in name or name.startswith("json"):
        return f"write {'MODE' if name == 'mode' else 'LIST'}(x ORDER BY x)"
    return "write a value, or a column of the table, in its place"


Schema = Mapping[str, str]
Tree = Any
"""A node of sqlglot's tree; the class has different names in its versions."""
Encoding = Literal["numeric", "one_hot", "ruled"]
NUMERALS = ("numeral", "code")
"""Kinds of numbers of a CSV file, which are texts as well."""
NUMBER_KINDS = ("integer", "float", "decimal", *NUMERALS)
NUMERIC_KINDS = (*NUMBER_KINDS, "boolean")


class UnsupportedQueryError(QueryError):
    """The query uses a construct outside unions of conjunctive queries; the message names it."""


class UnknownTableError(QueryError):
    """A table of the query has no source."""


class UnknownColumnError(QueryError):
    """A column is in none of the tables."""


class AmbiguousColumnError(QueryError):
    """An unqualified column is in several tables."""


class KeyTypeError(QueryError):
    """The two sides of a join condition have different types."""


class CyclicJoinError(QueryError):
    """The join conditions close a cycle, so the join is no tree."""


class DisconnectedJoinError(QueryError):
    """Some table is joined to no other, which would be a cross product."""


class LabelError(QueryError):
    """The label column is in no table, in several, or unfit to be a label."""


class FeatureTypeError(QueryError):
    """A feature is not numeric and no encoding was given, or a feature holds missing values."""


class SchemaMismatchError(QueryError):
    """A horizontal partition has other columns or types than the first of its table."""


# --- what it says --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """A query whose constructs are allowed, its columns not yet resolved."""

    tables: dict[str, tuple[tuple[str, exp.Select], ...]]
    """Name of each vertical table to its horizontal partitions: the source's name, and the SELECT that reads it."""
    select: exp.Select
    """The join over these names."""

    def over(self, sources: Mapping[str, Sequence[str]]) -> Query:
        """Return the query over other sources: each source stands for the union of those that it is mapped to."""
        tables = {
            name: tuple((one, select) for source, select in partitions for one in sources[source])
            for name, partitions in self.tables.items()
        }
        return replace(self, tables=tables)


_FILTER_NODES = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.Paren, exp.In, exp.Between,
    exp.Is, exp.Like, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Column, exp.Identifier, exp.Literal,
    exp.Boolean, exp.Null, exp.Cast, exp.DataType, exp.DataTypeParam, exp.ILike, exp.Escape, exp.Mod, exp.IntDiv,
    exp.Coalesce, exp.Case, exp.If, exp.Abs, exp.Round, exp.Floor, exp.Ceil, exp.TryCast, exp.Nullif, exp.Length,
)  # fmt: skip
TEXT_NODES = (
    exp.Trim, exp.Lower, exp.Upper, exp.Substring, exp.DPipe, exp.Concat, exp.Replace, exp.Left, exp.Right, exp.Pad,
    exp.Like, exp.ILike, exp.Length,
)  # fmt: skip
"""Functions of texts: a numeral in one is the text that stands in its file."""
_SAME_KIND = (exp.Coalesce, exp.Nullif, exp.Paren, exp.If, exp.Case)
"""Functions of which the result has the kind of the arguments."""
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between)
_ALLOWED_NODES = (
    exp.Select, exp.Union, exp.Subquery, exp.From, exp.Join, exp.Where, exp.Table, exp.TableAlias, exp.Star, exp.Alias,
    *_FILTER_NODES, *TEXT_NODES,
)  # fmt: skip
_TYPES = {
    *(exp.DataType.NUMERIC_TYPES - {exp.DataType.Type.BIT}), *exp.DataType.TEXT_TYPES, *exp.DataType.TEMPORAL_TYPES,
    *(getattr(exp.DataType.Type, name) for name in ("BOOLEAN", "TIME", "TIMETZ", "INTERVAL", "UUID")),
}  # fmt: skip
"""To which a query casts; bits, bytes and lists are texts of several times the length."""
_TYPICAL, _LONGEST_TEXT = 100.0, 10_000.0
"""Characters of a text in a column, as a query's own texts are measured, and of a text that it makes of these."""
_MOST_COMBINATIONS = 4096
"""Of partitions, that the branches of a query read."""


def parse_query(sql: str | exp.Expression) -> Query:
    """Return what a SQL text, or a tree made with sqlglot, says.

    Raises:
        QuerySyntaxError: the text does not parse (with line and column).
        NotASelectError: the text holds no SELECT, several statements, or any other statement.
        UnsupportedQueryError: a construct outside unions of conjunctive queries, named.
    """
    tree = parse_select(sql if isinstance(sql, str) else sql.sql(dialect="duckdb"))
    _check_constructs(tree)
    written = tree.sql(dialect="duckdb")  # what is checked is what a database is told
    tree = parse_select(written)
    _check_constructs(tree)
    if tree.sql(dialect="duckdb") != written:
        raise UnsupportedQueryError(f"sql: {shown(written)} is read in two ways and is not supported")
    branches = [_branch(select) for select in _selects(tree)]
    first = branches[0]
    if any(list(b.tables) != list(first.tables) or b.select != first.select for b in branches):
        raise UnsupportedQueryError(
            "sql: the branches of a UNION ALL must differ only in the partitions they read (same aliases,"
            " joins, filters and columns)"
        )
    number = sum(prod(map(len, branch.tables.values())) for branch in branches)
    if len(branches) > 1 and number > _MOST_COMBINATIONS:
        raise UnsupportedQueryError(
            f"sql: a UNION ALL of {number} combinations of partitions is not supported: at most {_MOST_COMBINATIONS}"
        )
    pieces = [tuple(dict.fromkeys(chain(*parts))) for parts in zip(*(b.tables.values() for b in branches), strict=True)]
    is_each_once = number == prod(map(len, pieces))
    if is_each_once and len(branches) > 1:  # of one branch the number says it all, and combinations may be very many
        combinations = [combination for branch in branches for combination in product(*branch.tables.values())]
        is_each_once = sorted(map(str, combinations)) == sorted(map(str, product(*pieces)))
    if not is_each_once:
        raise UnsupportedQueryError(
            "sql: the branches of a UNION ALL must cover every combination of partitions exactly once"
        )
    return replace(first, tables=dict(zip(first.tables, pieces, strict=True)))


_AS_A_VIEW = "; what concerns one party's tables alone can be a view: WITH name AS (SELECT ...)"
_ADVICE = {
    **dict.fromkeys(("limit", "offset", "fetch", "tablesample"), "; choose rows by WHERE"),
    "order": "; leave it out: rows have no order",
}


def _check_constructs(tree: Tree) -> None:
    """Refuse the first construct that is not allowed, clauses before what is selected."""
    refused = [node for node in tree.walk() if not isinstance(node, _ALLOWED_NODES) or _is_nested(node)]
    for node in sorted(refused, key=_is_selected):
        is_joining = isinstance(node.find_ancestor(exp.Join, exp.Select), exp.Join)
        clause = " in the select list" if _is_selected(node) else " in a join condition" if is_joining else ""
        words = node.key.upper() if isinstance(node, exp.SetOperation) else repr(node.sql(dialect="duckdb"))
        advice = "" if is_joining else _ADVICE.get(node.key, _AS_A_VIEW)
        raise UnsupportedQueryError(f"sql: {words}{clause} is not supported ({node.key}){advice}")
    for kind in tree.find_all(exp.DataType):
        if kind.this == exp.DataType.Type.USERDEFINED:  # its name is written out as it stands
            words = shown(str(kind.args.get("kind") or kind))
            raise UnsupportedQueryError(f"sql: type {words} is not supported, only those of DuckDB are")
        if kind.this not in _TYPES or any(not isinstance(one, exp.DataTypeParam) for one in kind.expressions):
            words = shown(kind.sql(dialect="duckdb"))
            raise UnsupportedQueryError(f"sql: type {words} is not supported, only numbers, texts and times are")
    for union in tree.find_all(exp.Union):
        if union.args.get("distinct"):
            raise UnsupportedQueryError("sql: UNION removes duplicates and is not supported; write UNION ALL")
    for join in tree.find_all(exp.Join):
        words = " ".join(str(join.args[k]) for k in ("method", "side", "kind") if join.args.get(k)).upper()
        if words not in ("", "INNER", "CROSS"):
            raise UnsupportedQueryError(f"sql: {words} JOIN is not supported, only inner joins are{_AS_A_VIEW}")
    for column in tree.find_all(exp.Column):
        if column.args.get("db"):
            raise UnsupportedQueryError(f"sql: {column.sql()!r} is not supported; write table.column")
    for select in tree.find_all(exp.Select):
        if select.find(exp.From) is None:
            raise UnsupportedQueryError("sql: SELECT without FROM is not supported")
        for item in select.expressions:
            words, star = repr(item.sql(dialect="duckdb")), item.find(exp.Star)
            if isinstance(item, exp.Alias):
                is_column = isinstance(item.this, exp.Column)
                advice = f"; write {item.this.sql(dialect='duckdb')}" if is_column else _AS_A_VIEW
                raise UnsupportedQueryError(
                    f"sql: {words} in the select list is not supported: columns keep their names{advice}"
                )
            if not isinstance(item, exp.Column | exp.Star):
                raise UnsupportedQueryError(
                    f"sql: {words} in the select list is not supported, only columns are{_AS_A_VIEW}"
                )
            if star is not None and any(star.args.values()):
                raise UnsupportedQueryError(f"sql: {words} is not supported; name the columns")
    _check_lengths(tree)


def _check_lengths(tree: Tree) -> None:
    """Refuse texts that become so long, whatever the rows are, that a database fails over one of them.

    Nothing interrupts it while it makes one.
    """
    longest: dict[int, float] = {}
    for node in reversed(list(tree.walk())):  # what a function is of, before the function
        parts = {name: longest[id(one)] for name, one in node.args.items() if id(one) in longest}
        if isinstance(node, exp.Literal):
            length = float(len(node.name))
        elif isinstance(node, exp.Column):
            length = _TYPICAL
        elif isinstance(node, exp.Predicate | exp.Connector | exp.Not):
            length = float(len("false"))
        elif isinstance(node, exp.Replace):
            length = parts["this"] * max(1.0, parts.get("replacement", parts.get("expression", 0.0)))
        elif isinstance(node, exp.Pad):
            by = node.expression
            is_number = isinstance(by, exp.Literal) and not by.is_string and by.name.isdecimal()
            length = float(by.name) if is_number else inf
        elif isinstance(node, exp.Cast):
            length = max(parts["this"], _TYPICAL)
        else:
            length = sum(longest[id(one)] for one in node.iter_expressions())
        if isinstance(node, TEXT_NODES) and length > _LONGEST_TEXT:
            words = shown(node.sql(dialect="duckdb"))
            raise UnsupportedQueryError(
                f"sql: {words} is not supported: it makes texts longer than {_LONGEST_TEXT:,.0f} characters, or as "
                "long as the rows say"
            )
        longest[id(node)] = length


def _is_selected(node: Tree) -> bool:
    return isinstance(node.parent, exp.Select) and node.arg_key == "expressions"


def _is_nested(node: Tree) -> bool:
    """Say whether this is a SELECT elsewhere than in FROM, as in a filter."""
    return isinstance(node, exp.Query) and not (
        node.parent is None or isinstance(node.parent, exp.From | exp.Join | exp.Subquery | exp.Union)
    )


def _selects(tree: Tree) -> Iterator[exp.Select]:
    if isinstance(tree, exp.Union):
        yield from _selects(tree.left)
        yield from _selects(tree.right)
    elif isinstance(tree, exp.Subquery):
        yield from _selects(tree.this)
    else:
        yield tree


def _branch(select: exp.Select) -> Query:
    """Return one SELECT over vertical tables, each stated in it by its name alone."""
    select = select.copy()
    tables: dict[str, tuple[tuple[str, exp.Select], ...]] = {}
    for number, item in enumerate(_sources(select)):
        name = item.alias_or_name
        if name.lower() in map(str.lower, tables):
            raise QueryError(f"sql: table name {name!r} is used twice")
        if isinstance(item, exp.Table):
            tables[name] = ((".".join(part.name for part in item.parts), exp.select("*").from_("source")),)
        elif name:
            tables[name] = tuple(map(_partition, _selects(item.this)))
        else:
            raise UnsupportedQueryError("sql: a SELECT in FROM needs a name (an alias)")
        join = item.parent
        for key in join.args.get("using") or []:
            if number > 1:
                raise UnsupportedQueryError(f"sql: USING ({key.name}) after the first join is not supported; write ON")
            sides = [exp.column(key.copy(), exp.to_identifier(side, quoted=True)) for side in tables]
            join.on(exp.EQ(this=sides[0], expression=sides[1]), copy=False)
        join.set("using", None)
        item.replace(exp.Table(this=exp.to_identifier(name, quoted=True)))
    return Query(tables, select)


def _sources(select: exp.Select) -> list[Tree]:
    """Return what FROM and the joins read."""
    found = [select.find(exp.From).this, *(join.this for join in select.args.get("joins") or [])]  # type: ignore[union-attr]
    for item in found:
        if item.args.get("joins") or isinstance(item.this, exp.Table):
            raise UnsupportedQueryError("sql: a join in parentheses is not supported; write the joins in one list")
        if (alias := item.args.get("alias")) is not None and alias.args.get("columns"):
            raise UnsupportedQueryError(f"sql: {item.sql()!r} is not supported: columns keep their names")
    return found


def _partition(select: exp.Select) -> tuple[str, exp.Select]:
    items = _sources(select)
    if len(items) > 1 or not isinstance(items[0], exp.Table):
        raise UnsupportedQueryError("sql: a SELECT in FROM may only read one table and filter it")
    source = ".".join(part.name for part in items[0].parts)
    items[0].replace(exp.Table(this=exp.to_identifier(items[0].alias_or_name, quoted=True)))
    return source, select


# --- what it means -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Partition:
    """One horizontal partition: a source's name, and the rows kept as SQL over its own columns."""

    source: str
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """A feature column of one table and how it becomes numbers."""

    column: str
    kind: str
    encoding: Encoding = "numeric"


@dataclass(frozen=True)
class Edge:
    """An edge of the join tree: keys of ``left`` equal to keys of ``right``, pair by pair.

    A key is a column, or an expression over one table's columns as SQL.
    """

    left: str
    right: str
    keys: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    """As what they are compared: number, text, boolean, date or timestamp."""

    @property
    def name(self) -> str:
        """The edge in words, which also separates the key hashes of different edges."""
        return " and ".join(f"{self.left}.{a} = {self.right}.{b}" for a, b in self.keys)

    @property
    def shown(self) -> str:
        """The edge as a query has it."""
        return " and ".join(f"{shown_key(a, self.left)} = {shown_key(b, self.right)}" for a, b in self.keys)

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the key columns on the side of `table`."""
        return tuple(pair[0] if table == self.left else pair[1] for pair in self.keys)


@dataclass(frozen=True)
class VerticalTable:
    """One vertical table of the plan with the roles of its columns."""

    name: str
    partitions: tuple[Partition, ...]
    features: tuple[Feature, ...]
    keys: tuple[str, ...]
    label: str | None = None
    computed: tuple[str, ...] = ()
    """Those of the keys that are expressions, which the owner computes."""
    called_by: tuple[str, ...] = ()
    """The columns of which keys are made."""
    exact: tuple[str, ...] = ()
    """Those of them by whose numbers rows are found, unless the query says by CAST what they are."""

    def needed_columns(self) -> tuple[str, ...]:
        """Return every column that a client must read, each once; what is computed is none."""
        keys = [key for key in self.keys if key not in self.computed]
        wanted = [*keys, *(f.column for f in self.features)] + ([self.label] if self.label else [])
        return tuple(dict.fromkeys(wanted))


@dataclass(frozen=True)
class JoinPlan:
    """The resolved training set: vertical tables, and the edges of the join tree."""

    tables: tuple[VerticalTable, ...]
    edges: tuple[Edge, ...]

    def table(self, name: str) -> VerticalTable:
        """Return the table called `name`."""
        return next(t for t in self.tables if t.name == name)

    def edges_of(self, name: str) -> tuple[Edge, ...]:
        """Return the edges that touch table `name`, in plan order."""
        return tuple(e for e in self.edges if name in (e.left, e.right))

    @property
    def label_table(self) -> VerticalTable:
        """The table that owns the label."""
        return next(t for t in self.tables if t.label is not None)


def make_plan(query: Query, schemas: Mapping[str, Schema], label: str,
              encodings: Mapping[str | tuple[str, str], Encoding] | None = None,
              others: Encoding = "numeric") -> JoinPlan:  # fmt: skip
    """Resolve `query` against the schemas of its sources (source -> column -> kind).

    `label` and the keys of `encodings` are written ``column`` or ``table.column``, or are (table, column); `others` is
    what is no number's.
    Columns that a ``*`` brings in are features unless they are join keys or the label; a key named explicitly is too.

    Raises:
        QueryError: one of its subclasses, naming the table or column concerned.
    """
    partitions, columns = {}, {}
    for name, parts in query.tables.items():
        partitions[name], columns[name] = _read_partitions(name, parts, schemas)
    picked, conjuncts = _resolve(query.select, columns)
    edges, filters, made_of, exact = _edges_and_filters(conjuncts, columns)
    keys = {name: [c for e in edges if name in (e.left, e.right) for c in e.columns(name)] for name in columns}
    joined_by = {name: [c for key in keys[name] for c in made_of[name][key]] for name in columns}
    target = _find_label(label, columns)
    encoded = {one if isinstance(one, tuple) else _find(one, columns): way for one, way in (encodings or {}).items()}
    features: dict[str, dict[str, Feature]] = {name: {} for name in columns}
    for table, column in picked:
        names = [c for c in columns[table] if c not in joined_by[table]] if column == "*" else [column]
        for name in names:
            if (table, name) != target:
                features[table][name] = _feature(table, name, columns[table][name], encoded, others)
    tables = tuple(
        VerticalTable(
            name=name,
            partitions=tuple(replace(part, where=(*part.where, *filters[name])) for part in partitions[name]),
            features=tuple(features[name].values()),
            keys=tuple(dict.fromkeys(keys[name])),
            label=target[1] if name == target[0] else None,
            computed=tuple(dict.fromkeys(key for key in keys[name] if made_of[name][key] != (key,))),
            called_by=tuple(dict.fromkeys(joined_by[name])),
            exact=tuple(dict.fromkeys(exact[name])),
        )
        for name in columns
    )
    return JoinPlan(tables, edges)


def _read_partitions(
    name: str, parts: Sequence[tuple[str, exp.Select]], schemas: Mapping[str, Schema]
) -> tuple[list[Partition], Schema]:
    """Return the partitions of one table, and the columns and kinds that they share."""
    made, found = [], []
    for source, select in parts:
        if source not in schemas:
            why = ": names of schemas are not supported" if "." in source else ""
            known = ", ".join(sorted(schemas)) or "none"
            raise UnknownTableError(f"sql: unknown table {source!r}{why} (known: {known})")
        schema = schemas[source]
        picked, conjuncts = _resolve(select, {_sources(select)[0].name: schema})
        names = [c for _, column in picked for c in (schema if column == "*" else [column])]
        made.append(Partition(source, tuple(map(_condition, conjuncts))))
        found.append((source, {column: schema[column] for column in names}))
    shared = dict(found[0][1])
    for (first, one), (second, other) in pairwise(found):
        different = next((c for c in sorted({*one, *other}) if not _is_one_kind(one.get(c), other.get(c))), None)
        if different is not None:
            raise SchemaMismatchError(
                f"sql: partitions {first!r} and {second!r} of table {name!r} differ in column {different!r}"
                f" ({one.get(different, 'absent')} and {other.get(different, 'absent')}){_made_alike(different, found)}"
            )
        shared |= {column: kind for column, kind in other.items() if shared[column] in NUMERALS}
    return made, shared


_WIDER = (("boolean", "numeral", "integer", "decimal", "code", "float"), ("date", "timestamp"))
"""Kinds that the next one holds too."""
_SQL_TYPES = {"integer": "BIGINT", "decimal": "DECIMAL(38, 9)", "code": "DOUBLE", "float": "DOUBLE",
              "timestamp": "TIMESTAMP"}  # fmt: skip


def _made_alike(column: str, partitions: Sequence[tuple[str, Schema]]) -> str:
    """Return how a column becomes of one kind in all partitions of a table; empty: it is not in all of them."""
    kinds = [schema.get(column) for _, schema in partitions]
    if None in kinds:
        return "; select the columns that both have"
    order = next((one for one in _WIDER if set(kinds) <= set(one)), ())
    widest = order[max(map(order.index, map(str, kinds)))] if order else "text"
    kind = _SQL_TYPES.get(widest, "VARCHAR")
    name = exp.to_identifier(column, quoted=not re.fullmatch("[a-z_][a-z0-9_]*", column)).sql(dialect="duckdb")
    others = [source for (source, _), one in zip(partitions, kinds, strict=True) if one != widest]
    return (
        f"; let who holds {' and '.join(map(repr, others))} read it by a view: tables = {{ written = PATH }}, "
        f"sql = 'SELECT * REPLACE (CAST({name} AS {kind}) AS {name}) FROM written'"
    )


def _is_one_kind(one: str | None, other: str | None) -> bool:
    """Return whether a table's partitions may hold a column as these kinds: numbers of a CSV file are numbers."""
    return one == other or {one, other} in ({"numeral", "integer"}, {"code", "float"})


def _resolve(select: exp.Select, tables: Mapping[str, Schema]) -> tuple[list[tuple[str, str]], list[Tree]]:
    """Return the (table, column) selected, a star as a column for each of its tables, and the conditions one by one.

    Every column in the conditions has its table's and its own exact name.
    """
    exact = {table.lower(): (table, {c.lower(): c for c in schema}) for table, schema in tables.items()}
    made = normalize_identifiers(select.copy(), dialect="duckdb")
    for column in made.find_all(exp.Column):
        if column.table:
            _name_exactly(column.copy(), exact)
    known: dict[str, Any] = {table: dict.fromkeys(columns, "INT") for table, (_, columns) in exact.items()}
    made = qualify(made, "duckdb", schema=known, expand_stars=False, validate_qualify_columns=False)
    for column in list(made.find_all(exp.Column)):
        _name_exactly(column, exact)
    picked: list[tuple[str, str]] = []
    for item in made.expressions:
        if isinstance(item, exp.Star):
            picked += [(table, "*") for table in tables]
        else:
            column = item.unalias()
            picked.append((column.table, column.name))
    joins = [join.args["on"] for join in made.args.get("joins") or [] if join.args.get("on") is not None]
    where = made.args.get("where")
    conjuncts = [c for tree in [*joins, *([where.this] if where is not None else [])] for c in _conjuncts(tree)]
    return picked, conjuncts


def _name_exactly(column: exp.Column, exact: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
    """Write a resolved column as its table's owner does; name what could not be resolved."""
    if not column.table:
        owners = [table for table, columns in exact.values() if column.name in columns]
        if owners:
            raise AmbiguousColumnError(f"sql: column {column.name!r} is in {' and '.join(owners)}; qualify it")
        raise UnknownColumnError(f"sql: unknown column {column.name!r}")
    if column.table not in exact:
        raise UnknownTableError(
            f"sql: unknown table {column.table!r} in {column.table}.{column.name}"
            f" (known: {', '.join(table for table, _ in exact.values())})"
        )
    table, columns = exact[column.table]
    if column.name != "*" and column.name not in columns:
        raise UnknownColumnError(f"sql: table {table!r} has no column {column.name!r}")
    column.set("table", exp.to_identifier(table, quoted=True))
    if column.name != "*":
        column.set("this", exp.to_identifier(columns[column.name], quoted=True))


def _conjuncts(tree: Tree) -> list[Tree]:
    tree = tree.unnest()
    return [*_conjuncts(tree.left), *_conjuncts(tree.right)] if isinstance(tree, exp.And) else [tree]


def _condition(tree: Tree) -> str:
    """Return a condition on one table as SQL over its own columns."""
    tree = tree.copy()
    for column in list(tree.find_all(exp.Column)):
        column.set("table", None)
    return str(tree.sql(dialect="duckdb", identify=True))


def _edges_and_filters(
    conjuncts: Sequence[Tree], tables: Mapping[str, Schema]
) -> tuple[tuple[Edge, ...], dict[str, list[str]], dict[str, dict[str, tuple[str, ...]]], dict[str, list[str]]]:
    """Return the edges, and of each table its filters, its keys with the columns they are made of, and `exact`."""
    pairs: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    filters: dict[str, list[str]] = {name: [] for name in tables}
    made_of: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in tables}
    exact: dict[str, list[str]] = {name: [] for name in tables}
    for tree in conjuncts:
        owners = list(dict.fromkeys(column.table for column in tree.find_all(exp.Column)))
        sides = (tree.left, tree.right) if isinstance(tree, exp.EQ) else ()
        owners_of = [{column.table for column in side.find_all(exp.Column)} for side in sides]
        if len(owners) != 2 or [len(tables_of) for tables_of in owners_of] != [1, 1]:
            if len(owners) != 1:
                what = f"{' and '.join(sorted(owners))}; joins are by key = key" if owners else "no table"
                text = _written(tree)
                raise UnsupportedQueryError(f"sql: the filter {text!r} must concern exactly one table, not {what}")
            if isinstance(tree, exp.EQ) and all(isinstance(side, exp.Column) for side in (tree.left, tree.right)):
                raise UnsupportedQueryError(
                    f"sql: the join condition {tree.left.name} = {tree.right.name} stays within table {owners[0]!r}"
                )
            filters[owners[0]].append(_condition(tree))
            continue
        (left, right), how = owners, _compared(tree, tables)
        keys = []
        for side in (tree.left, tree.right):
            schema = tables[side.find(exp.Column).table]
            key, columns = _key(side, schema, how)
            made_of[side.find(exp.Column).table][key] = columns
            keys.append((side.find(exp.Column).table, key))
            if how == "number":
                exact[keys[-1][0]] += [one.name for one in side.find_all(exp.Column) if _is_itself(one, side)]
        (left, a), (right, b) = keys
        if (right, left) in pairs:
            left, a, right, b = right, b, left, a
        pairs.setdefault((left, right), {})[a, b] = how
    _require_tree(list(tables), list(pairs))
    edges = [Edge(left, right, tuple(keys), tuple(keys.values())) for (left, right), keys in pairs.items()]
    return tuple(edges), filters, made_of, exact


def _is_itself(column: Tree, side: Tree) -> bool:
    """Say whether a key is a column, or what stands for it where it is missing."""
    node = column
    while node is not side and isinstance(node.parent, _SAME_KIND):
        node = node.parent
    return node is side


def _key(side: Tree, schema: Schema, how: str) -> tuple[str, tuple[str, ...]]:
    """Return a key, a column's name or an expression over one table's columns as SQL, and these columns."""
    columns = tuple(dict.fromkeys(column.name for column in side.find_all(exp.Column)))
    is_column = isinstance(side, exp.Column)
    is_numeral = schema[side.name] in NUMERALS if is_column else isinstance(side.unnest(), exp.Coalesce | exp.Nullif)
    if how == "text" and is_numeral and not isinstance(side, exp.Cast):
        return _condition(exp.cast(side.copy(), exp.DataType.Type.TEXT)), columns
    return (side.name if is_column else _condition(side)), columns


def _compared(tree: Tree, tables: Mapping[str, Schema]) -> str:
    """Return as what the two sides of a join condition are compared.

    Raises:
        KeyTypeError: they are of kinds that have nothing in common.
    """
    one, other = (_kind_of(side, tables) for side in (tree.left, tree.right))
    if one in (*NUMERALS, "text", "other") and other in (*NUMERALS, "text", "other"):
        return "text"
    if one in NUMBER_KINDS and other in NUMBER_KINDS and "code" not in (one, other):
        return "number"
    if one == other:
        return one
    left, right = (_shown_key(side) for side in (tree.left, tree.right))
    advice = _advice_for({one: left, other: right})
    raise KeyTypeError(f"sql: join keys of different types: {left} is {one}, {right} is {other}; {advice}")


def _advice_for(keys: Mapping[str, str]) -> str:
    """Return how to write two keys of different kinds, by their kinds, so that they can be compared."""
    number = next((key for kind, key in keys.items() if kind in NUMBER_KINDS and kind != "code"), "")
    if "code" in keys and number:
        code = keys["code"]
        return (
            f"the file of {code} has numbers as no program writes them, such as 1.10 beside 1.1: where they are "
            f"numbers, write CAST({code} AS DOUBLE) = {number}, or CAST({code} AS VARCHAR) = CAST({number} AS VARCHAR)"
        )
    (text_kind, text), (kind, value) = sorted(keys.items(), key=lambda one: one[0] not in ("text", "other"))
    if text_kind == "other":
        return f"{text} is of no kind that others have; let who holds it make it a text or a number by a view"
    if kind in ("decimal", "float"):  # whose texts are written in several ways, 2, 2.0 and 2.00
        return f"write CAST({text} AS DOUBLE) = {value}"
    if text_kind == "text":
        as_text = f"LOWER({text})" if kind == "boolean" else text  # which SQL writes true and false
        as_value = {"date": "DATE", "timestamp": "TIMESTAMP", "boolean": "BOOLEAN"}.get(kind, "DOUBLE")
        return f"write CAST({value} AS VARCHAR) = {as_text}, or CAST({text} AS {as_value}) = {value}"
    if set(keys) == {"date", "timestamp"}:
        return f"write CAST({keys['date']} AS TIMESTAMP) = {keys['timestamp']}"
    if number and "boolean" in keys:
        return f"write CAST({keys['boolean']} AS BIGINT) = {number}"
    return "only keys of one kind find each other"


def is_among_texts(column: Tree) -> bool:
    """Say whether a column stands where texts do: in a function of texts, a CAST to one, or beside a text."""
    inner, node = column, column.parent
    while isinstance(node, _SAME_KIND):
        if isinstance(node, exp.Coalesce | exp.Nullif) and _has_text(node, inner):
            return True
        inner, node = node, node.parent
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.TEXT_TYPES
    return isinstance(node, TEXT_NODES) or (isinstance(node, _COMPARED) and _has_text(node, inner))


def _has_text(node: Tree, but: Tree) -> bool:
    """Say whether one of what stands in an expression is a text, such as ``'7'``."""
    inside = [one for one in node.iter_expressions() if one is not but]
    return any(isinstance(one, exp.Literal) and one.is_string for one in inside)


def _shown_key(side: Tree) -> str:
    return f"{side.table}.{side.name}" if isinstance(side, exp.Column) else _written(side)


def _written(tree: Tree) -> str:
    """Return an expression with quotes round those names alone that need them."""
    made = tree.copy()
    for name in made.find_all(exp.Identifier):
        is_plain = (
            re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name.name) and name.name.upper() not in DuckDB.Tokenizer.KEYWORDS
        )
        name.set("quoted", not is_plain)
    return str(made.sql(dialect="duckdb"))


def shown_key(key: str, table: str = "") -> str:
    """Return one table's side of an edge as a query has it, such as ``a.k`` or ``CAST(a.k AS BIGINT)``."""
    try:
        tree = parse_one(key, dialect="duckdb") if '"' in key else None
    except SqlglotError:  # a column with a quote in its name
        tree = None
    if tree is None or tree.find(exp.Column) is None:
        return f"{table}.{key}" if table else key
    if isinstance(tree, exp.Cast) and tree.to.this == exp.DataType.Type.TEXT and isinstance(tree.this, exp.Column):
        tree = tree.this  # so keys of two CSV files are compared
    for column in tree.find_all(exp.Column):
        column.set("table", exp.to_identifier(table) if table else None)
    return _written(tree)


def _kind_of(tree: Tree, tables: Mapping[str, Schema]) -> str:
    """Return the kind of an expression."""
    if isinstance(tree, exp.Column):
        return tables[tree.table][tree.name]
    if isinstance(tree, exp.Paren):
        return _kind_of(tree.this, tables)
    if isinstance(tree, exp.Cast):
        kind = tree.to
        for types, name in (
            (exp.DataType.INTEGER_TYPES, "integer"),
            (exp.DataType.TEXT_TYPES, "text"),
            (exp.DataType.FLOAT_TYPES, "float"),
            (exp.DataType.REAL_TYPES, "decimal"),
            ({exp.DataType.Type.BOOLEAN}, "boolean"),
            ({exp.DataType.Type.DATE, exp.DataType.Type.DATE32}, "date"),
            (exp.DataType.TEMPORAL_TYPES, "timestamp"),
        ):
            if kind.this in types:
                return name
    elif isinstance(tree, TEXT_NODES) and not isinstance(tree, exp.Length | exp.Like | exp.ILike):
        return "text"
    elif isinstance(tree, exp.Coalesce | exp.Nullif):
        found = _kind_of(tree.this, tables)
        given = [tree.args.get("expression"), *(tree.expressions or [])]
        is_text = any(isinstance(one, exp.Literal) and one.is_string for one in given if one is not None)
        return "text" if found in NUMERALS and is_text else found
    elif isinstance(tree, exp.Literal):
        return "text" if tree.is_string else "decimal"
    elif isinstance(tree, exp.Add | exp.Sub | exp.Mul | exp.Neg | exp.Abs | exp.Mod | exp.IntDiv | exp.Length):
        return "integer"
    elif isinstance(tree, exp.Div | exp.Round | exp.Floor | exp.Ceil):
        return "float"
    raise UnsupportedQueryError(
        f"sql: {_written(tree)!r} is not supported as a join key; write CAST(... AS VARCHAR) or AS BIGINT"
    )


def _require_tree(tables: Sequence[str], pairs: Sequence[tuple[str, str]]) -> None:
    group = {name: {name} for name in tables}
    for left, right in pairs:
        if group[left] is group[right]:
            raise CyclicJoinError(f"sql: the join condition between {left!r} and {right!r} closes a cycle")
        group[left] |= group[right]
        group |= dict.fromkeys(group[left], group[left])
    apart = [name for name in tables if name not in group[tables[0]]]
    if apart:
        raise DisconnectedJoinError(f"sql: table {apart[0]!r} is not joined with {tables[0]!r}")


def _find(text: str, tables: Mapping[str, Schema]) -> tuple[str, str]:
    """Return the (table, column) that is written ``column`` or ``table.column``."""
    table, dot, name = text.rpartition(".")
    column = exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(table, quoted=True) if dot else None)
    first, *others = (exp.Table(this=exp.to_identifier(known, quoted=True)) for known in tables)
    select = exp.select(column).from_(first)
    for other in others:
        select.join(other, copy=False)
    return _resolve(select, tables)[0][0]


def _find_label(label: str, tables: Mapping[str, Schema]) -> tuple[str, str]:
    try:
        return _find(label, tables)
    except AmbiguousColumnError as error:
        raise LabelError(f"label: {str(error).removeprefix('sql: ')}") from None
    except QueryError:
        raise LabelError(f"label: {label!r} is in none of the tables {', '.join(tables)}") from None


def _feature(table: str, column: str, kind: str, encodings: Mapping[Any, Encoding], others: Encoding) -> Feature:
    encoding = encodings.get((table, column), "numeric" if kind in NUMERIC_KINDS else others)
    if encoding == "numeric" and kind not in NUMERIC_KINDS:
        advice = f"is {kind}, no number; name it in task.categorical or its party's columns"
        raise FeatureTypeError(f"features: {table}.{column} {UNCLEAR.get(kind, advice)}")
    return Feature(column=column, kind=kind, encoding=encoding)
