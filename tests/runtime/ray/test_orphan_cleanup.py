"""What a killed driver leaves is removed at the next start, and nothing else."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedactors.runs import storage
from fedactors.runs.folder import RunFolder
from fedactors.runtime import compute
from fedactors.runtime.compute import ProcessPool
from fedactors.runtime.ray import cleanup

ROOT = Path(__file__).resolve().parents[3]
DRIVER = """
import os, sys, time
from fedactors.runtime.ray.runtime import RayRuntime
from tests.runtime.actors import line

if __name__ == "__main__":
    runtime = RayRuntime(num_cpus=1)

    async def main():
        a = line(runtime, "a")
        await runtime.start()
        if "fork" in sys.argv and os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        print(os.getpid(), flush=True)
        sys.stdin.read()

    runtime.execute(main)
"""


@pytest.fixture
def private_temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder in which no other start on this machine clears up; a short path, since sockets lie in it."""
    folder = Path("/tmp", secrets.token_hex(2))
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def killed_driver(tmp_path: Path, private_temp: Path, *words: str, with_reaper: bool) -> Path:
    """Kill a driver, and its reaper before it if that is wanted; return the folder of its cluster."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "TMPDIR": str(private_temp)}
    environment.pop("RAY_ADDRESS", None)
    driver = subprocess.Popen(
        [sys.executable, str(script), *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    pid = int(driver.stdout.readline())
    (folder,) = private_temp.glob(f"fedactors-ray-*-{pid}-*")
    if with_reaper:
        (reaper,) = (p for p in psutil.Process(pid).children() if "fedactors.runtime.ray.cleanup" in p.cmdline())
        reaper.kill()
    assert len(processes_of(folder)) >= 3
    assert sum("fork" in words_of(child) for child in psutil.Process(pid).children()) == len(words)
    driver.kill()
    driver.wait()
    for pipe in (driver.stdin, driver.stdout):
        if pipe is not None:
            pipe.close()
    return folder


def words_of(process: psutil.Process) -> list[str]:
    """Return its command line; none of one that has ended."""
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def processes_of(folder: Path) -> list[str]:
    """Return the processes that name a folder or hold a file of it open, but for a child of the driver's own."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            held = [os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir()]
        except (psutil.Error, OSError):
            continue
        if "fork" not in words and any(str(folder) in word for word in [*words, *held]):
            found.append(" ".join(words)[:80])
    return found


