"""Three sites, each in a network namespace of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.federation.test_runs import SMALL
from tests.federation.world import BANK, CLINIC, SHOP, WAIT_SECONDS, World
from tests.runtime.hosts import Namespaces, whether_possible

WHY_NOT = whether_possible()
SITES = (BANK, SHOP, CLINIC)
RELAY = "relay"
"""Has the host after the sites', where there is one."""
SECONDS = 240.0
"""Within which a run of these sizes ends, on a machine that is busy."""
TEST = ("--share-seed", "--seed", "7")
PROTOCOLS = {
    "pubsub-vfl": (*SMALL, "algorithm=vfl", "num_parties=3"),
    "mtcd": ("num_clients=3", "num_rounds=2", "relaxed_protocol=true", "num_tokens=1", "problem=ridge"),
    "tablepuppet": ("num_rounds=2",),
    "glasu": ("num_clients=3", "num_rounds=2", "evaluate_every=1", "hidden_size=8"),
    "horizontal": ("num_rounds=2", "hidden_size=4"),
}
"""Those whose results no timing decides."""


def host_of(name: str) -> int:
    return 1 + (*SITES, RELAY).index(name)


class Apart(World):
    """Three sites, each on a host of its own, all started with their commands; with a Ray each, if wanted.

    With a relay, which has a host of its own, nobody can dial the clinic. What joins the hosts stands on a further one,
    so that any of them can be cut off and no other with it.
    """

    def __init__(self, hosts: Namespaces, *, with_rays: bool = False, with_relay: bool = False) -> None:
        addresses = {name: f"{address}:7443" for name, address in zip(SITES, hosts.addresses[1:], strict=False)}
        super().__init__(hosts.folder, SITES, addresses)
        self.hosts = hosts
        self.site: dict[str, subprocess.Popen[str]] = {}
        self.lines: dict[str, list[str]] = {name: [] for name in SITES}
        for name in SITES:
            file = self.path / name / "site.toml"
            text = file.read_text().replace(f"wait_seconds = {WAIT_SECONDS}", "wait_seconds = 60.0")
            file.write_text(f'ray = "embedded"\n{text}' if with_rays else text)
        if with_rays:
            hosts.env["RAY_worker_niceness"] = "0"  # others of a busy machine would leave them nothing
        if with_relay:
            self._begin_relay()
        for name in SITES:
            self.begin(name)
        for name in SITES:
            self.listens(name)

    def _begin_relay(self) -> None:
        address, home = f"{self.hosts.addresses[host_of(RELAY)]}:7440", self.path / CLINIC
        file, federation = home / "site.toml", str(self.path / "credit")
        listen = next(line for line in file.read_text().splitlines() if line.startswith("listen"))
        file.write_text(file.read_text().replace(listen, f'relay = "{address}"'))
        self.command("federation", "admit", federation, str(home / f"{CLINIC}.csr"), "--renew", "--relay", address)
        self.share()
        words = ("--federation", f"{federation}/federation.toml", "--listen", address)
        relay = self.hosts.start(host_of(RELAY), "python", "-u", "-m", "fedactors", "relay", *words)
        self.hosts.blocks.append(relay)
        self._read(RELAY, relay, "relay: listens at")

    def begin(self, name: str) -> None:
        words = ("python", "-u", "-m", "fedactors", "site", "start", "--folder", str(self.path / name))
        self.site[name] = self.hosts.start(host_of(name), *words)
        self.hosts.blocks.append(self.site[name])

    def listens(self, name: str) -> None:
        self._read(name, self.site[name], f"{name}: ")  # listens, or waits to be called

    def _read(self, name: str, process: subprocess.Popen[str], begins: str) -> None:
        """Read what a process says from now on, the first line with this text."""
        out = process.stdout
        assert out is not None
        line = out.readline()
        assert begins in line, line
        lines = self.lines.setdefault(name, [])
        threading.Thread(target=lambda: lines.extend(out), daemon=True).start()  # the pipe must not fill

    def run_at_the_bank(self, *words: str) -> tuple[int, str, str]:
        """Run a command on the bank's host, and approve at all sites; return its code and what it said."""
        answering = self.answer(seconds=SECONDS)
        process = self.hosts.start(host_of(BANK), "python", "-m", "fedactors", *words)
        try:
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
            process.wait()
        answering.join(30)
        return process.returncode, out, err

    def cut(self, name: str) -> None:
        """Take a site, or the relay, off the network."""
        self.hosts.cut(host_of(name))

    def mend(self, name: str) -> None:
        """Put a site, or the relay, back on the network."""
        self.hosts.mend(host_of(name))

    def state(self, name: str) -> str:
        return str(json.loads((self.path / name / "status.json").read_text())["state"])

    def await_idle(self, *names: str) -> None:
        end = time.monotonic() + 60
        while (busy := [name for name in names if self.state(name) != "idle"]) and time.monotonic() < end:
            time.sleep(0.05)
        assert not busy


@contextlib.contextmanager
def on_three_hosts(folder: Path, *, with_rays: bool = False, with_relay: bool = False) -> Iterator[Apart]:
    """Make the hosts and their sites, and remove every trace of them."""
    hosts = Namespaces(folder, 1 + len(SITES) + with_relay)
    try:
        hosts.join()
        yield Apart(hosts, with_rays=with_rays, with_relay=with_relay)
    finally:
        hosts.stop()
        for block in hosts.blocks:
            for stream in (block.stdout, block.stderr):
                if stream is not None:
                    stream.close()


def last_json(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
