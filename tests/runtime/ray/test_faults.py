"""Processes killed with -9 in the Ray runtime, under each policy."""

from __future__ import annotations

import asyncio
import ctypes
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil
import pytest

from fedactors.actors.context import Work
from fedactors.errors import PartyLost
from fedactors.runs.folder import this_process
from fedactors.runs.storage import start_of
from fedactors.runtime.ray import processes
from fedactors.runtime.ray.runtime import RayRuntime
from tests.runtime.actors import Echo, Memory, carry_endpoint, line

pytestmark = [
    pytest.mark.ray,
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.drawn(8, family="losses", subjects=["fedactors/runtime", "fedactors/actors"]),
]


def lose(policy: Any, drive: Any, names: str = "ab", **settings: Any) -> tuple[Any, RayRuntime]:
    """Run `drive(runtime, lost, *actors)`; `lost` is an event that is set after each loss was dealt with."""
    runtime = RayRuntime(**settings)

    async def main() -> Any:
        told: asyncio.Queue[str] = asyncio.Queue()
        runtime.on_loss(policy, told.put)
        actors = [line(runtime, name) for name in names]
        await runtime.start()
        return await drive(runtime, told, *actors)

    return runtime.execute(main), runtime


def kill(runtime: RayRuntime, name: str) -> None:
    os.kill(runtime.processes[name], signal.SIGKILL)


def test_stop_names_the_party_whoever_waits_for_whom() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> None:
        call = asyncio.ensure_future(a.wait_for_ever())  # the driver does not wait for the one that is lost
        await a.echo(1)
        kill(runtime, "b")
        await call

    with pytest.raises(PartyLost, match="b: its process is gone") as caught:
        lose("stop", drive)
    assert caught.value.party == "b"


@pytest.mark.parametrize("use_sockets", [True, False])
def test_continue_goes_on_without_it(use_sockets: bool) -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> Any:
        assert await a.relay("b", 1) == 1
        waiting = asyncio.ensure_future(a.outcome_of("b", "wait_for_ever"))
        await a.echo(1)
        kill(runtime, "b")
        found = [await waiting, await told.get(), await a.outcome_of("b", "add"), await a.echo(2)]
        await runtime.checkpoint()
        return found

    memory = Memory()
    assert lose("continue", drive, use_sockets=use_sockets, recorder=memory)[0] == ["lost b", "b", "lost b", 2]
    assert set(memory.snapshots[0][1].actors) == {"a"}


def test_restart_brings_the_last_snapshots_state_back_and_peers_find_the_new_process() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> Any:
        await a.relay_add("b", 5)
        await runtime.checkpoint()
        await a.relay_add("b", 2)
        before = await b.process()
        kill(runtime, "b")
        assert await told.get() == "b"
        assert await b.process() != before
        return await a.relay_add("b", 1), await b.add(0)

    assert lose("restart", drive)[0] == (6, 6)


def test_two_losses_at_once() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any, c: Any) -> Any:
        for actor in (a, b, c):
            await actor.add(3)
        await runtime.checkpoint()
        kill(runtime, "a")
        kill(runtime, "b")
        assert sorted([await told.get(), await told.get()]) == ["a", "b"]
        return (
            await c.relay_add("a", 1),
            await c.relay_add("b", 1),
            await a.relay_add("b", 1),
            await b.relay_add("a", 1),
        )

    assert lose("restart", drive, "abc")[0] == (4, 4, 5, 5)


def test_a_loss_during_a_checkpoint() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> Any:
        await b.add(3)
        await runtime.checkpoint()
        kill(runtime, "b")
        await runtime.checkpoint()
        return await a.relay_add("b", 1)

    memory = Memory()
    assert lose("restart", drive, recorder=memory)[0] == 4
    assert [set(found.actors) for _, found, _ in memory.snapshots] == [{"a", "b"}] * 2


def test_a_lost_process_leaves_no_folder() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> None:
        await a.relay("b", 1)
        kill(runtime, "b")
        await told.get()

    _, runtime = lose("continue", drive)
    folders = [f"{tempfile.gettempdir()}/fedactors-socket-*-{pid}-*" for pid in runtime.processes.values()]
    assert len(folders) == 2
    assert [found for folder in folders for found in glob.glob(folder)] == []


