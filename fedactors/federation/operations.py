"""What a site's operators need: its status and metrics, a check of the other sites, and what crossed to and from them.

    site.lock      held while a process of the site runs: there is one at a time
    status.json    what it does; written every few seconds, and when that changes

The file that ``metrics = "..."`` of site.toml names holds the same numbers, for node exporter's textfile collector.

A check dials another site and asks for its code and clock, and measures the link. It belongs to no run, needs nobody's
approval, and tells every site of the federation which version is installed. What crossed in a run stands in the signed
logs of both sites; `compare` says whether they agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedactors import __version__
from fedactors.actors.remote import DRIVER
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation.approval import source_digest
from fedactors.federation.audit_log import AUDIT, check, signed_last
from fedactors.federation.handshake import dial
from fedactors.federation.hosting import Gate
from fedactors.federation.identity import FEDERATION, Member
from fedactors.federation.session import (
    Admission,
    Connection,
    Hello,
    Limits,
    LineLimit,
    Pending,
    Serve,
    Traffic,
    value_of,
)
from fedactors.federation.site_folder import LONGEST_FEDERATION, SiteFolder
from fedactors.messages.codec import encode_parts
from fedactors.plugins import discover
from fedactors.runtime.failures import encode_error
from fedactors.validation import one_line, short_line, shown, writing

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from fedactors.federation.site_run import SiteRun

STATUS, LOCK = "status.json", "site.lock"
EVERY_SECONDS = 5.0
SLOW_SECONDS = 5.0
"""A clock that differs by more is told."""
SOON_DAYS = 30
"""Days before its end from which on a certificate is said to end."""
_LONGEST = 1000
_MOST_ROWS = 1000
_NUM_TRIES, _PAUSE_SECONDS = 5, 0.05
_STAGES = ("reserved", "proposed", "approved", "prepared", "connected", "loaded", "open", "closed")
_STATES = ("running", "awaiting_approval", "reserved")
"""Of a run, the furthest first."""

Tell = Callable[[str, str], None]
"""Takes the kind of what happened, and a line for people."""


def as_time(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


class ShownRun(NamedTuple):
    """A run that the site is busy with; `state` is reserved, awaiting_approval or running."""

    run: str
    coordinator: str
    protocol: str | None
    """None: its driver has proposed nothing yet."""
    state: str
    site_run: SiteRun | None = None


class Operations:
    """One process of a site, as its operators see it; `say` takes each line: ``{time, site, event, run, text}``."""

    def __init__(self, folder: SiteFolder, say: Callable[[dict[str, Any]], None]) -> None:
        self._folder = folder
        self._say = say
        self._began = time.time()
        self._since = self._began
        self._runs: dict[str, tuple[ShownRun, float]] = {}
        """By id, each with when it was first as it is."""
        self._events: Counter[str] = Counter()
        self._traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._clocks: dict[str, float] = {}
        self._lines: defaultdict[str, LineLimit] = defaultdict(LineLimit)
        """By site: whose links may break again and again."""
        self._lock: int | None = None
        self._queue: list[dict[str, Any]] = []
        self._config_errors: str | None = None
        self._certificate = ""
        self._version = 0

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
        for _ in range(_NUM_TRIES):  # a command that reads the status holds the lock for a moment
            if lock is not None:
                break
            time.sleep(_PAUSE_SECONDS)
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

    @property
    def _state(self) -> str:
        """What the site does: the furthest that one of its runs has come."""
        states = {shown.state for shown, _ in self._runs.values()}
        return next((state for state in _STATES if state in states), "idle")

    def tell(self, event: str, text: str, run: str | None = None) -> None:
        """Say that something happened, in a run or while the only one goes on; others may have written some of it."""
        self._events[event] += 1
        if run is None and len(self._runs) == 1:
            ((shown, _),) = self._runs.values()
            run = None if shown.protocol is None else shown.run
        line = {"time": as_time(time.time()), "site": self._folder.name, "event": event, "run": run}
        self._say({**line, "text": short_line(text, _LONGEST)})
        self._write()

    def tell_of(self, peer: str, event: str, text: str) -> None:
        """Say what a site, or a relay, makes happen as often as it likes, so many times a minute and a day."""
        if self.has_room_for(peer):
            self.tell(event, text)

    def has_room_for(self, peer: str) -> bool:
        """Count a line of what a site makes happen, if one may be written."""
        return self._lines[peer].take()

    def waiting(self, queue: list[dict[str, Any]]) -> None:
        """Remember which runs wait for their turn; see `run_queue.RunQueue.rows`."""
        if queue != self._queue:
            self._queue = queue
            self._write()

    def does(self, runs: Sequence[ShownRun]) -> None:
        """Remember which runs the site is busy with from now on."""
        now = time.time()
        before = {name: shown._replace(site_run=None) for name, (shown, _) in self._runs.items()}
        is_new = {one.run: one._replace(site_run=None) for one in runs} != before
        self._runs = {
            one.run: (one, self._runs[one.run][1] if before.get(one.run) == one._replace(site_run=None) else now)
            for one in runs
        }
        if is_new:
            self._since = now
            self._write()

    def met(self, connection: Connection) -> None:
        """Remember how far another site's clock is from this one's, and tell if that is much."""
        peer, ahead = connection.peer, connection.clock_seconds
        was, self._clocks[peer] = self._clocks.get(peer, 0.0), ahead
        if abs(ahead) > SLOW_SECONDS >= abs(was):
            which = "ahead of" if ahead > 0 else "behind"
            self.tell_of(peer, "clock", f"the clock of {peer} is {abs(ahead):.1f} s {which} this site's")

    def traffic(self, peer: str) -> Traffic:
        """Return what counts the bytes to and from a site, since this process began."""
        return self._traffic[peer]

    def look(self) -> None:
        """Read anew what may have changed in the site's folder, and write the status."""
        folder = self._folder
        federation, config_errors = folder.federation, folder.config_errors
        local = federation.members[folder.name]
        if local.fingerprints[0] != self._certificate:
            is_new, self._certificate = bool(self._certificate), local.fingerprints[0]
            until = local.certificate.not_valid_after_utc
            facts = {"fingerprint": self._certificate, "until": until.isoformat()}
            if is_new:
                folder.audit.add("certificate", **facts)
                self.tell("certificate", f"a new certificate, until {until:%Y-%m-%d}")
            if self._days_left() < SOON_DAYS:
                self.tell("expires", f"the certificate ends on {until:%Y-%m-%d}: fedactors site renew")
        if federation.version > self._version:
            if self._version:
                self.tell("federation", f"{FEDERATION} is version {federation.version} now, {self._version} before")
            self._version = federation.version
        if config_errors != self._config_errors:
            self._config_errors = config_errors
            if config_errors is not None:
                self.tell("config_errors", f"the federation of before goes on: {config_errors}")
        self._write()

    # --- what is told ---

    def _days_left(self) -> float:
        local = self._folder.federation.members[self._folder.name].certificate
        return (local.not_valid_after_utc.timestamp() - time.time()) / 86_400.0

    def status(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        folder = self._folder
        federation = folder.federation
        local = federation.members[folder.name]
        return {
            "site": folder.name,
            "federation": federation.name,
            "version": __version__,
            "listen": folder.where,
            "started": as_time(self._began),
            "written": as_time(time.time()),
            "state": self._state if self._lock is not None else "stopped",
            "since": as_time(self._since),
            "runs": [self._shown(one, since) for one, since in self._runs.values() if one.protocol is not None],
            "queue": [{**row, "since": as_time(row["since"])} for row in self._queue],
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
            "federation_version": federation.version,
            "federation_signed": federation.is_signed,
            "federation_digest": hashlib.sha256(folder.federation_file.encode()).hexdigest(),
            "certificate": {
                "fingerprint": local.fingerprints[0],
                "until": local.certificate.not_valid_after_utc.isoformat(),
                "days_left": round(self._days_left(), 1),
            },
            "config_errors": self._config_errors,
        }

    def _shown(self, one: ShownRun, since: float) -> dict[str, Any]:
        """Return how far a run has come, JSON-ready."""
        about = {"run": one.run, "protocol": one.protocol, "coordinator": one.coordinator, "since": as_time(since)}
        if (run := one.site_run) is not None:
            sides = {"left": run.gate.left, "arrived": run.gate.arrived}
            crossed = {
                name: {"messages": side.messages(), "bytes": side.bytes(), "rows": _greatest(run.gate.crossed(side))}
                for name, side in sides.items()
            }
            return {**about, "stage": run.life.name.lower(), "crossed": crossed, "waits": run.waits()}
        is_reserved, me = one.state == "reserved", self._folder.name
        pair = {"who": me, "for": one.coordinator} if is_reserved else {"who": one.coordinator, "for": me}
        what = "its driver, until its other sites are free" if is_reserved else "its answer to the proposal"
        waits = [{**pair, "what": what, "replies": None, "seconds": round(time.time() - since, 1)}]
        return {**about, "stage": "reserved" if is_reserved else "proposed", "crossed": None, "waits": waits}

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


def _greatest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what crossed by sender, receiver and type, the most bytes first; of very many those with the most."""
    return sorted((row for row in rows if row["from"] != row["to"]), key=lambda row: -row["bytes"])[:_MOST_ROWS]


def read_status(folder: SiteFolder) -> dict[str, Any]:
    """Return what the site's process last wrote of itself; ``state`` is "stopped" where none runs.

    Raises:
        BadInput: none ever ran.
    """
    path = folder.path / STATUS
    if not path.exists():
        raise BadInput(f"--folder: no process of {folder.name} ever ran: fedactors site start")
    found: dict[str, Any] = {"runs": [], **json.loads(path.read_text())}  # an older version wrote another key
    lock = _lock(folder.path)
    if lock is not None:
        os.close(lock)
        found |= {"state": "stopped", "since": found["written"]}
    return found


def last_queue(folder: SiteFolder) -> list[dict[str, Any]]:
    """Return which runs waited when the site's process last wrote of itself, and since when."""
    try:
        rows = json.loads((folder.path / STATUS).read_text())["queue"]
        return [{"run": str(row["run"]), "since": datetime.fromisoformat(row["since"]).timestamp()} for row in rows]
    except (OSError, ValueError, LookupError, TypeError):  # of an older version, or none ever ran
        return []


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

        peers = status["peers"].items()
        yield family(GaugeMetricFamily, "info", "The process of a site", ({"version": status["version"]}, 1.0))
        yield family(GaugeMetricFamily, "started_seconds", "When it began", ({}, stamp(status["started"])))
        yield family(GaugeMetricFamily, "written_seconds", "When this was written", ({}, stamp(status["written"])))
        states = ("stopped", "idle", *reversed(_STATES))
        state = [({"state": name}, float(name == status["state"])) for name in states]
        yield family(GaugeMetricFamily, "state", "What it does: 1 for one of these", *state)
        version: tuple[dict[str, str], float] = ({}, float(status["federation_version"]))
        stages = Counter(run["stage"] for run in status["runs"]) if status["state"] != "stopped" else Counter()
        busy = [({"stage": name}, float(stages[name])) for name in _STAGES]
        yield family(GaugeMetricFamily, "runs", "Runs that it is busy with, by how far they have come", *busy)
        queued: tuple[dict[str, str], float] = ({}, float(len(status["queue"])))
        yield family(GaugeMetricFamily, "queued_runs", "Runs that wait for their turn", queued)
        yield family(GaugeMetricFamily, "federation_version", "Version of the federation's file", version)
        protocols = sorted({run["protocol"] for run in status["runs"]})
        protocol = protocols[0] if len(protocols) == 1 else ""
        since = ({"protocol": protocol}, stamp(status["since"]))
        yield family(GaugeMetricFamily, "since_seconds", "Since when it does what it does", since)
        until = stamp(status["certificate"]["until"])
        yield family(GaugeMetricFamily, "certificate_until_seconds", "When its certificate ends", ({}, until))
        config_errors = float(status["config_errors"] is not None)
        yield family(
            GaugeMetricFamily, "config_errors", "1: changed files of the site are not used", ({}, config_errors)
        )
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
    # others may write in that folder: a link of theirs leads to no file of this site
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(generate_latest(registry))
        part.chmod(0o644)  # node exporter is another user, and a site's umask leaves others nothing
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


# --- what answers over HTTP, for operators and applications of the own organisation ---


class BoundedServer(ThreadingHTTPServer):
    """An HTTP server with so many connections that wait for a request, and as many that are answered, at a time.

    Where another one comes, the oldest that waits makes room, as at a site: silence keeps nobody out.
    """

    daemon_threads = True
    allow_reuse_address = True
    most_connections = 32

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], flag: str) -> None:
        try:
            super().__init__(address, handler)
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or error
            raise BadInput(f"{flag}: {address[0]}:{address[1]} cannot be listened at: {said}") from None
        self.port = int(self.server_address[1])
        self._free = threading.BoundedSemaphore(self.most_connections)
        self._waiting = Admission(lambda *_: None, self.most_connections)
        self._pending: dict[Any, Pending] = {}
        self._changing = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread."""
        self._waits(request, client_address)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._waits_no_more(request)

    def _waits(self, request: Any, client_address: Any) -> None:
        with self._changing:
            self._pending[request] = self._waiting.comes(client_address[0], functools.partial(_end, request))

    def _waits_no_more(self, request: Any) -> None:
        with self._changing:
            if (pending := self._pending.pop(request, None)) is not None:
                self._waiting.goes(pending)

    @contextlib.contextmanager
    def heard(self, request: Any, client_address: Any) -> Iterator[None]:
        """Let somebody who showed the token stay while the block lasts.

        Raises:
            Refusal: as many as may be are answered already.
        """
        if not self._free.acquire(blocking=False):
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{self.most_connections} are answered already: ask again")
        self._waits_no_more(request)
        try:
            yield
        finally:
            self._waits(request, client_address)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Answer in a thread while the block lasts."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join(10)
            self.server_close()


def _end(request: Any) -> None:
    with contextlib.suppress(OSError):  # its thread closes it
        request.shutdown(socket.SHUT_RDWR)


def check_framing(headers: Message) -> None:
    """Check that nobody takes another part of what a connection says for its next request than we do.

    Raises:
        Refusal: a proxy could see the end of the request elsewhere.
    """
    if headers.defects or "Transfer-Encoding" in headers or len(headers.get_all("Content-Length", [])) > 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, "give plain headers, and one Content-Length")


@contextlib.contextmanager
def token_in(file: Path) -> Iterator[str]:
    """Return a new token, which is in a file for its owner alone while the block lasts."""
    token, part = secrets.token_urlsafe(32), file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    with writing("token", file):
        with open(part, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as opened:
            opened.write(f"{token}\n")
        os.replace(part, file)
    try:
        yield token
    finally:
        with contextlib.suppress(OSError):
            if file.read_text().strip() == token:  # else it is another process's
                file.unlink()


class Refusal(Exception):
    """A request that is not answered: its HTTP status, and why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


