"""What comes after training: the tables' clients predict rows of the same query together, and each client's part.

    server ──describe, prepare, send_keys──▶ clients, as in training: the server joins hashed keys
    server ──WantedRows──▶ clients ──Predictions, or Masked──▶ server: sum over the tables, by joined row
    server ──JoinedOutputs──▶ clients with the label's table: probabilities, a file of its own each

Each client's process reads its own table and its own part. The label's column need not be there: what the query asks of
it is left out. A run with ``secure_aggregation`` is predicted with under masks too.

Legend: n rows of a client, N joined rows, C outputs, D columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import Work
from fedactors.actors.remote import DRIVER, SERVER, remote
from fedactors.data.alignment.rows import NewRowsMember, TableKeys, ask_all, ask_each, check_tables, collect_keys
from fedactors.data.columns import Preprocessing
from fedactors.data.join import partners_of
from fedactors.data.layouts.relational import TableOwner, UserRows
from fedactors.data.layouts.vertical import RelationalData, RelationalQuery
from fedactors.data.new_rows import (
    ActorState,
    NoPart,
    Predicted,
    PredictOrder,
    StoredState,
    actor_state,
    counted,
    write_predictions,
)
from fedactors.data.query import Feature
from fedactors.errors import BadInput, Refused
from fedactors.learning.models import ModelSpec
from fedactors.protocols.tablepuppet import data, local_solvers, messages
from fedactors.protocols.tablepuppet.actors import MaskedTable
from fedactors.protocols.tablepuppet.algorithm import Array, scatter_union, split_rows
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.costs import default_costs
from fedactors.protocols.tablepuppet.loj_operator import Side, TableServer
from fedactors.protocols.tablepuppet.lou_operator import bare
from fedactors.protocols.tablepuppet.messages import JoinedOutputs, UnusableRows
from fedactors.runtime.interface import Runtime
from fedactors.secure_sums.actors import in_turn
from fedactors.secure_sums.messages import Masked
from fedactors.serving.parts import Part, TrainedModel, contribution, probabilities
from fedactors.serving.predictions import Application, Outcome, Outcomes, as_told, files_of, released

_LONGEST = 86_400.0
_FAULTS = ("own", "partner's", "alone")
"""Why a row is not predicted: a value of its own, one of its partner's, or no partner."""


class _Line(NamedTuple):
    """A line of the file of predictions: the row of the source, its joined row (-1: not predicted), and why not."""

    row: int
    joined: int
    reason: str = ""
    fault: str = ""


# --- a client's part --------------------------------------------------------------------------------------------------


def make_part(config: TablePuppetConfig, name: str, state: ActorState) -> Part:
    """Return the part of the client `name`: f_i with its encoding. What all tables' parts give is summed."""
    if config.algorithm == "centralised":
        raise BadInput("algorithm: 'centralised' is not allowed: the server was given all rows, and has the model")
    told: messages.DuplicateCounts | messages.JoinedRows | None = state["counts"] or state["joined"]
    if told is None:
        raise BadInput("the run was stopped before its tables were joined: it has no trained model")
    meaning, facts = state["meaning"], state["agreement"].facts
    features = [Feature(*feature) for feature in meaning["features"]]
    if state["fitted"]:
        encoding = Preprocessing.of(state["fitted"], name)
    else:
        encoding = data.encoding_of(features, facts, config.standardise)
    is_owner = meaning["label_column"] is not None
    kinds: dict[str, tuple[Literal["regression", "binary", "multiclass"], int, tuple[str, ...]]] = {
        "squared": ("regression", 1, ()),
        "logistic": ("binary", 2, tuple(meaning.get("classes") or ("0", "1"))),
        "softmax": ("multiclass", told.num_classes, facts.classes),
    }
    task, num_classes, names = kinds[data.loss_of(config, meaning["task"])]
    num_columns = len(encoding.feature_names)
    model = local_solvers.describe_model(config, num_columns + is_owner, told.num_classes, is_owner)
    noise = config.prediction_noise if config.feature_dp is not None else 0.0
    return Part(
        protocol="tablepuppet",
        party=name,
        task=task,
        num_classes=num_classes,
        class_names=names if is_owner else (),
        parties=tuple(meaning["tables"]),
        fusion="sum",
        models={"bottom": _module_of(model, np.asarray(state["theta"]), num_columns)},
        settings={key: meaning[key] for key in ("table", "joins", "label")},
        preprocessing=encoding,
        clip_norm=config.prediction_clip or 0.0,
        sigma=noise * (config.prediction_clip or 0.0),
        delta=config.feature_delta,
    )


