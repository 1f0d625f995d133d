"""Which types in a run's ledger are declared by nobody."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedactors.actors.remote import endpoints
from fedactors.config import build
from fedactors.inspection import describe_joins, describe_messages
from fedactors.plugins import Protocol, find_protocol
from fedactors.runs.folder import RunFolder
from fedactors.runs.recorder import read_ledger

NAMES = ("pubsub-vfl", "mtcd", "tablepuppet", "glasu", "horizontal", "nebulafl")


def names_of(cls: Any) -> set[str]:
    """Return the names of a configuration's settings."""
    return {one.name for one in dataclasses.fields(cls)}


def undeclared(protocol: Protocol, config: Any, types: Iterable[str]) -> set[str]:
    """Return the types that `fedactors inspect` tells nothing of.

    And that are no call of an endpoint without a message.
    """
    assert protocol.actors is not None
    told = {entry["message"] for entry in (*describe_messages(protocol, config), *describe_joins(protocol))}
    for cls in protocol.actors(config).values():
        table = endpoints(cls).table.values()
        told |= {f"{endpoint.name}()" for endpoint in table if type(None) in (*endpoint.takes, *endpoint.gives)}
    return set(types) - told


def undeclared_in(folder: Path) -> dict[str, set[str]]:
    """Return what is declared by nobody in the ledgers of all run folders below a folder, by the folder's name."""
    found = {}
    for file in folder.rglob("ledger.parquet"):
        run = json.loads((file.parent / "config.json").read_text())
        # a script names its runs after itself: its protocol is the one that has such settings
        (protocol,) = (one for one in map(find_protocol, NAMES) if run["config"].keys() == names_of(one.Config))
        config = build(protocol.Config, run["config"])
        types = read_ledger(RunFolder.open(file.parent)).column("type").to_pylist()
        found[file.parent.name] = undeclared(protocol, config, types)
    return found
