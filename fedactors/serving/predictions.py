"""Predictions of a trained run on new rows: one engine for aligned, joined, masked and horizontal rows.

    driver ──spawn──▶ actors that restore their parts of the model (`StoredState`) and load their own new rows
    driver ──PredictOrder──▶ each writer: asks the others for their parts' outputs, writes its own file
    driver ◀──Predicted── writers: counts only

    predict_vertical   PredictingOwner ──alignment, as in training──▶ PredictingParty
                       PredictingOwner ◀──Contribution── PredictingParty: what its bottom makes of its rows, once
      with exchange=   SummingOwner ──sum_up──▶ SumExchange ──add_up──▶ every SummingParty; only the sum is read
    predict_sites      PredictingSite ──give_model──▶ ModelServer; each site predicts its own rows

Each party's process reads its own state and its own rows, and nobody else's; predictions stay with the party that
writes them. Rows that no partner has, or that somebody cannot use, are listed in the file with the reason. Rows of a
query are joined first (`fedactors.data.alignment.rows`). Before parties mask anything they compare which rows they add
up and in which order, so that no two sums differ by somebody's part or rows. A protocol subclasses an actor and says
what its part of the model is (`make_part`).

Shapes: N rows that all parties share, E width of a contribution, P parameters.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import Actor, Client, Server
from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import CLIENT, DRIVER, SERVER, remote
from fedactors.data.alignment.ids import (
    AlignmentAnswer,
    AlignmentOrder,
    AlignmentQuestion,
    CommonRows,
    align,
    answer_beside,
    fingerprint,
    follow_beside,
)
from fedactors.data.alignment.rows import join_rows, load_new_rows, with_joining
from fedactors.data.columns import Preprocessing
from fedactors.data.layouts.horizontal import (
    HorizontalData,
    HorizontalFile,
    NewBlock,
    Reading,
    Rows,
    check_names,
    read_reading,
    standardised,
)
from fedactors.data.layouts.vertical import VerticalData
from fedactors.data.new_rows import ActorState, Listing, NewRows, Predicted, PredictOrder, StoredState, state_of
from fedactors.errors import BadInput, Refused
from fedactors.learning.local_training import weighted_mean
from fedactors.learning.metrics import Task
from fedactors.learning.models import ModelSpec, target_shape
from fedactors.learning.user_models import base_of, check_base
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.privacy.accounting import NEW_ROW, GaussianReleases, PrivacyRecord
from fedactors.privacy.mechanisms import clip_and_noise
from fedactors.runtime.interface import Costs, Runtime
from fedactors.secure_sums.actors import MESSAGES, SecureSummand, SecureSums, check_fits, in_turn
from fedactors.secure_sums.messages import Masked
from fedactors.secure_sums.primitives import FixedPoint
from fedactors.serving.parts import Part, TrainedModel, contribution, fused_output, probabilities
from fedactors.validation import shown

_log = logging.getLogger(__name__)
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
        """Return the state of an actor, to be sent to its party, or raise `NoPart`."""
        return state_of(self.stored, actor)


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


def write_outputs(
    listing: Listing, path: Path, part: Part, rows: NDArray[np.int64], output_NO: NDArray[Any]
) -> Predicted:
    """Write the file of predictions from a part's outputs for these rows."""
    values = np.asarray(output_NO) if part.task == "tokens" else probabilities(part, output_NO)
    return listing.write(path, rows, values, part.class_names, part.task)


def as_told(actor: Actor, found: Predicted) -> Predicted:
    """Return what a driver may know of a prediction: of another organisation's nothing that a model of its making says.

    Of one that predicts a class from some bound on, which classes are predicted tells whether a row lies beyond it.
    """
    if not (actor._context.is_between_organisations and found.unpredicted):
        return found
    _log.warning("%s: %s", actor.party, found.says_unpredicted)
    return dataclasses.replace(found, unpredicted=0)


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


EXCHANGE = "exchange"
"""Name of the actor that adds contributions up under masks."""


@message(reveals="what the party's model makes of each shared row, as in training; which of these rows it cannot use")
class Contribution:
    """The outputs of a party's bottom model (N x E), and which rows miss what the model needs (N)."""

    values: Annotated[NDArray[np.floating[Any]], Dimensions("rows", "width")]
    unusable: Annotated[NDArray[np.bool_], Dimensions("rows")]


