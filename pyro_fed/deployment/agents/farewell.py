"""The message by which an agent tells its neighbours that it leaves, so that they do not wait for it.

It has only words of this protocol, since an error of the model's code may have rows in its text. A neighbour accepts it
from the agent that the certificate names, and shows at most one line of plain text of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyro_fed.errors import ProtocolError

#: The most characters of a reason, so that it fits into a request however it is encoded.
MAX_WHY = 500


@dataclass(frozen=True)
class Farewell:
    """An agent's message that it leaves.

    Attributes:
        run: the id of its run, a digest of all that agents must have in common.
        why: the reason in words.
        done: whether its rounds are over; otherwise it has stopped before their end.
        differs: whether it leaves because agents do not run the same.
    """

    run: str
    why: str
    done: bool = False
    differs: bool = False

    def encode(self) -> bytes:
        """The message as JSON bytes."""
        return json.dumps({**asdict(self), "why": self.why[:MAX_WHY]}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Farewell:
        """Read the bytes of `encode`; ProtocolError for any others."""
        try:
            self = cls(**json.loads(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"farewell: expected JSON with run, why, done and differs: {error!s:.200}") from error
        for name, kind in {"run": str, "why": str, "done": bool, "differs": bool}.items():
            value = getattr(self, name)
            if type(value) is not kind:
                raise ProtocolError(f"farewell: {name} must be a {kind.__name__}, received {value!r:.80}")
        why = "".join(letter if letter.isprintable() else " " for letter in self.why[:MAX_WHY])
        return cls(self.run, why, self.done, self.differs)


class DifferError(ProtocolError):
    """Agents do not run the same; `told`, the text that other agents get, says what differs, without values."""

    def __init__(self, text: str, told: str) -> None:
        super().__init__(text)
        self.told = told
