"""Whatever error others bring about, what lasts as long as a site, a relay or a server goes on, and so does a run."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import gc
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors import errors
from fedactors.data.alignment.ids import AlignmentAnswer, align, psi_answer
from fedactors.errors import BadInput, FedactorsError, PartyFailed, Refused
from fedactors.federation import online, relay, session, site
from fedactors.federation.hosting import Life
from fedactors.federation.relay import Called, Relay
from fedactors.federation.run_queue import ActiveRun
from fedactors.federation.session import AT_ONCE, ERROR, MOST, Broken, allow_files, framed, read_piece, refusal_in
from fedactors.federation.site import SiteProcess
from fedactors.federation.site_run import SiteRun, _bytes_in
from fedactors.messages.codec import encode_parts
from fedactors.runtime import failures
from fedactors.runtime.failures import UnawaitedCall, error_of
from tests.federation.hostile_sites import in_mid_run
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, LIMITS, SHOP, World

slow = pytest.mark.slow
pytestmark = [pytest.mark.drawn(3, family="hostile")]
KINDS = sorted(name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, FedactorsError))


def all_errors() -> Iterator[BaseException]:
    """One of each class: those that another end may name, this package's own and Python's, and a cancellation."""
    for name in (*KINDS, "Anything"):
        yield error_of(name, "bank", "is said", "")
    yield Broken("is said")
    for name, one in vars(builtins).items():
        if isinstance(one, type) and issubclass(one, Exception) and not issubclass(one, (Warning, UnicodeError)):
            yield ExceptionGroup("several", [OSError()]) if issubclass(one, BaseExceptionGroup) else one(name)
    yield asyncio.CancelledError()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("lasting"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


Begin = Callable[["World", pytest.MonkeyPatch, Callable[..., Any]], Any]


async def begin_look(world: World, patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Any:
    process = SiteProcess(world.folder(SHOP), tell=lambda line: None)
    patch.setattr(process._operations, "look", fail)
    process._last(process._look)
    return process._tasks[-1]


async def begin_keep_up(world: World, patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Any:
    process = SiteProcess(world.folder(SHOP), tell=lambda line: None)

    async def fetch(*_: Any) -> None:
        fail()

    patch.setattr(site, "fetch_federation", fetch)
    patch.setattr(site, "AGAIN_SECONDS", 0.0)
    patch.setattr(site, "ASK_SECONDS", 0.0)
    patch.setattr(process, "_refused_again", lambda *_: None)
    process._last(process._keep_up)
    return process._tasks[-1]


async def begin_called(world: World, patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Any:
    folder: Any = SimpleNamespace(relay=("127.0.0.1", 1), proxy=None, name=SHOP)

    async def open_stream(*_: Any) -> Any:
        fail()

    async def accept(*_: Any) -> None:
        """Take no connection."""

    patch.setattr(relay, "open_stream", open_stream)
    patch.setattr(relay, "_FIRST_PAUSE", 0.0)
    called = Called(folder, LIMITS, accept, lambda *_: None)
    called._pause = 0.0
    process = SiteProcess(world.folder(SHOP), tell=lambda line: None)
    process._last(called.wait)
    return process._tasks[-1]


async def begin_relay(world: World, patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Any:
    made = Relay(world.path / "credit" / "federation.toml", tell=lambda line: None)
    patch.setattr(relay, "_LOOK_SECONDS", 0.0)
    patch.setattr(made._unknown_peers, "look", fail)
    (await made.start("127.0.0.1", 0)).close()
    return made._looking


async def begin_keep_ready(world: World, patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Any:
    async def connect() -> None:
        fail()

    patch.setattr(online, "_AGAIN_SECONDS", 0.0)
    patch.setattr(online, "_LONGEST_PAUSE", 0.0)
    other: Any = SimpleNamespace(is_lost=True, close=lambda: None, connect=connect)
    server: Any = SimpleNamespace(is_ready=False)
    return asyncio.ensure_future(
        failures.lasting(lambda: online.keep_ready(server, [other], lambda _: None), lambda _: None)
    )


@slow
@pytest.mark.parametrize("begin", [begin_look, begin_keep_up, begin_called, begin_relay, begin_keep_ready])
def test_what_lasts_outlives_each_class_of_errors(world: World, monkeypatch: pytest.MonkeyPatch, begin: Any) -> None:
    """Each is raised where the task does its work, one after the other; it comes back for the next."""
    left, done = list(all_errors()), threading.Event()

    def fail(*_: Any) -> None:
        if left:
            raise left.pop()
        done.set()

    async def work() -> None:
        monkeypatch.setattr(failures, "FIRST_PAUSE", 0.0)
        monkeypatch.setattr(site, "EVERY_SECONDS", 0.0)
        task = await begin(world, monkeypatch, fail)
        async with asyncio.timeout(30):
            while not done.is_set():
                assert not task.done(), (len(left), task)
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(work())


def test_an_unforeseen_error_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    async def work() -> None:
        if not said:
            raise LookupError("what nobody foresaw")

    monkeypatch.setattr(failures, "FIRST_PAUSE", 0.0)
    asyncio.run(failures.lasting(work, said.append))
    assert len(said) == 1
    assert said[0].startswith("unforeseen error: LookupError: what nobody foresaw (test_lasting.py, line ")


# --- what another end says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "Anything", "BaseException"])
def test_who_refuses_chooses_no_kind_of_error(kind: str) -> None:
    body = b"".join(bytes(part) for part in encode_parts((kind, "clinic", "is said", "")))
    assert type(refusal_in(body, BANK)) is Refused


@slow
def test_a_relay_that_answers_with_any_kind_of_error_is_returned_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, num_come = [*KINDS, "Anything"], [0]
    monkeypatch.setattr(relay, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(relay, "_LONGEST_PAUSE", 0.0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(encode_parts(bytes(relay.NONCE_BYTES))))
        with contextlib.suppress(EOFError, OSError):
            await read_piece(reader, LIMITS)
            writer.write(framed(encode_parts((kinds[num_come[0] % len(kinds)], "relay", "", "")), ERROR))
            await writer.drain()
        num_come[0] += 1
        writer.close()

    async def work() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            folder: Any = world.folder(SHOP)
            folder.relay = server.sockets[0].getsockname()[:2]
            task = asyncio.ensure_future(Called(folder, LIMITS, answer, lambda *_: None).wait())
            async with asyncio.timeout(30):
                while num_come[0] < len(kinds):
                    assert not task.done(), (kinds[num_come[0] - 1], task)
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())


@pytest.mark.parametrize("how", ["already-aligned", "hash", "psi"])
@pytest.mark.parametrize(
    "parts", [(), (b"",), (b"x", b"x"), (b"", b""), (b"x" * 9,) * 3, (bytes(32), bytes(range(32)))], ids=repr
)
def test_an_alignment_answered_with_anything_is_refused(how: Any, parts: tuple[bytes, ...]) -> None:
    class Peer:
        async def answer_alignment(self, question: Any) -> AlignmentAnswer:
            return AlignmentAnswer(parts, np.zeros((0, 32), np.uint8))

    peers: Any = {"clinic": Peer()}
    if how == "hash" and not parts:
        return  # a party that has no row, which is an answer
    if (how, len(parts)) in (("already-aligned", 1),):
        with pytest.raises(BadInput, match="do not align"):
            asyncio.run(align(np.array(["a", "b"]), SHOP, how, peers, np.random.default_rng(0)))
        return
    with pytest.raises((Refused, BadInput)) as raised:
        asyncio.run(align(np.array(["a", "b"]), SHOP, how, peers, np.random.default_rng(0)))
    assert isinstance(raised.value, Refused) or "no id in common" in str(raised.value)
    if isinstance(raised.value, Refused):
        assert raised.value.party == "clinic"


@pytest.mark.parametrize(("kind", "settings"), [("bloom_filter", {"num_hash_functions": 1}), ("gcs", {"div": 1})])
def test_a_set_that_takes_as_long_as_its_sender_likes_is_refused(kind: str, settings: dict[str, int]) -> None:
    """Of a Bloom filter with 2^31 hash functions one id took hours, in which nothing stops the process."""
    import private_set_intersection.python as psi

    class Peer:
        async def answer_alignment(self, question: Any) -> AlignmentAnswer:
            _, response = psi_answer(np.array(["a", "c"]), question.content)
            told = psi.ServerSetup()
            for name, value in {**settings, "bits": b"abc"}.items():
                setattr(getattr(told, kind), name, value)
            return AlignmentAnswer((told.SerializeToString(), response), np.zeros((0, 32), np.uint8))

    peers: Any = {"clinic": Peer()}
    with pytest.raises(Refused, match=rf"sends an invalid PSI answer: its set is {kind}, not raw") as raised:
        asyncio.run(align(np.array(["a", "b"]), SHOP, "psi", peers, np.random.default_rng(0)))
    assert raised.value.party == "clinic"


def test_rows_of_an_intersection_that_were_not_asked_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedactors.data.alignment import ids

    class Peer:
        async def answer_alignment(self, question: Any) -> AlignmentAnswer:
            return AlignmentAnswer((b"", b""), np.zeros((0, 32), np.uint8))

    peers: Any = {"clinic": Peer()}
    for rows in ([0, 2], [-1, 0], [1, 1]):
        monkeypatch.setattr(ids, "psi_intersect", lambda *_, rows=rows: np.array(rows))
        with pytest.raises(Refused, match="rows that were not asked for"):
            asyncio.run(align(np.array(["a", "b"]), SHOP, "psi", peers, np.random.default_rng(0)))


# --- the watch over a run -------------------------------------------------------------------------------------------


def test_a_folder_that_goes_while_bytes_are_counted_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As checkpoints do, that a driver orders one after the other."""
    for name in ("goes", "stays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.ckpt").write_bytes(bytes(100_000))
    look = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("goes"):
            shutil.rmtree(path)
        return look(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert 100_000 <= sum(_bytes_in(tmp_path).values()) < 200_000


@slow
def test_what_cannot_be_measured_stops_the_run(world: World) -> None:
    process = SiteProcess(world.folder(SHOP), tell=lambda line: None)
    for error in all_errors():
        if isinstance(error, (asyncio.CancelledError, MemoryError, RuntimeError, StopIteration)):
            continue  # told otherwise, or not to be had from a thread

        def exceeded(error: BaseException = error) -> None:
            raise error

        proposal = SimpleNamespace(run="0" * 16, data={SHOP: "orders"}, coordinator=BANK)
        usage = SimpleNamespace(exceeded=exceeded)
        run: Any = SimpleNamespace(proposal=proposal, usage=usage, idle_seconds=0.0, has_begun=True, measured_at=-1e9)
        assert "cannot be measured" in str(asyncio.run(process._why_to_stop(run))), error


class Watched:
    """A run that says what became of it."""

    life, has_quorum, is_return, hosts = Life.OPEN, False, False, dict[str, str]()

    def __init__(self, *_: Any) -> None:
        self.proposal = SimpleNamespace(run="0" * 16, data={SHOP: "orders"}, coordinator=BANK)
        self.said: list[str] = []

    def fail(self, error: BaseException) -> None:
        self.said.append(str(error))

    def end(self, status: str, why: str) -> None:
        self.life = Life.ENDED


@slow
@pytest.mark.parametrize("name", ["_reason", "_why_to_stop"])
def test_a_run_that_nobody_watches_ends(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever the watch fails with, also where the disk is full."""
    monkeypatch.setattr(site, "SiteRun", Watched)

    async def work(error: BaseException) -> None:
        process = SiteProcess(world.folder(SHOP), tell=lambda line: None)

        async def fail(*_: Any) -> None:
            raise error

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(process, name, fail)
        monkeypatch.setattr(process.folder.audit, "add", full)
        begin: Any = process._begin
        active = process.runs["0" * 16] = ActiveRun(BANK, "0" * 16)
        await begin(active, None, None, None, {}, is_return=False)
        run: Any = active.site_run
        async with asyncio.timeout(10):
            while run.life is not Life.ENDED:
                await asyncio.sleep(0.01)
        assert len(run.said) == 1
        assert "stopped the run: " in run.said[0]
        assert not process.runs

    for error in (OSError(28, "full"), PartyFailed("bank", "x"), KeyError("x"), BadInput("x"), Broken("x")):
        asyncio.run(work(error))


# --- what stops a run -----------------------------------------------------------------------------------------------


def test_a_run_is_stopped_by_its_own_tasks_and_by_no_others() -> None:
    stopped, told = list[str](), list[str]()
    run = UnawaitedCall(lambda error: stopped.append(str(error)), lambda _: False, told.append)

    async def fail(what: str) -> None:
        raise ValueError(what)

    def fail_at_once(what: str) -> None:
        raise ValueError(what)

    async def of_run() -> None:
        run.enter()
        asyncio.get_running_loop().call_soon(fail_at_once, "a callback of the run")
        begun = asyncio.ensure_future(fail("a task of the run"))
        await asyncio.sleep(0.01)
        del begun

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(run)
        run.mark_tasks(loop)
        for error in all_errors():
            loop.call_exception_handler({"message": "a socket", "exception": error, "socket": None})
        loop.call_soon(fail_at_once, "a callback of the site")
        begun = asyncio.ensure_future(fail("a task of the site"))
        await asyncio.sleep(0.01)
        del begun
        await asyncio.ensure_future(of_run())
        gc.collect(1)

    asyncio.run(work())
    assert sorted(stopped) == ["a callback of the run", "a task of the run"]
    assert len(told) == 2 + len(list(all_errors()))


@slow
def test_what_fails_at_a_site_beside_a_run_does_not_stop_it(world: World) -> None:
    """As `socket.accept()` does, once a process has too many files open."""
    begun = []

    async def fail() -> None:
        raise LookupError("of no run")

    def act(run: SiteRun) -> None:
        loop = asyncio.get_running_loop()
        error = OSError(24, "Too many open files")
        loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": error})
        loop.create_task(fail())  # noqa: RUF006
        begun.append(run)

    before = len(world.output[SHOP])
    thread = in_mid_run(world, SHOP, act)
    assert federated(world, ("num_epochs=40", *SMALL[1:])) == 0
    thread.join(60)
    assert begun
    said = [line for line in world.output[SHOP][before:] if "unforeseen" in line]
    assert any("socket.accept()" in line for line in said)


@slow
def test_a_task_of_an_actor_that_fails_unawaited_stops_the_run(world: World) -> None:
    async def fail() -> None:
        raise LookupError("of an actor")

    def act(run: SiteRun) -> None:
        serve = run.actors.serve

        async def and_fail(*args: Any) -> Any:
            asyncio.ensure_future(fail())  # noqa: RUF006
            return await serve(*args)

        run.actors.serve = and_fail  # type: ignore[method-assign,assignment]

    thread = in_mid_run(world, SHOP, act)
    assert federated(world, ("num_epochs=100000", *SMALL[1:])) in (2, 3)
    thread.join(60)


# --- how many connections there are ---------------------------------------------------------------------------------

KNOCK = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
made = []
for _ in range(1400):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", int(sys.argv[1])))
    made.append(one)
print("knocked", flush=True)
time.sleep(3)
"""


@slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts a process's files in /proc")
def test_strangers_that_come_all_at_once_take_few_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the site is at something else, the system keeps them; it takes a few of them at a time."""
    port, peak, num_come = int(world.folder(SHOP).where.rpartition(":")[2]), [0], [0]
    comes = session.Admission.comes

    def counted(self: Any, *args: Any) -> Any:
        num_come[0] += 1
        peak[0] = max(peak[0], len(os.listdir("/proc/self/fd")))
        return comes(self, *args)

    monkeypatch.setattr(session.Admission, "comes", counted)
    before = len(os.listdir("/proc/self/fd"))
    with subprocess.Popen([sys.executable, "-c", KNOCK, str(port)], stdout=subprocess.PIPE) as crowd:
        world.on(SHOP, lambda: time.sleep(1.5))
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == b"knocked\n"
        assert crowd.wait(20) == 0
    until, seen = time.monotonic() + 30, -1
    while (seen != num_come[0] or world.processes[SHOP]._unknown_peers._here) and time.monotonic() < until:
        seen = num_come[0]
        time.sleep(0.5)
    assert num_come[0] > MOST + 5 * AT_ONCE
    assert AT_ONCE < peak[0] - before <= MOST + 5 * AT_ONCE


def test_a_process_is_allowed_as_many_files_as_the_system_has(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: held[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: held.append(both))
    allow_files(600)
    assert held[-1] == (4096, 4096)
    with pytest.raises(BadInput, match="the system allows 4096; 5000 are needed"):
        allow_files(5000)
    held.append((1024, resource.RLIM_INFINITY))
    allow_files(600)
    assert held[-1] == (65_536, resource.RLIM_INFINITY)
    held.append((1 << 20, 1 << 20))
    allow_files(600)
    assert held[-1] == (1 << 20, 1 << 20)
