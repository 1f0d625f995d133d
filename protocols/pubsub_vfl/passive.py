"""A passive party's worker: it unpacks a message, calls a function of `algorithm`, packs a message.

    broker ──assigned──▶ embed ──reference──▶ broker                   (it computes while its reports are under way)
    broker ──gradient reference──▶ fetch ahead ──▶ back-propagate ──acknowledgement──▶ broker

In the algorithms of fixed pairs its active partner asks for one embedding after the other instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedactors.data.aligning import AlignmentAnswer, AlignmentOrder, AlignmentQuestion, answer, follow
from fedactors.data.partitions import VerticalData
from fedactors.errors import PartyLost
from fedactors.learning.split_network import BottomNetwork
from fedactors.privacy.mechanisms import clip_and_noise, clip_rows_backward
from fedactors.runtime.base import Ref, Work
from protocols.pubsub_vfl import algorithm, models
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import (
    Embedding,
    Gradient,
    PairRequest,
    PartEmbedding,
    PassiveOrders,
    PassiveReport,
    RowOrder,
)
from protocols.pubsub_vfl.replica import Replica
from protocols.pubsub_vfl.reporting import Reports
from protocols.pubsub_vfl.rows import PartyRows
from protocols.pubsub_vfl.servers import AveragingServer, BatchBroker
from protocols.pubsub_vfl.worker import PartyWorker, Stamp


class PassiveWorker(PartyWorker):
    """One of a passive party's workers."""

    def __init__(self, config: PubSubVflConfig, data: VerticalData, run_seed: int, siblings: Sequence[str]) -> None:
        super().__init__(config, data, run_seed, siblings)
        self._publications: dict[Stamp, tuple[Any, np.ndarray, Ref | None]] = {}
        self._step = 0

    async def load(self) -> None:
        """Load the party's own rows and build its bottom model."""
        self.rows = PartyRows(self.config, self._data, self.party, self._run_seed)
        spec = models.bottom_spec(self.config, self.rows.num_features)
        self.bottom = BottomNetwork(spec, models.optimizer(self.config), self.party_seed("bottom"))
        self.replica = Replica(self.name, self.bottom)

    async def open(self) -> None:
        """Take a noise generator of this process."""
        self._noise = self.noise_rng("embeddings")

    # --- alignment ---

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the active party's alignment question."""
        return answer(self.rows.block.ids, question)

    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order, and tell the party's other workers."""
        rows = follow(self.rows.block.ids, order)
        self.rows.follow(rows)
        for sibling in self._siblings:
            await self.peer(sibling, PassiveWorker).take_rows(RowOrder(rows))

    # --- an epoch over the broker (Algorithm 1, lines 5 to 11 and 23 to 28) ---

    async def run_epoch(self, epoch: int, broker_name: str) -> None:
        """Embed batches and apply their gradients until the broker says that the epoch is over."""
        work = _Epoch(self, epoch, self.peer(broker_name, BatchBroker))
        try:
            await work.run()
        finally:
            work.reports.cancel()
            for stamp in list(self._publications):
                self.forget(stamp)

    async def publish(self, epoch: int, batch_id: int, sequence: int, positions: np.ndarray) -> Ref:
        """Embed a batch and return a reference to the embedding, for the broker."""
        embedding = await self.embed(epoch, batch_id, sequence, positions)
        ref = self.put(embedding)
        publication, values, _ = self._publications[batch_id, sequence]
        self._publications[batch_id, sequence] = (publication, values, ref)
        return ref

    async def embed(self, epoch: int, batch_id: int, sequence: int, positions: np.ndarray) -> Embedding:
        """Embed a batch and keep its publication for its gradient."""
        publication, values = await self._forward(positions)
        self._publications[batch_id, sequence] = (publication, values, None)
        return Embedding(batch_id, epoch, sequence, self.clock.now(), self._sanitise(values))

    async def backward(self, gradient: Gradient, positions: np.ndarray | None = None) -> np.ndarray | None:
        """Return the flat gradient through the publication that `gradient` belongs to.

        Args:
            gradient: as the active party sent it.
            positions: the batch; when given, a publication that was given up is computed again at the present
                parameters. Otherwise the result is then None.
        """
        found = self._publications.pop((gradient.batch_id, gradient.sequence), None)
        if found is None:
            if positions is None:
                return None
            found = (*await self._forward(positions), None)
        publication, values, ref = found
        if ref is not None:
            self.free(ref)
        gradient_BE = gradient.values
        if self._sigma > 0:
            gradient_BE = clip_rows_backward(values, gradient_BE, self.config.clip_norm)
        work = Work("bottom-backward", self._operations(len(gradient_BE), updates=True))
        if not self.pooled:
            return await self.compute(algorithm.backward, self.bottom, publication, gradient_BE, work=work)
        vector, x_BF = publication
        return await self.compute(algorithm.backward_pure, self.bottom.spec, vector, x_BF, gradient_BE, work=work)

    def forget(self, stamp: Stamp) -> None:
        """Give up a publication."""
        found = self._publications.pop(stamp, None)
        if found is not None and found[2] is not None:
            self.free(found[2])

    async def _forward(self, positions: np.ndarray) -> tuple[Any, np.ndarray]:
        x_BF = self.rows.prepared.train.features[positions]
        work = Work("bottom-forward", self._operations(len(x_BF)))
        if not self.pooled:
            return await self.compute(algorithm.forward, self.bottom, x_BF, work=work)
        vector = self.bottom.vector
        values = await self.compute(algorithm.forward_pure, self.bottom.spec, vector, x_BF, work=work)
        return (vector, x_BF), values

    def _operations(self, num_rows: int, *, updates: bool = False) -> float:
        return models.operations(num_rows, self.replica.sizes[0], updates=updates)

    @property
    def _sigma(self) -> float:
        return algorithm.embedding_sigma(self.config, self.rows.num_train)

    def _sanitise(self, values: np.ndarray) -> np.ndarray:
        if self._sigma <= 0:
            return values
        noisy: np.ndarray = clip_and_noise(values, self.config.clip_norm, self._sigma, self._noise)
        return noisy.astype(values.dtype)

    # --- one call per batch, for the algorithms of fixed pairs ---

    async def step_and_embed(self, request: PairRequest, server_name: str) -> Embedding | None:
        """Apply the gradient that the request carries, and return the embedding that it asks for."""
        config, gradient = self.config, request.gradient
        if gradient is not None:
            step = self._step = self._step + 1
            found = await self.backward(gradient) if len(gradient.values) else None
            own = [] if found is None else [found]
            if config.algorithm == "vfl-ps" and server_name:
                server = self.peer(server_name, AveragingServer)
                await self.replica.step_together(own, len(gradient.values), server, request.epoch, step)
            elif config.algorithm == "avfl-ps" and server_name:
                server = self.peer(server_name, AveragingServer)
                await self.replica.step_shared(own, server, request.epoch, config.push_every)
            else:
                self.replica.step(own)
        if request.batch_id < 0:
            return None
        return await self.embed(request.epoch, request.batch_id, 1, self.rows.batches(request.epoch)[request.batch_id])

    # --- parameters, evaluation ---

    async def embed_part(self, part: str) -> PartEmbedding:
        """Return the embeddings of the validation or test rows, released under the same noise as in training."""
        x_NF = getattr(self.rows.prepared, part).features
        work = Work("bottom-forward", self._operations(len(x_NF)))
        values = await self.compute(algorithm.embed_rows, self.bottom.spec, self.bottom.vector, x_NF, work=work)
        return PartEmbedding(part, self._sanitise(values))

    async def noise_deviation(self) -> float:
        """Return the deviation of the noise on embeddings."""
        return self._sigma


