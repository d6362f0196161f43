"""A client's side of a deployment over Flower: `remote.site` with Flower's records, and secure aggregation.

The client's state is kept in Flower's context. The context is in the SuperNode's memory and is lost with it; a client
then replies that its state is lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from pyro_fed.deployment.flower.masks import PROTOCOL
from pyro_fed.deployment.flower.secure import flat, maskable_numbers
from pyro_fed.deployment.flower.wire import KEPT, LOST, POLICY_KEY, SETTINGS, bytes_of, client_name, pack, record_of
from pyro_fed.deployment.limits import MAX_MESSAGE_BYTES
from pyro_fed.deployment.policy.gate import Gate, Outgoing
from pyro_fed.deployment.remote.order import Order, Refusal, as_refusals
from pyro_fed.deployment.remote.site import Done, KeptState
from pyro_fed.deployment.remote.site import Site as RemoteSite
from pyro_fed.runtime.executors.base import Reply
from pyro_fed.runtime.messages import decode


@dataclass
class Site(RemoteSite):
    """The clients of a process over Flower; `secure` ones only answer in secure aggregation."""

    secure: bool = False
    how: str = "over Flower"
    unmasked: Tensor = field(default_factory=lambda: torch.zeros(0))  # what was masked last; it stays in this process

    def gate(self, context: Context) -> Gate:
        """The gate of a client whose node has a policy, see `gate_of`."""
        return self.gate_of(client_name(context), str(context.node_config[POLICY_KEY]))

    def num_rows(self, context: Context) -> int:
        """The client's number of rows; 0 while they are not loaded, as no answer has needed them."""
        own = self.clients.get(client_name(context))
        return 0 if own is None else own.federation.num_rows

    def outgoing(
        self, order: RecordDict, context: Context, reply: RecordDict, data: bytes, asked: bytes, before: str
    ) -> Outgoing:
        """A reply with the bytes `data` as the gate judges it; `before` is the hash of the state before the order."""
        name = client_name(context)
        if "description" in reply.get(SETTINGS, {}):
            return self.outgoing_description(name, data, asked)
        if LOST in reply.get(SETTINGS, {}):
            return Outgoing(kind="notice", data=data, asked=asked)
        known, message = (
            Order.from_record(order[SETTINGS]),
            decode(bytes_of(order), None, cap=MAX_MESSAGE_BYTES, finite=False),
        )
        masked = PROTOCOL in reply
        tensors = {"masked": self.unmasked} if masked else decode(bytes_of(reply), None, finite=False).tensors
        return self.outgoing_reply(name, known, message, tensors, data, asked, before, masked)

    def describe(self, context: Context) -> ConfigRecord:
        """The client's description, for the server."""
        return ConfigRecord(self.description(client_name(context), context.node_config).to_record())

    def work(self, content: RecordDict, context: Context, summed: bool = False) -> RecordDict:
        """The answer to an order of the server; a `summed` one is masked, so that the server only learns the sum."""
        if self.secure and not summed:
            raise Refusal(
                "this client takes part only in secure aggregation (client_app(secure=True)), but the server asks "
                "for its own message: set secure-aggregation at the server"
            )
        with as_refusals():
            record, encoded = record_of(content, SETTINGS), bytes_of(content)
        kept: Any = context.state.config_records.get(KEPT)
        state = None if kept is None else KeptState(**kept)
        done = self.follow(client_name(context), context.node_config, record, encoded, state)
        if done is None:
            return RecordDict({SETTINGS: ConfigRecord({LOST: True})})
        context.state[KEPT] = ConfigRecord(asdict(done.kept))
        return self._reply_to_mask(done, context) if summed else pack(ConfigRecord({}), done.header, done.tensors)

    def _reply_to_mask(self, done: Done, context: Context) -> RecordDict:
        """A reply as numbers that Flower's secure aggregation masks."""
        share = min(1.0, done.num_rows / done.order.width)
        self.unmasked = flat(done.found.messages, share) if isinstance(done.found, Reply) else flat(done.found)
        with as_refusals():
            return maskable_numbers(self.unmasked, context)