def test_an_actor_that_dies_while_it_starts_is_named() -> None:
    runtime = RayRuntime()

    async def main() -> None:
        runtime.on_loss("restart")
        line(runtime, "a", DiesAtOnce)
        await runtime.start()

    with pytest.raises(PartyLost, match=r"^a: "):
        runtime.execute(main)


def test_a_process_that_hangs_while_it_starts_is_named_in_time() -> None:
    runtime = RayRuntime(heartbeat_timeout=1.5)

    async def main() -> None:
        line(runtime, "a", HangsAtOnce)
        await runtime.start()

    began = time.monotonic()
    with pytest.raises(PartyLost, match=r"^a: its process gave no heartbeat for 1\.5 s"):
        runtime.execute(main)
    assert time.monotonic() - began < 60  # Ray's own limit for a start is longer
    until = time.monotonic() + 20
    while psutil.pid_exists(runtime.processes["a"]) and time.monotonic() < until:
        time.sleep(0.1)
    assert not psutil.pid_exists(runtime.processes["a"])


def test_a_process_that_hangs_before_it_is_asked_to_load_is_named_in_time() -> None:
    """It has answered once, so that nobody waits for a first heartbeat, which may not have come yet."""
    runtime = RayRuntime(heartbeat_timeout=1.5, start_timeout=30.0)
    met, heard = processes.Processes._introductions, processes.Processes._silence

    def introductions(self: Any, book: Any) -> Any:
        if "a" in book:
            os.kill(self.pids["a"], signal.SIGSTOP)
        return met(self, book)

    async def silence(self: Any, name: str, actor: Any, ticket: bytes) -> str:
        if name not in self.pids:
            await asyncio.Event().wait()  # no heartbeat came before the first answer
        return await heard(self, name, actor, ticket)

    async def main() -> None:
        line(runtime, "a")
        await runtime.start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.Processes, "_introductions", introductions)
        patch.setattr(processes.Processes, "_silence", silence)
        with pytest.raises(PartyLost, match=r"^a: its process gave no heartbeat for 1\.5 s while it was being"):
            runtime.execute(main)


class HoldsTheInterpreter(Echo):
    """Starts as one does whose libraries take long to load: no other thread of its interpreter runs meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        hold_computing(5.0)

    async def load(self) -> None:
        hold_computing(5.0)


class SleepsInTheInterpreter(Echo):
    """Hangs in a call that lets no other thread of its interpreter run, and computes nothing."""

    async def load(self) -> None:
        await asyncio.sleep(1.0)
        ctypes.PyDLL(None).sleep(100)


def hold_computing(seconds: float) -> None:
    """Compute, in one call at a time of which none lets another thread run; each takes seconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))
    sys.setswitchinterval(interval)


def test_a_process_that_is_busy_while_it_starts_is_waited_for() -> None:
    runtime = RayRuntime(heartbeat_timeout=1.0)

    async def main() -> Any:
        a = line(runtime, "a", HoldsTheInterpreter)
        await runtime.start()
        return await a.echo(3)

    began = time.monotonic()
    assert runtime.execute(main) == 3
    assert time.monotonic() - began > 10, "ten heartbeat timeouts without a sign, and it was not lost"


# one that is near is lost once it does no work: on a busy machine its imports may outlast several timeouts
@pytest.mark.parametrize(("is_near", "silence"), [(True, r"[\d.]+"), (False, "6")], ids=["here", "elsewhere"])
def test_a_process_that_sleeps_while_it_starts_is_lost(is_near: bool, silence: str) -> None:
    runtime = RayRuntime(heartbeat_timeout=1.5, start_timeout=60.0)

    async def main() -> None:
        line(runtime, "a", SleepsInTheInterpreter)
        await runtime.start()

    with pytest.MonkeyPatch.context() as patch:
        if not is_near:
            patch.setattr(processes, "is_here", lambda process: False)
        with pytest.raises(PartyLost, match=rf"^a: its process gave no heartbeat for {silence} s"):
            runtime.execute(main)


