"""SQL text that states a training set, as far as it concerns everybody: it is a query, over which tables."""

from __future__ import annotations

import re
from typing import Any

from fedactors.errors import BadInput

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


def parse_select(sql: str) -> Any:
    """Return sqlglot's tree of one SELECT, or of a UNION or the like of SELECTs.

    Raises:
        QuerySyntaxError: the text does not parse (with line and column).
        NotASelectError: the text holds no SELECT, several statements, or any other statement.
    """
    import sqlglot
    from sqlglot import exp

    if len(sql) > _LONGEST:
        raise QueryError(f"sql: {len(sql)} characters are not allowed: at most {_LONGEST}")
    try:
        found = sqlglot.parse(sql, dialect="duckdb")
    except RecursionError:
        raise QueryError(_TOO_DEEP) from None
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        what = str(first.get("description", error)).partition(" but got <Token")[0].splitlines()[0]
        what = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", what)
        raise QuerySyntaxError(what, int(first.get("line") or 1), int(first.get("col") or 1)) from None
    except sqlglot.errors.SqlglotError as error:
        line = sql.count("\n") + 1
        raise QuerySyntaxError(str(error).splitlines()[0], line, len(sql.splitlines()[-1]) + 1) from None
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
    from sqlglot import exp

    names = tuple(dict.fromkeys(table.name for table in parse_select(sql).find_all(exp.Table, bfs=False)))
    if not names:
        raise QueryError(f"sql: {sql!r} reads no table")
    return names
