"""What a protocol can be told, and what would leave a party, before anything runs.

Settings are the fields of its config, with default, allowed values and docstring. A config may order them into sections
with a class attribute that says which title begins at which field; a title that begins again goes on with its section:

    sections: ClassVar = {"num_rounds": "Training", "clip_norm": "Privacy"}

What a scenario's config adds to its protocol's is a section of its own, the first one.

Messages are read from the endpoints of its actors.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from fedactors.actors.context import Ref
from fedactors.actors.remote import CALLERS, DRIVER, PEERS, SAME_PARTY, Endpoint, endpoints, spoken
from fedactors.config import meaning_of
from fedactors.errors import BadInput
from fedactors.messages.fields import expanded
from fedactors.plugins import Protocol
from fedactors.runs.progress import format_bytes

THE_DRIVER = "the run's driver"
KINDS = ("secure sums", "noise", "labels", "standardisation")
"""What every protocol's ``protections`` speaks of, in this order."""
COUNTED = ("noise", "secure sums")
"""Protections under which predictions leave lines of the privacy ledger."""
_GREATEST = 8
"""Bytes of a number whose type is a family, such as `np.floating`."""
_CALLER_WORDS = {DRIVER: THE_DRIVER, PEERS: "any caller", SAME_PARTY: "its own party"}


def describe_messages(protocol: Protocol, config: Any) -> list[dict[str, Any]]:
    """Return every message that a run of `protocol` with `config` can send.

    Each entry has the message's name, the kinds of actors that send and receive it, what it reveals, whether only the
    driver receives it (``control``), how often each endpoint that it comes or goes by may be called at one actor in the
    run (``bounds``, with the bytes of its arrays where the configuration says their shapes; what leaves without a call,
    the message module's ``bounds(config)`` says), and its fields with type and shape.

    Raises:
        BadInput: the protocol names no messages or no actors.
    """
    module, actors = protocol.messages, protocol.actors
    if module is None or actors is None:
        raise BadInput(f"protocol: {protocol.name} declares no {'messages' if module is None else 'actors'}")
    shapes: Mapping[str, Mapping[str, Any]] = module.shapes(config) if hasattr(module, "shapes") else {}
    sent = set(module.sent(config)) if hasattr(module, "sent") else None
    released = module.bounds(config) if hasattr(module, "bounds") else {}
    return _described(actors(config), shapes, sent, config, released)


def describe_predictions(protocol: Protocol, config: Any) -> list[dict[str, Any]]:
    """Return every message that `fedactors predict` can send with a run of this configuration, as `describe_messages`.

    None where the protocol cannot predict.
    """
    made, module = protocol.predictors, protocol.messages
    sent = getattr(module, "sent_in_predictions", None)
    return [] if made is None else _described(made(config), {}, None if sent is None else set(sent(config)), config)


def may_leave(protocol: Protocol, config: Any, *, predicts: bool) -> frozenset[type] | None:
    """Return the messages that an approved run, or a prediction, can send, those before it included; None: any."""
    stated = getattr(protocol.messages, "sent_in_predictions" if predicts else "sent", None)
    if stated is None:
        return None
    joins = (message for message, *_ in _deliveries(_joining(protocol)))
    return frozenset([*stated(config), *joins])


def describe_joins(protocol: Protocol) -> list[dict[str, Any]]:
    """Return every message that is sent where a query joins rows, or nodes lie in tables, before anything else.

    As `describe_messages`.

    None where the protocol takes neither.
    """
    return _described(_joining(protocol), {}, None)


def _joining(protocol: Protocol) -> dict[str, type]:
    """Return the kinds of actors that join rows, or find nodes in tables; none where the protocol takes neither."""
    if protocol.takes_queries:
        from fedactors.data.alignment.rows import NewRowHolder, RowMapper

        return {"tables' owners": NewRowHolder, "mapper": RowMapper}
    if protocol.takes_nodes:
        from fedactors.data.alignment.nodes import NewNodeHolder, NodeHolder

        return {"nodes' owners": NodeHolder, "new nodes' owners": NewNodeHolder}
    return {}


