"""A process that was given up as lost, and replaced, but is not dead: nobody hears it any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest
import ray

from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.messages.codec import encode_parts
from fedactors.runtime.failures import decode_reply
from fedactors.runtime.ray import processes
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.ray.transport import REPLY, as_array, incarnation_of, ticket
from tests.runtime.actors import Carry, Echo, carry_endpoint, line
from tests.runtime.ray.test_faults import lose, stop


def test_a_ticket_is_of_one_caller_and_one_incarnation() -> None:
    assert incarnation_of(b"key", "bank", ticket(b"key", "bank", 3)) == 3
    assert incarnation_of(b"key", "shop", ticket(b"key", "bank", 3)) is None
    assert incarnation_of(b"other", "bank", ticket(b"key", "bank", 3)) is None
    older = ticket(b"key", "bank", 3)
    assert incarnation_of(b"key", "bank", (4).to_bytes(4, "big") + older[4:]) is None
    assert incarnation_of(b"key", "bank", b"") is None


class Hears(Echo):
    """Remembers from which processes it was called."""

    async def load(self) -> None:
        self.heard: list[int] = []

    @carry_endpoint
    async def note(self, pid: int) -> None:
        self.heard.append(pid)

    @carry_endpoint
    async def all_heard(self) -> list[int]:
        found, self.heard = self.heard, []
        return found


class Calls(Echo):
    """Calls the other without end, whatever comes of it."""

    async def open(self) -> None:
        self.background(self._go_on())

    async def _go_on(self) -> None:
        while True:
            with contextlib.suppress(PartyLost, Refused, BadInput):
                await self.line("a").note(os.getpid())
            await asyncio.sleep(0.02)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("policy", ["restart", "continue"])
@pytest.mark.parametrize("use_sockets", [True, False])
def test_a_process_that_was_cut_off_is_not_heard_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch, policy: str, use_sockets: bool
) -> None:
    # what a link that is down does to the driver's last word: it never arrives
    monkeypatch.setattr(ray, "kill", lambda *args, **kwargs: None)
    monkeypatch.setattr(processes, "end_process", lambda pid, began: None)
    runtime = RayRuntime(heartbeat_timeout=1.5, use_sockets=use_sockets)
    pids: dict[str, int] = {}

    async def main() -> tuple[list[int], list[int]]:
        told: asyncio.Queue[str] = asyncio.Queue()
        runtime.on_loss(policy, told.put)
        a, _ = line(runtime, "a", Hears), line(runtime, "b", Calls)
        await runtime.start()
        pids["old"] = runtime.processes["b"]
        while pids["old"] not in await a.all_heard():
            await asyncio.sleep(0.05)
        stop(runtime, "b")
        assert await told.get() == "b"
        before = await a.all_heard()
        os.kill(pids["old"], signal.SIGCONT)
        await asyncio.sleep(1.0)
        return before, await a.all_heard()

    try:
        before, after = runtime.execute(main)
    finally:
        os.kill(pids["old"], signal.SIGKILL)
    assert pids["old"] not in after
    assert (runtime.processes["b"] in after) == (policy == "restart")
    assert set(before) <= {pids["old"], runtime.processes["b"]}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_ticket_that_was_kept_opens_nothing_after_the_loss() -> None:
    async def drive(runtime: RayRuntime, told: Any, a: Any, b: Any) -> list[Any]:
        there = runtime._transport.book["a"]
        kept = runtime._processes._ticket("a", "b")
        frame = encode_parts(("add", Carry((1,))))

        async def try_it() -> Any:
            kind, body = await there.actor.call.remote("a", "b", kept, as_array(frame))
            try:
                return decode_reply(kind == REPLY, memoryview(body)).values[0]
            except Refused as error:
                return str(error)

        found = [await try_it()]
        os.kill(runtime.processes["b"], signal.SIGKILL)
        await told.get()
        return [*found, await try_it(), await b.relay_add("a", 1)]

    first, refused, last = lose("restart", drive)[0]
    assert (first, last) == (1, 2)
    assert "given up as lost" in refused
