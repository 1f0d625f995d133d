"""What a user gives is checked here before any folder or process exists: names, paths, files, sizes.

Settings are checked by their types (`fedactors.config`), flags by the parser, descriptions of data by their readers;
what all of them need stands here, also how a file is found (`files_at`, `opened`): a path, a folder, a pattern, or an
address of fsspec, such as ``s3://bucket/rows.parquet``. Every refusal is one `BadInput` line that names field,
value and what is allowed. Libraries that read a user's files raise what they like: `reading` makes that line of it.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import io
import itertools
import json
import os
import queue
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedactors.errors import BadInput, FedactorsError

PARTY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}")
RESERVED = frozenset({"driver", "server", "broker", "auditor", "exchange", "mapper"})
"""What actors are called that are no party's; a party of such a name would share its links, ledger and bills."""
LARGEST_FILE = 16 * 1024 * 1024
"""Bytes of a description (TOML, JSON): more is no description."""
_SHOWN = 200
_LISTED = 10
"""Known names that are all listed where another is given; of more the nearest five."""
_ADDRESS = re.compile(r"(?P<kind>[A-Za-z][A-Za-z0-9+.\-]*)://(?P<rest>.*)", re.DOTALL)
# a port is a number and ends at a slash; a password need not be quoted as it should, and may hold slashes
_USER_AND_PASSWORD = re.compile(r"[^/@:]*:(?!\d{0,5}(/|$)).*@|.*://[^/@:]*:(?!\d{0,5}(/|$)).*@", re.DOTALL)
# all but the tabulator and the end of a line: C0, C1, marks and overrides of direction, halves of pairs
_CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
# letters and marks that are printed, and that nobody sees: fillers, selectors of variants, blank signs
_UNSEEN = re.compile(
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0"
    "\\U00016fe4\\U0001d159\\U000e0100-\\U000e01ef]"
)
_SECRET_OPTION = re.compile(
    r"[?&;#](\w*(password|passwd|secret|token)\w*|sig|key|access_key|api_?key)=.", re.IGNORECASE
)


