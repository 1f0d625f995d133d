"""The actors that a site hosts in a run, and the gate through which their messages pass to other sites and back.

    an actor ──call──▶ SiteContext ──near──▶ SiteContext of another actor here
                            └──Gate.call_out──▶ link ──TLS──▶ Gate.call_in ──▶ an actor of another site

    who waits          for what
    a call that comes  the run to be open at the site (`SiteRun`), and the actor to have loaded
    its caller         the reply, which the gate checks again where it comes from another site

Who speaks is known from the certificate at the other end of the link: an actor's name is believed only if its party is
hosted by that site. What is asked is checked against the endpoints of the approved protocol, the exact type of the
message, and each of its fields; replies and payloads likewise. All that crosses is counted on both sides.

`ActorHost` is what the run at the site asks of its actors, wherever they live: `LocalActorHost` has them in the site's
process, `ray_hosting.RayActorHost` in processes of its Ray.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import enum
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedactors.actors.context import ACTOR_NAME, NOWHERE, Ref
from fedactors.actors.remote import DRIVER, CallCounts, Endpoints, endpoints
from fedactors.errors import FedactorsError, PayloadGone, Refused
from fedactors.federation.audit_log import Journal
from fedactors.federation.session import decoded, is_quick, value_of
from fedactors.messages.codec import Parts, encode_parts, measure, type_name
from fedactors.messages.ledger import Ledger, Row, kind_of
from fedactors.runtime import calls, snapshots
from fedactors.runtime.calls import CallPath
from fedactors.runtime.compute import HostedContext, WallClock
from fedactors.runtime.failures import ERROR_ROW, UnawaitedCall, code_of, error_bytes, error_for_sites, raised_by
from fedactors.runtime.interface import ActorSpec

if TYPE_CHECKING:
    from fedactors.federation.site_run import Earlier

_LONGEST = 200
"""Characters of a name."""


@dataclasses.dataclass(frozen=True)
class ActorAddress:
    """An actor of the run: the site that hosts it, its role and its endpoints."""

    name: str
    site: str
    role: str
    endpoints: Endpoints


class Gate:
    """Checks and counts what may cross to and from other sites; the coordinator's site speaks for the driver.

    Args:
        site: whose gate it is.
        coordinator: the site of the driver.
        book: the actors of the run.
        sent: the messages that the approved settings send (`fedactors.inspection.may_leave`); None: all of the actors'.
    """

    def __init__(
        self, site: str, coordinator: str, book: Mapping[str, ActorAddress], sent: frozenset[type] | None = None
    ) -> None:
        self.book = book
        self._sent = sent
        self.left, self.arrived = Ledger(), Ledger()
        """What crossed to other sites, and from them."""
        self._site = site
        self._coordinator = coordinator

    def address(self, name: str, asker: str) -> ActorAddress:
        """Return where an actor is.

        Raises:
            Refused: there is none of that name.
        """
        found = self.book.get(name) if isinstance(name, str) else None
        if found is None:
            raise Refused(asker, f"calls {name!r:.100}, which does not exist (there are: {', '.join(self.book)})")
        return found

    def role(self, name: str) -> str:
        """Return the role of an actor, or of the driver."""
        return DRIVER if name == DRIVER else self.book[name].role

    def site_of(self, name: str) -> str:
        """Return the site of an actor, or of the driver."""
        return self._coordinator if name == DRIVER else self.book[name].site

    def is_at(self, site: str, name: str) -> bool:
        """Say whether an actor of this name is at a site."""
        return name in self.book and self.book[name].site == site

    def check_owner(self, peer: str, name: Any) -> None:
        """Check that the actor that the site `peer` speaks for is hosted there.

        Raises:
            Refused: its certificate does not own that name.
        """
        if not isinstance(name, str) or (name != DRIVER and name not in self.book):
            raise Refused(peer, f"speaks for {_name(name)}, which is not in the run")
        if self.site_of(name) != peer:
            raise Refused(peer, f"speaks for {name}, which its certificate does not own: it is {self.site_of(name)}'s")

    def call_in(self, peer: str, sender: Any, receiver: Any, method: Any, value: Any) -> CallPath:
        """Check a call that another site makes.

        Raises:
            Refused: naming the sender and what is allowed.
        """
        self.check_owner(peer, sender)
        address = self.book.get(receiver) if isinstance(receiver, str) else None
        if address is None or address.site != self._site:
            raise Refused(sender, f"calls {_name(receiver)}, which is not hosted by {self._site}")
        if not (isinstance(method, str) and method.isidentifier() and len(method) <= _LONGEST):
            raise Refused(sender, f"calls {receiver} for {_name(method)}, which is no name of an endpoint")
        path = self.path(sender, address, method, value)
        self._check_sent(sender, f"calls {receiver}.{method} with", type(value))
        gives = [one for one in path.endpoint.gives if not self._is_sent(one)]
        if len(gives) == len(path.endpoint.gives):
            self._check_sent(sender, f"calls {receiver}.{method}, which gives", gives[0])
        self._count(self.arrived, sender, receiver, type_name(value, method), calls.arrive(path, value))
        return path

    def _is_sent(self, message: type) -> bool:
        return self._sent is None or message is type(None) or message in self._sent

    def _check_sent(self, speaker: str, does: str, message: type) -> None:
        """Check that the approved settings send a message of this type at all: of those that the protocol has.

        Raises:
            Refused: they do not; nothing was done, or has left.
        """
        if not self._is_sent(message):
            raise Refused(speaker, f"{does} {message.__name__}; approved: settings with which no run sends that")

    def call_out(self, sender: str, address: ActorAddress, method: str, value: Any) -> tuple[CallPath, Any, int]:
        """Check a call before it leaves this site; return its path, the message as it leaves, and its bytes.

        Raises:
            Refused: it is not declared; nothing has left.
        """
        path = self.path(sender, address, method, value)
        self._check_sent(sender, f"calls {address.name}.{method} with", type(value))
        value, size = calls.leave(path, value, copy=False)
        self._count(self.left, sender, address.name, type_name(value, method), size)
        return path, value, size

    def path(self, sender: str, address: ActorAddress, method: str, value: Any) -> CallPath:
        """Return the path of a call; see `calls.admit`."""
        return calls.admit(address.endpoints, method, sender, self.role(sender), address.name, address.role, value)

    def reply_in(self, path: CallPath, reply: Any) -> None:
        """Check a reply that came from another site."""
        size = calls.take(path, reply)
        if reply is not None:
            self._count(self.arrived, path.receiver, path.sender, type_name(reply, ""), size)

    def reply_out(self, path: CallPath, reply: Any) -> None:
        """Count a reply that leaves this site; it was checked in this process when its actor gave it."""
        if reply is not None:
            self._check_sent(path.receiver, f"replies to {path.sender} with", type(reply))
            self._count(self.left, path.receiver, path.sender, type_name(reply, ""), measure(reply))

    def payload_in(self, address: ActorAddress, reader: str, value: Any) -> None:
        """Check a payload that came from another site."""
        size = calls.receive(address.endpoints, address.name, value)
        self._count(self.arrived, address.name, reader, type_name(value, ""), size)

    def payload_out(self, owner: str, reader: str, value: Any) -> None:
        """Count a payload that leaves this site; it was checked in this process when its owner gave it."""
        self._check_sent(owner, f"gives {reader}", type(value))
        self._count(self.left, owner, reader, type_name(value, ""), measure(value))

    def _count(self, side: Ledger, sender: str, receiver: str, type_: str, size: int) -> None:
        side.record(0.0, sender, receiver, self.kind(sender, receiver), type_, size)

    def kind(self, sender: str, receiver: str) -> str:
        """Return the kind of link between two actors, or an actor and the driver."""
        return kind_of(sender, self.role(sender), receiver, self.role(receiver))

    def crossed(self, side: Ledger) -> list[dict[str, Any]]:
        """Return what crossed, with both sites and without a call's text, JSON-ready."""
        return [
            {
                "from": self.site_of(total.sender),
                "to": self.site_of(total.receiver),
                **{name: getattr(total, name) for name in ("sender", "receiver", "type", "messages", "bytes")},
            }
            for total in side.totals()
        ]


