"""A federation.toml that its authority signed is taken from whoever has it; no other file is, whoever offers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.federation import operations, site
from fedactors.federation.identity import (
    FEDERATION,
    as_pem,
    federation_text,
    make_authority,
    make_key,
    parse_federation,
    read_federation,
    read_key,
)
from fedactors.federation.relay import Relay, federation_at_relay
from fedactors.runtime.addresses import free_port
from tests.federation.test_keys import reached
from tests.federation.world import BANK, CLINIC, LIMITS, SHOP, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, (BANK, SHOP, CLINIC))
    yield made
    made.stop()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites look several times a second."""
    monkeypatch.setattr(site, "EVERY_SECONDS", 0.1)
    monkeypatch.setattr(site, "AGAIN_SECONDS", 0.3)


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def version(world: World, name: str) -> int:
    return world.processes[name].folder.federation.version


def text_of(world: World, name: str = "credit") -> str:
    return (world.path / name / FEDERATION).read_text()


def altered(world: World, **changes: Any) -> str:
    """The file with other content, signed by its authority as the next version."""
    now = read_federation(world.path / "credit" / FEDERATION)
    changed = replace(now, **{"version": now.version + 1, **changes})
    return federation_text(changed, read_key(world.path / "credit" / "authority.pem"))


# --- an honest one ---


def test_a_newer_file_goes_from_site_to_site(world: World, at_once: None) -> None:
    for name in world.names:
        world.start(name)
    before = version(world, BANK)
    world.command("federation", "remove", str(world.path / "credit"), CLINIC)
    (world.path / SHOP / FEDERATION).write_text(text_of(world))  # the organiser gives it to one
    assert reached(world, BANK, SHOP)  # whoever dials whom
    wait_for(lambda: version(world, BANK) == version(world, SHOP) == before + 1)
    assert CLINIC not in world.processes[BANK].folder.federation.members
    (line,) = [line for line in world.audit(BANK) if line["what"] == "federation"]
    assert (line["version"], line["replaced"], line["source"]) == (before + 1, before, SHOP)
    assert any("federation.toml is version" in text for text in world.output[BANK])
    status = operations.read_status(world.folder(BANK))
    assert (status["federation_version"], status["federation_signed"]) == (before + 1, True)
    # the one that was removed is told by nobody, and takes no file that it is not in
    with pytest.raises(BadInput, match=rf"^federation: its version {before + 1} has no site clinic: it was removed$"):
        world.folder(CLINIC).take_over(text_of(world), BANK)


def test_a_site_that_is_dialled_takes_the_file_of_who_dials(world: World, at_once: None) -> None:
    for name in (BANK, SHOP):
        world.start(name)
    world.command("federation", "sign", str(world.path / "credit"))
    (world.path / BANK / FEDERATION).write_text(text_of(world))
    assert reached(world, BANK, SHOP)
    wait_for(lambda: version(world, SHOP) == version(world, BANK))


def test_a_site_that_nobody_dials_asks_the_others_in_turn(
    world: World, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "ASK_SECONDS", 0.2)
    for name in (BANK, SHOP):
        world.start(name)
    world.command("federation", "sign", str(world.path / "credit"))
    (world.path / BANK / FEDERATION).write_text(text_of(world))
    wait_for(lambda: version(world, SHOP) == version(world, BANK))


def test_a_renewed_site_turns_to_its_next_key_with_the_file_that_it_takes(world: World, at_once: None) -> None:
    for name in (BANK, SHOP):
        world.start(name)
    world.command("site", "renew", "--folder", str(world.path / SHOP), "--key-type", "p256")
    request = str(world.path / SHOP / "shop.csr")
    world.command("federation", "admit", str(world.path / "credit"), request, "--renew")
    (world.path / BANK / FEDERATION).write_text(text_of(world))
    assert reached(world, BANK, SHOP)
    wait_for(lambda: version(world, SHOP) == version(world, BANK))
    assert reached(world, BANK, SHOP)
    assert [line["what"] for line in world.audit(SHOP)] == [
        "started",
        "turned",
        "certified",
        "federation",
        "certificate",
    ]


