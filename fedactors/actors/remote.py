"""Endpoints: the methods of an actor that others may call. Nothing else can be called, on any runtime.

    class PassiveWorker(Client):
        @remote(caller=CLIENT)                        # who may call: a role, SAME_PARTY, PEERS (any actor) or DRIVER
        async def embed(self, order: EmbedOrder) -> Embedding: ...

        @remote(caller=CLIENT, only="label_party", once=True)    # of the clients those whom `label_party` names; once
        async def follow(self, order: RowOrder) -> None: ...

        @remote(caller=DRIVER, at_most="num_epochs", of="epoch", span="num_epochs")     # epochs 1 to config.num_epochs
        async def run_epoch(self, order: EpochOrder) -> None: ...

An endpoint takes one declared message or none, and gives one or none. It is checked when the class is made. How often
it may be called in a run follows from the run's configuration (`Bound`), and is counted at the actor that is called, on
every runtime and through resumptions (`CallCounts`); without a bound it says why. One table per class (`endpoints`) is
read by the callers' handles, by the receiving side of every runtime, by `fedactors inspect`, by the ledger and by the
conformance kit. `load`, `open`, `close` and whatever else carries no `@remote` is none.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar, overload

from fedactors.errors import Refused
from fedactors.messages.fields import UnknownAnnotation, checks_of, expanded, in_words, wrong_in

F = TypeVar("F", bound=Callable[..., Any])
Most = int | str | Callable[[Any], int | None]
"""A number, the name of a setting or of a property of the actor, or a function of the configuration."""

DRIVER = "driver"
"""The run's driver: control."""
PEERS = "peers"
"""Any actor of the run."""
SAME_PARTY = "own party"
"""Actors of the same party only."""
CLIENT, SERVER, PARAMETER_SERVER, DATA_CENTER = "client", "server", "parameter-server", "data-center"
current_caller: ContextVar[str | None] = ContextVar("current_caller", default=None)
"""Who called the endpoint that runs, as the runtime knows it; None: none runs. See `Actor.caller`."""
CALLERS = (DRIVER, PEERS, SAME_PARTY, CLIENT, SERVER, PARAMETER_SERVER, DATA_CENTER)
_LIFE = frozenset({"load", "open", "close", "compute", "begin", "job", "background", "put", "get", "free", "peer"})
_ACCOUNTS = frozenset({"release", "count_forwarded", "record_privacy", "known_sizes", "check_sizes"})


