"""A certificate authority and the agents' certificates, for a rehearsal, or where there is no other authority.

Every agent has its own key and a certificate for its name, signed by one authority. In a deployment these come from
those who run the institutions' certificates. A certificate must have the agent's name in the peers file as a DNS name
among the subject's alternative names, and allow both uses, as a server and as a client. Other names in it (the common
name, e-mail addresses, URIs) name no agent. Its key is on an elliptic curve or RSA, and signs the agent's statements
(`statements`); the chain from the authority is verified by `cryptography.x509.verification`.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from pyro_fed.conventions.output import create_file
from pyro_fed.deployment.agents.peers import AUTHORITY, check_names
from pyro_fed.deployment.signing_keys import check_owner_only
from pyro_fed.errors import SettingError

#: The least days for which an authority is valid, which has to outlive its certificates.
AUTHORITY_DAYS = 3650
#: Minutes by which the clocks of two machines may differ.
MAX_CLOCK_SKEW_MINUTES = 10
#: The hash of signatures, and the padding of those by RSA keys.
HASH = hashes.SHA256()
RSA_PADDING = padding.PSS(padding.MGF1(HASH), padding.PSS.DIGEST_LENGTH)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


@dataclass(frozen=True)
class Identity:
    """The key and certificates with which an agent identifies itself and its neighbours.

    Args:
        name: the agent's name.
        key: the agent's private key, PEM.
        certificate: the agent's certificate, PEM.
        authority: the certificate of the authority that has signed all agents' certificates, PEM.

    Example:
        >>> me = Identity.load(Path("certificates"), "north")
    """

    name: str
    key: bytes
    certificate: bytes
    authority: bytes

    @classmethod
    def load(cls, folder: Path, name: str) -> Identity:
        """Read NAME.key, NAME.crt and ca.crt from a folder.

        Args:
            folder: the folder.
            name: the agent's name.

        Raises:
            SettingError: a file is missing, others than its owner can use the key's file, the certificate is for
                another name or not from the authority, or one of the two certificates is not valid now.
        """
        try:
            parts = [(folder / file).read_bytes() for file in (f"{name}.key", f"{name}.crt", f"{AUTHORITY}.crt")]
        except OSError as error:
            raise SettingError(
                f"--certificates {folder}: expected {name}.key, {name}.crt and {AUTHORITY}.crt: {error}"
            ) from error
        check_owner_only(folder / f"{name}.key")
        where = f"--certificates {folder}"
        try:
            own = x509.load_pem_x509_certificate(parts[1])
            names = dns_names(own)
        except ValueError as error:
            raise SettingError(f"{where}: {name}.crt is no certificate with a DNS name: {error}") from error
        if name not in names:
            raise SettingError(f"{where}: {name}.crt is for {names}, expected {name!r}")
        _check_dates([own], f"{where}: {name}.crt")
        try:
            authorities = x509.load_pem_x509_certificates(parts[2])
        except ValueError as error:
            raise SettingError(f"{where}: {AUTHORITY}.crt is no certificate: {error}") from error
        _check_dates(authorities, f"{where}: {AUTHORITY}.crt")
        public = load_private_key(parts[0], f"{where}: {name}.key").public_key()
        try:
            certified = verified_key(parts[1], name, parts[2])
        except ValueError as error:
            raise SettingError(
                f"{where}: {name}.crt cannot be verified against {AUTHORITY}.crt: {error}. Ask its issuer for one "
                "that can"
            ) from error
        if certified != public:
            raise SettingError(f"{where}: {name}.crt belongs to another key than {name}.key")
        return cls(name, *parts)


def load_private_key(pem: bytes, where: str) -> PrivateKey:
    """An agent's private key from PEM; `where` says in errors where it is from."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise SettingError(f"{where} is no private key without a password: {error}") from error
    if not isinstance(key, PrivateKey):
        raise SettingError(
            f"{where}: expected a key on an elliptic curve, or an RSA key, received {type(key).__name__}"
        )
    return key


