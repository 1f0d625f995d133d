"""The paper's baselines (Section 5.1): fixed pairs of an active worker and one worker of each passive party, no broker.

    active worker ──gradient of batch k, "embed batch k + depth"──▶ passive workers ──embedding──▶ active worker

Pair i of w trains the batches i, i + w, i + 2w, ... over the same models, batches, messages and costs as PubSub-VFL. No
deadline, no re-assignment: a slow pair finishes its own share.

    vfl       one pair, depth 1: one round trip per batch, in which a passive worker applies the gradient of one batch
              and embeds the next; the active worker sends gradients before it goes back through its own bottom, and
              embeds its own rows of the next batch while it waits
    vfl-ps    w pairs, depth 1; one step for all of them on the mean gradient by rows, as of one worker on the w batches
              together: all replicas stay equal
    avfl      one pair, `embedding_buffer` batches in flight: gradients come back for embeddings of older parameters
    avfl-ps   w pairs with such a window each; a worker steps on its own gradients, and after `push_every` batches
              pushes the change to its party's parameter server and goes on from the sum of all workers' changes
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from fedactors.actors.context import Work
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.learning.network import on_host
from fedactors.learning.split_learning import Publication, TopGradient, loss_gradients
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PartyWorker, PassiveWorker
from fedactors.protocols.pubsub_vfl.data import num_batches
from fedactors.protocols.pubsub_vfl.messages import Embedding, EpochLoss, Gradient, PairOrder, PairRequest, Stamp
from fedactors.protocols.pubsub_vfl.replicas import AveragingServer

Array = np.ndarray
Share = tuple[int, int]
"""An epoch and the number of a batch (-1: none)."""
Ask = Callable[[Sequence[Gradient | None], Share], "asyncio.Future[list[Embedding | None]]"]
"""Sends each passive partner its gradient and which batch to embed; the answers are embeddings."""


class LocalStepper:
    """Steps on the own gradients, here or at the server: vfl, avfl, and where servers average or step for workers."""

    def __init__(self, worker: PartyWorker) -> None:
        self._worker = worker

    async def step(self, epoch: int, gradients: Sequence[Array | Tensor], num_rows: int) -> None:
        """Follow the gradients of a batch of so many rows."""
        await self._worker.step(gradients, epoch)

    async def finish(self) -> None:
        """Wait for what is under way."""


class MeanStepper(LocalStepper):
    """Steps on the mean gradient of all workers of the party: vfl-ps."""

    def __init__(self, worker: PartyWorker, server: AveragingServer) -> None:
        super().__init__(worker)
        self._server = server
        self._num_steps = 0

    async def step(self, epoch: int, gradients: Sequence[Array | Tensor], num_rows: int) -> None:
        """Give a gradient (of no rows: none), and step on the mean."""
        self._num_steps += 1
        await self._worker.replica.step_together(gradients, num_rows, self._server, epoch, self._num_steps)


class Shared(LocalStepper):
    """Steps, and pushes the change after some steps: avfl-ps.

    Args:
        worker: whose steps they are.
        server: of its party.
        ahead: whether the next batch is computed while parameters are pushed and pulled.
    """

    def __init__(self, worker: PartyWorker, server: AveragingServer, *, ahead: bool) -> None:
        super().__init__(worker)
        self._server = server
        self._ahead = ahead
        self._push: asyncio.Future[None] | None = None

    async def step(self, epoch: int, gradients: Sequence[Array | Tensor], num_rows: int) -> None:
        """Step, and follow the other workers if it is time."""
        replica = self._worker.replica
        replica.step(gradients)
        if replica.must_follow(self._worker.config.push_every):
            await self.finish()
            self._push = asyncio.ensure_future(replica.follow(self._server, epoch))
            if not self._ahead:
                await self.finish()

    async def finish(self) -> None:
        """Wait for the push that is under way."""
        if self._push is not None:
            await self._push


def stepping(worker: PartyWorker, *, ahead: bool) -> LocalStepper:
    """Return how a worker follows its gradients."""
    config, server = worker.config, worker.server
    if server is not None and config.steps_together:
        return MeanStepper(worker, server)
    if server is not None and config.pushes:
        return Shared(worker, server, ahead=ahead)
    return LocalStepper(worker)


class PairedPassiveWorker(PassiveWorker):
    """A passive party's worker in a pair: its active partner asks for one embedding after the other."""

    async def open(self) -> None:
        """Begin to count steps, in this process."""
        await super().open()
        self._stepping = stepping(self, ahead=False)

    @property
    def num_requests(self) -> int:
        """How often its partner asks in a run: for each batch, and in the end of each turn for what is in flight."""
        config = self.config
        return config.num_epochs * (num_batches(self.rows.num_train, config.batch_size) + config.embedding_buffer)

    @remote(caller=CLIENT, only="label_party", at_most="num_requests")
    async def step_and_embed(self, request: PairRequest) -> Embedding | None:
        """Apply the gradient that the request carries, and return the embedding that it asks for."""
        gradient = request.gradient
        self.begin_epoch(request.epoch)
        if gradient is not None:
            num_rows = gradient.values.shape[0]
            found = await self._backward(gradient) if num_rows else None
            await self._stepping.step(request.epoch, [] if found is None else [found], num_rows)
        if request.batch_id < 0:
            return None
        if not self.keeps_releases:
            epoch, last = request.epoch, self.config.num_epochs
            self.release("the embeddings of batch", request.batch_id, round=epoch, last_round=last)
        positions = self.rows.batches(request.epoch)[request.batch_id]
        return await self._embed(request.epoch, (request.batch_id, 1), positions)

    def _key(self, epoch: int, stamp: Stamp) -> Stamp:
        # a batch's number comes again in the next epoch, whose request may overtake the gradient of this one
        return stamp[0], epoch


