"""Executors within this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.capabilities import LocalRounds, SiteKeeping, Uninterrupted
from pyro_fed.algorithm.contract import Algorithm, Noise
from pyro_fed.algorithm.states import State, contiguous, select, write
from pyro_fed.conventions import seeding
from pyro_fed.conventions.time_limit import tick
from pyro_fed.density.size import clients_at_once
from pyro_fed.runtime.executors.base import Executor, Reply, Work, in_full_precision


class Made(NamedTuple):
    """States that clients have made in a round: (C,) their slots, where they stand, and (C, ...) the states."""

    slots: Tensor
    at: Tensor
    states: State


class Had(NamedTuple):
    """Rounds that have been had, and of each the entries of its noise that were asked for, (steps, C, ...)."""

    made: LocalRounds
    drawn: list[State]


#: Numbers of clients' states and rows above which rounds are not had in one call.
MOST_TOGETHER = 10_000_000
#: What clients receive, from what those of the round before received and sent, and their numbers.
Onward = Callable[[State, State, Tensor], State]
#: Messages, new states and figures of C clients, as `Algorithm.local_step` returns them.
Step = tuple[State, State, State]


def keep(algorithm: Algorithm, local: State, new: Sequence[Made], taken: Tensor, told: State) -> None:
    """Write the states of a round that count into those of all clients, in place.

    Args:
        algorithm: what runs.
        local: the clients' states, (K, ...).
        new: what they have made in the round.
        taken: slots of those whose messages the server has combined, (A,), ascending.
        told: what it tells them, (A, ...).
    """
    for made in new:
        kept = torch.isin(made.slots, taken)
        if bool(kept.any()):
            states = made.states if bool(kept.all()) else select(made.states, kept)
            if isinstance(algorithm, SiteKeeping):
                states = algorithm.settle(select(told, torch.isin(taken, made.slots)), states)
            write(local, made.at[kept], states)


class Local(Executor):
    """Clients whose rows and states are in this process.

    Attributes:
        waiting: the round whose states wait for `settle`, -1 for none.
    """

    def prepare(self) -> None:
        """Forget what a phase before this one left unsettled."""
        self.waiting, self.new = -1, list[Made]()

    def execute(self, work: Work) -> Reply:
        """Do one round's work, or the part of it that is asked again."""
        at = self.at(work.clients)
        messages, new, info = self.steps(work, at, self.noise(work))
        if work.round != self.waiting:
            self.waiting, self.new = work.round, []
        self.new.append(Made(torch.tensor(work.slots), at, new))
        return Reply(messages, info)

    @abstractmethod
    def steps(self, work: Work, at: Tensor, noise: Noise) -> Step:
        """The local steps of the clients at these places."""

    def settle(self, taken: Tensor, told: State) -> None:
        """As the algorithm says."""
        keep(self.algorithm, self.local, self.new, taken, told)
        self.waiting, self.new = -1, []


