"""Predictions of a trained split model on new rows: the parties' actors once more, each with its own part and file.

    driver ──predict──▶ label party ──alignment, as in training──▶ other parties
                        label party ◀──contribution: what their bottoms make of their rows──
                        label party: top model, probabilities, a file of its own ──▶ how many rows, to the driver

Each party's process reads its own state from the checkpoint and its own file, and nobody else's. Predictions stay with
the party that owns the labels: it writes them where its own process runs. Rows that no partner has, or that somebody
cannot use, are listed in the same file with the reason. Rows of a query are joined first (`fedactors.joining.rows`).

A protocol declares what its parts are: a subclass of `PredictingParty` with `make_part`, and a `predict` that calls
`predict_vertical`.

Shapes: N rows that all parties share, E width of a contribution.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment import (
    AlignmentAnswer,
    AlignmentOrder,
    AlignmentQuestion,
    CommonRows,
    align,
    answer,
    follow,
)
from fedactors.data.partitions import VerticalData
from fedactors.data.predictions import Listing, NewRows, Predicted, PredictOrder
from fedactors.errors import BadInput, Refused
from fedactors.joining.rows import join_rows, load_new_rows, with_joining
from fedactors.learning.model_parts import Part, TrainedModel, contribution, fused_output, probabilities
from fedactors.learning.models import ModelSpec
from fedactors.network.codec import message
from fedactors.prediction.engine import COSTS, Application, Outcomes, ask_writers, released
from fedactors.remote import CLIENT, DRIVER, remote
from fedactors.roles import Client, Server
from fedactors.runtime.base import Runtime, Work
from fedactors.serving import ActorState, StoredState

EXCHANGE = "exchange"
"""Name of the actor that adds contributions up under masks."""


@message(reveals="what the party's model makes of each shared row, as in training; which of these rows it cannot use")
class Contribution:
    """The outputs of a party's bottom model (N x E), and which rows miss what the model needs (N)."""

    values: NDArray[np.floating[Any]]
    unusable: NDArray[np.bool_]


@message(reveals="the model over what all parties contribute; the label party knows it, or had it in training")
class TopModel:
    """Its flat parameters (P), or nothing where it does not rest."""

    parameters: NDArray[np.floating[Any]]


