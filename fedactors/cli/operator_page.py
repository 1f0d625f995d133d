"""A page about one site for its operator, on this machine's loopback: ``fedactors site status --web``.

    browser ──GET /, /run/ID──────▶ Handler: Host, token ──▶ Source: what the commands print
    browser ──POST /run/ID/answer─▶ Handler: Host, token, Origin, form ──▶ Source.answer, as `site approve` and `reject`

Every request needs the token, as the password of HTTP's basic authentication: a browser keeps that for this address and
port, and sends it to no other one. An answer also needs the Origin of this page, against forms of other pages, and a
code that only the page of this very proposal holds. Host must name the loopback, against names that are bound anew to
it. The page has no script and loads nothing; whatever others wrote is escaped.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import html
import re
import threading
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

from fedactors.errors import BadInput, FedactorsError
from fedactors.federation.operations import BoundedServer, Refusal, check_framing, token_in
from fedactors.runs.progress import format_bytes
from fedactors.validation import one_line, shown, without_controls

LOOPBACK = "127.0.0.1"
TOKEN_FILE = "web.token"
_REFRESH_SECONDS = 5
_IDLE_SECONDS = 10.0
"""That a client may take to send its request."""
_MOST_FORM = 16 * 1024
_MOST_RUNS = 50
_LONGEST_WHY = 300
_RUN = re.compile(r"/run/([0-9a-f]{16})(/answer)?")
_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1f2937;--soft:#5b6472;--grid:#e5e7eb;--card:#f6f7f9;--link:#1d4ed8}
:root{--good:#047857;--bad:#b91c1c;--wait:#92400e}
@media(prefers-color-scheme:dark){:root{--page:#111827;--ink:#e5e7eb;--soft:#a3abb8;--grid:#374151;--card:#1f2937}
:root{--link:#93c5fd;--good:#6ee7b7;--bad:#fca5a5;--wait:#fcd34d}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:1rem;font:16px/1.5 system-ui,sans-serif}
body{background:var(--page);color:var(--ink);overflow-wrap:break-word}a{color:var(--link)}
h1,h2,p,code{overflow-wrap:anywhere}h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.soft{color:var(--soft);font-size:.875rem}
.state{display:inline-block;padding:.05rem .6rem;border-radius:1rem;border:1px solid;font-size:.875rem}
.good{color:var(--good)}.bad{color:var(--bad)}.wait{color:var(--wait)}
.card{background:var(--card);border:1px solid var(--grid);border-radius:.5rem;padding:.7rem 1rem;margin:.6rem 0}
.table{overflow-x:auto}.table+.table{margin-top:1.2rem}table{border-collapse:collapse;font-size:.875rem;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--grid)}
th{font-weight:600;white-space:nowrap}td.number,th.number{text-align:right;white-space:nowrap}
td{min-width:4rem}td.wide{min-width:14rem}meter{width:6rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card)}
pre{border:1px solid var(--grid);border-radius:.5rem;padding:.8rem}
.line{display:block;min-height:1.5em;padding-left:2rem;text-indent:-2rem}
pre{font-size:.82rem;margin:.6rem 0}label{display:block;margin:.4rem 0}
input[type=text]{width:100%;max-width:36rem;padding:.45rem;font:inherit;border:1px solid var(--soft)}
input[type=text]{border-radius:.3rem;background:var(--page);color:var(--ink)}
button{font:inherit;padding:.5rem 1.3rem;border-radius:.3rem;border:1px solid;background:var(--page);cursor:pointer}
button:focus-visible,a:focus-visible,input:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.buttons{display:flex;flex-wrap:wrap;gap:.8rem;margin-top:.6rem}
"""
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser sends a form with the Origin "null"
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


# --- what it shows ---


@dataclass(frozen=True)
class ShownProposal:
    """A run that was proposed to the site, as `site show` prints it.

    ``problem`` says why it cannot be approved; ``most`` is what of each message one actor may take and give.
    """

    run: str
    digest: str
    status: str
    text: str
    problem: str = ""
    bounds: Mapping[str, Sequence[str]] | None = None
    most: Mapping[str, Mapping[str, tuple[int | None, bool]]] | None = None
    crossed: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    """Rows that left and arrived, of a run that has ended."""


