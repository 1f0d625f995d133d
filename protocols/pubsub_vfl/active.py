"""An active party's worker: own features, labels, top model.

    broker ──claim: references of all parties──▶ fetch ahead ──▶ bottom, top, loss, gradients ──references──▶ broker

It computes while its reports are under way. Worker 0 also aligns the rows and evaluates.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from fedactors.data.aligning import align
from fedactors.errors import PartyLost
from fedactors.learning.metrics import task_metrics
from fedactors.learning.split_network import BottomNetwork, TopNetwork
from fedactors.privacy.mechanisms import clip_and_noise
from fedactors.runtime.base import Ref, Work
from protocols.pubsub_vfl import algorithm, models
from protocols.pubsub_vfl.algorithm import ActiveGradients
from protocols.pubsub_vfl.messages import ActiveOrders, ActiveReport, Embedding, Gradient, RowOrder
from protocols.pubsub_vfl.pairs import PairEpoch
from protocols.pubsub_vfl.passive import PassiveWorker
from protocols.pubsub_vfl.replica import Replica
from protocols.pubsub_vfl.reporting import Reports
from protocols.pubsub_vfl.rows import PartyRows
from protocols.pubsub_vfl.servers import BatchBroker
from protocols.pubsub_vfl.worker import PartyWorker, Stamp


class ActiveWorker(PartyWorker):
    """One of the active party's workers."""

    async def load(self) -> None:
        """Load the party's own rows and labels, and build its models."""
        config, optimizer = self.config, models.optimizer(self.config)
        self.rows = PartyRows(config, self._data, self.party, self._run_seed)
        bottom, top = models.bottom_spec(config, self.rows.num_features), models.top_spec(config, self._data)
        self.bottom = BottomNetwork(bottom, optimizer, self.party_seed("bottom"))
        self.top = TopNetwork(top, optimizer, self.party_seed("top"), task=self._data.task)
        self.replica = Replica(self.name, self.bottom, self.top)

    async def open(self) -> None:
        """Take a noise generator of this process."""
        config = self.config
        self._noise = self.noise_rng("gradients")
        self._sigma = algorithm.gradient_sigma(config.gradient_mu, config.gradient_clip_norm, config.num_epochs)

    async def align(self, passive_workers: tuple[str, ...]) -> int:
        """Align the rows of all parties, tell the party's other workers, and return the number of training rows."""
        peers = {name.partition("/")[0]: self.peer(name, PassiveWorker) for name in passive_workers}
        rng = self.noise_rng("row order") if self._data.alignment != "already-aligned" else self.rng("row order")
        order = await align(self.rows.block.ids, self.party, self._data.alignment, peers, rng)
        self.rows.follow(order)
        for sibling in self._siblings:
            await self.peer(sibling, ActiveWorker).take_rows(RowOrder(order))
        return self.rows.num_train

    # --- an epoch over the broker (Algorithm 1, lines 12 to 22) ---

    async def run_epoch(self, epoch: int, broker_name: str) -> dict[str, float]:
        """Train on batches whose embeddings are there until the broker says that the epoch is over.

        Returns:
            ``loss_sum`` over the rows trained on, and their number ``rows``.
        """
        work = _Epoch(self, epoch, self.peer(broker_name, BatchBroker))
        try:
            await work.run()
        finally:
            work.reports.cancel()
            work.free_all()
        return {"loss_sum": work.loss_sum, "rows": float(work.num_rows)}

    async def train_pair(
        self, epoch: int, pair: tuple[int, int], passive_workers: tuple[str, ...], servers: tuple[str, ...]
    ) -> dict[str, float]:
        """Train an epoch's share of a fixed pair, without a broker; see `PairEpoch`."""
        return await PairEpoch(self, epoch, pair, passive_workers, servers).run()

    async def gradients(self, positions: np.ndarray, embeddings: Sequence[np.ndarray]) -> ActiveGradients:
        """Return loss and gradients of one batch; those for other parties as they may leave."""
        train = self.rows.prepared.train
        assert train.labels is not None
        x_BF, target_B = train.features[positions], train.labels[positions]
        work, received = (
            Work("active-step", models.operations(len(x_BF), sum(self.replica.sizes), updates=True)),
            list(embeddings),
        )
        if not self.pooled:
            found = await self.compute(
                algorithm.active_gradients, self.bottom, self.top, x_BF, received, target_B, work=work
            )
        else:
            bottom, top = (self.bottom.spec, self.bottom.vector), (self.top.spec, self.top.vector)
            found = await self.compute(
                algorithm.active_gradients_pure, bottom, top, self._data.task, x_BF, received, target_B, work=work
            )
        leaving = tuple(self._sanitise(gradient_BE) for gradient_BE in found.embeddings)
        return ActiveGradients(found.loss, leaving, found.bottom, found.top)

    def _sanitise(self, gradient_BE: np.ndarray) -> np.ndarray:
        if self._sigma <= 0:
            return gradient_BE
        # the mean loss scales rows by 1/B: clip and noise the rows of the sum
        rows = len(gradient_BE)
        noisy = clip_and_noise(gradient_BE * rows, self.config.gradient_clip_norm, self._sigma, self._noise) / rows
        return noisy.astype(gradient_BE.dtype)

    # --- parameters, evaluation ---

    async def evaluate(self, part: str, passive_workers: tuple[str, ...]) -> dict[str, float]:
        """Return the task's metrics on the validation or test rows; a regression's RMSE is in original units."""
        peers = [self.peer(name, PassiveWorker) for name in passive_workers]
        found = await asyncio.gather(*(peer.embed_part(part) for peer in peers))
        rows = getattr(self.rows.prepared, part)
        bottom, top = self.bottom, self.top
        count = len(rows.labels)
        own = await self.compute(
            algorithm.embed_rows,
            bottom.spec,
            bottom.vector,
            rows.features,
            work=Work("bottom-forward", count * self.replica.sizes[0]),
        )
        embeddings = [own, *(part_embedding.values for part_embedding in found)]
        outputs = await self.compute(
            algorithm.top_outputs,
            top.spec,
            top.vector,
            embeddings,
            work=Work("top-forward", count * self.replica.sizes[1]),
        )
        metrics = task_metrics(self._data.task, rows.labels, outputs)
        if self._data.task == "regression":
            metrics["rmse"] *= self.rows.prepared.label_deviation
        return {name: float(value) for name, value in metrics.items() if not math.isnan(value)}

    async def noise_deviation(self) -> float:
        """Return the deviation of the noise on gradients."""
        return self._sigma