def _module_of(model: local_solvers.TableModel, theta_P: Array, num_columns: int) -> TrainedModel:
    """Return f_i without the design matrix's column of ones, which becomes a bias."""
    outputs, has_ones = model.num_outputs, model.num_columns > num_columns
    shape: dict[str, Any] = {"inputs": (num_columns,), "outputs": outputs, "float64": True}
    if not num_columns:
        constant_1C = local_solvers.predict(model, theta_P, np.ones((1, model.num_columns)))
        return TrainedModel(ModelSpec(name="linear", **shape), constant_1C[0])
    if model.kind == "linear":
        theta_DC = theta_P.reshape(model.num_columns, outputs)
        weights = [theta_DC[:num_columns].T, theta_DC[num_columns:]]
        return TrainedModel(ModelSpec(name="linear", bias=has_ones, **shape), _flat(weights))
    w1_DH, b1_H, w2_HC, b2_C = local_solvers.layers(model, theta_P)
    hidden = [w1_DH[:num_columns].T, b1_H + w1_DH[num_columns:].sum(axis=0), w2_HC.T, b2_C]
    return TrainedModel(ModelSpec(name="mlp", layers=2, hidden_size=model.hidden_size, **shape), _flat(hidden))


def _flat(arrays: Sequence[Array]) -> Array:
    return np.concatenate([array.ravel() for array in arrays])


def part(config: TablePuppetConfig, party: str, states: Mapping[str, bytes]) -> Part | dict[str, Part]:
    """Return a party's part of the trained model, or its parts by table where it has several.

    Raises:
        NoPart: the party has none.
        BadInput: see `make_part`.
    """
    found: dict[str, Part] = {}
    for name in states:
        if name.partition("/")[0] == party and "meaning" in (state := actor_state(states, name)):
            found[name.partition("/")[2]] = make_part(config, name, state)
    if not found:
        raise NoPart(f"--party: {party!r} is not allowed: it has no table")
    return found.get("", found)


# --- the actors -------------------------------------------------------------------------------------------------------


