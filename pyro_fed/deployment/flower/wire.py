"""Requests and replies as Flower's records: settings as a ConfigRecord, tensors as one encoded message.

    settings   what is asked, see `order.Order`
    message    the bytes of `messages.encode`; down: shared.*, taken, told.*, local.*; up: messages.* and info.*,
               with new.* where copies are kept, or local.*, or report.*

Nothing is pickled: both ends read numbers, text and safetensors. Clients import this module before torch, which takes
seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from pyro_fed.errors import ProtocolError

if TYPE_CHECKING:
    from pyro_fed.algorithm.states import State
    from pyro_fed.runtime.messages import Header

#: Names of the two records of a message.
SETTINGS, MESSAGE = "settings", "message"
#: The entry in a reply's settings which says that the client's state is lost, since its node was restarted.
LOST = "lost"
#: The key of a node's configuration that has the path of the site's policy.
POLICY_KEY = "policy"
#: Name of the record in Flower's context that has the client's state.
KEPT = "pyro_fed"


def pack(settings: ConfigRecord, header: Header, tensors: State) -> RecordDict:
    """Settings and tensors as Flower's records."""
    from pyro_fed.runtime import messages

    data = messages.encode(messages.Message(header, tensors))
    return RecordDict({SETTINGS: settings, MESSAGE: ConfigRecord({"data": data})})


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


def failure_clause(reply: Message) -> str:
    """A clause on a reply that is an error of Flower or of the client."""
    return f"failed: {reply.error.reason!s:.300} (Flower's code {reply.error.code})"


def client_name(context: Context) -> str:
    """The client's name: `name` or `partition-id` of its node's configuration, else the node's number."""
    config: Any = context.node_config
    return str(config.get("name", config.get("partition-id", context.node_id)))
