"""A site's standing in its federation: the federation's file, its key, and the TLS that both make.

They are read again when the files have changed, for connections that are made from then on; those that are open go on.
Files that are wrong, or do not fit each other yet, change nothing: what was before holds, and `trouble` says why.

    key.pem          the key
    key.next.pem     the next one, from `fedactors site renew`: it becomes the key as soon as the federation's file
                     certifies it, and the site's log says so, signed with both
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from fedactors.errors import BadInput
from fedactors.records.storage import write_atomic
from fedactors.runtime.federated.audit import AUDIT, AuditLog
from fedactors.runtime.federated.identity import as_pem, public_bytes, read_key, tls

KEY, NEXT_KEY, CERTIFICATE = "key.pem", "key.next.pem", "certificate.pem"


@dataclass(frozen=True)
class Standing:
    """What a site is in its federation, as its files had it when they were read."""

    federation: Any
    server_tls: ssl.SSLContext
    """What this site demands of who dials it; see `identity.tls`."""
    client_tls: ssl.SSLContext
    """What this site demands of those that it dials; see `identity.tls`."""


class Credentials:
    """See the module.

    Args:
        folder: of the site.
        file: of the federation.
        own: reads it, and returns the federation and this site's certificate.
    """

    def __init__(self, folder: Path, file: Path, own: Callable[[], tuple[Any, x509.Certificate]]) -> None:
        self.trouble: str | None = None
        """Why the files as they are now are not used."""
        self._folder = folder
        self._files = (file, folder / KEY, folder / NEXT_KEY)
        self._own = own
        self._standing: Standing | None = None
        self._seen: object = None
        self._lock = threading.Lock()

    def standing(self) -> Standing:
        """Return the standing of now.

        Raises:
            BadInput: the files are wrong and there is none of before.
        """
        with self._lock:
            seen = tuple(stamp(path) for path in self._files)
            if self._standing is None or seen != self._seen:
                try:
                    self._standing, self.trouble = self._read(), None
                except BadInput as error:
                    if self._standing is None:
                        raise
                    self.trouble = str(error)
                self._seen = tuple(stamp(path) for path in self._files)
            return self._standing

    def _read(self) -> Standing:
        federation, certificate = self._own()
        key, following = self._folder / KEY, self._folder / NEXT_KEY
        certified = public_bytes(certificate.public_key())
        if following.exists() and public_bytes(read_key(following).public_key()) == certified:
            AuditLog(self._folder / AUDIT, key).turn(following)
        if public_bytes(read_key(key).public_key()) != certified:
            raise BadInput(
                f"key: {key} is not the one that {self._files[0]} certifies: the site's file is older or newer"
            )
        file = self._folder / CERTIFICATE
        write_atomic(file, as_pem(certificate).encode(), "certificate")
        ends = (tls(server=s, key=key, certificate=file, authority=federation.authority) for s in (True, False))
        return Standing(federation, *ends)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
