"""One large message between two processes: its pace, memory at both ends, and what a connection that breaks costs.

A process receives for the shop, and this one sends for the bank what lies in a file, as a model's weights may: over a
connection that lasts, and over one that breaks when half has come. TLS and both certificates as between sites.
Usage: python -m scenarios.benchmarks.large_messages [--gib 2]
Needs as much disk as three messages. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedactors.federation.handshake import accept, dial
from fedactors.federation.session import PIECE_BYTES, Connection, Hello, Limits, value_of
from fedactors.federation.site_folder import SiteFolder
from fedactors.messages.codec import encode_parts
from fedactors.runtime.failures import errors_for
from scenarios.benchmarks.sites import NAMES, bare_tls, make_sites

SENDER, RECEIVER = NAMES
_MIB = 1 << 20
_BLOCK = 64 * 1024


@contextlib.contextmanager
def peak() -> Iterator[dict[str, float]]:
    """Measure by how many MiB a process grows at most, beside pages of files that are mapped."""
    found, is_over = {"mib": 0.0}, threading.Event()

    def anonymous() -> float:
        memory = psutil.Process().memory_info()
        return (memory.rss - memory.shared) / _MIB

    before = anonymous()

    def watch() -> None:
        while not is_over.wait(0.01):
            found["mib"] = max(found["mib"], anonymous() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def digest_of(content: np.ndarray) -> str:
    """Return the SHA-256 of an array, block by block."""
    digest = hashlib.sha256()
    for start in range(0, content.size, 16 * _MIB):
        digest.update(content[start : start + 16 * _MIB].data)
    return digest.hexdigest()


class Breaking:
    """A way to a port that carries bytes, and breaks all connections once, when so many have passed."""

    def __init__(self, to: int) -> None:
        self.breaks_after = 0
        self.num_bytes = 0
        self._to = to
        self._writers: list[asyncio.StreamWriter] = []

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers = [writer, far_writer]

        async def copy(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while block := await one.read(_BLOCK):
                    self.num_bytes += len(block)
                    if self.breaks_after and self.num_bytes > self.breaks_after:
                        self.breaks_after = 0
                        for each in self._writers:
                            each.transport.abort()
                    other.write(block)
                    await other.drain()
            other.transport.abort()

        with contextlib.suppress(asyncio.CancelledError):  # at the end
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))


async def _receive(folder: Path, limits: Limits, pipe: Pipe) -> None:
    site, links = SiteFolder(folder / RECEIVER), {}  # type: ignore[var-annotated]
    kept: list[np.ndarray] = []

    async def serve(body: memoryview) -> Any:
        kept.append(value_of(body, SENDER))
        return len(body)

    def welcome(*_: Any) -> dict[str, Any]:
        return {"serve": serve, "lost": lambda *_: None, "errors": errors_for(RECEIVER, SENDER)}

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(site, reader, writer, limits, links, welcome, lambda *_: None, lambda _: None)

    server = await asyncio.start_server(take, "127.0.0.1", 0, limit=2 * PIECE_BYTES)
    port = server.sockets[0].getsockname()[1]
    way = Breaking(port)
    other = await asyncio.start_server(way.join, "127.0.0.1", 0)
    pipe.send((port, other.sockets[0].getsockname()[1]))
    while True:
        with peak() as most:
            if (asked := await asyncio.to_thread(pipe.recv)) is None:
                break
            way.breaks_after, way.num_bytes = asked, 0
            pipe.send("ready")
            await asyncio.to_thread(pipe.recv)
        pipe.send((most["mib"], way.num_bytes, digest_of(kept.pop())))
    for link in links.values():
        link.close()
    server.close()
    other.close()


def receive(folder: Path, limits: Limits, pipe: Pipe) -> None:
    """Take messages, and say of each what it was and how much memory it took."""
    asyncio.run(_receive(folder, limits, pipe))


async def send(folder: Path, content: np.ndarray, limits: Limits, pipe: Pipe) -> dict[str, Any]:
    """Send the content twice, over a connection that lasts and over one that breaks half-way."""
    site = SiteFolder(folder / SENDER)
    ports = pipe.recv()
    size, wanted = content.nbytes, digest_of(content)
    made: dict[str, Any] = {}
    for name, port, breaks_after in (("lasts", ports[0], 0), ("breaks", ports[1], size // 2)):
        lost: list[str] = []
        member = replace(site.federation.members[RECEIVER], host="127.0.0.1", port=port)
        ends = {"serve": None, "lost": lambda _, why, lost=lost: lost.append(why)}
        hello = Hello(site.federation.name, name, "", "")
        link: Connection = await dial(site, member, hello, limits, errors=errors_for(SENDER, RECEIVER), **ends)
        pipe.send(breaks_after)
        await asyncio.to_thread(pipe.recv)
        begun = time.perf_counter()
        with peak() as most:
            await link.request(encode_parts(content), "a message")
        seconds = time.perf_counter() - begun
        pipe.send("sent")
        their_mib, carried, digest = await asyncio.to_thread(pipe.recv)
        if lost or digest != wanted:
            raise SystemExit(f"{name}: {lost or 'another message arrived'}")
        made[name] = {
            "mb_per_second": round(size / 1e6 / seconds, 1),
            "sender_mib": round(most["mib"], 1),
            "receiver_mib": round(their_mib, 1),
        }
        if breaks_after:
            made[name]["carried_again_mib"] = round((carried - size) / _MIB, 1)
        await link.end()
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the message")
    size = int(parser.parse_args().gib * 1024) * _MIB
    limits = Limits(message=size + _MIB, call=600.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sites(folder)
        content = np.memmap(folder / "content", np.uint8, "w+", shape=(size,))
        rng = np.random.default_rng(0)
        for start in range(0, size, 16 * _MIB):
            content[start : start + 16 * _MIB] = np.frombuffer(rng.bytes(min(16 * _MIB, size - start)), np.uint8)
        content.flush()
        content = np.memmap(folder / "content", np.uint8, "r")
        bare, _ = bare_tls(folder)
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=receive, args=(folder, limits, theirs))
        process.start()
        try:
            found = asyncio.run(send(folder, np.asarray(content), limits, ours))
            ours.send(None)
            process.join(30)
        finally:
            process.kill()
            process.join()
    print(json.dumps({"benchmark": "large_messages", "mib": size // _MIB, "bare_mb_per_second": round(bare), **found}))


if __name__ == "__main__":
    main()