def _name(given: Any) -> str:
    """Return what was given as a name, as a line may show it."""
    return f"{given[:_LONGEST]!r}" if isinstance(given, str) else f"a {type(given).__name__}"


def make_book(actor_specs: Iterable[tuple[str, str]], classes: Iterable[type], site_of: Any) -> dict[str, ActorAddress]:
    """Return the actors of a run from their names and the names of their classes.

    Raises:
        Refused: what is no name of an actor, a name twice, or a class that is not among the protocol's actors.
    """
    known = {cls.__name__: cls for cls in classes}
    book: dict[str, ActorAddress] = {}
    for name, cls_name in actor_specs:
        is_name = isinstance(name, str) and len(name) <= _LONGEST and ACTOR_NAME.fullmatch(name)
        if not is_name or name.partition("/")[0] == DRIVER:
            raise Refused(DRIVER, f"spawns {_name(name)}, which is no name of an actor")
        if name in book:
            raise Refused(DRIVER, f"spawns {name} twice")
        cls = known.get(cls_name) if isinstance(cls_name, str) else None
        if cls is None:
            raise Refused(
                DRIVER, f"spawns {name} as {_name(cls_name)}, which is no actor of the protocol: {', '.join(known)}"
            )
        book[name] = ActorAddress(name, site_of(name), cls.role, endpoints(cls))  # type: ignore[attr-defined]
    return book


