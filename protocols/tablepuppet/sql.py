"""The SQL front: one SELECT, or a UNION ALL of SELECTs, to the `Query` that it states.

Accepted: inner joins with ON, USING or comparisons in WHERE; tables; UNION ALL of filtered tables in parentheses;
filters that concern one table; plain columns in the select list. A top-level UNION ALL must be what it means to
join unions: its branches differ only in the partitions they read, and every combination of partitions occurs.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from protocols.tablepuppet.faults import NotASelectError, QuerySyntaxError, UnsupportedQueryError
from protocols.tablepuppet.plan import Column, On, Partition, Query, Table

Tree = Any
"""A node of sqlglot's tree; the class has different names in its versions."""

_CLAUSES = {
    "with": "WITH", "with_": "WITH", "group": "GROUP BY", "having": "HAVING", "order": "ORDER BY", "limit": "LIMIT",
    "offset": "OFFSET", "distinct": "DISTINCT", "windows": "WINDOW", "qualify": "QUALIFY", "laterals": "LATERAL",
    "pivots": "PIVOT", "sample": "SAMPLE", "into": "INTO", "locks": "FOR UPDATE", "fetch": "FETCH",
    "connect": "CONNECT BY", "match": "MATCH", "cluster": "CLUSTER BY", "distribute": "DISTRIBUTE BY",
    "sort": "SORT BY", "prewhere": "PREWHERE", "settings": "SETTINGS",
}  # fmt: skip


def parse_query(text: str) -> Query:
    """Parse the SQL text of a training set.

    Raises:
        QuerySyntaxError: the text does not parse (with line and column).
        NotASelectError: the text holds no SELECT, several statements, or any other statement.
        UnsupportedQueryError: a construct outside unions of conjunctive queries, named.
    """
    try:
        found = sqlglot.parse(text, dialect="duckdb")
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        what = str(first.get("description", error)).partition(" but got <Token")[0]
        raise QuerySyntaxError(what, int(first.get("line") or 1), int(first.get("col") or 1)) from None
    except SqlglotError as error:
        line = text.count("\n") + 1
        raise QuerySyntaxError(str(error).splitlines()[0], line, len(text.splitlines()[-1]) + 1) from None
    statements = [s for s in found if s is not None and not isinstance(s, exp.Semicolon)]
    if len(statements) != 1:
        raise NotASelectError(f"sql: exactly one SELECT is needed, {len(statements)} statements were given")
    tree = statements[0]
    while isinstance(tree, exp.Subquery) and not tree.alias:
        tree = tree.this
    if not isinstance(tree, exp.Select | exp.SetOperation):
        raise NotASelectError(f"sql: only SELECT is allowed, not {tree.key.upper()}")
    return _merge([_conjunctive(branch) for branch in _branches(tree)])


def _branches(tree: Tree) -> list[exp.Select]:
    if isinstance(tree, exp.Subquery):
        return _branches(tree.this)
    if isinstance(tree, exp.Union) and not isinstance(tree, exp.Except | exp.Intersect):
        _refuse_clauses(tree)
        if tree.args.get("distinct"):
            raise UnsupportedQueryError("sql: UNION removes duplicates and is not supported; write UNION ALL")
        return _branches(tree.left) + _branches(tree.right)
    if isinstance(tree, exp.Select):
        return [tree]
    raise UnsupportedQueryError(f"sql: {tree.key.upper()} is not supported")


def _refuse_clauses(tree: Tree) -> None:
    for key, words in _CLAUSES.items():
        if key == "distinct" and isinstance(tree, exp.SetOperation):
            continue
        if tree.args.get(key):
            raise UnsupportedQueryError(f"sql: {words} is not supported")


def _conjunctive(select: exp.Select) -> Query:
    _refuse_clauses(select)
    source = select.args.get("from_") or select.args.get("from")
    if source is None:
        raise UnsupportedQueryError("sql: SELECT without FROM is not supported")
    tables = [_table(source.this)]
    joins: list[On] = []
    where: list[str] = []
    for join in select.args.get("joins") or []:
        _refuse_join(join)
        tables.append(_table(join.this))
        if join.args.get("on") is not None:
            _conditions(join.args["on"], joins, where)
        for identifier in join.args.get("using") or []:
            name = identifier.name
            if len(tables) > 2:
                raise UnsupportedQueryError(f"sql: USING ({name}) after the first join is ambiguous; write ON")
            joins.append(On(Column(name, tables[0].name), Column(name, tables[-1].name)))
    if select.args.get("where") is not None:
        _conditions(select.args["where"].this, joins, where)
    return Query(
        tables=tuple(tables),
        joins=tuple(joins),
        select=tuple(_selected(item) for item in select.expressions),
        where=tuple(where),
    )


