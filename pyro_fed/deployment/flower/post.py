"""Messages over Flower's Grid, and the nodes that are connected.

Flower's own `send_and_receive` looks for replies every three seconds, and waits for all of them. Here replies are
looked for more often. The wait for a node ends early if the node has gone, or was restarted and so has lost its
message.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

#: The longest time from one look for replies to the next, in seconds. A look is one small request.
LOOK_EVERY = 0.2
#: The next look comes after the share `LOOK_AFTER` of the time waited so far, at least `LOOK_SOONEST` and at most
#: `LOOK_EVERY` seconds: a quick round ends at most a tenth late, and a long one takes few looks.
LOOK_SOONEST, LOOK_AFTER = 0.01, 0.1
#: Seconds from one request for the list of nodes to the next.
WATCH_EVERY = 3.0


class Post:
    """Flower's Grid as the executor uses it."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> dict[int, str]:
        """The connected nodes, with the time at which each was last started, if Flower tells it."""
        return {node.node_id: str(getattr(node, "last_activated_at", "")) for node in self.grid.get_nodes()}

    def exchange(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send a message to each of some nodes, and wait for the replies, at most `timeout` seconds.

        The replies have the messages' keys; in place of a missing one is a clause that says why.
        """
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
        end, watch = began + timeout, began + WATCH_EVERY
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                key = waiting.pop(reply.metadata.reply_to_message_id, None)
                if key is not None:
                    found[key] = reply
            now = time.monotonic()
            if not waiting or now > end:
                break
            if now > watch:
                watch = now + WATCH_EVERY
                gone = self._gone({key: messages[key] for key in waiting.values()}, before)
                found |= gone
                waiting = {identity: key for identity, key in waiting.items() if key not in gone}
            time.sleep(min(max(LOOK_AFTER * (now - began), LOOK_SOONEST), LOOK_EVERY))
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
ANEW = "was started anew while it worked"
