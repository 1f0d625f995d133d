"""The LoU operator (learning over union, Section 4.1) of one vertical table: gather, compute, scatter over its clients.

It lives in the server, or in the organisation inside a `servers.UnionCoordinator`; either way the LoJ operator sees one
vertical table with the methods of a single client. All it remembers between rounds is `memory`: the partitions' sizes,
and w and u of the consensus, which carry over the outer rounds (resetting them would pull theta to 0).

    LoJ --Derivatives, Auxiliary of the table--> LoU --split by partition--> clients
    clients --PartialGradient, LocalParameters--> LoU: Eq. 17, 20, 21 --> clients
    clients --Predictions--> LoU --as one table--> LoJ
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedactors.runtime.base import Work
from protocols.tablepuppet import algorithm
from protocols.tablepuppet.actors import TableClient
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.messages import (
    AggregatedGradient,
    Auxiliary,
    Consensus,
    Derivatives,
    DesignMatrix,
    DuplicateCounts,
    JoinedRows,
    KeyHashes,
    Labels,
    Predictions,
    Score,
    TestOutputs,
    TestPredictions,
    TestRows,
)
from protocols.tablepuppet.operators import gather_union, scatter_union, split_rows

Compute = Callable[..., Awaitable[Any]]


class TableSide(Protocol):
    """What the LoJ operator asks of a vertical table: a client, an LoU operator, or an organisation's coordinator."""

    async def send_keys(self) -> KeyHashes:
        """See `TableClient.send_keys`."""

    async def send_labels(self) -> Labels:
        """See `TableClient.send_labels`."""

    async def receive_counts(self, counts: DuplicateCounts) -> None:
        """See `TableClient.receive_counts`."""

    async def receive_joined_rows(self, joined: JoinedRows) -> None:
        """See `TableClient.receive_joined_rows`."""

    async def receive_test_rows(self, test_rows: TestRows) -> None:
        """See `TableClient.receive_test_rows`."""

    async def predict_all(self) -> Predictions:
        """See `TableClient.predict_all`."""

    async def exchange(self, derivatives: Derivatives) -> Predictions:
        """See `TableClient.exchange`."""

    async def solve(self, auxiliary: Auxiliary) -> Predictions:
        """See `TableClient.solve`."""

    async def predict_test(self) -> TestPredictions:
        """See `TableClient.predict_test`."""

    async def score(self, outputs: TestOutputs) -> Score:
        """See `TableClient.score`."""

    async def give_rows(self) -> DesignMatrix:
        """See `TableClient.give_rows`."""


