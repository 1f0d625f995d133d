"""Joining, starting and leaving a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from fedactors.errors import BadInput, PayloadGone, Stopped
from fedactors.launch import StopSignals
from fedactors.runtime import addresses
from fedactors.runtime.ray import cluster
from fedactors.runtime.ray.transport import PayloadReader, PayloadStore

ALL = frozenset({"anybody"})
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (
            "ray://127.0.0.1:10001",
            r"address: 'ray://127.0.0.1:10001' is not allowed: give host:port ",
        ),
        ("somewhere", "address: 'somewhere' is not allowed: it must be host:port or auto"),
        ("host:port", "address: 'host:port' is not allowed"),
        (":6379", "address: ':6379' is not allowed"),
        ("no-such-host.invalid:6379", r"address: nobody answers at 'no-such-host.invalid:6379'"),
    ],
)
def test_addresses_are_validated(address: str, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        addresses.check_reachable(address)


def test_nobody_answers() -> None:
    port = addresses.free_port()
    with pytest.raises(BadInput, match=f"address: nobody answers at '127.0.0.1:{port}'"):
        addresses.check_reachable(f"127.0.0.1:{port}")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_something_else_answers(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
                connection.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BadInput, match=f"address: what answers at '{address}' is no Ray cluster"):
            addresses.check_reachable(address)
        thread.join()


@pytest.mark.parametrize(
    ("given", "variable", "said"),
    [
        ("nowhere", None, "^address: 'nowhere' is not allowed: it must be host:port or auto$"),
        (None, "nowhere", "^RAY_ADDRESS: 'nowhere' is not allowed.*; unset RAY_ADDRESS to start Ray here, or give"),
        (None, "http://127.0.0.1:8265", "^RAY_ADDRESS: 'http://127.0.0.1:8265' is not allowed"),
        ("nowhere", "127.0.0.1:1", "^address: 'nowhere'"),
    ],
)
def test_an_error_says_where_the_address_comes_from(given, variable, said, monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(BadInput, match=said):
        addresses.check_cluster(given)


@pytest.mark.parametrize("environment", [{}, {"RAY_ADDRESS": ""}])
def test_without_the_variable_ray_is_started_here(environment, monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert addresses.check_cluster(None) is None


@pytest.mark.parametrize("field", ["address", "RAY_ADDRESS"])
def test_auto_is_the_cluster_that_was_started_last_and_told_where_it_is_gone(field, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ray._private.services, "find_gcs_addresses", frozenset)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(BadInput, match=f"^{field}: 'auto' is not allowed here: no Ray cluster runs on this machine$"):
        cluster._resolved("auto", field)
    port = addresses.free_port()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text(f"127.0.0.1:{port}")
    with pytest.raises(BadInput, match=f"^{field}: auto: nobody answers at '[0-9.]+:{port}'"):
        cluster._resolved("auto", field)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(BadInput, match=r"RAY_ADDRESS: auto: nobody answers .*; unset RAY_ADDRESS to start Ray here"):
        cluster.join(None, 1)


@pytest.fixture
def deaf_ray(monkeypatch) -> Iterator[None]:
    """Let Ray's library wait for ever where it joins a cluster."""
    monkeypatch.setattr(ray, "init", lambda **_: threading.Event().wait())
    yield
    cluster.has_stuck_thread.clear()


def test_joining_has_a_limit(deaf_ray: None) -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0.1 s"):
        cluster._init_within(0.1, "127.0.0.1:1")
    assert cluster.has_stuck_thread.is_set()


def test_joining_hears_a_signal(deaf_ray: None) -> None:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with StopSignals(), pytest.raises(Stopped, match="terminated before the first round"):
        cluster._init_within(60, "127.0.0.1:1")
    assert cluster.has_stuck_thread.is_set()


def test_what_joining_raises_is_raised_here(monkeypatch) -> None:
    def fails(**_: object) -> None:
        raise ConnectionError("no")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(ConnectionError, match="no"):
        cluster._init_within(60, "127.0.0.1:1")
    assert not cluster.has_stuck_thread.is_set()


@pytest.mark.ray
def test_a_real_clusters_address_passes(ray_cluster: None) -> None:
    import ray

    addresses.check_reachable(ray.get_runtime_context().gcs_address)
    addresses.check_reachable("auto")


PROGRAM = """
import json, os, psutil, socket
from fedactors.runtime.ray.runtime import RayRuntime
from tests.runtime.actors import line

if __name__ == "__main__":
    runtime = RayRuntime(num_cpus=1)
    listening = []

    async def main():
        a, b = line(runtime, "a"), line(runtime, "b")
        await runtime.start()
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            for c in process.net_connections("inet"):
                if c.status == psutil.CONN_LISTEN:
                    listening.append(c.laddr.ip)
        return await a.relay("b", 7), await a.process()

    found, pid = runtime.execute(main)
    left = [p.name() for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    try:  # whom nobody has waited for yet is not alive
        alive = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        alive = False
    print(json.dumps({"found": found, "listening": sorted(set(listening)), "left": left, "alive": alive}))
"""