Totals = Sequence[tuple[str, str, str, str, int, int]]
"""Sender, receiver, kind, type, messages, bytes."""


class Counted(NamedTuple):
    """Messages of one actor, seconds that it waited, and processor time of a process of its own."""

    totals: Totals
    waiting: float
    cpu_seconds: float = 0.0


class Life(enum.IntEnum):
    """How far a run has come at a site."""

    APPROVED = 0
    PREPARED = 1
    CONNECTED = 2
    LOADED = 3
    OPEN = 4
    CLOSED = 5
    ENDED = 6


class SiteBoundary(Protocol):
    """The run at its site, as its actors need it: the way to other sites, which leads through the gate."""

    gate: Gate
    scope: str
    """The run's id."""
    unawaited: UnawaitedCall
    journal: Journal | None
    """Of a run that sites may leave and come back to."""

    def send(self, site: str, purpose: str, parts: Parts, what: str) -> asyncio.Future[Any]:
        """Send a request to another site; return the future of its reply's bytes."""

    def note(self, error: Refused) -> None:
        """Hear that something was refused, which stops the run."""

    def failed(self, actor: str, error: BaseException) -> None:
        """Hear that something of an actor failed, which stops the run."""

    def output(self, to: str) -> Path:
        """Return where a file that the driver asked for goes."""


@dataclass
class Recorded:
    """What actors recorded since they were last asked."""

    rows: list[Row] = field(default_factory=list)
    spans: list[tuple[str, str, str, float, float]] = field(default_factory=list)
    privacy: list[Any] = field(default_factory=list)


