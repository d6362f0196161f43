"""Messages over Flower's Grid, and who is there to answer them.

Flower's own `send_and_receive` looks for replies every three seconds and waits for all. Here they are looked for more
often, and the wait ends early for a node that has gone, or that was started anew and so has lost what it was asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

#: The most seconds from one look for replies to the next. To look is one small request.
LOOK_EVERY = 0.2
#: The least. Before the most is reached, the next look comes after a tenth of the time that has been waited: a quick
#: round ends at most a tenth late, and a long one costs few looks.
LOOK_SOONEST, LOOK_AFTER = 0.01, 0.1
#: Seconds from one look at the nodes to the next.
WATCH_EVERY = 3.0


class Post:
    """The Grid as the executor uses it.

    Args:
        grid: Flower's.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> dict[int, str]:
        """The nodes that are connected, and when each was started last, as far as Flower says it."""
        return {node.node_id: str(getattr(node, "last_activated_at", "")) for node in self.grid.get_nodes()}

    def exchange(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send a message to each of some nodes, and wait for the replies.

        Args:
            messages: by any key.
            timeout: seconds to wait at most.

        Returns:
            The replies, or in a sentence why there is none, by the same keys.
        """
        if not messages:
            return {}
        before = self.online()
        sent = list(messages)
        ids = list(self.grid.push_messages(list(messages.values())))
        if len(ids) != len(sent):  # a grid that leaves out what it has not taken
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
        """Which of the messages nobody will answer, and why."""
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
