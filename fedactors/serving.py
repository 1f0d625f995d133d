"""Actors' states from a checkpoint, for whoever goes on from a trained run: prediction, export, audits.

state = actor_state(states, "bank/worker-0")                # of the states that `export` is given
scale, vector = state["rows"], state["network"]["vector"]
StoredState(actor=..., frame=...).read()                    # the same, in the process of the actor's party
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedactors.errors import BadInput
from fedactors.network.codec import plain
from fedactors.records.states import OwnStates, StatePlace
from fedactors.runtime import snapshot


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
