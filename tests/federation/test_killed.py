"""A site's process that is killed in mid-run ends the run with a line that names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.federation.hostile_sites import LONG
from tests.federation.test_runs import federated
from tests.federation.world import BANK, SHOP, World

pytestmark = pytest.mark.slow


def test_a_site_that_is_killed_ends_the_run(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path_factory.mktemp("killed"))
    words = [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    world.start(BANK)
    try:
        assert process.stdout is not None
        assert "shop: listens at" in process.stdout.readline()

        def kill() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                run = world.run(BANK)
                if run is not None and run.gate.arrived.messages() > 3:
                    process.send_signal(signal.SIGKILL)
                    return
                time.sleep(0.02)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        capsys.readouterr()
        assert federated(world, LONG) == 3
        thread.join(60)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
        assert "shop/worker-0: its site shop was lost" in line
        ended = [one for one in world.audit(BANK) if one["what"] == "ended"]
        assert {one["status"] for one in ended} == {"failed"}
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]
        world.stop()
