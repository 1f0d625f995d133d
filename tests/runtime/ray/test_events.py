"""Ray's control service keeps nothing of the calls that a run makes: it would grow with them."""

from __future__ import annotations

import time

import pytest
import ray

from fedactors.runtime.ray.runtime import RayRuntime
from tests.runtime.actors import line


def kept() -> list[str]:
    """Return the names of the calls that the control service keeps events of."""
    return [event.task_info.name for event in ray._private.state.state._get_all_task_events()]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_the_control_service_keeps_no_event_of_a_call() -> None:
    @ray.remote(num_cpus=0)
    def seen() -> None:
        pass

    runtime = RayRuntime()

    async def main() -> None:
        a = line(runtime, "a")
        await runtime.start()
        for _ in range(20):
            await a.echo(1)
            await runtime.record_round(1, {})

    runtime.execute(main)
    ray.get(seen.remote())
    until = time.monotonic() + 60  # events come in once a second
    while not any("seen" in name for name in kept()) and time.monotonic() < until:
        time.sleep(0.2)
    assert any("seen" in name for name in kept())
    time.sleep(2.0)  # those of other processes too
    assert [name for name in kept() if "ActorProcess" in name] == []
