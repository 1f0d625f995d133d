"""A way to a site that breaks: it is slow, swallows, is cut, is closed, or lets a connection live for some bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedactors.runtime.addresses import free_port
from tests.federation.world import BANK, SHOP, World

BLOCK, SLOW_BLOCK = 65536, 4096


class Way:
    """Joins whoever connects to a port of this host with an address, in a thread of its own.

    Args:
        port: where it listens.
        to: where it leads.
    """

    def __init__(self, port: int, to: tuple[str, int]) -> None:
        self.port = port
        self.swallows = False
        """Whether nothing arrives, in either direction, and nothing is closed."""
        self.is_closed = False
        """Whether who connects is sent away."""
        self.lives: Iterator[int] | None = None
        """Bytes, of both directions, that each connection lives for from now on; None: for ever."""
        self.pace: tuple[float, float] | None = None
        """Seconds that each block waits, and bytes a second in each direction; None: as fast as it can."""
        self.num_cuts = 0
        self.loop = asyncio.new_event_loop()
        self._to = to
        self._joined: dict[asyncio.Task[Any], list[asyncio.StreamWriter]] = {}
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._join, "127.0.0.1", port), self.loop
        ).result(10)

    @property
    def num_joined(self) -> int:
        return len(self._joined)

    def cut(self) -> None:
        """Break all connections at whatever they have come to."""

        async def work() -> None:
            for writers in list(self._joined.values()):
                self._break(writers)

        asyncio.run_coroutine_threadsafe(work(), self.loop).result(10)

    def _break(self, writers: list[asyncio.StreamWriter]) -> None:
        self.num_cuts += 1
        for writer in writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_closed:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:  # nobody listens there now
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        writers = self._joined[task] = [writer, far_writer]
        left = [None if self.lives is None else next(self.lives)]

        async def copy(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while block := await one.read(BLOCK if self.pace is None else SLOW_BLOCK):
                    if self.pace is not None:
                        await asyncio.sleep(self.pace[0] + len(block) / self.pace[1])
                    if left[0] is not None:
                        block = block[: left[0]]
                        left[0] -= len(block)
                    if not self.swallows:
                        other.write(block)
                        await other.drain()
                    if left[0] == 0:
                        other.close()  # what was written so far arrives
                        await asyncio.sleep(0.001)
                        self._break(writers)
                        return
                if not self.swallows:
                    other.close()

        try:
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        except asyncio.CancelledError:
            pass  # raised on, asyncio's server would log it
        finally:
            for each in writers:
                each.transport.abort()
            del self._joined[task]

    def stop(self) -> None:
        async def work() -> None:
            self.server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for transport in list(self.loop._transports.values()):  # type: ignore[attr-defined]
                transport.abort()
            await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(work(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def on_a_way(folder: Path) -> tuple[World, Way]:
    """Return bank and shop, of which the shop is reached by a way only."""
    addresses = {BANK: f"127.0.0.1:{free_port()}", SHOP: f"127.0.0.1:{free_port()}"}
    world = World(folder, addresses=addresses)
    file, port = world.path / SHOP / "site.toml", free_port()
    file.write_text(file.read_text().replace(f'listen = "{addresses[SHOP]}"', f'listen = "127.0.0.1:{port}"'))
    return world, Way(int(addresses[SHOP].rpartition(":")[2]), ("127.0.0.1", port))
