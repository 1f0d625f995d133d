"""Faults between sites: three sites and a driver in processes of their own, one fault a run, gone on from to its end.

    python -m tests.campaign.sites --trials 140 --seed 2 --out docs/results/data/faults_and_returns.json

Every protocol meets every fault, with its noise or without; what is drawn is the moment. A run pauses
(``--return-timeout``), or is proposed anew (``--auto-resume``), or goes on without a site (``min_sites``). Where its
driver ended, the same command is given again, as systemd would. A trial ends as one of `OUTCOMES`: **hung** is a
driver, or a site, that is not free so many seconds after the fault; **not resumable** is a run that does not come to
its last round; **over before** is one that ended before its fault, and counts as none. What is wrong with a run that
came to its end (metrics, budgets, logs) stands in `Trial.wrong`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedactors.config import build
from fedactors.errors import FedactorsError
from fedactors.federation.approval import decide, kept_proposal
from fedactors.federation.operations import compare
from fedactors.federation.site_folder import in_all, spent
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.runs.folder import RunFolder
from fedactors.runtime.addresses import free_port
from tests.campaign.environment import Disk, whether_possible
from tests.campaign.expected import Absence, difference, outside, with_absences
from tests.campaign.faults import Fault, Later, faults
from tests.campaign.forks import Forked, Forks
from tests.federation.test_centers import SMALL as CENTERS
from tests.federation.test_centers import flags as catalogue
from tests.federation.test_centers import write_centers
from tests.federation.test_going_on import rounds_of
from tests.federation.test_runs import OF_THREE, SMALL, VERTICAL, parties_file
from tests.federation.ways import Way
from tests.federation.world import BANK, CLINIC, SHOP, World

LIMIT = 150.0
"""Seconds after a fault, or after the last round that a run recorded, within which a driver ends and sites are free."""
AWAY = 15.0
"""Seconds that sites wait for one that is away."""
ATTEMPTS = 3
"""To go on from a run: on a machine that is busy a site may be found away without any fault."""
ROUNDS, MANY_ROUNDS = 20, 120
"""The latter where the run goes on without a site, which comes back before the end."""
REFERENCES = 5
"""Undisturbed runs, of which the metrics of one more are to be expected."""
LEARNT = 0.6
"""Accuracy of a run that follows the clock, and has no other run to be compared with."""
BUDGET, ANNOUNCED = 1e9, 1e6
"""Epsilon of each site for all runs, and for one."""
DOCS = Path(__file__).parents[2] / "docs"
ROWS, PAGE = DOCS / "results" / "data" / "faults_and_returns.json", DOCS / "explanation" / "sites-security.md"
MARK = re.compile(r"(<!-- faults between sites -->\n).*?(<!-- end -->)", re.DOTALL)
CLOCK, COMPILER = Path(__file__).with_name("clock.c"), shutil.which("cc")
"""What is preloaded so that clocks show hours more, where it can be compiled."""


@dataclass(frozen=True)
class Subject:
    """A protocol as the campaign runs it."""

    words: tuple[str, ...]
    noise: tuple[str, ...]
    """What else it is given where its sites have budgets."""
    plain: tuple[str, ...] = ()
    """What else it is given where it adds no noise."""
    budgets: tuple[str, ...] = (SHOP, CLINIC)
    """Sites whose budget a run with noise takes from."""
    has_quorum: bool = False
    follows_clock: bool = False
    """Whether no two runs are equal."""


FEDAVG_NOISE = (
    "client_clip_norm=1.0", "client_noise_multiplier=1.0", "weighting=uniform", "standardisation=none", "model=linear",
    "local_baseline=false",
)  # fmt: skip
QUORUM = (f"num_rounds={MANY_ROUNDS}", "min_sites=2", "client_timeout=20", "quorum_timeout=60")
SUBJECTS = {
    "pubsub-vfl": Subject(
        (f"num_epochs={ROUNDS}", *SMALL[1:], "algorithm=vfl", "num_parties=3", "standardisation=none"),
        ("embedding_mu=4", "bottom_training=frozen"),
    ),
    "mtcd": Subject(
        (f"num_rounds={ROUNDS}", "num_clients=3", "relaxed_protocol=true", "num_tokens=1", "learning_rate=0.01"),
        ("problem=sparse-logistic", "noise=gaussian", "noise_multiplier=4", "clip_norm=1"),
        ("problem=ridge",),
    ),
    "glasu": Subject(
        (f"num_rounds={ROUNDS}", "num_clients=3", "evaluate_every=10", "hidden_size=8"),
        ("noise_multiplier=2", "clip_norm=1", "max_degree=60"),
        budgets=(),  # scores leave without noise
    ),
    "horizontal": Subject(
        (f"num_rounds={ROUNDS}", "secure_aggregation=true"), FEDAVG_NOISE, ("hidden_size=4",), (BANK, SHOP, CLINIC)
    ),
    "horizontal with a quorum": Subject(
        QUORUM, (), ("model=linear",), has_quorum=True,  # of three sites a secure sum needs all
    ),
    "tablepuppet": Subject(
        (f"num_rounds={ROUNDS}",), ("algorithm=rfl-sgd-v", "feature_dp=4.0", "label_dp=1.0"), ("algorithm=rfl-sgd",),
        budgets=(),  # its noise is of values, not of rows
    ),
    "nebulafl": Subject(
        (*(word for word in CENTERS if "interval" not in word and "duration" not in word), "duration=20",
         "rotation_interval=1", "evaluation_interval=1", "algorithm=fedavg-hierarchical", "secure_aggregation=true",
         "on_party_loss=stop"), (), budgets=(), follows_clock=True,
    ),
}  # fmt: skip
OUTCOMES = ("finished", "paused", "resumed", "started again", "hung", "not resumable", "over before")


@dataclass
class Trial:
    """What came of one run and its fault."""

    number: int
    protocol: str
    noise: bool
    flag: str
    """By which it goes on."""
    fault: str
    target: str
    moment: str = ""
    """After which round of the training, or so many seconds of the start, it struck."""
    codes: list[int] = field(default_factory=list)
    """Of the driver, and of those that went on."""
    seconds: float = 0.0
    outcome: str = ""
    wrong: str = ""
    """Metrics, budgets or logs of a run that came to its end."""
    message: str = ""
    """What the first driver said of it."""


class Sites(World):
    """Bank, shop and more, each a process that approves by policy; the shop is reached over a way that can break."""

    def __init__(self, folder: Path, more: tuple[str, ...] = (CLINIC,), *, small_disks: bool = False) -> None:
        names = (BANK, SHOP, *more)
        self.runs = folder / "runs"
        self.disks: dict[str, Disk] = {}
        for name in ("driver", BANK, SHOP) if small_disks else ():
            made = self.runs if name == "driver" else folder / name
            made.mkdir()
            self.disks[name] = Disk(made)
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
        self.runs.mkdir(exist_ok=True)
        self.prepare()
        self.started: dict[str, Forked] = {}
        self.env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._clock = folder / "clock"
        self._clock.write_bytes(bytes(8))
        if COMPILER is not None:
            made = folder / "clock.so"
            subprocess.run([COMPILER, "-shared", "-fPIC", "-o", made, CLOCK], check=True)
            self.env |= {"LD_PRELOAD": str(made), "CAMPAIGN_CLOCK": str(self._clock)}
        (folder / "said").mkdir()
        self.forks = Forks(folder / "said", self.env)
        for name in self.names:
            self.begin(name)

    def prepare(self) -> None:
        """Write what else the sites need, before they start."""
        write_centers(self)

    def begin(self, name: str) -> None:
        """Start a site, and wait until it listens."""
        site = self.started[name] = self.forks.start("site", "start", "--folder", str(self.path / name))
        listens = until(lambda: f"{name}: listens at" in site.out.read_text() or site.poll() is not None)
        assert listens
        assert site.poll() is None, site.communicate()

    def advance(self, hours: float) -> None:
        """Let the clocks of all sites and drivers show so many hours more."""
        with self._clock.open("r+b", buffering=0) as file:
            seconds = int.from_bytes(file.read(), sys.byteorder, signed=True) + round(hours * 3600)
            file.seek(0)
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def drive(self, *words: str, out: Path | None = None) -> Forked:
        """Start a driver at the bank."""
        flags = ("--federation", str(self.path / BANK / "federation.toml"), "--out", str(out or self.runs))
        return self.forks.start("run", *words, *flags, "--format", "json", "--quiet")

    def mend(self) -> None:
        """Bring back whoever is gone."""
        for name, site in list(self.started.items()):
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
        self.forks.stop()
        self.way.stop()
        for disk in self.disks.values():
            disk.remove()


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
    """One fault after another on the same sites.

    Args:
        sites: of all trials.
        seed: of what is drawn.
        noise: whether runs add noise, and take of their sites' budgets.
    """

    def __init__(self, sites: Sites, seed: int, *, noise: bool) -> None:
        self.sites, self._random, self._noise = sites, random.Random(f"{seed} {noise}"), noise
        self._references: dict[str, list[dict[str, Any]]] = {}
        self._charges: dict[str, dict[str, float]] = {}
        self._person = Person(sites)
        self._extra = {"nebulafl": catalogue(sites)}

    def stop(self) -> None:
        self._person.stop()

    def words(self, name: str) -> tuple[str, ...]:
        """Return the settings of a protocol."""
        subject = SUBJECTS[name]
        return (*subject.words, *(subject.noise if self._noise else subject.plain), *self._extra.get(name, ()))

    def command(self, name: str, flags: tuple[str, ...]) -> tuple[str, ...]:
        """Return what the bank's person types."""
        protocol = name.partition(" ")[0]
        data = OF_THREE.get(protocol, f"{VERTICAL},{CLINIC}=visits")
        sites = SUBJECTS[name].budgets if self._noise else ()
        budgets = [word for one in sites for word in ("--budget", f"{one}={ANNOUNCED:g}:1e-4")]
        seed = ("--share-seed", "--seed", "7")
        return (protocol, "--data", data, "--resume", "auto", *seed, *budgets, *flags, *self.words(name))

    def tell(self, number: int, name: str, fault: Fault, flag: str = "") -> Trial:
        """Do a trial."""
        sites, begun = self.sites, time.monotonic()
        pause = ("--return-timeout", "86400" if isinstance(fault, Later) else "120")
        flags: tuple[str, ...] = {"pause": pause, "auto": ("--auto-resume",)}.get(flag, ())
        trial = Trial(number, name, self._noise, flag, fault.name, fault.target)
        before, out = {one: len(sites.audit(one)) for one in sites.names}, sites.runs / f"trial-{number}"
        command = self.command(name, flags)
        for _ in range(ATTEMPTS):
            driver = sites.drive(*command, out=out)
            trial.moment = self._await(driver, out)
            if not driver.poll():  # on a machine that is busy it may have ended before its fault
                break
            sites.are_free()
            shutil.rmtree(out, ignore_errors=True)
        if driver.poll() is not None:
            trial.outcome = "over before"
        else:
            of_site = [] if fault.target == "driver" else [sites.started[self._site(fault)]]
            processes = [*of_site, *([driver] if fault.target in ("driver", "coordinator") else [])]
            fault.strike(sites, processes)
            time.sleep(fault.seconds)
            fault.mend(sites, processes)
            sites.mend()
        found = self._come_to_the_end(trial, driver, command, out)
        if found is not None and trial.outcome != "over before":
            trial.wrong = self._wrong(trial, found, before)
        if trial.outcome != "not resumable" and not trial.wrong:
            shutil.rmtree(out, ignore_errors=True)
        trial.seconds = round(time.monotonic() - begun, 1)
        return trial

    @staticmethod
    def _site(fault: Fault) -> str:
        return BANK if fault.target == "coordinator" else fault.target

    def _come_to_the_end(
        self, trial: Trial, driver: Forked, command: tuple[str, ...], out: Path
    ) -> dict[str, Any] | None:
        """Wait for the end of the run, and give its command again as often as it takes; return the run's last line."""
        sites, had_checkpoint = self.sites, False
        for attempt in range(1 + ATTEMPTS):
            if attempt:
                driver = sites.drive(*command, out=out)
            try:
                said, err = self._ended(driver, out)
            except subprocess.TimeoutExpired:
                trial.outcome = "hung"
                driver.kill()
                driver.communicate()
                sites.are_free()
                return None
            trial.codes.append(driver.returncode)
            if not attempt:
                trial.message = next((line for line in err.splitlines() if line.startswith("fed")), "")
            if not sites.are_free():
                trial.outcome = "hung"
                return None
            if driver.returncode == 0:
                found: dict[str, Any] = json.loads(said.splitlines()[-1])
                parts = len(run_folders(out))
                is_resumed = RunFolder.open(found["run"]).manifest["parent"] is not None
                if not trial.outcome:
                    first = "finished" if parts == 1 else "paused"
                    trial.outcome = first if not attempt else "resumed" if is_resumed else "started again"
                if had_checkpoint and not is_resumed:
                    trial.wrong = "the run had a checkpoint, and was begun anew"
                return found
            print(err.strip()[-600:], file=sys.stderr)
            had_checkpoint = any(map(checkpoints, run_folders(out)))
        trial.outcome = "not resumable"
        return None

    def _await(self, driver: Forked, out: Path) -> str:
        """Wait for the moment of the fault: a round of the training, or seconds of the start for one in eight."""
        if self._random.random() < 1 / 8:
            seconds = self._random.uniform(1.0, 8.0)
            time.sleep(seconds)
            return f"{seconds:.1f} s"
        least = self._random.randint(1, 5)

        def is_there() -> bool:
            new = run_folders(out)
            return driver.poll() is not None or any(checkpoints(path) and rounds(path) >= least for path in new)

        until(is_there, 4 * LIMIT)
        time.sleep(self._random.uniform(0.0, 0.2))
        return f"round {least}"

    def _ended(self, driver: Forked, out: Path) -> tuple[str, str]:
        """Wait until a driver ends, as long as its run goes on; return what it said.

        Raises:
            subprocess.TimeoutExpired: nothing happened within the limit.
        """

        def size() -> int:
            with contextlib.suppress(OSError):
                return sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
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

    # --- what is wrong with a run that came to its end ---

    def _wrong(self, trial: Trial, found: dict[str, Any], before: dict[str, int]) -> str:
        sites = self.sites
        lines = {name: sites.audit(name) for name in sites.names}
        runs = {line["run"] for line in lines[BANK][before[BANK] :] if line.get("run")}
        of_trial = {name: [line for line in log if line.get("run") in runs] for name, log in lines.items()}
        told = [trial.wrong, self._wrong_metrics(trial, found), *self._wrong_budgets(trial, found, of_trial)]
        for index, one in enumerate(sites.names):
            for other in sites.names[index + 1 :]:
                for each in compare(one, of_trial[one], other, of_trial[other]):
                    told += [f"{one} and {other}: {line}" for line in each.differences]
        return "; ".join(filter(None, told))

    def _wrong_metrics(self, trial: Trial, found: dict[str, Any]) -> str:
        subject, per_round = SUBJECTS[trial.protocol], rounds_of(found["run"])
        if subject.has_quorum:
            words = self.words(trial.protocol)
            config = build(HorizontalConfig, dict(word.split("=") for word in words))
            if len(per_round) != MANY_ROUNDS:
                return f"{len(per_round)} rounds of {MANY_ROUNDS}"
            absences = []
            for name in self.sites.names:
                away = [one["round"] for one in per_round if f"{name}/away" in one and one["sites"]]
                if away:
                    absences.append(Absence(name, trial.fault, (away[0] - 1) / MANY_ROUNDS, away[-1] / MANY_ROUNDS))
            file = parties_file(self.sites, "horizontal")
            key = repr(absences)
            if key not in self._references:
                self._references[key] = with_absences(config, file, absences, REFERENCES)
            return outside(found["metrics"], self._references[key])
        if subject.follows_clock:
            return "" if found["metrics"]["test/accuracy"] > LEARNT else f"{found['metrics']}: it has not learnt"
        expected = self.references(trial.protocol)
        if self._noise:
            return outside(found["metrics"], [one["metrics"] for one in expected])
        # masks are agreed upon anew where a run goes on
        has_masks = "secure_aggregation=true" in subject.words
        return difference(found, per_round, expected[0], rounds_of(expected[0]["run"]), traffic=not has_masks)

    def references(self, name: str) -> list[dict[str, Any]]:
        """Return the last lines of undisturbed runs, simulated."""
        if name in self._references:
            return self._references[name]
        protocol = name.partition(" ")[0]
        seeds = "7" if not self._noise else ",".join(map(str, range(REFERENCES)))
        words = ["run", protocol, "--runtime", "simulated", "--seeds", seeds, "--format", "json", "--quiet"]
        words += ["--data", str(parties_file(self.sites, protocol)), *self.words(name)]
        driver = self.sites.forks.start(*words, "--out", str(self.sites.path / "simulated"))
        said, err = driver.communicate(10 * LIMIT)
        assert driver.returncode == 0, err[-2000:]
        last = json.loads(said.splitlines()[-1])
        found = last.get("runs", [last])
        self._references[name] = found
        return found

    def undisturbed(self, name: str) -> dict[str, Any]:
        """Return the last line of a run between the sites, and note what it took of their budgets."""
        for _ in range(ATTEMPTS):
            before = {one: len(self.sites.audit(one)) for one in self.sites.names}
            folder = self.sites.runs / "undisturbed" / str(time.monotonic())
            driver = self.sites.drive(*self.command(name, ()), out=folder)
            out, err = driver.communicate(10 * LIMIT)
            assert self.sites.are_free()
            if driver.returncode == 0:
                break
        assert driver.returncode == 0, err[-2000:]
        self._charges[name] = {one: charged(self.sites.audit(one)[count:]) for one, count in before.items()}
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def _wrong_budgets(self, trial: Trial, found: dict[str, Any], lines: dict[str, list[dict[str, Any]]]) -> list[str]:
        """Return what is wrong with what the logs charge; see `Campaign.tell`.

        A site is charged for what left it: as much as an undisturbed run takes where the run neither paused nor was
        proposed anew, at least that elsewhere, and never more than was announced for each run.
        """
        subject = SUBJECTS[trial.protocol]
        if not (self._noise and subject.budgets):
            return []
        if trial.protocol not in self._charges:
            self.undisturbed(trial.protocol)
        told, num_proposed = [], len({line["run"] for log in lines.values() for line in log if line.get("run")})
        for name in subject.budgets:
            whole, epsilon = self._charges[trial.protocol][name], charged(lines[name])
            missed = sum(f"{name}/away" in one for one in rounds_of(found["run"])) if subject.has_quorum else 0
            # a round that it missed is not charged; in which it was lost its answer may have left
            least = whole * (1 - missed / MANY_ROUNDS) * (1 - 1e-9)
            most = whole * (1 + 1e-9) if trial.outcome == "finished" else num_proposed * ANNOUNCED
            if not least <= epsilon <= most:
                told.append(f"{name} is charged epsilon {epsilon:g}, of {least:g} to {most:g}")
        return told


