"""What happened at a site, in a file that can only grow: each line holds the digest of the one before, signed.

{"number": 7, "time": "...", "what": "refused", ..., "before": SHA-256 of line 6, "signature": of all of it}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedactors.errors import BadInput
from fedactors.runtime.federated.identity import verify
from fedactors.validation import one_line

_FIRST = "0" * 64
_LONGEST = 1000
"""Characters of a text, which others may have written."""


class AuditLog:
    """The log of one site; the site's process and its commands add to the same file.

    Args:
        path: the file.
        key: the site's, which signs each line.
    """

    def __init__(self, path: Path, key: Ed25519PrivateKey) -> None:
        self._path = path
        self._key = key

    def add(self, what: str, **facts: Any) -> None:
        """Add a line; it is on disk when this returns."""
        with open(self._path, "a+b", opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _drop_half_a_line(file)
            before, number = _last(file)
            said = {key: one_line(fact, _LONGEST) if isinstance(fact, str) else fact for key, fact in facts.items()}
            line = {"number": number, "time": datetime.now(UTC).isoformat(), "what": what, **said, "before": before}
            signature = self._key.sign(_content(line)).hex()
            file.write(json.dumps({**line, "signature": signature}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log, unchecked; none where there is no log yet."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def check(path: Path, certificate: x509.Certificate) -> list[dict[str, Any]]:
    """Return the lines of a log after checking that each is signed and follows the one before it.

    That lines are missing at its end cannot be seen.

    Raises:
        BadInput: a line was changed, or lines between two others are missing.
    """
    before, lines = _FIRST, []
    if not path.exists():
        return []
    for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            line = json.loads(raw)
            signature = bytes.fromhex(line.pop("signature"))
            is_sound = (line["before"], line["number"]) == (before, number)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_sound, line, signature = False, {}, b""
        if not (is_sound and verify(certificate, signature, _content(line))):
            raise BadInput(f"{path}: line {number} is not what the site wrote there")
        before = hashlib.sha256(raw).hexdigest()
        lines.append(line)
    return lines


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _content(line: dict[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True).encode()


def _drop_half_a_line(file: Any) -> None:
    """Remove what a process that was killed, or a full disk, left of a line: it was never on record."""
    size = file.seek(0, os.SEEK_END)
    end = size
    while end:
        start = max(0, end - 4096)
        file.seek(start)
        whole = file.read(end - start).rfind(b"\n")
        end = start + whole + 1
        if whole >= 0:
            break
    if end < size:
        file.truncate(end)


def _last(file: Any) -> tuple[str, int]:
    """Return the digest of the last line and the number of the next; only the end of the file is read."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return _FIRST, 1
    length = 4096
    while True:
        file.seek(max(0, size - length))
        lines = file.read().splitlines()
        if len(lines) > 1 or length >= size:
            return hashlib.sha256(lines[-1]).hexdigest(), json.loads(lines[-1])["number"] + 1
        length *= 4
