"""Markov chains at a server: what they keep, when they have converged, and what they say of themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import Chains, DrawStats
from pyro_fed.algorithm.contract import Algorithm, State
from pyro_fed.algorithm.record import Record
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.checks.funnels import funnel_hint
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.chain_store import append, thinned

#: R-hat above which, and effective draws a chain below which, a run warns.
R_HAT_LIMIT = 1.01
FEWEST_EFFECTIVE_A_CHAIN = 100


@dataclass(frozen=True, kw_only=True)
class ChainAlgorithm(Algorithm, Chains, DrawStats):
    """Several chains, each with visits of `local_steps` steps.

    Args:
        num_chains: M.
        local_steps: T, steps a visit.
        burn_in: first steps of each chain that are not kept; more of them where a derived step is short.
        thin: one step in so many is kept.
        target_ess: the run ends when the slowest coordinate has so many effective draws (all chains together)
            and R-hat is small; None runs all rounds.
    """

    draws_are: ClassVar[str] = "chains"

    num_chains: int = 4
    local_steps: int = 40
    burn_in: int = 400
    thin: int = 10
    target_ess: int | None = 2000

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_chains", "local_steps", "thin")
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "target_ess", allow_none=True)

    @property
    def num_slots(self) -> int:
        """One a chain."""
        return self.num_chains

    def default_rounds(self, num_clients: int) -> int:
        """At most 10,000 visits a chain; it ends by itself, see `target_ess`."""
        return 10_000

    @property
    def stride(self) -> int:
        """Steps between positions that are sent: all that `thin` may ask for."""
        return math.gcd(self.thin, self.local_steps)

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """As for any state that is adopted; the draws on the way are held to the same."""
        start = {**received, "draws": received["position"].unsqueeze(1)}
        return message_limits.grown(start, messages)

    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        """A chain whose visit failed stays where it was; its draws are its position, and say so by a norm of zero."""
        filled = {
            name: value.new_zeros(len(asked), *value.shape[1:]).index_copy(0, slots, value)
            for name, value in messages.items()
        }
        lost = torch.ones(len(asked), dtype=torch.bool).index_fill(0, slots, False)
        filled["client"][lost] = asked[lost]
        filled["position"][lost] = shared["position"][lost]
        filled["draws"][lost] = shared["position"][lost].unsqueeze(1)
        filled["step_size"][lost] = shared["step_size"]
        return filled

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Store the received chains (`Reassign_chain` of Algorithm 1)."""
        taken = shared["steps"] + self.stride * torch.arange(1, messages["draws"].shape[1] + 1)
        keep = (taken > shared["burn_in"]) & (taken % self.thin == 0)
        columns = {name: messages[name][:, keep] for name in ("draws", "gradient_norm", "step_size")}
        columns["client"] = messages["client"].unsqueeze(-1).expand(-1, int(keep.sum()))
        after = append(shared, columns)
        return after | {"position": messages["position"], "steps": shared["steps"] + self.local_steps}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """R-hat, the largest of all coordinates, and ESS, the smallest."""
        return {name: float(after[name]) for name in ("r_hat", "ess", "kept")}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the chains agree and have as many effective draws as wanted."""
        last = figures[-1]
        agree = self.num_chains == 1 or last["r_hat"] <= R_HAT_LIMIT
        return self.target_ess is not None and last["ess"] >= self.target_ess and agree

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """At most `num_draws` kept draws a chain, evenly spaced: (M, n, D)."""
        return thinned(shared, "draws", num_draws)

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Client visited, gradient norm (in preconditioned coordinates) and step size of each draw."""
        columns = ("client", "gradient_norm", "step_size")
        return {name: thinned(shared, name, draws.shape[1]) for name in columns}

    def warnings(self, record: Record, problem: Problem) -> list[str]:
        """Chains that disagree, or too few effective draws."""
        last = record.latest
        if last.get("kept", 0) == 0:
            return [
                f"no draw was kept: the run ended within burn_in={self.burn_in} steps of full length; run more rounds"
            ]
        notes = []
        if self.num_chains > 1 and not last["r_hat"] <= R_HAT_LIMIT:
            notes.append(
                f"the {self.num_chains} chains disagree: R-hat is {last['r_hat']:.4g} (at most {R_HAT_LIMIT} is "
                "wanted); run more rounds"
            )
            notes += funnel_hint(problem)
        fewest = FEWEST_EFFECTIVE_A_CHAIN * self.num_chains
        if not last["ess"] >= fewest:
            notes.append(
                f"only {last['ess']:.3g} effective draws of the slowest coordinate (at least {fewest} are "
                "wanted): run more rounds"
            )
        return notes
