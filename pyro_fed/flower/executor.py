"""The executor inside Flower's ServerApp: one client a node, a message for each client's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from pyro_fed.algorithm.capabilities import Indicators, Pooled
from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.conventions.settings_repr import described
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import ProtocolError, SettingError
from pyro_fed.flower.wire import STATES, WORK, Order, bytes_of, pack
from pyro_fed.runtime.executors.base import Reply
from pyro_fed.runtime.executors.host import Request
from pyro_fed.runtime.executors.remote import Remote
from pyro_fed.runtime.messages import Header, Mailbox, Spec, decode, spec_of
from pyro_fed.runtime.messages.expected import expected_reply
from pyro_fed.runtime.messages.header import Entry

#: Longest part of a client's error that the record keeps.
MAX_REASON = 300


class Flower(Remote):
    """Clients behind Flower's Grid.

    Args:
        grid: Flower's.
        nodes: the node of each client.
        names: the clients' names.
        timeout: seconds that a client has for a round, compilation included.
    """

    def __init__(self, grid: Grid, nodes: Sequence[int], names: Sequence[str], timeout: float) -> None:
        if timeout <= 0:
            raise SettingError(f"Flower: timeout must be positive, received {timeout}")
        self.grid, self.nodes, self.names, self.timeout = grid, list(nodes), list(names), timeout
        self.mailbox = Mailbox()

    def prepare(self) -> None:
        """No reply has been seen.

        Raises:
            SettingError: the algorithm needs the pooled data.
        """
        if isinstance(self.algorithm, Pooled):
            name = type(self.algorithm).__name__
            raise SettingError(f"{name} needs all rows in one place, which Flower does not bring")
        super().prepare()
        self._expected: tuple[Spec, Spec] | None = None

    def worker_of(self, client: int) -> int:
        """Each client is its own."""
        return client

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """All clients at once; replies are matched by message id, and what is late is dropped."""
        headers = {client: self._header(client, request) for client, request in requests.items()}
        messages = {
            client: Message(
                self._content(client, request, headers[client]),
                self.nodes[client],
                MessageType.TRAIN,
                ttl=self.timeout,
                group_id=str(headers[client].round),
            )
            for client, request in requests.items()
        }
        replies = self.grid.send_and_receive(list(messages.values()), timeout=self.timeout)
        found = {reply.metadata.reply_to_message_id: reply for reply in replies}
        answers = {
            client: self._answer(client, requests[client], found.get(message.metadata.message_id))
            for client, message in messages.items()
        }
        self.mailbox.close()
        return answers

    def _header(self, client: int, request: Request) -> Header:
        kind = "work" if request.work is not None and request.indicator is None else "ask"
        return self.mailbox.request(kind, max(self._round, 0), self.names[client])

    def _content(self, client: int, request: Request, header: Header) -> Any:
        phase, verdict, work = request.phase, request.verdict, request.work
        order = Order(
            job=STATES if work is None else request.indicator or WORK,
            algorithm=described(self.algorithm),
            num_clients=len(self.nodes),
            num_rows=self.problem.num_rows,
            width=int(self.data.num_rows.max()),
            client=client,
            slots="" if work is None else " ".join(map(str, work.slots)),
            phase=self._phase,
            begins=phase is not None,
            verdict=-1 if verdict is None else verdict.round,
            round=-1 if work is None else work.round,
            seed=0 if work is None else work.seed,
            level=self.problem.compiler.level,
        )
        tensors: State = {}
        if phase is not None:
            tensors |= prefixed("local", phase.local)
        if verdict is not None:
            tensors |= {"taken": verdict.taken} | prefixed("told", verdict.told)
        if work is not None:
            tensors |= prefixed("shared", work.shared)
        return pack(order.to_record(), header, tensors)

    def _answer(self, client: int, request: Request, reply: Message | None) -> Any:
        """What a client answered, or in a sentence why it did not."""
        if reply is None:
            return f"did not reply within {self.timeout} s"
        if reply.has_error():
            return f"failed: {reply.error.reason!s:.{MAX_REASON}} (Flower's code {reply.error.code})"
        try:
            return self._decoded(client, request, bytes_of(reply.content))
        except ProtocolError as error:
            return f"sent what is no reply: {error!s:.{MAX_REASON}}"

    def _decoded(self, client: int, request: Request, data: bytes) -> Reply | State:
        # Numbers that are not finite are the round loop's to judge.
        message = decode(data, self._spec(client, request), finite=False)
        if not self.mailbox.take(message.header):
            raise ProtocolError(self.mailbox.dropped[-1][1])
        if request.work is None:
            return within(message.tensors, "local")
        if request.indicator is not None:
            return within(message.tensors, "report")
        return Reply(within(message.tensors, "messages"), within(message.tensors, "info"))

    def _spec(self, client: int, request: Request) -> Spec:
        """What this reply must look like."""
        if request.work is None:
            at = self.at([client])
            return spec_of(prefixed("local", {name: value[at] for name, value in self.local.items()}))
        if request.indicator is not None:
            return spec_of(prefixed("report", self._report(request)))
        if self._expected is None:
            self._expected = expected_reply(self.algorithm, self.problem, self.data, self.local, request.work)
        visits = len(request.work.clients)
        return {
            f"{kind}.{name}": Entry((visits, *entry.shape), entry.dtype)
            for kind, spec in zip(("messages", "info"), self._expected, strict=True)
            for name, entry in spec.items()
        }

    def _report(self, request: Request) -> State:
        """A report on the server's made-up row, for its shapes."""
        assert request.work is not None and request.indicator is not None
        row = ClientData(self.data.rows, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
        local = {name: value[:1] for name, value in self.local.items()}
        assert isinstance(self.algorithm, Indicators)
        return self.algorithm.indicate(request.indicator, self.problem, request.work.shared, local, row)
