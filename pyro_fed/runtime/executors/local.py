"""Executors within this process, and the forms of messages, which are determined by a step on one row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.capabilities import Chains, LocalRounds, SiteKeeping
from pyro_fed.algorithm.contract import Algorithm, Noise
from pyro_fed.algorithm.states import State, contiguous, select, write
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import cast_checked, checked
from pyro_fed.conventions.resources import tick
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.size import clients_at_once
from pyro_fed.errors import SettingError
from pyro_fed.ops.memory import fits_in_memory
from pyro_fed.policy.results import uncompiled_level
from pyro_fed.runtime.executors.base import Executor, Reply, Work, in_full_precision
from pyro_fed.runtime.messages import Spec, spec_of, spec_of_one

#: A function that returns what a round's clients receive, from what the previous round's clients received and sent, and
#: from the numbers of the round's clients.
Onward = Callable[[State, State, Tensor], State]
#: Messages, new states and figures of C clients, as `Algorithm.local_step` returns them.
Step = tuple[State, State, State]


class NewStates(NamedTuple):
    """New states of C clients after a round, their slots in the round (C,), and their positions in `local` (C,)."""

    slots: Tensor
    at: Tensor
    states: State


def keep(algorithm: Algorithm, local: State, new: Sequence[NewStates], taken: Tensor, feedback: State) -> None:
    """Write new states of clients whose messages were used (slots `taken`) into `local`, given the feedback."""
    for new_states in new:
        kept = torch.isin(new_states.slots, taken)
        if bool(kept.any()):
            states = new_states.states if bool(kept.all()) else select(new_states.states, kept)
            if isinstance(algorithm, SiteKeeping):
                states = algorithm.settle(select(feedback, torch.isin(taken, new_states.slots)), states)
            write(local, new_states.at[kept], states)


class Local(Executor):
    """Clients whose rows and states are in this process."""

    def prepare(self) -> None:
        """Discard new states of the previous phase that were not settled."""
        self.waiting, self.new = -1, list[NewStates]()

    def execute(self, work: Work) -> Reply:
        """Do one round's work, or a repeated part of it."""
        at = self.at(work.clients)
        messages, new, info = self.steps(work, at, self.noise(work))
        if work.round != self.waiting:
            self.waiting, self.new = work.round, []
        self.new.append(NewStates(torch.tensor(work.slots), at, new))
        return Reply(messages, info)

    @abstractmethod
    def steps(self, work: Work, at: Tensor, noise: Noise) -> Step:
        """The local steps of the clients at positions (C,)."""

    def call(self, shared: State, at: Tensor, noise: Noise) -> Step:
        """The local steps of some clients, at positions (C,), in one call."""
        return self.step(contiguous(shared), select(self.local, at), self.rows_of(at), noise)

    def in_parts(self, work: Work, at: Tensor, noise: Noise, size: int) -> Step:
        """The local steps of all clients, `size` in each call."""

        def part(which: slice) -> Step:
            tick()
            return self.call(select(work.shared, which), at[which], pytree.tree_map(lambda x: x[:, which], noise))

        parts = (slice(first, first + size) for first in range(0, len(at), size))
        return join_steps((part(which) for which in parts), self.local, at)

    def settle(self, taken: Tensor, feedback: State) -> None:
        """Keep the new states, updated by the algorithm with the server's feedback; see `keep`."""
        keep(self.algorithm, self.local, self.new, taken, feedback)
        self.waiting, self.new = -1, []


