"""What crossed between sites in a run, as their own signed logs have it, and whether they agree."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from fedactors.runtime.federated.audit import AUDIT, check
from fedactors.runtime.federated.folders import SiteFolder


def learned(folder: Path, run: str) -> list[dict[str, Any]]:
    """Return what crossed to a site from others in a run, as its own log has it (the driver's included)."""
    return [entry for line in _ends(folder, run) for entry in line["arrived"]]


def sent(folder: Path, run: str) -> list[dict[str, Any]]:
    """Return what crossed from a site to others in a run, as its own log has it (the driver's included)."""
    return [entry for line in _ends(folder, run) for entry in line["left"]]


def _ends(folder: Path, run: str) -> list[dict[str, Any]]:
    site = SiteFolder(folder)
    lines = check(folder / AUDIT, site.federation.members[site.name].certificate)
    return [line for line in lines if line["what"] == "ended" and line["run"] == run]


def agree(folders: dict[str, Path], run: str) -> bool:
    """Say whether the logs of all sites of a run agree on what crossed between them."""
    with contextlib.suppress(KeyError):
        left = {site: sent(folder, run) for site, folder in folders.items()}
        arrived = {site: learned(folder, run) for site, folder in folders.items()}
        whole = _sorted(entry for entries in left.values() for entry in entries)
        return bool(whole) and whole == _sorted(entry for entries in arrived.values() for entry in entries)
    return False


def _sorted(entries: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(entry.values()) for entry in entries)
