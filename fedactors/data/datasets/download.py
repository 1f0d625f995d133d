"""Where the files of data sets lie: found, checked against their checksums, and fetched on an explicit command.

``FEDACTORS_DATA`` (a folder with one folder per data set) wins over the cache, which is ``FEDACTORS_CACHE`` or
``~/.cache/fedactors``. Nothing is ever downloaded while data are loaded.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedactors.data.datasets.catalogue import DataFile, Dataset, describe
from fedactors.errors import BadInput, DataMissing

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