class Vectorised(Local):
    """All clients of a round in one call.

    A large model takes several calls, each with as many clients as fit into memory (`density.size.clients_at_once`).
    Calls with fewer clients than the largest so far are padded with copies, whose results are discarded, so that
    compiled steps keep their shapes.

    Example:
        >>> pf.run(pf.FedEP(), fed, executor=pf.executors.Vectorised())  # the default, "vectorised")
    """

    def prepare(self) -> None:
        """Discard the widths of earlier calls."""
        super().prepare()
        self.width = 0
        self.room = clients_at_once(self.problem, self.data.row_index.shape[1])

    def rounds(self, first: Work, clients: Tensor, onward: Onward, replays: Set[str]) -> tuple[LocalRounds, State]:
        """Do several successive rounds; the server inspects the replies after the last one.

        The clients' new states take effect at once; `undo` restores the old ones.

        Args:
            first: the first round's work.
            clients: the numbers of each round's clients (R, C).
            onward: function that returns what a round's clients receive, see `Onward`.
            replays: names of entries of the noise that are also returned.
        """
        self.before: State = {}
        keys = seeding.keys_of_rounds(first.round, clients.numpy())
        listed = clients.tolist()
        at = self.at([client for chosen in listed for client in chosen])
        noise = self._drawn_ahead(clients, at, seeding.torch_generators(first.seed, keys))
        drawn: State = {name: noise[name] for name in replays}
        if found := self._together(first, clients, at, noise):
            return found, drawn
        each = _split_rounds(noise, len(clients))
        steps, received, work = list[Step](), list[State](), first
        for number, (chosen, own) in enumerate(zip(listed, each, strict=True)):
            if number:
                shared = onward(work.shared, steps[-1][0], torch.tensor(chosen))
                work = Work(first.round + number, first.seed, chosen, shared)
            at = self.at(chosen)
            steps.append(self.steps(work, at, own))
            received.append(work.shared)
            if new := steps[-1][1]:
                self.before = self.before or {name: value.clone() for name, value in self.local.items()}
                slots = torch.arange(len(chosen))
                keep(self.algorithm, self.local, [NewStates(slots, at, new)], slots, {})
        messages, figures = ([step[i] for step in steps] for i in (0, 2))
        return LocalRounds(*(_stack_states(states) for states in (received, messages, figures))), drawn

    def _drawn_ahead(self, clients: Tensor, at: Tensor, generators: Iterator[torch.Generator]) -> Noise:
        """The noise of several rounds, drawn at once by the algorithm if it can."""
        algorithm = cast_checked(self.algorithm, Chains)
        noise = None
        if issubclass(owner(algorithm, "draw_noises"), owner(algorithm, "draw_noise")):
            noise = algorithm.draw_noises(self.problem, self.data.num_rows[at], generators)
        return self.drawn(clients.flatten().tolist(), generators) if noise is None else noise

    @in_full_precision
    def _together(self, first: Work, clients: Tensor, at: Tensor, noise: Noise) -> LocalRounds | None:
        """The rounds in one call of the algorithm's `local_rounds`; None if that is not possible."""
        algorithm = cast_checked(self.algorithm, Chains)
        if not issubclass(owner(algorithm, "local_rounds"), owner(algorithm, "local_step")):
            return None
        count = clients.shape[1]
        asked, place = at.unique(return_inverse=True)
        data = self.rows_of(asked)
        widths = [value[0].numel() for value in (*self.local.values(), *pytree.tree_leaves(data.rows)) if len(value)]
        numbers = len(asked) * sum(widths[: len(self.local)])
        numbers += data.row_index.numel() * sum(widths[len(self.local) :])
        if self.width != count or self.room < count or not fits_in_memory(numbers):
            return None
        local = select(self.local, asked)
        given = (contiguous(first.shared), local, noise, clients, place.reshape(-1, count))
        shared, local, noise, numbered, place = (self.on_device(tree) for tree in given)
        found = algorithm.local_rounds(self.working, shared, local, data, numbered, place, noise)
        return found and LocalRounds(*(self.here(part) for part in found))

    def undo(self) -> None:
        """Restore the clients' states from before the last `rounds`."""
        self.local |= self.before

    def steps(self, work: Work, at: Tensor, noise: Noise) -> Step:
        """The local steps of all clients in one call, or in several if memory does not suffice."""
        size = min(len(at), self.room)
        self.width = max(self.width, size)
        if size == len(at):
            return self.call(work.shared, at, noise)
        return self.in_parts(work, at, noise, size)

    def call(self, shared: State, at: Tensor, noise: Noise) -> Step:
        """One call for some clients, padded with copies to the width of the widest call so far."""
        count = len(at)
        if count == self.width:
            return super().call(shared, at, noise)
        fill = torch.arange(self.width) % count
        noise = pytree.tree_map(lambda x: x[:, fill], noise)
        local = select(self.local, at[fill])
        out = self.step(select(shared, fill), local, self.rows_of(at[fill]), noise)
        messages, new, info = (select(part, slice(count)) for part in out)
        return messages, new, info