def _described(
    actors: Mapping[str, type],
    shapes: Mapping[str, Mapping[str, Any]],
    sent: set[type] | None,
    config: Any = None,
    released: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Describe the messages of these kinds of actors' endpoints, those that are `sent`."""
    receivers: dict[type, dict[str, None]] = {}
    senders: dict[type, dict[str, None]] = {}
    for message, sender, receiver in _deliveries(actors):
        for part in (message, *_parts(message)):
            if sent is None or part in sent:
                receivers.setdefault(part, {})[receiver] = None
                senders.setdefault(part, {})[sender] = None
    bounds = _bounds(actors.values(), shapes, config)
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
                "bounds": [*bounds.get(message, ()), *filter(None, [released.get(message.__name__)])],
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
        is_joint: of noise: each organisation draws a part of it, and knows that part.
    """

    kind: str
    settings: tuple[str, ...] = ()
    on: bool
    means: str
    is_joint: bool = False


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
    """Yield (message, who sends it, who receives it) for every endpoint and payload of these kinds of actors."""
    for kind, cls in actors.items():
        table = endpoints(cls)
        for endpoint in table.table.values():
            callers = [_caller(caller, endpoint, actors) for caller in CALLERS if caller in endpoint.callers]
            yield from (
                (message, caller, kind) for message in endpoint.takes for caller in callers if message is not NoneType
            )
            yield from (
                (message, kind, caller) for message in endpoint.gives for caller in callers if message is not NoneType
            )
        for payload in table.payloads:
            yield payload, kind, payload.__message__.readers  # type: ignore[attr-defined]


def _bounds(
    actors: Iterable[type], shapes: Mapping[str, Mapping[str, Any]], config: Any
) -> dict[type, dict[str, None]]:
    """Return by message how often each endpoint that takes or gives it may be called at one actor."""
    found: dict[type, dict[str, None]] = {}
    for endpoint in (endpoint for cls in actors for endpoint in endpoints(cls).table.values()):
        words, limit = f"without a bound ({endpoint.unbounded or 'none is stated'})", None
        if endpoint.bound is not None:
            words, limit = endpoint.bound.in_words(config), endpoint.bound.limit(config)
        elif endpoint.is_stated and not endpoint.unbounded:
            words = "within the party"
        for message in (*endpoint.takes, *endpoint.gives):
            if message is not NoneType:
                size = bytes_of(message, shapes.get(message.__name__, {}))
                most = f", {format_bytes(limit * size)}" if limit and size else ""
                found.setdefault(message, {})[f"{endpoint.name}: {words}{most}"] = None
    return found


def most_at_one_actor(actors: Iterable[type], config: Any) -> dict[str, dict[str, tuple[int | None, bool]]]:
    """Return by message how many of it one actor may take, and give, in all, and whether that is for each other actor.

    None: nothing bounds it, or only the actor's rows say it. ``takes`` counts at its receiver, ``gives`` at its sender.
    """
    found: dict[str, dict[str, tuple[int | None, bool]]] = {}
    for cls in actors:
        for message, ways in _most_at(cls, config).items():
            known = found.setdefault(message, {})
            for way, (limit, is_each) in ways.items():
                other, was_each = known.get(way, (0, False))
                most = None if limit is None or other is None else max(limit, other)
                known[way] = most, is_each or was_each
    return found


def _most_at(actor: type, config: Any) -> dict[str, dict[str, tuple[int | None, bool]]]:
    found: dict[str, dict[str, tuple[int | None, bool]]] = {}
    for endpoint in endpoints(actor).table.values():
        bound = endpoint.bound
        limit = None if bound is None else bound.limit(config)
        for way, messages in (("takes", endpoint.takes), ("gives", endpoint.gives)):
            for message in messages:
                other, was_each = found.setdefault(message.__name__, {}).get(way, (0, False))
                total = None if limit is None or other is None else limit + other
                found[message.__name__][way] = total, was_each or (bound is not None and bound.each)
    return found


def bytes_of(message: type, shapes: Mapping[str, Any]) -> int | None:
    """Return how many bytes a message's arrays have at most, uncompressed and in the greatest type of theirs.

    None: it has none, or one of a shape that the configuration does not say.
    """
    total = 0
    for name, hint in typing.get_type_hints(message).items():
        hints = [expanded(one) for one in (hint, *typing.get_args(expanded(hint)))]
        arrays = [one for one in hints if typing.get_origin(one) is np.ndarray]
        if not arrays:  # beside them a message says little
            continue
        (number,) = typing.get_args(typing.get_args(arrays[0])[1])
        shape = shapes.get(name)
        if not isinstance(shape, tuple) or not all(isinstance(size, int) for size in shape):
            return None
        number = typing.get_origin(number) or number
        is_exact = issubclass(number, np.generic) and number not in (np.floating, np.integer, np.number)
        total += math.prod(shape) * (np.dtype(number).itemsize if is_exact else _GREATEST)
    return total or None


def _parts(message: type) -> Iterator[type]:
    """Yield the messages that are carried inside of a message."""
    hints = list(typing.get_type_hints(message).values())
    while hints:
        hint = expanded(hints.pop())
        hints.extend(typing.get_args(hint))
        if isinstance(hint, type) and hasattr(hint, "__message__") and hint is not Ref:
            yield hint
            yield from _parts(hint)


def _caller(caller: str, endpoint: Endpoint, actors: Mapping[str, type]) -> str:
    if endpoint.only is not None and caller != DRIVER:
        return f"its {spoken(endpoint.only)} only"
    named = [kind for kind, cls in actors.items() if getattr(cls, "role", None) == caller]
    return _CALLER_WORDS.get(caller) or ", ".join(named) or f"any {caller}"


def _type_text(annotation: Any) -> str:
    """Return a type as it is written, whether or not its module has annotations evaluated."""
    if isinstance(annotation, str):
        return annotation
    annotation = expanded(annotation)
    if typing.get_origin(annotation) is np.ndarray:
        (number,) = typing.get_args(typing.get_args(annotation)[1])
        return f"NDArray[{'np.' if number.__module__ == 'numpy' else ''}{number.__name__}]"
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def _shape_text(shape: Any) -> str | None:
    if shape is None or isinstance(shape, str):
        return shape
    return " x ".join(str(size) for size in shape) or "scalar"


# --- settings --------------------------------------------------------------------------------------------------------

PRIVACY = "Privacy"
"""Title of the section with the settings that protect rows."""
ADDED = "Of this scenario"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a config."""

    name: str
    section: str
    """Title of its section; empty where there is none."""
    default: str
    """As it is written after ``name=``."""
    allowed: str
    """Type, range or choices, in words."""
    choices: tuple[str, ...]
    """Words that may be given, where they can be listed."""
    meaning: str
    """Its docstring on one line, with the marks of code that it has."""


class _Schema(GenerateJsonSchema):
    """JSON schema that leaves open what JSON cannot say, such as a class of a third party."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Defaults without a form in JSON are no news here."""


def settings_of(config: type[Any]) -> list[Setting]:
    """Return the settings of a config dataclass, in the order of its fields."""
    schema = TypeAdapter(config).json_schema(schema_generator=_Schema)
    definitions = schema.get("$defs", {})
    described: Mapping[str, FieldInfo] = getattr(config, "__pydantic_fields__", {})
    made = []
    for name, section in sections_of(config).items():
        value = _resolved(schema.get("properties", {}).get(name, {}), definitions)
        required = name in schema.get("required", ())
        allowed = _allowed(value, definitions)
        made.append(
            Setting(
                name=name,
                section=section,
                default="" if required else _word(_default(config, name, described.get(name))),
                allowed=f"{allowed}; required" if required else allowed,
                choices=tuple(_choices(value, definitions)),
                meaning=meaning_of(config, name),
            )
        )
    return made


def preset_words(preset: Mapping[str, Any]) -> str:
    """Return the values of ``--smoke`` or ``--paper`` as they would be given by hand."""
    return " ".join(f"{name}={_word(value)}" for name, value in preset.items())


def by_section(config: type[Any]) -> dict[str, list[Setting]]:
    """Return the settings under their sections' titles, in the order in which the config names these."""
    home = _home(config)
    found: dict[str, list[Setting]] = {} if home is None else {title: [] for title in home.sections.values()}
    for setting in settings_of(config):
        found.setdefault(setting.section, []).append(setting)
    return {title: settings for title, settings in found.items() if settings}


def _home(config: type[Any]) -> Any:
    """Return the class that orders the settings into sections; None: none does."""
    return next((cls for cls in config.__mro__ if isinstance(vars(cls).get("sections"), Mapping)), None)


def sections_of(config: type[Any]) -> dict[str, str]:
    """Return the name of each field, in the order in which they were written, and the title of its section."""
    fields = {field.name for field in dataclasses.fields(config)}
    annotated = (name for cls in reversed(config.__mro__) for name in vars(cls).get("__annotations__", ()))
    order = [name for name in dict.fromkeys(annotated) if name in fields]
    home = _home(config)
    if home is None:
        return dict.fromkeys(order, "")
    known = {field.name for field in dataclasses.fields(home)}
    titled = {name: ADDED for name in order if name not in known}
    title = ""
    for name in order:
        if name in known:
            title = titled[name] = home.sections.get(name, title)
    return titled


def _default(config: type[Any], name: str, info: FieldInfo | None) -> Any:
    if info is not None:
        return info.get_default(call_default_factory=True)
    field = next(field for field in dataclasses.fields(config) if field.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _word(value: Any) -> str:
    """Return a value as the command line takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        nested = not value or any(isinstance(item, (tuple, list)) for item in value)
        return json.dumps(value) if nested else ",".join(_word(item) for item in value)
    return str(value)


def _plural(word: re.Match[str]) -> str:
    return f"{word[0]}s"


def _resolved(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in value:
        value = definitions[value["$ref"].rpartition("/")[2]]
    return value


def _choices(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterable[str]:
    """Yield the words that a schema lists, among them those beside a number, as in ``auto`` or a step size."""
    value = _resolved(value, definitions)
    for option in value.get("anyOf", ()):
        yield from _choices(option, definitions)
    if value.get("type") == "boolean":
        yield from ("true", "false")
    elif value.get("type") == "null":
        yield "none"
    else:
        yield from (_word(word) for word in value.get("enum", [value["const"]] if "const" in value else []))


def _allowed(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return in words what a JSON schema allows."""
    value = _resolved(value, definitions)
    if "anyOf" in value:
        return " | ".join(dict.fromkeys(_allowed(option, definitions) for option in value["anyOf"]))
    if words := list(_choices(value, definitions)):
        return " | ".join(words)
    kind = value.get("type")
    if kind in ("integer", "number"):
        marks = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
        limits = [f"{mark} {value[key]}" for key, mark in marks.items() if key in value]
        return " ".join([kind, *limits[:1]]) + "".join(f" and {limit}" for limit in limits[1:])
    if kind == "array":
        if "prefixItems" in value:
            return ",".join(_allowed(item, definitions) for item in value["prefixItems"])
        item = _allowed(value.get("items", {}), definitions)
        return f"list of {re.sub('^(list|integer|number|text)', _plural, item)}"
    if kind == "string":
        return f"text like {value['pattern']}" if "pattern" in value else "text"
    return {"object": "JSON object"}.get(str(kind), "any value")
