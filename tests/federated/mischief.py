"""How a test does something at a site in the middle of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from fedactors.runtime.federated.site_run import Life, SiteRun
from tests.federated.test_runs import SMALL
from tests.federated.world import SHOP, World

LONG = ("num_epochs=100000", *SMALL[1:])
WORKER, BROKER = f"{SHOP}/worker-0", "broker"


def in_mid_run(world: World, site: str, act: Callable[[SiteRun], None]) -> threading.Thread:
    """Do something in the thread of a site once its next run is under way; return the thread that waits for that."""

    def wait() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            run = world.processes[site].run
            if run is not None and run.life is Life.OPEN and run.gate.left.messages():
                world.on(site, partial(act, run))
                return
            time.sleep(0.02)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
