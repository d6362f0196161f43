"""Requests and replies as Flower's records: settings as a ConfigRecord, tensors as one encoded message.

    settings   what is asked, see `Order`
    message    the bytes of `messages.encode`; down: shared.*, taken, told.*, local.*; up: messages.* and info.*,
               with new.* where copies are kept, or local.*, or report.*

Nothing is pickled: both ends read numbers, text and safetensors.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from pyro_fed.algorithm.states import State, prefixed
from pyro_fed.errors import ProtocolError
from pyro_fed.runtime.executors.base import Reply
from pyro_fed.runtime.messages import Header, Message, encode

#: Names of the two records of a message.
SETTINGS, MESSAGE = "settings", "message"
#: The jobs that every algorithm knows; any other is an indicator that a schedule asks for.
WORK, STATES = "work", "states"
#: In the settings of a reply: the client's state is gone, since its node was started anew.
LOST = "lost"


@dataclass(frozen=True)
class Order:
    """What is asked of a client, beside tensors.

    Attributes:
        job: `WORK`, `STATES`, or an indicator.
        algorithm: what runs, with all its settings; a client takes it from its own recipe.
        num_clients: clients of the run.
        num_rows: rows of all of them.
        width: rows of the longest client.
        client: this one's number.
        slots: its places in the round, as text; it may stand twice.
        phase: the phase's number.
        begins: whether the message brings the states that the phase begins with.
        verdict: the round that the message tells of, -1 for none.
        round: the round.
        seed: of the run.
        level: of the compiler.
        copies: whether the reply to work is to bring the client's new state.
    """

    job: str
    algorithm: str
    num_clients: int
    num_rows: int
    width: int
    client: int
    slots: str
    phase: int
    begins: bool
    verdict: int
    round: int
    seed: int
    level: str
    copies: bool

    def to_record(self) -> ConfigRecord:
        """As Flower sends it."""
        return ConfigRecord({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def from_record(cls, record: Any) -> Order:
        """What `to_record` wrote.

        Raises:
            ProtocolError: names or types that are not those of an order.
        """
        kinds = {"str": str, "int": int, "bool": bool}
        wanted = {field.name: kinds[str(field.type)] for field in fields(cls)}
        found = {name: type(value) for name, value in record.items()}
        if found != wanted:
            raise ProtocolError(f"expected the settings {sorted(wanted)}, received {sorted(record)!r:.200}")
        return cls(**record)

    @property
    def places(self) -> tuple[int, ...]:
        """The places of the clients among those that were asked, read from the text `slots`."""
        return tuple(int(slot) for slot in self.slots.split())


def pack(settings: ConfigRecord, header: Header, tensors: State) -> RecordDict:
    """Settings and tensors as Flower's records."""
    return RecordDict({SETTINGS: settings, MESSAGE: ConfigRecord({"data": encode(Message(header, tensors))})})


def record_of(content: Any, name: str) -> Any:
    """One of a message's records.

    Raises:
        ProtocolError: it is not there.
    """
    if name not in content or not isinstance(content[name], ConfigRecord):
        raise ProtocolError(f"expected a record {name!r}, received {sorted(content)!r:.200}")
    return content[name]


def bytes_of(content: Any) -> bytes:
    """The encoded message.

    Raises:
        ProtocolError: it is not there.
    """
    data = record_of(content, MESSAGE).get("data")
    if not isinstance(data, bytes):
        raise ProtocolError(f"expected an encoded message, received {type(data).__name__}")
    return data


def reply_tensors(reply: Reply, new: State) -> State:
    """A reply to work, with the states that it has made where these were asked for."""
    return prefixed("messages", reply.messages) | prefixed("info", reply.info) | prefixed("new", new)
