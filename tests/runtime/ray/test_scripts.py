"""A script's own messages and configuration: its classes are of `__main__`, which a process of Ray's is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from __future__ import annotations

from fedactors.config import config
from fedactors.messages.codec import message
from fedactors.runs.recorder import MemoryRecorder
from fedactors.actors.remote import DRIVER, remote
from fedactors.actors.actor import Client
from fedactors.runtime import snapshots as snapshot
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.ray.runtime import RayRuntime


@config
class Settings:
    rate: float = 0.5


@message(reveals="a number")
class Number:
    value: float


class Shop(Client):
    state = ("last",)
    last: Number | None

    def __init__(self, settings: Settings) -> None:
        self.settings, self.last = settings, None

    @remote(caller=DRIVER)
    async def times(self, number: Number) -> Number:
        self.last = Number(number.value * self.settings.rate)
        return self.last


def run(resume=None):
    recorder = MemoryRecorder()
    runtime = RayRuntime(num_cpus=1, recorder=recorder)

    async def main():
        shop = runtime.spawn(Shop, "shop", Settings(rate=3.0))
        await runtime.start()
        found = await shop.times(Number(2.0))
        assert type(found) is Number, type(found)
        await runtime.checkpoint()
        return found.value

    value = runtime.execute(main, resume)
    return value, recorder.checkpoints["last"]


if __name__ == "__main__":
    value, checkpoint = run()
    assert b"__main__/Number" in checkpoint.actors["shop"]
    assert snapshot.unseal(checkpoint.actors["shop"], "shop")["state"]["last"] == ("message", Number(6.0))
    print(value, run(Snapshot(checkpoint.actors, checkpoint.driver))[0])
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_scripts_classes_are_known_in_the_processes_of_its_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()[-2:]) == (0, ["6.0", "6.0"]), done.stderr
