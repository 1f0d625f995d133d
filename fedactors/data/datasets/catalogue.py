"""What data sets there are: frozen descriptions with official address, checksum, size and terms.

Importing this file loads no numerical library, so that listing is fast. A name may carry sizes after a colon where the
data are generated: ``synthetic:20000x50``, ``blocks:5000x64x4``, ``orders:10000``.

Their files are found, checked against their checksums, and fetched on an explicit command: ``FEDACTORS_DATA`` (a folder
with one folder per data set) wins over the cache, which is ``FEDACTORS_CACHE`` or ``~/.cache/fedactors``. Nothing is
downloaded while data are loaded.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import logging
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedactors.errors import BadInput, DataMissing
from fedactors.validation import suggested

Kind = Literal["tabular", "images", "graph", "tables"]
Task = Literal["binary", "multiclass", "regression"]
Layout = Literal["vertical", "horizontal", "graph", "relational"]

_LAYOUTS: dict[Kind, tuple[Layout, ...]] = {
    "tabular": ("vertical", "horizontal"),
    "images": ("horizontal", "vertical"),
    "graph": ("graph",),
    "tables": ("relational",),
}


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of a data set, as it lies in the data folder, and where it comes from."""

    path: str
    """Path inside the data folder, for example ``bank/bank-additional.zip``."""
    url: str
    """Official address, or the address of a plain-text copy where the official file is in a language's own format."""
    size: int
    """Bytes of the file at `url`; 0 when its publisher states none."""
    sha256: tuple[str, ...] = ()
    """Checksums of copies known to be good; empty when none is published: then the loader checks rows and columns."""
    content: tuple[str, str] | None = None
    """(member, sha256) inside a zip file whose container is repacked now and then but whose content is fixed."""
    stored_as: Literal["as-is", "gzip", "zip-member", "into-zip"] = "as-is"
    """How the download becomes `path`: unchanged, compressed, the member of that name of a zip file, or into a zip."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A named data set: what it holds, which task it serves, and under which terms."""

    name: str
    summary: str
    kind: Kind
    task: Task
    num_classes: int
    """Number of classes; 1 for regression."""
    rows: int
    """Rows of a table, training images, nodes of a graph, or rows of the fact table."""
    columns: int
    """Feature columns before one-hot encoding; pixels times channels for images; 0 for tables."""
    terms: str
    files: tuple[DataFile, ...] = ()
    sizes: tuple[str, ...] = ()
    """Names of the sizes that may follow a colon, for generated data."""

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Types of partition that can be made of it."""
        return _LAYOUTS[self.kind]


_UCI = "https://archive.ics.uci.edu/static/public/"
_BANK = DataFile(
    path="bank/bank-additional.zip",
    url=_UCI + "222/bank+marketing.zip",
    size=0,
    sha256=("d7872ede7e2e89ef41f98027c976e8dfc8f6fc402e20208ce31adbdc6f092030",),
    content=(
        "bank-additional/bank-additional-full.csv",
        "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
    ),
    stored_as="zip-member",
)
_CREDIT = DataFile(
    path="credit/UCI_Credit_Card.csv.zip",
    url=_UCI + "350/data.csv",
    size=0,
    sha256=("eb6f536c8b8766682a1737093c1eae5ff41a3000713a436f7b521f796fe3e57d",),
    stored_as="into-zip",
)
_ENERGY = DataFile(
    path="energy/energydata_complete.zip",
    url=_UCI + "374/appliances+energy+prediction.zip",
    size=0,
    sha256=("78519cd2bc0535406c5fabdb921ca10ed7174b9ff09854932e85263bc4deb502",),
    content=("energydata_complete.csv", "2820bf712ad0275cb18b85a05250926100d8e65ebb9f4d2d016ca91ea152a25d"),
)
_BLOG = DataFile(
    path="blogfeedback/BlogFeedback.zip",
    url=_UCI + "304/blogfeedback.zip",
    size=2583605,
    sha256=("1ba74e5ad920f7cd037502b2968581cc695146a226a73eff52fe8ad875ed4bcf",),
)
_FASHION = tuple(
    DataFile(
        path=f"fashion_mnist/{name}",
        url=f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}",
        size=size,
        sha256=(digest,),
    )
    for name, size, digest in (
        ("train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    )
)
_CIFAR_SUBSET = DataFile(
    path="cifar10_subset/cifar-10-subset-binary.tar.gz",
    url="",
    size=34057475,
    sha256=("aa4def0c8fc415812b9dcb302ef18378ccf2995a87137e0338a1657d56f55b8b",),
)
_CIFAR10 = DataFile(
    path="cifar10/cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    size=170052171,
    sha256=("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
)
_CIFAR100 = DataFile(
    path="cifar100/cifar-100-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    size=168513733,
    sha256=("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",),
)
_MOVIELENS = DataFile(
    path="movielens-1m/ml-1m.zip",
    url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
    size=5917549,
    sha256=(
        "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        "0253f98a57d6b85923957b9543a09889b83dc575c126d10b27f2385f5dccb655",
    ),
)
_FLIGHTS = tuple(
    DataFile(
        path=f"nycflights13/{name}.csv.gz",
        url=f"https://vincentarelbundock.github.io/Rdatasets/csv/nycflights13/{name}.csv",
        size=0,
        sha256=(digest,),
        stored_as="gzip",
    )
    for name, digest in (
        ("flights", "28ebb3f473046952102ddfba5bb3c3160f7f10e7bf241cb12f5dc71d4c849ad3"),
        ("airlines", "a629a0be4a89f810d7d9d732082543d33d606100448839f7ace8d01ee0b0954b"),
        ("airports", "8affa2ba75c69a621b5d33f8265c1a4191a6f9688350899ec49d5619b8d508bf"),
        ("planes", "ce91b4f71121816059729ef6e49b8e99d3b8b26fb286af463efee4e8d9831531"),
        ("weather", "34704f5d940db8919fee8df0033c0b557765decc806dd789329eeb2ecc33237d"),
    )
)
_PLANETOID: dict[str, dict[str, tuple[int, str]]] = {
    "cora": {
        "x": (22119, "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab"),
        "y": (4054, "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1"),
        "tx": (148025, "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a"),
        "ty": (28135, "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad"),
        "allx": (257305, "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543"),
        "ally": (47959, "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71"),
        "graph": (59847, "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d"),
        "test.index": (5000, "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875"),
    },
    "pubmed": {
        "x": (23172, "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33"),
        "y": (854, "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3"),
        "tx": (405505, "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d"),
        "ty": (12135, "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd"),
        "allx": (7578385, "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e"),
        "ally": (224739, "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e"),
        "graph": (471808, "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9"),
        "test.index": (6000, "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5"),
    },
    "citeseer": dict.fromkeys(("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"), (0, "")),
}


def _planetoid(name: str) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(
            path=f"planetoid/ind.{name}.{part}",
            url=f"https://raw.githubusercontent.com/kimiyoung/planetoid/master/data/ind.{name}.{part}",
            size=size,
            sha256=(digest,) if digest else (),
        )
        for part, (size, digest) in _PLANETOID[name].items()
    )


_WITH_SKLEARN = "comes with scikit-learn (BSD 3-clause)"
_GENERATED = "generated"
_RESEARCH = "published for research"
_CC_BY = "CC BY 4.0"


def _set(
    name: str,
    kind: Kind,
    task: Task,
    num_classes: int,
    size: tuple[int, int],
    terms: str,
    summary: str,
    *,
    files: tuple[DataFile, ...] = (),
    sizes: tuple[str, ...] = (),
) -> Dataset:
    rows, columns = size
    return Dataset(
        name=name,
        summary=summary,
        kind=kind,
        task=task,
        num_classes=num_classes,
        rows=rows,
        columns=columns,
        terms=terms,
        files=files,
        sizes=sizes,
    )


_NEEDS_NOTHING = (
    _set("breast-cancer", "tabular", "binary", 2, (569, 30), _WITH_SKLEARN, "Wisconsin breast cancer, diagnostic"),
    _set("digits", "images", "multiclass", 10, (1437, 64), _WITH_SKLEARN, "real handwritten digits, 8x8 (UCI)"),
    _set(
        "synthetic",
        "tabular",
        "binary",
        2,
        (1_000_000, 500),
        _GENERATED,
        "scikit-learn's make_classification; synthetic:20000x50 for other sizes",
        sizes=("rows", "columns"),
    ),
    _set(
        "criteo-like",
        "tabular",
        "binary",
        2,
        (20_000, 39),
        _GENERATED,
        "shaped as Criteo's clicks: 13 counts and 26 hashed categories; criteo-like:100000 for more rows",
        sizes=("rows",),
    ),
    _set("karate", "graph", "binary", 2, (34, 34), "comes with networkx (BSD)", "Zachary's karate club, one-hot nodes"),
    _set(
        "blocks",
        "graph",
        "multiclass",
        4,
        (1000, 32),
        _GENERATED,
        "stochastic block model with features; blocks:5000x64x4 for nodes x features x classes",
        sizes=("rows", "columns", "classes"),
    ),
    _set(
        "orders",
        "tables",
        "binary",
        2,
        (5000, 0),
        _GENERATED,
        "orders, items and cards of a shop, with label returned; orders:100000 for more orders",
        sizes=("rows",),
    ),
)
_NEEDS_FILES = (
    _set("bank", "tabular", "binary", 2, (41_188, 20), _CC_BY, "Bank marketing, full additional", files=(_BANK,)),
    _set(
        "bank-no-duration",
        "tabular",
        "binary",
        2,
        (41_188, 19),
        _CC_BY,
        "Bank marketing without the call's duration, which leaks the answer",
        files=(_BANK,),
    ),
    _set("credit", "tabular", "binary", 2, (30_000, 23), _CC_BY, "Default of credit card clients", files=(_CREDIT,)),
    _set("energy", "tabular", "regression", 1, (19_735, 27), _CC_BY, "Appliances' energy use, Wh", files=(_ENERGY,)),
    _set(
        "blog",
        "tabular",
        "regression",
        1,
        (60_021, 280),
        _CC_BY,
        "BlogFeedback: comments in the next 24 hours; training file and 60 test files together",
        files=(_BLOG,),
    ),
    _set(
        "blog-log1p",
        "tabular",
        "regression",
        1,
        (60_021, 280),
        _CC_BY,
        "BlogFeedback with the target log(1 + comments)",
        files=(_BLOG,),
    ),
    _set(
        "fashion-mnist", "images", "multiclass", 10, (60_000, 784), "MIT", "Fashion-MNIST, 28x28 grey", files=_FASHION
    ),
    _set(
        "cifar10-subset",
        "images",
        "multiclass",
        10,
        (10_000, 3072),
        _RESEARCH,
        "10,000 + 2,000 balanced images of CIFAR-10, official binary layout",
        files=(_CIFAR_SUBSET,),
    ),
    _set("cifar10", "images", "multiclass", 10, (50_000, 3072), _RESEARCH, "CIFAR-10, 32x32 RGB", files=(_CIFAR10,)),
    _set(
        "cifar100", "images", "multiclass", 100, (50_000, 3072), _RESEARCH, "CIFAR-100, fine labels", files=(_CIFAR100,)
    ),
    _set("cora", "graph", "multiclass", 7, (2708, 1433), "repository MIT", "Cora citations", files=_planetoid("cora")),
    _set(
        "citeseer",
        "graph",
        "multiclass",
        6,
        (3327, 3703),
        "repository MIT",
        "CiteSeer citations",
        files=_planetoid("citeseer"),
    ),
    _set(
        "pubmed",
        "graph",
        "multiclass",
        3,
        (19_717, 500),
        "repository MIT",
        "PubMed citations",
        files=_planetoid("pubmed"),
    ),
    _set(
        "movielens-1m",
        "tables",
        "regression",
        1,
        (1_000_209, 0),
        "research use, no redistribution",
        "MovieLens 1M: ratings, users, movies (one row per genre)",
        files=(_MOVIELENS,),
    ),
    _set(
        "nycflights13",
        "tables",
        "binary",
        2,
        (336_776, 0),
        "CC0",
        "Flights from New York in 2013, airlines, airports, planes, weather; label: 15 minutes late or more",
        files=_FLIGHTS,
    ),
)


def catalogue() -> tuple[Dataset, ...]:
    """Return every named data set: first those that need no download."""
    return _NEEDS_NOTHING + _NEEDS_FILES


_MOST_NUMBERS = 1 << 30
"""Of generated data: 4 GiB."""


def is_known(name: str) -> bool:
    """Say whether there is a data set of this name, whatever sizes it asks for."""
    return name.partition(":")[0] in {"synthetic-vfl", *(dataset.name for dataset in catalogue())}


def describe(name: str) -> Dataset:
    """Return the description of `name`, with the sizes that it carries filled in.

    Raises:
        BadInput: an unknown name (with the nearest known one), or sizes that the data set does not take.
    """
    base, colon, text = name.partition(":")
    base = "synthetic" if base == "synthetic-vfl" else base
    known = {dataset.name: dataset for dataset in catalogue()}
    if base not in known:
        raise BadInput(f"data: unknown data set {name!r}{suggested(base, known)}")
    dataset = known[base]
    if not colon:
        return dataset
    form = f"{base}:{'x'.join(size.upper() for size in dataset.sizes)}" if dataset.sizes else base
    parts = text.split("x")
    if not dataset.sizes or len(parts) > len(dataset.sizes) or not all(p.isdecimal() and int(p) > 1 for p in parts):
        raise BadInput(f"data: {name!r} is not allowed: write {form}, with whole numbers of at least 2")
    if any(len(part) > 9 for part in parts) or math.prod(map(int, parts)) > _MOST_NUMBERS:
        raise BadInput(f"data: {name!r} is not allowed: {form} of at most {_MOST_NUMBERS} numbers")
    given = dict(zip(dataset.sizes, (int(part) for part in parts), strict=False))
    return Dataset(
        name=f"{base}:{text}",
        summary=dataset.summary,
        kind=dataset.kind,
        task=dataset.task,
        num_classes=given.get("classes", dataset.num_classes),
        rows=given.get("rows", dataset.rows),
        columns=given.get("columns", dataset.columns),
        terms=dataset.terms,
        sizes=dataset.sizes,
    )


Progress = Callable[[str, int, int], None]
"""Called with (file, bytes so far, bytes in all or 0) while a file is downloaded."""


def cache_folder() -> Path:
    """Return the folder that downloads go to: ``FEDACTORS_CACHE``, else ``~/.cache/fedactors``."""
    return Path(os.environ.get("FEDACTORS_CACHE") or Path.home() / ".cache" / "fedactors")


def is_present(dataset: Dataset) -> bool:
    """Return whether every file of `dataset` is on this machine (checksums are not looked at)."""
    return all(find_file(file) is not None for file in dataset.files)


def require_files(dataset: Dataset) -> None:
    """Raise `DataMissing`, saying how to get it, unless every file of `dataset` is on this machine."""
    for file in dataset.files:
        if find_file(file) is None:
            raise _missing(dataset, file)


def locate(name: str, path: str) -> Path:
    """Return the checked local file of data set `name` whose path in the data folder is `path`.

    Raises:
        DataMissing: the file is not on this machine; the message says how to get it.
        BadInput: the file is there and is not the one that the catalogue describes.
    """
    dataset = describe(name)
    file = next(file for file in dataset.files if file.path == path)
    found = find_file(file)
    if found is None:
        raise _missing(dataset, file)
    verify(file, found)
    return found


def _missing(dataset: Dataset, file: DataFile) -> DataMissing:
    fetchable = "" if file.url else " (this file has no public address)"
    return DataMissing(
        f"{dataset.name}: {file.path} is not on this machine; run `fedactors data fetch {dataset.name}`{fetchable}, "
        f"or set FEDACTORS_DATA to a folder that holds {file.path}"
    )


def verify(file: DataFile, at: Path) -> None:
    """Raise `BadInput` unless the bytes at `at` are a known good copy of `file`, or no checksum of it is known."""
    status = at.stat()
    if file.sha256 and not _is_good(file, at, status.st_size, status.st_mtime_ns):
        raise BadInput(
            f"{at}: wrong checksum sha256 {sha256_of(at)}, expected {' or '.join(file.sha256)}: "
            "the file is damaged or another version; delete it and fetch it again"
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(name: str, progress: Progress | None = None) -> tuple[Path, ...]:
    """Download the files of data set `name` that are not here yet into the cache, and return all their paths.

    Raises:
        DataMissing: a file could not be downloaded (no network, moved, or not published).
        BadInput: what came is not the file that the catalogue describes.
    """
    dataset = describe(name)
    return tuple(_fetch_one(dataset, file, progress) for file in dataset.files)


@functools.lru_cache(maxsize=256)
def _is_good(file: DataFile, at: Path, size: int, modified: int) -> bool:
    if sha256_of(at) in file.sha256:
        return True
    if file.content is None or not zipfile.is_zipfile(at):
        # A download that was recompressed here has no fixed checksum; its loader checks rows and columns.
        return file.stored_as in ("gzip", "into-zip") and at.is_relative_to(cache_folder())
    member, digest = file.content
    with zipfile.ZipFile(at) as archive:
        return member in archive.namelist() and hashlib.sha256(archive.read(member)).hexdigest() == digest


def find_file(file: DataFile) -> Path | None:
    """Return where a file of a data set lies on this machine, or None."""
    folders = [Path(folder) for folder in (os.environ.get("FEDACTORS_DATA"),) if folder]
    for folder in [*folders, cache_folder()]:
        if (folder / file.path).is_file():
            return folder / file.path
    return None


def _fetch_one(dataset: Dataset, file: DataFile, progress: Progress | None) -> Path:
    found = find_file(file)
    if found is not None:
        verify(file, found)
        return found
    if not file.url:
        raise DataMissing(f"{dataset.name}: {file.path} has no public address; set FEDACTORS_DATA to a folder with it")
    target = cache_folder() / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        raw = _download(dataset, file, Path(folder), progress)
        made = Path(folder) / "made" / target.name
        made.parent.mkdir()
        _store(file, raw, made)
        verify(file, made)
        os.replace(made, target)
    return target


def _download(dataset: Dataset, file: DataFile, folder: Path, progress: Progress | None) -> Path:
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    bar = _Bar(file.path, progress) if progress else None
    downloader = pooch.HTTPDownloader(timeout=30, progressbar=bar) if bar else pooch.HTTPDownloader(timeout=30)
    try:
        return Path(pooch.retrieve(file.url, known_hash=None, fname="raw", path=folder, downloader=downloader))
    except (requests.RequestException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataMissing(f"{dataset.name}: cannot fetch {file.url}: {reason}") from error


def _store(file: DataFile, raw: Path, made: Path) -> None:
    name = made.name
    if file.stored_as == "as-is":
        shutil.move(raw, made)
    elif file.stored_as == "gzip":
        with raw.open("rb") as source, gzip.GzipFile(made, "wb", mtime=0) as target:
            shutil.copyfileobj(source, target)
    elif file.stored_as == "into-zip":
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(raw, name.removesuffix(".zip"))
    else:
        with zipfile.ZipFile(raw) as archive, made.open("wb") as target:
            if name not in archive.namelist():
                raise BadInput(f"{file.url}: holds {archive.namelist()}, expected {name}")
            shutil.copyfileobj(io.BytesIO(archive.read(name)), target)


class _Bar:
    """The few attributes of a progress bar that pooch calls, turned into calls of a plain function."""

    def __init__(self, file: str, progress: Progress) -> None:
        self.total = 0
        self._file = file
        self._progress = progress
        self._done = 0

    def update(self, count: int) -> None:
        self._done += count
        self._progress(self._file, self._done, int(self.total or 0))

    def reset(self, **_: Any) -> None:
        self._done = 0

    def close(self) -> None:
        self._progress(self._file, self._done, int(self.total or 0))
