"""Keys of each kind, with a passphrase or in a token; certificates of other CAs, and lists that revoke them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.name import _ASN1Type

from fedactors.cli.main import main
from fedactors.errors import BadInput, Refused
from fedactors.federation import identity
from fedactors.federation.audit_log import AUDIT, AuditLog, check
from fedactors.federation.handshake import dial
from fedactors.federation.identity import read_federation
from fedactors.federation.session import Hello
from fedactors.runtime.addresses import free_port
from fedactors.runtime.failures import encode_error
from tests.federation.world import BANK, LIMITS, SHOP, World

SECRET = "a passphrase of the bank"


def reached(world: World, caller: str, other: str) -> bool:
    """Dial a site that listens, with both certificates."""
    folder = world.folder(caller)

    async def work() -> None:
        ends = {"serve": None, "lost": lambda *_: None, "errors": lambda e: encode_error(caller, e)}
        hello = Hello(folder.federation.name, "check", "", "")
        await (await dial(folder, folder.federation.members[other], hello, LIMITS, **ends)).end()

    asyncio.run(work())
    return True


def reach_each_other(world: World) -> None:
    """Start both sites; each reaches the other."""
    world.start(BANK)
    world.start(SHOP)
    try:
        assert reached(world, BANK, SHOP)
        assert reached(world, SHOP, BANK)
    finally:
        world.stop()


def secret_file(folder: Path, text: str = SECRET) -> Path:
    file = folder / "passphrase"
    file.write_text(f"{text}\n")
    file.chmod(0o600)
    return file


def federation_of(
    folder: Path, flags: dict[str, tuple[str, ...]], authority: tuple[str, ...] = (), admit: tuple[str, ...] = ()
) -> World:
    """Bank and shop with keys of a kind, and without data."""
    world = World.__new__(World)
    world.path, world.names, world.processes, world._loops = folder, tuple(flags), {}, {}
    world.output = {name: [] for name in flags}
    world.command("federation", "init", str(folder / "credit"), *authority)
    for name, more in flags.items():
        address = f"127.0.0.1:{free_port()}"
        world.command("site", "init", name, "--folder", str(folder / name), "--listen", address, *more)
        request = str(folder / name / f"{name}.csr")
        world.command("federation", "admit", str(folder / "credit"), request, "--address", address, *admit)
    world.share()
    return world


# --- kinds of keys, and passphrases ---


@pytest.mark.parametrize(("bank", "shop"), [("p256", "ed25519"), ("ed25519", "p256"), ("p256", "p256")])
def test_sites_work_together_whatever_their_kinds_of_keys(tmp_path: Path, bank: str, shop: str) -> None:
    kinds = {BANK: ("--key-type", bank), SHOP: ("--key-type", shop)}
    world = federation_of(tmp_path, kinds, ("--key-type", bank))
    reach_each_other(world)
    for name in (BANK, SHOP):  # the log that each signs with its key
        assert world.audit(name)[0]["what"] == "started"


def test_the_log_goes_on_from_one_kind_of_key_to_the_other(tmp_path: Path) -> None:
    world = federation_of(tmp_path, {BANK: ()})
    world.folder(BANK).audit.add("note", text="Ed25519")
    home, credit = tmp_path / BANK, str(tmp_path / "credit")
    world.command("site", "renew", "--folder", str(home), "--key-type", "p256")
    world.command("federation", "admit", credit, str(home / "bank.csr"), "--renew")
    world.share()
    folder = world.folder(BANK)
    _ = folder.client_tls
    folder.audit.add("note", text="P-256")
    certificate = folder.federation.members[BANK].certificate
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert [line["what"] for line in folder.log()] == ["note", "turned", "certified", "note"]
    lines = (home / AUDIT).read_bytes().splitlines(keepends=True)
    (home / AUDIT).write_bytes(b"".join([*lines[:3], lines[3].replace(b"P-256", b"P-257")]))
    with pytest.raises(BadInput, match="line 4 is not what the site wrote there"):
        check(home / AUDIT, certificate)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP256K1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["p384", "secp256k1", "rsa"],
)
def test_a_certificate_of_another_kind_of_key_is_refused(tmp_path: Path, key: Any) -> None:
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, SHOP)])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    dated = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    other = dated.sign(key, hashes.SHA256())
    with pytest.raises(BadInput, match=r"^sites\.shop\.certificate: its key is not an Ed25519 or ECDSA P-256 key$"):
        identity.read_certificate(identity.as_pem(other), "sites.shop.certificate")
    with pytest.raises(BadInput, match=r"^certificate: its key is not an Ed25519 or ECDSA P-256 key$"):
        identity.key_of(other)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    identity.write_private(tmp_path / "key.pem", pem)
    with pytest.raises(BadInput, match=r"is not an Ed25519 or ECDSA P-256 key$"):
        identity.read_key(tmp_path / "key.pem")
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    authority = ed25519.Ed25519PrivateKey.generate()
    with pytest.raises(BadInput, match="its key is not an Ed25519 or ECDSA P-256 key"):
        identity.sign_request(
            request.public_bytes(serialization.Encoding.PEM), authority, identity.make_authority(authority, "credit")
        )


@pytest.mark.parametrize("kind", ["ed25519", "p256"])
def test_a_key_with_a_passphrase_is_used_by_who_has_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = secret_file(tmp_path)
    flags = ("--key-type", kind, "--passphrase-file", str(file))
    world = federation_of(tmp_path, {BANK: flags, SHOP: ()}, flags, ("--passphrase-file", str(file)))
    key = (tmp_path / BANK / "key.pem").read_text()
    assert key.startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert SECRET not in (tmp_path / BANK / "site.toml").read_text()
    reach_each_other(world)
    world.command("site", "renew", "--folder", str(tmp_path / BANK))
    assert "ENCRYPTED" in (tmp_path / BANK / "key.next.pem").read_text()
    # by a command, and by the environment
    site = tmp_path / BANK / "site.toml"
    text = site.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("key_passphrase_file")]
    site.write_text("\n".join([lines[0], f"key_passphrase = {json.dumps(['cat', str(file)])}", *lines[1:]]))
    world.folder(BANK).audit.add("note")
    site.write_text("\n".join(lines))
    monkeypatch.setenv(identity.PASSPHRASE_VARIABLE, SECRET)
    world.folder(BANK).audit.add("note")
    monkeypatch.delenv(identity.PASSPHRASE_VARIABLE)
    capsys.readouterr()
    assert main(["site", "start", "--folder", str(tmp_path / BANK)]) == 2
    assert "has a passphrase: --passphrase-file, key_passphrase" in capsys.readouterr().err
    request = str(tmp_path / SHOP / "shop.csr")
    assert main(["federation", "admit", str(tmp_path / "credit"), request, "--renew"]) == 2
    assert "authority.pem has a passphrase" in capsys.readouterr().err


def test_a_passphrase_that_is_wrong_or_not_to_be_had_is_one_line(tmp_path: Path) -> None:
    file = secret_file(tmp_path)
    path = tmp_path / "key.pem"
    identity.make_key(path, None, identity.Passphrase(file=file))
    assert identity.read_key(path, identity.Passphrase(file=file))
    with pytest.raises(BadInput, match=r"^key: wrong passphrase of .*key\.pem$"):
        identity.read_key(path, identity.Passphrase(command=("echo", "wrong")))
    for command, said in (
        (("false",), "ended with 1"),
        (("true",), "ended with 0, without a passphrase"),
        (("/nowhere/x",), "cannot be run"),
    ):
        with pytest.raises(BadInput, match=rf"^key_passphrase: '{command[0]}' {said}"):
            identity.read_key(path, identity.Passphrase(command=command))
    file.chmod(0o644)
    with pytest.raises(BadInput, match=r"^key_passphrase_file: .* can be read by others: chmod 600"):
        identity.read_key(path, identity.Passphrase(file=file))
    file.write_text("\n")
    file.chmod(0o600)
    with pytest.raises(BadInput, match=r"^key_passphrase_file: .* is empty$"):
        identity.read_key(path, identity.Passphrase(file=file))


# --- certificates of another CA ---


class EnterpriseCA:
    """What a bank has already: a CA with an RSA key, which signs requests as its own rules say."""

    def __init__(self, folder: Path) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Enterprise Issuing CA 3")])
        self.certificate = self._made(self.name, self.key.public_key(), x509.BasicConstraints(True, None), [], 900)
        self.file = folder / "enterprise.pem"
        self.file.write_text(identity.as_pem(self.certificate))

    def _made(self, subject: Any, public: Any, constraints: Any, names: list[Any], days: float) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(constraints, critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, request: Path, file: Path, names: list[Any] | None = None, days: float = 7) -> x509.Certificate:
        """Sign a request; by default with the names that it asks for."""
        asked = x509.load_pem_x509_csr(request.read_bytes())
        found = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = list(found) if names is None else names
        made = self._made(asked.subject, asked.public_key(), x509.BasicConstraints(False, None), names, days)
        file.write_text(identity.as_pem(made))
        return made

    def revoke(
        self, file: Path, *certificates: x509.Certificate, hours: float = 24, parts: tuple[Any, ...] = ()
    ) -> None:
        """Write a list; `parts`: critical extensions that say that it is a part of one."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name).last_update(now - timedelta(days=1))
        builder = builder.next_update(now + timedelta(hours=hours))
        for one in certificates:
            entry = x509.RevokedCertificateBuilder().serial_number(one.serial_number).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        for one in parts:
            builder = builder.add_extension(one, critical=True)
        made = builder.sign(self.key, hashes.SHA256())
        file.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def bank_of_an_enterprise(folder: Path) -> tuple[World, EnterpriseCA, Path]:
    """A world whose bank has a certificate of its enterprise's CA."""
    world = federation_of(folder, {SHOP: ()})
    address = f"127.0.0.1:{free_port()}"
    words = ("--key-type", "p256", "--dns", "bank.example")
    world.command("site", "init", BANK, "--folder", str(folder / BANK), "--listen", address, *words)
    enterprise, file = EnterpriseCA(folder), folder / "bank.pem"
    enterprise.issue(folder / BANK / "bank.csr", file)
    credit = ("federation", "admit", str(folder / "credit"), "--certificate", str(file))
    world.command(*credit, "--ca", str(enterprise.file), "--address", address)
    world.names, world.output[BANK] = (BANK, SHOP), []
    world.share()
    return world, enterprise, file


