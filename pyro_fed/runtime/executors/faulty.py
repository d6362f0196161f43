"""Deliberate faults: an executor whose clients fail, to test how runs handle failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State
from pyro_fed.conventions import seeding
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.runtime.executors.base import Executor, Reply, Work
from pyro_fed.runtime.executors.local import resolve

#: Faults without a reply, with the reasons in the record.
SILENT = {"raises": "raised an exception", "hangs": "did not reply in time", "dies": "is gone"}
#: Faults of a reply, with the value or factor of its numbers.
WRONG = {
    "nan": torch.nan,
    "huge": 1e30,
    "flipped": -1e6,
    "opposite": -3.0,
    "negated": -1.0,
    "tenfold": 10.0,
    "hundredfold": 100.0,
    "noise": 10.0,
    "stale": 1.0,
}


class Faulty(Executor):
    """Another executor whose clients fail at random, or always.

    The faults depend on `seed`, the round, the client and the attempt, so that they are the same with every inner
    executor.

    Args:
        inner: the executor that does the work, or its name.
        probability: probability of a fault in each attempt of a client.
        kinds: the kinds of faults, one of which is drawn each time. "raises", "hangs" and "dies" send no reply. "nan"
            sends NaN, and "huge" 1e30. "flipped" multiplies the message by -1e6, "opposite" by -3, "negated" by -1,
            "tenfold" by 10, "hundredfold" by 100. "noise" sends normal numbers ten times as large as the message's, and
            "stale" repeats the client's first message of the phase.
        clients: the numbers of the clients that may fail; None means all.
        seed: seed of the faults.

    Raises:
        SettingError: `probability` out of its range, or an unknown kind.

    Attributes:
        injected: (round, client, kind) of all faults so far.

    Example:
        >>> pf.run(pf.FedEP(), fed, executor=pf.executors.Faulty("vectorised", probability=0.3))
    """

    def __init__(
        self,
        inner: str | Executor = "vectorised",
        *,
        probability: float = 0.3,
        kinds: tuple[str, ...] = ("raises", "hangs", "dies"),
        clients: tuple[int, ...] | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 <= probability <= 1:
            raise SettingError(f"Faulty: probability must lie in [0, 1], received {probability}")
        if not kinds or not set(kinds) <= SILENT.keys() | WRONG.keys():
            raise SettingError(f"Faulty: kinds must be some of {[*SILENT, *WRONG]}, received {kinds}")
        self.inner = resolve(inner)
        self.probability, self.kinds, self.clients, self.seed = probability, kinds, clients, seed
        self.injected: list[tuple[int, int, str]] = []
        self._asked: dict[tuple[int, int], int] = {}
        self._first: dict[int, State] = {}

    def start(
        self,
        algorithm: Algorithm,
        problem: Problem,
        data: ClientData,
        local: State,
        clients: Sequence[int] | None = None,
    ) -> None:
        self.algorithm, self._first = algorithm, {}
        self.inner.start(algorithm, problem, data, local, clients)

    def settle(self, taken: Tensor, feedback: State) -> None:
        self.inner.settle(taken, feedback)

    @property
    def sums_alone(self) -> bool:
        return self.inner.sums_alone

    @property
    def states_are_here(self) -> bool:
        return self.inner.states_are_here

    def travelled(self, clients: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
        return self.inner.travelled(clients)

    def collect(self) -> State:
        return self.inner.collect()

    def close(self) -> None:
        self.inner.close()

    def ask(self, kind: str, work: Work) -> State:
        return self.inner.ask(kind, work)

    def execute(self, work: Work) -> Reply:
        """The inner executor's work, with faults; pooled data have no clients that could fail."""
        if self.algorithm.pooled:
            return self.inner.execute(work)
        faults = [self._fault(work.round, client) for client in work.clients]
        silent = {slot: SILENT[kind] for slot, kind in enumerate(faults) if kind in SILENT}
        slots = torch.tensor([slot for slot in range(len(faults)) if slot not in silent], dtype=torch.int64)
        if not len(slots):
            return Reply({}, {}, silent)
        reply = self.inner.execute(work.part(slots))
        genuine = {int(slots[i]): reason for i, reason in reply.failures.items()}
        messages = reply.messages
        for i, slot in enumerate([slot for slot in slots.tolist() if slot not in genuine]):
            if faults[slot] in WRONG:
                messages = self._corrupted_messages(messages, i, faults[slot], work.round, work.clients[slot])
        return replace(reply, messages=messages, failures=silent | genuine)

    def _corrupted_messages(self, messages: State, i: int, kind: str, round: int, client: int) -> State:
        """The messages with one client's corrupted."""
        if kind == "stale":
            first = self._first.setdefault(client, {name: value[i].clone() for name, value in messages.items()})
            fits = {name: value for name, value in first.items() if value.shape == messages[name].shape[1:]}
            return {name: _replace(value, i, fits.get(name, value[i])) for name, value in messages.items()}
        if kind == "noise":
            generator = seeding.torch_generator(self.seed, seeding.FAULTS, round, client)
            return {name: _noise(value, i, generator) for name, value in messages.items()}
        return {name: _corrupt_client(value, i, kind) for name, value in messages.items()}

    def _fault(self, round: int, client: int) -> str:
        """The fault of a client that is asked; "" for none."""
        times = self._asked[round, client] = self._asked.get((round, client), -1) + 1
        rng = seeding.numpy_generator(self.seed, seeding.FAULTS, round, client, times)
        draw, kind = rng.random(), self.kinds[int(rng.integers(len(self.kinds)))]
        if draw >= self.probability or not (self.clients is None or client in self.clients):
            return ""
        self.injected.append((round, client, kind))
        return kind


def _replace(value: Tensor, i: int, one: Tensor) -> Tensor:
    """A message's tensor with another client's part."""
    corrupted = value.clone()
    corrupted[i] = one
    return corrupted


def _noise(value: Tensor, i: int, generator: torch.Generator) -> Tensor:
    """A message's tensor with normal numbers of the same root mean square, times that of "noise"."""
    if not value.is_floating_point():
        return value
    size = WRONG["noise"] * value[i].double().square().mean().sqrt()
    drawn = torch.randn(value[i].shape, generator=generator, dtype=torch.float64).to(value.device)
    return _replace(value, i, (size * drawn).to(value.dtype))


def _corrupt_client(value: Tensor, i: int, kind: str) -> Tensor:
    """A message's tensor with the numbers of one client corrupted."""
    if not value.is_floating_point():
        return value
    factor = WRONG[kind]
    return _replace(value, i, torch.full_like(value[i], factor) if kind in ("nan", "huge") else value[i] * factor)
