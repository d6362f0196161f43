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
#: The jobs of every algorithm; any other job is an indicator that a schedule asks for, or `LOG_LIK`.
WORK, STATES = "work", "states"
#: The entry in a reply's settings which says that the client's state is lost, since its node was restarted.
LOST = "lost"


@dataclass(frozen=True)
class Order:
    """An order of the server to a client, without its tensors.

    Attributes:
        job: `WORK`, `STATES`, or a question (an indicator, or `LOG_LIK`).
        algorithm: the algorithm with all its settings, as text; the client makes it from its own recipe.
        num_clients: number of clients of the run.
        num_rows: number of rows of all clients.
        width: number of rows of the client with the most.
        client: this client's number.
        slots: its positions in the round, as text; there may be several.
        phase: the phase's number.
        begins: whether the message brings the states with which the phase begins.
        verdict: the round of whose messages the order says which were used; -1 for none.
        round: the round's number; -1 where no work is asked for.
        seed: the run's seed.
        level: level of the compiler.
        copies: whether the reply has to bring the client's new state.
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
        """The order as a record of Flower."""
        return ConfigRecord({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def from_record(cls, record: Any) -> Order:
        """The order in a record that `to_record` has made.

        Args:
            record: Flower's.

        Raises:
            ProtocolError: names or types that are not those of an order.
        """
        kinds = {"str": str, "int": int, "bool": bool}
        wanted = {field.name: kinds[str(field.type)] for field in fields(cls)}
        found = {name: type(value) for name, value in record.items()}
        if found != wanted:
            expected, received = (
                ", ".join(f"{name} ({kind.__name__})" for name, kind in sorted(each.items()))
                for each in (wanted, found)
            )
            raise ProtocolError(f"expected the settings {expected}; received {received:.600}")
        return cls(**record)

    @property
    def places(self) -> tuple[int, ...]:
        """The client's positions in the round, from the text `slots`."""
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
    """The tensors of a reply to work, with the client's new state if that was asked for."""
    return prefixed("messages", reply.messages) | prefixed("info", reply.info) | prefixed("new", new)
