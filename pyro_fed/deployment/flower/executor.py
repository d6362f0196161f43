"""The executor inside Flower's ServerApp: one client a node, a message for each client's work."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from pyro_fed.algorithm.states import State, write
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.deployment.flower.joining import ANEW, GONE, MAX_POLL_SECONDS, Post, Roll, node_descriptions
from pyro_fed.deployment.flower.secure import MIN_SUMMED_CLIENTS, SecAgg, SecureRound, Summed, check_secure, stand_ins
from pyro_fed.deployment.flower.wire import LOST, SETTINGS, bytes_of, failure_clause, pack, record_of
from pyro_fed.deployment.remote.clients import RemoteClients
from pyro_fed.errors import ProtocolError, SettingError
from pyro_fed.runtime.executors.base import LOG_LIK, Reply, Work
from pyro_fed.runtime.executors.remote import Request, WorkerPhase
from pyro_fed.runtime.messages import Header, Mailbox

#: A SHA-256, or nothing.
HASH = re.compile(r"([0-9a-f]{64})?")

#: Why a client whose state is lost takes no part.
NOWHERE = (
    "has lost its state because its node was restarted, and the server has no copy: it takes part again in the next "
    "phase, if there is one. A run with checkpoint= keeps copies"
)


class Flower(RemoteClients):
    """Clients behind Flower's Grid.

    A client whose node is gone is left out of the round. When it comes back, under the same node number or another, it
    is recognised by its name. Its node has lost the client's state, which then comes from the server's copy. With
    `copies` that is the state after the last reply. Otherwise it is the state at the phase's beginning; a client that
    has changed its state since stays away until the next phase, since its rows would be counted twice with the old one.

    Args:
        grid: Flower's Grid.
        roll: the clients, and the node of each.
        timeout: seconds that a client has for a round, with compilation.
        copies: whether clients send their new states with their replies.
        secure: settings of secure aggregation; None for none.

    Raises:
        SettingError: a `timeout` that is not positive.

    Example:
        >>> executor = Flower(grid, roll, timeout=600.0)  # as `serve` makes it of Flower's grid and the clients' names
    """

    def __init__(
        self, grid: Grid, roll: Roll, timeout: float, copies: bool = False, secure: SecAgg | None = None
    ) -> None:
        if timeout <= 0:
            raise SettingError(f"Flower: timeout must be positive, received {timeout}")
        super().__init__(copies)
        self.post, self.roll, self.timeout = Post(grid), roll, timeout
        self.mailbox, self.secure = Mailbox(), secure

    def prepare(self) -> None:
        """Begin a phase; with secure aggregation only of an algorithm that needs sums alone."""
        super().prepare()
        if self.secure is not None:
            check_secure([self.algorithm])
        self._lost: set[int] = set()
        self._own_states: dict[int, State] = {}
        self._carried: SecureRound | None = None

    @property
    def sums_alone(self) -> bool:
        """Whether there is secure aggregation."""
        return self.secure is not None

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return self.roll.names

    def settle(self, taken: Tensor, told: State) -> None:
        """Note the verdict for the clients' next requests, and apply it to the copies of their states."""
        super().settle(taken, told)
        if self.secure is not None:
            self._keep_own_states(taken)

    def _keep_own_states(self, taken: Tensor) -> None:
        """Write stand-ins for what clients keep of their messages into the states: clients are never asked for them."""
        whose = {slot: client for client, slots in self._asked.items() for slot in slots}
        for slot in taken.tolist():
            client = whose[slot]
            own = {name: value for name, value in self._own_states.get(client, {}).items() if name in self.local}
            write(self.local, self.at([client]), own)
            self._changed.discard(client)

    def travelled(self, clients: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """The bytes of secure aggregation's exchanges; None without it."""
        if self._carried is None:
            return None
        both = self._carried.down, self._carried.up
        down, up = (np.array([counted[client] for client in clients]) for counted in both)
        return down, up

    def revived(self, workers: list[int]) -> list[int]:
        """The clients among some that have lost their states, which are known here."""
        again = [client for client in workers if client in self._lost]
        self._lost -= set(again)
        return again

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Ask all clients at once. Replies are matched by Flower's message id; late ones are dropped.

        If a client is away, unknown nodes are asked for their descriptions first.
        """
        online = self._present(requests)
        known = {client: self.roll.nodes[client] for client in requests}
        nodes = {client: node for client, node in known.items() if node is not None and node in online}
        if self.secure is not None:
            return self._summed(requests, nodes, self.secure)
        messages = {
            client: Message(
                self._content(client, requests[client]),
                node,
                MessageType.TRAIN,
                ttl=self.timeout,
                group_id=str(self.number(requests[client])),
            )
            for client, node in nodes.items()
        }
        replies = self.post.exchange(messages, self.timeout)
        answers = {client: self._answer(client, requests[client], replies.get(client, GONE)) for client in requests}
        self.mailbox.close()
        return answers

    def _beginning(self, client: int) -> WorkerPhase | None:
        """The phase, until the client has answered in it; with secure aggregation, which keeps no states, always."""
        if self.secure is not None:
            self._begun.discard(client)
        return super()._beginning(client)

    def _summed(self, requests: Mapping[int, Request], nodes: Mapping[int, int], secure: SecAgg) -> dict[int, Any]:
        """Stand-ins for the clients' answers, whose sum was found by secure aggregation."""
        answers: dict[int, Any] = dict.fromkeys(requests, GONE)
        if len(nodes) < MIN_SUMMED_CLIENTS:
            few = f"is one of {len(nodes)}: a sum of fewer than {MIN_SUMMED_CLIENTS} hides nobody"
            return answers | dict.fromkeys(nodes, few)
        if any(one.work is None or one.indicator not in (None, LOG_LIK) for one in requests.values()):
            single = "can only be heard in a sum, since the run uses secure aggregation"
            return answers | dict.fromkeys(nodes, single)
        contents = {client: self._content(client, requests[client]) for client in nodes}
        first = requests[next(iter(nodes))]
        exchanges = SecureRound(secure, self.post, nodes, contents, self.number(first), self.timeout)
        found = exchanges()
        if first.indicator is None:
            self._carried = exchanges
        self.mailbox.close()
        if self.algorithm.needs_all and first.indicator is None and len(found.clients) < len(requests):
            missing = [self.roll.names[client] for client in requests if client not in found.clients]
            lacking = f"is in a sum without {', '.join(missing)}, which {type(self.algorithm).__name__} needs"
            return answers | dict.fromkeys(found.clients, lacking) | found.failures
        return answers | found.failures | self._stand_ins(first, found)

    def _stand_ins(self, request: Request, found: Summed) -> dict[int, Any]:
        """A stand-in for the reply of each client in a sum; together they have that sum."""
        if not found.clients:
            return {}
        if request.indicator is not None:
            shape = self.report(request)[LOG_LIK].shape
            each = (found.total / len(found.clients)).reshape(shape)
            return {client: {LOG_LIK: each} for client in found.clients}
        expected, _, _ = self.expected(cast_checked(request.work, Work))
        rows = self.data.num_rows[self.at(found.clients)]
        messages = stand_ins(found.total, expected, rows, int(self.data.num_rows.max()))
        self._own_states = dict(zip(found.clients, messages, strict=True))
        return {client: Reply(one, {}) for client, one in zip(found.clients, messages, strict=True)}

    def _present(self, requests: Mapping[int, Request]) -> dict[int, str]:
        """The connected nodes, after nodes that have come back were given their clients' places.

        If the algorithm needs all clients, this waits for those that are away, for up to `timeout` seconds.
        """
        end = time.monotonic() + self.timeout
        while True:
            online = self.post.online()
            self._take_in(online)
            away = [client for client in requests if self.roll.nodes[client] not in online]
            if not away or not self.algorithm.needs_all or time.monotonic() > end:
                return online
            time.sleep(MAX_POLL_SECONDS)

    def _take_in(self, online: Mapping[int, str]) -> None:
        """If a client is away, ask unknown nodes for their descriptions, and give them their clients' places."""
        if all(node in online for node in self.roll.nodes):
            return
        for node, answer in node_descriptions(self.post, self.roll.unknown(online), self.timeout).items():
            client = self.roll.place(node, answer, online)
            if client is not None and self.restorable(client):
                self._begun.discard(client)

    def accept(self, header: Header) -> None:
        """Take a reply to an open request; ProtocolError if it answers none."""
        if not self.mailbox.take(header):
            raise ProtocolError(self.mailbox.dropped[-1][1])

    def _content(self, client: int, request: Request) -> Any:
        header = self.mailbox.request(self.kind(request), self.number(request), self.names[client])
        return pack(ConfigRecord(self.order(client, request).to_record()), header, self.tensors(request))

    def _answer(self, client: int, request: Request, reply: Message | str) -> Any:
        """A client's answer, or a clause that says why there is none."""
        if reply == ANEW:
            return self._without_state(client, ANEW)
        if isinstance(reply, str):
            return reply
        if reply.has_error():
            return failure_clause(reply)
        try:
            if LOST in reply.content.get(SETTINGS, {}):
                return self._without_state(client, "has lost its state")
            rules = rules_of(record_of(reply.content, SETTINGS))
            answer = self.decoded(client, request, bytes_of(reply.content))
            self.roll.rules.setdefault(self.names[client], set()).add(rules)
            return answer
        except ProtocolError as error:
            return f"sent something that is not a reply: {error!s:.300}"

    def _without_state(self, client: int, reason: str) -> str:
        """A clause on a client without its state, which is asked again if the server has a copy of that."""
        if not self.restorable(client):
            return NOWHERE
        self._lost.add(client)
        return reason


def rules_of(settings: Mapping[str, Any]) -> tuple[str, str]:
    """The hashes of the policy and the approval under which a reply has left, each "" if the site has none."""
    policy, approval = (str(settings.get(name, "")) for name in ("policy", "approval"))
    for text in (policy, approval):
        if not HASH.fullmatch(text):
            raise ProtocolError(f"the hash of a policy or an approval is 64 hexadecimal digits, received {text!r:.80}")
    return policy, approval
