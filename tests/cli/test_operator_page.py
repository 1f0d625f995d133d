"""The operator's page: who gets it, who may answer, and what names full of markup do to it."""

from __future__ import annotations

import base64
import contextlib
import html
import http.client
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from fedactors.cli import operator_page
from fedactors.cli.main import main
from fedactors.cli.operator_page import Server, ShownProposal, listening, parse_port
from fedactors.errors import BadInput
from tests.browser import CHROMIUM, Browser

RUN, ENDED = "0123456789abcdef", "fedcba9876543210"
EVIL = (
    "\"'><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&lt;\x1b[2J\u202e{{7*7}}"
)
DIGEST = "d" * 64


class Hostile:
    """A site all of whose texts were written by an attacker."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str, bool, str]] = []
        self.is_down = False

    def status(self) -> dict[str, Any]:
        if self.is_down:
            raise BadInput(f"--folder: no process of {EVIL} ever ran")
        row = {"from": EVIL, "to": "bank", "sender": "shop/w0", "receiver": "bank/w0", "type": EVIL}
        rows = [{**row, "messages": 3, "bytes": 4096}, {**row, "type": "Embedding", "messages": 9, "bytes": 10**9}]
        waits = [{"who": EVIL, "for": EVIL, "what": EVIL, "replies": 3, "seconds": 1.5}]
        run: dict[str, Any] = {"run": EVIL, "protocol": EVIL, "coordinator": EVIL, "stage": EVIL, "waits": waits}
        run["crossed"] = {"left": {"rows": rows}, "arrived": {"rows": rows}}
        turn = {"position": 3, "priority": EVIL}
        peer = {"sent_bytes": 5, "received_bytes": 7, "clock_seconds": 0.25}
        return {
            **dict.fromkeys(("site", "federation", "version", "listen", "started", "written", "state", "since"), EVIL),
            "runs": [run],
            "queue": [{**dict.fromkeys(("coordinator", "protocol", "since", "state"), EVIL), "run": RUN, **turn}],
            "peers": {EVIL: peer},
            "federation_version": EVIL,
            "federation_signed": True,
            "certificate": {"until": EVIL, "days_left": 800.0},
            "config_errors": EVIL,
        }

    def runs(self) -> list[dict[str, Any]]:
        entry = dict.fromkeys(("coordinator", "protocol", "purpose", "data"), EVIL)
        return [{**entry, "run": ENDED, "status": EVIL}, {**entry, "run": RUN, "status": "pending"}]

    def budgets(self) -> list[dict[str, Any]]:
        return [{"data": EVIL, "budget": EVIL, "left": EVIL, "taken": {EVIL: EVIL}}]

    def show(self, run: str) -> ShownProposal | None:
        status = {RUN: "pending", ENDED: EVIL}.get(run)
        bounds = {"Embedding": [EVIL]}
        most = {"Embedding": {"takes": (10, False)}}
        crossed = self.status()["runs"][0]["crossed"] if not self.is_down else None
        sides = {side: one["rows"] for side, one in (crossed or {}).items()}
        made = ShownProposal(run, DIGEST, str(status), f"run {EVIL}\nline", "", bounds, most, sides)
        return made if status else None

    def answer(self, run: str, digest: str, *, approved: bool, why: str) -> None:
        if self.answers:
            raise BadInput(f"run: {run} is decided already {EVIL}")
        self.answers.append((run, digest, approved, why))


@pytest.fixture
def source() -> Hostile:
    return Hostile()


@pytest.fixture
def server(source: Hostile, tmp_path: Path) -> Iterator[Server]:
    with listening(source, tmp_path, 0) as made:
        yield made


def basic(password: str, user: str = "operator") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def ask(
    server: Server, path: str = "/", method: str = "GET", body: bytes | None = None, **headers: str | None
) -> tuple[int, str, dict[str, str]]:
    """Return status, body and headers; None of a header leaves it out."""
    host = f"127.0.0.1:{server.port}"
    given: dict[str, str | None] = {"Host": host, "Authorization": basic(server.token)}
    if method == "POST":
        given |= {"Origin": f"http://{host}", "Content-Type": "application/x-www-form-urlencoded"}
        given |= {"Content-Length": str(len(body or b""))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in given.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    found = connection.getresponse()
    with contextlib.closing(connection):
        return found.status, found.read().decode(), {name.lower(): value for name, value in found.getheaders()}


def form(server: Server, answer: str = "approve", **fields: str) -> bytes:
    code = server.code_of(RUN, DIGEST)
    return urlencode({"code": code, "digest": DIGEST, "answer": answer, "why": "fine", **fields}).encode()


def post(server: Server, body: bytes, path: str = f"/run/{RUN}/answer", **headers: str | None) -> int:
    return ask(server, path, "POST", body, **headers)[0]


def test_texts_of_others_are_no_markup(server: Server) -> None:
    for path in ("/", f"/run/{RUN}", f"/run/{ENDED}"):
        status, page, _ = ask(server, path)
        assert status == 200, page
        assert html.escape(EVIL[:60]) in page, "the text itself is there"
        assert not re.search(r"<\s*(script|img|iframe|object|svg|base|link(?! rel=\"icon\" href=\"data:,\"))", page)
        assert not re.search(r"<[^>]*\son\w+\s*=", page)
        assert "\x1b" not in page
        assert "\u202e" not in page
        tags = re.findall(r"<(/?\w+)", page)
        assert [t for t in tags if t.strip("/") in ("html", "main", "style")] == [
            "html", "style", "/style", "main", "/main", "/html"
        ]  # fmt: skip


def test_the_page_runs_no_script_and_loads_nothing(server: Server) -> None:
    _, page, headers = ask(server)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "script-src" not in policy
    for rule in ("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"):
        assert rule in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert "set-cookie" not in headers, "cookies go to every port of this machine"
    assert not re.search(r"\sstyle=|url\(|@import|https?:", page)
    assert server.token not in page


def test_only_who_has_the_token_reads(server: Server) -> None:
    wrong: list[str | None] = [None, basic(""), basic("x"), basic(server.token[:-1]), basic(server.token + "x")]
    wrong += ["Basic", "Basic !!!", "Basic " + "A" * 500, f"Bearer {server.token}", basic("", server.token)]
    for given in wrong:
        for path in ("/", f"/run/{RUN}", "/nowhere"):
            status, page, headers = ask(server, path, Authorization=given)
            assert status == 401, (given, path)
            assert headers["www-authenticate"].startswith("Basic ")
            assert "wait" not in page
    assert ask(server, Authorization=basic(server.token, "anybody"))[0] == 200


def test_the_token_is_its_owners_and_goes_with_the_page(source: Hostile, tmp_path: Path) -> None:
    with listening(source, tmp_path, 0) as server:
        file = server.token_file
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text().strip() == server.token
        assert len(server.token) >= 43
        with listening(source, tmp_path, 0) as other:
            assert other.token != server.token
        assert not file.exists(), "its own is removed"
    assert list(tmp_path.iterdir()) == []
    target = tmp_path / "elsewhere"
    target.write_text("kept")
    file.symlink_to(target)
    with listening(source, tmp_path, 0):
        assert not file.is_symlink()
    assert target.read_text() == "kept"


def test_it_listens_on_the_loopback_only(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(OSError), socket.create_connection(("::1", server.port), timeout=1):
        pass


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}",
     "localhost:{port}", "LOCALHOST:{port}", "localhost.:{port}", "[::1]:{port}", "0.0.0.0:{port}",
     "127.0.0.1:{port}@evil.example"],
)  # fmt: skip
def test_a_name_that_is_bound_anew_to_the_loopback_gets_nothing(
    server: Server, source: Hostile, host: str | None
) -> None:
    named = None if host is None else host.format(port=server.port)
    assert ask(server, Host=named)[0] == 421
    assert post(server, form(server), Host=named, Origin=f"http://{named}") == 421
    assert source.answers == []
    assert ask(server, Host=f"127.0.0.1:{server.port}")[0] == 200


def test_two_hosts_are_none(server: Server) -> None:
    host, token = f"127.0.0.1:{server.port}", basic(server.token)
    request = f"GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\nAuthorization: {token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(request.encode())
        assert b" 421 " in raw.recv(200)


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://127.0.0.1:1",
     "http://localhost:{port}", "http://127.0.0.1:{port}.evil.example", "http://127.0.0.1:{port}/"],
)  # fmt: skip
def test_forms_of_other_pages_answer_nothing(server: Server, source: Hostile, origin: str | None) -> None:
    named = None if origin is None else origin.format(port=server.port)
    assert post(server, form(server), Origin=named) == 403
    assert source.answers == []


def test_an_answer_has_token_code_and_a_form(server: Server, source: Hostile) -> None:
    good = form(server)
    other = {"code": server.code_of(ENDED, DIGEST)}
    cases: list[tuple[int, bytes, dict[str, str | None]]] = [
        (401, good, {"Authorization": None}),
        (401, good, {"Authorization": basic("x")}),
        (403, good, {"Sec_Fetch_Site": "cross-site"}),
        (403, good, {"Sec_Fetch_Site": "same-site"}),
        (403, form(server, code=""), {}),
        (403, form(server, code=server.token), {}),
        (403, form(server, code="\xe9" * 64), {}),
        (403, form(server, **other), {}),
        (403, form(server, digest="e" * 64), {}),
        (400, form(server, answer="both"), {}),
        (400, good + b"&answer=reject", {}),
        (400, good + b"".join(b"&x%d=1" % n for n in range(20)), {}),
        (400, good + b"\xff", {}),
        (400, good, {"Content_Type": "text/plain"}),
        (400, good, {"Content_Type": "multipart/form-data; boundary=x"}),
        (400, good, {"Content_Length": None}),
        (400, good, {"Content_Length": "-1"}),
        (400, good, {"Content_Length": "1e3"}),
        (413, b"why=" + b"x" * 20_000, {}),
    ]
    for status, body, changed in cases:
        assert post(server, body, **changed) == status, (body[:80], changed)
    assert source.answers == []
    for path in ("/", f"/run/{RUN}", "/run/../answer", f"/run/{RUN}/answer/", f"/run/{RUN}/answer?x=1"):
        assert post(server, good, path) == 404, path
    assert ask(server, f"/run/{RUN}/answer")[0] == 404, "a link answers nothing"
    assert ask(server, f"/run/{RUN}/answer", "PUT")[0] == 501
    assert source.answers == []
    status, _, headers = ask(server, f"/run/{RUN}/answer", "POST", form(server, why="so\r\nSet-Cookie: a=b\x1b[2J"))
    assert (status, headers["location"]) == (303, f"/run/{RUN}")
    assert "set-cookie" not in headers
    assert source.answers == [(RUN, DIGEST, True, "so??Set-Cookie: a=b?[2J")]
    status, page, _ = ask(server, f"/run/{RUN}/answer", "POST", form(server, "reject"))
    assert status == 409
    assert "is decided already" in page
    assert "<script" not in page


@pytest.mark.parametrize("path", ["/x", "/run/", "/run/0123", f"/run/{RUN.upper()}", "/run/" + "0" * 16,
                                  f"/run/{RUN}%0a", "/../../etc/passwd", "/?token=1", "http://evil.test/"])  # fmt: skip
def test_other_paths_are_not_there(server: Server, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_a_site_that_is_down_is_said_and_looked_for_again(server: Server, source: Hostile) -> None:
    source.is_down = True
    status, page, _ = ask(server)
    assert (status, "The site is down" in page, 'http-equiv="refresh"' in page) == (200, True, True)


def test_whoever_is_slow_or_many_blocks_nobody_for_long(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_page.Handler, "timeout", 0.5)
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(40)]
    for one in slow[:20]:
        with contextlib.suppress(OSError):
            one.sendall(b"GET / HT")
    end = time.monotonic() + 8
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ask(server)[0] == 200:
                break
        time.sleep(0.05)
    else:
        pytest.fail("the page was not answered while others were slow")
    for one in slow:
        one.close()


def test_what_fails_is_said_without_a_traceback(server: Server, source: Hostile, monkeypatch: Any) -> None:
    def fail() -> None:
        raise RuntimeError(f"secret {EVIL}")

    monkeypatch.setattr(source, "runs", fail)
    status, page, _ = ask(server)
    assert status == 500
    assert "RuntimeError" in page
    assert "secret" not in page


def test_answers_are_taken_one_after_the_other(server: Server, source: Hostile) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(post(server, form(server)))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert sorted(found) == [303] + [409] * 7
    assert len(source.answers) == 1


def test_the_queue_is_shown_with_positions(server: Server) -> None:
    page = ask(server)[1].partition("<h2>Queue</h2>")[2]
    row = page.partition("<tbody><tr>")[2].partition("</tr>")[0]
    assert row.startswith(f'<td class="number">3</td><td><a href="/run/{RUN}">{RUN}</a></td>')


def test_bounds_stand_beside_what_crossed(server: Server) -> None:
    page = ask(server, f"/run/{RUN}")[1]
    row = next(line for line in page.split("<tr>") if "Embedding" in line)
    assert "18 of 10" in row, "nine messages left and nine arrived at the one actor"
    assert 'value="1.0000"' in row
    assert "1.0 GB" in row


@pytest.mark.parametrize("given", ["-1", "65536", "x", "", "7480:", "1e3", "１"])
def test_ports_that_are_none(given: str) -> None:
    with pytest.raises(BadInput, match=r"--web: .* is not allowed: give a port"):
        parse_port(given)


def test_a_port_that_is_taken_is_said(server: Server, source: Hostile, tmp_path: Path) -> None:
    with (
        pytest.raises(BadInput, match=rf"--web: 127\.0\.0\.1:{server.port} cannot be listened at"),
        listening(source, tmp_path, server.port),
    ):
        pass


def test_only_status_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "runs", "--web"]) == 2
    assert "--web is not allowed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
@pytest.mark.parametrize(
    "screen", [{}, {"width": 390, "height": 844}, {"dark": True}], ids=["desktop", "phone", "dark"]
)
def test_a_browser_shows_texts_of_others_as_texts(
    server: Server, tmp_path_factory: pytest.TempPathFactory, screen: dict[str, Any]
) -> None:
    browser = Browser(tmp_path_factory.mktemp("browser") / "profile")
    try:
        browser.allowed = ("data:", f"http://127.0.0.1:{server.port}/", f"http://o:{server.token}@127.0.0.1:")
        for path in ("/", f"/run/{RUN}"):
            browser.show(f"http://o:{server.token}@127.0.0.1:{server.port}{path}", **screen)
            assert browser.evaluate("document.scripts.length + document.images.length") == 0
            assert "owned" not in browser.evaluate("document.title")[:5]
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert browser.evaluate("document.styleSheets.length") == 1
            assert browser.evaluate("getComputedStyle(document.querySelector('main h1')).fontSize") == "22.4px"
        assert browser.errors == []
    finally:
        browser.close()
