"""The conformance kit between sites: a small run of a protocol whose parties share nothing but TLS.

Each site is a process of this machine, started as an organisation would start it, with a key, a log and data of its
own; the protocol is the one that is installed. What is said of it comes from what the sites themselves wrote down.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil

from fedactors.errors import BadInput, FedactorsError
from fedactors.inspection import describe_messages
from fedactors.plugins import find_protocol, resolve_address
from fedactors.runtime.addresses import free_port
from fedactors.runtime.federated.audit import AUDIT, check
from fedactors.runtime.federated.crossings import compare
from fedactors.runtime.federated.folders import SiteFolder
from fedactors.runtime.federated.proposal import decide, kept_proposals
from fedactors.testing.runs import Subject
from fedactors.testing.small_data import write_small_data

SITES = ("north", "south", "west")
"""What the sites are called, the one with the label first."""
_START_SECONDS = 90.0
_END_SECONDS = 30.0
_LOOK_SECONDS = 2.0
_BUSY_SHARE = 0.05
"""Of a core that a site may take which has nothing to do."""


@dataclass(frozen=True)
class Done:
    """How a command ended: its summary, or the line that it said instead."""

    summary: Mapping[str, Any] | None
    said: str


class Sites:
    """Sites of one federation in a folder, each of them a process.

    Args:
        folder: an empty one.
        names: of the sites.
        layout: of the data that they have.
    """

    def __init__(self, folder: Path, names: Sequence[str], layout: str) -> None:
        self.names = tuple(names)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        federation = str(folder / "federation")
        _type("federation", "init", federation)
        for name in names:
            home, address = str(folder / name), f"127.0.0.1:{free_port()}"
            _type("site", "init", name, "--folder", home, "--listen", address)
            _type("federation", "admit", federation, f"{home}/{name}.csr", "--address", address)
        for name in names:
            (folder / name / "federation.toml").write_text((folder / "federation/federation.toml").read_text())
        self.data = write_small_data(folder, names, layout)

    def start(self) -> None:
        """Start them, and wait until each listens.

        Raises:
            BadInput: one does not.
        """
        for name in self.names:
            with self.log(name).open("wb") as log:
                words = [sys.executable, "-u", "-m", "fedactors", "site", "start", "--folder", str(self.home(name))]
                self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, env=_environment())
        until = time.monotonic() + _START_SECONDS
        for name, process in self.processes.items():
            while "listens at" not in (said := self.log(name).read_text()):
                if process.poll() is not None or time.monotonic() > until:
                    raise BadInput(f"{name}: its site did not start: {_last(said)}")
                time.sleep(0.05)

    def home(self, name: str) -> Path:
        """Return the folder of a site."""
        return self._folder / name

    def log(self, name: str) -> Path:
        """Return the file of what a site's process says."""
        return self._folder / f"{name}.log"

    def simulate(self, subject: Subject) -> Done:
        """Run on the same data in one process."""
        return self._run(subject, "--runtime", "simulated", "--data", str(self._folder / "parties.toml"))

    def train(self, subject: Subject) -> Done:
        """Run between the sites; whoever is asked at them says yes."""
        federation = str(self.home(self.names[0]) / "federation.toml")
        is_over = threading.Event()
        person = threading.Thread(target=self._answer, args=(is_over,), daemon=True)
        person.start()
        try:
            return self._run(subject, "--federation", federation, "--data", self.data, "--share-seed")
        finally:
            is_over.set()
            person.join()

    def _answer(self, is_over: threading.Event) -> None:
        answered: set[tuple[str, str]] = set()
        while not is_over.wait(0.05):
            for name in self.names:
                folder = SiteFolder(self.home(name))
                for run, proposal in kept_proposals(folder).items():
                    if (name, run) not in answered:
                        answered.add((name, run))
                        with contextlib.suppress(BadInput):  # its coordinator went away
                            decide(folder, proposal, approved=True)

    def _run(self, subject: Subject, *where: str) -> Done:
        preset, given = ["--smoke"], subject.config
        if subject.site_config is not None:
            preset, given = [], subject.site_config
        settings = [f"{name}={_word(value)}" for name, value in given.items()]
        if hasattr(subject.made_at_sites(), "on_party_loss"):
            settings.append("on_party_loss=stop")  # the only one over a federation
        words = ["run", subject.protocol.name, *preset, *where, "--seed", str(subject.seed), *settings]
        words += ["--out", str(self._folder / "runs"), "--quiet", "--format", "json"]
        out, said = (self._folder / f"driver.{end}" for end in ("out", "err"))
        with out.open("wb") as to, said.open("wb") as errors:  # no pipes, which a process that is left would hold open
            command = [sys.executable, "-m", "fedactors", *words]
            driver = subprocess.Popen(command, env=_environment(), stdout=to, stderr=errors)
            try:
                code = driver.wait(_START_SECONDS + subject.timeout)
            except subprocess.TimeoutExpired:
                return Done(None, f"it had not ended after {_START_SECONDS + subject.timeout:g} s")
            finally:
                driver.kill()
                driver.wait()
        if code:
            lines = [line for line in said.read_text().splitlines() if line.startswith("fedactors: ")]
            return Done(None, (lines or [_last(said.read_text())])[0].removeprefix("fedactors: "))
        return Done(json.loads(out.read_text().splitlines()[-1]), "")

    def written(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a site's log, each checked."""
        folder = SiteFolder(self.home(name))
        return check(folder.path / AUDIT, folder.federation.members[name].certificate)

    def end(self) -> list[str]:
        """Ask all to end, and kill what they leave; return those that had to be killed themselves."""
        killed, left = [], []
        for process in self.processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                left += psutil.Process(process.pid).children(recursive=True)
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                killed.append(name)
                process.kill()
                process.wait()
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.processes.clear()
        return killed


def remarks_on_sites(subject: Subject) -> Iterator[str]:
    """Between sites a run gives what it gives in simulation, sends what is declared, and leaves its sites free."""
    try:
        installed = find_protocol(subject.protocol.name)
    except BadInput as error:
        yield f"a site runs what is installed there, and this is not: {error}"
        return
    if installed.actors is None or installed.load_data is None or installed.messages is None:
        yield "a site must know its actors, messages and data: give actors_at, messages_at and load_data_at"
        return
    with tempfile.TemporaryDirectory(prefix="fedactors-sites-") as place:
        sites = Sites(Path(place), SITES[: subject.num_sites], installed.partition)
        try:
            sites.start()
            yield from _remarks_on_runs(subject, sites, sites.simulate(subject), sites.train(subject))
            yield from _remarks_on_logs(subject, sites)
            yield from _remarks_on_what_goes_on(sites)
        finally:
            killed = sites.end()
        for name in killed:
            yield f"the site {name} had to be killed {_END_SECONDS:g} s after it was asked to end"


def _remarks_on_runs(subject: Subject, sites: Sites, simulated: Done, found: Done) -> Iterator[str]:
    if found.summary is None:
        yield f"between sites the smoke run does not end well: {found.said}"
    elif simulated.summary is None:
        yield f"on the data of the sites the smoke run does not end well in simulation: {simulated.said}"
    else:
        expected, metrics = simulated.summary["metrics"], found.summary["metrics"]
        for name in sorted({*expected, *metrics}):
            one, other = expected.get(name), metrics.get(name)
            most = 0.0 if subject.deterministic else subject.agree.get(name, math.inf)
            if not _alike(one, other, subject.relative if subject.deterministic else 0.0, most):
                yield f"{name} is {one} in simulation and {other} between sites: its result depends on where it runs"
        traffic = [(one["messages"], one["bytes"]) for one in (simulated.summary, found.summary)]
        if subject.deterministic and traffic[0] != traffic[1]:
            yield f"messages and bytes are {traffic[0]} in simulation and {traffic[1]} between sites"
    for name in sites.names:
        for line in sites.written(name):
            if line["what"] == "refused":
                yield f"the gate of {name} refused {line['party']}: {line['why']}"


def _alike(one: Any, other: Any, relative: float, absolute: float) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        both_undefined = math.isnan(one) and math.isnan(other)
        return both_undefined or math.isclose(one, other, rel_tol=relative, abs_tol=max(absolute, relative))
    return bool(one == other)


def _remarks_on_logs(subject: Subject, sites: Sites) -> Iterator[str]:
    logs = {name: sites.written(name) for name in sites.names}
    told = {entry["message"] for entry in describe_messages(subject.protocol, subject.made_at_sites())}
    for name, lines in logs.items():
        ends = [line for line in lines if line["what"] == "ended" and line.get("who") == "site"]
        if not ends:
            yield f"the log of {name} does not say how the run ended"
        for line in ends:
            if line["status"] != "finished":
                yield f"at {name} the run ended as {line['status']}: {line['why']}"
            for entry in line["left"]:
                if entry["type"] not in told and not entry["type"].endswith("()"):  # a call that carries nothing
                    yield f"{entry['type']} left {name} and `fedactors inspect` does not tell of it"
    for one, other in combinations(logs, 2):
        for run in compare(one, logs[one], other, logs[other]):
            yield from (f"the logs of {one} and {other} differ: {text}" for text in run.differences)


def _remarks_on_what_goes_on(sites: Sites) -> Iterator[str]:
    for name, process in sites.processes.items():
        if process.poll() is not None:
            yield f"the process of the site {name} is gone: {_last(sites.log(name).read_text())}"
            continue
        running = psutil.Process(process.pid)
        if children := running.children(recursive=True):
            yield f"at {name} {len(children)} processes go on after the run: {', '.join(c.name() for c in children)}"
        before = running.cpu_times()
        time.sleep(_LOOK_SECONDS)
        after = running.cpu_times()
        share = (after.user + after.system - before.user - before.system) / _LOOK_SECONDS
        if share > _BUSY_SHARE:
            yield f"the site {name} takes {100 * share:.0f} % of a core after the run: something of an actor goes on"


def _type(*words: str) -> None:
    """Do what a person types, without its text.

    Raises:
        FedactorsError: it did not work.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = resolve_address("fedactors.command_line.main:main")(list(words))
    if code:
        raise FedactorsError(f"fedactors {' '.join(words[:2])}: {_last(said.getvalue())}")


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
