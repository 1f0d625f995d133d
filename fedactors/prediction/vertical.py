"""Predictions of a trained split model on new rows: the parties' actors once more, each with its own part and file.

    driver ──predict──▶ label party ──alignment, as in training──▶ other parties
                        label party ◀──contribution: what their bottoms make of their rows──
                        label party: top model, probabilities, a file of its own ──▶ how many rows, to the driver

Each party's process reads its own state from the checkpoint and its own file, and nobody else's. Predictions stay with
the party that owns the labels: it writes them where its own process runs. Rows that no partner has, or that somebody
cannot use, are listed in the same file with the reason.

A protocol declares what its parts are: a subclass of `PredictingParty` with `make_part`, and a `predict` that calls
`predict_vertical`.

Shapes: N rows that all parties share, E width of a contribution.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.actor import Actor
from fedactors.data.alignment import AlignmentAnswer, AlignmentOrder, AlignmentQuestion, align, answer, follow
from fedactors.data.partitions import VerticalData
from fedactors.data.predictions import Listing, write_predictions
from fedactors.data.reasons import kind_of
from fedactors.data.sources import HeldSource
from fedactors.errors import BadInput, Refused
from fedactors.joining.rows import with_joining
from fedactors.learning.model_parts import Part, TrainedModel, contribution, fused_output, probabilities
from fedactors.learning.models import ModelSpec
from fedactors.network.codec import message
from fedactors.prediction.joined import join_new_rows, load_new_joined
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.privacy.mechanisms import clip_and_noise
from fedactors.privacy.releases import NEW_ROW, GaussianReleases
from fedactors.remote import CLIENT, DRIVER, remote
from fedactors.roles import Client, Server
from fedactors.runtime.base import Costs, Runtime, Work
from fedactors.serving import ActorState, NoPart, StoredState

COSTS = Costs({"predict": (1e-3, 2e-11), "unmask": (1e-3, 1e-8)})
"""Seconds of a prediction in the simulated runtime, by rows times parameters: the forward cost of PubSub-VFL."""
EXCHANGE = "exchange"
"""Name of the actor that adds contributions up under masks."""
_LONGEST = 86_400.0


@message(reveals="what the party's model makes of each shared row, as in training; which of these rows it cannot use")
class Contribution:
    """The outputs of a party's bottom model (N x E), and which rows miss what the model needs (N)."""

    values: NDArray[np.floating[Any]]
    unusable: NDArray[np.bool_]


@message(reveals="the model over what all parties contribute; the label party knows it, or had it in training")
class TopModel:
    """Its flat parameters (P), or nothing where it does not rest."""

    parameters: NDArray[np.floating[Any]]


@message(reveals="nothing: where whoever predicts is to write its predictions, on its own host")
class PredictOrder:
    """Predict, and write the file."""

    to: str


@message(
    reveals="how many rows whoever predicts has, how many were predicted, why the others were not, and how many "
    "classes are predicted for none"
)
class Predicted:
    """The end of a prediction: rows of the label party, or of a site.

    Those predicted, those that have no partner at another party, and all others, which are refused; by reason both.
    """

    num_rows: int
    num_predicted: int
    num_alone: int
    reasons: tuple[tuple[str, int], ...]
    unpredicted: int = 0
    """Classes that are predicted for no row, of `LEAST_EACH` rows or more a class."""

    @property
    def num_refused(self) -> int:
        """Rows with a value, or without one, that the model cannot be applied to."""
        return self.num_rows - self.num_predicted - self.num_alone


def counted(num_rows: int, own: Iterable[str], others: Iterable[str] = (), alone: Iterable[str] = ()) -> Predicted:
    """Return what may be told of a prediction.

    Args:
        num_rows: of whoever predicts.
        own: why its own rows cannot be used: which value of which column that is remains its own affair.
        others: of other rows, why they cannot at other parties.
        alone: of other rows, where they have no partner.
    """
    refused, partnerless = [*map(kind_of, own), *others], list(alone)
    reasons = tuple(sorted(Counter([*refused, *partnerless]).items()))
    return Predicted(num_rows, num_rows - len(refused) - len(partnerless), len(partnerless), reasons)


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows to predict, in the process of their party."""

    ids: NDArray[Any]
    features: NDArray[Any]
    """What the bottom sees (N, ...)."""
    unusable: Mapping[int, str]
    """Rows that cannot be used, and why."""
    listed: Listing | None = None
    """The lines of the file of predictions, where they are not one for each row, called by its id."""

    @property
    def listing(self) -> Listing:
        """The lines of the file of predictions."""
        return self.listed or Listing({"id": self.ids.tolist()}, np.arange(len(self.ids)), {})


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
            BadInput: it has none.
        """
        if actor not in self.stored:
            party = actor.partition("/")[0]
            raise NoPart(f"{party!r} has no part of the model (the checkpoint holds {', '.join(sorted(self.stored))})")
        return self.stored[actor]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a prediction came to, as the driver knows it."""

    party: str
    """Who has the predictions."""
    to: str
    """The file, on that party's host."""
    counts: Predicted


Outcomes = tuple[Outcome, ...]
"""Of all parties that have predictions."""


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