class PredictingParty(Client):
    """A party with its part of a trained model and the rows to predict.

    Args:
        config: of the run that trained.
        data: the party's own part of the data, a `VerticalPart` or what a protocol has in its place.
        stored: its state in the run's checkpoint.
    """

    is_masked = False
    """Whether contributions leave under the masks of a sum."""
    _has_contributed = False

    def __init__(self, config: Any, data: Any, stored: StoredState) -> None:
        self.config = config
        self._data = data
        self._stored = stored
        self._rows = np.zeros(0, np.int64)

    def make_part(self, state: ActorState) -> Part:
        """Return the party's part of the model, or raise `BadInput` where the state holds none; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say what its part of the model is")

    async def load_rows(self) -> NewRows:
        """Return the own rows as the own bottom sees them; a protocol with other data says how."""
        assert self.part.preprocessing is not None
        return await load_new_rows(self, self._data, self.part.preprocessing)

    async def load(self) -> None:
        """Build the own part of the model, and load the own rows."""
        self.part = self.make_part(self._stored.read())
        if sorted(self._data.parties) != sorted(self.part.parties):
            raise BadInput(
                f"data: the parties {', '.join(self._data.parties)} are not allowed: the model was trained by "
                f"{', '.join(self.part.parties)}"
            )
        self._new = await self.load_rows()

    @property
    def label_party(self) -> str:
        """The party that the predictions are for: it alone orders rows and asks for contributions."""
        return str(self._data.label_party)

    @remote(caller=CLIENT, only="label_party")
    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's alignment question, if it is asked in the way that all have agreed upon."""
        return answer(self._new.ids, question, self._data.alignment)

    @remote(caller=CLIENT, only="label_party")
    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order."""
        self._rows = follow(self._new.ids, order, self._data.alignment)

    @remote(caller=CLIENT, only="label_party")
    async def give_top(self) -> TopModel:
        """Return the top model where it rests here, as in training it went from party to party."""
        top = self.part.models.get("top")
        return TopModel(np.zeros(0, np.float32) if top is None else top.vector)

    @remote(caller=CLIENT, only="label_party")
    async def contribute(self) -> Contribution:
        """Return what the own model makes of the shared rows, under training's noise, which withstands one question."""
        if self._has_contributed:
            raise Refused(self.caller, f"asks {self.name} for contributions a second time")
        self._has_contributed = True
        rows, self._rows = self._rows, np.zeros(0, np.int64)
        values = released(self, self.part, await self._embed(rows), "Contribution", is_masked=self.is_masked)
        return Contribution(values, self._new.listing.are_unusable(rows))

    async def _embed(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        work = Work("predict", float(len(rows) * self.part.models["bottom"].vector.size))
        return await self.compute(contribution, self.part, self._new.features[rows], work=work)


class PredictingOwner(PredictingParty):
    """The party with the labels: the predictions are its own.

    Args:
        config, data, stored: see `PredictingParty`.
        top_at: actors that are no parties and may have the top model.
    """

    def __init__(self, config: Any, data: Any, stored: StoredState, top_at: Sequence[str] = ()) -> None:
        super().__init__(config, data, stored)
        self._top_at = tuple(top_at)

    @property
    def top_spec(self) -> ModelSpec | None:
        """The top model, where the own part need not have its parameters; None: there is none, or the part has it."""
        return None

    @remote(caller=DRIVER)
    async def predict(self, order: PredictOrder) -> Predicted:
        """Align all parties' rows, predict those that can be, and write the file."""
        peers = {name: self.peer(name, PredictingParty) for name in self.part.parties if name != self.party}
        common = await align(self._new.ids, self.party, self._data.alignment, peers, self.noise_rng("row order"))
        values, unusable = await self._contributions(peers, common.rows)
        part = await self._whole_part(peers)
        num_parameters = part.models["top"].vector.size if "top" in part.models else 1
        work = Work("predict", float(len(common.rows) * num_parameters))
        output_NO = await self.compute(fused_output, part, values, work=work)
        return self._listing(common, unusable).write(
            self.output(order.to),
            common.rows,
            probabilities(part, output_NO),
            part.class_names,
            is_regression=part.task == "regression",
        )

    def _listing(self, common: CommonRows, unusable: Mapping[str, NDArray[np.bool_]]) -> Listing:
        """Return the lines of the file; what others cannot use, or do not have, with the reason."""
        listing = self._new.listing
        for name, rows in common.absent.items():
            listing.refuse(dict.fromkeys(rows.tolist(), f"not at {name}"), "alone")
        for name, unusable_N in unusable.items():
            listing.refuse(dict.fromkeys(common.rows[unusable_N].tolist(), f"{name} cannot use its row"), "partner")
        return listing

    async def _contributions(
        self, peers: Mapping[str, PredictingParty], rows: NDArray[np.int64]
    ) -> tuple[list[NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        """Return what all parties' models make of the shared rows, and which of them each other party cannot use."""
        found = dict(zip(peers, await asyncio.gather(*(peer.contribute() for peer in peers.values())), strict=True))
        values = {name: one.values for name, one in found.items()} | {self.party: await self._embed(rows)}
        return [values[name] for name in self.part.parties], {name: one.unusable for name, one in found.items()}

    async def _whole_part(self, peers: Mapping[str, PredictingParty]) -> Part:
        """Return the own part with the top, which may rest with somebody else since the training's end."""
        if "top" in self.part.models or self.top_spec is None:
            return self.part
        asked: list[TopHolder | PredictingParty] = [self.peer(name, TopHolder) for name in self._top_at]
        for holder in (*asked, *peers.values()):
            found = (await holder.give_top()).parameters
            if len(found):
                models = {**self.part.models, "top": TrainedModel(self.top_spec, found)}
                return dataclasses.replace(self.part, models=models)
        raise BadInput("the checkpoint holds no model over what the parties contribute: the run was stopped too early")


class TopHolder(Server):
    """A server that kept the top model of the run.

    Args:
        stored: its state in the run's checkpoint.
        label_party: who may ask for the model.
    """

    label_party = ""

    def __init__(self, stored: StoredState, label_party: str) -> None:
        self._stored = stored
        self.label_party = label_party

    def top_of(self, state: ActorState) -> NDArray[Any]:
        """Return the flat parameters of the top model, none if there is none; a protocol says where they are."""
        raise TypeError(f"{type(self).__name__} does not say where the top model is")

    @remote(caller=CLIENT, only="label_party")
    async def give_top(self) -> TopModel:
        """Return the top model."""
        return TopModel(self.top_of(self._stored.read()))


async def predict_vertical(
    parts: Mapping[str, Any],
    label_party: str,
    runtime: Runtime,
    asked: Application,
    *,
    config: Any,
    data: VerticalData | None = None,
    owner: type[PredictingOwner],
    party: type[PredictingParty],
    worker: str = "",
    top_at: Mapping[str, type[TopHolder]] | None = None,
    exchange: type[Server] | None = None,
) -> Outcomes:
    """Predict on vertically partitioned rows.

    Args:
        parts: by party, what its actor is told of the data; nobody needs labels.
        label_party: whose the predictions are.
        runtime: where the parties' actors run.
        asked: the trained states, and where the predictions go.
        config: of the run.
        data: what the parts are of; a query's rows are joined first.
        owner: the class of the label party's actor.
        party: the class of the others'.
        worker: of the actors that trained, which one's state a party predicts with: "/worker-0".
        top_at: actors that are no parties and may have the top model, with their classes.
        exchange: of an actor that adds up under masks what the parties contribute (`fedactors.prediction.secure`).
    """
    runtime.use_costs(with_joining(COSTS))
    if data is not None:
        await join_rows(data, runtime, asked.state_of)
    if exchange is not None:
        runtime.spawn(exchange, EXCHANGE, config, tuple(parts), label_party)
    holders = top_at or {}
    for name, cls in holders.items():
        runtime.spawn(cls, name, asked.state_of(name), label_party)
    stored = {name: asked.state_of(f"{name}{worker}") for name in parts}
    handle = runtime.spawn(owner, label_party, config, parts[label_party], stored[label_party], tuple(holders))
    for name in parts:
        if name != label_party:
            runtime.spawn(party, name, config, parts[name], stored[name])
    await runtime.start()
    return await ask_writers(runtime, {label_party: handle.predict}, asked.to)
