"""The simulated runtime: times by hand, order, arguments, payloads."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Resources
from fedactors.actors.context import MissingCost, Work
from fedactors.errors import BadInput, PartyFailed
from fedactors.messages.codec import CodecError
from fedactors.network.links import HostCapacity, Link, Network
from fedactors.runtime.interface import Costs
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import INSTANT, Echo, Memory, carry_endpoint, line, play

# --- time on links ---


def test_a_call_takes_latency_and_bytes_over_bandwidth_there_and_back() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> float:
        await a.relay("b", np.zeros(117))  # 936 bytes and 64 of header: 1 s at 1000 bytes a second
        return runtime.clock.now()

    at, runtime = play(drive, network=Network(default=Link(latency=0.25, bandwidth=1000.0)))
    assert at == 2.5
    assert runtime.ledger.bytes() == 2 * 936
    assert runtime.ledger.messages() == 2
    assert runtime.usage().header_bytes == 128
    assert runtime.usage().seconds == 2.5


def test_the_drivers_calls_take_no_time_and_are_recorded_apart() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> float:
        await a.echo(np.zeros(100))
        return runtime.clock.now()

    at, runtime = play(drive, network=Network(default=Link(latency=5.0)))
    assert at == 0.0
    assert runtime.ledger.messages() == 0
    assert runtime.ledger.bytes("driver") == 1600


def test_a_server_that_sends_to_k_clients_at_once_takes_k_times_as_long() -> None:
    class Sender(Echo):
        @carry_endpoint
        async def send_all(self, names: tuple[str, ...]) -> float:
            await asyncio.gather(*(self.line(name).take(np.zeros(242)) for name in names))
            return self.clock.now()

    class Receiver(Echo):
        @carry_endpoint
        async def take(self, values: np.ndarray) -> None:
            """Take it."""

    for count in (1, 2, 4):
        network = Network(default=Link(latency=0.5), capacity={"hub": HostCapacity(egress=1000.0)})
        runtime = SimulatedRuntime(network=network)

        async def main(runtime: SimulatedRuntime = runtime, count: int = count) -> float:
            hub = line(runtime, "hub", Sender)
            names = tuple(f"c{i}" for i in range(count))
            for name in names:
                line(runtime, name, Receiver)
            await runtime.start()
            return await hub.send_all(names)

        # 1936 + 64 bytes at 1000 bytes a second shared by all, then the latency; no reply
        assert runtime.execute(main) == pytest.approx(2.0 * count + 0.5)


def test_phases_of_a_run_are_on_the_drivers_line_of_the_timeline() -> None:
    memory = Memory()

    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await runtime.clock.sleep(2.0)
        with runtime.phase("training"):
            await runtime.clock.sleep(3.0)

    play(drive, recorder=memory)
    assert [span for span in memory.spans if span[1] == "phase"] == [("driver", "phase", "training", 2.0, 5.0)]


# --- computes ---


def test_computes_queue_for_the_cores_of_their_actor() -> None:
    async def one(runtime: SimulatedRuntime, a: Any, b: Any) -> list[float]:
        return await a.work_many(4)

    assert play(one, costs=Costs({"step": (1.0, 0.0)}))[0] == (1.0, 2.0, 3.0, 4.0)

    runtime = SimulatedRuntime(costs=Costs({"step": (1.0, 0.0)}), network=INSTANT)

    async def main() -> list[float]:
        a = line(runtime, "a", resources=Resources(num_cpus=2))
        await runtime.start()
        return await a.work_many(4)

    assert runtime.execute(main) == (1.0, 1.0, 2.0, 2.0)
    assert runtime.usage().cpu_utilisation == pytest.approx(1.0)


def test_actors_of_a_party_share_its_cores_when_it_says_so() -> None:
    runtime = SimulatedRuntime(costs=Costs({"step": (1.0, 0.0)}), cores={"bank": 1}, network=INSTANT)

    async def main() -> list[float]:
        workers = [line(runtime, f"bank/worker-{i}") for i in range(2)] + [line(runtime, "shop")]
        await runtime.start()
        return [*await asyncio.gather(*(w.work("step", 1.0) for w in workers))]

    assert runtime.execute(main) == [1.0, 2.0, 1.0]


def test_costs_are_fixed_plus_units_over_the_actors_or_partys_speed() -> None:
    costs = Costs({"step": (1.0, 0.5)}, speed={"bank": 2.0, "bank/fast": 6.0})

    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> float:
        return await a.work("step", 4.0)

    assert play(drive, costs=costs)[0] == 3.0
    assert costs.seconds("bank/slow", Work("step", 4.0)) == 1.5
    assert costs.seconds("bank/fast", Work("step", 4.0)) == 0.5


@pytest.mark.parametrize("costs", [None, Costs({"other": (1.0, 0.0)})])
def test_work_without_a_cost_is_an_error_and_never_zero_seconds(costs: Costs | None) -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> float:
        return await a.work("step", 1.0)

    with pytest.raises(MissingCost, match=r"a: .*'step'"):
        play(drive, costs=costs)


def test_a_protocols_costs_yield_to_the_users() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> float:
        runtime.use_costs(Costs({"step": (9.0, 0.0)}))
        return await a.work("step", 1.0)

    assert play(drive, costs=Costs({"step": (2.0, 0.0)}))[0] == 2.0
    assert play(drive)[0] == 9.0


@pytest.mark.parametrize(
    ("kinds", "speed", "field"),
    [
        ({"step": (-1.0, 0.0)}, {}, "cost of step"),
        ({"step": (0.0, float("nan"))}, {}, "cost of step"),
        ({}, {"a": 0.0}, "speed of a"),
    ],
)
def test_costs_are_validated(kinds: Any, speed: Any, field: str) -> None:
    with pytest.raises(BadInput, match=f"{field}: .* is not allowed"):
        Costs(kinds, speed)


# --- arguments ---


def test_arguments_and_replies_are_frozen_the_drivers_too() -> None:
    array = np.zeros(3)

    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        assert "read-only" in await a.write_to(array)
        found = await a.relay("b", array)
        array[0] = 5.0
        return found

    found, _ = play(drive)
    assert found[0] == 0.0
    assert not found.flags.writeable


def test_a_message_leaves_when_the_method_is_called() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        array = np.zeros(1)
        call = a.echo(array)
        array[0] = 9.0
        return (await call)[0]

    assert play(drive)[0] == 0.0


@pytest.mark.parametrize("method", ["reply_wrong", "send_wrong"])
def test_a_value_that_may_not_be_sent_names_the_actor_whose_code_it_was(method: str) -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await (a.reply_wrong() if method == "reply_wrong" else a.send_wrong("b"))

    with pytest.raises(PartyFailed, match=r"a: CodecError: a builtins.object may not be sent") as caught:
        play(drive)
    assert caught.value.party == "a"


def test_a_wrong_value_from_the_driver() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.echo(object())

    with pytest.raises(CodecError):
        play(drive)


def test_names() -> None:
    async def unknown(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.relay("nobody", 1)

    with pytest.raises(BadInput, match=r"a calls 'nobody', which does not exist \(there are: a, b\)"):
        play(unknown)

    async def twice(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        line(runtime, "a")

    with pytest.raises(BadInput, match="party: 'a' is not allowed: the name is taken"):
        play(twice)


# --- payloads ---


def test_payloads_travel_from_their_owner_and_are_counted_there() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        ref = await a.keep(117)
        found = await b.fetch(ref), runtime.clock.now(), await a.fetch(ref), runtime.clock.now()
        await a.forget()
        return *found, await b.fetch(ref), ref.num_bytes

    found, runtime = play(drive, network=Network(default=Link(latency=0.5, bandwidth=1000.0)))
    size = 117 * 8 + 1  # the sender's name has one letter, and the round travels in the header
    at = 0.5 + (size + 64) / 1000
    assert found == ("a 6786 False", at, "a 6786 False", at, "gone", size)
    assert [(t.sender, t.receiver, t.type, t.bytes) for t in runtime.ledger.totals() if t.kind != "driver"] == [
        ("a", "b", "Update", size)
    ]


@pytest.mark.parametrize(
    "name", ["", "my bank", "..", "../x", "/bank", "bank/", "-bank", "bank\0", "bänk", "driver", "driver/1"]
)
def test_names_that_no_actor_may_have(name: str) -> None:
    with pytest.raises(BadInput, match=r"party: .* is not allowed"):
        SimulatedRuntime().spawn(Echo, name)
