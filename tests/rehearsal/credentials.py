"""Certificates and keys of a deployment: an authority, the server's certificate, and a key for each node.

Where there is an authority already, as in most hospitals, its certificates take the place of these; what must be in
them is the same. Private keys stay on the machine that they were made for: here all machines are one.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

#: How long the certificates hold: a rehearsal.
DAYS = 2
PEM, OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
PLAIN = serialization.NoEncryption()


def make_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """An authority, `ca.pem`: all that nodes need to know the server by. Its private key is written nowhere."""
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder("pyro_fed rehearsal CA", "pyro_fed rehearsal CA", key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(PEM))
    return certificate, key


def make_server_certificate(folder: Path, authority: x509.Certificate, signer: ec.EllipticCurvePrivateKey) -> None:
    """The server's, `server.pem` with `server.key`, for the names by which nodes and users call it."""
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder("localhost", "pyro_fed rehearsal CA", key)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(known, critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / "server.pem").write_bytes(certificate.public_bytes(PEM))
    _write_secret(folder / "server.key", key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))


def make_node_key(folder: Path, name: str) -> None:
    """A node's key on the curve P-384, `NAME.key` for the node and `NAME.pub`, OpenSSH's format, to register."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(folder / f"{name}.key", key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    public = key.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + f" {name}\n".encode())


def make_reviewer_key(folder: Path, name: str) -> None:
    """A hospital's key to sign apps, `NAME.reviewer`, and what its node trusts, `NAME.trusted.yaml`: that key alone."""
    key = ed25519.Ed25519PrivateKey.generate()
    _write_secret(folder / f"{name}.reviewer", key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    public = key.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH).decode()
    (folder / f"{name}.trusted.yaml").write_text(f'{name}: "{public}"\n')


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(sign: bool) -> x509.KeyUsage:
    """Signatures of TLS, or for an authority of certificates."""
    return x509.KeyUsage(
        digital_signature=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _write_secret(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
