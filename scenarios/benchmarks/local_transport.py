"""What the fast transport costs in processor time.

A call whose body is large, with and without shared memory, by turns.

Usage: python scenarios/benchmarks/local_transport.py [bytes ...]
Three processes answer each call with as many bytes as it brought, as GLASU's clients do; both ends are counted. Prints
one JSON line a size: median milliseconds of processor time a call, of the socket alone and of shared memory.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedactors.actors.remote import Endpoint, Endpoints
from fedactors.messages.codec import decode, encode_parts
from fedactors.messages.ledger import INTRA_PARTY
from fedactors.runtime.calls import CallPath
from fedactors.runtime.compute import keep_freed_memory
from fedactors.runtime.ray.transport import REPLY, Caller, Incoming, Memory, Outgoing, connect

NUM_PEERS = 3
NUM_ROUNDS, NUM_TURNS = 40, 7
PATH = CallPath(Endpoints("", {}, ()), Endpoint("echo", (), (), frozenset()), "", "", INTRA_PARTY)


def peer(folder: str, index: int, ready: Any) -> None:
    """Answer at two sockets of a folder: one shares memory, one does not."""

    async def serve(caller: Caller, body: memoryview) -> tuple[int, Any]:
        value = decode(body)
        return REPLY, encode_parts(time.process_time() if value is None else value)

    async def main() -> None:
        keep_freed_memory()  # as the process of an actor does, and of a site
        loop, memory = asyncio.get_running_loop(), Memory()
        for way in (None, memory):
            await loop.create_unix_server(
                lambda way=way: Incoming(lambda _: Caller("a", "client"), serve, None, way),  # type: ignore[misc]
                f"{folder}/{index}-{way is not None}",
            )
        ready.put(index)
        await asyncio.Event().wait()

    asyncio.run(main())


async def measure(folder: str, size: int) -> dict[str, Any]:
    """Return processor milliseconds a call, both ends together, by each of the two ways."""
    ways: dict[str, list[Outgoing]] = {}
    for name, memory in (("socket", None), ("shared_memory", Memory())):

        def take(reply: asyncio.Future[Any], path: CallPath, kind: int, body: memoryview) -> None:
            reply.set_result(decode(body))

        paths = [f"{folder}/{index}-{memory is not None}" for index in range(NUM_PEERS)]
        made = [Outgoing("peer", encode_parts("hello"), take, 60.0, memory) for _ in paths]
        ways[name] = [await connect(path, one) for path, one in zip(paths, made, strict=True)]

    async def ask(transport: Sequence[Outgoing], value: Any) -> list[Any]:
        return list(await asyncio.gather(*(transport.request(PATH, encode_parts(value)) for transport in transport)))

    async def used(transport: Sequence[Outgoing]) -> float:
        return sum(await ask(transport, None)) + time.process_time()

    body, taken = np.zeros(size, np.uint8), {name: list[float]() for name in ways}
    for turn in range(NUM_TURNS + 1):
        for name, transport in ways.items():
            before = await used(transport)
            for _ in range(NUM_ROUNDS):
                await ask(transport, body)
            if turn:  # the first turn warms up
                taken[name].append(1000 * (await used(transport) - before) / (NUM_ROUNDS * NUM_PEERS))
    return {"bytes": size} | {f"{name}_ms": statistics.median(found) for name, found in taken.items()}


def main() -> None:
    """Measure and print."""
    keep_freed_memory()
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        peers = [context.Process(target=peer, args=(folder, i, ready), daemon=True) for i in range(NUM_PEERS)]
        for one in peers:
            one.start()
        for _ in peers:
            ready.get(timeout=60)
        for size in map(int, sys.argv[1:] or ["65536", "131072", "262144", "693248"]):
            print(json.dumps({"benchmark": "local_transport", **asyncio.run(measure(folder, size))}))
        for one in peers:
            one.terminate()


if __name__ == "__main__":
    main()
