"""The physical operators of Section 4.1 that coordinate: LoJ in the server, LoU of each partitioned table.

    gather   predictions: partitions --LoU--> vertical tables --LoJ--> h of every joined row
    compute  LoJ: dl/dh (SGD, Eq. 4) or z, lambda (ADMM, Eq. 7, 8); LoU: gradients (Eq. 17) or w, u (Eq. 20, 21)
    scatter  sums over each row's partners (Eq. 10, 14) --LoJ--> vertical tables --LoU--> partitions

To LoJ a vertical table is one thing with the doors of one client: a client (`TableClient`), or the union of several
(`UnionOperator`), which lives in the server or is an actor of the organisation (`UnionCoordinator`).

Who waits for whom: the server waits for every table in each batch or round; tables never wait for each other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.data.partitions import RelationalQuery
from fedactors.joining.owners import KeyHashes, agree_on_plan, ask_all, ask_each
from fedactors.network.codec import plain
from fedactors.parties import Parties
from fedactors.privacy.fixed_point import FixedPoint
from fedactors.privacy.secure_sums import SecureSums
from fedactors.remote import DRIVER, SERVER, remote
from fedactors.roles import Server
from fedactors.runtime.base import Work, derived_rng
from protocols.tablepuppet import algorithm, data
from protocols.tablepuppet.actors import TableClient
from protocols.tablepuppet.algorithm import Array
from protocols.tablepuppet.baselines import centralised
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.mapping import JoinSplit, comparable_rows, join_tables
from protocols.tablepuppet.messages import (
    AggregatedGradient,
    Auxiliary,
    Consensus,
    Derivatives,
    DesignMatrix,
    DuplicateCounts,
    JoinedRows,
    JoinFacts,
    JoinPlaces,
    Labels,
    Predictions,
    RoundOrder,
    Score,
    TestOutputs,
    TestPredictions,
    TestRows,
    TestScore,
    TrainingLoss,
)

_log = logging.getLogger(__name__)
_NOTHING = np.zeros(0, dtype=np.int32)


class UnionOperator:
    """LoU over the clients of one table; see `TableClient` for what each method answers.

    Args:
        config: the run's settings.
        clients: the partitions' clients, in partition order.
        compute: the hosting actor's.
        memory: of the hosting actor's state: the partitions' sizes, and w and u (reset, they would pull theta to 0).
    """

    def __init__(
        self,
        config: TablePuppetConfig,
        clients: Sequence[TableClient],
        compute: Callable[..., Awaitable[Any]],
        memory: dict[str, Any],
    ) -> None:
        self._config, self._clients, self._compute, self.memory = config, clients, compute, memory
        self._batch: NDArray[Any] = _NOTHING

    # --- before training ---

    @remote(caller=SERVER, only="server")
    async def send_keys(self) -> KeyHashes:
        """Return the key hashes of all partitions, one after the other."""
        parts = await ask_all(self._clients, lambda client: client.send_keys())
        self.memory["sizes"] = [part.num_rows for part in parts]
        hashes = tuple(algorithm.gather_union(columns) for columns in zip(*(p.hashes for p in parts), strict=True))
        return KeyHashes(sum(p.num_rows for p in parts), sum(p.num_null for p in parts), hashes)

    @remote(caller=SERVER, only="server")
    async def send_labels(self) -> Labels:
        """Return the labels of all partitions."""
        parts = await ask_all(self._clients, lambda client: client.send_labels())
        train, is_test = (
            algorithm.gather_union(column) for column in zip(*((p.train, p.is_test) for p in parts), strict=True)
        )
        return Labels(train, is_test, parts[0].num_classes)

    @remote(caller=SERVER, only="server")
    async def receive_counts(self, counts: DuplicateCounts) -> None:
        """Give each partition its G, and remember how many of its rows join."""
        train, in_test = (algorithm.scatter_union(n, self.memory["sizes"]) for n in (counts.train, counts.in_test))
        self.memory["active"] = [int(np.count_nonzero(part)) for part in train]
        sent = [replace(counts, train=a, in_test=b) for a, b in zip(train, in_test, strict=True)]
        await ask_each(self._clients, lambda client, given: client.receive_counts(given), sent)

    @remote(caller=SERVER, only="server")
    async def receive_test_rows(self, test_rows: TestRows) -> None:
        """Give each partition the joined test rows whose labels it has."""
        found = algorithm.split_rows(test_rows.rows, self.memory["sizes"])
        self.memory["test_places"] = [places for places, _ in found]
        sent = [TestRows(own) for _, own in found]
        await ask_each(self._clients, lambda client, given: client.receive_test_rows(given), sent)

    # --- training ---

    @remote(caller=SERVER, only="server")
    async def predict_all(self) -> Predictions:
        """Gather the predictions of all partitions."""
        return _gather(await ask_all(self._clients, lambda client: client.predict_all()))

    @remote(caller=SERVER, only="server")
    async def exchange(self, derivatives: Derivatives) -> Predictions:
        """Scatter derivatives, gather partial gradients, add them (Eq. 17), and gather the next predictions."""
        total = np.zeros(0)
        if derivatives.batch_size:
            split = algorithm.split_rows(self._batch, self.memory["active"])
            sizes = [derivatives.batch_size, *[0] * (len(split) - 1)]  # beta R once in the sum over the partitions
            sent = [Derivatives(derivatives.values[p], n, _NOTHING) for (p, _), n in zip(split, sizes, strict=True)]
            found = await ask_each(self._clients, lambda client, given: client.partial(given), sent)
            parts = [part.values for part in found]
            work = Work("coordinate", float(len(parts) * len(parts[0])))
            total = await self._compute(algorithm.combine_gradients, parts, derivatives.batch_size, work=work)
        self._batch = derivatives.next_rows
        split = algorithm.split_rows(self._batch, self.memory["active"])
        steps = [AggregatedGradient(total, own.astype(np.int32)) for _, own in split]
        replies = await ask_each(self._clients, lambda client, given: client.apply(given), steps)
        merged = np.empty((len(self._batch), replies[0].values.shape[1]))
        for (places, _), reply in zip(split, replies, strict=True):
            merged[places] = reply.values
        return Predictions(merged)

    @remote(caller=SERVER, only="server")
    async def solve(self, auxiliary: Auxiliary) -> Predictions:
        """Run the inner rounds of consensus (Eq. 20-22) and gather the predictions of the agreed theta."""
        config, memory, clients = self._config, self.memory, self._clients
        if "w" not in memory:
            first = (await ask_all(clients, lambda client: client.first_theta()))[0].theta
            memory["w"], memory["u"] = first, [np.zeros_like(first) for _ in clients]
        parts = algorithm.scatter_union(auxiliary.values, memory["active"])
        await ask_each(
            clients,
            lambda client, given: client.receive_auxiliary(given),
            [Auxiliary(part, auxiliary.rho) for part in parts],
        )
        for _ in range(config.inner_rounds):
            sent = [Consensus(memory["w"], u) for u in memory["u"]]
            found = await ask_each(clients, lambda client, given: client.consensus(given), sent)
            thetas = [part.theta for part in found]
            args = (thetas, memory["u"], config.beta, config.inner_rho or config.first_rho)
            work = Work("coordinate", float(2 * len(thetas) * len(thetas[0])))
            memory["w"], memory["u"] = await self._compute(algorithm.consensus_step, *args, work=work)
        agreed = [Consensus(memory["w"], u) for u in memory["u"]]
        return _gather(await ask_each(clients, lambda client, given: client.adopt(given), agreed))

    # --- evaluation ---

    @remote(caller=SERVER, only="server")
    async def predict_test(self) -> TestPredictions:
        """Gather the test predictions of all partitions."""
        return TestPredictions(_gather(await ask_all(self._clients, lambda client: client.predict_test())).values)

    @remote(caller=SERVER, only="server")
    async def score(self, outputs: TestOutputs) -> Score:
        """Let each partition score the joined test rows that it has labels of."""
        ranks = outputs.ranks if len(outputs.ranks) else np.zeros(len(outputs.values), dtype=np.int64)
        sent = [TestOutputs(outputs.values[places], ranks[places]) for places in self.memory["test_places"]]
        found = await ask_each(self._clients, lambda client, given: client.score(given), sent)
        tally = sum((part.tally for part in found if len(part.tally)), np.zeros(1))
        return Score(sum(s.total for s in found), sum(s.loss for s in found), sum(s.count for s in found), tally)

    @remote(caller=SERVER, only="server")
    async def give_rows(self) -> DesignMatrix:
        """Gather every feature (centralised baseline)."""
        parts = await ask_all(self._clients, lambda client: client.give_rows())
        train, test = (
            algorithm.gather_union(column) for column in zip(*((p.train, p.test) for p in parts), strict=True)
        )
        return DesignMatrix(train, test, parts[0].theta)


def _gather(parts: Sequence[Any]) -> Predictions:
    return Predictions(algorithm.gather_union(_bare(parts)))


def _bare(parts: Sequence[Any]) -> list[Array]:
    """Return predictions that came without masks, in order."""
    return [part.values for part in parts]


class UnionCoordinator(UnionOperator, Server):
    """The LoU operator inside the organisation: the server is then sent neither theta nor partial gradients."""

    state: ClassVar[tuple[str, ...]] = ("memory",)
    server = ""

    def __init__(self, config: TablePuppetConfig, names: tuple[str, ...], server: str) -> None:
        self._names, self.server = names, server
        UnionOperator.__init__(self, config, (), self.compute, {})

    async def open(self) -> None:
        """Make the clients' handles."""
        self._clients = [self.peer(name, TableClient) for name in self._names]


