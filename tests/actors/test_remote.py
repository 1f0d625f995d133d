"""Endpoints are checked when a class is made: what is no coroutine of messages cannot be called by others."""

from __future__ import annotations

from types import NoneType
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Actor, Client
from fedactors.actors.remote import CLIENT, DRIVER, PEERS, SAME_PARTY, SERVER, InvalidEndpoint, endpoints, remote
from fedactors.errors import Refused
from fedactors.messages.codec import message


@message(reveals="a number")
class Number:
    """A number."""

    value: float


@message(reveals="a vector", readers="whom it was put for")
class Vector:
    """A vector."""

    values: np.ndarray


class Base(Client):
    """One endpoint for peers, one for the driver, one that may give nothing, and much that is no endpoint."""

    payloads = (Vector,)

    @remote
    async def double(self, number: Number) -> Number:
        return Number(2 * number.value)

    @remote(caller=(DRIVER, SAME_PARTY))
    async def maybe(self) -> Number | None:
        return None

    async def helper(self, number: Number) -> Number:
        return number


def test_the_table_of_a_class() -> None:
    table = endpoints(Base).table
    assert set(table) == {"double", "maybe"}
    assert table["double"].takes == (Number,)
    assert table["double"].gives == (Number,)
    assert table["double"].callers == {PEERS}
    assert table["maybe"].takes == (NoneType,)
    assert table["maybe"].gives == (Number, NoneType)
    assert endpoints(Base).payloads == (Vector,)


def test_what_the_frame_itself_calls_is_no_endpoint() -> None:
    inherited = {name for name in dir(Actor) if callable(getattr(Actor, name))}
    assert not inherited & set(endpoints(Base).table)


def test_endpoints_are_inherited_and_an_override_is_marked_again() -> None:
    class Heir(Base):
        @remote(caller=DRIVER)
        async def double(self, number: Number) -> Number:
            return number

    assert endpoints(Heir).table["double"].callers == {DRIVER}
    assert "maybe" in endpoints(Heir).table
    with pytest.raises(InvalidEndpoint, match="double overrides an endpoint: mark it with @remote again"):
        type("Careless", (Base,), {"double": Base.helper})


