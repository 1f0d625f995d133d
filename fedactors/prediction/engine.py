"""What all ways to predict have in common: a trained run and new rows go in, files of predictions and counts come out.

    driver ──spawn──▶ actors that restore their parts of the model (`StoredState`) and load their own new rows
    driver ──PredictOrder──▶ each writer: asks the others for their parts' outputs, writes its own file
    driver ◀──Predicted── writers: counts only

How rows find each other and how outputs are combined is what differs: `vertical` (aligned by id, or joined by a
query), `secure` (sums under masks), `horizontal` (each writer its own rows), or a protocol's own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedactors.actor import Actor
from fedactors.data.predictions import Predicted, PredictOrder
from fedactors.learning.model_parts import Part
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.privacy.mechanisms import clip_and_noise
from fedactors.privacy.releases import NEW_ROW, GaussianReleases
from fedactors.runtime.base import Costs, Runtime
from fedactors.serving import NoPart, StoredState

COSTS = Costs({"predict": (1e-3, 2e-11), "unmask": (1e-3, 1e-8)})
"""Seconds of a prediction in the simulated runtime, by rows times parameters: the forward cost of PubSub-VFL."""
LONGEST = 86_400.0
"""Seconds that a prediction may take."""


@dataclass(frozen=True, kw_only=True)
class Application:
    """What `predict` is asked for beside config and data.

    Args:
        stored: the trained actors' states by actor; each goes to its own party's process only.
        to: the file that the predictions go to, where the party that owns them runs.
    """

    stored: Mapping[str, StoredState]
    to: str

    def state_of(self, actor: str) -> StoredState:
        """Return the state of an actor, to be sent to its party.

        Raises:
            NoPart: it has none.
        """
        if actor not in self.stored:
            party = actor.partition("/")[0]
            raise NoPart(f"{party!r} has no part of the model (the checkpoint holds {', '.join(sorted(self.stored))})")
        return self.stored[actor]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The predictions of one party, as the driver knows them."""

    party: str
    to: str
    """The file, on that party's host."""
    counts: Predicted


Outcomes = tuple[Outcome, ...]
Writer = Callable[[PredictOrder], Awaitable[Predicted]]


def files_of(owners: Sequence[str], to: str) -> dict[str, str]:
    """Return the file of each of those who have predictions: `to` itself, or of several one with the owner's name."""
    path = Path(to)
    return {
        name: to if len(owners) == 1 else str(path.with_stem(f"{path.stem}-{name.replace('/', '-')}"))
        for name in owners
    }


async def ask_writers(runtime: Runtime, writers: Mapping[str, Writer], to: str) -> Outcomes:
    """Let each of those who have predictions, by name, predict and write its file."""
    files = files_of(tuple(writers), to)
    async with runtime.clock.timeout(LONGEST):
        found = await asyncio.gather(*(write(PredictOrder(files[name])) for name, write in writers.items()))
    await runtime.settle()
    return tuple(Outcome(party=name, to=files[name], counts=one) for name, one in zip(writers, found, strict=True))


def released(
    actor: Actor, part: Part, values: NDArray[Any], message_type: str, *, is_masked: bool = False
) -> NDArray[Any]:
    """Return what a party's model makes of its rows as it may leave, once: under the noise that training had.

    The ledger's line is of one new row in this prediction; `fedactors audit` composes the lines of all predictions.
    """
    if part.sigma <= 0:
        if is_masked:
            bare = PrivacyRecord(
                party=actor.party,
                message_type=message_type,
                mechanism="secure-sum",
                neighbour=NEW_ROW,
                epsilon=math.inf,
                note="no noise: not covered",
            )
            actor.record_privacy(bare)
        return values
    noised = clip_and_noise(values, part.clip_norm, part.sigma, actor.noise_rng("contribution"), message_type)
    note = "one new row replaced, in this prediction; training rows, and which rows can be used, are not covered"
    made = GaussianReleases(message_type, clip_norm=part.clip_norm, sigma=part.sigma, delta=part.delta, note=note)
    made.add()
    actor.record_privacy(dataclasses.replace(made.record(actor.party), neighbour=NEW_ROW))
    return noised