@plain
class Side:
    """A vertical table as the server addresses it: its clients, and its coordinator's name if it has one."""

    table: str
    clients: tuple[str, ...]
    coordinator: str | None


class JoinServer(Server):
    """The server: it joins hashed keys, and trains over the join without ever having a row of it.

    Args:
        config: the run's settings.
        query: what every party knows of the training set.
        sides: the vertical tables in the order of the query.
        batch_seed: decides the order of the batches, wherever the server lives.
    """

    state: ClassVar[tuple[str, ...]] = (
        "train_rows", "test_rows", "num_rows", "label_index", "y", "num_outputs", "dual", "predictions", "thetas",
        "memory", "matrices", "total", "base", "rho", "z",
    )  # fmt: skip

    def __init__(
        self, config: TablePuppetConfig, query: RelationalQuery, sides: tuple[Side, ...], batch_seed: int
    ) -> None:
        self._config, self._query, self._sides, self._batch_seed = config, query, sides, batch_seed
        self._loss = data.loss_of(config, query.task)
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
        self.total = np.zeros((0, 1))
        """h of every joined row, where predictions are summed under masks."""
        self.base = np.zeros(1)  # the outputs at which training begins
        self.rho = config.first_rho
        self.z = np.zeros((0, 1))
        self._sums = SecureSums(self, Parties(self, [name for side in sides for name in side.clients], timeout=600.0))

    async def open(self) -> None:
        """Make an operator for each vertical table, and what follows from a restored mapping."""
        self._clients = {side.table: [self.peer(name, TableClient) for name in side.clients] for side in self._sides}
        self._tables = [self._vertical_table(side) for side in self._sides]
        if self.train_rows:
            self._index()

    def _vertical_table(self, side: Side) -> TableClient | UnionOperator:
        clients = self._clients[side.table]
        if side.coordinator is not None:
            return self.peer(side.coordinator, UnionCoordinator)
        if len(clients) == 1:
            return clients[0]
        return UnionOperator(self._config, clients, self.compute, self.memory.setdefault(side.table, {}))

    # --- table mapping (Section 3.1.1) ---

    @remote(caller=DRIVER)
    async def agree(self) -> None:
        """Check the query against everybody's columns, then let each table's partitions agree on their encoding."""
        self._plan, _ = await agree_on_plan(self._query, self._clients)
        self.label_index = self._plan.tables.index(self._plan.label_table)
        if not self._config.declared_facts:
            rest = [client for clients in self._clients.values() for client in clients[1:]]
            await ask_all(rest, lambda client: client.tell_facts())
        await ask_all([clients[0] for clients in self._clients.values()], lambda client: client.agree())

    @remote(caller=DRIVER)
    async def map_tables(self) -> JoinFacts:
        """Join the hashed keys, split the join into training and test rows, and give every table its G_i."""
        config, tables, label_table = self._config, self._tables, self._tables[self.label_index]
        keys = await ask_all(tables, lambda table: table.send_keys())
        labels = await label_table.send_labels()
        names = [side.table for side in self._sides]
        hashes = {name: list(k.hashes) for name, k in zip(names, keys, strict=True)}
        sizes = {name: k.num_rows for name, k in zip(names, keys, strict=True)}
        args = (self._plan, hashes, sizes, labels.is_test, self.label_index, config.threads, config.memory_limit)
        split: JoinSplit = await self.compute(join_tables, *args, work=Work("join", float(sum(sizes.values()))))
        self.num_outputs = labels.num_classes
        train_y = np.zeros(len(labels.is_test), dtype=labels.train.dtype)
        train_y[~labels.is_test] = labels.train
        self.y = train_y[split.train[self.label_index]]
        self.base = algorithm.base_outputs(self._loss, self.y, self.num_outputs, config.centre_labels)
        bases = [self.base if i == self.label_index else np.zeros(0) for i in range(len(tables))]
        if config.is_vertical:
            whole = [clients[0] for clients in self._clients.values()]
            pairs = zip(split.train, split.test, bases, strict=True)
            given = [JoinedRows(train, test, self.num_outputs, base) for train, test, base in pairs]
            await ask_each(whole, lambda client, rows: client.receive_joined_rows(rows), given)
        else:
            counts = zip(split.counts(), bases, strict=True)
            sent = [DuplicateCounts(*each, len(self.y), self.num_outputs, base) for each, base in counts]
            await ask_each(tables, lambda table, counts: table.receive_counts(counts), sent)
        self._scored = split.test[self.label_index]
        await label_table.receive_test_rows(TestRows(self._scored))
        joined = split.vertical_slices() if config.is_vertical else split.renumbered()
        if config.secure_sums:
            joined, self.y = await self._places(joined)
        self.train_rows, self.test_rows, self.num_rows = list(joined.train), list(joined.test), list(joined.num_rows)
        self._index()
        self.dual = np.zeros((len(self.y), self.num_outputs)) if config.is_admm else np.zeros((0, 1))
        self.z = self.dual + self.base
        if config.algorithm == "centralised":
            self.matrices = await ask_all(tables, lambda table: table.give_rows())
            self.thetas = [matrix.theta for matrix in self.matrices]
        elif config.secure_sums and config.is_admm:
            self.total = await self._ask_sum(lambda table, _: table.predict_all(), tables)
        elif config.is_admm:
            self.predictions = _bare(await ask_all(tables, lambda table: table.predict_all()))
        return JoinFacts(
            joined_rows=len(self.y),
            joined_test_rows=len(self.test_rows[0]),
            outputs=self.num_outputs,
            rows=sizes,
            rows_that_join=dict(zip(sizes, self.num_rows, strict=True)),
            rows_with_null_keys={name: k.num_null for name, k in zip(names, keys, strict=True)},
        )

    async def _places(self, joined: JoinSplit) -> tuple[JoinSplit, NDArray[Any]]:
        """Tell each client which of its rows stands in which joined row, in random order."""
        shares = await self.compute(comparable_rows, joined, work=self._work("join"))
        for side, share in zip(self._sides, shares, strict=True):
            if share > 0:
                _log.warning("secure_sums: sums tell differences of %.0f %% of the rows of %s", 100 * share, side.table)
        ordered, train, test = joined.shuffled(self.noise_rng("order of joined rows"))
        await self._clients[self._sides[self.label_index].table][0].receive_test_rows(TestRows(self._scored[test]))
        given = [JoinPlaces(a, b) for a, b in zip(ordered.train, ordered.test, strict=True)]
        whole = [clients[0] for clients in self._clients.values()]
        await ask_each(whole, lambda client, places: client.receive_places(places), given)
        return ordered, self.y[train]

    async def _ask_sum(self, call: Callable[[Any, Any], Awaitable[Any]], messages: Iterable[Any]) -> Array:
        """Call every table and return the sum of their predictions, in which the parts do not show."""
        await self._sums.prepare(1)
        found = await ask_each(self._tables, call, messages)
        parts = {side.clients[0]: part for side, part in zip(self._sides, found, strict=True)}
        point = FixedPoint(limit=self._config.secure_range, num_clients=len(parts))
        return (await self._sums.total(parts, point, self._work("server-step")))[0]

    # --- training (Algorithm 1) ---

    @remote(caller=DRIVER)
    async def train_round(self, order: RoundOrder) -> TrainingLoss:
        """Train one epoch of SGD or one round of ADMM, as Table 5 composes them, and return the training loss."""
        config, rho = self._config, self.rho
        if not config.is_admm:
            train = self._train_centralised if config.algorithm == "centralised" else self._sgd_epoch
            return TrainingLoss(await train(order.number), 0.0, 0.0, 0.0)
        loss, residuals = await self._admm_round()
        if config.adapts_rho and 2 * order.number <= config.rounds:
            self.rho = residuals.balanced(rho)
        return TrainingLoss(loss, *residuals.shares, rho)

    async def _admm_round(self) -> tuple[float, algorithm.Residuals]:
        """RFL-ADMM(-V), VFL-ADMM: LoJ gathers, updates z and lambda, scatters Y; the tables solve for theta."""
        config, loss = self._config, self._loss
        if config.secure_sums:
            return await self._admm_round_of_sums()
        total_NC = await self._join(self.predictions)
        args = (loss, self.y, self.dual, total_NC, self.rho, self.z, self.base)
        step = await self.compute(algorithm.admm_server_round, *args, work=self._work("server-step"))
        self.dual, shared_NC, self.z, residuals = step
        sent, work = [], self._work("scatter")
        for i, h_nC in enumerate(self.predictions):
            own = (config.admm, shared_NC, self._rows[i], self._G[i], h_nC, self.rho, len(self._tables))
            sent.append(Auxiliary(await self.compute(algorithm.scatter_auxiliary, *own, work=work), self.rho))
        found = await ask_each(self._tables, lambda table, auxiliary: table.solve(auxiliary), sent)
        self.predictions = _bare(found)
        return algorithm.mean_loss(loss, await self._join(self.predictions), self.y), residuals

    async def _admm_round_of_sums(self) -> tuple[float, algorithm.Residuals]:
        """The same round with the sums alone: each table takes its own term of Eq. 14 away itself."""
        args = (self._loss, self.y, self.dual, self.total, self.rho, self.z, self.base)
        step = await self.compute(algorithm.admm_server_round, *args, work=self._work("server-step"))
        self.dual, shared_NC, self.z, residuals = step
        sent, work = [], self._work("scatter")
        for rows, size in zip(self._rows, self.num_rows, strict=True):
            sent.append(
                Auxiliary(await self.compute(algorithm.scatter_join, shared_NC, rows, size, work=work), self.rho)
            )
        self.total = await self._ask_sum(lambda table, auxiliary: table.solve(auxiliary), sent)
        return algorithm.mean_loss(self._loss, self.total, self.y), residuals

    async def _sgd_epoch(self, number: int) -> float:
        """RFL-SGD(-V), VFL-SGD: for each batch LoJ gathers, differentiates the loss and scatters."""
        order = derived_rng(self._batch_seed, "batches", str(number))
        batches = algorithm.epoch_batches(len(self.y), self._config.batch_size, order)
        scratch = [np.empty(n, dtype=np.int64) for n in self.num_rows]
        touched = await self._touch(batches[0], scratch)
        nothing = np.zeros((0, self.num_outputs))
        sent = [Derivatives(nothing, 0, rows) for rows in self._rows_of(batches[0], touched)]
        loss_sum, exchange = 0.0, lambda table, given: table.exchange(given)

        for index, batch in enumerate(batches):
            work = self._work("server-step", len(batch))
            if self._config.secure_sums:
                args = (self._loss, await self._ask_sum(exchange, sent), touched, self.y[batch])
                value, Y = await self.compute(algorithm.sgd_sum_step, *args, work=work)
            else:
                bare: Any = (self._loss, _bare(await ask_each(self._tables, exchange, sent)), touched, self.y[batch])
                value, Y = await self.compute(algorithm.sgd_server_step, *bare, work=work)
            loss_sum += value
            touched = await self._touch(batches[index + 1], scratch) if index + 1 < len(batches) else []
            following = self._rows_of(batches[index + 1], touched) if touched else [_NOTHING] * len(Y)
            sent = [Derivatives(y, len(batch), rows) for y, rows in zip(Y, following, strict=True)]
        await (self._ask_sum(exchange, sent) if self._config.secure_sums else ask_each(self._tables, exchange, sent))
        return loss_sum / len(self.y)

    async def _train_centralised(self, number: int) -> float:
        """The baseline: the server has every row, and trains on the join in the clear."""
        work = self._work("centralised", len(self.y) * sum(len(theta) for theta in self.thetas))
        order = derived_rng(self._batch_seed, "batches", str(number))
        args = (self._config, self._loss, self._joined_table, self.thetas, order)
        self.thetas = await self.compute(centralised.train, *args, work=work)
        matrices = [matrix.train for matrix in self.matrices]
        total_NC = await self._join(centralised.predict_tables(self._joined_table.models, self.thetas, matrices))
        return algorithm.mean_loss(self._loss, total_NC, self.y)

    @property
    def _joined_table(self) -> centralised.JoinedTable:
        x = tuple(matrix.train for matrix in self.matrices)
        models = centralised.describe_models(self._config, x, self.label_index, self.num_outputs)
        return centralised.JoinedTable(models, x, tuple(self._rows), self.y)

    # --- evaluation ---

    @remote(caller=DRIVER)
    async def evaluate(self) -> TestScore:
        """Return the scores on the joined test rows, which the label's owner computes from the summed outputs."""
        if self._config.algorithm == "centralised":
            matrices = [matrix.test for matrix in self.matrices]
            predictions = centralised.predict_tables(self._joined_table.models, self.thetas, matrices)
        else:
            if self._config.secure_sums:
                return await self._score(await self._ask_sum(lambda table, _: table.predict_test(), self._tables))
            predictions = _bare(await ask_all(self._tables, lambda table: table.predict_test()))
        work = self._work("gather", len(self._test_rows[0]))
        return await self._score(await self.compute(algorithm.gather_join, predictions, self._test_rows, work=work))

    @remote(caller=DRIVER)
    async def trivial(self) -> TestScore:
        """Return the scores of the predictor that knows only the training labels (as the server has them)."""
        constant_C = algorithm.trivial_outputs(self._loss, self.y, self.num_outputs)
        return await self._score(np.tile(constant_C, (len(self._test_rows[0]), 1)))

    async def _score(self, outputs: Array) -> TestScore:
        loss = self._loss
        found = await self._tables[self.label_index].score(TestOutputs(outputs, algorithm.ranks_of(loss, outputs)))
        more = algorithm.more_scores(loss, found.tally, found.count) if len(found.tally) > 1 else {}
        return TestScore(algorithm.mean_score(loss, found.total, found.count), found.loss / found.count, more)

    # --- inside ---

    def _rows_of(self, batch: NDArray[Any], touched: list[algorithm.BatchRows]) -> list[NDArray[np.int32]]:
        """Return which rows each table is told of a batch: distinct ones, or one for each joined row under masks."""
        if self._config.secure_sums:
            return [rows[batch].astype(np.int32) for rows in self._rows]
        return [t.rows_u.astype(np.int32) for t in touched]

    async def _join(self, predictions: list[Array]) -> Array:
        return await self.compute(algorithm.gather_join, predictions, self._rows, work=self._work("gather"))

    async def _touch(self, batch: NDArray[Any], scratch: list[NDArray[Any]]) -> list[algorithm.BatchRows]:
        chosen = [rows[batch] for rows in self._rows]
        work = self._work("gather", len(batch))
        return await self.compute(algorithm.touch_tables, chosen, scratch, work=work)

    def _work(self, kind: str, num_rows: int | None = None) -> Work:
        count = len(self.y) if num_rows is None else num_rows
        return Work(kind, float(count * self.num_outputs))

    def _index(self) -> None:
        self._rows = [rows.astype(np.int64) for rows in self.train_rows]
        self._test_rows = [rows.astype(np.int64) for rows in self.test_rows]
        self._G = [np.bincount(rows, minlength=n) for rows, n in zip(self._rows, self.num_rows, strict=True)]