def test_whether_a_process_is_at_work() -> None:
    async def look(process: subprocess.Popen[bytes]) -> bool | None:
        return await processes.is_at_work(this_process() | {"pid": process.pid, "start": start_of(process.pid) or 0})

    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        time.sleep(3)
        assert asyncio.run(look(busy)) is True
        assert asyncio.run(look(idle)) is False
        busy.send_signal(signal.SIGSTOP)
        assert asyncio.run(look(busy)) is False
        gone = this_process() | {"pid": busy.pid, "start": start_of(busy.pid) or 0}
        assert asyncio.run(processes.is_at_work(gone | {"boot": "another"})) is None
        busy.send_signal(signal.SIGCONT)
        assert asyncio.run(processes.is_at_work(gone | {"start": 1})) is False
    finally:
        for process in (busy, idle):
            process.kill()
            process.wait()


def stop(runtime: RayRuntime, name: str) -> None:
    os.kill(runtime.processes[name], signal.SIGSTOP)


def test_a_process_that_hangs_is_lost_like_one_that_died() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> Any:
        await b.add(3)
        await runtime.checkpoint()
        await b.add(1)
        waiting = asyncio.ensure_future(a.outcome_of("b", "wait_for_ever"))
        await a.echo(1)
        stop(runtime, "b")
        return await waiting, await told.get(), await a.relay_add("b", 1)

    assert lose("restart", drive, heartbeat_timeout=1.5)[0] == ("lost b", "b", 4)


def test_two_processes_that_hang_at_once_are_both_brought_back() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any, c: Any) -> Any:
        for actor in (a, b, c):
            await actor.add(3)
        await runtime.checkpoint()
        stop(runtime, "a")
        stop(runtime, "b")
        assert sorted([await told.get(), await told.get()]) == ["a", "b"]
        return await c.relay_add("a", 1), await a.relay_add("b", 1)

    assert lose("restart", drive, "abc", heartbeat_timeout=1.5)[0] == (4, 4)


def test_a_hang_ends_a_run_that_does_not_go_on_without_the_party() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> None:
        stop(runtime, "b")
        await b.echo(1)

    with pytest.raises(PartyLost, match=r"b: its process gave no heartbeat for 1\.5 s"):
        lose("stop", drive, heartbeat_timeout=1.5)


@pytest.mark.parametrize("policy", ["continue", "restart"])
def test_a_hang_holds_no_checkpoint_up(policy: str) -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> Any:
        await a.add(1)
        await runtime.checkpoint()
        stop(runtime, "b")
        await runtime.checkpoint()
        await runtime.record_round(1, {})
        return await told.get(), await a.add(1)

    memory = Memory()
    assert lose(policy, drive, heartbeat_timeout=1.5, recorder=memory)[0] == ("b", 2)
    assert set(memory.snapshots[1][1].actors) == ({"a"} if policy == "continue" else {"a", "b"})


def test_a_long_computation_is_no_silence() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> Any:
        return await b.block(5.0), told.empty()

    runtime = RayRuntime(heartbeat_timeout=1.5)

    async def main() -> Any:
        told: asyncio.Queue[str] = asyncio.Queue()
        runtime.on_loss("continue", told.put)
        blocked = line(runtime, "b", Blocks)
        await runtime.start()
        return await drive(runtime, told, None, blocked)

    assert runtime.execute(main) == (5.0, True)


class Blocks(Echo):
    """Computes without a look at its messages."""

    @carry_endpoint
    async def block(self, seconds: float) -> float:
        return await self.compute(spin, seconds, work=Work("spin"))


def spin(seconds: float) -> float:
    """Keep the processor busy."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    return seconds


def test_nothing_is_asked_of_a_fresh_process_before_it_is_prepared() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any) -> Any:
        slow = line(runtime, "slow", SlowToBuild)
        await runtime.start()
        kill(runtime, "slow")
        num_settled = 0
        while told.empty():
            await runtime.settle()
            num_settled += 1
            await asyncio.sleep(0.02)
        return num_settled, await slow.add(1)

    (num_settled, found), _ = lose("restart", drive, "a")
    assert num_settled > 5  # records were asked for while the process came up
    assert found == 1


class SlowToBuild(Echo):
    """Its process takes a while until its actor is there."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.5)


class DiesAtOnce(Echo):
    """Its process ends while it loads."""

    async def load(self) -> None:
        os._exit(3)


class HangsAtOnce(Echo):
    """Its process stops while it loads."""

    async def load(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
