"""FederatedRuntime: the driver's side of a run whose actors are hosted by the sites of several organisations.

    run.py ──spawn, call──▶ FederatedRuntime ──TLS──▶ site of each organisation ◀──TLS──▶ the others

    who waits               for what
    driver, if it may       each site to be free for it, in the order of their names (`_await_turns`)
    driver, before `start`  every site to approve the proposal
    `start`, `checkpoint`   all sites, step by step (`SiteRun.control`); checkpoints are written while the run goes on
    a call                  the reply of the actor's site

The driver runs at the coordinator's site, under its key. It reads no data: actors are spawned by (class, name, plain
arguments), and each site builds its own from its installed code. What is lost stops the run; with a quorum
(`Runtime.deadline`) it survives from its first checkpoint on the loss of any site but the coordinator's:

    lost        no barrier waits for the site, and the protocol's server goes on with who answers
    dialled     every few seconds, until it is there again: it goes on from its own last checkpoint, the others open
                connections to it anew, and the protocol lets it in before its next round
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fedactors.actors.remote import DRIVER
from fedactors.errors import BadInput, CallTimeout, FedactorsError, PartyLost, Refused, Stopped
from fedactors.federation.approval import Proposal, as_tree
from fedactors.federation.handshake import dial
from fedactors.federation.hosting import ActorAddress, Gate, make_book
from fedactors.federation.operations import log_end
from fedactors.federation.run_queue import QUEUED
from fedactors.federation.session import REFUSED, TURNED_AWAY, Connection, Hello, Limits, LineLimit, value_of
from fedactors.federation.site_code import files_to_send
from fedactors.federation.site_folder import SiteFolder
from fedactors.messages.codec import encode, encode_parts, type_name
from fedactors.messages.ledger import Ledger, Usage, merged
from fedactors.network.links import Network
from fedactors.runs.recorder import FolderRecorder
from fedactors.runtime import snapshots
from fedactors.runtime.compute import WallClock
from fedactors.runtime.failures import UnawaitedCall, error_for_sites, errors_for, first_error
from fedactors.runtime.interface import Runtime, Snapshot
from fedactors.validation import first_line, one_line

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SOON, _LATER = 0.5, 5.0
"""Seconds between two attempts to reach a site that is away."""
_TOTAL = [str, str, str, str, int, int]
_MOST_COUNTED = 2**53
"""Messages, bytes or seconds that a site tells of a run: what is less than 0 would take off what others count."""
_DIGEST_BYTES = 32
_POSITION_BYTES = 4096
_LAST_SECONDS = 1.0


class FederatedRuntime(Runtime):
    """The driver's side of a run over a federation.

    Args:
        folder: of the coordinator's site.
        proposal: what the sites are asked to approve.
        classes: the kinds of actors of the protocol.
        limits: of the links.
        start_seconds: within which each barrier of the start must be passed.
        seed: of the driver.
        recorder: of the coordinator's run folder.
        queue_seconds: for which the run waits for sites that are busy; None: it ends.
        is_paused: whether the run paused, and goes on at all sites from the driver's checkpoint.
        wait_until: on the clock of `time.monotonic`, by when all sites of a run that goes on must be back.
    """

    clock: WallClock
    keeps_journals = True

    def __init__(
        self,
        folder: SiteFolder,
        proposal: Proposal,
        classes: Iterable[type],
        *,
        limits: Limits | None = None,
        start_seconds: float = 600.0,
        seed: int = 0,
        recorder: FolderRecorder | None = None,
        queue_seconds: float | None = None,
        is_paused: bool = False,
        wait_until: float = 0.0,
    ) -> None:
        super().__init__(seed=seed, recorder=recorder)
        self._queue_seconds = queue_seconds
        self._turns: dict[str, int] | None = None
        """By site: the position of the run in its queue, 0 once it is reserved; None while the run waits for none."""
        self._is_paused = is_paused
        self._wait_until = wait_until
        self.network = Network()
        self.ledger = Ledger()
        self.clock = WallClock(time.time())
        self._driver_ledger = Ledger(None if recorder is None else recorder.ledger_sink)
        self._folder = folder
        self._proposal = proposal
        self._classes = tuple(classes)
        self._limits = limits or Limits(away=folder.wait_seconds)
        self._start_seconds = start_seconds
        self._sites: dict[str, Connection] = {}
        self._gate = Gate(folder.name, folder.name, {})
        self._failure: BaseException | None = None
        self._main: asyncio.Task[Any] | None = None
        self._watching: list[asyncio.Future[Any]] = []
        self._drained: dict[str, tuple[Any, ...]] = {}
        self._began: float | None = None
        self._end: float | None = None
        self._is_closing = False
        self._number = 0
        """Of the last checkpoint."""
        self._records = recorder
        self._saving: asyncio.Task[None] | None = None
        """Of the last checkpoint, which sites and driver write while the run goes on."""
        self._offset = 0.0
        self._away: dict[str, str] = {}
        """Sites that the run goes on without, and why."""
        self._lines: defaultdict[str, LineLimit] = defaultdict(LineLimit)
        """By site: which may go and come back as often as it likes."""
        self._returns: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, tuple[Any, ...]] = {}
        """Who is spawned as what, as each site is told."""
        self._is_kept = False
        """Whether there is a checkpoint, from which on sites may come and go."""
        self._digests: dict[str, bytes] = {}
        """Of each actor's last state that its site wrote."""

    # --- the driver's side ---

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        address = self._gate.address(receiver, DRIVER)
        path, value, size = self._gate.call_out(DRIVER, address, method, value)
        self._driver_ledger.record(self.clock.now(), DRIVER, receiver, path.kind, type_name(value, method), size)
        reply = self._unawaited.track(asyncio.get_running_loop().create_future())
        parts = encode_parts(("call", (receiver, method, value)))

        def take(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or reply.done():
                return
            try:
                found = value_of(done.result(), receiver)
                self._gate.reply_in(path, found)
            except Exception as error:
                if isinstance(error, Refused):
                    self._folder.audit.add("refused", run=self._proposal.run, party=error.party, why=error.message)
                self._unawaited.fail(reply, error, DRIVER)
            else:
                reply.set_result(found)

        if (link := self._sites.get(address.site)) is None:
            self._unawaited.fail(reply, PartyLost(receiver, f"its site {address.site} is away"), DRIVER)
        else:
            link.request(parts, f"{receiver}.{method}", order=receiver).add_done_callback(take)
        return reply

    def site_of(self, name: str) -> str:
        return self._proposal.site_of(name, self._folder.federation.hosts)

    async def start(self) -> None:
        if self._began is not None:
            raise BadInput("a run over a federation spawns its actors once, before it starts")
        self.tell("assigning actors to sites")
        actor_specs = self._take_new()
        hosts = self._folder.federation.hosts
        pairs = [(actor_spec.name, actor_spec.cls.__name__) for actor_spec in actor_specs]
        book: dict[str, ActorAddress] = make_book(
            pairs, self._classes, lambda name: self._proposal.site_of(name, hosts)
        )
        if missing := {address.site for address in book.values()} - set(self._sites) - set(self._away):
            raise BadInput(f"hosts: {', '.join(sorted(missing))} hosts an actor and takes no part in the run")
        self._gate = Gate(self._folder.name, self._folder.name, book)
        frames = {c.name: encode((c.args, dict(c.kwargs)), arguments=True) for c in actor_specs}
        self._told = {
            site: tuple((n, cls, frames[n] if book[n].site == site else b"") for n, cls in pairs)
            for site in (*self._sites, *self._away)
        }
        with self._noting_refusals():
            await self._all("prepare", *((self._number,) if self._is_paused else ()), each=self._told)
        await self._all("connect")
        self.tell("loading data")
        await self._all("load")
        self._began = time.perf_counter()
        self.clock.begin(time.time())
        await self._all("open")
        for site in self._sites:
            self._watch(site)
        if self.deadline is not None:
            self._is_kept = self.resumed
            self._returns[""] = self._loop.create_task(self._hear_of_losses())
            for site in self._away:
                self._returns[site] = self._loop.create_task(self._await_return(site))

    def _watch(self, site: str) -> None:
        link = self._sites[site]
        watched = link.request(encode_parts(("watch", ())), "watch", is_limited=False)

        def ended(watched: asyncio.Future[Any]) -> None:
            if self._sites.get(site) is link:  # else the run goes on without it
                self._failed(watched)

        watched.add_done_callback(ended)
        self._watching.append(watched)

    def _failed(self, watched: asyncio.Future[Any]) -> None:
        if not watched.cancelled() and (error := watched.exception()) is not None:
            self.fail(error)

    async def _ask(self, site: str, link: Connection, verb: str, *args: Any) -> tuple[Any] | None:
        """Ask a site; return its answer, or None where the run goes on without it meanwhile."""
        may_lose = self._may_lose(site)
        seconds = self.deadline if may_lose and self.deadline is not None else self._start_seconds
        try:
            async with asyncio.timeout(seconds):
                return (await link.ask((verb, args), verb),)
        except TimeoutError:
            if not may_lose:
                raise
            self._leave(site, f"it had not done {verb} within {seconds:g} s")
        except PartyLost:
            if self._sites.get(site) is link:
                raise
        return None

    async def _all(
        self,
        verb: str,
        *args: Any,
        each: Mapping[str, Any] | None = None,
        of: Mapping[str, Connection] | None = None,
    ) -> dict[str, Any]:
        """Ask all sites (or `of` these) the same, or each its own, and wait for all: a barrier."""
        links = dict(self._sites if of is None else of)
        arguments = {site: args if each is None else (each[site], *args) for site in links}
        try:
            found = await asyncio.gather(*(self._ask(s, link, verb, *arguments[s]) for s, link in links.items()))
        except TimeoutError:
            raise PartyLost("driver", f"not all sites had done {verb} within {self._start_seconds:g} s") from None
        return {site: one[0] for site, one in zip(links, found, strict=True) if one is not None}

    async def respawn(self, name: str) -> None:
        raise PartyLost(name, "a lost actor is brought back by its own site only")

    # --- sites that are lost, and come back ---

    def _actors_at(self, site: str) -> list[str]:
        return [name for name, address in self._gate.book.items() if address.site == site]

    def _may_lose(self, site: str) -> bool:
        """Say whether the run goes on without a site."""
        if self.deadline is None or not self._is_kept or site == self._folder.name:
            return False
        actors = self._actors_at(site)
        return bool(actors) and all(self.loss_policy(name) == "restart" for name in actors)

    def _leave(self, site: str, why: str) -> None:
        """Go on without a site until it is there again."""
        link = self._sites.pop(site, None)
        if link is None:
            return
        self._away[site] = why
        if self._lines[site].take():
            self._folder.audit.add("away", run=self._proposal.run, site=site, why=why)
        _log.warning("%s is away, and the run goes on without it: %s", site, why)
        self.tell(f"goes on without {site}: {why}")
        link.give_up(why)
        self._returns[site] = self._loop.create_task(self._await_return(site))

    async def _hear_of_losses(self) -> None:
        """Treat a site as lost that the coordinator's site has lost: the protocol's server is there."""
        while True:
            link = self._sites[self._folder.name]
            lost = value_of(await link.request(encode_parts(("lost", ())), "lost", is_limited=False), link.peer)
            if isinstance(lost, str) and self._may_lose(lost):
                self._leave(lost, f"{self._folder.name} has lost it")

    async def _await_return(self, site: str) -> None:
        """Dial a site that is away, every few seconds, until it takes part again or says that it never will."""
        pause = _SOON
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LATER)
            link: Connection | None = None
            try:
                link = await self._dial(site)
                await self._bring_back(site, link)
                return
            except (PartyLost, CallTimeout, TimeoutError) as error:
                _log.debug("%s is not back: %s", site, error)
            except FedactorsError as error:
                if link is not None:  # else it is busy, or its link of before is not over yet
                    _log.warning("%s does not come back: %s", site, error)
                    self.tell(f"goes on without {site} for good: {error}")
                    return
            finally:
                if link is not None and self._sites.get(site) is not link:
                    await link.end()

    async def _bring_back(self, site: str, link: Connection) -> None:
        """Let a site go on from its own last checkpoint, be reached by the others, and take part again."""

        async def ask(verb: str, *args: Any) -> None:
            async with asyncio.timeout(self._start_seconds):
                await link.ask((verb, args), verb)

        await ask("propose", as_tree(self._proposal))
        await ask("prepare", self._told[site])
        for name in self._actors_at(site):
            if self._leaving_handler is not None:
                await self._leaving_handler(name)
        await self._meet(site)
        for verb in ("connect", "load", "open"):
            await ask(verb)
        self._sites[site] = link
        del self._away[site]
        self._watch(site)
        for name in self._actors_at(site):
            if self._loss_handler is not None:
                await self._loss_handler(name)
        self._folder.audit.add("returned", run=self._proposal.run, site=site)
        _log.warning("%s is back, and takes part again", site)
        self.tell(f"{site} is back")

    async def _meet(self, site: str) -> None:
        """Have all other sites open connections to one that is back.

        Who does not is lost itself: what another site says keeps nobody out of the run. The coordinator's own site,
        where the protocol's server is, must reach it.
        """

        async def ask(other: str, link: Connection) -> None:
            try:
                await self._ask(other, link, "meet", site)
            except (FedactorsError, TimeoutError) as error:
                if other == self._folder.name:
                    raise
                why = f"it does not meet {site}: {first_line(error)}"
                if self._sites.get(other) is link:
                    if self._may_lose(other):
                        self._leave(other, why)
                    else:
                        self.fail(PartyLost(other, why))

        await asyncio.gather(*(ask(other, link) for other, link in list(self._sites.items())))

    async def _await_nobody(self) -> None:
        """Wait for no site any more: the run is over."""
        for task in self._returns.values():
            task.cancel()
        await asyncio.gather(*self._returns.values(), return_exceptions=True)

    async def checkpoint(self, label: str = "last") -> None:
        if self._is_due(label):
            await self._saved()
            self._number += 1
            links = dict(self._sites)
            for site, found in (await self._all("snapshot", label, self._number, of=links)).items():
                self._digests |= _digests(site, found, self._gate)
            digests = dict(self._digests)  # of who is away, what it wrote last
            self._driver_ledger.flush()
            driver, reached = self._capture_driver(digests), None if self._records is None else self._records.reached()
            # disks are slower than the first batches of what follows
            saving = self._save(label, digests, driver, reached, links)
            self._saving = asyncio.get_running_loop().create_task(saving)
            self._saving.add_done_callback(self._failed)
        if self._stop_code is not None:
            await self._saved()
            raise Stopped(f"stopped at {self.clock.now():.1f} s; each site keeps its part", self._stop_code)

    async def _save(
        self,
        label: str,
        digests: Mapping[str, bytes],
        driver: bytes,
        reached: Mapping[str, int] | None,
        links: Mapping[str, Connection],
    ) -> None:
        def there() -> dict[str, Connection]:  # who came back meanwhile has nothing of this checkpoint
            return {site: link for site, link in links.items() if self._sites.get(site) is link}

        await self._all("written", label, of=there())
        # all sites have it: from here on it is the one that is gone on from
        if self._records is not None:
            self._records.save_checkpoint(label, digests, driver, reached)
        await self._all("commit", label, of=there())
        self._is_kept = True

    async def _saved(self) -> None:
        """Wait until the last checkpoint is counted on everywhere."""
        if self._saving is not None:
            await self._saving

    def _capture_driver(self, digests: Mapping[str, bytes]) -> bytes:
        return snapshots.seal_driver(
            {
                "now": self.clock.now(),
                "state": snapshots.pack(self.state, "the driver's state"),
                "ledger": self._driver_ledger.state(),
                "spent": self.spent,
            },
            digests,
            self._number,
        )

    def _restore(self, resume: Snapshot) -> None:
        content = snapshots.unseal_driver(resume.driver)
        with snapshots.intact(snapshots.DRIVERS):
            self._offset, self.spent = (
                snapshots.amount(content[name], name, snapshots.DRIVERS) for name in ("now", "spent")
            )
            self.resumed, self._number = True, checkpoint_number(resume.driver)
            self.state = dict(snapshots.unpack(content["state"]))
            self._driver_ledger.restore(snapshots.totals(content["ledger"], snapshots.DRIVERS))
        self.clock = WallClock(time.time(), self._offset)

    async def settle(self) -> None:
        for site, found in (await self._all("drain")).items():
            self._drained[site] = _drained(site, found, self._gate.is_at)
        self._driver_ledger.flush()
        parts = [self._driver_ledger.state(), *(totals for totals, _ in self._drained.values())]
        self.ledger.restore(merged(total for part in parts for total in part))

    def usage(self) -> Usage:
        end = self._end if self._end is not None else time.perf_counter()
        seconds = (end - self._began if self._began is not None else 0.0) + self._offset
        return self._usage(
            seconds=seconds,
            wall_seconds=seconds - self._offset,
            cpu_utilisation=0.0,  # the sites' machines are not the coordinator's to measure
            idle_seconds=sum(float(waiting) for _, waiting in self._drained.values()),
        )

    def use_network(self, network: Network) -> None:
        self.network = network  # by which traffic is priced

    # --- life ---

    def request_stop(self, exit_code: int) -> None:
        self._stop_code = exit_code
        loop = getattr(self, "_loop", None)
        if loop is not None and loop.is_running() and self._began is None:
            loop.call_soon_threadsafe(self.fail, Stopped("stopped before the first round", exit_code))

    def execute(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None = None) -> T:
        if resume is not None:
            self._restore(resume)
        return asyncio.run(self._run(main))

    async def _run(self, main: Callable[[], Awaitable[T]]) -> T:
        self._loop = asyncio.get_running_loop()
        self._unawaited = UnawaitedCall(self.fail, lambda _: False)
        self._loop.set_exception_handler(self._unawaited)

        async def driver() -> T:
            await self._propose()
            result = await main()
            await self._await_nobody()
            await self._unawaited.last_answers()
            self._unawaited.check()
            await self._saved()
            await self._all("finish")
            await self.settle()
            self._end = time.perf_counter()
            self._is_closing = True
            await self._all("end")
            return result

        task: asyncio.Task[T] = self._loop.create_task(driver())
        self._main = task
        status, why = "failed", ""
        try:
            result = await task
            status = "finished"
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            why = str(self._failure) if isinstance(self._failure, FedactorsError) else type(self._failure).__name__
            await self._say_why(self._failure)
            raise self._failure from None
        except BaseExceptionGroup as group:
            error = self._failure or first_error(group)  # what stopped the run, not what broke as it stopped
            why = str(error) if self._failure else type(error).__name__
            await self._say_why(error)
            raise error from None
        except Exception as error:
            raised = self._failure or error
            why = str(raised) if isinstance(raised, FedactorsError) else type(raised).__name__
            await self._say_why(raised)
            if raised is error:
                raise
            raise raised from None
        finally:
            self._is_closing = True
            self._end = self._end or time.perf_counter()
            if self._saving is not None:
                self._saving.cancel()
            await self._await_nobody()
            await asyncio.gather(*(connection.end() for connection in self._sites.values()))
            log_end(self._folder, self._proposal.run, status, self._gate, why, who="driver")
        return result

    async def _say_why(self, error: BaseException) -> None:
        """Tell the sites, for a second at most, why the run ends: words of the driver's own code are not told."""
        self._is_closing = True
        why = str(error_for_sites(self._folder.name, error))
        there = [one for one in self._sites.values() if not one.is_closed]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await asyncio.gather(*(one.ask(("fail", (why,)), "fail") for one in there), return_exceptions=True)

    async def _propose(self) -> None:
        """Connect to all sites of the run and wait until each has approved it."""
        proposal, federation = self._proposal, self._folder.federation
        sites = list(dict.fromkeys((*proposal.data, *federation.hosts.values(), self._folder.name)))
        if self._is_paused:
            await self._await_pause(sites)
        elif self._queue_seconds is not None:
            await self._await_turns(sites, self._queue_seconds)
        else:
            await self._reach_all(sites)
        waiting = dict.fromkeys(self._sites)

        files = files_to_send(self._folder, proposal)

        async def ask(site: str) -> None:
            await self._sites[site].ask(("propose", (as_tree(proposal), files)), "the approval")
            del waiting[site]
            if waiting:
                tell()

        def tell() -> None:
            self.tell(f"waits for {', '.join(waiting)}; at each, fedactors site show {proposal.run}, then site approve")

        tell()
        with self._noting_refusals():
            await asyncio.gather(*map(ask, self._sites))
        most = proposal.limits.message_bytes
        self._limits = replace(self._limits, message=most, under_way=2 * max(most, self._limits.message))
        for link in self._sites.values():
            link.limits = self._limits

    @contextlib.contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        """Write down that a run which paused does not go on by its approval: it is then proposed anew."""
        try:
            yield
        except (Refused, BadInput) as error:
            if self._is_paused:
                facts = {"run": self._proposal.run, "checkpoint": self._number}
                self._folder.audit.add("return_refused", **facts, why=str(error))
            raise

    async def _await_pause(self, sites: Sequence[str]) -> None:
        """Connect to all sites of a run that paused, as soon as all are there; who is there meanwhile is kept free.

        Raises:
            PartyLost: one is not back in time.
        """
        pause, waiting, told = _SOON, list(sites), ""
        while waiting:
            site = waiting[0]
            try:
                self._sites[site] = await self._dial(site)
                del waiting[0]
            except (PartyLost, CallTimeout, Refused) as error:
                # of the run that paused its process may not know yet, and another one may be under way there
                left = self._wait_until - time.monotonic()
                if left <= 0:
                    raise PartyLost(site, f"did not come back within return_timeout: {error.message}") from None
                links, self._sites = self._sites, {}
                await asyncio.gather(*(link.end() for link in links.values()))
                waiting = [site, *(other for other in sites if other != site)]
                if site != told:
                    self.tell(f"is paused: waits for {site}, {left:.0f} s at most")
                    _log.warning("the run is paused: waits for %s, %.0f s at most: %s", site, left, error.message)
                told = site
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, _LATER)

    async def _reach_all(self, sites: Iterable[str]) -> None:
        """Connect to all sites, until `wait_until` again and again."""
        pause = _SOON
        while True:
            try:
                for site in sites:
                    await self._reach(site)
                return
            except PartyLost:
                if (left := self._wait_until - time.monotonic()) <= 0:
                    raise
            links, self._sites = self._sites, {}  # a driver that asks for no run is sent away
            await asyncio.gather(*(link.end() for link in links.values()))
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LATER)

    async def _reach(self, site: str, assignment: str = "") -> None:
        """Connect to a site, or go on without it where the run may begin so."""
        try:
            self._sites[site] = await self._dial(site, assignment)
        except PartyLost as error:
            may_begin_without = (
                self._proposal.purpose == "resume" and self._proposal.config.get("min_sites") is not None
            )
            if not may_begin_without or site == self._folder.name:
                raise
            self._away[site] = error.message
            _log.warning("%s is away, and the run goes on without it: %s", site, error.message)

    async def _await_turns(self, sites: Iterable[str], seconds: float) -> None:
        """Wait until all sites are reserved for this run.

        A site is asked for only while all before it, by name, are reserved: no two runs wait for each other. Who is
        not asked for its position keeps it for this run, and takes the next one meanwhile.

        Raises:
            CallTimeout: they were not within so many seconds.
            PartyLost: a site does not answer that never did.
            Refused: a site takes no run that waits, or its person rejected this one.
        """
        self._turns = turns = dict[str, int]()
        order, tree, told = sorted(sites), as_tree(self._proposal), ""
        heard, asking = dict[str, tuple[Any, ...]](), dict[str, asyncio.Task[None]]()

        async def ask(site: str) -> None:
            words: tuple[Any, ...] = ("position", heard.get(site, ()))
            if (link := self._sites.get(site)) is None:
                if site in heard:  # it was started again, or the link broke
                    await asyncio.sleep(_SOON)
                try:
                    await self._reach(site, QUEUED)
                except PartyLost:
                    if site not in heard:
                        raise
                    await asyncio.sleep(_LATER)
                    return
                if (link := self._sites.get(site)) is None:
                    return  # the run may begin without it
                words = (QUEUED, (tree,))
            try:
                heard[site] = _position_in(site, await link.ask(words, "its turn", most=_POSITION_BYTES))
                turns[site] = heard[site][0]
            except PartyLost:
                if self._sites.get(site) is link:
                    raise

        def next_site() -> str | None:
            return next((one for one in order if turns.get(one) != 0 and one not in self._away), None)

        try:
            async with asyncio.timeout(seconds):
                while (site := next_site()) is not None:
                    if (said := _turn_at(site, heard.get(site))) != told:
                        told = said
                        self.tell(told)
                    for one in order[: order.index(site) + 1]:
                        if one not in asking and one not in self._away:
                            asking[one] = asyncio.create_task(ask(one))
                    await asyncio.wait(asking.values(), return_when=asyncio.FIRST_COMPLETED)
                    for one in [one for one, task in asking.items() if task.done()]:
                        asking.pop(one).result()
        except TimeoutError:
            site = next_site() or order[0]
            more = "give a larger --queue-timeout"
            raise CallTimeout(site, f"had no turn for the run within {seconds:g} s ({told}): {more}") from None
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)
        self._turns = None
        self._sites = {site: self._sites[site] for site in sites if site in self._sites}

    async def _dial(self, site: str, assignment: str = "") -> Connection:
        hello = Hello(self._folder.federation.name, DRIVER, self._proposal.run, assignment)
        ends: dict[str, Any] = {"serve": None, "lost": self._lost, "errors": errors_for(self._folder.name, site)}
        ends["tell"] = lambda _, text: self.tell(text)
        # the own site says who was lost; any other one speaks for its own actors only
        ends["is_of"] = lambda name: site == self._folder.name or self._gate.is_at(site, name)
        return await dial(self._folder, self._folder.federation.members[site], hello, self._limits, **ends)

    def _lost(self, connection: Connection, why: str) -> None:
        peer = connection.peer
        if self._turns is not None:  # it is dialled again
            if self._sites.get(peer) is connection:
                del self._sites[peer]
                self._turns.pop(peer, None)
            return
        if self._is_closing or (self._is_kept and self._sites.get(peer) is not connection):
            return
        for begins, who in ((REFUSED, peer), (TURNED_AWAY, self._folder.name)):
            if why.startswith(begins):
                error = Refused(who, why.removeprefix(begins))
                self._folder.audit.add("refused", run=self._proposal.run, party=who, why=error.message)
                self.fail(error)
                return
        if self._may_lose(peer):
            self._leave(peer, why)
            return
        actor = next((address.name for address in self._gate.book.values() if address.site == peer), peer)
        self.fail(PartyLost(actor, f"its site {peer} was lost: {why}"))

    def fail(self, error: BaseException) -> None:
        """Stop the run with its first failure."""
        if self._failure is None and not self._is_closing:
            self._failure = error
            if self._main is not None:
                self._main.cancel()


