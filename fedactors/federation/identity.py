"""Who a site is: its key, the federation's certificate authority, and the TLS that proves one to the other.

A site's key never leaves its folder, or its hardware token. Its certificate stands in the federation's file, signed by
the authority or by another CA that the file names; a peer is who its certificate says only if the file has that very
certificate under that name. A key in a token certifies a TLS key for a day (RFC 3820), since Python's TLS needs a file.
It is one file because keys, certificates and the file that lists and signs them are one chain of trust, read together.

    key.pem    Ed25519 or ECDSA P-256, with or without a passphrase; or one line, the RFC 7512 URI of a key in a token:
               pkcs11:token=bank;object=site?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=/run/secrets/pin
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import ssl
import subprocess
import threading
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.errors import BadInput
from fedactors.validation import first_line, one_line, party_name, read_text, shown

PrivateKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey
PublicKey = Ed25519PublicKey | ec.EllipticCurvePublicKey
P256 = "p256"
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,59}")
"""A site's name is that of the party whose actors it hosts: no slash."""
SITE_URI = "urn:fedactors:site:"
"""Begins the subject alternative name of a certificate that names a site."""
PASSPHRASE_VARIABLE = "FEDACTORS_KEY_PASSPHRASE"
TLS_HOURS = 24
"""For which a key in a token certifies a key of TLS."""
_KINDS = "an Ed25519 or ECDSA P-256 key"
_COMMAND_SECONDS = 30.0
_DAYS = 825
_LEEWAY = timedelta(minutes=5)
_PROXY_OID = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")
_PROXY = bytes.fromhex("300f020100300a06082b06010505071501")
"""proxyCertInfo of RFC 3820: signs no further certificate, and stands for all that its issuer may do."""


def check_name(name: str, field: str) -> str:
    """Return the name of a site or federation.

    Raises:
        BadInput: it could not be a party's name, or is the driver's.
    """
    if not SITE_NAME.fullmatch(name) or name == "driver":
        raise BadInput(
            f"{field}: {name[:80]!r} is not allowed: up to 60 letters, digits, '.', '_' and '-', not 'driver'"
        )
    return name


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read.

    Raises:
        BadInput: there is one already: a key is never overwritten.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except FileExistsError:
        raise BadInput(f"{path}: exists already and is not overwritten") from None


def read_private(path: Path, field: str) -> str:
    """Return the text of a file.

    Raises:
        BadInput: it is not there, or others can read it.
    """
    text = read_text(path, field)
    if path.stat().st_mode & 0o077:
        raise BadInput(f"{field}: {path} can be read by others: chmod 600 {path}")
    return text


# --- keys ---


@dataclass(frozen=True)
class Passphrase:
    """Where the passphrase of private keys comes from: a command's output, else a file, else the environment."""

    command: tuple[str, ...] = ()
    file: Path | None = None

    def read(self) -> bytes | None:
        """Return it; None: there is none.

        Raises:
            BadInput: the command or the file gives none.
        """
        if self.command:
            try:
                done = subprocess.run(self.command, capture_output=True, timeout=_COMMAND_SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired, ValueError) as error:
                raise BadInput(f"key_passphrase: {self.command[0]!r} cannot be run: {first_line(error)}") from None
            said = done.stdout.rstrip(b"\r\n")
            if done.returncode or not said:
                raise BadInput(
                    f"key_passphrase: {self.command[0]!r} ended with {done.returncode}, without a passphrase"
                )
            return said
        if self.file is not None:
            said = read_private(self.file, "key_passphrase_file").rstrip("\r\n").encode()
            if not said:
                raise BadInput(f"key_passphrase_file: {self.file} is empty")
            return said
        return os.environ.get(PASSPHRASE_VARIABLE, "").encode() or None


FROM_ENVIRONMENT = Passphrase()


