"""Named data sets, loaded whole: `load` picks the loader by the kind that the catalogue states.

- tabular: read by pyarrow, or generated column by column. A categorical column holds codes 0..C-1 as float32 (exact),
  so that a million rows stay one dense array until a party encodes its own columns.
- images: digits, Fashion-MNIST and the CIFAR families, kept as bytes until a client scales its own.
- graphs: Planetoid (pickles, opened by an unpickler that knows seven harmless names only), Zachary's karate club, and
  stochastic block models of any size; each undirected edge once, smaller node first.
- relational, as Arrow tables: MovieLens 1M, nycflights13, and a generated shop of any size.

Shapes: N rows, images or nodes; F columns before one-hot encoding; C channels, H rows, W columns; E edges.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import io
import pickle
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from fedactors.data.datasets.catalogue import Dataset, Task, describe, locate
from fedactors.errors import BadInput

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
Index = NDArray[np.int64]


def load(name: str) -> TabularDataset | ImageDataset | GraphDataset | dict[str, pa.Table]:
    """Load data set `name` from this machine; tables come as a mapping from their names.

    Raises:
        BadInput: unknown name, or a damaged file.
        DataMissing: a file is not on this machine.
    """
    kind = describe(name).kind
    if kind == "tabular":
        return load_tabular(name)
    if kind == "images":
        return load_images(name)
    if kind == "graph":
        return load_graph(name)

    return load_tables(name)


# --- tables of rows ---------------------------------------------------------------------------------------------------


_CREDIT_COLUMNS = (
    "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6",
    "BILL_AMT1", "BILL_AMT2", "BILL_AMT3", "BILL_AMT4", "BILL_AMT5", "BILL_AMT6",
    "PAY_AMT1", "PAY_AMT2", "PAY_AMT3", "PAY_AMT4", "PAY_AMT5", "PAY_AMT6",
)  # fmt: skip
_CREDIT_CATEGORICAL = ("SEX", "EDUCATION", "MARRIAGE")
_CRITEO_COUNTS, _CRITEO_CATEGORIES = 13, 26
_CRITEO_SIZES = tuple(4 + 60 * rank // (_CRITEO_CATEGORIES - 1) for rank in range(_CRITEO_CATEGORIES))
_COLUMNS_AT_ONCE = 16
"""Written together: one column after the other, a million rows apart, takes five times as long."""


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


def _bundled(name: str) -> Path:
    """Return where a file lies that scikit-learn brings; to import it takes a third of a run's start."""
    found = importlib.util.find_spec("sklearn")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0], "datasets", "data", name)


