"""Hostile peers, on every runtime: what they try, and that it is refused with both names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from fedactors.actors.actor import Client, Server
from fedactors.actors.context import Ref
from fedactors.actors.remote import CLIENT, DRIVER, SAME_PARTY, SERVER, remote
from fedactors.data.sources import ArraySource
from fedactors.errors import BadInput, PartyFailed, PartyLost, PayloadGone, Refused
from fedactors.messages.codec import decode, encode_parts, message
from fedactors.network.links import Link, Network
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.runtime.interface import Runtime
from fedactors.runtime.simulation.runtime import SimulatedRuntime


@message(reveals="text of a test")
class Say:
    """A word, and what it is about."""

    word: str
    ref: Ref | None = None
    many: tuple[Any, ...] = ()


@message(reveals="a vector", readers="whom it was put for")
class Vector:
    """A vector."""

    values: np.ndarray


@message(reveals="a vector that no class declares")
class Smuggled:
    """A vector that no class declares."""

    values: np.ndarray


class Bank(Client):
    """An honest party: one endpoint each for clients, its own party, and the driver."""

    payloads: ClassVar[tuple[type, ...]] = (Vector,)

    async def load(self) -> None:
        self.heard: list[str] = []

    @remote(caller=CLIENT)
    async def tell(self, say: Say) -> Say:
        self.heard.append(say.word)
        return Say("heard")

    @remote(caller=(DRIVER, CLIENT, SERVER))
    async def who(self) -> Say:
        await self.clock.sleep(0.01)
        return Say(self.caller)

    @property
    def partners(self) -> tuple[str, ...]:
        return "shop", "hub"

    @remote(caller=(CLIENT, SERVER), only="partners")
    async def order(self, say: Say) -> Say:
        self.heard.append(say.word)
        return Say(f"of {self.caller}")

    @remote(caller=SAME_PARTY)
    async def parameters(self) -> Say:
        return Say("secret")

    @remote(caller=(DRIVER, CLIENT))
    async def fails(self) -> None:
        raise ZeroDivisionError("in an endpoint")

    @remote(caller=(DRIVER, CLIENT))
    async def fails_late(self) -> None:
        await self.clock.sleep(0.3)
        raise ZeroDivisionError("in an endpoint")

    @remote(caller=DRIVER)
    async def keep(self, say: Say) -> Say:
        return Say("kept", self.put(Vector(np.arange(100.0)), to=say.word))

    @remote(caller=DRIVER)
    async def last_word(self) -> Say:
        return Say(" ".join(self.heard))

    @remote(caller=DRIVER)
    async def go_on(self) -> None:
        self.background(self._loop())

    async def _loop(self) -> None:
        try:
            self.heard.append(self.caller)
        except LookupError:
            self.heard.append("nobody")

    @remote(caller=DRIVER)
    async def publish(self, say: Say) -> None:
        self.record_privacy(PrivacyRecord(party=say.word, message_type="Say", mechanism="none"))

    @remote(caller=CLIENT)
    async def wrong_reply(self) -> Say:
        return Say(1.0)  # type: ignore[arg-type]

    @remote(caller=CLIENT)
    async def wrong_payload(self) -> Say:
        return Say("kept", self.put(Vector((1.0, 2.0)), to="thief"))  # type: ignore[arg-type]

    async def raw_gradient(self, say: Say) -> Say:
        """No endpoint."""
        return Say("raw")


class Hub(Server):
    """A server that tries to call what is for clients."""

    @remote(caller=DRIVER)
    async def ask_who(self) -> Say:
        return await self.peer("bank", Bank).who()

    @remote(caller=DRIVER)
    async def intrude(self) -> None:
        await self.peer("bank", Bank).tell(Say("from a server"))

    @remote(caller=DRIVER)
    async def orders(self) -> Say:
        return await self.peer("bank", Bank).order(Say("ordered"))


class Thief(Client):
    """Tries everything; each attempt is one endpoint of the driver's, so that a test sees what comes of it."""

    @remote(caller=DRIVER)
    async def attempt(self, say: Say) -> Say:
        attempts: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "undeclared": lambda bank: bank.raw_gradient(Say("x")),
            "close": lambda bank: bank.close(),
            "load": lambda bank: bank.load(),
            "record_privacy": lambda bank: bank.record_privacy(Say("forged line")),
            "private": lambda bank: bank._make(Say("x")),
            "own party's": lambda bank: bank.parameters(),
            "driver's": lambda bank: bank.last_word(),
            "plain value": lambda bank: bank.tell("x"),
            "other message": lambda bank: bank.tell(Vector(np.zeros(3))),
            "nothing": lambda bank: bank.tell(),
            "number for a text": lambda bank: bank.tell(Say(5)),  # type: ignore[arg-type]
            "matrix in a text": lambda bank: bank.tell(Say(np.zeros((3, 2)))),  # type: ignore[arg-type]
            "not named": lambda bank: bank.order(Say("x")),
        }
        await attempts[say.word](self.peer("bank", Bank))
        return Say("it worked")

    @remote(caller=DRIVER)
    async def mislead(self, say: Say) -> None:
        """Ask an honest-looking party for what it declares, and get something else."""
        bank = self.peer("bank", Bank)
        if say.word == "reply":
            await bank.wrong_reply()
        else:
            found = await bank.wrong_payload()
            assert found.ref is not None
            await self.get(found.ref)

    @remote(caller=DRIVER)
    async def guess(self, say: Say) -> Say:
        """Fetch what a reference names, as it came or forged."""
        assert say.ref is not None
        ref = Ref(say.ref.owner, int(say.word), 0, say.ref.location) if say.word else say.ref
        found: Vector = await self.get(ref)
        return Say(f"{found.values.sum():g}")

    @remote(caller=DRIVER)
    async def ask_who(self) -> Say:
        return await self.peer("bank", Bank).who()

    @remote(caller=DRIVER)
    async def smuggle(self) -> Say:
        return Say("x", self.put(Smuggled(np.zeros(3)), to="bank"))

    @remote(caller=DRIVER)
    async def lie(self) -> Say:
        return Vector(np.zeros(3))  # type: ignore[return-value]

    @remote(caller=DRIVER)
    async def forget(self) -> None:
        self.peer("bank", Bank).fails()  # type: ignore[unused-coroutine]

    @remote(caller=DRIVER)
    async def keep_and_forget(self) -> None:
        self.kept = self.peer("bank", Bank).fails()

    @remote(caller=DRIVER)
    async def forget_a_slow_one(self) -> None:
        self.peer("bank", Bank).fails_late()  # type: ignore[unused-coroutine]

    @remote(caller=DRIVER)
    async def leave_early(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with self.clock.timeout(0.02):
                await self.peer("bank", Bank).tell(Say("still came"))


def on_simulated() -> Runtime:
    return SimulatedRuntime()


def over_sockets() -> Runtime:
    from fedactors.runtime.ray.runtime import RayRuntime

    return RayRuntime()


def over_ray() -> Runtime:
    from fedactors.runtime.ray.runtime import RayRuntime

    return RayRuntime(use_sockets=False)


def on_slow_links() -> Runtime:
    return SimulatedRuntime(network=SLOW)


def over_emulated_links() -> Runtime:
    from fedactors.runtime.ray.runtime import RayRuntime

    return RayRuntime(network=SLOW)


SLOW = Network(default=Link(latency=0.1))
SLOW_RUNTIMES = [
    pytest.param(on_slow_links, id="simulated links"),
    pytest.param(over_emulated_links, id="emulated links", marks=pytest.mark.ray),
]
RUNTIMES = [
    pytest.param(on_simulated, id="simulated"),
    pytest.param(over_sockets, id="sockets", marks=pytest.mark.ray),
    pytest.param(over_ray, id="ray", marks=pytest.mark.ray),
]


@pytest.fixture(autouse=True)
def cluster(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("ray"):
        request.getfixturevalue("ray_cluster")


def play(make: Callable[[], Runtime], drive: Callable[..., Awaitable[Any]]) -> tuple[Any, Runtime]:
    runtime = make()

    async def main() -> Any:
        bank, thief = runtime.spawn(Bank, "bank/worker-0"), runtime.spawn(Thief, "thief")
        await runtime.start()
        return await drive(runtime, bank, thief)

    return runtime.execute(main), runtime


def play_with_bank(make: Callable[[], Runtime], drive: Callable[..., Awaitable[Any]]) -> tuple[Any, Runtime]:
    runtime = make()

    async def main() -> Any:
        bank, thief, hub = runtime.spawn(Bank, "bank"), runtime.spawn(Thief, "thief"), runtime.spawn(Hub, "hub")
        await runtime.start()
        return await drive(runtime, bank, thief, hub)

    return runtime.execute(main), runtime


@pytest.mark.parametrize("make", RUNTIMES)
def test_what_is_no_endpoint_or_not_for_the_caller_is_refused_and_changes_nothing(make: Any) -> None:
    no_endpoint = r"thief: calls bank\.{}, which is no endpoint of Bank"
    expected = {
        "undeclared": no_endpoint.format("raw_gradient"),
        "close": no_endpoint.format("close"),
        "load": no_endpoint.format("load"),
        "record_privacy": no_endpoint.format("record_privacy"),
        "private": no_endpoint.format("_make"),
        "own party's": r"thief: calls bank\.parameters, which is open to: own party; not to thief",
        "driver's": r"thief: calls bank\.last_word, which is open to: driver; not to thief",
        "plain value": r"thief: calls bank\.tell with a str; it takes a Say",
        "other message": r"thief: calls bank\.tell with a Vector; it takes a Say",
        "nothing": r"thief: calls bank\.tell with nothing; it takes a Say",
        "number for a text": r"thief: sends Say\.word as an int; it is declared as str",
        "matrix in a text": r"thief: sends Say\.word as an array of float64 with 2 dimensions; it is declared as str",
        "not named": r"thief: calls bank\.order, which is open to its partners only: shop, hub; not to thief",
    }

    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> str:
        for attempt, text in expected.items():
            with pytest.raises(Refused, match=text):
                await thief.attempt(Say(attempt))
        with pytest.raises(Refused, match=r"hub: calls bank\.tell, which is open to: client; not to hub"):
            await hub.intrude()
        with pytest.raises(Refused, match=r"bank: sends Say\.word as a float; it is declared as str"):
            await thief.mislead(Say("reply"))
        with pytest.raises(Refused, match=r"bank: sends Vector\.values as a tuple; it is declared as ndarray"):
            await thief.mislead(Say("payload"))
        heard = (await bank.last_word()).word
        assert (await hub.orders()).word == "of hub"
        return heard

    heard, runtime = play_with_bank(make, drive)
    assert heard == ""
    assert runtime.privacy_records == []
    known = {"Say", "intrude()", "last_word()", "error", "orders()", "wrong_reply()", "wrong_payload()"}
    assert {total.type for total in runtime.ledger.totals()} <= known


@pytest.mark.parametrize("make", RUNTIMES)
def test_the_driver_too_uses_endpoints_only(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Any, thief: Thief, hub: Hub) -> None:
        with pytest.raises(Refused, match=r"driver: calls bank\.raw_gradient, which is no endpoint"):
            await bank.raw_gradient(Say("x"))
        with pytest.raises(Refused, match=r"driver: calls bank\.tell, which is open to: client; not to driver"):
            await bank.tell(Say("x"))
        with pytest.raises(TypeError):
            await bank.tell(Say("x"), Say("y"))
        with pytest.raises(TypeError):
            await bank.tell(say=Say("x"))

    play_with_bank(make, drive)


@pytest.mark.parametrize("make", RUNTIMES)
def test_an_actor_knows_who_calls_it(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> list[str]:
        asked = await asyncio.gather(thief.ask_who(), hub.ask_who(), bank.who(), thief.ask_who())
        return [answer.word for answer in asked]

    assert play_with_bank(make, drive)[0] == ["thief", "hub", "driver", "thief"]


@pytest.mark.parametrize("make", RUNTIMES)
def test_a_payload_is_for_those_for_whom_it_was_put(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> Any:
        kept = await bank.keep(Say("shop"))
        assert kept.ref is not None
        with pytest.raises(Refused, match="thief: asks for a payload of bank that is for shop"):
            await thief.guess(Say("", kept.ref))
        for key in (0, 1, 2, kept.ref.key + 1):
            with pytest.raises(PayloadGone):
                await thief.guess(Say(str(key), kept.ref))
        # a place that somebody else made up: another process's memory, or no memory of payloads at all
        for location in (
            (1, 1, 0),
            (kept.ref.location[0], 0, 0),
            (kept.ref.location[0], kept.ref.location[1], -1),
            (),
            (7,),
        ):
            with pytest.raises((Refused, PayloadGone, PartyLost)):
                await thief.guess(Say("", Ref("bank", kept.ref.key, 0, location)))
        allowed = await bank.keep(Say("thief"))
        return (await thief.guess(Say("", allowed.ref))).word

    assert play_with_bank(make, drive)[0] == "4950"


@pytest.mark.parametrize("make", RUNTIMES)
def test_undeclared_payloads_and_replies_are_refused(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> None:
        with pytest.raises(Refused, match=r"thief: a Smuggled is no payload of Thief \(declared: none\)"):
            await thief.smuggle()
        with pytest.raises(Refused, match="thief: lie returned a Vector; it is declared to give a Say"):
            await thief.lie()

    _, runtime = play_with_bank(make, drive)
    assert not {"Smuggled", "Vector"} & {total.type for total in runtime.ledger.totals()}


@pytest.mark.parametrize("make", RUNTIMES)
def test_a_party_states_releases_of_its_own_only(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief) -> None:
        with pytest.raises(Refused, match="bank/worker-0: records a release of 'thief'"):
            await bank.publish(Say("thief"))
        await bank.publish(Say("bank"))
        await runtime.settle()

    _, runtime = play(make, drive)
    assert [record.party for record in runtime.privacy_records] == ["bank"]


@pytest.mark.parametrize("make", RUNTIMES)
def test_nobody_calls_a_loop_that_an_endpoint_began(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> str:
        await bank.go_on()
        await runtime.clock.sleep(0.1)
        return (await bank.last_word()).word

    assert play_with_bank(make, drive)[0] == "nobody"


@pytest.mark.parametrize("make", SLOW_RUNTIMES)
def test_a_message_is_under_way_even_if_its_sender_stops_waiting(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> str:
        await thief.leave_early()
        await runtime.clock.sleep(1.0)
        return (await bank.last_word()).word

    assert play_with_bank(make, drive)[0] == "still came"


@pytest.mark.parametrize("make", [*RUNTIMES, *SLOW_RUNTIMES])
@pytest.mark.parametrize("how", ["forget", "keep_and_forget"])
def test_a_call_that_fails_and_that_nobody_awaits_stops_the_run(make: Any, how: str) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Any, hub: Hub) -> str:
        await getattr(thief, how)()
        await runtime.clock.sleep(0.5)
        return "the run went on"

    with pytest.raises(
        PartyFailed, match=(r"bank: ZeroDivisionError: in an endpoint \(thief, which had " r"called it, did not")
    ):
        play_with_bank(make, drive)


@pytest.mark.parametrize("make", RUNTIMES)
@pytest.mark.parametrize("who", ["thief", "driver"])
def test_a_forgotten_call_may_fail_after_the_driver_is_done(make: Any, who: str) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> str:
        if who == "driver":
            bank.fails_late()  # type: ignore[unused-coroutine]
        else:
            await thief.forget_a_slow_one()
        return "nobody noticed"

    with pytest.raises(
        PartyFailed, match=(rf"bank: ZeroDivisionError: in an endpoint \({who}, which had " rf"called it, did not")
    ):
        play_with_bank(make, drive)


@pytest.mark.parametrize("make", RUNTIMES)
def test_the_drivers_own_forgotten_call_stops_the_run(make: Any) -> None:
    async def drive(runtime: Runtime, bank: Bank, thief: Thief, hub: Hub) -> str:
        bank.fails()  # type: ignore[unused-coroutine]
        await runtime.clock.sleep(0.5)
        return "the run went on"

    with pytest.raises(
        PartyFailed, match=(r"bank: ZeroDivisionError: in an endpoint \(driver, which had " r"called it, did not")
    ):
        play_with_bank(make, drive)


@pytest.mark.parametrize("value", [object(), lambda: 1, np.array([object()]), {1, 2}, Bank])
def test_an_actor_is_built_with_plain_values(value: Any) -> None:
    with pytest.raises(BadInput, match="bank: an argument of its constructor cannot be carried to its process"):
        SimulatedRuntime().spawn(Bank, "bank", value)


def test_each_actor_has_a_copy_of_its_own() -> None:
    runtime = SimulatedRuntime()
    shared = {"rows": [1, 2]}

    async def main() -> list[Any]:
        runtime.spawn(Holder, "a", shared)
        runtime.spawn(Holder, "b", shared)
        await runtime.start()
        return [context.actor.given for context in runtime.contexts.values()]  # type: ignore[attr-defined]

    one, other = runtime.execute(main)
    assert one == other == {"rows": (1, 2)}
    assert one is not other
    assert one is not shared


def test_arrays_of_a_source_can_be_carried() -> None:
    source = ArraySource(ids=np.arange(3), features=np.zeros((3, 2), np.float32))
    runtime = SimulatedRuntime()

    async def main() -> Any:
        runtime.spawn(Holder, "a", source)
        await runtime.start()
        return runtime.contexts["a"].actor.given.load().features.shape  # type: ignore[attr-defined]

    assert runtime.execute(main) == (3, 2)


class Holder(Client):
    """Keeps what it is built with."""

    def __init__(self, given: Any) -> None:
        self.given = given


# --- below the endpoints of the Ray runtime: a process that speaks to another one by itself ---


class Burglar(Client):
    """Goes past its handles: it writes frames to the bank's socket, and calls its Ray actor, by itself."""

    @remote(caller=DRIVER)
    async def attempt(self, say: Say) -> Say:
        transport = self._context.transport  # type: ignore[attr-defined]
        address = transport.book["bank"]
        if say.word in ("driver", "shop", "burglar"):
            return Say(await self._speak(address, say.word, say.many[0], say.many[1]))
        import ray

        actor = address.actor
        asked = {
            "drain": lambda: actor.drain.remote(address.ticket),
            "snapshot": lambda: actor.snapshot.remote(address.ticket),
            "load": lambda: actor.load.remote(address.ticket, {}),
            "close": lambda: actor.close.remote(address.ticket),
            "meet": lambda: actor.meet.remote(address.ticket, {}, {}),
            "call": lambda: actor.call.remote("bank", "driver", address.ticket, np.zeros(8, np.uint8)),
        }[say.word]
        try:
            found = await asked()
        except ray.exceptions.RayTaskError as error:
            return Say(str(error.cause))
        return Say(str(decode(memoryview(found[1]))))

    async def _speak(self, address: Any, name: str, method: str, word: str) -> str:
        reader, writer = await asyncio.open_unix_connection(address.socket)
        for kind, value in ((3, (name, address.ticket, "bank")), (0, (method, Say(word)))):
            body = b"".join(encode_parts(value))
            writer.write(len(body).to_bytes(8, "little") + (1).to_bytes(4, "little") + bytes([kind]) + bytes(51) + body)
        try:
            async with asyncio.timeout(5.0):
                head = await reader.readexactly(64)
                body = await reader.readexactly(int.from_bytes(head[:8], "little"))
        except (ConnectionError, asyncio.IncompleteReadError):
            return "the connection was closed"
        finally:
            writer.close()
        return str(decode(body))


@pytest.mark.ray
def test_a_process_that_goes_past_its_handles_speaks_in_its_own_name_only(caplog: pytest.LogCaptureFixture) -> None:
    from fedactors.runtime.ray.runtime import RayRuntime

    runtime = RayRuntime()

    async def main() -> dict[str, str]:
        bank, burglar = runtime.spawn(Bank, "bank"), runtime.spawn(Burglar, "burglar")
        await runtime.start()
        found = {
            name: (await burglar.attempt(Say(name, many=("tell", "psst")))).word
            for name in ("driver", "shop", "burglar")
        }
        found["raw"] = (await burglar.attempt(Say("burglar", many=("raw_gradient", "x")))).word
        for method in ("drain", "snapshot", "load", "close", "meet", "call"):
            found[method] = (await burglar.attempt(Say(method))).word
        found["heard"] = (await bank.last_word()).word
        await runtime.settle()
        return found

    with caplog.at_level(logging.WARNING):
        found = runtime.execute(main)
    assert found["driver"] == found["shop"] == "the connection was closed"
    assert "heard" in found["burglar"]  # in its own name it may do what its role may do
    assert "burglar" in found["raw"]
    assert "which is no endpoint of Bank" in found["raw"]
    for method in ("drain", "snapshot", "load", "close", "meet"):
        assert "only the run's driver may ask this" in found[method]
    assert "with a ticket that is not its own" in found["call"]
    assert found["heard"] == "psst"
    assert "bank: refused: somebody calls bank as driver without its ticket" in caplog.text
    assert "bank: refused: burglar: calls bank.raw_gradient, which is no endpoint of Bank" in caplog.text