@pytest.mark.drawn(1, family="killed drivers")
@pytest.mark.ray
@pytest.mark.parametrize("words", [(), ("fork",)])
def test_a_killed_driver_leaves_nothing_after_twenty_seconds(
    tmp_path: Path, private_temp: Path, words: tuple[str, ...]
) -> None:
    """Also where a child that it forked lives on, and holds the pipe to the reaper."""
    folder = killed_driver(tmp_path, private_temp, *words, with_reaper=False)
    until = time.monotonic() + 20
    while (folder.exists() or processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not folder.exists()
    assert processes_of(folder) == []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(tmp_path / "driver.py") in process.cmdline():
                process.kill()


COPY = """
import os, sys
from fedactors.runs.folder import RunFolder
folder = RunFolder.create(sys.argv[1], "x", 0, {})
kept = RunFolder.open(folder.location)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_copies_of_run_folders_elsewhere_go_at_the_next_use(tmp_path: Path, private_temp: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(private_temp)}
    location = f"file://{tmp_path}/runs"
    subprocess.run([sys.executable, "-c", COPY, location], env=environment, check=False)
    left = set(private_temp.iterdir())
    assert len(left) == 2
    folder = RunFolder.create(location, "x", 0, {})
    assert not left & set(private_temp.iterdir())
    RunFolder.open(folder.location).verify()
    folder.finish("finished")
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.drawn(1, family="killed drivers")
@pytest.mark.ray
def test_what_a_driver_left_that_was_killed_with_its_reaper_is_gone_after_the_next_start(
    tmp_path: Path, private_temp: Path
) -> None:
    folder = killed_driver(tmp_path, private_temp, with_reaper=True)
    assert folder in cleanup.remove_orphans()
    assert not folder.exists()
    assert processes_of(folder) == []


def test_folders_of_the_living_and_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = storage.make_folder("socket")
    foreign = [
        tmp_path / name
        for name in (
            "fedactors-notes",
            "fedactors-ray-x-1-a",
            "fedactors-ray-1-1-1",
            "fedactors-pool-0000-1-1-1",
            "ray",
        )
    ]
    location = mine.name.split("-")[2]
    elsewhere = "0000" if location != "0000" else "0001"
    foreign.append(tmp_path / f"fedactors-ray-{location}-1-1-1_saved")  # somebody's copy of one
    foreign.append(tmp_path / f"fedactors-ray-{elsewhere}-999999-1-1")  # of a container that shares this folder
    for folder in foreign:
        folder.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / f"fedactors-socket-{location}-1-999-1").symlink_to(target)
    dead = (
        tmp_path / f"fedactors-socket-{location}-{os.getpid()}-1-1"
    )  # a process of this number that began at another time
    dead.mkdir()
    assert cleanup.remove_orphans() == [dead]
    assert mine.is_dir()
    assert all(folder.is_dir() for folder in [*foreign, target])


def test_a_process_that_only_mentions_the_folder_is_not_ended(tmp_path: Path) -> None:
    folder = tmp_path / "fedactors-ray-1-1-1"
    reader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(folder / "logs/raylet.out")])
    try:
        cleanup.end_processes_of(folder)
        assert reader.poll() is None
    finally:
        reader.kill()
        reader.wait()


def test_sockets_of_an_embedded_cluster_have_paths_that_are_short_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has been up for a year, with the largest number that a process can have."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setattr(os, "getpid", lambda: 4_194_303)
    monkeypatch.setattr(storage, "start_of", lambda _: 3_153_600_000)
    folder = storage.make_folder("ray")
    folder.rmdir()
    assert len(f"{folder}/session_2026-11-22_07-39-11_123456_4194303/sockets/plasma_store") <= 107


def test_a_process_is_ended_only_if_it_is_the_one_that_was_meant() -> None:
    from fedactors.runtime.ray.processes import end_process

    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        began = storage.start_of(sleeper.pid)
        assert began is not None
        end_process(sleeper.pid, began - 1)  # the number of a process that is gone, and another one's by now
        assert sleeper.poll() is None
        end_process(sleeper.pid, began)
        assert sleeper.wait(timeout=10) == -9
        end_process(sleeper.pid, began)
    finally:
        sleeper.kill()


POOL = """
import os, sys
from fedactors.runtime import compute
from fedactors.runtime.compute import ProcessPool

compute.MEMORY_FOLDER = {folder!r}
if __name__ == "__main__":
    pool = ProcessPool(1)
    print(pool.submit(os.getpid, ()).result(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_arrays_of_a_pool_whose_processes_were_all_killed_go_with_the_next_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    script = tmp_path / "pooled.py"
    script.write_text(POOL.format(folder=str(memory)))

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    with started() as killed, started() as living:
        try:
            for process in (killed, living):
                assert process.stdout is not None
                assert process.stdout.readline().strip().isdigit()
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait(30)
            mine = {pid: [f for f in memory.iterdir() if f"-{pid}-" in f.name] for pid in (killed.pid, living.pid)}
            assert [len(found) for found in mine.values()] == [1, 1]
            foreign = memory / "fedactors-pool-of-somebody-else"
            foreign.mkdir()
            monkeypatch.setattr(compute, "MEMORY_FOLDER", str(memory))
            pool = ProcessPool(1)
            assert not mine[killed.pid][0].exists()
            assert mine[living.pid][0].exists()
            assert foreign.exists()
            pool.close()
            assert set(memory.iterdir()) == {mine[living.pid][0], foreign}
        finally:
            os.killpg(living.pid, signal.SIGKILL)
