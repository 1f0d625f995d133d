"""The workers of PubSub-VFL: they unpack a message, call a function of `algorithm`, pack a message.

Both kinds report to the broker what they have finished *before* they compute on what they hold, and read its answer
afterwards, so that the broker's latency hides behind the computation. Names are "party/worker-i"; worker 0 of a party
also aligns its rows and answers for the party at evaluations.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fedactors.data.aligning import AlignmentAnswer, AlignmentOrder, AlignmentQuestion, align, answer, follow
from fedactors.data.blocks import PreparedBlock, prepare, split
from fedactors.data.partitions import VerticalData
from fedactors.errors import PartyLost
from fedactors.learning.metrics import task_metrics
from fedactors.learning.split_network import BottomNetwork, TopNetwork
from fedactors.privacy.mechanisms import clip_and_noise, clip_rows_backward
from fedactors.roles import Client
from fedactors.runtime.base import Ref, Work
from protocols.pubsub_vfl import algorithm, models
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import (
    ActiveReport,
    Embedding,
    Gradient,
    Parameters,
    PartEmbedding,
    PassiveReport,
    RowOrder,
)
from protocols.pubsub_vfl.servers import AveragingServer, BatchBroker

_AHEAD = 2
"""Batches that a worker holds beyond the one it computes on."""
_EVALUATION_ROWS = 8192


class PassiveWorker(Client):
    """One of a passive party's workers.

    Args:
        config: the run's settings.
        data: who holds what; only the own party's source is loaded.
        run_seed: shared by all parties, for the split and the batches.
        siblings: the party's other workers.
    """

    state: ClassVar[tuple[str, ...]] = ("rows", "bottom", "num_releases", "best")

    def __init__(self, config: PubSubVflConfig, data: VerticalData, run_seed: int, siblings: Sequence[str]) -> None:
        self._config = config
        self._data = data
        self._run_seed = run_seed
        self._siblings = tuple(siblings)
        self.rows: np.ndarray | None = None
        self.num_releases = 0
        self.best: np.ndarray | None = None
        self._sigma = 0.0
        self._gradient_in_flight: dict[tuple[int, int], tuple[Any, np.ndarray, Ref | None]] = {}

    async def load(self) -> None:
        """Load the party's own rows and build its bottom model."""
        self._block = self._data.load(self.party)
        features = self._block.features.shape[1]
        self.bottom = BottomNetwork(
            models.bottom_spec(self._config, features), models.optimizer(self._config), self.party_seed("bottom")
        )

    async def open(self) -> None:
        """Prepare the rows when they come from a snapshot."""
        self._noise = self.noise_rng("embeddings")
        if self.rows is not None:
            self._prepare(self.rows)

    def _prepare(self, rows: np.ndarray) -> None:
        self.rows = rows
        self._prepared = prepare_rows(self._config, self._data, self._block, rows, self._run_seed)
        config, num_rows = self._config, len(self._prepared.train.features)
        self._sigma = algorithm.embedding_sigma(
            config.privacy_mu, config.clip_norm, config.batch_size, num_rows, config.num_epochs
        )

    # --- alignment ---

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the active party's alignment question."""
        return answer(self._block.ids, question)

    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order, and tell the party's other workers."""
        rows = follow(self._block.ids, order)
        self._prepare(rows)
        for sibling in self._siblings:
            await self.peer(sibling, PassiveWorker).take_rows(RowOrder(rows))

    async def take_rows(self, order: RowOrder) -> None:
        """Take the row order from the party's worker 0."""
        self._prepare(order.rows)

    # --- an epoch over the broker ---

    async def run_epoch(self, epoch: int, broker_name: str) -> dict[str, Any]:
        """Embed batches and apply their gradients until the broker says that the epoch is over."""
        broker = self.peer(broker_name, BatchBroker)
        batches = self._batches(epoch)
        todo: deque[tuple[int, int]] = deque()
        gradients: deque[tuple[int, int, Ref]] = deque()
        published: list[tuple[int, int, Ref]] = []
        done: list[tuple[int, int]] = []
        num_dropped = num_applied = 0
        self.num_releases += 1
        while True:
            idle = not todo and not gradients
            report = PassiveReport(self.name, tuple(published), tuple(done), max(0, _AHEAD - len(todo)), idle)
            answer = asyncio.ensure_future(broker.report_passive(report))
            published.clear()
            done.clear()
            if idle:
                with self.span("wait", "gradient"):
                    await answer
            elif gradients:
                batch_id, sequence, ref = gradients.popleft()
                if await self._backward(batch_id, sequence, ref):
                    done.append((batch_id, sequence))
                    num_applied += 1
            if todo:
                batch_id, sequence = todo.popleft()
                published.append((batch_id, sequence, await self._publish(batches[batch_id], batch_id, sequence)))
            orders = await answer
            todo.extend(orders.assigned)
            gradients.extend(orders.gradients)
            num_dropped += len(orders.abandoned)
            for stamp in orders.abandoned:
                todo = deque(item for item in todo if item != stamp)
                gradients = deque(item for item in gradients if item[:2] != stamp)
                self._forget(stamp)
            if orders.finished and not done:
                break
        for stamp in list(self._gradient_in_flight):
            self._forget(stamp)
        self.num_releases += num_dropped > 0
        return {"applied": num_applied, "dropped": num_dropped}

    async def _publish(self, positions: np.ndarray, batch_id: int, sequence: int) -> Ref:
        publication, values = await self._forward(self._prepared.train.features[positions])
        ref = self.put(Embedding(batch_id, sequence, self._sanitise(values)))
        self._gradient_in_flight[(batch_id, sequence)] = (publication, values, ref)
        return ref

    async def _backward(self, batch_id: int, sequence: int, ref: Ref) -> bool:
        found = self._gradient_in_flight.pop((batch_id, sequence), None)
        if found is None:
            return False
        publication, values, own_ref = found
        if own_ref is not None:
            self.free(own_ref)
        try:
            message: Gradient = await self.get(ref)
        except (KeyError, PartyLost):
            return False  # the active worker is gone or the batch was abandoned: the broker assigns it anew
        await self._apply(publication, values, message.values)
        return True

    def _forget(self, stamp: tuple[int, int]) -> None:
        found = self._gradient_in_flight.pop(stamp, None)
        if found is not None and found[2] is not None:
            self.free(found[2])

    # --- one batch at a time, for synchronous algorithms ---

    async def step_and_embed(self, epoch: int, gradient: Gradient | None, batch_id: int) -> Embedding | None:
        """Apply the gradient of the batch before, if any, and return the embedding of `batch_id` (none if < 0)."""
        if gradient is not None:
            publication, values, _ = self._gradient_in_flight.pop((gradient.batch_id, gradient.sequence))
            await self._apply(publication, values, gradient.values)
        if batch_id < 0:
            return None
        self.num_releases += batch_id == 0
        positions = self._batches(epoch)[batch_id]
        publication, values = await self._forward(self._prepared.train.features[positions])
        self._gradient_in_flight[(batch_id, 1)] = (publication, values, None)
        return Embedding(batch_id, 1, self._sanitise(values))

    # --- the arithmetic of a batch ---

    async def _forward(self, x_BF: np.ndarray) -> tuple[Any, np.ndarray]:
        work = Work("bottom-forward", len(x_BF))
        if not self.pooled:
            return await self.compute(algorithm.forward, self.bottom, x_BF, work=work)
        vector = self.bottom.vector
        values = await self.compute(algorithm.forward_pure, self.bottom.spec, vector, x_BF, work=work)
        return (vector, x_BF), values

    async def _apply(self, publication: Any, values: np.ndarray, gradient_BE: np.ndarray) -> None:
        if self._sigma > 0:
            gradient_BE = clip_rows_backward(values, gradient_BE, self._config.clip_norm)
        work = Work("bottom-backward", len(gradient_BE))
        if not self.pooled:
            await self.compute(algorithm.backward, self.bottom, publication, gradient_BE, work=work)
            return
        vector, x_BF = publication
        found = await self.compute(algorithm.backward_pure, self.bottom.spec, vector, x_BF, gradient_BE, work=work)
        self.bottom.apply(found)

    def _sanitise(self, values: np.ndarray) -> np.ndarray:
        if self._sigma <= 0:
            return values
        noisy: np.ndarray = clip_and_noise(values, self._config.clip_norm, self._sigma, self._noise)
        return noisy.astype(values.dtype)

    def _batches(self, epoch: int) -> list[np.ndarray]:
        num_rows = len(self._prepared.train.features)
        return algorithm.batches(num_rows, self._config.batch_size, self._run_seed, epoch)

    # --- parameters, evaluation ---

    async def sync(self, epoch: int, server_name: str) -> None:
        """Push the bottom's parameters and load the party's average."""
        server = self.peer(server_name, AveragingServer)
        with self.span("wait", "average"):
            average = await server.push(Parameters(self.name, epoch, (self.bottom.vector,)))
        self.bottom.load(average.vectors[0])

    async def embed_part(self, part: str) -> PartEmbedding:
        """Return the embeddings of the validation or test rows, released under the same noise as in training."""
        rows = getattr(self._prepared, part).features
        work = Work("bottom-forward", len(rows))
        values = await self.compute(embed_rows, self.bottom.spec, self.bottom.vector, rows, work=work)
        return PartEmbedding(part, self._sanitise(values))

    async def remember(self) -> None:
        """Keep the present parameters as the best so far."""
        self.best = self.bottom.vector

    async def recall(self) -> None:
        """Go back to the best parameters."""
        if self.best is not None:
            self.bottom.load(self.best)

    async def privacy_facts(self) -> dict[str, float]:
        """Return the noise deviation used and how often a training row was released."""
        return {"sigma": self._sigma, "releases": float(self.num_releases)}