def charged(lines: list[dict[str, Any]]) -> float:
    """Return the epsilon that lines of a log charge."""
    return max((in_all(taken).epsilon for taken in spent(lines).values()), default=0.0)


class Person:
    """Approves what is proposed to any site; a run that shares its seed waits for a person.

    Args:
        sites: all that they answer for.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites, self._is_over = sites, threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        folders = [self._sites.folder(name) for name in self._sites.names]
        answered: set[Path] = set()
        while not self._is_over.wait(0.2):
            for folder in folders:
                for file in sorted(set((folder.path / "proposals").glob("*[0-9a-f].json")) - answered):
                    proposal = kept_proposal(folder, file.stem)
                    if proposal is None:
                        continue
                    with contextlib.suppress(OSError):  # the disk is full
                        with contextlib.suppress(FedactorsError):  # it is answered, or its coordinator went away
                            decide(folder, proposal, approved=True)
                        answered.add(file)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)


def run_folders(out: Path) -> list[Path]:
    """Return the run folders of a trial."""
    return [path for path in out.iterdir() if (path / "manifest.json").exists()] if out.exists() else []


class WithBudgets(Sites):
    """Sites whose data have budgets, as far as the campaign's protocols take of them."""

    def prepare(self) -> None:
        super().prepare()
        for name in self.names:
            file = self.path / name / "site.toml"
            text = file.read_text()
            for kind in ("patients", "cases", "cured", "orders", "visits"):
                head = f"[data.{kind}]\n"
                text = text.replace(head, f"{head}budget = {{ epsilon = {BUDGET}, delta = 0.5 }}\n")
            for kind, rows in (("sales", "orders"), ("stays", "visits")):  # what reads the same file needs a budget too
                text = text.replace(f'[data.{kind}]\npath = "{rows}.csv"', f'[data.{kind}]\npath = "{kind}.csv"')
                if (file.with_name(f"{rows}.csv")).exists():
                    shutil.copy(file.with_name(f"{rows}.csv"), file.with_name(f"{kind}.csv"))
            file.write_text(text)


