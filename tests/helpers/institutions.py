"""Certificates as institutions issue them: other keys, and an intermediate authority."""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

USES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
USES += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")


def certified(folder, names, kind="p256", alternative=None):
    """NAME.key, NAME.crt and ca.crt; `alternative` makes a name's alternative names."""
    make = {
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "p521": lambda: ec.generate_private_key(ec.SECP521R1()),
        "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    }[kind]
    folder.mkdir(parents=True, exist_ok=True)
    root, middle = make(), make()
    root_crt = _certificate("root", root, "root", root, 1)
    middle_crt = _certificate("middle", middle, "root", root, 0)
    (folder / "ca.crt").write_bytes(_pem(root_crt))
    for name in names:
        key = make()
        shown = alternative(name) if alternative else [x509.DNSName(name)]
        own = _certificate(name, key, "middle", middle, None, shown)
        file = folder / f"{name}.key"
        file.touch(0o600)
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (folder / f"{name}.crt").write_bytes(_pem(own) + _pem(middle_crt))


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def _certificate(name, key, issuer, signer, length, alternative=()):
    now, authority = datetime.datetime.now(datetime.UTC), length is not None
    used = ("key_cert_sign", "crl_sign") if authority else ("digital_signature",)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=10))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=length), critical=True)
        .add_extension(x509.KeyUsage(**{use: use in used for use in USES}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(alternative)), critical=False)
    return builder.sign(signer, hashes.SHA256())
