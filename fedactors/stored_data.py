"""Data that a run folder names: which of them may be opened because it does, and which only if the user names them too.

The name of a data set is harmless. A description of own data (``.toml``) is not: it names files, and databases to which
this process would send a password. So whoever uses a run of own data names the description again (``--data FILE``).
"""

from __future__ import annotations

import os
import shlex

from fedactors.errors import BadInput
from fedactors.records.run_folder import RunFolder
from fedactors.validation import shown


def is_description(name: str | None) -> bool:
    """Say whether data are a description of own data; of all else `launch.check_data` allows known names only."""
    return name is not None and name.endswith(".toml")


def way_on(place: str, data: str | None) -> str:
    """Return how to go on with the run at `place`, in the words of a command."""
    named = f" --data {shlex.quote(data or '')}" if is_description(data) else ""
    return f"--resume {place}{named}"


def data_to_resume(folder: RunFolder, given: str | None) -> str | None:
    """Return the data with which the run in `folder` goes on: those that it had; None: the protocol's.

    Args:
        folder: the run's; perhaps a stranger's.
        given: as ``--data`` says.

    Raises:
        BadInput: a data set is named anew, or a description is not, or is another one than the run's.
    """
    stored: str | None = folder.config.get("data")
    if stored is None or not is_description(stored):
        if given is not None:
            raise BadInput("--resume takes no overrides of what is trained: --data given")
        return stored
    if given is None:
        raise BadInput(
            f"--data: missing: the run was of own data, {shown(stored)}, "
            "which are opened only if you name them as well: "
            f"fedactors run {folder.config['protocol']} {way_on(folder.place, stored)}"
        )
    if "\0" in given + stored or os.path.realpath(given) != os.path.realpath(stored):
        raise BadInput(f"--data: {shown(given)} is not allowed: the run was of {shown(stored)}, and goes on with it")
    return given


def data_to_audit(folder: RunFolder, given: str | None) -> str:
    """Return the data with which the run in `folder` is replayed or attacked: those given, or the data set that it had.

    Raises:
        BadInput: it had own data, and none are given.
    """
    stored: str | None = folder.config.get("data")
    if given is None and is_description(stored):
        raise BadInput(
            f"--data: missing: the run was of own data, {shown(stored)}, which are opened only if you name them as well"
        )
    if (data := given or stored) is None:
        raise BadInput(f"{folder.path}: config.json is damaged (data missing)")
    return data