class InvalidEndpoint(TypeError):
    """A method is an invalid endpoint; raised when its class is created."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How often an endpoint may be called in a run."""

    most: Most
    of: str | None = None
    """The message's field that numbers what is asked for, from 1 on, each once; None: calls are counted."""
    span: str | None = None
    """The message's field that says how many numbers end with that one."""
    each: bool = False
    """Whether it is for each caller by itself."""
    otherwise: str = ""
    """What bounds it where the configuration names no number."""

    def limit(self, config: Any, actor: Any = None) -> int | None:
        """Return the bound in numbers; None: only the actor's rows say it, or `otherwise`."""
        most = self.most
        if isinstance(most, int):
            return most
        if callable(most):
            return None if config is None else most(config)
        owner = next((owner for owner in (config, actor) if hasattr(owner, most)), None)
        found: int | None = getattr(owner, most, None)
        return found

    def in_words(self, config: Any, actor: Any = None) -> str:
        """Return the bound in words, for an approval or a refusal."""
        limit, named = self.limit(config, actor), isinstance(self.most, str)
        if limit is None:
            says = f"as often as {spoken(str(self.most)) if named else 'its configuration'} says"
            return says if config is None or not self.otherwise else self.otherwise
        if limit == 0:
            return "never"
        times = "once" if limit == 1 and not self.of else f"at most {limit:,}{'' if self.of else ' times'}"
        words = f"{times}{f' ({self.most})' if named else ''}"
        return f"{words}{', by each caller' if self.each else ''}{f', each {self.of} once' if self.of else ''}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method that others may call.

    ``takes`` and ``gives`` hold the exact types that are allowed; ``NoneType`` stands for no message.
    """

    name: str
    takes: tuple[type, ...]
    gives: tuple[type, ...]
    callers: frozenset[str]
    is_bare: bool = False
    """Whether the method has no parameter."""
    only: str | None = None
    """The receiver's attribute that names those of `callers` who are meant; the driver is, in any case."""
    bound: Bound | None = None
    unbounded: str = ""
    """Why it has no bound."""

    @property
    def is_stated(self) -> bool:
        """Whether it says how often it may be called: what stays within a party needs no bound."""
        return self.bound is not None or bool(self.unbounded) or self.callers == {SAME_PARTY}

    def admits(self, sender: str, sender_role: str, receiver: str) -> bool:
        """Say whether an actor, or the driver, may call this endpoint of `receiver`."""
        callers = self.callers
        if sender == DRIVER:
            return DRIVER in callers
        if PEERS in callers or sender_role in callers:
            return True
        return SAME_PARTY in callers and sender.partition("/")[0] == receiver.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of an actor class, and the payloads that its actors may keep for others."""

    owner: str
    """Name of the class."""
    table: Mapping[str, Endpoint]
    payloads: tuple[type, ...]

    def check(self, method: str, sender: str, sender_role: str, receiver: str, value: Any) -> Endpoint:
        """Return the endpoint `method` if `sender` may call it with `value`.

        Raises:
            Refused: naming the sender, the receiver and what is allowed.
        """
        endpoint = self.table.get(method)
        if endpoint is None:
            there = ", ".join(self.table) or "none"
            raise Refused(
                sender, (f"calls {receiver}.{method}, which is no endpoint of {self.owner} (endpoints: {there})")
            )
        if type(value) not in endpoint.takes:
            raise Refused(
                sender, f"calls {receiver}.{method} with {_word(type(value))}; it takes {_words(endpoint.takes)}"
            )
        if not endpoint.admits(sender, sender_role, receiver):
            allowed = ", ".join(sorted(endpoint.callers))
            raise Refused(sender, f"calls {receiver}.{method}, which is open to: {allowed}; not to {sender}")
        return endpoint

    def check_named(self, endpoint: Endpoint, sender: str, receiver: str, actor: Any) -> None:
        """Check, where the receiver is, that `sender` is among those whom an endpoint is open to by name.

        Raises:
            Refused: naming the sender and those who are.
        """
        if endpoint.only is None or sender == DRIVER:
            return
        named = getattr(actor, endpoint.only)
        names = (named,) if isinstance(named, str) else tuple(named)
        if sender not in names and sender.partition("/")[0] not in names:
            raise Refused(
                sender,
                f"calls {receiver}.{endpoint.name}, which is open to its {spoken(endpoint.only)} only: "
                f"{', '.join(names) or 'nobody'}; not to {sender}",
            )

    def check_fields(self, sender: str, value: Any) -> None:
        """Check that all fields of a message that arrived are as its class declares them.

        Raises:
            Refused: naming the sender, the field, what is there and what is declared.
        """
        if value is not None and (wrong := wrong_in(value)) is not None:
            path, item, declared = wrong
            raise Refused(
                sender, f"sends {value.__class__.__name__}{path} as {in_words(item)}; it is declared as {declared}"
            )

    def check_reply(self, endpoint: Endpoint, receiver: str, value: Any) -> None:
        """Check what `receiver` replies.

        Raises:
            Refused: naming the receiver, whose reply is not of a type that the endpoint gives.
        """
        if type(value) not in endpoint.gives:
            raise Refused(
                receiver,
                f"{endpoint.name} returned {_word(type(value))}; it is declared to give {_words(endpoint.gives)}",
            )

    def check_payload(self, owner: str, value: Any) -> None:
        """Check what an actor named `owner` keeps for others.

        Raises:
            Refused: it is of no type that the class declares in ``payloads``.
        """
        if type(value) not in self.payloads:
            declared = _words(self.payloads) if self.payloads else "none"
            raise Refused(owner, f"{_word(type(value))} is no payload of {self.owner} (declared: {declared})")


@overload
def remote(method: F) -> F: ...


@overload
def remote(
    *,
    caller: str | tuple[str, ...] = ...,
    only: str | None = ...,
    once: bool = ...,
    at_most: Most | None = ...,
    of: str | None = ...,
    span: str | None = ...,
    each: bool = ...,
    unbounded: str = ...,
) -> Callable[[F], F]: ...


def remote(
    method: Any = None,
    *,
    caller: str | tuple[str, ...] = PEERS,
    only: str | None = None,
    once: bool = False,
    at_most: Most | None = None,
    of: str | None = None,
    span: str | None = None,
    each: bool = False,
    unbounded: str = "",
) -> Any:
    """Declare a method as an endpoint.

    Args:
        method: a coroutine method with at most one parameter; parameter and result are declared messages or None.
        caller: who may call it, one or several of `CALLERS`.
        only: name of a property of the class that says which actors or parties (a name, or several) are meant.
        once: it may be called once in a run.
        at_most: how often it may be: a number, a setting of the actor's configuration (or a property of the actor,
            where only its rows say it), or a function of the configuration.
        of: the field of the message that numbers what is asked for: 1 to the bound, upwards, each once.
        span: the field that says how many numbers end with that one.
        each: the bound is for each caller by itself.
        unbounded: why there is no bound; with `at_most`: what bounds it where the configuration names no number.
    """
    most: Most | None = 1 if once else at_most

    def mark(function: Any) -> Any:
        callers = (caller,) if isinstance(caller, str) else caller
        for one in callers:
            if one not in CALLERS:
                raise InvalidEndpoint(
                    f"{function.__qualname__}: caller {one!r} is not allowed: use {', '.join(CALLERS)}"
                )
        function.__endpoint_callers__ = frozenset(callers)
        if most is None and (of or span or each):
            raise InvalidEndpoint(f"{function.__qualname__}: of, span and each need at_most or once")
        if isinstance(most, int) and unbounded:
            raise InvalidEndpoint(f"{function.__qualname__}: has a bound, and says why it has none")
        function.__endpoint_only__ = only
        function.__endpoint_bound__ = (None if most is None else Bound(most, of, span, each, unbounded)), unbounded
        return function

    return mark if method is None else mark(method)


def endpoints(cls: type) -> Endpoints:
    """Return the endpoints of an actor class, its base classes' included."""
    found: Endpoints = cls.__endpoints__  # type: ignore[attr-defined]
    return found


