"""Chains whose visits the server replays to the Gaussian of all sites, with the clients' own random numbers.

It is what `FSGLD` and `FALD` judge a visit by: how far it moved the answer, and what `Bounded` leaves of it. The
equations are those of `held_visits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import Bounding, Held, Moving, Sent
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.held_visits import departures, held_visits, reference, visit_noise
from pyro_fed.infer.langevin.visiting import VisitingLangevin


@dataclass(frozen=True, kw_only=True)
class ReplayedVisits(VisitingLangevin, Bounding, Moving):
    """Visits beside the same visits to the surrogates. Arguments are those of `VisitingLangevin`."""

    replays: ClassVar[frozenset[str]] = frozenset({"normal"})

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """As `Langevin` has it, and what visits are compared with: the surrogates' Gaussian, the cohort's errors."""
        shared, local = super().init(problem, num_clients, generator, start)
        if self.cannot_bound():
            return shared, local
        mismatch = None if start is None else start.shared.get("mismatch")
        return shared | reference(local["anchor"][0], local["factor"][0], mismatch), local

    def incomparable(self) -> str:
        """Why a visit cannot be compared with one to the surrogates, and the cure; "" where it can."""
        if self.surrogates is None or not self.precondition:
            return "visits are compared with those to surrogates: give surrogates, and leave precondition=True"
        if self.batch_size is not None and not self.control_variate:
            return "the noise of minibatches cannot be told from a lie: batch_size=None, or control_variate=True"
        return ""

    def visit_weights(self, shared: State, clients: Tensor) -> Tensor:
        """p_c, the part of its chain that a visit has, (C,): all of it.

        Args:
            shared: the server's state.
            clients: of the visits, (C,), or of several rounds (R, C).
        """
        return shared["position"].new_ones(clients.shape)

    def hold(self, limits: Bounded, shared: State, kept: State, sent: Sent) -> Held:
        """Visits that are within reach of the same visits to the surrogates."""
        steps, noise, _ = self._replay(shared, sent)
        held, cut = held_visits(shared, sent.messages, steps, noise, self.stride, self.midpoint, limits.pull)
        own = steps[self.stride - 1 :: self.stride].to(held["step_size"])  # nobody shortens the others' steps
        return Held(shared, held | {"step_size": own.expand_as(held["step_size"])}, {}, cut)

    def moved(self, shared: State, kept: State, sent: Sent) -> Tensor:
        """By where visits end besides where the same visits to the surrogates do; zero without surrogates."""
        if "held_mean" not in shared:
            return torch.zeros(len(sent.clients), dtype=torch.float64)
        steps, noise, weight = self._replay(shared, sent)
        return self._moved([shared], sent.messages["position"][None], steps[None], noise[None], weight[None])[0]

    def moved_rounds(self, before: Sequence[State], kept: State, sent: Sent) -> Tensor:
        """`moved` of all visits of R rounds at once, where steps are alike and the noise is known."""
        if self.decay or sent.noise is None or "held_mean" not in before[0]:
            return super().moved_rounds(before, kept, sent)
        weight = self.visit_weights(before[0], sent.clients)
        noise = sent.noise["normal"].transpose(0, 1).unflatten(0, weight.shape) * weight.rsqrt()[..., None, None]
        steps = torch.stack([shared["step_size"] for shared in before]).unsqueeze(1).expand(-1, self.local_steps)
        return self._moved(before, sent.messages["position"], steps, noise, weight)

    def _moved(self, before: Sequence[State], ends: Tensor, steps: Tensor, noise: Tensor, weight: Tensor) -> Tensor:
        """`departures` of R rounds, (R, C), each for its part of its chain."""
        chains = before[0]["position"].shape[0]
        start = torch.stack([shared["position"] for shared in before]).repeat_interleave(ends.shape[1] // chains, 1)
        return departures(before[0], start, ends, steps, noise, self.midpoint) * weight

    def cannot_bound(self) -> str:
        """A visit is compared with one to the surrogates, in their units."""
        return self.incomparable()

    def _replay(self, shared: State, sent: Sent) -> tuple[Tensor, Tensor, Tensor]:
        """h of the steps (T,), the noise (C, T, D) and the parts (C,) of the visits of those who were asked.

        Not of whom a message says that it is from, nor of the part that it claims.
        """
        weight = self.visit_weights(shared, sent.clients)
        shape, dtype = (self.local_steps, shared["position"].shape[-1]), shared["position"].dtype
        if sent.noise is None:
            noise = visit_noise(sent.seed, sent.round, sent.clients, shape, dtype)
        else:
            noise = sent.noise["normal"].transpose(0, 1)
        return (
            self.step_sizes.of_visit(shared["steps"], shared["step_size"]),
            noise * weight.rsqrt().reshape(-1, 1, 1),
            weight,
        )