def checkpoint_number(driver: bytes) -> int:
    """Return by which number the sites know the checkpoint of a driver.

    Raises:
        BadInput: it is damaged, or of another runtime's driver.
    """
    with snapshots.intact(snapshots.DRIVERS):
        return int(snapshots.unseal(driver, snapshots.DRIVERS)["number"])


def _digests(site: str, found: Any, gate: Gate) -> dict[str, bytes]:
    """Return the digests of the states that a site wrote, by actor.

    Raises:
        Refused: it says something else, or speaks of actors that it does not host.
    """
    local = {name for name, address in gate.book.items() if address.site == site}
    if isinstance(found, tuple) and all(
        type(pair) is tuple and [type(part) for part in pair] == [str, bytes] and len(pair[1]) == _DIGEST_BYTES
        for pair in found
    ):
        made = dict(found)
        if set(made) == local:
            return made
    raise Refused(site, "does not say what it wrote in a checkpoint")


def _position_in(site: str, found: Any) -> tuple[int, str]:
    """Return what a site says of a run's position in its queue, and whose run is before it.

    Raises:
        Refused: it says something else.
    """
    match found:
        case (int(position), str(coordinator)) if 0 <= position < _MOST_COUNTED:
            return position, coordinator
    raise Refused(site, "does not say which position a run has in its queue")


def _turn_at(site: str, found: tuple[Any, ...] | None) -> str:
    if found is None:
        return f"asks {site} for its turn"
    position, coordinator = found
    before = f", behind a run of {one_line(coordinator, 80)}" if coordinator else ""
    return f"waits for {site}: position {position} in its queue{before}"


def _drained(site: str, found: Any, is_at: Callable[[str, str], bool]) -> tuple[Any, ...]:
    """Return what a site says of its run so far: its ledger's totals, and seconds of waiting.

    Raises:
        Refused: it says something else, or counts messages between other sites.
    """
    match found:
        case (tuple(totals), float() | int() as waiting) if 0 <= waiting < _MOST_COUNTED and all(
            type(total) is tuple
            and [type(part) for part in total] == _TOTAL
            and all(0 <= count < _MOST_COUNTED for count in total[4:])
            for total in totals
        ):
            if all(is_at(site, total[0]) or is_at(site, total[1]) for total in totals):
                return found  # type: ignore[no-any-return]
            raise Refused(site, "counts messages of others than its own actors")
    raise Refused(site, "sends invalid totals of a run")