def _breast_cancer(dataset: Dataset) -> TabularDataset:
    found = np.loadtxt(_bundled("breast_cancer.csv"), delimiter=",", skiprows=1)
    measured = "radius texture perimeter area smoothness compactness concavity concave_points symmetry"
    names = (*measured.split(), "fractal_dimension")
    return TabularDataset(
        features=found[:, :-1].astype(np.float32),
        columns=tuple(form.format(name) for form in ("mean_{}", "{}_error", "worst_{}") for name in names),
        labels=found[:, -1].astype(np.int64),
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

    images = load_images(dataset.name)
    pixels = images.train_images.reshape(len(images.train_images), -1).astype(np.float32)
    return TabularDataset(
        features=pixels,
        columns=tuple(f"pixel_{index}" for index in range(pixels.shape[1])),
        labels=images.train_labels,
        task=dataset.task,
        num_classes=dataset.num_classes,
    )


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
    positions = np.random.default_rng(0).permutation(columns)[: informative + redundant]
    return core.astype(np.float32), labels.astype(np.int64), positions


def _synthetic(dataset: Dataset, columns: Sequence[int] | None) -> TabularDataset:
    """Make the wanted columns of `make_classification`: its noise columns are independent, hence made one by one."""
    rows = dataset.rows
    core, labels, positions = _synthetic_core(rows, dataset.columns)
    wanted = range(dataset.columns) if columns is None else columns
    inside = {int(position): index for index, position in enumerate(positions)}
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


# --- images -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ImageDataset:
    """Training and test images of one data set, read-only."""

    train_images: Bytes
    train_labels: Labels
    test_images: Bytes
    test_labels: Labels
    num_classes: int
    peak: float
    """Largest value of a pixel: 16 for digits, 255 elsewhere."""
    mean: tuple[float, ...]
    """Published mean of each channel, in units of `peak`: a public constant, so that no client's data enter it."""
    deviation: tuple[float, ...]

    def scaled(self, images_NCHW: Bytes) -> NDArray[np.float32]:
        """Return images as float32, divided by `peak`, less `mean`, over `deviation`."""
        mean = np.asarray(self.mean, np.float32)[:, None, None]
        deviation = np.asarray(self.deviation, np.float32)[:, None, None]
        made: NDArray[np.float32] = (images_NCHW.astype(np.float32) / np.float32(self.peak) - mean) / deviation
        return made


@functools.lru_cache(maxsize=2)
def load_images(name: str) -> ImageDataset:
    """Load an image data set; repeated calls in one process share the arrays.

    Raises:
        BadInput: unknown name, or a file that does not hold what the catalogue states.
        DataMissing: a file is not on this machine.
    """
    dataset = describe(name)
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    if name == "digits":
        parts = _digits()
        peak, mean, deviation = 16.0, (0.3053,), (0.3760,)
    elif name == "fashion-mnist":
        parts = _fashion_mnist()
        peak, mean, deviation = 255.0, (0.2860,), (0.3530,)
    elif name in ("cifar10", "cifar10-subset", "cifar100"):
        parts = _cifar(name, locate(name, dataset.files[0].path))
        peak, mean, deviation = 255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    else:
        raise BadInput(f"data: {name!r} is of kind {dataset.kind}; a data set of images is needed here")
    train_images, train_labels, test_images, test_labels = parts
    if len(train_images) != dataset.rows or len(train_labels) != dataset.rows or len(test_images) != len(test_labels):
        raise BadInput(f"{name}: the files hold {len(train_images)} training images, expected {dataset.rows}")
    for array in parts:
        array.flags.writeable = False
    return ImageDataset(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        num_classes=dataset.num_classes,
        peak=peak,
        mean=mean,
        deviation=deviation,
    )


def _digits() -> tuple[Bytes, Labels, Bytes, Labels]:
    found = np.loadtxt(_bundled("digits.csv.gz"), delimiter=",")
    order = np.random.default_rng(0).permutation(len(found))
    images, labels = found[order, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), found[order, -1].astype(np.int64)
    num_test = len(order) // 5 + 1  # 360 of 1,797
    return images[num_test:].copy(), labels[num_test:].copy(), images[:num_test].copy(), labels[:num_test].copy()


def _idx(path: Path) -> Bytes:
    """Read an idx file: magic number 0, 0, 8 (bytes), rank; then the sizes as big-endian words; then the values."""
    with gzip.open(path) as stream:
        raw = stream.read()
    rank = raw[3]
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", rank, 4))
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * rank + int(np.prod(shape)):
        raise BadInput(f"{path}: not an idx file of bytes")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _fashion_mnist() -> tuple[Bytes, Labels, Bytes, Labels]:
    def read(part: str, what: str) -> Bytes:
        return _idx(locate("fashion-mnist", f"fashion_mnist/{part}-{what}-ubyte.gz"))

    return (
        read("train", "images-idx3")[:, None],
        read("train", "labels-idx1").astype(np.int64),
        read("t10k", "images-idx3")[:, None],
        read("t10k", "labels-idx1").astype(np.int64),
    )


def _cifar(name: str, path: Path) -> tuple[Bytes, Labels, Bytes, Labels]:
    """Read the official binary layout: label byte (two in CIFAR-100: coarse, fine), then 3,072 bytes of an image."""
    label_bytes = 2 if name == "cifar100" else 1
    train: list[Bytes] = []
    test: list[Bytes] = []
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            stem = Path(member.name).name
            stream = archive.extractfile(member) if stem.endswith(".bin") else None
            if stream is not None:
                records = np.frombuffer(stream.read(), np.uint8).reshape(-1, label_bytes + 3072)
                (test if stem.startswith("test") else train).append(records)
    if not train or not test:
        raise BadInput(f"{path}: holds no {'test' if train else 'training'} batch in the binary layout")
    whole_train, whole_test = np.concatenate(train), np.concatenate(test)

    def split(records: Bytes) -> tuple[Bytes, Labels]:
        images = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32)
        return images, records[:, label_bytes - 1].astype(np.int64)

    return (*split(whole_train), *split(whole_test))