class PredictingTable(NewRowsMember, MaskedTable):
    """A table's client with its part of the trained model, for rows to predict."""

    def __init__(
        self,
        config: TablePuppetConfig,
        query: RelationalQuery,
        table_owner: TableOwner,
        members: tuple[str, ...],
        server: str,
        stored: StoredState,
    ) -> None:
        NewRowsMember.__init__(self, query, table_owner, members)
        MaskedTable.__init__(self, members, server)
        self._config, self._stored = config, stored
        self._has_predicted = False

    @property
    def joiners(self) -> tuple[str, ...]:
        """The server."""
        return (self.adder,)

    async def load(self) -> None:
        """Build the own part of the model, and look at the table's columns."""
        state = self._stored.read()
        self.part = make_part(self._config, self.name, state)
        self.trained = state["meaning"]
        self.go_on_from(state)
        await super().load()

    async def _read(self) -> UserRows:
        local, features = await super()._read(), self._table.features
        fitted = self.part.preprocessing
        assert fitted is not None
        work = Work("encode", float(local.data.num_rows * max(len(features), 1)))
        found = await self.compute(data.encode_new, local.data, features, fitted, self.name, work=work)
        self._encoded = dataclasses.replace(found, rejected={**self.nameless(local.data), **found.rejected})
        return local

    @remote(caller=SERVER, only="joiners", once=True)
    async def tell_unusable(self) -> messages.UnusableRows:
        """Return which rows miss values."""
        return messages.UnusableRows(np.isin(np.arange(len(self._encoded.features)), list(self._encoded.rejected)))

    @remote(caller=SERVER, only="joiners", once=True)
    @in_turn
    async def predict(self, wanted: messages.WantedRows) -> messages.Predictions | Masked:
        """Return h_i of these rows under the noise that training had, and under masks if training had them."""
        if self._has_predicted:
            raise Refused(self.caller, f"asks {self.name} for predictions a second time")
        self._has_predicted = True
        heard = self.heard("predict")
        num_rows = len(self._encoded.features)
        if len(wanted.rows) and not (wanted.rows.min() >= 0 and wanted.rows.max() < num_rows):  # the last one is -1 too
            raise Refused(self.caller, f"asks {self.name} for rows beyond 0 to {num_rows - 1}")
        rows_u, index = np.unique(wanted.rows, return_inverse=True)
        x_uD = self._encoded.features[rows_u]
        work = Work("predict", float(len(rows_u) * self.part.models["bottom"].vector.size))
        values = await self.compute(contribution, self.part, x_uD, work=work)
        values = released(self, self.part, values, "Predictions", is_masked=self._config.secure_aggregation)[index]
        return self.mask(values, heard) if self._config.secure_aggregation else messages.Predictions(values)

    @remote(caller=SERVER, only="joiners", once=True)
    async def take(self, outputs: messages.JoinedOutputs) -> None:
        """Take the model's outputs for the own rows, to be written."""
        check_tables(self, self._plan, outputs.tables, outputs.misses, outputs.unmatched)
        rows, num_rows = outputs.rows, len(self._encoded.features)
        if len(rows) and not (rows.min() >= 0 and rows.max() < num_rows):  # the last one is -1 too
            raise Refused(self.caller, f"tells {self.name} outputs of rows beyond 0 to {num_rows - 1}")
        self._outputs = outputs

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows are here, and how many outputs the model has."""
        if not isinstance(message, JoinedOutputs):
            return {}
        return {"rows": len(self._encoded.features), "outputs": self.part.models["bottom"].spec.outputs}

    @remote(caller=DRIVER, once=True)
    async def write(self, order: PredictOrder) -> Predicted:
        """Write the file of predictions: a line for each joined row, and for each own row that joins with nothing."""
        lines = sorted(self._lines(), key=lambda line: line.row)
        rows = np.array([line.row for line in lines], np.int64)
        joined = np.array([line.joined for line in lines], np.int64)
        outputs = np.zeros((0, self.part.models["bottom"].spec.outputs))
        if (joined >= 0).any():
            outputs = self._outputs.values[joined[joined >= 0]]
        ids = self.new.whole.select(self.called_by).take(rows).to_pydict() if self.called_by else {"row": rows.tolist()}
        unpredicted = write_predictions(
            self.output(order.to),
            ids=ids,
            rows=np.flatnonzero(joined >= 0),
            values=probabilities(self.part, outputs),
            class_names=self.part.class_names,
            task=self.part.task,
            rejections={index: line.reason for index, line in enumerate(lines) if line.reason},
        )
        local, partners, alone = ([line.reason for line in lines if line.fault == fault] for fault in _FAULTS)
        found = counted(len(lines), local, partners, alone)
        return as_told(self, dataclasses.replace(found, unpredicted=unpredicted))

    def _lines(self) -> Iterator[_Line]:
        """Yield the file's lines: rows without a key, rows without a partner, then the joined rows."""
        given, order_n = self._outputs, self.new.order.tolist()
        for row in np.setdiff1d(np.arange(self.new.whole.num_rows), order_n).tolist():
            yield _Line(row, -1, "a key is missing", "alone")
        for local in np.flatnonzero(given.unmatched >= 0).tolist():
            yield _Line(order_n[local], -1, f"no partner in {given.tables[given.unmatched[local]]}", "alone")
        for joined, (local, table) in enumerate(zip(given.rows.tolist(), given.misses.tolist(), strict=True)):
            if local in self._encoded.rejected:
                yield _Line(order_n[local], -1, self._encoded.rejected[local], "own")
            elif table >= 0:
                reason = f"its partner in {given.tables[table]} misses values that the model needs"
                yield _Line(order_n[local], -1, reason, "partner's")
            else:
                yield _Line(order_n[local], joined)


