"""How many messages the simulated runtime carries, in how much memory, and how long things take to start.

    python scenarios/benchmarks/simulated_messages.py [--smoke] [part]

Prints one JSON object: messages a second of one core's time (1,000 parties on links with latency and bandwidth, each
row of the ledger written to Parquet), microseconds a message where a group of them is asked, resident memory of a
process with 10,000 parties that all talk, memory over 10,000 rounds, the time of ``import fedactors``, and from nothing
to the first answer of an actor on embedded Ray. Each part runs in a process of its own; the bound beside each is what
the project asks of itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.actors.actor import Actor, Server
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import DRIVER, remote
from fedactors.messages.codec import message
from fedactors.network.links import Link, Network
from fedactors.runtime.simulation.runtime import SimulatedRuntime

WAN = Network(default=Link(latency=0.02, bandwidth=1.25e7))


@message(reveals="eight numbers")
class Ping:
    """A small message."""

    hop: int
    values: np.ndarray


@message(reveals="how many messages to send")
class Count:
    """What the driver wants of a party."""

    messages: int


class Party(Actor):
    """Sends messages to the next party of a ring, which sends each of them back."""

    def __init__(self, following: str) -> None:
        self._following = following

    async def load(self) -> None:
        """Make what is sent."""
        self._next = self.peer(self._following, Party)
        self._values = np.zeros(8)
        self._values.setflags(write=False)

    @remote(caller=DRIVER)
    async def send_messages(self, count: Count) -> None:
        """Send so many messages, one after the answer to the other."""
        for hop in range(count.messages):
            await self._next.bounce(Ping(hop, self._values))

    @remote
    async def bounce(self, ping: Ping) -> Ping:
        """Send a message back."""
        return ping


class Asker(Server):
    """Asks all parties at once, again and again."""

    def __init__(self, names: Sequence[str]) -> None:
        self._parties: ActorGroup[Party] = ActorGroup(self, names, timeout=60.0, on_loss="skip")

    @remote(caller=DRIVER)
    async def ask_all(self, count: Count) -> None:
        """Ask them so many times."""
        values = np.zeros(8)
        values.setflags(write=False)
        for hop in range(count.messages):
            await self._parties.ask(lambda party, hop=hop: party.bounce(Ping(hop, values)))  # type: ignore[misc]


class LedgerFile:
    """A recorder that writes the ledger's rows to a Parquet file and drops everything else."""

    keeps_checkpoints = False

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self._arrow = pyarrow
        names = ("time", "sender", "receiver", "kind", "type", "bytes")
        types = [pyarrow.float64(), *[pyarrow.dictionary(pyarrow.int32(), pyarrow.string())] * 4, pyarrow.int64()]
        self._schema = pyarrow.schema(list(zip(names, types, strict=True)))
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)

    def ledger_sink(self, rows: list[Any]) -> None:
        """Write a block of rows."""
        columns = zip(*rows, strict=True)
        arrays = [self._arrow.array(c, t) for c, t in zip(columns, self._schema.types, strict=True)]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """End the file."""
        self._writer.close()

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Drop it."""

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Drop it."""

    def privacy(self, records: list[Any]) -> None:
        """Drop it."""

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        """Drop it."""


def ring(runtime: SimulatedRuntime, num_parties: int) -> list[Party]:
    """Spawn a ring of parties."""
    names = [f"party-{index:05d}" for index in range(num_parties)]
    return [runtime.spawn(Party, name, names[(i + 1) % num_parties]) for i, name in enumerate(names)]


def resident_bytes() -> int:
    """Return the memory of this process that is in use now."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def throughput(num_parties: int = 1000, messages_each: int = 100, repeats: int = 3) -> dict[str, Any]:
    """Return messages a second of one core's time (another load on the machine does not count), best and all."""
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            sink = LedgerFile(Path(folder) / "ledger.parquet")
            runtime = SimulatedRuntime(network=WAN, recorder=sink)

            async def main(runtime: SimulatedRuntime = runtime) -> tuple[float, float]:
                parties = ring(runtime, num_parties)
                await runtime.start()
                start, core_start = time.perf_counter(), time.process_time()
                await asyncio.gather(*(party.send_messages(Count(messages_each)) for party in parties))
                runtime.ledger.flush()
                return time.perf_counter() - start, time.process_time() - core_start

            seconds, core_seconds = runtime.execute(main)
            sink.close()
        count = runtime.ledger.messages()
        found.append({"per_core_second": count / core_seconds, "per_wall_second": count / seconds})
    best = max(each["per_core_second"] for each in found)
    return {"parties": num_parties, "messages_per_core_second": best, "all": found, "at_least": 90_000}