def verified_key(pem: bytes, name: str, authority: bytes) -> PublicKey:
    """The public key of an agent's certificate (with intermediate ones), once it is verified; else ValueError."""
    chain, roots = x509.load_pem_x509_certificates(pem), x509.load_pem_x509_certificates(authority)
    if name not in dns_names(chain[0]):
        raise ValueError(f"the certificate is for {dns_names(chain[0])}, expected {name!r}")
    try:
        PolicyBuilder().store(Store(roots)).build_server_verifier(x509.DNSName(name)).verify(chain[0], chain[1:])
    except VerificationError as error:
        raise ValueError(f"the certificate was not issued by the authority: {error}") from error
    key = chain[0].public_key()
    if not isinstance(key, PublicKey):
        raise ValueError(f"the certificate's key is a {type(key).__name__}, expected one on an elliptic curve, or RSA")
    return key


def dns_names(certificate: x509.Certificate) -> list[str]:
    """The DNS names of a certificate, which alone name agents; ValueError without alternative names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError(f"it has no alternative names: {error}") from error
    return names.get_values_for_type(x509.DNSName)


def _check_dates(certificates: Sequence[x509.Certificate], where: str) -> None:
    """Refuse certificates of which none is valid now."""
    now, first = datetime.datetime.now(datetime.UTC), certificates[0]
    if not any(one.not_valid_before_utc <= now <= one.not_valid_after_utc for one in certificates):
        raise SettingError(
            f"{where} is valid from {first.not_valid_before_utc} until {first.not_valid_after_utc}, and the time is "
            f"{now}: ask its issuer for a new one. A new authority has to sign new certificates for all agents"
        )


def write_certificates(folder: Path, names: Sequence[str], days: int = 30) -> list[Path]:
    """Make an authority, and a certificate for each agent.

    The authority's key is written too, so that agents can be added. Keep it away from the agents' machines.

    Args:
        folder: gets ca.key and ca.crt, and NAME.key and NAME.crt for each agent. If it has an authority already, that
            one signs.
        names: the agents' names.
        days: number of days for which the agents' certificates are valid; the authority's is valid for at least ten
            years.

    Returns:
        The new files. Only their owner can read the keys.

    Raises:
        SettingError: a name cannot be used, an agent's file exists already, the folder cannot be written, or the
            authority in the folder is not valid for so many days.

    Example:
        >>> write_certificates(Path("certificates"), ["north", "south"])[0].name
        'ca.key'
    """
    check_names(names, "certificates")
    files = [folder / f"{name}.{kind}" for name in names for kind in ("key", "crt")]
    taken = [path for path in files if os.path.lexists(path)]
    if taken:
        raise SettingError(f"{taken[0]} exists already: choose another folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        key, authority, written = _authority(folder, days)
        if authority.not_valid_after_utc < end.replace(microsecond=0):
            raise SettingError(
                f"{folder / AUTHORITY}.crt is valid until {authority.not_valid_after_utc}, and certificates of {days} "
                "days would outlive it: ask for fewer days, or choose another folder and give all agents new ones"
            )
        for name in names:
            own = ec.generate_private_key(ec.SECP256R1())
            written += _write(folder, name, own, _sign_certificate(name, own, key, authority, end))
    except OSError as error:
        raise SettingError(f"{folder} cannot be written: {error}") from error
    return written


def _authority(folder: Path, days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, list[Path]]:
    """The authority's key and certificate; and their files, if they did not exist before."""
    if (folder / f"{AUTHORITY}.key").exists():
        try:
            key = serialization.load_pem_private_key((folder / f"{AUTHORITY}.key").read_bytes(), password=None)
            own = x509.load_pem_x509_certificate((folder / f"{AUTHORITY}.crt").read_bytes())
        except (ValueError, TypeError) as error:
            raise SettingError(
                f"{folder / AUTHORITY}.key and .crt cannot be read as an authority's key and certificate: {error}. "
                "Take another folder"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SettingError(
                f"{folder / AUTHORITY}.key must be a key on an elliptic curve, as pyro_fed writes it, received "
                f"{type(key).__name__}: take another folder"
            )
        _check_dates([own], f"{folder / AUTHORITY}.crt")
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


def _sign_certificate(
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
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=MAX_CLOCK_SKEW_MINUTES)
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
    for path, data in zip(files, (text, certificate.public_bytes(serialization.Encoding.PEM)), strict=True):
        with create_file(path) as file:
            file.write(data)
    return files
