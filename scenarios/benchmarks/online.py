"""What an answer online costs: a whole model, and a model of two sites, single rows and small batches over HTTP.

All in one run, on this machine: a horizontal model asked at its server, and a PubSub-VFL model whose label party asks
the other site over TLS for each question. Each `fedactors serve` is a process of its own, and so is each client, which
keeps its connection; milliseconds are the client's.
Usage: python scenarios/benchmarks/online.py [--requests 2000] [--rows 4000] [--clients 4]
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import fedactors
from fedactors.api import Run
from fedactors.cli.main import main
from fedactors.federation.site import SiteProcess
from fedactors.federation.site_folder import SiteFolder
from fedactors.runtime.addresses import free_port

NAMES = ("bank", "shop")
WORDS = ("num_epochs=2", "batch_size=64", "on_party_loss=stop")
BATCHES = (1, 16, 256)


def quiet(words: list[str]) -> None:
    """Do what a person would type, without its text."""
    with contextlib.redirect_stdout(io.StringIO()):
        if code := main(words):
            raise SystemExit(code)


def horizontal(folder: Path, values: Any, labels: Any) -> tuple[Run, Path]:
    """Train a model of four columns at two sites; return the run and the rows to ask for."""
    lines = [",".join(f"{x:.4f}" for x in row) + f",{label}\n" for row, label in zip(values, labels, strict=True)]
    third = len(lines) // 3
    for number, name in enumerate(("east", "west", "test")):
        (folder / f"{name}.csv").write_text("a,b,c,d,bad\n" + "".join(lines[number * third : (number + 1) * third]))
    rows = [f"c{n}," + ",".join(f"{x:.4f}" for x in row) + "\n" for n, row in enumerate(values)]
    (folder / "rows.csv").write_text("id,a,b,c,d\n" + "".join(rows))
    task = '[task]\ntype = "binary"\nlayout = "horizontal"\nclasses = ["0", "1"]\ntest = "test.csv"\n'
    parties = "".join(f'[parties.{name}]\npath = "{name}.csv"\nlabel = "bad"\n' for name in ("east", "west"))
    (folder / "parties.toml").write_text(task + parties)
    run = fedactors.simulate("horizontal", str(folder / "parties.toml"), out=str(folder / "runs"), num_rounds=2)
    return run, folder / "rows.csv"


def two_sites(folder: Path, values: Any, labels: Any) -> None:
    """Make two sites, and train a model between them that both approve by policy."""
    quiet(["federation", "init", str(folder / "credit")])
    for name in NAMES:
        address = f"127.0.0.1:{free_port()}"
        quiet(["site", "init", name, "--folder", str(folder / name), "--listen", address])
        request = str(folder / name / f"{name}.csr")
        quiet(["federation", "admit", str(folder / "credit"), request, "--address", address])
    bank = [f"c{n},{v[0]:.4f},{v[1]:.4f},{y}\n" for n, (v, y) in enumerate(zip(values, labels, strict=True))]
    (folder / "bank" / "rows.csv").write_text("id,a,b,bad\n" + "".join(bank))
    (folder / "bank" / "new.csv").write_text("id,a,b\n" + "".join(f"{line.rpartition(',')[0]}\n" for line in bank))
    shop = "id,c,d\n" + "".join(f"c{n},{v[2]:.4f},{v[3]:.4f}\n" for n, v in enumerate(values))
    for name in ("rows.csv", "new.csv"):
        (folder / "shop" / name).write_text(shop)
    task = 'label = "bad"\ntask = { type = "binary", alignment = "psi" }\n'
    for name in NAMES:
        (folder / name / "federation.toml").write_text((folder / "credit" / "federation.toml").read_text())
        with (folder / name / "site.toml").open("a") as file:
            file.write('\n[policy]\napprove = "policy"\n[policy.protocols.pubsub-vfl]\n')
            file.write(f'\n[data.rows]\npath = "rows.csv"\nid = "id"\n{task if name == "bank" else ""}')
            file.write('\n[data.new]\npath = "new.csv"\nid = "id"\n')
    with listening(folder):
        where = ["--federation", str(folder / "bank" / "federation.toml"), "--data", "bank=rows,shop=rows"]
        quiet(["run", "pubsub-vfl", *where, "--out", str(folder / "runs"), "--quiet", *WORDS])


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[None]:
    """Let both sites listen in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    sites = [SiteProcess(SiteFolder(folder / name), tell=lambda line: None) for name in NAMES]
    for site in sites:
        asyncio.run_coroutine_threadsafe(site.start(), loop).result(30)
    try:
        yield
    finally:
        for site in sites:
            loop.call_soon_threadsafe(site.stop)
        time.sleep(1.2)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@contextlib.contextmanager
