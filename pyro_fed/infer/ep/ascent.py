"""A trust region for expected Newton steps: a step after which the evidence's lower bound has fallen is taken back.

    L(q) = Σ_k E_q[log p_k] + E_q[log p_0] + H(q)          at the same points as the scores and Hessians of the round

Newton's step for the Gaussian is the natural gradient of L. Far from the optimum an expected Hessian that is nearly
indefinite puts the next mean thousands of SDs away, where likelihoods overflow. If all clients are at work, so that L
is known, the server returns to the best q where L or a derivative is not finite, or L has fallen by more than `fall`.
From there it makes a smaller fraction of the same change, one that moves no mean and no log SD by more than a radius: a
quarter of the rejected step, doubled with every accepted one. A small enough fraction of a natural gradient gains.

The SDs are halved in place of a step where there is no best q, because likelihoods overflow at the start, and where no
fraction leaves a Gaussian within the radius. So are those of a network's start while the log density under it is
`MAX_FALL_PER_PARAMETER` below the mode's: along some directions its likelihood is flat at the mode and falls steeply a
little further, so that Laplace's approximation is far wider than the mass.

A run ends at its best q, not converged, in two cases. After `MAX_RETURNS` returns to one best q without a shorter
radius its steps are in vain: L at the round's points has its maximum elsewhere than the expected Hessians predict, as a
network's may. And a network's bound may rise along ridges without end, while its predictions stay the same: it is slow
if L has risen by less than `MIN_RISE_PER_ROW` nats for each row in `RECENT_ROUNDS`.
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

#: Entries of the server's state that are infinite if nothing is known, or have no bound.
UNKNOWN = frozenset({"best_value", "radius", "prior_value", "level", "returned_to", "return_radius", "recent_bests"})
#: The radius after a step that was taken back, in lengths of that step, and after one that was kept (Nocedal & Wright
#: 2006, Algorithm 4.1).
RADIUS_SHRINKAGE, RADIUS_GROWTH = 0.25, 2.0
#: The longest first radius, in SDs: the length of steps of thousands of SDs is meaningless.
MAX_FIRST_RADIUS = 2.0
#: Returns to a best q that no step has improved by `NEGLIGIBLE` nats, before the end. A return with a radius that has
#: not been tried restarts the count.
MAX_RETURNS = 3
#: A network's bound has to rise by this many nats for each row in `RECENT_ROUNDS`, which changes its predictions for a
#: row by a hundredth of a percent.
MIN_RISE_PER_ROW = 1e-4
#: The same in nats for each parameter in rounds by a part of the rows: the posterior of four times as many is 1.7 SDs
#: away in each direction, or 1.5 nats for each parameter.
MIN_RISE_PER_PARAMETER = 0.25
#: A q within so many SDs of the best must have nearly its L. If not, the best value was wrong, and q is kept.
SAME_BOUND_DISTANCE = 0.02
#: Nats for each parameter that the log density may lose from a start's mode to its Gaussian: six times a Gaussian's
#: own.
MAX_FALL_PER_PARAMETER = 3.0


@dataclass(frozen=True)
class Climb:
    """The server's record of the lower bounds L of past rounds; each (), except for Gaussians and `recent_bests`."""

    best: Gaussian  # the q of the largest bound
    onward: Gaussian  # the change of natural parameters that the clients proposed there
    best_value: Tensor  # that bound; -inf where there is none yet
    radius: Tensor  # no step moves a mean or a log SD by more SDs than this
    narrowed: Tensor  # number of halvings of a start's SDs
    level: Tensor  # the log density at the mode that a network's start is about; -inf where none is known
    returns: Tensor  # number of returns of the last rounds to one best q
    returned_to: Tensor  # the bound of this q
    return_radius: Tensor  # the shortest radius of these returns
    recent_bests: Tensor  # the best bounds of the last `RECENT_ROUNDS`
    enough: Tensor  # smallest rise of `recent_bests` in nats
    slow: Tensor  # 1 if they have risen by less

    def with_bound(self, bound: Tensor) -> Self:
        """The record with the bound of this round among the last best ones, and whether these have risen too little."""
        best = torch.where(bound > self.best_value, bound, self.best_value)  # NaN is not larger
        slow = best - self.recent_bests[0] < self.enough  # infinite before there are as many
        return replace(self, recent_bests=torch.cat([self.recent_bests[1:], best[None]]), slow=slow.to(best))

    def way_back(self, q: Gaussian, bound: Tensor, fall: float) -> tuple[Gaussian, Self] | None:
        """The q to try in place of a rejected one of bound L(q), and the new record; None to go on from q."""
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
        again = self._returned(radius)
        if bool(again.returns >= MAX_RETURNS):
            return self.best, again
        fraction = fraction_within(self.best, self.onward, 1.0, float(radius))
        if not fraction:
            return self._narrowed(self.best)
        return self.best.product(self.onward.power(fraction)), replace(again, radius=radius)

    def after_acceptance(self, q: Gaussian, bound: Tensor, move: Gaussian, fall: float) -> Self:
        """The record with a larger radius and the best q, for an accepted q, its bound and the clients' change there.

        If q was kept although L is lower, the old best value was wrong, and is discarded.
        """
        grown = replace(self, radius=self.radius * RADIUS_GROWTH)
        unbelieved = bool(bound < self.best_value - fall)
        if unbelieved or bool(bound >= self.best_value):
            grown = replace(grown, best=q, onward=move, best_value=bound)
        return replace(grown, recent_bests=torch.full_like(self.recent_bests, -torch.inf)) if unbelieved else grown

    def _returned(self, radius: Tensor) -> Self:
        """The record after another return to the best q, with this radius."""
        best, shortest = self.best_value, self.return_radius
        again = best <= self.returned_to + NEGLIGIBLE
        return replace(
            self,
            returns=torch.where(again & (radius >= RADIUS_SHRINKAGE * RADIUS_GROWTH * shortest), self.returns + 1, 1.0),
            returned_to=torch.where(again, self.returned_to, best),
            return_radius=torch.where(again, torch.minimum(shortest, radius), radius),
        )

    def _is_too_wide(self, q: Gaussian, bound: Tensor) -> bool:
        """Whether the log density under a start is lower than under any Gaussian near a mode of a network."""
        expected = bound - q.entropy()
        return bool(expected < self.level - MAX_FALL_PER_PARAMETER * q.dim)

    def _narrowed(self, q: Gaussian) -> tuple[Gaussian, Self] | None:
        """A Gaussian with half its SDs, without an earlier bound to compare with; None after too many halvings."""
        if int(self.narrowed) >= HALVINGS:
            return None
        value, bests = (torch.full_like(known, -torch.inf) for known in (self.best_value, self.recent_bests))
        anew = replace(self, narrowed=self.narrowed + 1, best_value=value, recent_bests=bests)
        return at_mean(type(q)(q.precision * 4, q.eta), q.mean()), anew


