"""The server with the LoJ operator (learning over join, Section 4.1), and an organisation's LoU coordinator.

    gather   predictions of every vertical table -> h of every joined row        (operators.gather_join)
    compute  SGD: dl/dh (Eq. 4); ADMM: z, lambda (Eq. 7, 8)                        (algorithm)
    scatter  sums over each row's partners: dl/dh (Eq. 10), Y_i (Eq. 14)           (operators.scatter_join)

Who waits for whom: the server waits for every table in each batch or round; tables never wait for each other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fedactors.roles import Server
from fedactors.runtime.base import Work, derived_rng
from protocols.tablepuppet import algorithm, operators, scoring
from protocols.tablepuppet.actors import TableClient
from protocols.tablepuppet.baselines import centralised, vfl
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.data import TrainingSet
from protocols.tablepuppet.join import JoinSplit, join_tables
from protocols.tablepuppet.messages import (
    Auxiliary,
    Derivatives,
    DesignMatrix,
    DuplicateCounts,
    JoinedRows,
    KeyHashes,
    Labels,
    Predictions,
    Schemas,
    Score,
    TestOutputs,
    TestPredictions,
    TestRows,
)
from protocols.tablepuppet.union import TableSide, UnionOperator

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """A vertical table as the server addresses it: its clients, and its coordinator's name if it has one."""

    table: str
    clients: tuple[str, ...]
    coordinator: str | None


class UnionCoordinator(Server):
    """The LoU operator inside the organisation: the server then sees neither theta nor partial gradients."""

    state: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self, config: TablePuppetConfig, clients: tuple[str, ...]) -> None:
        self._config, self._clients = config, clients
        self.memory: dict[str, Any] = {}

    async def open(self) -> None:
        """Make the operator over the (restored) memory."""
        clients = [self.peer(name, TableClient) for name in self._clients]
        self._union = UnionOperator(self._config, clients, self.compute, self.memory)

    async def send_keys(self) -> KeyHashes:
        """See `TableClient`; each method here does what the union of the clients would."""
        return await self._union.send_keys()

    async def send_labels(self) -> Labels:
        """See `TableClient.send_labels`."""
        return await self._union.send_labels()

    async def receive_counts(self, counts: DuplicateCounts) -> None:
        """See `TableClient.receive_counts`."""
        await self._union.receive_counts(counts)

    async def receive_joined_rows(self, joined: JoinedRows) -> None:
        """See `TableClient.receive_joined_rows`."""
        await self._union.receive_joined_rows(joined)

    async def receive_test_rows(self, test_rows: TestRows) -> None:
        """See `TableClient.receive_test_rows`."""
        await self._union.receive_test_rows(test_rows)

    async def predict_all(self) -> Predictions:
        """See `TableClient.predict_all`."""
        return await self._union.predict_all()

    async def exchange(self, derivatives: Derivatives) -> Predictions:
        """See `TableClient.exchange`."""
        return await self._union.exchange(derivatives)

    async def solve(self, auxiliary: Auxiliary) -> Predictions:
        """See `TableClient.solve`."""
        return await self._union.solve(auxiliary)

    async def predict_test(self) -> TestPredictions:
        """See `TableClient.predict_test`."""
        return await self._union.predict_test()

    async def score(self, outputs: TestOutputs) -> Score:
        """See `TableClient.score`."""
        return await self._union.score(outputs)

    async def give_rows(self) -> DesignMatrix:
        """See `TableClient.give_rows`."""
        return await self._union.give_rows()


