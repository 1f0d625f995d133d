"""Own data in a job: its description goes along, the files that it names stay where they are.

    fedactors submit pubsub-vfl --data parties.toml --place bank=bank,shop=shop --address ...

Each party's file lies on the host that the party is placed on, at the whole path that the description says.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from fedactors.errors import BadInput
from fedactors.validation import read_tree, shown


def named_files(description: Path) -> dict[str, str]:
    """Return the files that a description names by the fields that do; addresses of databases are none.

    Raises:
        BadInput: it cannot be read, or is not TOML.
    """
    given = read_tree(description, "data")
    task, parties = given.get("task"), given.get("parties")
    tables = {"task": task} if isinstance(task, dict) else {}
    tables |= {f"parties.{name}": party for name, party in parties.items()} if isinstance(parties, dict) else {}
    fields = {"task": ("test", "nodes")}
    return {
        f"{where}.{key}": table[key]
        for where, table in tables.items()
        if isinstance(table, dict)
        for key in fields.get(where, ("path", "file"))
        if isinstance(table.get(key), str) and not table[key].startswith(("env:", "postgresql://", "postgres://"))
    }


def check_paths(description: Path) -> None:
    """Check that each file is named as its own host finds it.

    Raises:
        BadInput: a path that is relative: the description is somewhere else then.
    """
    for field, path in named_files(description).items():
        if not Path(path).is_absolute():
            raise BadInput(
                f"{field}: {shown(path)} is not allowed in a job: give the whole path that the file has on its "
                "party's host, no raw file is sent"
            )


def lay_out(description: Path, folder: Path) -> str:
    """Put the description alone into a folder that is sent; return its path there."""
    shutil.copyfile(description, folder / description.name)
    return description.name


def staying(description: Path, folder: Path) -> Iterator[str]:
    """Yield patterns, as in a .gitignore, of the named files that lie in a folder that is sent."""
    inside = folder.resolve()
    for path in named_files(description).values():
        file = Path(path).resolve()
        if file.is_relative_to(inside):
            yield f"/{file.relative_to(inside).as_posix()}"
