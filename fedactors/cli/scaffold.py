"""Writing a working start: a protocol in a package of its own, or a scenario script."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any

from fedactors.errors import BadInput
from fedactors.plugins import Protocol, canonical, discover, find_protocol
from fedactors.runs.storage import disk_errors
from fedactors.validation import shown

TEMPLATES = files("fedactors.cli") / "templates"
"""Every text that is written: ``$name``, ``$module`` and ``${Class}`` stand for the new protocol's."""

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def write_protocol(name: str, parent: Path) -> list[Path]:
    """Write a package for a protocol called `name` into the new folder ``parent/name``; return its files.

    Raises:
        BadInput: a name that cannot be a package's, one that is taken, or a folder that cannot be written.
    """
    words = _words(name)
    return _write(TEMPLATES / "protocol", parent / words["name"], words)


def write_scenario(name: str, parent: Path, protocol_name: str | None = None) -> list[Path]:
    """Write the script ``parent/name.py``, which runs an installed protocol, and return it; see `write_protocol`.

    Raises:
        BadInput: also an unknown protocol.
    """
    words = _words(name)
    protocol = find_protocol(protocol_name) if protocol_name else _first_protocol()
    load_data, config, run = protocol.load_data, protocol.Config, protocol.run
    parts: list[Any] = [config, run, *([load_data] if load_data else [])]
    words |= {
        "protocol": protocol.name,
        "imports": "\n".join(sorted(f"from {part.__module__} import {part.__name__}" for part in parts)),
        "config_name": config.__name__,
        "load_data": load_data.__name__ if load_data else "None",
        "data": protocol.default_data,
        "partition": protocol.partition,
        "metric": protocol.headline.name,
        "mode": protocol.headline.mode,
        "smoke": repr(dict(protocol.smoke)),
        "party_loss": repr(sorted(protocol.party_loss)),
        "default_party_loss": protocol.default_party_loss,
    }
    target = parent / f"{words['module']}.py"
    text = (TEMPLATES / "scenario" / "scenario.py.tmpl").read_text()
    with disk_errors(target, "--output"):
        if target.exists():
            raise BadInput(f"{target}: already exists, and nothing is overwritten")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(text).substitute(words))
    return [target]


def _first_protocol() -> Protocol:
    for found in discover():
        if found.protocol is not None:
            return found.protocol
    raise BadInput("--protocol: no protocol is installed")


def _words(name: str) -> dict[str, str]:
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > 63 or keyword.iskeyword(module):
        raise BadInput(
            f"name: {shown(name)} is not allowed: at most 63 lower-case letters, digits, - and _, a letter first"
        )
    if canonical(name) in {found.name for found in discover()} or module == "fedactors":
        raise BadInput(f"name: {name!r} is not allowed: a protocol of this name is installed")
    return {"name": canonical(name), "module": module, "Class": "".join(map(str.capitalize, module.split("_")))}


def _write(template: Traversable, target: Path, words: dict[str, str]) -> list[Path]:
    with disk_errors(target, "--output"):
        if target.exists():
            raise BadInput(f"{target}: already exists, and nothing is overwritten")
        written = []
        for path, text in _texts(template, words):
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            written.append(file)
    return written


def _texts(folder: Traversable, words: dict[str, str]) -> list[tuple[Path, str]]:
    found = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = entry.name.removesuffix(".tmpl").replace("module", words["module"])
        if entry.is_dir():
            found += [(Path(name) / path, text) for path, text in _texts(entry, words)]
        elif entry.name.endswith(".tmpl"):
            found.append((Path(name), Template(entry.read_text()).substitute(words)))
    return found
