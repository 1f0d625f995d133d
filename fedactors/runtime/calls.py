"""One path of a call, the same on every runtime: what is checked, frozen and measured, and in which order.

    caller      path = admit(...)          the endpoint exists, is open to this sender and takes this message
                leave(path, value)         freeze, check every field, measure; nothing has left before
                ---- the runtime: ledger row, link, transport ----
    receiver    arrive(path, value)        check again, where the sender's process is not trusted
                ---- the runtime: wait until the actor has loaded ----
                begin(path, actor, value)  open to this sender, and once more; of these dimensions; set the caller;
                                           run the endpoint
                answer(path, reply)        check the reply's type, freeze, check every field, measure
                failed(actor, caller, e)   what the caller is told of an error
                ---- the runtime: ledger row, link, transport ----
    caller      take(path, reply)          check again, where the receiver's process is not trusted
                fit(path, actor, reply)    check dimensions against what the caller knows

A payload goes the same way: `keep` at its owner, `check_reader` wherever it is read, `receive` where its owner is not
trusted. Nothing here knows a clock, an event loop, a ledger or a transport.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from fedactors.actors.remote import DRIVER, Endpoint, Endpoints, current_caller
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.messages.codec import freeze, measure
from fedactors.messages.fields import freeze_valid
from fedactors.messages.ledger import kind_of
from fedactors.runtime.failures import as_party_error, error_bytes, error_fields, error_of


@dataclass(slots=True, eq=False)
class CallPath:
    """All calls of one sender to one endpoint of a receiver: names, roles and classes stay the same during a run."""

    endpoints: Endpoints
    """Of the receiver's class."""
    endpoint: Endpoint
    sender: str
    receiver: str
    kind: str
    """Of the link, in both directions."""
    there: Any = None
    """The runtime's own: the routes of messages and of replies, and the keys of their events."""
    back: Any = None
    key_there: str = ""
    key_back: str = ""


def unknown_actor(sender: str, receiver: str, known: Iterable[str]) -> BadInput:
    """Return the error of a call to an actor that does not exist."""
    return BadInput(f"{sender} calls {receiver!r}, which does not exist (there are: {', '.join(known)})")


def admit(
    endpoints: Endpoints, method: str, sender: str, sender_role: str, receiver: str, receiver_role: str, value: Any
) -> CallPath:
    """Return the path to an endpoint that is open to the sender and takes the value.

    Raises:
        Refused: naming the sender, the receiver and what is allowed.
    """
    endpoint = endpoints.check(method, sender, sender_role, receiver, value)
    return CallPath(endpoints, endpoint, sender, receiver, kind_of(sender, sender_role, receiver, receiver_role))


def leave(path: CallPath, value: Any, copy: bool = True) -> tuple[Any, int]:
    """Return a message as its receiver will see it, and its bytes; for `copy` see `freeze`.

    Raises:
        CodecError: it holds what may not be sent.
        Refused: a field is not as declared.
    """
    return _freeze_checked(path.endpoints, path.sender, value, copy)


def arrive(path: CallPath, value: Any) -> int:
    """Check the fields of a message from a process that is not trusted; return its bytes.

    Raises:
        Refused: naming the sender.
    """
    return _check_received(path.endpoints, path.sender, value)


def begin(path: CallPath, actor: Any, value: Any) -> Coroutine[Any, Any, Any]:
    """Return the endpoint's coroutine; it knows its caller from the variables of the current task.

    Raises:
        Refused: the endpoint is open to others only, or was called as often as is approved, or an array has other
            dimensions than the actor knows.
    """
    endpoint = path.endpoint
    if endpoint.only is not None:
        path.endpoints.check_named(endpoint, path.sender, path.receiver, actor)
    if endpoint.bound is not None:
        actor._context.counts.admit(endpoint, endpoint.bound, path.sender, actor, value)
    current_caller.set(path.sender)
    method = getattr(actor, endpoint.name)
    if value is not None and not hasattr(method, "__checks_sizes__"):
        actor.check_sizes(value)
    coroutine: Coroutine[Any, Any, Any] = method() if endpoint.is_bare else method(value)
    return coroutine


def answer(path: CallPath, reply: Any, copy: bool = True) -> tuple[Any, int]:
    """Return a reply as the caller will see it, and its bytes; None is no message.

    Raises:
        CodecError: it holds what may not be sent.
        Refused: naming the receiver; it is of another type, or a field is not as declared.
    """
    if reply.__class__ not in path.endpoint.gives:
        path.endpoints.check_reply(path.endpoint, path.receiver, reply)
    return _freeze_checked(path.endpoints, path.receiver, reply, copy)


def take(path: CallPath, reply: Any) -> int:
    """Check a reply from a process that is not trusted; return its bytes.

    Raises:
        Refused: naming the receiver.
    """
    path.endpoints.check_reply(path.endpoint, path.receiver, reply)
    return _check_received(path.endpoints, path.receiver, reply)


def fit(path: CallPath, actor: Any, reply: Any) -> None:
    """Check the dimensions of a reply against what the actor knows that has called; of the driver's calls nothing.

    Raises:
        Refused: naming the receiver.
    """
    if reply is not None and actor is not None:
        actor.check_sizes(reply, path.receiver)


def failed(actor: str, caller: str, error: BaseException) -> tuple[FedactorsError, int]:
    """Return what the caller is told of an error of the actor, and the bytes of its words.

    The driver gets the error itself, another actor its words only: what hangs on the error stays with its party.
    """
    known = as_party_error(actor, error)
    size = error_bytes(known)
    return (known if caller == DRIVER else error_of(*error_fields(actor, known))), size


def keep(endpoints: Endpoints, owner: str, value: Any, copy: bool = True) -> tuple[Any, int]:
    """Return a payload as its readers will see it, and its bytes.

    Raises:
        CodecError: it holds what may not be sent.
        Refused: the owner's class does not declare it, or a field is not as declared.
    """
    endpoints.check_payload(owner, value)
    return _freeze_checked(endpoints, owner, value, copy)


def check_reader(reader: str, readers: frozenset[str], owner: str) -> None:
    """Check that an actor may fetch a payload.

    Raises:
        Refused: neither it nor its party is among those for whom the payload was put.
    """
    if reader not in readers and reader.partition("/")[0] not in readers:
        raise Refused(reader, f"asks for a payload of {owner} that is for {', '.join(sorted(readers))}")


def receive(endpoints: Endpoints, owner: str, value: Any) -> int:
    """Check a payload from a process that is not trusted; return its bytes.

    Raises:
        Refused: naming the owner.
    """
    endpoints.check_payload(owner, value)
    return _check_received(endpoints, owner, value)


def _freeze_checked(endpoints: Endpoints, speaker: str, value: Any, copy: bool) -> tuple[Any, int]:
    if value is None:
        return None, 0
    valid = freeze_valid(value, copy)
    if valid is not None:
        return valid
    frozen, size = freeze(value, copy)  # first: it turns lists into tuples and numpy's scalars into numbers
    endpoints.check_fields(speaker, frozen)
    return frozen, size


def _check_received(endpoints: Endpoints, speaker: str, value: Any) -> int:
    if value is None:
        return 0
    valid = freeze_valid(value, copy=False)
    if valid is not None and valid[0] is value:
        return valid[1]
    endpoints.check_fields(speaker, value)
    return measure(value)
