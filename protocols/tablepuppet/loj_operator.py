"""The server: the physical operator LoJ of Section 4.1. LoU over partitions is in `unions`.

    gather   predictions: partitions --LoU--> vertical tables --LoJ--> h of every joined row
    compute  LoJ: dl/dh (SGD, Eq. 4) or z, lambda (ADMM, Eq. 7, 8); LoU: gradients (Eq. 17) or w, u (Eq. 20, 21)
    scatter  sums over each row's partners (Eq. 10, 14) --LoJ--> vertical tables --LoU--> partitions

To LoJ a vertical table has the methods of one client: it is a client (`TableClient`), or the union of several
(`UnionOperator`), in the server or as an actor of the organisation (`UnionCoordinator`).

LoJ works on the sums over tables. It adds predictions up itself, is given their sum under masks, or keeps the summands
apart along the join tree; after that a round is the same (`mapping`).

Who waits for whom: the server waits for every table in each batch or round; tables never wait for each other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import Server
from fedactors.actors.context import Work, derived_rng
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import DRIVER, remote
from fedactors.data.alignment.rows import JoinMember, KeyHashes, agree_on_plan, ask_all, ask_each, check_keys
from fedactors.data.join import JoinTree
from fedactors.data.layouts.vertical import RelationalQuery
from fedactors.data.values import allocate
from fedactors.errors import Refused
from fedactors.messages.codec import wire_type
from fedactors.protocols.tablepuppet import algorithm, data, messages
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.protocols.tablepuppet.algorithm import Array, Parts
from fedactors.protocols.tablepuppet.baselines import centralised
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.lou_operator import (
    NOTHING,
    UnionCoordinator,
    UnionOperator,
    bare,
    check_labels,
)
from fedactors.protocols.tablepuppet.mapping import (
    LISTED,
    JoinSplit,
    ListedJoin,
    Outputs,
    TreeJoin,
    TreeSplit,
    comparable_rows,
    join_tables,
)
from fedactors.secure_sums.actors import SecureSums
from fedactors.secure_sums.primitives import FixedPoint

_log = logging.getLogger(__name__)
SHARES: dict[algorithm.Loss, float] = {"squared": 0.3, "logistic": 0.15, "softmax": 0.15}
"""Of the loss's curvature, as the penalty; that of classes falls as training goes on."""


@wire_type
class Side:
    """A vertical table as the server addresses it: its clients, and its coordinator's name if it has one."""

    table: str
    clients: tuple[str, ...]
    coordinator: str | None


class TableServer(Server):
    """What the servers of training and of prediction share: the clients' handles, the plan, sums under masks."""

    client: ClassVar[type[JoinMember]]
    """Class of the tables' clients."""
    num_sums: ClassVar[int] = 32
    """For how many sums under masks keys are prepared at once."""

    def __init__(self, config: TablePuppetConfig, query: RelationalQuery, sides: tuple[Side, ...]) -> None:
        self._config, self._query, self._sides = config, query, sides
        names = [name for side in sides for name in side.clients]
        self._sums = SecureSums(self, ActorGroup(self, names, timeout=600.0), num_sums=self.num_sums)

    async def open(self) -> None:
        """Make handles of the clients."""
        self._clients: dict[str, list[Any]] = {
            side.table: [self.peer(name, self.client) for name in side.clients] for side in self._sides
        }

    async def _agree_on_plan(self) -> None:
        self._plan, _ = await agree_on_plan(self._query, self._clients)
        self.label_index = self._plan.tables.index(self._plan.label_table)

    async def _masked_sum(
        self, tables: Iterable[Any], call: Callable[[Any, Any], Awaitable[Any]], messages: Iterable[Any], work: Work
    ) -> Array:
        """Call every table and return the sum of their predictions, in which the parts do not show."""
        await self._sums.prepare(1)
        found = await ask_each(tables, call, messages)
        parts = {side.clients[0]: part for side, part in zip(self._sides, found, strict=True)}
        point = FixedPoint(limit=self._config.secure_range, num_clients=len(parts))
        return (await self._sums.total(parts, point, work))[0]


