"""Own data in a job: its description goes along, the files that it names stay where they are.

    fedactors submit pubsub-vfl --data parties.toml --place bank=bank,shop=shop --address ...

Each party's files lie on the host that the party is placed on, at the whole path that the description says.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedactors.data.own_schema import places
from fedactors.errors import BadInput
from fedactors.validation import read_tree, shown

_ADDRESS = re.compile(r"(env:|[a-z0-9+.-]+://)", re.IGNORECASE)


def named_places(description: Path) -> dict[str, str]:
    """Return the files and folders that a description names, by the field that does; addresses are none.

    Raises:
        BadInput: it cannot be read, or is not TOML.
    """
    given = read_tree(description, "data")
    tables = {"task": (given.get("task"), places(of_party=False))}
    for name, party in _table(given.get("parties")).items():
        tables[f"parties.{name}"] = (party, places(of_party=True))
    named = {
        f"{where}.{key}": value.removeprefix("file:")
        for where, (table, known) in tables.items()
        for key, value in _table(table).items()
        if key in known and isinstance(value, str)
    }
    return {field: value for field, value in named.items() if not _ADDRESS.match(value)}


def check_paths(description: Path) -> None:
    """Check that each file is named as its own host finds it.

    Raises:
        BadInput: a path that is relative: the description is somewhere else then.
    """
    for field, path in named_places(description).items():
        if not Path(path).is_absolute():
            raise BadInput(
                f"{field}: {shown(path)} is not allowed in a job: give the whole path that the file has on its "
                "party's host, no raw file is sent"
            )


def lay_out(description: Path, folder: Path) -> str:
    """Put the description alone into a folder that is sent; return its path there, the given one if that is inside."""
    is_inside = not description.is_absolute() and ".." not in description.parts
    there = description if is_inside else Path(description.name)
    (folder / there).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(description, folder / there)
    return str(there)


def staying(description: Path, folder: Path) -> Iterator[str]:
    """Yield patterns, as in a .gitignore, of named files in a folder that is sent, by whatever name."""
    paths = [description.parent / Path(path).expanduser() for path in named_places(description).values()]
    kept = {_identity(path) for path in paths if path.exists()}
    for place, folders, files in os.walk(folder, followlinks=True):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.exists() and _identity(path) in kept:
                yield "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path.relative_to(folder).as_posix())


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