@message(reveals="the model over what all parties contribute; the label party knows it, or had it in training")
class TopModel:
    """Its flat parameters (P), or nothing where it does not rest."""

    parameters: Annotated[NDArray[np.floating[Any]], Dimensions("parameters")]


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
    _num_common = 0
    """Rows that all parties have, at the party that has aligned them."""

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

    @remote(caller=CLIENT, only="label_party", once=True)
    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's alignment question, if it is asked in the way that all have agreed upon."""
        return await answer_beside(self, self._new.ids, question, self._data.alignment)

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order."""
        self._rows = await follow_beside(self, self._new.ids, order, self._data.alignment)

    @remote(caller=CLIENT, only="label_party", once=True)
    async def give_top(self) -> TopModel:
        """Return the top model where it rests here, as in training it went from party to party."""
        top = self.part.models.get("top")
        return TopModel(np.zeros(0, np.float32) if top is None else top.vector)

    @remote(caller=CLIENT, only="label_party", once=True)
    async def contribute(self) -> Contribution:
        """Return what the own model makes of the shared rows, under training's noise, which withstands one question."""
        if self._has_contributed:
            raise Refused(self.caller, f"asks {self.name} for contributions a second time")
        self._has_contributed = True
        rows, self._rows = self._rows, np.zeros(0, np.int64)
        values = released(self, self.part, await self._embed(rows), "Contribution", is_masked=self.is_masked)
        return Contribution(values, self._new.listing.are_unusable(rows))

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows are predicted together; where outputs are added up, how wide they are."""
        sizes = {"rows": self._num_common}
        return sizes | ({"width": self.part.models["bottom"].spec.outputs} if self.part.fusion == "sum" else {})

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

    @remote(caller=DRIVER, once=True)
    async def predict(self, order: PredictOrder) -> Predicted:
        """Align all parties' rows, predict those that can be, and write the file."""
        peers = {name: self.peer(name, PredictingParty) for name in self.part.parties if name != self.party}
        facts = (self._new.ids, self.party, self._data.alignment, peers, self.noise_rng("row order"))
        common = await align(*facts, actor=self)
        self._num_common = len(common.rows)
        values, unusable = await self._contributions(peers, common.rows)
        part = await self._whole_part(peers)
        num_parameters = part.models["top"].vector.size if "top" in part.models else 1
        work = Work("predict", float(len(common.rows) * num_parameters))
        output_NO = await self.compute(fused_output, part, values, work=work)
        listing = self._listing(common, unusable)
        return as_told(self, write_outputs(listing, self.output(order.to), part, common.rows, output_NO))

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

    @remote(caller=CLIENT, only="label_party", once=True)
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
        exchange: of an actor that adds up under masks what the parties contribute (`fedactors.serving.predictions`).
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


@message(reveals="the sum of what all parties' models make of each shared row, as the label party had it in training")
class Summed:
    """The sum (N x E)."""

    values: Annotated[NDArray[np.floating[Any]], Dimensions("rows", "width")]


@message(reveals="which of the shared rows the party cannot use")
class Unusable:
    """A flag for each row (N)."""

    rows: Annotated[NDArray[np.bool_], Dimensions("rows")]


@message(reveals="to another party: whether it is about to add up the same rows in the same order")
class RowOrder:
    """A fingerprint of the ids in their order, under a key that all parties and nobody else has."""

    fingerprint: bytes


