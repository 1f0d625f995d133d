"""Horizontal data: clients hold different rows of the same columns, of a named data set or of user-provided files.

Rows of a named data set are held out for validation first, then as public rows; the rest is dealt to clients by their
labels. `Reading` says how rows of a user-provided table are read: found in training, kept with the model, applied to
new rows, the same for every client but for how its own CSV file is written.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.data.columns import NO_ID, UNSEEN_ID, FittedColumn, columns_of, told_apart
from fedactors.data.datasets.catalogue import describe
from fedactors.data.datasets.load import load_images, load_tabular
from fedactors.data.partitioners import DirichletPartitioner, IidPartitioner, Partitions, RowPartitioner
from fedactors.data.party_rows import (
    PARTS,
    PartyBlock,
    check_block,
    check_labels,
    check_usable,
    checked_targets,
    class_weighted,
    one_hot,
    refuse_moved,
)
from fedactors.data.readers import (
    ImageFolder,
    class_texts,
    holds_images,
    holds_pictures,
    library_table,
    read_image_folder,
    read_labels,
)
from fedactors.data.sources import FileSource
from fedactors.data.values import CsvFormat, allocate, blocks_of, read_only, taken
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task
from fedactors.messages.codec import decode, encode, wire_type
from fedactors.validation import is_in_library

_log = logging.getLogger(__name__)
Index = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class HorizontalBlock:
    """Rows of one client (or the test rows): images as (n, C, H, W) or columns as (n, D)."""

    features: NDArray[np.float32]
    labels: NDArray[Any]
    weights: NDArray[np.float32] | None = None
    """How much each row counts in the loss; None: all alike."""
    columns: tuple[FittedColumn, ...] = ()
    """Of a user-provided table."""

    def take(self, rows: Index) -> HorizontalBlock:
        """Return some rows of it."""
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, features=taken(self.features, rows), labels=self.labels[rows], weights=weights)


@dataclass(frozen=True, kw_only=True)
class NewBlock:
    """Rows of one client to be predicted."""

    ids: NDArray[Any]
    features: NDArray[np.float32]
    unusable: Mapping[int, str] = field(default_factory=dict)
    """Rows that miss values, and what they miss."""


@wire_type
class HorizontalSource:
    """Rows of a named data set: one client's, the test rows, or rows held out from the training rows."""

    dataset: str
    partitioner: RowPartitioner
    part: Literal["client", "test", "public", "validation"]
    index: int = 0
    public_size: int = 0
    validation_size: int = 0
    num_training: int | None = None
    """Rows dealt to the clients; None: all that are not held out."""
    seed: int = 0
    validation_fraction: float = 0.0
    """Of a client's rows, those that it measures on."""
    measures: bool = False
    """Whether these are the rows that a client measures on, not those that it trains on."""

    def load(self) -> HorizontalBlock:
        """Load these rows.

        Raises:
            BadInput: unknown data set, or a partition that cannot be made.
            DataMissing: a file is not on this machine.
        """
        is_test = self.part == "test"
        if describe(self.dataset).kind != "images":
            features, labels, num_test = _standardised_rows(self.dataset, self.seed)
            rows = np.arange(num_test) if is_test else num_test + self._rows()
            return HorizontalBlock(features=features, labels=labels).take(rows)
        images = load_images(self.dataset)
        if is_test:
            return HorizontalBlock(features=images.scaled(images.test_images), labels=images.test_labels)
        rows = self._rows()
        return HorizontalBlock(features=images.scaled(images.train_images[rows]), labels=images.train_labels[rows])

    def load_new(
        self,
        columns: Sequence[FittedColumn] = (),
        image_folder: ImageFolder | None = None,
        csv: CsvFormat | None = None,
    ) -> NewBlock:
        """Load these rows to predict them; nothing needs to be known of a named data set."""
        features = self.load().features
        return NewBlock(ids=np.arange(len(features)), features=features)

    def labels(self) -> NDArray[Any]:
        """Load the labels of these rows alone; see `load`."""
        if self.part == "test":
            return self.load().labels
        return _training_labels(self.dataset, self.seed)[self._rows()]

    def _rows(self) -> Index:
        held, clients = _dealt(
            self.dataset, self.partitioner, self.validation_size, self.public_size, self.num_training, self.seed
        )
        if self.part != "client":
            return held[self.part]
        rows = clients.load_partition(self.index)
        if not self.validation_fraction:
            return rows
        if len(rows) < 2:
            raise BadInput(
                f"validation_fraction: {self.validation_fraction:g} is not allowed: client {self.index} has "
                f"{len(rows)} rows; use fewer clients, or a larger dirichlet"
            )
        size = min(max(round(self.validation_fraction * len(rows)), 1), len(rows) - 1)
        order = np.random.default_rng([self.seed, 13, self.index]).permutation(len(rows))
        return rows[np.sort(order[:size] if self.measures else order[size:])]


