"""A graph in tables: each party has a file of its nodes, by id, one of its edges, and perhaps one of sparse features.

    nodes.csv      account,age,job,fraud        columns as in vertical data; the label at one party, perhaps not of all
    edges.csv      source,target                ids of nodes; each edge once or twice, in any order
    words.csv      node,feature,value           sparse features; value 1 where the column is not there

Nodes are aligned by their ids, as rows are (`fedactors.data.alignment.nodes`).

Shapes: N shared nodes, E edges, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedactors.data.datasets.load import to_csr
from fedactors.data.layouts.vertical import VerticalData, VerticalPart
from fedactors.data.party_rows import NO_PART, PartyBlock, SplitKind, check_block, check_ids, draw_parts, split
from fedactors.data.readers import Column, CsvFormat, read_columns
from fedactors.errors import BadInput
from fedactors.messages.codec import wire_type

Index = NDArray[np.int64]
_MOST_NUMBERS = 1 << 30
"""Of sparse features, which become columns: 4 GiB."""


@wire_type
class EdgeFile:
    """Where one party's edges and sparse features are."""

    party: str
    path: str
    ends: tuple[str, str]
    """Columns of the ids at an edge's ends."""
    sparse: str | None = None
    """File of sparse features."""
    csv: CsvFormat = CsvFormat()

    @property
    def user_files(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.path,) if self.sparse is None else (self.path, self.sparse)

    def load(self, ids_N: Sequence[str]) -> tuple[tuple[Index, Index], int, int]:
        """Read the edges.

        Args:
            ids_N: of the nodes, in their order.

        Returns:
            CSR pointers and neighbours, both directions, each edge once and none from a node to itself; how many rows
            the file has; how many of them end at nodes that are not there.

        Raises:
            BadInput: the file cannot be read, lacks a column, or misses an id.
        """
        ends = self._read(self.path, self.ends, self.ends)
        index_of = {name: number for number, name in enumerate(ids_N)}
        found = (
            np.array([[index_of.get(name, -1) for name in self._ids(end)] for end in ends], np.int64).reshape(2, -1).T
        )
        known = found[(found >= 0).all(axis=1)]
        pairs = np.unique(np.sort(known[known[:, 0] != known[:, 1]], axis=1), axis=0)
        return to_csr(pairs, len(ids_N)), len(found), len(found) - len(known)

    def load_sparse(
        self, ids_N: Sequence[str], trained: Sequence[str] | None = None
    ) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        """Read the sparse features as columns (N, F), with their names; nothing where there is no file.

        Args:
            ids_N: of the nodes, in their order; others are left out.
            trained: of nodes to predict the features that training saw: others are left out.

        Raises:
            BadInput: the file cannot be read, lacks a column, misses an id, or a value is not finite.
        """
        if self.sparse is None:
            return np.zeros((len(ids_N), 0), np.float32), ()
        node, feature, *value = self._read(self.sparse, ("node", "feature"), ("node", "feature"), optional=("value",))
        nodes, features = self._ids(node), self._ids(feature)
        names = tuple(sorted(set(features))) if trained is None else tuple(trained)
        if len(ids_N) * len(names) > _MOST_NUMBERS:
            raise BadInput(
                f"{self.party}: {self.sparse}: {len(names)} features of {len(ids_N)} nodes are not allowed: at most "
                f"{_MOST_NUMBERS} numbers in all"
            )
        numbers = value[0].numbers(f"{self.party}: {self.sparse}") if value else np.ones(len(nodes), np.float32)
        if not np.isfinite(numbers).all():
            raise BadInput(f"{self.party}: {self.sparse}: column value: only finite numbers are allowed")
        row = {name: number for number, name in enumerate(ids_N)}
        column = {name: number for number, name in enumerate(names)}
        made = np.zeros((len(ids_N), len(names)), np.float32)
        for one, what, number in zip(nodes, features, numbers.tolist(), strict=True):
            if one in row and what in column:
                made[row[one], column[what]] += number
        return made, names

    def _read(
        self, path: str, wanted: Sequence[str], as_text: Sequence[str], optional: Sequence[str] = ()
    ) -> list[Column]:
        read = read_columns(Path(path), self.party, wanted=[*wanted, *optional], as_text=list(as_text), csv=self.csv)
        for name in wanted:
            if name not in read:
                raise BadInput(f"{self.party}: {name!r} is not a column of {path} (it has {', '.join(read) or 'none'})")
        return [read[name] for name in (*wanted, *optional) if name in read]

    def _ids(self, column: Column) -> list[str]:
        texts = column.texts()
        if None in texts:
            raise BadInput(f"{self.party}: column {column.name}: {texts.count(None)} values are missing")
        return [str(text).strip() for text in texts]


@wire_type
class GraphTablesPart:
    """What one party is told: where its files are, who has the label, and how nodes are aligned."""

    rows: VerticalPart
    edges: EdgeFile

    @property
    def party(self) -> str:
        """Its name."""
        return self.rows.party

    @property
    def holder(self) -> str:
        """The actor that opens the files."""
        return f"{self.rows.party}/nodes"

    def read(self) -> PartyBlock:
        """Read the own nodes, in the process of their holder.

        Raises:
            BadInput: rows that cannot be trained on, or no feature.
        """
        block = replace(self.rows.source.load(), alignment=self.rows.alignment)
        if not len(block.ids):
            raise BadInput(f"{self.party}: {block.origin}: no rows")
        check_ids(block.ids, f"{self.party}: {block.origin}")
        if block.feature_names:
            check_block(replace(block, labels=None), self.party, self.rows.task, self.rows.num_classes)
        elif self.edges.sparse is None:
            raise BadInput(f"{self.party}: {block.origin}: no feature column: every party needs at least one")
        return block


@wire_type
class GraphTables:
    """Parties with different columns and edges of the same nodes, all of them in tables; one has the labels."""

    rows: VerticalData
    edges: tuple[EdgeFile, ...]

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in order."""
        return self.rows.parties

    def part(self, party: str) -> GraphTablesPart:
        """Return what the actors of `party` are built with.

        Raises:
            BadInput: no such party.
        """
        rows = self.rows.part(party)
        return GraphTablesPart(rows=rows, edges=self.edges[self.parties.index(party)])


def node_parts(block: PartyBlock, order_N: Index, how: SplitKind, seed: int) -> NDArray[np.uint8]:
    """Return the part of each shared node, `NO_PART` of those without a label.

    Args:
        block: the label party's nodes; a column that tells the parts has precedence.
        order_N: for each shared node the party's own row.
        how: of those with a label 30 % are for tests and 10 % of the others for validation, at random or of each class.
        seed: of the drawing.

    Raises:
        BadInput: too few nodes have a label.
    """
    assert block.labels is not None
    made = np.full(len(order_N), NO_PART, np.uint8)
    labelled = np.flatnonzero(block.labels[order_N] >= 0)
    test, validation = 0.3, 0.1
    drawn = draw_parts(block, order_N[labelled], how, seed=seed, test_fraction=test, validation_fraction=validation)
    if not len(drawn):
        drawn = split(len(labelled), seed=seed, test_fraction=test, validation_fraction=validation).numbers
    made[labelled] = drawn
    return made