class Source(Protocol):
    """What the page shows and does: each is a command's as well."""

    def status(self) -> dict[str, Any]:
        """Return what `site status` prints."""

    def runs(self) -> list[dict[str, Any]]:
        """Return what `site runs` prints, the newest last."""

    def budgets(self) -> list[dict[str, Any]]:
        """Return of all data with a privacy budget: name, budget, what is left, and what was taken by purpose."""

    def show(self, run: str) -> ShownProposal | None:
        """Return a proposal; None: there is none of that run."""

    def answer(self, run: str, digest: str, *, approved: bool, why: str) -> None:
        """Approve or reject the very proposal that has this digest, or raise `BadInput`."""


def _text(value: Any) -> str:
    """Return a value for a page: what makes markup becomes entities, what steers a terminal a question mark."""
    return html.escape(without_controls("-" if value is None else str(value)))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    """Return a table; its cells are markup already."""
    right = set(numbers)

    def cell(tag: str, column: int, content: str) -> str:
        kind = (
            ' class="number"'
            if column in right
            else ' class="wide"'
            if len(content) > _WIDE and "<" not in content
            else ""
        )
        return f"<{tag}{kind}>{content}</{tag}>"

    head = "".join(cell("th", column, _text(name)) for column, name in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell('td', n, one) for n, one in enumerate(row))}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_WIDE = 40


def _link(run: str) -> str:
    is_run = _RUN.fullmatch(f"/run/{run}") is not None
    return f'<a href="/run/{run}">{run}</a>' if is_run else _text(run)


def document(title: str, body: Iterable[str], *, refreshes: bool) -> str:
    """Return a page of HTML from parts that are markup already."""
    refresh = f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">' if refreshes else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{refresh}<link rel="icon" href="data:,">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


_STATES = {"running": "good", "idle": "good", "reserved": "good", "awaiting_approval": "wait"}


def overview(source: Source, folder: Path) -> str:
    """Return the page about the site."""
    try:
        status = source.status()
    except FedactorsError as error:
        body = ["<h1>The site is down</h1>", f'<p class="card bad">{_text(error)}</p>']
        return document("site is down", body, refreshes=True)
    runs = source.runs()
    body = [*_head(status, folder), *_pending(runs), *_under_way(status, source), *_queue(status)]
    body += [*_budgets(source.budgets()), *_runs(runs), *_peers(status)]
    return document(f"{status['site']}: {status['state']}", body, refreshes=True)


def _head(status: Mapping[str, Any], folder: Path) -> Iterator[str]:
    state = status["state"]
    kind = _STATES.get(state, "bad")
    said = _text(str(state).replace("_", " "))
    yield f'<h1>{_text(status["site"])} <span class="state {kind}">{said}</span></h1>'
    facts = (f"since {status['since']}", f"version {status['version']}", str(status["listen"]))
    yield f'<p class="soft">{" · ".join(map(_text, facts))}</p>'
    if state == "stopped":
        command = f"fedactors site start --folder {folder}"
        yield (
            '<p class="card bad">The site is down: no process of it runs, and other sites get no answer. '
            f"What follows is from {_text(status['written'])}. Start it: <code>{_text(command)}</code></p>"
        )
    if status["config_errors"] is not None:
        yield f'<p class="card bad">CONFIG ERRORS: {_text(status["config_errors"])}</p>'