def read_trials() -> list[Trial]:
    """Return the trials of the page."""
    return [Trial(**row) for row in json.loads(ROWS.read_text())["trials"]]


def table(trials: list[Trial]) -> str:
    """Return outcomes by fault and by protocol, as a table of a page."""
    groups: dict[str, list[Trial]] = {}
    for one in trials:
        groups.setdefault(f"{one.fault}, {one.target}", []).append(one)
    for one in sorted(trials, key=lambda one: (one.protocol, one.noise)):
        groups.setdefault(f"{one.protocol}{', noise' if one.noise else ''}", []).append(one)
    groups["all"] = trials
    lines = [["", *OUTCOMES, "wrong"], ["---"] * (len(OUTCOMES) + 2)]
    for kind, group in groups.items():
        found = Counter(one.outcome for one in group)
        lines.append([kind, *(str(found[one]) for one in OUTCOMES), str(sum(bool(one.wrong) for one in group))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def render_page(page: Path) -> str:
    """Return a page with its table made anew."""
    return MARK.sub(lambda found: found[1] + table(read_trials()) + found[2], page.read_text())


def main(words: list[str] | None = None) -> int:
    """Run the trials and write a row for each; return 1 where one hung, could not be resumed, or is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.sites", description=__doc__)
    parser.add_argument("--trials", type=int, default=140)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(SUBJECTS), help="protocols")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no trial begins")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    parser.add_argument("--page", action="store_true", help="renew the table of the page, and run nothing")
    given = parser.parse_args(words)
    if given.page:
        PAGE.write_text(render_page(PAGE))
        return 0
    begun, trials, names = time.monotonic(), list[Trial](), given.only.split(",")
    has = {"clock": COMPILER is not None, "disk": whether_possible()["disk"] is None}
    lacks = {what for what, is_there in has.items() if not is_there}
    planned = plan(given.trials, names, [fault for fault in faults(AWAY) if fault.needs not in lacks])
    print(f"left out: {', '.join(sorted(lacks))}" if lacks else "every fault is possible", flush=True)
    for noise, share in ((True, 0.5), (False, 1.0)):
        end = begun + share * given.seconds
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            sites = (WithBudgets if noise else Sites)(Path(folder), small_disks="disk" not in lacks)
            campaign = Campaign(sites, given.seed, noise=noise)
            try:
                for number, name, fault, flag, is_noisy in planned:
                    if is_noisy != noise or time.monotonic() > end:
                        continue
                    trials.append(campaign.tell(number, name, fault, flag))
                    print(json.dumps(asdict(trials[-1])), flush=True)
                    if given.out is not None:
                        rows = [asdict(one) for one in sorted(trials, key=lambda one: one.number)]
                        given.out.write_text(json.dumps({"seed": given.seed, "trials": rows}, indent=1) + "\n")
            finally:
                campaign.stop()
                sites.end()
    print(table(trials), end="")
    return int(any(one.outcome in ("hung", "not resumable") or one.wrong for one in trials))


def plan(count: int, names: list[str], possible: list[Fault]) -> list[tuple[int, str, Fault, str, bool]]:
    """Return number, protocol, fault, flag and noise of each trial: fault after fault, each with all protocols."""
    planned = []
    for number in range(count):
        index, turn = number % len(names), number // len(names) % len(possible)
        name = names[index]
        subject = SUBJECTS[name]
        noise = bool(subject.noise) and (index + turn) % 2 == 0
        # a run that takes of a budget is not proposed anew: what was released after its checkpoint is not known
        is_anew = (index + turn) % 3 == 2 and not (noise and subject.budgets)
        flag = "auto" if subject.has_quorum or is_anew else "pause"
        planned.append((number, name, possible[turn], flag, noise))
    return planned


if __name__ == "__main__":
    sys.exit(main())