def shown(value: Any) -> str:
    """Return a value as an error's line shows it: as it was written, cut when it is long."""
    text = _visible(repr(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def one_line(text: str, most: int = 2 * _SHOWN) -> str:
    """Return what somebody else wrote as a log or a terminal may show it: nothing in it that steers one, and cut.

    What nobody would see in it is escaped: two texts that differ by it look different.
    """
    said = _visible("".join(char if char.isprintable() else "?" for char in text[:most]))
    return said if len(text) <= most else f"{said}..."


def _visible(text: str) -> str:
    """Return a text in which what nobody sees is escaped, as Python does it."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def short_line(text: str, most: int) -> str:
    """Return what `one_line` does, cut to so many bytes, as JSON has it: one character may take twelve."""
    said = one_line(text, most)
    sizes = list(itertools.accumulate(len(json.dumps(char)) - 2 for char in said))
    if not sizes or sizes[-1] <= most:
        return said
    return f"{said[: sum(size <= most - 3 for size in sizes)]}..."


def without_controls(text: str) -> str:
    """Return a text with a question mark for whatever steers a terminal, turns the direction of text, or is none."""
    return _CONTROLS.sub("?", text)


def first_line(error: BaseException) -> str:
    """Return what an exception says first, or its class where it says nothing."""
    lines = without_controls(str(error)).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}..."


def party_name(name: Any, field: str = "parties") -> str:
    """Return `name` if a party may be called so.

    Raises:
        BadInput: it could not be a file name, a word of the command line and a text of the ledger, or is taken.
    """
    if not isinstance(name, str) or not PARTY_NAME.fullmatch(name):
        raise BadInput(
            f"{field}: {shown(name)} is not allowed as the name of a party: at most 63 letters, digits, '.', '_' and "
            "'-', beginning with a letter or a digit"
        )
    if name in RESERVED:
        raise BadInput(
            f"{field}: {name!r} is not allowed as the name of a party: {', '.join(sorted(RESERVED))} are taken"
        )
    return name


def without_password(given: str, field: str) -> str:
    """Return a text if it is no address with a password in it: what a user gives is kept in run folders and logs.

    Raises:
        BadInput: it is one; the line does not show it.
    """
    found = _ADDRESS.search(given)
    if found is not None and (_USER_AND_PASSWORD.match(found["rest"]) or _SECRET_OPTION.search(found["rest"])):
        raise BadInput(
            f"{field}: a password or key in an address ({found['kind']}://...) is not allowed, since the address is "
            "kept in run folders: give it where the library looks for one, such as FSSPEC_FTP_PASSWORD for fsspec's ftp"
        )
    return given


def different_names(names: Iterable[str], field: str = "parties") -> None:
    """Refuse names that differ in upper and lower case only: some file systems take them for one.

    Raises:
        BadInput: names both.
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise BadInput(
                f"{field}: {name!r} is not allowed beside {other!r}: they differ in upper and lower case only"
            )


def different_files(files: Mapping[str, Any], field: str = "path") -> None:
    """Refuse one file that is given for two parties.

    Args:
        files: what each party has: a path, or anything that tells one source from another.
        field: what a party's file is called in its description.

    Raises:
        BadInput: names both parties and the file.
    """
    seen: dict[Any, str] = {}
    for party, file in files.items():
        other = seen.setdefault(file, party)
        if other != party:
            raise BadInput(
                f"parties.{party}.{field}: {shown(file)} is parties.{other}'s already: each party has data of its own"
            )


_VARIABLE = re.compile(r"\$(\{\w+\}|[A-Za-z_]\w*)", re.ASCII)


def unreplaced(given: str | Path, folder: Path | None = None) -> str:
    """Return what to say of a variable of the environment in a path; empty: there is none, or a file is called so.

    A proposal's text is read at other organisations, whose variables are no part of what was approved.

    Args:
        given: as it is written.
        folder: that it is relative to.
    """
    text = str(given)
    for found in _VARIABLE.finditer(text):
        end = text.find("/", found.end())
        until = Path(text if end < 0 else text[:end]).expanduser()
        if not os.path.lexists(until if folder is None else folder / until):
            return f"{found[0]} is not replaced by its value: write the whole path, or ~ for your home folder"
    return ""


def path_of(given: Any, field: str, folder: Path | None = None) -> Path:
    """Return the absolute path that a text names, relative to `folder`; nothing need be there.

    Raises:
        BadInput: no text, a text that names nothing, a zero byte or a variable in it, or links that lead in a circle.
    """
    if not isinstance(given, str) or not given.strip() or "\0" in given:
        raise BadInput(f"{field}: {shown(given)} is not allowed: give the path of a file")
    try:
        path = Path(given).expanduser()
        variable, found = unreplaced(given, folder), (path if folder is None else folder / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"{field}: {shown(given)} cannot be followed: {_reason(error)}") from None
    if variable:
        raise BadInput(f"{field}: {shown(given)} is not allowed: {variable}")
    return found


_LIBRARY = re.compile(r"(hf|torchvision):(?!/)(?P<name>[^?]+)(\?(?P<settings>.*))?", re.DOTALL)


def is_in_library(path: str | Path | None) -> bool:
    """Say whether a path is a data set that its own library reads: ``hf:OWNER/NAME``, ``torchvision:NAME``."""
    return path is not None and _LIBRARY.fullmatch(str(path)) is not None


def library_address(given: str, field: str, folder: Path) -> str:
    """Return the address of a library's data set with absolute folders; empty: it is none.

    Args:
        given: as it is written.
        field: for errors.
        folder: that folders are relative to.

    Raises:
        BadInput: a folder in it is none.
    """
    if given.startswith("hf:/") and not given.startswith("hf://"):
        given = given.replace("hf:", "hf:file:", 1)
    if not is_in_library(given):
        return ""
    kind, name, settings = library_parts(given)
    if kind == "hf" and name.startswith(("./", "../", "~", "file:")):
        name = f"file:{path_of(name.removeprefix('file:'), field, folder)}"
    if "root" in settings:
        settings["root"] = str(path_of(settings["root"], field, folder))
    told = "&".join(f"{key}={value}" for key, value in settings.items())
    for sign, text in (("?", name), ("&", settings.get("root", ""))):
        if sign in text:
            raise BadInput(
                f"{field}: {shown(text)} is not allowed: its {sign} would begin a setting; rename the folder"
            )
    return f"{kind}:{name}" + (f"?{told}" if told else "")


def library_parts(address: str | Path) -> tuple[str, str, dict[str, str]]:
    """Return the library of an address, the name of its data set, and what stands behind the question mark.

    Raises:
        BadInput: a setting without a value, or twice.
    """
    text = str(address)
    found = _LIBRARY.fullmatch(text)
    assert found is not None
    given = [part.partition("=") for part in (found["settings"] or "").split("&") if part]
    for key, _, value in given:
        if not value or [one for one, _, _ in given].count(key) > 1:
            raise BadInput(f"path: {shown(text)} is not allowed: give each setting once, as ?KEY=VALUE&KEY=VALUE")
    return found[1], found["name"], {key: value for key, _, value in given}


# a path has one slash where an address has two
_REMOTE = re.compile(r"(?P<kind>[a-z][a-z0-9+.\-]+):/+(?P<rest>.*)", re.DOTALL)
_FIND_SECONDS, _FETCH_SECONDS = 60.0, 900.0
"""Limits of what another file system may take to say what there is, and to give a file."""


def address_of(path: str | Path) -> str:
    """Return the address of another file system that a text or a path stands for; empty: it is a path of this one."""
    found = _REMOTE.fullmatch(str(path))
    if found is None:
        return ""
    return f"{found['kind']}://{'/' if found['kind'] in ('file', 'local') else ''}{found['rest']}"


def files_at(path: str | Path) -> list[Path]:
    """Return the files that a path or an address names, in the order of their names; none: there is nothing.

    These are the file itself, those in a folder, or those that are like a pattern (``*``, ``?``, ``[...]``). What
    begins with a point or an underscore is no part of a folder, as Spark and others have it.

    Raises:
        BadInput: another file system does not answer, or is not known.
    """
    if address := address_of(path):
        with reading("path", address):
            return [Path(found) for found in _within(_FIND_SECONDS, lambda: _addresses_at(address), address)]
    local = Path(path)
    if os.path.isdir(local):  # False, too, for a name that no file can have
        return [file for file in sorted(local.iterdir()) if not file.name.startswith(("_", "."))]
    if os.path.isfile(local):
        return [local]
    return sorted(map(Path, glob.glob(str(local)))) if glob.has_magic(str(local)) else []


def _addresses_at(address: str) -> list[str]:
    import fsspec

    files, root = fsspec.core.url_to_fs(address)
    is_query = address.startswith(("http://", "https://")) and "?" in address
    if glob.has_magic(root) and not is_query and (like := files.glob(root)):
        found = sorted(like)
    elif files.isdir(root):
        listed = {one["name"].rstrip("/"): one["type"] for one in files.ls(root, detail=True)}
        inside = sorted(one for one in listed if not one.rpartition("/")[2].startswith(("_", ".")))
        if folder := next((one for one in inside if listed[one] == "directory" and one != root.rstrip("/")), ""):
            raise ValueError(f"{folder} is a folder: the files of a table lie side by side in one")
        found = [one for one in inside if listed[one] == "file"]
    else:
        found = [root] if files.exists(root) else []
    return [files.unstrip_protocol(one) for one in found]


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to be read, at another file system too, whose files are fetched whole."""
    address = address_of(path)
    if not address:
        with open(path, "rb") as file:
            yield file
        return

    def fetched() -> bytes:
        import fsspec

        files, root = fsspec.core.url_to_fs(address)
        content: bytes = files.cat_file(root)
        return content

    yield io.BytesIO(_within(_FETCH_SECONDS, fetched, address))


def _within(seconds: float, call: Callable[[], Any], address: str) -> Any:
    """Return what a call returns that may wait for a network.

    Raises:
        BadInput: it takes longer.
    """
    answer: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def answered() -> None:
        try:
            answer.put((call(), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=answered, daemon=True).start()
    try:
        value, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise BadInput(f"path: {address} did not answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value


def read_text(path: str | Path, field: str) -> str:
    """Return the text of a description.

    Raises:
        BadInput: it is not there, no file, too large, or not UTF-8.
    """
    try:
        file = Path(path)
        if not file.is_file():
            what = "a folder" if file.is_dir() else "no file" if file.exists() else "not there"
            raise BadInput(f"{field}: {shown(str(path))} cannot be read: it is {what}")
        if file.stat().st_size > LARGEST_FILE:
            raise BadInput(f"{field}: {shown(str(path))} is too large: at most {LARGEST_FILE} bytes")
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{field}: {shown(str(path))} cannot be read: it is not text (UTF-8)") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"{field}: {shown(str(path))} cannot be read: {_reason(error)}") from None


def read_tree(path: str | Path, field: str) -> Any:
    """Return what a ``.json`` file holds, or any other as TOML.

    Raises:
        BadInput: as `read_text`, or not of that kind.
    """
    kind = "JSON" if str(path).endswith(".json") else "TOML"
    text = read_text(path, field)
    try:
        return json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{field}: {shown(str(path))} is not {kind}: {_reason(error)}") from None


@contextlib.contextmanager
def reading(field: str, path: str | Path) -> Iterator[None]:
    """Turn whatever a library raises at a user's file into one line about it.

    Raises:
        BadInput: names the field and the path; errors of fedactors pass as they are.
    """
    try:
        yield
    except FedactorsError:
        raise
    except Exception as error:
        raise BadInput(f"{field}: {path} cannot be read: {_reason(error)}") from error


@contextlib.contextmanager
def writing(field: str, path: str | Path) -> Iterator[None]:
    """Turn what the system says to writing where a user wants it into one line; it is a `BadInput`."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{field}: {path} cannot be written: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error)


def suggested(given: str, known: Iterable[str]) -> str:
    """Return what follows "unknown key" and the like: the name that was probably meant, and what is known."""
    names = list(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else ""
    if len(names) <= _LISTED:
        return f"{hint} (known: {', '.join(names) or 'none'})"
    nearest = difflib.get_close_matches(given, names, n=5, cutoff=0.0)
    return f"{hint} (nearest of {len(names)}: {', '.join(nearest)})"


def choice_of(value: Any, allowed: tuple[str, ...], field: str) -> str:
    """Return a value of a file that must be one of some texts; another one is a `BadInput`."""
    if not isinstance(value, str) or value not in allowed:
        raise BadInput(f"{field}: {shown(value)} is not allowed: give one of {', '.join(allowed)}")
    return str(value)


def number_of(
    value: Any, field: str, *, least: float = 0.0, above: float | None = None, most: float = sys.float_info.max
) -> float:
    """Return a value of a file that must be a number: `least` or more (or more than `above`), and at most `most`.

    Raises:
        BadInput: it is none, or another one; infinity is allowed where `most` is.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value >= least if above is None else value > above) or value > most:
        allowed = f"{least:g} or more" if above is None else f"above {above:g}"
        limit = f", at most {most:g}" if most < sys.float_info.max else ""
        what = "missing" if value is None else f"{shown(value)} is not allowed"
        raise BadInput(f"{field}: {what}: give a number {allowed}{limit}")
    return float(value)


def check_keys(given: Any, known: Collection[str], where: str) -> None:
    """Refuse keys that a table of a file does not have, and what is no table; `where` is its place in the file."""
    if not isinstance(given, dict):
        raise BadInput(f"{where}: {shown(given)} is not allowed: give a table")
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadInput(f"{where}: unknown key {unknown[0]!r}{suggested(unknown[0], sorted(known))}")
