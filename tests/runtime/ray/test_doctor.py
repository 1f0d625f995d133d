"""What the doctor finds, at a machine's settings and at a cluster without its token."""

from __future__ import annotations

import http.server
import json
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest

from fedactors.runtime.ray.cluster import asks_by_itself, make_user_token, user_token
from fedactors.runtime.ray.doctor import Finding, examine_cluster, examine_here, examine_machine


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def here() -> dict[str, Finding]:
    return {finding.what: finding for finding in examine_here()}


def test_without_settings_a_cluster_is_open():
    found = here()
    assert found["embedded Ray"].state == "ok"
    asks = "asks for a token" if asks_by_itself() else "other users of this machine reach it without a token"
    assert asks in found["embedded Ray"].result
    assert (found["token, on this machine"].state, found["TLS, on this machine"].state) == ("open", "open")


@pytest.mark.parametrize(
    ("mode", "state", "text"),
    [
        (0o600, "ok", "can be read by its owner only"),
        (0o644, "open", "can be read by other users"),
        (None, "fault", "cannot be read"),
    ],
)
def test_the_token_file_must_be_its_owners(monkeypatch, tmp_path, mode, state, text):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    (tmp_path / ".ray").mkdir()
    if mode is not None:
        (tmp_path / ".ray" / "auth_token").write_text("secret")
        (tmp_path / ".ray" / "auth_token").chmod(mode)
    found = here()
    assert found["token, on this machine"].state == state
    assert text in found["token, on this machine"].result
    assert found["TLS, on this machine"].state == "ok"
    assert "secret" not in str(found)


def test_a_token_in_the_environment_is_advised_against(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    found = here()["token, on this machine"]
    assert found.state == "open"
    assert "secret" not in str(found)


@pytest.fixture
def dashboard(request) -> Iterator[str]:
    """Something that answers the question for jobs with a given code."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "Authorization" not in self.headers
            self.send_response(request.param)
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("dashboard", "state", "text"),
    [
        (200, "open", "anybody who reaches this port runs code"),
        (401, "ok", "refused without a token (HTTP 401)"),
        (403, "ok", "refused without a token (HTTP 403)"),
        (500, "unknown", "HTTP 500"),
    ],
    indirect=["dashboard"],
)
def test_an_unauthenticated_client_asks_for_the_jobs(dashboard, state, text):
    found = {finding.what: finding for finding in examine_cluster(dashboard)}
    assert found["token required"].state == state
    assert text in found["token required"].result
    assert found["encryption of the dashboard"].state == "open"


def test_nobody_at_the_address_is_a_fault():
    found = {finding.what: finding for finding in examine_cluster("http://127.0.0.1:9")}
    assert found["token required"].state == "fault"


@pytest.mark.ray
def test_it_starts_ray_and_says_at_once_what_it_looks_at_but_only_on_a_terminal(tmp_path):
    """A person sees the first words long before torch is loaded, and none of them when the table is there."""
    command = [sys.executable, "-m", "fedactors", "doctor"]
    ours, theirs = pty.openpty()
    with (tmp_path / "table").open("w") as table:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=table, stderr=theirs)
        os.close(theirs)
        shown, first = b"", 0.0
        while part := _read(ours):
            first, shown = first or time.monotonic() - began, shown + part
        assert process.wait(60) == 0
        took = time.monotonic() - began
    os.close(ours)
    assert first < took / 2
    lines = shown.decode().split("\r\x1b[2K")
    assert lines[:4] == ["", "looking at this machine", *(f"looking at this machine: {w}" for w in ("Python", "torch"))]
    assert lines[-2:] == ["looking at this machine: starting Ray", ""], "the line is gone in the end"
    assert "looking at" not in (tmp_path / "table").read_text()
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    found = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert list(found)[:3] == ["Python", "torch", "Ray"]
    assert {found[what]["state"] for what in ("Python", "torch", "Ray")} == {"ok"}
    assert "did a task" in found["Ray"]["result"]
    assert all(finding["advice"] for finding in found.values() if finding["state"] in ("open", "fault"))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1024)
    except OSError:  # nobody holds the other end any more
        return b""


def test_a_machine_that_cannot_is_told_what_to_do(monkeypatch, tmp_path):
    """Ray without a Python that knows it, a temporary folder that is too deep, few open files, taken ports."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no module named ray >&2\nexit 1\n")
    broken.chmod(0o755)
    deep = tmp_path / ("deep" * 10)
    deep.mkdir()
    monkeypatch.setattr(sys, "executable", str(broken))
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        found = {finding.what: finding for finding in examine_machine()}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found["Ray"].state, found["Ray"].result) == ("fault", "did not start: no module named ray")
    assert "--runtime simulated" in found["Ray"].advice
    assert "set TMPDIR to a path that is shorter by" in found["temporary files"].advice
    assert found["open files"].advice.startswith("with many actors: ulimit -n ")


def test_a_token_is_made_for_its_user_alone_and_once(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    make_user_token()
    path = tmp_path / ".ray" / "auth_token"
    assert not path.exists()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    make_user_token()
    made = path.read_text()
    assert re.fullmatch("[0-9a-f]{64}", made)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    make_user_token()
    assert path.read_text() == made == user_token().text
    assert here()["token, on this machine"].state == "ok"


def test_no_token_is_made_where_another_one_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "mine"))
    make_user_token()
    assert not list(tmp_path.iterdir())
