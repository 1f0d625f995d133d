"""What lies in a site's folder when it starts, and what it writes: nothing older is taken, nothing leads elsewhere."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedactors import validation
from fedactors.errors import BadInput
from fedactors.federation import approval, site_folder
from fedactors.federation.audit_log import Journal
from fedactors.federation.identity import FEDERATION, Revoked, federation_text
from fedactors.federation.operations import Operations
from fedactors.federation.relay import Relay
from fedactors.federation.site_folder import CERTIFICATE, KNOWN, SITE, TLS_KEY
from tests.federation.test_keys import bank_of_an_enterprise
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, family="hostile")]


def test_a_start_takes_no_older_federation(tmp_path: Path) -> None:
    """A copy of before a site was removed, signed as it is, would make that site a member again."""
    world = World(tmp_path)
    file = tmp_path / SHOP / FEDERATION
    before = file.read_text()
    assert BANK in world.folder(SHOP).federation.members
    world.signed((tmp_path / "credit" / FEDERATION).read_text())
    world.share()
    newest = world.folder(SHOP).federation.version
    file.write_text(before)
    with pytest.raises(BadInput, match=rf"older than {newest}, which was taken: get the newest from another site"):
        _ = world.folder(SHOP).federation
    world.share()
    assert world.folder(SHOP).federation.version == newest


def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a policy that was just made tighter, or a removed site, would wait for the next change or start."""
    world = World(tmp_path)
    shop, policy, running = world.folder(SHOP), tmp_path / SHOP / SITE, Relay(tmp_path / "credit" / FEDERATION)
    version = shop.federation.version
    newer = world.signed((tmp_path / "credit" / FEDERATION).read_text())
    newest = world.signed(newer)
    real_text, real_tree, file = validation.read_text, validation.read_tree, tmp_path / SHOP / FEDERATION

    def text_of(path: Path, field: str) -> str:
        found = real_text(path, field)
        if path.name == FEDERATION and found == newer:
            path.write_text(newest)
        return found

    def tree_of(path: Path, field: str) -> dict[str, object]:
        found = real_tree(path, field)
        if "policy" not in found:
            path.write_text(f'{path.read_text()}\n[policy]\ncoordinators = ["shop"]\n')
        return found

    monkeypatch.setattr(site_folder, "read_text", text_of)
    monkeypatch.setattr(site_folder, "read_tree", tree_of)
    for path, federation in (
        (file, lambda: shop.federation),
        (tmp_path / "credit" / FEDERATION, lambda: running.federation),
    ):
        path.write_text(newer)
        _ = federation()
        assert path.read_text() == newest, "it changed while it was read"
        assert federation().version == version + 2
    policy.write_text(f"{policy.read_text()}\n")
    shop.look()
    assert shop.policy.coordinators is None
    shop.look()
    assert shop.policy.coordinators == ["shop"]


def test_a_start_takes_no_federation_whose_signature_was_taken_off(tmp_path: Path) -> None:
    world = World(tmp_path)
    shop = world.folder(SHOP)
    assert shop.federation.is_signed
    text = federation_text(shop.federation)
    (tmp_path / SHOP / FEDERATION).write_text(text)
    with pytest.raises(BadInput, match="signed: missing"):
        _ = world.folder(SHOP).federation


def test_a_start_takes_no_older_list_of_revoked_certificates(tmp_path: Path) -> None:
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, site = tmp_path / SHOP / "revoked.pem", tmp_path / SHOP / SITE
    site.write_text(f'crl = "revoked.pem"\n{site.read_text()}')
    enterprise.revoke(revoked)
    shop, before = world.folder(SHOP), revoked.read_bytes()
    certificate = shop.federation.members[BANK].certificate
    time.sleep(1.1)  # the time of a list is in whole seconds
    enterprise.revoke(revoked, certificate)
    assert BANK not in world.folder(SHOP).federation.members
    newest = revoked.read_bytes()
    revoked.write_bytes(before)
    with pytest.raises(BadInput, match="was read before"):
        _ = world.folder(SHOP).federation
    revoked.write_bytes(newest)
    assert BANK not in world.folder(SHOP).federation.members


def test_what_was_taken_is_known_by_what_nobody_made_up(tmp_path: Path) -> None:
    world = World(tmp_path)
    known = tmp_path / SHOP / KNOWN
    for words in ("{", "[]", '{"federation": {"a": 1}}', '{"crl": {"zz": "x"}}', '{"crl": {"00": "yesterday"}}'):
        known.write_text(words)
        with pytest.raises(BadInput, match=f"{KNOWN} is not what was written there: remove it if"):
            _ = world.folder(SHOP).federation
    known.unlink()
    assert world.folder(SHOP).federation.members
    certificate = tmp_path / SHOP / CERTIFICATE
    assert known.stat().st_mode == certificate.stat().st_mode, "root's commands write it, and the site reads it"


