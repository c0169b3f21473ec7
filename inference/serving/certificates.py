"""Makes certificates for trying a tree of nodes on one machine, and tokens."""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 30


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Make an authority and a certificate for this machine; return certificate, key and authority.

    Valid existing files stay: nodes may be running with them. The authority's key is not kept, so
    that no other certificate can be signed with it.
    """
    files = folder / "node.pem", folder / "node.key", folder / "ca.pem"
    if all(file.is_file() for file in files) and _holds(files[0]):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    signing, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nestfl on this machine")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    authority = (
        _builder(issuer, issuer, signing.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(signing.public_key()), critical=False
        )
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(signing, hashes.SHA256())
    )
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
    names = [x509.DNSName("localhost"), *addresses]
    certificate = (
        _builder(subject, issuer, own.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
        .add_extension(_usage(signs_certificates=False), critical=True)
        .sign(signing, hashes.SHA256())
    )
    encoded = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = serialization.Encoding.PEM
    files[0].write_bytes(certificate.public_bytes(pem))
    _write_secret(files[1], encoded)
    files[2].write_bytes(authority.public_bytes(pem))
    return files


def make_token(file: Path) -> str:
    """Return the token in a file that only its owner can read; write a new one if there is none."""
    if file.is_file() and (kept := file.read_text().strip()):
        return kept
    token = secrets.token_urlsafe(32)
    _write_secret(file, f"{token}\n".encode())
    return token


def _holds(file: Path) -> bool:
    """Return whether a certificate is valid for another day."""
    try:
        end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except ValueError:
        return False
    return end > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_secret(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first moment on."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)
