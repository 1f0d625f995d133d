"""What an audit of a run replays, the rows of joined tuples otherwise; and rows reconstructed from predictions.

A neighbour has another row in one table: features and label are others, its keys stay, and so does the join. Rows of
one ``record`` are parts of one joined tuple.

Only rows whose keys are unique in their table are replaced: rows of equal keys are shuffled in the order of their
values, and would change places in the replay. Under privacy the shuffle is secret and uniform, so that the places tell
nothing, but one replay cannot show that. Labels of test rows are left alone: their scores are no secret.

Reconstruction is a server's: of a linear model's predictions of all rows in some rounds, one table's by itself or,
where masks hide it, the sum over tables, as noise left them. Shapes: R rounds, N rows or joined rows, F features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from fedactors.actors.context import derived_rng, noise_rng
from fedactors.auditing.attacks import Surface, complete_by_differences, complete_rows, reconstruct_features
from fedactors.auditing.audit import Attack, attack_by_share
from fedactors.data.databases import in_memory
from fedactors.data.join import hash_rows, table_mapping
from fedactors.data.layouts.relational import (
    Schema,
    Schemas,
    TableOwner,
    compared_keys,
    dropped_for,
    query_over_partitions,
    read_rows,
    resolve_plan,
    rules_of_features,
)
from fedactors.data.layouts.vertical import Neighbour, RelationalData
from fedactors.data.query import JoinPlan, VerticalTable
from fedactors.errors import BadInput
from fedactors.protocols.tablepuppet import data as tables
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime

_WAYS = ("another row's values", "a million each", "zeros", "minus a million each")
_HUGE = 1e6
_MOST_TRIES = 20_000


NEAR = 0.1
"""Standardised units within which a reconstructed feature counts as found."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """One client's rows in the order that they have in a reproducible run."""

    table_owner: TableOwner
    table: VerticalTable
    rows: pa.Table
    whole: pa.Table
    """What the source holds, with the rows and columns that the query leaves out."""
    is_training: NDArray[np.bool_]

    def is_at(self, row: int) -> NDArray[np.bool_]:
        """Return which rows of the source have the keys of one of `rows`."""
        found = np.ones(self.whole.num_rows, dtype=bool)
        for key in self.table.keys:
            same = pyarrow.compute.equal(self.whole[key], self.rows[key][row])
            found &= same.fill_null(False).to_numpy(zero_copy_only=False)
        return found


def neighbours(
    config: TablePuppetConfig, data: RelationalData, party: str, count: int, seed: int
) -> Sequence[Neighbour]:
    """Return up to `count` neighbours of kind ``row``, and ``label`` ones; fewer where a partition lacks the tuple.

    Raises:
        BadInput: too few joined tuples have rows of unique keys only, or a source cannot be copied as it is.
    """
    plan, parts = _read(config, data, seed)
    rng = np.random.default_rng(seed)
    rows: list[Neighbour] = []
    labels: list[Neighbour] = []
    for number, members in enumerate(_joined_tuples(plan, parts, count, rng)):
        way, changed, whats = number % len(_WAYS), data, []
        others = [int(rng.integers(part.rows.num_rows)) for part, _ in members]  # drawn alike for every party
        for (part, row), other in zip(members, others, strict=True):
            if part.table_owner.partition.party != party:
                continue
            label = part.table.label
            names = {f.column for f in part.table.features} - {*part.table.keys, label}
            edits = {name: _value(part.rows[name], other, way) for name in sorted(names)}
            if label is not None:
                edits[label] = _other_label(config, data, part, row)
                only = _edited(data, part, row, {label: edits[label]})
                labels.append(Neighbour(label=f"label of row {row} by {edits[label]}", kind="label", data=only))
            changed = _edited(changed, part, row, edits)
            whats.append(f"row {row} of {part.table_owner.table} by {_WAYS[way]}")
        if whats:
            rows.append(Neighbour(label=", ".join(whats), kind="row", data=changed, record=number))
    return [*rows, *labels]


