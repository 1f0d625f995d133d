"""What a fleet costs its coordinator: processor time of a message, then FedAvg of many sites over a WAN.

    messages   processor time of the coordinator's site for a model that leaves and for a change that arrives, between
               two processes: contexts of actors, gate, checks, ledger, codec and TLS as in a federation
    rounds     FedAvg on the simulated runtime, flat and over aggregators (`num_aggregators`): seconds of a round by the
               virtual clock, and what the coordinator's link and core are busy with

Usage: python -m scenarios.benchmarks.fleet messages [--sizes 8000,1000000,25000000,44700000] [--repeats 5]
       python -m scenarios.benchmarks.fleet rounds [--out rows.jsonl] [--sites 10,100,1000] [--aggregators 0,32]
Both print JSON lines; `rounds` reads the lines of `messages` from the committed rows, or from --costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.actors.actor import Client, Resources, Server
from fedactors.actors.remote import SERVER, remote
from fedactors.federation.handshake import accept, dial
from fedactors.federation.hosting import Gate, LocalActorHost, make_book
from fedactors.federation.session import PIECE_BYTES, Connection, Hello, Limits, checked_parts, decoded
from fedactors.federation.site_folder import SiteFolder
from fedactors.messages.codec import Parts
from fedactors.protocols.horizontal.messages import Change, TrainOrder
from fedactors.runtime.compute import WallClock
from fedactors.runtime.failures import UnawaitedCall, errors_for
from fedactors.runtime.interface import ActorSpec
from scenarios.benchmarks.sites import NAMES, make_sites

SIZES = (8_000, 1_000_000, 25_000_000, 44_700_000)
"""Bytes of a model; the last is ResNet-18 in single precision."""
NOTHING = np.zeros(0, np.float32)
COORDINATOR, SITE = NAMES
_SECONDS = 1.0
"""Of the wall that a size is sent for, at least."""


# --- messages ---


class Coordinator(Server):
    """Sends orders as a server does."""

    async def send(self, order: TrainOrder) -> Change:
        """Send an order to the site, and take its change."""
        return await self.peer(SITE, Site).train(order)


class Site(Client):
    """Answers orders with a change of a size that the order's round says."""

    @remote(caller=SERVER, unbounded="a benchmark")
    async def train(self, order: TrainOrder) -> Change:
        """Return a change of so many numbers."""
        change = np.ones(order.round, np.float32)
        return Change(1, 1.0, 0.5, change, NOTHING)


CLASSES = {COORDINATOR: Coordinator, SITE: Site}


class Boundary:
    """A run at its site with one connection to the other one."""

    def __init__(self, site: str) -> None:
        book = make_book(
            [(name, cls.__name__) for name, cls in CLASSES.items()], CLASSES.values(), lambda name: str(name)
        )
        self.gate = Gate(site, COORDINATOR, book)
        self.unawaited = UnawaitedCall(self.note, lambda _: False)
        self.journal = None
        self.connection: Connection | None = None
        self.actors = LocalActorHost(self)

    async def begin(self) -> None:
        """Make the actor of this site."""
        name = self.gate._site
        await self.actors.spawn([ActorSpec(CLASSES[name], name, (), {}, Resources())], 0, WallClock(time.time()))
        await self.actors.load(None)
        await self.actors.open(time.time())

    def send(self, site: str, purpose: str, parts: Parts, what: str) -> asyncio.Future[Any]:
        """Send a request over the connection."""
        assert self.connection is not None
        return self.connection.request(parts, what, order=what.partition(".")[0])

    async def serve(self, peer: str, body: memoryview) -> Any:
        """Do what a call asks, as a site does (`SiteRun.serve_call`)."""
        sender, receiver, method, value = checked_parts(await decoded(body, peer), peer, 4, "is no call")
        path = self.gate.call_in(peer, sender, receiver, method, value)
        reply = await self.actors.serve(path, value)
        self.gate.reply_out(path, reply)
        return reply

    def note(self, error: BaseException) -> None:
        """End the benchmark: something was refused, or failed."""
        raise SystemExit(str(error))

    def failed(self, actor: str, error: BaseException) -> None:
        """See `note`."""
        self.note(error)

    def output(self, to: str) -> Path:
        """Refuse files."""
        raise SystemExit(f"a file {to} is asked for")