def make_key(
    path: Path, kind: str | None = None, passphrase: Passphrase = FROM_ENVIRONMENT, uri: str | None = None
) -> PrivateKey:
    """Make a key (Ed25519, or P256) in a new file, encrypted where there is a passphrase; or in the token of `uri`."""
    if uri is not None:
        held = token_key(uri, passphrase, is_new=True)
        write_private(path, f"{uri}\n".encode())
        return held
    key = ec.generate_private_key(ec.SECP256R1()) if kind == P256 else Ed25519PrivateKey.generate()
    said = passphrase.read()
    how = serialization.NoEncryption() if said is None else serialization.BestAvailableEncryption(said)
    write_private(path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    return key


def read_key(path: Path, passphrase: Passphrase = FROM_ENVIRONMENT) -> PrivateKey:
    """Return a key that `make_key` kept, or the key in a token that a file names.

    Raises:
        BadInput: it is not there, or none, or others can read it, or the passphrase is missing or wrong.
    """
    text = read_private(path, "key")
    if text.startswith("pkcs11:"):
        return token_key(text.strip(), passphrase)
    said = passphrase.read() if "ENCRYPTED" in text else None
    if "ENCRYPTED" in text and said is None:
        raise BadInput(
            f"key: {path} has a passphrase: --passphrase-file, key_passphrase or key_passphrase_file of site.toml "
            f"names where it is, or {PASSPHRASE_VARIABLE} is it"
        )
    try:
        key = serialization.load_pem_private_key(text.encode(), said)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if said is not None:
            raise BadInput(f"key: wrong passphrase of {path}") from None
        raise BadInput(f"key: {path} is not {_KINDS}") from None
    if not isinstance(key, PrivateKey) or not is_known(key.public_key()):
        raise BadInput(f"key: {path} is not {_KINDS}")
    return key


class KeyFile:
    """A private key and its file, which is read again when it has changed."""

    def __init__(self, path: Path, passphrase: Passphrase = FROM_ENVIRONMENT) -> None:
        self.path = path
        self.passphrase = passphrase
        self._read: tuple[object, PrivateKey] | None = None

    def read(self) -> PrivateKey:
        """Return the key; see `read_key`."""
        try:
            found = self.path.stat()
            seen: object = (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)
        except OSError:
            seen = None
        if self._read is None or self._read[0] != seen:
            self._read = seen, read_key(self.path, self.passphrase)
        return self._read[1]


def is_known(public: Any) -> bool:
    """Say whether a public key is of a kind that sites have."""
    return isinstance(public, Ed25519PublicKey) or (
        isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1)
    )


