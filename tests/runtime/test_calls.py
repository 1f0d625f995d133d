"""The path of a call, function by function, and that a malformed message leaves nobody on any runtime."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from fedactors.actors.actor import Client
from fedactors.actors.remote import CLIENT, DRIVER, SERVER, current_caller, endpoints, remote
from fedactors.errors import BadInput, OutOfMemory, PartyFailed, Refused
from fedactors.messages.codec import CodecError, decode, encode, freeze, measure, message
from fedactors.messages.fields import in_words, wrong_in
from fedactors.messages.ledger import CLIENT_CLIENT, CLIENT_SERVER, INTRA_PARTY
from fedactors.messages.ledger import DRIVER as DRIVER_KIND
from fedactors.runtime import calls
from fedactors.runtime.interface import Runtime
from fedactors.runtime.simulation.runtime import SimulatedRuntime


@message(reveals="numbers of a test")
class Numbers:
    """Numbers."""

    count: int
    values: tuple[float, ...] = ()
    matrix: np.ndarray | None = None


@message(reveals="another message")
class Other:
    """Another message."""

    word: str


@message(reveals="numbers that are kept", readers="whom they were put for")
class Kept:
    """A payload."""

    values: np.ndarray


class Bank(Client):
    """The receiver of all calls."""

    payloads: ClassVar[tuple[type, ...]] = (Kept,)

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @property
    def partners(self) -> tuple[str, ...]:
        return ("shop",)

    @remote(caller=(CLIENT, DRIVER))
    async def add(self, numbers: Numbers) -> Numbers | None:
        """Hear numbers; answer with what a test wants."""
        self.heard.append((current_caller.get(), numbers))
        return numbers

    @remote(caller=(CLIENT, SERVER), only="partners")
    async def total(self) -> Numbers:
        """Answer the partners only."""
        return Numbers(len(self.heard))


BANK = endpoints(Bank)
GOOD = Numbers(1, (1.0, 2.0))
LYING = Numbers("secret", (1.0,))  # type: ignore[arg-type]
LIES = r"shop: sends Numbers\.count as a str; it is declared as int"


def path(method: str = "add", sender: str = "shop", role: str = CLIENT, value: Any = GOOD) -> calls.CallPath:
    return calls.admit(BANK, method, sender, role, "bank", CLIENT, value)


# --- admit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "role", "kind"),
    [
        ("shop", CLIENT, CLIENT_CLIENT),
        ("bank/worker", CLIENT, INTRA_PARTY),
        (DRIVER, DRIVER, DRIVER_KIND),
    ],
)
def test_a_call_that_fits_is_admitted(sender: str, role: str, kind: str) -> None:
    found = path(sender=sender, role=role)
    assert (found.sender, found.receiver, found.endpoint.name, found.kind) == (sender, "bank", "add", kind)
    assert calls.admit(BANK, "total", "hub", SERVER, "bank", CLIENT, None).kind == CLIENT_SERVER


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"method": "open"}, r"shop: calls bank\.open, which is no endpoint of Bank \(endpoints: add, total\)"),
        ({"method": "total", "value": None, "role": "data-center"}, r"is open to: client, server; not to shop"),
        ({"role": SERVER}, r"shop: calls bank\.add, which is open to: client, driver; not to shop"),
        ({"value": None}, r"shop: calls bank\.add with nothing; it takes a Numbers"),
        ({"value": Other("x")}, r"shop: calls bank\.add with a Other; it takes a Numbers"),
        ({"value": 3.0}, r"shop: calls bank\.add with a float; it takes a Numbers"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused, match=text):
        path(**given)


def test_who_is_called_and_does_not_exist_is_told_with_those_who_do() -> None:
    error = calls.unknown_actor("shop", "bnak", {"bank": 1, "hub": 2})
    assert isinstance(error, BadInput)
    assert "shop calls 'bnak', which does not exist (there are: bank, hub)" in str(error)


# --- leave and arrive -----------------------------------------------------------------------------------------------


def test_a_message_is_frozen_before_it_is_checked() -> None:
    given = Numbers(np.int64(3), [np.float32(1.0), 2.0], np.zeros((2, 2)))  # type: ignore[arg-type]
    sent, size = calls.leave(path(), given)
    assert (sent.count, sent.values) == (3, (1.0, 2.0))
    assert not sent.matrix.flags.writeable
    assert size == measure(given)
    assert calls.leave(path(), GOOD) == (GOOD, measure(GOOD))
    assert calls.leave(path("total", value=None), None) == (None, 0)


def test_without_a_copy_the_arrays_are_the_senders_own() -> None:
    given = Numbers(1, (), np.zeros(3))
    sent, _ = calls.leave(path(), given, copy=False)
    assert sent is given


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (LYING, Refused, LIES),
        (Numbers(1, (1.0, "x")), Refused, r"Numbers\.values\[1\] as a str"),  # type: ignore[arg-type]
        (Numbers(1, matrix=np.array([object()])), CodecError, "dtype object may not be sent"),
        (Numbers({1}), CodecError, "set may not be sent"),  # type: ignore[arg-type]
    ],
)
def test_a_field_that_lies_does_not_leave(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as found:
        calls.leave(path(), value)
    assert "secret" not in str(found.value)


def test_what_arrives_is_checked_again_and_measured() -> None:
    for value in (GOOD, Numbers(2**70, (), np.zeros(5)), Numbers(3, (float("nan"),))):
        assert calls.arrive(path(), decode(encode(value))) == measure(value)
    assert calls.arrive(path("total", value=None), None) == 0
    with pytest.raises(Refused, match=LIES):
        calls.arrive(path(), LYING)
    with pytest.raises(Refused, match=r"Numbers\.values as a list"):  # a frame holds none
        calls.arrive(path(), Numbers(1, [1.0]))  # type: ignore[arg-type]


# --- begin, answer, take --------------------------------------------------------------------------------------------


def test_an_endpoint_runs_with_its_caller_known() -> None:
    bank = Bank()

    async def main() -> Any:
        return await calls.begin(path(), bank, GOOD), await calls.begin(path("total", value=None), bank, None)

    assert asyncio.run(main()) == (GOOD, Numbers(1))
    assert bank.heard == [("shop", GOOD)]


def test_an_endpoint_for_named_actors_does_not_begin_for_others() -> None:
    with pytest.raises(Refused, match=r"thief: calls bank\.total, which is open to its partners only: shop; not to"):
        asyncio.run(calls.begin(path("total", sender="thief", value=None), Bank(), None))


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Other("x"), r"bank: add returned a Other; it is declared to give a Numbers or nothing"),
        (1.0, r"bank: add returned a float"),
        (LYING, r"bank: sends Numbers\.count as a str; it is declared as int"),
    ],
)
def test_a_reply_that_is_not_declared_is_the_receivers_fault(reply: Any, text: str) -> None:
    for check in (calls.answer, calls.take):
        with pytest.raises(Refused, match=text):
            check(path(), reply)


def test_a_reply_is_frozen_where_it_is_given_and_checked_where_it_is_taken() -> None:
    given = Numbers(1, [1.0])  # type: ignore[arg-type]
    reply, size = calls.answer(path(), given)
    assert (reply, size) == (Numbers(1, (1.0,)), measure(given))
    assert calls.take(path(), reply) == size
    assert calls.answer(path(), None) == (None, 0)
    assert calls.take(path(), None) == 0


def test_nothing_is_no_reply_where_one_is_declared() -> None:
    with pytest.raises(Refused, match="total returned nothing; it is declared to give a Numbers"):
        calls.answer(path("total", value=None), None)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_the_driver_gets_an_error_and_others_its_words() -> None:
    error = ZeroDivisionError("in an endpoint")
    told, size = calls.failed("bank", DRIVER, error)
    assert isinstance(told, PartyFailed)
    assert told.__cause__ is error
    retold, same_size = calls.failed("bank", "shop", error)
    assert (type(retold), str(retold), same_size) == (PartyFailed, str(told), size)
    assert retold.__cause__ is None
    assert isinstance(calls.failed("bank", "shop", MemoryError("much"))[0], OutOfMemory)


# --- payloads -------------------------------------------------------------------------------------------------------


def test_a_payload_is_frozen_and_checked_by_its_owner_and_checked_by_its_reader() -> None:
    given = Kept(np.zeros(4))
    kept, size = calls.keep(BANK, "bank", given)
    assert not kept.values.flags.writeable
    assert size == calls.receive(BANK, "bank", kept) == measure(given)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (GOOD, r"bank: a Numbers is no payload of Bank \(declared: a Kept\)"),
        (None, r"bank: nothing is no payload of Bank"),
        (Kept((1.0,)), r"bank: sends Kept\.values as a tuple"),  # type: ignore[arg-type]
    ],
)
def test_an_undeclared_payload_is_neither_kept_nor_received(value: Any, text: str) -> None:
    for check in (calls.keep, calls.receive):
        with pytest.raises(Refused, match=text):
            check(BANK, "bank", value)


def test_a_payload_is_for_the_readers_that_were_named() -> None:
    for named in ({"shop", "hub"}, {"shop/worker-0"}):
        calls.check_reader("shop/worker-0", frozenset(named), "bank")
    for others in (set[str](), {"hub"}, {"shop/worker-1"}):
        with pytest.raises(Refused, match="shop/worker-0: asks for a payload of bank that is for "):
            calls.check_reader("shop/worker-0", frozenset(others), "bank")


# --- the two ways to freeze and check -------------------------------------------------------------------------------


def test_one_pass_gives_what_freezing_and_checking_give() -> None:
    draw = random.Random(0)
    numbers: list[Callable[[], Any]] = [
        lambda: draw.randint(-9, 9), lambda: 2 ** draw.randint(62, 65), lambda: np.int32(3), lambda: True, lambda: "x",
        lambda: None, lambda: 0.5,
    ]  # fmt: skip
    matrices: list[Callable[[], Any]] = [lambda: None, lambda: np.zeros((2, 3)).T, lambda: np.zeros((0, 4)), lambda: 1]
    for _ in range(500):
        values = [draw.choice(numbers)() for _ in range(draw.randint(0, 3))]
        shape = draw.choice([tuple, list])
        given: Any = Numbers(draw.choice(numbers)(), shape(values), draw.choice(matrices)())  # type: ignore[arg-type]
        frozen, size = freeze(given)
        wrong = wrong_in(frozen)
        if wrong is None:
            assert repr(calls.leave(path(), given)) == repr((frozen, size))
        else:
            with pytest.raises(Refused, match=re.escape(f"Numbers{wrong[0]} as {in_words(wrong[1])}; ")):
                calls.leave(path(), given)


# --- on every runtime -----------------------------------------------------------------------------------------------


class Thief(Client):
    """Sends what does not fit, and goes on."""

    payloads: ClassVar[tuple[type, ...]] = (Kept,)

    @remote(caller=DRIVER)
    async def send(self, other: Other) -> Other:
        """Say what came of it."""
        try:
            if other.word == "payload":
                self.put(Kept((1.0,)), to="bank")  # type: ignore[arg-type]
            else:
                self.peer("bank", Bank).add(LYING)  # type: ignore[unused-coroutine]
        except (Refused, CodecError) as error:
            return Other(f"at once: {error}")
        return Other("it left")


def on_simulated() -> Runtime:
    return SimulatedRuntime()


def on_ray() -> Runtime:
    from fedactors.runtime.ray.runtime import RayRuntime

    return RayRuntime()


def refused_everywhere(runtime: Runtime) -> None:
    async def main() -> tuple[str, str]:
        bank, thief = runtime.spawn(Bank, "bank"), runtime.spawn(Thief, "thief")
        await runtime.start()
        with pytest.raises(Refused, match=r"driver: sends Numbers\.count as a str"):
            bank.add(LYING)  # type: ignore[unused-coroutine]
        said = (await thief.send(Other("message"))).word, (await thief.send(Other("payload"))).word
        await runtime.settle()
        return said

    call, payload = runtime.execute(main)
    assert call == "at once: thief: sends Numbers.count as a str; it is declared as int"
    assert payload == "at once: thief: sends Kept.values as a tuple; it is declared as ndarray"
    assert {(total.sender, total.type, total.messages) for total in runtime.ledger.totals()} == {
        (DRIVER, "Other", 2),
        ("thief", "Other", 2),
    }


def test_a_malformed_message_leaves_nobody_and_is_no_row_in_simulation() -> None:
    refused_everywhere(on_simulated())


@pytest.mark.ray
def test_a_malformed_message_leaves_nobody_and_is_no_row_on_ray(ray_cluster: None) -> None:
    refused_everywhere(on_ray())


def test_a_malformed_message_leaves_no_site_and_is_no_row() -> None:
    from fedactors.actors.actor import Resources
    from fedactors.federation.hosting import LocalActorHost
    from fedactors.runtime.compute import WallClock
    from fedactors.runtime.interface import ActorSpec
    from tests.federation.test_proxies import A, Answerer, B, Number, Site

    site = Site()

    async def main() -> list[Any]:
        local = LocalActorHost(site)
        await local.spawn([ActorSpec(Answerer, A, (), {}, Resources())], 0, WallClock(0.0))
        context = local.actors[A]
        for receiver in A, B:  # in its own site, and in another one
            with pytest.raises(Refused, match=r"bank/a: sends Number\.value as a str"):
                context.call(receiver, "double", Number("secret"))  # type: ignore[arg-type]
        with pytest.raises(Refused, match=r"bank/a: sends Number\.value as a str"):
            context.put(Number("secret"), frozenset({B}))  # type: ignore[arg-type]
        assert (await context.call(B, "double", Number(3))).value == 6.0
        rows = local.recorded().rows
        local.end()
        return [row[1:] for row in rows]

    assert asyncio.run(main()) == [(A, B, CLIENT_CLIENT, "Number", 0)]
    assert [sent[2] for sent in site.sent] == [(A, B, "double", Number(3))]
    assert len(site.refused) == 3
    assert [(total.sender, total.messages) for total in site.gate.left.totals()] == [(A, 1)]