class ActiveWorker(Client):
    """One of the active party's workers: own features, labels, top model. Arguments as for `PassiveWorker`."""

    state: ClassVar[tuple[str, ...]] = ("rows", "bottom", "top", "best", "num_gradient_releases")

    def __init__(self, config: PubSubVflConfig, data: VerticalData, run_seed: int, siblings: Sequence[str]) -> None:
        self._config = config
        self._data = data
        self._run_seed = run_seed
        self._siblings = tuple(siblings)
        self.rows: np.ndarray | None = None
        self.best: tuple[np.ndarray, np.ndarray] | None = None
        self.num_gradient_releases = 0
        self._sigma = 0.0

    async def load(self) -> None:
        """Load the party's own rows and labels, and build its models."""
        self._block = self._data.load(self.party)
        features = self._block.features.shape[1]
        config, spec = self._config, models.optimizer(self._config)
        self.bottom = BottomNetwork(models.bottom_spec(config, features), spec, self.party_seed("bottom"))
        self.top = TopNetwork(models.top_spec(config, self._data), spec, self.party_seed("top"), task=self._data.task)

    async def open(self) -> None:
        """Prepare the rows when they come from a snapshot."""
        self._noise = self.noise_rng("gradients")
        config = self._config
        self._sigma = algorithm.gradient_sigma(config.gradient_mu, config.gradient_clip_norm, config.num_epochs)
        if self.rows is not None:
            self._prepare(self.rows)

    def _prepare(self, rows: np.ndarray) -> None:
        self.rows = rows
        self._prepared = prepare_rows(self._config, self._data, self._block, rows, self._run_seed)

    async def align(self, passive_workers: tuple[str, ...]) -> int:
        """Align the rows of all parties, tell the party's other workers, and return the number of training rows."""
        peers = {name.partition("/")[0]: self.peer(name, PassiveWorker) for name in passive_workers}
        rng = self.noise_rng("row order") if self._data.alignment != "already-aligned" else self.rng("row order")
        order = await align(self._block.ids, self.party, self._data.alignment, peers, rng)
        self._prepare(order)
        for sibling in self._siblings:
            await self.peer(sibling, ActiveWorker).take_rows(RowOrder(order))
        return len(self._prepared.train.features)

    async def take_rows(self, order: RowOrder) -> None:
        """Take the row order from the party's worker 0."""
        self._prepare(order.rows)

    async def run_epoch(self, epoch: int, broker_name: str) -> dict[str, float]:
        """Train on batches whose embeddings are there until the broker says that the epoch is over."""
        broker = self.peer(broker_name, BatchBroker)
        batches = self._batches(epoch)
        claims: deque[tuple[int, int, tuple[Ref, ...]]] = deque()
        graded: list[tuple[int, int, tuple[Ref, ...]]] = []
        kept: dict[tuple[int, int], tuple[Ref, ...]] = {}
        loss_sum, num_rows = 0.0, 0
        self.num_gradient_releases += 1
        while True:
            idle = not claims
            report = ActiveReport(self.name, tuple(graded), max(0, _AHEAD - len(claims)), idle)
            answer = asyncio.ensure_future(broker.report_active(report))
            graded.clear()
            if idle:
                with self.span("wait", "embedding"):
                    await answer
            else:
                batch_id, sequence, refs = claims.popleft()
                trained = await self._train(batches[batch_id], batch_id, sequence, refs)
                if trained is not None:
                    loss, out = trained
                    loss_sum += loss * len(batches[batch_id])
                    num_rows += len(batches[batch_id])
                    kept[(batch_id, sequence)] = out
                    graded.append((batch_id, sequence, out))
                else:
                    graded.append((batch_id, sequence, ()))
            orders = await answer
            claims.extend(orders.claims)
            for stamp in orders.released:
                for ref in kept.pop(stamp, ()):
                    self.free(ref)
            if orders.finished and not graded:
                break
        for refs in kept.values():
            for ref in refs:
                self.free(ref)
        return {"loss_sum": loss_sum, "rows": float(num_rows)}

    async def _train(
        self, positions: np.ndarray, batch_id: int, sequence: int, refs: tuple[Ref, ...]
    ) -> tuple[float, tuple[Ref, ...]] | None:
        try:
            embeddings: list[Embedding] = [await self.get(ref) for ref in refs]
        except (KeyError, PartyLost):
            return None  # its publisher is gone or has abandoned it: the broker assigns the batch anew
        loss, gradients = await self._step(positions, [e.values for e in embeddings])
        return loss, tuple(self.put(Gradient(batch_id, sequence, g)) for g in gradients)

    async def _step(self, positions: np.ndarray, embeddings: list[np.ndarray]) -> tuple[float, tuple[np.ndarray, ...]]:
        train = self._prepared.train
        assert train.labels is not None
        x_BF, target_B = train.features[positions], train.labels[positions]
        work = Work("active-step", len(x_BF))
        if not self.pooled:
            loss, gradients = await self.compute(
                algorithm.active_step, self.bottom, self.top, x_BF, embeddings, target_B, work=work
            )
        else:
            bottom, top = (self.bottom.spec, self.bottom.vector), (self.top.spec, self.top.vector)
            found, own = await self.compute(
                algorithm.active_gradients, bottom, top, self._data.task, x_BF, embeddings, target_B, work=work
            )
            self.top.apply(found.gradient)
            self.bottom.apply(own)
            loss, gradients = found.loss, found.embedding_gradients[1:]
        return loss, tuple(self._sanitise(g) for g in gradients)

    def _sanitise(self, gradient_BE: np.ndarray) -> np.ndarray:
        if self._sigma <= 0:
            return gradient_BE
        # the mean loss scales rows by 1/B: clip and noise the rows of the sum
        rows = len(gradient_BE)
        noisy = clip_and_noise(gradient_BE * rows, self._config.gradient_clip_norm, self._sigma, self._noise) / rows
        return noisy.astype(gradient_BE.dtype)

    async def run_epoch_synchronously(self, epoch: int, passive_workers: tuple[str, ...]) -> dict[str, float]:
        """Train the epoch's batches one after the other with one worker of each passive party (plain VFL)."""
        peers = [self.peer(name, PassiveWorker) for name in passive_workers]
        batches = self._batches(epoch)
        outgoing: list[Gradient | None] = [None] * len(peers)
        loss_sum = 0.0
        self.num_gradient_releases += 1
        for batch_id in range(len(batches) + 1):
            following = batch_id if batch_id < len(batches) else -1
            with self.span("wait", "embedding"):
                found = await asyncio.gather(
                    *(p.step_and_embed(epoch, g, following) for p, g in zip(peers, outgoing, strict=True))
                )
            if following < 0:
                break
            loss, gradients = await self._step(batches[batch_id], [e.values for e in found if e is not None])
            loss_sum += loss * len(batches[batch_id])
            outgoing = [Gradient(batch_id, 1, g) for g in gradients]
        return {"loss_sum": loss_sum, "rows": float(len(self._prepared.train.features))}

    def _batches(self, epoch: int) -> list[np.ndarray]:
        num_rows = len(self._prepared.train.features)
        return algorithm.batches(num_rows, self._config.batch_size, self._run_seed, epoch)

    async def sync(self, epoch: int, server_name: str) -> None:
        """Push both models' parameters and load the party's average."""
        server = self.peer(server_name, AveragingServer)
        with self.span("wait", "average"):
            average = await server.push(Parameters(self.name, epoch, (self.bottom.vector, self.top.vector)))
        self.bottom.load(average.vectors[0])
        self.top.load(average.vectors[1])

    async def evaluate(self, part: str, passive_workers: tuple[str, ...]) -> dict[str, float]:
        """Return the task's metrics on the validation or test rows; a regression's RMSE is in original units."""
        peers = [self.peer(name, PassiveWorker) for name in passive_workers]
        found = await asyncio.gather(*(peer.embed_part(part) for peer in peers))
        rows = getattr(self._prepared, part)
        own = await self.compute(
            embed_rows,
            self.bottom.spec,
            self.bottom.vector,
            rows.features,
            work=Work("bottom-forward", len(rows.labels)),
        )
        outputs = self.top.output([own, *(f.values for f in found)])
        metrics = task_metrics(self._data.task, rows.labels, outputs)
        if self._data.task == "regression":
            metrics["rmse"] *= self._prepared.label_deviation
        return {name: float(value) for name, value in metrics.items() if not math.isnan(value)}

    async def remember(self) -> None:
        """Keep the present parameters as the best so far."""
        self.best = (self.bottom.vector, self.top.vector)

    async def recall(self) -> None:
        """Go back to the best parameters."""
        if self.best is not None:
            self.bottom.load(self.best[0])
            self.top.load(self.best[1])


def embed_rows(spec: Any, vector_P: np.ndarray, x_NF: np.ndarray) -> np.ndarray:
    """Return the embeddings of many rows, computed in slices to bound memory."""
    slices = range(0, len(x_NF), _EVALUATION_ROWS)
    return np.concatenate([algorithm.forward_pure(spec, vector_P, x_NF[s : s + _EVALUATION_ROWS]) for s in slices])


def prepare_rows(
    config: PubSubVflConfig, data: VerticalData, block: Any, rows: np.ndarray, run_seed: int
) -> PreparedBlock:
    """Bring a party's rows into the common order, split and standardise them."""
    parts = split(len(rows), seed=run_seed, test_share=config.test_share, validation_share=config.validation_share)
    return prepare(block, rows, parts, data.task)
