"""Endpoints: the methods of an actor that others may call. Nothing else can be called, on any runtime.

    class PassiveWorker(Client):
        @remote(caller=CLIENT)                        # who may call: a role, SAME_PARTY, PEERS (any actor) or DRIVER
        async def embed(self, order: EmbedOrder) -> Embedding: ...

        @remote(caller=CLIENT, only="label_party")    # of the clients those whom the property `label_party` names
        async def follow(self, order: RowOrder) -> None: ...

An endpoint takes one declared message or none, and gives one or none. It is checked when the class is made. One table
per class (`endpoints`) is read by the callers' handles, by the receiving side of every runtime, by `fedactors inspect`,
by the ledger and by the conformance kit. `load`, `open`, `close` and whatever else carries no `@remote` is none.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar, overload

from fedactors.errors import Refused
from fedactors.messages.fields import UnknownAnnotation, checks_of, in_words, wrong_in

F = TypeVar("F", bound=Callable[..., Any])

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


class InvalidEndpoint(TypeError):
    """A method is declared as an endpoint that cannot be one; raised when its class is made."""


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
    """All that can be asked of the actors of a class, and the payloads that they may keep for others."""

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
def remote(*, caller: str | tuple[str, ...] = ..., only: str | None = ...) -> Callable[[F], F]: ...


def remote(method: Any = None, *, caller: str | tuple[str, ...] = PEERS, only: str | None = None) -> Any:
    """Declare a method as an endpoint.

    Args:
        method: a coroutine method with at most one parameter; parameter and result are declared messages or None.
        caller: who may call it, one or several of `CALLERS`.
        only: name of a property of the class that says which actors or parties (a name, or several) are meant.
    """

    def mark(function: Any) -> Any:
        callers = (caller,) if isinstance(caller, str) else caller
        for one in callers:
            if one not in CALLERS:
                raise InvalidEndpoint(
                    f"{function.__qualname__}: caller {one!r} is not allowed: use {', '.join(CALLERS)}"
                )
        function.__endpoint_callers__ = frozenset(callers)
        function.__endpoint_only__ = only
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
                table[name] = _endpoint(cls, name, value, callers)
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
    if name.startswith("_") or name in _LIFE:
        raise InvalidEndpoint(f"{where} is no endpoint: the frame itself calls it, or its name says that it is private")
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
    return Endpoint(name, takes, _types(hints["return"], where), callers, not parameters, only)


def spoken(attribute: str) -> str:
    """Return the words that a property's name is made of."""
    return attribute.replace("_", " ")


def _types(hint: Any, where: str) -> tuple[type, ...]:
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
