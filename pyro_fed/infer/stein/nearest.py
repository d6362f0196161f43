"""The Gaussian nearest to a posterior of one mode, in KL(q ‖ p), after the search for modes.

Particles that begin under Laplace's approximation have to be carried to the posterior's mean and SDs turn by turn, and
its sites represent the other clients meanwhile. `FedEP` finds both in a few rounds. If the search has found several
modes, or q has not converged in these rounds, Laplace's approximation is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from pyro_fed.algorithm.contract import Algorithm, Start, required_start
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, largest_move, moments_of
from pyro_fed.infer.stein.modes import Modes, modes_of

#: A posterior near a Gaussian needs four to eight rounds; one that needs more than these is not near a Gaussian.
ROUNDS = 12
#: Results of the mode search that the particles' start needs.
OF_MODES = ("points", "value", "curvature", "length", "point", "back")
#: Entries of Laplace's approximation, by these names.
LAPLACE = "laplace_"


@dataclass(frozen=True, kw_only=True)
class Nearest(FedEP):
    """`FedEP` from the one mode that was found, as accurate as a start needs.

    Args:
        tolerance: q has converged when no mean moves by more than this many SDs in a round, and no SD by more than this
            share.
    """

    may_be_infinite: ClassVar[frozenset[str]] = FedEP.may_be_infinite | set(OF_MODES)

    tolerance: float = 0.02

    def default_rounds(self, num_clients: int) -> int:
        """The rounds that a posterior near a Gaussian needs."""
        return ROUNDS

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The search for modes."""
        return self.modes()

    def modes(self) -> Algorithm:
        """The search for modes of the clients' posterior."""
        return Modes()

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from Laplace's sites, and keep these and the results of the search."""
        start = required_start(start, self)
        whole = Start(start.shared | {"fall": torch.zeros(())}, start.local)  # no end of a climb ends the run
        shared, local = super().init(problem, num_clients, generator, whole)
        found = {name: start.shared[name] for name in OF_MODES}
        count = float(len(modes_of(start.shared, Modes.tolerance, Modes.same_mode)[0]))
        q, prior = gaussian(start.shared), gaussian(start.shared, "prior_")
        before = as_state(q, LAPLACE) | as_state(prior, f"{LAPLACE}prior_")
        figures = {"modes": torch.tensor(count), "moved": shared["eta"].new_tensor(torch.inf)}
        return shared | found | before | figures, local | as_state(gaussian(start.local), LAPLACE)

    def combine(self, shared: State, messages: State, weights: torch.Tensor) -> State:
        """Combine as `FedEP`, and record the move of q."""
        after = super().combine(shared, messages, weights)
        return after | {"moved": largest_move(moments_of(gaussian(shared)), moments_of(gaussian(after)))}

    def settle(self, told: State, local: State) -> State:
        """Settle the clients' states as `FedEP`, and keep Laplace's sites."""
        return super().settle(told, local) | {name: local[name] for name in local if name.startswith(LAPLACE)}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The figures of `FedEP`, and the number of modes."""
        return super().monitor(before, after) | {"modes": float(after["modes"])}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether q has converged, or there are several modes, which no Gaussian approximates."""
        return figures[-1]["modes"] != 1 or super().converged(figures)


def nearest_of(start: Start) -> Start:
    """The particles' start: the Gaussian if it has converged at the one mode, or else Laplace's approximation."""
    found = start.shared
    if f"{LAPLACE}eta" not in found or is_at_rest(found):
        return start
    before = as_state(gaussian(found, LAPLACE)) | as_state(gaussian(found, f"{LAPLACE}prior_"), "prior_")
    return Start(found | before, as_state(gaussian(start.local, LAPLACE)))


def is_at_rest(found: State) -> bool:
    """Whether the Gaussian has converged at the one mode."""
    return "moved" in found and bool(found["modes"] == 1) and bool(found["moved"] < Nearest.tolerance)