class Sequential(Local):
    """One client after the other.

    Example:
        >>> pf.run(pf.FedEP(), fed, executor=pf.executors.Sequential())  # or "sequential")
    """

    def steps(self, work: Work, at: Tensor, noise: Noise) -> Step:
        """The local steps of one client after the other, each with batches of its size."""
        return self.in_parts(work, at, noise, 1)


def owner(algorithm: object, method: str) -> type:
    """The class that defines a method of an algorithm."""
    return next(cls for cls in type(algorithm).__mro__ if method in vars(cls))


def _stack_states(states: list[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _split_rounds(noise: Noise, rounds: int) -> list[Noise]:
    """The randomness of several rounds of equally many clients, stacked on axis 1, split round by round."""
    leaves, spec = pytree.tree_flatten(noise)
    parts = [leaf.contiguous().chunk(rounds, 1) for leaf in leaves]
    return [pytree.tree_unflatten([part[i] for part in parts], spec) for i in range(rounds)]


def join_steps(steps: Iterator[Step], kept: State, at: Tensor) -> Step:
    """The steps of several groups of clients as one; clients without a new state keep that of `kept`, at `at`."""
    whole: Step = {}, {}, {}
    done = 0
    for step in steps:
        for states, part in zip(whole, step, strict=True):
            for name, value in part.items():
                if name not in states:
                    states[name] = _empty_like_parts(value, kept.get(name) if states is whole[1] else None, at)
                states[name][done : done + len(value)] = value
        done += len(next(iter(step[0].values())))
    return whole


def _empty_like_parts(value: Tensor, before: Tensor | None, at: Tensor) -> Tensor:
    """A tensor for all C clients like that of a group, with the clients' earlier states if known."""
    if before is None or before.shape[1:] != value.shape[1:]:
        return value.new_empty(len(at), *value.shape[1:])
    return before[at].to(value)


class Expected:
    """The shapes and dtypes of a phase's messages, from a step on one row at the first use."""

    def __init__(self, algorithm: Algorithm, problem: Problem, data: ClientData, local: State) -> None:
        self._given = algorithm, problem, data, _first_client(local)
        self._messages: Spec | None = None

    def messages(self, work: Work) -> Spec:
        """Shapes and dtypes of one client's message, by name."""
        if self._messages is None:
            self._messages, *_ = expected_reply(*self._given, work)
        return self._messages


def expected_reply(
    algorithm: Algorithm, problem: Problem, data: ClientData, local: State, work: Work
) -> tuple[Spec, Spec, Spec]:
    """Shapes and dtypes of one client's message, figures and new state, from a step on one row of the server's own."""
    if (like := algorithm.reply_like(work.shared)) is not None:
        return spec_of(like), {}, {}
    row = ClientData(data.rows, data.row_index[:1, :1], torch.ones_like(data.num_rows[:1]))
    eager = replace(problem, compiler=Compiler(uncompiled_level(problem.traits)))
    executor = Sequential()
    executor.start(algorithm, eager, row, _first_client(local))
    reply = executor.execute(Work(work.round, work.seed, [0], _first_client(work.shared)))
    return spec_of_one(reply.messages), spec_of_one(reply.info), spec_of_one(executor.new[-1].states)


def _first_client(state: State) -> State:
    return {name: value[:1].clone() for name, value in state.items()}


#: Executors that `run` takes by name.
NAMED = {"vectorised": Vectorised, "vectorized": Vectorised, "sequential": Sequential}


@checked
def resolve(executor: Any) -> Executor:
    """Return an executor, given itself or its name.

    Args:
        executor: "vectorised", "sequential", or an Executor.

    Raises:
        SettingError: an unknown name.

    Example:
        >>> isinstance(pf.executors.resolve("sequential"), pf.executors.Sequential)
        True
    """
    if isinstance(executor, Executor):
        return executor
    if not isinstance(executor, str) or executor not in NAMED:
        raise SettingError(f"executor must be one of {sorted(NAMED)} or an Executor, received {executor!r}")
    return NAMED[executor]()
