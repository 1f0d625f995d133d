"""The simulated runtime: times by hand, order, errors, deadlocks, payloads, memory."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from fedactors.errors import BadInput, Deadlock, FedactorsError, PartyFailed, Stopped
from fedactors.network.codec import CodecError
from fedactors.network.links import HostCapacity, Link, Network
from fedactors.resources import Resources
from fedactors.runtime.base import Costs, MissingCost, Work
from fedactors.runtime.simulated import SimulatedRuntime
from fedactors.runtime.simulation.pool import ProcessPool
from tests.runtime.cast import COSTS, Echo, Memory, Trainer, Update, process_id, rounds_of_training

INSTANT = Network(default=Link())


def play(drive: Callable[..., Awaitable[Any]], **settings: Any) -> tuple[Any, SimulatedRuntime]:
    """Run `drive(runtime, a, b)` with two actors a and b of two parties."""
    settings.setdefault("network", INSTANT)
    runtime = SimulatedRuntime(**settings)

    async def main() -> Any:
        a, b = runtime.spawn(Echo, "a"), runtime.spawn(Echo, "b")
        await runtime.start()
        return await drive(runtime, a, b)

    return runtime.execute(main), runtime


# --- time on links ---


def test_a_call_takes_latency_and_bytes_over_bandwidth_there_and_back() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> float:
        await a.relay("b", np.zeros(117))  # 936 bytes and 64 of header: 1 s at 1000 bytes a second
        return runtime.clock.now()

    at, runtime = play(drive, network=Network(default=Link(latency=0.25, bandwidth=1000.0)))
    assert at == 2.5
    assert runtime.ledger.bytes() == 2 * 936
    assert runtime.ledger.messages() == 2
    assert runtime.usage().header_bytes == 128
    assert runtime.usage().seconds == 2.5


def test_the_drivers_calls_take_no_time_and_are_recorded_apart() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> float:
        await a.echo(np.zeros(100))
        return runtime.clock.now()

    at, runtime = play(drive, network=Network(default=Link(latency=5.0)))
    assert at == 0.0
    assert runtime.ledger.messages() == 0
    assert runtime.ledger.bytes("driver") == 1600


def test_a_server_that_sends_to_k_clients_at_once_takes_k_times_as_long() -> None:
    class Sender(Echo):
        async def send_all(self, names: tuple[str, ...]) -> float:
            await asyncio.gather(*(self.peer(n, Echo).outcome(np.zeros(242)) for n in names))  # type: ignore[attr-defined]
            return self.clock.now()

    class Receiver(Echo):
        async def outcome(self, values: np.ndarray) -> None:
            """Take it."""

    for count in (1, 2, 4):
        network = Network(default=Link(latency=0.5), capacity={"hub": HostCapacity(egress=1000.0)})
        runtime = SimulatedRuntime(network=network)

        async def main(runtime: SimulatedRuntime = runtime, count: int = count) -> float:
            hub = runtime.spawn(Sender, "hub")
            names = tuple(f"c{i}" for i in range(count))
            for name in names:
                runtime.spawn(Receiver, name)
            await runtime.start()
            return await hub.send_all(names)

        # 1936 + 64 bytes at 1000 bytes a second shared by all, then the latency; no reply
        assert runtime.execute(main) == pytest.approx(2.0 * count + 0.5)


# --- computes ---


def test_computes_queue_for_the_cores_of_their_actor() -> None:
    async def one(runtime: SimulatedRuntime, a: Echo, b: Echo) -> list[float]:
        return await a.work_many(4)

    assert play(one, costs=Costs({"step": (1.0, 0.0)}))[0] == (1.0, 2.0, 3.0, 4.0)

    runtime = SimulatedRuntime(costs=Costs({"step": (1.0, 0.0)}), network=INSTANT)

    async def main() -> list[float]:
        a = runtime.spawn(Echo, "a", resources=Resources(num_cpus=2))
        await runtime.start()
        return await a.work_many(4)

    assert runtime.execute(main) == (1.0, 1.0, 2.0, 2.0)
    assert runtime.usage().cpu_utilisation == pytest.approx(1.0)


def test_actors_of_a_party_share_its_cores_when_it_says_so() -> None:
    runtime = SimulatedRuntime(costs=Costs({"step": (1.0, 0.0)}), cores={"bank": 1}, network=INSTANT)

    async def main() -> list[float]:
        workers = [runtime.spawn(Echo, f"bank/worker-{i}") for i in range(2)] + [runtime.spawn(Echo, "shop")]
        await runtime.start()
        return [*await asyncio.gather(*(w.work("step", 1.0) for w in workers))]

    assert runtime.execute(main) == [1.0, 2.0, 1.0]


def test_costs_are_fixed_plus_units_over_the_actors_or_partys_speed() -> None:
    costs = Costs({"step": (1.0, 0.5)}, speed={"bank": 2.0, "bank/fast": 6.0})

    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> float:
        return await a.work("step", 4.0)

    assert play(drive, costs=costs)[0] == 3.0
    assert costs.seconds("bank/slow", Work("step", 4.0)) == 1.5
    assert costs.seconds("bank/fast", Work("step", 4.0)) == 0.5


@pytest.mark.parametrize("costs", [None, Costs({"other": (1.0, 0.0)})])
def test_work_without_a_cost_is_an_error_and_never_zero_seconds(costs: Costs | None) -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> float:
        return await a.work("step", 1.0)

    with pytest.raises(MissingCost, match=r"a: .*'step'"):
        play(drive, costs=costs)


def test_a_protocols_costs_yield_to_the_users() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> float:
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

    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> Any:
        assert "read-only" in await a.write_to(array)
        found = await a.relay("b", array)
        array[0] = 5.0
        return found

    found, _ = play(drive)
    assert found[0] == 0.0
    assert not found.flags.writeable


def test_a_message_leaves_when_the_method_is_called() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> Any:
        array = np.zeros(1)
        call = a.echo(array)
        array[0] = 9.0
        return (await call)[0]

    assert play(drive)[0] == 0.0


@pytest.mark.parametrize("method", ["reply_wrong", "send_wrong"])
def test_a_value_that_may_not_be_sent_names_the_actor_whose_code_it_was(method: str) -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await (a.reply_wrong() if method == "reply_wrong" else a.send_wrong("b"))

    with pytest.raises(PartyFailed, match=r"a: CodecError: a builtins.object may not be sent") as caught:
        play(drive)
    assert caught.value.party == "a"


def test_a_wrong_value_from_the_driver() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await a.echo(object())

    with pytest.raises(CodecError):
        play(drive)


def test_names() -> None:
    async def unknown(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await a.relay("nobody", 1)

    with pytest.raises(BadInput, match=r"a calls 'nobody', which does not exist \(there are: a, b\)"):
        play(unknown)

    async def twice(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        runtime.spawn(Echo, "a")

    with pytest.raises(BadInput, match="actor name 'a' is taken"):
        play(twice)


# --- errors and waits ---


def test_an_exception_two_hops_away_keeps_its_party_and_its_traceback() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await a.relay_crash("b", "the reason")

    with pytest.raises(PartyFailed, match="b: ZeroDivisionError: the reason") as caught:
        play(drive)
    assert caught.value.party == "b"
    assert "in crash\n" in caught.value.traceback_text
    assert "raise ZeroDivisionError(text)" in caught.value.traceback_text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_of_a_task_group_the_first_error_counts() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await a.crash_in_group("b", "in a group")

    with pytest.raises(PartyFailed, match="b: ZeroDivisionError: in a group"):
        play(drive)

    async def as_coroutines(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        async def wait(call: Awaitable[Any]) -> Any:
            return await call

        async with asyncio.TaskGroup() as group:
            group.create_task(wait(a.wait_for_ever()))
            group.create_task(wait(a.relay_crash("b", "in the driver's group")))

    with pytest.raises(PartyFailed, match="b: ZeroDivisionError: in the driver's group"):
        play(as_coroutines)


def test_a_users_mistake_stays_one() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await a.refuse()

    with pytest.raises(BadInput, match=r"^field: 3 is not allowed$"):
        play(drive)


@pytest.mark.parametrize("pool", [0, 1])
def test_a_compute_that_fails_names_its_actor(pool: int) -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await a.fail_in_compute()

    with pytest.raises(PartyFailed, match="a: ArithmeticError: no result") as caught:
        play(drive, costs=COSTS, pool=pool)
    assert "in fail\n" in caught.value.traceback_text


def test_a_failing_loop_stops_the_run() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await a.crash_later(3.0)
        await b.sleep(1e9)

    with pytest.raises(PartyFailed, match="a: LookupError: in the background"):
        play(drive)


def test_when_nothing_can_happen_any_more_each_wait_is_named() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await runtime.clock.sleep(2.0)
        await asyncio.gather(a.outcome_of("b", "wait_for_ever"), b.wait_for_ever())

    with pytest.raises(Deadlock) as caught:
        play(drive)
    text = str(caught.value)
    assert "at 2 s" in text
    assert "a.outcome_of (called by driver)" in text
    assert "b.wait_for_ever (called by a)" in text
    assert "b.wait_for_ever (called by driver)" in text


def test_a_driver_that_waits_for_nothing_is_a_deadlock_too() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="the driver itself"):
        play(drive)


def test_timeouts_are_virtual() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> Any:
        with pytest.raises(TimeoutError):
            async with runtime.clock.timeout(1000.0):
                await a.wait_for_ever()
        async with runtime.clock.timeout(None):
            return await b.impatient(2.5), runtime.clock.now()

    assert play(drive)[0] == ("gave up at 1002.5", 1002.5)


def test_a_driver_that_fails_raises_what_it_raised() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        play(drive)


def test_actors_are_closed_at_the_end_of_a_run() -> None:
    log: list[str] = []
    runtime = SimulatedRuntime()

    async def main() -> None:
        for name in ("a", "b"):
            runtime.spawn(Echo, name, 0, log)
        await runtime.start()

    runtime.execute(main)
    assert log == ["closed a", "closed b"]


def test_a_task_that_will_not_end_does_not_hang_the_run() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    runtime = SimulatedRuntime()
    kept: list[Any] = []

    async def main() -> str:
        kept.append(asyncio.ensure_future(stubborn()))
        await asyncio.sleep(0)
        return "done"

    assert runtime.execute(main) == "done"


# --- payloads ---


def test_payloads_travel_from_their_owner_and_are_counted_there() -> None:
    async def drive(runtime: SimulatedRuntime, a: Echo, b: Echo) -> Any:
        ref = await a.keep(117)
        found = await b.fetch(ref), runtime.clock.now(), await a.fetch(ref), runtime.clock.now()
        await a.forget()
        return *found, await b.fetch(ref), ref.num_bytes

    found, runtime = play(drive, network=Network(default=Link(latency=0.5, bandwidth=1000.0)))
    size = 117 * 8 + 1  # the sender's name has one letter
    at = 0.5 + (size + 64) / 1000
    assert found == ("a 6786 False", at, "a 6786 False", at, "gone", size)
    assert [(t.sender, t.receiver, t.type, t.bytes) for t in runtime.ledger.totals() if t.kind != "driver"] == [
        ("a", "b", "Update", size)
    ]


# --- the same each time ---


def record(**settings: Any) -> Memory:
    memory = Memory()
    settings.setdefault("network", Network(default=Link(latency=0.01, bandwidth=1e5)))
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, seed=5, **settings)
    runtime.execute(lambda: rounds_of_training(runtime))
    return memory


def test_two_runs_are_identical_to_the_byte() -> None:
    first, second = record(), record()
    assert len(first.rounds) == 10
    assert first.rounds == second.rounds
    assert first.spans == second.spans
    assert first.rows == second.rows
    assert [s for _, s, _ in first.snapshots] == [s for _, s, _ in second.snapshots]


def test_another_seed_gives_another_run() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, seed=6)
    runtime.execute(lambda: rounds_of_training(runtime))
    assert memory.rounds != record().rounds


@pytest.mark.parametrize("every", [0, 3])
def test_taking_snapshots_does_not_change_a_run(every: int) -> None:
    often, seldom = record(), record(checkpoint_every=every)
    assert often.rounds == seldom.rounds
    assert often.rows == seldom.rows
    assert len(seldom.snapshots) == (10 // every if every else 0)


def test_pools_of_one_and_two_processes_give_the_same_run() -> None:
    inline = record()
    for workers in (1, 2):
        pooled = record(pool=workers)
        assert pooled.rounds == inline.rounds
        assert pooled.spans == inline.spans
        assert pooled.snapshots == inline.snapshots


def test_computes_of_a_pool_run_in_other_processes() -> None:
    pool = ProcessPool(1)
    try:
        assert pool.submit(process_id, ()).result() != os.getpid()
    finally:
        pool.close()


# --- many parties, many rounds ---


def test_a_thousand_parties() -> None:
    runtime = SimulatedRuntime(network=Network(default=Link(latency=0.001)))
    count = 1000

    async def main() -> None:
        names = [f"p{i:04d}" for i in range(count)]
        actors = [runtime.spawn(Echo, name) for name in names]
        await runtime.start()
        for _ in range(3):
            await asyncio.gather(*(a.relay_add(names[(i + 1) % count], 1) for i, a in enumerate(actors)))
        assert await asyncio.gather(*(a.add(0) for a in actors)) == [3] * count

    runtime.execute(main)
    assert runtime.ledger.messages() == 3 * count * 2
    assert runtime.usage().seconds == pytest.approx(3 * 0.002)


def test_memory_stays_flat_over_many_rounds() -> None:
    runtime = SimulatedRuntime(network=Network(default=Link(latency=0.001)), costs=Costs({"step": (0.1, 0.0)}))
    grown: list[int] = []

    async def main() -> None:
        a, b = runtime.spawn(Echo, "a"), runtime.spawn(Echo, "b")
        await runtime.start()
        for index in range(3000):
            await a.relay("b", Update("a", index, np.zeros(100)))
            await b.work("step", 1.0)
            await a.impatient(0.01)
            if index in (500, 2999):
                grown.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        runtime.execute(main)
    finally:
        tracemalloc.stop()
    assert grown[1] - grown[0] < 300_000


def test_what_actors_hold_goes_when_the_run_ends() -> None:
    actors: list[weakref.ref[Any]] = []

    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.relay("b", Update("a", 0, np.zeros(100)))
        actors.extend(weakref.ref(context.actor) for context in runtime.contexts.values())

    gc.disable()
    try:
        play(drive)
        assert [ref() for ref in actors] == [None, None]
    finally:
        gc.enable()


# --- stopping ---


def test_a_stop_ends_at_the_next_checkpoint_and_writes_it() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, checkpoint_every=100)
    ended: list[int] = []

    async def main() -> None:
        a = runtime.spawn(Echo, "a")
        await runtime.start()
        for index in range(10):
            await a.add()
            if index == 4:
                runtime.request_stop(143)
            await runtime.checkpoint()
            ended.append(index)

    with pytest.raises(Stopped) as caught:
        runtime.execute(main)
    assert caught.value.exit_code == 143
    assert ended == [0, 1, 2, 3]
    assert len(memory.snapshots) == 1


def test_a_stop_does_not_wait_for_a_driver_that_sleeps_under_a_key() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS)

    async def main() -> None:
        runtime.spawn(Echo, "a")
        await runtime.start()
        runtime.request_stop(130)
        await runtime.clock.sleep(1e9, key="rotation")

    with pytest.raises(Stopped):
        runtime.execute(main)
    assert runtime.usage().seconds < 1.0
    assert len(memory.snapshots) == 1


def test_a_checkpoint_that_never_becomes_legal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedactors.runtime.simulated._MOST_MOVES_TO_A_CHECKPOINT", 1000)

    class Restless(Echo):
        async def open(self) -> None:
            self.background(self._loop())

        async def _loop(self) -> None:
            while True:
                await self.clock.sleep(0.1)

    runtime = SimulatedRuntime()

    async def main() -> None:
        runtime.spawn(Restless, "a")
        await runtime.start()
        await runtime.checkpoint()

    with pytest.raises(Deadlock, match="no legal instant for a checkpoint"):
        runtime.execute(main)


def test_a_job_may_be_begun_once_under_a_key() -> None:
    class Twice(Trainer):
        async def open(self) -> None:
            pass

        async def twice(self) -> None:
            job = self.begin("step", process_id, work=Work("step"))
            assert self.job("step") is job
            with pytest.raises(FedactorsError, match="a: a job 'step' is already under way"):
                self.begin("step", process_id, work=Work("step"))
            await job
            assert self.job("step") is None

    runtime = SimulatedRuntime(costs=COSTS)

    async def main() -> None:
        a = runtime.spawn(Twice, "a", 1, 1.0)
        await runtime.start()
        await a.twice()

    runtime.execute(main)