def _read(config: TablePuppetConfig, data: RelationalData, seed: int) -> tuple[JoinPlan, list[_Part]]:
    """Read every client's rows, shuffled as its actor shuffles them where noise is reproducible."""
    table_owners = tables.assign_clients(config, data)
    sources = [source for partitions in query_over_partitions(data.query).tables.values() for source, _ in partitions]
    kinds = [table_owner.partition.source.describe() for table_owner in table_owners]
    found = {source: Schema(tuple(k), tuple(k.values())) for source, k in zip(sources, kinds, strict=True)}
    plan = resolve_plan(data.query, Schemas(found))
    parts = []
    for table_owner, described in zip(table_owners, kinds, strict=True):
        table, whole = plan.table(table_owner.table), table_owner.partition.source.load()
        if in_memory(whole).describe() != described:
            raise BadInput(
                f"{table_owner.name}: its columns have other kinds in memory than at their source; use Parquet"
            )
        order = derived_rng(seed, table_owner.name, "row order")
        if config.feature_dp or config.label_dp:
            drawn = noise_rng(seed, table_owner.name, "row order", True).integers(0, 2**63, 4).tolist()
            order = np.random.default_rng(drawn)
        local = table_owner.partition
        needed = dropped_for(rules_of_features(table.features, local))
        rows = read_rows(local.source, table, table_owner.index, order, needed).data
        is_test = np.zeros(rows.num_rows, dtype=bool)
        if table.label is not None:
            is_test = tables.choose_test(
                rows.num_rows, config.test_fraction, derived_rng(seed, table_owner.name, "test rows")
            )
        parts.append(_Part(table_owner, table, rows, whole, ~is_test))
    return plan, parts


def _joined_tuples(
    plan: JoinPlan, parts: Sequence[_Part], count: int, rng: np.random.Generator
) -> Iterator[list[tuple[_Part, int]]]:
    """Yield `count` joined tuples as each table's partition and row."""
    of_table = {table.name: [part for part in parts if part.table_owner.table == table.name] for table in plan.tables}
    hashes, ends = {}, {}
    for name, partitions in of_table.items():
        found_by_part = [
            hash_rows(
                compared_keys(part.rows, part.table.keys, part.table_owner.partition.id_rules, name),
                plan.edges_of(name),
                name,
                b"audit",
            )
            for part in partitions
        ]
        hashes[name] = [np.concatenate(columns) for columns in zip(*found_by_part, strict=True)]
        ends[name] = np.cumsum([part.rows.num_rows for part in partitions])
    mapping = table_mapping(plan, hashes, 1, num_rows={name: int(end[-1]) for name, end in ends.items()})
    found = 0
    for joined in rng.permutation(mapping.num_joined)[:_MOST_TRIES]:
        members = []
        for (name, partitions), rows in zip(of_table.items(), mapping.rows, strict=True):
            number = int(np.searchsorted(ends[name], rows[joined], side="right"))
            members.append(
                (partitions[number], int(rows[joined] - ends[name][number]) + partitions[number].rows.num_rows)
            )
        if all(part.is_training[row] and part.is_at(row).sum() == 1 for part, row in members):
            yield members
            found += 1
        if found == count:
            return
    raise BadInput(f"neighbours: {found} of {count} were found: rows with keys of their own are needed in every table")


def _value(column: pa.ChunkedArray, other: int, way: int) -> Any:
    """Return another value of a column: another row's, a million, zero, or minus a million; other kinds: a row's."""
    kind = column.type
    if way == 0 or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column[other].as_py()
    value = (0.0, _HUGE, 0.0, -_HUGE)[way]
    if pa.types.is_floating(kind):
        return value
    bounds = np.iinfo(kind.to_pandas_dtype())
    return int(np.clip(value, bounds.min, bounds.max))


def _other_label(config: TablePuppetConfig, data: RelationalData, part: _Part, row: int) -> Any:
    """Return the label that is farthest from a row's."""
    column = part.rows[part.table.label]
    label = column[row].as_py()
    if tables.loss_of(config, data.task) != "squared":
        return next(value for value in sorted(column.unique().to_pylist(), key=str) if value != label)
    low, high = config.label_range or (-_HUGE, _HUGE)
    far = low if label > (low + high) / 2 else high
    return int(far) if pa.types.is_integer(column.type) else far


def _edited(data: RelationalData, part: _Part, row: int, edits: Mapping[str, Any]) -> RelationalData:
    """Return the data with other values in one row of one partition."""
    whole = part.whole
    mask = pa.array(part.is_at(row))
    for name, value in edits.items():
        column = whole[name].combine_chunks()
        filled = pyarrow.compute.replace_with_mask(column, mask, pa.array([value], column.type))
        whole = whole.set_column(whole.column_names.index(name), name, filled)
    partition = part.table_owner.partition
    changed = dataclasses.replace(partition, source=in_memory(whole))
    return dataclasses.replace(data, partitions=tuple(changed if p == partition else p for p in data.partitions))


# --- rows reconstructed from predictions ---


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """What the server reads that depends on one table, and the truth."""

    values_RN: NDArray[Any]
    thetas_RF: NDArray[Any]
    positions_N: NDArray[Any]
    """Which row of the table each N is."""
    rows_NF: NDArray[Any]
    partners_N: NDArray[Any] | None = None
    """Of sums: which rows of all other tables together stand in each joined row, as a number."""