# --- whether the others can be worked with ---

CHECKING = "check"
_MIB = 1 << 20
_NUM_CALLS, _NUM_MIB = 20, 16
QUESTION_BYTES, _ANSWER_BYTES = 4096, 1024 * 1024
"""Of a question of a few values, and of what a site says of its code."""
CHECK_BYTES = _NUM_MIB * _MIB
"""Of a message at most; twice as many may be under way."""
CHECK_CALLS = 256
"""Of one connection, of which a check makes fewer than 50: each takes time that a run of others waits for."""


@functools.cache  # a process goes on with the code that it has loaded
def installed() -> dict[str, str]:
    """Return the digest of each protocol's code that is installed here, by its name."""
    return {one.name: source_digest(one.protocol) for one in discover() if one.protocol is not None}


def answer_checks(peer: str, folder: SiteFolder) -> Serve:
    """Return what becomes of a site's questions.

    Bytes are counted, None is answered with the code that is here, and FEDERATION with the federation's file.
    """

    async def serve(body: memoryview) -> Any:
        value = value_of(body, peer, most=QUESTION_BYTES)  # beside the content of an array
        if isinstance(value, bytes | np.ndarray):
            return len(value) if isinstance(value, bytes) else value.nbytes
        if type(value) is str and value == FEDERATION:
            return folder.federation_file
        if value is not None:
            raise Refused(peer, "asks an invalid question in a check")
        return __version__, tuple((await asyncio.to_thread(installed)).items())

    return serve


