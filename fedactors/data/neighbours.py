"""Neighbours of vertical data: one party's row, or one label, otherwise; typical values and extreme ones.

They are what a privacy claim speaks of (replace one record), as audits need them: a claim holds for every value that a
row could have, so rows that no data set has are among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedactors.data.partitions import VerticalData
from fedactors.data.sources import EditedSource, HeldSource
from fedactors.errors import BadInput
from fedactors.plugins import Neighbour

_HUGE = 1e6


def replaced_rows(
    data: VerticalData, party: str, count: int, seed: int, *, keep_label: bool = False
) -> Sequence[Neighbour]:
    """Return `count` neighbours of kind ``row``; at the party with labels the label is another one too.

    In turn: another row's values, one value times 100, all values 0, all values a million, all signs turned, and the
    largest numbers that there are.

    Args:
        data: to be changed.
        party: whose row is another one.
        count: how many.
        seed: which rows.
        keep_label: for a protocol that tells all parties the labels.
    """
    block = data.load(party)
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        row, other, column = (int(rng.integers(bound)) for bound in (*[len(block.ids)] * 2, block.features.shape[1]))
        values = block.features[row].copy()
        kind = number % 6
        if kind == 0:
            values, what = block.features[other].copy(), f"row {row} by the values of row {other}"
        elif kind == 1:
            values[column] = 100 * (values[column] or 1)
            what = f"row {row} with {block.feature_names[column]} a hundred times as large"
        elif kind == 2:
            values[:] = 0
            what = f"row {row} by zeros"
        elif kind == 3:
            values[:] = _HUGE
            what = f"row {row} by a million in each column"
        elif kind == 4:
            values, what = -values, f"row {row} with its signs turned"
        else:
            values[:] = np.finfo(np.float32).max
            what = f"row {row} by the largest numbers"
        label = None if block.labels is None or keep_label else _other_label(data, block.labels, row, other)
        found.append(Neighbour(label=what, kind="row", data=_edited(data, party, row, values, label)))
    return found


def replaced_labels(data: VerticalData, count: int, seed: int) -> Sequence[Neighbour]:
    """Return `count` neighbours of kind ``label``: one row's label is another one."""
    block = data.load(data.label_party)
    assert block.labels is not None
    rng = np.random.default_rng(seed)
    found = []
    for row in rng.choice(len(block.ids), size=min(count, len(block.ids)), replace=False).tolist():
        label = _other_label(data, block.labels, row, int(rng.integers(len(block.ids))))
        changed = _edited(data, data.label_party, row, block.features[row], label)
        what = f"label {block.labels[row]:g} of row {row} by {label:g}"
        found.append(Neighbour(label=what, kind="label", data=changed))
    return found


def _other_label(data: VerticalData, labels: np.ndarray, row: int, other: int) -> float:
    if data.task == "regression":
        return float(labels[other] + 100 * (labels.std() or 1))
    return float((labels[row] + 1) % data.num_classes)


def _edited(data: VerticalData, party: str, row: int, values: np.ndarray, label: float | None) -> VerticalData:
    index = data.parties.index(party)
    source = data.sources[index]
    if isinstance(source, HeldSource):
        raise BadInput("data: rows that a query joins are not allowed here: a neighbour has one row otherwise")
    assert not isinstance(source, EditedSource)
    edited = EditedSource(source=source, row=row, features=values.astype(np.float32), label=label)
    return dataclasses.replace(data, sources=(*data.sources[:index], edited, *data.sources[index + 1 :]))