@functools.lru_cache(maxsize=2)
def _standardised_rows(dataset: str, seed: int) -> tuple[NDArray[np.float32], NDArray[Any], int]:
    """Return a table's rows shuffled, the first 30 % being test rows, standardised by the other rows."""
    found = load_tabular(dataset)
    features, _, flags = one_hot(found.features, found.columns, found.categories)
    order = np.random.default_rng([seed, 11]).permutation(len(features))
    features, labels = features[order], found.labels[order]
    num_test = round(0.3 * len(order))
    mean = np.where(flags, 0, features[num_test:].mean(axis=0, dtype=np.float64)).astype(np.float32)
    deviation = np.where(flags, 1, features[num_test:].std(axis=0, dtype=np.float64)).astype(np.float32)
    features -= mean
    features /= np.where(deviation > 0, deviation, 1)
    return features, labels, num_test


def _training_labels(dataset: str, seed: int) -> NDArray[Any]:
    if describe(dataset).kind == "images":
        return load_images(dataset).train_labels
    _, labels, num_test = _standardised_rows(dataset, seed)
    return labels[num_test:]


@functools.lru_cache(maxsize=8)
def _dealt(
    dataset: str,
    partitioner: RowPartitioner,
    validation_size: int,
    public_size: int,
    num_training: int | None,
    seed: int,
) -> tuple[dict[str, Index], Partitions]:
    """Return the training rows that are held out, and those of the clients."""
    labels = _training_labels(dataset, seed)
    for name, size, available in (
        ("validation_size", validation_size, len(labels)),
        ("public_size", public_size, len(labels) - validation_size),
    ):
        if not 0 <= size < available:
            raise BadInput(f"{name}: {size} is not allowed: {dataset} has {available} training rows to hold out from")
    left = len(labels) - validation_size - public_size
    if num_training is not None and not 1 <= num_training <= left:
        raise BadInput(f"num_training: {num_training} is not allowed: {dataset} has {left} to deal")
    order = np.random.default_rng([seed, 17]).permutation(len(labels))
    validation, rest = np.split(order, [validation_size])
    public, private = np.sort(rest[:public_size]), np.sort(rest[public_size:][:num_training])
    dealt = partitioner.over(labels[private])
    return {"validation": validation, "public": public}, Partitions(private[dealt.order], dealt.offsets)


