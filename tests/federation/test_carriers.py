"""Links through what organisations have: an HTTP proxy on the way out, and a balancer in HTTP mode on the way in."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors.errors import BadInput, PartyLost
from fedactors.federation.identity import FEDERATION, parse_site_address, read_federation
from fedactors.federation.relay import Relay
from fedactors.runtime.addresses import free_port
from tests.federation.test_keys import reached
from tests.federation.world import BANK, SHOP, World


def waits_at(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at {port}")


@contextlib.contextmanager
def process(port: int, *command: str) -> Iterator[None]:
    """A program that listens at a port."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: apt-get install {command[0]}")
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        waits_at(port)
        yield
    finally:
        running.terminate()
        running.wait(10)


@contextlib.contextmanager
def proxy(folder: Path, allowed: int, *lines: str) -> Iterator[tuple[int, Path]]:
    """Tinyproxy, which lets connections to one port through; its port, and its log."""
    port, log = free_port(), folder / "tinyproxy.log"
    config = folder / "tinyproxy.conf"
    said = (f"Port {port}", "Listen 127.0.0.1", f'LogFile "{log}"', "LogLevel Connect", f"ConnectPort {allowed}")
    config.write_text("\n".join(["Timeout 60", "MaxClients 20", *said, *lines, ""]))
    with process(port, "tinyproxy", "-d", "-c", str(config)):
        yield port, log


def setting(world: World, name: str, *lines: str) -> None:
    """Write lines above the first table of a site.toml."""
    file = world.path / name / "site.toml"
    file.write_text("\n".join([*lines, file.read_text()]))


# --- a proxy on the way out ---


