"""What sites cost: PubSub-VFL on the bank data between two of them beside one cluster, a call, payloads, an idle site.

All in one run, on this machine: each site a process of its own, TLS between them; the bank data with actors in the
sites' processes, with a Ray per site, and on one cluster, each with payloads that are fetched and that are sent: what
is compared is each layout with the setting that is faster there. What takes turns is repeated, and its median counts.
Usage: FEDACTORS_DATA=<data folder> python scenarios/benchmarks/sites.py [--epochs 10] [--repeats 1] [--without-bank]
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedactors.cli.main import main as fedactors
from fedactors.config import build
from fedactors.federation.handshake import dial
from fedactors.federation.operations import CHECK_BYTES, CHECKING, measure
from fedactors.federation.session import Hello, Limits
from fedactors.federation.site_folder import SiteFolder
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.runtime.addresses import free_port
from fedactors.runtime.compute import keep_freed_memory
from fedactors.runtime.failures import encode_error

NAMES = ("bank", "shop")
TASK = 'type = "binary", alignment = "already-aligned"'
_IDLE_SECONDS = 10.0
_MIB, _NUM_MIB = 1 << 20, 64
_TURNS = 9
PAYLOADS = ("pull", "push")


def command(*words: str) -> None:
    """Do what a person would type, without its text."""
    with contextlib.redirect_stdout(io.StringIO()):
        if code := fedactors(list(words)):
            raise SystemExit(code)


def make_sites(folder: Path) -> None:
    """Make a federation of two sites, each with a table of the bank data; what is proposed they approve by policy."""
    command("federation", "init", str(folder / "credit"))
    for name in NAMES:
        address = f"127.0.0.1:{free_port()}"
        command("site", "init", name, "--folder", str(folder / name), "--listen", address)
        request = str(folder / name / f"{name}.csr")
        command("federation", "admit", str(folder / "credit"), request, "--address", address)
        label = f'label = "y"\ntask = {{ {TASK} }}\n' if name == NAMES[0] else ""
        with (folder / name / "site.toml").open("a") as file:
            file.write(f'\n[policy]\napprove = "policy"\n\n[data.rows]\npath = "rows.csv"\nid = "id"\n{label}')
    for name in NAMES:
        (folder / name / "federation.toml").write_text((folder / "credit/federation.toml").read_text())


def write_tables(folder: Path) -> None:
    """Write the two parties' columns of the bank data, and a description of both for one cluster."""
    data = load_data(build(PubSubVflConfig, {}), "bank", 0)
    parties = []
    for name, party in zip(NAMES, data.parties, strict=True):
        block = data.load(party)
        columns = {f"x{i}": block.features[:, i] for i in range(block.features.shape[1])}
        if name == NAMES[0]:
            columns["y"] = np.asarray(block.labels)
        lines = [",".join(["id", *columns])]
        lines += [
            f"r{i}," + ",".join(f"{value:.7g}" for value in row)
            for i, row in enumerate(zip(*columns.values(), strict=True))
        ]
        (folder / name / "rows.csv").write_text("\n".join([*lines, ""]))
        label = 'label = "y"\n' if name == NAMES[0] else ""
        parties.append(f'[parties.{name}]\npath = "{folder / name / "rows.csv"}"\nid = "id"\n{label}')
    (folder / "parties.toml").write_text("\n".join(["[task]", *TASK.split(", "), "", *parties]))


def start(folder: Path) -> tuple[list[subprocess.Popen[str]], float]:
    """Start both sites; return their processes, and the seconds until both listen."""
    begun = time.perf_counter()
    words = [sys.executable, "-u", "-m", "fedactors", "site", "start", "--folder"]
    made = [
        subprocess.Popen([*words, str(folder / name)], stdout=subprocess.PIPE, text=True, env=_environment())
        for name in NAMES
    ]
    for process in made:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "listens at" not in line:
            raise SystemExit(line)
        threading.Thread(target=process.stdout.read, daemon=True).start()
    return made, time.perf_counter() - begun


def end(sites: list[subprocess.Popen[str]]) -> None:
    """Stop the sites."""
    for site in sites:
        site.terminate()
    for site in sites:
        site.wait(30)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def idle(site: subprocess.Popen[str]) -> dict[str, float]:
    """Return what a site that nobody asks anything takes."""
    process = psutil.Process(site.pid)
    before = process.cpu_times()
    time.sleep(_IDLE_SECONDS)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return {"memory_mb": process.memory_info().rss / 1e6, "cpu_share": round(used / _IDLE_SECONDS, 4)}


def _processor_seconds() -> float:
    """Return the processor time of this process, and of those that it has waited for."""
    return sum(os.times()[:4])


def bare_tls(folder: Path) -> tuple[float, float]:
    """Return what a TLS socket between two processes of this machine takes, each MiB read and counted.

    It is megabytes a second, and processor milliseconds of both ends for a MiB.
    """
    before = _processor_seconds()
    site = SiteFolder(folder / NAMES[1])
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        try:
            with site.server_tls.wrap_socket(listener.accept()[0], server_side=True) as stream:
                for _ in range(_NUM_MIB):
                    left = _MIB
                    while left:
                        piece = stream.recv(min(left, 256 * 1024))
                        if not piece:
                            return 0.0, 0.0  # the parent is gone
                        left -= len(piece)
                stream.send(b"x")
        finally:
            os._exit(0)  # whatever comes: the parent's folder, sites and lines are the parent's
    context: ssl.SSLContext = SiteFolder(folder / NAMES[0]).client_tls
    with context.wrap_socket(socket.create_connection(listener.getsockname())) as stream:
        block, begun = bytes(_MIB), time.perf_counter()
        for _ in range(_NUM_MIB):
            stream.sendall(block)
        stream.recv(1)
        taken = time.perf_counter() - begun
    os.waitpid(child, 0)
    listener.close()
    return _NUM_MIB * _MIB / 1e6 / taken, 1e3 * (_processor_seconds() - before) / _NUM_MIB


