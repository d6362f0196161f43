"""The executor inside Flower's ServerApp: one client a node, a message for each client's work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.states import State, prefixed, select, within, write
from pyro_fed.conventions.kinds import cast_checked
from pyro_fed.conventions.settings_repr import settings_line
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.deployment.flower.joining import Roll, description_in, question
from pyro_fed.deployment.flower.order import STATES, WORK, Order
from pyro_fed.deployment.flower.post import ANEW, GONE, LOOK_EVERY, Post
from pyro_fed.deployment.flower.secure import MIN_SUMMED_CLIENTS, SecAgg, SecureRound, Summed, check_secure, stand_ins
from pyro_fed.deployment.flower.wire import LOST, SETTINGS, bytes_of, pack
from pyro_fed.errors import ProtocolError, SettingError
from pyro_fed.runtime.executors.base import LOG_LIK, Reply, Work
from pyro_fed.runtime.executors.host import Request, WorkerPhase
from pyro_fed.runtime.executors.local import NewStates, keep
from pyro_fed.runtime.executors.remote import Remote
from pyro_fed.runtime.messages import Header, Mailbox, Spec, decode, spec_of
from pyro_fed.runtime.messages.expected import expected_reply
from pyro_fed.runtime.messages.header import Entry

#: The most characters of a client's error that the record keeps.
MAX_REASON = 300
#: Why a client whose state is lost takes no part.
NOWHERE = (
    "has lost its state, since its node was started anew, and the server has no copy: it takes part again in the next "
    "phase, if there is one. A run with checkpoint= keeps copies"
)


class Flower(Remote):
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
        self.post, self.roll, self.timeout, self.copies = Post(grid), roll, timeout, copies
        self.mailbox, self.secure = Mailbox(), secure

    def prepare(self) -> None:
        """Begin a phase.

        Raises:
            SettingError: the algorithm needs pooled data, or more than sums although there is secure aggregation.
        """
        if self.algorithm.pooled:
            name = type(self.algorithm).__name__
            raise SettingError(
                f"{name} needs all rows in one place, and over Flower they stay at the clients: take FedEP, or run "
                f"{name} on pooled data by pf.run"
            )
        if self.secure is not None:
            check_secure([self.algorithm])
        super().prepare()
        self._expected: tuple[Spec, Spec, Spec] | None = None
        self._lost: set[int] = set()
        self._said: dict[int, State] = {}
        self._carried: SecureRound | None = None
        self._made: dict[int, list[NewStates]] = {}

    @property
    def sums_alone(self) -> bool:
        """Whether there is secure aggregation."""
        return self.secure is not None

    def worker_of(self, client: int) -> int:
        """Each client is a worker of its own."""
        return client

    def execute(self, work: Work) -> Reply:
        """Do a round's work; copies of the clients' new states are kept until `settle`."""
        if work.round != self._round:
            self._made = {}
        return super().execute(work)

    def settle(self, taken: Tensor, told: State) -> None:
        """Note the verdict for the clients' next requests, and apply it to the copies of their states."""
        super().settle(taken, told)
        made = [one for several in self._made.values() for one in several]
        keep(self.algorithm, self.local, made, taken, told)
        self._changed -= set(self._made)
        self._made = {}
        if self.secure is not None:
            self._keep_said(taken)

    def _keep_said(self, taken: Tensor) -> None:
        """Write stand-ins for what clients keep of their messages into the states: clients are never asked for them."""
        whose = {slot: client for client, slots in self._asked.items() for slot in slots}
        for slot in taken.tolist():
            client = whose[slot]
            said = {name: value for name, value in self._said.get(client, {}).items() if name in self.local}
            write(self.local, self.at([client]), said)
            self._changed.discard(client)

    def travelled(self, clients: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """The bytes of secure aggregation's exchanges; None without it."""
        if self._carried is None:
            return None
        down, up = (
            np.array([counted[client] for client in clients]) for counted in (self._carried.down, self._carried.up)
        )
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
        nodes = self._nodes(requests)
        if self.secure is not None:
            return self._summed(requests, nodes, self.secure)
        headers = {client: self._header(client, request) for client, request in requests.items()}
        messages = {
            client: Message(
                self._content(client, requests[client], headers[client]),
                node,
                MessageType.TRAIN,
                ttl=self.timeout,
                group_id=str(headers[client].round),
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

    def _nodes(self, requests: Mapping[int, Request]) -> dict[int, int]:
        """The nodes of the clients that are connected, by client."""
        online = self._present(requests)
        nodes = {client: self.roll.nodes[client] for client in requests}
        return {client: node for client, node in nodes.items() if node is not None and node in online}

    def _summed(self, requests: Mapping[int, Request], nodes: Mapping[int, int], secure: SecAgg) -> dict[int, Any]:
        """Stand-ins for the clients' answers, whose sum was found by secure aggregation."""
        answers: dict[int, Any] = dict.fromkeys(requests, GONE)
        if len(nodes) < MIN_SUMMED_CLIENTS:
            return answers | dict.fromkeys(
                nodes, f"is one of {len(nodes)}: a sum of fewer than {MIN_SUMMED_CLIENTS} hides nobody"
            )
        if any(one.work is None or one.indicator not in (None, LOG_LIK) for one in requests.values()):
            return answers | dict.fromkeys(
                nodes, "says nothing but what is in a sum, as the run has secure aggregation"
            )
        contents = {
            client: self._content(client, requests[client], self._header(client, requests[client])) for client in nodes
        }
        first = requests[next(iter(nodes))]
        number = first.work.round if first.work is not None else 0
        exchanges = SecureRound(secure, self.post, nodes, contents, number, self.timeout)
        found = exchanges(self._failed)
        if first.indicator is None:
            self._carried = exchanges
        self.mailbox.close()
        if self.algorithm.needs_all and first.indicator is None and len(found.clients) < len(requests):
            missing = [self.roll.names[client] for client in requests if client not in found.clients]
            lacking = (
                f"is in a sum that lacks {', '.join(missing)}, without which {type(self.algorithm).__name__} cannot do"
            )
            return answers | dict.fromkeys(found.clients, lacking) | found.failures
        return answers | found.failures | self._stand_ins(first, found)

    def _stand_ins(self, request: Request, found: Summed) -> dict[int, Any]:
        """A stand-in for the reply of each client in a sum; together they have that sum."""
        if not found.clients:
            return {}
        if request.indicator is not None:
            shape = self._report(request)[LOG_LIK].shape
            each = (found.total / len(found.clients)).reshape(shape)
            return {client: {LOG_LIK: each} for client in found.clients}
        if self._expected is None:
            work = cast_checked(request.work, Work)
            self._expected = expected_reply(self.algorithm, self.problem, self.data, self.local, work)
        rows = self.data.num_rows[self.at(found.clients)]
        messages = stand_ins(found.total, self._expected[0], rows, int(self.data.num_rows.max()))
        self._said = dict(zip(found.clients, messages, strict=True))
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
            time.sleep(LOOK_EVERY)

    def _take_in(self, online: Mapping[int, str]) -> None:
        """If a client is away, ask unknown nodes for their descriptions, and give them their clients' places."""
        if all(node in online for node in self.roll.nodes):
            return
        new = self.roll.unknown(online)
        found = self.post.exchange({node: question(node, self.timeout) for node in new}, self.timeout)
        for node, answer in found.items():
            client = self.roll.place(node, description_in(answer), online)
            if client is not None and self.restorable(client):
                self._begun.discard(client)

    def _header(self, client: int, request: Request) -> Header:
        kind = "work" if request.work is not None and request.indicator is None else "ask"
        number = self._round if request.work is None else request.work.round
        return self.mailbox.request(kind, max(number, 0), self.roll.names[client])

    def _content(self, client: int, request: Request, header: Header) -> Any:
        phase, verdict, work = request.phase, request.verdict, request.work
        order = Order(
            job=STATES if work is None else request.indicator or WORK,
            algorithm=settings_line(self.algorithm.contributions().form_for_clients()),
            num_clients=len(self.roll.nodes),
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
            copies=self._copied(request),
        )
        tensors: State = {}
        if phase is not None:
            tensors |= prefixed("local", phase.local)
        if verdict is not None:
            tensors |= {"taken": verdict.taken} | prefixed("told", verdict.told)
        if work is not None:
            tensors |= prefixed("shared", work.shared)
        return pack(order.to_record(), header, tensors)

    def _copied(self, request: Request) -> bool:
        """Whether the reply brings the client's new state."""
        return self.copies and bool(self.local) and request.work is not None and request.indicator is None

    def _answer(self, client: int, request: Request, reply: Message | str) -> Any:
        """A client's answer, or a clause that says why there is none."""
        if reply == ANEW:
            return self._without_state(client, ANEW)
        if isinstance(reply, str):
            return reply
        if reply.has_error():
            return self._failed(reply)
        try:
            if LOST in reply.content.get(SETTINGS, {}):
                return self._without_state(client, "has lost its state")
            return self._decoded(client, request, bytes_of(reply.content))
        except ProtocolError as error:
            return f"sent something that is not a reply: {error!s:.{MAX_REASON}}"

    def _failed(self, reply: Message) -> str:
        """A clause on a reply that is an error of Flower or of the client."""
        return f"failed: {reply.error.reason!s:.{MAX_REASON}} (Flower's code {reply.error.code})"

    def _without_state(self, client: int, reason: str) -> str:
        """A clause on a client without its state, which is asked again if the server has a copy of that."""
        if not self.restorable(client):
            return NOWHERE
        self._lost.add(client)
        return reason

    def _decoded(self, client: int, request: Request, data: bytes) -> Reply | State:
        # Numbers that are not finite are the round loop's to judge.
        message = decode(data, self._spec(client, request), finite=False)
        if not self.mailbox.take(message.header):
            raise ProtocolError(self.mailbox.dropped[-1][1])
        if request.work is None:
            return within(message.tensors, "local")
        if request.indicator is not None:
            return within(message.tensors, "report")
        if self._copied(request):
            slots = torch.tensor(request.work.slots)
            at = self.at([client]).expand(len(slots))
            self._made.setdefault(client, []).append(NewStates(slots, at, within(message.tensors, "new")))
        return Reply(within(message.tensors, "messages"), within(message.tensors, "info"))

    def _spec(self, client: int, request: Request) -> Spec:
        """The shapes and dtypes that this client's reply must have."""
        at = self.at([client])
        if request.work is None:
            known = spec_of(prefixed("local", select(self.local, at)))
            grown = {} if self._expected is None else self._expected[2]  # states may have grown in a round
            new = {f"local.{name}": Entry((1, *entry.shape), entry.dtype) for name, entry in grown.items()}
            return known | {name: entry for name, entry in new.items() if name in known}
        if request.indicator is not None:
            return spec_of(prefixed("report", self._report(request)))
        if self._expected is None:
            self._expected = expected_reply(self.algorithm, self.problem, self.data, self.local, request.work)
        visits = len(request.work.clients)
        kinds = ("messages", "info", "new") if self._copied(request) else ("messages", "info")
        return {
            f"{kind}.{name}": Entry((visits, *entry.shape), entry.dtype)
            for kind, spec in zip(kinds, self._expected, strict=False)
            for name, entry in spec.items()
        }

    def _report(self, request: Request) -> State:
        """An answer to the request's question on the server's made-up row, for its shapes and dtypes."""
        shared, indicator = cast_checked(request.work, Work).shared, cast_checked(request.indicator, str)
        if indicator == LOG_LIK:
            return {LOG_LIK: torch.zeros(shared["draws"].shape[:2], dtype=torch.float64)}
        row = ClientData(self.data.rows, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
        local = {name: value[:1] for name, value in self.local.items()}
        return cast_checked(self.algorithm, Indicators).indicate(indicator, self.problem, shared, local, row)