class JoinServer(Server):
    """The server: it joins hashed keys, and trains over the join without ever having a row of it.

    Args:
        config: the run's settings.
        training: the query, the label and the loss.
        sides: the vertical tables in the order of the query.
        batch_seed: decides the order of the batches, wherever the server lives.
    """

    state: ClassVar[tuple[str, ...]] = (
        "train_rows", "test_rows", "num_rows", "label_index", "y", "num_outputs", "dual", "predictions", "thetas",
        "memory", "matrices",
    )  # fmt: skip

    def __init__(
        self, config: TablePuppetConfig, training: TrainingSet, sides: tuple[Side, ...], batch_seed: int
    ) -> None:
        self._config, self._training, self._sides, self._batch_seed = config, training, sides, batch_seed
        self.train_rows: list[NDArray[np.int32]] = []
        self.test_rows: list[NDArray[np.int32]] = []
        self.num_rows: list[int] = []
        self.y: NDArray[Any] = np.zeros(0)
        self.num_outputs = 1
        self.label_index = 0
        self.dual = np.zeros((0, 1))
        self.predictions: list[Array] = []
        self.thetas: list[Array] = []
        self.memory: dict[str, dict[str, Any]] = {}
        self.matrices: list[DesignMatrix] = []

    async def open(self) -> None:
        """Make an operator for each vertical table, and what follows from a restored mapping."""
        self._tables = [self._table_side(side) for side in self._sides]
        if self.train_rows:
            self._index()

    def _table_side(self, side: Side) -> TableSide:
        if side.coordinator is not None:
            return cast("TableSide", self.peer(side.coordinator, UnionCoordinator))
        clients = [self.peer(name, TableClient) for name in side.clients]
        if len(clients) == 1:
            return cast("TableSide", clients[0])
        return UnionOperator(self._config, clients, self.compute, self.memory.setdefault(side.table, {}))

    # --- table mapping (Section 3.1.1) ---

    async def agree(self) -> None:
        """Check the query against everybody's columns, then let each table's partitions agree on their encoding."""
        named = [self.peer(client, TableClient) for side in self._sides for client in side.clients]
        found = await asyncio.gather(*(client.describe() for client in named))
        sources = [p.source for table in self._training.query.tables for p in table.partitions]
        schemas = dict(zip(sources, found, strict=True))
        kinds = {name: dict(zip(s.columns, s.kinds, strict=True)) for name, s in schemas.items()}
        self._plan = self._training.plan(kinds)
        self.label_index = self._plan.tables.index(self._plan.label_table)
        await asyncio.gather(*(client.prepare(Schemas(schemas)) for client in named))
        firsts = [(self.peer(side.clients[0], TableClient), side.clients[1:]) for side in self._sides]
        await asyncio.gather(*(first.agree(others) for first, others in firsts))

    async def map_tables(self) -> dict[str, Any]:
        """Join the hashed keys, split the join into training and test rows, and give every table its G_i.

        Returns:
            Facts for the report: rows joined, rows of each table that join, rows left out for a NULL key.
        """
        config = self._config
        keys: list[KeyHashes] = await self._gather("send_keys")
        labels = await self._tables[self.label_index].send_labels()
        hashes = {side.table: list(k.hashes) for side, k in zip(self._sides, keys, strict=True)}
        sizes = {side.table: k.num_rows for side, k in zip(self._sides, keys, strict=True)}
        total = float(sum(sizes.values()))
        args = (self._plan, hashes, sizes, labels.is_test, self.label_index, config.threads, config.memory_limit)
        split: JoinSplit = await self.compute(join_tables, *args, work=Work("join", total))
        self.num_outputs = labels.num_classes
        train_y = np.zeros(len(labels.is_test), dtype=labels.train.dtype)
        train_y[~labels.is_test] = labels.train
        self.y = train_y[split.train[self.label_index]]
        if config.is_vertical:
            given = [JoinedRows(a, b, self.num_outputs) for a, b in zip(split.train, split.test, strict=True)]
            await asyncio.gather(*(t.receive_joined_rows(g) for t, g in zip(self._tables, given, strict=True)))
        else:
            sent = [DuplicateCounts(c, t, len(self.y), self.num_outputs) for c, t in split.counts()]
            await asyncio.gather(*(t.receive_counts(g) for t, g in zip(self._tables, sent, strict=True)))
        await self._tables[self.label_index].receive_test_rows(TestRows(split.test[self.label_index]))
        joined = vfl.vertical_slices(split) if config.is_vertical else split.renumbered()
        self.train_rows, self.test_rows, self.num_rows = list(joined.train), list(joined.test), list(joined.num_rows)
        self._index()
        self.dual = np.zeros((len(self.y), self.num_outputs)) if config.is_admm else np.zeros((0, 1))
        if config.algorithm == "centralised":
            self.matrices = await self._gather("give_rows")
            self.thetas = [matrix.theta for matrix in self.matrices]
        elif config.is_admm:
            self.predictions = [p.values for p in await self._gather("predict_all")]
        return {
            "joined_rows": len(self.y),
            "joined_test_rows": len(self.test_rows[0]),
            "rows": sizes,
            "rows_that_join": dict(zip(sizes, self.num_rows, strict=True)),
            "rows_with_null_keys": {s.table: k.num_null for s, k in zip(self._sides, keys, strict=True)},
            "outputs": self.num_outputs,
        }

    # --- training (Algorithm 1) ---

    async def train_round(self, number: int) -> dict[str, float]:
        """Train one epoch of SGD or one round of ADMM, as Table 5 composes them, and return the training loss."""
        if self._config.algorithm == "centralised":
            return await self._train_centralised(number)
        if self._config.is_admm:
            return await self._admm_round()
        return await self._sgd_epoch(number)

    async def _admm_round(self) -> dict[str, float]:
        """RFL-ADMM(-V), VFL-ADMM: LoJ gathers, updates z and lambda, scatters Y; the tables solve for theta."""
        config, loss = self._config, self._training.loss
        total_NC = await self._join(self.predictions)
        args = (loss, self.y, self.dual, total_NC, config.rho)
        self.dual, shared_NC = await self.compute(admm_server_step, *args, work=self._work("server-step"))
        sent = []
        for i, h_nC in enumerate(self.predictions):
            args_i = (config.admm, shared_NC, self._rows[i], self._G[i], h_nC, config.rho, len(self._tables))
            Y_nC = await self.compute(scatter_auxiliary, *args_i, work=self._work("scatter"))
            sent.append(Auxiliary(Y_nC))
        found = await asyncio.gather(*(t.solve(a) for t, a in zip(self._tables, sent, strict=True)))
        self.predictions = [p.values for p in found]
        total_NC = await self._join(self.predictions)
        return {"train_loss": algorithm.mean_loss(loss, total_NC, self.y)}

    async def _sgd_epoch(self, number: int) -> dict[str, float]:
        """RFL-SGD(-V), VFL-SGD: for each batch LoJ gathers, differentiates the loss and scatters."""
        loss, nothing = self._training.loss, np.zeros(0, dtype=np.int32)
        order = derived_rng(self._batch_seed, "batches", str(number))
        batches = operators.epoch_batches(len(self.y), self._config.batch_size, order)
        scratch = [np.empty(n, dtype=np.int64) for n in self.num_rows]
        touched = await self._touch(batches[0], scratch)
        sent = [Derivatives(np.zeros((0, self.num_outputs)), 0, t.rows_u.astype(np.int32)) for t in touched]
        loss_sum = 0.0
        for index, batch in enumerate(batches):
            found = await asyncio.gather(*(t.exchange(d) for t, d in zip(self._tables, sent, strict=True)))
            work = self._work("server-step", len(batch))
            values, Y = await self.compute(
                sgd_server_step, loss, [f.values for f in found], touched, self.y[batch], work=work
            )
            loss_sum += values
            touched = await self._touch(batches[index + 1], scratch) if index + 1 < len(batches) else []
            following = [t.rows_u.astype(np.int32) for t in touched] or [nothing] * len(Y)
            sent = [Derivatives(y, len(batch), rows) for y, rows in zip(Y, following, strict=True)]
        await asyncio.gather(*(t.exchange(d) for t, d in zip(self._tables, sent, strict=True)))
        return {"train_loss": loss_sum / len(self.y)}

    async def _train_centralised(self, number: int) -> dict[str, float]:
        """The baseline: the server has every row, and trains on the join in the clear."""
        loss, config = self._training.loss, self._config
        work = self._work("centralised", len(self.y) * sum(len(theta) for theta in self.thetas))
        args = (config, loss, self._joined_table, self.thetas, derived_rng(self._batch_seed, "batches", str(number)))
        self.thetas = await self.compute(centralised.train, *args, work=work)
        matrices = [matrix.train for matrix in self.matrices]
        total_NC = await self._join(centralised.predict_tables(self._joined_table.models, self.thetas, matrices))
        return {"train_loss": algorithm.mean_loss(loss, total_NC, self.y)}

    @property
    def _joined_table(self) -> centralised.JoinedTable:
        x = tuple(matrix.train for matrix in self.matrices)
        models = centralised.describe_models(self._config, x, self.label_index, self.num_outputs)
        return centralised.JoinedTable(models, x, tuple(self._rows), self.y)

    # --- evaluation ---

    async def evaluate(self) -> dict[str, float]:
        """Return the scores on the joined test rows, which the label's owner computes from the summed outputs."""
        if self._config.algorithm == "centralised":
            matrices = [matrix.test for matrix in self.matrices]
            predictions = centralised.predict_tables(self._joined_table.models, self.thetas, matrices)
        else:
            predictions = [p.values for p in await self._gather("predict_test")]
        outputs = await self.compute(
            operators.gather_join, predictions, self._test_rows, work=self._work("gather", len(self._test_rows[0]))
        )
        return await self._score(outputs)

    async def trivial(self) -> dict[str, float]:
        """Return the scores of the predictor that knows only the training labels (as the server has them)."""
        constant_C = scoring.trivial_outputs(self._training.loss, self.y, self.num_outputs)
        return await self._score(np.tile(constant_C, (len(self._test_rows[0]), 1)))

    async def _score(self, outputs: Array) -> dict[str, float]:
        found = await self._tables[self.label_index].score(TestOutputs(outputs))
        return scoring.final_scores(self._training.loss, found.total, found.loss, found.count)

    # --- inside ---

    async def _gather(self, method: str) -> list[Any]:
        return list(await asyncio.gather(*(getattr(table, method)() for table in self._tables)))

    async def _join(self, predictions: list[Array]) -> Array:
        return await self.compute(operators.gather_join, predictions, self._rows, work=self._work("gather"))

    async def _touch(self, batch: NDArray[Any], scratch: list[NDArray[Any]]) -> list[operators.BatchRows]:
        chosen = [rows[batch] for rows in self._rows]
        work = self._work("gather", len(batch))
        return await self.compute(operators.touch_tables, chosen, scratch, work=work)

    def _work(self, kind: str, num_rows: int | None = None) -> Work:
        count = len(self.y) if num_rows is None else num_rows
        return Work(kind, float(count * self.num_outputs))

    def _index(self) -> None:
        self._rows = [rows.astype(np.int64) for rows in self.train_rows]
        self._test_rows = [rows.astype(np.int64) for rows in self.test_rows]
        self._G = [np.bincount(rows, minlength=n) for rows, n in zip(self._rows, self.num_rows, strict=True)]


