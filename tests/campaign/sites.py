"""Faults between sites: three sites and a driver in processes of their own, one fault a run, gone on from to its end.

    python -m tests.campaign.sites --trials 48 --seed 2 --out docs/results/data/faults_of_sites.json

Protocols and faults take turns; what is drawn is the moment. Every run trains with the privacy that its protocol has.
A trial ends as one of `OUTCOMES`: **hung** is a driver, or a site, that is not free so many seconds after the fault;
**not resumable** is a run with a checkpoint that does not go on from it to its last round; **over before** is one that
ended before its fault, and counts as none.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from fedactors.runs.folder import RunFolder
from fedactors.runtime.addresses import free_port
from tests.federation.test_centers import SMALL as CENTERS
from tests.federation.test_centers import flags as catalogue
from tests.federation.test_centers import write_centers
from tests.federation.test_runs import OF_THREE, SMALL, VERTICAL
from tests.federation.ways import Way
from tests.federation.world import BANK, CLINIC, SHOP, World

LIMIT = 90.0
"""Seconds after a fault, or after the last round that a run recorded, within which a driver ends and sites are free."""
AWAY = 10.0
"""Seconds that sites wait for one that is away."""
ATTEMPTS = 3
"""To go on from a run: on a machine that is busy a site may be found away without any fault."""
ROUNDS, MANY_ROUNDS = 30, 400
"""The latter where the run goes on without a site, which comes back before the end."""
SUBJECTS: dict[str, tuple[str, ...]] = {
    "pubsub-vfl": (f"num_epochs={ROUNDS}", *SMALL[1:], "algorithm=vfl", "num_parties=3", "embedding_mu=4",
                   "bottom_training=frozen", "standardisation=none"),
    "mtcd": (f"num_rounds={ROUNDS}", "num_clients=3", "relaxed_protocol=true", "num_tokens=1", "learning_rate=0.01",
             "problem=sparse-logistic", "noise=gaussian", "noise_multiplier=4", "clip_norm=1"),
    "glasu": (f"num_rounds={ROUNDS}", "num_clients=3", "evaluate_every=10", "hidden_size=8", "noise_multiplier=2",
              "clip_norm=1", "max_degree=60"),
    "horizontal": (f"num_rounds={ROUNDS}", "hidden_size=4", "secure_aggregation=true"),
    "horizontal with a quorum": (f"num_rounds={MANY_ROUNDS}", "hidden_size=4", "min_sites=2", "client_timeout=8",
                                 "quorum_timeout=40"),
    "tablepuppet": (f"num_rounds={ROUNDS}", "algorithm=rfl-sgd-v", "feature_dp=4.0", "label_dp=1.0"),
    "nebulafl": (*(word for word in CENTERS if "interval" not in word and "duration" not in word), "duration=10",
                 "rotation_interval=1", "evaluation_interval=1", "algorithm=fedavg-hierarchical",
                 "secure_aggregation=true"),
}  # fmt: skip
FAULTS = ("kill -9", "stop", "stop for long", "terminate")
"""Of a site, of the coordinator's site, and of the driver."""
AT_DRIVER = ("kill -9", "terminate", "hang up", "interrupt", "stop")
OUTCOMES = ("finished", "resumed", "begun anew", "hung", "not resumable", "over before")
SIGNALS = {"kill -9": signal.SIGKILL, "terminate": signal.SIGTERM, "hang up": signal.SIGHUP, "interrupt": signal.SIGINT}
CASES = (
    *((fault, SHOP) for fault in FAULTS), ("cut", SHOP), ("away", SHOP), *((fault, BANK) for fault in FAULTS),
    *((fault, "driver") for fault in AT_DRIVER),
)  # fmt: skip


@dataclass
class Trial:
    """What came of one run and its fault."""

    number: int
    protocol: str
    fault: str
    target: str
    moment: str
    """After which round of the training, or so many seconds of the start, it struck."""
    codes: list[int]
    """Of the driver, and of those that went on."""
    seconds: float
    outcome: str
    message: str
    """What the first driver said of it."""


