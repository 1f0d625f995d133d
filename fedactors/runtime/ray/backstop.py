"""Ends a driver whose cluster is gone while Ray's library holds it: that would end it itself, without a word, or never.

The event loop watches the cluster too (`signs.watch_services`), and sooner; it cannot where a call of Ray's does
not return, such as the start of an embedded cluster whose control service was killed, or whose raylet was stopped.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from fedactors.errors import PartyLost
from fedactors.runtime.addresses import greets

_LOOKS = 20
"""So many in a row without a sign of life, each of two seconds: Ray ends the process after sixty."""
_START_LOOKS = 90
"""So many until an embedded cluster is up: Ray itself gives up on most of its parts after thirty seconds."""
GCS = "control service (GCS)"


class Backstop:
    """Watches from a thread of its own, until `dismiss`.

    Args:
        folder: of the embedded cluster that is being started.
        has_spoken: is told that this process says itself why it ends.
    """

    def __init__(self, folder: Path, has_spoken: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._has_spoken = has_spoken
        self._services: Mapping[str, str] = {}
        self._dismissed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def watch(self, services: Mapping[str, str]) -> None:
        """Watch these from now on (addresses, by what they are called): the cluster is up."""
        self._services = services

    def dismiss(self) -> None:
        """Stop watching."""
        self._dismissed.set()

    def _watch(self) -> None:
        silent: Counter[str] = Counter()
        looks = 0
        while not self._dismissed.wait(1.0):
            looks += 1
            gcs = of_folder(self._folder)
            services = self._services or ({GCS: gcs} if gcs else {})
            for what, lives in asyncio.run(_signs(services)).items():
                silent[what] = 0 if lives else silent[what] + 1
                if silent[what] >= _LOOKS:
                    self._end(f"Ray: its {what} at {services[what]} gave no sign of life for {2 * _LOOKS} s")
            if not self._services and looks >= _START_LOOKS:
                self._end(
                    f"Ray did not start on this machine within {_START_LOOKS} s (a busy machine may need another try)"
                )

    def _end(self, text: str) -> None:
        if not self._dismissed.is_set():
            self._has_spoken()
            print(f"fedactors: {text}", file=sys.stderr, flush=True)
            os._exit(PartyLost.exit_code)


def of_folder(folder: Path) -> str | None:
    """Return the address of the control service of an embedded cluster, once it has one."""
    with suppress(OSError):  # Ray is making what is looked at, or somebody removes it
        for file in folder.glob("session_*/gcs_server_port_*"):
            if (port := file.read_text().strip()).isdecimal():
                return f"127.0.0.1:{port}"
    return None


async def _signs(services: Mapping[str, str]) -> dict[str, bool]:
    return dict(zip(services, await asyncio.gather(*map(_greeted, services.values())), strict=True))


async def _greeted(address: str) -> bool:
    try:
        async with asyncio.timeout(1.0):
            await greets(address)
    except TimeoutError:
        return False
    return True
