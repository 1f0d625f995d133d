"""What becomes of an exception: it names its party, stops the run even if nobody awaited it, and travels as a value.

    an actor raises ──as_party_error──▶ error_fields, encode_error ──▶ decode_reply raises at the caller
                    ──raised_by──▶ error_for_sites: to another site its kind and its origin only

A party's code may raise anything, errors of fedactors' own kinds too, and may put values of its data into text, cause,
notes, attributes, or the name of a class. So between sites whatever comes out of an actor's code is marked with the
actor's name, and its words stay in the log of the site.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import re
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from fedactors import errors
from fedactors.errors import (
    CallTimeout,
    Deadlock,
    FedactorsError,
    OutOfMemory,
    PartyError,
    PartyFailed,
    PartyLost,
    PayloadGone,
    Refused,
    RowsChangedError,
    Stopped,
    is_out_of_memory,
)
from fedactors.messages.codec import CodecError, Parts, decode, encode_parts
from fedactors.runs.timeline import LOST
from fedactors.validation import first_line

if TYPE_CHECKING:
    from fedactors.runtime.interface import Runtime

_FRAME = re.compile(r'^ *(?:\| *)*(  File "[^"\n]+", line \d+, in \S+)$', re.MULTILINE)
_CALLER = "_fedactors_caller"
"""Attribute of an error that came as a reply: the `UnawaitedCall` that was told, and the name of the caller."""


LAST_SECONDS = 60.0
"""How long the end of a run waits for calls that nobody awaits."""
ERROR_ROW = "error"
"""Name under which the ledger records that a call failed and why."""


def note_loss(runtime: Runtime, name: str, policy: str) -> None:
    """Write down that an actor is lost and the run goes on, before it does: a resumed run must know of it."""
    if runtime.recorder is not None:
        now = runtime.clock.now()
        runtime.recorder.record_span(name, LOST, policy, now, now)


def error_bytes(error: BaseException) -> int:
    """Return the bytes of an error's words, which leave the party whose code failed."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in words_of(error))


def words_of(error: BaseException) -> list[str]:
    """Return what an error says: its own text, and what its traceback quotes of causes, contexts, groups and notes."""
    said, left, seen = [str(error)], [error], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if one is not error and one is not error.__cause__:  # whose text is in the error's own
            said.append(str(one))
        said += map(str, getattr(one, "__notes__", ()))
        left += [e for e in (one.__cause__, one.__context__, *getattr(one, "exceptions", ())) if e is not None]
    return said


def kind_of(error: BaseException) -> str:
    """Return the name of an error's class; of a party's own class, of what it is for fedactors or for Python."""
    if type(error) is PartyFailed and error.__cause__ is not None:
        error = error.__cause__
    known = [vars(errors).get(cls.__name__, vars(builtins).get(cls.__name__)) is cls for cls in type(error).__mro__]
    return type(error).__mro__[known.index(True)].__name__


def without_words(error: BaseException) -> str:
    """Return what may be kept of an exception: its kind, its party, and where it was raised; not what it says.

    A text may quote values of a party's data. Those of losses and limits are the runtime's own and are kept.
    """
    if isinstance(error, (PartyLost, CallTimeout, Deadlock, Stopped)):
        first = str(error)
    elif isinstance(error, PartyFailed):
        kind = error.message.partition(":")[0]
        first = f"{error.party}: {kind if kind.isidentifier() else type(error).__name__}"
    else:
        first = f"{error.party}: {type(error).__name__}" if isinstance(error, PartyError) else type(error).__name__
    text = error.traceback_text if isinstance(error, PartyFailed) else ""
    frames = _FRAME.findall(text or "".join(traceback.format_exception(error)))
    return "\n".join([first, *frames, ""])


def first_error(error: BaseException) -> BaseException:
    """Return what a group of errors (a task group's) began with: its first fedactors error, else its first error."""
    while isinstance(error, BaseExceptionGroup):
        named = error.subgroup(lambda e: isinstance(e, FedactorsError))
        error = (named or error).exceptions[0]
    return error


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after which what lasts begins again: twice as many each time, unless it lasted longer than the longest."""


async def lasting(work: Callable[[], Awaitable[None]], tell: Callable[[str], None]) -> None:
    """Do work that lasts as long as its process: after an error that it did not foresee, tell it and begin again.

    Args:
        work: to do; where it returns, this ends.
        tell: takes a line of text.
    """
    pause = FIRST_PAUSE
    while True:
        begun = time.monotonic()
        try:
            await work()
            return
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # it was this task that somebody ended, and not one that it waited for
            pause = FIRST_PAUSE if time.monotonic() - begun > LONGEST_PAUSE else pause
            with contextlib.suppress(Exception):  # a full disk
                tell(f"{unforeseen(error)}; it begins again in {pause:g} s")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def unforeseen(error: BaseException) -> str:
    """Return an error that nobody foresaw in a line: its kind, what it says, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if frames else ""
    return f"unforeseen error: {type(error).__name__}: {first_line(error)}{where}"


