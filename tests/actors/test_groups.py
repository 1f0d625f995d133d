"""Groups of parties, on the simulated runtime with parties that are really lost, late and back again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fedactors.actors.actor import Client, Server
from fedactors.actors.groups import ActorGroup, Incomplete, OnLoss, surviving_loss
from fedactors.actors.remote import DRIVER, PEERS, remote
from fedactors.errors import BadInput, CallTimeout, PartyFailed, PartyLost, Refused
from fedactors.messages.codec import message
from fedactors.network.links import Link, Network
from fedactors.runtime.simulation.network import VirtualClock, VirtualLoop
from fedactors.runtime.simulation.runtime import SimulatedRuntime

NAMES = ("c", "a", "b")
WAN = Network(default=Link(latency=1.0), local=Link(latency=1.0))


@message(name="tests.parties/Number", reveals="a number")
class Number:
    """A number."""

    value: float


@message(reveals="names")
class Names:
    """Names and numbers, as they were returned."""

    names: tuple[str, ...]
    values: tuple[float, ...]


class Worker(Client):
    """Answers with its count, slowly if it is told to."""

    state = ("count",)

    def __init__(self) -> None:
        self.count = 0.0

    @remote(caller=(DRIVER, PEERS))
    async def add(self, number: Number) -> Number:
        self.count += number.value
        return Number(self.count)

    @remote(caller=(DRIVER, PEERS))
    async def sleep(self, number: Number) -> Number:
        await self.clock.sleep(number.value)
        return number

    @remote(caller=(DRIVER, PEERS))
    async def fail(self) -> None:
        raise ZeroDivisionError("of its own")

    @remote(caller=(DRIVER, PEERS))
    async def ask_b(self) -> Number:
        return await self.peer("b", Worker).add(Number(1.0))


class Asker(Server):
    """Asks a group of workers of its own."""

    state = ("workers",)

    def __init__(self, on_loss: OnLoss, timeout: float) -> None:
        self.dropped: list[str] = []
        self.workers: ActorGroup[Worker] = ActorGroup(
            self, NAMES, on_loss=on_loss, timeout=timeout, when_dropped=self._note, label="workers"
        )

    async def _note(self, names: list[str]) -> None:
        self.dropped += names
        await self.workers.ask(lambda worker: worker.add(Number(100.0)))

    @remote(caller=(DRIVER, PEERS))
    async def add(self, number: Number) -> Names:
        return names(await self.workers.ask(lambda worker: worker.add(number)))

    @remote(caller=(DRIVER, PEERS))
    async def add_twice(self, number: Number) -> Names:
        """Both times everybody, or all of it again."""

        async def once() -> dict[str, Number]:
            await self.workers.ask(lambda worker: worker.add(number), whole=True)
            return await self.workers.ask(lambda worker: worker.add(number), whole=True)

        return names(await self.workers.repeat(once))

    @remote(caller=(DRIVER, PEERS))
    async def report(self) -> Names:
        return Names(tuple(self.workers.members), (float(self.workers.attempt),))


def names(replies: dict[str, Number]) -> Names:
    return Names(tuple(replies), tuple(reply.value for reply in replies.values()))


def play(
    drive: Callable[[SimulatedRuntime, dict[str, Worker]], Awaitable[Any]],
    *,
    policy: str = "continue",
    handler: Callable[[str], Awaitable[None]] | None = None,
    **settings: Any,
) -> Any:
    runtime = SimulatedRuntime(network=WAN, **settings)

    async def main() -> Any:
        runtime.on_loss(policy, handler)
        workers = {name: runtime.spawn(Worker, name) for name in NAMES}
        return await drive(runtime, workers)

    return runtime.execute(main)


def ask_an_actor(
    order: str, on_loss: OnLoss, faults: dict[str, float], times: int = 2, timeout: float = 10.0
) -> tuple[list[Names], Names]:
    """Let an actor ask its group some times; return what it got, and who is a member then."""

    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        asker = runtime.spawn(Asker, "asker", on_loss, timeout)
        await runtime.start()
        found = [await getattr(asker, order)(Number(1.0)) for _ in range(times)]
        return found, await asker.report()

    return play(drive, faults=faults)


# --- nobody is lost ---


def test_all_are_asked_at_once_and_replies_come_in_the_order_of_names() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, timeout=60.0)
        delays = {"a": Number(1.0), "b": Number(9.0), "c": Number(5.0)}
        found = await group.ask_each(lambda worker, number: worker.sleep(number), delays)
        some = await group.ask(lambda worker: worker.add(Number(1.0)), of=["b", "c"])
        return list(found), [number.value for number in found.values()], list(some), runtime.clock.now()

    assert play(drive) == (["c", "a", "b"], [5.0, 1.0, 9.0], ["c", "b"], 9.0 + 2 * 2.0)


def test_who_has_no_message_is_not_asked() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, timeout=60.0)
        await group.ask_each(lambda worker, number: worker.add(number), {"a": Number(1.0)})
        return names(await group.ask(lambda worker: worker.add(Number(0.0))))

    assert play(drive) == Names(("c", "a", "b"), (0.0, 1.0, 0.0))


@pytest.mark.parametrize("on_loss", ["stop", "skip", "drop"])
def test_asking_takes_one_limit_and_no_task_a_party(on_loss: OnLoss, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[Any] = []
    limits: list[float | None] = []
    make, limit = VirtualLoop.create_task, VirtualClock.timeout

    def create_task(*args: Any, **settings: Any) -> Any:
        tasks.append(args)
        return make(*args, **settings)

    def timeout(clock: VirtualClock, seconds: float | None) -> Any:
        limits.append(seconds)
        return limit(clock, seconds)

    monkeypatch.setattr(VirtualLoop, "create_task", create_task)
    monkeypatch.setattr(VirtualClock, "timeout", timeout)

    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, timeout=60.0, on_loss=on_loss)
        tasks.clear()
        await group.ask(lambda worker: worker.add(Number(1.0)))
        return len(tasks), limits

    assert play(drive) == (len(NAMES), [60.0])  # the tasks are those in which the workers answer


def test_a_call_that_cannot_be_made_is_that_partys_loss_and_no_other_answer_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def call(worker: Worker, number: Number) -> Awaitable[Number]:
        if number.value == 2.0:
            raise Refused("a", "is not asked that")
        return worker.add(number)

    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, timeout=60.0, on_loss="skip")
        numbers = {"c": Number(1.0), "a": Number(2.0), "b": Number(3.0)}
        return names(await group.ask_each(call, numbers)), group.last_lost

    assert play(drive) == (Names(("c", "b"), (1.0, 3.0)), "a")
    assert "a: is not asked that" in caplog.text


def test_who_is_late_is_asked_no_longer_and_one_that_goes_on_is_heard() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        ended: list[str] = []

        async def slowly(worker: Worker, number: Number) -> Number:
            try:
                return await worker.sleep(number)
            finally:
                ended.append(f"{number.value:g}")

        group = ActorGroup(runtime, workers, timeout=5.0, on_loss="skip")
        delays = {"c": Number(1.0), "a": Number(9.0), "b": Number(8.0)}
        found = await group.ask_each(slowly, delays)
        return list(found), sorted(ended), runtime.clock.now()

    assert play(drive) == (["c"], ["1", "8", "9"], 5.0)


def test_an_actors_wait_is_on_its_timeline() -> None:
    spans = []

    class Spans:
        keeps_checkpoints = False

        def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
            spans.append((actor, kind, label, start, end))

        def ledger_sink(self, rows: list[Any]) -> None: ...

        def privacy(self, records: list[Any]) -> None: ...

    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        asker = runtime.spawn(Asker, "asker", "stop", 10.0)
        await runtime.start()
        await asker.add(Number(1.0))

    play(drive, recorder=Spans())
    assert spans == [("asker", "wait", "workers", 1.0, 3.0)]


# --- somebody is lost ---


def test_stop_names_the_party_that_is_late() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, timeout=5.0)
        await group.ask_each(lambda worker, number: worker.sleep(number), {"a": Number(0.0), "b": Number(99.0)})

    with pytest.raises(CallTimeout, match="b: it gave no answer within 5 s"):
        play(drive)


def test_a_call_may_have_a_limit_of_its_own() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, timeout=5.0)
        await group.ask(lambda worker: worker.sleep(Number(99.0)), timeout=200.0)
        return runtime.clock.now()

    assert play(drive) == 101.0


def test_a_lost_party_ends_what_was_asked_under_stop() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        await ActorGroup(runtime, workers, timeout=60.0).ask(lambda worker: worker.sleep(Number(9.0)))

    with pytest.raises(PartyLost, match="b: its process was lost during sleep"):
        play(drive, faults={"b": 4.0})


@pytest.mark.parametrize("on_loss", ["stop", "skip", "drop", "restart"])
def test_a_partys_own_failure_is_no_loss(on_loss: OnLoss) -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, on_loss=on_loss, timeout=5.0)
        await group.ask(lambda worker: worker.fail(), of=["a"])

    with pytest.raises(PartyFailed, match="a: ZeroDivisionError: of its own"):
        play(drive)


def test_skip_returns_the_others_replies_and_asks_again_next_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found, report = ask_an_actor("add", "skip", {"b": 3.5}, times=2)
    assert found == [Names(("c", "a", "b"), (1.0, 1.0, 1.0)), Names(("c", "a"), (2.0, 2.0))]
    assert report.names == NAMES
    assert [line for line in caplog.messages if line.startswith("b: ")]


def test_drop_goes_on_without_who_was_lost_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found, report = ask_an_actor("add", "drop", {"b": 5.5}, times=3)
    # `when_dropped` has asked those who are left for 100 more
    assert found == [
        Names(("c", "a", "b"), (1.0, 1.0, 1.0)),
        Names(("c", "a"), (2.0, 2.0)),
        Names(("c", "a"), (103.0, 103.0)),
    ]
    assert report == Names(("c", "a"), (0.0,))
    assert "b: its process was lost during add; the run goes on without it" in caplog.messages


def test_drop_counts_a_party_that_gives_no_answer_in_time() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, on_loss="drop", timeout=5.0)
        delays = {"a": Number(0.0), "b": Number(99.0), "c": Number(1.0)}
        found = await group.ask_each(lambda worker, number: worker.sleep(number), delays)
        return list(found), group.members

    assert play(drive) == (["c", "a"], ["c", "a"])


def test_drop_asks_again_who_needed_a_party_that_was_lost() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, on_loss="drop", timeout=60.0)
        with pytest.raises(PartyLost, match=r"^b: "):  # a asks it again: there is no way round it
            await group.ask(lambda worker: worker.ask_b(), of=["a"])
        return group.members

    assert play(drive, faults={"b": 0.5}) == ["c", "a"]


def test_when_all_are_lost_the_first_loss_is_raised() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, on_loss="drop", timeout=60.0)
        await group.ask(lambda worker: worker.sleep(Number(9.0)))

    with pytest.raises(PartyLost, match=r"^c: "):
        play(drive, faults={"a": 2.0, "b": 3.0, "c": 4.0})


def test_a_whole_answer_is_begun_anew_without_who_was_dropped() -> None:
    # b is lost between the two questions of the first `add_twice`
    found, report = ask_an_actor("add_twice", "drop", {"b": 3.5}, times=1)
    assert found == [Names(("c", "a"), (104.0, 104.0))]  # twice, 100 when b was dropped, and twice again
    assert report == Names(("c", "a"), (1.0,))


def test_an_incomplete_answer_that_nobody_repeats_names_the_party() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, on_loss="drop", timeout=60.0)
        other = ActorGroup(runtime, workers, on_loss="drop", timeout=60.0)
        # the repeat of another group is not meant
        await other.repeat(lambda: group.ask(lambda worker: worker.sleep(Number(9.0)), whole=True))

    with pytest.raises(Incomplete, match=r"^b: its process was lost"):
        play(drive, faults={"b": 4.0})


# --- somebody comes back ---


def restarting(drive: Callable[[SimulatedRuntime, ActorGroup[Worker]], Awaitable[Any]], **settings: Any) -> Any:
    group: list[ActorGroup[Worker]] = []

    async def back(name: str) -> None:
        group[0].back(name)

    async def outer(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group.append(ActorGroup(runtime, workers, on_loss="restart", timeout=20.0))
        return await drive(runtime, group[0])

    return play(outer, policy="restart", handler=back, **settings)


def test_restart_asks_again_whoever_was_lost_and_only_that_one() -> None:
    async def drive(runtime: SimulatedRuntime, group: ActorGroup[Worker]) -> Any:
        await group.ask(lambda worker: worker.add(Number(1.0)))
        await runtime.checkpoint()
        found = names(await group.ask(lambda worker: worker.add(Number(1.0))))
        return found, runtime.clock.now()

    # lost at 2.5 before the second question arrives, back at 6.5 with the count of the checkpoint
    found, now = restarting(drive, faults={"b": 2.5}, restart_seconds=4.0)
    assert found == Names(("c", "a", "b"), (2.0, 2.0, 2.0))
    assert now == 2.5 + 4.0 + 2.0


def test_an_action_that_needs_several_parties_is_done_again() -> None:
    async def drive(runtime: SimulatedRuntime, group: ActorGroup[Worker]) -> Any:
        reply = await group.repeat(lambda: group.handle("a").ask_b(), of=["a", "b"])
        return reply.value, runtime.clock.now()

    assert restarting(drive, faults={"b": 0.5}, restart_seconds=4.0) == (1.0, 8.5)


def test_a_party_that_is_not_waited_for_is_not() -> None:
    async def drive(runtime: SimulatedRuntime, group: ActorGroup[Worker]) -> Any:
        await group.repeat(lambda: group.handle("a").ask_b(), of=["a"])

    with pytest.raises(PartyLost, match=r"^b: "):
        restarting(drive, faults={"b": 0.5}, restart_seconds=4.0)


def test_a_party_that_does_not_come_back_is_named() -> None:
    async def drive(runtime: SimulatedRuntime, group: ActorGroup[Worker]) -> Any:
        await group.ask(lambda worker: worker.add(Number(1.0)))

    with pytest.raises(CallTimeout, match="b: it was lost and not back within 20 s"):
        restarting(drive, faults={"b": 0.5}, restart_seconds=100.0)


def test_a_party_that_is_lost_each_time_is_not_asked_for_ever() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, on_loss="restart", timeout=20.0)

        async def action() -> None:
            asyncio.get_running_loop().call_soon(group.back, "b")
            raise PartyLost("b", "its process is gone")

        await group.repeat(action)

    with pytest.raises(PartyLost, match=r"^b: "):
        play(drive)


def test_who_left_is_not_asked_until_it_is_back() -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        group = ActorGroup(runtime, workers, on_loss="skip", timeout=20.0)
        group.leave("a")
        first = list(await group.ask(lambda worker: worker.add(Number(1.0))))
        group.back("a")
        return first, list(await group.ask(lambda worker: worker.add(Number(1.0))))

    assert play(drive) == (["c", "b"], ["c", "a", "b"])


# --- the rest ---


def test_members_and_attempts_are_part_of_a_snapshot() -> None:
    group = ActorGroup(SimulatedRuntime(), dict.fromkeys(NAMES), timeout=1.0)
    group.leave("a")
    group.attempt = 2
    other = ActorGroup(SimulatedRuntime(), dict.fromkeys(NAMES), timeout=1.0)
    other.load_state_dict(group.state_dict())
    assert (other.members, other.attempt) == (["c", "b"], 2)


def test_a_loss_that_is_survived_is_logged_with_name_and_consequence(caplog: pytest.LogCaptureFixture) -> None:
    async def drive(runtime: SimulatedRuntime, workers: dict[str, Worker]) -> Any:
        await runtime.start()
        with surviving_loss("its task goes to a") as losses:
            await workers["b"].sleep(Number(9.0))
        with surviving_loss("nothing") as others:
            await workers["a"].sleep(Number(1.0))
        with pytest.raises(PartyFailed), surviving_loss("nothing"):
            await workers["a"].fail()
        return [loss.party for loss in losses], others

    with caplog.at_level(logging.WARNING):
        assert play(drive, faults={"b": 4.0}) == (["b"], [])
    assert "b: its process was lost during sleep; its task goes to a" in caplog.messages


def test_refusals() -> None:
    with pytest.raises(BadInput, match="on_loss: 'continue' is not allowed: use stop, skip, drop, restart"):
        ActorGroup(SimulatedRuntime(), NAMES, on_loss="continue", timeout=1.0)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="timeout: 0 is not allowed"):
        ActorGroup(SimulatedRuntime(), NAMES, timeout=0)
