"""What an agent says to its neighbours as it leaves, so that none waits for one that will not answer.

Only words of the protocol's own are sent: an error of the model's code may have rows in its text. A neighbour believes
it of whoever the certificate names, and shows no more of it than a line of plain text.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyro_fed.errors import ProtocolError

#: Characters of a reason, so that it fits into a request however it is encoded.
MAX_WHY = 500


@dataclass(frozen=True)
class Farewell:
    """That an agent has left, and why.

    Attributes:
        run: the leaver's run, a digest of what its neighbours have to have in common with it.
        why: in words.
        done: whether its rounds are over; else it has stopped before their end.
        differs: whether it left since agents do not run the same.
    """

    run: str
    why: str
    done: bool = False
    differs: bool = False

    def encode(self) -> bytes:
        """As it travels."""
        return json.dumps({**asdict(self), "why": self.why[:MAX_WHY]}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Farewell:
        """What `encode` wrote.

        Raises:
            ProtocolError: anything else.
        """
        try:
            self = cls(**json.loads(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"no farewell: {error!s:.200}") from error
        if not isinstance(self.run, str) or not isinstance(self.why, str):
            raise ProtocolError("a farewell is words")
        if type(self.done) is not bool or type(self.differs) is not bool:
            raise ProtocolError("a farewell says yes or no to whether its agent is done, and whether agents differ")
        why = "".join(letter if letter.isprintable() else " " for letter in self.why[:MAX_WHY])
        return cls(self.run, why, self.done, self.differs)


class DifferError(ProtocolError):
    """Agents that do not run the same.

    Attributes:
        told: what other agents may read of it: what differs, without values.
    """

    def __init__(self, text: str, told: str) -> None:
        super().__init__(text)
        self.told = told
