"""The clients of a run, the Flower node of each, and messages to them.

A client is identified by its name. Its node may change: Flower gives nodes without a registered key a new number
whenever they start. So a node that the run does not know is asked to describe itself. It takes the place of the client
with that name if that client's own node is gone, and the two descriptions agree. The list of clients is saved with the
checkpoint, so that a run can be resumed while some of them are away.

Flower's own `send_and_receive` looks for replies every three seconds, and waits for all of them. Here replies are
looked for more often, and the wait ends early for a node that has gone, or was restarted and so has lost its message.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pyro_fed.conventions.output import replaced_file
from pyro_fed.deployment.flower.wire import SETTINGS, record_of
from pyro_fed.deployment.remote.remote_federation import Description
from pyro_fed.errors import CheckpointError, ProtocolError, QuorumError, SettingError

#: The longest time from one look for replies or clients to the next, in seconds. A look is one small request.
MAX_POLL_SECONDS = 0.2
#: The next look comes after the share `POLL_SHARE` of the time waited so far, at least `MIN_POLL_SECONDS` and at most
#: `MAX_POLL_SECONDS` seconds: a quick round ends at most a tenth late, and a long one takes few looks.
MIN_POLL_SECONDS, POLL_SHARE = 0.01, 0.1
#: Seconds from one request for the list of nodes to the next.
NODES_POLL_SECONDS = 3.0


class Post:
    """Flower's Grid as the executor uses it."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> dict[int, str]:
        """The connected nodes, with the time at which each was last started, if Flower tells it."""
        return {node.node_id: str(getattr(node, "last_activated_at", "")) for node in self.grid.get_nodes()}

    def exchange(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """The reply to each message within `timeout` seconds, by its key; a clause says why one is missing."""
        if not messages:
            return {}
        before = self.online()
        sent = list(messages)
        ids = list(self.grid.push_messages(list(messages.values())))
        if len(ids) != len(sent):  # some grids return no ids for messages that they have not accepted
            ids = [messages[key].metadata.message_id for key in sent]
        waiting = {identity: key for identity, key in zip(ids, sent, strict=True) if identity}
        found: dict[int, Message | str] = {
            key: "could not be sent a message by Flower" for key in sent if key not in waiting.values()
        }
        began = time.monotonic()
        end, watch = began + timeout, began + NODES_POLL_SECONDS
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                key = waiting.pop(reply.metadata.reply_to_message_id, None)
                if key is not None:
                    found[key] = reply
            now = time.monotonic()
            if not waiting or now > end:
                break
            if now > watch:
                watch = now + NODES_POLL_SECONDS
                gone = self._gone({key: messages[key] for key in waiting.values()}, before)
                found |= gone
                waiting = {identity: key for identity, key in waiting.items() if key not in gone}
            time.sleep(min(max(POLL_SHARE * (now - began), MIN_POLL_SECONDS), MAX_POLL_SECONDS))
        late = f"did not reply within {timeout:g} s"
        return {key: found.get(key, late) for key in messages}

    def _gone(self, messages: Mapping[int, Message], before: Mapping[int, str]) -> dict[int, str]:
        """The messages that will not be answered, with the reason."""
        now = self.online()
        reasons: dict[int, str] = {}
        for key, message in messages.items():
            node = message.metadata.dst_node_id
            if node not in now:
                reasons[key] = GONE
            elif node in before and now[node] != before[node]:
                reasons[key] = ANEW
        return reasons


#: Why there is no reply.
GONE = "is not connected: its node is down, or cannot reach the server"
ANEW = "was restarted while it worked"


LOG = logging.getLogger("flwr")
#: Name of the file with the clients in a checkpoint's folder, and its largest size in bytes.
CLIENTS, MAX_CLIENTS_FILE_BYTES = "clients.json", 10**8


@dataclass
class Roll:
    """A run's clients in the order of their numbers, their nodes (None: not here), and nodes that belong to none.

    `rules` are those under which their replies have left, as they say.
    """

    clients: list[Description]
    nodes: list[int | None]
    strangers: set[int] = field(default_factory=set)
    rules: dict[str, set[tuple[str, str]]] = field(default_factory=dict)  # hashes of policy and approval, by client

    def __str__(self) -> str:
        """The clients' names, and which of them are away."""
        away = [client.name for client, node in zip(self.clients, self.nodes, strict=True) if node is None]
        names = ", ".join(client.name for client in self.clients)
        return names + (f"; away: {', '.join(away)}" if away else "")

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return [client.name for client in self.clients]

    @classmethod
    def from_checkpoint(cls, folder: Path) -> Roll | None:
        """The clients of the run whose checkpoint is in a folder; None if the folder has no list of them."""
        path = folder / CLIENTS
        try:
            if not path.exists():
                return None
            if path.stat().st_size > MAX_CLIENTS_FILE_BYTES:
                raise ProtocolError(
                    f"it has {path.stat().st_size:,} bytes, expected at most {MAX_CLIENTS_FILE_BYTES:,}"
                )
            plain = json.loads(path.read_text(encoding="utf-8"))
            clients = [
                Description.from_record({"description": json.dumps(one)}) for one in plain if isinstance(one, dict)
            ]
        except (ProtocolError, OSError, ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{path} cannot be read as the list of the run's clients: {error}. Run from the start, with another "
                "folder"
            ) from error
        return cls(clients, [None] * len(clients)) if clients else None

    def keep(self, folder: Path) -> None:
        """Write the list of clients into a checkpoint's folder, unless the folder has states already."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.glob("round-*.safetensors")):
                return
            with replaced_file(folder / CLIENTS) as file:
                file.write(json.dumps([asdict(client) for client in self.clients]).encode())
        except OSError as error:
            raise CheckpointError(f"nothing can be written to {folder}: {error}; choose another folder") from error

    def unknown(self, online: Collection[int]) -> list[int]:
        """The connected nodes that belong to no client and were not asked for a description yet."""
        return [node for node in online if node not in self.nodes and node not in self.strangers]

    def place(self, node: int, found: Description | str, online: Collection[int]) -> int | None:
        """The number of the client whose place a node takes; None if it cannot, for a reason that is logged."""
        objection = found if isinstance(found, str) else self._objection(found, online)
        if isinstance(found, str) or objection:
            self.strangers.add(node)
            LOG.warning("Node %d is not accepted: %s", node, objection)
            return None
        client = self.names.index(found.name)
        LOG.info("Client %s has joined, at node %d", found.name, node)
        self.nodes[client] = node
        return client

    def _objection(self, found: Description, online: Collection[int]) -> str:
        if found.name not in self.names:
            return f"client {found.name} is not a client of this run; its clients are {', '.join(self.names)}"
        number = self.names.index(found.name)
        if self.nodes[number] in online:
            return f"client {found.name} has already joined, at node {self.nodes[number]}: two nodes have the same name"
        mine = self.clients[number]
        for what, value in asdict(mine).items():
            if getattr(found, what) != value:
                return f"client {found.name} has rejoined with another {what}: {getattr(found, what)}, it was {value}"
        return ""


def wait_for_clients(
    grid: Grid, num_clients: int, min_clients: int | None, wait: float, timeout: float, known: Roll | None = None
) -> Roll:
    """The clients in the order of their names; of a resumed run (`known`) in their former order.

    A resumed run goes on without the others if at least `min_clients` are there when the wait ends.
    """
    post = Post(grid)
    if known is None:
        nodes = _nodes(post, num_clients, wait)
        answers = node_descriptions(post, nodes, timeout)
        if silent := [(node, answer) for node, answer in answers.items() if isinstance(answer, str)]:
            raise QuorumError(f"node {silent[0][0]} {silent[0][1]}; stop it, or raise timeout")
        pairs = [(node, answer) for node, answer in answers.items() if isinstance(answer, Description)]
        pairs.sort(key=lambda pair: (len(pair[1].name), pair[1].name))
        return Roll([client for _, client in pairs], [node for node, _ in pairs])
    if num_clients != len(known.clients):
        raise SettingError(
            f"the run that is resumed has {len(known.clients)} clients ({', '.join(known.names)}), num-clients is "
            f"{num_clients}: for clients that join or leave for good begin a new run with start = its checkpoint"
        )
    end = time.monotonic() + wait
    while True:
        online = post.online()
        for node, answer in node_descriptions(post, known.unknown(online), timeout).items():
            known.place(node, answer, online)
        here = sum(node is not None for node in known.nodes)
        if here == len(known.nodes):
            return known
        if time.monotonic() > end:
            if min_clients is not None and here >= max(min_clients, 1):
                return known
            raise QuorumError(
                f"{here} of the {len(known.nodes)} clients of the run that is resumed have joined within {wait:g} s: "
                "start the others, or set min-clients to continue without them"
            )
        time.sleep(MAX_POLL_SECONDS)


def node_descriptions(post: Post, nodes: Collection[int], timeout: float) -> dict[int, Description | str]:
    """The descriptions of nodes, by node, within `timeout` seconds; a clause in place of a missing one says why."""
    questions = {
        node: Message(RecordDict({SETTINGS: ConfigRecord({})}), node, MessageType.QUERY, ttl=timeout) for node in nodes
    }
    return {node: _description_in(answer) for node, answer in post.exchange(questions, timeout).items()}


def _description_in(answer: Message | str) -> Description | str:
    """The description in a node's answer, or a clause that says why there is none."""
    if isinstance(answer, str):
        return f"did not describe itself: it {answer}"
    if answer.has_error():
        lines = str(answer.error.reason).strip().splitlines() or ["no reason given"]
        return f"could not describe itself: {lines[-1].strip():.500}"  # a simulation's reason is a whole traceback
    try:
        return Description.from_record(record_of(answer.content, SETTINGS))
    except ProtocolError as error:
        return f"did not describe itself: {error}"


def _nodes(post: Post, num_clients: int, wait: float) -> list[int]:
    end = time.monotonic() + wait
    joined = -1
    while len(nodes := list(post.online())) < num_clients:
        if len(nodes) != joined:
            joined = len(nodes)
            LOG.info("%d of %d clients have joined", joined, num_clients)
        if time.monotonic() > end:
            raise QuorumError(f"{len(nodes)} of {num_clients} clients have joined within {wait:g} s: start the others")
        time.sleep(MAX_POLL_SECONDS)
    return nodes
