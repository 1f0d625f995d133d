"""What a cluster lets strangers do: whether it asks for a token, encrypts, and where it listens."""

from __future__ import annotations

import json
import os
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from fedactors.runtime.ray.tokens import asks_by_itself, own_token, token_path

_SECONDS = 5.0
_PORTS = {6379: "the cluster's store (GCS)", 8265: "dashboard and jobs", 10001: "Ray client", 8076: "agent"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at; `advice` says what to do unless all is well."""

    what: str
    state: Literal["ok", "open", "unknown", "fault"]
    found: str
    advice: str = ""


def examine_here() -> list[Finding]:
    """Look at this process's own settings for Ray: they are those of a cluster that is started from here."""
    mode, tls = os.environ.get("RAY_AUTH_MODE", ""), os.environ.get("RAY_USE_TLS", "0")
    asks = mode == "token" or (not mode and asks_by_itself())
    others = "asks for a token" if asks else "other users of this machine reach it without a token"
    embedded = Finding(
        what="embedded Ray", state="ok", found=f"listens on the loopback only, and ends with the run; {others}"
    )
    token = Finding(
        what="token, on this machine",
        state="open",
        found="RAY_AUTH_MODE is not set: a cluster started from here asks nobody for a token",
        advice="before ray start set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file that only you read",
    )
    if mode == "token" or (not mode and own_token() is not None):
        token = _examine_token_file("RAY_AUTH_MODE=token" if mode else "RAY_AUTH_MODE is not set, but there is a token")
    encryption = Finding(
        what="TLS, on this machine",
        state="ok" if tls == "1" else "open",
        found="RAY_USE_TLS=1" if tls == "1" else "RAY_USE_TLS is not set: what hosts say to each other can be read",
        advice=""
        if tls == "1"
        else "before ray start set RAY_USE_TLS=1 and the certificates on every host, or use a private network",
    )
    return [embedded, token, encryption]


def _examine_token_file(found: str) -> Finding:
    what = "token, on this machine"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return Finding(
            what=what,
            state="open",
            found=f"{found}, the token in RAY_AUTH_TOKEN: every process that is started from here inherits it",
            advice="put it into a file that only you read, and its path into RAY_AUTH_TOKEN_PATH",
        )
    path = token_path()
    try:
        shared = path.stat().st_mode & 0o077
    except OSError:
        return Finding(
            what=what,
            state="fault",
            found=f"{found}, but {path} cannot be read",
            advice="ray get-auth-token --generate",
        )
    return Finding(
        what=what,
        state="open" if shared else "ok",
        found=f"{found}, {path} can be read by {'other users' if shared else 'its owner only'}",
        advice=f"chmod 600 {path}" if shared else "",
    )


def examine_cluster(address: str) -> list[Finding]:
    """Look at the cluster whose dashboard is at `address` (``http://HEAD:8265``), as a stranger without a token."""
    parts = urlsplit(address)
    host = parts.hostname or "localhost"
    findings = [_examine_token(address)]
    encrypted = parts.scheme == "https"
    findings.append(
        Finding(
            what="encryption of the dashboard",
            state="ok" if encrypted else "open",
            found=parts.scheme,
            advice=""
            if encrypted
            else "tokens and logs travel in the clear: put it behind TLS, a tunnel or a private network",
        )
    )
    for port, what in _PORTS.items():
        if _listens(host, port):
            findings.append(
                Finding(
                    what=f"port {port}",
                    state="open" if host not in ("localhost", "127.0.0.1", "::1") else "ok",
                    found=f"{what} answers at {host}",
                    advice="let only the cluster's own hosts reach it: whoever can, and has the token, runs code in it",
                )
            )
    return findings


def _examine_token(address: str) -> Finding:
    request = urllib.request.Request(f"{address.rstrip('/')}/api/jobs/")
    what = "token asked of strangers"
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Finding(what=what, state="ok", found=f"refused without a token (HTTP {error.code})")
        return Finding(what=what, state="unknown", found=f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding(what=what, state="fault", found=f"no answer: {reason}", advice="is the address the dashboard's?")
    return Finding(
        what=what,
        state="open",
        found="jobs are listed without a token: anybody who reaches this port runs code in the cluster",
        advice="start every host with RAY_AUTH_MODE=token (ray get-auth-token --generate makes a token)",
    )


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
