"""Actors of one trust domain that share processes on Ray: the same run as with a process each, in fewer processes."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from fedactors.actors.actor import Resources
from fedactors.config import build
from fedactors.errors import BadInput, PartyFailed, PartyLost
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import ActorSpec, Runtime
from fedactors.runtime.ray.processes import by_process
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import COSTS, Echo, Line, Memory

# --- who shares with whom ---


def test_who_names_one_process_and_asks_for_the_same_shares_it():
    plain, labelled = Resources(), Resources(labels={"dc-1": 0.001})
    asked = [("a", plain, "p"), ("b", labelled, "p"), ("c", plain, "p"), ("d", plain, ""), ("e", plain, "q")]
    found = by_process(ActorSpec(Echo, name, (), {}, resources, process) for name, resources, process in asked)
    assert {name: [spec.name for spec in specs] for name, specs in found.items()} == {
        "a": ["a", "c"],
        "b": ["b"],
        "d": ["d"],
        "e": ["e"],
    }


def test_actors_are_dealt_to_as_many_processes_as_cores_where_there_are_more():
    names = [f"c{index}" for index in range(5)]
    runtime = SimulatedRuntime(costs=COSTS)
    assert set(runtime.shared_processes(names).values()) == {""}
    assert list(runtime.shared_processes(names, 2).values()) == ["c0", "c0", "c2", "c2", "c4"]
    runtime.num_cores = 2
    assert list(runtime.shared_processes(names).values()) == ["c0", "c0", "c0", "c3", "c3"]
    assert set(runtime.shared_processes(names[:2]).values()) == {""}
    assert set(runtime.shared_processes(names, 1).values()) == {""}


def test_clients_of_a_site_are_not_dealt_to_several_processes():
    with pytest.raises(BadInput, match="clients_per_process: 2 is not allowed: the 4 clients of a site"):
        build(HorizontalConfig, {"clients_per_site": "4", "clients_per_process": "2"})


# --- the same run ---


def horizontal(runtime: Runtime, **words: Any) -> Any:
    protocol = find_protocol("horizontal")
    settings = {"num_clients": 6, "num_rounds": 2, "learning_rate": 0.1, "num_training": 300, **words}
    config = build(protocol.Config, {name: str(value) for name, value in settings.items()})
    data = load_data(protocol, config, "digits", 0)
    return runtime.execute(lambda: protocol.run(config, data, runtime))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.drawn(2, family="shared processes", subjects=["fedactors/runtime", "protocols/horizontal"])
@pytest.mark.parametrize(
    "words",
    [
        {"algorithm": "scaffold", "clients_per_round": 3},
        {"secure_aggregation": True, "model": "linear"},
    ],
    ids=lambda words: next(iter(words)),
)
def test_a_run_is_the_same_however_many_clients_share_a_process(words: dict[str, Any]) -> None:
    found = []
    for per_process, num_processes in ((None, 2), (1, 6), (4, 2)):
        recorder = MemoryRecorder()
        runtime = RayRuntime(seed=3, recorder=recorder, reproducible_noise=True)
        more = {} if per_process is None else {"clients_per_process": per_process}
        result = horizontal(runtime, **words, **more)
        assert len({pid for name, pid in runtime.processes.items() if name != "server"}) == num_processes
        used = runtime.usage()
        # what a process computes is counted once, however many actors it hosts
        assert 0 < used.cpu_utilisation < 4
        rows = sorted(row[1:] for row in recorder.ledger_rows)
        states = {label: dict(one.actors) for label, one in recorder.checkpoints.items()}
        found.append((result.metrics, recorder.rounds, runtime.ledger.totals(), rows, states))
    assert found[1] == found[0]
    assert found[2] == found[0]
    simulated = SimulatedRuntime(seed=3, reproducible_noise=True)
    assert horizontal(simulated, **words).metrics == found[0][0]
    assert simulated.ledger.totals() == found[0][2]


# --- losses ---


def play(policy: Any, drive: Any, **settings: Any) -> Any:
    """Run `drive(runtime, told, actors)` over four actors: three in one process, `d` in its own."""
    runtime = RayRuntime(**settings)

    async def main() -> Any:
        told: asyncio.Queue[str] = asyncio.Queue()
        runtime.on_loss(policy, told.put)
        actors = {name: Line(runtime.spawn(Echo, name, process="abc" if name in "abc" else "")) for name in "abcd"}
        await runtime.start()
        return await drive(runtime, told, actors)

    return runtime.execute(main)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("use_sockets", [True, False])
def test_a_killed_process_loses_all_its_actors_and_they_come_back_together(use_sockets: bool) -> None:
    async def drive(runtime: RayRuntime, told: Any, actors: Any) -> Any:
        for amount, name in enumerate("abcd", 1):
            await actors[name].add(amount)
        await runtime.checkpoint()
        assert await actors["a"].relay_add("c", 10) == 13  # beyond the checkpoint
        before = dict(runtime.processes)
        assert before["a"] == before["b"] == before["c"] != before["d"]
        os.kill(before["a"], signal.SIGKILL)
        lost = sorted([await told.get() for _ in range(3)])
        after = dict(runtime.processes)
        counts = [await actors["d"].relay_add(name, 0) for name in "abc"]
        await runtime.checkpoint()
        return lost, len(set(after.values())), after["d"] == before["d"], after["a"] != before["a"], counts

    memory = Memory()
    found = play("restart", drive, use_sockets=use_sockets, recorder=memory)
    assert found == (["a", "b", "c"], 2, True, True, [1, 2, 3])
    assert {actor for actor, kind, _, _, _ in memory.spans if kind == "lost"} == {"a", "b", "c"}
    assert [sorted(snapshot.actors) for _, snapshot, _ in memory.snapshots] == [["a", "b", "c", "d"]] * 2


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_each_actor_of_a_lost_process_has_its_own_policy(caplog: pytest.LogCaptureFixture) -> None:
    async def drive(runtime: RayRuntime, told: Any, actors: Any) -> Any:
        await actors["b"].add(5)
        await runtime.checkpoint()
        os.kill(runtime.processes["a"], signal.SIGKILL)
        for _ in range(3):
            await told.get()
        found = [await actors["d"].outcome_of("a", "add"), await actors["b"].add(0)]
        await runtime.respawn("a")
        return [*found, await actors["d"].relay_add("a", 1), runtime.processes["a"] != runtime.processes["b"]]

    assert play(lambda name: "restart" if name == "b" else "continue", drive) == ["lost a", 5, 1, True]
    assert "a: its process, with 2 more actors, is gone" in caplog.text


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_loss_that_stops_the_run_names_the_actor_whose_policy_it_is() -> None:
    async def drive(runtime: RayRuntime, told: Any, actors: Any) -> Any:
        os.kill(runtime.processes["a"], signal.SIGKILL)
        await actors["d"].wait_for_ever()

    with pytest.raises(PartyLost, match="c: its process, with 2 more actors, is gone"):
        play(lambda name: "stop" if name == "c" else "continue", drive)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_errors_in_a_shared_process_name_their_actor() -> None:
    async def background(runtime: RayRuntime, told: Any, actors: Any) -> Any:
        await actors["b"].crash_later(0.01)
        await actors["a"].wait_for_ever()

    with pytest.raises(PartyFailed, match="b: LookupError: in the background"):
        play("stop", background)

    async def forgotten(runtime: RayRuntime, told: Any, actors: Any) -> Any:
        await actors["b"].call_and_forget("c", "one of its own process")
        await actors["a"].wait_for_ever()

    with pytest.raises(PartyFailed, match=r"c: ZeroDivisionError: one of its own process \(b, which had called it"):
        play("stop", forgotten)