async def check_site(folder: SiteFolder, member: Member, local: dict[str, str], limits: Limits) -> dict[str, Any]:
    """Return what is known of another site, JSON-ready; ``problem`` is None where a run could begin.

    `local` is the code that is `installed` here.
    """
    facts: dict[str, Any] = {"site": member.name, "address": member.where, "problem": None}
    until = member.certificate.not_valid_after_utc
    facts |= {"certificate_until": until.isoformat(), "version": None, "other_code": None, "clock_seconds": None}
    facts |= {"round_trip_ms": None, "mb_per_second": None}
    lost: list[str] = []
    ends = {"serve": None, "lost": lambda _, why: lost.append(why), "errors": lambda e: encode_error(folder.name, e)}
    try:
        hello = Hello(folder.federation.name, CHECKING, "", "")
        connection = await dial(folder, member, hello, replace(limits, away=0.0), **ends)
        try:
            async with asyncio.timeout(limits.call):
                facts |= {"clock_seconds": round(connection.clock_seconds, 3), **await measure(connection)}
                version, others = _code(member.name, await connection.ask(None, "its code", most=_ANSWER_BYTES))
        finally:
            await connection.end()
    except TimeoutError:
        return {**facts, "problem": f"gave no answer within {limits.call:g} s"}
    except FedactorsError as error:
        return {**facts, "problem": str(error)}
    differ = sorted(name for name, digest in local.items() if others.get(name) != digest)
    facts |= {"version": version, "other_code": differ}
    if len(differ) == len(local):
        which = f"version {shown(version)}, here {__version__}"
        facts["problem"] = f"has other code: {which}: install the same wheel at both"
    return facts


