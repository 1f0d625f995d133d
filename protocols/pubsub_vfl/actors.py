"""The parties' workers: each unpacks a message, calls a function of `algorithm`, packs a message.

    passive worker ──embedding ref──▶ broker ──claim: refs of all parties──▶ active worker: bottom, top, loss
    passive worker ◀──gradient ref── broker ◀──gradient refs── active worker      (see `broker.Pipeline`)

Worker 0 of each party also aligns the rows, takes part in evaluations and answers for the party. A worker's models are
its `Replica`, whose optimiser steps here or at the party's parameter server (`replicas`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedactors.actors.actor import Client
from fedactors.actors.context import Ref, Work
from fedactors.actors.remote import CLIENT, DRIVER, SAME_PARTY, SERVER, remote
from fedactors.data.alignment.ids import (
    AlignmentAnswer,
    AlignmentOrder,
    AlignmentQuestion,
    align,
    answer_beside,
    check_number,
    follow_beside,
)
from fedactors.data.alignment.rows import load_block
from fedactors.data.layouts.vertical import VerticalPart
from fedactors.errors import BadInput, Refused
from fedactors.learning.metrics import (
    LOCAL_BASELINE,
    Split,
    accuracy,
    auc,
    known,
    local_baseline,
    rmse,
)
from fedactors.learning.network import DeviceArrays, Model, find_device, on_host
from fedactors.learning.optimizers import Network, OptimizerSpec
from fedactors.learning.split_learning import (
    ActiveGradients,
    ExchangeTable,
    Publication,
    active_gradients,
    joint_output,
    local_gradients,
    weighted_rows,
)
from fedactors.messages.compression import Encoded, decode_from
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.privacy.mechanisms import add_gaussian, clip_and_noise, clip_rows_backward
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.broker import BROKER, Pipeline
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import PartyRows
from fedactors.protocols.pubsub_vfl.messages import (
    Aligned,
    Embedding,
    EpochEnd,
    EpochLoss,
    EpochOrder,
    Evaluated,
    Gradient,
    InitialOrders,
    Parameters,
    PartEmbedding,
    PartRequest,
    Payload,
    RowCounts,
    RowOrder,
    Stamp,
)
from fedactors.protocols.pubsub_vfl.privacy import (
    Counts,
    KeptReleases,
    active_records,
    add_counts,
    bottom_sigma,
    passive_records,
)
from fedactors.protocols.pubsub_vfl.replicas import AveragingServer, Vector, syncs
from fedactors.validation import shown


class PartyWorker(Client):
    """One of a party's workers, named "party/worker-i".

    Args:
        config: the run's settings.
        part: the party's own part of the data.
        run_seed: shared by all parties, for the split and the batches.
        workers: names of all the party's workers.
    """

    state: ClassVar[tuple[str, ...]] = ("rows", "replica", "counts", "cached")
    embeds: ClassVar[bool]
    """Whether the broker assigns batches to embed; else it brings embeddings to train on."""
    waits_for: ClassVar[str]
    """What the timeline calls the wait for the broker."""

    def __init__(self, config: PubSubVflConfig, part: VerticalPart, run_seed: int, workers: Sequence[str]) -> None:
        self._given, self._at_rows = config, config
        self._data = part
        self._run_seed = run_seed
        self._workers = tuple(workers)
        self.counts = Counts(self.keeps_releases)
        self.cached = ExchangeTable(config.cached_batches, config.local_updates)
        self._batches: list[tuple[int, np.ndarray]] = []
        self._refs: dict[Stamp, tuple[Ref, ...]] = {}
        self._pipeline: Pipeline | None = None

    @property
    def config(self) -> PubSubVflConfig:
        """The settings; as soon as the rows are aligned, with those that follow from their number."""
        if self._at_rows is self._given and hasattr(self, "rows") and self.rows.is_aligned:
            self._at_rows = self._given.at(self.rows.num_train)
        return self._at_rows

    @property
    def keeps_releases(self) -> bool:
        """Whether a row's release is kept, and the same one sent whenever it is asked for."""
        return False

    async def load(self) -> None:
        """Load the party's own rows and build its bottom model."""
        block = await load_block(self, self._data)
        self.rows = PartyRows(self.config, self._data, self._run_seed, block)
        self._build(self.rows.num_features)

    def _build(self, num_features: int) -> None:
        """Build the models as they are in the beginning, alike in all workers of the party."""
        spec = algorithm.bottom_spec(self.config, num_features)
        self._held = DeviceArrays(find_device(self.config.device))
        self._bottom = Network(spec, self.bottom_rule, self.party_seed("bottom"), self._held.device)
        self.replica = Replica((self._bottom,), self.config)

    @property
    def bottom_rule(self) -> OptimizerSpec:
        """How the bottom follows its gradients."""
        return self.config.step_rule

    @property
    def label_party(self) -> str:
        """The active party: it alone orders rows, asks for embeddings and trains passive workers."""
        return self._data.label_party

    @property
    def server(self) -> AveragingServer | None:
        """The party's parameter server; none where the worker is alone."""
        return self.peer(f"{self.party}/ps", AveragingServer) if len(self._workers) > 1 else None

    @remote(caller=SAME_PARTY)
    async def take_rows(self, order: RowOrder) -> None:
        """Take the row order from the party's worker 0."""
        self.rows.follow(order)
        self.counts.start(self.rows.train_rows, len(self.rows.block.features))

    async def _follow_rows(self, rows: np.ndarray, parts: np.ndarray) -> None:
        self.counts.draw_scale()
        order = self.rows.draw(rows, parts, self.noise_rng("rows"))
        await self.take_rows(order)
        for sibling in self._workers[1:]:
            await self.peer(sibling, type(self)).take_rows(order)

    @remote(caller=DRIVER, at_most="most_epochs", of="epoch", span="num_epochs")
    @abstractmethod
    async def run_epoch(self, order: EpochOrder) -> EpochLoss | None:
        """Work until the broker says that the epoch is over."""

    async def _work_until_over(self, order: EpochOrder) -> None:
        """Work on what the broker brings; at the end nothing of the epoch is held or under way."""
        self._batches = self.rows.batches_until(order.epoch, order.num_epochs)
        self.begin_epoch(order.epoch - order.num_epochs + 1)
        self._pipeline = pipeline = Pipeline(self, order.epoch, self._first_of(order.epoch))
        async with self.replica.mixing(self.server if self.config.mixes else None), pipeline.running():
            while not pipeline.is_over:
                if (received := pipeline.next_received()) is not None:
                    await self._use(pipeline, *received)
                if (assigned := pipeline.next_assigned()) is not None:
                    pipeline.publish_embedding(assigned, await self.embed(assigned))
                await pipeline.exchange()

    def _first_of(self, epoch: int) -> tuple[Stamp, ...] | None:
        """Return the batches to embed that are not asked for; None: the broker is still to tell of them."""
        return ()

    @abstractmethod
    async def _use(self, pipeline: Pipeline, stamp: Stamp, payloads: list[Any]) -> None:
        """Compute on the payloads that came for a batch."""

    @abstractmethod
    async def embed(self, stamp: Stamp) -> tuple[Payload, ...]:
        """Embed a batch; return what is published of it."""

    def _check_first(self, asked: str) -> None:
        """Refuse what worker 0 alone does for the party: else each worker would do it as often as is approved.

        Raises:
            Refused: this worker is another.
        """
        if self.name != self._workers[0]:
            raise Refused(self.caller, f"calls {self.name}.{asked}; approved: of {self._workers[0]} alone")

    def _batch_of(self, stamp: Stamp) -> tuple[int, np.ndarray]:
        """Return epoch and positions of a batch; batches are counted by their numbers, and -1 is the last one too.

        Raises:
            Refused: there is none of that number in the epochs under way.
        """
        if not 0 <= stamp[0] < len(self._batches):
            said = f"gives {self.name} batch {stamp[0]}; approved: 0 to {len(self._batches) - 1}"
            raise Refused(BROKER, said)
        return self._batches[stamp[0]]

    def _count_batch(self, what: str, stamp: Stamp, at_most: int) -> None:
        """Count what leaves of a batch in the epochs under way, whatever the broker says to do."""
        if self._pipeline is not None and not self.keeps_releases:
            last = self.config.num_epochs
            self.release(what, stamp[0], at_most=at_most, round=self._pipeline.epoch, last_round=last)

    @abstractmethod
    async def update_locally(self) -> bool:
        """Step on a batch that was exchanged before, with what was received then; say whether there was one."""

    def post(self, stamp: Stamp, values: Sequence[Embedding | Gradient], readers: Sequence[str]) -> tuple[Payload, ...]:
        """Return a batch's values as they travel: themselves, or references by which each reader fetches its own."""
        if self.config.sends_payloads:
            return tuple(values)
        refs = tuple(self.put(value, to=reader) for value, reader in zip(values, readers, strict=True))
        self._refs[stamp] = refs
        return refs

    async def opened(self, payload: Payload) -> Embedding | Gradient:
        """Return the value of a payload, fetched from its owner if it is a reference."""
        value: Embedding | Gradient = await self.get(payload) if isinstance(payload, Ref) else payload
        return value

    def forget(self, stamp: Stamp) -> None:
        """Give up what is kept for a batch."""
        for ref in self._refs.pop(stamp, ()):
            self.free(ref)

    def forget_all(self) -> None:
        """Give up what is kept for the batches of an epoch."""
        for stamp in list(self._refs):
            self.forget(stamp)

    @remote(caller=DRIVER, unbounded="ends what the worker does")
    async def leave_epoch(self) -> None:
        """End the epoch here: it is over, and what is still in hand was given to others."""
        if self._pipeline is not None:
            self._pipeline.leave()

    @property
    def updates(self) -> bool:
        """Whether this worker steps itself; else the party's parameter server does."""
        return not self.config.steps_at_server or len(self._workers) == 1 or self.keeps_releases

    def begin_epoch(self, epoch: int) -> None:
        """Let steps be as large as the schedule says for an epoch; a frozen bottom must not shrink."""
        self.replica.begin_epoch(epoch, self.config, is_frozen=self.keeps_releases)

    async def step(self, gradients: Sequence[np.ndarray | Tensor], epoch: int) -> None:
        """Follow a batch's gradients, here or at the party's parameter server."""
        if self.updates or self.server is None:
            self.begin_epoch(epoch)
            self.replica.step(gradients)
        else:
            await self.replica.step_at(self.server, gradients, epoch)

    async def _compressed(self, values: np.ndarray, epoch: int, stamp: Stamp, part: int = 0) -> np.ndarray | Encoded:
        """Return values as they travel; the same batch, epoch and attempt is always rounded alike."""
        bits = self.config.quantization_bits
        if not bits:
            return values
        seed = self.seed(f"rounding {epoch} {stamp[0]} {stamp[1]} {part}")
        return await self.compute(algorithm.compress, values, bits, seed, work=Work("compress", values.size))

    async def _values(self, message: Embedding | Gradient, num_rows: int, party: str) -> np.ndarray:
        """Return the values of so many rows, of a party's, as they were before they travelled, up to rounding."""
        values, shape = message.values, (num_rows, self.config.embedding_size)
        through_broker = self.config.sends_payloads and not self.config.is_paired
        sender = BROKER if through_broker else party
        if not isinstance(values, Encoded):
            return decode_from(values, shape, sender)
        return await self.compute(decode_from, values, shape, sender, work=Work("decompress", math.prod(shape)))

    @remote(caller=DRIVER, unbounded="within the party")
    async def average(self, order: EpochOrder) -> None:
        """Continue from the average of the party's workers, or from where its parameter server has stepped to."""
        if self.server is not None:
            with self.span("wait", "average"):
                if self.config.steps_at_server:
                    await self.replica.adopt(self.server, order.epoch, self.rows.num_train)
                else:
                    await self.replica.average(self.server, order.epoch)

    @remote(caller=DRIVER, unbounded="within the party")
    async def follow(self, order: EpochOrder) -> None:
        """Continue from the changes of all the party's workers."""
        if self.server is not None:
            await self.replica.follow(self.server, order.epoch)

    @remote(caller=DRIVER, at_most="most_epochs")
    async def end_epoch(self, end: EpochEnd) -> None:
        """Remember the present parameters if they are the best so far."""
        if end.is_best:
            self.replica.remember()

    @remote(caller=DRIVER, at_most=lambda config: int(config.keeps_best))
    async def recall(self) -> None:
        """Go back to the best parameters."""
        self.replica.recall()

    @remote(caller=SAME_PARTY)
    async def counted(self) -> RowCounts:
        """Return how often this worker released each row."""
        return self.counts.message

    @remote(caller=DRIVER, once=True)
    async def account(self) -> None:
        """Record what the releases of all the party's workers cost in privacy: its first worker does."""
        first, others = self._workers[0], [await self.peer(one, type(self)).counted() for one in self._workers[1:]]
        for record in self._records(add_counts([self.counts.message, *others])) if self.name == first else ():
            self.record_privacy(record)

    def planned_privacy(self) -> Iterable[PrivacyRecord]:
        """Return what each row is released in all epochs and evaluations; the party's first worker says it."""
        if self.name != self._workers[0] or not self.rows.is_aligned:
            return ()
        config, prepared = self.config, self.rows.prepared
        epochs = np.full(self.rows.num_train, config.num_epochs)
        times = 1 if self.keeps_releases else config.num_evaluations - 1
        validated = times if len(prepared.validation.features) else 0
        embedded = np.ones_like(epochs) if self.keeps_releases else epochs
        return self._records(RowCounts(embedded, epochs, validated, int(len(prepared.test.features) > 0), False))

    @abstractmethod
    def _records(self, counts: RowCounts) -> Iterable[PrivacyRecord]:
        """Return the party's lines of the privacy ledger."""