def admm_server_step(
    loss: algorithm.Loss, y_N: NDArray[Any], dual_NC: Array, total_NC: Array, rho: float
) -> tuple[Array, Array]:
    """Return the new lambda (Eq. 8, after z of Eq. 7) and what every table's Y_i shares (Eq. 14)."""
    z_NC = algorithm.update_z(loss, y_N, dual_NC, total_NC, rho)
    updated_NC = algorithm.update_lambda(dual_NC, total_NC, z_NC, rho)
    return updated_NC, algorithm.shared_term(updated_NC, total_NC, z_NC, rho)


def scatter_auxiliary(
    mode: algorithm.AdmmMode,
    shared_NC: Array,
    rows_N: NDArray[np.int64],
    G_n: NDArray[Any],
    h_nC: Array,
    rho: float,
    num_tables: int,
) -> Array:
    """Return Y_i (Eq. 14) on the rows of one table."""
    summed_nC = operators.scatter_join(shared_NC, rows_N, len(h_nC))
    return algorithm.linear_term(mode, summed_nC, G_n, h_nC, rho, num_tables)


def sgd_server_step(
    loss: algorithm.Loss, predictions: list[Array], touched: list[operators.BatchRows], y_B: NDArray[Any]
) -> tuple[float, list[Array]]:
    """Return a batch's summed loss, and for each table the derivatives summed over its rows' partners (Eq. 4, 10)."""
    total_BC = operators.gather_join(predictions, [t.place_B for t in touched])
    derivative_BC = algorithm.loss_gradient(loss, total_BC, y_B)
    summed = [operators.scatter_join(derivative_BC, t.place_B, len(t.rows_u)) for t in touched]
    return algorithm.mean_loss(loss, total_BC, y_B) * len(y_B), summed
