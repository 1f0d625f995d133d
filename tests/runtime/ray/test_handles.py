"""What a peer's code can do with another party's Ray handle, past the endpoints: one Ray cluster is one trust domain.

These tests do not show a wall; they show that there is none, and where: what the page on threats says of one cluster is
no caution but a fact. If Ray ever refuses one of these, the page is to be changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from fedactors.actors.actor import Client
from fedactors.actors.remote import DRIVER, remote
from fedactors.errors import PartyLost
from fedactors.messages.codec import message
from fedactors.runtime.ray.runtime import RayRuntime

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@message(name="tests.runtime.handles/Say", reveals="text of a test")
class Say:
    """A word."""

    word: str


class Holder(Client):
    """Has what no endpoint gives away."""

    async def load(self) -> None:
        self.income = "31415.9265"

    @remote(caller=DRIVER)
    async def process(self) -> Say:
        return Say(str(os.getpid()))


class RunsCode:
    """Writes the number of the process that it is unpickled in."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return exec, (f"import os, pathlib; pathlib.Path({self.location!r}).write_text(str(os.getpid()))",)


class Intruder(Client):
    """Uses the handle that its own process calls the holder with."""

    @property
    def handle(self) -> Any:
        return self._context.transport.book["holder"].actor  # type: ignore[attr-defined]

    @remote(caller=DRIVER)
    async def read(self) -> Say:
        return Say(await self.handle.__ray_call__.remote(lambda process: process._actors["holder"]._actor.income))

    @remote(caller=DRIVER)
    async def be_unpickled(self, say: Say) -> Say:
        kind, _ = await self.handle.call.remote("holder", "intruder", b"no ticket", RunsCode(say.word))
        return Say(str(kind))

    @remote(caller=DRIVER)
    async def use_the_drivers_verb(self) -> None:
        await self.handle.snapshot.remote(b"no ticket")

    @remote(caller=DRIVER)
    async def ask_if_it_is_ready(self) -> Say:
        return Say(str(await self.handle.__ray_ready__.remote()))

    @remote(caller=DRIVER)
    async def terminate(self) -> None:
        self.handle.__ray_terminate__.remote()

    @remote(caller=DRIVER)
    async def kill(self) -> None:
        ray.kill(self.handle)


def intrude(drive: Callable[[Any, Any], Any]) -> Any:
    runtime = RayRuntime()

    async def main() -> Any:
        holder, intruder = runtime.spawn(Holder, "holder"), runtime.spawn(Intruder, "intruder")
        await runtime.start()
        return await drive(holder, intruder)

    return runtime.execute(main)


def test_whoever_has_a_handle_runs_code_in_the_process_behind_it(tmp_path: Path) -> None:
    location = tmp_path / "who"

    async def drive(holder: Any, intruder: Any) -> tuple[str, str]:
        read = (await intruder.read()).word
        await intruder.be_unpickled(Say(str(location)))
        assert (await intruder.ask_if_it_is_ready()).word == "True"
        return read, (await holder.process()).word

    read, process = intrude(drive)
    assert read == "31415.9265"
    assert location.read_text() == process != str(os.getpid())


def test_a_drivers_verb_without_its_ticket_is_refused_all_the_same() -> None:
    async def drive(holder: Any, intruder: Any) -> None:
        with pytest.raises(Exception, match="holder: only the run's driver may ask this"):
            await intruder.use_the_drivers_verb()

    intrude(drive)


@pytest.mark.parametrize("verb", ["terminate", "kill"])
def test_whoever_has_a_handle_ends_the_process_behind_it_and_the_run_names_it(verb: str) -> None:
    async def drive(holder: Any, intruder: Any) -> None:
        await getattr(intruder, verb)()
        while True:  # until it has ended
            await holder.process()

    with pytest.raises(PartyLost) as caught:
        intrude(drive)
    assert caught.value.party == "holder"