def group(num_parties: int = 1000, repeats: int = 3) -> dict[str, Any]:
    """Return microseconds of the processor a message where a group is asked, best and all."""
    found = []
    times = max(1, 20_000 // num_parties)
    for _ in range(repeats):
        runtime = SimulatedRuntime(network=WAN)

        async def main(runtime: SimulatedRuntime = runtime) -> float:
            parties = ring(runtime, num_parties)
            asker = runtime.spawn(Asker, "asker", [f"party-{index:05d}" for index in range(len(parties))])
            await runtime.start()
            await asker.ask_all(Count(1))
            start = time.process_time()
            await asker.ask_all(Count(times))
            return time.process_time() - start

        found.append(1e6 * runtime.execute(main) / (2 * times * num_parties))
    return {"parties": num_parties, "microseconds_a_message": min(found), "all": found, "at_most": 8}


def many_parties(num_parties: int = 10_000) -> dict[str, Any]:
    """Return the memory of a process in which many parties have all talked."""
    runtime = SimulatedRuntime(network=WAN)

    async def main() -> None:
        parties = ring(runtime, num_parties)
        await runtime.start()
        await asyncio.gather(*(party.send_messages(Count(3)) for party in parties))

    runtime.execute(main)
    return {"parties": num_parties, "resident_bytes": resident_bytes(), "less_than": 10**9}


def many_rounds(num_rounds: int = 10_000, num_parties: int = 20) -> dict[str, Any]:
    """Return the resident memory after a tenth of the rounds and after all."""
    runtime = SimulatedRuntime(network=WAN)
    resident: list[int] = []

    async def main() -> None:
        parties = ring(runtime, num_parties)
        await runtime.start()
        for index in range(num_rounds):
            await asyncio.gather(*(party.send_messages(Count(1)) for party in parties))
            await runtime.record_round(index, {"x": 0.0})
            await runtime.checkpoint()
            if index + 1 in (num_rounds // 10, num_rounds):
                resident.append(resident_bytes())

    runtime.execute(main)
    growth = resident[1] - resident[0]
    return {"rounds": num_rounds, "resident_bytes": resident, "growth_bytes": growth, "less_than": 2**22}


def import_time(repeats: int = 5) -> dict[str, Any]:
    """Return the seconds that ``import fedactors`` takes in a fresh interpreter."""
    code = "import time; t = time.perf_counter(); import fedactors; print(time.perf_counter() - t)"
    found = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(repeats)]
    return {"seconds": min(found), "all": found, "less_than": 0.15}


def ray_start() -> dict[str, Any]:
    """Return the seconds from the first import to the first answer of an actor on an embedded cluster."""
    start = time.perf_counter()
    from fedactors.runtime.ray.runtime import RayRuntime

    runtime = RayRuntime(num_cpus=2)

    async def main() -> float:
        first, _ = runtime.spawn(Party, "first", "second"), runtime.spawn(Party, "second", "first")
        await runtime.start()
        await first.send_messages(Count(1))
        return time.perf_counter() - start

    return {"seconds": runtime.execute(main), "less_than": 8.0}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "throughput": throughput,
    "group": group,
    "many_parties": many_parties,
    "many_rounds": many_rounds,
    "import": import_time,
    "ray_start": ray_start,
}
SMOKE: dict[str, tuple[int, ...]] = {
    "throughput": (20, 2, 1),
    "group": (20, 1),
    "many_parties": (20,),
    "many_rounds": (20, 4),
    "import": (1,),
}


def main() -> None:
    """Run every part in a process of its own and print one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="only this one, in this process")
    parser.add_argument("--smoke", action="store_true", help="as small as it can be")
    given = parser.parse_args()
    if given.part:
        print(json.dumps(PARTS[given.part](*SMOKE.get(given.part, ()) if given.smoke else ())))
        return
    found = {}
    for part in PARTS:
        command = [sys.executable, __file__, part, *(["--smoke"] if given.smoke else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[part] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