async def fetch_federation(folder: SiteFolder, member: Member, limits: Limits) -> bool:
    """Ask another site for its file of the federation, and say whether it was newer, and taken.

    Raises:
        BadInput: it is not to be taken.
        PartyLost, Refused: it is not to be had.
    """
    ends = {"serve": None, "lost": lambda *_: None, "errors": lambda e: encode_error(folder.name, e)}
    hello = Hello(folder.federation.name, CHECKING, "", "")
    few = replace(limits, away=0.0, call=limits.handshake, message=4 * LONGEST_FEDERATION)
    connection = await dial(folder, member, hello, few, **ends)
    try:
        text = await connection.ask(FEDERATION, "its federation.toml", most=4 * LONGEST_FEDERATION)
    finally:
        await connection.end()
    if type(text) is not str:
        raise Refused(member.name, "answers with no federation.toml")
    return folder.take_over(text, member.name)


def _code(site: str, found: Any) -> tuple[str, dict[str, str]]:
    match found:
        case (str(version), tuple(pairs)) if all(
            type(pair) is tuple and [type(part) for part in pair] == [str, str] for pair in pairs
        ):
            return one_line(version), dict(pairs)
    raise Refused(site, "does not say which code it has")


async def measure(connection: Connection) -> dict[str, float]:
    """Return how long a call takes, the median, and how many megabytes a second arrive."""
    taken = []
    for _ in range(_NUM_CALLS):
        begun = time.perf_counter()
        await connection.ask(b"", "a call", most=QUESTION_BYTES)
        taken.append(time.perf_counter() - begun)
    begun, block = time.perf_counter(), encode_parts(np.zeros(_MIB, np.uint8))
    await asyncio.gather(*(connection.request(block, "a megabyte") for _ in range(_NUM_MIB)))
    rate = _NUM_MIB * _MIB / 1e6 / (time.perf_counter() - begun)
    return {"round_trip_ms": round(sorted(taken)[len(taken) // 2] * 1e3, 3), "mb_per_second": round(rate, 1)}


# --- what crossed in a run, and whether the logs agree ---

_COUNTED = {"from": str, "to": str, "sender": str, "receiver": str, "type": str, "messages": int, "bytes": int}

Log = Sequence[Mapping[str, Any]]
CrossedMessage = tuple[str, str, str]
"""Sender, receiver and type of messages."""


def log_end(
    folder: SiteFolder, run: str, status: str, gate: Gate, why: str = "", who: str = "site", **facts: Any
) -> None:
    """Write to a site's log how a run ended and what crossed to and from other sites."""
    crossed = {
        name: [entry for entry in gate.crossed(ledger) if entry["from"] != entry["to"]]
        for name, ledger in (("left", gate.left), ("arrived", gate.arrived))
    }
    folder.audit.add("ended", run=run, who=who, status=status, why=why, **facts, **crossed)


def learned(folder: Path, run: str, side: Literal["arrived", "left"] = "arrived") -> list[dict[str, Any]]:
    """Return what crossed to a site from others in a run, or left it, as its own log has it (the driver's included)."""
    lines = (line for line in SiteFolder(folder).log() if line["what"] == "ended" and line["run"] == run)
    return [entry for line in lines for entry in line[side]]


def agree(folders: dict[str, Path], run: str) -> bool:
    """Say whether the logs of all sites of a run agree on what crossed between them."""
    with contextlib.suppress(KeyError):
        left, arrived = (
            sorted(tuple(entry.values()) for folder in folders.values() for entry in learned(folder, run, side))
            for side in ("left", "arrived")
        )
        return bool(left) and left == arrived
    return False


def read_others(folder: SiteFolder, path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return whose log another site's is, and its lines, each checked as `SiteFolder.log` does.

    Raises:
        BadInput: it is of no other site of the federation, or a line of it is not what that site wrote there.
    """
    if not path.is_file():
        raise BadInput(f"--against: {shown(str(path))} is not there: give another site's {AUDIT}")
    others = [one for name, one in folder.federation.members.items() if name != folder.name]
    known = {one: made.name for made in others for one in (made.certificate, made.previous) if one is not None}
    signer = signed_last(path, known)
    if signer is None:
        raise BadInput(f"{path}: its last line is signed by no other site of {folder.federation.name}")
    return known[signer], check(path, signer)


@dataclass(frozen=True)
class Compared:
    """One run, as the logs of two sites have what crossed between them."""

    run: str
    verdict: Literal["agree", "cut", "differ"]
    """Which is "cut" where the run did not come to its end (or goes on), and nothing arrived that did not leave."""
    messages: int
    """That left either of the two for the other."""
    bytes: int
    differences: tuple[str, ...]


def compare(site: str, lines: Log, other: str, others: Log) -> list[Compared]:
    """Return what the checked logs of two sites say of each run that is in both or ended in one, oldest first.

    In a run that came to its end at one of them, what left one must have arrived at the other, whatever that one says
    of its own end. In one that was cut, what left may be lost on the way; what never left cannot arrive, unless the
    site that sent it was killed and came back (`_has_gap`). Both logs must tell that it was cut, or that they were
    apart: of one alone it may be an excuse. A site that was away when the other one finished has no end to write.

    Raises:
        BadInput: a line is signed by its site, and is not what a site writes.
    """
    ends = {site: _of_runs(site, lines), other: _of_runs(other, others)}
    runs = [run for run in dict.fromkeys((*ends[site], *ends[other])) if run in ends[site] and run in ends[other]]
    # one of the two may have lost the end of its log, and with it the run
    runs += [
        run
        for one, far in ((site, other), (other, site))
        for run in ends[one]
        if run not in ends[far] and any(far in (e["from"], e["to"]) for line in ends[one][run] for e in _all(line))
    ]
    gaps = {(name, run) for name, log in ((site, lines), (other, others)) for run in runs if _has_gap(log, run)}
    cut = {
        run
        for run in runs
        if all(
            (one, run) in gaps
            or _was_apart(log, run, far)
            or _came_back(log, run)
            or all(line["status"] != "finished" for line in ends[one].get(run, []))
            for one, log, far in ((site, lines, other), (other, others, site))
        )
    }
    absent = {
        run
        for run in runs
        for one, theirs in ((site, others), (other, lines))
        if not ends[one].get(run) and _is_away(theirs, run, one)
    }
    return [
        _compared(
            run, site, ends[site].get(run, []), other, ends[other].get(run, []), gaps,
            was_cut=run in cut, is_absent=run in absent,
            lost_driver=_lost_driver(lines, run) or _lost_driver(others, run),
        )
        for run in runs
    ]  # fmt: skip


def _was_apart(lines: Log, run: str, other: str) -> bool:
    """Say whether a site went on in a run without another one."""
    return any(line["what"] == "away" and line.get("run") == run and line.get("site") == other for line in lines)


def _is_away(lines: Log, run: str, other: str) -> bool:
    """Say whether another site had not come back to a run by the end of the log."""
    said = [line["what"] for line in lines if line.get("run") == run and line.get("site") == other]
    return next((what == "away" for what in reversed(said) if what in ("away", "returned")), False)


def _came_back(lines: Log, run: str) -> bool:
    """Say whether a site was gone from a run and came back to it: what was under way meanwhile is lost."""
    return any(line["what"] == "returned" and line.get("run") == run and "site" not in line for line in lines)


def _has_gap(lines: Log, run: str) -> bool:
    """Say whether a site has not written how a run ended there: its process was killed, or its disk was full.

    It came back to the run without having written it, or all that is written is of its driver, which is another
    process, or of attempts to come back that opened nothing.
    """
    ends = [line for line in lines if line.get("run") == run and line["what"] == "ended"]
    if ends and all(line.get("who") == DRIVER or not line.get("was_open", True) for line in ends):
        return True
    written = 0
    for line in lines:
        if line.get("run") == run and line.get("who") != DRIVER:
            if line["what"] == "returned" and "site" not in line:
                if written == 0:
                    return True
                written = 0
            written += line["what"] == "ended"
    return False


def _lost_driver(lines: Log, run: str) -> bool:
    """Say whether a run that paused went on before its driver had written what it knew: it was killed."""
    is_told = False
    for line in lines:
        if line.get("run") == run:
            if line["what"] == "ended" and line.get("who") == DRIVER:
                is_told |= bool(line["left"] or line["arrived"])  # else it only tried to go on
            elif line["what"] == "reopened":
                if not is_told and any(one.get("who") == DRIVER and one.get("run") == run for one in lines):
                    return True
                is_told = False
    return False


def _of_runs(site: str, lines: Log) -> dict[str, list[Mapping[str, Any]]]:
    """Return the lines that say how each run ended at a site; none where one was proposed and no end is written."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["what"] in ("approved", "ended"):
            found.setdefault(str(line.get("run")), [])
        if line["what"] == "ended":
            is_sound = isinstance(line.get("status"), str) and all(
                isinstance(line.get(side), list) and all(_is_entry(entry) for entry in line[side])
                for side in ("left", "arrived")
            )
            if not is_sound:
                raise BadInput(f"the log of {site}: line {line.get('number')} does not say how a run ended")
            found[str(line.get("run"))].append(line)
    return found


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in _COUNTED.items())


def _all(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*line["left"], *line["arrived"]]


def _compared(
    run: str,
    site: str,
    lines: Log,
    other: str,
    others: Log,
    gaps: Set[tuple[str, str]],
    *,
    was_cut: bool,
    is_absent: bool,
    lost_driver: bool,
) -> Compared:
    both = (*lines, *others)
    is_whole = bool(both) and all(line["status"] == "finished" for line in both) and not is_absent
    differences: list[str] = []
    total: Counter[str] = Counter()
    for one, its, far, fars in ((site, lines, other, others), (other, others, site, lines)):
        if not its:
            if is_whole:
                differences.append(f"{one}'s log has no end of it, and {far}'s says that it finished")
            continue
        if not fars:
            continue
        left, arrived = _totals(its, "left", one, far), _totals(fars, "arrived", one, far)
        for key in sorted({*left, *arrived}):
            if DRIVER in key and not is_whole and (lost_driver or all(line.get("who") != DRIVER for line in both)):
                continue  # a driver was killed before it could write what it knew
            (sent_here, size), (taken, taken_size) = left.get(key, (0, 0)), arrived.get(key, (0, 0))
            total["messages"] += sent_here
            total["bytes"] += size
            # of a process that was killed nobody knows what left it; what it took is not missed either
            is_lost = was_cut and ((sent_here >= taken and size >= taken_size) or (one, run) in gaps)
            if (sent_here, size) != (taken, taken_size) and not is_lost:
                sender, receiver, type_ = (one_line(part, 80) for part in key)
                differences.append(
                    f"{type_} from {sender} to {receiver}: {one} says that {sent_here} left, of {size} bytes; "
                    f"{far} that {taken} arrived, of {taken_size}"
                )
    verdict: Literal["agree", "cut", "differ"] = "differ" if differences else "agree" if is_whole else "cut"
    return Compared(one_line(run, 40), verdict, total["messages"], total["bytes"], tuple(differences))


def _totals(lines: Log, side: str, sender: str, receiver: str) -> dict[CrossedMessage, tuple[int, int]]:
    found: dict[CrossedMessage, tuple[int, int]] = {}
    for line in lines:
        for entry in line[side]:
            if (entry["from"], entry["to"]) == (sender, receiver):
                key = entry["sender"], entry["receiver"], entry["type"]
                messages, size = found.get(key, (0, 0))
                found[key] = messages + entry["messages"], size + entry["bytes"]
    return found