async def of_float(self: Any, number: float) -> None: ...
async def gives_float(self: Any, number: Number) -> float: ...  # type: ignore[empty-body]
async def gives_list(self: Any, number: Number) -> list[Number]: ...  # type: ignore[empty-body]
async def gives_any(self: Any, number: Number) -> Any: ...
async def silent(self: Any, number: Number): ...  # type: ignore[no-untyped-def]
async def untold(self: Any, number) -> None: ...  # type: ignore[no-untyped-def]
async def two(self: Any, one: Number, other: Number) -> None: ...
async def with_default(self: Any, number: Number = Number(1.0)) -> None: ...
async def keyword(self: Any, *, number: Number) -> None: ...
async def many(self: Any, *numbers: Number) -> None: ...
def plain(self: Any, number: Number) -> None: ...


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (of_float, "a float is no message"),
        (gives_float, "a float is no message"),
        (gives_list, "a list.* is no message"),
        (gives_any, "a Any is no message"),
        (silent, "say what it returns"),
        (untold, "say which message number is"),
        (two, "it must take one message or nothing"),
        (with_default, "it must take one message or nothing"),
        (keyword, "it must take one message or nothing"),
        (many, "it must take one message or nothing"),
        (plain, "it must be an async method"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_an_endpoint(method: Any, text: str) -> None:
    with pytest.raises(InvalidEndpoint, match=f"Wrong.endpoint is no endpoint: {text}"):
        type("Wrong", (Client,), {"endpoint": remote(method)})


@pytest.mark.parametrize("name", ["load", "open", "close", "compute", "get", "release", "record_privacy", "_hidden"])
def test_names_that_are_no_endpoints(name: str) -> None:
    async def method(self: Any, number: Number) -> None: ...

    with pytest.raises(InvalidEndpoint, match=f"Wrong.{name} is no endpoint"):
        type("Wrong", (Client,), {name: remote(method)})


def test_messages_are_declared_where_everybody_finds_them() -> None:
    with pytest.raises(InvalidEndpoint, match="declare its messages before the class, in a module"):

        class Wrong(Client):
            @remote
            async def endpoint(self, number: Elsewhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_unknown_callers_and_payloads_without_readers() -> None:
    with pytest.raises(InvalidEndpoint, match="caller 'anybody' is not allowed: use driver, peers"):
        remote(caller="anybody")(of_float)
    with pytest.raises(InvalidEndpoint, match="a Number is no @message that states its readers"):
        type("Wrong", (Client,), {"payloads": (Number,)})


@pytest.mark.parametrize(
    ("callers", "sender", "role", "admitted"),
    [
        ((PEERS,), "shop", "client", True),
        ((PEERS,), "driver", "driver", False),
        ((DRIVER,), "driver", "driver", True),
        ((DRIVER,), "shop", "client", False),
        ((CLIENT,), "shop", "client", True),
        ((CLIENT,), "hub", "server", False),
        ((SERVER, DRIVER), "hub", "server", True),
        ((SAME_PARTY,), "bank/ps", "parameter-server", True),
        ((SAME_PARTY,), "bank", "client", True),
        ((SAME_PARTY,), "banks/worker-0", "client", False),
        ((SAME_PARTY,), "driver", "driver", False),
    ],
)
def test_who_may_call(callers: tuple[str, ...], sender: str, role: str, admitted: bool) -> None:
    async def method(self: Any, number: Number) -> None: ...

    cls = type("Endpoint", (Client,), {"endpoint": remote(caller=callers)(method)})
    table = endpoints(cls)
    if admitted:
        assert table.check("endpoint", sender, role, "bank/worker-0", Number(1.0)).name == "endpoint"
    else:
        with pytest.raises(
            Refused, match=(f"{sender}: calls bank/worker-0.endpoint, which is open to: .*; not to {sender}")
        ):
            table.check("endpoint", sender, role, "bank/worker-0", Number(1.0))


def test_exactly_the_declared_type_is_taken() -> None:
    class Larger(Number):  # type: ignore[misc]
        """A message's subclass."""

    table = endpoints(Base)
    for value in (None, 1.0, {"value": 1.0}, Vector(np.zeros(1)), Larger(1.0)):
        with pytest.raises(Refused, match=r"shop: calls bank.double with .*; it takes a Number"):
            table.check("double", "shop", "client", "bank", value)
    with pytest.raises(Refused, match=r"bank: double returned a float; it is declared to give a Number"):
        table.check_reply(table.table["double"], "bank", 1.0)


@message(reveals="what it carries")
class Wrapped:
    """A number, or what somebody put in its place."""

    number: float
    parts: tuple[Number, ...] = ()


class Wraps(Client):
    """Takes wrapped numbers."""

    @remote
    async def take(self, wrapped: Wrapped) -> None: ...

    @remote
    async def maybe(self, number: Number | None) -> None: ...


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (Wrapped(Vector(np.zeros(3))), r"Wrapped\.number as a Vector; it is declared as float"),  # type: ignore[arg-type]
        (Wrapped(1.0, (Vector(np.zeros(3)),)), r"Wrapped\.parts\[0\] as a Vector; .* as Number"),  # type: ignore[arg-type]
        (Wrapped(1.0, (Number(Vector(np.zeros(3))),)), r"Wrapped\.parts\[0\]\.value as a Vector; .* as float"),  # type: ignore[arg-type]
        (Wrapped((1.0, {"x": (Vector(np.zeros(3)),)})), r"Wrapped\.number as a tuple; .* as float"),  # type: ignore[arg-type]
    ],
)
def test_a_message_hidden_inside_of_another_is_refused(sent: Wrapped, text: str) -> None:
    with pytest.raises(Refused, match=f"shop: sends {text}"):
        endpoints(Wraps).check_fields("shop", sent)
    endpoints(Wraps).check_fields("shop", Wrapped(1.0, (Number(2.0),)))


class Branch(Client):
    """Open by name: to whom its own data names, be that a party, an actor or several."""

    def __init__(self, label_party: str | tuple[str, ...]) -> None:
        self._label_party = label_party

    @property
    def label_party(self) -> str | tuple[str, ...]:
        return self._label_party

    @remote(caller=(CLIENT, DRIVER), only="label_party")
    async def follow(self, number: Number) -> None: ...


@pytest.mark.parametrize(
    ("named", "sender", "admitted"),
    [
        ("bank", "bank", True),
        ("bank", "bank/worker-1", True),
        ("bank/worker-0", "bank/worker-0", True),
        ("bank/worker-0", "bank/worker-1", False),
        ("bank", "banks", False),
        ("bank", "ban", False),
        (("bank", "shop"), "shop/ps", True),
        (("bank", "shop"), "thief", False),
        ((), "bank", False),
        ("bank", "driver", True),
    ],
)
def test_an_endpoint_may_be_open_to_those_only_whom_its_actor_names(named: Any, sender: str, admitted: bool) -> None:
    endpoint = endpoints(Branch).table["follow"]
    if admitted:
        endpoints(Branch).check_named(endpoint, sender, "hub", Branch(named))
    else:
        line = rf"{sender}: calls hub\.follow, which is open to its label party only: .*; not to {sender}"
        with pytest.raises(Refused, match=line):
            endpoints(Branch).check_named(endpoint, sender, "hub", Branch(named))


def test_an_endpoint_names_a_property_that_there_is() -> None:
    with pytest.raises(
        InvalidEndpoint, match=r"Wrong\.endpoint is no endpoint: it is open to 'labels' only, which is no property"
    ):

        class Wrong(Client):
            @remote(caller=CLIENT, only="labels")
            async def endpoint(self, number: Number) -> None: ...
