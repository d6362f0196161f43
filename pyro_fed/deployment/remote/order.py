"""Orders of the server to a client, which checks them before it allocates memory or computes.

An order's settings have ranges, `RANGES`; they fit one another, the client's own rows and the message's header; and its
tensors are those of its parts: `local.*` where it begins a phase, `taken` and `told.*` with a verdict, `shared.*` with
work. How many numbers a client receives depends, for some algorithms, on what earlier phases found. So what is bounded
is the size: a message is as long as the model's dimension lets it be, see `most_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from pyro_fed.density.compiling.compiler import LEVELS
from pyro_fed.deployment.limits import (
    EXTRA_VECTOR_NUMBERS,
    MAX_CLIENTS,
    MAX_MATRICES,
    MAX_MESSAGE_BYTES,
    MAX_ROUNDS,
    MAX_ROWS,
    MAX_TEXT,
    MAX_VECTORS,
)
from pyro_fed.errors import ProtocolError, listed
from pyro_fed.runtime.executors.base import LOG_LIK, MAX_ASKED_DRAWS
from pyro_fed.runtime.messages import Header
from pyro_fed.runtime.safetensors_header import Entry


class Refusal(ProtocolError):
    """An order of the server that a client does not follow; the text consists of the order and settings only."""


@contextmanager
def as_refusals() -> Iterator[None]:
    """A context that reads the server's order, and nothing of the client's: its `ProtocolError` becomes a `Refusal`."""
    try:
        yield
    except ProtocolError as error:
        raise Refusal(str(error)) from None


#: The jobs of every algorithm; any other job is an indicator that a schedule asks for, or `LOG_LIK`.
WORK, STATES = "work", "states"
#: The smallest and largest value of each whole number of an order.
RANGES = {
    "num_clients": (1, MAX_CLIENTS),
    "num_rows": (1, MAX_ROWS * MAX_CLIENTS),
    "width": (1, MAX_ROWS),
    "client": (0, MAX_CLIENTS - 1),
    "phase": (0, MAX_CLIENTS),
    "verdict": (-1, MAX_ROUNDS - 1),
    "round": (-1, MAX_ROUNDS - 1),
    "seed": (0, 2**63 - 1),
}
#: Positions in a round, as text.
SLOTS = re.compile(r"([0-9]{1,7}( [0-9]{1,7})*)?")
CURE = "give server and clients the same model, recipe and version of pyro_fed"


@dataclass(frozen=True)
class Order:
    """An order of the server to a client, without its tensors."""

    job: str  # `WORK`, `STATES`, or a question (an indicator, or `LOG_LIK`)
    algorithm: str  # with all its settings, as text; the client makes it from its own recipe
    num_clients: int
    num_rows: int  # of all clients
    width: int  # number of rows of the client with the most
    client: int  # this client's number
    slots: str  # its positions in the round, as text; there may be several
    phase: int
    begins: bool  # whether the message brings the states with which the phase begins
    verdict: int  # the round whose used messages the order names; -1 for none
    round: int  # -1 if no work is asked for
    seed: int
    level: str  # of the compiler
    copies: bool  # whether the reply has to bring the client's new state

    def to_record(self) -> dict[str, Any]:
        """The order as numbers and texts by name."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Any) -> Order:
        """The order in a record made by `to_record`, if its settings are in their ranges and fit one another."""
        kinds = {"str": str, "int": int, "bool": bool}
        wanted = {field.name: kinds[str(field.type)] for field in fields(cls)}
        found = {name: type(value) for name, value in record.items()}
        if found != wanted:
            expected, received = (
                ", ".join(f"{name} ({kind.__name__})" for name, kind in sorted(each.items()))
                for each in (wanted, found)
            )
            raise Refusal(f"expected the settings {expected}; received {received:.600}")
        self = cls(**record)
        self._check()
        return self

    @property
    def places(self) -> tuple[int, ...]:
        """The client's positions in the round, from the text `slots`."""
        return tuple(int(slot) for slot in self.slots.split())

    def _check(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            require(least <= value <= most, name, f"a number from {least} to {most}", value)
        require(self.level in {*LEVELS.values(), "loop"}, "level", "a level of the compiler", self.level)
        for name in ("job", "algorithm", "slots"):
            value = getattr(self, name)
            require(len(value) <= MAX_TEXT, name, f"at most {MAX_TEXT} characters", f"{len(value)} characters")
        require(SLOTS.fullmatch(self.slots), "slots", "positions in a round, such as '0 3'", self.slots)
        ascend = all(one < other for one, other in zip(self.places, self.places[1:], strict=False))
        require(ascend, "slots", "ascending positions", self.slots)
        below = f"a number below {self.num_clients}, num_clients"
        require(self.client < self.num_clients, "client", below, self.client)
        works = self.job != STATES
        require(works == bool(self.slots), "slots", "positions if there is work, and none otherwise", self.slots)
        require(works == (self.round >= 0), "round", "a round if there is work, and -1 otherwise", self.round)
        least = self.width + self.num_clients - 1  # every client has a row
        most = self.width * self.num_clients
        require(least <= self.num_rows <= most, "num_rows", f"{least} to {most}, as width requires", self.num_rows)

    def check_rows(self, own: int) -> None:
        """Refuse numbers of rows that leave no place for this client's own number of rows."""
        require(self.width >= own, "width", f"at least {own}, this client's own rows", self.width)
        least = own + self.num_clients - 1
        require(self.num_rows >= least, "num_rows", f"at least {least}, with this client's own rows", self.num_rows)

    def check_header(self, header: Header, name: str, run: str | None) -> None:
        """Refuse the header of another message; `run` is the run of the client's state, None without one."""
        require(header.client == name, "the header's client", name, header.client)
        kind = "work" if self.job == WORK else "ask"
        require(header.kind == kind, "the header's kind", f"{kind!r} for the job {self.job!r:.100}", header.kind)
        if self.round >= 0:
            require(header.round == self.round, "the header's round", f"{self.round}, the order's", header.round)
        if run is not None and not self.begins:
            require(header.run == run, "the header's run", f"{run}, whose state this client has", header.run)

    def check_tensors(self, tensors: Mapping[str, Entry], dim: int) -> None:
        """Refuse tensors that are no part of such an order, or larger than a model of `dim` parameters allows."""
        size = sum(entry.num_bytes for entry in tensors.values())
        parts = {"shared": len(self.places)} if self.slots else {}
        parts |= {"local": 1} if self.begins else {}
        taken = tensors.get("taken")
        if self.verdict >= 0:
            good = taken is not None and len(taken.shape) == 1 and taken.dtype == torch.int64
            require(good, "tensor 'taken'", "whole numbers, one for each position that was used", _entry_text(taken))
            parts |= {"told": taken.shape[0] if taken is not None else 0}
        for name, entry in tensors.items():
            part = name.partition(".")[0]
            if name == "taken" and self.verdict >= 0:
                continue
            expected = f"{listed(f'{one}.*' for one in parts) or 'no tensors'} for this order"
            require("." in name and part in parts, f"tensor {name!r:.100}", expected, _entry_text(entry))
            first = parts[part]
            good = entry.shape[:1] == (first,)
            require(good, f"tensor {name!r:.100}", f"{first} along the first axis", _entry_text(entry))
        most = most_bytes(dim, 1 + sum(parts.values()))
        largest = max(tensors, key=lambda name: tensors[name].num_bytes, default="")
        shown = f"{size} bytes, most in {largest!r:.100}, {_entry_text(tensors.get(largest))}"
        require(size <= most, "the order's tensors", f"at most {most} bytes for {dim} parameters", shown)
        if self.job == LOG_LIK:
            require(set(tensors) >= {"shared.draws"}, "a question at draws", "shared.draws", listed(tensors))
            shape = tensors["shared.draws"].shape
            good = len(shape) == 3 and shape[2] == dim
            require(good, "tensor 'shared.draws'", f"shape (1, draws, {dim})", _entry_text(tensors["shared.draws"]))
            if shape[1] > MAX_ASKED_DRAWS:
                raise Refusal(
                    f"a client gives its log-likelihood at no more than {MAX_ASKED_DRAWS} draws in a message, received "
                    f"{shape[1]}"
                )


def most_bytes(dim: int, parts: int) -> int:
    """The maximal bytes of an order's tensors, which have the shares of `parts` clients along their first axes."""
    numbers = MAX_VECTORS * (dim + EXTRA_VECTOR_NUMBERS) + MAX_MATRICES * dim**2
    return min(8 * numbers * parts, MAX_MESSAGE_BYTES)


def require(holds: object, what: str, expected: str, received: object) -> None:
    """Refuse an order unless a condition holds; the message has the field, expected, received, and the cure."""
    if not holds:
        raise Refusal(f"the server's order has {what}: expected {expected}, received {received!s:.200}: {CURE}")


def _entry_text(entry: Entry | None) -> str:
    if entry is None:
        return "none"
    return f"{entry.dtype} of shape {entry.shape}, {entry.num_bytes} bytes"