class PassiveWorker(PartyWorker):
    """One of a passive party's workers: own features and a bottom model."""

    payloads: ClassVar[tuple[type, ...]] = (Embedding,)
    embeds, waits_for = True, "gradient"
    broker: ClassVar[str] = BROKER
    """Who alone says what to begin with."""

    def __init__(self, config: PubSubVflConfig, part: VerticalPart, run_seed: int, workers: Sequence[str]) -> None:
        super().__init__(config, part, run_seed, workers)
        self._publications: dict[Stamp, tuple[Publication, np.ndarray, np.ndarray]] = {}
        self._kept = KeptReleases()
        self._first: InitialOrders | None = None

    @property
    def keeps_releases(self) -> bool:
        """A frozen bottom embeds a row as it did before: noise that was drawn once is not drawn again."""
        return self.config.bottom_training == "frozen"

    @property
    def bottom_rule(self) -> OptimizerSpec:
        """How the bottom follows its gradients; a frozen one has none, and must not shrink either."""
        rule = super().bottom_rule
        return replace(rule, weight_decay=0.0) if self.keeps_releases else rule

    async def open(self) -> None:
        """Take a noise generator of this process."""
        self._noise = self.noise_rng("embeddings")

    @remote(caller=CLIENT, only="label_party", once=True)
    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the active party's alignment question, if it is asked in the way that all have agreed upon."""
        self._check_first("answer_alignment")
        return await answer_beside(self, self.rows.block.ids, question, self._data.alignment)

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order, and tell the party's other workers."""
        self._check_first("take_order")
        block = self.rows.block
        rows = await follow_beside(self, block.ids, order, self._data.alignment)
        facts = (self.config.min_aligned_rows, len(block.ids), len(block.rejected), block.num_table_rows)
        check_number(self, rows, *facts, num_train=lambda: self.rows.count_train(len(rows), order.parts))
        await self._follow_rows(rows, order.parts)

    # --- an epoch over the broker (Algorithm 1, lines 5 to 11 and 23 to 28) ---

    @remote(caller=DRIVER, at_most="most_epochs", of="epoch", span="num_epochs")
    async def run_epoch(self, order: EpochOrder) -> None:
        """Embed batches and apply their gradients until the broker says that the epoch is over."""
        await self._work_until_over(order)

    @remote(caller=SERVER, only="broker", at_most="most_epochs", of="epoch")
    async def take_first(self, orders: InitialOrders) -> None:
        """Begin with these batches, now or when the driver says that the epoch has begun."""
        if self._pipeline is not None and self._pipeline.epoch == orders.epoch:
            self._pipeline.begin_with(orders.assigned)
        else:
            self._first = orders

    def _first_of(self, epoch: int) -> tuple[Stamp, ...] | None:
        if not self.config.sends_payloads:
            return ()
        first, self._first = self._first, None
        return first.assigned if first is not None and first.epoch == epoch else None

    async def embed(self, stamp: Stamp) -> tuple[Payload, ...]:
        """Embed a batch; return the embedding as it travels."""
        epoch, positions = self._batch_of(stamp)
        self._count_batch("the embeddings of batch", stamp, self.config.max_attempts)
        embedding = await self._embed(epoch, stamp, positions)
        return self.post(stamp, [embedding], [self._data.label_party])

    async def _use(self, pipeline: Pipeline, stamp: Stamp, payloads: list[Gradient]) -> None:
        epoch, positions = self._batch_of(stamp)
        if self.config.stale_gradients == "apply" and stamp not in self._publications:
            # it was given up meanwhile: embed the batch again, at the present parameters
            self._publications[stamp] = await self._forward(positions)
        gradient = await self._backward(payloads[0])
        if gradient is not None:
            await self.step([gradient], epoch)
            pipeline.finish(stamp)

    async def _embed(self, epoch: int, stamp: Stamp, positions: np.ndarray) -> Embedding:
        """Embed a batch and keep its publication for its gradient."""
        self._publications[self._key(epoch, stamp)] = publication = await self._forward(positions)
        values = await self._compressed(self._release("train", positions, publication[1]), epoch, stamp)
        return Embedding(stamp[0], epoch, stamp[1], self.clock.now(), values)

    async def _backward(self, gradient: Gradient) -> np.ndarray | Tensor | None:
        """Return the flat gradient through the publication that `gradient` belongs to; None if that was given up."""
        key = self._key(gradient.epoch, (gradient.batch_id, gradient.sequence))
        if key not in self._publications:
            return None
        publication, values, positions = self._publications[key]
        self.forget(key)
        config, gradient_BE = self.config, await self._values(gradient, len(positions), self.label_party)
        if config.bottom_training == "frozen":
            return np.zeros(self.replica.sizes[0], values.dtype)
        self.cached.add(positions, [values], [gradient_BE])
        if self._sigma > 0:
            gradient_BE = clip_rows_backward(values, gradient_BE, config.clip_norm)
        work = self._work("bottom-backward", len(gradient_BE), updates=self.updates)
        if config.bottom_training == "plain":
            return await self.compute(Publication.gradient, publication, gradient_BE, work=work)
        clip = config.bottom_clip_norm
        total_P = await self.compute(algorithm.clipped_backward, publication, gradient_BE, clip, work=work)
        self.counts.step(positions)
        # drawn here and not where it is computed: a generator that travels would draw the same noise again
        noisy: np.ndarray = add_gaussian(total_P, bottom_sigma(config), self._noise, "bottom gradients")
        return noisy / len(positions)

    async def update_locally(self) -> bool:
        """Step on a kept batch with the gradient of then, weighted by how far its embedding has moved."""
        if (then := self.cached.take()) is None:
            return False
        publication, now_BE, _ = await self._forward(then.rows)
        args = (then.gradients[0], now_BE, then.embeddings[0], self.config.min_cosine_similarity)
        gradient_BE = await self.compute(weighted_rows, *args, work=Work("weigh", now_BE.size))
        if self._sigma > 0:
            gradient_BE = clip_rows_backward(now_BE, gradient_BE, self.config.clip_norm)
        work = self._work("bottom-backward", len(gradient_BE), updates=True)
        self.replica.step([await self.compute(Publication.gradient, publication, gradient_BE, work=work)])
        return True

    def forget(self, stamp: Stamp) -> None:
        """Give up a publication."""
        self._publications.pop(stamp, None)
        super().forget(stamp)

    def forget_all(self) -> None:
        """Give up all publications."""
        self._publications.clear()
        super().forget_all()

    def _key(self, epoch: int, stamp: Stamp) -> Stamp:
        """Return what a publication is kept by until its gradient comes."""
        return stamp

    async def _forward(self, positions: np.ndarray) -> tuple[Publication, np.ndarray, np.ndarray]:
        features_BF = self._held.take("features", self.rows.train.features, positions)
        publication = Publication(self._bottom.model, features_BF)
        work = self._work("bottom-forward", len(positions))
        return publication, await self.compute(Publication.embed, publication, work=work), positions

    def _work(self, kind: str, num_rows: int, *, updates: bool = False) -> Work:
        return Work(kind, algorithm.operations(num_rows, self.replica.sizes[0], updates=updates))

    # --- what leaves the party ---

    @remote(caller=CLIENT, only="label_party", at_most="num_evaluations")
    async def embed_part(self, request: PartRequest) -> PartEmbedding:
        """Return the embeddings of the validation or test rows, released under the same noise as in training."""
        self._check_first("embed_part")
        x_NF = self.rows.part(request.part).features
        at_most = 1 if request.part == "test" else self.config.num_evaluations - 1
        self.release("the embeddings for the", request.part, at_most=at_most)
        work = self._work("bottom-forward", len(x_NF))
        values = await self.compute(algorithm.embed_rows, self._bottom.model, x_NF, work=work)
        return PartEmbedding(request.part, self._release(request.part, np.arange(len(values)), values))

    def _release(self, part: str, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the embeddings of these rows of a part as they may leave, and count the release."""
        if not self.keeps_releases:
            self.counts.release(part, positions)
            return self._sanitise(values)
        num_rows = self.rows.num_train if part == "train" else len(values)
        chosen, new = self._kept.take(part, num_rows, positions, values, self._sanitise)
        if len(new):
            self.counts.release(part, new)
        return chosen

    def _sanitise(self, values: np.ndarray) -> np.ndarray:
        if self._sigma <= 0:
            return values
        return clip_and_noise(values, self.config.clip_norm, self._sigma, self._noise, "Embedding")

    @property
    def _sigma(self) -> float:
        return algorithm.embedding_sigma(self.config, self.rows.num_train)

    def _records(self, counts: RowCounts) -> Iterable[PrivacyRecord]:
        times = self.counts.num_scales
        return passive_records(self.config, self.party, counts, self._sigma, self.rows.num_scaled, times)


SCORES = {"auc": auc, "accuracy": accuracy, "rmse": rmse}
"""Metrics that runs are judged by, from labels and outputs."""


class ActiveWorker(PartyWorker):
    """One of the active party's workers: own features, labels, a bottom and the top model."""

    payloads: ClassVar[tuple[type, ...]] = (Gradient,)
    embeds, waits_for = False, "embedding"

    async def load(self) -> None:
        """Load the party's own rows and labels, and build its models."""
        if self._data.task == "regression" and math.isfinite(self.config.label_epsilon):
            raise BadInput(f"label_epsilon: {self.config.label_epsilon} is not allowed: a regression has no classes")
        await super().load()

    def _build(self, num_features: int) -> None:
        super()._build(num_features)
        spec = algorithm.top_spec(self.config, self._data)
        self._top = Network(spec, self.config.step_rule, self.party_seed("top"), self._held.device)
        self.replica = Replica((self._bottom, self._top), self.config)

    async def open(self) -> None:
        """Take a noise generator of this process."""
        config = self.config
        self._noise = self.noise_rng("gradients")
        self._sigma = algorithm.gaussian_sigma(config.gradient_mu, config.gradient_clip_norm, config.most_epochs)

    def _first_peers(self) -> dict[str, PassiveWorker]:
        """Return worker 0 of each passive party."""
        return {party: self.peer(f"{party}/worker-0", PassiveWorker) for party in self._data.passive_parties}

    @remote(caller=DRIVER, once=True)
    async def align(self) -> Aligned:
        """Align the rows of all parties, and tell the party's other workers."""
        self._check_first("align")
        how = self._data.alignment
        rng = self.rng("row order") if how == "already-aligned" else self.noise_rng("row order")
        peers, rows = self._first_peers(), self.rows
        common = await align(rows.block.ids, self.party, how, peers, rng, rows.draw_parts, actor=self)
        await self._follow_rows(common.rows, common.parts)
        absent = tuple((party, len(gone)) for party, gone in common.absent.items())
        return Aligned(rows.num_train, len(common.rows), len(rows.block.ids), len(rows.block.rejected), absent)

    # --- an epoch over the broker (Algorithm 1, lines 12 to 22) ---

    @remote(caller=DRIVER, at_most="most_epochs", of="epoch", span="num_epochs")
    async def run_epoch(self, order: EpochOrder) -> EpochLoss:
        """Train on batches whose embeddings are there until the broker says that the epoch is over."""
        self._loss_sum, self._num_rows = 0.0, 0
        await self._work_until_over(order)
        return EpochLoss(self._loss_sum, self._num_rows)

    async def embed(self, stamp: Stamp) -> tuple[Payload, ...]:
        """Refuse: the broker brings embeddings to this side."""
        raise ValueError(f"{self.name}: batch {stamp[0]} is assigned to a party that trains on embeddings")

    async def _use(self, pipeline: Pipeline, stamp: Stamp, payloads: list[Embedding]) -> None:
        epoch, positions = self._batch_of(stamp)
        self._count_batch("the gradients of batch", stamp, self.config.max_attempts)
        parties = zip(self._data.passive_parties, payloads, strict=True)
        received = [await self._values(embedding, len(positions), party) for party, embedding in parties]
        found = await self._gradients(positions, received)
        self.cached.add(positions, received, found.embeddings)
        gradients = await self._pack(found.embeddings, epoch, stamp, positions)
        await self.step([found.bottom, found.top], epoch)
        self._loss_sum += found.loss * len(positions)
        self._num_rows += len(positions)
        pipeline.publish(stamp, self.post(stamp, gradients, self._data.passive_parties))

    async def _pack(
        self, gradients: Sequence[np.ndarray], epoch: int, stamp: Stamp, positions: np.ndarray
    ) -> list[Gradient]:
        """Return the gradients of these rows for the passive parties as they may leave, and count the release."""
        for _ in gradients:
            self.counts.embed(positions)
        sent = [await self._compressed(self._sanitise(g_BE), epoch, stamp, i) for i, g_BE in enumerate(gradients)]
        now = self.clock.now()
        return [Gradient(stamp[0], epoch, stamp[1], now, values) for values in sent]

    async def _gradients(self, positions: np.ndarray, received: Sequence[np.ndarray]) -> ActiveGradients:
        """Return loss and gradients of one batch with the others' embeddings."""
        x_BF = self._held.take("features", self.rows.train.features, positions)
        targets = self._targets(positions)
        work = Work("active-step", algorithm.operations(len(x_BF), sum(self.replica.sizes), updates=self.updates))
        networks, task = (self._bottom.model, self._top.model), self._data.task
        return await self.compute(active_gradients, *networks, task, x_BF, received, *targets, work=work)

    async def update_locally(self) -> bool:
        """Step on a kept batch with the gradient of then, weighted by how far its embedding has moved."""
        if (then := self.cached.take()) is None:
            return False
        x_BF = self._held.take("features", self.rows.train.features, then.rows)
        args = (self._bottom.model, self._top.model, self._data.task, x_BF, then, self.config.min_cosine_similarity)
        work = Work("local-step", algorithm.operations(len(then.rows), sum(self.replica.sizes), updates=True))
        self.replica.step(await self.compute(local_gradients, *args, *self._targets(then.rows), work=work))
        return True

    def _targets(self, positions: np.ndarray) -> tuple[Any, Any]:
        """Return labels and, where rows do not count alike, weights."""
        train = self.rows.train
        assert train.labels is not None
        weights_B = None if train.weights is None else self._held.take("weights", train.weights, positions)
        return self._held.take("labels", train.labels, positions), weights_B

    def _sanitise(self, gradient_BE: np.ndarray) -> np.ndarray:
        if self._sigma <= 0:
            return gradient_BE
        # the mean loss scales rows by 1/B: clip and noise the rows of the sum
        rows = len(gradient_BE)
        clip = self.config.gradient_clip_norm
        return clip_and_noise(gradient_BE * rows, clip, self._sigma, self._noise, "Gradient") / rows

    def _records(self, counts: RowCounts) -> Iterable[PrivacyRecord]:
        num_classes, times = self._data.num_classes, self.counts.num_scales
        return active_records(self.config, self.party, counts, self._sigma, num_classes, times)

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows a part has, and how wide embeddings are."""
        sizes = {"embedding size": self.config.embedding_size}
        is_part = isinstance(message, PartEmbedding) and message.part in ("validation", "test")
        return sizes | ({"rows of the part": len(self.rows.part(message.part).features)} if is_part else {})

    @remote(caller=DRIVER, at_most="num_evaluations")
    async def evaluate(self, request: PartRequest) -> Evaluated:
        """Return the task's metrics on validation or test rows; a regression's RMSE and MAE are in original units."""
        self._check_first("evaluate")
        at_most = 1 if request.part == "test" else self.config.num_evaluations - 1
        self.release("the metrics of the", request.part, at_most=at_most)
        peers = self._first_peers()
        found = await asyncio.gather(*(peer.embed_part(request) for peer in peers.values()))
        for party, one in zip(peers, found, strict=True):
            if one.part != request.part:
                raise Refused(party, f"embeds the rows to {shown(one.part)}; asked for: {request.part}")
        rows, (bottom_size, top_size) = self.rows.part(request.part), self.replica.sizes
        assert rows.labels is not None
        work = Work("bottom-forward", len(rows.features) * bottom_size)
        local = await self.compute(algorithm.embed_rows, self._bottom.model, rows.features, work=work)
        embeddings = [local, *(part_embedding.values for part_embedding in found)]
        work = Work("top-forward", len(rows.features) * top_size)
        task, top = self._data.task, self._top.model
        metrics, unpredicted = await self.compute(algorithm.measured, task, top, embeddings, rows.labels, work=work)
        return Evaluated(self._in_units(metrics), unpredicted)

    @remote(caller=DRIVER, at_most=lambda config: int(config.local_baseline))
    async def measure_alone(self) -> Evaluated:
        """Return the test metrics of a model of the party's own columns, trained here and now and then given up."""
        self._check_first("measure_alone")
        prepared, task = self.rows.prepared, self._data.task
        others = {"validation": prepared.validation, "test": prepared.test}
        parts = {name: (part.features, np.asarray(part.labels)) for name, part in others.items()}
        train = prepared.train
        training = train.features, np.asarray(train.labels)
        found = await self.compute(local_baseline, task, training, parts, train.weights, work=Work(LOCAL_BASELINE))
        return Evaluated(self._in_units(found.get("test", {})), 0)

    def score_of(self, part: Split, name: str, top: Model, embeddings: Sequence[np.ndarray]) -> float:
        """Return one metric of these models on a part of the rows, told to nobody: for who watches a simulation."""
        labels = self.rows.part(part).labels
        assert labels is not None
        outputs = joint_output(top, embeddings)
        found = SCORES[name](labels, outputs) if np.isfinite(outputs).all() else math.nan
        return self._in_units({name: found}).get(name, math.nan)

    def _in_units(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return metrics, of a regression in the label's own units."""
        if self._data.task == "regression":
            deviation = self.rows.prepared.label_deviation
            metrics = metrics | {name: metrics[name] * deviation for name in ("rmse", "mae") if name in metrics}
        return known(metrics)


class Replica:
    """The models of one worker, changed only here.

    Args:
        networks: freshly initialised alike in all workers of the party.
        config: its schedule counts batches in `mixing`.
    """

    def __init__(self, networks: Sequence[Network], config: PubSubVflConfig) -> None:
        self.networks = tuple(networks)
        self._config = config
        self._initial = self._base = self.vectors
        self.sizes = tuple(vector.size for vector in self._initial)
        """Parameters of each model."""
        self._best: tuple[Vector, ...] | None = None
        self._num_unpushed = 0
        self._is_following = False
        self._server: AveragingServer | None = None
        self._num_steps = 0
        self._is_due = False
        self._mix_under_way: asyncio.Future[None] | None = None
        self._steps_under_way: deque[asyncio.Future[None]] = deque()
        self._newest = 0

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The flat parameters of each model."""
        return tuple(network.vector for network in self.networks)

    def load(self, vectors: Sequence[Vector]) -> None:
        """Replace the parameters."""
        for network, vector in zip(self.networks, vectors, strict=True):
            network.load(vector)

    def begin_epoch(self, epoch: int, config: PubSubVflConfig, *, is_frozen: bool = False) -> None:
        """Let steps be as large, and weights decay, as the settings say for an epoch, counted from 1."""
        self._config, rate = config, config.rate_schedule.at(min(epoch, config.most_epochs) - 1, config.most_epochs)
        for network in self.networks:
            network.rate, network.decay = rate, 0.0 if is_frozen else config.nonlinear_decay or 0.0

    def step(self, gradients: Sequence[Vector | Tensor]) -> None:
        """Step on one's own gradients (Eq. 2); while `mixing`, start to mix where it is time and none is under way."""
        for network, gradient in zip(self.networks, gradients, strict=True):
            network.apply(gradient)
        self._num_unpushed += 1
        if self._server is not None:
            self._mix_when_due(self._server)

    async def average(self, server: AveragingServer, epoch: int) -> None:
        """Continue from the mean of all workers' parameters (Algorithm 1, line 31)."""
        self.load((await server.average(Parameters(epoch, 0, 1.0, self.vectors))).vectors)

    async def step_together(
        self, gradients: Sequence[Vector | Tensor], num_rows: int, server: AveragingServer, epoch: int, step: int
    ) -> None:
        """Step on the mean gradient over the rows of all workers; who has no rows gives none."""
        vectors = tuple(map(on_host, gradients)) if num_rows else tuple(np.zeros_like(v) for v in self.vectors)
        self.step((await server.average(Parameters(epoch, step, float(num_rows), vectors))).vectors)

    async def step_at(self, server: AveragingServer, gradients: Sequence[Vector | Tensor], epoch: int) -> None:
        """Let the server step on a gradient, and wait only if more than `server_window` of them are under way."""
        push = server.step(Parameters(epoch, 0, 1.0, tuple(map(on_host, gradients))))
        self._steps_under_way.append(asyncio.ensure_future(self._follow_server(push)))
        while len(self._steps_under_way) > self._config.server_window:
            await self._steps_under_way.popleft()

    async def adopt(self, server: AveragingServer, epoch: int, num_rows: int) -> None:
        """Continue from the server's parameters, when no gradient is under way any more."""
        while self._steps_under_way:
            await self._steps_under_way.popleft()
        await self._follow_server(server.adopt(Parameters(epoch, 0, float(num_rows), self.vectors)))

    async def _follow_server(self, answer: Awaitable[Parameters]) -> None:
        found = await answer
        if found.step >= self._newest:  # answers may overtake one another
            self._newest = found.step
            self.load(found.vectors)

    def must_follow(self, every: int) -> bool:
        """Say whether to `follow` now: after `every` steps, if that is not under way already."""
        if self._num_unpushed < every or self._is_following:
            return False
        self._is_following = True
        return True

    async def follow(self, server: AveragingServer, epoch: int) -> None:
        """Push the change since the last push, and continue from the sum of all workers' changes.

        Steps taken while the answer is under way stay, and go with the next push.
        """
        self._is_following, self._num_unpushed = True, 0
        pushed = self.vectors
        change = tuple(now - base for now, base in zip(pushed, self._base, strict=True))
        total = (await server.add(Parameters(epoch, 0, 1.0, change))).vectors
        self._base = tuple(first + all_ for first, all_ in zip(self._initial, total, strict=True))
        self._continue_from(self._base, pushed)
        self._is_following = False

    @contextlib.asynccontextmanager
    async def mixing(self, server: AveragingServer | None) -> AsyncIterator[None]:
        """Mix through `server` after some of the steps taken inside (None: after none); the last mix is waited for.

        Algorithm 1 with `t` counted as its loop counts it: in lines 4 to 34 each worker takes one batch, and line 30
        asks whether to average; the text of Section 4.2 calls t an epoch. No worker waits: it trains on while its
        parameters are under way, and keeps what it learned meanwhile.
        """
        self._server = server
        try:
            yield
            if self._mix_under_way is not None:
                await self._mix_under_way
        finally:
            self._server = None
            if self._mix_under_way is not None:
                self._mix_under_way.cancel()
                self._mix_under_way = None

    def _mix_when_due(self, server: AveragingServer) -> None:
        config, under_way = self._config, self._mix_under_way
        self._num_steps += 1
        self._is_due = self._is_due or syncs(self._num_steps, config.sync_interval, config.sync_schedule)
        if not self._is_due or (under_way is not None and not under_way.done()):
            return
        if under_way is not None:
            under_way.result()
        self._is_due = False
        self._mix_under_way = asyncio.ensure_future(self._mix(server))

    async def _mix(self, server: AveragingServer) -> None:
        pushed = self.vectors
        mean = (await server.mix(Parameters(0, self._num_steps, 1.0, pushed))).vectors
        self._continue_from(mean, pushed)

    def _continue_from(self, received: Sequence[Vector], pushed: Sequence[Vector]) -> None:
        """Go on from what was received, with what was learned since the push."""
        learned = (now - then for now, then in zip(self.vectors, pushed, strict=True))
        self.load([vector + change for vector, change in zip(received, learned, strict=True)])

    def remember(self) -> None:
        """Keep the present parameters as the best so far."""
        self._best = self.vectors

    def recall(self) -> None:
        """Go back to the best parameters."""
        if self._best is not None:
            self.load(self._best)

    def state_dict(self) -> dict[str, Any]:
        """Return models, optimisers and best parameters as plain values."""
        return {
            "networks": [network.state_dict() for network in self.networks],
            "best": None if self._best is None else list(self._best),
            "base": list(self._base),
            "num_steps": self._num_steps,
            "is_due": self._is_due,
            "newest": self._newest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for network, content in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(content)
        self._best = None if state["best"] is None else tuple(state["best"])
        self._base = tuple(state["base"])
        self._num_steps, self._is_due, self._newest = state["num_steps"], state["is_due"], state["newest"]
