"""Actors, compute functions and a recorder for the tests of both runtimes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from fedactors.actors.actor import Client, Resources, Server
from fedactors.actors.context import Ref, Work
from fedactors.actors.remote import CLIENT, DRIVER, PEERS, remote
from fedactors.errors import BadInput, PartyLost, PayloadGone
from fedactors.messages.codec import message
from fedactors.network.links import Link, Network
from fedactors.runtime.interface import Costs, Runtime, Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime


@message(reveals="a vector", readers="whom it was put for")
class Update:
    """A vector with its sender's name and round."""

    sender: str
    round: int
    values: np.ndarray


@message(reveals="a mean of vectors")
class Mean:
    """The mean so far."""

    values: np.ndarray


@message(reveals="how many updates came and from whom, and the sum of their mean")
class Summary:
    """What the driver is told."""

    num_updates: int
    total: float
    order: str


@message(reveals="which round it is")
class Order:
    """What the driver wants."""

    round: int


class Memory:
    """A recorder that keeps everything in memory."""

    keeps_checkpoints = True

    def __init__(self) -> None:
        self.rounds: list[str] = []
        self.spans: list[tuple[str, str, str, float, float]] = []
        self.rows: list[Any] = []
        self.records: list[Any] = []
        self.snapshots: list[tuple[str, Snapshot, int]] = []

    def record_round(self, index: int, metrics: Mapping[str, Any], **totals: Any) -> None:
        self.rounds.append(json.dumps([index, metrics]))

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        self.spans.append((actor, kind, label, start, end))

    def ledger_sink(self, rows: list[Any]) -> None:
        self.rows.extend(rows)

    def privacy(self, records: list[Any]) -> None:
        self.records.extend(records)

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        self.snapshots.append((label, Snapshot(dict(actors), driver), len(self.rounds)))


def descend(values: np.ndarray, seed: int) -> np.ndarray:
    """Return the values moved towards noise drawn from `seed`."""
    return 0.9 * values + 0.1 * np.random.default_rng(seed).normal(size=values.shape)


def fail(text: str) -> None:
    """Fail."""
    raise ArithmeticError(text)


def process_id() -> int:
    """Return the number of the process in which this runs."""
    return os.getpid()


@message(reveals="whatever a test puts into it")
class Carry:
    """Any values that may be sent, in place of a message for each thing that a test says."""

    values: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


def carry_endpoint(method: Callable[..., Awaitable[Any]]) -> Any:
    """Make an endpoint of a method of any arguments: they come in one `Carry`, and the result goes back in another."""

    async def endpoint(self: Any, order: Carry) -> Carry | None:
        found = await method(self, *order.values, **order.named)
        return None if found is None else Carry((found,))

    endpoint.__name__, endpoint.__qualname__ = method.__name__, method.__qualname__
    return remote(caller=(DRIVER, PEERS))(endpoint)


