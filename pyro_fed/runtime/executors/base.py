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

from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State, contiguous, select
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import Checked
from pyro_fed.density.derivatives.scores import clients_log_likelihoods
from pyro_fed.density.problem import CPU
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

F = TypeVar("F", bound=Callable[..., Any])
#: The query that clients answer with every algorithm: the log-likelihood of their rows at each of some draws.
LOG_LIK = "log_lik"
#: Largest number of draws in one query; each reply reveals more about the client's rows.
MAX_ASKED_DRAWS = 4000


@dataclass(frozen=True)
class Work:
    """One round's work.

    Attributes:
        round: the round's number, from 0, counted over all phases of the run.
        seed: the run's seed.
        clients: numbers of the clients that work (C,); a client may occur twice (two chains at one client).
        shared: what the clients receive (C, ...).
        slots: the clients' positions among all clients of the round, ascending; by default these are all clients.
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
        """The part of the work for the clients at some positions; the work itself if these are all positions.

        Tensors that are the same for all clients are expanded, not copied.

        Args:
            at: positions in `clients` (A,).
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
    """The clients' replies to a round's work.

    Attributes:
        messages: messages of the clients that replied, in the order of the work (A, ...).
        info: figures of these clients, in the same order (A, ...).
        failures: reasons why the others did not reply, by position in `Work.clients`. If all failed, the dictionaries
            may be empty.
    """

    messages: State
    info: State
    failures: dict[int, str] = field(default_factory=dict)


def in_full_precision(method: F) -> F:
    """Decorator for methods of an executor that compute on its device: exact and deterministic convolutions."""

    @functools.wraps(method)
    def call(self: Executor, *args: Any) -> Any:
        if self.device.type != "cuda":
            return method(self, *args)
        enabled = torch.backends.cudnn.enabled
        with torch.backends.cudnn.flags(enabled=enabled, deterministic=True, allow_tf32=False):
            return method(self, *args)

    return cast(F, call)


