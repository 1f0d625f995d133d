"""What happened at a site, in a file that can only grow: each line holds the digest of the one before, signed.

{"number": 7, "time": "...", "what": "refused", ..., "before": SHA-256 of line 6, "signature": of all of it}

Where the site took a new key, a line signed with the old one (``turned``) names both, and the next is signed with the
new one, so that what was written before is held by either.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from fedactors.actors.remote import CallCounts
from fedactors.errors import BadInput
from fedactors.federation.identity import (
    FROM_ENVIRONMENT,
    KeyFile,
    Passphrase,
    PrivateKey,
    PublicKey,
    key_of,
    public_bytes,
    public_key,
    read_key,
    sign,
    verify,
)
from fedactors.runs.storage import PRIVATE_FILE, write_atomic
from fedactors.validation import short_line

AUDIT, JOURNALS = "audit.log", "journals"
_FIRST = "0" * 64
_TURNED = "turned"
_LONGEST = 1000
"""Bytes of a text, which others may have written."""


class Journal:
    """How many answers of each bounded endpoint have left, and for which number (a round's; else 0) the last one did.

    It is written before an answer leaves, outside of all checkpoints: a process that goes on from an older one counts
    what it forgot, and gives no answer for the same number twice, whatever it is asked.

    Args:
        path: of the run's file; a run that goes on from another one has the same.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._adding = threading.Lock()
        self._left: dict[str, dict[str, tuple[int, int]]] = {}
        if path.exists():
            for actor, one in json.loads(path.read_text()).items():
                self._left[actor] = {name: (int(answers), int(last)) for name, (answers, last) in one.items()}

    def left(self, actor: str) -> Mapping[str, tuple[int, int]]:
        """Return of an actor's endpoints how many answers left, and the last number."""
        return self._left.get(actor, {})

    def add(self, actor: str, endpoint: str, number: int) -> None:
        """Note that an answer leaves; it is on disk when this returns."""
        with self._adding:  # answers of two endpoints may leave at once, each from a thread
            of = self._left.setdefault(actor, {})
            answers, last = of.get(endpoint, (0, 0))
            of[endpoint] = answers + 1, max(last, number)
            write_atomic(self._path, json.dumps(self._left).encode(), "journal", PRIVATE_FILE)


class PauseJournal:
    """How often the actors of a run that pauses were called, beyond what the checkpoint knows that it goes on from.

    A part writes its counts when it opens, with each checkpoint and when it ends. The next one adds what its
    checkpoint has forgotten of them; one that does not open changes nothing here. A process that is killed writes none
    at its end.

    Args:
        path: of the run's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def resume(self, counts: Mapping[str, CallCounts]) -> None:
        """Let the counts of actors that were just restored remember what their checkpoint has forgotten.

        Raises:
            BadInput: the file is damaged: nobody knows what they were asked for.
        """
        try:
            known = json.loads(self._path.read_bytes()) if self._path.exists() else {"forgotten": {}, "ended": {}}
            for actor, one in counts.items():
                one.remember(known["forgotten"].get(actor, {}), known["ended"].get(actor))
        except (ValueError, LookupError, TypeError, AttributeError):
            raise BadInput(f"{self._path}: damaged: bring it back from a copy, or begin a new run") from None

    def write(self, counts: Mapping[str, CallCounts]) -> None:
        """Write the counts of a part; they are on disk when this returns."""
        if not counts:
            return
        known = {
            "forgotten": {actor: one.forgotten for actor, one in counts.items()},
            "ended": {actor: one.state() for actor, one in counts.items()},
        }
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self._path, json.dumps(known).encode(), "journal", PRIVATE_FILE)


class AuditLog:
    """The log of one site; the site's process and its commands add to the same file.

    Args:
        path: the file.
        key: file of the site's key, which signs each line.
        passphrase: of the key.
    """

    def __init__(self, path: Path, key: Path, passphrase: Passphrase = FROM_ENVIRONMENT) -> None:
        self._path = path
        self._key = KeyFile(key, passphrase)
        self._key.read()

    def add(self, what: str, **facts: Any) -> None:
        """Add a line; it is on disk when this returns."""
        with self._locked() as file:
            before, number = _last(file)
            _write(file, _line(self._key.read(), what, facts, before, number)[0])

    def turn(self, following: Path) -> None:
        """Take the key of another file, which becomes the site's; again does nothing."""
        with self._locked() as file:
            if not following.exists():
                return  # another process of the site was first
            old, new = self._key.read(), read_key(following, self._key.passphrase)
            before, number = _last(file)
            facts = {"from": public_bytes(old.public_key()).hex(), "to": public_bytes(new.public_key()).hex()}
            if json.loads(_last_line(file) or b"{}").get("key") == facts["to"]:  # a process was killed in between
                os.replace(following, self._key.path)
                return
            turned, before = _line(old, _TURNED, facts, before, number)
            follows, _ = _line(new, "certified", {"key": facts["to"]}, before, number + 1)
            _write(file, turned + follows)
            os.replace(following, self._key.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Any]:
        with open(self._path, "a+b", opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _drop_half_a_line(file)
            yield file


def _line(key: PrivateKey, what: str, facts: Mapping[str, Any], before: str, number: int) -> tuple[bytes, str]:
    """Return a signed line, and its digest."""
    said = {name: short_line(fact, _LONGEST) if isinstance(fact, str) else fact for name, fact in facts.items()}
    line = {"number": number, "time": datetime.now(UTC).isoformat(), "what": what, **said, "before": before}
    raw = json.dumps({**line, "signature": sign(key, _content(line)).hex()}).encode()
    return raw + b"\n", hashlib.sha256(raw).hexdigest()


def _write(file: Any, lines: bytes) -> None:
    """Append all of it or nothing: who reads the log before the next line is added refuses half a line."""
    descriptor, rest = file.fileno(), memoryview(lines)
    length = os.fstat(descriptor).st_size
    try:
        while rest:  # past the file's buffer, which would keep what a full disk did not take
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, length)
        raise


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log, their signatures unchecked; none where there is no log yet.

    Raises:
        BadInput: a line is none that a site writes.
    """
    lines = []
    for number, raw in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        if not (isinstance(line, dict) and isinstance(line.get("what"), str)):
            raise BadInput(f"{path}: line {number} is not what the site wrote there")
        lines.append(line)
    return lines


def check(path: Path, certificate: x509.Certificate) -> list[dict[str, Any]]:
    """Return the lines of a log after checking that each is signed and follows the one before it.

    That lines are missing at its end cannot be seen.

    Raises:
        BadInput: a line was changed, or lines between two others are missing.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # a line that is being added has ended
        content = file.read()
    now, raws, lines = key_of(certificate), content.splitlines(), []
    known = _verified_before(path, now, content)
    public = known.public or _first_key(raws) or now
    before = known.before
    for number, raw in enumerate(raws, start=1):
        try:
            line = json.loads(raw)
            signature = bytes.fromhex(line.pop("signature"))
            if number <= known.num_lines:
                lines.append(line)
                continue
            is_sound = (line["before"], line["number"]) == (before, number) and isinstance(line["what"], str)
            turned_to = public_key(bytes.fromhex(line["to"])) if line["what"] == _TURNED else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_sound, line, signature = False, {}, b""
        if not (is_sound and verify(public, signature, _content(line))):
            raise BadInput(f"{path}: line {number} is not what the site wrote there")
        before = hashlib.sha256(raw).hexdigest()
        lines.append(line)
        public = turned_to or public
    if public_bytes(public) != public_bytes(now) or (lines and lines[-1]["what"] == _TURNED):
        raise BadInput(f"{path}: its last line is not signed with the key that the federation knows")
    digest = hashlib.sha256(content).digest()
    _verified[path, public_bytes(now)] = _Verified(len(content), digest, len(lines), before, public)
    return lines


@dataclass(frozen=True)
class _Verified:
    """How far the lines of a log were verified: its bytes and their SHA-256, and what the next line is held against."""

    num_bytes: int = 0
    digest: bytes = b""
    num_lines: int = 0
    before: str = _FIRST
    public: PublicKey | None = None


_verified: dict[tuple[Path, bytes], _Verified] = {}
"""By log and the site's key. A site reads its log for each proposal and budget: years of it take seconds to verify."""


def _verified_before(path: Path, key: PublicKey, content: bytes) -> _Verified:
    """Return how far this process has verified these bytes of a log: not at all where any of them is another."""
    found = _verified.get((path, public_bytes(key)), _Verified())
    is_same = hashlib.sha256(memoryview(content)[: found.num_bytes]).digest() == found.digest
    return found if is_same and content[found.num_bytes - 1 : found.num_bytes] == b"\n" else _Verified()


def signed_last(path: Path, certificates: Iterable[x509.Certificate]) -> x509.Certificate | None:
    """Return whose key, of these certificates', has signed the last line of a log; None: nobody's."""
    try:
        line = json.loads(path.read_bytes().splitlines()[-1])
        signature = bytes.fromhex(line.pop("signature"))
        content = _content(line)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return next((one for one in certificates if verify(key_of(one), signature, content)), None)


def _first_key(raws: Iterable[bytes]) -> PublicKey | None:
    """Return the key that a log began with, where it was turned since."""
    for raw in raws:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            line = json.loads(raw)
            if line["what"] == _TURNED:
                return public_key(bytes.fromhex(line["from"]))
    return None


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
    """Return the digest of the last line and the number of the next."""
    line = _last_line(file)
    return (hashlib.sha256(line).hexdigest(), json.loads(line)["number"] + 1) if line else (_FIRST, 1)


def _last_line(file: Any) -> bytes:
    """Return the last line, none of an empty log; only the end of the file is read."""
    size = file.seek(0, os.SEEK_END)
    length = 4096
    while size:
        file.seek(max(0, size - length))
        lines: list[bytes] = file.read().splitlines()
        if len(lines) > 1 or length >= size:
            return lines[-1]
        length *= 4
    return b""
