"""Messages between a server and its clients: safetensors bytes, never a pickle.

A message is a flat dictionary of tensors and a header of text:

    format   "pyro_fed-1"; other versions are refused
    kind     work, reply, ask or report, padded with spaces
    run      identifier of the run, 16 hexadecimal digits
    round    ten digits
    client   the client's id, padded with spaces
    nonce    identifier of the request, 16 hexadecimal digits; a reply repeats it

Every field has a fixed width, so that the size of a message depends only on the shapes of its tensors. It is known
without encoding, and reveals nothing else to an eavesdropper. `decode` does not trust its input: it checks a message
against the shapes and dtypes that the receiver expects before it allocates memory.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from pyro_fed.algorithm.states import State
from pyro_fed.conventions.names import MAX_CLIENT_ID, check_client_id
from pyro_fed.errors import ProtocolError
from pyro_fed.runtime.safetensors_header import DTYPES, MAX_HEADER, PREFIX, Entry, read_header

__all__ = [
    *("Header", "Mailbox", "Message", "Spec", "answer", "decode", "decode_header", "encode", "encoded_size", "spec_of"),
    *("spec_of_one", "token"),
]

#: The format and its version.
FORMAT = "pyro_fed-1"
#: Kinds of messages, and the width to which their names are padded.
KINDS = ("work", "reply", "ask", "report")
KIND_WIDTH = max(map(len, KINDS))
#: Number of bytes by which a header may exceed the expected length, for spaces of other writers.
MAX_EXTRA_SPACES = 64

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_CODES = {dtype: code for code, dtype in DTYPES.items()}

#: Shapes and dtypes by name.
Spec = dict[str, Entry]

#: The kind of reply to each kind of request.
ANSWER = {"work": "reply", "ask": "report"}


@dataclass(frozen=True)
class Header:
    """The identification of a message; a reply has its request's nonce. ProtocolError for an invalid field.

    Example:
        >>> Header("work", run=token(), round=0, client="north", nonce=token()).kind
        'work'
    """

    kind: str
    run: str
    round: int
    client: str
    nonce: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ProtocolError(f"kind must be one of {KINDS}, received {self.kind[:80]!r}")
        if type(self.round) is not int or not 0 <= self.round < 10**10:
            raise ProtocolError(f"round must be a whole number of at most ten digits, received {self.round!r:.80}")
        for name in ("run", "nonce"):
            if not _TOKEN.fullmatch(getattr(self, name)):
                value = getattr(self, name)
                raise ProtocolError(f"{name} must be 16 hexadecimal digits, received {value[:80]!r}")
        check_client_id(self.client)


@dataclass(frozen=True)
class Message:
    """A header and tensors by name.

    Example:
        >>> header = Header("reply", run=token(), round=0, client="north", nonce=token())
        >>> message = Message(header, {"eta": torch.zeros(3)})
    """

    header: Header
    tensors: State


def spec_of(state: State) -> Spec:
    """Shapes and dtypes of one client's tensors.

    Example:
        >>> spec_of({"eta": torch.zeros(3)})["eta"].shape
        (3,)
    """
    return {name: Entry(tuple(value.shape), value.dtype) for name, value in state.items()}


def spec_of_one(states: State) -> Spec:
    """Shapes and dtypes of one client's share of a state with a leading client axis (C, ...).

    Example:
        >>> spec_of_one({"eta": torch.zeros(10, 3)})["eta"].shape
        (3,)
    """
    return {name: Entry(tuple(value.shape[1:]), value.dtype) for name, value in states.items()}


def encode(message: Message) -> bytes:
    """The bytes of a message.

    Args:
        message: a header and tensors.

    Raises:
        ProtocolError: a tensor's name or dtype that cannot be sent.

    Example:
        >>> header = Header("reply", run=token(), round=0, client="north", nonce=token())
        >>> data = encode(Message(header, {"eta": torch.zeros(3)}))
    """
    _check_names(spec_of(message.tensors))
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in message.tensors.items()}
    return save(tensors, metadata=_text(message.header))


def encoded_size(spec: Spec) -> int:
    """`len(encode(message))` of a message of these shapes and dtypes, without encoding.

    Example:
        >>> state = {"eta": torch.zeros(3)}
        >>> header = Header("reply", run=token(), round=0, client="north", nonce=token())
        >>> encoded_size(spec_of(state)) == len(encode(Message(header, state)))
        True
    """
    return _size(tuple(sorted(spec.items(), key=lambda item: item[0])))


@lru_cache(maxsize=256)
def _size(items: tuple[tuple[str, Entry], ...]) -> int:
    spec = dict(items)
    _check_names(spec)
    order = list(_CODES)
    header: dict[str, object] = {"__metadata__": _text(Header("work", "0" * 16, 0, "0", "0" * 16))}
    end = 0
    for name in sorted(spec, key=lambda name: (order.index(spec[name].dtype), name)):
        entry = spec[name]
        span = [end, end + entry.num_bytes]
        header[name] = {"dtype": _CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": span}
        end = span[1]
    length = len(json.dumps(header, separators=(",", ":")))
    return PREFIX + -(-length // PREFIX) * PREFIX + end  # the header is padded to whole words


class Announced(NamedTuple):
    """The announced contents of a message: its header, and its tensors' shapes and dtypes."""

    message: Header
    tensors: Spec