class PairedActiveWorker(ActiveWorker):
    """An active party's worker in a pair."""

    @remote(caller=DRIVER, at_most="most_epochs", of="epoch", span="num_epochs")
    async def train_pair(self, order: PairOrder) -> EpochLoss:
        """Train the pair's share of an epoch."""
        config, last = self.config, order.epoch
        peers = [self.peer(f"{p}/worker-{order.pair}", PairedPassiveWorker) for p in self._data.passive_parties]
        mine: list[Share] = []
        for epoch in range(last - order.num_epochs + 1, last + 1):
            batches = self.rows.batches(epoch)
            share = list(range(order.pair, len(batches), order.num_pairs))
            if config.steps_together:
                # every pair takes part in the last step that all take together
                share += [-1] * (-(-len(batches) // order.num_pairs) - len(share))
            mine += [(epoch, batch_id) for batch_id in share]

        def ask(gradients: Sequence[Gradient | None], share: Share) -> asyncio.Future[list[Embedding | None]]:
            requests = (PairRequest(share[0], gradient, share[1]) for gradient in gradients)
            return asyncio.gather(*(p.step_and_embed(request) for p, request in zip(peers, requests, strict=True)))

        train = self._train_window if config.is_asynchronous else self._train_in_turn
        return await train(mine, ask, stepping(self, ahead=True))

    async def _train_in_turn(self, mine: Sequence[Share], ask: Ask, steps: LocalStepper) -> EpochLoss:
        """One batch after the other; one's own bottom model works while an embedding or a gradient is under way."""
        loss_sum, num_rows = 0.0, 0
        nothing = [None] * len(self._data.passive_parties)
        answer = ask(nothing, mine[0]) if mine else None
        for (epoch, batch_id), following in zip(mine, _after(mine, 1), strict=True):
            self.begin_epoch(epoch)
            batches = self.rows.batches(epoch)
            positions = batches[batch_id] if batch_id >= 0 else batches[0][:0]
            ahead = await self._embed_local(positions) if len(positions) else None
            assert answer is not None
            with self.span("wait", "embedding"):
                embeddings = await answer
            if ahead is None:
                gradients, local = [self._no_gradient(epoch)] * len(nothing), []
                answer = ask(gradients, following)
            else:
                publication, embedding = ahead
                found = await self._cut(positions, embedding, [e for e in embeddings if e is not None])
                gradients = await self._pack(
                    [on_host(gradient) for gradient in found.embedding_gradients[1:]], epoch, (batch_id, 1), positions
                )
                answer = ask(gradients, following)
                local = [await self._backward_local(publication, found.embedding_gradients[0]), found.gradient]
                loss_sum += found.loss * len(positions)
                num_rows += len(positions)
            with self.span("wait", "average") if self.config.steps_together else contextlib.nullcontext():
                await steps.step(epoch, local, len(positions))
        if answer is not None:
            await answer
        return EpochLoss(loss_sum, num_rows)

    async def _train_window(self, mine: Sequence[Share], ask: Ask, steps: LocalStepper) -> EpochLoss:
        """A window of batches in flight: a step is computed in one piece, as others are under way anyhow."""
        loss_sum, num_rows = 0.0, 0
        # a batch is under way once at a time: it comes again in the next epoch, which may follow without a pause
        depth = min(self.config.embedding_buffer, *Counter(epoch for epoch, _ in mine).values(), len(mine))
        window = deque(ask([None] * len(self._data.passive_parties), share) for share in mine[:depth])
        for (epoch, batch_id), following in zip(mine, _after(mine, depth), strict=True):
            with self.span("wait", "embedding"):
                embeddings = await window.popleft()
            self.begin_epoch(epoch)
            positions = self.rows.batches(epoch)[batch_id]
            sent = zip(self._data.passive_parties, embeddings, strict=True)
            received = [await self._values(e, len(positions), party) for party, e in sent if e is not None]
            found = await self._gradients(positions, received)
            gradients = await self._pack(found.embeddings, epoch, (batch_id, 1), positions)
            window.append(ask(gradients, following))
            await steps.step(epoch, [found.bottom, found.top], len(positions))
            loss_sum += found.loss * len(positions)
            num_rows += len(positions)
        for answer in window:
            await answer
        await steps.finish()
        return EpochLoss(loss_sum, num_rows)

    async def _embed_local(self, positions: np.ndarray) -> tuple[Publication, Tensor]:
        """Embed a batch of one's own rows while the others' embeddings are under way."""
        x_BF = self._held.take("features", self.rows.train.features, positions)
        publication = Publication(self._bottom.model, x_BF)
        work = Work("bottom-forward", algorithm.operations(len(positions), self.replica.sizes[0]))
        return publication, await self.compute(Publication.activate, publication, work=work)

    async def _cut(self, positions: np.ndarray, local: Tensor, embeddings: Sequence[Embedding]) -> TopGradient:
        """Return the loss and the gradients at the top, those that are to be sent among them."""
        labels_B, weights_B = self._targets(positions)
        parties = zip(self._data.passive_parties, embeddings, strict=True)
        received = [await self._values(embedding, len(positions), party) for party, embedding in parties]
        work = Work("top-step", algorithm.operations(len(positions), self.replica.sizes[1], updates=True))
        args = (self._top.model, [local, *received], labels_B, self._data.task, "concatenate", weights_B)
        return await self.compute(loss_gradients, *args, work=work)

    async def _backward_local(self, publication: Publication, gradient_BE: np.ndarray | Tensor) -> np.ndarray | Tensor:
        """Return the flat gradient of one's own bottom model, when the gradients of others are under way."""
        work = Work("bottom-backward", algorithm.operations(len(gradient_BE), self.replica.sizes[0], updates=True))
        return await self.compute(Publication.gradient, publication, gradient_BE, work=work)

    def _no_gradient(self, epoch: int) -> Gradient:
        kind = np.float64 if self.config.float64 else np.float32
        return Gradient(-1, epoch, 1, self.clock.now(), np.zeros((0, self.config.embedding_size), kind))


def _after(mine: Sequence[Share], depth: int) -> list[Share]:
    """Return for each batch the one that is asked for with its gradients; none in the end."""
    return [*mine[depth:], *((epoch, -1) for epoch, _ in mine[-depth:])]
