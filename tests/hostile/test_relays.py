"""A relay takes nothing older than it took, hears of revoked certificates, and is no other relay."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedactors.errors import BadInput
from fedactors.federation import relay as relays
from fedactors.federation.identity import FEDERATION, federation_text
from fedactors.federation.relay import ANSWER, DIAL, WAIT, Relay, _greet
from fedactors.federation.session import ERROR, read_piece, refusal_in
from fedactors.federation.site_folder import SiteFolder
from fedactors.runtime.addresses import free_port
from tests.federation.test_keys import bank_of_an_enterprise
from tests.federation.test_relay import relayed
from tests.federation.world import BANK, LIMITS, SHOP, World


async def said_to(folder: SiteFolder, port: int, *wanted: str) -> str:
    """Come to a relay, and return why it refuses what is wanted; empty: it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await _greet(folder, reader, writer, LIMITS, *wanted)
        kind, _, _, body = await read_piece(reader, LIMITS)
        return str(refusal_in(body, "relay")) if kind == ERROR else ""
    finally:
        writer.transport.abort()
        await asyncio.sleep(0.01)


def test_a_relay_takes_no_older_federation(tmp_path: Path) -> None:
    world = World(tmp_path)
    file, lines = tmp_path / "credit" / FEDERATION, list[dict[str, Any]]()
    older = file.read_bytes()
    running = Relay(file, tell=lines.append)
    version = running.federation.version
    world.command("federation", "sign", str(tmp_path / "credit"))
    assert running.federation.version > version
    file.write_bytes(older)
    assert running.federation.version > version
    assert any("was taken" in line["text"] for line in lines)
    with pytest.raises(BadInput, match=r"version: .* is not allowed: older than"):
        Relay(file)
    file.write_text(federation_text(replace(running.federation, is_signed=False)))
    with pytest.raises(BadInput, match="signed: missing"):
        Relay(file)


def test_who_is_revoked_has_no_place_at_a_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_LOOK_SECONDS", 0.2)
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, port, bank = tmp_path / "revoked.pem", free_port(), world.folder(BANK)
    certificate = bank.federation.members[BANK].certificate
    enterprise.revoke(revoked)

    async def work() -> str:
        async with await Relay(tmp_path / "credit" / FEDERATION, crl=revoked).start("127.0.0.1", port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await _greet(bank, reader, writer, LIMITS, WAIT, "")
            await read_piece(reader, LIMITS)
            await asyncio.sleep(1.1)  # the time of a list is in whole seconds
            enterprise.revoke(revoked, certificate)
            async with asyncio.timeout(15):
                assert await reader.read() == b"", "it is cut off"
            writer.transport.abort()
            return await said_to(bank, port, WAIT, "")

    assert "which is no site of credit" in asyncio.run(work())
    time.sleep(1.1)
    enterprise.revoke(revoked)
    revoked.unlink()
    with pytest.raises(BadInput, match=r"^crl: "):
        Relay(tmp_path / "credit" / FEDERATION, crl=revoked)


def test_what_a_site_says_to_one_relay_is_worth_nothing_at_another(tmp_path: Path) -> None:
    """Who runs the relay where a site is called passes on the number that another relay wants signed."""
    port, other_port = free_port(), free_port()
    world = relayed(tmp_path, port)
    file = tmp_path / "credit" / FEDERATION
    request = str(tmp_path / BANK / f"{BANK}.csr")
    credit = ("federation", "admit", str(tmp_path / "credit"), request, "--renew")
    world.command(*credit, "--relay", f"127.0.0.1:{other_port}")
    world.share()
    shop, bank = world.folder(SHOP), world.folder(BANK)

    async def work() -> list[str]:
        with pytest.raises(BadInput, match=r"^--address: missing: federation.toml names the relays"):
            await Relay(file).start("127.0.0.1", free_port())
        async with await Relay(file).start("127.0.0.1", other_port):
            assert await said_to(bank, other_port, WAIT, "") == ""
            repeated = [(shop, WAIT, ""), (shop, ANSWER, "00" * 16), (bank, DIAL, SHOP)]
            return [await said_to(folder, other_port, *wanted) for folder, *wanted in repeated]

    assert all("is not called through this one" in said for said in asyncio.run(work()))
    at_its_address = Relay(file, address=("127.0.0.1", port))
    assert not at_its_address._is_called_elsewhere(SHOP)
    assert at_its_address._is_called_elsewhere(BANK)