_OWNER = "_fedactors_owner"
"""Attribute of a task: the `UnawaitedCall` of the run that began it."""
_RUN: ContextVar[UnawaitedCall | None] = ContextVar("_RUN", default=None)


class UnawaitedCall:
    """An exception handler for event loops: a call, or a task, whose failure nobody awaited stops the run it is of.

    Args:
        stop: is given the failure.
        handled: says of a lost party whether its loss is dealt with, so that calls to it may be forgotten.
        others: is told what failed that is of no run, on a loop that does several runs, each of which its own failures
            stop; None: all is the run's.
    """

    def __init__(
        self,
        stop: Callable[[BaseException], None],
        handled: Callable[[str], bool],
        others: Callable[[str], None] | None = None,
    ) -> None:
        self._stop = stop
        self._handled = handled
        self._others = others
        self._made: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
        self._failed: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()

    def enter(self) -> None:
        """Let what the current task does from now on, and all that it begins, be the run's."""
        _RUN.set(self)

    @staticmethod
    def mark_tasks(loop: asyncio.AbstractEventLoop) -> None:
        """Let each task of a loop know from now on which run it is of, if any."""

        def make(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
            task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **how)
            context = how.get("context")
            if (owner := _RUN.get() if context is None else context.get(_RUN)) is not None:
                setattr(task, _OWNER, owner)
            return task

        loop.set_task_factory(make)

    def _owner_of(self, context: Mapping[str, Any]) -> UnawaitedCall | None:
        """Return of which run it is that failed; None: of none, a socket's, say, or a task's of the site."""
        if self._others is None:
            return self
        owner: UnawaitedCall | None = getattr(context.get("future"), _OWNER, None)
        if owner is None and (handle := context.get("handle")) is not None:
            owner = handle._context.get(_RUN)
        return owner

    def track(self, reply: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Remember a call that was made, and return its reply."""
        self._made.add(reply)
        return reply

    async def last_answers(self, made: Iterable[asyncio.Future[Any]] | None = None) -> None:
        """Wait, `LAST_SECONDS` at most, for calls under way that nobody awaits: one of them may still fail.

        Args:
            made: the replies of all calls under way; those given to `track` by default.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                while forgotten := [r for r in made or self._made if not r.done() and not r._callbacks]:
                    await asyncio.wait(forgotten)

    def fail(self, reply: asyncio.Future[Any], error: BaseException, caller: str) -> None:
        """End a reply with an error; who made the call is remembered, in case that nobody ever asks."""
        setattr(error, _CALLER, (self, caller))
        reply.set_exception(error)
        self._failed.add(reply)

    def check(self) -> None:
        """Look for failed replies that are still held somewhere and were never awaited, when the run is over."""
        for reply in list(self._failed):
            if reply._log_traceback and not reply.cancelled():
                self(reply.get_loop(), {"exception": reply.exception()})

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """See `asyncio.loop.set_exception_handler`."""
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(dict(context))
            return
        holder, caller = getattr(error, _CALLER, (self._owner_of(context), None))
        if isinstance(error, PartyLost) and (holder or self)._handled(error.party):
            return
        if holder is None:
            if self._others is not None:
                with contextlib.suppress(Exception):  # a full disk
                    self._others(f"{unforeseen(error)}: {context.get('message', '')}")
            return
        if holder is not self and caller is not None and self._others is None:
            return  # left by a run that has ended on this loop: what becomes garbage late stops no other run
        if caller is not None:
            note = f" ({caller}, which had called it, did not await the answer)"
            error.args = (f"{error}{note}",)
            if isinstance(error, PartyError):
                error.message += note
        holder._stop(error)


def as_party_error(name: str, error: BaseException) -> FedactorsError:
    """Return `error` as a failure of the actor `name`; an error that already speaks for itself stays what it is."""
    error = first_error(error)
    if isinstance(error, FedactorsError) and not isinstance(error, CodecError):
        return error
    if is_out_of_memory(error):
        raised = OutOfMemory(
            f"{name}: not enough memory: {first_line(error)}; make the model, the batch or the data smaller"
        )
        raised.__cause__ = error
        return raised
    text = "".join(traceback.format_exception(error))
    failed = PartyFailed(name, f"{type(error).__name__}: {error}", text)
    failed.__cause__ = error
    return failed


def error_fields(name: str, error: BaseException) -> tuple[str, str, str, str]:
    """Return what the caller of an actor is told of an error: class name, party, message, original traceback."""
    known = as_party_error(name, error)
    party = known.party if isinstance(known, PartyError) else name
    text = known.message if isinstance(known, PartyError) else str(known)
    trace = known.traceback_text if isinstance(known, PartyFailed) else ""
    # a protocol's own kind of error travels as the one of `errors` that it is
    kind = next(cls.__name__ for cls in type(known).__mro__ if getattr(errors, cls.__name__, None) is cls)
    return kind, party, text, trace


def encode_error(name: str, error: BaseException) -> Parts:
    """Return an error as a value; see `error_fields`."""
    return encode_parts(error_fields(name, error))


def decode_reply(is_reply: bool, body: memoryview | bytes) -> Any:
    """Return a reply's value, or raise the error it carries."""
    value = decode(body)
    if is_reply:
        return value
    raise error_of(*value)


def error_of(name: str, party: str, text: str, trace: str) -> FedactorsError:
    """Return the error whose class name, party, message and original traceback these are."""
    cls = getattr(errors, name, None)
    if cls is PartyFailed:
        return PartyFailed(party, text, trace)
    if isinstance(cls, type) and issubclass(cls, PartyError):
        return cls(party, text)
    if isinstance(cls, type) and issubclass(cls, FedactorsError) and cls is not errors.Stopped:
        return cls(text)
    return PartyFailed(party, f"{name}: {text}", trace)


_FRAMEWORK_ERRORS = (Refused, PartyLost, CallTimeout, PayloadGone, RowsChangedError)
"""Errors whose text, unless an actor's code raised them, is the runtime's own and quotes nobody's data."""
_ORIGIN = "_fedactors_origin"


def raised_by(actor: str, error: BaseException, known: Container[str]) -> FedactorsError:
    """Return an error of an actor's code as one of its party, whose words stay at its site.

    Args:
        actor: whose code it is.
        error: what it raised.
        known: names of the run's actors: the error is told to be of one of them, whatever it says itself.
    """
    failed = as_party_error(actor, error)
    if not hasattr(failed, _ORIGIN):
        setattr(failed, _ORIGIN, failed.party if isinstance(failed, PartyError) and failed.party in known else actor)
    return failed


@contextmanager
def code_of(actor: str, known: Container[str]) -> Iterator[None]:
    """Mark whatever an actor's code raises inside."""
    try:
        yield
    except Exception as error:
        raise raised_by(actor, error, known) from error


def refused_for(site: str, does: str, error: BaseException) -> Refused:
    """Return that `site` refuses because of an error of others' code or of the system: its words are for its own log.

    Args:
        site: that refuses, and is named.
        does: what it does, in words that others may read.
        error: why.
    """
    made = Refused(site, f"{does}: {first_line(error)}")
    return made.telling(f"{does}: {kind_of(error)}; the log of the site {site} says more")


def error_for_sites(site: str, error: BaseException) -> FedactorsError:
    """Return what other sites are told of an error of `site`."""
    known = as_party_error(site, error)
    origin = getattr(known, _ORIGIN, None)
    if origin is None and (said := known.for_others) is not None:
        if not isinstance(known, _FRAMEWORK_ERRORS):
            return PartyFailed(site, said.removeprefix(f"{site}: "))
        return type(known)(known.party, said) if isinstance(known, PartyError) else type(known)(said)
    if origin is None and isinstance(known, _FRAMEWORK_ERRORS):
        return known
    kind = next((kind for kind in (PartyLost, CallTimeout) if isinstance(known, kind)), PartyFailed)
    return kind(origin or site, f"{kind_of(known)}; the log of the site {site} says more")


def errors_for(site: str, peer: str) -> Callable[[BaseException], Parts]:
    """Return how errors of `site` are told to `peer`."""
    return lambda error: encode_error(site, error if peer == site else error_for_sites(site, error))
