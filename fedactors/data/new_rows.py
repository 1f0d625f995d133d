"""Rows to predict, what comes of them, and the stored states that they are predicted with.

    StoredState(actor, frame).read() --> ActorState: a trained actor's attributes, in the process of its party
    Listing.write --> a file with a line for each row of a party       .counts --> Predicted: what others may know

Columns of the file: ``id`` (or what else a row is called by), ``prediction``, for classes ``probability_NAME`` of each,
and ``reason``: why there is no prediction. Of several values ``prediction_0``, ``prediction_1``, ... (of steps
``prediction_0_0``) stand in its place; of several labels ``prediction`` has those that are there, ``a|c``; of tokens
the class of each, with blanks between.

In CSV a class or a reason that a spreadsheet would compute (it begins with ``= + - @``, a tabulator or a carriage
return, and is no number) has an apostrophe before it: another party may have named it. Ids are its own, and stay.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedactors.data.columns import kind_of
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task
from fedactors.messages.codec import message, wire_type
from fedactors.runs.party_states import PartyStates, StateLocation
from fedactors.runs.storage import write_atomic
from fedactors.runtime import snapshots
from fedactors.validation import without_controls

ENDINGS = (".parquet", ".csv")
LEAST_EACH = 10
"""Predicted rows for each class from which on it is told that one is never predicted."""
S = TypeVar("S")
Fault = Literal["own", "partner", "alone"]
"""Why there is no prediction: the own row, another party's row, or that another party has no such row."""


@message(reveals="nothing: where the predicting party writes its predictions, on its own host")
class PredictOrder:
    """Predict, and write the file."""

    to: str


@message(
    reveals="how many rows the predicting party has, how many were predicted, why the others were not, and how many "
    "classes are predicted for none"
)
class Predicted:
    """The end of a prediction: rows of the label party, or of a site.

    Those predicted, those that have no partner at another party, and all others, which are refused; by reason both.
    """

    num_rows: int
    num_predicted: int
    num_alone: int
    rejections: tuple[tuple[str, int], ...]
    unpredicted: int = 0
    """Classes that are predicted for no row, of `LEAST_EACH` rows or more a class."""

    @property
    def num_refused(self) -> int:
        """Rows with a value, or without one, that the model cannot be applied to."""
        return self.num_rows - self.num_predicted - self.num_alone

    @property
    def says_unpredicted(self) -> str:
        """How many classes are predicted for no row, in words; empty: none."""
        what = "1 class is" if self.unpredicted == 1 else f"{self.unpredicted} classes are"
        return f"{what} predicted for no row" if self.unpredicted else ""


def counted(num_rows: int, local: Iterable[str], others: Iterable[str] = (), alone: Iterable[str] = ()) -> Predicted:
    """Return what may be told of a prediction.

    Args:
        num_rows: of the predicting party.
        local: why its own rows cannot be used: which value of which column that is remains its own affair.
        others: of other rows, why they cannot at other parties.
        alone: of other rows, where they have no partner.
    """
    refused, partnerless = [*map(kind_of, local), *others], list(alone)
    rejections = tuple(sorted(Counter([*refused, *partnerless]).items()))
    return Predicted(num_rows, num_rows - len(refused) - len(partnerless), len(partnerless), rejections)


