"""Every bad input, over all commands: the documented code, one line that names what is wrong, nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.cli.parsers import parsers
from fedactors.runs.folder import RunFolder
from fedactors.runtime import snapshots
from tests import drawing
from tests.bad_inputs import files, flags, folders, settings, world
from tests.bad_inputs.cases import Case

TABLES = {
    "settings by their types": settings.GENERATED,
    "settings": settings.WRITTEN,
    "flags": flags.CASES,
    "files": files.CASES,
    "folders": folders.CASES,
}
CASES = [case for cases in TABLES.values() for case in cases]
DRAWN = 100
"""Cases of a table that run for each commit: most are made for each field, command or file alike."""
ABOUT = {
    "settings by their types": ("fedactors/config.py",),
    "settings": ("fedactors/config.py",),
    "flags": ("fedactors/cli",),
    "files": ("fedactors/data",),
    "folders": ("fedactors/runs", "fedactors/report"),
}
"""What each table is about: if it was changed, all of the table's cases run."""
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bad inputs")]
SECONDS = 20.0
"""Of processor time, for one case; most take a hundredth of a second."""


def drawn(table: str) -> list[Case]:
    """Return the cases of a table that run this time; all those of a protocol whose settings were changed."""
    local = {f"tests/bad_inputs/{name}" for name in ("cases.py", "world.py", "test_bad_inputs.py")}
    local |= {"tests/bad_inputs/settings.py"} if "settings" in table else {f"tests/bad_inputs/{table}.py"}
    changed = [name for name in world.SMALL if drawing.is_touched([f"protocols/{name.replace('-', '_')}/config.py"])]
    chosen = drawing.some(TABLES[table], DRAWN, [*ABOUT[table], *local])
    more = [case for case in TABLES[table] if set(changed) & set(case.words)]
    return list({id(case): case for case in [*chosen, *more]}.values())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    world.build(root)
    return root


def content(folder: Path) -> dict[str, bytes | None]:
    """Return what lies in a folder; an empty ``out`` is as good as none."""
    found = {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
    if "out" in found and not any(name.startswith("out/") for name in found):
        del found["out"]
    return found


def test_there_are_enough_of_them_and_each_is_another() -> None:
    assert len(CASES) >= 800
    assert len({(case.words, case.base, case.change, tuple(case.environ.items())) for case in CASES}) == len(CASES)
    commands = parsers()[1]
    assert set(commands) <= {case.words[0] for case in CASES if case.words}
    for protocol in world.SMALL:
        assert sum(protocol in case.words for case in CASES) >= 50


def test_what_the_cases_spoil_is_sound(sound: Path) -> None:
    """The worlds were built by commands that succeeded; own files train too."""
    for base, protocol, more in (
        ("vertical", "pubsub-vfl", ""),
        ("vertical", "mtcd", "relaxed_protocol=true num_clients=2 problem=ridge"),
        ("horizontal", "nebulafl", "num_containers=2"),
        ("relational", "tablepuppet", ""),
        ("graph", "glasu", "num_clients=2"),
    ):
        sizes = ("num_training", "num_containers", "num_samples", "num_features")
        leaving = (*sizes, *(word.partition("=")[0] for word in more.split()))
        words = [*world.small(protocol, *leaving).split(), *more.split()]
        data = str(sound / base / "parties.toml")
        flags = ["--data", data, "--runtime", "simulated", "--quiet", "--out", str(sound / "own")]
        assert main(["run", protocol, *words, *flags]) == 0, base


def test_what_the_driver_keeps_holds_no_array_of_numbers_of_rows(sound: Path) -> None:
    """As the page about checkpoints says: rounds, metrics and counts."""
    for protocol in world.SMALL:
        driver = RunFolder.open(sound / "finished" / protocol / "run").load_checkpoint().driver
        held: list[Any] = [snapshots.unseal_driver(driver)]
        while held:
            one = held.pop()
            assert not hasattr(one, "dtype"), protocol
            if dataclasses.is_dataclass(one):
                one = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
            if isinstance(one, Mapping):
                one = [*one, *one.values()]
            held += one if isinstance(one, (list, tuple)) else []


ALONE = [case for case in CASES if case.code == 2 and "\0" not in "".join(case.words)][::400]
"""What a process can be started with: no text with a zero byte."""


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_is_refused_in_a_process_of_its_own(case: Case, sound: Path, tmp_path: Path) -> None:
    """The console command itself, warnings and all; few of them, because each loads everything."""
    for base in case.base:
        shutil.copytree(sound / base, tmp_path, dirs_exist_ok=True)
    for change in case.change:
        change(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PYTHONPATH": str(ROOT), **case.environ}
    command = [sys.executable, "-m", "fedactors", *case.words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if not (case.later and line.startswith("details: "))]
    assert (done.returncode, len(lines), done.stdout) == (case.code, 1, ""), done.stderr


@pytest.mark.timeout(1800)
@pytest.mark.drawn(None)
@pytest.mark.parametrize("table", TABLES)
def test_is_refused(
    table: str,
    sound: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A table's written cases and some of those made by machine; every case that fails is listed."""
    failures = []
    for index, case in enumerate(drawn(table)):
        folder = tmp_path / str(index)
        folder.mkdir()
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            try:
                check(case, sound, folder, patch, capfd)
            except AssertionError as error:
                failures.append(f"{case}: {error}")
            except BaseException as error:
                error.add_note(f"the case: {case}")
                raise
        shutil.rmtree(folder, ignore_errors=True)
    assert not failures, f"{len(failures)} cases of {table}:\n" + "\n".join(failures)


def check(
    case: Case, sound: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Give the case to its command, in the present folder."""
    for base in case.base:
        shutil.copytree(sound / base, folder, dirs_exist_ok=True)
    for change in case.change:
        change(folder)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "FEDACTORS_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)
    if "--address" in case.words:  # a process in which earlier tests have a cluster would stay in that
        monkeypatch.setattr("ray.is_initialized", lambda: False)
    before = content(folder)
    began = time.process_time()
    code = main(list(case.words))
    seconds = time.process_time() - began
    said = capfd.readouterr()
    lines = [line for line in said.err.splitlines() if not line.startswith("warning: ")]
    if case.later:
        assert all(line.startswith("details: ") for line in lines[1:]), said.err[-2000:]
        del lines[1:]
        shutil.rmtree("out")
    assert (code, len(lines)) == (case.code, 1), said.err[-2000:]
    line = lines[0].removeprefix("fedactors: ")
    for word in ("internal error", "Traceback", "Error:", "<class", "object at 0x"):
        assert word not in line
    for named in case.says:
        assert named in line
    assert len(line) < 1000 + len(os.getcwd())
    assert said.out == ""
    assert content(folder) == before
    assert seconds < SECONDS