def test_a_site_dials_through_a_proxy(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(SHOP)
    port = world.folder(BANK).federation.members[SHOP].port
    try:
        with proxy(tmp_path, port) as (at, log):
            setting(world, BANK, f'proxy = "http://127.0.0.1:{at}"')
            assert reached(world, BANK, SHOP)
            assert f"CONNECT 127.0.0.1:{port}" in log.read_text()
            # not where it is said that none is needed
            before = log.read_text().count("CONNECT")
            setting(world, BANK, 'no_proxy = ["127.0.0.1"]')
            assert reached(world, BANK, SHOP)
            assert log.read_text().count("CONNECT") == before
    finally:
        world.stop()


def test_a_proxy_asks_who_dials(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(SHOP)
    port = world.folder(BANK).federation.members[SHOP].port
    file = tmp_path / BANK / "proxy.txt"
    file.write_text("bank:secret\n")
    file.chmod(0o600)
    try:
        with proxy(tmp_path, port, "BasicAuth bank secret") as (at, _):
            setting(world, BANK, f'proxy = "http://127.0.0.1:{at}"')
            with pytest.raises(PartyLost, match=r"407.*: give proxy_credentials_file in site\.toml"):
                reached(world, BANK, SHOP)
            setting(world, BANK, 'proxy_credentials_file = "proxy.txt"')
            assert reached(world, BANK, SHOP)
            file.chmod(0o644)
            with pytest.raises(BadInput, match=r"^proxy_credentials_file: .* can be read by others"):
                reached(world, BANK, SHOP)
            file.chmod(0o600)
            file.write_text("no colon")
            with pytest.raises(BadInput, match=r"one line, USER:PASSWORD$"):
                reached(world, BANK, SHOP)
    finally:
        world.stop()


def test_a_proxy_that_lets_nothing_through_is_one_line(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(SHOP)
    port = world.folder(BANK).federation.members[SHOP].port
    try:
        with proxy(tmp_path, 1) as (at, _):
            setting(world, BANK, f'proxy = "http://127.0.0.1:{at}"')
            said = (
                rf"the proxy 127\.0\.0\.1:{at} answers CONNECT 127\.0\.0\.1:{port} with '403.*ask its operator to allow"
            )
            with pytest.raises(PartyLost, match=said):
                reached(world, BANK, SHOP)
        with pytest.raises(PartyLost, match=rf"the proxy 127\.0\.0\.1:{at} is not reached"):
            reached(world, BANK, SHOP)
    finally:
        world.stop()


@pytest.mark.parametrize("given", ["https://h:1", "h:1", "http://u:p@h:1", "http://h", "http://h:1/x"])
def test_what_is_no_proxy_is_one_line(tmp_path: Path, given: str) -> None:
    world = World(tmp_path)
    setting(world, BANK, f'proxy = "{given}"')
    with pytest.raises(BadInput, match=r"proxy: .*is not allowed: give "):
        world.folder(BANK)


def test_a_site_waits_at_its_relay_through_a_proxy(tmp_path: Path) -> None:
    import asyncio
    import threading

    port = free_port()
    world = World(tmp_path)
    world.command(
        *("federation", "admit", str(tmp_path / "credit"), str(tmp_path / SHOP / "shop.csr"), "--renew"),
        *("--relay", f"127.0.0.1:{port}"),
    )
    world.share()
    site = tmp_path / SHOP / "site.toml"
    text = site.read_text()
    begin = text.index("listen = ")
    site.write_text(f'{text[:begin]}relay = "127.0.0.1:{port}"{text[text.index(chr(10), begin) :]}')
    relay, loop = Relay(tmp_path / "credit" / FEDERATION, tell=lambda _: None), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server: Any = asyncio.run_coroutine_threadsafe(relay.start("127.0.0.1", port), loop).result(10)
    try:
        with proxy(tmp_path, port) as (at, log):
            for name in (BANK, SHOP):
                setting(world, name, f'proxy = "http://127.0.0.1:{at}"')
            world.start(SHOP)
            for _ in range(100):
                if any("waits at the relay" in line for line in world.output[SHOP]):
                    break
                time.sleep(0.1)
            assert reached(world, BANK, SHOP)
            assert log.read_text().count(f"CONNECT 127.0.0.1:{port}") >= 3  # waits, dials, answers
            world.stop()
    finally:
        world.stop()

        async def end() -> None:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.05)

        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


# --- a balancer in HTTP mode on the way in ---

HAPROXY = """
global
    maxconn 200
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout tunnel 1h
frontend in
    bind 127.0.0.1:{port}{tls}
    use_backend shop if {{ path /shop }}
    use_backend bank if {{ path /bank }}
    http-request deny unless {{ path /shop }} or {{ path /bank }}
backend shop
    server shop 127.0.0.1:{shop}
backend bank
    server bank 127.0.0.1:{bank}
"""


def balanced(folder: Path, scheme: str) -> tuple[World, int, Path]:
    """Bank and shop, whose WebSockets end at HAProxy; its port and configuration."""
    pytest.importorskip("websockets", reason="websockets is not installed: pip install 'fedactors[websocket]'")
    port, ports, tls = free_port(), {SHOP: free_port(), BANK: free_port()}, ""
    world = World(folder, addresses={name: f"127.0.0.1:{at}" for name, at in ports.items()})
    credit = str(folder / "credit")
    for name in ports:
        request, address = str(folder / name / f"{name}.csr"), f"{scheme}://127.0.0.1:{port}/{name}"
        world.command("federation", "admit", credit, request, "--renew", "--address", address)
        setting(world, name, 'carrier = "websocket"')
    world.share()
    if scheme == "wss":
        made = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "2", "-subj", "/CN=balancer"]
        made += [
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(folder / "key"),
            "-out",
            str(folder / "ca.pem"),
        ]
        subprocess.run(made, check=True, capture_output=True)
        (folder / "both.pem").write_text((folder / "ca.pem").read_text() + (folder / "key").read_text())
        tls = f" ssl crt {folder / 'both.pem'}"
        for name in ports:
            setting(world, name, f'websocket_ca = "{folder / "ca.pem"}"')
    config = folder / "haproxy.cfg"
    config.write_text(HAPROXY.format(port=port, tls=tls, **ports))
    return world, port, config


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_sites_speak_through_a_balancer_in_http_mode(tmp_path: Path, scheme: str) -> None:
    world, port, config = balanced(tmp_path, scheme)
    with process(port, "haproxy", "-f", str(config)):
        world.start(BANK)
        world.start(SHOP)
        try:
            assert reached(world, BANK, SHOP)
            assert reached(world, SHOP, BANK)
            assert not [line for line in world.audit(SHOP) if line["what"] == "refused"]
        finally:
            world.stop()


@pytest.mark.slow
def test_a_run_goes_through_a_balancer_in_http_mode(tmp_path: Path) -> None:
    from tests.federation.test_runs import LARGE, SMALL, federated

    world, port, config = balanced(tmp_path, "wss")
    with process(port, "haproxy", "-f", str(config)):
        world.start(BANK)
        world.start(SHOP)
        try:
            assert federated(world, SMALL) == 0, world.output
            protocol, words = LARGE
            assert federated(world, words, protocol=protocol) == 0, world.output
        finally:
            world.stop()


def test_what_no_websocket_leads_to_a_site_is_one_line(tmp_path: Path) -> None:
    world, port, config = balanced(tmp_path, "wss")
    (tmp_path / "haproxy.cfg").write_text(config.read_text().replace("path /shop", "path /other"))
    with process(port, "haproxy", "-f", str(config)):
        with pytest.raises(PartyLost, match=rf"wss://127\.0\.0\.1:{port}/shop answers with no WebSocket: .*403"):
            reached(world, BANK, SHOP)
        setting(world, SHOP, "# without a CA of its own")
        file = tmp_path / SHOP / "site.toml"
        file.write_text("\n".join(line for line in file.read_text().splitlines() if "websocket_ca" not in line))
        with pytest.raises(PartyLost, match=r"the balancer's certificate: .*: see websocket_ca in site\.toml"):
            reached(world, SHOP, BANK)
    with pytest.raises(PartyLost, match="does not answer"):
        reached(world, BANK, SHOP)


def test_addresses_of_websockets_are_kept_as_they_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_site_address("wss://bank.example:443/fed", "x") == ("bank.example", 443, "wss://bank.example:443/fed")
    assert parse_site_address("ws://[::1]:80", "x") == ("::1", 80, "ws://[::1]:80")
    for wrong in ("http://h:1", "wss://h", "wss://u:p@h:1/", "wss://h:1/?x", "wss://h:1/\n", "wss://h:0"):
        with pytest.raises(BadInput, match=r"^x: .* is not allowed: give "):
            parse_site_address(wrong, "x")
    world, port, _ = balanced(tmp_path, "ws")
    member = read_federation(tmp_path / "credit" / FEDERATION).members[SHOP]
    assert (member.url, member.where) == (f"ws://127.0.0.1:{port}/shop",) * 2
    assert SHOP in world.names