def decode_header(data: bytes, cap: int, longest: int = MAX_HEADER) -> Announced:
    """The announced contents of a message of at most `cap` bytes, with a header of at most `longest` bytes.

    Example:
        >>> header = Header("reply", run=token(), round=0, client="north", nonce=token())
        >>> decode_header(encode(Message(header, {"eta": torch.zeros(3)})), cap=10_000).tensors["eta"].shape
        (3,)
    """
    if len(data) > cap:
        raise ProtocolError(f"a message of {len(data)} bytes, at most {cap} are accepted")
    found = read_header(data, len(data), max_header=longest)
    return Announced(_header(found.text), found.tensors)


def decode(data: bytes, expected: Spec | None, cap: int | None = None, finite: bool = True) -> Message:
    """The message in untrusted bytes, checked before memory is allocated.

    Args:
        data: the bytes.
        expected: shapes and dtypes that the receiver expects; None accepts any, up to `cap`, for a client that receives
            from the server that it has joined.
        cap: largest number of bytes; by default the size of the expected message.
        finite: whether all numbers must be finite; otherwise the receiver checks them.

    Raises:
        ProtocolError: the bytes are not a message of this format with these tensors, all finite.

    Example:
        >>> header = Header("reply", run=token(), round=0, client="north", nonce=token())
        >>> message = Message(header, {"eta": torch.zeros(3)})
        >>> decode(encode(message), spec_of(message.tensors)).header.client
        'north'
    """
    longest = MAX_HEADER if expected is None else encoded_size(expected) + MAX_EXTRA_SPACES
    header, found = decode_header(data, longest if cap is None else cap, longest)
    if expected is not None:
        _check_spec(found, expected)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise ProtocolError(f"safetensors cannot read the message: {error}") from error
    for name, value in tensors.items():
        if finite and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ProtocolError(f"client {header.client}, round {header.round}: '{name}' is not finite")
    return Message(header, tensors)


def _text(header: Header) -> dict[str, str]:
    kind, client = header.kind.ljust(KIND_WIDTH), header.client.ljust(MAX_CLIENT_ID)
    return {"format": FORMAT, **asdict(header), "kind": kind, "client": client, "round": f"{header.round:010d}"}


def _header(text: dict[str, str]) -> Header:
    names = {"format", *(field.name for field in fields(Header))}
    if set(text) != names:
        raise ProtocolError(f"the header must say {sorted(names)}, received {sorted(text)!r:.200}")
    if text["format"] != FORMAT:
        raise ProtocolError(f"format must be {FORMAT!r}, received {text['format'][:80]!r}")
    if not re.fullmatch(r"[0-9]{10}", text["round"]):
        raise ProtocolError(f"round must be ten digits, received {text['round'][:80]!r}")
    if len(text["client"]) != MAX_CLIENT_ID:
        raise ProtocolError(f"client must have {MAX_CLIENT_ID} characters, received {len(text['client'])}")
    kind, client = text["kind"].rstrip(" "), text["client"].rstrip(" ")
    return Header(kind, text["run"], int(text["round"]), client, text["nonce"])


def _check_names(spec: Spec) -> None:
    for name, entry in spec.items():
        if not _NAME.fullmatch(name):
            raise ProtocolError(f"a tensor's name has letters, digits, '_' and '.', received {name!r:.80}")
        if entry.dtype not in _CODES:
            raise ProtocolError(f"tensor '{name}': {entry.dtype} cannot be sent; use one of {list(_CODES)}")


def _check_spec(found: Spec, expected: Spec) -> None:
    if set(found) != set(expected):
        raise ProtocolError(f"expected the tensors {sorted(expected)}, received {sorted(found)!r:.200}")
    for name, entry in expected.items():
        if found[name] != entry:
            raise ProtocolError(
                f"tensor '{name}': expected {entry.dtype} of shape {entry.shape}, received {found[name].dtype} of "
                f"shape {found[name].shape}"
            )


def token() -> str:
    """A fresh run id or nonce, 16 hexadecimal digits.

    Example:
        >>> len(token())
        16
    """
    return secrets.token_hex(8)


@dataclass
class Mailbox:
    """The open requests of a run, and the latest `keep` dropped replies, with the reasons.

    Example:
        >>> mailbox = Mailbox()
        >>> request = mailbox.request("work", round=0, client="north")
        >>> mailbox.take(answer(request)), mailbox.take(answer(request))  # no reply counts twice
        (True, False)
    """

    run: str = field(default_factory=token)
    keep: int = 1000
    dropped: list[tuple[Header, str]] = field(default_factory=list)
    _open: dict[str, Header] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def request(self, kind: str, round: int, client: str) -> Header:
        """The header of a new request of a kind, "work" or "ask"."""
        header = Header(kind, self.run, round, client, token())
        self._open[header.nonce] = header
        return header

    def take(self, header: Header) -> bool:
        """Whether a reply with this header belongs to an open request, which is then closed."""
        reason = self._objection(header)
        if reason:
            self.dropped = [*self.dropped, (header, reason)][-self.keep :]
            return False
        self._taken.add(header.nonce)
        del self._open[header.nonce]
        return True

    def close(self) -> None:
        """End a round: close open requests, so that later replies to them are dropped."""
        self._open.clear()
        self._taken.clear()

    def _objection(self, header: Header) -> str:
        if header.run != self.run:
            return f"it is of run {header.run}, this is run {self.run}"
        if header.nonce in self._taken:
            return "its request was answered already"
        asked = self._open.get(header.nonce)
        if asked is None:
            return "no such request is open: it is late, or a replay"
        if header != replace(asked, kind=ANSWER[asked.kind]):
            return f"it answers another request: client {asked.client}, round {asked.round} were asked"
        return ""


def answer(request: Header) -> Header:
    """The header of the reply to a request.

    Example:
        >>> answer(Mailbox().request("work", round=0, client="north")).kind
        'reply'
    """
    return replace(request, kind=ANSWER[request.kind])