def _pending(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield '<h2 id="pending">Waiting for your answer</h2>'
    waiting = [one for one in runs if one["status"] == "pending"]
    if not waiting:
        yield '<p class="soft">Nothing is proposed.</p>'
        return
    heads = ("run", "coordinator", "protocol", "purpose", "your data")
    names = ("coordinator", "protocol", "purpose", "data")
    yield _table(heads, [[_link(one["run"]), *(_text(one[name]) for name in names)] for one in waiting])
    yield '<p class="soft">Open a run to read all that it would let out, then approve or reject it.</p>'


def _under_way(status: Mapping[str, Any], source: Source) -> Iterator[str]:
    yield "<h2>Under way</h2>"
    if not status["runs"] or status["state"] == "stopped":
        yield '<p class="soft">No run.</p>'
        return
    for run in status["runs"]:
        facts = f"{_text(run['protocol'])} of {_text(run['coordinator'])}, {_text(run['stage'])}"
        yield f"<p>{_link(run['run'])}: {facts}</p>"
        if rows := run["waits"]:
            names = ("who", "for", "what", "replies", "seconds")
            heads = ("who waits", "for whom", "for what", "replies", "seconds")
            yield _table(heads, [[_text(row[name]) for name in names] for row in rows], numbers=(3, 4))
        else:
            yield '<p class="soft">No site waits for another one.</p>'
        if run["crossed"] is not None:
            rows = {side: run["crossed"][side]["rows"] for side in ("left", "arrived")}
            yield _crossed_table(rows, source.show(run["run"]))


def _queue(status: Mapping[str, Any]) -> Iterator[str]:
    rows = status.get("queue", ())
    if not rows or status["state"] == "stopped":
        return
    yield "<h2>Queue</h2>"
    heads = ("position", "run", "coordinator", "priority", "protocol", "waits since", "its driver")
    names = ("coordinator", "priority", "protocol", "since", "state")
    cells = [[_text(row["position"]), _link(str(row["run"])), *(_text(row[name]) for name in names)] for row in rows]
    yield _table(heads, cells, numbers=(0,))


def _crossed_table(rows: Mapping[str, Sequence[Mapping[str, Any]]], proposal: ShownProposal | None) -> str:
    """Return what crossed by message, beside the bounds that were approved."""
    totals: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for side, those in rows.items():
        for row in those:
            total = totals[str(row["type"])][side]
            total[0] += row["messages"]
            total[1] += row["bytes"]
    bounds = (proposal.bounds if proposal is not None else None) or {}
    both = [row for those in rows.values() for row in those]
    body = []
    for message in dict.fromkeys([*sorted(totals), *bounds]):
        sides = [totals[message][side] if message in totals else [0, 0] for side in ("left", "arrived")]
        numbers = [text for count, size in sides for text in (f"{count:,}", format_bytes(size))]
        words = "; ".join(bounds.get(message, ())) or "-"
        body.append([_text(message), *map(_text, numbers), _used(message, both, proposal), _text(words)])
    heads = ("message", "left", "bytes", "arrived", "bytes", "used, busiest actor", "approved, at one actor")
    return _table(heads, body, numbers=(1, 2, 3, 4))


def _used(message: str, rows: Sequence[Mapping[str, Any]], proposal: ShownProposal | None) -> str:
    """Return what the busiest actor has used of the bound of a message, where there is a number."""
    most = ((proposal.most if proposal is not None else None) or {}).get(message, {})
    found: list[tuple[float, int, int]] = []
    for way, key in (("takes", "receiver"), ("gives", "sender")):
        limit, is_each = most.get(way, (None, False))
        if not limit:
            continue
        counts: defaultdict[Any, int] = defaultdict(int)
        for row in rows:
            if row["type"] == message:
                counts[(row["sender"], row["receiver"]) if is_each else row[key]] += row["messages"]
        count = max(counts.values(), default=0)
        found.append((count / limit, count, limit))
    if not found:
        return "-"
    share, count, limit = max(found)
    text = f"{count:,} of {limit:,}"
    kind = ' class="bad"' if share > 1 else ""
    return f'<meter min="0" max="1" value="{min(share, 1.0):.4f}">{text}</meter> <span{kind}>{text}</span>'


def _budgets(budgets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "<h2>Privacy budgets</h2>"
    if not budgets:
        yield '<p class="soft">No data here have a budget.</p>'
        return
    rows = []
    for one in budgets:
        taken = "; ".join(f"{purpose}: {amount}" for purpose, amount in one["taken"].items()) or "nothing"
        rows.append([_text(one["data"]), _text(one["budget"]), _text(one["left"]), _text(taken)])
    yield _table(("data", "budget", "left", "taken, by purpose"), rows)


def _runs(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ended = [one for one in reversed(runs) if one["status"] != "pending"]
    yield "<h2>Runs</h2>"
    if not ended:
        yield '<p class="soft">None yet.</p>'
        return
    names = ("status", "coordinator", "protocol", "purpose", "data")
    heads = ("run", "how it stands", "coordinator", "protocol", "purpose", "your data")
    yield _table(heads, [[_link(one["run"]), *(_text(one[name]) for name in names)] for one in ended[:_MOST_RUNS]])
    if len(ended) > _MOST_RUNS:
        yield f'<p class="soft">The newest {_MOST_RUNS} of {len(ended)}; fedactors site runs lists all.</p>'


def _peers(status: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Federation</h2>"
    certificate = status["certificate"]
    signed = "signed by its authority" if status["federation_signed"] else "not signed"
    facts = f"{status['federation']}, version {status['federation_version']}, {signed}; your certificate ends "
    yield f"<p>{_text(facts)}{_text(certificate['until'])} ({certificate['days_left']:.0f} days)</p>"
    rows = [
        [
            _text(name),
            format_bytes(one["sent_bytes"]),
            format_bytes(one["received_bytes"]),
            _text(one["clock_seconds"]),
        ]
        for name, one in status["peers"].items()
    ]
    yield _table(("site", "sent", "received", "clock ahead, s"), rows, numbers=(1, 2, 3))


def run_page(found: ShownProposal, code: str, problem: str = "") -> str:
    """Return the page about one run; with the form for an answer while it is pending.

    Args:
        found: the proposal.
        code: that an answer from this page has with it.
        problem: why the last answer was not taken.
    """
    kind = {"pending": "wait", "finished": "good", "approved": "good"}.get(found.status, "bad")
    body = [
        '<p><a href="/">Back to the site</a></p>',
        f'<h1>Run {_text(found.run)} <span class="state {kind}">{_text(found.status)}</span></h1>',
    ]
    body += [f'<p class="card bad">{_text(one)}</p>' for one in (problem, found.problem) if one]
    if found.crossed is not None:
        body += ["<h2>What crossed</h2>", _crossed_table(found.crossed, found)]
    if found.text:
        body += ["<h2>What it is</h2>", f"<pre>{_text_of_lines(found.text)}</pre>"]
    if found.status == "pending":
        body.append(_form(found, code))
    return document(f"run {found.run}", body, refreshes=False)


def _text_of_lines(text: str) -> str:
    """Return lines that go on indented, so that nothing of another site's in them begins one."""
    return "".join(f'<span class="line">{_text(line)}</span>' for line in text.split("\n"))


def _form(found: ShownProposal, code: str) -> str:
    approve = '<button class="good" name="answer" value="approve">Approve</button>' if not found.problem else ""
    return (
        f'<h2>Your answer</h2><form class="card" method="post" action="/run/{found.run}/answer" autocomplete="off">'
        f'<input type="hidden" name="code" value="{_text(code)}">'
        f'<input type="hidden" name="digest" value="{_text(found.digest)}">'
        f'<label>Why (goes to the coordinator and into the log)<br><input type="text" name="why" '
        f'maxlength="{_LONGEST_WHY}"></label><div class="buttons">{approve}'
        '<button class="bad" name="answer" value="reject">Reject</button></div></form>'
    )


# --- how it is asked ---


class Server(BoundedServer):
    """Answers one operator's browser on the loopback.

    Args:
        source: what it shows.
        folder: of the site.
        token: the password.
        port: 0: any that is free.
    """

    def __init__(self, source: Source, folder: Path, token: str, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), Handler, "--web")
        self.source, self.folder, self.token = source, folder, token
        # not localhost: another user of the machine may listen at ::1, which browsers try first, and be sent the
        # password
        self.hosts = frozenset({f"{LOOPBACK}:{self.port}"})
        self.rendering = threading.Lock()
        """Held while a page is made: pages are made one after the other."""

    @property
    def token_file(self) -> Path:
        """The file with the token, which its owner alone may read."""
        return self.folder / TOKEN_FILE

    def code_of(self, run: str, digest: str) -> str:
        """Return what the page of a proposal holds, and nobody else who has not read it."""
        return hmac.new(self.token.encode(), f"{run} {digest}".encode(), "sha256").hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One request: Host, token, and of answers Origin and form are checked."""

    server: Server
    server_version, sys_version = "fedactors", ""
    timeout = _IDLE_SECONDS
    error_message_format, error_content_type = "%(code)d\n", "text/plain"

    def do_GET(self) -> None:
        """Show a page."""
        self._guarded(self._show)

    def do_POST(self) -> None:
        """Take an answer."""
        self._guarded(self._take)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the site's signed log has the answers."""

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            self._check()
            with self.server.heard(self.connection, self.client_address):
                work()
        except Refusal as refusal:
            self._send(refusal.status, f"{refusal}\n", kind="text/plain")
        except (OSError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # a page must say that it is not whole
            said = str(error) if isinstance(error, FedactorsError) else f"{type(error).__name__}: see the site's log"
            body = ['<p><a href="/">Back to the site</a></p>', f'<p class="card bad">{_text(said)}</p>']
            page = document("cannot be shown", body, refreshes=self.command == "GET" and self.path == "/")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, page)

    def _check(self) -> None:
        """Refuse a request by another name of this machine, or without the token."""
        check_framing(self.headers)
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise Refusal(HTTPStatus.MISDIRECTED_REQUEST, f"open http://{LOOPBACK}:{self.server.port}/")
        if not hmac.compare_digest(self._password(), self.server.token.encode()):
            raise Refusal(HTTPStatus.UNAUTHORIZED, f"the password is in {TOKEN_FILE} in the site's folder")

    def _password(self) -> bytes:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        try:
            found = base64.b64decode(given.strip(), validate=True) if scheme.lower() == "basic" else b""
        except ValueError:
            return b""
        return found.partition(b":")[2]

    def _show(self) -> None:
        if self.path == "/":
            with self.server.rendering:
                page = overview(self.server.source, self.server.folder)
            self._send(HTTPStatus.OK, page)
            return
        found = _RUN.fullmatch(self.path)
        if found is None or found[2]:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        self._send(HTTPStatus.OK, self._page_of(found[1]))

    def _page_of(self, run: str, problem: str = "") -> str:
        with self.server.rendering:
            found = self.server.source.show(run)
        if found is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "no such run was proposed here")
        return run_page(found, self.server.code_of(run, found.digest), problem)

    def _take(self) -> None:
        found = _RUN.fullmatch(self.path)
        if found is None or not found[2]:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        if self.headers.get_all("Origin", []) != [f"http://{self.headers['Host'].lower()}"]:
            raise Refusal(HTTPStatus.FORBIDDEN, "an answer comes from this page's own form")
        if self.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise Refusal(HTTPStatus.FORBIDDEN, "an answer comes from this page's own form")
        run, form = found[1], self._form()
        digest, answer = form.get("digest", ""), form.get("answer", "")
        code = self.server.code_of(run, digest)
        if not hmac.compare_digest(form.get("code", "").encode(), code.encode()):
            raise Refusal(HTTPStatus.FORBIDDEN, "the page is an old one: open the run again")
        if answer not in ("approve", "reject"):
            raise Refusal(HTTPStatus.BAD_REQUEST, "answer: approve or reject")
        try:
            with self.server.rendering:
                why = one_line(form.get("why", "").strip(), _LONGEST_WHY)
                self.server.source.answer(run, digest, approved=answer == "approve", why=why)
        except FedactorsError as error:
            self._send(HTTPStatus.CONFLICT, self._page_of(run, str(error)))
            return
        self._send(HTTPStatus.SEE_OTHER, "", Location=f"/run/{run}")

    def _form(self) -> dict[str, str]:
        """Return the fields of a form, each given once."""
        kind = self.headers.get_content_type()
        length = self.headers.get("Content-Length", "")
        if kind != "application/x-www-form-urlencoded" or not re.fullmatch(r"[0-9]{1,6}", length):
            raise Refusal(HTTPStatus.BAD_REQUEST, "an answer is a form of this page")
        if int(length) > _MOST_FORM:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an answer has at most {_MOST_FORM} bytes")
        body = self.rfile.read(int(length))
        try:
            pairs = urllib.parse.parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=8)
        except ValueError:
            raise Refusal(HTTPStatus.BAD_REQUEST, "an answer is a form of this page") from None
        if any(len(values) != 1 for values in pairs.values()):
            raise Refusal(HTTPStatus.BAD_REQUEST, "an answer has each field once")
        return {name: values[0] for name, values in pairs.items()}

    def _send(self, status: HTTPStatus, text: str, *, kind: str = "text/html", **headers: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="fedactors site", charset="UTF-8"')
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def parse_port(given: str) -> int:
    """Return the number of a port; 0: any that is free.

    Raises:
        BadInput: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,5}", given) or int(given) > 65535:
        raise BadInput(f"--web: {shown(given)} is not allowed: give a port of this machine, from 1 to 65535, or none")
    return int(given)


@contextlib.contextmanager
def listening(source: Source, folder: Path, port: int) -> Iterator[Server]:
    """Answer in a thread while the block lasts; the file with the token is there as long."""
    with token_in(folder / TOKEN_FILE) as token:
        server = Server(source, folder, token, port)
        with server.answering():
            yield server
