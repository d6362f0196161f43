"""Requests and replies as Flower's records: settings as a ConfigRecord, tensors as one encoded message.

    settings   what is asked, see `order.Order`
    message    the bytes of `messages.encode`; down: shared.*, taken, told.*, local.*; up: messages.* and info.*,
               with new.* where copies are kept, or local.*, or report.*

Nothing is pickled: both ends read numbers, text and safetensors.
"""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, RecordDict

from pyro_fed.algorithm.states import State
from pyro_fed.errors import ProtocolError
from pyro_fed.runtime.messages import Header, Message, encode

#: Names of the two records of a message.
SETTINGS, MESSAGE = "settings", "message"
#: The entry in a reply's settings which says that the client's state is lost, since its node was restarted.
LOST = "lost"


def pack(settings: ConfigRecord, header: Header, tensors: State) -> RecordDict:
    """Settings and tensors as Flower's records."""
    return RecordDict({SETTINGS: settings, MESSAGE: ConfigRecord({"data": encode(Message(header, tensors))})})


def record_of(content: Any, name: str) -> Any:
    """One of a message's records; ProtocolError if it is missing."""
    if name not in content or not isinstance(content[name], ConfigRecord):
        raise ProtocolError(f"expected a record {name!r}, received {sorted(content)!r:.200}")
    return content[name]


def bytes_of(content: Any) -> bytes:
    """The encoded message; ProtocolError if it is missing."""
    data = record_of(content, MESSAGE).get("data")
    if not isinstance(data, bytes):
        raise ProtocolError(f"expected an encoded message, received {type(data).__name__}")
    return data