class Executor(ABC, metaclass=Checked):
    """Does the local steps of a round, and keeps the clients' states between rounds.

    New states take effect only when `settle` names the clients whose messages the server has used. All other clients
    keep their states from before the round.
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
            local: the clients' states (K, ...).
            clients: the clients' numbers in the run (K,); by default they are all clients of the run.
        """
        self.algorithm, self.problem, self.data = algorithm, problem, data
        self.device = device_of(algorithm, problem)
        self.working = problem if self.device == CPU else problem.placed()
        self.working_data = data.on(self.device)
        self.local: State = {}  # the states of the previous phase are freed first
        contiguous_format = torch.contiguous_format  # of copies, which are changed in place
        self.local = {name: value.clone(memory_format=contiguous_format) for name, value in local.items()}
        self.row_counts = data.num_rows.tolist()
        self.place = {client: i for i, client in enumerate(range(len(self.row_counts)) if clients is None else clients)}
        self.prepare()

    def prepare(self) -> None:
        """Further preparation for a phase, once its algorithm, problem, rows and states are set; by default nothing."""
        return

    @abstractmethod
    def execute(self, work: Work) -> Reply:
        """Do one round's work. The results do not depend on the executor.

        Args:
            work: the round's work.
        """

    @abstractmethod
    def settle(self, taken: Tensor, feedback: State) -> None:
        """Keep the states that clients computed in the last round.

        Args:
            taken: slots of the clients whose messages the server has used (A,), ascending.
            feedback: what the server sends to these clients (A, ...), see `SiteKeeping.feedback`.
        """

    @property
    def sums_alone(self) -> bool:
        """Whether only sums of the clients' messages are known; replies are then substitutes with the same sum."""
        return False

    @property
    def states_are_here(self) -> bool:
        """Whether the clients' states are in this process; if not, `collect` requests them from other processes."""
        return True

    def collect(self) -> State:
        """All clients' states (K, ...), for the next phase or a checkpoint."""
        return self.local

    def travelled(self, clients: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """Bytes that clients received (C,) and sent (C,) in the last round; None if these are the plain messages."""
        return None

    @in_full_precision
    def ask(self, kind: str, work: Work) -> State:
        """The replies of all clients in `work` to a query: an indicator that a schedule needs, or `LOG_LIK`.

        Args:
            kind: the indicator's name, or `LOG_LIK`.
            work: the clients, and what they receive.

        Raises:
            SettingError: the algorithm has no such indicator.
        """
        at = self.at(work.clients)
        shared, local = (self.on_device(state) for state in (contiguous(work.shared), select(self.local, at)))
        if kind == LOG_LIK:
            return self.here({LOG_LIK: clients_log_likelihoods(self.working, shared["draws"], self.rows_of(at))})
        if not isinstance(self.algorithm, Indicators):
            raise SettingError(
                f"{type(self.algorithm).__name__} has no indicators, but the schedule asks for {kind!r}: choose "
                "another schedule or algorithm"
            )
        return self.here(self.algorithm.indicate(kind, self.working, shared, local, self.rows_of(at)))

    def close(self) -> None:
        """Release resources of the run, such as worker processes."""
        return

    def at(self, clients: Sequence[int]) -> Tensor:
        """The clients' positions in `data` and `local` (C,)."""
        return torch.tensor(list(map(self.place.__getitem__, clients)))

    def rows_of(self, at: Tensor) -> ClientData:
        """The rows of the clients at some positions, weighted by one over the algorithm's temperature."""
        device = self.working_data.row_index.device
        data = self.working_data.of(at.to(device))
        if (temperature := self.algorithm.row_temperature()) != 1:
            return data._replace(power=torch.tensor(1.0 / temperature, device=device))
        return data

    def on_device(self, tree: Any) -> Any:
        """A tree with its tensors moved to the device on which clients' steps are computed."""
        if self.device == CPU:
            return tree
        return pytree.tree_map_only(Tensor, lambda part: part.to(self.device), tree)

    def here(self, state: State) -> State:
        """A state that clients have computed on their device, moved to the CPU, where the server works."""
        if self.device == CPU:
            return state
        return {name: value.cpu() for name, value in state.items()}

    @in_full_precision
    def step(self, shared: State, local: State, data: ClientData, noise: Any) -> tuple[State, State, State]:
        """The local steps of some clients, on their device: messages, states and figures, (C, ...)."""
        # Noise is drawn on the CPU and moved, so that a run draws the same numbers whatever the device.
        shared, local, noise = (self.on_device(tree) for tree in (shared, local, noise))
        out = self.algorithm.local_step(self.working, shared, local, data, noise)
        messages, new, info = (self.here(state) for state in out)
        return messages, new, info

    def noise(self, work: Work) -> Any:
        """The clients' randomness, stacked on axis 1 (steps, C, ...), padded with zeros for fewer steps."""
        keys = seeding.client_keys(work.round, work.clients)
        return self.drawn(work.clients, seeding.torch_generators(work.seed, keys))

    def drawn(self, clients: Sequence[int], generators: Iterator[torch.Generator]) -> Any:
        """The randomness of clients, of one round or of several, each drawn by its own generator."""
        found = []
        for client, generator in zip(clients, generators, strict=True):
            found.append(self.algorithm.draw_noise(self.problem, self.row_counts[self.place[client]], generator))
            if len(found) == 1 and not pytree.tree_leaves(found[0]):
                return found[0]  # steps without randomness
        return _stacked_trees(found)


def device_of(algorithm: Algorithm, problem: Problem) -> torch.device:
    """The device on which an algorithm's local steps are computed."""
    return CPU if algorithm.on_cpu else problem.device


def _stacked_trees(trees: Sequence[Any]) -> Any:
    """Stack trees of one structure into a tree of tensors by `_pad_and_stack`; most are dictionaries of tensors."""
    first = trees[0]
    if isinstance(first, Tensor):
        return _pad_and_stack(trees)
    if type(first) is dict:
        return {name: _stacked_trees([tree[name] for tree in trees]) for name in first}
    return pytree.tree_map(lambda *parts: _pad_and_stack(parts), *trees)


def _pad_and_stack(parts: Sequence[Tensor]) -> Tensor:
    """Stack tensors (s_k, ...) into one, (max s_k, C, ...)."""
    first = parts[0]
    if not len(first) and all(part is first for part in parts):  # no client draws any, as with full batches
        return first.new_empty(0, len(parts), *first.shape[1:])
    lengths = [part.shape[0] for part in parts]
    longest = max(lengths)
    if min(lengths) == longest:
        return torch.stack(list(parts), dim=1)
    padded = [torch.cat([part, part.new_zeros(longest - len(part), *part.shape[1:])]) for part in parts]
    return torch.stack(padded, dim=1)