def serve(folder: Path, *words: str) -> Iterator[int]:
    """Run `fedactors serve` in a process of its own; return its port once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "fedactors", "serve", *words, "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if ("--from" not in words and "127.0.0.1" in line) or line.startswith("ready"):
                break
        else:
            raise SystemExit(f"not served: {lines}")
        yield port
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def serving_at_two(folder: Path) -> Iterator[int]:
    """Serve the parts at both sites; return the port of the label party's."""
    paths = {name: str(next((folder / name / "runs").glob("*-0"))) for name in NAMES}
    shop = ("--folder", str(folder / "shop"), "--rows", "new", "--for", "bank", "--most-rows", "1000000000")
    with serve(folder, paths["shop"], *shop) as there:
        bank = ("--folder", str(folder / "bank"), "--rows", "new", "--from", f"shop=127.0.0.1:{there}")
        with serve(folder, paths["bank"], *bank) as port:
            yield port


def ask(port: int, token: str, num_rows: int, batch: int, requests: int, seed: int) -> list[float]:
    """Ask so often, each time for a batch of rows drawn at random, on one connection; return milliseconds."""
    taken: list[float] = []
    rng = np.random.default_rng(seed)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        for _ in range(requests):
            body = json.dumps({"ids": [f"c{n}" for n in rng.integers(0, num_rows, batch)]})
            begun = time.perf_counter()
            connection.request("POST", "/predict", body, headers)
            found = connection.getresponse()
            answer = json.loads(found.read())
            taken.append((time.perf_counter() - begun) * 1e3)
            if found.status != 200 or any(one["prediction"] is None for one in answer["predictions"]):
                raise SystemExit(f"not answered: {answer}")
    return taken


def measured(port: int, token: str, num_rows: int, requests: int, clients: int) -> list[dict[str, float]]:
    """Return milliseconds and answers a second, by batch and number of clients."""
    found = []
    with get_context("spawn").Pool(clients) as pool:
        for batch, together in [(one, 1) for one in BATCHES] + [(1, clients)]:
            pool.starmap(ask, [(port, token, num_rows, batch, 20, seed) for seed in range(clients)])  # warm
            begun = time.perf_counter()
            words = [(port, token, num_rows, batch, requests // together, seed) for seed in range(together)]
            taken = [one for those in pool.starmap(ask, words) for one in those]
            seconds = time.perf_counter() - begun
            p50, p99 = np.quantile(taken, (0.5, 0.99)).round(3).tolist()
            facts = {"p50_ms": p50, "p99_ms": p99, "requests_per_second": round(len(taken) / seconds)}
            found.append({"batch": batch, "clients": together, **facts})
    return found


def run() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--clients", type=int, default=4)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    values = rng.normal(size=(args.rows, 4))
    labels = (values.sum(axis=1) + rng.normal(size=args.rows) > 0).astype(int)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, rows = horizontal(folder, values, labels)
        token, rest = folder / "serve.token", (args.rows, args.requests, args.clients)
        with serve(folder, str(whole.path), "--rows", str(rows), "--id", "id") as port:
            horizontal_ms = measured(port, token.read_text().strip(), *rest)
        two_sites(folder, values, labels)
        with serving_at_two(folder) as port:
            vertical_ms = measured(port, token.read_text().strip(), *rest)
    print(json.dumps({"rows": args.rows, "whole model": horizontal_ms, "two sites": vertical_ms}))


if __name__ == "__main__":
    run()
