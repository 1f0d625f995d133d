"""Groups of parties: call all of them at once, and handle lost parties in one way.

    clients: ActorGroup[GraphClient] = ActorGroup(self, names, on_loss="drop", timeout=60.0)
    parts = await clients.ask(lambda client: client.infer(aggregated))          # {name: reply}, in the order of names
    reports = await clients.ask_each(lambda client, order: client.update(order), orders)

    on_loss    who is lost, or gives no answer in time                 `ask` then
    stop       ends the run with its name                              raises
    skip       has no part in this answer; who is there is known       returns the others' replies
               to others
    drop       is no member any more                                   returns the others' replies, or, ``whole``,
                                                                       raises `Incomplete` for `repeat` to begin anew
    restart    is waited for, told by `back`, and asked again          returns all replies
    return     is away until it is `back`, which who was late is when  returns the others' replies
               its answer comes, and then let in (`let_in`)

The driver makes one of its runtime, an actor of itself. A party's own failure (`PartyFailed`) is never a loss: it
ends the run under every policy. Every wait has a limit, and every loss that a run survives is logged with its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast

from fedactors.actors.actor import Actor
from fedactors.actors.context import Caller
from fedactors.errors import BadInput, CallTimeout, PartyError, PartyFailed, PartyLost, Refused

C = TypeVar("C")
M = TypeVar("M")
T = TypeVar("T")
OnLoss = Literal["stop", "skip", "drop", "restart", "return"]
ON_LOSS = ("stop", "skip", "drop", "restart", "return")
_MOST_RESTARTS = 20
"""Of what one `repeat` goes through: a party that is lost each time it is asked would be asked for ever."""
_log = logging.getLogger(__name__)


class Incomplete(PartyError):
    """A call to a whole group lacks the answer of a lost party; see `ActorGroup.repeat`."""

    def __init__(self, loss: PartyError, group: ActorGroup[Any]) -> None:
        super().__init__(loss.party, loss.message)
        self.group = group


@contextlib.contextmanager
def surviving_loss(consequence: str) -> Iterator[list[PartyLost]]:
    """Go on when a party is lost in what is done inside: log its name and the consequence.

    with surviving_loss("its task goes to another container") as losses:
        await self.peer(center, OrderCenter).order(order)
    if losses:
        ...
    """
    losses: list[PartyLost] = []
    try:
        yield losses
    except PartyLost as loss:
        losses.append(loss)
        _log.warning("%s; %s", loss, consequence)


def started(call: Callable[..., Awaitable[T]], *args: Any) -> asyncio.Future[T]:
    """Make a call and return its reply; an error of the call itself is the reply's, so that others' are not left."""
    try:
        return asyncio.ensure_future(call(*args))
    except Exception as error:
        failed: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed


async def settle(replies: Sequence[asyncio.Future[Any]], is_survived: Callable[[BaseException], bool]) -> None:
    """Wait for all replies; where the waiting is cancelled, so are they.

    As `asyncio.gather` does, without a task for each call. Raises the first error that is not survived, at once.
    """
    if not replies:
        return
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    num_left = len(replies)

    def take(reply: asyncio.Future[Any]) -> None:
        nonlocal num_left
        num_left -= 1
        error = None if reply.cancelled() else reply.exception()  # an error is taken, late or not
        if over.done():
            return
        if reply.cancelled():
            over.cancel()
        elif error is not None and not is_survived(error):
            over.set_exception(error)
        elif num_left == 0:
            over.set_result(None)

    for reply in replies:
        reply.add_done_callback(take)
    try:
        await over
    except asyncio.CancelledError:
        for reply in replies:
            reply.cancel()
        raise


def _too_late(name: str, seconds: float) -> CallTimeout:
    return CallTimeout(name, f"it gave no answer within {seconds:g} s")


class ActorGroup(Generic[C]):
    """Parties that are called at once, with a policy for lost ones.

    Args:
        caller: who asks: the driver's runtime, or an actor.
        parties: handles by name, or names of which handles are made when they are needed.
        on_loss: what follows, one of `ON_LOSS`.
        timeout: seconds within which a party must answer, and be back after it was lost.
        when_dropped: awaited with the names, after parties were dropped; it may ask this group itself.
        label: what an actor's timeline calls the wait for the answers; empty: it is not on the timeline.
    """

    def __init__(
        self,
        caller: Caller | Actor,
        parties: Mapping[str, C] | Sequence[str],
        *,
        on_loss: OnLoss = "stop",
        timeout: float,
        when_dropped: Callable[[list[str]], Awaitable[None]] | None = None,
        label: str = "",
    ) -> None:
        if on_loss not in ON_LOSS:
            raise BadInput(f"on_loss: {on_loss!r} is not allowed: use {', '.join(ON_LOSS)}")
        if not timeout > 0:
            raise BadInput(f"timeout: {timeout} is not allowed: it must be more than 0 seconds")
        self.names = tuple(parties)
        """Everybody, in the order in which replies are returned."""
        self.attempt = 0
        """How often `repeat` has begun anew because somebody was dropped."""
        self._caller = caller
        self._handles: dict[str, C] = dict(parties) if isinstance(parties, Mapping) else {}
        self.on_loss: OnLoss = on_loss
        self._timeout = timeout
        self._when_dropped = when_dropped
        self._label = label
        self._away: set[str] = set()
        self.last_lost: str | None = None
        """Who was lost last, be it a member again by now."""
        self._returns = dict.fromkeys(self.names, 0)
        self._news = asyncio.Event()
        self._returning: dict[str, None] = {}
        self._failed: PartyError | None = None
        """What a late answer was, where it is no loss: the next question raises it."""

    # --- who is there ---

    @property
    def members(self) -> list[str]:
        """Names of the present members, in order."""
        return [name for name in self.names if name not in self._away]

    def handle(self, name: str) -> C:
        """Return the handle of one party."""
        if name not in self._handles:
            caller = self._caller
            handle = caller.peer(name, object) if isinstance(caller, Actor) else caller.handle(name, object)
            self._handles[name] = cast(C, handle)
        return self._handles[name]

    def leave(self, name: str) -> None:
        """Remove a lost party until it is `back`."""
        self.last_lost = name
        self._away.add(name)

    def back(self, name: str) -> None:
        """Note that a lost party is back, and wake those that wait for it.

        Under "return" it is a member again when it is let in: nobody comes between two questions that belong together.
        """
        if self.on_loss == "return" and name in self._away:
            self._returning[name] = None
        else:
            self._away.discard(name)
        self._returns[name] += 1
        self._news.set()
        self._news = asyncio.Event()

    @property
    def returning(self) -> list[str]:
        """Names of the parties that are `back` and not let in, under "return"."""
        return [name for name in self._returning if name in self._away]

    def let_in(self, name: str) -> None:
        """Make a party that is `back` a member again."""
        self._returning.pop(name, None)
        self._away.discard(name)

    async def await_return(self, seconds: float) -> bool:
        """Wait until a party is `back`; return whether that happened within these seconds."""
        if self.returning:
            return True
        with contextlib.suppress(TimeoutError):
            async with self._caller.clock.timeout(seconds):
                await self._news.wait()
                return True
        return False

    # --- asking ---

    async def ask(
        self,
        call: Callable[[C], Awaitable[T]],
        *,
        of: Iterable[str] | None = None,
        whole: bool = False,
        timeout: float | None = None,
    ) -> dict[str, T]:
        """Call all members at once; return their replies by name, in the order of names.

        Args:
            call: calls a method of one party's handle.
            of: ask only those of these who are members.
            whole: nothing is returned unless everybody has answered.
            timeout: seconds, instead of the group's.

        Raises:
            PartyLost, CallTimeout: see `on_loss` in the module.
            Incomplete: `whole`, and a party was dropped or skipped.
        """
        names = self.names if of is None else tuple(of)
        return await self._ask(lambda name: call(self.handle(name)), names, whole, timeout)

    async def ask_one(self, call: Callable[[C], Awaitable[T]]) -> T:
        """Call the only member of a group; return its reply."""
        (reply,) = (await self.ask(call)).values()
        return reply

    async def ask_each(
        self,
        call: Callable[[C, M], Awaitable[T]],
        messages: Mapping[str, M],
        *,
        whole: bool = False,
        timeout: float | None = None,
    ) -> dict[str, T]:
        """Call each party with its own message; parties without one are not called."""
        return await self._ask(lambda name: call(self.handle(name), messages[name]), tuple(messages), whole, timeout)

    async def repeat(self, action: Callable[[], Awaitable[T]], *, of: Iterable[str] | None = None) -> T:
        """Repeat `action` until no party of the group (or of `of`) is lost in it; return its result.

        Under "drop" it is done anew when a ``whole`` answer was `Incomplete`; under "restart" when a party that it
        needed was lost and is `back`; else once.
        """
        waited_for = frozenset(self.names if of is None else of)
        num_restarts = 0
        while True:
            returns = dict(self._returns)
            try:
                return await action()
            except Incomplete as incomplete:
                if incomplete.group is not self or self.on_loss != "drop":
                    raise
                self.attempt += 1
            except PartyLost as loss:
                num_restarts += 1
                if self.on_loss != "restart" or loss.party not in waited_for or num_restarts > _MOST_RESTARTS:
                    raise
                _log.warning("%s; what it was asked is done again when it is back", loss)
                await self._wait_for(loss.party, returns[loss.party])

    # --- snapshots ---

    def state_dict(self) -> dict[str, Any]:
        """Return the present members and the number of restarts."""
        return {"away": sorted(self._away), "attempt": self.attempt}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._away, self.attempt, self._returning = set(state["away"]), state["attempt"], {}

    # --- inside ---

    async def _ask(
        self, call: Callable[[str], Awaitable[T]], names: Sequence[str], whole: bool, timeout: float | None
    ) -> dict[str, T]:
        seconds, wanted = self._timeout if timeout is None else timeout, frozenset(names)
        replies: dict[str, T] = {}
        while True:
            asked = [name for name in self.members if name in wanted and name not in replies]
            with self._span():
                found, lost = await self._ask_once(call, asked, seconds)
            losses = list(lost.values())
            replies |= found
            if self.on_loss == "return":
                for name in lost:
                    self.leave(name)  # whomever its answer names
            if losses:
                await self._after(losses)
                if whole:
                    raise Incomplete(losses[0], self)
            if not losses or self.on_loss in ("skip", "return"):
                return {name: replies[name] for name in self.names if name in replies}
            # who is still a member without an answer needed a party that was lost: it is asked again

    async def _ask_once(
        self, call: Callable[[str], Awaitable[T]], names: Sequence[str], seconds: float
    ) -> tuple[dict[str, T], dict[str, PartyError]]:
        """Return replies and survived losses, by name; one limit is for all: a timer for each costs as much as a call.

        Raises:
            PartyError: a failure that is not survived, at once.
        """
        if self._failed is not None:
            raise self._failed
        if self.on_loss == "restart":
            done = await asyncio.gather(*(self._ask_until_back(call, name, seconds) for name in names))
            return dict(zip(names, done, strict=True)), {}
        asked = {name: started(call, name) for name in names}
        # under "return" who is late goes on
        waited_for = [asyncio.shield(reply) if self.on_loss == "return" else reply for reply in asked.values()]
        late: list[str] = []
        try:
            async with self._caller.clock.timeout(seconds):
                await settle(waited_for, self._is_survived)
        except TimeoutError:
            late = [name for name, reply in asked.items() if not reply.done() or reply.cancelled()]
            if self.on_loss == "return":
                for name in late:
                    asked[name].add_done_callback(functools.partial(self._came_late, name))
            elif unfinished := [asked[name] for name in late if not asked[name].done()]:
                await asyncio.wait(unfinished)  # they were cancelled
        replies: dict[str, T] = {}
        losses: dict[str, PartyError] = {}
        for name, reply in asked.items():
            loss = _too_late(name, seconds) if name in late else cast("PartyError | None", reply.exception())
            if loss is None:
                replies[name] = reply.result()
            elif self._is_survived(loss):
                losses[name] = loss
            else:
                raise loss
        return replies, losses

    async def _ask_until_back(self, call: Callable[[str], Awaitable[T]], name: str, seconds: float) -> T:
        async def answer() -> T:
            try:
                async with self._caller.clock.timeout(seconds):
                    return await call(name)
            except TimeoutError:
                raise _too_late(name, seconds) from None

        return await self.repeat(answer, of=(name,))

    def _is_survived(self, error: BaseException) -> bool:
        """Say whether an answer that is an error leaves the others' answers to be taken."""
        if not isinstance(error, PartyError) or isinstance(error, PartyFailed) or self.on_loss == "stop":
            return False
        return self.on_loss != "return" or not isinstance(error, Refused)

    def _came_late(self, name: str, late: asyncio.Future[Any]) -> None:
        """Hear the answer of a party that was late, which nobody needs any more; a loss is no answer."""
        error = None if late.cancelled() else late.exception()
        if late.cancelled() or (isinstance(error, PartyError) and not isinstance(error, PartyFailed)):
            return
        if error is not None:
            self._failed = error if isinstance(error, PartyError) else PartyFailed(name, str(error))
        self.back(name)

    async def _after(self, losses: Sequence[PartyError]) -> None:
        """Go on without lost parties where the run may, else raise the first loss."""
        if self.on_loss in ("skip", "return"):
            for loss in losses:
                if self.on_loss == "skip":
                    self.last_lost = loss.party
                _log.warning("%s; the others' answers are taken", loss)
            return
        members = self.members
        gone = [name for name in members if name in {loss.party for loss in losses}]
        others_lost = [loss for loss in losses if loss.party not in members]
        if others_lost or len(gone) == len(members):
            raise (others_lost or losses)[0]
        for loss in losses:
            _log.warning("%s; the run goes on without it", loss)
        for name in gone:
            self.leave(name)
        if self._when_dropped is not None:
            await self._when_dropped(gone)

    async def _wait_for(self, name: str, num_returns: int) -> None:
        try:
            async with self._caller.clock.timeout(self._timeout):
                while self._returns[name] == num_returns:
                    await self._news.wait()
        except TimeoutError:
            raise CallTimeout(name, f"it was lost and not back within {self._timeout:g} s") from None

    def _span(self) -> contextlib.AbstractContextManager[None]:
        if self._label and isinstance(self._caller, Actor):
            return self._caller.span("wait", self._label)
        return contextlib.nullcontext()