def make_endpoints(cls: type) -> Endpoints:
    """Read and check the endpoints of a class that is being made.

    Raises:
        InvalidEndpoint: what is declared cannot be an endpoint, or a payload is no message with readers.
    """
    table: dict[str, Endpoint] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            callers = getattr(value, "__endpoint_callers__", None)
            if callers is not None:
                made = _endpoint(cls, name, value, callers)
                if name in table and table[name].bound is not None and not made.is_stated:
                    raise InvalidEndpoint(
                        f"{cls.__qualname__}.{name} overrides a bounded endpoint: state once, at_most or unbounded"
                    )
                table[name] = made
            elif name in table:
                raise InvalidEndpoint(f"{cls.__qualname__}.{name} overrides an endpoint: mark it with @remote again")
    payloads: tuple[type, ...] = getattr(cls, "payloads", ())
    for payload in payloads:
        facts = getattr(payload, "__message__", None)
        if facts is None or not facts.readers:
            raise InvalidEndpoint(
                f"{cls.__qualname__}.payloads: {_word(payload)} is no @message that states its readers"
            )
        _prepare(payload)
    return Endpoints(cls.__qualname__, table, payloads)


def _endpoint(cls: type, name: str, function: Any, callers: frozenset[str]) -> Endpoint:
    where = f"{cls.__qualname__}.{name}"
    if name.startswith("_") or name in _LIFE | _ACCOUNTS:
        raise InvalidEndpoint(
            f"{where} is no endpoint: every actor has such a method, or its name says that it is private"
        )
    if not inspect.iscoroutinefunction(function):
        raise InvalidEndpoint(f"{where} is no endpoint: it must be an async method")
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if len(parameters) > 1 or any(
        p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) or p.default is not p.empty for p in parameters
    ):
        raise InvalidEndpoint(f"{where} is no endpoint: it must take one message or nothing")
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise InvalidEndpoint(
            f"{where} is no endpoint: {error}; declare its messages before the class, in a module"
        ) from None
    if "return" not in hints:
        raise InvalidEndpoint(f"{where} is no endpoint: say what it returns, a message or None")
    takes: tuple[type, ...] = (NoneType,)
    if parameters:
        if parameters[0].name not in hints:
            raise InvalidEndpoint(f"{where} is no endpoint: say which message {parameters[0].name} is")
        takes = _types(hints[parameters[0].name], where)
    only = function.__endpoint_only__
    if only is not None and not hasattr(cls, only):
        raise InvalidEndpoint(f"{where} is no endpoint: it is open to {only!r} only, which is no property of the class")
    bound, unbounded = function.__endpoint_bound__
    for field in filter(None, () if bound is None else (bound.of, bound.span)):
        if not all(hasattr(one, "__dataclass_fields__") and field in one.__dataclass_fields__ for one in takes):
            raise InvalidEndpoint(f"{where} is no endpoint: its bound counts {field!r}, which is no field it takes")
    return Endpoint(name, takes, _types(hints["return"], where), callers, not parameters, only, bound, unbounded)