async def _answer(folder: Path, limits: Limits, pipe: Pipe) -> None:
    site, links, boundary = SiteFolder(folder / SITE), {}, Boundary(SITE)  # type: ignore[var-annotated]
    await boundary.begin()

    def welcome(*_: Any) -> dict[str, Any]:
        return {
            "serve": partial(boundary.serve, COORDINATOR),
            "lost": lambda *_: None,
            "errors": errors_for(SITE, COORDINATOR),
        }

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(site, reader, writer, limits, links, welcome, lambda *_: None, lambda _: None)

    server = await asyncio.start_server(take, "127.0.0.1", 0, limit=2 * PIECE_BYTES)
    pipe.send(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(pipe.recv)
    for link in links.values():
        link.close()
    server.close()


def answer(folder: Path, limits: Limits, pipe: Pipe) -> None:
    """Be the site, until something comes."""
    asyncio.run(_answer(folder, limits, pipe))


async def _seconds(send: Callable[[TrainOrder], Any], order: TrainOrder) -> float:
    """Return the processor seconds of this process for an order and its answer, of many in a row."""
    await send(order)
    count, begun, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < _SECONDS or count < 4:
        await send(order)
        count += 1
    return (time.process_time() - begun) / count


async def costs(folder: Path, port: int, sizes: Sequence[int], repeats: int, limits: Limits) -> list[dict[str, Any]]:
    """Return a row for each size: medians over repeats, in which sizes and directions take turns."""
    site, boundary = SiteFolder(folder / COORDINATOR), Boundary(COORDINATOR)
    await boundary.begin()
    member = replace(site.federation.members[SITE], host="127.0.0.1", port=port)
    hello = Hello(site.federation.name, "calls", "", "")
    ends = {"serve": None, "lost": lambda _, why: print(why), "errors": errors_for(COORDINATOR, SITE)}
    boundary.connection = await dial(site, member, hello, limits, **ends)
    send = boundary.actors.actors[COORDINATOR].actor.send  # type: ignore[attr-defined]
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    empty: list[float] = []
    for _ in range(repeats):
        empty.append(await _seconds(send, TrainOrder(0, (0,), NOTHING, NOTHING)))
        for size in sizes:
            model_P = np.ones(size // 4, np.float32)
            out = await _seconds(send, TrainOrder(0, (0,), model_P, NOTHING))
            back = await _seconds(send, TrainOrder(size // 4, (0,), NOTHING, NOTHING))
            found[size].append((out - empty[-1] / 2, back - empty[-1] / 2))
    await boundary.connection.end()
    return [
        {
            "part": "message",
            "bytes": size,
            "out_ms": round(1e3 * statistics.median(out for out, _ in values), 3),
            "in_ms": round(1e3 * statistics.median(back for _, back in values), 3),
            "spread_ms": [
                [round(1e3 * one, 3) for one in (min(side), max(side))] for side in zip(*values, strict=True)
            ],
        }
        for size, values in found.items()
    ]


def messages(sizes: Sequence[int], repeats: int) -> None:
    """Measure what a message costs, and print."""
    limits = Limits(message=2 * max(sizes) + (1 << 24))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sites(folder)
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=answer, args=(folder, limits, theirs))
        process.start()
        try:
            for row in asyncio.run(costs(folder, ours.recv(), sizes, repeats, limits)):
                print(json.dumps(row), flush=True)
            ours.send(None)
            process.join(30)
        finally:
            process.kill()
            process.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("messages", "rounds"))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes of a model")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    messages(sizes, given.repeats)


if __name__ == "__main__":
    main()