class Vectorised(Local):
    """All clients of a round in one call.

    Of a large model as many clients in one call as their numbers have room for (`density.size.clients_at_once`), one
    call after the other.

    Calls with fewer clients than the largest so far are filled up with copies, which are dropped again,
    so that compiled steps keep their shapes.

    Example:
        >>> pf.run(pf.FedEP(), fed, executor=pf.executors.Vectorised())  # the default, "vectorised")
    """

    def prepare(self) -> None:
        """No round so far."""
        super().prepare()
        self.width = 0
        self.room = clients_at_once(self.problem, self.data.row_index.shape[1])

    def rounds(self, first: Work, clients: list[list[int]], onward: Onward, replays: Set[str]) -> Had:
        """Several rounds, one after the other, whose replies are looked at after the last.

        What clients keep of a round counts at once: `undo` takes it back.

        Args:
            first: the first round's work.
            clients: of each round.
            onward: what a round's clients receive, from what those before them received and sent.
            replays: entries of their noise that are asked for.
        """
        self.before: State = {}
        keys = [key for i, chosen in enumerate(clients) for key in seeding.client_keys(first.round + i, chosen)]
        noise = self.drawn(
            [client for chosen in clients for client in chosen], seeding.torch_generators(first.seed, keys)
        )
        drawn: list[State] = _apart({name: noise[name] for name in replays}, clients)
        if found := self._together(first, clients, noise):
            return Had(found, drawn)
        each = _apart(noise, clients)
        steps, received, work = list[Step](), list[State](), first
        for number, (chosen, own) in enumerate(zip(clients, each, strict=True)):
            if number:
                shared = onward(work.shared, steps[-1][0], torch.tensor(chosen))
                work = Work(first.round + number, first.seed, chosen, shared)
            at = self.at(chosen)
            steps.append(self.steps(work, at, own))
            received.append(work.shared)
            if new := steps[-1][1]:
                self.before = self.before or {name: value.clone() for name, value in self.local.items()}
                slots = torch.arange(len(chosen))
                keep(self.algorithm, self.local, [Made(slots, at, new)], slots, {})
        messages, figures = ([step[i] for step in steps] for i in (0, 2))
        return Had(LocalRounds(*(_stacked(states) for states in (received, messages, figures))), drawn)

    @in_full_precision
    def _together(self, first: Work, clients: list[list[int]], noise: Noise) -> LocalRounds | None:
        """The same in one call, by an algorithm that can; clients that are asked several times are there once."""
        algorithm = self.algorithm
        assert isinstance(algorithm, Uninterrupted)
        if not issubclass(owner(algorithm, "local_rounds"), owner(algorithm, "local_step")):
            return None
        count = len(clients[0])
        at = self.at([client for chosen in clients for client in chosen])
        asked, place = at.unique(return_inverse=True)
        data = self.rows_of(asked)
        widths = [value[0].numel() for value in (*self.local.values(), *pytree.tree_leaves(data.rows)) if len(value)]
        numbers = len(asked) * sum(widths[: len(self.local)])
        numbers += data.row_index.numel() * sum(widths[len(self.local) :])
        if self.width != count or self.room < count or numbers > MOST_TOGETHER:
            return None
        local = select(self.local, asked)
        given = (contiguous(first.shared), local, noise, torch.tensor(clients), place.reshape(-1, count))
        shared, local, noise, numbered, place = (self.there(tree) for tree in given)
        found = algorithm.local_rounds(self.working, shared, local, data, numbered, place, noise)
        return found and LocalRounds(*(self.here(part) for part in found))

    def undo(self) -> None:
        """Clients keep what they had before the last `rounds`."""
        self.local |= self.before

    def steps(self, work: Work, at: Tensor, noise: Noise) -> Step:
        """All in one call, or as many in each as have room."""
        size = min(len(at), self.room)
        self.width = max(self.width, size)
        if size == len(at):
            return self._filled(work.shared, at, noise)
        parts = (slice(first, first + size) for first in range(0, len(at), size))
        return joined((self._some(work, at, noise, part) for part in parts), self.local, at)

    def _some(self, work: Work, at: Tensor, noise: Noise, which: slice) -> Step:
        tick()
        return self._filled(select(work.shared, which), at[which], pytree.tree_map(lambda x: x[:, which], noise))

    def _filled(self, shared: State, at: Tensor, noise: Noise) -> Step:
        """One call for some clients, with copies of them up to the width of all calls so far."""
        count = len(at)
        if count == self.width:
            return self.step(contiguous(shared), select(self.local, at), self.rows_of(at), noise)
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
        """The local steps of one client after the other, with batches of its own size."""
        return joined((self._one(work, at, noise, slice(i, i + 1)) for i in range(len(at))), self.local, at)

    def _one(self, work: Work, at: Tensor, noise: Noise, which: slice) -> Step:
        tick()
        of_one = pytree.tree_map(lambda x: x[:, which], noise)
        local, rows = select(self.local, at[which]), self.rows_of(at[which])
        return self.step(contiguous(select(work.shared, which)), local, rows, of_one)


def owner(algorithm: Algorithm, method: str) -> type:
    """The class whose method an algorithm has.

    Args:
        algorithm: an instance.
        method: by name.
    """
    return next(cls for cls in type(algorithm).__mro__ if method in vars(cls))


def _stacked(states: list[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _apart(noise: Noise, clients: list[list[int]]) -> list[Noise]:
    """The randomness of several rounds' clients, stacked on axis 1, round by round."""
    leaves, spec = pytree.tree_flatten(noise)
    parts = [leaf.split([len(chosen) for chosen in clients], 1) for leaf in leaves]
    return [pytree.tree_unflatten([part[i] for part in parts], spec) for i in range(len(clients))]


def joined(steps: Iterator[Step], kept: State, at: Tensor) -> Step:
    """Those of some clients after those of others, as one.

    Each is written to its place as it comes, and let go: so nothing is there twice. A state that not all clients have
    renewed is for the others what it was.

    Args:
        steps: of the clients, in order.
        kept: what all clients have kept so far, (K, ...).
        at: the clients' places there, (C,).
    """
    whole: Step = {}, {}, {}
    done = 0
    for step in steps:
        for states, part in zip(whole, step, strict=True):
            for name, value in part.items():
                if name not in states:
                    states[name] = _room(value, kept.get(name) if states is whole[1] else None, at)
                states[name][done : done + len(value)] = value
        done += len(next(iter(step[0].values())))
    return whole


def _room(value: Tensor, before: Tensor | None, at: Tensor) -> Tensor:
    """For what all clients have, like what some have, with what they had before where that is known."""
    if before is None or before.shape[1:] != value.shape[1:]:
        return value.new_empty(len(at), *value.shape[1:])
    return before[at].to(value)