TAKING = """
import json, sys, time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from fedactors.federation.identity import FEDERATION, Revoked
from fedactors.federation.site_folder import KNOWN, FederationReader

class Slow(FederationReader):
    def _known(self):
        found = super()._known()
        time.sleep(0.005)
        return found

folder, issuer, first = Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
reader = Slow(folder / FEDERATION, None, folder / KNOWN)
found = FederationReader(folder / FEDERATION, None, folder / "of nobody").read()
for number in range(first, first + 40):
    made = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=number)
    federation = replace(found.federation, version=number)
    reader.take(replace(found, federation=federation, revoked=Revoked(updated={issuer: made})))
    known = json.loads((folder / KNOWN).read_text())
    assert known["crl"][issuer.hex()] == made.isoformat(), "another process has written what it read before"
    assert min(version for version, _ in known["federation"].values()) >= number
"""


def test_what_was_taken_grows_whoever_writes_it(tmp_path: Path) -> None:
    """A command that read the file before the site's process took a newer one writes after it."""
    folder = World(tmp_path).folder(SHOP)
    before = folder.federation.version
    words = [sys.executable, "-c", TAKING, str(folder.path)]
    taking = [subprocess.Popen([*words, one, str(first)]) for one, first in (("a", before + 1), ("b", before + 101))]
    assert [one.wait(120) for one in taking] == [0, 0]
    known = json.loads((folder.path / KNOWN).read_text())
    assert [version for version, _ in known["federation"].values()] == [before + 140]
    # nor does who keeps the folder locked keep the site from starting
    held = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    begun = time.monotonic()
    folder._reader.take(folder._membership().taken)
    assert time.monotonic() - begun < 20
    os.close(held)
    # and one alone takes back no version, no signature and no date
    taken = folder._membership().taken
    old = replace(taken.federation, version=before, is_signed=False)
    for days, then in ((1, "2030-01-02T00:00:00+00:00"), (0, "2030-01-02T00:00:00+00:00")):
        made = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=days)
        folder._reader.take(replace(taken, federation=old, revoked=Revoked(updated={b"c": made})))
        known = json.loads((folder.path / KNOWN).read_text())
        assert list(known["federation"].values()) == [[before + 140, taken.federation.is_signed]]
        assert known["crl"][b"c".hex()] == then


def test_a_key_of_tls_that_a_token_certified_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, folder = World(tmp_path), tmp_path / "third"
    world.command("site", "init", "third", "--folder", str(folder), "--listen", "127.0.0.1:7", "--key-type", "p256")
    monkeypatch.setattr(site_folder, "TokenKey", ec.EllipticCurvePrivateKey)
    request = str(folder / "third.csr")
    world.command("federation", "admit", str(tmp_path / "credit"), request, "--address", "127.0.0.1:7")
    (folder / FEDERATION).write_text((tmp_path / "credit" / FEDERATION).read_text())
    assert site_folder.SiteFolder(folder).server_tls
    assert stat.S_IMODE((folder / TLS_KEY).stat().st_mode) == 0o600


def test_metrics_lead_to_no_file_of_the_site(tmp_path: Path) -> None:
    """The folder of metrics is another program's, and others may write there."""
    world = World(tmp_path)
    collected = tmp_path / "collected"
    collected.mkdir()
    file = tmp_path / SHOP / SITE
    file.write_text(f'metrics = "{collected / "site.prom"}"\n{file.read_text()}')
    key = (tmp_path / SHOP / "key.pem").read_bytes()
    (collected / ".site.prom.part").symlink_to(tmp_path / SHOP / "key.pem")
    operations = Operations(world.folder(SHOP), lambda _: None)
    operations.begin()
    operations.end()
    assert b"fedactors_site" in (collected / "site.prom").read_bytes()
    assert (tmp_path / SHOP / "key.pem").read_bytes() == key


@pytest.mark.parametrize(
    ("folder", "file", "is_told"), [(0o755, 0o666, True), (0o755, 0o644, False), (0o700, 0o666, False)]
)
def test_a_site_says_that_others_may_write_its_policy(tmp_path: Path, folder: int, file: int, is_told: bool) -> None:
    world = World(tmp_path)
    (tmp_path / SHOP / SITE).chmod(file)
    (tmp_path / SHOP).chmod(folder)
    world.start(SHOP)
    world.stop()
    said = f"{tmp_path / SHOP / SITE}: other users of this machine may write there: chmod 600"
    assert (said in world.output[SHOP]) is is_told


def test_what_is_on_record_is_on_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves an answer without words, which no start could read, or a round to be answered again."""
    synced: list[bool] = []
    sync = os.fsync

    def note(one: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(one).st_mode))
        sync(one)

    monkeypatch.setattr(os, "fsync", note)
    (tmp_path / "proposals").mkdir()
    approval._write_once(tmp_path / "proposals" / "a.decision.json", {"approved": True})
    assert synced == [False, True]
    synced.clear()
    Journal(tmp_path / "journals" / "a.json").add("client", "train_round", 3)
    assert synced == [False, True]
    assert stat.S_IMODE((tmp_path / "journals" / "a.json").stat().st_mode) == 0o600
    assert Journal(tmp_path / "journals" / "a.json").left("client") == {"train_round": (1, 3)}