async def between_sites(folder: Path, dialled: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the time of a call to a site, and what payloads take beside a bare socket, by turns; see `bare_tls`."""
    process = psutil.Process(dialled.pid)
    keep_freed_memory()  # as the process of a site does
    bank = SiteFolder(folder / NAMES[0])
    ends = {"serve": None, "lost": lambda _, why: print(why), "errors": lambda error: encode_error(bank.name, error)}
    hello = Hello(bank.federation.name, CHECKING, "", "")
    turns: dict[str, list[float]] = {"bare_mb_per_second": [], "round_trip_ms": [], "mb_per_second": []}
    bare_ms = used_ms = 0.0
    for _ in range(_TURNS):
        rate, bare = bare_tls(folder)
        turns["bare_mb_per_second"].append(rate)
        bare_ms += bare
        connection = await dial(bank, bank.federation.members[NAMES[1]], hello, Limits(call=60.0), **ends)
        before = _processor_seconds() + sum(process.cpu_times()[:2])
        for name, value in (await measure(connection)).items():
            turns[name].append(value)
        used_ms += 1e3 * (_processor_seconds() + sum(process.cpu_times()[:2]) - before) / (CHECK_BYTES / _MIB)
        await connection.end()
    made: dict[str, Any] = {name: round(statistics.median(values), 3) for name, values in turns.items()}
    shares = [one / bare for one, bare in zip(turns["mb_per_second"], turns["bare_mb_per_second"], strict=True)]
    made["share_of_bare_tls"] = round(made["mb_per_second"] / made["bare_mb_per_second"], 3)
    made["processor_share_of_bare_tls"] = round(bare_ms / used_ms, 3)  # the calls of `measure` included
    return {**made, "shares_of_turns": [round(share, 2) for share in sorted(shares)]}


def demo(folder: Path) -> dict[str, float]:
    """Return the seconds until the three sites of the demo listen, and until it has trained and ended."""
    begun = time.perf_counter()
    words = [sys.executable, "-m", "fedactors", "federation", "demo", str(folder / "demo"), "--format", "json"]
    done = subprocess.run(words, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"start_seconds": found["start_seconds"], "whole_seconds": round(time.perf_counter() - begun, 1)}


def epochs_of(folder: Path, epochs: int, payloads: str, *where: str) -> list[float]:
    """Train once; return the wall seconds of each epoch but the first two, from its beginning to that of the next."""
    out = Path(tempfile.mkdtemp(dir=folder))
    given = {**PUBLISHED, "num_epochs": epochs + 3, "on_party_loss": "stop", "transfer": payloads}
    settings = tuple(f"{name}={value}" for name, value in given.items())
    words = ["run", "pubsub-vfl", *where, *settings, "--out", str(out), "--quiet", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "fedactors", *words], env=_environment(), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    (events,) = out.rglob("events.jsonl")
    spans = [json.loads(line) for line in events.read_text().splitlines()]
    begun = sorted(span["start"] for span in spans if span.get("label") == "training")
    return [later - one for one, later in pairwise(begun[2:])]


def bank_seconds(folder: Path, epochs: int, repeats: int) -> dict[str, Any]:
    """Return the median seconds of an epoch on one cluster and between sites; they take turns, so noise is of all."""
    between = ("--federation", str(folder / NAMES[0] / "federation.toml"), "--data", "bank=rows,shop=rows")
    files = {name: folder / name / "site.toml" for name in NAMES}
    local = {name: file.read_text() for name, file in files.items()}
    seconds: dict[tuple[str, str], list[float]] = {}

    def train(layout: str, *where: str) -> None:
        for payloads in PAYLOADS:
            seconds.setdefault((layout, payloads), []).extend(epochs_of(folder, epochs, payloads, *where))

    for _ in range(repeats):
        train("one_cluster", "--data", str(folder / "parties.toml"), "--runtime", "ray")
        for layout, first in (("sites", ""), ("sites_with_rays", 'ray = "embedded"\n')):
            for name, file in files.items():
                file.write_text(f"{first}{local[name]}")
            sites, _ = start(folder)
            try:
                train(layout, *between)
            finally:
                end(sites)
    median = {key: round(statistics.median(found), 4) for key, found in seconds.items()}
    made: dict[str, Any] = {
        layout: {payloads: median[layout, payloads] for payloads in PAYLOADS} for layout, _ in median
    }
    best = {layout: min(found.values()) for layout, found in made.items()}
    times = {layout: round(best[layout] / best["one_cluster"], 3) for layout in ("sites", "sites_with_rays")}
    return {"epoch_seconds": made, "times_one_cluster": times}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="that are timed, of each training")
    parser.add_argument("--repeats", type=int, default=1, help="trainings of each kind, which take turns")
    parser.add_argument("--without-bank", action="store_true", help="only what needs no training")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sites(folder)
        if not given.without_bank:
            write_tables(folder)
        sites, took = start(folder)
        try:
            found: dict[str, Any] = {"benchmark": "sites", "load": os.getloadavg()[0], "start_seconds": took}
            found["idle"] = idle(sites[0])
            found |= asyncio.run(between_sites(folder, sites[1]))
        finally:
            end(sites)
        found["demo"] = demo(folder)
        if not given.without_bank:
            found |= bank_seconds(folder, given.epochs, given.repeats)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
