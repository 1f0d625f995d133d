"""What a bad input is: the words of a command, the files that it finds, and what its one line must name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One bad input."""

    words: tuple[str, ...]
    says: tuple[str, ...]
    """Texts that the line must hold: the field or the party, and the value where it can be shown."""
    base: tuple[str, ...] = ()
    """Folders of `world` whose content lies in the present folder."""
    change: tuple[Change, ...] = ()
    code: int = 2
    environ: Mapping[str, str] = field(default_factory=dict)
    later: bool = False
    """Whether it shows only after rounds were recorded, so that the run folder stays, and a line says so."""

    def __str__(self) -> str:
        return " ".join(self.words)[:90].replace("\0", "NUL").replace("\n", " ")


def run(protocol: str, words: str | Sequence[str], *says: str, flags: Sequence[str] = (), **more: Any) -> Case:
    """Return a case of ``fedactors run`` on the simulated runtime."""
    given = words.split() if isinstance(words, str) else words
    if "--resume" not in flags:
        flags = ["--runtime", "simulated", *flags]
    return Case(("run", protocol, *given, *flags, "--quiet", "--out", "out"), says, **_tuples(more))


def command(words: str | Sequence[str], *says: str, **more: Any) -> Case:
    """Return a case of any other command."""
    return Case(tuple(words.split() if isinstance(words, str) else words), says, **_tuples(more))


def _tuples(more: dict[str, Any]) -> dict[str, Any]:
    if isinstance(more.get("base"), str):
        more["base"] = (more["base"],)
    if callable(more.get("change")):
        more["change"] = (more["change"],)
    return more


# --- what is done to the files ---


def replace(name: str, old: str, new: str, count: int = 1) -> Change:
    """Replace text in a file; it must be there."""

    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text, (name, old)
        path.write_text(text.replace(old, new, count))

    return change


def write(name: str, content: str | bytes) -> Change:
    """Write a file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def make_folder(name: str) -> Change:
    """Put a folder where a file should be."""

    def change(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        path.mkdir()

    return change


def remove(name: str) -> Change:
    """Remove a file or a folder."""

    def change(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def loop(name: str) -> Change:
    """Make a link that leads to itself."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(name)

    return change


def cut(name: str, keep: int = 40) -> Change:
    """Keep only the first bytes of a file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:keep])

    return change


def array(name: str, made: Callable[[], Any]) -> Change:
    """Write a ``.npy`` file."""
    return lambda folder: np.save(folder / name, made(), allow_pickle=True)


def arrays(name: str, **changed: Any) -> Change:
    """Change arrays of a ``.npz`` file; None removes one."""

    def change(folder: Path) -> None:
        with np.load(folder / name) as file:
            found = {key: file[key] for key in file.files}
        kept = {key: value for key, value in {**found, **changed}.items() if value is not None}
        np.savez(folder / name, **kept)

    return change


def parquet(name: str, **columns: Any) -> Change:
    """Write a Parquet file."""
    return lambda folder: pyarrow.parquet.write_table(pa.table(columns), folder / name)


def table(name: str, **columns: Any) -> Change:
    """Write a CSV file."""
    return lambda folder: pyarrow.csv.write_csv(pa.table(columns), folder / name)
