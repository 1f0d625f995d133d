"""The actors that a site hosts in a run in its own process: their calls, to each other and through the gate."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import secrets
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.errors import FedactorsError, PayloadGone, Refused
from fedactors.network.codec import encode_parts, measure, type_name
from fedactors.runtime import calls, snapshot
from fedactors.runtime.base import NOWHERE, Casting, Ref
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import ERROR_ROW, error_bytes
from fedactors.runtime.federated.household import (
    Household,
    Outside,
    Recorded,
    Totals,
    fetch_abroad,
    not_taken,
)
from fedactors.runtime.federated.pieces import value_of
from fedactors.runtime.federated.words import code_of, raised_by, told_abroad
from fedactors.runtime.hosted import HostedContext, WallClock
from fedactors.runtime.snapshot import digests_of_files

if TYPE_CHECKING:
    from fedactors.runtime.federated.kept_states import Earlier


class SiteContext(HostedContext):
    """One actor's side of the federated runtime.

    Args:
        site: the run, at this site.
        near: all actors that live here.
        casting: the actor.
        seed: of this actor's generators.
        clock: the run's at this site.
    """

    def __init__(
        self, site: Outside, near: Mapping[str, SiteContext], casting: Casting, seed: int, clock: WallClock
    ) -> None:
        super().__init__(casting, seed, False, clock, keep_rows=True)
        self.loaded = asyncio.Event()
        self.built_with = casting.args, casting.kwargs
        try:
            self.actor = casting.cls(*casting.args, **casting.kwargs)
        except FedactorsError as error:
            raise raised_by(self.name, error, site.gate.book) from None
        self.actor._context = self
        self._site = site
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
            place = gate.place(receiver, self.name)
            if near is None:
                path, value, size = gate.call_out(self.name, place, method, value)
            else:
                path = gate.path(self.name, place, method, value)
                value, size = calls.leave(path, value)
        self._record(self.name, receiver, type_name(value, method), size)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = site.unawaited.made(loop.create_future())
        sent: asyncio.Future[Any]
        if near is None:
            parts = encode_parts((self.name, receiver, method, value))
            sent = site.send(place.site, "calls", parts, f"{receiver}.{method}")
        else:
            sent = loop.create_task(near.serve(path, value))
            self._tasks.add(sent)
        sent.add_done_callback(partial(self._take, reply, path))
        return reply

    def _take(self, reply: asyncio.Future[Any], path: CallPath, done: asyncio.Future[Any]) -> None:
        self._tasks.discard(done)
        if done.cancelled():
            reply.cancel()
            return
        try:
            value = done.result()
            if path.receiver not in self._near:
                value = value_of(value, path.receiver)
                self._site.gate.reply_in(path, value)
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
            reply, size = calls.answer(path, await calls.begin(path, self.actor, value))
            if reply is not None:
                self._record(self.name, path.sender, type_name(reply, ""), size)
            return reply
        except Exception as error:
            failed = raised_by(self.name, error, self._site.gate.book)
            is_near = path.sender in self._near
            leaves = failed if is_near else told_abroad(self._site.gate.book[self.name].site, failed)
            self._record(self.name, path.sender, ERROR_ROW, error_bytes(leaves))
            raise failed from error

    def _record(self, sender: str, receiver: str, type_: str, size: int) -> None:
        kind = self._site.gate.kind(sender, receiver)
        self.ledger.record(self.clock.now(), sender, receiver, kind, type_, size)

    def put(self, value: Any, readers: frozenset[str]) -> Ref:
        with self._noting():
            frozen, size = calls.keep(self.doors, self.name, value)
        key = secrets.randbits(62) or 1
        self._payloads[key] = (frozen, size, readers)
        return Ref(self.name, key, size, NOWHERE)

    async def get(self, ref: Ref) -> Any:
        if ref.owner == self.name:
            return self.read(ref.key, self.name)
        with self._noting():
            place = self._site.gate.place(ref.owner, self.name)
            if (near := self._near.get(ref.owner)) is not None:
                value = near.read(ref.key, self.name)
            else:
                value = await fetch_abroad(self._site, self.name, place, ref.key)
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


class OwnProcess(Household):
    """Actors that live in the site's process.

    Args:
        outside: the run at the site.
    """

    def __init__(self, outside: Outside) -> None:
        self.actors: dict[str, SiteContext] = {}
        self._outside = outside

    async def cast(self, castings: Sequence[Casting], seed: int, clock: WallClock) -> None:
        for casting in castings:
            try:
                context = SiteContext(self._outside, self.actors, casting, seed, clock)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise not_taken(casting.name) from error
            self.actors[casting.name] = context
            context.failure.add_done_callback(partial(self._failed, casting.name))

    def _failed(self, actor: str, failure: asyncio.Future[BaseException]) -> None:
        if not failure.cancelled():
            self._outside.failed(actor, failure.result())

    def _code_of(self, actor: str) -> contextlib.AbstractContextManager[None]:
        return code_of(actor, self._outside.gate.book)

    async def load(self, earlier: Earlier | None) -> None:
        for context in self.actors.values():
            context.actor._files = await asyncio.to_thread(digests_of_files, context.built_with)
            with self._code_of(context.name):
                await context.actor.load()
            if earlier is not None:
                earlier.restore(context)
            context.loaded.set()

    async def open(self, start: float) -> None:
        for context in self.actors.values():
            context.clock.begin(start)
        for context in self.actors.values():
            with self._code_of(context.name):
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

    async def snapshots(self) -> dict[str, bytes]:
        return {name: snapshot.seal_actor(one.actor) for name, one in self.actors.items()}

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

    def totals(self) -> Mapping[str, Totals]:
        return {name: one.ledger.state() for name, one in self.actors.items()}

    def waiting(self) -> Mapping[str, float]:
        return {name: one.waiting_seconds for name, one in self.actors.items()}

    def cpu_seconds(self) -> float:
        return 0.0  # they have no process of their own

    async def close(self) -> None:
        for context in self.actors.values():
            with self._code_of(context.name):
                await context.actor.close()

    def end(self) -> None:
        for context in self.actors.values():
            context.close()