class Sites(World):
    """Bank, shop and more, each a process that approves by policy; the shop is reached over a way that can break."""

    def __init__(self, folder: Path, more: tuple[str, ...] = (CLINIC,)) -> None:
        names = (BANK, SHOP, *more)
        addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        super().__init__(folder, names, addresses)
        port = free_port()
        for name in self.names:
            file = folder / name / "site.toml"
            text = file.read_text().replace("wait_seconds = 4.0", f"wait_seconds = {AWAY}")
            if name == SHOP:
                text = text.replace(f'listen = "{addresses[SHOP]}"', f'listen = "127.0.0.1:{port}"')
            file.write_text(f'{text}\n[policy]\napprove = "policy"\ncontinuations = 1000\nproposals_per_hour = 1000\n')
        self.way = Way(int(addresses[SHOP].rpartition(":")[2]), ("127.0.0.1", port))
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.prepare()
        self.started: dict[str, subprocess.Popen[str]] = {}
        self.readers: list[threading.Thread] = []
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        for name in self.names:
            self.begin(name)

    def prepare(self) -> None:
        """Write what else the sites need, before they start."""
        write_centers(self)

    def begin(self, name: str) -> None:
        """Start a site, and wait until it listens."""
        words = [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(self.path / name)]
        site = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.env)
        assert site.stdout is not None
        line = site.stdout.readline()
        assert f"{name}: listens at" in line, line
        reader = threading.Thread(target=read_out, args=(site.stdout,), daemon=True)
        reader.start()
        self.readers.append(reader)
        self.started[name] = site

    def drive(self, *words: str) -> subprocess.Popen[str]:
        """Start a driver at the bank."""
        file = str(self.path / BANK / "federation.toml")
        command = [sys.executable, "-m", "fedactors", "run", *words, "--federation", file, "--out", str(self.runs)]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, "--format", "json", "--quiet"], env=self.env, **streams)

    def mend(self) -> None:
        """Bring back whoever is gone."""
        self.way.is_closed = False
        for name, site in list(self.started.items()):
            with contextlib.suppress(ProcessLookupError):
                site.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            if site.poll() is not None:
                self.begin(name)

    def are_free(self) -> bool:
        """Say whether all sites come to wait for the next run."""
        states = [self.path / name / "status.json" for name in self.names]
        return until(lambda: all(json.loads(file.read_text())["state"] == "idle" for file in states))

    def end(self, name: str = "") -> None:
        """End everything."""
        for site in self.started.values():
            site.kill()
            site.wait(10)
        for reader in self.readers:
            reader.join(10)
        self.way.stop()


def read_out(stream: IO[str]) -> None:
    """Read what a process says, so that it never waits, until it has ended."""
    with stream:
        stream.read()


