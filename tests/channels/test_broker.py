"""The broker actor in virtual time: deliveries, deadlines, references."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from fedactors.channels.broker import Broker, Publish, Take, Taken
from fedactors.network.codec import message
from fedactors.network.links import Link, Network
from fedactors.roles import Client
from fedactors.runtime.simulated import SimulatedRuntime

NETWORK = Network(default=Link(latency=0.25))


@message(receiver="subscriber", reveals="values")
class Block:
    """A payload."""

    values: np.ndarray


class Party(Client):
    """Publishes and takes through a broker."""

    async def publish_at(self, time: float, sequence: int, value: Any) -> None:
        await self.clock.sleep_until(time)
        await self.peer("broker", Broker).publish(Publish("embedding", 1, self.name, sequence, value))

    async def publish_payload(self) -> None:
        ref = self.put(Block(np.arange(1000.0)))
        await self.peer("broker", Broker).publish(Publish("embedding", 1, self.name, 1, ref))

    async def take(self, deadline: float) -> tuple[float, Taken | None]:
        found = await self.peer("broker", Broker).take(Take("embedding", 1, self.name, deadline))
        return self.clock.now(), found

    async def take_payload(self) -> float:
        found = await self.peer("broker", Broker).take(Take("embedding", 1, self.name, 5.0))
        assert found is not None
        block: Block = await self.get(found.value)
        return float(block.values.sum())


def simulate(drive: Any, network: Network = NETWORK) -> tuple[Any, SimulatedRuntime]:
    runtime = SimulatedRuntime(network=network)

    async def main() -> Any:
        broker = runtime.spawn(Broker, "broker", 2)
        shop, bank = runtime.spawn(Party, "shop"), runtime.spawn(Party, "bank")
        await runtime.start()
        return await drive(broker, shop, bank)

    return runtime.execute(main), runtime


def test_a_take_waits_for_its_publication() -> None:
    async def drive(broker: Broker, shop: Party, bank: Party) -> Any:
        return await asyncio.gather(bank.take(10.0), shop.publish_at(3.0, 1, "hello"))

    ((at, taken), _), _ = simulate(drive)
    # published at 3, at the broker 3.25, back at the bank 3.5
    assert at == 3.5
    assert taken == Taken("shop", 1, 3.25, "hello")


def test_a_take_gives_up_at_its_deadline_and_the_entry_stays_for_the_next() -> None:
    async def drive(broker: Broker, shop: Party, bank: Party) -> Any:
        late = await asyncio.gather(bank.take(2.0), shop.publish_at(3.0, 1, "late"))
        return late[0], await bank.take(2.0)

    ((gave_up, nothing), (_, taken)), _ = simulate(drive)
    assert gave_up == 2.25  # a reply that carries nothing takes no time
    assert nothing is None
    assert taken is not None
    assert taken.value == "late"


def test_a_full_topic_keeps_the_newest_and_a_closed_one_nothing() -> None:
    async def drive(broker: Broker, shop: Party, bank: Party) -> Any:
        for n in range(4):
            await shop.publish_at(0.0, n, f"value {n}")
        newest = await bank.take(1.0)
        await broker.close_topic("embedding", 1)
        return newest[1], (await bank.take(1.0))[1]

    (newest, nothing), _ = simulate(drive)
    assert newest is not None
    assert (newest.sequence, newest.value) == (3, "value 3")
    assert nothing is None


def test_payloads_do_not_pass_through_the_broker() -> None:
    async def drive(broker: Broker, shop: Party, bank: Party) -> Any:
        found = await asyncio.gather(bank.take_payload(), shop.publish_payload())
        return found[0]

    total, runtime = simulate(drive)
    assert total == 999 * 1000 / 2
    sizes = {(t.sender, t.receiver, t.type): t.bytes for t in runtime.ledger.totals()}
    assert sizes[("shop", "bank", "Block")] == 8000
    assert all(size < 100 for (_, _, type_), size in sizes.items() if type_ != "Block")
