"""An authority and the agents' certificates: for a rehearsal, or where no other authority is at hand.

Every agent has a key of its own and a certificate for its name, signed by one authority. A deployment has these made by
whoever runs the institutions' certificates; what an agent asks of them is the name of the peers file as a DNS name
among the subject's alternative names, and both uses, of a server and of a client.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pyro_fed.errors import SettingError
from pyro_fed.runtime.agents.names import AUTHORITY, check_names

#: Days that agents' certificates are good for, and at least those of an authority, which outlives what it signs.
DAYS, AUTHORITY_DAYS = 30, 3650
#: Clocks of two machines may differ by so many minutes.
CLOCKS = 10


@dataclass(frozen=True)
class Identity:
    """What an agent shows, and whom it believes.

    Args:
        name: the agent's.
        key: its private key, PEM.
        certificate: for its name, PEM.
        authority: the certificate of the authority that has signed all agents', PEM.

    Example:
        >>> me = Identity.load(Path("certificates"), "north")
    """

    name: str
    key: bytes
    certificate: bytes
    authority: bytes

    @classmethod
    def load(cls, folder: Path, name: str) -> Identity:
        """From NAME.key, NAME.crt and ca.crt in a folder.

        Raises:
            SettingError: a file is missing, the certificate is not for that name, or it or the authority's is not good
                now.
        """
        try:
            parts = [(folder / file).read_bytes() for file in (f"{name}.key", f"{name}.crt", f"{AUTHORITY}.crt")]
        except OSError as error:
            raise SettingError(
                f"--certificates {folder}: expected {name}.key, {name}.crt and {AUTHORITY}.crt: {error}"
            ) from error
        _check(parts[1], name, folder)
        _check_authority(parts[2], folder)
        return cls(name, *parts)


def _check(pem: bytes, name: str, folder: Path) -> None:
    """Refuse an agent's certificate that its neighbours would not believe."""
    where = f"--certificates {folder}: {name}.crt"
    try:
        found = x509.load_pem_x509_certificate(pem)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise SettingError(f"{where} is no certificate with a DNS name: {error}") from error
    if name not in names.get_values_for_type(x509.DNSName):
        raise SettingError(f"{where} is for {names.get_values_for_type(x509.DNSName)}, expected {name!r}")
    _check_dates(found, where)


def _check_authority(pem: bytes, folder: Path) -> None:
    """Refuse an authority's file in which no certificate is good now: nobody that it has signed would be believed."""
    where = f"--certificates {folder}: {AUTHORITY}.crt"
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise SettingError(f"{where} is no certificate: {error}") from error
    if not any(_good(one) for one in found):
        _check_dates(found[0], where)


def _good(certificate: x509.Certificate) -> bool:
    now = datetime.datetime.now(datetime.UTC)
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _check_dates(certificate: x509.Certificate, where: str) -> None:
    if not _good(certificate):
        raise SettingError(
            f"{where} is good from {certificate.not_valid_before_utc} until {certificate.not_valid_after_utc}, not at "
            f"{datetime.datetime.now(datetime.UTC)}: ask its issuer for new ones, of all agents where it is the "
            "authority's"
        )


def write_certificates(folder: Path, names: Sequence[str], days: int = DAYS) -> list[Path]:
    """Make an authority and a certificate for each agent.

    The authority's key is written too, so that agents can be added; keep it away from the agents' machines.

    Args:
        folder: gets ca.key, ca.crt, and NAME.key, NAME.crt of each; an authority that is there signs again.
        names: the agents'.
        days: that the agents' certificates are good for; the authority's is for ten years at least.

    Returns:
        The files, keys readable by their owner alone.

    Raises:
        SettingError: a name that cannot be used, a file of an agent is there already, the folder cannot be written, or
            the authority that is there is not good for so many days.

    Example:
        >>> write_certificates(Path("certificates"), ["north", "south"])[0].name
        'ca.key'
    """
    check_names(names, "certificates")
    taken = [folder / f"{name}.key" for name in names if (folder / f"{name}.key").exists()]
    if taken:
        raise SettingError(f"{taken[0]} is there already: take another folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        key, authority, written = _authority(folder, days)
        if authority.not_valid_after_utc < end.replace(microsecond=0):
            raise SettingError(
                f"{folder / AUTHORITY}.crt is good until {authority.not_valid_after_utc}, and certificates of {days} "
                "days would outlive it: ask for fewer days, or take another folder and give all agents new ones"
            )
        for name in names:
            own = ec.generate_private_key(ec.SECP256R1())
            written += _write(folder, name, own, _signed(name, own, key, authority, end))
    except OSError as error:
        raise SettingError(f"{folder} cannot be written: {error}") from error
    return written


def _authority(folder: Path, days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, list[Path]]:
    """The authority's key and certificate, and the files if they were made just now."""
    if (folder / f"{AUTHORITY}.key").exists():
        try:
            key = serialization.load_pem_private_key((folder / f"{AUTHORITY}.key").read_bytes(), password=None)
            own = x509.load_pem_x509_certificate((folder / f"{AUTHORITY}.crt").read_bytes())
        except (ValueError, TypeError) as error:
            raise SettingError(f"{folder / AUTHORITY}.key and .crt are no authority's: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SettingError(f"{folder / AUTHORITY}.key is not a key that was written here")
        _check_dates(own, f"{folder / AUTHORITY}.crt")
        return key, own, []
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("pyro_fed agents' authority")
    public = key.public_key()
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=max(days, AUTHORITY_DAYS))
    certificate = (
        _builder(name, name, public, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate, _write(folder, AUTHORITY, key, certificate)


def _signed(
    name: str,
    own: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    end: datetime.datetime,
) -> x509.Certificate:
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(_subject(name), authority.subject, own.public_key(), end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, end: datetime.datetime
) -> x509.CertificateBuilder:
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=CLOCKS)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _write(folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> list[Path]:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files = [folder / f"{name}.key", folder / f"{name}.crt"]
    with os.fdopen(os.open(files[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
    files[1].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return files