@wire_type
class HorizontalFile:
    """One client's file: columns and a label, the same at every client; or its images."""

    file: FileSource
    classes: tuple[str, ...]
    """The text of each class, in the order that all clients share; of several labels their names; empty for regression,
    and for tokens whose classes have numbers only."""
    image_folder: ImageFolder | None = None
    """What samples look like that are images; without a label column they are no table."""
    part: Literal["all", "train", "validation"] = "all"
    """Which of the rows: all of them, those to train on, or those that the client measures on."""
    validation_fraction: float = 0.0
    """Of the rows that are measured on, where no column of the file tells them; drawn by `seed`."""
    seed: int = 0
    mean: tuple[float, ...] = ()
    """What is taken off each number of a row before training; none: numbers are as they are."""
    deviation: tuple[float, ...] = ()
    """What it is divided by then."""
    targets: tuple[int, ...] = ()
    """Shape of a row's target; none: it is one number or class."""
    num_classes: int = 0
    """Of tokens: how many classes they have."""
    fewest_rows: int = 1
    """Of each part, where rows are held out."""

    @property
    def holds_out(self) -> bool:
        """Whether the client has rows of its own to measure on."""
        return self.file.split_column is not None or self.validation_fraction > 0

    def holding_out(self, share: float, seed: int) -> HorizontalFile:
        """Return the file with a share of its rows, drawn by `seed`, to measure on.

        Raises:
            BadInput: a column of it tells which rows these are.
        """
        if self.file.split_column is not None:
            raise BadInput(
                f"validation_fraction: {share:g} is not allowed: column {self.file.split_column!r} tells the rows"
            )
        return replace(self, validation_fraction=share, seed=seed)

    def load(self) -> HorizontalBlock:
        """Read the rows of the part.

        Raises:
            BadInput: as `FileSource.load` or `read_image_folder`, a label that is not among `classes`, or no such row.
        """
        if self.mean:
            return self.scaled(self.as_given().load())
        block, parts_N = self._load_all()
        if self.part == "all":
            return block
        if parts_N is None:
            parts_N = np.zeros(len(block.labels), np.uint8)
            num_held = round(len(parts_N) * self.validation_fraction)
            # drawn anew for each number: else two runs of one seed could differ in one row
            order = np.random.default_rng([self.seed, 13, num_held]).permutation(len(parts_N))
            parts_N[order[:num_held]] = PARTS.index("validation")
        where = self.file.where
        if (parts_N == PARTS.index("test")).any():
            raise BadInput(f"{where}: column {self.file.split_column}: 'test' is not allowed: task.test has such rows")
        kept = np.flatnonzero(parts_N == PARTS.index(self.part))
        if not len(kept):
            raise BadInput(f"{where}: no row is in the {self.part} part")
        if len(kept) < self.fewest_rows:
            raise BadInput(
                f"validation_fraction: {self.validation_fraction:g} is not allowed: {len(kept)} rows of {where} are in "
                f"the {self.part} part; at least {self.fewest_rows}"
            )
        return block.take(kept)

    def as_given(self) -> HorizontalFile:
        """Return where the same rows are, as the file has them."""
        return replace(self, mean=(), deviation=())

    def scaled(self, block: HorizontalBlock) -> HorizontalBlock:
        """Return rows that were read as the file has them, less the mean and over the deviation."""
        return replace(block, features=standardised(block.features, self.mean, self.deviation))

    def _load_all(self) -> tuple[HorizontalBlock, NDArray[np.uint8] | None]:
        """Read the file: its rows, and their parts if a column tells them."""
        file, table = self.file, None if self.image_folder is None else self._library_table()
        holds = table is not None and holds_pictures(table)
        if self.image_folder is not None and (holds or not file.is_labelled):
            self._check_pictures()
            found = read_image_folder(
                Path(file.path), file.party, self.image_folder, label=file.label, features=file.features, table=table
            )
            targets = self._targets(found.labels)
            weights = class_weighted(None, targets, self.classes, dict(self.file.class_weights))
            return HorizontalBlock(features=found.images, labels=targets, weights=weights), None
        block = file.load(table=table)
        where, labels = self.file.where, block.labels
        refuse_moved(block, where, "each client would count them from another one")
        if labels is not None and self.targets:
            if labels.ndim > 1 and labels.shape[1] == math.prod(self.targets):
                labels = labels.reshape(-1, *self.targets)
            labels = checked_targets(labels, where, self.file.task, self.targets, self.num_classes)
            return self._table(block, labels), block.parts
        if labels is not None and labels.dtype == np.float64:
            raise BadInput(
                f"{where}: label {self.file.label}: {' and '.join(told_apart(labels))} are one number in single "
                "precision; take off what all of them have in common"
            )
        if labels is None:
            raise BadInput(f"{where}: label: every client needs labels")
        if self.classes:
            labels = self.file.numbers_of_classes(block.class_names, self.classes)[labels]
        if not self.classes:
            check_labels(labels, where, "regression", 1)
        return self._table(block, labels), block.parts

    def _check_pictures(self) -> None:
        """Refuse what is said of rows of a table where the samples are pictures."""
        file = self.file
        said = {"id": file.id_column, "weight": file.weight, "split": file.split_column, "label": file.targets}
        for key, value in said.items():
            if value:
                raise BadInput(f"{file.where}: {key} is not allowed for pictures, whose columns are one and its label")

    def _table(self, block: PartyBlock, labels: NDArray[Any]) -> HorizontalBlock:
        """Return the rows of a table, with targets as they are trained on."""
        # One client may well have a single class, so that its labels are not held against `check_block`.
        # Its ids are names of rows, and align nothing: two rows may have the same.
        rows = replace(block, labels=None, ids=np.arange(len(block.ids)))
        check_block(rows, self.file.party, self.file.task, len(self.classes))
        samples, columns = self._samples(block.features), block.columns
        return HorizontalBlock(features=samples, labels=labels, weights=block.weights, columns=columns)

    def _samples(self, features_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a table's rows as samples: as they are, or as images."""
        image_folder = self.image_folder
        if image_folder is None:
            return features_ND
        if features_ND.shape[1] != math.prod(image_folder.shape):
            raise BadInput(
                f"{self.file.where}: {features_ND.shape[1]} feature columns do not fill task.shape "
                f"{list(image_folder.shape)}"
            )
        return image_folder.scaled(features_ND)

    def _targets(self, labels: tuple[str, ...] | NDArray[Any]) -> NDArray[Any]:
        """Return the classes of images by number, or the numbers of a regression."""
        where = self.file.where
        if self.targets:
            return checked_targets(labels, where, self.file.task, self.targets, self.num_classes)
        if not isinstance(labels, tuple) and labels.ndim > 1:
            raise BadInput(
                f"{where}: labels of shape {list(labels.shape[1:])} are not allowed for type={self.file.task}: one a "
                "sample is needed"
            )
        if self.classes:
            texts = class_texts(labels)
            for text in texts:
                if text not in self.classes:
                    raise BadInput(f"{where}: label {text!r} is not allowed: classes are {', '.join(self.classes)}")
            return np.asarray([self.classes.index(text) for text in texts], np.int64)
        if isinstance(labels, tuple) or labels.dtype.kind not in "uif":
            raise BadInput(f"{where}: labels: a regression needs numbers, in an .npz file")
        check_labels(labels, where, "regression", 1)
        return labels.astype(np.float32)

    def _library_table(self) -> Any:
        """Load the library's data set that the path names, once for its kind and its rows; None: it names none."""
        if self.file.view is not None or not is_in_library(self.file.path):
            return None
        return library_table(Path(self.file.path), self.file.party)

    def load_new(
        self,
        columns: Sequence[FittedColumn] = (),
        image_folder: ImageFolder | None = None,
        csv: CsvFormat | None = None,
    ) -> NewBlock:
        """Read the file to predict its rows; it need not have labels.

        Args:
            columns: of the tables that were trained on.
            image_folder: what samples looked like in training; None: as the description says.
            csv: how the file trained on was written; what the description says of the new one has precedence.

        Raises:
            BadInput: as `FileSource.load` or `read_image_folder`.
        """
        path, image_folder = Path(self.file.path), image_folder or self.image_folder
        table = None if image_folder is None else self._library_table()
        if image_folder is not None and (holds_images(path) if table is None else holds_pictures(table)):
            found = read_image_folder(path, self.file.party, image_folder, is_new=True, table=table)
            return NewBlock(ids=found.ids, features=found.images, unusable=found.unusable)
        file = replace(self.file, needs_label=False, csv=self.file.csv or csv)
        if columns:
            file = replace(file, features=None)
        block = file.load(columns or None, table=table)
        missing = ~np.isfinite(block.features).all(axis=1)
        # a name is no row's alone, and a row without one is predicted too
        refused = {row: reason for row, reason in block.unusable.items() if reason not in (NO_ID, UNSEEN_ID)}
        unusable = dict.fromkeys(map(int, np.flatnonzero(missing)), "missing values") | refused
        if nameless := [row for row, reason in block.unusable.items() if reason == NO_ID]:
            _log.warning(
                "%s: %d rows to predict have no id (first in row %d): their predictions have none either, and stand in "
                "the order of the file",
                self.file.where,
                len(nameless),
                1 + min(nameless),
            )
        check_usable(replace(block, unusable=unusable), self.file.where)
        features = replace(self, image_folder=image_folder)._samples(np.nan_to_num(block.features))
        return NewBlock(ids=block.ids, features=features, unusable=unusable)

    def labels(self) -> NDArray[Any]:
        """Read the labels; see `load`."""
        if self.image_folder is not None and self.file.label is None and self.classes and not self.targets:
            found = read_labels(Path(self.file.path), self.file.party)
            if found is not None:
                return self._targets(found)
        return self.load().labels


def standardised(
    features_ND: NDArray[np.float32], mean: Sequence[float], deviation: Sequence[float]
) -> NDArray[np.float32]:
    """Return numbers less a mean, over a deviation: to the bit what `Preprocessing.finish` makes of new rows."""
    made: NDArray[np.float32] = allocate(features_ND.shape, np.float32)
    for rows in blocks_of(len(made), made.nbytes / max(len(made), 1)):
        made[rows] = (features_ND[rows] - np.asarray(mean, np.float32)) / np.asarray(deviation, np.float32)
    return read_only(made)


Rows = HorizontalSource | HorizontalFile
"""Where rows are: loaded by the actor that holds them, in its own process."""


def rows_key(source: Rows, scope: str = "") -> bytes:
    """Return a name of rows under which every process of the run finds them: a compute carries it instead of rows.

    Args:
        source: where they are.
        scope: of the run (`Actor.scope`): another run of the process may have read a file before it changed.
    """
    return scope.encode() + _SCOPE_END + encode(source, arguments=True)


_SCOPE_END = b"\0"
_BLOCKS: dict[bytes, HorizontalBlock] = {}
_LABELS: dict[bytes, NDArray[Any]] = {}


def rows_of(key: bytes) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the samples and labels that a key names, loaded once in this process; until they are forgotten."""
    block = _block_of(key)
    if (known := _LABELS.get(key)) is None:
        labels = np.asarray(block.labels)
        known = _LABELS.setdefault(key, labels if labels.dtype.kind == "f" else labels.astype(np.int64))
    return block.features, known


def weights_of(key: bytes) -> NDArray[np.float32] | None:
    """Return how much each of the rows counts in the loss; None: all alike."""
    return _block_of(key).weights


def table_columns(key: bytes) -> tuple[FittedColumn, ...]:
    """Return the columns of a user-provided table; none of other rows."""
    return _block_of(key).columns


def forget_blocks(scope: str = "") -> None:
    """Forget what `rows_of` loaded for a run: files may have changed when the next one begins."""
    for kept in (_BLOCKS, _LABELS):
        for key in [key for key in kept if key.startswith(scope.encode() + _SCOPE_END)]:
            kept.pop(key, None)  # type: ignore[attr-defined]


def _block_of(key: bytes) -> HorizontalBlock:
    if (known := _BLOCKS.get(key)) is not None:
        return known
    scope, _, encoded = key.partition(_SCOPE_END)
    source: Rows = decode(encoded, arguments=True)
    if isinstance(source, HorizontalFile) and source.mean:  # of rows as they were given nothing is needed any more
        given = source.as_given()
        earlier = _BLOCKS.pop(rows_key(given, scope.decode()), None)
        block = source.scaled(given.load() if earlier is None else earlier)
    else:
        block = source.load()
    return _BLOCKS.setdefault(key, block)


@wire_type
class HorizontalPart:
    """What one organisation is told of horizontal data: where the rows of its own clients are, and nobody else's."""

    name: str
    task: Task
    num_classes: int
    shape: tuple[int, ...]
    """Shape of one row's features; empty when only the rows tell."""
    targets: tuple[int, ...] = ()
    """Shape of one row's target; empty where it is one number or class."""
    columns: str = ""
    """What the columns of own tables mean, where rules say so, the same for all clients (`columns_text`)."""
    clients: tuple[Rows, ...] = ()
    test: Rows | None = None
    public: HorizontalSource | None = None
    """Rows that everybody may see."""
    validation: tuple[Rows, ...] = ()
    """Each client's rows that it measures on itself."""


@wire_type
class HorizontalData:
    """Clients that hold different rows of the same columns, test rows, and perhaps rows that everybody may see.

    The driver has the whole description; an actor is built with its own `part` of it.
    """

    name: str
    task: Task
    num_classes: int
    num_clients: int
    shape: tuple[int, ...]
    """Shape of one row's features: (C, H, W) of an image; empty when only the files tell."""
    targets: tuple[int, ...] = ()
    """As of `HorizontalPart`."""
    columns: str = ""
    """As of `HorizontalPart`."""
    partitioner: RowPartitioner | None = None
    public_size: int = 0
    validation_size: int = 0
    """Training rows of a named set that are held out to measure on instead of the test rows."""
    num_training: int | None = None
    """Rows of a named set dealt to the clients; None: all that are not held out."""
    validation_fraction: float = 0.0
    """Share of each client's rows of a named set that it measures on itself."""
    seed: int = 0
    files: tuple[HorizontalFile, ...] = ()
    """User-provided files, one per client; then `partitioner` is None."""
    parties: tuple[str, ...] = ()
    """Names of the clients with user-provided files."""
    centers: tuple[str, ...] = ()
    """Of user-provided files the center that holds each client, where the clients say so."""
    test_file: HorizontalFile | None = None

    def part(self, clients: Iterable[int] = (), *, test: bool = False) -> HorizontalPart:
        """Return what the actors of the organisation that holds these clients' (or the test) rows are built with."""
        return HorizontalPart(
            name=self.name,
            task=self.task,
            num_classes=self.num_classes,
            shape=self.shape,
            targets=self.targets,
            columns=self.columns,
            clients=tuple(self.client(index) for index in clients),
            validation=tuple(self._validation(index) for index in clients if self.holds_out),
            test=self.test() if test else None,
            public=self.public() if self.public_size else None,
        )

    def client(self, index: int) -> Rows:
        """Return the source of client `index`.

        Raises:
            BadInput: no such client.
        """
        if not 0 <= index < self.num_clients:
            raise BadInput(f"client: {index} is not allowed: there are {self.num_clients}")
        if not self.files:
            return replace(self._named("client", index), validation_fraction=self.validation_fraction)
        return replace(self.files[index], part="train") if self.holds_out else self.files[index]

    def _validation(self, index: int) -> Rows:
        """Return the source of the rows that a client measures on."""
        if self.files:
            return replace(self.files[index], part="validation")
        return replace(self._named("client", index), validation_fraction=self.validation_fraction, measures=True)

    @property
    def holds_out(self) -> bool:
        """Whether clients have rows of their own to measure on: all of them, or none."""
        return self.validation_fraction > 0 or any(file.holds_out for file in self.files)

    def holding_out(self, share: float, seed: int) -> HorizontalData:
        """Return data whose user-provided files hold rows out to measure on; see `HorizontalFile.holding_out`."""
        return replace(self, files=tuple(file.holding_out(share, seed) for file in self.files))

    def test(self) -> Rows:
        """Return the source of the rows to measure on, which belong to no client: validation or test rows.

        Raises:
            BadInput: user-provided files without a test file.
        """
        if not self.files:
            return self._named("validation" if self.validation_size else "test", 0)
        if self.test_file is None:
            raise BadInput(f'test: {self.name} names no test file; give test = "..." under [task]')
        return self.test_file

    def public(self) -> HorizontalSource:
        """Return the source of the public rows, held out from the training rows.

        Raises:
            BadInput: there is no public set.
        """
        if self.files or not self.public_size:
            raise BadInput(f"public_size: {self.public_size} is not allowed here: {self.name} has no public set")
        return self._named("public", 0)

    def _named(self, part: Literal["client", "test", "public", "validation"], index: int) -> HorizontalSource:
        return HorizontalSource(
            dataset=self.name,
            partitioner=self.partitioner or IidPartitioner(num_partitions=self.num_clients),
            part=part,
            index=index,
            public_size=self.public_size,
            validation_size=self.validation_size,
            num_training=self.num_training,
            seed=self.seed,
        )


def horizontal(
    dataset: str,
    partitioner: RowPartitioner,
    *,
    public_size: int = 0,
    validation_size: int = 0,
    num_training: int | None = None,
    seed: int = 0,
) -> HorizontalData:
    """Deal the training rows of a named data set to as many clients as `partitioner` makes partitions.

    Raises:
        BadInput: unknown data set, or one that is not made of rows.
    """
    described = describe(dataset)
    if "horizontal" not in described.layouts:
        raise BadInput(f"data: {dataset} is of kind {described.kind} and cannot be split by rows")
    shapes = {64: (1, 8, 8), 784: (1, 28, 28), 3072: (3, 32, 32)}
    return HorizontalData(
        name=dataset,
        task=described.task,
        num_classes=described.num_classes,
        num_clients=partitioner.num_partitions,
        shape=shapes[described.columns] if described.kind == "images" else (),
        partitioner=partitioner,
        public_size=public_size,
        validation_size=validation_size,
        num_training=num_training,
        seed=seed,
    )


def deal(
    dataset: str,
    num_clients: int,
    *,
    dirichlet: float | None,
    num_training: int | None = None,
    num_validation: int = 0,
    num_public: int = 0,
    seed: int = 0,
    public_field: str = "num_public",
) -> HorizontalData:
    """Deal a named data set to clients by its labels, as a configuration says it.

    Args:
        dataset: its name.
        num_clients: partitions.
        dirichlet: concentration of the label distribution of a client; None: equal random shares.
        num_training: rows dealt; None: all that are not held out.
        num_validation: rows held out to measure on instead of the test rows.
        num_public: rows held out that everybody may see.
        seed: of the partition.
        public_field: what the configuration calls `num_public`.

    Raises:
        BadInput: names the setting, its value and what is allowed.
    """
    described = describe(dataset)
    held = num_public + num_validation
    rows = described.rows if described.kind == "images" else described.rows - round(0.3 * described.rows)
    if held >= rows:
        fields = f"{public_field} + num_validation" if num_public else "num_validation"
        raise BadInput(f"{fields}: {held} is not allowed: {dataset} has {rows} training rows")
    if num_training is not None and num_training > rows - held:
        raise BadInput(f"num_training: {num_training} is not allowed: {dataset} has {rows - held} to deal")
    partitioner: RowPartitioner = IidPartitioner(num_partitions=num_clients, seed=seed)
    if dirichlet is not None:
        partitioner = DirichletPartitioner(num_partitions=num_clients, alpha=dirichlet, seed=seed)
    return horizontal(
        dataset,
        partitioner,
        public_size=num_public,
        validation_size=num_validation,
        num_training=num_training,
        seed=seed,
    )


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Reading:
    """Of a named data set nothing is to be known."""

    columns: tuple[FittedColumn, ...] = ()
    """Of a table, in their order."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of the outputs."""
    image_folder: ImageFolder | None = None
    """What samples look like that are images."""
    csv: Mapping[str, CsvFormat] = dataclasses.field(default_factory=dict)
    """How the clients' files were written, by party, where their description said so."""
    mean: tuple[float, ...] = ()
    """Of each number that a row of a table becomes, over all clients' rows; none: numbers are as they are."""
    deviation: tuple[float, ...] = ()
    """Likewise."""
    label_mean: float = 0.0
    """Of a regression's targets, over all clients' rows, where they were standardised."""
    label_deviation: float = 1.0
    """Likewise."""

    @property
    def text(self) -> str:
        """The same as JSON."""
        unused = set() if self.mean else {"mean", "deviation"}
        if self.target == (0.0, 1.0):
            unused |= {"label_mean", "label_deviation"}
        return _ADAPTER.dump_json(self, exclude=unused).decode()

    @property
    def target(self) -> tuple[float, float]:
        """Mean and deviation of the targets."""
        return self.label_mean, self.label_deviation

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(one.name for one in self.columns)

    @property
    def common_csv(self) -> CsvFormat | None:
        """How all clients wrote their files, if they did alike."""
        found = list(self.csv.values())
        return found[0] if found and all(one == found[0] for one in found) else None

    def with_csv(self, texts: Mapping[str, str]) -> Reading:
        """Return the same with what clients said of their files (`csv_text`)."""
        return dataclasses.replace(self, csv={name: _CSV.validate_json(text) for name, text in texts.items() if text})

    def for_party(self, name: str) -> Reading:
        """Return what a party may know of it: of the files how its own was written."""
        return dataclasses.replace(self, csv={name: self.csv[name]} if name in self.csv else {})


_ADAPTER = TypeAdapter(Reading)
_CSV = TypeAdapter(CsvFormat)


def csv_text(csv: CsvFormat | None) -> str:
    """Return how a file is written as JSON; empty: as usual."""
    return "" if csv is None else _CSV.dump_json(csv).decode()


def reading_of(part: HorizontalPart, scope: str = "") -> Reading:
    """Return how the rows of a part are read, which are loaded where only they tell; nothing of a named data set.

    Args:
        part: of it.
        scope: of the run; see `rows_key`.

    Raises:
        BadInput: its tables have other columns, or in another order.
    """
    sources = [one for one in (*part.clients, part.test) if isinstance(one, HorizontalFile)]
    if not sources:
        return Reading(columns=columns_of(part.columns))
    columns = columns_of(part.columns)
    if not columns and sources[0].image_folder is None:
        found = {one.file.party: table_columns(rows_key(one, scope)) for one in sources}
        columns = found[sources[0].file.party]
        check_names({name: tuple(one.name for one in theirs) for name, theirs in found.items()})
    csv = {one.file.party: one.file.csv for one in part.clients if isinstance(one, HorizontalFile) and one.file.csv}
    return Reading(columns=columns, classes=sources[0].classes, image_folder=sources[0].image_folder, csv=csv)


def read_reading(text: str) -> Reading:
    """Return what `Reading.text` was."""
    return _ADAPTER.validate_json(text)


def check_widths(found: Mapping[str, int]) -> None:
    """Check that all clients' (or sites', or centers') tables have as many columns.

    Raises:
        BadInput: naming all of them.
    """
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in found.items())
        raise BadInput(f"data: all clients must hold the same columns: {told}")


def check_names(found: Mapping[str, tuple[str, ...]]) -> None:
    """Check that clients' tables have the same columns in the same order; one without names is not checked.

    Raises:
        BadInput: naming two of them, and the first column that differs.
    """
    known = {name: names for name, names in found.items() if names}
    check_widths({name: len(names) for name, names in known.items()})
    first, names = next(iter(known.items()), ("", ()))
    for other, theirs in known.items():
        if theirs == names:
            continue
        one, another = next(pair for pair in zip(names, theirs, strict=True) if pair[0] != pair[1])
        raise BadInput(
            f"data: all clients must hold the same columns in the same order: {other} has {another!r} where {first} "
            f"has {one!r}; list them under features, at every client"
        )