# --- pickles ----------------------------------------------------------------------------------------------------------


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "dtype"): ("numpy", "dtype"),
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    ("scipy.sparse.csr", "csr_matrix"): ("scipy.sparse", "csr_matrix"),
    ("collections", "defaultdict"): ("collections", "defaultdict"),
    ("__builtin__", "list"): ("builtins", "list"),
    ("builtins", "list"): ("builtins", "list"),
}


class _Restricted(pickle.Unpickler):
    """An unpickler that finds nothing but the constructors of arrays, sparse matrices and dictionaries of lists."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed here")
        return super().find_class(*_ALLOWED[(module, name)])


def read_pickle(path: Path) -> Any:
    """Read one Planetoid pickle (written by Python 2).

    Raises:
        BadInput: it asks for anything but numpy, scipy.sparse or collections constructors, or is no pickle.
    """
    try:
        with path.open("rb") as stream:
            return _Restricted(stream, encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"{path}: not a Planetoid file: {error}") from error


def read_planetoid(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Read features (N, F), labels (N,) and undirected edges (E, 2), each edge once and without self-loops.

    Test rows are stored in the order of their index file and are put back in place here; nodes of CiteSeer that occur
    in no file have zero features and the label 0, as everywhere in the literature.
    """

    def read(part: str) -> Any:
        return read_pickle(locate(name, f"planetoid/ind.{name}.{part}"))

    allx, ally, tx, ty, graph = (read(part) for part in ("allx", "ally", "tx", "ty", "graph"))
    test = np.loadtxt(locate(name, f"planetoid/ind.{name}.test.index"), dtype=np.int64)
    num_nodes = max(int(test.max()) + 1, len(graph))
    features = np.zeros((num_nodes, allx.shape[1]), np.float32)
    labels = np.zeros(num_nodes, np.int64)
    features[: allx.shape[0]], labels[: len(ally)] = allx.toarray(), ally.argmax(axis=1)
    features[test], labels[test] = tx.toarray(), ty.argmax(axis=1)
    source = np.repeat(np.fromiter(graph, np.int64), [len(ends) for ends in graph.values()])
    target = np.concatenate([np.asarray(ends, np.int64) for ends in graph.values()])
    pairs = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1)
    return features, labels, np.unique(pairs[source != target], axis=0)


# --- graphs -----------------------------------------------------------------------------------------------------------


_AVERAGE_DEGREE = 10.0
_SAME_CLASS = 0.8


@dataclass(frozen=True, kw_only=True)
class GraphDataset:
    """One graph with node features and node labels, read-only."""

    features: NDArray[np.float32]
    labels: Index
    edges: Index
    num_classes: int


@functools.lru_cache(maxsize=2)
def load_graph(name: str) -> GraphDataset:
    """Load a graph; repeated calls in one process share the arrays.

    Raises:
        BadInput: unknown name, or a file that does not hold what the catalogue states.
        DataMissing: a file is not on this machine.
    """
    dataset = describe(name)
    base = dataset.name.partition(":")[0]
    if base == "karate":
        features, labels, edges = _karate()
    elif base == "blocks":
        features, labels, edges = _blocks(dataset)
    elif dataset.kind == "graph":
        features, labels, edges = read_planetoid(base)
    else:
        raise BadInput(f"data: {name!r} is of kind {dataset.kind}; a graph is needed here")
    if features.shape != (dataset.rows, dataset.columns):
        raise BadInput(f"{name}: the files hold {features.shape} nodes and features, expected {dataset.rows} nodes")
    for array in (features, labels, edges):
        array.flags.writeable = False
    return GraphDataset(features=features, labels=labels, edges=edges, num_classes=dataset.num_classes)


def to_csr(edges_E2: Index, num_nodes: int) -> tuple[Index, Index]:
    """Return (indptr (N+1,), indices (2E,)) of the symmetric adjacency, neighbours of each node in ascending order."""
    source = np.concatenate([edges_E2[:, 0], edges_E2[:, 1]])
    target = np.concatenate([edges_E2[:, 1], edges_E2[:, 0]])
    order = np.lexsort((target, source))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=num_nodes), out=indptr[1:])
    return indptr, target[order]