class ActorHost(ABC):
    """What a run asks of its actors here. What an actor's code raises is told as of that actor (`failures.code_of`)."""

    reports: Sequence[Mapping[str, Any]] = ()
    """What processes of theirs say of themselves that the site's may not have begun; see `runs.folder.this_process`."""

    @property
    def root(self) -> int | None:
        """The number of the process that they are in, or that began theirs; None: it is not there yet, or gone."""
        return os.getpid()

    @abstractmethod
    async def spawn(self, actor_specs: Sequence[ActorSpec], seed: int, clock: WallClock) -> None:
        """Make the actors; `seed` is of their generators, `clock` the run's."""

    @abstractmethod
    async def load(self, earlier: Earlier | None) -> None:
        """Let them load their data, and go on from an earlier run."""

    @abstractmethod
    async def open(self, start: float) -> None:
        """Start their loops, the run having begun at `start`."""

    @abstractmethod
    async def serve(self, path: CallPath, value: Any) -> Any:
        """Do what a call from another site, or the driver, asks, its endpoint and message having been checked.

        The reply is checked in this process: as the actor gives it, or as it comes from a process of its own.
        """

    @abstractmethod
    async def read(self, owner: str, key: int, reader: str) -> Any:
        """Return a payload for a reader at another site, who may have it; it is checked as replies are."""

    @abstractmethod
    async def account(self, party: str) -> list[Any]:
        """Return what a party's actors say, at `account`, that they have released; it is not recorded."""

    def call_counts(self) -> Mapping[str, CallCounts]:
        """Return how often each actor of this process was called; of others their checkpoints know it."""
        return {}

    @abstractmethod
    async def snapshots(self) -> dict[str, bytes]:
        """Return the actors' states, sealed."""

    @abstractmethod
    async def settle(self) -> None:
        """Fetch what the actors have recorded."""

    @abstractmethod
    def recorded(self) -> Recorded:
        """Return what was recorded and fetched, once."""

    @abstractmethod
    def counted(self) -> Mapping[str, Counted]:
        """Return what is counted of each actor so far."""

    @abstractmethod
    async def close(self) -> None:
        """Close all actors, the run being done."""

    @abstractmethod
    def end(self) -> None:
        """Stop whatever is left of them, at once."""


def not_taken(name: str) -> Refused:
    """Return what is said of arguments that the class of an actor does not take."""
    return Refused(DRIVER, f"spawns {name} with other arguments than it takes")


async def fetch_abroad(boundary: SiteBoundary, reader: str, address: ActorAddress, key: int) -> Any:
    """Return a payload of an actor of another site, for one of this site's.

    Raises:
        Refused: what came is no payload of its class.
    """
    asked = encode_parts((reader, address.name, key))
    frame = await boundary.send(address.site, "payloads", asked, f"a payload of {address.name}")
    value = await decoded(frame, address.name)
    boundary.gate.payload_in(address, reader, value)
    return value