def test_a_certificate_of_an_enterprises_ca_is_as_good(tmp_path: Path) -> None:
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    world.start(BANK)
    world.start(SHOP)
    try:
        assert reached(world, BANK, SHOP)
        assert reached(world, SHOP, BANK)
        # a certificate of the same CA that is not the federation's is none
        other = tmp_path / "other"
        shutil.copytree(tmp_path / BANK, other, ignore=shutil.ignore_patterns("site.lock", "audit.log", "known.json"))
        stolen = enterprise.issue(tmp_path / BANK / "bank.csr", tmp_path / "second.pem")
        federation = read_federation(other / "federation.toml")
        member = federation.members[BANK]
        changed = replace(
            federation, is_signed=False, members={**federation.members, BANK: replace(member, certificate=stolen)}
        )
        (other / "federation.toml").write_text(identity.federation_text(changed))
        world.path = tmp_path / "x"
        world.path.mkdir()
        other.rename(world.path / BANK)
        with pytest.raises(Refused, match="shows a certificate of no site of credit"):
            reached(world, BANK, SHOP)
    finally:
        world.path = tmp_path
        world.stop()


def test_what_no_certificate_of_the_site_is_is_not_admitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, enterprise, file = bank_of_an_enterprise(tmp_path)
    request, credit = tmp_path / BANK / "bank.csr", ("federation", "admit", str(tmp_path / "credit"))
    before = (tmp_path / "credit/federation.toml").read_bytes()
    given = (*credit, "--certificate", str(file), "--renew")

    def refused(words: tuple[str, ...], text: str) -> None:
        capsys.readouterr()
        assert main(words) == 2
        assert text in capsys.readouterr().err

    enterprise.issue(request, file, [x509.DNSName("evil.example")])
    refused(given, "--certificate: it has no URI urn:fedactors:site:NAME: give the site's name after FOLDER")
    named = (*credit, BANK, "--certificate", str(file), "--renew")
    refused(named, "one must be URI urn:fedactors:site:bank, or DNS 127.0.0.1")
    enterprise.issue(request, file, [x509.UniformResourceIdentifier("urn:fedactors:site:clinic")])
    refused(named, "its subject alternative names are urn:fedactors:site:clinic")
    both = [x509.UniformResourceIdentifier("urn:fedactors:site:clinic"), x509.DNSName("bank.example")]
    enterprise.issue(request, file, both)
    refused((*named, "--address", "bank.example:1"), "its subject alternative names are urn:fedactors:site:clinic")
    enterprise.issue(request, file, [])
    refused(named, "its subject alternative names are nothing")
    enterprise.issue(request, file, days=-1)
    refused(given, "--certificate: it has ended, or none of the federation's CAs signed it")
    unknown = EnterpriseCA(tmp_path / BANK)
    unknown.issue(request, file)
    refused(given, "none of the federation's CAs signed it: give its issuer's certificate with --ca FILE")
    refused((*given, "--ca", str(file)), "--ca: this is no certificate of a CA")
    refused((*credit, str(request), "--ca", str(enterprise.file)), "--ca: is not allowed without --certificate")
    assert (tmp_path / "credit/federation.toml").read_bytes() == before
    # by the name of its host alone, which enterprise CAs know
    enterprise.issue(request, file, [x509.DNSName("bank.example")])
    world.command(*named, "--address", "bank.example:7443")
    assert read_federation(tmp_path / "credit/federation.toml").members[BANK].host == "bank.example"