def test_a_relay_has_the_file_for_the_sites_that_wait_there(tmp_path: Path) -> None:
    import asyncio

    port = free_port()
    world = World(tmp_path)
    relay = Relay(tmp_path / "credit" / FEDERATION)
    world.command("federation", "sign", str(tmp_path / "credit"))
    shop = world.folder(SHOP)
    shop.relay = ("127.0.0.1", port)

    async def fetch() -> str:
        async with await relay.start("127.0.0.1", port):
            return await federation_at_relay(shop, LIMITS)

    found = asyncio.run(fetch())
    assert found == text_of(world)
    assert shop.take_over(found, "the relay")
    assert not shop.take_over(found, "the relay")


# --- hostile ones ---


_UNSIGNED = "not signed by the authority of credit"


def offers(world: World) -> dict[str, tuple[str, str]]:
    """What a member with changed code may offer, and what is said of it."""
    good = altered(world)
    other = world.path / "other"
    other.mkdir()
    key = make_key(other / "authority.pem")
    now = parse_federation(text_of(world), Path(FEDERATION))
    shop = read_key(world.path / SHOP / "key.pem")
    foreign = replace(now, version=99, authority=as_pem(make_authority(key, "credit")))
    body, _, signature = good.rpartition("[signed]")
    return {
        "by another authority of that name": (federation_text(foreign, key), "not signed by the authority of credit"),
        "by a member's key": (_signed_as(replace(now, version=99), shop), _UNSIGNED),
        "no signature": (federation_text(replace(now, version=99)), "not signed by the authority of credit"),
        "another version": (good.replace(f"version = {now.version + 1}", "version = 99"), _UNSIGNED),
        "another address": (good.replace("127.0.0.1:", "127.0.0.2:", 1), _UNSIGNED),
        "more after the signature": (f'{good}x = "y"\n', "signed"),
        "the signature in the middle": (f"[signed]{signature}{body}", _UNSIGNED),
        "of another federation": (altered(world, name="debit", version=99), "another federation, 'debit'"),
        "without this site": (
            altered(world, version=99, members={SHOP: now.members[SHOP]}, hosts={}),
            "has no site bank: it was removed",
        ),
        "with another key of this site": (
            altered(world, members={**now.members, BANK: replace(now.members[BANK], certificate=_other(world))}),
            "certifies another key of bank",
        ),
        "too long": (good + "# x" * 400_000, "more than"),
        "nothing": ("", _UNSIGNED),
        "a number that is none": (good.replace("version = ", "version = -", 1), _UNSIGNED),
    }


def _signed_as(made: Any, key: Any) -> str:
    """A file that somebody signed who is not its authority."""
    from fedactors.federation import identity

    text = federation_text(made) + "\n"
    signature = identity.sign(key, identity._SIGNED_LABEL + text.encode()).hex()
    return f'{text}[signed]\nsignature = "{signature}"\n'


def _other(world: World) -> Any:
    from fedactors.federation.identity import make_request, sign_request

    folder = world.path / "credit"
    key = make_key(world.path / "another.pem")
    return sign_request(
        make_request(key, BANK), read_key(folder / "authority.pem"), read_federation(folder / FEDERATION).issuer
    )[1]


def test_no_file_but_the_authoritys_next_is_taken(world: World) -> None:
    before = (world.path / BANK / FEDERATION).read_bytes()
    bank = world.folder(BANK)
    for what, (text, said) in offers(world).items():
        with pytest.raises(BadInput) as refused:
            bank.take_over(text, SHOP)
        assert said in str(refused.value), what
    assert (world.path / BANK / FEDERATION).read_bytes() == before
    # an older one, and the same again, are no error: whoever has them is behind
    older = text_of(world)
    world.command("federation", "sign", str(world.path / "credit"))
    assert bank.take_over(text_of(world), SHOP)
    assert not bank.take_over(older, SHOP)
    assert not bank.take_over(altered(world, version=bank.federation.version), SHOP)
    assert (world.path / BANK / FEDERATION).read_text() == text_of(world)


