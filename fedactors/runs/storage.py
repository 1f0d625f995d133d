"""Files that are never half-written, here or at an fsspec address, and temporary folders whose owner is known.

- atomic files and append-only line files: every path that a run writes goes through this module
- `Mirror`: a run folder at an address (``s3://bucket/runs``). The run goes on in a folder of this machine; whenever its
  manifest is written what has changed is copied, the manifest last, so that a reader there always sees a whole folder.
- `make_folder`, `remove_folders`: a folder carries in its name where its process is (host and namespace of process
  numbers), the process's number and its start, so that what a killed process left is found, and removed. A folder from
  elsewhere, a container with the same /tmp say, stays: whether its owner lives cannot be seen here.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from fedactors.errors import BadInput
from fedactors.validation import unreplaced, without_password

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FLUSH_BYTES = 64 * 1024
HALF_OF_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
"""Bytes of this machine: of a file that somebody else made no more is read, whatever it says it holds."""


def local_path(text: str | os.PathLike[str], field: str = "--out") -> Path:
    """Return the local path that `text` names; an address of another file system is a `BadInput`."""
    shown = os.fspath(text)
    if "://" in shown:
        raise BadInput(f"{field}: {shown!r} is not a local path; a folder of this machine or a shared mount is allowed")
    if not shown.strip():
        raise BadInput(f"{field}: {shown!r} is not allowed: it names nothing")
    if "\0" in shown:
        raise BadInput(f"{field}: {shown!r} is not allowed: no path has a zero byte")
    try:
        path = Path(shown).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.lstat()  # a name that is too long, links in a circle
    except RuntimeError as error:
        raise BadInput(f"{field}: {shown!r} is not allowed: {error}") from None
    except OSError as error:
        raise BadInput(f"{field}: {shown!r} is not allowed: {error.strerror}") from None
    if variable := unreplaced(path):
        raise BadInput(f"{field}: {shown!r} is not allowed: {variable}")
    return path


@contextmanager
def disk_errors(path: Path, field: str = "--out") -> Iterator[None]:
    """Turn a full disk, a missing permission and the like into one `BadInput` line that names `field` and `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise BadInput(f"{field}: no space left to write {path}: free some, or use another disk") from None
        reason = error.strerror or type(error).__name__
        raise BadInput(f"{field}: cannot write {path}: {reason}") from None


def read_plain(path: Path, most: int) -> bytes:
    """Return what a file holds that somebody else has named: a plain file, of no more than it may have.

    Raises:
        OSError: it cannot be read; a device, a pipe, or a file of more than `most` bytes among the reasons.
    """
    # without waiting: to open a pipe for reading waits for a writer
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes")
        return file.read()


PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
"""Modes of run folders and what is in them, whatever the umask: states of all parties are among it."""


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user only."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)


def write_atomic(path: Path, data: bytes, field: str = "--out", mode: int = 0o666) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, even after a power cut.

    The umask takes from `mode` what it takes. Folders that are made for a private file are private.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with disk_errors(path, field):
        if mode == PRIVATE_FILE:
            make_private(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write `data` durably into a folder that is not yet visible under its final name."""
    make_private(path.parent)
    with open(path, "xb", opener=partial(os.open, mode=PRIVATE_FILE)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_bytes(value: Any) -> bytes:
    """Return `value` as indented JSON with sorted keys, ending in a newline."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


class LineFile:
    """An append-only file, of text lines mostly, that keeps its own size and sha256.

    Lines are buffered up to 64 KiB. When a write fails, the file is cut back to what it was before.
    """

    def __init__(self, path: Path, initial: bytes = b"") -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._pending = bytearray()
        with disk_errors(path):
            make_private(path.parent)
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        if initial:
            self._pending += initial
            self.flush()

    @property
    def sha256(self) -> str:
        """The digest of what is on disk."""
        return self._hash.hexdigest()

    def append(self, line: str) -> None:
        """Add one line (without its newline)."""
        self.write(line.encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._pending += data
        if len(self._pending) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand the buffered lines to the operating system."""
        data = bytes(self._pending)
        self._pending.clear()
        with disk_errors(self.path):
            done = 0
            try:
                while done < len(data):
                    done += os.write(self._handle, data[done:])
            except OSError:
                os.ftruncate(self._handle, self.size)
                os.lseek(self._handle, self.size, os.SEEK_SET)
                raise
        self.size += len(data)
        self._hash.update(data)

    def sync(self) -> None:
        """Flush and make the content durable."""
        self.flush()
        with disk_errors(self.path):
            os.fsync(self._handle)

    def close(self) -> None:
        """Write what is buffered and close; calling it again does nothing."""
        if self._handle < 0:
            return
        try:
            self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without writing what is buffered."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def sha256_of(path: Path, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def make_unique(root: Path, name: str) -> Path:
    """Make a folder of this name, or with a number behind it where it is there already; or raise `BadInput`."""
    for suffix in range(1, 10_000):
        path = root / (name if suffix == 1 else f"{name}-{suffix}")
        try:
            path.mkdir(PRIVATE_FOLDER)
        except FileExistsError:
            continue
        return path
    raise BadInput(f"--out: {root} already holds 9999 runs called {name}")


def is_as_listed(path: Path, entry: Mapping[str, Any]) -> bool:
    """Say whether a file is what the manifest says, without reading one of another size."""
    size, listed = path.stat().st_size, entry["bytes"]
    is_size = size >= listed if entry.get("grows") else size == listed
    return bool(is_size and sha256_of(path, listed) == entry["sha256"])


def entry_of(data: bytes) -> dict[str, Any]:
    """Return what the manifest says of a file with this content."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


_BLOCK = 1 << 20


def is_remote(text: object) -> bool:
    """Say whether a location is an address rather than a path."""
    return "://" in str(text)


class Store:
    """Single files at an address.

    Raises:
        BadInput: no such kind of address, its library is not installed, or it refuses.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._files, self._root = _connect(self.address)

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        with _errors(self.address):
            target = f"{self._root}/{name}"
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(target, data)

    def read(self, name: str, most: int) -> bytes:
        """Return a file's content, or more than `most` bytes of it if it has so many.

        Raises:
            FileNotFoundError: there is none.
        """
        with _errors(self.address):
            if self._files.exists(f"{self._root}/{name}"):
                return bytes(self._files.cat_file(f"{self._root}/{name}", start=0, end=most + 1))
        raise FileNotFoundError(name)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with _errors(self.address):
            if self._files.exists(f"{self._root}/{name}"):
                self._files.rm_file(f"{self._root}/{name}")


class Mirror(Store):
    """The copy of one run folder at an address."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._sent: dict[str, str] = {}

    def exists(self) -> bool:
        """Say whether there is anything at the address."""
        with _errors(self.address):
            return bool(self._files.exists(self._root))

    def push(self, folder: Path, entries: Mapping[str, Mapping[str, Any]], manifest: str) -> None:
        """Copy the files that have changed, then the manifest, then remove what it no longer names."""
        with _errors(self.address):
            for name, entry in entries.items():
                if self._sent.get(name) != entry["sha256"]:
                    self.write(name, (folder / name).read_bytes())
                    self._sent[name] = entry["sha256"]
            self.write(manifest, (folder / manifest).read_bytes())
            for name in [name for name in self._sent if name not in entries]:
                self._files.rm_file(f"{self._root}/{name}")
                del self._sent[name]

    def fetch(self, name: str, target: Path, most: int, *, grows: bool = False) -> None:
        """Copy one file from the address, block by block; one that is not there is left out.

        Args:
            name: of the file, which stays in the run folder.
            target: where to.
            most: bytes that it may have.
            grows: whether it may have more, which are left there.

        Raises:
            BadInput: it has more.
        """
        with _errors(self.address):
            if not self._files.exists(f"{self._root}/{name}"):
                return
            if not self._files.isfile(f"{self._root}/{name}"):
                raise BadInput(f"{self.address}: {name} is no plain file")
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._files.open(f"{self._root}/{name}", "rb") as source, open(target, "wb") as copy:
                left = most
                while block := source.read(_BLOCK):
                    if len(block) > left and not grows:
                        raise BadInput(f"{self.address}: {name} is damaged (more than {most} bytes)")
                    copy.write(block[:left])
                    left -= len(block)
                    if left <= 0 and grows:
                        return

    def remove_all(self) -> None:
        """Remove the copy."""
        with _errors(self.address):
            if self._files.exists(self._root):
                self._files.rm(self._root, recursive=True)


def free_mirror(out: str, name: str) -> Mirror:
    """Return a copy to be at an address under `out`, by a name that nobody has there yet; or raise `BadInput`."""
    for suffix in range(1, 10_000):
        mirror = Mirror(f"{out.rstrip('/')}/{name if suffix == 1 else f'{name}-{suffix}'}")
        if not mirror.exists():
            return mirror
    raise BadInput(f"--out: {out} already holds 9999 runs called {name}")


def _connect(address: str) -> tuple[Any, str]:
    import fsspec

    without_password(address, "address")
    try:
        files, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise BadInput(f"{address!r} needs a library that is not installed: {error}") from None
    except ValueError as error:
        raise BadInput(f"{address!r} is not allowed: {error}") from None
    return files, str(root).rstrip("/")


@contextmanager
def _errors(address: str) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # each kind of storage has errors of its own
        reason = str(error).strip().splitlines()
        raise BadInput(f"{address}: {reason[0] if reason else type(error).__name__}") from error


Kind = Literal["socket", "ray", "run", "pool"]
_NAME = re.compile(rf"fedactors-({'|'.join(get_args(Kind))})-([0-9a-f]{{4}})-(\d+)-([0-9a-f]+)-\d+")


def make_folder(kind: Kind, within: str | None = None) -> Path:
    """Make a folder of this process's own.

    Its name is short: Ray puts sockets 64 characters deeper, and the path of a socket has 107 at most.

    Args:
        kind: ``socket`` (sockets), ``ray`` (a cluster), ``run`` (a copy) or ``pool`` (arrays of a pool's tasks).
        within: where; the folder of temporary files unless given.
    """
    pid = os.getpid()
    for number in itertools.count():
        name = f"fedactors-{kind}-{process_namespace()}-{pid}-{start_of(pid) or 0:x}-{number}"
        folder = Path(within or tempfile.gettempdir(), name)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise AssertionError("there is always another number")


def remove_folders(prepare: Mapping[str, Callable[[Path], None]], within: str | None = None) -> list[Path]:
    """Remove the folders of owners that are gone; return them.

    Args:
        prepare: kinds of folders that are removed, with what is done to each before it goes.
        within: where they were made.
    """
    removed = []
    for folder in Path(within or tempfile.gettempdir()).glob("fedactors-*"):
        found = _NAME.fullmatch(folder.name)
        with suppress(FileNotFoundError):
            if found is None or folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            kind, namespace, pid, start = found.group(1), found.group(2), int(found.group(3)), int(found.group(4), 16)
            if kind not in prepare or namespace != process_namespace() or start_of(pid) == start:
                continue  # it is not known here whether its owner is alive, or it is
            prepare[kind](folder)
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def owner_of(name: str) -> int | None:
    """Return the number of the process whose folder is called so; None: it is no name of `make_folder`."""
    found = _NAME.fullmatch(name)
    return None if found is None or found.group(2) != process_namespace() else int(found.group(3))


def start_of(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None: there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def process_namespace() -> str:
    """Return four digits for the host and the namespace in which process numbers mean what they mean here."""
    machine = Path("/etc/machine-id")
    machine_id = machine.read_text().strip() if machine.is_file() else ""
    where = f"{socket.gethostname()} {machine_id} {os.stat('/proc/self/ns/pid').st_ino}"
    return hashlib.sha256(where.encode()).hexdigest()[:4]


def folder_of_copies() -> Path:
    """Make a folder for a copy of this process's; those of processes that were killed go."""
    remove_folders({"run": lambda folder: None})
    return make_folder("run")
