"""A trust region for expected Newton steps: a step that lowers the evidence lower bound is rejected.

    L(q) = Σ_k E_q[log p_k] + E_q[log p_0] + H(q)          at the same points as the scores and Hessians of the round

The Newton step for the Gaussian is the natural gradient of L. Far from the optimum, a nearly indefinite expected
Hessian puts the next mean thousands of SDs away, where likelihoods overflow. L is known when all clients take part.
Then the server returns to the best q if L or a derivative is not finite, or if L has fallen by more than `fall`. From
there it takes a smaller fraction of the same change, which moves no mean and no log SD by more than a radius. The
radius is a quarter of the rejected step, and doubles with every accepted step. A small enough fraction of a natural
gradient increases L.

The SDs are halved instead if there is no best q yet, because likelihoods overflow at the start, or if no fraction
leaves a Gaussian within the radius. The SDs of a network's start are also halved while the log density under it is
`MAX_FALL_PER_PARAMETER` below that of the mode. Along some directions a network's likelihood is flat at the mode and
falls steeply nearby, so that the Laplace approximation is much wider than the posterior mass.

A run ends at its best q without convergence in two cases. Steps are "in vain" after `MAX_RETURNS` returns to the same
best q, unless the radius keeps shrinking below half of its smallest value: the maximum of L at the round's points is
not where the expected Hessians predict it, which happens with networks. Progress is "slow" if L has risen by less than
`MIN_RISE_PER_ROW` nats per row in `RECENT_ROUNDS`: a network's bound may rise along ridges without end while its
predictions stay the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pyro_fed.algorithm.record import RECENT_ROUNDS
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.infer.sites.gaussian_sites import at_mean, flat_like, largest_move, moments_of
from pyro_fed.ops.backtrack import HALVINGS, halved
from pyro_fed.ops.gaussian import Gaussian

#: Entries of the server's state that are infinite while unknown or unbounded.
UNKNOWN = frozenset(
    {"best_value", "radius", "prior_value", "mode_log_density", "returned_to", "return_radius", "recent_bests"}
)
#: Factors of the radius after a rejected step (of its length) and after an accepted one (Nocedal & Wright 2006,
#: Algorithm 4.1).
RADIUS_SHRINKAGE, RADIUS_GROWTH = 0.25, 2.0
#: Largest first radius, in SDs: the length of a step of thousands of SDs is meaningless.
MAX_FIRST_RADIUS = 2.0
#: Number of returns to a best q, not improved by `NEGLIGIBLE` nats in between, that ends the rounds. A return with a
#: radius that has not been tried restarts the count.
MAX_RETURNS = 3
#: Smallest rise of a network's bound in `RECENT_ROUNDS`, in nats per row: it changes the prediction for a row by a
#: hundredth of a percent.
MIN_RISE_PER_ROW = 1e-4
#: The same in nats per parameter, for rounds on a subset of the rows: the posterior of four times as many rows is
#: 1.7 SDs away in each direction, or 1.5 nats per parameter.
MIN_RISE_PER_PARAMETER = 0.25
#: A q within this many SDs of the best one has nearly the same L. If it has not, the best value was wrong, and q is
#: kept.
SAME_BOUND_DISTANCE = 0.02
#: Largest fall of the log density from the mode to its expectation under a start, in nats per parameter: six times the
#: fall of a Gaussian density.
MAX_FALL_PER_PARAMETER = 3.0


@dataclass(frozen=True)
class Climb:
    """The server's record of the lower bounds L of past rounds; scalars, except for Gaussians and `recent_bests`."""

    best: Gaussian  # the q of the largest bound
    best_change: Gaussian  # the change of natural parameters that the clients proposed there
    best_value: Tensor  # the largest bound; -inf before the first
    radius: Tensor  # no step moves a mean or a log SD by more SDs than this
    narrowed: Tensor  # number of halvings of a start's SDs
    mode_log_density: Tensor  # the log density at the mode where a network starts; -inf if unknown
    returns: Tensor  # number of consecutive returns to one best q
    returned_to: Tensor  # the bound at this q
    return_radius: Tensor  # the shortest radius of these returns
    recent_bests: Tensor  # the best bound after each of the last `RECENT_ROUNDS`
    min_rise: Tensor  # smallest sufficient rise of `recent_bests`, in nats
    slow: Tensor  # 1 if `recent_bests` has risen by less than `min_rise`

    def with_bound(self, bound: Tensor) -> Self:
        """The record with this round's bound in `recent_bests`, and with `slow` computed from them."""
        best = torch.where(bound > self.best_value, bound, self.best_value)  # a NaN bound is ignored
        slow = best - self.recent_bests[0] < self.min_rise  # the rise is infinite in the first `RECENT_ROUNDS`
        return replace(self, recent_bests=torch.cat([self.recent_bests[1:], best[None]]), slow=slow.to(best))

    def replacement(self, q: Gaussian, bound: Tensor, fall: float) -> tuple[Gaussian, Self] | None:
        """The q that replaces q with bound L(q), and the new record; None to accept it. It also ends a slow run."""
        if bool(self.slow):
            return (q if bool(bound > self.best_value) else self.best), self
        if not bool(self.best_value.isfinite()):
            return None if bool(bound.isfinite()) and not self._is_too_wide(q, bound) else self._narrowed(q)
        if not bool(has_fallen(bound, self.best_value, fall)):
            return None
        length = largest_move(moments_of(self.best), moments_of(q))
        if bool(length < SAME_BOUND_DISTANCE) and bool(bound.isfinite()):
            return None
        radius = shorter_radius(length)
        after_return = self._with_return_counted(radius)
        if bool(after_return.returns >= MAX_RETURNS):
            return self.best, after_return
        fraction = fraction_within(self.best, self.best_change, 1.0, float(radius))
        if not fraction:
            return self._narrowed(self.best)
        return self.best.product(self.best_change.power(fraction)), replace(after_return, radius=radius)

    def after_acceptance(self, q: Gaussian, bound: Tensor, move: Gaussian, fall: float) -> Self:
        """The record after q is accepted, with its bound and the clients' change there.

        If q was accepted although L is lower, the old best value was wrong and is discarded.
        """
        record = replace(self, radius=self.radius * RADIUS_GROWTH)
        best_is_wrong = bool(bound < self.best_value - fall)
        if best_is_wrong or bool(bound >= self.best_value):
            record = replace(record, best=q, best_change=move, best_value=bound)
        return replace(record, recent_bests=torch.full_like(self.recent_bests, -torch.inf)) if best_is_wrong else record

    def _with_return_counted(self, radius: Tensor) -> Self:
        """The record after one more return to the best q, with this radius."""
        best, shortest = self.best_value, self.return_radius
        same_best = best <= self.returned_to + NEGLIGIBLE
        return replace(
            self,
            returns=torch.where(
                same_best & (radius >= RADIUS_SHRINKAGE * RADIUS_GROWTH * shortest), self.returns + 1, 1.0
            ),
            returned_to=torch.where(same_best, self.returned_to, best),
            return_radius=torch.where(same_best, torch.minimum(shortest, radius), radius),
        )

    def _is_too_wide(self, q: Gaussian, bound: Tensor) -> bool:
        """Whether the expected log density under a network's start is too far below the mode."""
        expected = bound - q.entropy()
        return bool(expected < self.mode_log_density - MAX_FALL_PER_PARAMETER * q.dim)

    def _narrowed(self, q: Gaussian) -> tuple[Gaussian, Self] | None:
        """The Gaussian with its SDs halved, and a record without best bounds; None after too many halvings."""
        if int(self.narrowed) >= HALVINGS:
            return None
        no_bound, no_bests = (torch.full_like(known, -torch.inf) for known in (self.best_value, self.recent_bests))
        record = replace(self, narrowed=self.narrowed + 1, best_value=no_bound, recent_bests=no_bests)
        return at_mean(type(q)(q.precision * 4, q.eta), q.mean()), record