@dataclass(frozen=True, eq=False)
class Listing:
    """The lines of the file: one for each of a party's rows, or of what a query joins them to."""

    called: Mapping[str, Sequence[Any]]
    """What the lines are called by, by column."""
    lines: NDArray[np.int64]
    """The line of each row that may be predicted; other lines have a reason."""
    rejections: dict[int, tuple[Fault, str]] = field(default_factory=dict)
    """Why a line has no prediction."""

    @classmethod
    def of_ids(cls, ids: NDArray[Any], unusable: Mapping[int, str] | None = None) -> Listing:
        """Return a line for each row, called by its id; unusable rows with the reason."""
        listing = cls({"id": ids.tolist()}, np.arange(len(ids)))
        listing.refuse(unusable or {}, "own")
        return listing

    def refuse(self, rejections: Mapping[int, str], fault: Fault) -> None:
        """Note why rows have no prediction; the first reason of a row stands."""
        for row, reason in rejections.items():
            self.rejections.setdefault(int(self.lines[row]), (fault, reason))

    def are_unusable(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say of each of these rows whether it has a reason."""
        return np.isin(self.lines[rows], list(self.rejections))

    @property
    def counts(self) -> Predicted:
        """What may be told of the lines."""
        by_fault: dict[Fault, list[str]] = {"own": [], "partner": [], "alone": []}
        for fault, reason in self.rejections.values():
            by_fault[fault].append(reason)
        return counted(len(next(iter(self.called.values()))), *by_fault.values())

    def write(
        self,
        path: Path,
        rows: NDArray[np.int64],
        values: NDArray[np.float64],
        class_names: Sequence[str],
        task: Task,
    ) -> Predicted:
        """Write the file (see `write_predictions`) with the values of these rows; return what may be told of it.

        Without `class_names` classes are called by their numbers.
        """
        unpredicted = write_predictions(
            path,
            ids=self.called,
            rows=self.lines[rows],
            values=values,
            class_names=class_names,
            task=task,
            rejections={line: reason for line, (_, reason) in self.rejections.items()},
        )
        return replace(self.counts, unpredicted=unpredicted)


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows to predict, in the process of their party."""

    ids: NDArray[Any]
    """What rows are aligned by."""
    features: NDArray[Any]
    """What the bottom sees (N, ...)."""
    listing: Listing


def check_ending(to: str) -> str:
    """Return the name of a file of predictions.

    Raises:
        BadInput: another kind of file.
    """
    if not to.endswith(ENDINGS):
        raise BadInput(f"--output: {to!r} is not allowed: give the name of a {' or '.join(ENDINGS)} file")
    return to


def check_called(columns: Sequence[str], party: str) -> None:
    """Check the columns that a party's rows are called by.

    Raises:
        BadInput: one has the name of a column that the file has for itself.
    """
    for name in columns:
        if name in ("prediction", "reason") or name.startswith("probability_"):
            raise BadInput(f"{party}: rows called by {name!r} are not allowed: name another column as id")


def write_predictions(
    path: Path,
    *,
    ids: Mapping[str, Sequence[Any]],
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
    class_names: Sequence[str],
    task: Task,
    rejections: Mapping[int, str],
) -> int:
    """Write the predictions of a party's rows.

    Returns:
        How many classes are predicted for no row, if there are `LEAST_EACH` rows for each.

    Args:
        path: ends with ``.parquet`` or ``.csv``.
        ids: what the party's rows are called by, by column.
        rows: those that were computed, in the order of `values`.
        values: the probability of each class or label, the values of a regression, or the class of each token.
        class_names: names of the columns; without them classes are called by their numbers.
        task: which of these.
        rejections: by row, why it has no prediction.

    Raises:
        BadInput: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    num_rows = len(next(iter(ids.values())))
    whole = np.full((num_rows, *values.shape[1:]), np.nan)
    whole[rows] = values
    is_known = np.ones(num_rows, np.bool_)
    is_known[list(rejections)] = False
    columns = {name: pa.array(values) for name, values in ids.items()}
    predicted, unpredicted = _predicted(whole, is_known, class_names, task)
    why = [rejections.get(row) for row in range(num_rows)]
    why = [None if one is None else without_controls(one) for one in why]
    if path.suffix == ".csv":
        why = [None if one is None else _no_formula(one) for one in why]
        texts = {name: found for name, found in predicted.items() if not isinstance(found, np.ndarray)}
        predicted |= {name: list(map(_no_formula, found)) for name, found in texts.items()}
    columns |= {name: pa.array(found, mask=~is_known) for name, found in predicted.items()}
    columns["reason"] = pa.array(why, pa.string())
    buffer = io.BytesIO()
    if path.suffix == ".csv":
        pa_csv.write_csv(pa.table(columns), buffer)
    else:
        pa_parquet.write_table(pa.table(columns), buffer)
    write_atomic(path, buffer.getvalue(), "--output")
    return unpredicted


def _no_formula(cell: str) -> str:
    """Return a cell that a spreadsheet shows, and does not compute: a formula may send other cells elsewhere."""
    if len(cell) < 2 or cell[0] not in "=+-@\t\r":  # a sign alone is no formula
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _predicted(
    values: NDArray[np.float64], is_known: NDArray[np.bool_], class_names: Sequence[str], task: Task
) -> tuple[dict[str, Sequence[Any] | NDArray[Any]], int]:
    """Return the columns of predictions, and how many classes are predicted for no row."""
    if task == "regression":
        if values.shape[1:] == (1,):
            return {"prediction": values[:, 0]}, 0
        indices = np.ndindex(values.shape[1:])
        return {f"prediction_{'_'.join(map(str, index))}": values[(slice(None), *index)] for index in indices}, 0
    if task == "tokens":
        numbers = np.nan_to_num(values).astype(np.int64).tolist()
        return {"prediction": [" ".join(class_names[n] if class_names else str(n) for n in row) for row in numbers]}, 0
    names = class_names or tuple(map(str, range(values.shape[1])))
    columns: dict[str, Sequence[Any] | NDArray[Any]] = {
        f"probability_{name}": values[:, index] for index, name in enumerate(names)
    }
    if task == "multilabel":
        there = [[name for name, is_there in zip(names, row, strict=True) if is_there] for row in values > 0.5]
        return {"prediction": ["|".join(row) for row in there], **columns}, 0
    best, unpredicted = np.nan_to_num(values).argmax(axis=1), 0
    if is_known.sum() >= LEAST_EACH * len(names):
        unpredicted = len(names) - len(np.unique(best[is_known]))
    return {"prediction": [names[index] for index in best], **columns}, unpredicted


class NotKept(BadInput, KeyError):
    """A checkpoint has no value of this name: it is of another protocol, or of another version."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show the quoted text


class NoPart(BadInput):
    """A party has no part of the trained model."""


class ActorState(Mapping[str, Any]):
    """The attributes that an actor declared as its state, by name; what has a ``state_dict`` as that dictionary.

    A value is unpacked when it is asked for. Messages among them can be read where their module is imported.
    """

    def __init__(self, name: str, frame: bytes) -> None:
        self._what = f"the checkpoint of {name}"
        content = snapshots.unseal(frame, self._what)
        with snapshots.intact(self._what):
            self._packed: dict[str, Any] = dict(content["state"])

    def __getitem__(self, name: str) -> Any:
        if name not in self._packed:
            raise NotKept(f"{self._what} holds no {name!r}")
        with snapshots.intact(self._what):
            tag, content = self._packed[name]
            return snapshots.unpack(content if tag == "state" else (tag, content))

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


@wire_type
class StoredState:
    """An actor's state in a checkpoint, as it travels to the process that goes on from it: there it is read.

    Where the party keeps its states itself it is a reference, and place and key are the party's.
    """

    actor: str
    frame: bytes
    where: str | None = None
    key: str | None = None

    def read(self) -> ActorState:
        """Return the state.

        Raises:
            BadInput: it is corrupt, or is not where it should be.
        """
        party = self.actor.partition("/")[0]
        location = None if self.where is None else StateLocation(party, self.where, self.key)
        return ActorState(self.actor, PartyStates(location, self.actor, "").fetch(self.frame))


def state_of(states: Mapping[str, S], name: str) -> S:
    """Return what a checkpoint has of the actor `name`.

    Raises:
        NoPart: nothing.
    """
    if name not in states:
        party = name.partition("/")[0]
        raise NoPart(f"{party!r} has no part of the model (the checkpoint holds {', '.join(sorted(states))})")
    return states[name]


def actor_state(states: Mapping[str, bytes], name: str) -> ActorState:
    """Return the state of the actor `name` from a checkpoint; see `state_of`.

    Raises:
        BadInput: it is corrupt.
    """
    return ActorState(name, state_of(states, name))
