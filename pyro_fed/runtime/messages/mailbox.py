"""Which replies are accepted: a request has a nonce, and is answered once, in its round, by its client."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from pyro_fed.runtime.messages.codec import Header

#: The kind of the answer to each kind of request.
ANSWER = {"work": "reply", "ask": "report"}


def token() -> str:
    """A fresh run id or nonce, 16 hexadecimal digits.

    Example:
        >>> len(token())
        16
    """
    return secrets.token_hex(8)


@dataclass
class Mailbox:
    """The open requests of a run.

    Attributes:
        run: the run's id.
        dropped: the headers of replies that were dropped, with the reason, the oldest first.
        keep: how many of these are kept, the latest ones.

    Example:
        >>> mailbox = Mailbox()
        >>> request = mailbox.request("work", round=0, client="north")
        >>> mailbox.take(answer(request)), mailbox.take(answer(request))  # no reply counts twice
        (True, False)
    """

    run: str = field(default_factory=token)
    keep: int = 1000
    dropped: list[tuple[Header, str]] = field(default_factory=list)
    _open: dict[str, Header] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def request(self, kind: str, round: int, client: str) -> Header:
        """The header of a new request.

        Args:
            kind: "work" or "ask".
            round: the round's number.
            client: the client's id.
        """
        header = Header(kind, self.run, round, client, token())
        self._open[header.nonce] = header
        return header

    def take(self, header: Header) -> bool:
        """Whether a reply with this header answers an open request, which is then closed."""
        reason = self._objection(header)
        if reason:
            self.dropped = [*self.dropped, (header, reason)][-self.keep :]
            return False
        self._taken.add(header.nonce)
        del self._open[header.nonce]
        return True

    def close(self) -> None:
        """End a round: requests that were not answered are closed, and later replies to them are dropped."""
        self._open.clear()
        self._taken.clear()

    def _objection(self, header: Header) -> str:
        if header.run != self.run:
            return f"it is of run {header.run}, this is run {self.run}"
        if header.nonce in self._taken:
            return "its request was answered already"
        asked = self._open.get(header.nonce)
        if asked is None:
            return "no such request is open: it is late, or a replay"
        if header != replace(asked, kind=ANSWER[asked.kind]):
            return f"it answers another request: client {asked.client}, round {asked.round} were asked"
        return ""


def answer(request: Header) -> Header:
    """The header of the reply to a request.

    Args:
        request: its header.

    Example:
        >>> answer(Mailbox().request("work", round=0, client="north")).kind
        'reply'
    """
    return replace(request, kind=ANSWER[request.kind])