REPEATS = 20
"""Calls more of each endpoint where a driver of the same organisation brings back who is lost, and asks again."""


class CallCounts:
    """How often an actor was asked for what is bounded, and what it released: kept where that happens, in snapshots.

    Args:
        config: the actor's configuration; None: it has none.
        repeats: calls more of each endpoint that are granted.
    """

    def __init__(self, config: Any, repeats: int) -> None:
        self._config, self._repeats = config, repeats
        self._calls: dict[str, tuple[int, int, int]] = {}
        """By endpoint (and caller): calls, the last number, repeated ones."""
        self._released: dict[str, dict[int, dict[str, int]]] = {}
        """By what is released, round and key: times, of the last two rounds."""
        self.forgotten: dict[str, int] = {}
        """Calls, numbers, rounds and releases of a run before it paused, which its checkpoints have forgotten."""

    def admit(self, endpoint: Endpoint, bound: Bound, sender: str, actor: Any, value: Any) -> None:
        """Count a call that is about to be done.

        Raises:
            Refused: naming the sender, what it asks for and what is approved.
        """
        limit = bound.limit(self._config, actor)
        if limit is None and bound.otherwise and self._config is not None:
            return
        if limit is None:
            where = f"{type(actor).__qualname__}.{endpoint.name}"
            raise InvalidEndpoint(f"{where}: its bound {bound.most!r} is neither a setting nor a property of the actor")
        key = f"{endpoint.name} {sender}" if bound.each else endpoint.name
        calls, last, repeated = self._calls.get(key, (0, 0, 0))
        again = self.forgotten.get(_call(key), 0)
        if again and again + (calls + 1 if bound.of is None else int(getattr(value, bound.of))) > 2 * limit:
            asked = f"with {again:,} repeated after pauses"
            raise self._refused(endpoint, bound, sender, actor, asked, ", and as many repeated")
        if bound.of is None:
            if calls >= limit + self._repeats:
                raise self._refused(endpoint, bound, sender, actor, f"for the {ordinal(calls + 1)} time")
            self._calls[key] = calls + 1, last, repeated
            return
        number, span = int(getattr(value, bound.of)), 1 if bound.span is None else int(getattr(value, bound.span))
        asked = f"with {bound.of} {number}" if span == 1 else f"with {span} that end with {bound.of} {number}"
        if not 1 <= span <= number <= limit:
            raise self._refused(endpoint, bound, sender, actor, asked)
        repeated += number - span < last
        if repeated > self._repeats:
            raise self._refused(endpoint, bound, sender, actor, f"{asked}, where {last} is done")
        self._calls[key] = calls + 1, max(last, number), repeated

    def _refused(
        self, endpoint: Endpoint, bound: Bound, sender: str, actor: Any, asked: str, more: str = ""
    ) -> Refused:
        said = f"calls {actor.name}.{endpoint.name} {asked}; approved: {bound.in_words(self._config, actor)}{more}"
        return Refused(sender, said)

    def release(self, actor: str, what: str, key: str, at_most: int, round: int, last_round: int) -> None:
        """Count that `key` of `what` leaves in a round of the training: the latest one or, before it, that one.

        Raises:
            Refused: it left `at_most` times, or the round is over, or is beyond the last one.
        """
        rounds = self._released.setdefault(what, {})
        latest = max(rounds, default=round)
        if round > last_round or (round < latest - 1 and self._repeats == 0):
            asked = f"is made to release {what}{key} of round {round}"
            raise Refused(actor, f"{asked}; approved: {last_round}{f', {latest} is under way' if rounds else ''}")
        again = self.forgotten.get(_release(what), 0)
        if again and again + round > 2 * last_round:
            asked = f"is made to release {what}{key} of round {round}, with {again:,} repeated after pauses"
            raise Refused(actor, f"{asked}; approved: {last_round}, and as many repeated")
        times = rounds.setdefault(round, {})
        number = times.get(key, 0) + 1
        again = self.forgotten.get(_release(what, round, key), 0)
        if again and again + number > 2 * at_most:
            asked = f"is made to release {what}{key} with {again:,} repeated after pauses"
            raise Refused(actor, f"{asked}; approved: {at_most:,} in all, and as many repeated")
        if number > at_most + self._repeats:
            asked = f"is made to release {what}{key} for the {ordinal(number)} time"
            raise Refused(actor, f"{asked}; approved: {'once' if at_most == 1 else f'at most {at_most:,} times'}")
        times[key] = number
        for old in [old for old in rounds if old < round - 1]:
            del rounds[old]

    @property
    def has_released(self) -> bool:
        """Whether anything left that depends on private rows."""
        return bool(self._released)

    def state(self) -> dict[str, Any]:
        """Return the counts for a snapshot."""
        released = [(what, *one) for what, rounds in self._released.items() for one in rounds.items()]
        return {"calls": dict(self._calls), "released": released}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the counts of a snapshot."""
        self._calls = {str(key): (int(one[0]), int(one[1]), int(one[2])) for key, one in dict(state["calls"]).items()}
        self._released = {}
        for what, round, times in state["released"]:
            rounds = self._released.setdefault(str(what), {})
            rounds[int(round)] = {str(key): int(number) for key, number in dict(times).items()}

    def remember(self, forgotten: Mapping[str, int], ended: Mapping[str, Any] | None) -> None:
        """Add to what checkpoints have forgotten before what the one has, with whose counts this goes on.

        Args:
            forgotten: before.
            ended: the counts at the end of the part of the run that was; None: nobody knows them.
        """
        found = Counter({str(key): int(number) for key, number in forgotten.items()})
        if ended is not None:
            later = CallCounts(None, 0)
            later.restore(ended)
            for key, (calls, last, _) in later._calls.items():
                calls_before, last_before, _ = self._calls.get(key, (0, 0, 0))
                found[_call(key)] += max(0, last - last_before if last else calls - calls_before)
            for what, rounds in later._released.items():
                here = self._released.get(what, {})
                first, last = max(here, default=0), max(rounds)
                before, after = here.get(first, {}), rounds.get(first, {})
                if last > first:
                    found[_release(what)] += last - first + (before != after)
                else:
                    for key, times in after.items():
                        found[_release(what, first, key)] += max(0, times - before.get(key, 0))
        self.forgotten = dict(+found)


def _call(key: str) -> str:
    return f"call {key}"


def _release(what: str, *of: object) -> str:
    return " ".join(map(str, ("release", what, *of)))


def config_of(cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what an actor of a class takes as its `config`; None: it takes none."""
    path = _config_position(cls)
    return kwargs.get("config", args[path] if 0 <= path < len(args) else None)