class JoinServer(TableServer):
    """The server of training: it joins hashed keys, and trains over the join without ever having a row of it."""

    state: ClassVar[tuple[str, ...]] = (
        "train_rows", "test_rows", "num_rows", "label_index", "y", "num_outputs", "dual", "predictions", "thetas",
        "memory", "matrices", "base", "rho", "z", "trees",
    )  # fmt: skip
    client = TableClient
    _train: ListedJoin | TreeJoin
    _test: ListedJoin | TreeJoin

    def __init__(
        self, config: TablePuppetConfig, query: RelationalQuery, sides: tuple[Side, ...], batch_seed: int
    ) -> None:
        super().__init__(config, query, sides)
        self._batch_seed = batch_seed
        self._loss = data.loss_of(config, query.task)
        self.train_rows: list[NDArray[np.int32]] = []
        self.test_rows: list[NDArray[np.int32]] = []
        self.trees: list[Any] = []
        """Of a join that is not listed: the training and the test join, as the arguments of `JoinTree`."""
        self.num_rows: list[int] = []
        self.y: NDArray[Any] = np.zeros(0)
        """Labels of the joined rows; along a tree those of the label table's rows."""
        self.num_outputs = 1
        self.label_index = 0
        self.dual: list[Array] = []
        self.z: list[Array] = []
        """Lambda and z of ADMM, in parts."""
        self.predictions: list[Array] = []
        """h_i of every table, or their sum alone where it is made under masks."""
        self.thetas: list[Array] = []
        self.memory: dict[str, dict[str, Any]] = {}
        self.matrices: list[messages.DesignMatrix] = []
        self.base = np.zeros(1)  # the outputs at which training begins
        self.rho = config.first_rho

    async def open(self) -> None:
        """Make an operator for each vertical table, and what follows from a restored mapping."""
        await super().open()
        self._tables = [self._vertical_table(side) for side in self._sides]
        self._index()

    def _vertical_table(self, side: Side) -> TableClient | UnionOperator:
        clients = self._clients[side.table]
        if side.coordinator is not None:
            return self.peer(side.coordinator, UnionCoordinator)
        if len(clients) == 1:
            return clients[0]  # type: ignore[no-any-return]
        return UnionOperator(self._config, clients, side.clients, self.compute, self.memory.setdefault(side.table, {}))

    def _index(self) -> None:
        if self.trees:
            self._train, self._test = (TreeJoin(JoinTree(*tree)) for tree in self.trees)
        elif self.train_rows:
            self._train, self._test = (ListedJoin(rows) for rows in (self.train_rows, self.test_rows))

    # --- table mapping (Section 3.1.1) ---

    @remote(caller=DRIVER, once=True)
    async def agree(self) -> None:
        """Check the query against everybody's columns, then let each table's partitions agree on their encoding."""
        await self._agree_on_plan()
        if not self._config.declared_facts:
            rest = [client for clients in self._clients.values() for client in clients[1:]]
            await ask_all(rest, lambda client: client.tell_facts())
        await ask_all([clients[0] for clients in self._clients.values()], lambda client: client.agree())

    @remote(caller=DRIVER, once=True)
    async def map_tables(self) -> messages.JoinFacts:
        """Join the hashed keys, split the join into training and test rows, and give every table its G_i."""
        keys = await ask_all(self._tables, lambda table: table.send_keys())
        for side, found in zip(self._sides, keys, strict=True):
            check_keys(self._speaker(side), found, self._plan, side.table)
        facts = [(k.num_rows, k.num_null) for k in keys]
        labels = await self._tables[self.label_index].send_labels()
        self._check_labels(labels, keys[self.label_index].num_rows)
        split = await self._split(keys, labels.is_test)
        del keys  # larger than all that follows
        self.num_outputs = labels.num_classes
        y_n = np.zeros(len(labels.is_test), dtype=labels.train.dtype)
        y_n[~labels.is_test] = labels.train
        self.y, times = split.labels(self.label_index, y_n)
        del labels, y_n
        self.base = algorithm.base_outputs(self._loss, self.y, self.num_outputs, self._config.centre_labels, times)
        if self._config.rho == "curvature" and self._config.is_admm and self._config.admm == "boyd":
            self.rho = SHARES[self._loss] * algorithm.curvature(self._loss, self.base)
        await self._tell_counts(split)
        await self._keep(split)
        del split
        await self._begin()
        return self._facts(facts)

    @staticmethod
    def _speaker(side: Side) -> str:
        """Return who answers for a table: its coordinator, or its client; of several in here each is checked itself."""
        return side.coordinator or side.clients[0]

    def _check_labels(self, labels: messages.Labels, num_rows: int) -> None:
        """Check labels, and that there are as many outputs as the task has."""
        most, told = self._query.num_classes, labels.num_classes
        is_approved = told >= 2 and (most < 2 or told <= most) if self._loss == "softmax" else told == 1
        name = self._speaker(self._sides[self.label_index])
        if not is_approved:
            approved = (f"2 to {most:,}" if most > 1 else "2 or more") if self._loss == "softmax" else "1"
            raise Refused(name, f"sends labels of {told:,} outputs; approved: {approved}")
        check_labels(name, labels, num_rows, told)

    async def _split(self, keys: Sequence[KeyHashes], is_test: NDArray[np.bool_]) -> JoinSplit | TreeSplit:
        config, names = self._config, [side.table for side in self._sides]
        hashes = {name: list(k.hashes) for name, k in zip(names, keys, strict=True)}
        sizes = {name: k.num_rows for name, k in zip(names, keys, strict=True)}
        by = config.join_by if config.may_follow_tree and self._loss == "squared" else "rows"
        args = (self._plan, hashes, sizes, is_test, self.label_index, config.threads, config.memory_limit, by)
        return await self.compute(join_tables, *args, work=Work("join", float(sum(sizes.values()))))

    async def _tell_counts(self, split: JoinSplit | TreeSplit) -> None:
        """Tell every table how often its rows join, or the vertical baselines which do; and which rows are scored."""
        label = self.label_index
        bases = [self.base if i == label else np.zeros(0) for i in range(len(self._tables))]
        if self._config.is_vertical:
            assert isinstance(split, JoinSplit)
            pairs = zip(split.train, split.test, bases, strict=True)
            given = [messages.JoinedRows(train, test, self.num_outputs, base) for train, test, base in pairs]
            await ask_each(self._whole_tables, lambda client, rows: client.receive_joined_rows(rows), given)
        else:
            counts = zip(split.counts(), bases, strict=True)
            sent = [messages.DuplicateCounts(*each, split.num_joined, self.num_outputs, base) for each, base in counts]
            await ask_each(self._tables, lambda table, counts: table.receive_counts(counts), sent)
        await self._tables[label].receive_test_rows(messages.TestRows(split.tested(label)))

    async def _keep(self, split: JoinSplit | TreeSplit) -> None:
        """Keep the join, its rows numbered as the tables keep them."""
        if isinstance(split, TreeSplit):
            self.trees = [(tree.num_rows, tree.steps, tree.root) for tree in (split.train, split.test)]
            self.num_rows = list(split.train.num_rows)
        else:
            joined = split.vertical_slices() if self._config.is_vertical else split.renumbered()
            if self._config.secure_aggregation:
                joined = await self._send_positions(joined, split.tested(self.label_index))
            self.train_rows, self.test_rows = list(joined.train), list(joined.test)
            self.num_rows = list(joined.num_rows)
        self._index()

    async def _send_positions(self, joined: JoinSplit, tested: NDArray[Any]) -> JoinSplit:
        """Tell each client which of its rows stands in which joined row, in random order, and return that order."""
        work = Work("join", float(joined.num_joined * self.num_outputs))
        shares = await self.compute(comparable_rows, joined, work=work)
        for side, share in zip(self._sides, shares, strict=True):
            if share > 0:
                _log.warning(
                    "secure_aggregation: sums tell differences of %.0f %% of the rows of %s", 100 * share, side.table
                )
        ordered, train, test = joined.shuffled(self.noise_rng("order of joined rows"))
        self.y = self.y[train]
        await self._whole_tables[self.label_index].receive_test_rows(messages.TestRows(tested[test]))
        given = [messages.JoinPositions(a, b) for a, b in zip(ordered.train, ordered.test, strict=True)]
        await ask_each(self._whole_tables, lambda client, positions: client.receive_positions(positions), given)
        return ordered

    async def _begin(self) -> None:
        """Take the first predictions, or in the centralised baseline every row."""
        config, tables = self._config, self._tables
        if config.algorithm == "centralised":
            self.matrices = await ask_all(tables, lambda table: table.give_rows())
            self.thetas = [matrix.theta for matrix in self.matrices]
        elif config.is_admm:
            self.dual = [allocate((size, self.num_outputs), np.float64) for size in self._train.sizes]
            self.z = [local + base for local, base in zip(self.dual, self._train.of_label(self.base), strict=True)]
            self.predictions = await self._ask(lambda table, _: table.predict_all(), tables, self.num_rows)

    def _facts(self, of_keys: Sequence[tuple[int, int]]) -> messages.JoinFacts:
        names = [side.table for side in self._sides]
        return messages.JoinFacts(
            joined_rows=self._train.num_joined,
            joined_test_rows=self._test.num_joined,
            outputs=self.num_outputs,
            rows={name: num_rows for name, (num_rows, _) in zip(names, of_keys, strict=True)},
            rows_that_join=dict(zip(names, self.num_rows, strict=True)),
            rows_with_null_keys={name: num_null for name, (_, num_null) in zip(names, of_keys, strict=True)},
        )

    # --- training (Algorithm 1) ---

    @remote(caller=DRIVER, at_most="most_rounds", of="number")
    async def train_round(self, order: messages.RoundOrder) -> messages.TrainingLoss:
        """Train one epoch of SGD or one round of ADMM, as Table 5 composes them, and return the training loss."""
        config, rho = self._config, self.rho
        if not config.is_admm:
            train = self._train_centralised if config.algorithm == "centralised" else self._sgd_epoch
            return messages.TrainingLoss(await train(order.number), 0.0, 0.0, 0.0)
        loss, residuals = await self._admm_round()
        if config.adapts_rho and 2 * order.number <= config.most_rounds:
            self.rho = residuals.balanced(rho)
        return messages.TrainingLoss(loss, *residuals.shares, rho)

    async def _admm_round(self) -> tuple[float, algorithm.Residuals]:
        """RFL-ADMM(-V), VFL-ADMM: LoJ gathers, updates z and lambda, scatters Y; the tables solve for theta."""
        joined, rho = self._train, self.rho
        args = (self._loss, joined.of_label(self.y), self.dual, await self._gather(), rho, self.z)
        more = (joined.of_label(self.base), joined.norm, self._config.relaxation)
        step = await self.compute(algorithm.admm_server_round, *args, *more, work=self._work("server-step"))
        self.dual, shared, self.z, residuals = step
        sent = [messages.Auxiliary(Y_nC, rho) for Y_nC in await self._scatter(shared)]
        self.predictions = await self._ask(lambda table, auxiliary: table.solve(auxiliary), sent, self.num_rows)
        return await self._training_loss(), residuals

    async def _gather(self) -> Parts:
        """Return h of the joined rows, in parts."""
        if self._config.secure_aggregation or isinstance(self._train, TreeJoin):
            return self.predictions
        args = (self.predictions, self._train.rows)
        return [await self.compute(algorithm.gather_join, *args, work=self._work("gather"))]

    async def _scatter(self, shared: Parts) -> list[Array]:
        """Return Y_i (Eq. 14) for every table; under masks each takes its own term away itself."""
        config, joined, work = self._config, self._train, self._work("scatter")
        if isinstance(joined, TreeJoin):
            summed = joined.scatter(shared)
        else:
            arguments = zip(joined.rows, self.num_rows, strict=True)
            summed = [await self.compute(algorithm.scatter_join, shared[0], *one, work=work) for one in arguments]
        if config.secure_aggregation:
            return summed
        local = zip(summed, joined.counts, self.predictions, strict=True)
        return [algorithm.linear_term(config.admm, *each, self.rho, len(self._tables)) for each in local]

    async def _training_loss(self) -> float:
        if self._config.secure_aggregation:
            return algorithm.mean_loss(self._loss, self.predictions[0], self.y)
        args = (self._loss, self.predictions, self.y)
        return await self.compute(self._train.loss, *args, work=self._work("gather"))

    async def _sgd_epoch(self, number: int) -> float:
        """RFL-SGD(-V), VFL-SGD: for each batch LoJ gathers, differentiates the loss and scatters."""
        order = derived_rng(self._batch_seed, "batches", str(number))
        batches = algorithm.epoch_batches(len(self.y), self._config.batch_of(len(self.y)), order)
        scratch = [np.empty(n, dtype=np.int64) for n in self.num_rows]
        touched, loss_sum = await self._touch(batches[0], scratch), 0.0
        nothing = np.zeros((0, self.num_outputs))
        sent = [messages.Derivatives(nothing, 0, rows) for rows in self._rows_of(batches[0], touched)]
        for batch, following in zip_longest(batches, batches[1:]):
            sizes = [len(one.next_rows) for one in sent]
            replies = await self._ask(lambda table, given: table.exchange(given), sent, sizes)
            args = (self._loss, replies, touched, self.y[batch], self._config.secure_aggregation)
            value, Y = await self.compute(algorithm.sgd_server_step, *args, work=self._work("server-step", len(batch)))
            loss_sum += value
            next_rows = [NOTHING] * len(Y)
            if following is not None:
                touched = await self._touch(following, scratch)
                next_rows = self._rows_of(following, touched)
            sent = [messages.Derivatives(y, len(batch), rows) for y, rows in zip(Y, next_rows, strict=True)]
        await self._ask(lambda table, given: table.exchange(given), sent, [0] * len(sent))
        return loss_sum / len(self.y)

    async def _touch(self, batch: NDArray[Any], scratch: list[NDArray[Any]]) -> list[algorithm.BatchRows]:
        chosen = [rows[batch] for rows in self._listed.rows]
        work = self._work("gather", len(batch))
        return await self.compute(algorithm.touch_tables, chosen, scratch, work=work)

    def _rows_of(self, batch: NDArray[Any], touched: list[algorithm.BatchRows]) -> list[NDArray[np.int32]]:
        """Return which rows each table is told of a batch: distinct ones, or one for each joined row under masks."""
        if self._config.secure_aggregation:
            return [rows[batch].astype(np.int32) for rows in self._listed.rows]
        return [t.rows_u.astype(np.int32) for t in touched]

    async def _train_centralised(self, number: int) -> float:
        """The baseline: the server has every row, and trains on the join in the clear."""
        work = self._work("centralised", len(self.y) * sum(len(theta) for theta in self.thetas))
        order = derived_rng(self._batch_seed, "batches", str(number))
        args = (self._config, self._loss, self._joined_table, self.thetas, order)
        self.thetas = await self.compute(centralised.train, *args, work=work)
        self.predictions = self._predict_centralised([matrix.train for matrix in self.matrices])
        return await self._training_loss()

    def _predict_centralised(self, matrices: Sequence[Array]) -> list[Array]:
        return centralised.predict_tables(self._joined_table.models, self.thetas, matrices)

    @property
    def _joined_table(self) -> centralised.JoinedTable:
        x = tuple(matrix.train for matrix in self.matrices)
        models = centralised.describe_models(self._config, x, self.label_index, self.num_outputs)
        rows = tuple(row.astype(np.int64) for row in self._listed.rows)
        return centralised.JoinedTable(models, x, rows, self.y)

    # --- evaluation ---

    @remote(caller=DRIVER, at_most="most_rounds")
    async def evaluate(self) -> messages.TestScore:
        """Return the scores on the joined test rows, which the label's owner computes from the summed outputs."""
        if self._config.algorithm == "centralised":
            predictions = self._predict_centralised([matrix.test for matrix in self.matrices])
        else:
            is_tree = isinstance(self._test, TreeJoin)
            sizes = self._test.sizes if is_tree else [int(rows.max(initial=-1)) + 1 for rows in self.test_rows]
            predictions = await self._ask(lambda table, _: table.predict_test(), self._tables, sizes)
        if self._config.secure_aggregation:
            return await self._score((predictions[0], *LISTED))
        work = self._work("gather", None if self.trees else self._test.num_joined)
        return await self._score(await self.compute(self._test.outputs, predictions, work=work))

    @remote(caller=DRIVER, once=True)
    async def trivial(self) -> messages.TestScore:
        """Return the scores of the predictor that knows only the training labels (as the server has them)."""
        times = self._train.counts[self.label_index] if self.trees else None
        constant_C = algorithm.trivial_outputs(self._loss, self.y, self.num_outputs, times)
        if not self.trees:
            return await self._score((np.tile(constant_C, (self._test.num_joined, 1)), *LISTED))
        owns = [i == self.label_index for i in range(len(self._tables))]
        constants = [np.tile(constant_C * local, (len(G), 1)) for local, G in zip(owns, self._test.counts, strict=True)]
        return await self._score(self._test.outputs(constants))

    async def _score(self, outputs: Outputs) -> messages.TestScore:
        loss, (values, counts, spread) = self._loss, outputs
        sent = messages.TestOutputs(values, algorithm.ranks_of(loss, values), counts, spread)
        found = await self._tables[self.label_index].score(sent)
        more = algorithm.more_scores(loss, found.tally, found.count) if len(found.tally) > 1 else {}
        return messages.TestScore(algorithm.mean_score(loss, found.total, found.count), found.loss / found.count, more)

    # --- inside ---

    async def _ask(
        self, call: Callable[[Any, Any], Awaitable[Any]], messages: Iterable[Any], sizes: Sequence[int]
    ) -> list[Array]:
        """Return every table's predictions of so many rows, or their sum alone where it is made under masks."""
        if self._config.secure_aggregation:
            return [await self._ask_sum(call, messages)]
        names = [self._speaker(side) for side in self._sides]
        return bare(await ask_each(self._tables, call, messages), names, sizes, self.num_outputs)

    async def _ask_sum(self, call: Callable[[Any, Any], Awaitable[Any]], messages: Iterable[Any]) -> Array:
        return await self._masked_sum(self._tables, call, messages, self._work("server-step"))

    @property
    def _whole_tables(self) -> list[TableClient]:
        """The clients of tables of one partition each."""
        return [clients[0] for clients in self._clients.values()]

    @property
    def _listed(self) -> ListedJoin:
        assert isinstance(self._train, ListedJoin)
        return self._train

    def _work(self, kind: str, num_rows: int | None = None) -> Work:
        count = sum(self._train.sizes) if num_rows is None else num_rows
        return Work(kind, float(count * self.num_outputs))
