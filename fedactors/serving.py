"""What comes after training, as the protocols share it: actors' states from a checkpoint, a party's part as files.

    state = actor_state(states, "bank/worker-0")                # of what `predict` and `export` are given
    scale, vector = state["rows"], state["network"]["vector"]
    return task_predictions("binary", output_NO)
    return write_part(folder, party, arrays={"bottom": vector}, facts={"task": "binary"}, config=config)

Shapes: N rows, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.config import as_dict
from fedactors.data.blocks import PartyBlock
from fedactors.errors import BadInput
from fedactors.network.codec import plain
from fedactors.records.metrics import json_line, jsonable
from fedactors.records.states import OwnStates, StatePlace
from fedactors.runtime import snapshot

Array = NDArray[Any]


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
        content = snapshot.unseal(frame, self._what)
        with snapshot.intact(self._what):
            self._packed: dict[str, Any] = dict(content["state"])

    def __getitem__(self, name: str) -> Any:
        if name not in self._packed:
            raise NotKept(f"{self._what} holds no {name!r}")
        with snapshot.intact(self._what):
            tag, content = self._packed[name]
            return snapshot.unpack(content if tag == "state" else (tag, content))

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


@plain
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
        place = None if self.where is None else StatePlace(party, self.where, self.key)
        return ActorState(self.actor, OwnStates(place, self.actor, "").fetch(self.frame))


def actor_state(states: Mapping[str, bytes], name: str) -> ActorState:
    """Return the state of the actor `name` from a checkpoint.

    Raises:
        NoPart: it has none.
        BadInput: it is corrupt.
    """
    if name not in states:
        party = name.partition("/")[0]
        raise NoPart(f"{party!r} has no part of the model (the checkpoint holds {', '.join(sorted(states))})")
    return ActorState(name, states[name])


def write_part(
    folder: Path, party: str, *, arrays: Mapping[str, Any], facts: Mapping[str, Any], config: Any
) -> list[Path]:
    """Write a party's part of a model: its arrays as ``.npz``, how to build it again as ``.json``; return the paths.

    Args:
        folder: where to; it exists.
        party: gives the files their name.
        arrays: by name; a mapping of arrays (a network's, say) goes under "name/key".
        facts: what cannot be told from the arrays; plain values.
        config: the run's.
    """
    flat: dict[str, Array] = {}
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{key}": np.asarray(array) for key, array in value.items()}
        else:
            flat[name] = np.asarray(value)
    stem = party.replace("/", "-")
    weights, description = folder / f"{stem}.npz", folder / f"{stem}.json"
    np.savez(weights, **flat)  # type: ignore[arg-type]
    told = {"party": party, **facts, "arrays": sorted(flat), "config": as_dict(config)}
    description.write_text(json_line(jsonable(told)))
    return [weights, description]


def task_predictions(task: str, output_NO: Array, *, label_mean: float = 0.0, label_deviation: float = 1.0) -> Array:
    """Return what a model's outputs say of each row (N).

    Args:
        task: "binary": the probability of class 1; "multiclass": the class; "regression": the value in original units.
        output_NO: logits or values.
        label_mean: of the training targets of a regression.
        label_deviation: of the same.
    """
    if task == "multiclass":
        class_N: Array = output_NO.argmax(axis=1)
        return class_N
    value_N: Array = output_NO.reshape(len(output_NO), -1)[:, 0]
    if task == "binary":
        probability_N: Array = 1.0 / (1.0 + np.exp(-value_N))
        return probability_N
    scaled_N: Array = value_N * label_deviation + label_mean
    return scaled_N


def shared_rows(blocks: Mapping[str, PartyBlock], label_party: str) -> dict[str, NDArray[np.int64]]:
    """Return each party's rows with the ids that all have, in the label party's order.

    Raises:
        BadInput: there are none.
    """
    where = {party: {id_: row for row, id_ in enumerate(block.ids.tolist())} for party, block in blocks.items()}
    shared = [id_ for id_ in blocks[label_party].ids.tolist() if all(id_ in rows for rows in where.values())]
    if not shared:
        raise BadInput("data: the parties share no row id")
    return {party: np.asarray([rows[id_] for id_ in shared], np.int64) for party, rows in where.items()}