def test_who_is_on_a_list_of_revoked_certificates_is_no_member(tmp_path: Path) -> None:
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, site = tmp_path / SHOP / "revoked.pem", tmp_path / SHOP / "site.toml"
    enterprise.revoke(revoked)
    site.write_text(f'crl = "revoked.pem"\n{site.read_text()}')
    world.start(SHOP)
    world.start(BANK)
    try:
        assert reached(world, BANK, SHOP)
        bank = world.folder(BANK).federation.members[BANK].certificate
        enterprise.revoke(revoked, bank)
        with pytest.raises(Refused, match="shows a certificate of no site of credit"):
            reached(world, BANK, SHOP)
        shop = world.processes[SHOP].folder
        assert BANK not in shop.federation.members
        # what is no list changes nothing, and is told
        revoked.write_text("no list")
        assert BANK not in shop.federation.members
        assert "is no certificate revocation list" in str(shop.config_errors)
        enterprise.revoke(revoked)
        assert BANK in shop.federation.members
        assert shop.config_errors is None
    finally:
        world.stop()


def test_a_name_is_one_name_by_whatever_kind_of_text(tmp_path: Path) -> None:
    """RFC 5280, 7.1: a CA may write itself otherwise in its lists than in its certificates."""
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, site = tmp_path / SHOP / "revoked.pem", tmp_path / SHOP / "site.toml"
    site.write_text(f'crl = "revoked.pem"\n{site.read_text()}')
    bank = read_federation(tmp_path / "credit" / "federation.toml").members[BANK].certificate
    ((of,),) = enterprise.name.rdns
    said = str(of.value)
    for kind, text in ((_ASN1Type.PrintableString, said), (_ASN1Type.UTF8String, f"{said} ".upper())):
        enterprise.name = x509.Name([x509.NameAttribute(of.oid, text, kind)])
        enterprise.revoke(revoked, bank)
        folder = world.folder(SHOP)
        assert BANK not in folder.federation.members
        assert folder.config_errors is None
        enterprise.revoke(revoked)
        assert BANK in folder.federation.members, "the list of before is this one's, and is not missing"


