"""What a fleet costs its coordinator: processor time of a message, then FedAvg of many sites over a WAN.

    messages   processor time of the coordinator's site for a model that leaves and for a change that arrives, between
               two processes: contexts of actors, gate, checks, ledger, codec and TLS as in a federation; and for adding
               a change up
    rounds     FedAvg on the simulated runtime, flat and over aggregators (`num_aggregators`): seconds of a round by the
               virtual clock

Usage: python -m scenarios.benchmarks.fleet messages [--sizes 8000,1000000,25000000,44700000] [--repeats 5]
       python -m scenarios.benchmarks.fleet rounds [--costs rows.jsonl] [--sites 10,100,1000] [--aggregators 0,32]
Both print JSON lines; `rounds` takes the processor time from lines of `messages` (default: the committed ones).

In `rounds` a site is 10 to 100 ms away (each way, drawn) at 100 Mbit/s and trains for 30 s. Coordinator and aggregators
have 1 Gbit/s each way, shared by their transfers, and one core: they send or take no more bytes a second than that core
can. The model that is trained is small; links are as much slower as the model of the row is larger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.actors.actor import Client, Resources, Server
from fedactors.actors.remote import SERVER, remote
from fedactors.config import build
from fedactors.federation.audit_log import Journal
from fedactors.federation.handshake import accept, dial
from fedactors.federation.hosting import Gate, LocalActorHost, make_book
from fedactors.federation.session import PIECE_BYTES, Connection, Hello, Limits, checked_parts, decoded
from fedactors.federation.site_folder import SiteFolder
from fedactors.learning.network import initial_vector
from fedactors.messages.codec import Parts
from fedactors.network.links import HostCapacity, Link, Network
from fedactors.protocols.horizontal.algorithm import combined
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import groups_of, load_data, model_spec
from fedactors.protocols.horizontal.messages import Change, TrainOrder
from fedactors.protocols.horizontal.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.compute import WallClock
from fedactors.runtime.failures import UnawaitedCall, errors_for
from fedactors.runtime.interface import ActorSpec, Costs
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from scenarios.benchmarks.sites import NAMES, make_sites

SIZES = (8_000, 1_000_000, 25_000_000, 44_700_000)
"""Bytes of a model; the last is ResNet-18 in single precision."""
NOTHING = np.zeros(0, np.float32)
COORDINATOR, SITE = NAMES
ROWS = Path(__file__).parents[2] / "docs/results/data/fleet.jsonl"
LATENCIES, SITE_LINK, HUB_LINK = (0.01, 0.1), 1.25e7, 1.25e8
"""Seconds each way; bytes a second of a site's link, and of the coordinator's and the aggregators'."""
TRAINING, ROUNDS = 30.0, 2


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
        self.gate, self.scope = Gate(site, COORDINATOR, book), site
        self.unawaited = UnawaitedCall(self.note, lambda _: False)
        self.journal: Journal | None = None
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


async def _seconds(send: Callable[[TrainOrder], Any], order: TrainOrder, least: float) -> float:
    """Return the processor seconds of this process for an order and its answer, of many in a row."""
    await send(order)
    count, begun, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < least or count < 4:
        await send(order)
        count += 1
    return (time.process_time() - begun) / count


def adding(num_numbers: int, least: float) -> float:
    """Return the processor seconds in which the server adds a change to others."""
    change = Change(1, 1.0, 0.5, np.ones(num_numbers, np.float32), NOTHING)
    combined([change] * 4)
    count, begun = 0, time.process_time()
    while time.process_time() - begun < least / 4:
        combined([change] * 4)
        count += 4
    return (time.process_time() - begun) / count


