"""The client operator: one actor for each horizontal partition; its rows and its theta never leave it.

Who waits for whom: a client answers the coordinator of its table (the server, or the organisation's coordinator) and
waits for nobody, but for the other clients at the start, to agree on the hash key and on the table's categories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import Work
from fedactors.actors.remote import CLIENT, DRIVER, SERVER, remote
from fedactors.data.alignment.ids import tell_partners
from fedactors.data.alignment.rows import JoinMember
from fedactors.data.layouts.relational import Schemas, TableOwner, UserRows, dropped_for, meaning_of, read_rows
from fedactors.data.layouts.vertical import RelationalQuery
from fedactors.data.values import taken
from fedactors.errors import Refused, RowsChangedError
from fedactors.learning.metrics import LOCAL_BASELINE, Task, known, local_baseline
from fedactors.privacy.accounting import PrivacyRecord, without_guarantee
from fedactors.privacy.mechanisms import clip_and_noise
from fedactors.protocols.tablepuppet import algorithm, data, local_solvers, messages
from fedactors.protocols.tablepuppet.algorithm import Array
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.costs import Released, privacy_records
from fedactors.protocols.tablepuppet.mapping import score_means
from fedactors.protocols.tablepuppet.messages import Derivatives, Facts, TestOutputs
from fedactors.secure_sums.actors import SecureSummand, in_turn
from fedactors.secure_sums.messages import Masked
from fedactors.secure_sums.primitives import FixedPoint


def coordinator_of(clients: Sequence[str], table: str) -> str:
    """Return the name of the coordinator of a table's clients, which lives with the first of them."""
    return f"{clients[0].partition('/')[0]}/union-{table}"


TASKS: dict[algorithm.Loss, Task] = {"squared": "regression", "logistic": "binary", "softmax": "multiclass"}
MOST_TESTED = 100_000
"""Joined test rows that the model of the own columns is measured on."""


class MaskedTable(SecureSummand):
    """A table's client whose predictions may leave under the masks of a sum over tables."""

    _config: TablePuppetConfig

    def mask(self, values_NC: Array, heard: bytes) -> Masked:
        """Return predictions of joined rows under masks; `heard` says which, as each table is told something else."""
        point = FixedPoint(limit=self._config.secure_range, num_clients=len(self.clients))
        return self.masked(values_NC, point, what="predictions", heard=heard)