def test_lists_that_ended_or_that_another_signed_are_not_used(tmp_path: Path) -> None:
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, site = tmp_path / SHOP / "revoked.pem", tmp_path / SHOP / "site.toml"
    site.write_text(f'crl = "revoked.pem"\n{site.read_text()}')
    with pytest.raises(BadInput, match=r"^crl: .*No such file"):
        _ = world.folder(SHOP).federation
    enterprise.revoke(revoked, hours=-1)
    with pytest.raises(BadInput, match=r"^crl: .*: a list ended at .* get the CA's present one$"):
        _ = world.folder(SHOP).federation
    EnterpriseCA(tmp_path / SHOP).revoke(revoked)
    with pytest.raises(BadInput, match=r"is signed by no CA of the federation$"):
        _ = world.folder(SHOP).federation
    # one that ends while the process runs: what it revoked stays revoked
    enterprise.revoke(revoked, hours=1.5 / 3600)
    shop = world.folder(SHOP)
    assert BANK in shop.federation.members
    time.sleep(2)
    assert BANK in shop.federation.members
    assert "a list ended at" in str(shop.config_errors)


def partitioned(*, of_users: bool) -> x509.IssuingDistributionPoint:
    where = [x509.UniformResourceIdentifier("http://ca.example/3.crl")]
    return x509.IssuingDistributionPoint(where, None, of_users, False, None, False, False)