def read_public_key(text: str, where: str) -> PublicKey:
    """Return the public key of a person, as PEM.

    Raises:
        BadInput: it is none, named as `where`.
    """
    try:
        key = serialization.load_pem_public_key(text.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not is_known(key):
        raise BadInput(f"{where}: is no public key: give Ed25519 or ECDSA P-256 as PEM (openssl pkey -pubout)")
    found: PublicKey = key  # type: ignore[assignment]
    return found


def sign(key: PrivateKey, data: bytes) -> bytes:
    """Return the signature of `data`: Ed25519, or ECDSA with SHA-256."""
    return key.sign(data) if isinstance(key, Ed25519PrivateKey) else key.sign(data, ec.ECDSA(hashes.SHA256()))


def verify(public: PublicKey, signature: bytes, data: bytes) -> bool:
    """Say whether the holder of a key signed `data`."""
    try:
        if isinstance(public, Ed25519PublicKey):
            public.verify(signature, data)
        else:
            public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def public_bytes(key: PublicKey) -> bytes:
    """Return a public key as DER."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_key(der: bytes) -> PublicKey:
    """Return the key that `public_bytes` made bytes of.

    Raises:
        ValueError: they are none, or another kind's.
    """
    try:
        key = serialization.load_der_public_key(der)
    except UnsupportedAlgorithm:
        raise ValueError("another kind of key") from None
    if not isinstance(key, PublicKey) or not is_known(key):
        raise ValueError("another kind of key")
    return key


def _digest(key: PrivateKey) -> hashes.SHA256 | None:
    return None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256()


# --- keys in a hardware token ---


class TokenKey(ec.EllipticCurvePrivateKey):
    """An ECDSA P-256 key that stays in its token (PKCS#11), which signs with it; `session` is logged in."""

    def __init__(self, private: Any, public: ec.EllipticCurvePublicKey) -> None:
        self._private = private
        self._public = public
        self._lock = threading.Lock()

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """Let the token sign."""
        from pkcs11 import Mechanism
        from pkcs11.exceptions import PKCS11Error

        try:
            with self._lock:
                raw = self._private.sign(hashlib.sha256(data).digest(), mechanism=Mechanism.ECDSA)
        except PKCS11Error as error:
            raise BadInput(f"key: the token does not sign: {type(error).__name__}: start the process again") from None
        half = len(raw) // 2
        return utils.encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """Return its public half."""
        return self._public

    @property
    def curve(self) -> ec.EllipticCurve:
        """P-256."""
        return self._public.curve

    @property
    def key_size(self) -> int:
        """Bits of the curve."""
        return self._public.key_size

    def _stays(self, *_: Any, **__: Any) -> NoReturn:
        raise BadInput("key: it is in a token, which gives no private key away")

    exchange = private_numbers = private_bytes = _stays

    def __copy__(self) -> TokenKey:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TokenKey:
        return self


def token_key(uri: str, passphrase: Passphrase = FROM_ENVIRONMENT, *, is_new: bool = False) -> TokenKey:
    """Return the key that an RFC 7512 URI names; `is_new`: make it where the token has none of that name.

    The PIN is in the file of ``pin-source``, else it is the passphrase.

    Raises:
        BadInput: no PKCS#11 library, token, PIN or key.
    """
    path, _, query = uri.removeprefix("pkcs11:").partition("?")
    pairs = [part.partition("=") for part in [*path.split(";"), *query.split("&")] if part]
    said = {name: unquote(value) for name, _, value in pairs}
    if missing := [name for name in ("module-path", "token", "object") if not said.get(name)]:
        raise BadInput(f"key: {one_line(uri, 200)!r} is not allowed: it names no {missing[0]}")
    if "pin-source" in said:
        source = Path(said["pin-source"].removeprefix("file:").removeprefix("//"))
        pin = read_private(source, "pin-source").strip()
    else:
        pin = (passphrase.read() or b"").decode()
    if not pin:
        raise BadInput(f"key: no PIN of the token: pin-source in its URI, key_passphrase, or {PASSPHRASE_VARIABLE}")
    return _open_token(said["module-path"], said["token"], said["object"], pin, is_new)


@cache  # a process is logged in to a token once, for all its keys
def _session(module: str, token: str, pin: str) -> tuple[Any, Any]:
    """Return a token, and a session that is logged in to it."""
    import pkcs11

    found = pkcs11.lib(module).get_token(token_label=token)
    return found, found.open(user_pin=pin)


def _open_token(module: str, token: str, label: str, pin: str, is_new: bool) -> TokenKey:
    try:
        import pkcs11
        from pkcs11.exceptions import PKCS11Error
        from pkcs11.util.ec import encode_ec_public_key, encode_named_curve_parameters
    except ImportError:
        raise BadInput("key: a key in a token needs python-pkcs11: pip install 'fedactors[pkcs11]'") from None
    where = f"token {token!r}, object {label!r}"
    try:
        found_token, session = _session(module, token, pin)
        private_kind, public_kind = pkcs11.ObjectClass.PRIVATE_KEY, pkcs11.ObjectClass.PUBLIC_KEY
        if is_new:
            with contextlib.suppress(pkcs11.NoSuchKey):
                session.get_key(object_class=private_kind, label=label)
                is_new = False
        if is_new:
            curve = {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")}
            with found_token.open(rw=True) as writing:
                parameters = writing.create_domain_parameters(pkcs11.KeyType.EC, curve, local=True)
                parameters.generate_keypair(label=label, store=True)
        private = session.get_key(object_class=private_kind, key_type=pkcs11.KeyType.EC, label=label)
        public = session.get_key(object_class=public_kind, key_type=pkcs11.KeyType.EC, label=label)
        found = public_key(encode_ec_public_key(public))
    except PKCS11Error as error:
        raise BadInput(f"key: {where}: {type(error).__name__}{f': {error}' if str(error) else ''}") from None
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"key: {where}: no ECDSA P-256 key, or no library at {module} ({first_line(error)})") from None
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise BadInput(f"key: {where}: it is no ECDSA P-256 key")
    return TokenKey(private, found)


# --- certificates ---


def make_request(key: PrivateKey, name: str, dns: Sequence[str] = ()) -> bytes:
    """Return a request, as PEM, that asks for a certificate of a site `name`, which has these DNS names too."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    made = builder.add_extension(_alternatives(name, dns), critical=False).sign(key, _digest(key))
    return made.public_bytes(serialization.Encoding.PEM)


def make_authority(key: PrivateKey, name: str) -> x509.Certificate:
    """Return the certificate, signed by itself, of a federation's authority."""
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    builder = _builder(_subject(name), _subject(name), key.public_key(), 4 * _DAYS, constraints)
    return builder.sign(key, _digest(key))


def sign_request(
    request: bytes, key: PrivateKey, authority: x509.Certificate, days: float = _DAYS
) -> tuple[str, x509.Certificate]:
    """Return the name that a request asks for, and its certificate.

    Raises:
        BadInput: no request, a broken signature, another kind of key, or a name that is none.
    """
    try:
        asked = x509.load_pem_x509_csr(request)
        name = str(asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        public, is_sound = asked.public_key(), asked.is_signature_valid
    except UnsupportedAlgorithm:
        public, is_sound, name = None, False, ""
    except (ValueError, IndexError):
        raise BadInput("request: this is no certificate request (.csr) of a site") from None
    if not is_sound or not isinstance(public, PublicKey) or not is_known(public):
        raise BadInput(f"request: its signature is broken, or its key is not {_KINDS}")
    check_name(name, "request")
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    builder = _builder(_subject(name), authority.subject, public, days, constraints)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(purposes, critical=False).add_extension(_alternatives(name), critical=False)
    return name, builder.sign(key, _digest(key))


def delegate(key: PrivateKey, certificate: x509.Certificate) -> tuple[bytes, str]:
    """Return a new key of TLS, as PEM, and its certificate for a day, which the key of another certificate signs."""
    soft = ec.generate_private_key(ec.SECP256R1())
    now, number = datetime.now(UTC), x509.random_serial_number()
    subject = [*certificate.subject.rdns, *_subject(str(number)).rdns]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(certificate.subject)
        .public_key(soft.public_key())
        .serial_number(number)
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + timedelta(hours=TLS_HOURS))
        .add_extension(x509.UnrecognizedExtension(_PROXY_OID, _PROXY), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
    )
    made = builder.sign(key, _digest(key))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return soft.private_bytes(encoding, form, serialization.NoEncryption()), as_pem(made)


def is_delegated(shown: x509.Certificate, by: x509.Certificate) -> bool:
    """Say whether the key of one certificate has certified the other for a day, which is not over."""
    if shown.issuer != by.subject or not _is_signed(shown, by):
        return False
    begin, end = shown.not_valid_before_utc, shown.not_valid_after_utc
    return begin <= datetime.now(UTC) <= end and end - begin <= timedelta(hours=TLS_HOURS) + 2 * _LEEWAY


def _is_signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def holds(certificate: x509.Certificate, issuers: Iterable[x509.Certificate]) -> bool:
    """Say whether one of these CAs has signed a certificate, and neither has ended."""
    now = datetime.now(UTC)
    return any(
        all(one.not_valid_before_utc <= now <= one.not_valid_after_utc for one in (certificate, issuer))
        and _is_signed(certificate, issuer)
        for issuer in issuers
    )


def names_of(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    """Return the URIs and the DNS names (IP addresses too) among a certificate's subject alternative names."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return [], []
    hosts = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    return found.get_values_for_type(x509.UniformResourceIdentifier), hosts


def check_names(certificate: x509.Certificate, site: str, host: str, field: str) -> None:
    """Check that a certificate is a site's: by the URI of the site, or without one by the name of its host.

    Raises:
        BadInput: naming what it names.
    """
    uris, hosts = names_of(certificate)
    sites = [uri for uri in uris if uri.startswith(SITE_URI)]
    if sites == [SITE_URI + site] or (not sites and host.lower() in map(str.lower, hosts)):
        return
    named = one_line(", ".join([*uris, *hosts]), 200) or "nothing"
    raise BadInput(
        f"{field}: its subject alternative names are {named}: one must be URI {SITE_URI}{site}, or DNS {host}"
    )


def _alternatives(name: str, dns: Sequence[str] = ()) -> x509.SubjectAlternativeName:
    try:
        return x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier(SITE_URI + name), *(x509.DNSName(one) for one in dns)]
        )
    except ValueError as error:
        raise BadInput(f"--dns: {first_line(error)}") from None


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: PublicKey, days: float, constraints: x509.BasicConstraints
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begin, end = (now - _LEEWAY, now + timedelta(days=days)) if days > 0 else (now + timedelta(days=days - 1), now)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(constraints, critical=True)
        .add_extension(_usage(is_authority=constraints.ca), critical=True)
    )


def as_pem(certificate: x509.Certificate) -> str:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def read_certificate(text: str, field: str, *, is_authority: bool = False) -> x509.Certificate:
    """Return the certificate of a PEM text; one of an authority may have any key, and must be a CA's.

    Raises:
        BadInput: it is none, or of another kind of key.
    """
    try:
        made = x509.load_pem_x509_certificate(text.encode())
        is_ours = is_authority or is_known(made.public_key())
        extensions = made.extensions
    except ValueError:
        raise BadInput(f"{field}: this is no certificate (PEM)") from None
    except UnsupportedAlgorithm:
        is_ours = False
    if not is_ours:
        raise BadInput(f"{field}: its key is not {_KINDS}")
    if is_authority:
        try:
            is_ca = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            is_ca = False
        if not is_ca:
            raise BadInput(f"{field}: this is no certificate of a CA")
    return made


_END_OF_PEM = "-----END CERTIFICATE-----\n"


def read_chain(
    text: str, field: str, known: Sequence[x509.Certificate]
) -> tuple[x509.Certificate, list[x509.Certificate]]:
    """Return a site's certificate and the CAs that its text has after it, the last signed by a CA that is known.

    Raises:
        BadInput: one of them is none, has ended, may sign no certificates, or is not signed by the one after it.
    """
    first, *rest = [f"{one}{_END_OF_PEM}" for one in f"{text.strip()}\n".split(_END_OF_PEM) if one.strip()] or [text]
    chain = [read_certificate(one, field, is_authority=True) for one in rest]
    trusted = list(known)
    for number, one in reversed(list(enumerate(chain))):
        above = [ca for ca in trusted if holds(one, [ca]) and _may_sign(ca, number + 1) and _may_sign(one, number)]
        if not above:
            name = one.subject.rfc4514_string()
            raise BadInput(
                f"{field}: {shown(name)} has ended, may sign no such certificate, or is signed by none of the CAs "
                "that are known: give the one above it with --ca FILE"
            )
        trusted = [one]
    return read_certificate(first, field), chain


def _may_sign(authority: x509.Certificate, num_below: int) -> bool:
    """Say whether a CA may sign certificates, with so many CAs between it and the last one."""
    extensions = authority.extensions
    most = extensions.get_extension_for_class(x509.BasicConstraints).value.path_length
    try:
        signs = extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        signs = True
    return signs and (most is None or num_below <= most)


def fingerprint(certificate: x509.Certificate | bytes) -> str:
    """Return the SHA-256 of a certificate (or of its DER bytes), in hexadecimal."""
    der = certificate if isinstance(certificate, bytes) else certificate.public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def key_of(certificate: x509.Certificate) -> PublicKey:
    """Return the public key of a certificate.

    Raises:
        BadInput: it is of another kind than sites have.
    """
    public = certificate.public_key()
    if not isinstance(public, PublicKey) or not is_known(public):
        raise BadInput(f"certificate: its key is not {_KINDS}")
    return public


def _name_of(name: x509.Name) -> bytes:
    """Return what is the same for names that are one name (RFC 5280, 7.1), by whichever kind of text."""

    def text(value: str | bytes) -> str:
        if isinstance(value, bytes):
            return value.hex()
        return " ".join(unicodedata.normalize("NFKC", value).casefold().split())

    parts = [sorted((one.oid.dotted_string, text(one.value)) for one in of) for of in name.rdns]
    return json.dumps(parts).encode()


@dataclass(frozen=True)
class Revoked:
    """What certificate revocation lists (RFC 5280) say."""

    serials: frozenset[tuple[bytes, int]] = frozenset()
    """Name of the issuer (`_name_of`) and serial number."""
    until: datetime | None = None
    """When the first of the lists ends."""
    updated: Mapping[bytes, datetime] = field(default_factory=dict)
    """By issuer, when its newest list was made."""

    def check_follows(self, before: Revoked, issuers: Sequence[x509.Certificate]) -> None:
        """Check that these lists may take the place of those of before.

        Raises:
            BadInput: a CA's list is older than the one of before, or gone: whom that named would be a member again.
        """
        known = {_name_of(one.subject) for one in issuers}
        for issuer, then in before.updated.items():
            now = self.updated.get(issuer)
            if issuer in known and (now is None or now < then):
                how = "missing" if now is None else f"of {now:%Y-%m-%d %H:%M:%S} UTC"
                raise BadInput(f"crl: a CA's list is {how}: the one of {then:%Y-%m-%d %H:%M:%S} UTC was read before")

    def __contains__(self, certificate: x509.Certificate) -> bool:
        return (_name_of(certificate.issuer), certificate.serial_number) in self.serials


def read_revoked(path: Path, issuers: Sequence[x509.Certificate]) -> Revoked:
    """Read a file of revocation lists: one as DER, or any number as PEM.

    Raises:
        BadInput: it is none, a list has ended, or is signed by no CA of the federation.
    """
    try:
        data = path.read_bytes()
        ends = b"-----END X509 CRL-----"
        blocks = [block + ends for block in data.split(ends)[:-1]]
        lists = [x509.load_pem_x509_crl(block) for block in blocks] or [x509.load_der_x509_crl(data)]
    except OSError as error:
        raise BadInput(f"crl: {path}: {error.strerror or error}") from None
    except ValueError:
        raise BadInput(f"crl: {path} is no certificate revocation list (PEM or DER)") from None
    serials, ended = set(), []
    updated: dict[bytes, datetime] = {}
    for one in lists:
        by_whom = one_line(one.issuer.rfc4514_string(), 200)
        issuer = _name_of(one.issuer)
        if not any(issuer == _name_of(by.subject) and _is_list_of(one, by) for by in issuers):
            raise BadInput(f"crl: {path}: the list of {by_whom!r} is signed by no CA of the federation")
        if not _is_whole(one):
            raise BadInput(
                f"crl: {path}: the list of {by_whom!r} is a part of one (critical extensions say which): give the CA's "
                "full list"
            )
        updated[issuer] = max(one.last_update_utc, updated.get(issuer, one.last_update_utc))
        if one.next_update_utc is not None:
            ended.append(one.next_update_utc)
        serials |= {(issuer, entry.serial_number) for entry in one}
    until = min(ended, default=None)
    if until is not None and until < datetime.now(UTC):
        raise BadInput(f"crl: {path}: a list ended at {until:%Y-%m-%d %H:%M} UTC: get the CA's present one")
    return Revoked(frozenset(serials), until, updated)


def _is_whole(one: x509.CertificateRevocationList) -> bool:
    """Say whether a list names all that its CA has revoked: one of changes, or for some certificates, says so.

    By RFC 5280, 5.2, a list with a critical extension that its reader does not follow, of an entry too, is not used.
    """
    try:
        return not any(extension.critical for of in (one, *one) for extension in of.extensions)
    except (ValueError, x509.DuplicateExtension):
        return False


def _is_list_of(one: x509.CertificateRevocationList, by: x509.Certificate) -> bool:
    try:
        return one.is_signature_valid(by.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


# --- TLS ---


def tls(
    *, server: bool, key: Path, certificate: Path, authorities: str, passphrase: Passphrase = FROM_ENVIRONMENT
) -> ssl.SSLContext:
    """Return what both ends of a link demand: TLS 1.3, and a certificate of the federation's authorities.

    Args:
        server: whether this end is dialled.
        key: file of this site's.
        certificate: file of this site's.
        authorities: certificates, as PEM.
        passphrase: of the key.

    Raises:
        BadInput: key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the file of the federation says which certificate is whose
    context.verify_mode = ssl.CERT_REQUIRED
    # a CA may be named without the one above it; a key in a token certifies one of TLS
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_ALLOW_PROXY_CERTS
    context.load_verify_locations(cadata=authorities)
    try:
        # without a passphrase OpenSSL would ask for one at the terminal
        context.load_cert_chain(certificate, key, lambda: passphrase.read() or b"")
    except ssl.SSLError as error:
        raise BadInput(f"certificate: {certificate} and {key} do not belong together ({error.reason})") from None
    if server:
        context.num_tickets = 0  # each connection shows its certificate anew
    return context


# --- the federation's file ---

FEDERATION = "federation.toml"
_STRICT = ConfigDict(extra="forbid", strict=True)
_PLAIN_LINES = re.compile(r"(?:[A-Za-z0-9+/= \-]*\n)+")
_SIGNATURE = re.compile(r'\n\[signed\]\nsignature = "((?:[0-9a-f]{2}){1,200})"\n\Z')
_SIGNED_LABEL = b"fedactors federation 1\0"
_URL = re.compile(r"wss?://([^/\s?#@]{1,260})(?:/[A-Za-z0-9._~/-]{0,200})?")
_HOST = re.compile(r"[A-Za-z0-9_.:%\[\]\-]{1,253}")


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _SiteEntry:
    address: str
    certificate: str
    previous: str | None = None
    relay: bool = False


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _FederationFile:
    name: str
    authority: str
    version: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
    issuers: list[str] = field(default_factory=list)
    signed: dict[str, str] | None = None
    sites: dict[str, _SiteEntry]
    hosts: dict[str, str]


@dataclass(frozen=True)
class Member:
    """A site as the federation's file has it."""

    name: str
    host: str
    port: int
    certificate: x509.Certificate
    previous: x509.Certificate | None = None
    """The one before it, which it may show until it has shown the new one."""
    is_relayed: bool = False
    """Whether host and port are a relay's, through which it is called."""
    url: str = ""
    """Of the WebSocket that carries its links; empty: TLS by itself does."""

    @property
    def where(self) -> str:
        """Its address, as people write it."""
        return self.url or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """SHA-256 of its certificates."""
        return tuple(fingerprint(one) for one in (self.certificate, self.previous) if one is not None)


@dataclass(frozen=True)
class Federation:
    """Who may work together."""

    name: str
    authority: str
    members: Mapping[str, Member]
    hosts: Mapping[str, str]
    """Party that belongs to no organisation's data, to the site whose process hosts it."""
    version: int = 0
    """Grows with each change; 0: nobody has counted."""
    issuers: tuple[str, ...] = ()
    """Certificates, as PEM, of other CAs that certify its sites."""
    is_signed: bool = False
    """Whether its authority has signed it."""

    @cached_property
    def issuer(self) -> x509.Certificate:
        """The authority's certificate."""
        return read_certificate(self.authority, "authority", is_authority=True)

    @cached_property
    def authorities(self) -> tuple[x509.Certificate, ...]:
        """Certificates of all CAs that certify its sites."""
        others = (read_certificate(one, "issuers", is_authority=True) for one in self.issuers)
        return self.issuer, *others

    def identified(self, certificate: bytes) -> tuple[str, str] | None:
        """Return the site that shows a certificate (DER) of TLS, and the fingerprint of the one that the file has."""
        shown_one = fingerprint(certificate)
        for member in self.members.values():
            if shown_one in member.fingerprints:
                return member.name, shown_one
        try:
            delegated = x509.load_der_x509_certificate(certificate)
        except ValueError:
            return None
        for member in self.members.values():
            for one in (member.certificate, member.previous):
                if one is not None and is_delegated(delegated, one):
                    return member.name, fingerprint(one)
        return None


def checked(kind: type[Any], path: Path, tree: Any) -> Any:
    """Return what a tree of a file describes.

    Raises:
        BadInput: naming the file and the field.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(tree))
    except TypeError:
        raise BadInput(f"{path}: a date is not allowed here: write it as a text") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {location or 'content'}: {first['msg']}") from None


def parse_address(text: str, field: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 address stands in brackets, which are none of the host.

    Raises:
        BadInput: it is something else.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not (colon and is_port and _HOST.fullmatch(host)):
        raise BadInput(f"{field}: {shown(text)} is not allowed: give HOST:PORT")
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port)


def parse_site_address(text: str, field: str) -> tuple[str, int, str]:
    """Return host and port where a site is dialled, and the URL if it is a WebSocket's: ``wss://HOST:PORT/PATH``.

    Raises:
        BadInput: it is something else.
    """
    if "://" not in text:
        return *parse_address(text, field), ""
    found = _URL.fullmatch(text)
    if found is None:
        raise BadInput(f"{field}: {shown(text)} is not allowed: give HOST:PORT, or wss://HOST:PORT/PATH")
    return *parse_address(found[1], field), text


def read_federation(path: Path) -> Federation:
    """Read and check a ``federation.toml``.

    Raises:
        BadInput: naming the file, the field and what is wrong.
    """
    return parse_federation(read_text(path, "federation"), path)


def parse_federation(text: str, path: Path, *, is_changed: bool = False) -> Federation:
    """Return the federation of a file's text; `is_changed`: its signature need not fit, it will be signed anew.

    Raises:
        BadInput: naming the field and what is wrong, the signature's too.
    """
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"federation: {shown(str(path))} is not TOML: {first_line(error)}") from None
    found = _federation_of(tree, path)
    if "signed" not in tree or is_changed:
        return replace(found, is_signed=False)
    if not is_signed_by(text, found.issuer):
        raise BadInput(
            f"{path}: signed: it was changed since its authority signed it: get it anew, or where the authority's key "
            "is: fedactors federation sign FOLDER"
        )
    return found


def is_signed_by(text: str, authority: x509.Certificate) -> bool:
    """Say whether an authority has signed the text of a federation's file."""
    found = _SIGNATURE.search(text)
    if found is None:
        return False
    body = text[: found.start() + 1].encode()
    return verify(key_of(authority), bytes.fromhex(found[1]), _SIGNED_LABEL + body)


def _federation_of(tree: Any, path: Path) -> Federation:
    found: _FederationFile = checked(_FederationFile, path, {"sites": {}, "hosts": {}, **tree})
    check_name(found.name, "federation")
    key_of(read_certificate(found.authority, f"{path}: authority", is_authority=True))
    for issuer in found.issuers:
        read_certificate(issuer, f"{path}: issuers", is_authority=True)
    members = {}
    for name, entry in found.sites.items():
        host, port, url = parse_site_address(entry.address, f"{path}: sites.{name}.address")
        certificate = read_certificate(entry.certificate, f"{path}: sites.{name}.certificate")
        previous = None
        if entry.previous is not None:
            previous = read_certificate(entry.previous, f"{path}: sites.{name}.previous")
        check_name(name, f"{path}: sites")
        check_names(certificate, name, host, f"{path}: sites.{name}.certificate")
        # called like an actor that is nobody's data, it would host that
        members[party_name(name, f"{path}: sites")] = Member(name, host, port, certificate, previous, entry.relay, url)
    for party, site in found.hosts.items():
        if site not in members or party in members or not SITE_NAME.fullmatch(party) or party == "driver":
            raise BadInput(f"{path}: hosts.{party}: {site!r} is not allowed: a party that is no site, and a site")
    issuers, is_signed = tuple(found.issuers), found.signed is not None
    return Federation(found.name, found.authority, members, dict(found.hosts), found.version, issuers, is_signed)


def quoted(text: str) -> str:
    """Return a text as TOML has it; lines of letters such as a PEM's stay lines."""
    if _PLAIN_LINES.fullmatch(text):
        return f'"""\n{text}"""'
    # of JSON's escapes of what is no ASCII, TOML has no pairs of surrogates
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def federation_text(made: Federation, key: PrivateKey | None = None) -> str:
    """Return a ``federation.toml``, signed with the authority's key where that is given.

    Raises:
        BadInput: the text would not be read as this federation.
    """
    lines = [f"name = {quoted(made.name)}", *([f"version = {made.version}"] if made.version else [])]
    lines += [f"authority = {quoted(made.authority)}"]
    lines += [f"issuers = [{', '.join(map(quoted, made.issuers))}]", ""] if made.issuers else [""]
    for site, member in made.members.items():
        lines += [f"[sites.{quoted(site)}]", f"address = {quoted(member.where)}"]
        lines += [f"certificate = {quoted(as_pem(member.certificate))}"]
        lines += ["relay = true"] if member.is_relayed else []
        lines += [] if member.previous is None else [f"previous = {quoted(as_pem(member.previous))}"]
        lines += [""]
    lines += ["[hosts]", *(f"{quoted(party)} = {quoted(site)}" for party, site in made.hosts.items()), ""]
    text = "\n".join(lines)
    if key is not None:
        text += "\n"
        text += f'[signed]\nsignature = "{sign(key, _SIGNED_LABEL + text.encode()).hex()}"\n'
    if parse_federation(text, Path(FEDERATION)) != replace(made, is_signed=key is not None):
        raise BadInput(f"{FEDERATION}: it would be read as another federation")
    return text


def without_replaced(federation: Federation, met: Mapping[str, str]) -> Federation:
    """Return the federation without the certificates of before of sites that have shown the new one.

    Args:
        federation: as its file has it.
        met: by site, SHA-256 of the new certificate that it has shown.
    """
    members = {
        name: replace(member, previous=None) if met.get(name) == fingerprint(member.certificate) else member
        for name, member in federation.members.items()
    }
    return replace(federation, members=members)


def without_revoked(federation: Federation, revoked: Revoked) -> Federation:
    """Return the federation without the certificates that are revoked, and without sites that have no other.

    With a CA that is revoked go those that it certifies, and no other one does: CAs and sites.
    """
    issuer, *issuers = federation.authorities
    good, before = [one for one in (issuer, *issuers) if one not in revoked], 0
    while len(good) != before:
        before = len(good)
        good = [one for one in good if _stands(one, federation.authorities, good)]
    members = {}
    for name, member in federation.members.items():
        shown_ones = [one for one in (member.certificate, member.previous) if one is not None and one not in revoked]
        held = [one for one in shown_ones if _stands(one, federation.authorities, good)]
        if held:
            members[name] = replace(member, certificate=held[0], previous=held[1] if len(held) > 1 else None)
    hosts = {party: site for party, site in federation.hosts.items() if site in members}
    kept = tuple(pem for pem, one in zip(federation.issuers, issuers, strict=True) if one in good)
    return replace(federation, members=members, hosts=hosts, issuers=kept)


def _stands(certificate: x509.Certificate, authorities: Iterable[x509.Certificate], good: Any) -> bool:
    """Say whether a good CA has signed a certificate, or it is none that a CA of the federation has signed."""
    above = [one for one in authorities if one != certificate and _is_signed(certificate, one)]
    return not above or any(one in good for one in above)