async def costs(
    folder: Path, port: int, sizes: Sequence[int], repeats: int, least: float, limits: Limits
) -> list[dict[str, Any]]:
    """Return a row for each size: medians over repeats, in which sizes and directions take turns."""
    site, boundary = SiteFolder(folder / COORDINATOR), Boundary(COORDINATOR)
    await boundary.begin()
    member = replace(site.federation.members[SITE], host="127.0.0.1", port=port)
    hello = Hello(site.federation.name, "calls", "", "")
    ends = {"serve": None, "lost": lambda _, why: print(why), "errors": errors_for(COORDINATOR, SITE)}
    boundary.connection = await dial(site, member, hello, limits, **ends)
    send = boundary.actors.actors[COORDINATOR].actor.send  # type: ignore[attr-defined]
    found: dict[int, list[tuple[float, float, float]]] = {size: [] for size in sizes}
    empty: list[float] = []
    for _ in range(repeats):
        empty.append(await _seconds(send, TrainOrder(0, (0,), NOTHING, NOTHING), least))
        for size in sizes:
            model_P = np.ones(size // 4, np.float32)
            out = await _seconds(send, TrainOrder(0, (0,), model_P, NOTHING), least)
            back = await _seconds(send, TrainOrder(size // 4, (0,), NOTHING, NOTHING), least)
            found[size].append((out - empty[-1] / 2, back - empty[-1] / 2, adding(size // 4, least)))
    await boundary.connection.end()
    made = []
    for size, values in found.items():
        sides = dict(zip(("out_ms", "in_ms", "add_ms"), zip(*values, strict=True), strict=True))
        row = {name: round(1e3 * statistics.median(side), 3) for name, side in sides.items()}
        spread = {name: [round(1e3 * one, 3) for one in (min(side), max(side))] for name, side in sides.items()}
        made.append({"part": "message", "bytes": size, **row, "spread": spread})
    return made


def messages(sizes: Sequence[int], repeats: int, least: float) -> None:
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
            for row in asyncio.run(costs(folder, ours.recv(), sizes, repeats, least, limits)):
                print(json.dumps(row), flush=True)
            ours.send(None)
            process.join(30)
        finally:
            process.kill()
            process.join()


# --- rounds ---


class Clocked(MemoryRecorder):
    """Notes the virtual time at which each round is recorded."""

    def __init__(self) -> None:
        super().__init__(keeps_checkpoints=False)
        self.times: list[float] = []
        self.runtime: SimulatedRuntime | None = None

    def record_round(self, index: int, metrics: Any) -> None:
        """Note the time."""
        super().record_round(index, metrics)
        assert self.runtime is not None
        self.times.append(self.runtime.clock.now())


def read_costs(file: Path) -> dict[int, dict[str, float]]:
    """Return the rows of `messages` by size."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["bytes"]: row for row in rows if row["part"] == "message"}


def network(config: HorizontalConfig, sites: Sequence[str], cost: Mapping[str, float], share: float) -> Network:
    """Return links whose bytes count `share` times, between sites, aggregators and the server."""
    groups = groups_of(config, sites)
    hubs = ("server", *groups)
    latency = dict(zip(sites, np.random.default_rng(0).uniform(*LATENCIES, len(sites)).tolist(), strict=True))
    links = {
        (hub, site): Link(latency=latency[site], bandwidth=SITE_LINK * share)
        for hub, found in {"server": sites, **groups}.items()
        for site in found
    }
    by_core = {side: cost["bytes"] / (cost[f"{side}_ms"] / 1e3) for side in ("out", "in")}
    hub_capacity = HostCapacity(
        egress=share * min(HUB_LINK, by_core["out"]), ingress=share * min(HUB_LINK, by_core["in"])
    )
    return Network(
        default=Link(latency=statistics.fmean(LATENCIES), bandwidth=HUB_LINK * share),
        links=links,
        capacity=dict.fromkeys(hubs, hub_capacity),
    )


def play(num_sites: int, num_aggregators: int, cost: Mapping[str, float]) -> dict[str, Any]:
    """Run FedAvg for some rounds; return what a round takes, and what the coordinator does in it."""
    config = build(HorizontalConfig, {
        "model": "mlp", "hidden_size": 128, "num_clients": num_sites, "dirichlet": None, "num_rounds": ROUNDS,
        "evaluate_every": ROUNDS, "local_epochs": 1, "batch_size": 32, "optimizer": "sgd", "on_party_loss": "stop",
        "num_aggregators": num_aggregators, "local_baseline": False, "client_timeout": 1e6,
    })  # fmt: skip
    data, recorder = load_data(config, "digits", 0), Clocked()
    numbers = initial_vector(
        model_spec(config, inputs=data.shape, task=data.task, num_classes=data.num_classes), 0
    ).size
    share = 4 * numbers / cost["bytes"]
    adding = cost["add_ms"] / 1e3 / numbers  # of a number of the small model
    costs = Costs({"train": (TRAINING, 0.0), "measure": (0.0, 0.0), "aggregate": (0.0, adding)})
    sites = [f"client-{number}" for number in range(num_sites)]
    runtime = SimulatedRuntime(recorder=recorder, costs=costs, network=network(config, sites, cost, share))
    recorder.runtime = runtime
    runtime.execute(lambda: run(config, data, runtime))
    totals = [total for total in runtime.ledger.totals() if total.kind != "driver"]
    large = ("TrainOrder", "GroupOrder", "Change", "GroupChange")
    sent = [total for total in totals if total.sender == "server" and total.type in large]
    taken = [total for total in totals if total.receiver == "server" and total.type in large]
    out, back = (sum(total.bytes for total in side) / share / ROUNDS for side in (sent, taken))
    seconds = statistics.fmean(np.diff(recorder.times).tolist())
    busy = (out * cost["out_ms"] + back * cost["in_ms"]) / cost["bytes"] / 1e3
    adds = sum(total.messages for total in taken) / ROUNDS * cost["add_ms"] / 1e3
    return {
        "part": "round",
        "sites": num_sites,
        "bytes": int(cost["bytes"]),
        "aggregators": num_aggregators,
        "round_seconds": round(seconds, 1),
        "out_gb": round(out / 1e9, 4),
        "in_gb": round(back / 1e9, 4),
        "link_share": round((out + back) / HUB_LINK / seconds, 3),
        "core_share": round((busy + adds) / seconds, 3),
    }


def rounds(sizes: Sequence[int], sites: Sequence[int], aggregators: Sequence[int], costs: Path) -> None:
    """Simulate rounds, and print."""
    known = read_costs(costs)
    for size in sizes:
        for num_sites in sites:
            for count in aggregators:
                if 10 * count <= num_sites:
                    print(json.dumps(play(num_sites, count, known[size])), flush=True)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the Markdown tables of `docs/results/frame.md`: what a message costs, and what a round takes."""
    listed = list(rows)
    messages_ = [row for row in listed if row["part"] == "message"]
    lines = [["bytes of a model", "out, ms", "in, ms", "adding, ms", "sites, 1 Gbit/s", "sites, 10 Gbit/s"]]
    lines.append(["---"] * len(lines[0]))
    for row in messages_:
        lines.append([f"{row['bytes']:,}", *(f"{row[name]:.3g}" for name in ("out_ms", "in_ms", "add_ms"))])
        for link in (HUB_LINK, 10 * HUB_LINK):
            each = sum(max(row["bytes"] / link, row[side] / 1e3) for side in ("out_ms", "in_ms"))
            lines[-1].append(f"{TRAINING / (each + row['add_ms'] / 1e3):,.0f}")
    made = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    found = {(row["bytes"], row["sites"], row["aggregators"]): row for row in listed if row["part"] == "round"}
    lines = [
        ["bytes of a model", "sites", "aggregators", "seconds a round", "coordinator sends, GB", "its link", "its core"]
    ]
    lines.append(["---"] * len(lines[0]))
    for (size, num_sites, count), row in found.items():
        shares = [f"{100 * row[name]:.0f} %" for name in ("link_share", "core_share")]
        lines.append(
            [
                f"{size:,}",
                f"{num_sites:,}",
                str(count),
                f"{row['round_seconds']:,.1f}",
                f"{row['out_gb']:,.3g}",
                *shares,
            ]
        )
    return made + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def numbers_of(text: str) -> list[int]:
    """Return the numbers of a flag."""
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("messages", "rounds"))
    parser.add_argument("--sizes", type=numbers_of, default=SIZES, help="bytes of a model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="that each size and direction is sent for, at least")
    parser.add_argument("--sites", type=numbers_of, default=(10, 100, 1000))
    parser.add_argument("--aggregators", type=numbers_of, default=(0, 32))
    parser.add_argument("--costs", type=Path, default=ROWS, help="lines of `messages`")
    given = parser.parse_args()
    if given.part == "messages":
        messages(given.sizes, given.repeats, given.seconds)
    else:
        rounds(given.sizes, given.sites, given.aggregators, given.costs)


if __name__ == "__main__":
    main()