@pytest.mark.parametrize(
    "part",
    [x509.DeltaCRLIndicator(7), partitioned(of_users=True), partitioned(of_users=False)],
    ids=["delta", "users", "one"],
)
def test_a_part_of_a_list_is_not_taken_for_the_whole(tmp_path: Path, part: Any) -> None:
    """Whom the rest names would be a member: of a list of changes, or for some certificates."""
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, site = tmp_path / SHOP / "revoked.pem", tmp_path / SHOP / "site.toml"
    site.write_text(f'crl = "revoked.pem"\n{site.read_text()}')
    enterprise.revoke(revoked, parts=(part,))
    with pytest.raises(BadInput, match=r"^crl: .* is a part of one .*: give the CA's full list$"):
        _ = world.folder(SHOP).federation
    enterprise.revoke(revoked)
    assert BANK in world.folder(SHOP).federation.members


def test_a_revoked_ca_certifies_no_member(tmp_path: Path) -> None:
    """An intermediate CA that the list of its root names: its key may be anybody's."""
    world = federation_of(tmp_path, {SHOP: ()})
    root = EnterpriseCA(tmp_path)
    middle = between(root, tmp_path, "Issuing CA")
    (tmp_path / "below").mkdir()
    below = between(middle, tmp_path / "below", "Issuing CA 2")
    asked = world.folder(SHOP).federation
    made = {}
    for name, ca in {"root": root, "middle": middle, "below": below}.items():
        file = tmp_path / f"{name}.pem"
        made[name] = ca.issue(tmp_path / SHOP / "shop.csr", file)
    shop = asked.members[SHOP]
    members = {SHOP: shop, **{name: identity.Member(name, "x", 1, one) for name, one in made.items()}}
    issuers = tuple(identity.as_pem(one.certificate) for one in (root, middle, below))
    federation = replace(asked, members=members, issuers=issuers, is_signed=False)
    revoked = tmp_path / "revoked.pem"

    def left(*certificates: x509.Certificate) -> tuple[set[str], int]:
        root.revoke(revoked, *certificates)
        found = identity.without_revoked(federation, identity.read_revoked(revoked, federation.authorities))
        return set(found.members), len(found.issuers)

    assert left() == ({SHOP, "root", "middle", "below"}, 3)
    assert left(middle.certificate) == ({SHOP, "root"}, 1)