class _Epoch:
    """What a passive worker has in hand during an epoch."""

    def __init__(self, worker: PassiveWorker, epoch: int, broker: BatchBroker) -> None:
        self.reports = Reports(worker.config.report_interval)
        self._worker = worker
        self._epoch = epoch
        self._broker = broker
        self._batches = worker.rows.batches(epoch)
        self._applies_stale = worker.config.stale_gradients == "apply"
        self._todo: deque[Stamp] = deque()
        self._gradients: deque[Gradient] = deque()
        self._published: list[tuple[int, int, Ref]] = []
        self._done: list[Stamp] = []
        self._abandoned: set[Stamp] = set()
        self._finished = False

    async def run(self) -> None:
        while not (self._finished and not self._done):
            if self._gradients:
                await self._apply(self._gradients.popleft())
            if self._todo:
                batch_id, sequence = self._todo.popleft()
                ref = await self._worker.publish(self._epoch, batch_id, sequence, self._batches[batch_id])
                if (batch_id, sequence) in self._abandoned:
                    self._worker.forget((batch_id, sequence))
                else:
                    self._published.append((batch_id, sequence, ref))
            self._report()
            if not self._gradients and not self._todo and not (self._finished and not self._done):
                with self._worker.span("wait", "gradient"):
                    await self.reports.wait_for_news()
            self.reports.check()
        await self.reports.finish()

    async def _apply(self, gradient: Gradient) -> None:
        stamp = (gradient.batch_id, gradient.sequence)
        again = self._batches[gradient.batch_id] if self._applies_stale else None
        found = await self._worker.backward(gradient, again)
        if found is not None:
            self._worker.replica.step([found])
            self._done.append(stamp)

    def _report(self) -> None:
        held, now = len(self._todo) + len(self._gradients), self._worker.clock.now()
        if self.reports.may_wait(held, now):
            return
        room = max(0, self._worker.config.prefetch - len(self._todo) - self.reports.room_asked)
        wait = not held and not self.reports.parked
        if not (self._published or self._done or wait or (room and not self.reports.parked)):
            return
        report = PassiveReport(self._worker.name, tuple(self._published), tuple(self._done), room, wait)
        self._published.clear()
        self._done.clear()
        self.reports.sent(now)
        self.reports.send(self._broker.report_passive(report), room, wait, self._take)

    def _take(self, orders: PassiveOrders) -> None:
        self._finished = self._finished or orders.finished
        for stamp in orders.abandoned:
            self._abandoned.add(stamp)
            self._worker.forget(stamp)
        self._todo = deque(s for s in (*self._todo, *orders.assigned) if s not in self._abandoned)
        for batch_id, sequence, ref in orders.gradients:
            if self._applies_stale or (batch_id, sequence) not in self._abandoned:
                self.reports.start(self._fetch(ref))

    async def _fetch(self, ref: Ref) -> None:
        try:
            self._gradients.append(await self._worker.get(ref))
        except (KeyError, PartyLost):
            return  # the active worker is gone or the batch was abandoned: the broker assigns it anew
