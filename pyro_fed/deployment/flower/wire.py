"""Requests and replies as Flower's records, and what a client tells of its own failure.

    settings   what is asked, see `order.Order`
    message    the bytes of `messages.encode`; down: shared.*, taken, told.*, local.*; up: messages.* and info.*,
               with new.* where copies are kept, or local.*, or report.*

Nothing is pickled: both ends read numbers, text and safetensors. An exception's text may have values of rows in it,
whoever wrote it. So the server gets the client's name, the exception's class, and file and line of the user's code; the
text goes to the client's own log. Refusals of an order and by the site's rules say nothing of rows, and are sent whole.
Clients import this module before torch, which takes seconds.
"""

from __future__ import annotations

import logging
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from pyro_fed.errors import OURS, PolicyError, ProtocolError

if TYPE_CHECKING:
    from pyro_fed.algorithm.states import State
    from pyro_fed.runtime.messages import Header

LOG = logging.getLogger("flwr")
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


# -- A client's own failures --------------------------------------------------------------------------------------

#: Where installed packages are, whose lines are not the user's.
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
#: The packages whose refusals are sent whole.
ROOM = f"{OURS}.deployment."


def client_name(context: Context) -> str:
    """The client's name: `name` or `partition-id` of its node's configuration, else the node's number."""
    config: Any = context.node_config
    return str(config.get("name", config.get("partition-id", context.node_id)))


def reason_of(error: BaseException, name: str, error_text: bool = False) -> str:
    """What the server is told of an exception; its text too if the site's rules let `error_text` out."""
    where = place_of(error)
    LOG.error("Client %s failed at %s; the server is not told the following text", name, where, exc_info=error)
    if is_own_refusal(error):
        return f"client {name}: {error}"
    text = "; the text is in the client's own log"
    if error_text:  # of an exception whose own text fails too
        text = f": {''.join(traceback.format_exception_only(error)).strip()}"
    return f"client {name}: {type(error).__name__} at {where}{text}"


def is_own_refusal(error: BaseException) -> bool:
    """Whether an error is a refusal of this package, and was raised by it: user code may raise the same class."""
    from pyro_fed.deployment.remote.order import Refusal  # here, since it imports torch

    modules = [module for _, _, module in _frames(error)]
    return type(error) in (Refusal, PolicyError) and bool(modules) and modules[-1].startswith(ROOM)


def place_of(error: BaseException) -> str:
    """File and line of the user's code in which an exception was raised, else those of the innermost call."""
    chain, innermost = [error], ""
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for one in chain:
        frames = ((file, line, module) for file, line, module in _frames(one) if file.endswith(".py"))
        places = [(file, f"{Path(file).name}:{line}", module) for file, line, module in frames]
        innermost = innermost or (places[-1][1] if places else "")
        users = ((file, place) for file, place, module in places if module.partition(".")[0] != OURS)
        theirs = [place for file, place in users if not any(Path(file).is_relative_to(path) for path in INSTALLED)]
        if theirs:
            return theirs[-1]
    return innermost or "an unknown line"


def _frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, str(frame.f_globals.get("__name__", ""))
