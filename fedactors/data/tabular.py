"""Tabular data sets: real ones read by pyarrow, generated ones made column by column.

Shapes: N rows, F columns before one-hot encoding. A categorical column holds codes 0..C-1 as float32 (exact), so that a
million rows stay one dense array until a party encodes its own columns.
"""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.catalogue import Dataset, Task, describe
from fedactors.data.storage import locate
from fedactors.errors import BadInput

Float32 = NDArray[np.float32]

_CREDIT_COLUMNS = (
    "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6",
    "BILL_AMT1", "BILL_AMT2", "BILL_AMT3", "BILL_AMT4", "BILL_AMT5", "BILL_AMT6",
    "PAY_AMT1", "PAY_AMT2", "PAY_AMT3", "PAY_AMT4", "PAY_AMT5", "PAY_AMT6",
)  # fmt: skip
_CREDIT_CATEGORICAL = ("SEX", "EDUCATION", "MARRIAGE")
_CRITEO_COUNTS, _CRITEO_CATEGORIES = 13, 26
_CRITEO_SIZES = tuple(4 + 60 * rank // (_CRITEO_CATEGORIES - 1) for rank in range(_CRITEO_CATEGORIES))


@dataclass(frozen=True, kw_only=True)
class TabularDataset:
    """Columns and labels of one table, before anything is encoded or standardised."""

    features: Float32
    columns: tuple[str, ...]
    labels: NDArray[Any]
    """int64 classes 0..num_classes-1, or float32 targets of a regression."""
    task: Task
    num_classes: int
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each categorical column, the text of each code."""


def load_tabular(name: str, columns: Sequence[int] | None = None) -> TabularDataset:
    """Load a tabular data set, or flatten an image data set's training images into pixels as columns.

    Args:
        name: a name of the catalogue.
        columns: indices of the columns wanted; generated data then make no others. None means all.

    Raises:
        BadInput: unknown name, or a file that does not hold the rows and columns that the catalogue states.
        DataMissing: a file is not on this machine.
    """
    dataset = describe(name)
    base = dataset.name.partition(":")[0]
    if base == "synthetic":
        return _synthetic(dataset, columns)
    whole = _load_whole(dataset.name)
    if columns is None:
        return whole
    names = tuple(whole.columns[c] for c in columns)
    return TabularDataset(
        features=np.ascontiguousarray(whole.features[:, list(columns)]),
        columns=names,
        labels=whole.labels,
        task=whole.task,
        num_classes=whole.num_classes,
        categories={c: texts for c, texts in whole.categories.items() if c in names},
    )


@functools.lru_cache(maxsize=2)
def _load_whole(name: str) -> TabularDataset:
    dataset = describe(name)
    if dataset.kind == "images":
        return _flattened(dataset)
    base = name.partition(":")[0]
    if base == "breast-cancer":
        made = _breast_cancer(dataset)
    elif base in ("bank", "bank-no-duration"):
        made = _bank(dataset)
    elif base == "credit":
        made = _credit(dataset)
    elif base == "energy":
        made = _energy(dataset)
    elif base in ("blog", "blog-log1p"):
        made = _blog(dataset)
    elif base == "criteo-like":
        made = _criteo_like(dataset)
    else:
        raise BadInput(f"data: {name!r} is of kind {dataset.kind}; a table of rows is needed here")
    if made.features.shape != (dataset.rows, dataset.columns):
        raise BadInput(
            f"{name}: the file holds {made.features.shape[0]} rows and {made.features.shape[1]} columns, "
            f"expected {dataset.rows} and {dataset.columns}"
        )
    made.features.flags.writeable = False
    made.labels.flags.writeable = False
    return made


def encode_text(values: Sequence[Any]) -> tuple[Float32, tuple[str, ...]]:
    """Return the code of each value, and the sorted texts that the codes stand for."""
    texts, codes = np.unique(np.asarray([str(value) for value in values]), return_inverse=True)
    return codes.astype(np.float32), tuple(str(text) for text in texts)


def _read_csv(archive: zipfile.ZipFile, member: str, **parse: Any) -> Any:
    import pyarrow.csv as pa_csv

    with archive.open(member) as stream:
        return pa_csv.read_csv(
            stream,
            read_options=pa_csv.ReadOptions(block_size=8 << 20, use_threads=False),
            parse_options=pa_csv.ParseOptions(**parse),
        )


def _numeric(table: Any, columns: Sequence[str]) -> Float32:
    made = np.empty((table.num_rows, len(columns)), dtype=np.float32)
    for index, column in enumerate(columns):
        made[:, index] = table[column].to_numpy()
    return made


def _mixed(
    table: Any, columns: Sequence[str], categorical: Sequence[str]
) -> tuple[Float32, dict[str, tuple[str, ...]]]:
    made = np.empty((table.num_rows, len(columns)), dtype=np.float32)
    categories: dict[str, tuple[str, ...]] = {}
    for index, column in enumerate(columns):
        if column in categorical:
            made[:, index], categories[column] = encode_text(table[column].to_pylist())
        else:
            made[:, index] = table[column].to_numpy()
    return made, categories


def _breast_cancer(dataset: Dataset) -> TabularDataset:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return TabularDataset(
        features=found.data.astype(np.float32),
        columns=tuple(str(column).replace(" ", "_") for column in found.feature_names),
        labels=found.target.astype(np.int64),
        task=dataset.task,
        num_classes=2,
    )


def _bank(dataset: Dataset) -> TabularDataset:
    import pyarrow as pa

    with zipfile.ZipFile(locate(dataset.name, "bank/bank-additional.zip")) as archive:
        table = _read_csv(archive, "bank-additional/bank-additional-full.csv", delimiter=";")
    columns = [c for c in table.column_names if c != "y" and not (c == "duration" and "no-duration" in dataset.name)]
    categorical = [c for c in columns if pa.types.is_string(table.schema.field(c).type)]
    features, categories = _mixed(table, columns, categorical)
    labels = np.asarray(table["y"].to_pylist()) == "yes"
    return TabularDataset(
        features=features,
        columns=tuple(columns),
        labels=labels.astype(np.int64),
        task=dataset.task,
        num_classes=2,
        categories=categories,
    )


def _credit(dataset: Dataset) -> TabularDataset:
    with zipfile.ZipFile(locate(dataset.name, "credit/UCI_Credit_Card.csv.zip")) as archive:
        table = _read_csv(archive, "UCI_Credit_Card.csv")
    # The official file calls the columns X1..X23; the order is the same, so that they are named by their place.
    table = table.rename_columns(["ID", *_CREDIT_COLUMNS, "default"])
    features, categories = _mixed(table, _CREDIT_COLUMNS, _CREDIT_CATEGORICAL)
    return TabularDataset(
        features=features,
        columns=_CREDIT_COLUMNS,
        labels=table["default"].to_numpy().astype(np.int64),
        task=dataset.task,
        num_classes=2,
        categories=categories,
    )


def _energy(dataset: Dataset) -> TabularDataset:
    import pyarrow.compute as pc

    with zipfile.ZipFile(locate(dataset.name, "energy/energydata_complete.zip")) as archive:
        table = _read_csv(archive, "energydata_complete.csv")
    columns = [column for column in table.column_names if column not in ("date", "Appliances")]

    def number(column: str) -> Any:  # some numbers are quoted with leading blanks, which pyarrow reads as text
        return pc.cast(pc.utf8_trim_whitespace(pc.cast(table[column], "string")), "float64").to_numpy()

    return TabularDataset(
        features=np.stack([number(column) for column in columns], axis=1).astype(np.float32),
        columns=tuple(columns),
        labels=number("Appliances").astype(np.float32),
        task=dataset.task,
        num_classes=1,
    )


def _blog(dataset: Dataset) -> TabularDataset:
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    with zipfile.ZipFile(locate(dataset.name, "blogfeedback/BlogFeedback.zip")) as archive:
        members = sorted(name for name in archive.namelist() if name.endswith(".csv"))
        members.sort(key=lambda name: "test" in name)  # the training file first, then the test files by their dates
        text = b"\n".join(archive.read(member).strip() for member in members)
    # One pass with the type given, instead of sixty-one that infer it and may infer it differently.
    types = {f"f{index}": pa.float32() for index in range(281)}
    table = pa_csv.read_csv(
        io.BytesIO(text),
        read_options=pa_csv.ReadOptions(autogenerate_column_names=True, use_threads=False, block_size=8 << 20),
        convert_options=pa_csv.ConvertOptions(column_types=types),
    )
    del text
    whole = _numeric(table, table.column_names)
    target = whole[:, 280].copy()
    return TabularDataset(
        features=np.ascontiguousarray(whole[:, :280]),
        columns=tuple(f"a{index}" for index in range(1, 281)),
        labels=np.log1p(target) if dataset.name == "blog-log1p" else target,
        task=dataset.task,
        num_classes=1,
    )


def _flattened(dataset: Dataset) -> TabularDataset:
    from fedactors.data.images import load_images

    images = load_images(dataset.name)
    pixels = images.train_images.reshape(len(images.train_images), -1).astype(np.float32)
    return TabularDataset(
        features=pixels,
        columns=tuple(f"pixel_{index}" for index in range(pixels.shape[1])),
        labels=images.train_labels,
        task=dataset.task,
        num_classes=dataset.num_classes,
    )


_COLUMNS_AT_ONCE = 16
"""Written together: one column after the other, a million rows apart, takes five times as long."""


@functools.lru_cache(maxsize=1)
def _synthetic_core(rows: int, columns: int) -> tuple[Float32, NDArray[np.int64], NDArray[np.int64]]:
    from sklearn.datasets import make_classification

    informative = max(2, columns // 10)
    redundant = min(informative, columns - informative)
    core, labels = make_classification(
        n_samples=rows,
        n_features=informative + redundant,
        n_informative=informative,
        n_redundant=redundant,
        n_clusters_per_class=2 if informative > 2 else 1,
        class_sep=1.0,
        shuffle=True,
        random_state=0,
    )
    places = np.random.default_rng(0).permutation(columns)[: informative + redundant]
    return core.astype(np.float32), labels.astype(np.int64), places


def _synthetic(dataset: Dataset, columns: Sequence[int] | None) -> TabularDataset:
    """Make the wanted columns of `make_classification`: its noise columns are independent, hence made one by one."""
    rows = dataset.rows
    core, labels, places = _synthetic_core(rows, dataset.columns)
    wanted = range(dataset.columns) if columns is None else columns
    inside = {int(place): index for index, place in enumerate(places)}
    made = np.empty((rows, len(wanted)), dtype=np.float32)
    for start in range(0, len(wanted), _COLUMNS_AT_ONCE):
        some = wanted[start : start + _COLUMNS_AT_ONCE]
        made[:, start : start + len(some)] = np.stack(
            [
                core[:, inside[column]]
                if column in inside
                else np.random.default_rng([1, column]).standard_normal(rows, dtype=np.float32)
                for column in some
            ],
            axis=1,
        )
    return TabularDataset(
        features=made,
        columns=tuple(f"x{column}" for column in wanted),
        labels=labels,
        task=dataset.task,
        num_classes=2,
    )


def _criteo_like(dataset: Dataset) -> TabularDataset:
    """Heavy-tailed counts and categories with Zipf frequencies; clicks (about three in ten) from a logistic model."""
    rng = np.random.default_rng(0)
    rows = dataset.rows
    made = np.empty((rows, _CRITEO_COUNTS + _CRITEO_CATEGORIES), dtype=np.float32)
    score = np.zeros(rows)
    for column in range(_CRITEO_COUNTS):
        made[:, column] = np.log1p(np.floor(rng.lognormal(1.0, 1.5, rows)))
        score += rng.normal(0, 0.25) * (made[:, column] - made[:, column].mean())
    categories: dict[str, tuple[str, ...]] = {}
    for index, size in enumerate(_CRITEO_SIZES):
        frequency = 1.0 / np.arange(1, size + 1)
        codes = rng.choice(size, rows, p=frequency / frequency.sum())
        codes[:size] = np.arange(min(size, rows))  # every category occurs
        made[:, _CRITEO_COUNTS + index] = codes
        categories[f"c{index + 1}"] = tuple(f"{code:02x}" for code in range(size))
        score += rng.normal(0, 0.4, size)[codes]
    chance = 1.0 / (1.0 + np.exp(-(score - np.quantile(score, 0.75))))
    return TabularDataset(
        features=made,
        columns=(*(f"i{index + 1}" for index in range(_CRITEO_COUNTS)), *categories),
        labels=(rng.random(rows) < chance).astype(np.int64),
        task=dataset.task,
        num_classes=2,
        categories=categories,
    )
