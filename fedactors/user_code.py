"""Source files that an organisation proposes to others, and that are imported by their digest.

    --code nets.py model=nets:Net         →  model=fedactors_code_DIGEST.nets:Net

DIGEST is the SHA-256 of all file names and contents. The files are imported from memory after their digest was computed
again, as modules of the package `fedactors_code_DIGEST`, so that two versions never meet under one name and no module
that is installed is replaced. Between them they import one another relatively (``from . import layers``).
Who may import them is decided elsewhere: `check_trusted` for run folders, `site_code` at sites.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import secrets
import shutil
import sys
import threading
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

from fedactors.errors import BadInput
from fedactors.validation import shown

PACKAGE = "fedactors_code_"
FILE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/){0,7}[A-Za-z_][A-Za-z0-9_]*\.py")
DIGEST = re.compile(r"[0-9a-f]{64}")
MOST_FILES, MOST_BYTES, LONGEST_NAME = 200, 4_000_000, 200
"""Of one code, on disk."""

SIGNATURE, _LONGEST_SIGNATURE = ".sig", 1000
"""Ending of a signature's file, and the hexadecimal digits in it at most."""

Files = Mapping[str, bytes]
"""Contents by name, relative to the folder that the modules lie in: ``nets.py``, ``nets/layers.py``."""

_held: dict[str, dict[str, bytes]] = {}
_folders: list[Path] = []
_lock = threading.Lock()


def read_files(paths: Iterable[str | Path], what: str = "--code") -> dict[str, bytes]:
    """Return the source files at paths, each a module or the folder of a package.

    Raises:
        BadInput: nothing is there, a name that Python cannot import, or too much.
    """
    found: dict[str, bytes] = {}
    for path in map(_path, paths):
        if not os.path.exists(path):  # False too where the name is longer than any may be
            raise BadInput(f"{what}: {shown(str(path))} does not exist")
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if not files:
            raise BadInput(f"{what}: {shown(str(path))} holds no .py file")
        for file in files:
            name = file.relative_to(path.parent).as_posix()
            _check_name(name, what)
            if name in found:
                raise BadInput(f"{what}: {shown(name)} is given twice")
            if file != path and file.is_symlink():  # its author would choose what leaves this host
                raise BadInput(f"{what}: {shown(name)} is not allowed: it is a link; put the file there")
            if not file.is_file():
                raise BadInput(f"{what}: {shown(name)} is not allowed: it is no file")
            if (size := file.stat().st_size) > MOST_BYTES:
                raise BadInput(f"{what}: {shown(name)} of {size} bytes is too large: at most {MOST_BYTES}")
            try:
                found[name] = file.read_bytes()
            except OSError as error:
                raise BadInput(f"{what}: {shown(str(file))} cannot be read: {error.strerror}") from None
    check_files(found, what)
    return found


def read_signature(paths: Sequence[str | Path]) -> str:
    """Return what `fedactors site sign-code` has written beside the first path; empty: nothing is there."""
    file = signature_at(paths[0]) if paths else None
    if file is None or not file.is_file():
        return ""
    with file.open("rb") as opened:
        text = opened.read(_LONGEST_SIGNATURE + 1).decode(errors="replace").strip()
    if len(text) > _LONGEST_SIGNATURE or not re.fullmatch("(?:[0-9a-f]{2})+", text):
        raise BadInput(f"--code: {shown(str(file))} holds no signature: fedactors site sign-code writes it")
    return text


def signature_at(path: str | Path) -> Path:
    """Return the file that holds the signature of code, beside its first path."""
    return Path(f"{_path(path)}{SIGNATURE}")


def _path(given: str | Path) -> Path:
    return Path(os.path.abspath(os.path.expanduser(given)))  # by the name that was given: a link is not followed


def check_names(names: Iterable[str], what: str) -> None:
    """Check that files may have these names, before one of them is a path.

    Raises:
        BadInput: naming the first that is none of a module, or there are too many.
    """
    for number, name in enumerate(names, start=1):
        _check_name(name, what)
        if number > MOST_FILES:
            raise BadInput(f"{what}: more than {MOST_FILES} files are too many")


def _check_name(name: str, what: str) -> None:
    if len(name) > LONGEST_NAME or not FILE.fullmatch(name):
        raise BadInput(
            f"{what}: {shown(name)} is not allowed: a module is a .py file, its name and its folders' are "
            f"letters, digits and underscores, at most {LONGEST_NAME} in all"
        )


def check_files(files: Files, what: str) -> None:
    """Check the names, the amount and the text of source files.

    Raises:
        BadInput: naming the file.
    """
    check_names(files, what)
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        raise BadInput(f"{what}: {size} bytes are too many: at most {MOST_BYTES}")
    for name, content in files.items():
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            text_of(content)
        except (SyntaxError, UnicodeDecodeError):
            encoding = "another"
        if encoding not in ("utf-8", "utf-8-sig"):  # a person would read other text than Python
            raise BadInput(f"{what}: {shown(name)} is not allowed: its encoding is {encoding}; use UTF-8")


