"""Who a site is: its key, the federation's certificate authority, and the TLS that proves one to the other.

A site's key never leaves its folder. Its certificate, signed by the authority, stands in the federation's file; a peer
is who its certificate says only if the file has that very certificate under that name.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedactors.errors import BadInput
from fedactors.validation import read_text

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,59}")
"""A site's name is that of the party whose actors it hosts: no slash."""
_DAYS = 825
_LEEWAY = timedelta(minutes=5)


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


def make_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and keep it in a new file."""
    key = Ed25519PrivateKey.generate()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_private(path, key.private_bytes(encoding, form, serialization.NoEncryption()))
    return key


def read_key(path: Path) -> Ed25519PrivateKey:
    """Return a key that `make_key` kept.

    Raises:
        BadInput: it is not there, or none, or others can read it.
    """
    text = read_text(path, "key")
    if path.stat().st_mode & 0o077:
        raise BadInput(f"key: {path} can be read by others: chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"key: {path} is no Ed25519 key")
    return key


def make_request(key: Ed25519PrivateKey, name: str) -> bytes:
    """Return a request, as PEM, that asks for a certificate of `name`."""
    made = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, None)
    return made.public_bytes(serialization.Encoding.PEM)


def make_authority(key: Ed25519PrivateKey, name: str) -> x509.Certificate:
    """Return the certificate, signed by itself, of a federation's authority."""
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    builder = _builder(_subject(name), _subject(name), key.public_key(), 4 * _DAYS, constraints)
    return builder.sign(key, None)


def sign_request(
    request: bytes, key: Ed25519PrivateKey, authority: x509.Certificate, days: int = _DAYS
) -> tuple[str, x509.Certificate]:
    """Return the name that a request asks for, and its certificate.

    Raises:
        BadInput: no request, a broken signature, another kind of key, or a name that is none.
    """
    try:
        asked = x509.load_pem_x509_csr(request)
        name = str(asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    except (ValueError, IndexError):
        raise BadInput("request: this is no certificate request (.csr) of a site") from None
    public = asked.public_key()
    if not asked.is_signature_valid or not isinstance(public, Ed25519PublicKey):
        raise BadInput("request: its signature is broken, or its key is no Ed25519 key")
    check_name(name, "request")
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    builder = _builder(_subject(name), authority.subject, public, days, constraints)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return name, builder.add_extension(purposes, critical=False).sign(key, None)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: Ed25519PublicKey, days: int, constraints: x509.BasicConstraints
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
    )


def as_pem(certificate: x509.Certificate) -> str:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def read_certificate(text: str, field: str) -> x509.Certificate:
    """Return the certificate of a PEM text.

    Raises:
        BadInput: it is none, or of another kind of key.
    """
    try:
        made = x509.load_pem_x509_certificate(text.encode())
        is_ours = isinstance(made.public_key(), Ed25519PublicKey)
    except ValueError:
        raise BadInput(f"{field}: this is no certificate (PEM)") from None
    except UnsupportedAlgorithm:
        is_ours = False
    if not is_ours:
        raise BadInput(f"{field}: its key is no Ed25519 key")
    return made


def public_bytes(key: Any) -> bytes:
    """Return the 32 bytes of a public key."""
    made: bytes = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return made


def fingerprint(certificate: x509.Certificate | bytes) -> str:
    """Return the SHA-256 of a certificate (or of its DER bytes), in hexadecimal."""
    der = certificate if isinstance(certificate, bytes) else certificate.public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def key_of(certificate: x509.Certificate) -> Ed25519PublicKey:
    """Return the public key of a certificate.

    Raises:
        BadInput: it is no Ed25519 key.
    """
    public = certificate.public_key()
    if not isinstance(public, Ed25519PublicKey):
        raise BadInput("certificate: its key is no Ed25519 key")
    return public


def verify(public: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    """Say whether the holder of a key signed `data`."""
    try:
        public.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def tls(*, server: bool, key: Path, certificate: Path, authority: str) -> ssl.SSLContext:
    """Return what both ends of a link demand: TLS 1.3, and a certificate of the federation's authority.

    Args:
        server: whether this end is dialled.
        key: file of this site's.
        certificate: file of this site's.
        authority: the authority's certificate, as PEM.

    Raises:
        BadInput: key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the file of the federation says which certificate is whose
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise BadInput(f"certificate: {certificate} and {key} do not belong together ({error.reason})") from None
    if server:
        context.num_tickets = 0  # each connection shows its certificate anew
    return context
