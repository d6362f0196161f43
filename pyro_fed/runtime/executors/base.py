"""The interface of executors."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.capabilities import Indicators, OnCPU, Tempered
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State, contiguous, select
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import Checked
from pyro_fed.density.problem import CPU
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.scores import clients_log_likelihoods
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

F = TypeVar("F", bound=Callable[..., Any])
#: What every client can be asked for whatever it runs: the log-likelihood of its rows at `draws`, one number each.
LOG_LIK = "log_lik"
#: Draws that a client is asked about in one message, and that it answers for, at most: each says more of its rows.
MOST_DRAWS = 4000


@dataclass(frozen=True)
class Work:
    """One round's work.

    Attributes:
        round: the round, from 0, over all phases of the run.
        seed: the run's seed.
        clients: the scheduled clients, (C,); one may stand twice (two chains at one client).
        shared: what they receive, (C, ...).
        slots: their places in the round, ascending, where this is a part of its work.
    """

    round: int
    seed: int
    clients: list[int]
    shared: State
    slots: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.slots:
            object.__setattr__(self, "slots", tuple(range(len(self.clients))))

    def part(self, at: Tensor) -> Work:
        """The work of the clients at these positions; itself where these are all.

        What all receive alike is not copied for each.
        """
        places = at.tolist()
        if places == list(range(len(self.clients))):
            return self
        shared = {
            name: value[at] if value.stride(0) else value[:1].expand(len(at), *value.shape[1:])
            for name, value in self.shared.items()
        }
        slots = tuple(self.slots[i] for i in places)
        return Work(self.round, self.seed, [self.clients[i] for i in places], shared, slots)


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        messages: of the clients that replied, in the order of the work, (A, ...).
        info: their figures, likewise.
        failures: why the others did not, by their position in `Work.clients`. Where all failed, A is zero and the
            dictionaries may be empty.
    """

    messages: State
    info: State
    failures: dict[int, str] = field(default_factory=dict)


def in_full_precision(method: F) -> F:
    """Decorator of what an executor computes on its device.

    On CUDA, torch's convolutions of float32 numbers keep ten bits of each, and add in an order that changes from call
    to call, unless they are told otherwise. What is a user's setting otherwise is put back.

    Args:
        method: of an executor.
    """

    @functools.wraps(method)
    def call(self: Executor, *args: Any) -> Any:
        if self.device.type != "cuda":
            return method(self, *args)
        enabled = torch.backends.cudnn.enabled
        with torch.backends.cudnn.flags(enabled=enabled, deterministic=True, allow_tf32=False):
            return method(self, *args)

    return cast(F, call)


