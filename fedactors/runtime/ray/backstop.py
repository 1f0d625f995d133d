"""Ends a driver whose cluster is gone while Ray's own library holds it: that would end it itself, without a word.

The event loop watches the cluster too (`supervision.watch_services`), and sooner; it cannot where a call of Ray's does
not return, such as the start of an embedded cluster whose control service was killed meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedactors.errors import PartyLost
from fedactors.runtime.addresses import greets

_LOOKS = 45
"""So many in a row without a sign of life, one a second: Ray ends the process after sixty."""


class Backstop:
    """Watches from a thread of its own, until `dismiss`.

    Args:
        find: returns the address of the control service; None while it is not known.
    """

    def __init__(self, find: Callable[[], str | None]) -> None:
        self._find = find
        self._dismissed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def dismiss(self) -> None:
        """Stop watching."""
        self._dismissed.set()

    def _watch(self) -> None:
        silent = 0
        while not self._dismissed.wait(1.0):
            address = self._find()
            lives = address is None or asyncio.run(_greeted(address))
            silent = 0 if lives else silent + 1
            if silent >= _LOOKS and not self._dismissed.is_set():
                text = f"fedactors: Ray: its control service (GCS) at {address} gave no sign of life for {_LOOKS} s"
                print(text, file=sys.stderr, flush=True)
                os._exit(PartyLost.exit_code)


def of_folder(folder: Path) -> str | None:
    """Return the address of the control service of an embedded cluster, once it has one."""
    for file in folder.glob("session_*/gcs_server_port_*"):
        with suppress(OSError):
            if (port := file.read_text().strip()).isdecimal():
                return f"127.0.0.1:{port}"
    return None


async def _greeted(address: str) -> bool:
    try:
        async with asyncio.timeout(1.0):
            await greets(address)
    except TimeoutError:
        return False
    return True