def text_of(content: bytes) -> str:
    """Return the text of a source file, with the ends of lines where Python has them."""
    return io.IncrementalNewlineDecoder(None, translate=True).decode(content.decode("utf-8-sig"))


def digests(files: Files) -> dict[str, str]:
    """Return the SHA-256 of each file, by name."""
    return {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}


def digest_of(digests: Mapping[str, str]) -> str:
    """Return the digest of a code by the `digests` of its files."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def hold(files: Files) -> str:
    """Make files importable in this process; return their digest."""
    check_files(files, "code")
    digest = digest_of(digests(files))
    with _lock:
        _held.setdefault(digest, dict(files))
    return digest


def look_in(folder: Path) -> None:
    """Let code be found in the folders of a folder that are named by their digests."""
    with _lock:
        if folder not in _folders:
            _folders.append(folder)


def files_of(digest: str) -> dict[str, bytes]:
    """Return the files of a digest.

    Raises:
        BadInput: they are not here, or were changed.
    """
    with _lock:
        held, folders = _held.get(digest), tuple(_folders)
    if held is not None:
        return held
    for folder in folders:
        if (folder / digest).is_dir():
            found = read_folder(folder / digest)
            hold(found)
            return found
    raise BadInput(f"code {digest[:12]}: its files are not here: the folder of its run has them in code/")


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder that is named by their digest.

    Raises:
        BadInput: they have another one.
    """
    files = sorted(folder.rglob("*.py"))
    # the folder may come from someone else: a link or a pipe is not opened, and too much is not read
    is_plain = all(file.is_file() and not file.is_symlink() for file in files) and len(files) <= MOST_FILES
    is_plain = is_plain and sum(file.stat().st_size for file in files) <= MOST_BYTES
    found = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files} if is_plain else {}
    if digest_of(digests(found)) != folder.name:
        raise BadInput(
            f"code {folder.name[:12]}: its files in {folder} were changed: remove the folder, and bring the code again"
        )
    return found


def write_folder(folder: Path, files: Files) -> Path:
    """Write files into a folder of `folder` that is named by their digest, unless it is there; return it."""
    check_files(files, "code")
    made = folder / digest_of(digests(files))
    if made.is_dir():
        read_folder(made)
        return made
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f".{made.name}.{secrets.token_hex(8)}.part"
    try:
        for name, content in files.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            with (part / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        part.rename(made)
    except OSError:
        if not made.is_dir():
            raise
        read_folder(made)  # another process was faster
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def packaged(files: Files, address: str) -> str | None:
    """Return an address in the package of files, ``fedactors_code_DIGEST.nets:Net``; None: it names none of them."""
    top = address.partition(":")[0].partition(".")[0]
    modules = {name.partition("/")[0].removesuffix(".py") for name in files}
    return f"{PACKAGE}{digest_of(digests(files))}.{address}" if top in modules else None


def digest_in(address: str) -> str | None:
    """Return the digest of the code that an address is in; None: it is in no such code."""
    package = address.partition(":")[0].partition(".")[0]
    digest = package.removeprefix(PACKAGE)
    return digest if package.startswith(PACKAGE) and DIGEST.fullmatch(digest) else None


def is_defined_in(digest: str, found: object) -> bool:
    """Say whether something is a function or class of a code's own files, or a list of such."""
    if isinstance(found, list | tuple):
        return all(is_defined_in(digest, one) for one in found)
    is_kind = isinstance(found, type | FunctionType)
    return is_kind and str(getattr(found, "__module__", "")).partition(".")[0] == PACKAGE + digest


def digests_in(addresses: Iterable[str]) -> list[str]:
    """Return the digests of all code that addresses are in, each once."""
    return list(dict.fromkeys(found for one in addresses if (found := digest_in(one)) is not None))


class _Loader(importlib.abc.InspectLoader):
    """Imports modules from files in memory."""

    def __init__(self, digest: str, files: Files) -> None:
        self._digest, self._files = digest, files

    def name_of(self, fullname: str) -> str | None:
        """Return the file of a module; empty for a package that has none, None for no module."""
        below = fullname.partition(".")[2].replace(".", "/")
        if not below:
            return ""
        for name in (f"{below}/__init__.py", f"{below}.py"):
            if name in self._files:
                return name
        return "" if any(name.startswith(f"{below}/") for name in self._files) else None

    def is_package(self, fullname: str) -> bool:
        """Say whether a module is a package."""
        name = self.name_of(fullname)
        return not name or name.endswith("/__init__.py")

    def get_source(self, fullname: str) -> str:
        """Return the text of a module."""
        name = self.name_of(fullname)
        return text_of(self._files[name]) if name else ""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `fedactors_code_DIGEST`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module of a code that this process has."""
        if (digest := digest_in(fullname)) is None:
            return None
        loader = _Loader(digest, files_of(digest))
        name = loader.name_of(fullname)
        if name is None:
            return None
        origin = f"<code {digest[:12]}>/{name}"
        return importlib.util.spec_from_loader(fullname, loader, origin=origin, is_package=loader.is_package(fullname))


sys.meta_path.insert(0, _Finder())  # before folders on the path, which could have the name of one