DEAR = f"{'.'.join('a' * 32_000)} = 1\n"
"""A key of many parts, which takes a reader of TOML tens of seconds."""


def test_a_file_that_is_dear_to_read_is_not_read_unless_it_is_signed(world: World) -> None:
    """A relay, or any member, may offer it: the site would answer nobody meanwhile."""
    bank = world.folder(BANK)
    used = bank.federation
    for text in (DEAR, f'{text_of(world)}\n{DEAR}\n[signed]\nsignature = "{"00" * 64}"\n'):
        begun = time.thread_time()
        with pytest.raises(BadInput, match=r"^federation: it is not signed by the authority of credit"):
            bank.take_over(text, "the relay")
        assert time.thread_time() - begun < 1
    assert bank.federation == used


@pytest.mark.parametrize("claimed", [99, (1 << 62)])
def test_a_member_that_offers_what_is_not_signed_is_written_down(
    world: World, at_once: None, monkeypatch: pytest.MonkeyPatch, claimed: int
) -> None:
    for name in (BANK, SHOP):
        world.start(name)
    folder = world.processes[SHOP].folder
    forged = federation_text(replace(folder.federation, version=99))
    before = (world.path / BANK / FEDERATION).read_bytes()
    # the shop's code is another: it says that its file is newer, and gives one of its own
    monkeypatch.setattr(type(folder), "federation_file", property(lambda _: forged))
    for hostile in (world.folder(SHOP), folder):
        now = hostile._membership()
        taken = replace(now.taken, federation=replace(now.taken.federation, version=claimed))
        hostile._member = replace(now, taken=taken)
        hostile._member_seen = hostile._now()

    def dial(caller: str) -> None:
        monkeypatch.setattr(world, "folder", lambda name: world.processes[name].folder)
        assert reached(world, caller, BANK if caller == SHOP else SHOP)

    dial(SHOP)
    said = "has a federation.toml that is not taken: federation: it is not signed by the authority of credit"
    wait_for(lambda: any(said in text for text in world.output[BANK]))
    assert (world.path / BANK / FEDERATION).read_bytes() == before
    monkeypatch.undo()
    assert any(said in text for text in world.refusals(BANK))


def test_a_file_that_was_changed_by_hand_is_not_used(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    file, credit = world.path / BANK / FEDERATION, world.path / "credit" / FEDERATION
    bank, good = world.folder(BANK), text_of(world)
    used = bank.federation
    file.write_text(good.replace("127.0.0.1:", "127.0.0.2:", 1))
    assert bank.federation == used
    assert "signed: it was changed since its authority signed it" in str(bank.config_errors)
    with pytest.raises(BadInput, match="fedactors federation sign FOLDER"):
        _ = world.folder(BANK).federation
    file.write_text(federation_text(replace(used, is_signed=False)))
    assert bank.federation == used
    assert "signed: missing" in str(bank.config_errors)
    # the organiser signs what they changed, and the site takes it
    credit.write_text(good.replace("127.0.0.1:", "127.0.0.2:", 1))
    world.command("federation", "sign", str(credit.parent))
    file.write_text(credit.read_text())
    assert bank.federation.version == used.version + 1
    assert "127.0.0.2" in {member.host for member in bank.federation.members.values()}
    assert bank.config_errors is None
    file.write_text(good)
    assert bank.federation.version == used.version + 1
    assert f"version: {used.version} is not allowed: older than {used.version + 1}" in str(bank.config_errors)
    assert main(["federation", "remove", str(credit.parent), "nobody"]) == 2
    assert "SITE: 'nobody' is not in the federation: bank, shop, clinic" in capsys.readouterr().err
