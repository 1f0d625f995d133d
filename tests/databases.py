"""A real PostgreSQL server for tests, started as an unprivileged user in a temporary folder, and how to fill it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fedactors.data.databases import TableSource
from fedactors.runtime.addresses import free_port

PASSWORD = "s3cret-pw"


@pytest.fixture(scope="session")
def postgres():
    """A real PostgreSQL server with the user of the tests; yields (host, port).

    Its folder is not under pytest's: those are closed to the account that the server must run under for root.
    """
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(p) for p in [shutil.which("initdb")] if p]
    if not found:
        pytest.skip("no PostgreSQL server is installed")
    binaries = found[-1].parent
    account: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        data, secret = folder / "data", folder / "password"
        secret.write_text(PASSWORD)
        if account:
            shutil.chown(folder, "postgres", "postgres")
            shutil.chown(secret, "postgres", "postgres")
        quiet = subprocess.DEVNULL

        def run(*words: str | Path) -> None:
            subprocess.run(words, check=True, stdout=quiet, stderr=quiet, cwd=folder, **account)

        setup: list[str | Path] = ["-D", data, "-U", "org", f"--pwfile={secret}", "-A", "scram-sha-256"]
        run(binaries / "initdb", *setup)
        port = free_port()
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        run(binaries / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-o", options, "start")
        yield "127.0.0.1", port
        run(binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")


def postgres_address(server, password=PASSWORD):
    """Return the address of the tests' user."""
    host, port = server
    return f"postgresql://org:{password}@{host}:{port}/postgres"


def fill_postgres(server, data, table, columns):
    """Create `table` with `columns` (SQL), copy the rows of an Arrow table into it, and return the source."""
    import psycopg

    quoted = '"' + table.replace('"', '""') + '"'
    with psycopg.connect(postgres_address(server)) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {quoted}")
        connection.execute(f"CREATE TABLE {quoted} {columns}")
        with connection.cursor() as cursor, cursor.copy(f"COPY {quoted} FROM STDIN") as copy:
            for row in data.to_pylist():
                copy.write_row(tuple(row.values()))
    return TableSource(kind="postgres", where=postgres_address(server), table=table)
