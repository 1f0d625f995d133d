"""What a site tells those who operate it: lines, its status, and metrics as Prometheus reads them from a file.

    site.lock      held while a process of the site runs: there is one at a time
    status.json    what it does; written every few seconds, and when that changes

The file that ``metrics = "..."`` of site.toml names holds the same numbers, for node exporter's textfile collector.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors import __version__
from fedactors.errors import BadInput
from fedactors.runtime.federated.link import Connection, Traffic
from fedactors.validation import one_line, shown

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from fedactors.runtime.federated.folders import SiteFolder
    from fedactors.runtime.federated.site_run import SiteRun

STATUS, LOCK = "status.json", "site.lock"
EVERY_SECONDS = 5.0
SLOW_SECONDS = 5.0
"""A clock that differs by more is told."""
SOON_DAYS = 30
"""Days before its end from which on a certificate is said to end."""
_LONGEST = 1000

Tell = Callable[[str, str], None]
"""Takes the kind of what happened, and a line for people."""


def as_time(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


class Operations:
    """One process of a site, as those see it who operate it.

    Args:
        folder: of the site.
        say: takes each line, as ``{time, site, event, run, text}``.
    """

    def __init__(self, folder: SiteFolder, say: Callable[[dict[str, Any]], None]) -> None:
        self.run: SiteRun | None = None
        self._folder = folder
        self._say = say
        self._began = time.time()
        self._doing, self._since = "idle", self._began
        self._about: dict[str, str] = {}
        self._events: Counter[str] = Counter()
        self._traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._clocks: dict[str, float] = {}
        self._lock: int | None = None
        self._trouble: str | None = None
        self._certificate = ""

    # --- one process at a time ---

    def begin(self) -> None:
        """Take the site's lock.

        Raises:
            BadInput: a process of the site runs already, or its metrics cannot be written.
        """
        target = self._folder.metrics
        if target is not None and not os.access(target.parent, os.W_OK):
            raise BadInput(f"metrics: {shown(str(target))} is not allowed: its folder is not there or not writable")
        lock = _lock(self._folder.path)
        if lock is None:
            raise BadInput(f"--folder: a process of {self._folder.name} runs already; see fedactors site status")
        self._lock = lock

    def end(self) -> None:
        """Let go of the lock, which says that nobody runs."""
        if self._lock is not None:
            self._write()
            os.close(self._lock)
            self._lock = None

    # --- what happens ---

    def tell(self, event: str, text: str) -> None:
        """Say that something happened; others may have written some of the text."""
        self._events[event] += 1
        run = self._about.get("run")
        line = {"time": as_time(time.time()), "site": self._folder.name, "event": event, "run": run}
        self._say({**line, "text": one_line(text, _LONGEST)})
        self._write()

    def does(self, doing: str, **about: str) -> None:
        """Remember what the site does from now on: idle, asked, running."""
        if (doing, about) != (self._doing, self._about):
            self._doing, self._about, self._since = doing, about, time.time()
            self._write()

    def met(self, connection: Connection) -> None:
        """Remember how far another site's clock is from this one's, and tell if that is much."""
        peer, ahead = connection.peer, connection.clock_seconds
        was, self._clocks[peer] = self._clocks.get(peer, 0.0), ahead
        if abs(ahead) > SLOW_SECONDS >= abs(was):
            which = "ahead of" if ahead > 0 else "behind"
            self.tell("clock", f"the clock of {peer} is {abs(ahead):.1f} s {which} this site's")

    def traffic(self, peer: str) -> Traffic:
        """Return what counts the bytes to and from a site, since this process began."""
        return self._traffic[peer]

    def look(self) -> None:
        """Read anew what may have changed in the site's folder, and write the status."""
        folder = self._folder
        federation, trouble = folder.federation, folder.credentials.trouble
        own = federation.members[folder.name]
        if own.fingerprints[0] != self._certificate:
            is_new, self._certificate = bool(self._certificate), own.fingerprints[0]
            until = own.certificate.not_valid_after_utc
            facts = {"fingerprint": self._certificate, "until": until.isoformat()}
            if is_new:
                folder.audit.add("certificate", **facts)
                self.tell("certificate", f"a new certificate, until {until:%Y-%m-%d}")
            if self._days_left() < SOON_DAYS:
                self.tell("expires", f"the certificate ends on {until:%Y-%m-%d}: fedactors site renew")
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble is not None:
                self.tell("trouble", f"the federation of before goes on: {trouble}")
        self._write()

    # --- what is told ---

    def _days_left(self) -> float:
        own = self._folder.federation.members[self._folder.name].certificate
        return (own.not_valid_after_utc.timestamp() - time.time()) / 86_400.0

    def status(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        folder, run = self._folder, self.run
        federation = folder.federation
        own = federation.members[folder.name]
        found: dict[str, Any] | None = None
        if run is not None:
            sides = {"left": run.gate.left, "arrived": run.gate.arrived}
            crossed = {name: {"messages": side.messages(), "bytes": side.bytes()} for name, side in sides.items()}
            found = {**self._about, "stage": run.life.name.lower(), "crossed": crossed}
        elif self._about:
            found = {**self._about, "stage": "proposed", "crossed": None}
        return {
            "site": folder.name,
            "federation": federation.name,
            "version": __version__,
            "listen": folder.where,
            "started": as_time(self._began),
            "written": as_time(time.time()),
            "doing": self._doing if self._lock is not None else "stopped",
            "since": as_time(self._since),
            "run": found,
            "peers": {
                name: {
                    "sent_bytes": self._traffic[name].sent if name in self._traffic else 0,
                    "received_bytes": self._traffic[name].received if name in self._traffic else 0,
                    "clock_seconds": round(self._clocks[name], 3) if name in self._clocks else None,
                }
                for name in federation.members
                if name != folder.name
            },
            "events": dict(self._events),
            "certificate": {
                "fingerprint": own.fingerprints[0],
                "until": own.certificate.not_valid_after_utc.isoformat(),
                "days_left": round(self._days_left(), 1),
            },
            "trouble": self._trouble,
        }

    def _write(self) -> None:
        if self._lock is None:
            return
        status = self.status()
        part = self._folder.path / f".{STATUS}.part"
        with contextlib.suppress(OSError):  # a full disk ends no run: what is old says when it was written
            part.write_text(json.dumps(status))
            os.replace(part, self._folder.path / STATUS)
            if (target := self._folder.metrics) is not None:
                _write_metrics(target, status)


def read_status(folder: SiteFolder) -> dict[str, Any]:
    """Return what the site's process last wrote of itself; ``doing`` is "stopped" where none runs.

    Raises:
        BadInput: none ever ran.
    """
    path = folder.path / STATUS
    if not path.exists():
        raise BadInput(f"--folder: no process of {folder.name} ever ran: fedactors site start")
    found: dict[str, Any] = json.loads(path.read_text())
    lock = _lock(folder.path)
    if lock is not None:
        os.close(lock)
        found |= {"doing": "stopped", "since": found["written"]}
    return found


def _lock(folder: Path) -> int | None:
    """Take the lock of a site's processes; None: one has it."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


class _Collector:
    """A status as the families of metrics that Prometheus knows."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status
        site = {"site": status["site"], "federation": status["federation"]}

        def family(kind: Any, name: str, text: str, *values: tuple[Mapping[str, str], float]) -> Any:
            labels = [*site, *(values[0][0] if values else ())]
            made = kind(f"fedactors_site_{name}", text, labels=labels)
            for more, value in values:
                made.add_metric([*site.values(), *more.values()], value)
            return made

        def stamp(text: str) -> float:
            return datetime.fromisoformat(text).timestamp()

        run = status["run"] or {}
        peers = status["peers"].items()
        yield family(GaugeMetricFamily, "info", "The process of a site", ({"version": status["version"]}, 1.0))
        yield family(GaugeMetricFamily, "started_seconds", "When it began", ({}, stamp(status["started"])))
        yield family(GaugeMetricFamily, "written_seconds", "When this was written", ({}, stamp(status["written"])))
        stages = ("stopped", "idle", "asked", "running")
        doing = [({"doing": stage}, float(stage == status["doing"])) for stage in stages]
        yield family(GaugeMetricFamily, "doing", "What it does: 1 for one of these", *doing)
        since = ({"protocol": run.get("protocol", "")}, stamp(status["since"]))
        yield family(GaugeMetricFamily, "since_seconds", "Since when it does what it does", since)
        until = stamp(status["certificate"]["until"])
        yield family(GaugeMetricFamily, "certificate_until_seconds", "When its certificate ends", ({}, until))
        trouble = float(status["trouble"] is not None)
        yield family(GaugeMetricFamily, "trouble", "1: changed files of the site are not used", ({}, trouble))
        events = [({"event": name}, float(count)) for name, count in status["events"].items()]
        yield family(CounterMetricFamily, "events", "Lines of its log by kind, since it began", *events)
        for way in ("sent", "received"):
            values = [({"peer": name}, float(one[f"{way}_bytes"])) for name, one in peers]
            yield family(CounterMetricFamily, f"{way}_bytes", f"Bytes {way}, since it began", *values)
        clocks = [({"peer": n}, one["clock_seconds"]) for n, one in peers if one["clock_seconds"] is not None]
        yield family(GaugeMetricFamily, "clock_seconds", "How far a peer's clock is ahead", *clocks)


def _write_metrics(target: Path, status: Mapping[str, Any]) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status))
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(generate_latest(registry))
    part.chmod(0o644)  # node exporter is another user, and a site's umask leaves others nothing
    os.replace(part, target)