@functools.cache
def _config_position(cls: type) -> int:
    for base in cls.__mro__:  # one that passes all its arguments on takes none by name
        if (made := vars(base).get("__init__")) is not None:
            names = list(inspect.signature(made).parameters)[1:]
            if "config" in names:
                return names.index("config")
    return -1


def ordinal(number: int) -> str:
    """Return a number as it counts times: 1st, 2nd, 3rd, 4th."""
    teen = 10 <= number % 100 <= 20
    return f"{number:,}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def spoken(attribute: str) -> str:
    """Return the words that a property's name is made of."""
    return attribute.replace("_", " ")


def _types(hint: Any, where: str) -> tuple[type, ...]:
    hint = expanded(hint)
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = typing.get_args(hint) if is_union else (hint,)
    for part in parts:
        if part is NoneType:
            continue
        if not hasattr(part, "__message__"):
            raise InvalidEndpoint(f"{where} is no endpoint: {_word(part)} is no message; declare it with @message")
        _prepare(part)
    return tuple(parts)


def _prepare(message: type) -> None:
    try:
        checks_of(message)
    except (UnknownAnnotation, NameError) as error:
        raise InvalidEndpoint(f"{message.__qualname__} is no message that could be checked: {error}") from None


def _word(cls: Any) -> str:
    return "nothing" if cls is NoneType else f"a {getattr(cls, '__name__', cls)}"


def _words(classes: Iterable[type]) -> str:
    return " or ".join(map(_word, classes))