class Executor(ABC, metaclass=Checked):
    """Does the local steps of a round, and holds the clients' states between rounds.

    The states that a round makes wait until `settle` says what the server made of the messages: until then, and for
    a client that it leaves out, those before the round count.
    """

    def start(
        self,
        algorithm: Algorithm,
        problem: Problem,
        data: ClientData,
        local: State,
        clients: Sequence[int] | None = None,
    ) -> None:
        """Prepare for a phase.

        Args:
            algorithm: what the clients run.
            problem: the model's densities.
            data: the clients' rows, index (K, n) and num_rows (K,).
            local: their states, (K, ...).
            clients: their numbers in the run, (K,), where these are some of its clients only.
        """
        self.algorithm, self.problem, self.data = algorithm, problem, data
        self.device = device_of(algorithm, problem)
        self.working = problem if self.device == CPU else problem.placed()
        self.working_data = data.on(self.device)
        self.local: State = {}  # those of a phase before this one are let go first
        self.local = {name: owned(value) for name, value in local.items()}  # they are written to in place
        self.row_counts = data.num_rows.tolist()
        self.place = {client: i for i, client in enumerate(range(len(self.row_counts)) if clients is None else clients)}
        self.prepare()

    def prepare(self) -> None:
        """What else a phase needs, once its algorithm, problem, rows and states are known; nothing by default."""
        return

    @abstractmethod
    def execute(self, work: Work) -> Reply:
        """Do one round's work; results do not depend on the executor."""

    @abstractmethod
    def settle(self, taken: Tensor, told: State) -> None:
        """Keep the states that clients made in the last round.

        Args:
            taken: slots of those whose messages the server has combined, (A,), ascending.
            told: what it tells them, (A, ...), see `Algorithm.feedback`.
        """

    @property
    def sums_alone(self) -> bool:
        """Whether no client's own message is known: what comes in its place has the sums of all."""
        return False

    @property
    def states_are_here(self) -> bool:
        """Whether `collect` has the states in this process; where not, it asks those that have them."""
        return True

    def collect(self) -> State:
        """All clients' states, (K, ...): for the next phase, or a checkpoint."""
        return self.local

    def travelled(self, clients: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """Bytes that clients received and sent in the last round, where these are not those of plain messages.

        Args:
            clients: (C,), by number.

        Returns:
            both, (C,); None where they are.
        """
        return None

    @in_full_precision
    def ask(self, kind: str, work: Work) -> State:
        """The indicator that a schedule asks for, of all clients in `work`, in one call; or `LOG_LIK`."""
        at = self.at(work.clients)
        shared, local = (self.there(state) for state in (contiguous(work.shared), select(self.local, at)))
        if kind == LOG_LIK:
            return self.here({LOG_LIK: clients_log_likelihoods(self.working, shared["draws"], self.rows_of(at))})
        if not isinstance(self.algorithm, Indicators):
            raise SettingError(f"{type(self.algorithm).__name__} has no indicator {kind!r}")
        return self.here(self.algorithm.indicate(kind, self.working, shared, local, self.rows_of(at)))

    def close(self) -> None:
        """Release what the run took."""
        return

    def at(self, clients: Sequence[int]) -> Tensor:
        """Where these clients stand in `data` and `local`, (C,)."""
        return torch.tensor([self.place[client] for client in clients])

    def rows_of(self, at: Tensor) -> ClientData:
        """The rows of the clients at these places, tempered as the algorithm asks for."""
        device = self.working_data.row_index.device
        data = self.working_data.of(at.to(device))
        if isinstance(self.algorithm, Tempered) and self.algorithm.temperature != 1:
            return data._replace(power=torch.tensor(1.0 / self.algorithm.temperature, device=device))
        return data

    def there(self, tree: Any) -> Any:
        """Tensors of a tree on the device that clients' steps are computed on."""
        if self.device == CPU:
            return tree
        return pytree.tree_map_only(Tensor, lambda part: part.to(self.device), tree)

    def here(self, state: State) -> State:
        """What clients have made there, on the CPU, where the server and what travels are."""
        if self.device == CPU:
            return state
        return {name: value.cpu() for name, value in state.items()}

    @in_full_precision
    def step(self, shared: State, local: State, data: ClientData, noise: Any) -> tuple[State, State, State]:
        """The local steps of some clients, on their device: messages, states and figures, (C, ...).

        Noise is drawn on the CPU and moved, so that a run draws the same numbers whatever the device.

        Args:
            shared: what they receive.
            local: their states.
            data: their rows, of `rows_of`.
            noise: of `noise`.
        """
        shared, local, noise = (self.there(tree) for tree in (shared, local, noise))
        out = self.algorithm.local_step(self.working, shared, local, data, noise)
        messages, new, info = (self.here(state) for state in out)
        return messages, new, info

    def noise(self, work: Work) -> Any:
        """The clients' randomness stacked on axis 1, (steps, C, ...): who has fewer steps is padded with zeros.

        Args:
            work: of a round.
        """
        return self.drawn(
            work.clients, seeding.torch_generators(work.seed, seeding.client_keys(work.round, work.clients))
        )

    def drawn(self, clients: Sequence[int], generators: Iterator[torch.Generator]) -> Any:
        """The same, of clients that draw by these generators.

        Args:
            clients: by number; of several rounds where these have been made for them.
            generators: one each.
        """
        found = []
        for client, generator in zip(clients, generators, strict=True):
            found.append(self.algorithm.draw_noise(self.problem, self.row_counts[self.place[client]], generator))
            if len(found) == 1 and not pytree.tree_leaves(found[0]):
                return found[0]  # the work has no randomness, at no client
        return _stacked_trees(found)


def owned(value: Tensor) -> Tensor:
    """A copy in one memory layout."""
    return value.clone(memory_format=torch.contiguous_format)


def device_of(algorithm: Algorithm, problem: Problem) -> torch.device:
    """Where an algorithm's local steps are computed.

    Args:
        algorithm: what the clients run.
        problem: the model's densities.
    """
    return CPU if isinstance(algorithm, OnCPU) else problem.device


def _stacked_trees(trees: Sequence[Any]) -> Any:
    """Trees of the same form as one of `_stacked` tensors; dictionaries of tensors are the usual ones."""
    first = trees[0]
    if isinstance(first, Tensor):
        return _stacked(trees)
    if type(first) is dict:
        return {name: _stacked_trees([tree[name] for tree in trees]) for name in first}
    return pytree.tree_map(lambda *parts: _stacked(parts), *trees)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (s_k, ...) as one, (max s_k, C, ...)."""
    first = parts[0]
    if not len(first) and all(part is first for part in parts):  # nobody has drawn any, as of minibatches
        return first.new_empty(0, len(parts), *first.shape[1:])
    lengths = [part.shape[0] for part in parts]
    longest = max(lengths)
    if min(lengths) == longest:
        return torch.stack(list(parts), dim=1)
    padded = [torch.cat([part, part.new_zeros(longest - len(part), *part.shape[1:])]) for part in parts]
    return torch.stack(padded, dim=1)