def _predictions_of(config: TablePuppetConfig, data: RelationalData, seed: int) -> dict[str, list[tuple[Any, ...]]]:
    """Run once more in simulation and return by client its predictions, places, rows and theta of every round."""
    sent: dict[str, list[tuple[Any, ...]]] = {}

    class RecordedClient(TableClient):
        def _send(self, values_nC: NDArray[Any], positions: NDArray[Any] | None, heard: bytes) -> Any:
            sent.setdefault(self.name, []).append((values_nC, positions, self._x, self.theta))
            return super()._send(values_nC, positions, heard)

    class RecordingRuntime(SimulatedRuntime):
        def spawn(self, cls: type[Any], *args: Any, **kwargs: Any) -> Any:
            return super().spawn(RecordedClient if cls is TableClient else cls, *args, **kwargs)

    runtime = RecordingRuntime(seed=seed, recorder=MemoryRecorder(), reproducible_noise=True)
    runtime.execute(lambda: run(config, data, runtime))
    return sent


def views(config: TablePuppetConfig, data: RelationalData, seed: int) -> dict[str, View]:
    """Run once more in simulation and return what the server reads of each client, by its name."""
    if config.algorithm != "rfl-admm-v" or config.model == "neural":
        raise BadInput(
            f"--attacks: rows are reconstructed from a linear model's predictions of all rows, as rfl-admm-v sends "
            f"them, not with algorithm={config.algorithm} model={config.model}"
        )
    heard = _predictions_of(config, data, seed)
    first = {name: [values[:, 0] for values, *_ in sent] for name, sent in heard.items()}
    found = {}
    for name, sent in heard.items():
        _, positions, rows_NF, _ = sent[0]
        partners = None
        if positions is None:
            values, positions = np.array(first[name]), np.arange(len(rows_NF))
        else:  # what masks leave: the sum over all clients of what stands in a joined row
            values = np.sum([np.array(first[one])[:, given[0][1]] for one, given in heard.items()], axis=0)
            others = np.stack([given[0][1] for one, given in heard.items() if one != name])
            partners = np.unique(others, axis=1, return_inverse=True)[1].ravel()
        thetas = [np.asarray(theta).reshape(rows_NF.shape[1], -1)[:, 0] for *_, theta in sent]
        found[name] = View(np.asarray(values), np.array(thetas), np.asarray(positions), rows_NF, partners)
    return found


def reconstructions(name: str, view: View, num_known: int) -> list[Attack]:
    """Return what a server finds that knows the first rows of a table, and one that is given theta of every round.

    Of sums a third attack uses the join, which the server knows: two joined rows whose partners are the same differ by
    two rows of this table alone. It is judged on the rows that have a known one beside them.
    """
    rows_NF, positions_N = view.rows_NF, view.positions_N
    known, others = np.flatnonzero(positions_N < num_known), np.unique(positions_N[positions_N >= num_known])

    def judged(how: str, rows: NDArray[Any], found_NF: NDArray[Any]) -> Attack:
        chance = float((np.abs(rows_NF[rows] - rows_NF[:num_known].mean(axis=0)) < NEAR).mean())
        hits = np.abs(found_NF - rows_NF[rows]) < NEAR
        return attack_by_share(f"reconstruction with {how}: {name}", f"share of features within {NEAR}", hits, chance)

    def of_rows(guess_NF: NDArray[Any]) -> NDArray[Any]:
        return np.stack([guess_NF[positions_N == row].mean(axis=0) for row in others])

    by_rows = complete_rows(view.values_RN.T, known, rows_NF[positions_N[known]])
    by_theta = reconstruct_features(view.thetas_RF, view.values_RN)
    found = [judged("known rows", others, of_rows(by_rows)), judged("theta", others, of_rows(by_theta))]
    if view.partners_N is not None:
        rows, by_differences = complete_by_differences(
            view.values_RN.T, positions_N, view.partners_N, rows_NF[:num_known]
        )
        if len(rows) > 1:
            found.append(judged("differences", rows, by_differences))
    return found


def surface(config: TablePuppetConfig, data: RelationalData, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return the reconstructions of every table that has more rows than the attacker must know."""
    attacks: list[Attack] = []
    for name, view in views(config, data, seed).items():
        num_rows, num_features = view.rows_NF.shape
        num_known = max(num_features + 2, num_rows // 8)
        if num_known < num_rows // 2:
            attacks += reconstructions(name, view, num_known)
    return Surface(others=attacks)