class _Epoch:
    """What an active worker has in hand during an epoch."""

    def __init__(self, worker: ActiveWorker, epoch: int, broker: BatchBroker) -> None:
        self.reports = Reports(worker.config.report_interval)
        self.loss_sum = 0.0
        self.num_rows = 0
        self._worker = worker
        self._epoch = epoch
        self._broker = broker
        self._batches = worker.rows.batches(epoch)
        self._claims: deque[tuple[Stamp, list[Embedding]]] = deque()
        self._num_fetching = 0
        self._graded: list[tuple[int, int, tuple[Ref, ...]]] = []
        self._kept: dict[Stamp, tuple[Ref, ...]] = {}
        self._finished = False

    async def run(self) -> None:
        while not (self._finished and not self._graded):
            if self._claims:
                await self._train(*self._claims.popleft())
            self._report()
            if not self._claims and not (self._finished and not self._graded):
                with self._worker.span("wait", "embedding"):
                    await self.reports.wait_for_news()
            self.reports.check()
        await self.reports.finish()

    async def _train(self, stamp: Stamp, embeddings: list[Embedding]) -> None:
        worker, (batch_id, sequence) = self._worker, stamp
        positions = self._batches[batch_id]
        found = await worker.gradients(positions, [embedding.values for embedding in embeddings])
        now = worker.clock.now()
        out = tuple(worker.put(Gradient(batch_id, self._epoch, sequence, now, g)) for g in found.embeddings)
        worker.replica.step([found.bottom, found.top])
        self.loss_sum += found.loss * len(positions)
        self.num_rows += len(positions)
        self._kept[stamp] = out
        self._graded.append((batch_id, sequence, out))

    def _report(self) -> None:
        held, now = len(self._claims) + self._num_fetching, self._worker.clock.now()
        if self.reports.may_wait(len(self._claims), now):
            return
        room = max(0, self._worker.config.prefetch - held - self.reports.room_asked)
        wait = not self._claims and not self.reports.parked and room > 0
        if not (self._graded or wait or (room and not self.reports.parked)):
            return
        report = ActiveReport(self._worker.name, tuple(self._graded), room, wait)
        self._graded.clear()
        self.reports.sent(now)
        self.reports.send(self._broker.report_active(report), room, wait, self._take)

    def _take(self, orders: ActiveOrders) -> None:
        self._finished = self._finished or orders.finished
        for batch_id, sequence, refs in orders.claims:
            self._num_fetching += 1
            self.reports.start(self._fetch((batch_id, sequence), refs))
        for stamp in orders.released:
            self._free(stamp)

    async def _fetch(self, stamp: Stamp, refs: tuple[Ref, ...]) -> None:
        try:
            embeddings = list(await asyncio.gather(*(self._worker.get(ref) for ref in refs)))
        except (KeyError, PartyLost):
            # its publisher is gone or has abandoned it: the broker assigns the batch anew
            self._graded.append((*stamp, ()))
        else:
            self._claims.append((stamp, embeddings))
        finally:
            self._num_fetching -= 1

    def _free(self, stamp: Stamp) -> None:
        for ref in self._kept.pop(stamp, ()):
            self._worker.free(ref)

    def free_all(self) -> None:
        """Free the gradients that nobody fetched."""
        for stamp in list(self._kept):
            self._free(stamp)
