"""What an approved run may take of a site's machine, also in one stroke between two measurements."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from fedactors.errors import BadInput
from fedactors.federation.hosting import Life
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site import SiteProcess
from fedactors.federation.site_folder import RunLimits
from fedactors.federation.site_run import SiteRun, TemporaryFolder, UsageWatch
from fedactors.protocols.pubsub_vfl.actors import PassiveWorker
from fedactors.protocols.pubsub_vfl.messages import EpochOrder
from fedactors.runs.folder import this_process
from fedactors.runs.storage import start_of
from tests.federation.test_policy import limited
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, LIMITS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, family="hostile")]
GIB = 1 << 30


def test_memory_and_files_beyond_the_limits_are_refused_at_once(tmp_path: Path) -> None:
    watch, file = UsageWatch(RunLimits(memory_gib=0.5, disk_gib=0.25), list), tmp_path / "large"
    file.touch()
    watch.hold()
    try:
        assert np.empty(GIB, np.uint8).size == GIB
        with pytest.raises(MemoryError):
            np.empty(4 * GIB, np.uint8)
        os.truncate(file, GIB)
        with pytest.raises(OSError, match="File too large"):
            os.truncate(file, 2 * GIB)
    finally:
        watch.release()
    assert np.empty(4 * GIB, np.uint8).size == 4 * GIB
    os.truncate(file, 2 * GIB)


@pytest.mark.parametrize(
    ("where", "limit"),
    [("no name", "disk_gib"), ("open", "disk_gib"), ("/dev/shm", "memory_gib"), ("child", "disk_gib")],
)
def test_files_elsewhere_are_counted(tmp_path: Path, where: str, limit: str) -> None:
    """Columns of a large table, what DuckDB has no memory for, and Ray's objects lie in no folder of the run."""
    folder, other, size = tmp_path / "run", tmp_path / "other", GIB // 8
    folder.mkdir()
    other.mkdir()
    before = (other / "log").open("wb")
    before.write(b"x" * size)
    before.flush()
    watch = UsageWatch(RunLimits(**{limit: 0.0625}), lambda: [folder])
    assert watch.exceeded() is None
    watch._disk_seen = -math.inf
    with contextlib.ExitStack() as held:
        held.callback(before.close)
        if where == "no name":
            file = held.enter_context(tempfile.TemporaryFile(dir=other))
            os.posix_fallocate(file.fileno(), 0, size)
            held.enter_context(mmap.mmap(file.fileno(), size))
            file.close()
        elif where == "open":
            held.enter_context((other / "spilled").open("wb")).write(b"x" * size)
        elif where == "child":
            code = f"import time; file = open({str(other / 'x')!r}, 'wb'); file.write(b'x' * {size}); "
            code += "print(1, flush=True); time.sleep(60)"
            child = held.enter_context(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
            held.callback(child.kill)
            assert child.stdout is not None
            child.stdout.readline()
        else:
            file = held.enter_context(tempfile.TemporaryFile(dir=where))
            os.posix_fallocate(file.fileno(), 0, size)
        assert f"limits.{limit}" in str(watch.exceeded())
    watch._disk_seen = -math.inf
    assert watch.exceeded() is None


def left_in_shared_memory(how: str) -> str:
    """Return what a process does that writes 128 MiB there, ends when it hears so, and leaves them."""
    wait = "print(path, flush=True); sys.stdin.readline()"
    if how == "closed":
        make = "file = open(path := f'/dev/shm/left-by-{os.getpid()}', 'wb'); file.write(data); file.flush()"
    elif how == "mapped":
        make = "file = open(path := f'/dev/shm/left-by-{os.getpid()}', 'w+b'); file.write(data); file.flush(); "
        make += "memory = mmap.mmap(file.fileno(), len(data)); file.close()"
    elif how == "torch":
        make = "path = f'/dev/shm/torch_{os.getpid()}_7_0'; open(path, 'wb').write(data)"
    else:
        make = "from fedactors.runs.storage import make_folder; path = make_folder('pool', '/dev/shm'); "
        make += "(path / 'array').write_bytes(data)"
    return f"import mmap, os, sys; data = bytes({GIB // 8}); {make}; {wait}"


@pytest.mark.parametrize("is_limited", [True, False])
@pytest.mark.parametrize("how", ["closed", "mapped", "torch", "pool"])
def test_what_a_run_leaves_in_shared_memory_counts_and_goes_with_it(how: str, is_limited: bool) -> None:
    """No process has it any more, and it is memory of the machine all the same."""
    others = Path(f"/dev/shm/of-nobody-{os.getpid()}")
    others.write_bytes(bytes(GIB // 8))
    watch = UsageWatch(RunLimits(memory_gib=0.0625 if is_limited else None), list)
    path = Path("/dev/shm/nothing")
    try:
        others.write_bytes(bytes(GIB // 8))
        code = [sys.executable, "-c", left_in_shared_memory(how)]
        with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            path = Path(child.stdout.readline().strip())
            assert path.exists()
            watch.exceeded()
            child.communicate("now")
        watch._disk_seen = -math.inf
        assert ("limits.memory_gib: it took 0.12" in (watch.exceeded() or "")) is is_limited
        watch.release()
        assert not path.exists()
        watch._disk_seen = -math.inf
        assert watch.exceeded() is None
        assert others.exists()
    finally:
        others.unlink()
        with contextlib.suppress(OSError):
            path.unlink()


def test_a_process_that_leaves_its_parent_is_counted(tmp_path: Path) -> None:
    """It forks twice and begins a session of its own: its parent ends, and it was nobody's."""
    file = tmp_path / "pid"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        held = b"x" * {GIB // 4}
        open({str(file)!r}, "w").write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
"""
    watch = UsageWatch(RunLimits(memory_gib=0.125), list)
    watch.hold()
    try:
        subprocess.run([sys.executable, "-c", code], check=True)
        end = time.monotonic() + 20
        while not (file.exists() and file.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        assert file.exists(), "it has not begun"
        assert "limits.memory_gib" in str(watch.exceeded())
    finally:
        watch.release()
        if file.exists():
            child = psutil.Process(int(file.read_text()))
            child.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


def test_processes_of_an_organisations_own_cluster_are_counted() -> None:
    """The site's process did not begin them, nor did who began its Ray's: their parent is another one."""
    code = "import subprocess, sys, time; x = bytearray(1 << 28); p = subprocess.Popen([sys.executable, '-c', "
    code += "'import time; x = bytearray(1 << 28); print(1, flush=True); time.sleep(60)']); time.sleep(60)"
    begin = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {code!r}]); print(p.pid, flush=True)"
    ended = subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert ended.stdout is not None
    worker = int(ended.stdout.readline())
    ended.wait()
    try:
        assert ended.stdout.readline() == "1\n"
        reports: list[dict[str, Any]] = []
        watch = UsageWatch(RunLimits(memory_gib=0.4), list, others=lambda: reports)
        assert watch.exceeded() is None
        reports.append({**this_process(), "pid": worker, "start": start_of(worker)})
        watch.check_others()
        assert "limits.memory_gib: it took 0.5" in (watch.exceeded() or "")
        reports[0] |= {"start": 1}  # the number is another process's now
        assert watch.exceeded() is None
    finally:
        for one in psutil.Process(worker).children():
            one.kill()
        os.kill(worker, 9)
        ended.stdout.close()


def test_what_a_sidecar_was_asked_takes_no_memory_once_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a budget accounts before each message, and a driver may ask as often as it likes."""
    hosting = pytest.importorskip("fedactors.federation.ray_hosting")
    answered: list[weakref.ref[Any]] = []
    writers: list[asyncio.StreamWriter] = []

    class Sidecar:
        is_sick = False

        def __init__(self, writer: asyncio.StreamWriter, *_: Any) -> None:
            writers.append(writer)

        async def watch(self) -> None:
            await asyncio.sleep(60)

        async def answer(self, number: int, verb: str, args: tuple[Any, ...]) -> None:
            answered.append(weakref.ref(asyncio.current_task()))

        def forget(self) -> list[Any]:
            gc.collect()
            return [one for one in answered if one() is not None]

    async def services() -> dict[str, str]:
        return {}

    monkeypatch.setattr(hosting, "RaySidecar", Sidecar)
    monkeypatch.setattr(hosting.cluster, "services", services)
    monkeypatch.setattr(hosting.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))

    async def ask() -> tuple[list[Any], bool]:
        near, far = socket.socketpair()
        keeping = asyncio.ensure_future(hosting._keep(far, SimpleNamespace(watchdog=None), 5.0))
        _, writer = await asyncio.open_connection(sock=near)
        for number in range(1, 201):
            hosting.write(writer, (number, "drained", ()))
        while len(answered) < 200:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        writer.write_eof()
        found = await keeping
        for one in (writer, *writers):
            one.close()
            with contextlib.suppress(OSError):
                await one.wait_closed()
        return found

    left, _ = asyncio.run(ask())
    assert len(answered) == 200
    assert len(left) < 5


def test_limits_that_cannot_be_counted_in_a_cluster_are_refused() -> None:
    elsewhere = lambda: [this_process() | {"boot": "another machine"}]  # noqa: E731
    for most in (RunLimits(memory_gib=1.0), RunLimits(cpu_hours=1.0), RunLimits(disk_gib=1.0)):
        with pytest.raises(BadInput, match="what actors take in this cluster cannot be counted"):
            UsageWatch(most, list, others=elsewhere).check_others()
        UsageWatch(most, list, others=lambda: [this_process()]).check_others()
    UsageWatch(RunLimits(hours=1.0), list, others=elsewhere).check_others()


def test_an_adopted_process_that_ends_is_no_zombie_and_ones_own_is_left_to_who_began_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(file)!r}, "w").write(str(os.getpid()))
        time.sleep(0.5)
    os._exit(0)
"""
    watch = UsageWatch(RunLimits(hours=1.0), list)
    watch.hold()
    try:
        begun = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
        subprocess.run([sys.executable, "-c", code], check=True)
        end = time.monotonic() + 20
        while time.monotonic() < end and not (file.exists() and file.read_text()):
            time.sleep(0.05)
        orphan = int(file.read_text())
        while time.monotonic() < end and psutil.pid_exists(orphan):
            watch.exceeded()
            time.sleep(0.05)
        assert not psutil.pid_exists(orphan)
    finally:
        watch.release()
    assert begun.wait(20) == 7


def test_a_file_that_is_closed_counts_and_goes_with_its_run() -> None:
    """Nobody would know whose it is: what lies in /tmp is looked at only while a process has it open."""
    before, variable = tempfile.gettempdir(), os.environ.get("TMPDIR")
    folder = TemporaryFolder()
    try:
        watch = UsageWatch(RunLimits(disk_gib=0.5 / 1024), lambda: [folder.path])
        assert watch.exceeded() is None
        write = "import os, tempfile; os.write(tempfile.mkstemp()[0], bytes(2**20))"
        subprocess.run([sys.executable, "-c", write], check=True)
        os.close(tempfile.mkstemp()[0])
        assert len(list(folder.path.iterdir())) == 2
        watch._disk_seen = -math.inf
        assert "limits.disk_gib" in str(watch.exceeded())
        other = TemporaryFolder()
        folder.remove()
        assert Path(tempfile.gettempdir()) == other.path
    finally:
        folder.remove()
    other.remove()
    other.remove()
    assert not folder.path.exists()
    assert not other.path.exists()
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == (before, variable)


def test_temporary_files_stay_as_long_as_a_run_may_use_them() -> None:
    """Both runs make theirs in the folder of the one that began last."""
    before = tempfile.gettempdir()
    first, second = TemporaryFolder(), TemporaryFolder()
    handle, name = tempfile.mkstemp()
    os.close(handle)
    assert Path(name).parent == second.path
    second.remove()
    assert Path(name).exists()
    third = TemporaryFolder()
    first.remove()
    assert not second.path.exists()
    assert not first.path.exists()
    assert third.path.exists()
    third.remove()
    assert not third.path.exists()
    assert tempfile.gettempdir() == before


def test_the_memory_of_another_runs_processes_is_not_counted() -> None:
    code = (
        "import sys; sys.stdin.readline(); held = b'x' * (200 << 20); print('held', flush=True); sys.stdin.readline()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    watches = [UsageWatch(RunLimits(memory_gib=0.125), list, root=lambda one=one: one.pid) for one in both]  # type: ignore[misc]
    try:
        both[0].stdin.write("\n")
        both[0].stdin.flush()
        assert both[0].stdout.readline() == "held\n"
        assert "limits.memory_gib" in str(watches[0].exceeded())
        assert watches[1].exceeded() is None
        assert UsageWatch(RunLimits(memory_gib=0.125), list, root=lambda: None).exceeded() is None
    finally:
        for one, watch in zip(both, watches, strict=True):
            watch.release()
            one.kill()
            one.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells which files a process has open")
def test_shared_memory_that_two_runs_have_goes_with_the_last_one() -> None:
    watches = [UsageWatch(RunLimits(), list) for _ in range(2)]
    path = Path("/dev/shm") / f"fedactors-test-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            file.write(bytes(4096))
            file.flush()
            for watch in watches:
                watch.exceeded()
        watches[0].release()
        assert path.exists()
        watches[1].release()
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_what_a_run_left_among_temporary_files_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, left = PassiveWorker.run_epoch, list[Path]()

    async def leaves(self: PassiveWorker, order: EpochOrder) -> None:
        handle, name = tempfile.mkstemp()
        os.close(handle)
        left.append(Path(name))
        await honest(self, order)

    leaves.__dict__.update(honest.__dict__)
    monkeypatch.setattr(PassiveWorker, "run_epoch", leaves)
    before, world = tempfile.gettempdir(), World(tmp_path)
    world.start(BANK)
    world.start(SHOP)
    try:
        assert federated(world, SMALL) == 0, world.output
        assert left
        end = time.monotonic() + 20
        while [path for path in left if path.parent.exists()]:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert tempfile.gettempdir() == before
    finally:
        world.stop()


def test_who_has_no_room_to_be_measured_has_taken_too_much(tmp_path: Path) -> None:
    world = World(tmp_path)
    process = SiteProcess(world.folder(SHOP))

    def exceeded() -> None:
        raise MemoryError

    proposal = SimpleNamespace(run="0" * 16, data={SHOP: "orders"}, coordinator=BANK)
    usage = SimpleNamespace(exceeded=exceeded)
    run: Any = SimpleNamespace(proposal=proposal, usage=usage, idle_seconds=0.0, has_begun=True, measured_at=-1e9)
    assert "stopped the run: limits.memory_gib: it took so much" in str(asyncio.run(process._why_to_stop(run)))


def test_a_driver_that_asks_for_nothing_after_the_approval_keeps_no_site(tmp_path: Path) -> None:
    """A site takes one run at a time: others would be told so for as long as it gives heartbeats."""
    process = SiteProcess(World(tmp_path).folder(SHOP), approval_seconds=5.0)
    run: Any = object.__new__(SiteRun)
    run.proposal, run.usage = SimpleNamespace(run="0" * 16, data={SHOP: "orders"}, coordinator=BANK), None
    run._steps, run._asked_at, run._is_stepping, run.life = set(), time.monotonic() - 4.0, False, Life.APPROVED
    assert asyncio.run(process._reason(run)) is None
    run._asked_at -= 2.0
    assert asyncio.run(process._reason(run)) == "its driver asked for nothing within 5 s of the approval"
    process.limits = replace(LIMITS, call=7.0)  # which another site may take for a step
    run._steps = {"prepare"}
    assert asyncio.run(process._reason(run)) is None
    run._asked_at -= 2.0
    for life in (Life.PREPARED, Life.LOADED, Life.CLOSED):
        run.life = life
        assert asyncio.run(process._reason(run)) == "its driver asked for nothing within 7 s of the step before"
    run._is_stepping = True
    assert asyncio.run(process._reason(run)) is None
    run._is_stepping, run.life = False, Life.OPEN
    assert asyncio.run(process._reason(run)) is None


@pytest.mark.parametrize("last", ["prepare", "finish"])
def test_a_driver_that_stops_between_two_steps_keeps_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """It goes on giving heartbeats: before the run is open, and after its end, nothing else would ever end it."""
    world, every = World(tmp_path), FederatedRuntime._all
    for name in world.names:
        world.start(name, replace(LIMITS, call=4.0))
        world.processes[name]._approval_seconds = 1.0

    async def stopping(self: FederatedRuntime, verb: str, *args: Any, **more: Any) -> Any:
        found = await every(self, verb, *args, **more)
        if verb == last:
            await asyncio.sleep(60)
        return found

    monkeypatch.setattr(FederatedRuntime, "_all", stopping)
    begun = time.monotonic()
    try:
        assert federated(world, SMALL) in (2, 3)
        said = "its driver asked for nothing within 4 s of the step before"
        assert any(said in text for name in world.names for text in world.output[name])
        assert time.monotonic() - begun < 55
    finally:
        world.stop()


def test_who_has_no_limits_is_held_to_none() -> None:
    watch = UsageWatch(RunLimits(hours=1.0), list)
    watch.hold()
    assert np.empty(4 * GIB, np.uint8).size == 4 * GIB
    watch.release()


def test_an_actor_that_asks_for_more_memory_than_there_may_be_ends_the_run_and_not_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one would whose settings make something large: nobody measures in between."""
    honest = PassiveWorker.run_epoch

    async def large(self: PassiveWorker, order: EpochOrder) -> None:
        if self.party == SHOP and asked:
            asked.pop()
            try:
                np.empty(8 * GIB, np.uint8)
            except MemoryError as error:
                refused.append(str(error))
                raise
        await honest(self, order)

    large.__dict__.update(honest.__dict__)
    monkeypatch.setattr(PassiveWorker, "run_epoch", large)
    asked, refused, world = [1], list[str](), World(tmp_path)
    limited(world, SHOP, memory_gib=2.0)
    world.start(BANK)
    world.start(SHOP)
    try:
        assert federated(world, SMALL) != 0
        assert ["Unable to allocate 8.00 GiB" in said for said in refused] == [True]
        end = time.monotonic() + 20
        while world.run(SHOP) is not None:  # it hears that the driver has gone
            assert time.monotonic() < end
            time.sleep(0.02)
        assert [line["status"] for line in world.audit(SHOP) if line["what"] == "ended"][-1:] == ["failed"]
        assert federated(world, SMALL) == 0, world.output
    finally:
        world.stop()


def test_a_run_that_ends_removes_no_shared_memory_of_another_in_its_process() -> None:
    going_on, over = UsageWatch(RunLimits(), list), UsageWatch(RunLimits(), list)
    file = Path(f"/dev/shm/torch_{os.getpid()}_1234_0")
    file.write_bytes(b"of the run that goes on")
    try:
        over.release()  # `going_on` has not looked since
        assert file.exists()
    finally:
        going_on.release()
        file.unlink(missing_ok=True)
