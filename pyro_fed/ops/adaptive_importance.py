"""Adaptive multiple importance sampling with mixtures of Student's t, as an ask/tell object.

    w_s ∝ p(z_s) / Σ_j n_j t_ν(z_s; m_j, S_j)      over all points so far, n_j of them drawn from component j

    draw     draw points z_s from a proposal, a mixture of Student's t
    tell     take log p at these points, and reweight all points so far by the density of all proposals together
    refit    fit a mixture to the points with weights w^β by expectation-maximisation: the next proposal

This is repeated until the effective sample size is large enough and the tail of the weights can be trusted (Pareto's
k). β is one, or the largest power that leaves the effective sample size that a fit needs.

Only values of log p are needed. The caller computes them: clients round by round in `infer.stein.importance`, a loop in
`audit.weighted_points`. `FedAIS` is another method: its single proposal comes from Gaussian sites by annealing, and
is not refitted.

Sources: Cornuet, Marin, Mira & Robert (2012), *Adaptive multiple importance sampling*; Cappé, Douc, Guillin, Marin &
Robert (2008), *Adaptive importance sampling in general mixture classes*, for the fits; Owen & Zhou (2000), *Safe and
effective importance sampling*, for the weights by all proposals; Vehtari et al. (2024) for k.

Letters: p `log_density`, n, m and S = F F' of t as in `ops.student`, ν `FREEDOM`, w `smoothed`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pyro_fed.ops.importance import Smoothed, flattened, smoothed
from pyro_fed.ops.student import Mixture, fitted

#: Degrees of freedom of each component; number of components of a fit, and of its steps.
FREEDOM, COMPONENTS, FIT_STEPS = 5, 8, 10
#: A weight counts as zero if its logarithm is below the largest one by more than this.
NEGLIGIBLE_NATS = 100.0


@dataclass(frozen=True, kw_only=True)
class AdaptiveSettings:
    """Settings of the sampler that differ between its users."""

    enough: float  # smallest sufficient effective sample size
    longest_tail: float  # largest Pareto's k of the weights
    # whether variances of whitened coordinates are needed too. Points far out, which dominate these, then count more in
    # a fit, and the same limit holds for k of the terms w (z - m)² of each variance
    second_moments: bool = False

    def are_met(self, effective: float, pareto_k: float) -> bool:
        """Whether the effective sample size is large enough, and the weights' tail short enough."""
        return effective >= self.enough and pareto_k <= self.longest_tail


@dataclass(frozen=True)
class AdaptiveImportanceSampler:
    """The points so far, their proposals, and the points whose log density is requested."""

    settings: AdaptiveSettings  # the user's settings
    proposals: Mixture  # all components that points were drawn from, with the number of points of each
    trial: Tensor  # the latest points (T, D), whose log density is requested
    points: Tensor  # points (S, D) whose log density is known
    log_density: Tensor  # log p at these (S,), up to a constant; -inf where it is zero

    @classmethod
    def start(cls, settings: AdaptiveSettings, first: Mixture, generator: torch.Generator) -> AdaptiveImportanceSampler:
        """The first points, drawn from a proposal whose counts are numbers of points."""
        none = first.centres[:0]
        empty = cls(settings, Mixture(*(part[:0] for part in first)), none, none, none.new_zeros(0))
        return empty.draw(first, generator)

    def draw(self, proposal: Mixture, generator: torch.Generator) -> AdaptiveImportanceSampler:
        """This sampler with new points of a proposal, whose counts are numbers of points."""
        drawn = proposal.used()
        return replace(self, proposals=self.proposals.joined(drawn), trial=drawn.draws(FREEDOM, generator))

    def tell(self, log_density: Tensor) -> AdaptiveImportanceSampler:
        """This sampler with the log density at `trial`, (T,)."""
        return replace(
            self,
            points=torch.cat([self.points, self.trial]),
            log_density=torch.cat([self.log_density, log_density]),
        )

    @cached_property
    def log_proposals(self) -> Tensor:
        """log Σ_j n_j t_j at the points (S,)."""
        return self.proposals.log_density(self.points, FREEDOM)

    @cached_property
    def log_weights(self) -> Tensor:
        """Logarithms of the raw weights (S,)."""
        return self.log_density - self.log_proposals

    @property
    def all_impossible(self) -> bool:
        """Whether no point has a weight."""
        return not bool(self.log_weights.isfinite().any())

    @cached_property
    def smoothed(self) -> Smoothed:
        """Pareto-smoothed weights (S,), and the shape of their tail, unless all points are impossible."""
        return smoothed(_cut(self.log_weights))

    def is_enough(self) -> bool:
        """Whether no more points are needed."""
        if not self.settings.are_met(self.smoothed.effective, self.smoothed.pareto_k):
            return False
        return not self.settings.second_moments or self._longest_tail_of_squares() <= self.settings.longest_tail

    def refit(self, worth: float, generator: torch.Generator) -> Mixture:
        """A mixture fitted to points with an effective sample size of at least `worth`; its counts are shares."""
        far = self.points.square().mean(1).log1p() if self.settings.second_moments else 0.0
        weights = flattened(self.log_weights + far, worth)
        return fitted(self.points, weights, COMPONENTS, FIT_STEPS, generator)

    def _longest_tail_of_squares(self) -> float:
        """Pareto's k of weights times squared distances, whose mean is a variance: the largest over coordinates."""
        weights = self.smoothed.weights
        away = (self.points - weights @ self.points).square()
        terms = (weights.unsqueeze(1) * away).clamp_min(torch.finfo(away.dtype).tiny).log()
        return max(smoothed(_cut(term)).pareto_k for term in terms.T)


def _cut(logs: Tensor) -> Tensor:
    """Logarithms of weights, clamped from below at that of a weight that counts as zero."""
    return logs.clamp_min(float(logs.max()) - NEGLIGIBLE_NATS)
