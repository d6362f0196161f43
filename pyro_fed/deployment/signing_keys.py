"""Ed25519 keys by which files are signed, in OpenSSH's format, which `ssh-keygen` reads and fingerprints."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from pyro_fed.conventions.output import replaced_file
from pyro_fed.errors import ProtocolError, SettingError


def check_owner_only(path: Path) -> None:
    """Refuse a private key that others than its owner may read or write, as ssh does."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingError(
            f"{path} has mode {mode:04o}: users other than its owner can read the private key; expected mode 0600. "
            f"Run chmod 600 {path}, and make a new key if others may have read it"
        )


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """A private key from a file that only its owner can read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingError(f"{path}: expected a private key: {error}") from error
    check_owner_only(path)
    try:
        key = load_ssh_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise SettingError(f"{path}: expected a private key in OpenSSH's format without passphrase: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingError(
            f"{path}: expected an Ed25519 key, the only kind that signs here, received {type(key).__name__}: make one "
            "by ssh-keygen -t ed25519"
        )
    return key


def write_signing_key(path: Path) -> Ed25519PrivateKey:
    """A new private key, written whole to a file that only its owner can read; the system's randomness."""
    key = Ed25519PrivateKey.generate()
    with replaced_file(path) as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key


def public_text(key: Ed25519PrivateKey) -> str:
    """The public half as a line of text, "ssh-ed25519 AAAA..."."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def public_key(text: str, where: str) -> Ed25519PublicKey:
    """The Ed25519 key in a line of text; `where` says in errors where the line is from."""
    try:
        key = load_ssh_public_key(text.encode())
    except Exception as error:  # of a stranger's text, of any kind
        raise ProtocolError(f"{where}: expected a public key such as 'ssh-ed25519 AAAA...': {error!s:.100}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ProtocolError(f"{where}: expected an Ed25519 key, received {type(key).__name__}")
    return key


def fingerprint_of(text: str) -> str:
    """The fingerprint of a public key's line, as `ssh-keygen -l` prints it: "SHA256:..."."""
    try:
        data = base64.b64decode(text.split()[1], validate=True)
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"expected a public key such as 'ssh-ed25519 AAAA...', received {text!r:.80}") from error
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
