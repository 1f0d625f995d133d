"""What would leave a party, told before anything runs: read from the endpoints of a protocol's actors."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import numpy as np

from fedactors.actors.context import Ref
from fedactors.actors.remote import CALLERS, DRIVER, OWN_PARTY, PEERS, Endpoint, endpoints, spoken
from fedactors.errors import BadInput
from fedactors.plugins import Protocol

THE_DRIVER = "the run's driver"
KINDS = ("secure sums", "noise", "labels", "standardisation")
"""What every protocol's ``protections`` speaks of, in this order."""
COUNTED = ("noise", "secure sums")
"""Protections under which predictions leave lines of the privacy ledger."""
_CALLER_WORDS = {DRIVER: THE_DRIVER, PEERS: "whoever calls", OWN_PARTY: "its own party"}


def describe_messages(protocol: Protocol, config: Any) -> list[dict[str, Any]]:
    """Return every message that a run of `protocol` with `config` can send.

    Each entry has the message's name, the kinds of actors that send and receive it, what it reveals, whether only the
    driver receives it (``control``), and its fields with type and shape.

    Raises:
        BadInput: the protocol names no messages or no actors.
    """
    module, actors = protocol.messages, protocol.actors
    if module is None or actors is None:
        raise BadInput(f"protocol: {protocol.name} declares no {'messages' if module is None else 'actors'}")
    shapes: Mapping[str, Mapping[str, Any]] = module.shapes(config) if hasattr(module, "shapes") else {}
    return _described(actors(config), shapes, set(module.sent(config)) if hasattr(module, "sent") else None)


def describe_predictions(protocol: Protocol, config: Any) -> list[dict[str, Any]]:
    """Return every message that `fedactors predict` can send with a run of this configuration, as `describe_messages`.

    None where the protocol cannot predict.
    """
    made, module = protocol.predictors, protocol.messages
    sent = getattr(module, "sent_in_predictions", None)
    return [] if made is None else _described(made(config), {}, None if sent is None else set(sent(config)))


def describe_joins(protocol: Protocol) -> list[dict[str, Any]]:
    """Return every message that is sent where a query joins rows, or nodes lie in tables, before anything else.

    As `describe_messages`.

    None where the protocol takes neither.
    """
    if protocol.takes_queries:
        from fedactors.data.alignment.rows import NewRowHolder, RowMapper

        return _described({"tables' owners": NewRowHolder, "mapper": RowMapper}, {}, None)
    if protocol.takes_nodes:
        from fedactors.data.alignment.nodes import NewNodeHolder, NodeHolder

        return _described({"nodes' owners": NodeHolder, "new nodes' owners": NewNodeHolder}, {}, None)
    return []


def _described(
    actors: Mapping[str, type], shapes: Mapping[str, Mapping[str, Any]], sent: set[type] | None
) -> list[dict[str, Any]]:
    """Describe the messages of these kinds of actors' doors, those that are `sent`."""
    receivers: dict[type, dict[str, None]] = {}
    senders: dict[type, dict[str, None]] = {}
    for message, sender, receiver in _deliveries(actors):
        for part in (message, *_parts(message)):
            if sent is None or part in sent:
                receivers.setdefault(part, {})[receiver] = None
                senders.setdefault(part, {})[sender] = None
    described = []
    for message in sorted(receivers, key=lambda cls: cls.__name__):
        known = shapes.get(message.__name__, {})
        described.append(
            {
                "message": message.__name__,
                "sender": ", ".join(senders[message]),
                "receiver": ", ".join(receivers[message]),
                "control": list(receivers[message]) == [THE_DRIVER],
                "reveals": message.__message__.reveals,  # type: ignore[attr-defined]
                "fields": [
                    {"name": field.name, "type": _type_text(field.type), "shape": _shape_text(known.get(field.name))}
                    for field in dataclasses.fields(message)  # type: ignore[arg-type]
                ],
            }
        )
    return described


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protection:
    """Whether one kind of protection is on in a configuration; a message module's ``protections(config)`` lists all.

    Args:
        kind: one of `KINDS`.
        settings: those that turn it on or off; none: the protocol has no such choice.
        on: whether it is on.
        means: what it holds back, or, where it is off, what leaves or is read without it.
    """

    kind: str
    settings: tuple[str, ...] = ()
    on: bool
    means: str


def describe_protections(protocol: Protocol, config: Any) -> list[dict[str, Any]]:
    """Return which protection is on in a configuration and which is off, by kind; nothing if the protocol says nothing.

    Raises:
        BadInput: what it says names another kind, or a setting that there is not.
    """
    stated = getattr(protocol.messages, "protections", None)
    found: list[Protection] = [] if stated is None else list(stated(config))
    known = {field.name for field in dataclasses.fields(config)}
    for one in found:
        if one.kind not in KINDS or not known.issuperset(one.settings):
            raise BadInput(f"protections of {protocol.name}: {one.kind} by {', '.join(one.settings)} is not known")
    return [
        {**dataclasses.asdict(one), "settings": {name: getattr(config, name) for name in one.settings}} for one in found
    ]


def _deliveries(actors: Mapping[str, type]) -> Iterator[tuple[type, str, str]]:
    """Yield (message, who sends it, who receives it) for every door and payload of these kinds of actors."""
    for kind, cls in actors.items():
        table = endpoints(cls)
        for door in table.table.values():
            callers = [_caller(caller, door, actors) for caller in CALLERS if caller in door.callers]
            yield from (
                (message, caller, kind) for message in door.takes for caller in callers if message is not NoneType
            )
            yield from (
                (message, kind, caller) for message in door.gives for caller in callers if message is not NoneType
            )
        for payload in table.payloads:
            yield payload, kind, payload.__message__.readers  # type: ignore[attr-defined]


def _parts(message: type) -> Iterator[type]:
    """Yield the messages that are carried inside of a message."""
    hints = list(typing.get_type_hints(message).values())
    while hints:
        hint = hints.pop()
        hints.extend(typing.get_args(hint))
        if isinstance(hint, type) and hasattr(hint, "__message__") and hint is not Ref:
            yield hint
            yield from _parts(hint)


def _caller(caller: str, door: Endpoint, actors: Mapping[str, type]) -> str:
    if door.only is not None and caller != DRIVER:
        return f"its {spoken(door.only)} only"
    named = [kind for kind, cls in actors.items() if getattr(cls, "role", None) == caller]
    return _CALLER_WORDS.get(caller) or ", ".join(named) or f"any {caller}"


def _type_text(annotation: Any) -> str:
    """Return a type as it is written, whether or not its module has annotations evaluated."""
    if isinstance(annotation, str):
        return annotation
    if typing.get_origin(annotation) is np.ndarray:
        (number,) = typing.get_args(typing.get_args(annotation)[1])
        return f"NDArray[{'np.' if number.__module__ == 'numpy' else ''}{number.__name__}]"
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def _shape_text(shape: Any) -> str | None:
    if shape is None or isinstance(shape, str):
        return shape
    return " x ".join(str(size) for size in shape) or "scalar"