def has_fallen(bound: Tensor, best: Tensor, fall: float) -> Tensor:
    """Whether bounds, of any shape, are not finite or more than `fall` below the best ones."""
    return best.isfinite() & ~(bound.isfinite() & (bound >= best - fall))


def shorter_radius(length: Tensor) -> Tensor:
    """The radius after rejected steps of some length, in SDs, of any shape."""
    return (RADIUS_SHRINKAGE * length.nan_to_num(nan=torch.inf)).clamp_max(MAX_FIRST_RADIUS)


def first_climb(q: Gaussian) -> Climb:
    """The record before the first round: no best q, an infinite radius, no gain required."""
    flat, zero, infinity = flat_like(q), q.eta.new_zeros(()), q.eta.new_full((), torch.inf)
    return Climb(
        best=flat,
        best_change=flat,
        best_value=-infinity,
        radius=infinity,
        narrowed=zero,
        mode_log_density=-infinity,
        returns=zero,
        returned_to=-infinity,
        return_radius=infinity,
        recent_bests=q.eta.new_full((RECENT_ROUNDS,), -torch.inf),
        min_rise=zero,
        slow=zero,
    )


def network_limits(mode_log_density: float, rows: int, dim: int = 0) -> dict[str, float]:
    """Entries of the server's state for a network that starts at a mode.

    `rows` is the number of rows in the bound; `dim` is D in rounds on a subset of the rows, else 0.
    """
    min_rise = max(MIN_RISE_PER_ROW * rows, MIN_RISE_PER_PARAMETER * dim)
    return {"mode_log_density": mode_log_density, "min_rise": min_rise}


def fraction_within(q: Gaussian, move: Gaussian, fraction: float, radius: float) -> float:
    """The fraction of a change, halved until the Gaussian it leads to is within the radius; 0 if none is."""
    if math.isinf(radius):
        return fraction
    old_moments = moments_of(q)

    def is_near(fraction: float) -> bool:
        new = q.product(move.power(fraction))
        return bool(new.is_proper()) and float(largest_move(old_moments, moments_of(new))) <= radius

    return halved(is_near, fraction)


def reasons_to_end(state: State) -> dict[str, float]:
    """Why the rounds end at the best q, as figures: "in_vain" for repeated returns, "slow" for a slow rise."""
    in_vain = "returns" in state and bool(state["reset"]) and bool(state["returns"] >= MAX_RETURNS)
    slow = "slow" in state and bool(state["slow"])
    return {name: 1.0 for name, ended in (("in_vain", in_vain), ("slow", slow)) if ended}
