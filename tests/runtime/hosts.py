"""Hosts on one machine: network namespaces joined by veth pairs to a bridge; and Ray on them, with tokens.

Everything that runs in the namespaces was started here, and is stopped by the namespace's own list of processes.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
START_SECONDS = 240.0


def run(*words: str, check: bool = True) -> str:
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


def whether_possible() -> str | None:
    """Say why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"fa-probe-{os.getpid()}"
    try:
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    except FileNotFoundError:
        return "the command ip is not installed"
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    probe = subprocess.run(
        ["ip", "-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"], capture_output=True
    )
    run("ip", "netns", "del", name)
    return None if probe.returncode == 0 else "no veth pairs here"


class Namespaces:
    """Hosts that reach each other by a bridge; `stop` removes every trace.

    Args:
        folder: where commands are run.
        count: of the hosts.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.mark = f"fa{os.getpid() % 10000}{secrets.token_hex(1)}"
        self.net = f"10.{77 + os.getpid() % 100}.{secrets.randbelow(250)}"
        self.names = [f"{self.mark}-{index}" for index in range(count)]
        self.addresses = [f"{self.net}.{index + 1}" for index in range(count)]
        self.blocks: list[subprocess.Popen[Any]] = []
        self.env = {
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
            "OMP_NUM_THREADS": "1",
            "FEDACTORS_DATA": os.environ.get("FEDACTORS_DATA", ""),
        }

    def join(self) -> None:
        """Make them."""
        # the bridge lives in the head's namespace, so that nothing is added to the machine's own network
        head = self.names[0]
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", head, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", head, "addr", "add", f"{self.net}.1/24", "dev", "br0")
        run("ip", "-n", head, "link", "set", "br0", "up")
        for index, name in enumerate(self.names[1:], start=2):
            run("ip", "-n", head, "link", "add", f"v{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", head, "link", "set", f"v{index}", "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"{self.net}.{index}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def env_of(self, index: int) -> dict[str, str]:
        """Return the environment of what runs on a host."""
        return self.env

    def call(self, index: int, *words: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host."""
        return subprocess.run(
            ["ip", "netns", "exec", self.names[index], *words],
            env={**self.env_of(index), **more},
            check=check,
            capture_output=True,
            text=True,
            cwd=self.folder,
        )

    def start(self, index: int, *words: str) -> subprocess.Popen[str]:
        """Start a command on a host and return its process."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[index], *words],
            env=self.env_of(index),
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def cut(self, index: int) -> None:
        """Take host `index` off the network."""
        run("ip", "-n", self.names[0], "link", "set", f"v{index + 1}", "down")

    def mend(self, index: int) -> None:
        """Put host `index` back on the network."""
        run("ip", "-n", self.names[0], "link", "set", f"v{index + 1}", "up")

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for name in self.names:
                for pid in run("ip", "netns", "pids", name, check=False).split():
                    try:
                        os.kill(int(pid), number)
                    except ProcessLookupError:
                        continue
            for block in self.blocks:
                try:
                    block.wait(3 if number == signal.SIGTERM else 30)
                except subprocess.TimeoutExpired:
                    continue
        for name in self.names:
            run("ip", "netns", "del", name, check=False)


class Hosts(Namespaces):
    """A head and further hosts, with Ray, each with labels; `stop` removes every trace.

    Args:
        folder: for logs, and where commands are run.
        labels: of each host, the head's first.
        num_cpus: of each host.
        default_health_checks: whether Ray gives a host up as late as it does by default, after a minute.
        tls: whether hosts encrypt what they say to each other, with certificates as deploy/tls.sh makes them.
    """

    def __init__(
        self,
        folder: Path,
        labels: list[dict[str, int]],
        num_cpus: int = 2,
        *,
        default_health_checks: bool = False,
        tls: bool = False,
    ) -> None:
        super().__init__(folder, len(labels))
        # sockets live below it, and the path of a socket may have 107 bytes: pytest's folders can be too deep
        self.temp = Path(tempfile.mkdtemp(prefix="fa-"))
        self.certificates = folder / "tls" if tls else None
        if tls:
            run(str(ROOT / "deploy/tls.sh"), str(self.certificates), *self.addresses)
        self.env |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_metrics_report_interval_ms": "1000",
        }
        if not default_health_checks:
            # a host that is cut off is given up after seconds, not a minute
            self.env |= {
                "RAY_health_check_initial_delay_ms": "1000",
                "RAY_health_check_period_ms": "1000",
                "RAY_health_check_timeout_ms": "5000",
                "RAY_health_check_failure_threshold": "5",
            }
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "token").chmod(0o600)
        try:
            self.join()
            for index, wanted in enumerate(labels):
                self._start(index, wanted, num_cpus)
        except BaseException:
            self.stop()
            raise

    @property
    def local(self) -> Path:
        """The folder that is another one on each host."""
        return self.temp / "own"

    def local_of(self, index: int) -> Path:
        """Where a host's own folder is found from here."""
        return self.temp / f"own-{index}"

    @property
    def dashboard(self) -> str:
        return f"http://{self.net}.1:8265"

    def _start(self, index: int, labels: dict[str, int], num_cpus: int) -> None:
        address = f"{self.net}.{index + 1}"
        words = ["ray", "start", "--block", f"--node-ip-address={address}", f"--num-cpus={num_cpus}"]
        words += [f"--resources={json.dumps(labels)}", "--object-store-memory=150000000", "--disable-usage-stats"]
        if index == 0:
            words += [
                "--head",
                "--port=6379",
                f"--dashboard-host={address}",
                "--metrics-export-port=8090",
                f"--temp-dir={self.temp}/ray",
            ]
        else:
            words += [f"--address={self.net}.1:6379"]
        # each host has its own disk: for its own files, and for what Ray unpacks, since two hosts in one folder would
        # clear away each other's
        owned = ["own"] if index == 0 else ["own", "ray"]
        mounted = [f"mkdir -p {self.temp}/{name}-{index} {self.temp}/{name}" for name in owned]
        mounted += [f"mount --bind {self.temp}/{name}-{index} {self.temp}/{name}" for name in owned]
        words = ["sh", "-c", f'{" && ".join(mounted)} && exec "$@"', "sh", *words]
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            # Ray gives a host 30 seconds, which a starved machine may not have
            if not self.blocks[index:] or self.blocks[index].poll() is not None:
                del self.blocks[index:]
                self.blocks.append(self._begin(index, words))
            listed = self.call(0, "ray", "list", "nodes", f"--address={self.dashboard}", check=False)
            if any(address in line and "ALIVE" in line for line in listed.stdout.splitlines()):
                return
        raise RuntimeError(f"host {index} did not come up: {(self.folder / f'host-{index}.log').read_text()[-2000:]}")

    def _begin(self, index: int, words: list[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"host-{index}.log", "ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.names[index], *words],
                env=self.env_of(index),
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def env_of(self, index: int) -> dict[str, str]:
        """Return the environment of what runs on a host."""
        if self.certificates is None:
            return self.env
        local = self.certificates / self.addresses[index]
        return self.env | {
            "RAY_USE_TLS": "1",
            "RAY_TLS_CA_CERT": str(self.certificates / "ca.crt"),
            "RAY_TLS_SERVER_KEY": f"{local}.key",
            "RAY_TLS_SERVER_CERT": f"{local}.crt",
        }

    def bytes_between(self, index: int) -> int:
        """Return the bytes that have crossed host `index`'s only interface, both ways."""
        found = 0
        for direction in ("rx_bytes", "tx_bytes"):
            found += int(self.call(index, "cat", f"/sys/class/net/eth0/statistics/{direction}").stdout)
        return found

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.temp, ignore_errors=True)