class SummingParty(SecureSummand, PredictingParty):
    """A party whose contribution leaves under masks only; a protocol adds `make_part` and `point`.

    Args:
        config, data, stored: see `PredictingParty`.
    """

    is_masked = True

    def __init__(self, config: Any, data: Any, stored: StoredState) -> None:
        PredictingParty.__init__(self, config, data, stored)
        SecureSummand.__init__(self, tuple(data.parties), EXCHANGE)
        self._unusable = np.zeros(0, np.bool_)
        self._order: RowOrder | None = None
        """Of the rows to add up, once another party or the exchange has asked for it: they are fixed then."""

    async def load(self) -> None:
        """See `PredictingParty.load`; what is added up follows from what was heard in training."""
        await super().load()
        self.go_on_from(self._stored.read())

    @property
    def point(self) -> FixedPoint:
        """How contributions become words of a sum; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say how contributions become words")

    def _check_is_open(self) -> None:
        """Check that the order may still change.

        Raises:
            Refused: others were told it.
        """
        if self._order is not None:
            raise Refused(self.caller, f"orders the rows of {self.name} anew when they are being added up")

    @remote(caller=CLIENT, only="label_party", once=True)
    async def contribute(self) -> Contribution:
        """Refuse: in the open nothing leaves."""
        raise Refused(self.caller, f"asks {self.name} for a contribution that sums are to hide")

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order, until other parties have compared theirs with it."""
        self._check_is_open()
        rows = await follow_beside(self, self._new.ids, order, self._data.alignment)
        self._check_is_open()  # others may have asked meanwhile
        self._rows = rows

    @remote(caller=CLIENT, once=True, each=True)
    async def tell_order(self) -> RowOrder:
        """Say in which order which rows are added up, and stay with that; refuse whose rows are not added up."""
        if self.caller not in self.clients or not self.common_secret:
            raise Refused(self.caller, f"asks {self.name} for the order of rows that are not being added up")
        return self._fixed_order()

    def _fixed_order(self) -> RowOrder:
        if self._order is None:
            self._order = RowOrder(fingerprint(self._new.ids[self._rows], self.common_secret))
        return self._order

    @remote(caller=SERVER, once=True)
    @in_turn
    async def add_up(self) -> Masked:
        """Return what the own model makes of the shared rows under masks, once, and under the noise of training.

        All parties compare which rows they add up, and in which order: of two questions that pair rows differently the
        difference of the sums is a difference of somebody's rows. In one pairing a row's sum is the same each time.
        """
        heard = self.heard("add_up")
        local, others = self._fixed_order(), [name for name in self.clients if name != self.name]
        told = await asyncio.gather(*(self.peer(name, SummingParty).tell_order() for name in others))
        for name, order in zip(others, told, strict=True):
            if not hmac.compare_digest(order.fingerprint, local.fingerprint):
                raise Refused(self.label_party, f"has {self.name} and {name} add up different rows, or in other orders")
        made = await PredictingParty.contribute(self)
        self._unusable = made.unusable
        flagged = np.vstack([made.values, np.zeros((1, *made.values.shape[1:]))])
        return self.masked_if_it_fits(flagged, self.point, what="contributions", heard=heard, flag=made.values.size)

    @remote(caller=CLIENT, only="label_party", once=True)
    async def tell_unusable(self) -> Unusable:
        """Say which of the rows that were added up mean nothing."""
        return Unusable(self._unusable)


