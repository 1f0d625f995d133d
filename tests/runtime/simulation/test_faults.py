"""Lost processes in the simulated runtime."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedactors.errors import BadInput, PartyLost
from fedactors.network.links import Link, Network
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import COSTS, Echo, Memory, carry_endpoint, line, rounds_of_training

WAN = Network(default=Link(latency=1.0))


class Planned(Echo):
    """Changes its constructor's argument."""

    def __init__(self, plan: dict[str, int]) -> None:
        super().__init__()
        self._plan = plan

    @carry_endpoint
    async def do(self) -> int:
        self._plan["done"] += 1
        return self._plan["done"]


def lose(policy: Any, drive: Any, faults: dict[str, float], **settings: Any) -> tuple[Any, list[str]]:
    runtime = SimulatedRuntime(network=WAN, faults=faults, **settings)
    told: list[str] = []

    async def handler(name: str) -> None:
        told.append(f"{name} at {runtime.clock.now():g}")

    async def main() -> Any:
        runtime.on_loss(policy, handler)
        a, b = line(runtime, "a"), line(runtime, "b")
        await runtime.start()
        return await drive(runtime, a, b)

    return runtime.execute(main), told


async def ask_until_answered(runtime: SimulatedRuntime, a: Any, b: Any) -> tuple[list[str], int]:
    found = []
    await b.add(5)
    await runtime.checkpoint()
    await b.add(2)
    for _ in range(6):
        found.append(await a.outcome_of("b", "add"))
        await runtime.clock.sleep(1.0)
    return found, await b.add(0)


def test_stop_names_the_party() -> None:
    with pytest.raises(PartyLost, match="b: its process is gone") as caught:
        lose("stop", ask_until_answered, {"b": 4.5})
    assert caught.value.party == "b"


def test_continue_goes_on_without_it() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        return [await a.outcome_of("b", "add"), await a.outcome_of("b", "wait_for_ever"), await a.echo(1)]

    found, told = lose("continue", drive, {"b": 4.5})
    assert found == ["1", "lost b", 1]
    assert told == ["b at 4.5"]


def test_restart_brings_the_state_of_the_last_snapshot_back() -> None:
    # 5 at the snapshot, 2 + 1 more before the loss, which are lost with it
    (found, count), told = lose("restart", ask_until_answered, {"b": 2.5}, restart_seconds=2.0)
    assert found[0] == "8"
    assert found[1] == "lost b"
    assert found[-1] == str(count)
    answered = sum(text != "lost b" for text in found[1:])
    assert count == 5 + answered
    assert told == ["b at 4.5"]


def test_a_call_on_the_wire_to_an_actor_that_is_lost_meanwhile_fails_and_is_not_cancelled() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        return await a.outcome_of("b", "add")

    for at in (0.5, 1.5):  # on its way there, and the reply on its way back
        assert lose("continue", drive, {"b": at})[0] == "lost b"


def test_a_call_to_a_lost_actor_fails_at_once_or_on_arrival() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        await runtime.clock.sleep(5.0)
        with pytest.raises(PartyLost):
            await b.add()
        return await a.outcome_of("b", "add"), runtime.clock.now()

    assert lose("continue", drive, {"b": 1.0})[0] == ("lost b", 6.0)


def test_the_receiver_goes_on_when_the_sender_is_lost() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        with pytest.raises(PartyLost):
            await a.relay_add("b", 3)
        await runtime.clock.sleep(5.0)
        return await b.add(0)

    assert lose("continue", drive, {"a": 0.5})[0] == 3


def test_a_policy_may_differ_by_actor() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        await runtime.clock.sleep(10.0)

    with pytest.raises(PartyLost, match=r"^a:"):
        lose(lambda name: "stop" if name == "a" else "continue", drive, {"b": 1.0, "a": 2.0})


def test_a_policy_is_validated() -> None:
    with pytest.raises(BadInput, match="on_party_loss: 'retry' is not allowed: use stop, continue, restart"):
        SimulatedRuntime().on_loss("retry")


def test_a_handler_that_fails_stops_the_run() -> None:
    runtime = SimulatedRuntime(faults={"a": 1.0})

    async def handler(name: str) -> None:
        raise LookupError(f"no place for {name}")

    async def main() -> None:
        runtime.on_loss("continue", handler)
        line(runtime, "a")
        await runtime.start()
        await runtime.clock.sleep(10.0)

    with pytest.raises(LookupError, match="no place for a"):
        runtime.execute(main)


def test_a_loop_of_a_lost_actor_ends_without_stopping_the_run() -> None:
    class Stubborn(Echo):
        async def open(self) -> None:
            self.background(self._loop())

        async def _loop(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise LookupError("while it was being lost")

    runtime = SimulatedRuntime(faults={"a": 1.0})

    async def main() -> str:
        runtime.on_loss("continue")
        line(runtime, "a", Stubborn)
        await runtime.start()
        await runtime.clock.sleep(10.0)
        return "done"

    assert runtime.execute(main) == "done"


def test_a_process_that_takes_a_lost_ones_place_finds_the_arguments_as_they_were() -> None:
    runtime = SimulatedRuntime(network=WAN, faults={"a": 1.0}, restart_seconds=1.0)

    async def main() -> tuple[int, int]:
        runtime.on_loss("restart")
        a = line(runtime, "a", Planned, {"done": 0})
        await runtime.start()
        before = await a.do(), await a.do()
        await runtime.clock.sleep(5.0)
        return before[1], await a.do()

    assert runtime.execute(main) == (2, 1)


def test_a_run_with_losses_and_restarts_is_repeatable_and_resumes() -> None:
    def run(resume: Any = None) -> Memory:
        memory = Memory()
        runtime = SimulatedRuntime(
            recorder=memory, costs=COSTS, seed=3, network=Network(), faults={"t1": 1.234}, restart_seconds=0.2
        )

        async def main() -> None:
            runtime.on_loss("restart")
            await rounds_of_training(runtime)

        runtime.execute(main, resume)
        return memory

    whole = run()
    assert run().rounds == whole.rounds
    for _, found, done in whole.snapshots[4:6]:  # after the loss: it does not happen again
        assert run(found).rounds == whole.rounds[done:]