# --- a key in a hardware token ---

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """SoftHSM's token, and the URI of a key in it."""
    pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed: pip install 'fedactors[pkcs11]'")
    if shutil.which("softhsm2-util") is None or not MODULE.exists():
        pytest.skip("SoftHSM2 is not installed: apt-get install softhsm2")
    home, pin = tmp_path / "tokens", secret_file(tmp_path, "4711")
    home.mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {home}\nobjectstore.backend = file\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    words = ["softhsm2-util", "--init-token", "--free", "--label", "bank", "--pin", "4711", "--so-pin", "0815"]
    subprocess.run(words, check=True, capture_output=True)
    return lambda label: f"pkcs11:token=bank;object={label}?module-path={MODULE}&pin-source={pin}"


def run_alone(code: str, *words: str) -> None:
    """Run in a process of its own: PKCS#11's library reads its configuration once in a process."""

    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


IN_TOKEN = """
import sys
from pathlib import Path
from tests.federation.test_keys import *
folder, first, second = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
world = federation_of(folder, {BANK: ("--pkcs11", first), SHOP: ()})
assert (folder / BANK / "key.pem").read_text().startswith("pkcs11:")
world.start(BANK)
world.start(SHOP)
try:
    assert reached(world, BANK, SHOP)
    assert reached(world, SHOP, BANK)
    bank = world.folder(SHOP).federation.members[BANK]
    links = list(world.processes[SHOP]._links.values())
    # the log is signed in the token, and TLS has a key that it certified for a day
    assert world.audit(BANK)[0]["what"] == "started"
    shown = x509.load_pem_x509_certificates((folder / BANK / "certificate.pem").read_bytes())
    assert len(shown) == 2 and shown[1] == bank.certificate
    assert identity.is_delegated(shown[0], bank.certificate)
    assert shown[0].not_valid_after_utc - datetime.now(UTC) < timedelta(hours=24, minutes=1)
    # the next key, in the same token
    world.command("site", "renew", "--folder", str(folder / BANK), "--pkcs11", second)
    world.command("federation", "admit", str(folder / "credit"), str(folder / BANK / "bank.csr"), "--renew")
    world.share()
    assert reached(world, SHOP, BANK)
    assert [line["what"] for line in world.audit(BANK)] == ["started", "turned", "certified"]
    assert second in (folder / BANK / "key.pem").read_text()
finally:
    world.stop()
try:
    identity.read_key(folder / BANK / "key.pem").private_bytes()
except BadInput as error:
    assert "gives no private key away" in str(error)
else:
    raise AssertionError
for wrong, said in (
    (second.replace("token=bank", "token=none"), "NoSuchToken"),
    (second.replace("object=two", "object=none"), "NoSuchKey"),
    (second.replace("softhsm2.so", "none.so"), "cannot open shared object file"),
    (second.replace("module-path", "module"), "it names no module-path"),
    (second.partition("&")[0], "no PIN of the token"),
):
    (folder / "wrong.pem").unlink(missing_ok=True)
    identity.write_private(folder / "wrong.pem", wrong.encode())
    try:
        identity.read_key(folder / "wrong.pem")
    except BadInput as error:
        assert said in str(error), error
    else:
        raise AssertionError(wrong)
"""


def test_a_key_stays_in_its_token(tmp_path: Path, token: Callable[[str], str]) -> None:
    run_alone(IN_TOKEN, str(tmp_path), token("one"), token("two"))


