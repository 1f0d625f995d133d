"""What can be wrong with the query, the tables and the join: one named error for each cause, all exit code 2."""

from __future__ import annotations

from fedactors.errors import BadInput


class QueryError(BadInput):
    """Base of every error about the query that states the training set."""


class QuerySyntaxError(QueryError):
    """The SQL text does not parse; ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"sql: line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class NotASelectError(QueryError):
    """The SQL text holds something other than one SELECT (or a UNION ALL of SELECTs)."""


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


class EmptyJoinError(QueryError):
    """No row of the join exists, so there is nothing to train on."""


class JoinTooLargeError(QueryError):
    """The join has more rows than row numbers can count."""
