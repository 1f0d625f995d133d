"""A site's process: it listens, takes proposals, waits for its person's approval, and hosts the actors of its runs.

driver ──propose──▶ SiteProcess: check ──▶ its person, or its policy, approves ──▶ SiteRun ◀──control── driver
sites  ──calls, payloads, checks──────────────────────────────────────────────▶ SiteRun, or `answer_checks`

who waits     for what                                      no longer than
a driver      its proposal to be answered                   `approval_seconds`
a run         its driver to ask for its first step          `approval_seconds`
others        `policy.concurrent_runs` at a time: their turn, in `RunQueue`, if they wait; else they are refused

It is one file because who may connect, propose and begin is decided together.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import math
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import psutil

from fedactors.errors import BadInput, CallTimeout, FedactorsError, PartyLost, Refused
from fedactors.federation.approval import (
    PROPOSALS,
    RUN_ID,
    Proposal,
    check_proposal,
    check_return,
    closed_to_others,
    decide,
    decision,
    first_of,
    keep_proposal,
    kept_proposal,
    may_come_back,
    read_proposal,
    stop_reason,
    unanswered_proposals,
    why_a_person,
)
from fedactors.federation.audit_log import AUDIT
from fedactors.federation.audit_log import read as read_log
from fedactors.federation.handshake import accept
from fedactors.federation.hosting import Life
from fedactors.federation.identity import Federation
from fedactors.federation.operations import (
    CHECK_BYTES,
    CHECK_CALLS,
    CHECKING,
    EVERY_SECONDS,
    Operations,
    ShownRun,
    answer_checks,
    fetch_federation,
    installed,
    last_queue,
)
from fedactors.federation.relay import Called, federation_at_relay, listen_for_websockets
from fedactors.federation.run_queue import (
    POLL_SECONDS,
    QUEUED,
    ActiveRun,
    Demand,
    QueuedRun,
    RunQueue,
    why_not_beside,
)
from fedactors.federation.session import (
    AT_ONCE,
    MOST,
    MOST_OF_MEMBER,
    OTHER_FILES,
    PIECE_BYTES,
    REFUSED,
    Admission,
    Broken,
    Connection,
    Hello,
    Limits,
    allow_files,
    decoded,
    lengthen_queue,
    peer_address,
    value_of,
)
from fedactors.federation.site_code import take_code, why_not_allowed
from fedactors.federation.site_folder import OF_MACHINE, SiteFolder, open_to_others, to_tell
from fedactors.federation.site_run import CALLS, PAYLOADS, SiteRun, memory_of, shares_process
from fedactors.plugins import Protocol
from fedactors.runtime.compute import keep_freed_memory
from fedactors.runtime.failures import errors_for, kind_of, lasting, refused_for, unforeseen
from fedactors.validation import first_line, one_line, shown

T = TypeVar("T")
DRIVING = "driver"
_LOOK_SECONDS = 0.2
_PAUSED_SECONDS = 12.0
"""For which a free site waits for a paused run that it refused while it was busy: its driver dials every 5 s."""
_MEASURE_SECONDS = 1.0
_TELL_SECONDS = 2.0
"""Within which a driver hears that its run is stopped, before the others see that this site is gone."""
_LONGEST_WHY, _MOST_OPEN = 300, 20
PROPOSAL_BYTES = 64 * 1024
"""Of what a driver may send before its proposal is approved; decoded, it takes four times as much."""
ASK_SECONDS, AGAIN_SECONDS = 300.0, 60.0
"""After which some other site is asked for a newer federation.toml, and the same one again."""
_HOUR, _MINUTE = 3600.0, 60.0
_RELAY = "the relay"
_STOPPED = "stopped the run"
_QUEUE = "--queue-timeout SECONDS lets a run wait for its turn"
IDLE_SECONDS = 300.0
"""Within an hour that one site's drivers keep others from proposing, and propose nothing themselves."""
CHECK_SECONDS = 20.0
"""Of processor time that a proposal's check may take: all that is checked is of the coordinator's making."""
CHECKED_SECONDS, CHECKED_TOGETHER = 60.0, 600.0
"""Of a processor within an hour, that checks of one site's proposals take, and those of all before each has a share."""
CHECK_GROWTH = 2 << 30
"""Bytes by which a check may make the process larger; what asks for twice as much at once is refused by the system."""
_MOST_CHECKS = 4
"""Connections of one site for a check."""
_LINKS_OF_RUN = 8
_MOST_LINKS = _LINKS_OF_RUN + _MOST_CHECKS
"""Connections with one other site that have ended their handshake: of a run, calls and payloads each way, a driver."""


