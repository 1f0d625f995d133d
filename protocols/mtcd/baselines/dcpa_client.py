"""DCPA's client: every iteration one exchange of dual vectors with each neighbour, no server.

    run_iterations: y_k --> neighbours;  all neighbours' y_j of the same iteration --> `dcpa.iterate`

A client waits for the vectors of its neighbours; those of the next iteration may come early and are kept.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np

from fedactors.data.alignment import AlignmentAnswer, AlignmentOrder, AlignmentQuestion, align
from fedactors.data.partitions import VerticalData
from fedactors.errors import CallTimeout, PartyLost
from fedactors.roles import Client
from fedactors.runtime.base import Work
from protocols.mtcd.baselines import dcpa
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import MtcdData
from protocols.mtcd.local import LocalData
from protocols.mtcd.messages import DualVector, Labels, Measured
from protocols.mtcd.objective import largest_gram_eigenvalue


class DcpaClient(Client):
    """One party.

    Args:
        config: the run's settings.
        data: who holds what; only the own part is loaded.
        client: this client's number.
        laplacian: L_kj of this client k for itself and each neighbour j, by number.
        seed: shared by all parties, for the split of rows.
    """

    state: ClassVar[tuple[str, ...]] = ("local", "w", "s", "y")

    def __init__(
        self, config: MtcdConfig, data: MtcdData, client: int, laplacian: tuple[tuple[int, float], ...], seed: int
    ) -> None:
        self._config = config
        self._data = data
        self._client = client
        self._laplacian = tuple(sorted(laplacian))
        self._inbox: dict[int, dict[int, Any]] = {}
        self._arrived = asyncio.Event()
        self.local = LocalData(config, data, client, seed)
        self.w: Any = None
        self.s: Any = None
        self.y: Any = None

    async def load(self) -> None:
        """Load the own part."""
        self.local.load()
        if not isinstance(self._data, VerticalData):
            self._build()

    async def open(self) -> None:
        """Prepare the rows when they come from a snapshot."""
        if isinstance(self._data, VerticalData) and self.local.is_ready:
            self._build()

    def _build(self) -> None:
        self._block = self.local.block(self.name)
        if self.w is None:
            start = dcpa.start_state(self._block.num_samples, self._block.num_features)
            self.w, self.s, self.y = start.w, start.s, start.y

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's alignment question."""
        return self.local.answer(question)

    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order of rows."""
        self.local.follow(order)

    async def align(self, how: Any, others: tuple[str, ...], learners: tuple[str, ...]) -> None:
        """Align all parties' rows (called at the label party) and tell `learners` the labels, as agreed."""
        peers = {name: self.peer(name, DcpaClient) for name in others}
        rng = self.noise_rng("row order") if how != "already-aligned" else self.rng("row order")
        self.local.take_rows(await align(self.local.ids, self.name, how, peers, rng))
        labels = self.local.own_labels()
        self._build()
        for name in learners:
            await self.peer(name, DcpaClient).take_labels(labels)

    async def take_labels(self, labels: Labels) -> None:
        """Take the labels from the label party."""
        self.local.labels = labels
        self._build()

    async def known_labels(self) -> Labels:
        """Return the labels, to the driver, for measuring."""
        assert self.local.labels is not None
        return self.local.labels

    async def largest_eigenvalue(self) -> float:
        """Return ||X_k||^2."""
        features = self._block.features
        return await self.compute(largest_gram_eigenvalue, [features], work=Work("probe", 100 * features.size))

    async def run_iterations(self, first: int, count: int, steps: tuple[float, float, float]) -> None:
        """Do iterations `first` to ``first + count - 1`` in step with the neighbours."""
        block, num_clients = self._block, len(self._data.parties)
        sizes = dcpa.DcpaSteps(*steps)
        work = Work("iterate", block.features.size)
        for iteration in range(first, first + count):
            vector = DualVector(iteration, self._client, self.y)
            for neighbour, _ in self._laplacian:
                if neighbour != self._client:
                    self.background(self._send(neighbour, vector))
            received = await self._received(iteration)
            laplacian_y_N = np.zeros(block.num_samples)
            for neighbour, weight in self._laplacian:
                laplacian_y_N += weight * (self.y if neighbour == self._client else received[neighbour])
            state = dcpa.DcpaState(self.w, self.s, self.y)
            arguments = (block.problem, block.features, block.labels, state, laplacian_y_N, sizes, num_clients)
            state = await self.compute(dcpa.iterate, *arguments, work=work)
            self.w, self.s, self.y = state.w, state.s, state.y

    async def _send(self, neighbour: int, vector: DualVector) -> None:
        try:
            await self.peer(self._data.parties[neighbour], DcpaClient).take_dual(vector)
        except PartyLost:
            return  # the runtime stops the run with its name

    async def take_dual(self, vector: DualVector) -> None:
        """Take a neighbour's vector."""
        self._inbox.setdefault(vector.iteration, {})[vector.client] = vector.y
        self._arrived.set()

    async def _received(self, iteration: int) -> dict[int, Any]:
        num_neighbours = sum(neighbour != self._client for neighbour, _ in self._laplacian)
        while len(self._inbox.get(iteration, {})) < num_neighbours:
            self._arrived.clear()
            try:
                async with self.clock.timeout(self._config.visit_timeout):
                    await self._arrived.wait()
            except TimeoutError:
                text = f"no dual vector of iteration {iteration} came within {self._config.visit_timeout:g} s"
                raise CallTimeout(self.name, text) from None
        return self._inbox.pop(iteration, {})

    async def measure(self, part: str) -> Measured:
        """Return h_k on all training or test rows, and r(w_k), to the driver."""
        function, arguments, work = self._block.represent(self.w, None, part)
        h = await self.compute(function, *arguments, work=work)
        return Measured(self._client, h, self._block.penalty(self.w))