class TableClient(JoinMember, MaskedTable):
    """One client with one horizontal partition of one table.

    Args:
        table_owner: which table and partition it has, and where its rows lie; no other client's location is known here.
    """

    state: ClassVar[tuple[str, ...]] = (
        *JoinMember.state, "meaning", "fingerprint", "row_order", "agreement", "counts", "joined", "test_rows",
        "theta", "local_theta", "auxiliary", "num_updates", "num_releases", "num_steps", "noise_multiplier",
        "noise_state", "positions", "sent_labels", "test_labels", "fitted", "is_listed",
        *SecureSummand.state,
    )  # fmt: skip

    def __init__(
        self,
        config: TablePuppetConfig,
        query: RelationalQuery,
        table_owner: TableOwner,
        partners: tuple[str, ...],
        clients: tuple[str, ...],
        server: str,
    ) -> None:
        JoinMember.__init__(self, query, table_owner, clients)
        MaskedTable.__init__(self, clients, server)
        self._config = config
        self.positions: messages.JoinPositions | None = None
        self._partners = partners
        self._loss = data.loss_of(config, query.task)
        self.meaning: dict[str, Any] = {}
        """What the query means for the own table, for later predictions."""
        self.fingerprint = b""
        self.row_order: tuple[int, ...] = ()
        self.agreement: messages.Agreement | None = None
        self.counts: messages.DuplicateCounts | None = None
        self.fitted: dict[str, Any] = {}
        """What was measured by the owner's rules, if it has some: they say how rows become numbers, not facts."""
        self.joined: messages.JoinedRows | None = None
        self.test_rows: messages.TestRows | None = None
        self.theta = self.local_theta = self.auxiliary = np.zeros(0)
        self.num_updates = self.num_releases = self.num_steps = 0
        self.noise_multiplier = 0.0
        self._rho = config.first_rho
        self.sent_labels: messages.Labels | None = None
        """What was said of the labels: the same is said again, after a resume too."""
        self.test_labels: NDArray[Any] = np.zeros(0)
        """Under label_dp the labels of all rows by which outputs are scored, drawn with those."""
        self.is_listed = False
        """Whether the joined rows are listed, which scores that were asked for say."""
        self._batch: Any = np.zeros(0, dtype=np.int32)
        self._system: local_solvers.LinearSystem | None = None

    async def load(self) -> None:
        """Look at the table's columns, and take a noise generator of this process."""
        self.noise = self.noise_rng("noise")
        await super().load()

    async def open(self) -> None:
        """After a resume, read the rows again and rebuild what follows from them and the restored state."""
        self._is_restored = self._goes_on
        if self.schemas is not None:
            self._resolve(self.schemas)
            local = self._table_owner.partition
            self._local = read_rows(
                local.source, self._table, self._table_owner.index, self._shuffle, dropped_for(self._rules)
            )
            if self._local.fingerprint != self.fingerprint:
                raise RowsChangedError(
                    f"{self.name}: the rows of table {self._table_owner.table!r} have changed since the run began; "
                    "a run is resumed with the rows it began with, in any order"
                )
        if self.agreement is not None:
            self._encode(self.agreement)
        if self.counts is not None or self.joined is not None:
            self._pose()
            self._system = local_solvers.prepare_solver(self._config, self._problem)

    # --- who is meant ---

    @property
    def joiners(self) -> tuple[str, ...]:
        """The server, and the own table's coordinator; another table's is another party's."""
        return (self.adder, coordinator_of(self._partners, self._table_owner.table))

    def _check_partitions(self, *, alone: bool) -> None:
        """Check that what is asked for is what a table of so many partitions does: each way has a count of its own.

        Raises:
            Refused: it is not.
        """
        if self._alone != alone:
            asked = "one partition" if alone else "several partitions"
            raise Refused(self.caller, f"asks {self.name} for what a table of {asked} does; its table is none")

    @property
    def operator(self) -> str:
        """Who goes between the own table's clients, and sees theta: its coordinator, or the server."""
        is_within = self._config.lou_coordinator == "organisation" and len(self._partners) > 1
        return coordinator_of(self._partners, self._table_owner.table) if is_within else self.adder

    @property
    def partners(self) -> tuple[str, ...]:
        """The clients of the own table."""
        return self._partners

    @property
    def num_exchanges(self) -> int:
        """Of a run of SGD: each batch, and the first predictions of each round."""
        return 0 if self._config.is_admm or self._config.algorithm == "centralised" else self._num_batches

    @property
    def num_gradients(self) -> int:
        """The same where a table's partitions add gradients up."""
        return self.num_exchanges if self._config.algorithm == "rfl-sgd" else 0

    @property
    def first_partner(self) -> str:
        """The client of the own table that merges what its clients know of their columns."""
        return self._partners[0]

    # --- before training: names, rows, keys, labels ---

    @remote(caller=SERVER, only="joiners", once=True)
    async def tell_facts(self) -> None:
        """Tell the table's first client what this partition knows of its columns."""
        await self.peer(self._partners[0], TableClient).receive_facts(await self._facts())

    @remote(caller=CLIENT, only="partners", once=True, each=True)
    async def receive_facts(self, facts: messages.Facts) -> None:
        """Take what another partition of the table knows of its columns."""
        if not np.isfinite([facts.totals, facts.squares]).all() or (facts.counts < 0).any():
            raise Refused(self.caller, f"tells {self.name} facts of columns that are no sums")
        self._found[self.caller] = facts

    @remote(caller=SERVER, only="joiners", once=True)
    async def agree(self) -> None:
        """Merge what the table's partitions know of their columns, and tell them; for a table's first client."""
        if self._config.declared_facts:
            merged = await self._facts()
        else:
            merged = data.merge_facts([await self._facts(), *(self._found[name] for name in self._partners[1:])])
        if merged.classes and self._query.classes:
            merged = replace(merged, classes=self._query.classes)
        agreement = messages.Agreement(merged, self.seed("theta"))
        self._agree_on(agreement)
        await asyncio.gather(*(self.peer(name, TableClient).accept(agreement) for name in self._partners[1:]))

    @remote(caller=CLIENT, only="first_partner", once=True)
    async def accept(self, agreement: messages.Agreement) -> None:
        """Encode the rows by the table's facts."""
        await self._check_agreement(agreement)
        self._agree_on(agreement)

    async def _check_agreement(self, agreement: messages.Agreement) -> None:
        """Check that merged facts have what is known here; facts that are declared are compared.

        Raises:
            Refused: they are others, of another table's shape, or leave out a category that is here.
        """
        facts, local = agreement.facts, await self._facts()
        self.check_sizes(facts)
        merged = zip(facts.categories, local.categories, strict=True)
        holds = all(set(one) <= set(whole) for whole, one in merged) and bool((facts.counts >= local.counts).all())
        holds = holds and bool(np.isfinite([facts.totals, facts.squares]).all())
        if self._config.declared_facts:
            names = ("categories", "counts", "totals", "squares")
            holds = all(np.array_equal(getattr(facts, name), getattr(local, name)) for name in names[1:])
            holds = holds and facts.categories == local.categories
        approved = self._query.classes if facts.classes and self._query.classes else facts.classes
        if not holds or facts.classes != approved or not set(local.classes) <= set(facts.classes):
            said = f"tells {self.name} other facts of the table's columns than it knows"
            source = "declared_facts" if self._config.declared_facts else "at least its own"
            raise Refused(self.caller, f"{said}; approved: {source}")
        data.check_facts(facts, self._table_owner.table)

    def _agree_on(self, agreement: messages.Agreement) -> None:
        self.agreement = agreement
        self._encode(agreement)

    @remote(caller=SERVER, only="joiners", once=True)
    async def send_labels(self) -> messages.Labels:
        """Return the labels of the training rows, noisy under label_dp, and which rows are kept for the test."""
        if self._table.label is None:
            raise Refused(self.caller, f"asks {self.name} for labels, which are no column of its table")
        if self.sent_labels is None:  # asked again, the same ones: the mean of several would have less noise
            self.release("the labels")
            train, test = self._labels[~self._is_test], self._labels[self._is_test]
            drawn, settings = self.noise_rng("labels"), (self._config, self._loss, self._num_classes)
            noisy = data.noisy_labels(train, *settings, drawn)
            self.sent_labels = messages.Labels(noisy, self._is_test, self._num_classes)
            self.test_labels = np.zeros(len(self._labels), dtype=noisy.dtype)
            self.test_labels[self._is_test] = data.noisy_labels(test, *settings, drawn)
        return self.sent_labels

    @remote(caller=SERVER, only="joiners", once=True)
    async def receive_counts(self, counts: messages.DuplicateCounts) -> None:
        """Take G_i, keep the rows that join, and make the model."""
        self._check_counts(counts)
        self._check_outputs(counts)
        self.counts = counts
        num_found = int(np.count_nonzero((np.asarray(counts.train) > 0) | (np.asarray(counts.in_test) > 0)))
        tell_partners(self, num_found, self._local.data.num_rows, self._local.num_null)
        await self._begin_training()

    @remote(caller=SERVER, only="joiners", at_most=lambda config: int(config.secure_aggregation))
    async def receive_positions(self, positions: messages.JoinPositions) -> None:
        """Take the own row of every joined row, for predictions that are summed under masks.

        Raises:
            Refused: a row stands in another number of joined rows than its count says.
        """
        counts = self.counts
        if counts is None:
            raise Refused(self.caller, f"tells {self.name} of joined rows before their counts")
        found, kept = positions.train, counts.train[np.flatnonzero(counts.train)]
        is_whole = len(found) == counts.num_joined and found.min(initial=0) >= 0 and found.max(initial=0) < len(kept)
        tested = np.unique(positions.test)
        if not (is_whole and np.array_equal(np.bincount(found, minlength=len(kept)), kept)):
            said = f"sums rows of {self.name} in {len(found):,} joined rows, other ones than their counts say"
            raise Refused(self.caller, f"{said}; approved: {counts.num_joined:,}")
        if not np.array_equal(tested, np.arange(np.count_nonzero(counts.in_test))):
            raise Refused(self.caller, f"sums other rows of {self.name} for the test than those of the test join")
        self.positions = positions

    @remote(caller=SERVER, only="joiners", at_most=lambda config: int(config.is_vertical))
    async def receive_joined_rows(self, joined: messages.JoinedRows) -> None:
        """Take p_i and hold the vertical slice of the joined table (VFL-SGD, VFL-ADMM)."""
        self._check_outputs(joined)
        for rows in (joined.train, joined.test):
            if len(rows) and not (rows.min() >= 0 and rows.max() < len(self._encoded)):  # the last one is -1 too
                raise Refused(self.caller, f"joins rows of {self.name} beyond 0 to {len(self._encoded) - 1}")
        self.joined = joined
        await self._begin_training()

    @remote(caller=SERVER, only="joiners", at_most=2)
    async def receive_test_rows(self, test_rows: messages.TestRows) -> None:
        """Take the own row of each joined test row: every row that is said to be in the test join, and no other."""
        rows, counts, joined = test_rows.rows, self.counts, self.joined
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self._is_test) and self._is_test[rows].all()):
            raise Refused(self.caller, f"would score rows of {self.name} that are not kept for the test")
        in_test = joined.test if joined is not None else () if counts is None else np.flatnonzero(counts.in_test)
        if not np.array_equal(np.unique(rows), np.unique(in_test)):
            raise Refused(self.caller, f"would score other rows of {self.name} than those of the test join")
        self.test_rows = test_rows

    # --- training ---

    @remote(caller=SERVER, only="joiners", at_most=lambda config: int(config.is_admm))
    @in_turn
    async def predict_all(self) -> messages.Predictions | Masked:
        """Return h_i of all rows that join (Algorithm 1, line 4, first round)."""
        heard = self.heard("predict_all")
        return self._send(await self._predict(self._x), self._train_positions, heard)

    @remote(caller=SERVER, only="joiners", at_most="num_exchanges")
    @in_turn
    async def exchange(self, derivatives: messages.Derivatives) -> messages.Predictions | Masked:
        """Take the step of the last batch (Eq. 12, 13) and return the predictions of the next (Table 5, RFL-SGD-V)."""
        self._check_partitions(alone=True)
        self._check_batch_size(derivatives.batch_size)
        heard = self.heard("exchange", derivatives.batch_size)
        if derivatives.batch_size:
            gradient = await self._gradient(derivatives)
            mean = algorithm.combine_gradients([gradient], derivatives.batch_size)
            self.theta = algorithm.gradient_step(self.theta, mean, self._config.learning_rate)
        self._batch, positions = self._distinct(derivatives.next_rows), None
        if self._config.secure_aggregation:
            rows = algorithm.batch_rows(self._batch.astype(np.int64), np.empty(len(self._x), dtype=np.int64))
            self._batch, positions = rows.rows_u, rows.position_B
        return self._send(await self._predict(self._x[self._batch]), positions, heard)

    def _distinct(self, rows: Any) -> Any:
        """Return the rows of a batch; a row that stands in it k times would move theta k times as far as accounted."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self._x)):  # the last one is -1 too
            raise Refused(self.caller, f"asks {self.name} for rows beyond 0 to {len(self._x) - 1}")
        if self._config.feature_dp and not self._config.secure_aggregation and len(np.unique(rows)) < len(rows):
            raise Refused(self.caller, f"asks {self.name} for a batch that holds a row twice")
        if len(rows) > (most := self._most_in_batch):
            raise Refused(self.caller, f"asks {self.name} for a batch of {len(rows):,} rows; approved: {most:,}")
        return rows

    @property
    def _most_in_batch(self) -> int:
        return self._config.batch_of(self._problem.num_joined)

    def _check_batch_size(self, batch_size: int) -> None:
        """Check what a gradient is divided by.

        Raises:
            Refused: it is not the size of a batch; the first partition alone is told it, the others 0.
        """
        most = self._most_in_batch
        if not 0 <= batch_size <= most:
            raise Refused(self.caller, f"gives {self.name} a batch of {batch_size:,} joined rows; approved: {most:,}")

    def _check_rho(self, rho: float) -> None:
        """Check the penalty of a round.

        Raises:
            Refused: it is none.
        """
        if not 0 < rho < np.inf:
            raise Refused(self.caller, f"solves for the theta of {self.name} with a penalty of {rho:g}; approved: > 0")

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows, columns, outputs and parameters there are."""
        if isinstance(message, Facts):
            is_ruled = bool(self._table_owner.partition.rules) and not self._config.declared_facts
            return {"features": 0 if is_ruled else len(self._table.features)}
        sizes = {"rows": self._local.data.num_rows} if hasattr(self, "_local") else {}
        if self._is_posed:
            sizes |= {"outputs": self._problem.model.num_outputs, "parameters": len(self.theta)}
            sizes |= {"own rows that join": len(self._x)}
        if isinstance(message, Derivatives):
            sizes["rows of the batch"] = len(self._batch) if message.batch_size or not self._alone else 0
        if isinstance(message, TestOutputs) and self.test_rows is not None:
            sizes["rows to score"] = len(self.test_rows.rows)
        return sizes

    @remote(caller=SERVER, only="operator", at_most="num_gradients")
    async def partial(self, derivatives: messages.Derivatives) -> messages.PartialGradient:
        """Return Eq. 18 over the own rows of the last batch (RFL-SGD)."""
        self._check_partitions(alone=False)
        self._check_batch_size(derivatives.batch_size)
        return messages.PartialGradient(await self._gradient(derivatives))

    @remote(caller=SERVER, only="operator", at_most="num_gradients")
    async def apply(self, gradient: messages.AggregatedGradient) -> messages.Predictions:
        """Take the step of the table's gradient (Eq. 19) and return the predictions of the next batch."""
        self._check_partitions(alone=False)
        if len(gradient.values):
            self.theta = algorithm.gradient_step(self.theta, gradient.values, self._config.learning_rate)
        self._batch = self._distinct(gradient.next_rows)
        return messages.Predictions(await self._predict(self._x[self._batch]))

    @remote(caller=SERVER, only="joiners", at_most="num_solutions")
    @in_turn
    async def solve(self, auxiliary: messages.Auxiliary) -> messages.Predictions | Masked:
        """Solve Eq. 16 and return the next round's predictions (RFL-ADMM-V)."""
        self._check_partitions(alone=True)
        self._check_rho(auxiliary.rho)
        heard = self.heard("solve", auxiliary.rho)
        Y_nC, config, problem = auxiliary.values, self._config, self._problem
        if config.secure_aggregation:  # the server does not know the own predictions, which Eq. 14 takes away
            work = Work("predict", float(len(self._x) * problem.model.num_parameters))
            local_nC = await self.compute(local_solvers.predict, problem.model, self.theta, self._x, work=work)
            Y_nC = algorithm.linear_term(
                config.admm, Y_nC, problem.G_n, local_nC, auxiliary.rho, len(self._plan.tables)
            )
        self.theta = await self._solve(Y_nC, self.theta, None, auxiliary.rho)
        return self._send(await self._predict(self._x), self._train_positions, heard)

    @remote(caller=SERVER, only="joiners", at_most="num_consensus_rounds")
    async def receive_auxiliary(self, auxiliary: messages.Auxiliary) -> None:
        """Take Y_i for the inner rounds (RFL-ADMM)."""
        self._check_partitions(alone=False)
        self._check_rho(auxiliary.rho)
        self.auxiliary, self._rho = auxiliary.values, auxiliary.rho

    @remote(caller=SERVER, only="operator", at_most=lambda config: config.num_consensus_rounds * config.inner_rounds)
    async def consensus(self, consensus: messages.Consensus) -> messages.LocalParameters:
        """Solve Eq. 22 around w - u and return theta (RFL-ADMM)."""
        self._check_partitions(alone=False)
        self.local_theta = await self._solve(self.auxiliary, self.local_theta, consensus.w - consensus.u, self._rho)
        return messages.LocalParameters(self.local_theta)

    @remote(caller=SERVER, only="operator", at_most="num_consensus_rounds")
    async def adopt(self, consensus: messages.Consensus) -> messages.Predictions:
        """Take the table's consensus w as the model and return the next round's predictions."""
        self._check_partitions(alone=False)
        self.theta, self.auxiliary = consensus.w, np.zeros(0)
        return messages.Predictions(await self._predict(self._x))

    @remote(caller=SERVER, only="operator", at_most=lambda config: int(config.algorithm == "rfl-admm"))
    async def first_theta(self) -> messages.LocalParameters:
        """Return the theta that training begins with, alike in all partitions of a table."""
        return messages.LocalParameters(self.theta)

    # --- evaluation, the centralised baseline, accounts ---

    @remote(caller=SERVER, only="joiners", at_most="num_tests")
    @in_turn
    async def predict_test(self) -> messages.TestPredictions | Masked:
        """Return h_i of the rows in the test join."""
        heard = self.heard("predict_test")
        values, positions = await self._predict(self._x_test), self._positions
        return messages.TestPredictions(values) if positions is None else self.mask(values[positions.test], heard)

    @remote(caller=SERVER, only="joiners", at_most=lambda config: config.most_rounds + 1)
    async def score(self, outputs: messages.TestOutputs) -> messages.Score:
        """Score outputs of the server's making against the own test labels, under label_dp against noisy ones.

        Labels without noise would be told: a few sums over outputs that are chosen well spell one label each. Of the
        noisy ones, drawn once, any number of scores tells no more than they do.
        """
        if self.test_rows is None or not len(self.test_rows.rows):
            return messages.Score(0.0, 0.0, 0, np.zeros(0))
        rows, noise, h_NC, loss = self.test_rows.rows, self._config.label_dp, outputs.values, self._loss
        if noise is not None and self.sent_labels is None:
            raise Refused(self.caller, f"asks {self.name} for scores before the labels, whose noise these have")
        y_N = (self._labels if noise is None else self.test_labels)[rows]
        self.is_listed = not len(outputs.counts)
        if len(outputs.counts):  # of a join that is not listed: the loss is squared
            sums, count = score_means(h_NC[:, 0], y_N, outputs.counts, outputs.spread), int(outputs.counts.sum())
            if noise is None:
                return messages.Score(float(sums[2]), float(sums[2]) / 2, count, sums)
            total = algorithm.unbiased_squares(float(sums[2]), count, noise)
            return messages.Score(total, total / 2, count, np.zeros(0))
        if noise is not None:
            return messages.Score(*algorithm.unbiased_score(loss, h_NC, y_N, noise), len(y_N), np.zeros(0))
        total, mean = algorithm.score_rows(loss, h_NC, y_N), algorithm.mean_loss(loss, h_NC, y_N)
        return messages.Score(total, mean * len(y_N), len(y_N), algorithm.tally_rows(loss, h_NC, y_N, outputs.ranks))

    @remote(caller=DRIVER, at_most=lambda config: int(config.measures_alone))
    async def measure_alone(self) -> messages.TestScore:
        """Return the scores on the joined test rows of a model of the own columns, trained here and then given up."""
        counts, tested = self.counts, self.test_rows
        if not (self._alone and self.is_listed and counts is not None and tested is not None and len(tested.rows)):
            return messages.TestScore(0.0, 0.0, {})
        chosen, kept = np.flatnonzero(counts.train), np.flatnonzero(counts.in_test)
        rows = tested.rows[:: -(-len(tested.rows) // MOST_TESTED)]
        tests = np.asarray(self._x_test[np.searchsorted(kept, rows)]), self._labels[rows]
        args = (np.asarray(self._x), self._labels[chosen]), {"test": tests}, counts.train[chosen]
        found = await self.compute(local_baseline, TASKS[self._loss], *args, work=Work(LOCAL_BASELINE))
        scores = found.get("test", {})
        return messages.TestScore(0.0, scores.get("loss", 0.0), known(scores))

    @remote(caller=SERVER, only="joiners", at_most=lambda config: int(config.algorithm == "centralised"))
    async def give_rows(self) -> messages.DesignMatrix:
        """Give every feature away, in the centralised baseline only."""
        if self._config.algorithm != "centralised":
            raise Refused(self.caller, f"asks {self.name} for its rows, which are given away in centralised only")
        return messages.DesignMatrix(np.asarray(self._x), np.asarray(self._x_test), self.theta)

    @remote(caller=DRIVER, once=True)
    async def account(self) -> None:
        """Write what was released, and what that guarantees, to the privacy ledger."""
        for record in self._records(self.num_steps, self.num_releases):
            self.record_privacy(without_guarantee(record) if self._context.reproducible_noise else record)

    def planned_privacy(self) -> Iterable[PrivacyRecord]:
        """Return what all steps of the run release, the predictions of the training rows, and the labels."""
        if not self._is_posed:
            return ()
        num_rows, num_joined = len(self._x), self._problem.num_joined
        steps, _ = local_solvers.total_steps(self._config, num_rows, num_joined, self._alone)
        predictions = self._config.most_rounds + 1 if self._config.is_admm else steps
        return self._records(steps, predictions)

    @property
    def _is_posed(self) -> bool:
        """Whether the rows that join are known, before which only facts and labels leave."""
        return len(self.theta) > 0

    def _records(self, steps: int, predictions: int) -> Iterable[PrivacyRecord]:
        """Return the ledger's lines of so many noisy steps and released predictions."""
        num_rows, num_joined = (len(self._x), self._problem.num_joined) if self._is_posed else (0, 0)
        label_loss = self._loss if self._table.label is not None else None
        counted = (self.noise_multiplier, steps, predictions, label_loss, self._is_restored)
        released = Released(self.party, num_rows, num_joined, self._alone, *counted)
        found = privacy_records(self._config, released)
        if self._is_posed:
            return found
        return (one if one.message_type in ("Facts", "Labels") else replace(one, releases=0) for one in found)

    # --- inside ---

    @property
    def _shuffle(self) -> np.random.Generator:
        """What shuffles rows that are in the order of their keys: who knows it knows the ranks of hashed keys.

        Only under differential privacy is it a secret, and no two runs are alike; else all who know the run's seed do.
        """
        return np.random.default_rng(self.row_order) if self.row_order else self.rng("row order")

    @property
    def _positions(self) -> messages.JoinPositions | None:
        """What is summed of the own rows; None: predictions leave as they are.

        Raises:
            Refused: sums are to hide them, and nobody has said of what.
        """
        if self._config.secure_aggregation and self.positions is None:
            raise Refused(self.caller, f"asks {self.name} for predictions that no sum hides; approved: sums")
        return self.positions

    @property
    def _train_positions(self) -> NDArray[Any] | None:
        found = self._positions
        return None if found is None else found.train

    def _send(self, values_nC: Array, positions: NDArray[Any] | None, heard: bytes) -> messages.Predictions | Masked:
        return messages.Predictions(values_nC) if positions is None else self.mask(values_nC[positions], heard)

    @property
    def _num_classes(self) -> int:
        return len(self._classes) if self._loss == "softmax" else 1

    @property
    def _alone(self) -> bool:
        return len(self._partners) == 1

    def _work(self, kind: str, num_rows: int | None = None) -> Work:
        count = self._local.data.num_rows if num_rows is None else num_rows
        return Work(kind, float(count * max(len(self._table.features), 1)))

    def _resolve(self, schemas: Schemas) -> None:
        super()._resolve(schemas)
        self.meaning = meaning_of(self._plan, self._table, self._query, schemas)
        self._found: dict[str, messages.Facts] = {}

    async def _read(self) -> UserRows:
        if self._config.feature_dp or self._config.label_dp:
            self.row_order = tuple(self.noise_rng("row order").integers(0, 2**63, 4).tolist())
        local = await super()._read()
        self.fingerprint = local.fingerprint
        return local

    async def _facts(self) -> messages.Facts:
        rows, table = self._local.data, self._table
        is_class = table.label is not None and self._loss == "softmax"
        if self._config.declared_facts:
            return data.declared_facts(self._config.declared_facts, table.features, table.label if is_class else None)
        classes = self._query.classes or data.label_classes(rows.column(table.label)) if is_class else ()
        args = (rows, () if self._table_owner.partition.rules else table.features, classes)
        found = await self.compute(data.column_facts, *args, work=self._work("encode"))
        return data.check_facts(found, self._table_owner.table)

    def _encode(self, agreement: messages.Agreement) -> None:
        rows, table, facts = self._local.data, self._table, agreement.facts
        has_label = table.label is not None
        standardise = self._config.standardise
        if self._table_owner.partition.rules:
            ruled = data.ruled_matrix(rows, self._rules, has_label, standardise, self.name)
            self._encoded: local_solvers.Matrix = ruled[0]
            self.fitted = ruled[1].as_dict()
        else:
            self._encoded = data.design_matrix(rows, table.features, facts, has_label, standardise)
        self._classes = facts.classes
        if table.label is not None:
            name = f"{self.party}: {table.label}"
            self._classes = self._query.classes or facts.classes
            data.check_classes(self._classes, self._query, name)
            self._labels = data.label_values(rows.column(table.label), self._loss, name, self._classes)
            self._is_test = data.choose_test(len(self._labels), self._config.test_fraction, self.rng("test rows"))
        # of the rows themselves only keys are asked for from now on
        self._local = replace(self._local, data=rows.select(table.keys or rows.column_names[:1]))

    def _check_counts(self, counts: messages.DuplicateCounts) -> None:
        """Check that the join is as large as its rows say: the noise follows from how many batches it has.

        Raises:
            Refused: it is not.
        """
        train, num_joined = counts.train, counts.num_joined
        total = _exact_sum(train) if len(train) and train.min() >= 0 else 0
        is_size = total == num_joined if self._alone else total <= num_joined
        if len(train) != len(self._encoded) or num_joined < 1 or not is_size:
            said = f"tells {self.name} that its rows stand in {total:,} joined rows of {num_joined:,}"
            raise Refused(self.caller, said)

    def _check_outputs(self, told: messages.DuplicateCounts | messages.JoinedRows) -> None:
        """Check that the model has one output, or one for each class: with as many as features it would be the rows.

        Raises:
            Refused: it has another number of them, or begins with a bias of another.
        """
        number, known = told.num_classes, self._query.num_classes
        if self._loss != "softmax":
            approved, is_approved = "1", number == 1
        elif self._table.label is not None:
            approved, is_approved = f"{self._num_classes}", number == self._num_classes
        else:  # the classes that the label's table has may be fewer; of those that nobody announced it tells how many
            approved, is_approved = f"2 to {known}", number >= 2 and (number <= known or known < 2)
        if not is_approved or len(told.base) not in (0, number):
            said = f"asks {self.name} for {number:,} outputs a row, with {len(told.base):,} to begin with"
            raise Refused(self.caller, f"{said}; approved: {approved}")

    def _check_batches(self) -> None:
        """Check that the join is not said to be larger than is approved: how often rows are asked for follows from it.

        Raises:
            Refused: it is.
        """
        config, num_joined = self._config, self._problem.num_joined
        if config.is_admm or config.algorithm == "centralised":
            return
        batches = ceil(num_joined / config.batch_of(num_joined))
        if batches > config.max_batches:
            said = f"joins {num_joined:,} rows, which are {batches:,} batches an epoch for {self.name}"
            raise Refused(self.caller, f"{said}; approved: at most {config.max_batches:,} (max_batches)")

    async def _begin_training(self) -> None:
        self._pose()
        self._check_batches()
        model, num_rows = self._problem.model, len(self._x)
        work = Work("factorise", float(num_rows * model.num_columns**2))
        self._system = await self.compute(local_solvers.prepare_solver, self._config, self._problem, work=work)
        self.noise_multiplier = local_solvers.choose_noise(
            self._config, num_rows, self._problem.num_joined, self._alone
        )
        seed = self.agreement.seed if self.agreement is not None else 0
        told = self.joined or self.counts
        base = told.base if told is not None else None
        self.theta = self.local_theta = local_solvers.initial_theta(model, np.random.default_rng(seed), base)

    def _pose(self) -> None:
        """Choose the rows that join, and pose the theta subproblem over them."""
        if self.joined is not None:
            train, test = self.joined.train, self.joined.test
            G_n: NDArray[Any] = np.ones(len(train), dtype=np.int64)
            num_joined, num_classes = len(train), self.joined.num_classes
        elif self.counts is not None:
            train, test = np.flatnonzero(self.counts.train), np.flatnonzero(self.counts.in_test)
            G_n = self.counts.train[train]
            num_joined, num_classes = self.counts.num_joined, self.counts.num_classes
        is_whole = self.joined is None and len(train) == len(self._encoded)
        encoded = self._encoded
        self._x, self._x_test = encoded if is_whole else _chosen(encoded, train), _chosen(encoded, test)
        del self._encoded
        has_label = self._table.label is not None
        model = local_solvers.describe_model(self._config, self._x.shape[1], num_classes, has_label)
        num_tables = len(self._plan.tables)
        self._problem = local_solvers.pose(self._config, model, self._x, G_n, num_joined, num_tables, self._alone)

    @property
    def noise_state(self) -> Any:
        """Where the noise of a reproducible run stands; else nothing: with it the noise could be taken off."""
        return self.noise.bit_generator.state if self._context.reproducible_noise else None

    @noise_state.setter
    def noise_state(self, state: Any) -> None:
        if state is not None and self._context.reproducible_noise:
            self.noise.bit_generator.state = state

    def _noise_seed(self) -> tuple[int, ...]:
        return tuple(self.noise.integers(0, 2**63, 4).tolist()) if self._config.feature_dp is not None else (0,)

    def _release_theta(self, num_steps: int) -> None:
        """Count a theta that depends on the rows, and the steps under noise that it takes, before they are drawn."""
        config = self._config
        num_solutions = config.most_rounds * (1 if self._alone else config.inner_rounds)
        num_batches = local_solvers.total_steps(config, len(self._x), self._problem.num_joined, self._alone)[0]
        self.release("theta", at_most=num_solutions if config.is_admm else num_batches)
        self.num_steps += num_steps

    @property
    def _num_batches(self) -> int:
        """Batches of a run of SGD, and one more turn of each round."""
        num_joined = self._problem.num_joined
        return self._config.most_rounds * (ceil(num_joined / self._config.batch_of(num_joined)) + 1)

    async def _gradient(self, derivatives: messages.Derivatives) -> Array:
        model, x_uD = self._problem.model, self._x[self._batch]
        self._release_theta(1)
        args = (self._config, model, self.theta, x_uD, derivatives.values, derivatives.batch_size)
        work = self._work("gradient", len(x_uD) * model.num_parameters)
        return await self.compute(
            local_solvers.batch_gradient, *args, self._noise_seed(), self.noise_multiplier, work=work
        )

    async def _solve(self, Y_nC: Array, theta_P: Array, anchor_P: Array | None, rho: float) -> Array:
        self.num_updates += 1
        self._release_theta(local_solvers.local_steps(self._config, len(self._x))[0])
        order = self.rng(f"local batches {self.num_updates}")
        posed = local_solvers.with_penalty(self._problem, self._system, rho / self._config.first_rho)
        args = (self._config, *posed, Y_nC, theta_P, anchor_P, order)
        work = Work("solve", float(len(self._x) * self._problem.model.num_parameters))
        return await self.compute(
            local_solvers.solve_theta, *args, self._noise_seed(), self.noise_multiplier, work=work
        )

    async def _predict(self, x_nD: local_solvers.Matrix) -> Array:
        """Return predictions, under feature_dp with `prediction_clip` clipped and with noise of their own."""
        model, config = self._problem.model, self._config
        work = Work("predict", float(len(x_nD) * model.num_parameters))
        values = await self.compute(local_solvers.predict, model, self.theta, x_nD, work=work)
        clip = config.prediction_clip if config.feature_dp else None
        times = config.most_rounds + 1 if config.is_admm else self._num_batches
        self.release("predictions", at_most=times + config.most_rounds)  # those of each round's test too
        self.num_releases += config.feature_dp is not None
        if clip is None:
            return values
        return clip_and_noise(values, clip, config.prediction_noise * clip, self.noise, "predictions")


def _chosen(matrix: local_solvers.Matrix, rows: NDArray[Any]) -> local_solvers.Matrix:
    return taken(matrix, rows) if isinstance(matrix, np.ndarray) else matrix[rows]


def _exact_sum(counts: NDArray[Any]) -> int:
    """Return the sum of whole numbers, which may be more than 64 bits hold: one that went round would be small."""
    high, low = np.divmod(counts.astype(np.uint64), np.uint64(1 << 32))
    return (int(high.sum()) << 32) + int(low.sum())
