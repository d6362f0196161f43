"""The mod through which every reply of a client leaves: answers, questions, masked numbers and errors.

Where the node's configuration has `policy`, the path of the site's own `policy.toml`, each reply passes the site's gate
(`deployment.policy`): it is judged by the bytes that leave, and a line in the site's ledger says so. The approval is
checked before the app's model is imported. Without a policy all replies leave, as the run asks for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode

from pyro_fed.deployment.flower.failure import LOG, client_name, reason_of
from pyro_fed.deployment.flower.mod import KEPT, MASKED, POLICY_KEY, PROTOCOL, asks_for_a_sum
from pyro_fed.errors import ProtocolError

if TYPE_CHECKING:
    from pyro_fed.deployment.flower.site import Site
    from pyro_fed.deployment.policy.gate import Gate, Outgoing


class Leaving:
    """The outermost mod of a client's app.

    Args:
        site: gives the process's site, which is made with the first message that needs it.
    """

    def __init__(self, site: Callable[[], Site]) -> None:
        self.site = site
        self._told = False

    def __call__(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """The reply to a message by `call_next`, or an error of Flower without values of rows."""
        gate: Gate | None = None
        try:
            if POLICY_KEY in context.node_config:
                gate = self.site().gate(context)
            self._tell(gate, context)
            if gate is None:
                return call_next(message, context)
            asked, before = content_bytes(message), state_hash(context)
            reply = call_next(message, context)
            gate.rows = self.site().num_rows(context)
            gate.release(self._outgoing(message, context, reply, asked, before))
            return reply
        except (Exception, SystemExit) as error:
            reason = reason_of(error, client_name(context), gate is not None and gate.policy.error_text)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, _noted(gate, reason)), reply_to=message)

    def _tell(self, gate: Gate | None, context: Context) -> None:
        """Log once in each process which rules are in force."""
        if not self._told:
            self._told = True
            none = f"Client {client_name(context)} has no policy: all that the run asks for may leave"
            LOG.info(none if gate is None else gate.in_words())

    def _outgoing(self, message: Message, context: Context, reply: Message, asked: bytes, before: str) -> Outgoing:
        """The reply as the gate judges it; `asked` are the bytes of the order, `before` is the hash of the state."""
        from pyro_fed.deployment.policy.gate import Outgoing

        data = content_bytes(reply)
        if asks_for_a_sum(message) and MASKED not in reply.content[PROTOCOL]:
            return Outgoing(kind="keys", data=data, asked=asked)
        return self.site().outgoing(message.content, context, reply.content, data, asked, before)


def content_bytes(message: Message) -> bytes:
    """The bytes of a message's content, as Flower sends them."""
    from flwr.common.serde import recorddict_to_proto

    data: bytes = recorddict_to_proto(message.content).SerializeToString(deterministic=True)
    return data


def state_hash(context: Context) -> str:
    """SHA-256 of the client's state before a message; "" if it has none."""
    kept: Any = context.state.config_records.get(KEPT)
    return "" if kept is None else hashlib.sha256(kept["data"]).hexdigest()


def _noted(gate: Gate | None, reason: str) -> str:
    """The reason of an error, after the ledger has a line on it; the error leaves even if the ledger is not whole."""
    if gate is None:
        return reason
    from pyro_fed.deployment.policy.gate import Outgoing

    try:
        gate.release(Outgoing(kind="notice", data=reason.encode()))
    except (ProtocolError, OSError) as error:
        LOG.error("The ledger has no line on this failure", exc_info=error)
    return reason