def csr_of(edges_2E: Index, num_nodes: int) -> tuple[Index, Index]:
    """Return (indptr (N+1,), indices) of any edge list (2, E), neighbours of each node in ascending order.

    Each edge counts in both directions; repeats and self loops are dropped.
    """
    left, right = edges_2E[0].astype(np.int64), edges_2E[1].astype(np.int64)
    distinct = left != right
    left, right = left[distinct], right[distinct]
    codes = np.concatenate([left * num_nodes + right, right * num_nodes + left])
    codes.sort()
    if len(codes):
        codes = codes[np.concatenate([[True], codes[1:] != codes[:-1]])]
    heads, indices = np.divmod(codes, max(num_nodes, 1))
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(heads, minlength=num_nodes), out=indptr[1:])
    return indptr, indices


def _karate() -> tuple[NDArray[np.float32], Index, Index]:
    import networkx as nx

    graph = nx.karate_club_graph()
    labels = np.asarray([graph.nodes[node]["club"] != "Mr. Hi" for node in graph], np.int64)
    edges = np.sort(np.asarray(graph.edges, np.int64), axis=1)
    return np.eye(len(labels), dtype=np.float32), labels, np.unique(edges, axis=0)


def _blocks(dataset: Dataset) -> tuple[NDArray[np.float32], Index, Index]:
    """Make a stochastic block model with features: drawn edge by edge, so that millions of edges take seconds.

    Each of the N * 5 drawn edges joins a node with one of the same class with probability 0.8 and with any node else;
    features are a class centre plus unit noise. Repeated edges and self-loops are dropped.
    """
    rng = np.random.default_rng(0)
    rows, columns, classes = dataset.rows, dataset.columns, dataset.num_classes
    labels = np.sort(np.arange(rows, dtype=np.int64) % classes)
    starts = np.searchsorted(labels, np.arange(classes + 1))
    num_edges = int(rows * _AVERAGE_DEGREE / 2)
    source = rng.integers(0, rows, num_edges)
    low, high = starts[labels[source]], starts[labels[source] + 1]
    near = low + (rng.random(num_edges) * (high - low)).astype(np.int64)
    target = np.where(rng.random(num_edges) < _SAME_CLASS, near, rng.integers(0, rows, num_edges))
    order = rng.permutation(rows)  # the place of a node must not give its class away
    source, target = order[source], order[target]
    shuffled = np.empty_like(labels)
    shuffled[order] = labels
    pairs = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1)
    centres = rng.standard_normal((classes, columns)).astype(np.float32) * np.float32(2.0 / columns**0.25)
    features = centres[shuffled] + rng.standard_normal((rows, columns), dtype=np.float32)
    return features, shuffled, np.unique(pairs[source != target], axis=0)


# --- several tables ---------------------------------------------------------------------------------------------------


_LATE_MINUTES = 15


@functools.lru_cache(maxsize=2)
def load_tables(name: str) -> dict[str, pa.Table]:
    """Load the tables of a relational data set by their names; repeated calls in one process share them.

    Raises:
        BadInput: unknown name, or a file that does not hold what the catalogue states.
        DataMissing: a file is not on this machine.
    """
    dataset = describe(name)
    base = dataset.name.partition(":")[0]
    if base == "movielens-1m":
        made, fact = _movielens(), "ratings"
    elif base == "nycflights13":
        made, fact = _flights(), "flights"
    elif base == "orders":
        made, fact = _orders(dataset), "orders"
    else:
        raise BadInput(f"data: {name!r} is of kind {dataset.kind}; a data set of several tables is needed here")
    if made[fact].num_rows != dataset.rows:
        raise BadInput(f"{name}: {fact} holds {made[fact].num_rows} rows, expected {dataset.rows}")
    return made


