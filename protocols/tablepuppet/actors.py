"""The client operator: one actor for each horizontal partition; its rows and its theta never leave it.

Who waits for whom: a client answers whoever coordinates its table (the server, or the organisation's coordinator) and
waits for nobody, but for the other clients at the start, to agree on the hash key and on the table's categories.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import FedactorsError
from fedactors.roles import Client
from fedactors.runtime.base import Work
from protocols.tablepuppet import rows, updates
from protocols.tablepuppet.algorithm import combine_gradients, gradient_step, mean_loss
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.data import Seat, TrainingSet
from protocols.tablepuppet.encoding import column_facts, label_classes, merge_classes, merge_facts
from protocols.tablepuppet.messages import (
    AggregatedGradient,
    Agreement,
    Auxiliary,
    Consensus,
    Derivatives,
    DesignMatrix,
    DuplicateCounts,
    Facts,
    HashSecret,
    JoinedRows,
    KeyHashes,
    Labels,
    LocalParameters,
    PartialGradient,
    Predictions,
    Schema,
    Schemas,
    Score,
    TestOutputs,
    TestPredictions,
    TestRows,
)
from protocols.tablepuppet.models import Array, TableModel, initial_theta, predict
from protocols.tablepuppet.plan import JoinPlan, VerticalTable
from protocols.tablepuppet.privacy import noisy_predictions
from protocols.tablepuppet.scoring import score_rows
from protocols.tablepuppet.subproblem import LinearSystem, Subproblem


class TableClient(Client):
    """One client with one horizontal partition of one table.

    Args:
        config: the run's settings.
        training: the query, the label and the loss.
        seat: which table and partition it has, and where its rows lie; no other client's place is known here.
    """

    state: ClassVar[tuple[str, ...]] = (
        "schemas", "agreement", "counts", "joined", "test_rows", "theta", "local_theta", "auxiliary", "num_updates",
        "num_releases", "noise_multiplier", "noise",
    )  # fmt: skip

    def __init__(self, config: TablePuppetConfig, training: TrainingSet, seat: Seat) -> None:
        self._config, self._training, self._seat = config, training, seat
        self.schemas: Schemas | None = None
        self.agreement: Agreement | None = None
        self.counts: DuplicateCounts | None = None
        self.joined: JoinedRows | None = None
        self.test_rows: TestRows | None = None
        self.theta = self.local_theta = self.auxiliary = np.zeros(0)
        self.num_updates = self.num_releases = 0
        self.noise_multiplier = 0.0
        self._secret = b""
        self._batch: Any = np.zeros(0, dtype=np.int32)
        self._system: LinearSystem | None = None

    async def load(self) -> None:
        """Look at the table's columns in its database; the rows are read when the query's names are resolved."""
        self.noise = self.noise_rng("noise")
        columns = self._seat.source.describe()
        self._schema = Schema(tuple(columns), tuple(columns.values()))

    async def open(self) -> None:
        """After a resume, read the rows again and rebuild what follows from them and the restored state."""
        if self.schemas is not None:
            self._resolve(self.schemas)
            self._own = rows.read_rows(self._seat.source, self._table, self._seat.partition, self.rng("row order"))
        if self.agreement is not None:
            self._encode()
        if self.counts is not None or self.joined is not None:
            self._pose()
            self._system = updates.prepare_solver(self._config, self._problem)

    # --- before training: names, rows, keys, labels ---

    async def describe(self) -> Schema:
        """Return the columns of the table."""
        return self._schema

    async def prepare(self, schemas: Schemas) -> int:
        """Resolve the query over all schemas, read the own rows, and return how many there are."""
        self._resolve(schemas)
        order = self.rng("row order")
        work = Work("read-table")
        self._own = await self.compute(
            rows.read_rows, self._seat.source, self._table, self._seat.partition, order, work=work
        )
        self.schemas = schemas
        return int(self._own.data.num_rows)

    async def share_secret(self, others: tuple[str, ...]) -> None:
        """Draw the key of the hashes and give it to the other clients, never to the server."""
        await self.receive_secret(HashSecret(self.noise_rng("hash key").bytes(32)))
        await asyncio.gather(*(self.peer(o, TableClient).receive_secret(HashSecret(self._secret)) for o in others))

    async def receive_secret(self, secret: HashSecret) -> None:
        """Take the key of the hashes."""
        self._secret = secret.key

    async def agree(self, others: tuple[str, ...]) -> None:
        """Merge what the table's partitions know of their columns, and tell them; for a table's first client."""
        peers = [self.peer(other, TableClient) for other in others]
        parts = [await self.facts(), *(await asyncio.gather(*(peer.facts() for peer in peers)))]
        merged = merge_facts([rows.unpack_facts(part) for part in parts])
        classes = merge_classes([part.classes for part in parts])
        agreement = Agreement(rows.pack_facts(merged, classes), self.seed("theta"))
        await self.accept(agreement)
        await asyncio.gather(*(peer.accept(agreement) for peer in peers))

    async def facts(self) -> Facts:
        """Return what this partition knows of its columns."""
        found = await self.compute(column_facts, self._own.data, self._table.features, work=self._work("encode"))
        label = self._table.label
        is_class = label is not None and self._training.loss == "softmax"
        return rows.pack_facts(found, label_classes(self._own.data.column(label)) if is_class else ())

    async def accept(self, agreement: Agreement) -> None:
        """Encode the rows by the table's facts."""
        self.agreement = agreement
        self._encode()

    async def send_keys(self) -> KeyHashes:
        """Return the keyed hashes of the join keys; the key is then forgotten."""
        if not self._secret:
            raise FedactorsError(f"{self.name}: no hash key was shared")
        args = (self._own.data, self._plan.edges_of(self._seat.table), self._seat.table, self._secret)
        hashes = await self.compute(rows.hash_rows, *args, work=self._work("hash-keys"))
        self._secret = b""
        return KeyHashes(self._own.data.num_rows, self._own.num_null, hashes)

    async def send_labels(self) -> Labels:
        """Return the labels of the training rows, noisy under label_dp, and which rows are kept for the test."""
        config, loss = self._config, self._training.loss
        train, num_classes = self._labels[~self._is_test], self._num_classes
        if config.label_dp is not None:
            noise = self.noise_rng("labels")
            train = rows.noisy_labels(train, loss, num_classes, config.label_dp, config.label_range, noise)
        return Labels(train, self._is_test, num_classes)

    async def receive_counts(self, counts: DuplicateCounts) -> None:
        """Take G_i, keep the rows that join, and make the model."""
        self.counts = counts
        await self._begin_training(counts.num_joined, counts.num_classes)

    async def receive_joined_rows(self, joined: JoinedRows) -> None:
        """Take p_i and hold the vertical slice of the joined table (VFL-SGD, VFL-ADMM)."""
        self.joined = joined
        await self._begin_training(len(joined.train), joined.num_classes)

    async def receive_test_rows(self, test_rows: TestRows) -> None:
        """Take the own row of each joined test row."""
        self.test_rows = test_rows

    # --- training ---

    async def predict_all(self) -> Predictions:
        """Return h_i of all rows that join (Algorithm 1, line 4, first round)."""
        return await self._predictions(self._x)

    async def exchange(self, derivatives: Derivatives) -> Predictions:
        """Take the step of the last batch (Eq. 12, 13) and return the predictions of the next (Table 5, RFL-SGD-V)."""
        if derivatives.batch_size:
            gradient = await self._gradient(derivatives)
            mean = combine_gradients([gradient], derivatives.batch_size)
            self.theta = gradient_step(self.theta, mean, self._config.learning_rate)
        self._batch = derivatives.next_rows
        return await self._predictions(self._x[self._batch])

    async def partial(self, derivatives: Derivatives) -> PartialGradient:
        """Return Eq. 18 over the own rows of the last batch (RFL-SGD)."""
        return PartialGradient(await self._gradient(derivatives))

    async def apply(self, gradient: AggregatedGradient) -> Predictions:
        """Take the step of the table's gradient (Eq. 19) and return the predictions of the next batch."""
        if len(gradient.values):
            self.theta = gradient_step(self.theta, gradient.values, self._config.learning_rate)
        self._batch = gradient.next_rows
        return await self._predictions(self._x[self._batch])

    async def solve(self, auxiliary: Auxiliary) -> Predictions:
        """Solve Eq. 16 and return the next round's predictions (RFL-ADMM-V)."""
        self.theta = await self._solve(auxiliary.values, self.theta, None)
        return await self._predictions(self._x)

    async def receive_auxiliary(self, auxiliary: Auxiliary) -> None:
        """Take Y_i for the inner rounds (RFL-ADMM)."""
        self.auxiliary = auxiliary.values

    async def consensus(self, consensus: Consensus) -> LocalParameters:
        """Solve Eq. 22 around w - u and return theta (RFL-ADMM)."""
        anchor = consensus.w - consensus.u
        self.local_theta = await self._solve(self.auxiliary, self.local_theta, anchor)
        return LocalParameters(self.local_theta)

    async def adopt(self, consensus: Consensus) -> Predictions:
        """Take the table's consensus w as the model and return the next round's predictions."""
        self.theta, self.auxiliary = consensus.w, np.zeros(0)
        return await self._predictions(self._x)

    async def first_theta(self) -> LocalParameters:
        """Return the theta that training begins with, alike in all partitions of a table."""
        return LocalParameters(self.theta)

    # --- evaluation, the centralised baseline, accounts ---

    async def predict_test(self) -> TestPredictions:
        """Return h_i of the rows in the test join."""
        return TestPredictions((await self._predictions(self._x_test)).values)

    async def score(self, outputs: TestOutputs) -> Score:
        """Score outputs against the own test labels, which have no noise and never leave."""
        assert self.test_rows is not None
        y_N, loss = self._labels[self.test_rows.rows], self._training.loss
        if not len(y_N):
            return Score(0.0, 0.0, 0)
        return Score(score_rows(loss, outputs.values, y_N), mean_loss(loss, outputs.values, y_N) * len(y_N), len(y_N))

    async def give_rows(self) -> DesignMatrix:
        """Give every feature away: the centralised baseline, and nothing else, asks for this."""
        return DesignMatrix(self._x, self._x_test, self.theta)

    async def privacy_facts(self) -> dict[str, float]:
        """Return what was released: noise multiplier of the steps, releases of each row's prediction, rows."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "releases": float(self.num_releases),
            "num_rows": float(len(self._x)),
            "num_joined": float(self._problem.num_joined),
            "has_label": float(self._table.label is not None),
        }

    # --- inside ---

    @property
    def _num_classes(self) -> int:
        assert self.agreement is not None
        return len(self.agreement.facts.classes) if self._training.loss == "softmax" else 1

    def _work(self, kind: str, num_rows: int | None = None) -> Work:
        count = self._own.data.num_rows if num_rows is None else num_rows
        return Work(kind, float(count * max(len(self._table.features), 1)))

    def _resolve(self, schemas: Schemas) -> None:
        kinds = {name: dict(zip(s.columns, s.kinds, strict=True)) for name, s in schemas.by_source.items()}
        self._plan: JoinPlan = self._training.plan(kinds)
        self._table: VerticalTable = self._plan.table(self._seat.table)

    def _encode(self) -> None:
        assert self.agreement is not None
        facts, loss = self.agreement.facts, self._training.loss
        self._encoded = rows.encode_rows(self._own.data, self._table, facts, self._config.standardise)
        if self._table.label is not None:
            self._labels = rows.label_rows(self._own.data, self._plan, loss, facts.classes)
            self._is_test = rows.choose_test(len(self._labels), self._config.test_share, self.rng("test rows"))

    async def _begin_training(self, num_joined: int, num_classes: int) -> None:
        self._pose()
        work = Work("factorise", float(len(self._x) * self._model.num_columns**2))
        self._system = await self.compute(updates.prepare_solver, self._config, self._problem, work=work)
        self.noise_multiplier = updates.choose_noise(self._config, len(self._x), num_joined, self._alone)
        assert self.agreement is not None
        self.theta = self.local_theta = initial_theta(self._model, np.random.default_rng(self.agreement.seed))

    @property
    def _alone(self) -> bool:
        return len(self._table.partitions) == 1

    def _pose(self) -> None:
        """Choose the rows that join, and pose the theta subproblem over them."""
        given = self.counts or self.joined
        assert given is not None
        if self.joined is not None:
            self._x, self._x_test = self._encoded[self.joined.train], self._encoded[self.joined.test]
            G_n: NDArray[Any] = np.ones(len(self._x), dtype=np.int64)
            num_joined = len(self._x)
        else:
            assert self.counts is not None
            active = np.flatnonzero(self.counts.train)
            whole = len(active) == len(self._encoded)
            self._x = self._encoded if whole else self._encoded[active]
            self._x_test = self._encoded[self.counts.in_test]
            G_n, num_joined = self.counts.train[active], self.counts.num_joined
        del self._encoded
        is_label, kind = self._table.label is not None, "neural" if self._config.model == "neural" else "linear"
        self._model = TableModel(
            kind,  # type: ignore[arg-type]
            self._x.shape[1],
            given.num_classes,
            self._config.num_hidden,
            is_label,
        )
        self._problem: Subproblem = updates.pose(
            self._config, self._model, self._x, G_n, num_joined, len(self._plan.tables), self._alone
        )

    def _noise_seed(self) -> tuple[int, ...]:
        return tuple(self.noise.integers(0, 2**63, 4).tolist()) if self._config.feature_dp is not None else (0,)

    async def _gradient(self, derivatives: Derivatives) -> Array:
        args = (self._config, self._model, self.theta, self._x[self._batch], derivatives.values, derivatives.batch_size)
        work = self._work("gradient", len(self._batch) * self._model.num_parameters)
        return await self.compute(updates.batch_gradient, *args, self._noise_seed(), self.noise_multiplier, work=work)

    async def _solve(self, Y_nC: Array, theta_P: Array, anchor_P: Array | None) -> Array:
        self.num_updates += 1
        order = self.rng(f"local batches {self.num_updates}")
        args = (self._config, self._problem, self._system, Y_nC, theta_P, anchor_P, order)
        work = Work("solve", float(len(self._x) * self._model.num_parameters))
        return await self.compute(updates.solve_theta, *args, self._noise_seed(), self.noise_multiplier, work=work)

    async def _predictions(self, x_nD: Array) -> Predictions:
        work = Work("predict", float(len(x_nD) * self._model.num_parameters))
        values = await self.compute(predict, self._model, self.theta, x_nD, work=work)
        if self._config.feature_dp is not None:
            self.num_releases += 1
            clip, noise = self._config.prediction_clip, self._config.prediction_noise
            values = noisy_predictions(values, clip, noise, self.noise)
        return Predictions(values)
