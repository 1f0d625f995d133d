"""Whatever a run folder holds: a command works, or ends with code 2 and one line, soon and within its memory.

``DRAW_SEED=7`` picks other folders, ``FEDACTORS_FUZZ=20`` tries for twenty times as long; a failure says
the seed, and what was spoilt.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from fedactors.cli.main import main
from fedactors.runs.folder import MANIFEST
from fedactors.runs.storage import entry_of
from fedactors.runtime import snapshots
from tests import drawing
from tests.fuzz.folders import SETTINGS, make, spoil

pytestmark = pytest.mark.slow
SEED = drawing.seed()
SECONDS = 12.0 * float(os.environ.get("FEDACTORS_FUZZ", "1"))
"""Of spoiling the folders of one protocol."""
MOST = int(4 * SECONDS)
"""Folders of one protocol: a fast machine does not try what nobody has tried before it."""
FEWEST = 4
"""Folders of a protocol that are tried on however busy a machine."""
LONGEST = 40.0
"""Seconds of processor time of one command; each of them takes less than two with a folder that is sound."""
MEMORY = 2 << 30
"""Bytes of addresses that a command may take beyond those of the process that it is forked from."""
DATA = {"pubsub-vfl": "breast-cancer", "mtcd": "synthetic", "glasu": "blocks:60x6x2", "nebulafl": "digits"}
DATA |= {"tablepuppet": "orders:60", "horizontal": "digits"}


def commands(protocol: str) -> dict[str, list[str]]:
    """Return the commands that read a run folder, as words."""
    return {
        "resume": ["run", protocol, "--resume", "run", "--runtime", "simulated", "--quiet", "--out", "out"],
        "export": ["export", "run", "--output", "out/exported"],
        "predict": ["predict", "run", "--data", DATA[protocol], "--runtime", "simulated", "--output", "out/p.parquet"],
        "report": ["report", "run", "--output", "out/page.html"],
        "compare": ["compare", "run"],
        "audit": ["audit", "run"],
    }


def in_a_process_of_its_own(words: list[str], folder: Path) -> tuple[int, list[str]]:
    """Return the exit code of a command in `folder`, and its lines on standard error."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.chdir(folder)
            sys.stdout, sys.stderr = open("said", "w"), open("errors", "w")  # noqa: SIM115 they end with the process
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (int(LONGEST), int(LONGEST) + 5))
            code = main(words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + 6 * LONGEST
    done = 0
    while not done and time.monotonic() < until:
        time.sleep(0.005)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), (folder / "errors").read_text(errors="replace").splitlines()


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of all that lies in a folder, but what the command may write."""
    out, local = folder / "work/out", {folder / "work/said", folder / "work/errors"}
    found = [path for path in folder.rglob("*") if path not in local and out not in path.parents and not path.is_dir()]
    return {str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


@pytest.mark.timeout(600 + 2 * SECONDS)
@pytest.mark.parametrize("protocol", list(SETTINGS))
def test_a_spoilt_run_folder(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "FEDACTORS_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "sound").mkdir()
    run, work, words = make(tmp_path / "sound", protocol), tmp_path / "work", commands(protocol)

    def prepare(name: str) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(run if name == "resume" else run.with_name("whole"), work / "run")

    for name in words:  # sound, they work
        prepare(name)
        assert in_a_process_of_its_own(words[name], work) == (0, []), name
    until, tried, bad = time.monotonic() + SECONDS, 0, []
    while (time.monotonic() < until or tried < FEWEST) and tried < MOST:
        draw = random.Random(f"{SEED} {protocol} {tried}")
        name = draw.choice(["resume"] * 6 + ["export", "predict"] * 2 + list(words))
        prepare(name)
        how, before, tried = spoil(work / "run", draw), listing(tmp_path), tried + 1
        code, lines = in_a_process_of_its_own(words[name], work)
        after = listing(tmp_path)
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        if name == "predict":  # what it has released is counted in the run
            changed -= {"work/run/predictions.jsonl", "work/run/manifest.json"}
        said = [line for line in lines if not line.startswith(("warning: ", "details: ", "resume with: "))]
        is_well = code in (0, 2) and len(said) == (code != 0) and not changed
        if not is_well or not all(line.isprintable() for line in lines):
            told = [f"code {code}, changed {sorted(changed)}", *said[-12:]]
            bad.append(f"{name} {tried - 1}: {how}\n    " + "\n    ".join(told))
    assert not bad, f"DRAW_SEED={SEED}, {len(bad)} of {tried}:\n" + "\n".join(bad)


def test_a_part_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sound").mkdir()
    run, work = make(tmp_path / "sound", "nebulafl").with_name("whole"), tmp_path / "work"
    shutil.copytree(run, work / "run")
    path = next((work / "run/checkpoints/final").glob("oregon.ckpt"))
    content = snapshots.unseal(path.read_bytes(), "oregon")
    name, shape, *others = snapshots.unpack(content["state"]["model_facts"])
    content["state"]["model_facts"] = snapshots.pack((name, (shape, *shape[1:]), *others), "oregon")
    path.write_bytes(snapshots.seal(content))
    manifest = json.loads((work / "run" / MANIFEST).read_text())
    manifest["files"]["checkpoints/final/oregon.ckpt"] = entry_of(path.read_bytes())
    (work / "run" / MANIFEST).write_text(json.dumps(manifest))
    code, lines = in_a_process_of_its_own(commands("nebulafl")["export"], work)
    assert (code, len(lines)) == (2, 1), lines
    assert "nothing comes of this checkpoint" in lines[0]