@pytest.mark.ray
def test_an_embedded_cluster_listens_on_the_loopback_only_and_leaves_no_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().splitlines()) == 1, "nothing else on standard output"
    found = json.loads(done.stdout)
    assert found["found"] == 7
    assert found["listening"]
    assert {address.removeprefix("::ffff:") for address in found["listening"]} <= {"127.0.0.1", "::1"}
    assert found["left"] == []
    assert not found["alive"]


# --- payloads between processes of a host ---


def test_payloads_are_read_by_place_and_a_freed_or_reused_slot_is_noticed() -> None:
    store, reader = PayloadStore(), PayloadReader()
    try:
        first, location = store.put([b"abc", memoryview(b"defg")], ALL)
        assert reader.read(location, first) == b"abcdefg" == store.read(first)
        store.free(first)
        store.free(first)
        with pytest.raises(PayloadGone, match=f"payload {first} was freed by its owner"):
            reader.read(location, first)
        second, same_location = store.put([b"other"], ALL)
        assert same_location == location
        with pytest.raises(PayloadGone):
            reader.read(location, first)
        with pytest.raises(KeyError):
            store.read(first)
        assert reader.read(location, second) == b"other"
    finally:
        reader.close()
        store.close()


def test_payloads_of_many_sizes_do_not_overlap() -> None:
    store, reader = PayloadStore(), PayloadReader()
    try:
        sizes = [0, 1, 4031, 4032, 4033, 100_000, 20_000_000, 3_000_000]
        kept = {size: store.put([bytes([size % 251]) * size], ALL) for size in sizes}
        for size, (key, location) in kept.items():
            assert reader.read(location, key) == bytes([size % 251]) * size
    finally:
        reader.close()
        store.close()


@pytest.fixture(scope="module")
def guarded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A cluster of one host that asks for a token, and the file that holds it."""
    folder = Path(tempfile.mkdtemp(prefix="token-", dir="/tmp"))
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    port = addresses.free_port()
    words = f"start --head --port {port} --node-ip-address 127.0.0.1 --include-dashboard=false --num-cpus 1 --block"
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    command = [str(Path(sys.executable).with_name("ray")), *words.split(), "--temp-dir", str(folder / "ray")]
    head = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.5)
        yield f"127.0.0.1:{port}", token
    finally:
        head.terminate()
        head.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.drawn(2, family="tokens")
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "text", "named"),
    [
        ("disabled", None, "asks for a token, and none is set"),
        ("token", "0" * 64, "refuses the token of"),
        ("token", None, "none is set"),
    ],
)
def test_a_missing_or_wrong_token_is_one_line_at_once(
    guarded_cluster: tuple[str, Path], tmp_path: Path, mode: str, text: str | None, named: str
) -> None:
    address, _ = guarded_cluster
    if text is not None:
        (tmp_path / "other").write_text(text)
    environment = {**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "fedactors", "run", "mtcd", "--smoke", "--quiet", "--address", address]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert named in line
    assert address in line
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.drawn(2, family="tokens")
@pytest.mark.ray
@pytest.mark.slow
def test_who_has_the_token_passes(guarded_cluster: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    address, token = guarded_cluster
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    cluster.check_token(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(BadInput, match="asks for a token"):
        cluster.check_token(address)


@pytest.mark.drawn(2, family="tokens")
@pytest.mark.ray
@pytest.mark.slow
def test_the_token_that_ray_start_found_by_itself_is_shown(guarded_cluster: tuple[str, Path], tmp_path: Path) -> None:
    address, token = guarded_cluster
    (tmp_path / ".ray").mkdir()
    shutil.copy(token, tmp_path / ".ray" / "auth_token")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "fedactors", "run", "mtcd", "--smoke", "--quiet", "--address", address]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_that_is_terminated_while_ray_starts_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedactors", "run", "horizontal", "--smoke", "--quiet", "--runtime", "ray"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any("gcs_server" in child.name() for child in psutil.Process(run.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.02)  # from now on Ray has put its handlers up, if it puts any
    run.terminate()
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (143, "fedactors: stopped before the first step\n")


@pytest.mark.slow
@pytest.mark.parametrize(("is_held", "left"), [(True, ""), (False, "the usual end\n")])
def test_a_process_that_ray_holds_ends_at_once(is_held: bool, left: str) -> None:
    code = (
        "import atexit\nfrom fedactors.cli.terminal import end_process\n"
        "from fedactors.runtime.ray import cluster\natexit.register(print, 'the usual end')\n"
        f"{is_held} and cluster.has_stuck_thread.set()\nprint('said')\nend_process(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, f"said\n{left}")