def has_fallen(bound: Tensor, best: Tensor, fall: float) -> Tensor:
    """Whether bounds have fallen from the best ones by more than a step may lose, or are not finite, of any shape."""
    return best.isfinite() & ~(bound.isfinite() & (bound >= best - fall))


def shorter_radius(length: Tensor) -> Tensor:
    """The radius after a step of some length, in SDs, that was taken back, of any shape."""
    return (RADIUS_SHRINKAGE * length.nan_to_num(nan=torch.inf)).clamp_max(MAX_FIRST_RADIUS)


def first_climb(q: Gaussian) -> Climb:
    """The state before the first round: no best q, an infinite radius, no gain required."""
    nothing, zero, endless = flat_like(q), q.eta.new_zeros(()), q.eta.new_full((), torch.inf)
    return Climb(
        best=nothing,
        onward=nothing,
        best_value=-endless,
        radius=endless,
        narrowed=zero,
        level=-endless,
        returns=zero,
        returned_to=-endless,
        return_radius=endless,
        recent_bests=q.eta.new_full((RECENT_ROUNDS,), -torch.inf),
        enough=zero,
        slow=zero,
    )


def of_network(level: float, rows: int, dim: int = 0) -> dict[str, float]:
    """Entries of the server's state for a network that starts at a mode of log density `level`.

    `rows` are those of the bound, of all clients; `dim` is D in rounds by a part of the rows, else 0.
    """
    return {"level": level, "enough": max(MIN_RISE_PER_ROW * rows, MIN_RISE_PER_PARAMETER * dim)}


def fraction_within(q: Gaussian, move: Gaussian, fraction: float, radius: float) -> float:
    """A fraction of a change, halved until it leaves a Gaussian no further away than a radius; 0 if there is none."""
    if math.isinf(radius):
        return fraction
    before = moments_of(q)

    def is_near(fraction: float) -> bool:
        new = q.product(move.power(fraction))
        return bool(new.is_proper()) and float(largest_move(before, moments_of(new))) <= radius

    return halved(is_near, fraction)


def reached_end(state: State) -> dict[str, float]:
    """Why the round returned to the best q for the last time, as a figure: repeatedly "in_vain", or a "slow" rise."""
    in_vain = "returns" in state and bool(state["reset"]) and bool(state["returns"] >= MAX_RETURNS)
    slow = "slow" in state and bool(state["slow"])
    return {name: 1.0 for name, ended in (("in_vain", in_vain), ("slow", slow)) if ended}