def until(holds: Callable[[], bool], seconds: float = LIMIT) -> bool:
    """Wait until something holds; say whether it came to."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError):  # a file that is being written
            if holds():
                return True
        time.sleep(0.05)
    return False


def checkpoints(run: Path) -> int:
    """Return how many checkpoints a run has."""
    return len(RunFolder.open(run).manifest["checkpoints"]) if (run / "manifest.json").exists() else 0


def rounds(run: Path) -> int:
    """Return how many rounds a run has recorded."""
    return len((run / "metrics" / "round_metrics.jsonl").read_text().splitlines())


class Campaign:
    """One fault after another on the same sites."""

    def __init__(self, sites: Sites, seed: int) -> None:
        self._sites, self._random = sites, random.Random(seed)
        self._extra = {"nebulafl": catalogue(sites)}

    def tell(self, number: int, protocol: str, fault: str, target: str) -> Trial:
        """Do a trial."""
        sites, begun, before = self._sites, time.monotonic(), set(self._sites.runs.iterdir())
        name = protocol.partition(" ")[0]
        words = [name, "--data", OF_THREE.get(name, f"{VERTICAL},{CLINIC}=visits")]
        words += [*SUBJECTS[protocol], *self._extra.get(protocol, ())]
        driver = sites.drive(*words)
        moment = self._await(driver, before)
        codes, message, outcome = [], "", "over before" if driver.poll() is not None else ""
        if not outcome:
            self._strike(fault, sites.started.get(target, driver))
            if protocol.endswith("quorum") and target == SHOP:  # it comes back while the others go on
                time.sleep(self._random.uniform(0.0, 4.0))
                sites.mend()
        try:
            _, err = self._ended(driver, before)
            codes, message = (
                [driver.returncode],
                next((line for line in err.splitlines() if line.startswith("fed")), ""),
            )
        except subprocess.TimeoutExpired:
            outcome = "hung"
            driver.kill()
            driver.communicate()
        sites.mend()
        if not sites.are_free():
            outcome = "hung"
        made = [path for path in sites.runs.iterdir() if path not in before]
        if not outcome:
            outcome = "finished" if codes == [0] else self._go_on(made, words, codes)
        return Trial(
            number, protocol, fault, target, moment, codes, round(time.monotonic() - begun, 1), outcome, message
        )

    def _await(self, driver: subprocess.Popen[str], before: set[Path]) -> str:
        """Wait for the moment of the fault: a round of the training, or seconds of the start for one in six."""
        sites = self._sites
        if self._random.random() < 1 / 8:
            seconds = self._random.uniform(1.0, 8.0)
            time.sleep(seconds)
            return f"{seconds:.1f} s"
        least = self._random.randint(1, 5)

        def is_there() -> bool:
            new = [path for path in sites.runs.iterdir() if path not in before]
            return driver.poll() is not None or any(checkpoints(path) and rounds(path) >= least for path in new)

        until(is_there)
        time.sleep(self._random.uniform(0.0, 0.2))
        return f"round {least}"

    def _strike(self, fault: str, process: subprocess.Popen[str]) -> None:
        way = self._sites.way
        if fault in ("cut", "away"):
            way.is_closed = fault == "away"
            way.cut()
        elif fault.startswith("stop"):
            process.send_signal(signal.SIGSTOP)
            time.sleep(2 * AWAY if fault == "stop for long" else 1.0)
            process.send_signal(signal.SIGCONT)
        else:
            process.send_signal(SIGNALS[fault])

    def _ended(self, driver: subprocess.Popen[str], before: set[Path]) -> tuple[str, str]:
        """Wait until a driver ends, as long as its run goes on; return what it said.

        Raises:
            subprocess.TimeoutExpired: nothing happened within the limit.
        """

        def size() -> int:
            with contextlib.suppress(OSError):
                return sum(
                    file.stat().st_size
                    for run in set(self._sites.runs.iterdir()) - before
                    for file in run.rglob("*")
                    if file.is_file()
                )
            return -1

        seen, since = size(), time.monotonic()
        while True:
            try:
                return driver.communicate(timeout=2)
            except subprocess.TimeoutExpired:
                if (now := size()) != seen:
                    seen, since = now, time.monotonic()
                if time.monotonic() > since + LIMIT:
                    raise

    def _go_on(self, made: list[Path], words: list[str], codes: list[int]) -> str:
        """Go on from a run's last checkpoint, or begin it anew where it has none."""
        run = next((path for path in made if checkpoints(path)), None)
        again = words if run is None else [words[0], "--resume", str(run)]
        for _ in range(ATTEMPTS):
            before = set(self._sites.runs.iterdir())
            driver = self._sites.drive(*again)
            try:
                _, err = self._ended(driver, before)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.communicate()
                return "hung"
            codes.append(driver.returncode)
            if driver.returncode == 0:
                return "begun anew" if run is None else "resumed"
            print(err.strip()[-600:], file=sys.stderr)
            self._sites.are_free()
        return "not resumable"


def table(trials: list[Trial]) -> str:
    """Return outcomes by fault, as a table of a page."""
    found = Counter((f"{one.fault}, {one.target}", one.outcome) for one in trials)
    kinds = list(dict.fromkeys(kind for kind, _ in found))
    rows = [[kind, *(str(found[kind, outcome]) for outcome in OUTCOMES)] for kind in kinds]
    rows.append([f"all {len(trials)}", *(str(sum(one.outcome == outcome for one in trials)) for outcome in OUTCOMES)])
    head = ["fault, of whom", *OUTCOMES]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main(words: list[str] | None = None) -> int:
    """Run the trials and write a row for each; return 1 where one hung or could not be resumed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.sites", description=__doc__)
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(SUBJECTS), help="protocols")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no trial begins")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    given = parser.parse_args(words)
    protocols, end, trials = given.only.split(","), time.monotonic() + given.seconds, list[Trial]()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            sites = Sites(Path(folder))
        try:
            campaign = Campaign(sites, given.seed)
            for number in range(given.trials):
                if time.monotonic() > end:
                    break
                fault, target = CASES[(number + number // len(protocols)) % len(CASES)]
                trials.append(campaign.tell(number, protocols[number % len(protocols)], fault, target))
                print(json.dumps(asdict(trials[-1])), flush=True)
        finally:
            sites.end()
    if given.out is not None:
        given.out.write_text(json.dumps({"seed": given.seed, "trials": [asdict(one) for one in trials]}, indent=1))
    print(table(trials))
    return int(any(one.outcome in ("hung", "not resumable") for one in trials))


if __name__ == "__main__":
    sys.exit(main())