class Line:
    """A handle of an actor whose endpoints are made by `said`: arguments go as they are, results come as they are."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def send(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._answer(getattr(self.handle, method)(Carry(args, kwargs)))

        return send

    @staticmethod
    async def _answer(reply: Awaitable[Any]) -> Any:
        found = await reply
        return None if found is None else found.values[0]


class Echo(Client):
    """Answers, relays, counts, waits and fails as it is told."""

    state: ClassVar[tuple[str, ...]] = ("count",)
    payloads: ClassVar[tuple[type, ...]] = (Update,)

    def __init__(self, start: int = 0) -> None:
        self.count = start
        self._refs: list[Ref] = []

    def line(self, name: str) -> Any:
        """Return a line to another actor."""
        return Line(self.peer(name, Echo))

    async def close(self) -> None:
        CLOSED.append(self.name)

    @carry_endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @carry_endpoint
    async def add(self, amount: int = 1, *, times: int = 1) -> int:
        self.count += amount * times
        return self.count

    @carry_endpoint
    async def relay(self, to: str, value: Any) -> Any:
        return await self.line(to).echo(value)

    @carry_endpoint
    async def relay_add(self, to: str, amount: int) -> int:
        found: int = await self.line(to).add(amount)
        return found

    @carry_endpoint
    async def crash(self, text: str) -> None:
        raise ZeroDivisionError(text)

    async def _relay_crash(self, to: str, text: str) -> None:
        await self.line(to).crash(text)

    @carry_endpoint
    async def relay_crash(self, to: str, text: str) -> None:
        await self._relay_crash(to, text)

    @carry_endpoint
    async def call_and_forget(self, to: str, text: str) -> None:
        self.peer(to, Echo).crash(Carry((text,)))

    @carry_endpoint
    async def refuse(self) -> None:
        raise BadInput("field: 3 is not allowed")

    @carry_endpoint
    async def crash_in_group(self, to: str, text: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.clock.sleep(1000.0))
            group.create_task(self._relay_crash(to, text))

    @carry_endpoint
    async def crash_later(self, seconds: float) -> None:
        async def later() -> None:
            await self.clock.sleep(seconds)
            raise LookupError("in the background")

        self.background(later())

    @carry_endpoint
    async def wait_for_ever(self) -> None:
        await asyncio.Event().wait()

    @carry_endpoint
    async def impatient(self, seconds: float) -> str:
        return await self.give_up_after(seconds)

    async def give_up_after(self, seconds: float) -> str:
        """Wait for what never comes, for so long."""
        try:
            async with self.clock.timeout(seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            return f"gave up at {self.clock.now():g}"
        return "never"

    @carry_endpoint
    async def sleep(self, seconds: float) -> float:
        await self.clock.sleep(seconds)
        return self.clock.now()

    async def _work(self, kind: str, units: float) -> float:
        await self.compute(process_id, work=Work(kind, units))
        return self.clock.now()

    @carry_endpoint
    async def work(self, kind: str, units: float) -> float:
        return await self._work(kind, units)

    @carry_endpoint
    async def work_many(self, count: int) -> list[float]:
        return list(await asyncio.gather(*(self._work("step", 1.0) for _ in range(count))))

    @carry_endpoint
    async def fail_in_compute(self) -> None:
        await self.compute(fail, "no result", work=Work("step"))

    @carry_endpoint
    async def exit(self) -> None:
        os._exit(9)

    @carry_endpoint
    async def process(self) -> int:
        return os.getpid()

    @carry_endpoint
    async def send_wrong(self, to: str) -> None:
        await self.line(to).echo(object())

    @carry_endpoint
    async def reply_wrong(self) -> Any:
        return object()

    @carry_endpoint
    async def write_to(self, values: np.ndarray) -> str:
        try:
            values[0] = 7.0
        except ValueError as error:
            return str(error)
        return "written"

    @carry_endpoint
    async def outcome_of(self, to: str, method: str) -> str:
        try:
            return str(await getattr(self.line(to), method)())
        except PartyLost as error:
            return f"lost {error.party}"

    # --- payloads ---

    @carry_endpoint
    async def keep(self, size: int) -> Ref:
        self._refs.append(self.put(Update(self.name, 0, np.arange(float(size))), to="b"))
        return self._refs[-1]

    @carry_endpoint
    async def forget(self) -> None:
        for ref in self._refs:
            self.free(ref)

    @carry_endpoint
    async def fetch(self, ref: Ref) -> str:
        try:
            found: Update = await self.get(ref)
        except PayloadGone:
            return "gone"
        except PartyLost as error:
            return f"lost {error.party}"
        return f"{found.sender} {found.values.sum():g} {found.values.flags.writeable}"


CLOSED: list[str] = []
"""Names of the actors that were closed in this process."""


class Hub(Server):
    """Collects updates and forms their mean in the order of names."""

    state: ClassVar[tuple[str, ...]] = ("mean", "num_updates", "order")

    async def load(self) -> None:
        self.mean = np.zeros(4)
        self.num_updates = 0
        self.order: list[str] = []

    @remote(caller=(DRIVER, CLIENT))
    async def collect(self, update: Update) -> Mean:
        self.num_updates += 1
        self.order.append(f"{update.sender}@{self.clock.now():.9g}")
        self.mean = self.mean + (update.values - self.mean) / (1 + self.num_updates)
        return Mean(self.mean)

    @remote(caller=DRIVER)
    async def summary(self) -> Summary:
        return Summary(self.num_updates, float(self.mean.sum()), " ".join(self.order[-4:]))


class Trainer(Client):
    """Trains in a loop whose work is a job, beside a loop on a keyed timer; talks to the hub after every step."""

    state: ClassVar[tuple[str, ...]] = ("values", "round", "ticks", "draws")
    jobs: ClassVar[tuple[Callable[..., Any], ...]] = (descend,)
    resources: ClassVar[Resources] = Resources(num_cpus=0)

    def __init__(self, num_rounds: int, period: float) -> None:
        self._num_rounds = num_rounds
        self._period = period

    async def load(self) -> None:
        self.values = self.rng("start").normal(size=4)
        self.round = 0
        self.ticks = 0
        self.draws = self.rng("draws")

    async def open(self) -> None:
        self.background(self._train())
        self.background(self._tick())

    async def _train(self) -> None:
        while self.round < self._num_rounds:
            job = self.job("step") or self.begin(
                "step", descend, self.values, int(self.draws.integers(2**31)), work=Work("step", 1 + self.round % 3)
            )
            self.values = await job
            self.round += 1
            mean = await self.peer("hub", Hub).collect(Update(self.name, self.round, self.values))
            self.values = 0.5 * (self.values + mean.values)

    async def _tick(self) -> None:
        while self.ticks < 3 * self._num_rounds:
            await self.clock.sleep(self._period, key="tick")
            self.ticks += 1
            self.values = self.values * 1.001


COSTS = Costs({"step": (0.1, 0.05)}, speed={"t1": 0.5})


async def rounds_of_training(runtime: Runtime, num_rounds: int = 10, num_trainers: int = 3) -> None:
    """Record a round each 0.37 s while the trainers go on by themselves."""
    hub = runtime.spawn(Hub, "hub")
    for index in range(num_trainers):
        runtime.spawn(Trainer, f"t{index}", 12, 0.11 + 0.01 * index)
    await runtime.start()
    state = runtime.state
    state.setdefault("round", 0)
    while state["round"] < num_rounds:
        await runtime.clock.sleep(0.37, key="round")
        found = await hub.summary()
        state["round"] += 1
        at = runtime.clock.now()
        metrics = {"updates": found.num_updates, "total": found.total, "order": found.order, "at": at}
        await runtime.record_round(state["round"], metrics)
        await runtime.checkpoint()


async def federated_rounds(runtime: Runtime, num_rounds: int = 3) -> list[float]:
    """A synchronous protocol whose numbers do not depend on timing."""
    hub = runtime.spawn(Hub, "hub")
    names = ["a", "b", "c"]
    steppers = {name: runtime.spawn(Stepper, name) for name in names}
    await runtime.start()
    found = []
    for index in range(num_rounds):
        updates = await asyncio.gather(*(steppers[name].step(Order(index)) for name in names))
        for update in updates:
            mean = await hub.collect(update)
        await asyncio.gather(*(steppers[name].take(mean) for name in names))
        found.append(float(mean.values.sum()))
    return found


class Stepper(Client):
    """One synchronous step at a time."""

    async def load(self) -> None:
        self.values = self.rng("start").normal(size=4)

    @remote(caller=DRIVER)
    async def step(self, order: Order) -> Update:
        self.values = await self.compute(descend, self.values, self.seed(f"step {order.round}"), work=Work("step"))
        return Update(self.name, order.round, self.values)

    @remote(caller=DRIVER)
    async def take(self, mean: Mean) -> None:
        self.values = 0.5 * (self.values + mean.values)


def line(runtime: Runtime, name: str, cls: type = Echo, *args: Any, **options: Any) -> Any:
    """Spawn an actor whose endpoints are made by `said`, and return a line to it."""
    return Line(runtime.spawn(cls, name, *args, **options))


INSTANT = Network(default=Link())


def play(drive: Callable[..., Awaitable[Any]], **settings: Any) -> tuple[Any, SimulatedRuntime]:
    """Run `drive(runtime, a, b)` with two actors a and b of two parties."""
    settings.setdefault("network", INSTANT)
    runtime = SimulatedRuntime(**settings)

    async def main() -> Any:
        a, b = line(runtime, "a"), line(runtime, "b")
        await runtime.start()
        return await drive(runtime, a, b)

    return runtime.execute(main), runtime