def _movielens() -> dict[str, pa.Table]:
    """Read ratings (three or four fields), users, and movies with one row per genre."""
    with zipfile.ZipFile(locate("movielens-1m", "movielens-1m/ml-1m.zip")) as archive:
        with archive.open("ml-1m/ratings.dat") as stream:
            ratings = _double_colons(stream, ("user_id", "movie_id", "rating", "timestamp"))
        with archive.open("ml-1m/users.dat") as stream:
            users = _double_colons(stream, ("user_id", "gender", "age", "occupation", "zip"))
        lines = archive.read("ml-1m/movies.dat").decode("latin-1").splitlines()
    ids: list[int] = []
    titles: list[str] = []
    years: list[int] = []
    genres: list[str] = []
    for line in lines:
        movie, title, kinds = line.split("::")
        for genre in kinds.split("|"):
            ids.append(int(movie))
            titles.append(title)
            years.append(int(title.rstrip()[-5:-1]))
            genres.append(genre)
    movies = pa.table({"movie_id": ids, "title": titles, "year": years, "genre": genres})
    return {"ratings": ratings, "users": users, "movies": movies}


def _double_colons(stream: Any, names: tuple[str, ...]) -> pa.Table:
    """Read ``a::b::c``: to a parser with the delimiter ``:`` every second field is empty."""
    table = pa_csv.read_csv(
        stream,
        read_options=pa_csv.ReadOptions(autogenerate_column_names=True, encoding="latin-1"),
        parse_options=pa_csv.ParseOptions(delimiter=":", quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types={"f8": pa.string()}),
    )
    kept = table.select(list(range(0, table.num_columns, 2)))
    return kept.rename_columns(list(names[: kept.num_columns]))


def _flights() -> dict[str, pa.Table]:
    """Read the five tables; flights get `late` (arrival 15 minutes late or more; null where it never arrived)."""
    made: dict[str, pa.Table] = {}
    for table in ("flights", "airlines", "airports", "planes", "weather"):
        with pa.input_stream(str(locate("nycflights13", f"nycflights13/{table}.csv.gz")), compression="gzip") as stream:
            read = pa_csv.read_csv(
                stream,
                convert_options=pa_csv.ConvertOptions(
                    null_values=["", "NA"], strings_can_be_null=True, column_types={"flight": pa.int64()}
                ),
            )
        made[table] = read.drop_columns([c for c in ("rownames", "") if c in read.column_names])
    import pyarrow.compute as pc

    flights = made["flights"]
    for whole in ("hour", "minute"):  # written 5.0; the weather's hour, its partner in a join, is written 5
        flights = flights.set_column(flights.column_names.index(whole), whole, pc.cast(flights[whole], pa.int64()))
    late = pc.cast(pc.greater_equal(flights["arr_delay"], _LATE_MINUTES), pa.int64())
    made["flights"] = flights.append_column("late", late)
    return made


def _orders(dataset: Dataset) -> dict[str, pa.Table]:
    """Make orders (key order_id, card_id; label returned), items (several of an order) and cards (one per customer).

    A tenth of the cards have no order and some items belong to orders that are not here, so that joins drop rows. The
    label depends on columns of all three tables.
    """
    rng = np.random.default_rng(0)
    num_orders = dataset.rows
    num_cards = max(2, num_orders // 5)
    card = rng.integers(0, max(1, num_cards * 9 // 10), num_orders)
    limit = rng.normal(0, 1, num_cards)
    age = rng.integers(18, 90, num_cards)
    amount = rng.normal(0, 1, num_orders)
    hour = rng.integers(0, 24, num_orders)
    counts = 1 + rng.poisson(1.5, num_orders)
    item_order = np.concatenate([np.repeat(np.arange(num_orders), counts), num_orders + np.arange(num_orders // 50)])
    weight = rng.normal(0, 1, len(item_order))
    price = rng.gamma(2.0, 1.0, len(item_order))
    inside = item_order < num_orders
    load = np.bincount(item_order[inside], weight[inside], minlength=num_orders) / counts
    score = 1.2 * amount + 1.0 * limit[card] + 1.5 * load + 0.3 * (hour > 20)
    returned = (rng.random(num_orders) < 1 / (1 + np.exp(-2 * score))).astype(np.int64)
    orders = {"order_id": np.arange(num_orders), "card_id": card, "amount": amount, "hour": hour, "returned": returned}
    items = {"order_id": item_order, "weight": weight, "price": price}
    cards = {"card_id": np.arange(num_cards), "credit_limit": limit, "age": age}
    return {"orders": pa.table(orders), "items": pa.table(items), "cards": pa.table(cards)}
