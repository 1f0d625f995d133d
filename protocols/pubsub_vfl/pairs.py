"""The epoch of a fixed pair: an active worker and one worker of each passive party, without a broker.

    active worker ──gradient of batch k, "embed batch k + depth"──▶ passive workers ──embedding──▶ active worker

Pair i of w trains the batches i, i + w, i + 2w, ... A depth of 1 is synchronous: one round trip per batch, in which a
passive worker applies the gradient of one batch and embeds the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from protocols.pubsub_vfl.messages import Embedding, Gradient, PairRequest
from protocols.pubsub_vfl.passive import PassiveWorker
from protocols.pubsub_vfl.servers import AveragingServer

if TYPE_CHECKING:
    from protocols.pubsub_vfl.active import ActiveWorker


class PairEpoch:
    """See the module.

    Args:
        worker: the pair's active worker.
        epoch: counted from 1.
        pair: this pair's number, and the number of pairs.
        passive_workers: this pair's worker of each passive party.
        servers: the parameter servers of the active and of each passive party; empty without.
    """

    def __init__(
        self,
        worker: ActiveWorker,
        epoch: int,
        pair: tuple[int, int],
        passive_workers: Sequence[str],
        servers: Sequence[str],
    ) -> None:
        self._worker = worker
        self._epoch = epoch
        self._pair = pair
        self._peers = [worker.peer(name, PassiveWorker) for name in passive_workers]
        self._own_server = worker.peer(servers[0], AveragingServer) if servers else None
        self._their_servers = servers[1:] or ("",) * len(self._peers)
        self._batches = worker.rows.batches(epoch)
        self._step = 0
        self._push: asyncio.Future[None] | None = None

    async def run(self) -> dict[str, float]:
        """Train the pair's batches; return ``loss_sum`` over the rows trained on, and their number ``rows``."""
        config, (index, num_pairs) = self._worker.config, self._pair
        depth = config.embedding_buffer if config.is_asynchronous else 1
        mine = list(range(index, len(self._batches), num_pairs))
        if config.algorithm == "vfl-ps" and len(mine) * num_pairs < len(self._batches) + num_pairs - 1:
            # every pair takes part in the last step that all take together
            mine += [-1] * (-(-len(self._batches) // num_pairs) - len(mine))
        window = deque(self._ask([None] * len(self._peers), batch_id) for batch_id in mine[:depth])
        loss_sum, num_rows = 0.0, 0
        for batch_id, following in zip(mine, [*mine[depth:], *([-1] * depth)], strict=False):
            with self._worker.span("wait", "embedding"):
                embeddings = await window.popleft()
            positions = self._batches[batch_id] if batch_id >= 0 else np.zeros(0, np.int64)
            loss, gradients, own = await self._train(batch_id, positions, embeddings)
            window.append(self._ask(gradients, following))
            await self._follow(own, len(positions))
            loss_sum += loss * len(positions)
            num_rows += len(positions)
        for answer in window:
            await answer
        await self._end_push()
        return {"loss_sum": loss_sum, "rows": float(num_rows)}

    async def _train(
        self, batch_id: int, positions: np.ndarray, embeddings: Sequence[Embedding | None]
    ) -> tuple[float, list[Gradient | None], list[np.ndarray]]:
        now, config = self._worker.clock.now(), self._worker.config
        if batch_id < 0:
            nothing = np.zeros((0, config.embedding_size), np.float64 if config.float64 else np.float32)
            return 0.0, [Gradient(-1, self._epoch, 1, now, nothing) for _ in self._peers], []
        found = await self._worker.gradients(positions, [e.values for e in embeddings if e is not None])
        gradients: list[Gradient | None] = [Gradient(batch_id, self._epoch, 1, now, g) for g in found.embeddings]
        return found.loss, gradients, [found.bottom, found.top]

    def _ask(self, gradients: Sequence[Gradient | None], batch_id: int) -> asyncio.Future[list[Embedding | None]]:
        return asyncio.gather(
            *(
                peer.step_and_embed(PairRequest(self._epoch, gradient, batch_id), server)
                for peer, gradient, server in zip(self._peers, gradients, self._their_servers, strict=True)
            )
        )

    async def _follow(self, own: list[np.ndarray], num_rows: int) -> None:
        worker, server = self._worker, self._own_server
        if server is None or worker.config.algorithm not in ("vfl-ps", "avfl-ps"):
            worker.replica.step(own)
        elif worker.config.algorithm == "vfl-ps":
            self._step += 1
            with worker.span("wait", "average"):
                await worker.replica.step_together(own, num_rows, server, self._epoch, self._step)
        elif worker.replica.step_towards_push(own, worker.config.push_every):
            await self._end_push()
            # the next batch is computed while parameters are pushed and pulled
            self._push = asyncio.ensure_future(worker.replica.follow(server, self._epoch))

    async def _end_push(self) -> None:
        if self._push is not None:
            await self._push