class UnionOperator:
    """LoU over the clients of one table.

    Args:
        config: the run's settings.
        clients: handles of the partitions' clients, in partition order.
        compute: the hosting actor's `compute`.
        memory: what is kept between rounds; part of the hosting actor's state.
    """

    def __init__(
        self, config: TablePuppetConfig, clients: Sequence[TableClient], compute: Compute, memory: dict[str, Any]
    ) -> None:
        self._config, self._clients, self._compute, self._memory = config, list(clients), compute, memory
        self._batch: NDArray[Any] = np.zeros(0, dtype=np.int32)

    # --- before training ---

    async def send_keys(self) -> KeyHashes:
        """Return the key hashes of all partitions, one after the other."""
        parts = await self._all("send_keys")
        self._memory["sizes"] = [part.num_rows for part in parts]
        hashes = tuple(gather_union(columns) for columns in zip(*(part.hashes for part in parts), strict=True))
        return KeyHashes(sum(p.num_rows for p in parts), sum(p.num_null for p in parts), hashes)

    async def send_labels(self) -> Labels:
        """Return the labels of all partitions."""
        parts = await self._all("send_labels")
        train, is_test = (gather_union([getattr(p, field) for p in parts]) for field in ("train", "is_test"))
        return Labels(train, is_test, parts[0].num_classes)

    async def receive_counts(self, counts: DuplicateCounts) -> None:
        """Give each partition its G, and remember how many of its rows join."""
        train, in_test = self._split(counts.train), self._split(counts.in_test)
        self._memory["active"] = [int(np.count_nonzero(part)) for part in train]
        await self._each(
            "receive_counts",
            [DuplicateCounts(a, b, counts.num_joined, counts.num_classes) for a, b in zip(train, in_test, strict=True)],
        )

    async def receive_joined_rows(self, joined: JoinedRows) -> None:
        """Refuse: the vertical baselines have whole tables."""
        raise ValueError(f"{len(self._clients)} partitions of one table in a vertical baseline")

    async def receive_test_rows(self, test_rows: TestRows) -> None:
        """Give each partition the joined test rows whose labels it has."""
        owner, own = self._owners(test_rows.rows)
        self._memory["test_owner"] = owner
        places = [np.flatnonzero(owner == q) for q in range(len(self._clients))]
        await self._each("receive_test_rows", [TestRows(own[place]) for place in places])

    # --- training ---

    async def predict_all(self) -> Predictions:
        """Gather the predictions of all partitions."""
        return self._gather(await self._all("predict_all"))

    async def exchange(self, derivatives: Derivatives) -> Predictions:
        """Scatter derivatives, gather partial gradients, add them (Eq. 17), and gather the next predictions."""
        total, nothing = np.zeros(0), np.zeros(0, dtype=np.int32)
        if derivatives.batch_size:
            sent: list[Derivatives] = []
            for places, _ in self._rows_of(self._batch):
                share = 0 if sent else derivatives.batch_size  # beta R once in the sum over the partitions
                sent.append(Derivatives(derivatives.values[places], share, nothing))
            parts = [part.values for part in await self._each("partial", sent)]
            work = Work("coordinate", float(len(parts) * len(parts[0])))
            total = await self._compute(algorithm.combine_gradients, parts, derivatives.batch_size, work=work)
        self._batch = derivatives.next_rows
        places_of = self._rows_of(self._batch)
        replies = await self._each("apply", [AggregatedGradient(total, own.astype(np.int32)) for _, own in places_of])
        if not len(self._batch):
            return Predictions(replies[0].values)
        merged = np.empty((len(self._batch), replies[0].values.shape[1]))
        for (places, _), reply in zip(places_of, replies, strict=True):
            merged[places] = reply.values
        return Predictions(merged)

    async def solve(self, auxiliary: Auxiliary) -> Predictions:
        """Run the inner rounds of consensus (Eq. 20-22) and gather the predictions of the agreed theta."""
        config, memory = self._config, self._memory
        rho = config.inner_rho or config.rho
        if "w" not in memory:
            first = (await self._all("first_theta"))[0].theta
            memory["w"], memory["u"] = first, [np.zeros_like(first) for _ in self._clients]
        await self._each("receive_auxiliary", [Auxiliary(part) for part in self._split_active(auxiliary.values)])
        for _ in range(config.inner_rounds):
            found = await self._each("consensus", [Consensus(memory["w"], u) for u in memory["u"]])
            thetas = [part.theta for part in found]
            work = Work("coordinate", float(2 * len(thetas) * len(thetas[0])))
            memory["w"], memory["u"] = await self._compute(
                consensus_step, thetas, memory["u"], config.beta, rho, work=work
            )
        return self._gather(await self._each("adopt", [Consensus(memory["w"], u) for u in memory["u"]]))

    # --- evaluation ---

    async def predict_test(self) -> TestPredictions:
        """Gather the test predictions of all partitions."""
        return TestPredictions(self._gather(await self._all("predict_test")).values)

    async def score(self, outputs: TestOutputs) -> Score:
        """Let each partition score the joined test rows that it has labels of."""
        owner = self._memory["test_owner"]
        parts = [TestOutputs(outputs.values[owner == q]) for q in range(len(self._clients))]
        found = await self._each("score", parts)
        return Score(sum(s.total for s in found), sum(s.loss for s in found), sum(s.count for s in found))

    async def give_rows(self) -> DesignMatrix:
        """Gather every feature (centralised baseline)."""
        parts = await self._all("give_rows")
        train, test = (gather_union([getattr(p, field) for p in parts]) for field in ("train", "test"))
        return DesignMatrix(train, test, parts[0].theta)

    # --- inside ---

    async def _all(self, method: str) -> list[Any]:
        return list(await asyncio.gather(*(getattr(client, method)() for client in self._clients)))

    async def _each(self, method: str, messages: Sequence[Any]) -> list[Any]:
        calls = [getattr(client, method)(given) for client, given in zip(self._clients, messages, strict=True)]
        return list(await asyncio.gather(*calls))

    def _gather(self, parts: Sequence[Any]) -> Predictions:
        return Predictions(gather_union([part.values for part in parts]))

    def _split(self, values_n: NDArray[Any]) -> list[NDArray[Any]]:
        return scatter_union(values_n, self._memory["sizes"])

    def _split_active(self, values_n: NDArray[Any]) -> list[NDArray[Any]]:
        return scatter_union(values_n, self._memory["active"])

    def _rows_of(self, rows_u: NDArray[Any]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        return split_rows(rows_u, self._memory["active"])

    def _owners(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = np.cumsum(self._memory["sizes"])
        owner = np.searchsorted(ends, rows, side="right")
        return owner, rows - np.concatenate([[0], ends])[owner]


def consensus_step(
    theta_QP: Sequence[NDArray[Any]], u_QP: Sequence[NDArray[Any]], beta: float, rho: float
) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Return the new w (Eq. 20) and u of every partition (Eq. 21)."""
    w = algorithm.update_consensus(theta_QP, u_QP, beta, rho)
    return w, [algorithm.update_u(u, theta, w) for u, theta in zip(u_QP, theta_QP, strict=True)]