class PredictingServer(TableServer):
    """Joins the hashed keys of rows to predict, and sums what the tables' models make of them."""

    client, num_sums = PredictingTable, 1

    @remote(caller=DRIVER, once=True)
    async def agree(self) -> messages.LabelOwners:
        """Check the query against everybody's columns, and let everybody read its rows."""
        self._query = dataclasses.replace(self._query, is_new=True)
        await self._agree_on_plan()
        return messages.LabelOwners(self._sides[self.label_index].clients)

    @remote(caller=DRIVER, once=True)
    async def predict(self) -> None:
        """Join, ask for predictions, and tell those who have the label's table what comes of their rows."""
        owners = {side.table: side.clients for side in self._sides}
        config, keys = self._config, await collect_keys(self._clients, owners, self._plan)
        self._sizes = {
            name: size for table, names in owners.items() for name, size in zip(names, keys[table].sizes, strict=True)
        }
        sizes = {table: found.num_rows for table, found in keys.items()}
        hashes = {table: found.hashes for table, found in keys.items()}
        args = (self._plan, hashes, self.label_index, config.threads, config.memory_limit, sizes)
        found = await self.compute(partners_of, *args, work=Work("join", float(sum(sizes.values()))))
        rows = found.mapping.rows
        misses_N = await self._misses(rows)
        usable = np.flatnonzero(misses_N < 0)
        values = await self._sum([row[usable] for row in rows], keys)
        values_NC = np.zeros((len(misses_N), values.shape[1]))
        values_NC[usable] = values
        local, tables = self._sides[self.label_index].table, tuple(self._clients)
        unmatched = scatter_union(found.unmatched, keys[local].sizes)
        sent = [
            messages.JoinedOutputs(tables, row.astype(np.int32), values_NC[positions], misses_N[positions], lack)
            for (positions, row), lack in zip(
                split_rows(rows[self.label_index], keys[local].sizes), unmatched, strict=True
            )
        ]
        await ask_each(self._clients[local], lambda client, given: client.take(given), sent)

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows a client has."""
        return {"rows": self._sizes[sender]} if isinstance(message, UnusableRows) else {}

    async def _misses(self, rows: Sequence[NDArray[np.int32]]) -> NDArray[np.int16]:
        """Return for each joined row (N) the first table whose row misses values; -1: none."""
        misses_N = np.full(len(rows[0]), -1, np.int16)
        for index, clients in reversed(list(enumerate(self._clients.values()))):
            told = await ask_all(clients, lambda client: client.tell_unusable())
            misses_N[np.concatenate([one.values for one in told])[rows[index]]] = index
        return misses_N

    async def _sum(self, rows: Sequence[NDArray[np.int32]], keys: Mapping[str, TableKeys]) -> Array:
        """Return the outputs of joined rows (N x C), the sums over the tables; nothing is asked for no row."""
        if not len(rows[0]):
            return np.zeros((0, 1))
        if self._config.secure_aggregation:
            return await self._sum_under_masks(rows)
        parts_NC: list[Array] = []
        for local_N, side in zip(rows, self._sides, strict=True):
            table, clients = side.table, self._clients[side.table]
            rows_u, index = np.unique(local_N, return_inverse=True)
            sent = [messages.WantedRows(local.astype(np.int32)) for _, local in split_rows(rows_u, keys[table].sizes)]
            told = await ask_each(clients, lambda client, wanted: client.predict(wanted), sent)
            width = (parts_NC or [told[0].values])[0].shape[1]
            found = bare(told, side.clients, [len(wanted.rows) for wanted in sent], width)
            parts_NC.append(np.concatenate(found)[index])
        return np.asarray(sum(parts_NC[1:], start=parts_NC[0]))

    async def _sum_under_masks(self, rows: Sequence[NDArray[np.int32]]) -> Array:
        order = self.noise_rng("order of joined rows").permutation(len(rows[0]))
        clients = [local[0] for local in self._clients.values()]
        sent = [messages.WantedRows(row[order]) for row in rows]
        work = Work("gather", float(len(order)))
        total = await self._masked_sum(clients, lambda client, wanted: client.predict(wanted), sent, work)
        return total[np.argsort(order)]


async def predict(config: TablePuppetConfig, data_: RelationalData, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict the rows of the same query over other tables; each owner of the label's table has its own file.

    Raises:
        BadInput: the query means something else than in training, or a party has no part of the model.
    """
    runtime.use_costs(default_costs(config))
    table_owners = data.assign_clients(config, data_)
    names = tuple(table_owner.name for table_owner in table_owners)
    tables, server_name = data.name_tables(config, table_owners)
    clients = {
        table_owner.name: runtime.spawn(
            PredictingTable,
            table_owner.name,
            config,
            data_.query,
            table_owner,
            names,
            server_name,
            asked.state_of(table_owner.name),
        )
        for table_owner in table_owners
    }
    sides = tuple(Side(table=table, clients=local, coordinator=None) for table, local in tables.items())
    server = runtime.spawn(PredictingServer, server_name, config, data_.query, sides)
    await runtime.start()
    async with runtime.clock.timeout(_LONGEST):
        owners = (await server.agree()).names
        await clients[names[0]].share_secret()
        await server.predict()
        files = files_of(owners, asked.to)
        counts = await ask_all(owners, lambda name: clients[name].write(PredictOrder(files[name])))
    await runtime.settle()
    return tuple(Outcome(party=name, to=files[name], counts=told) for name, told in zip(owners, counts, strict=True))


def predictors(config: TablePuppetConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict; none where the server has the model."""
    if config.algorithm == "centralised":
        return {}
    return {"tables' clients": PredictingTable, "server": PredictingServer}