def test_a_key_of_tls_that_a_site_certified_is_good_for_a_day_and_for_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = federation_of(tmp_path, {BANK: (), SHOP: ()})
    bank, shop = world.folder(BANK), world.folder(SHOP)
    members = bank.federation.members

    def made_by(key: Any) -> x509.Certificate:
        return x509.load_pem_x509_certificate(identity.delegate(key, members[BANK].certificate)[1].encode())

    def known(certificate: x509.Certificate) -> tuple[str, str] | None:
        return shop.federation.identified(certificate.public_bytes(serialization.Encoding.DER))

    assert known(made_by(bank.key.read())) == (BANK, members[BANK].fingerprints[0])
    assert known(made_by(shop.key.read())) is None  # the shop cannot make one of the bank
    for hours in (-0.05, 30.0):  # over, or too long
        monkeypatch.setattr(identity, "TLS_HOURS", hours)
        made = made_by(bank.key.read())
        monkeypatch.undo()
        assert known(made) is None


def test_a_log_needs_the_passphrase_of_its_key(tmp_path: Path) -> None:
    file = secret_file(tmp_path)
    identity.make_key(tmp_path / "key.pem", "p256", identity.Passphrase(file=file))
    with pytest.raises(BadInput, match="has a passphrase"):
        AuditLog(tmp_path / AUDIT, tmp_path / "key.pem")
    AuditLog(tmp_path / AUDIT, tmp_path / "key.pem", identity.Passphrase(file=file)).add("note")


def between(root: EnterpriseCA, folder: Path, name: str, *, days: float = 90) -> EnterpriseCA:
    """Return a CA that another one has signed, and that may have none below it."""
    made = EnterpriseCA(folder)
    made.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    constraints = x509.BasicConstraints(True, 0)
    made.certificate = root._made(made.name, made.key.public_key(), constraints, [], days)
    return made


@pytest.mark.slow
def test_a_chain_of_certificates_is_admitted_where_it_verifies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = federation_of(tmp_path, {SHOP: ()})
    address = f"127.0.0.1:{free_port()}"
    words = ("--key-type", "p256", "--dns", "bank.example")
    world.command("site", "init", BANK, "--folder", str(tmp_path / BANK), "--listen", address, *words)
    for name in ("root", "another"):
        (tmp_path / name).mkdir()
    root, another = EnterpriseCA(tmp_path / "root"), EnterpriseCA(tmp_path / "another")
    middle = between(root, tmp_path, "Issuing CA")
    ended = between(root, tmp_path, "Issuing CA", days=-1)
    below = between(middle, tmp_path, "CA below one that may have none")
    file = tmp_path / "chain.pem"

    def admit(issuer: EnterpriseCA, chain: list[EnterpriseCA], ca: EnterpriseCA) -> int:
        issuer.issue(tmp_path / BANK / "bank.csr", file)
        above = "".join(identity.as_pem(one.certificate) for one in chain)
        file.write_text(file.read_text() + above)
        pem = tmp_path / "ca.pem"
        pem.write_text(identity.as_pem(ca.certificate))
        credit = ("federation", "admit", str(tmp_path / "credit"), "--certificate", str(file))
        return main([*credit, "--ca", str(pem), "--address", address])

    refused = {
        "no chain": (middle, [], root),
        "of another CA": (middle, [middle], another),
        "ended": (ended, [ended], root),
        "of another issuer": (root, [middle], root),
        "too long": (below, [below, middle], root),
    }
    for what, (issuer, chain, ca) in refused.items():
        assert admit(issuer, chain, ca) == 2, what
        assert "--certificate:" in capsys.readouterr().err
    assert admit(middle, [middle], root) == 0, capsys.readouterr().err
    world.names, world.output[BANK] = (BANK, SHOP), []
    world.share()
    world.start(BANK)
    world.start(SHOP)
    try:
        assert reached(world, BANK, SHOP)
        assert reached(world, SHOP, BANK)
    finally:
        world.stop()