def files_of(owners: Sequence[str], to: str) -> dict[str, str]:
    """Return the file of each of those who have predictions: `to` itself, or of several one with the owner's name."""
    path = Path(to)
    return {
        name: to if len(owners) == 1 else str(path.with_stem(f"{path.stem}-{name.replace('/', '-')}"))
        for name in owners
    }


class PredictingParty(Client):
    """A party with its part of a trained model and the rows to predict.

    Args:
        config: of the run that trained.
        data: the party's own part of the data, a `VerticalPart` or what a protocol has in its place.
        stored: its state in the run's checkpoint.
    """

    def __init__(self, config: Any, data: Any, stored: StoredState) -> None:
        self.config = config
        self._data = data
        self._stored = stored
        self._rows = np.zeros(0, np.int64)

    def make_part(self, state: ActorState) -> Part:
        """Return the party's part of the model; a protocol says how.

        Raises:
            BadInput: the state holds none.
        """
        raise TypeError(f"{type(self).__name__} does not say what its part of the model is")

    async def load_rows(self) -> NewRows:
        """Return the own rows as the own bottom sees them; a protocol with other data says how.

        Raises:
            BadInput: they cannot be read, or have other columns than those trained on.
        """
        trained, source = self.part.preprocessing, self._data.source
        assert trained is not None
        if isinstance(source, HeldSource):
            block, x_ND, listing = await load_new_joined(self, self._data, source.holder, trained)
            return NewRows(block.ids, x_ND, block.unusable, listing)
        block, x_ND = self._data.load_new(trained)
        listing = Listing({"id": block.ids.tolist()}, np.arange(len(block.ids)), {})
        return NewRows(block.aligned_by, x_ND, block.unusable, listing)

    is_masked = False
    """Whether contributions leave under the masks of a sum."""
    _has_contributed = False

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
        """Return what the own model makes of the shared rows, once, under the noise that training had.

        Raises:
            Refused: it is asked again, which noise would not withstand.
        """
        if self._has_contributed:
            raise Refused(self.caller, f"asks {self.name} for contributions a second time")
        self._has_contributed = True
        rows, self._rows = self._rows, np.zeros(0, np.int64)
        made = await self._embed(rows)
        values = released(self, self.part, made, "Contribution", is_masked=self.is_masked)
        return Contribution(values, np.isin(rows, list(self._new.unusable)))

    async def _embed(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        model = self.part.models["bottom"]
        work = Work("predict", float(len(rows) * model.vector.size))
        return await self.compute(contribution, self.part, self._new.features[rows], work=work)


class TopHolder(Server):
    """A server that kept the top model of the run.

    Args:
        stored: its state in the run's checkpoint.
        label_party: who may ask for the model.
    """

    def __init__(self, stored: StoredState, label_party: str) -> None:
        self._stored = stored
        self._label_party = label_party

    @property
    def label_party(self) -> str:
        """The party that the predictions are for."""
        return self._label_party

    def top_of(self, state: ActorState) -> NDArray[Any]:
        """Return the flat parameters of the top model, none if there is no such model; a protocol says where they are.

        Raises:
            BadInput: the state holds none.
        """
        raise TypeError(f"{type(self).__name__} does not say where the top model is")

    @remote(caller=CLIENT, only="label_party")
    async def give_top(self) -> TopModel:
        """Return the top model."""
        return TopModel(self.top_of(self._stored.read()))


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
        new, others = self._new, [name for name in self.part.parties if name != self.party]
        peers = {name: self.peer(name, PredictingParty) for name in others}
        how = self._data.alignment
        common = await align(new.ids, self.party, how, peers, self.noise_rng("row order"))
        values, unusable = await self._contributions(peers, common.rows)
        reasons = dict(new.unusable)
        alone, refused = dict[int, str](), dict[int, str]()
        for name, rows in common.absent.items():
            alone |= {row: f"not at {name}" for row in rows.tolist() if row not in reasons and row not in alone}
        for name, unusable_N in unusable.items():
            theirs = f"{name} cannot use its row"
            known = {**reasons, **refused}
            refused |= {row: theirs for row in common.rows[unusable_N].tolist() if row not in known}
        counts = counted(
            len(new.ids) + len(new.listing.lost),
            reasons.values(),
            refused.values(),
            [*alone.values(), *new.listing.lost.values()],
        )
        reasons |= alone | refused
        part = await self._whole_part(peers)
        num_parameters = part.models["top"].vector.size if "top" in part.models else 1
        work = Work("predict", float(len(common.rows) * num_parameters))
        output_NO = await self.compute(fused_output, part, values, work=work)
        listing = new.listing
        lines = {int(listing.lines[row]): reason for row, reason in reasons.items()} | dict(listing.lost)
        unpredicted = write_predictions(
            self.output(order.to),
            ids=listing.called,
            rows=listing.lines[common.rows],
            values=probabilities(part, output_NO),
            class_names=part.class_names or tuple(map(str, range(part.num_classes))),
            is_regression=part.task == "regression",
            reasons=lines,
        )
        return dataclasses.replace(counts, unpredicted=unpredicted)

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
        await join_new_rows(data, runtime, asked.state_of)
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
    async with runtime.clock.timeout(_LONGEST):
        counts = await handle.predict(PredictOrder(asked.to))
    await runtime.settle()
    return (Outcome(party=label_party, to=asked.to, counts=counts),)
