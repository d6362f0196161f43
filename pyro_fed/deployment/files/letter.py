"""A study's file: a JSON header that people can read, a safetensors body, and an Ed25519 signature over all before it.

    pyro_fed study file 1
    header 812 body 1432                          their lengths in bytes
    {"kind": "request", "study": ..., "site": ..., "exchange": 1, ...}
    <the body: an encoded message, see `pyro_fed.runtime.messages`; it may be empty>
    signature AbCd...                             base64

Nothing is pickled. A reader checks the lengths before it looks further, and the signature before it uses anything.
The same header and body always give the same bytes, since Ed25519 has no randomness: what is made again is the same.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pyro_fed.conventions.names import check_client_id
from pyro_fed.conventions.output import replaced_file
from pyro_fed.deployment.limits import MAX_CLIENTS, MAX_JSON_BYTES, MAX_MESSAGE_BYTES
from pyro_fed.deployment.review import digest_of
from pyro_fed.deployment.signing_keys import public_key
from pyro_fed.errors import CheckpointError, ProtocolError
from pyro_fed.runtime.messages import Message, encode
from pyro_fed.runtime.safetensors_header import PREFIX

#: The first line, with the version of the format; and the ending of the files' names.
FIRST, ENDING = b"pyro_fed study file 1\n", ".study"
#: Kinds of files.
REQUEST, ANSWER = "request", "answer"
LENGTHS = re.compile(rb"header ([0-9]{1,8}) body ([0-9]{1,10})\n")
SIGNATURE = re.compile(rb"\nsignature ([A-Za-z0-9+/]{86}==)\n")
SIGNATURE_BYTES = len(b"\nsignature \n") + 88
STUDY_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Letter:
    """The content of a file: kind, study, site, exchange's number, the rest of the header, and an encoded message."""

    kind: str
    study: str
    site: str
    exchange: int
    more: dict[str, Any]
    body: bytes = b""

    def signed(self, key: Ed25519PrivateKey) -> bytes:
        """The file's bytes."""
        first = {"kind": self.kind, "study": self.study, "site": self.site, "exchange": self.exchange}
        header = json.dumps(first | self.more, indent=1).encode()
        lengths = f"header {len(header)} body {len(self.body)}\n".encode()
        content = FIRST + lengths + header + b"\n" + self.body
        return content + b"\nsignature " + base64.b64encode(key.sign(content)) + b"\n"


@dataclass(frozen=True)
class Received:
    """A file that was read: its letter, name and bytes. Nothing in it is to be believed before `verify`."""

    letter: Letter
    name: str
    data: bytes

    @property
    def digest(self) -> str:
        """The hash of the file's bytes."""
        return digest_of(self.data)

    def verify(self, key: str, signer: str) -> None:
        """Require the signature of a public key, given as text; `signer` says in errors whose it is."""
        found = SIGNATURE.fullmatch(self.data[-SIGNATURE_BYTES:])
        signature = base64.b64decode(found[1]) if found else b""
        try:
            public_key(key, f"the key of {signer}").verify(signature, self.data[:-SIGNATURE_BYTES])
        except InvalidSignature:
            raise ProtocolError(
                f"{self.name}: the signature is not that of {signer} over this content: the file was changed on its "
                "way, or made by someone else. Ask for it again"
            ) from None


def read_letter(path: Path, kind: str) -> Received:
    """A file of a kind; its signature is to be verified by the caller, who knows the key."""
    if not path.is_file():
        raise ProtocolError(f"{path}: there is no such file; expected the {kind} of a study")
    if path.stat().st_size > (most := MAX_JSON_BYTES + MAX_MESSAGE_BYTES):
        raise ProtocolError(f"{path.name}: {path.stat().st_size} bytes, expected at most {most}")
    return parse_letter(path.read_bytes(), path.name, kind)


def parse_letter(data: bytes, name: str, kind: str) -> Received:
    """The letter in a file's bytes; `name` is the file's, for errors."""
    if not data.startswith(FIRST):
        raise ProtocolError(
            f"{name}: it is not a file of a study, or it is of another version: expected {FIRST.decode()!r} first"
        )
    lengths = LENGTHS.match(data, len(FIRST))
    if lengths is None:
        raise ProtocolError(f"{name}: its second line does not say how long header and body are")
    header_size, body_size = int(lengths[1]), int(lengths[2])
    start = lengths.end()
    end = start + header_size + 1 + body_size
    if len(data) == end or (len(data) > end and not SIGNATURE.fullmatch(data[end:])):
        raise ProtocolError(f"{name}: it has no signature, which every file of a study has: it was cut off or changed")
    if len(data) < end or header_size > MAX_JSON_BYTES:
        raise ProtocolError(f"{name}: {len(data)} bytes, expected {end + SIGNATURE_BYTES}: it was cut off or changed")
    try:
        header = json.loads(data[start : start + header_size])
        first = {part: header.pop(part) for part in ("kind", "study", "site", "exchange")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"{name}: its header is not that of a study's file: {error!r:.200}") from error
    _check(first, name, kind)
    return Received(Letter(**first, more=header, body=data[end - body_size : end]), name, data)


def _check(first: dict[str, Any], name: str, kind: str) -> None:
    """Refuse a header whose first fields have other types or values; ProtocolError."""
    study, site, exchange = first["study"], first["site"], first["exchange"]
    is_id = isinstance(study, str) and STUDY_ID.fullmatch(study)
    is_number = type(exchange) is int and 0 <= exchange < MAX_CLIENTS
    for holds, expected, received in (
        (first["kind"] == kind, repr(kind), first["kind"]),
        (is_id, "a study's id of 16 hexadecimal digits", study),
        (isinstance(site, str), "a site's name", site),
        (is_number, "an exchange's number from 0", exchange),
    ):
        if not holds:
            raise ProtocolError(f"{name}: expected {expected}, received {received!r:.80}")
    check_client_id(site)


def body_of(message: Message) -> bytes:
    """An encoded message; equal ones have equal bytes, though safetensors leaves the order of its text to chance."""
    data = encode(message)
    end = PREFIX + int.from_bytes(data[:PREFIX], "little")
    ordered = json.dumps(json.loads(data[PREFIX:end]), separators=(",", ":"), sort_keys=True).encode()
    return data[:PREFIX] + ordered.ljust(end - PREFIX) + data[end:]


def text_in(more: dict[str, Any], name: str, where: str) -> str:
    """A text of a header; ProtocolError if it is missing or something else."""
    value = more.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{where}: its header lacks {name!r}, a text")
    return value


def request_name(site: str, exchange: int) -> str:
    """The name of a request's file."""
    return f"round-{exchange:03d}-request-{site}{ENDING}"


def answer_name(site: str, exchange: int) -> str:
    """The name of an answer's file."""
    return f"answer-{site}-{exchange:03d}{ENDING}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; CheckpointError if it could not be written."""
    try:
        with replaced_file(path) as file:
            file.write(data)
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error}; make room, and run the command again") from error


def write_json(path: Path, content: object) -> None:
    """Write a value as JSON, whole or not at all."""
    write_whole(path, json.dumps(content, indent=1).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """The table in a file of a study's folders; CheckpointError if it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is no table")
    return found