class SiteContext(HostedContext):
    """One actor's side of the federated runtime; `near` are all actors that live here."""

    is_between_organisations = True

    def __init__(
        self, site: SiteBoundary, near: Mapping[str, SiteContext], actor_spec: ActorSpec, seed: int, clock: WallClock
    ) -> None:
        super().__init__(actor_spec, seed, False, clock, keep_rows=True, repeats=0)
        self.loaded = asyncio.Event()
        self.built_with = actor_spec.args, actor_spec.kwargs
        try:
            self.actor = actor_spec.cls(*actor_spec.args, **actor_spec.kwargs)
        except FedactorsError as error:
            raise raised_by(self.name, error, site.gate.book) from None
        self.actor._context = self
        self.scope = site.scope
        self._site = site
        self.keeps_journal = site.journal is not None
        self._near = near
        self._payloads: dict[int, tuple[Any, int, frozenset[str]]] = {}
        # a site answers others also while one of its actors computes
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    def output(self, to: str) -> Path:
        """Return where a file that the driver asked for goes: in the site's own folder, by its bare name."""
        with self._noting():
            return self._site.output(to)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Write down what this actor is refused, whether or not it tells anybody; it stops the run."""
        try:
            yield
        except Refused as error:
            raised_by(self.name, error, self._site.gate.book)
            self._site.note(error)
            raise

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        site, gate, near = self._site, self._site.gate, self._near.get(receiver)
        with self._noting():
            address = gate.address(receiver, self.name)
            if near is None:
                path, value, size = gate.call_out(self.name, address, method, value)
            else:
                path = gate.path(self.name, address, method, value)
                value, size = calls.leave(path, value)
        self._record(self.name, receiver, type_name(value, method), size)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = site.unawaited.track(loop.create_future())
        sent: asyncio.Future[Any]
        if near is None:
            parts = encode_parts((self.name, receiver, method, value))
            sent = site.send(address.site, "calls", parts, f"{receiver}.{method}")
        else:
            sent = loop.create_task(near.serve(path, value))
            self._tasks.add(sent)
        sent.add_done_callback(partial(self._take, reply, path))
        return reply

    def _take(self, reply: asyncio.Future[Any], path: CallPath, done: asyncio.Future[Any]) -> None:
        self._tasks.discard(done)
        is_far = path.receiver not in self._near
        if is_far and not done.cancelled() and done.exception() is None and not is_quick(done.result()):
            found = asyncio.get_running_loop().create_task(decoded(done.result(), path.receiver))
            self._tasks.add(found)
            found.add_done_callback(partial(self._taken, reply, path, False))
        else:
            self._taken(reply, path, is_far, done)

    def _taken(self, reply: asyncio.Future[Any], path: CallPath, is_frame: bool, done: asyncio.Future[Any]) -> None:
        self._tasks.discard(done)
        if done.cancelled():
            reply.cancel()
            return
        try:
            value = value_of(done.result(), path.receiver) if is_frame else done.result()
            if path.receiver not in self._near:
                self._site.gate.reply_in(path, value)
            calls.fit(path, self.actor, value)
        except Exception as error:
            if isinstance(error, Refused):
                self._site.note(error)
            if not reply.done():
                self._site.unawaited.fail(reply, error, self.name)
        else:
            if not reply.done():
                reply.set_result(value)

    async def serve(self, path: CallPath, value: Any) -> Any:
        """Do what a call asks, its endpoint and message having been checked; return the reply, frozen and checked."""
        try:
            await self.loaded.wait()
            number = self._number_of(path, value)
            reply, size = calls.answer(path, await calls.begin(path, self.actor, value))
            if number is not None and self._site.journal is not None:
                await asyncio.to_thread(self._site.journal.add, self.name, path.endpoint.name, number)
            if reply is not None:
                self._record(self.name, path.sender, type_name(reply, ""), size)
            return reply
        except Exception as error:
            failed = raised_by(self.name, error, self._site.gate.book)
            is_near = path.sender in self._near
            leaves = failed if is_near else error_for_sites(self._site.gate.book[self.name].site, failed)
            self._record(self.name, path.sender, ERROR_ROW, error_bytes(leaves))
            raise failed from error

    def _number_of(self, path: CallPath, value: Any) -> int | None:
        """Return the number (of a round; 0: it has none) that another actor asks for, if answers are in a journal.

        Raises:
            Refused: an answer for it, or for a later one, has left, be it before this process began.
        """
        journal, bound = self._site.journal, path.endpoint.bound
        if journal is None or bound is None or path.sender == DRIVER:
            return None
        if bound.of is None:
            return 0
        number, (_, last) = int(getattr(value, bound.of)), journal.left(self.name).get(path.endpoint.name, (0, 0))
        if number <= last:
            asked = f"calls {self.name}.{path.endpoint.name} with {bound.of} {number}, where {last} has left"
            raise Refused(path.sender, f"{asked}; approved: each {bound.of} once, also after a restart")
        return number

    def _record(self, sender: str, receiver: str, type_: str, size: int) -> None:
        kind = self._site.gate.kind(sender, receiver)
        self.ledger.record(self.clock.now(), sender, receiver, kind, type_, size)

    def put(self, value: Any, readers: frozenset[str]) -> Ref:
        with self._noting():
            frozen, size = calls.keep(self.endpoints, self.name, value)
        key = secrets.randbits(62) or 1
        self._payloads[key] = (frozen, size, readers)
        return Ref(self.name, key, size, NOWHERE)

    async def get(self, ref: Ref) -> Any:
        if ref.owner == self.name:
            return self.read(ref.key, self.name)
        with self._noting():
            address = self._site.gate.address(ref.owner, self.name)
            if (near := self._near.get(ref.owner)) is not None:
                value = near.read(ref.key, self.name)
            else:
                value = await fetch_abroad(self._site, self.name, address, ref.key)
        self._record(ref.owner, self.name, type_name(value, ""), measure(value))
        return value

    def read(self, key: Any, reader: str) -> Any:
        """Return a payload kept here, for a reader who may have it."""
        if key not in self._payloads:
            raise PayloadGone(f"payload {key} was freed by its owner {self.name}, or never was")
        value, _, readers = self._payloads[key]
        if reader != self.name:
            calls.check_reader(reader, readers, self.name)
        return value

    def free(self, ref: Ref) -> None:
        self._payloads.pop(ref.key, None)


class LocalActorHost(ActorHost):
    """Actors that live in the site's process."""

    def __init__(self, boundary: SiteBoundary) -> None:
        self.actors: dict[str, SiteContext] = {}
        self._boundary = boundary

    async def spawn(self, actor_specs: Sequence[ActorSpec], seed: int, clock: WallClock) -> None:
        for actor_spec in actor_specs:
            try:
                context = SiteContext(self._boundary, self.actors, actor_spec, seed, clock)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise not_taken(actor_spec.name) from error
            self.actors[actor_spec.name] = context
            context.failure.add_done_callback(partial(self._failed, actor_spec.name))

    def _failed(self, actor: str, failure: asyncio.Future[BaseException]) -> None:
        if not failure.cancelled():
            self._boundary.failed(actor, failure.result())

    async def load(self, earlier: Earlier | None) -> None:
        for context in self.actors.values():
            context.actor._files = await asyncio.to_thread(snapshots.digests_of_files, context.built_with)
            with code_of(context.name, self._boundary.gate.book):
                await context.actor.load()
            if earlier is not None:
                earlier.restore(context)
            if (journal := self._boundary.journal) is not None:
                context.actor.catch_up(journal.left(context.name))
            context.loaded.set()

    async def open(self, start: float) -> None:
        for context in self.actors.values():
            context.clock.begin(start)
        for context in self.actors.values():
            with code_of(context.name, self._boundary.gate.book):
                await context.actor.open()

    async def serve(self, path: CallPath, value: Any) -> Any:
        return await self.actors[path.receiver].serve(path, value)

    async def read(self, owner: str, key: int, reader: str) -> Any:
        return self.actors[owner].read(key, reader)

    async def account(self, party: str) -> list[Any]:
        found: list[Any] = []
        for name, context in self.actors.items():
            if name.partition("/")[0] == party:
                found += await context.account(context.actor)
        return found

    def call_counts(self) -> Mapping[str, CallCounts]:
        return {name: context.counts for name, context in self.actors.items()}

    async def snapshots(self) -> dict[str, bytes]:
        return {name: snapshots.seal_actor(one.actor) for name, one in self.actors.items()}

    async def settle(self) -> None:
        pass

    def recorded(self) -> Recorded:
        found = Recorded()
        for context in self.actors.values():
            context.ledger.flush()
            found.rows += context.rows
            found.spans += context.spans
            found.privacy += context.privacy
            for taken in (context.rows, context.spans, context.privacy):
                taken.clear()
        return found

    def counted(self) -> Mapping[str, Counted]:
        return {name: Counted(one.ledger.state(), one.idle_seconds) for name, one in self.actors.items()}

    async def close(self) -> None:
        for context in self.actors.values():
            with code_of(context.name, self._boundary.gate.book):
                await context.actor.close()

    def end(self) -> None:
        for context in self.actors.values():
            context.close()
