"""The Ray runtime on a real cluster: calls, payloads, errors, checkpoints, emulated links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Resources
from fedactors.errors import BadInput, CallTimeout, PartyFailed, PartyLost, Stopped
from fedactors.network.links import Link, Network
from fedactors.runtime.interface import Costs, Snapshot
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import COSTS, Echo, Memory, federated_rounds, line, rounds_of_training

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def play(
    drive: Callable[..., Awaitable[Any]], resume: Snapshot | None = None, **settings: Any
) -> tuple[Any, RayRuntime]:
    """Run `drive(runtime, a, b)` with two actors a and b of two parties."""
    runtime = RayRuntime(**settings)

    async def main() -> Any:
        a, b = line(runtime, "a"), line(runtime, "b")
        await runtime.start()
        return await drive(runtime, a, b)

    return runtime.execute(main, resume), runtime


async def conversation(runtime: Any, a: Any, b: Any) -> Any:
    """Calls of all kinds, one after the other."""
    found: list[Any] = [await a.relay("b", np.arange(50.0)), await a.relay_add("b", 3), await b.add(1, times=4)]
    found.append(await a.relay("b", {"name": ("ä", 2**70, None, True), "f": 0.5}))
    ref = await a.keep(1000)
    found += [await b.fetch(ref), await a.fetch(ref)]
    await a.forget()
    found.append(await b.fetch(ref))
    found.append(await asyncio.gather(*(a.relay_add("b", 1) for _ in range(20))))
    found[-1] = sorted(found[-1])
    found.append(await a.write_to(np.zeros(3)))
    return found


def test_sockets_ray_calls_and_the_simulator_say_the_same_and_count_the_same() -> None:
    near, near_runtime = play(conversation)
    far, far_runtime = play(conversation, use_sockets=False)
    simulated = SimulatedRuntime()

    async def main() -> Any:
        a, b = line(simulated, "a"), line(simulated, "b")
        await simulated.start()
        return await conversation(simulated, a, b)

    expected = simulated.execute(main)
    for found, runtime in ((near, near_runtime), (far, far_runtime)):
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1:] == expected[1:]
        assert runtime.ledger.totals() == simulated.ledger.totals()
    assert expected[4:7] == ["a 499500 False", "a 499500 False", "gone"]


def test_a_synchronous_protocol_gives_equal_numbers_on_both_runtimes() -> None:
    simulated, on_ray = SimulatedRuntime(costs=COSTS, seed=11), RayRuntime(seed=11)
    expected = simulated.execute(lambda: federated_rounds(simulated))
    assert on_ray.execute(lambda: federated_rounds(on_ray)) == expected
    assert on_ray.ledger.totals() == simulated.ledger.totals()


def test_ledger_rows_and_spans_reach_the_recorder() -> None:
    memory = Memory()
    runtime = RayRuntime(seed=11, recorder=memory)

    async def main() -> list[float]:
        found = await federated_rounds(runtime, 2)
        await runtime.record_round(1, {"x": 1.0})
        return found

    runtime.execute(main)
    assert len(memory.rows) == sum(t.messages for t in runtime.ledger.totals())
    assert {kind for _, kind, _, _, _ in memory.spans} == {"compute", "overhead"}
    assert memory.rounds == ['[1, {"x": 1.0}]']
    used = runtime.usage()
    assert used.messages == runtime.ledger.messages()


def test_a_payload_of_a_lost_owner_is_lost() -> None:
    async def drive(runtime: RayRuntime, a: Any, b: Any) -> str:
        runtime.on_loss("continue")
        ref = await a.keep(10)
        with pytest.raises(PartyLost):
            await a.exit()
        return await b.fetch(ref)

    assert play(drive)[0] == "lost a"


# --- errors ---


def test_an_exception_two_hops_away_keeps_its_party_and_its_traceback() -> None:
    for use_sockets in (True, False):

        async def drive(runtime: RayRuntime, a: Any, b: Any) -> None:
            await a.relay_crash("b", "the reason")

        with pytest.raises(PartyFailed, match="b: ZeroDivisionError: the reason") as caught:
            play(drive, use_sockets=use_sockets)
        assert caught.value.party == "b"
        assert "raise ZeroDivisionError(text)" in caught.value.traceback_text
        assert "ray" not in str(caught.value).lower()


def test_a_failing_loop_stops_the_run() -> None:
    async def drive(runtime: RayRuntime, a: Any, b: Any) -> None:
        await a.crash_later(0.0)
        await b.wait_for_ever()

    with pytest.raises(PartyFailed, match="a: LookupError: in the background"):
        play(drive)


def test_users_mistakes_and_wrong_values_name_what_they_concern() -> None:
    async def refuse(runtime: RayRuntime, a: Any, b: Any) -> None:
        await a.refuse()

    with pytest.raises(BadInput, match=r"^field: 3 is not allowed$"):
        play(refuse)

    async def wrong(runtime: RayRuntime, a: Any, b: Any) -> None:
        with pytest.raises(PartyFailed, match=r"a: CodecError: a builtins.object may not be sent"):
            await a.reply_wrong()
        with pytest.raises(PartyFailed, match=r"b: CodecError: a builtins.object may not be sent"):
            await b.send_wrong("a")
        with pytest.raises(BadInput, match=r"a calls 'nobody', which does not exist \(there are: a, b\)"):
            await a.relay("nobody", 1)
        await a.crash_in_group("b", "in a group")

    with pytest.raises(PartyFailed, match="b: ZeroDivisionError: in a group"):
        play(wrong)


@pytest.mark.parametrize("use_sockets", [True, False])
def test_every_call_has_a_timeout(use_sockets: bool) -> None:
    async def drive(runtime: RayRuntime, a: Any, b: Any) -> None:
        await b.wait_for_ever()

    with pytest.raises(CallTimeout, match=r"b: wait_for_ever gave no answer within 0.2 s"):
        play(drive, call_timeout=0.2, use_sockets=use_sockets)


def test_an_actor_that_fails_to_start_is_named() -> None:
    runtime = RayRuntime()

    async def main() -> None:
        line(runtime, "a", Broken)
        await runtime.start()

    with pytest.raises(PartyFailed, match="a: OSError: no such table"):
        runtime.execute(main)


class Broken(Echo):
    """Cannot load its data."""

    async def load(self) -> None:
        raise OSError("no such table")


# --- resources ---


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (Resources(num_cpus=64), r"a asks CPU=64, which no host has; the cluster has .*CPU=2"),
        (Resources(labels={"dc-oregon": 0.001}), r"a asks dc-oregon=0.001, which no host has; the cluster has .*CPU=2"),
        (Resources(num_gpus=3), r"a asks GPU=3, which no host has"),
    ],
)
def test_more_than_the_cluster_has_is_refused_at_once(resources: Resources, text: str) -> None:
    runtime = RayRuntime()

    async def main() -> None:
        line(runtime, "a", resources=resources)
        await runtime.start()

    with pytest.raises(BadInput, match=text):
        runtime.execute(main)


def test_what_all_actors_ask_together_counts_over_several_starts() -> None:
    runtime = RayRuntime()

    async def main() -> None:
        line(runtime, "a", resources=Resources(num_cpus=1.5))
        await runtime.start()
        line(runtime, "b", resources=Resources(num_cpus=1.5))
        await runtime.start()

    with pytest.raises(BadInput, match=r"the actors ask CPU=3 in all; the cluster has .*CPU=2"):
        runtime.execute(main)


def test_a_placement_is_validated_and_used() -> None:
    with pytest.raises(BadInput, match="placement: 'NEAR' is not allowed: use PACK"):
        RayRuntime(placement="NEAR")

    async def drive(runtime: RayRuntime, a: Any, b: Any) -> int:
        return await a.relay("b", 5)

    assert play(drive, placement="STRICT_PACK")[0] == 5


# --- checkpoints ---


def test_a_checkpoint_goes_on_in_another_run_and_on_the_other_runtime() -> None:
    memory = Memory()

    async def drive(runtime: Any, a: Any, b: Any) -> tuple[int, int]:
        runtime.state.setdefault("round", 0)
        runtime.state["round"] += 1
        count = await a.relay_add("b", 5)
        await runtime.checkpoint()
        return runtime.state["round"], count

    first, before = play(drive, recorder=memory)
    second, after = play(drive, memory.snapshots[0][1], recorder=memory)
    assert (first, second) == ((1, 5), (2, 10))
    assert after.resumed
    assert after.ledger.messages() == 2 * before.ledger.messages()
    assert after.usage().seconds > before.clock.now() - 60

    simulated = SimulatedRuntime()

    async def main() -> tuple[int, int]:
        a, b = line(simulated, "a"), line(simulated, "b")
        await simulated.start()
        return await drive(simulated, a, b)

    assert simulated.execute(main, memory.snapshots[1][1]) == (3, 15)


def test_a_corrupt_checkpoint_is_refused() -> None:
    memory = Memory()

    async def drive(runtime: RayRuntime, a: Any, b: Any) -> None:
        await runtime.checkpoint()

    play(drive, recorder=memory)
    found = memory.snapshots[0][1]
    with pytest.raises(BadInput, match="the checkpoint of b is corrupt"):
        play(drive, Snapshot({**found.actors, "b": found.actors["b"][:-3]}, found.driver))
    with pytest.raises(BadInput, match="the checkpoint of the driver is corrupt"):
        play(drive, Snapshot(found.actors, b"foreign"))


def test_an_asynchronous_protocol_runs_and_resumes() -> None:
    def train(resume: Snapshot | None) -> Memory:
        memory = Memory()
        runtime = RayRuntime(recorder=memory, costs=COSTS, scale=0.2, seed=2)
        runtime.execute(lambda: rounds_of_training(runtime, 3 if resume is None else 5, 2), resume)
        return memory

    first = train(None)
    assert len(first.rounds) == 3
    rest = train(first.snapshots[-1][1])
    assert [line[:2] for line in rest.rounds] == ["[4", "[5"]


def test_a_stop_writes_the_last_checkpoint_and_ends() -> None:
    memory = Memory()

    async def drive(runtime: RayRuntime, a: Any, b: Any) -> None:
        await a.add()
        await runtime.checkpoint()
        await a.add()
        runtime.request_stop(143)
        await b.wait_for_ever()

    with pytest.raises(Stopped, match="its last checkpoint is written") as caught:
        play(drive, recorder=memory)
    assert caught.value.exit_code == 143
    assert len(memory.snapshots) == 1  # the last one is there already, and says how far the files had come by then


# --- emulation ---


def test_links_and_costs_can_be_emulated_at_a_scale() -> None:
    async def drive(runtime: RayRuntime, a: Any, b: Any) -> tuple[float, float]:
        start = runtime.clock.now()
        await a.relay("b", 1)
        middle = runtime.clock.now()
        await a.work("step", 2.0)
        return middle - start, runtime.clock.now() - middle

    network = Network(default=Link(latency=0.5))
    (talked, worked), _ = play(drive, network=network, costs=Costs({"step": (1.0, 0.5)}), scale=0.1)
    assert talked >= 2 * 0.05
    assert worked >= 0.2


def test_emulated_computes_of_an_actor_queue_for_its_core_as_in_simulation() -> None:
    async def drive(runtime: RayRuntime, a: Any, b: Any) -> float:
        start = runtime.clock.now()
        await asyncio.gather(*(a.work("step", 2.0) for _ in range(4)))
        return runtime.clock.now() - start

    took, _ = play(drive, costs=Costs({"step": (1.0, 0.5)}), scale=0.1)
    assert took >= 4 * 2.0