class SummingOwner(SummingParty, PredictingOwner):
    """The party with the labels, which learns the sum.

    Args:
        config, data, stored, top_at: see `PredictingOwner`.
    """

    def __init__(self, config: Any, data: Any, stored: StoredState, top_at: Sequence[str] = ()) -> None:
        SummingParty.__init__(self, config, data, stored)
        self._top_at = tuple(top_at)

    async def _contributions(
        self, peers: Mapping[str, PredictingParty], rows: NDArray[np.int64]
    ) -> tuple[list[NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        self._rows = rows
        found = await self.peer(EXCHANGE, SumExchange).sum_up()
        told = await asyncio.gather(*(self.peer(name, SummingParty).tell_unusable() for name in peers))
        return [found.values], {name: one.rows for name, one in zip(peers, told, strict=True)}


class SumExchange(Server):
    """Adds contributions up: it reads their sum, as the server did in training; a protocol adds `point`.

    Args:
        config: of the run that trained.
        parties: all of them.
        label_party: who may ask for the sum.
    """

    label_party = ""

    def __init__(self, config: Any, parties: Sequence[str], label_party: str) -> None:
        self.config = config
        self._parties = tuple(parties)
        self.label_party = label_party

    @property
    def point(self) -> FixedPoint:
        """How contributions become words of a sum; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say how contributions become words")

    @remote(caller=CLIENT, only="label_party", once=True)
    async def sum_up(self) -> Summed:
        """Return the sum over all parties of what their models make of the shared rows."""
        parties: ActorGroup[SummingParty] = ActorGroup(self, self._parties, timeout=LONGEST)
        sums = SecureSums(self, parties, num_sums=1)
        await sums.prepare(1)
        parts = await parties.ask(lambda party: party.add_up())
        work = Work("unmask", float(sum(part.words.size for part in parts.values())))
        total, _ = await sums.total(parts, self.point, work)
        check_fits(float(total[-1].flat[0]), self.point, "a contribution", None)
        return Summed(total[:-1])


SENT = (*MESSAGES, Summed, Unusable, RowOrder)
"""What such a prediction sends in place of `Contribution`."""


@message(
    reveals="a trained model: the server's, or of each center its own, which no site sees in training and tells more "
    "of that center's rows than the mean that is predicted with"
)
class WholeModel:
    """Its flat parameters (P, none where there is no model), the shape of a sample, the task and the number of classes.

    `reading` is a `fedactors.data.layouts.horizontal.Reading` as text: columns and classes, and of CSV files how the
    asking party's own was written. A site that was trained on reads its rows as it did then, whatever this says of
    columns.
    """

    parameters: Annotated[NDArray[np.floating[Any]], Dimensions("parameters")]
    inputs: tuple[int, ...]
    task: str
    num_classes: int
    reading: str
    base: str = ""
    """A digest of what of a user's model is not trained."""
    targets: tuple[int, ...] = ()
    """Shape of a row's target; none: it is one number or class."""


class ModelServer(Server):
    """The party that has the trained model, or a copy of it.

    Args:
        config: of the run that trained.
        stored: its state in the run's checkpoint.
    """

    def __init__(self, config: Any, stored: StoredState) -> None:
        self.config = config
        self._stored = stored

    def make_part(self, state: ActorState) -> Part | None:
        """Return the model as a part, None where there is none; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say what its model is")

    async def load(self) -> None:
        """Build the own model; how rows are read not everybody keeps that has one."""
        state = self._stored.read()
        self.part = self.make_part(state)
        self._reading = read_reading(state["reading"]) if "reading" in state else Reading()

    @remote(caller=CLIENT, unbounded="always gives the same model")
    async def give_model(self) -> WholeModel:
        """Return the model."""
        reading = self._reading.for_party(self.caller.partition("/")[0]).text
        if self.part is None:
            return WholeModel(np.zeros(0, np.float32), (), "", 0, reading)
        model = self.part.models["bottom"]
        task, targets = self.part.task, target_shape(self.part.task, model.spec)
        return WholeModel(
            model.vector, model.spec.inputs, task, self.part.num_classes, reading, base_of(model.spec), targets
        )


class PredictingSite(Client):
    """An organisation with rows of its own.

    Args:
        config: of the run that trained.
        rows: where its rows are.
        model_holders: actors that may have the model.
        stored: its own state in the run's checkpoint, if it has one.
    """

    def __init__(
        self, config: Any, rows: Rows, model_holders: Sequence[str], stored: StoredState | None = None
    ) -> None:
        self.config = config
        self._rows = rows
        self._model_holders = tuple(model_holders)
        self._stored = stored
        self._local: Reading | None = None
        """How its rows were read in training; None: it had none there."""
        self._trained_base: str | None = None
        """A digest of what of the model was not trained, as it was here."""

    async def load(self) -> None:
        """Learn how the own rows were read in training.

        Who has the model could name other columns, and count by refused rows what stands in them.

        Raises:
            BadInput: it does not know, between organisations.
        """
        state = {} if self._stored is None else self._stored.read()
        if "reading" in state:
            self._local = scaled_as_trained(read_reading(state["reading"]), state)
            self._trained_base = state.get("base")
        elif self._context.is_between_organisations:
            said = f"{self.party} has no state in this checkpoint: its rows are predicted by a run that it ends with"
            if self._stored is not None:
                said = (
                    f"the checkpoint does not say how rows of {self.party} were read; predict with a run that was "
                    "trained by this version"
                )
            raise BadInput(said)

    def make_model(self, found: WholeModel) -> TrainedModel:
        """Return the model; a protocol says what it is."""
        raise TypeError(f"{type(self).__name__} does not say what the model is")

    @remote(caller=DRIVER, once=True)
    async def predict(self, order: PredictOrder) -> Predicted:
        """Ask for the model, predict the own rows, and write the file."""
        part, reading = await self.trained()
        new, model = self._load(reading), part.models["bottom"]
        shape = new.features.shape[1:]
        if shape != model.spec.inputs:
            raise BadInput(
                f"data: samples of shape {shape} are not allowed: the model was trained on {model.spec.inputs}"
            )
        work = Work("predict", float(len(new.features) * model.vector.size))
        output_NO = await self.compute(contribution, part, new.features, work=work)
        listing, rows = Listing.of_ids(new.ids, new.unusable), np.arange(len(new.ids))
        return as_told(self, write_outputs(listing, self.output(order.to), part, rows, output_NO))

    async def trained(self) -> tuple[Part, Reading]:
        """Return the model as a part, and how rows are read."""
        found = await asyncio.gather(*(self.peer(name, ModelServer).give_model() for name in self._model_holders))
        kept = [one for one in found if len(one.parameters)]
        if not kept:
            raise BadInput("the checkpoint holds no model")
        reading = _merged({n: read_reading(one.reading) for n, one in zip(self._model_holders, found, strict=True)})
        if (local := self._local) is not None:
            names = ["columns", "classes", "image_folder", "csv"]
            if self._trained_base is not None:  # who trained with a scale keeps it
                names += ["mean", "deviation", "label_mean", "label_deviation"]
            reading = replace(reading, **{name: getattr(local, name) for name in names})
        holders = [name for name, one in zip(self._model_holders, found, strict=True) if len(one.parameters)]
        for name, one in zip(holders, kept, strict=True):
            self._check_facts(name, one, kept[0], reading)
        return self._part(kept, reading), reading

    def _check_facts(self, holder: str, found: WholeModel, first: WholeModel, reading: Reading) -> None:
        """Check what a model is said to be made for against the own rows and training, and the other holders' words.

        Raises:
            Refused: naming the holder; it is for another task, or other classes or targets, or of another size.
        """
        facts = [(one.task, one.num_classes, one.inputs, one.targets, len(one.parameters)) for one in (found, first)]
        is_known = facts[0] == facts[1]
        if found.task == "multiclass" and reading.classes:
            is_known = is_known and found.num_classes == len(reading.classes)
        if self._trained_base is not None:
            is_known = is_known and found.base == self._trained_base
        if not is_known:
            said = f"gives {self.name} a model for {shown(found.task)} of {found.num_classes:,} classes"
            raise Refused(holder, f"{said}, {len(found.parameters):,} numbers, which is none that {self.party} trained")

    def _part(self, kept: Sequence[WholeModel], reading: Reading) -> Part:
        """Return the model, of several their mean, as a part."""
        first, parameters = kept[0], kept[0].parameters
        if len(kept) > 1:
            mean = weighted_mean([one.parameters for one in kept], [1.0] * len(kept))
            parameters = mean.astype(parameters.dtype)
        model = self.make_model(replace(first, parameters=parameters))
        for name, one in zip(self._model_holders, kept, strict=False):
            check_base(model.spec, one.base, name)
        return site_part(self.party, model, cast(Task, first.task), first.num_classes, reading)

    def _load(self, reading: Reading) -> NewBlock:
        """Load the own rows, read as those were that were trained on."""
        rows = self._rows
        given = rows.classes if isinstance(rows, HorizontalFile) else ()
        if given and reading.classes and set(given) != set(reading.classes):
            raise BadInput(
                f"task.classes: {', '.join(given)} is not allowed: the model was trained on "
                f"{', '.join(reading.classes)}"
            )
        new = rows.load_new(reading.columns, reading.image_folder, reading.csv.get(self.party))
        if not reading.mean:
            return new
        return replace(new, features=standardised(new.features, reading.mean, reading.deviation))


class PersonalSite(PredictingSite):
    """An organisation with a model of its own, which nobody else has; a protocol adds `make_part`.

    Args:
        config: of the run that trained.
        rows: where its rows are.
        stored: its state in the run's checkpoint.
    """

    def __init__(self, config: Any, rows: Rows, stored: StoredState) -> None:
        super().__init__(config, rows, (), stored)

    def make_part(self, state: ActorState) -> tuple[Part, Reading]:
        """Return the own model as a part, and how rows are read; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say what its model is")

    async def load(self) -> None:
        """Build the own model."""
        assert self._stored is not None
        self._trained = self.make_part(self._stored.read())

    async def trained(self) -> tuple[Part, Reading]:
        """Return the own model, and how rows are read."""
        return self._trained


def scaled_as_trained(reading: Reading, state: Mapping[str, Any]) -> Reading:
    """Return how rows are read with the scale that they had in training, where the state tells it."""
    if "scale" not in state:
        return reading
    mean, deviation = state["scale"] or ((), ())
    label_mean, label_deviation = state["target"]
    moves = any(mean) or any(one != 1 for one in deviation)
    mean, deviation = (tuple(mean), tuple(deviation)) if moves else ((), ())
    return replace(reading, mean=mean, deviation=deviation, label_mean=label_mean, label_deviation=label_deviation)


def _merged(readings: Mapping[str, Reading]) -> Reading:
    """Return what the keepers of a model know together of how rows are read.

    Raises:
        BadInput: they trained on different columns.
    """
    check_names({name: one.names for name, one in readings.items()})
    found = readings.values()
    columns = next((one.columns for one in found if one.columns), ())
    classes = next((one.classes for one in found if one.classes), ())
    image_folder = next((one.image_folder for one in found if one.image_folder), None)
    csv = {name: how for one in found for name, how in one.csv.items()}
    measured = next((one for one in found if one.mean or one.target != (0.0, 1.0)), Reading())
    return Reading(
        columns=columns,
        classes=classes,
        image_folder=image_folder,
        csv=csv,
        mean=measured.mean,
        deviation=measured.deviation,
        label_mean=measured.label_mean,
        label_deviation=measured.label_deviation,
    )


def site_part(
    party: str,
    model: TrainedModel,
    task: Task,
    num_classes: int,
    reading: Reading,
    protocol: str = "",
) -> Part:
    """Return a whole model as a part: from samples as they are to outputs, or from a table's columns."""
    columns, csv = reading.columns, reading.common_csv
    preprocessing = Preprocessing.unmeasured(columns, csv) if columns else None
    if preprocessing is not None and reading.mean:
        mean, deviation = (np.asarray(numbers, np.float32) for numbers in (reading.mean, reading.deviation))
        preprocessing = replace(preprocessing, mean=mean, deviation=deviation)
    return Part(
        protocol=protocol,
        party=party,
        task=task,
        num_classes=num_classes,
        class_names=reading.classes,
        parties=(party,),
        models={"bottom": model},
        preprocessing=preprocessing,
        label_mean=reading.label_mean,
        label_deviation=reading.label_deviation,
    )


async def predict_sites(
    data: HorizontalData,
    runtime: Runtime,
    asked: Application,
    *,
    config: Any,
    site: type[PredictingSite],
    model_holders: Mapping[str, type[ModelServer]],
    personal: type[PersonalSite] | None = None,
) -> Outcomes:
    """Predict the rows of each organisation that has a file, or of a named data set those that belong to nobody.

    Args:
        data: the rows.
        runtime: where the actors run.
        asked: the trained states, and where the predictions go; of several sites each has its name in the file's.
        config: of the run.
        site: the class of the sites' actors.
        model_holders: actors of the run that may have the model, with their classes.
        personal: the class of organisations that have a model of their own each; None: there is one for all.
    """
    runtime.use_costs(COSTS)
    rows: dict[str, Rows] = dict(zip(data.parties, data.files, strict=True))
    if personal is not None and rows:
        owners = {
            name: runtime.spawn(personal, f"{name}/predictions", config, local, asked.state_of(name))
            for name, local in rows.items()
        }
        await runtime.start()
        return await ask_writers(runtime, {name: one.predict for name, one in owners.items()}, asked.to)
    for name, cls in model_holders.items():
        runtime.spawn(cls, name, config, asked.state_of(name))
    rows = rows or {next(iter(model_holders)).partition("/")[0]: data.test()}
    sites = {
        name: runtime.spawn(site, f"{name}/predictions", config, local, tuple(model_holders), asked.stored.get(name))
        for name, local in rows.items()
    }
    await runtime.start()
    return await ask_writers(runtime, {name: one.predict for name, one in sites.items()}, asked.to)