def _refuse_join(join: exp.Join) -> None:
    words = " ".join(str(join.args[k]) for k in ("method", "side", "kind") if join.args.get(k)).upper()
    if words not in ("", "INNER", "CROSS"):
        raise UnsupportedQueryError(f"sql: {words} JOIN is not supported, only inner joins are")


def _table(tree: Tree) -> Table:
    if tree.args.get("joins"):
        raise UnsupportedQueryError("sql: a join in parentheses is not supported; write the joins in one list")
    if isinstance(tree, exp.Table):
        if not isinstance(tree.this, exp.Identifier):
            raise UnsupportedQueryError(f"sql: {tree.this.sql()!r} in FROM is not supported, only tables are")
        _refuse_clauses(tree)
        return Table(tree.alias or tree.name, (Partition(_source_name(tree)),))
    if isinstance(tree, exp.Subquery):
        if not tree.alias:
            raise UnsupportedQueryError("sql: a SELECT in FROM needs a name (an alias)")
        return Table(tree.alias, tuple(_partition(branch) for branch in _branches(tree.this)))
    raise UnsupportedQueryError(f"sql: {tree.key.upper()} in FROM is not supported")


def _source_name(tree: exp.Table) -> str:
    return ".".join(part for part in (tree.catalog, tree.db, tree.name) if part)


def _partition(select: exp.Select) -> Partition:
    inner = _conjunctive(select)
    if len(inner.tables) > 1 or len(inner.tables[0].partitions) > 1:
        raise UnsupportedQueryError("sql: a SELECT in FROM may only read one table and filter it")
    if inner.joins:
        raise UnsupportedQueryError("sql: a comparison of two columns of one table is not supported")
    columns: tuple[str, ...] = ()
    if not any(c.name == "*" for c in inner.select):
        columns = tuple(c.name for c in inner.select)
    source = inner.tables[0].partitions[0].source
    alias = inner.tables[0].name
    where = tuple(_unqualified(text, alias) for text in inner.where)
    return Partition(source, where=where, columns=columns)


def _unqualified(text: str, alias: str) -> str:
    tree = sqlglot.parse_one(text, dialect="duckdb", into=exp.Condition)
    for column in list(tree.find_all(exp.Column)):
        if column.table.lower() == alias.lower():
            column.set("table", None)
    return tree.sql(dialect="duckdb")


def _selected(item: Tree) -> Column:
    if isinstance(item, exp.Alias):
        raise UnsupportedQueryError(
            f"sql: {item.sql()!r} in the select list is not supported: columns keep their names"
        )
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
        star = item if isinstance(item, exp.Star) else item.this
        if any(star.args.values()):
            raise UnsupportedQueryError(f"sql: {item.sql(dialect='duckdb')!r} is not supported; name the columns")
        return Column("*", item.table or None if isinstance(item, exp.Column) else None)
    if isinstance(item, exp.Column):
        return Column(item.name, item.table or None)
    raise UnsupportedQueryError(f"sql: {item.sql()!r} in the select list is not supported, only columns are")


def _conditions(tree: Tree, joins: list[On], where: list[str]) -> None:
    if isinstance(tree, exp.Paren):
        return _conditions(tree.this, joins, where)
    if isinstance(tree, exp.And):
        _conditions(tree.left, joins, where)
        return _conditions(tree.right, joins, where)
    if isinstance(tree, exp.EQ) and isinstance(tree.left, exp.Column) and isinstance(tree.right, exp.Column):
        left, right = tree.left, tree.right
        joins.append(On(Column(left.name, left.table or None), Column(right.name, right.table or None)))
        return None
    where.append(tree.sql(dialect="duckdb"))
    return None


def _merge(branches: list[Query]) -> Query:
    first = branches[0]
    if len(branches) == 1:
        return first
    for other in branches[1:]:
        same_tables = [t.name for t in other.tables] == [t.name for t in first.tables]
        if not same_tables or (other.joins, other.select, other.where) != (first.joins, first.select, first.where):
            raise UnsupportedQueryError(
                "sql: the branches of a UNION ALL must differ only in the partitions they read (same aliases,"
                " joins, filters and columns)"
            )
    combinations = [c for b in branches for c in product(*(t.partitions for t in b.tables))]
    pieces = [tuple(dict.fromkeys(column)) for column in zip(*combinations, strict=True)]
    if sorted(map(str, combinations)) != sorted(map(str, product(*pieces))):
        raise UnsupportedQueryError(
            "sql: the branches of a UNION ALL must cover every combination of partitions exactly once"
        )
    tables = tuple(Table(t.name, parts) for t, parts in zip(first.tables, pieces, strict=True))
    return Query(tables=tables, joins=first.joins, select=first.select, where=first.where)