class SiteProcess:
    """A site's process; `tell` says a line to the person who watches the site, see `operations.Operations`."""

    def __init__(
        self,
        folder: SiteFolder,
        *,
        limits: Limits | None = None,
        tell: Callable[[dict[str, Any]], None] = lambda line: print(line["text"]),
        approval_seconds: float = 3600.0,
    ) -> None:
        self.folder = folder
        self.limits = limits or Limits(away=folder.wait_seconds)
        self.runs: dict[str, ActiveRun] = {}
        """By id: the runs whose drivers are connected, or for which the site is reserved."""
        self._operations = Operations(folder, tell)
        self._tell = self._operations.tell
        self._unknown_peers = Admission(self._refused)
        self._members: defaultdict[str, Admission] = defaultdict(lambda: Admission(self._refused, MOST_OF_MEMBER))
        """By site: what others are refused, however often, hides nothing of what it is."""
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._approval_seconds = approval_seconds
        self._links: WeakValueDictionary[tuple[str, str], Connection] = WeakValueDictionary()
        self._checks = ThreadPoolExecutor(1, "proposals")
        self._usage = ThreadPoolExecutor(1, "usage")
        """Begun before a run is held to anything: a thread may take more memory than is left then."""
        self._proposed_at: defaultdict[str, deque[float]] = defaultdict(deque)
        """By site: when it proposed, within the last hour."""
        self._checked_for: defaultdict[str, deque[tuple[float, float]]] = defaultdict(deque)
        """By site: when checks of its proposals ended, within the last hour, and seconds of a processor of each."""
        self._idled: defaultdict[str, deque[tuple[float, float]]] = defaultdict(deque)
        """By site: when its drivers stopped to be so, within the last hour, and for how many seconds, by the minute."""
        self._queue = RunQueue()
        self._beginning = asyncio.Lock()
        """Held from the last check of a run to its beginning: what it takes of a budget is not another's too."""
        self._keeps_free_until = 0.0
        """On the clock of `time.monotonic`: until then no run of the queue has its turn, but one that paused."""

    async def start(self) -> None:
        """Listen, or wait to be called through a relay, until `stop`.

        Raises:
            BadInput: nobody may listen there, or key, certificate and federation do not fit.
        """
        folder = self.folder
        installed()  # what is loaded now, or later from the same files, is what proposals are compared with
        _ = folder.server_tls
        policy = folder.policy
        links = MOST_OF_MEMBER + _MOST_LINKS + (policy.concurrent_runs - 1) * _LINKS_OF_RUN + policy.queued_runs
        connections = MOST + len(folder.federation.members) * links
        # a WebSocket has two ends of a pair of sockets beside its own
        allow_files(connections * (3 if folder.carrier == "websocket" else 1) + OTHER_FILES)
        keep_freed_memory()
        queue = last_queue(folder)
        self._operations.begin()
        self._usage.submit(int)
        if folder.relay is None:
            host, port = folder.listen or ("", 0)
            try:
                if folder.carrier == "websocket":
                    self._server = await listen_for_websockets(
                        host, port, self._accept, self._unknown_peers, self.limits
                    )
                else:
                    self._server = await asyncio.start_server(
                        self._accept, host, port, limit=2 * PIECE_BYTES, backlog=AT_ONCE
                    )
                    lengthen_queue(self._server.sockets)
            except OSError as error:
                self._operations.end()
                raise BadInput(f"listen: {host}:{port} cannot be listened at: {error.strerror or error}") from None
        folder.audit.add("started", site=folder.name, listen=folder.where)
        self._restore_queue(queue)
        self._reject_unanswered()
        self._tell_of_lost_lines()
        found = await asyncio.to_thread(lambda: list(open_to_others(folder.path)))
        for problem in found[:_MOST_OPEN]:
            self._tell("folder", problem)
        if len(found) > _MOST_OPEN:
            self._tell("folder", f"{folder.path}: so it is of {len(found) - _MOST_OPEN} other files there")
        for name in sorted(set(folder.policy.priority) - folder.federation.members.keys()):
            self._tell("folder", f"policy.priority.{name}: no site of {folder.federation.name} has this name")
        self._operations.look()
        does = "listens at" if folder.relay is None else "is called through"
        self._tell("listens", f"{folder.name}: {does} {folder.where}, in the federation {folder.federation.name}")
        self._last(self._look)
        self._last(self._keep_queue)
        self._last(self._keep_up)
        if folder.relay is not None:
            called = Called(folder, self.limits, self._accept, partial(self._operations.tell_of, _RELAY))
            self._last(called.wait)

    def _last(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin what lasts as long as this process, or as a driver's connection."""
        self._tasks = [task for task in self._tasks if not task.done()]
        task = asyncio.get_running_loop().create_task(lasting(work, partial(self._tell, "error")))
        self._tasks.append(task)

    def _reject_unanswered(self) -> None:
        """Reject what was proposed to the process of before: nobody waits for these answers any more."""
        waiting = {one.run for one in self._queue}
        for proposal in unanswered_proposals(self.folder):
            if proposal.run in waiting:
                continue
            with contextlib.suppress(BadInput):  # somebody has answered, just now
                decide(self.folder, proposal, approved=False, why="the site was started again")

    def _tell_of_lost_lines(self) -> None:
        """Say that answers stand in files and not in the log, whose end is lost then, or all of it."""
        with contextlib.suppress(BadInput):  # a broken line is told where the log is read to be used
            lines = read_log(self.folder.path / AUDIT)
            known = {line.get("run") for line in lines if line["what"] in ("approved", "rejected")}
            known |= {run for line in lines if line["what"] == "lost" for run in line["runs"]}
            answered = (self.folder.path / PROPOSALS).glob("*.decision.json")
            if lost := sorted({path.name.partition(".")[0] for path in answered} - known):
                self.folder.audit.add("lost", runs=lost)
                named = f"{', '.join(lost[:3])}{f' and {len(lost) - 3} others' if len(lost) > 3 else ''}"
                self._tell(
                    "lost",
                    f"{AUDIT}: lines are missing: it does not say how {named} was answered, nor what these "
                    "and later runs took of a budget: bring back the whole log",
                )

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            refusals = [those.look for those in (self._unknown_peers, *self._members.values())]
            for look in (self._show, self._operations.look, self._end_removed, *refusals):
                with contextlib.suppress(OSError, BadInput):  # a full disk; the next look may find room
                    look()

    async def _keep_up(self) -> None:
        """Take a newer file of the federation from who says that they have one, or has when asked in turn.

        Who has an older one is asked too: that tells them of this one.
        """
        asked: dict[str, float] = {}
        next_turn, turn = time.monotonic() + ASK_SECONDS, 0
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            now, wanted = time.monotonic(), set(self.folder.differ)
            self.folder.differ.clear()
            if now >= next_turn:
                others = sorted(set(self.folder.federation.members) - {self.folder.name})
                others += [] if self.folder.relay is None else [_RELAY]
                wanted |= {others[turn % len(others)]} if others else set()
                next_turn, turn = now + ASK_SECONDS, turn + 1
            for name in sorted(wanted):
                if now - asked.get(name, -math.inf) < AGAIN_SECONDS:
                    self.folder.differ.add(name)
                    continue
                asked[name] = now
                await self._take_over(name)

    async def _take_over(self, name: str) -> None:
        """Ask a site, or the relay, for its file of the federation; what is wrong with it is written down."""
        member = self.folder.federation.members.get(name)
        with contextlib.suppress(OSError):  # a full disk
            try:
                if member is not None:
                    await fetch_federation(self.folder, member, self.limits)
                elif name == _RELAY and self.folder.relay is not None:
                    self.folder.take_over(await federation_at_relay(self.folder, self.limits), "the relay")
                self._operations.look()
            except (PartyLost, CallTimeout, OSError, EOFError, TimeoutError):
                pass  # another time
            except Exception as error:  # whatever one answers, the others are asked
                why = error if isinstance(error, (FedactorsError, Broken)) else unforeseen(error)
                self._refused_again(name, f"has a federation.toml that is not taken: {why}")

    def _show(self) -> None:
        """Say what the site does."""
        reserved = {one.run for one in self._queue.reserved}
        found = []
        for active in self.runs.values():
            state = "running" if active.site_run is not None else "awaiting_approval"
            found.append(
                ShownRun(
                    active.run,
                    active.coordinator,
                    None if active.proposal is None else active.proposal.protocol,
                    "reserved" if active.run in reserved else state,
                    active.site_run,
                )
            )
        self._operations.does(found)

    def _end(self, active: ActiveRun) -> None:
        """Let a run be under way no longer; again does nothing."""
        self._count_idle(active)
        if self.runs.get(active.run) is active:
            del self.runs[active.run]
        self._show()

    def _site_run(self, run: str) -> SiteRun | None:
        active = self.runs.get(run)
        return None if active is None else active.site_run

    def stop(self) -> None:
        """End the runs that are under way."""
        for active in list(self.runs.values()):
            if active.site_run is not None:
                active.site_run.end("stopped", "the site was stopped")
            if active.watch is not None:
                active.watch.cancel()
            if active.driver is not None:
                active.driver.close()
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for one in (self._checks, self._usage):
            one.shutdown(wait=False, cancel_futures=True)
        self._operations.end()

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str | None = None
    ) -> None:
        if address is None:
            address = "{}:{}".format(*peer_address(writer))
        hello: list[tuple[str, Hello]] = []

        def welcome(peer: str, said: Hello) -> dict[str, Any]:
            made = self._welcome(peer, said)
            hello.append((peer, said))
            return made

        abort = writer.transport.abort
        admission = self._unknown_peers
        pending = admission.comes(f"somebody at {address.rpartition(':')[0]}", abort)

        def known(peer: str) -> None:
            nonlocal admission, pending
            admission.goes(pending)
            admission = self._members[peer]
            pending = admission.comes(peer, abort)

        def refused(who: str, why: str) -> None:
            if not pending.is_dropped:
                self._refused_again(who, why)

        try:
            connection = await accept(
                self.folder, reader, writer, self.limits, self._links, welcome, refused, known, address
            )
        finally:
            admission.goes(pending)
        if connection is None:
            if hello and _is_driver(hello[0][1]) and (active := self.runs.get(hello[0][1].run)) is not None:
                self._end(active)
            return
        peer, said = hello[0]
        self._operations.met(connection)
        if said.purpose == DRIVING:
            queued, active = self._queue.find(peer, said.run), self.runs.get(said.run)
            if queued is not None:
                queued.link, queued.absent_since = connection, None
            if active is not None and active.coordinator == peer:
                active.driver = connection
            self._last(partial(self._expect, connection))
        elif said.purpose != CHECKING and (run := self._site_run(said.run)) is not None:
            run.joined(peer, said.purpose, connection)

    async def _expect(self, driving: Connection) -> None:
        """Let a driver go that proposes nothing, or stays when its proposal was refused: others may want to ask."""

        def is_asking() -> bool:
            if (queued := self._queue.find(driving.peer, driving.name)) is not None:
                return queued.link is driving and queued.proposal is not None
            active = self.runs.get(driving.name)
            if active is None or active.driver is not driving:
                return False
            return active.is_considered or active.site_run is not None

        while not driving.is_closed:
            was_asking = is_asking()
            await asyncio.sleep(2 * self.limits.piece)
            if not (was_asking or is_asking() or driving.is_closed):
                driving.give_up("is connected as a driver and asks for no run", is_refused=True)

    def _refused(self, who: str, why: str) -> None:
        self.folder.audit.add("refused", party=who, why=why)
        self._tell("refused", f"refused: {who}: {why}")

    def _refused_again(self, who: str, why: str) -> None:
        """Write down who was refused, so many lines a minute: a refused peer may come again without end."""
        known = self.folder.federation.members
        (self._members[who] if who in known else self._unknown_peers).refused(who, why)

    def _welcome(self, peer: str, hello: Hello) -> dict[str, Any]:
        if hello.purpose == DRIVING and RUN_ID.fullmatch(hello.run):
            self._look_anew()
            try:  # before it takes the place of one that may
                self.folder.policy.check_coordinator(self.folder.name, peer)
            except BadInput as error:
                raise Refused(peer, f"comes as a driver: {error.for_others}") from None
            if not _is_driver(hello):
                return self._welcome_to_queue(peer, hello.run)
            if any(queued.run == hello.run for queued in self._queue):
                raise Refused(peer, f"comes with {hello.run}, which waits for its turn")
            self._give_up_lost(peer, hello.run)
            if (why := self._why_busy(peer, hello.run)) is not None:
                if self._queue.reserved:
                    self._queue.refused(peer, time.monotonic())
                policy, others = self.folder.policy, self._coordinators.count(peer)
                has_turn = policy.coordinator_runs is None or others < policy.coordinator_runs
                # of one that has no room beside the others nobody knows when it will have some
                if len(self.runs) >= policy.concurrent_runs and has_turn and self._is_paused(peer, hello.run):
                    self._keeps_free_until = time.monotonic() + _PAUSED_SECONDS
                raise Refused(peer, f"asks for a run while {why}; {_QUEUE}")
            self._check_idle(peer)
            self._keeps_free_until = 0.0
            self.runs[hello.run] = ActiveRun(peer, hello.run, idle_since=time.monotonic())
            return self._ends_of_driver(peer, hello.run)
        if hello.purpose == CHECKING:
            # no run's: what goes wrong with it is the asker's to see
            errors = errors_for(self.folder.name, peer)
            ends: dict[str, Any] = {
                "serve": answer_checks(peer, self.folder),
                "lost": lambda *_: None,
                "errors": errors,
            }
            checks = [one for (who, _), one in self._links.items() if who == peer and one.name == CHECKING]
            if sum(not one.is_closed for one in checks) >= _MOST_CHECKS:
                raise Refused(peer, f"has {_MOST_CHECKS} connections for a check already")
            ends["name"] = CHECKING
            limits = replace(self.limits, away=0.0, message=CHECK_BYTES, calls=CHECK_CALLS)
            return {**ends, "limits": limits, "traffic": self._operations.traffic(peer)}
        run = self._site_run(hello.run)
        if hello.purpose not in (CALLS, PAYLOADS) or run is None:
            raise Refused(peer, f"opens a connection for {hello.purpose[:40]!r} of a run that is not under way here")
        ends = run.welcome(peer, hello.purpose, hello.assignment)
        return {**ends, "traffic": self._operations.traffic(peer), "tell": partial(self._operations.tell_of, peer)}

    def _why_busy(self, peer: str, run: str) -> str | None:
        """Return why no driver may begin a run now that has not waited for it; None: it may."""
        policy, active = self.folder.policy, list(self.runs.values())
        # whose run it is and not which: who knows a run's id could wait with it where it has yet to come
        driver = active[0].driver if active else None
        whose = "another" if driver is None else f"one of {driver.peer}"
        if run in self.runs:
            return "it is under way already"
        if active and policy.concurrent_runs == 1:
            return f"{whose} is under way or waits: one at a time"
        if len(active) >= policy.concurrent_runs:
            return f"{whose} and others are under way or wait: {policy.concurrent_runs} at a time"
        most = policy.coordinator_runs
        if most is not None and sum(one.coordinator == peer for one in active) >= most:
            return f"{most} of {peer} are under way or wait: at most {most} at a time (policy.coordinator_runs)"
        if any(one.demand is not None and one.demand.is_alone for one in active):
            return f"{whose} is under way that has to be alone"
        waits = self._queue.turns(time.monotonic(), self._coordinators, most) if active else []
        if waits and not self._is_paused(peer, run):  # which comes before those that wait
            return "others wait for their turn"
        if active:
            with contextlib.suppress(BadInput):  # a paused run that has no room yet dials again
                if (known := kept_proposal(self.folder, run)) is not None:
                    return why_not_beside(self._demand(known), active, policy.totals)
        return None

    @property
    def _coordinators(self) -> list[str]:
        return [active.coordinator for active in self.runs.values()]

    def _give_up_lost(self, peer: str, run: str, *, is_new: bool = True) -> None:
        """Give up a driver whose connection broke, where a driver of its site comes anew with the run.

        Where `is_new`, and the site does one run at a time, another run of that driver's site is meant too. With more
        slots it may go on: a connection that breaks ends no run.
        """
        is_any = is_new and self.folder.policy.concurrent_runs == 1
        for active in list(self.runs.values()):
            driver = active.driver
            if driver is None or driver.peer != peer or driver.stream.is_carried:
                continue
            if active.run == run or is_any:
                driver.give_up("its driver came back without the run")

    def _demand(self, proposal: Proposal) -> Demand:
        """Return what a run takes of this site.

        Raises:
            BadInput: it asks for more than it may, or goes on from a run that is not known here.
        """
        limits = proposal.limits.within(self.folder.policy.run_limits, self.folder.name)
        is_shared = shares_process(self.folder.ray, SimpleNamespace(**proposal.config), proposal)
        is_limited = any(getattr(limits, name) is not None for name in OF_MACHINE)
        return Demand(limits, first_of(self.folder, proposal).run, is_alone=is_shared and is_limited)

    def _fits(self, queued: QueuedRun) -> bool:
        """Say whether a run that waits may begin beside those under way; what cannot be at all is told when it does."""
        assert queued.proposal is not None
        try:
            demand = self._demand(queued.proposal)
        except BadInput:
            return True
        return why_not_beside(demand, self.runs.values(), self.folder.policy.totals) is None

    def _take_room(self, active: ActiveRun, proposal: Proposal) -> None:
        """Let a run that was checked take of the site what it asks for.

        Raises:
            BadInput: there is too little beside the other runs.
        """
        demand = self._demand(proposal)
        for one in list(self.runs.values()):  # a run that is resumed is over where its driver has gone
            if one is not active and one.demand is not None and one.demand.first == demand.first:
                self._give_up_lost(active.coordinator, one.run, is_new=False)
        others = [one for one in self.runs.values() if one is not active]
        if others and (why := why_not_beside(demand, others, self.folder.policy.totals)) is not None:
            raise to_tell(f"{self.folder.name}: has no room for the run now: {why}; {_QUEUE}")
        active.demand = demand

    def _is_paused(self, peer: str, run: str) -> bool:
        """Say whether a run of this coordinator paused, and may go on: its driver dials again and does not queue."""
        with contextlib.suppress(BadInput):
            found = kept_proposal(self.folder, run)
            if found is not None and found.coordinator == peer and found.return_timeout > 0:
                answer = decision(self.folder, found)
                return answer is not None and answer[0] and stop_reason(self.folder, run) is None
        return False

    def _ends_of_driver(self, peer: str, run: str) -> dict[str, Any]:
        return {
            "serve": partial(self._drive, peer, run, asyncio.Lock()),
            "lost": self._driver_gone,
            "errors": errors_for(self.folder.name, peer),
            "limits": replace(self.limits, message=PROPOSAL_BYTES),
            "name": run,
            "traffic": self._operations.traffic(peer),
            "tell": partial(self._operations.tell_of, peer),
        }

    # --- runs that wait for their turn ---

    def _welcome_to_queue(self, peer: str, run: str) -> dict[str, Any]:
        """Let a run wait behind all others, or its driver come back to its position."""
        queued, now = self._queue.find(peer, run), time.monotonic()
        if queued is None:
            if run in self.runs or any(one.run == run for one in self._queue):
                raise Refused(peer, f"asks to wait with {run}, which is under way or waits already")
            self._check_idle(peer)
            policy = self.folder.policy
            if (why := self._queue.why_full(peer, policy.queued_runs, policy.queue_length)) is not None:
                raise Refused(peer, f"asks to wait with a further run: {why}: start it when one of them is over")
            queued = QueuedRun(peer, run, time.time())
            self._queue.add(queued)
        old, queued.link, queued.absent_since = queued.link, None, now
        if old is not None:
            old.give_up("its driver came back over another connection")
        return self._ends_of_driver(peer, run)

    async def _wait(self, peer: str, queued: QueuedRun, verb: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Take the proposal of a run that waits, or tell its driver its position once that has changed."""
        if queued.is_asking:
            raise self._note(Refused(peer, "asks for its position before it was told"))
        queued.is_asking = True
        try:
            if verb == QUEUED:
                await self._take_queued(peer, queued, args)
                with contextlib.suppress(OSError, BadInput):
                    self._look_at_queue()
                return self._position(queued)
            if queued.proposal is None:
                raise self._note(Refused(peer, "asks for its position before it has proposed a run"))
            end = time.monotonic() + POLL_SECONDS
            while (found := self._position(queued)) == args and time.monotonic() < end:
                await asyncio.sleep(_LOOK_SECONDS)
                if queued not in self._queue:  # it begins
                    return args
            return found
        finally:
            queued.is_asking, queued.asked_at = False, time.monotonic()
            if queued.rejection is not None:  # of which its driver is told now
                self._queue.remove(queued)

    def _position(self, queued: QueuedRun) -> tuple[int, str]:
        """Return the position of a run, and whose run it waits for.

        Raises:
            Refused: it waits no longer.
        """
        if queued.rejection is not None:
            raise Refused(self.folder.name, queued.rejection)
        if queued not in self._queue:
            raise Refused(self.folder.name, "lets the run wait no longer: start it again")
        if queued in self._queue.reserved:
            return 0, ""
        for active in self.runs.values():
            if active.driver is not None:
                return self._queue.position(queued), active.driver.peer
        before = self._queue.ahead(queued)
        return self._queue.position(queued), "" if before is None else before.coordinator

    async def _take_queued(self, peer: str, queued: QueuedRun, args: tuple[Any, ...]) -> None:
        """Keep the proposal of a run that waits: a person may answer it, and it is checked when its turn comes.

        Raises:
            Refused: it is none, or another one than before.
        """
        try:
            proposal = read_proposal(args[0] if args else None)
            if (proposal.coordinator, proposal.run) != (peer, queued.run):
                raise BadInput(
                    f"proposal: {proposal.coordinator[:60]!r} is not allowed as its coordinator: {peer} asks"
                )
            if queued.proposal is not None:  # its driver has come back
                self._check_same(queued, proposal)
                return
            self._look_anew()
            self._count_proposal(peer)
            self._check_name(peer, proposal.data.get(self.folder.name))
            with closed_to_others(self.folder.name):
                await asyncio.to_thread(keep_proposal, self.folder, proposal)
        except FileExistsError:
            self._queue.remove(queued)
            gone = to_tell("the run was proposed before, and waits no longer: start it again")
            raise self._cannot_be(peer, gone) from None
        except Exception as error:
            self._queue.remove(queued)
            raise self._cannot_be(peer, error) from None
        queued.proposal, queued.hosts = proposal, dict(self.folder.federation.hosts)
        facts = {"run": queued.run, "coordinator": peer, "protocol": proposal.protocol, "proposal": proposal.digest}
        self.folder.audit.add("proposed", **facts, hosts=queued.hosts)
        said = f"run {queued.run}: {peer} proposes {proposal.protocol}, and waits for its turn"
        self._tell("queued", f"{said}; fedactors site show {queued.run}, then answer, now or then")
        if proposal.purpose == "resume":
            self._give_up_lost(peer, proposal.earlier, is_new=False)

    def _check_same(self, queued: QueuedRun, proposal: Proposal) -> None:
        assert queued.proposal is not None
        if proposal.digest != queued.proposal.digest:
            raise to_tell(f"{self.folder.name}: run {queued.run} is another one than it was when it began to wait")

    def _restore_queue(self, rows: list[dict[str, Any]]) -> None:
        """Let the runs that waited for the process of before keep their positions until their drivers are back."""
        with contextlib.suppress(BadInput):  # a broken line is told where the log is read to be used
            lines = self.folder.log() if rows else []
            begun = {line.get("run") for line in lines if line["what"] in ("opened", "ended", "stopped", "rejected")}
            for row in rows:
                proposal = kept_proposal(self.folder, row["run"])
                if proposal is None or row["run"] in begun:
                    continue
                said = [one for one in lines if one["what"] == "proposed" and one.get("run") == row["run"]]
                hosts = said[-1].get("hosts", {}) if said else {}
                queued = QueuedRun(proposal.coordinator, proposal.run, row["since"], proposal, hosts)
                queued.absent_since = time.monotonic()
                self._queue.add(queued)

    async def _keep_queue(self) -> None:
        """Reserve the site for who is next, and let those go that wait no longer."""
        while True:
            with contextlib.suppress(OSError, BadInput):  # a full disk; the next look may find room
                self._look_at_queue()
            await asyncio.sleep(_LOOK_SECONDS)

    def _look_at_queue(self) -> None:
        now, policy = time.monotonic(), self.folder.policy
        for queued in self._queue.absent(now):
            self._leave_queue(queued, "the coordinator went away")
        for queued in self._queue:
            if queued.proposal is None or queued.rejection is not None:
                continue
            try:
                found, stopped = decision(self.folder, queued.proposal), stop_reason(self.folder, queued.run)
            except BadInput as error:  # a damaged answer keeps no other run waiting
                queued.rejection = str(error)
                continue
            queued.is_approved = policy.approve == "person" and found is not None
            if stopped is not None:
                queued.rejection = f"{_STOPPED}{f': {stopped}' if stopped else ''}"
                self._reject(queued, queued.rejection)
            elif found is not None and not found[0]:
                queued.rejection = f"rejected the run{f': {found[1]}' if found[1] else ''}"
        for held in self._queue.release(now, policy.reservation_seconds):
            said = f"run {held.run}: {held.coordinator} did not begin, and the site is free for the next"
            self._operations.tell_of(held.coordinator, "queued", said)
            if (active := self.runs.get(held.run)) is not None:
                self._end(active)
        self._queue.order(policy.priority)
        while len(self.runs) < policy.concurrent_runs and now >= self._keeps_free_until:
            fits = self._fits if self.runs else lambda _: True
            turn = self._queue.reserve(now, self._coordinators, policy.coordinator_runs, fits)
            if turn is None:
                break
            active = self.runs[turn.run] = ActiveRun(turn.coordinator, turn.run, turn.link, turn.proposal)
            with contextlib.suppress(BadInput):  # told when it is proposed
                assert turn.proposal is not None
                active.demand = self._demand(turn.proposal)
            self._show()
        self._operations.waiting(self._queue.rows(now))

    def _leave_queue(self, queued: QueuedRun, why: str) -> None:
        """Let a run wait no longer, and its proposal not wait for an answer."""
        was_reserved = queued in self._queue.reserved
        self._queue.remove(queued)
        self._reject(queued, why)
        if was_reserved and (active := self.runs.get(queued.run)) is not None:
            self._end(active)

    def _reject(self, queued: QueuedRun, why: str) -> None:
        if queued.proposal is not None and decision(self.folder, queued.proposal) is None:
            with contextlib.suppress(BadInput):  # somebody has answered, just now
                decide(self.folder, queued.proposal, approved=False, why=why)

    def _driver_gone(self, connection: Connection, why: str) -> None:
        if why.startswith(REFUSED):
            self._refused_again(connection.peer, why.removeprefix(REFUSED))
        if (queued := self._queue.find(connection.peer, connection.name)) is not None:
            if queued.link is connection:
                queued.link, queued.absent_since = None, time.monotonic()
            return
        active = self.runs.get(connection.name)
        if active is None or active.driver is not connection:
            return  # its run has ended
        proposal, run = active.proposal, active.site_run
        if run is not None:
            stopped = stop_reason(self.folder, run.proposal.run)
            said = f"ended it: {active.why}" if active.why else f"is gone: {why}"
            gone = ("failed", f"the driver at {connection.peer} {said}")
            run.end(*(gone if stopped is None else ("stopped", stopped)))
        self._end(active)
        if active.is_unanswered and proposal is not None:
            with contextlib.suppress(BadInput):  # somebody has answered, just now
                decide(self.folder, proposal, approved=False, why="the coordinator went away")

    async def _drive(self, peer: str, run: str, in_turn: asyncio.Lock, body: memoryview) -> Any:
        """Do what the driver at the site `peer` asks of this site; what is long to read keeps its turn."""

        def driven() -> ActiveRun | None:
            active = self.runs.get(run)
            return active if active is not None and active.driver is not None and active.coordinator == peer else None

        try:
            async with in_turn:
                is_large = (active := driven()) is not None and active.site_run is not None
                found = await decoded(body, peer) if is_large else value_of(body, peer, most=4 * PROPOSAL_BYTES)
        except Refused as error:
            raise self._note(error) from None
        if type(found) is not tuple or [type(part) for part in found] != [str, tuple]:
            raise self._note(Refused(peer, "sends what is no request"))
        verb, args = found
        queued = self._queue.find(peer, run)
        if queued is not None:
            if verb in (QUEUED, "position"):
                return await self._wait(peer, queued, verb, args)
            if verb == "fail":
                self._leave_queue(queued, "the coordinator went away")
            elif verb == "propose" and queued not in self._queue.reserved:
                raise self._note(Refused(peer, "proposes a run before its turn"))
        if (active := driven()) is None:
            if verb == "fail":  # the last word on a run that has ended here
                return None
            raise self._note(Refused(peer, f"asks for {verb[:40]!r} of a run that is not under way, or is another's"))
        if verb == "fail" and [type(part) for part in args] == [str]:
            active.why = one_line(args[0], _LONGEST_WHY)
            return None
        if verb == "propose":
            if queued is not None:
                self._queue.remove(queued)
            if active.is_considered:
                raise self._note(Refused(peer, "proposes a second time"))
            active.is_considered = True
            self._count_idle(active)
            try:
                await self._consider(active, args, queued)
            except Refused:  # which is on record
                raise
            except Exception as error:
                raise self._cannot_be(peer, error) from None
            finally:
                active.is_considered = False
                if active.site_run is None and self.runs.get(run) is active:
                    active.idle_since = time.monotonic()
            return None
        if (run_here := active.site_run) is None:
            raise self._note(Refused(peer, f"asks for {verb[:40]!r} before anything is approved"))
        try:
            work = run_here.control(verb, args)
            answer = await (run_here.unless_it_fails(work) if verb in SiteRun.VERBS else work)
            if verb == "end":
                self._end(active)
            return answer
        except Exception as error:
            if verb in SiteRun.VERBS and not run_here.failure.done():
                if isinstance(error, Refused):
                    run_here.note(error)
                else:
                    run_here.fail(error)
            raise

    def _note(self, error: Refused) -> Refused:
        self._refused_again(error.party, error.message)
        return error

    async def _consider(self, active: ActiveRun, args: tuple[Any, ...], queued: QueuedRun | None) -> None:
        """Check a proposal and wait for this site's answer, which may have come while the run was `queued`.

        Raises:
            Refused: it cannot be, or the answer is no.
        """
        peer, run = active.coordinator, active.run
        if active.site_run is not None:
            raise self._note(Refused(peer, "proposes a second time"))
        self._look_anew()
        try:
            if queued is None:
                self._count_proposal(peer)
            self._count_seconds(peer)
            proposal = read_proposal(args[0] if args else None)
            if (proposal.coordinator, proposal.run) != (peer, run):
                raise BadInput(
                    f"proposal: {proposal.coordinator[:60]!r} is not allowed as its coordinator: {peer} asks"
                )
            if queued is not None:
                self._check_same(queued, proposal)
            self._check_name(peer, proposal.data.get(self.folder.name))
            await asyncio.to_thread(_get_ready)
            protocol, config = await self._checked(proposal, may_wait=True)
            if await asyncio.to_thread(take_code, self.folder, proposal, args[1:]):
                protocol, config = await self._checked(proposal)  # what its signature had to allow first
            hosts = dict(self.folder.federation.hosts)
            self._take_room(active, proposal)
            with closed_to_others(self.folder.name):  # it reads the log, however long it is
                is_new = queued is None
                may_return = is_new and may_come_back(config, proposal)
                is_return = may_return and await asyncio.to_thread(self._is_known, proposal, hosts)
                if is_return and (why := why_not_allowed(self.folder, proposal)):  # nobody is asked again
                    raise to_tell(f"{self.folder.name}: {why}")
                if is_new and not is_return:
                    await asyncio.to_thread(keep_proposal, self.folder, proposal)
            if queued is not None:
                _check_hosts(queued.hosts, hosts)
        except BaseException as error:
            if queued is not None:
                is_wrong = isinstance(error, Exception)
                self._reject(queued, "it cannot be" if is_wrong else "the coordinator went away")
            if not isinstance(error, Exception):
                raise
            raise self._cannot_be(peer, error) from None
        facts = {"run": run, "coordinator": peer, "protocol": proposal.protocol, "proposal": proposal.digest}
        name = self.folder.name
        if is_return:
            active.proposal = proposal
            async with self._beginning:
                if len(self.runs) > 1:  # another run may have begun since
                    protocol, config = await self._checked_again(peer, proposal, hosts)
                await self._begin(active, proposal, protocol, config, hosts, is_return=True)
            return
        if is_new:
            self.folder.audit.add("proposed", **facts, hosts=hosts)
        by_policy = self.folder.policy.approve == "policy"
        async with self._beginning:  # one that is allowed is known when the next one is compared with it
            why_not = await asyncio.to_thread(why_a_person, config, proposal, self.folder) if by_policy else ""
            is_allowed = by_policy and not why_not
            if is_allowed:
                allow = partial(decide, self.folder, proposal, approved=True, why="the policy allows it")
                with contextlib.suppress(BadInput):  # a person has answered while the policy looked at the data
                    await asyncio.to_thread(allow)
        said = "the policy allows it" if is_allowed else f"fedactors site show {run}, then answer"
        said += f" (not the policy's to answer: {why_not})" if why_not else ""
        active.proposal, active.is_unanswered = proposal, True
        self._show()
        self._tell("proposed", f"run {run}: {peer} proposes {proposal.protocol}; {said}")
        approved, why = await self._answer(proposal)
        active.is_unanswered = False
        if not approved:
            raise Refused(name, f"rejected the run{f': {why}' if why else ''}")
        async with self._beginning:
            self._look_anew()  # site.toml may have become another, or what is left of a budget, while a person thought
            protocol, config = await self._checked_again(peer, proposal, hosts)
            self._take_room(active, proposal)
            await self._begin(active, proposal, protocol, config, hosts, is_return=False)

    async def _checked_again(self, peer: str, proposal: Proposal, hosts: Mapping[str, str]) -> tuple[Protocol, Any]:
        try:
            found = await self._checked(proposal)
            _check_hosts(hosts, dict(self.folder.federation.hosts))
        except Exception as error:
            raise self._cannot_be(peer, error) from None
        return found

    def _count_idle(self, active: ActiveRun) -> None:
        """Count for how long a driver was connected and had proposed nothing."""
        if (since := active.idle_since) is not None:
            now, found, active.idle_since = time.monotonic(), self._idled[active.coordinator], None
            if found and now - found[-1][0] < _MINUTE:  # a driver that comes a hundred times a second is one entry
                since -= found[-1][1]
                now = found.pop()[0]
            found.append((now, time.monotonic() - since))

    def _check_idle(self, peer: str) -> None:
        """Check that drivers of a site have not kept others from proposing for long, by proposing nothing.

        Raises:
            Refused: they have.
        """
        found, now = self._idled[peer], time.monotonic()
        while found and now - found[0][0] > _HOUR:
            found.popleft()
        if (seconds := sum(one for _, one in found)) > IDLE_SECONDS:
            minutes = math.ceil((_HOUR - now + found[0][0]) / 60)
            does = f"comes as a driver, after {seconds:.0f} s within an hour in which its drivers were connected and "
            does += f"proposed nothing: at most {IDLE_SECONDS:g} s; come again in {minutes} minutes"
            raise Refused(peer, does)

    def _count_proposal(self, peer: str) -> None:
        """Count what a site proposes: each is checked, written to a file and to the log, and keeps others waiting.

        Raises:
            BadInput: it was as many as the policy allows within an hour.
        """
        times, now, most = self._proposed_at[peer], time.monotonic(), self.folder.policy.proposals_per_hour
        while times and now - times[0] > _HOUR:
            times.popleft()
        if len(times) >= most:
            minutes = math.ceil((_HOUR - now + times[0]) / 60)
            raise BadInput(
                f"{self.folder.name}: policy.proposals_per_hour: {peer} has proposed {len(times)} times within an "
                f"hour; at most {most}: propose again in {minutes} minutes"
            )
        times.append(now)

    def _count_seconds(self, peer: str) -> None:
        """Count what checks of a site's proposals took, so that no site, and no few of them, fill the one thread.

        Raises:
            BadInput: they took as long as they may within an hour.
        """
        now, took = time.monotonic(), dict[str, float]()
        for site, found in self._checked_for.items():
            while found and now - found[0][0] > _HOUR:
                found.popleft()
            took[site] = sum(seconds for _, seconds in list(found))  # the thread may add to it
        most = CHECKED_SECONDS
        if sum(took.values()) >= CHECKED_TOGETHER:
            most = min(most, CHECKED_TOGETHER / len(self.folder.federation.members))
        if took.get(peer, 0.0) >= most:
            minutes = math.ceil((_HOUR - now + self._checked_for[peer][0][0]) / 60)
            raise to_tell(
                f"{self.folder.name}: checks of what {peer} proposed took {most:.3g} s of a processor within an hour, "
                f"which is all they may: propose again in {minutes} minutes"
            )

    def _is_known(self, proposal: Proposal, hosts: Mapping[str, str]) -> bool:
        """Say whether a run was approved here before and has not come to its end, so that this site comes back to it.

        Raises:
            BadInput: its person or its limits have stopped it, it came back as often as the policy allows, was away for
                longer, or actors without data are hosted elsewhere than when it was proposed.
        """
        known = kept_proposal(self.folder, proposal.run)
        answer = decision(self.folder, proposal) if known is not None and known.digest == proposal.digest else None
        is_same = answer is not None and answer[0]
        lines = [line for line in self.folder.log() if line.get("run") == proposal.run] if is_same else []
        if not is_same or any(line["what"] == "ended" and line["status"] == "finished" for line in lines):
            return False
        stopped = next((line["why"] for line in lines if line["what"] == "stopped"), None)
        if (why := stop_reason(self.folder, proposal.run) if stopped is None else stopped) is not None:
            raise to_tell(f"{self.folder.name}: left the run{f': {why}' if why else ''}")
        _check_hosts(next((line["hosts"] for line in lines if line["what"] == "proposed"), {}), hosts)
        check_return(self.folder, proposal, lines)
        return True

    async def _begin(
        self,
        active: ActiveRun,
        proposal: Proposal,
        protocol: Protocol,
        config: Any,
        hosts: Mapping[str, str],
        *,
        is_return: bool,
    ) -> None:
        """Take part in a run that is approved."""
        if self.runs.get(active.run) is not active:
            raise Refused(self.folder.name, "does not begin the run: the coordinator went away")
        try:
            run = active.site_run = SiteRun(self.folder, proposal, protocol, config, self.limits, self._operations)
        except BaseException:
            self.folder.reserved.pop(proposal.run, None)  # of the budget
            raise
        run.is_return, run.hosts = is_return, hosts
        if active.driver is not None:
            active.driver.limits = run.limits
        active.watch = asyncio.get_running_loop().create_task(self._stop_when_asked(active, run))
        active.watch.add_done_callback(partial(self._watch_ended, active, run))
        self._show()

    async def _checked(self, proposal: Proposal, *, may_wait: bool = False) -> tuple[Protocol, Any]:
        """Check a proposal, one at a time, for as long as settings, query and log take; others are answered meanwhile.

        Raises:
            BadInput: it cannot be, or takes too long to check.
        """
        is_unwanted = threading.Event()

        work = partial(check_proposal, proposal, self.folder, may_wait=may_wait)

        def check() -> tuple[Protocol, Any]:
            begun = time.thread_time()
            try:
                return within_bounds(CHECK_SECONDS, work, is_unwanted=is_unwanted)
            finally:
                self._checked_for[proposal.coordinator].append((time.monotonic(), time.thread_time() - begun))

        try:
            return await asyncio.get_running_loop().run_in_executor(self._checks, check)
        finally:
            is_unwanted.set()  # its driver may have gone

    def _cannot_be(self, peer: str, error: Exception) -> Refused:
        """Write down why a proposal is refused; what its coordinator is told is nothing that only this site knows."""
        told = None
        if isinstance(error, FileExistsError):
            why = "the run was proposed before"
        elif isinstance(error, FedactorsError):
            why, told = str(error), error.for_others
        else:
            why, told = unforeseen(error), f"{kind_of(error)}; the log of the site {self.folder.name} says more"
        self._note(Refused(peer, f"proposes what cannot be: {why}"))
        told = why if told is None else told
        return Refused(peer, f"proposes what cannot be: {told.replace(f'{self.folder.path}/', '')}")

    def _look_anew(self) -> None:
        try:
            self.folder.look()
        except BadInput as error:
            self._tell("config_errors", f"data and policy of before hold: {error}")

    def _check_name(self, peer: str, name: str | None) -> None:
        """Refuse data by a wrong name without other names: these are for the own log."""
        if name is not None and name not in self.folder.names():
            self._refused_again(peer, f"asks for data named {shown(name)}; here are {', '.join(self.folder.names())}")
            raise BadInput(f"{self.folder.name}: has no data named {shown(name)}")

    async def _stop_when_asked(self, active: ActiveRun, run: SiteRun) -> None:
        """Stop a run as soon as there is a reason for it at this site, whatever its driver does."""
        while (reason := await self._why_to_stop(run)) is None:
            await asyncio.sleep(_LOOK_SECONDS)
            if run.life is Life.ENDED:
                return
        if run.life is Life.ENDED:
            return
        why = reason.message.removeprefix(_STOPPED).removeprefix(": ")
        try:
            self.folder.audit.add("stopped", run=run.proposal.run, why=why)
        except (OSError, BadInput) as error:  # a full disk is no reason to let the run go on
            self._tell("error", f"run {run.proposal.run}: is stopped, which the log does not say: {first_line(error)}")
        # with a quorum the run goes on without this site, if its driver is another's
        leaves = run.has_quorum and run.life is Life.OPEN and run.proposal.coordinator != self.folder.name
        if not leaves:
            run.fail(reason)
        driving = active.driver
        if driving is not None and not leaves:  # which is told before the other sites see that this one is gone
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TELL_SECONDS):
                    await run.is_told.wait()
            await asyncio.sleep(_LOOK_SECONDS)
            await driving.flush()
        run.end("stopped", why)
        if self.runs.get(active.run) is active:
            if driving is not None:
                await driving.end()
            self._end(active)

    def _watch_ended(self, active: ActiveRun, run: SiteRun, watch: asyncio.Task[None]) -> None:
        """End a run that nobody watches any more."""
        if watch.cancelled() or run.life is Life.ENDED:
            return
        error, does = watch.exception(), f"{_STOPPED}: nobody would stop it any more"
        me = self.folder.name
        reason = Refused(me, f"{does}: its watch ended") if error is None else refused_for(me, does, error)
        run.fail(reason)
        run.end("stopped", reason.message.removeprefix(f"{_STOPPED}: "))
        if self.runs.get(active.run) is active:
            if active.driver is not None:
                active.driver.close()
            self._end(active)

    async def _why_to_stop(self, run: SiteRun) -> Refused | None:
        """Return a reason to stop a run, which is one too if it cannot be looked for; None: it goes on."""
        me = self.folder.name
        try:
            why = await self._reason(run)
        except Refused as error:
            return error
        except Exception as error:
            return refused_for(me, f"{_STOPPED}: whether it is to be stopped cannot be seen", error)
        return None if why is None else Refused(me, f"{_STOPPED}{f': {why}' if why else ''}")

    async def _reason(self, run: SiteRun) -> str | None:
        """Return what this site's person says, or who of the run is in the federation no more; None: it goes on.

        Raises:
            Refused: what it takes of the machine cannot be measured.
        """
        federation, proposal = self.folder.federation, run.proposal
        gone = [site for site in (*proposal.data, proposal.coordinator) if site not in federation.members]
        said = stop_reason(self.folder, proposal.run)
        if said is None and gone:
            return _is_no_site(gone[0], federation)
        # as long as others may take to answer, or to do a step
        most = max(self._approval_seconds, self.limits.call if run.has_begun else 0.0)
        if said is None and run.idle_seconds > most:
            since = "the step before" if run.has_begun else "the approval"
            return f"its driver asked for nothing within {most:g} s of {since}"
        if said is None and run.usage is not None and time.monotonic() - run.measured_at > _MEASURE_SECONDS:
            run.measured_at = time.monotonic()
            try:  # which looks through all processes of the machine
                return await asyncio.get_running_loop().run_in_executor(self._usage, run.usage.exceeded)
            except (MemoryError, RuntimeError):
                return (
                    "limits.memory_gib: it took so much that nothing is left to measure with: smaller settings, or a "
                    "larger policy.limits.memory_gib and --limit memory_gib"
                )
            except Exception as error:
                does = f"{_STOPPED}: policy.limits: what it takes of this machine cannot be measured"
                raise refused_for(self.folder.name, does, error) from None
        return said

    def _end_removed(self) -> None:
        """End the links of sites that are in the federation no more; who shows an old certificate shows a new one."""
        federation = self.folder.federation
        for link in list(self._links.values()):
            if link.is_closed:
                continue
            if link.peer not in federation.members:
                self._refused_again(link.peer, "has links here, and is in the federation no more")
                link.give_up(_is_no_site(link.peer, federation), is_refused=True)
            elif link.certificate not in federation.members[link.peer].fingerprints:
                link.cut("its certificate holds no longer")

    async def _answer(self, proposal: Proposal) -> tuple[bool, str]:
        try:
            async with asyncio.timeout(self._approval_seconds):
                while (found := decision(self.folder, proposal)) is None:
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            why = f"nobody answered within {self._approval_seconds:g} s"
            with contextlib.suppress(BadInput):  # somebody has, just now
                decide(self.folder, proposal, approved=False, why=why)
            return decision(self.folder, proposal) or (False, why)
        return found


class _TooMuch(BaseException):
    """What is checked has taken too much; no code that is checked takes it for an error of its own."""


def within_bounds(seconds: float, work: Callable[..., T], *args: Any, is_unwanted: threading.Event | None = None) -> T:
    """Return what `work` returns, if it takes so many seconds of a processor, and `CHECK_GROWTH` of memory, at most.

    It is ended between two instructions of Python, as loops over what somebody else has written are; in its own thread.
    The system refuses at once what one instruction asks for beyond twice the growth: to the whole process, also to the
    runs whose actors are in it, where several may be under way.

    Args:
        seconds: how many.
        work: what is checked.
        args: of it.
        is_unwanted: whether nobody waits for it any more.

    Raises:
        BadInput: it takes more, or nobody waits for it.
    """
    me, guard, is_over = threading.get_ident(), threading.Lock(), threading.Event()
    taken: Callable[[], float] = time.monotonic  # where a system does not say what a thread takes
    if hasattr(time, "pthread_getcpuclockid"):
        taken = partial(time.clock_gettime, time.pthread_getcpuclockid(me))
    process = psutil.Process()
    end, most, why = taken() + seconds, process.memory_info().rss + CHECK_GROWTH, list[str]()
    too_large = f"it takes more than {CHECK_GROWTH / 2**30:g} GiB of memory to check (runs in this process count too)"

    def too_much() -> Iterator[str]:
        if taken() > end:
            yield f"it takes more than {seconds:g} s of a processor to check"
        if process.memory_info().rss > most:
            yield too_large
        if is_unwanted is not None and is_unwanted.is_set():
            yield "nobody waits for its check any more"

    def watch() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            with guard:
                if not is_over.is_set() and (found := next(too_much(), "")):
                    why.append(found)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(_TooMuch))
                    return

    threading.Thread(target=watch, name="limit", daemon=True).start()
    try:
        try:
            with memory_of(2 * CHECK_GROWTH):
                return work(*args)
        finally:
            with guard:
                is_over.set()
    except _TooMuch:
        raise BadInput(f"proposal: {why[0]}") from None
    except MemoryError:
        raise BadInput(f"proposal: {too_large}") from None


def _is_driver(said: Hello) -> bool:
    """Say whether a driver comes that does not wait for its turn."""
    return said.purpose == DRIVING and said.assignment != QUEUED


def _check_hosts(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that actors without data are hosted where they were when the run was proposed.

    Raises:
        BadInput: a newer federation.toml has them elsewhere.
    """
    if then != now:
        differ = ", ".join(sorted(party for party in {**then, **now} if then.get(party) != now.get(party)))
        raise to_tell(
            f"hosts: federation.toml names other hosts than when the run was proposed, of {differ}: propose a new run"
        )


def _is_no_site(site: str, federation: Federation) -> str:
    return f"{site} is no site of {federation.name} any more"


def _get_ready() -> None:
    """Import what computes, at the first proposal: it takes seconds, and memory that a site that idles does without.

    What it loads stays: the collector of garbage would look through all of it, for tenths of a second, while others
    wait.
    """
    is_new = "torch" not in sys.modules
    gc.disable()
    try:
        import torch
    finally:
        gc.enable()
    if is_new:
        gc.freeze()
    torch.set_num_threads(1)  # as in every process that computes: two give other last bits
