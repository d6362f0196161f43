"""Steps that climb the evidence's lower bound, or are taken back: what keeps expected Newton steps from going astray.

    L(q) = Σ_k E_q[log p_k] + E_q[log p_0] + H(q)          at the same points as the scores and Hessians of the round

Newton's step for the Gaussian is the natural gradient of L. Its length is right near the optimum; far from it an
expected Hessian that is indefinite, or nearly so, makes the next mean some thousand SDs away, where likelihoods
overflow. So where all clients are at work, and L is therefore known, the server goes back to the best q that it had

    where L or a derivative is not finite at the new one, or L has fallen by more than `fall`,

and takes the same change of natural parameters to a smaller fraction, one that moves no mean and no log SD by more
than a radius: a quarter of what was tried, and twice as much again with every step that is kept. A small enough
fraction of a natural gradient gains. Before there is any best q (a start at which likelihoods overflow) its SDs are
halved instead; and those of the best one where no fraction of its change leaves a Gaussian within the radius: there L
is finite, but of the size of 1e40, as where a half-Cauchy scale is looked at 30 SDs out.

A network's mode has directions along which the likelihood bends nowhere at the point and falls steeply a little
further, so that Laplace's approximation is far wider than the mass there: at its points the log density is 50 to 10⁷
nats a parameter below the mode's, where that of a Gaussian is half a nat, and Newton's steps from there lead anywhere.
Its SDs are halved too, until no more than `WIDE` nats a parameter are lost.

Where a small fraction gains nothing either, L at the round's points has its maximum elsewhere than where the clients'
expected Hessians put it, as of a network: from the best q the same steps then lead to the same fall, round and round. A
run that has come back to one best q so often (`RETURNS`), with no shorter radius, ends there, and has not converged.

A network may climb for ever: its weights have ridges along which the bound rises by a nat in five rounds, of 56,000 for
100,000 rows, and nobody reads off a weight. What it predicts is told by the bound a row. Where that has risen by less
than `SLOW` in `RECENT` rounds, the run ends at the best q, too: the more rows, the sooner.

Sites that belong to a q that is given up are forgotten: all clients get an equal share of the new one, as at a start
from the prior. No easy run takes a step back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import as_state, at_mean, flat_like, gaussian, largest_move, moments_of
from pyro_fed.ops.gaussian import Gaussian

#: Entries of the server's state that are infinite where nothing is known, or have no bound.
UNKNOWN = frozenset({"best_value", "radius", "prior_value", "level", "returned_to", "return_radius", "recent_bests"})
#: The radius after a step that was taken back, in lengths of that step, and after one that was kept.
SHRINK, GROW = 0.25, 2.0
#: The longest first radius, in SDs: steps of thousands of SDs say nothing about their own length.
FIRST_RADIUS = 2.0
#: Returns to a best q that no step has improved by `GAIN` nats, before the end. A return with less than half the
#: previous radius restarts the count, because it tries a new step.
RETURNS, GAIN, LESS = 3, 0.01, 0.5
#: Rounds in which a network's bound has to rise by so many nats a row, which changes what it predicts of a row by a
#: hundredth of a percent.
RECENT, SLOW = 10, 1e-4
#: The same in nats a parameter of rounds by a part of the rows: the posterior of four times as many is 1.7 SDs away in
#: each direction, or 1.5 nats a parameter.
START = 0.25
#: A q this near to the best must have nearly its L. If not, the best value was wrong, and q is kept.
CLOSE = 0.02
#: Nats a parameter that the log density may lose from a start's mode to its Gaussian: six times a Gaussian's own.
WIDE = 3.0
#: So often the SDs of a start are halved at which likelihoods overflow, and a fraction in search of the radius.
NARROWINGS, HALVINGS = 20, 100


@dataclass(frozen=True)
class Climb:
    """What the server remembers of the lower bounds L of past rounds; each (), but for Gaussians and `recent_bests`.

    Args:
        best: the q of the largest bound.
        onward: the change of natural parameters that the clients proposed there.
        best_value: that bound; -inf where there is none yet.
        radius: no step moves a mean or a log SD by more SDs than this.
        narrowed: how often the SDs of a start were halved.
        level: the log density at the mode that a network's start is about; -inf where none is known.
        returns: how often the last rounds have come back to one best q.
        returned_to: its bound.
        return_radius: the shortest radius with which they did.
        recent_bests: the best bounds of the last `RECENT` rounds.
        enough: by how many nats these have to rise.
        slow: 1 where they have risen by less.
    """

    best: Gaussian
    onward: Gaussian
    best_value: Tensor
    radius: Tensor
    narrowed: Tensor
    level: Tensor
    returns: Tensor
    returned_to: Tensor
    return_radius: Tensor
    recent_bests: Tensor
    enough: Tensor
    slow: Tensor

    @classmethod
    def of(cls, memory: State) -> Self:
        """Read it from the server's state."""
        rest = {field.name: memory[field.name] for field in fields(cls) if field.name not in ("best", "onward")}
        return cls(gaussian(memory, "best_"), gaussian(memory, "onward_"), **rest)

    def state(self) -> State:
        """Write it."""
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("best", "onward")}
        return {**as_state(self.best, "best_"), **as_state(self.onward, "onward_"), **rest}

    def with_bound(self, bound: Tensor) -> Self:
        """With the bound of this round among the best of the last rounds, and whether these have risen too little."""
        best = torch.where(bound > self.best_value, bound, self.best_value)  # not a number is not more
        slow = best - self.recent_bests[0] < self.enough  # infinite before there are as many
        return replace(self, recent_bests=torch.cat([self.recent_bests[1:], best[None]]), slow=slow.to(best))

    def highest(self, q: Gaussian, bound: Tensor) -> Gaussian:
        """The q of the largest bound, this one included."""
        return q if bool(bound > self.best_value) else self.best

    def way_back(self, q: Gaussian, bound: Tensor, fall: float) -> tuple[Gaussian, Self] | None:
        """The q to try in place of one that is rejected, and the new state; None if q is accepted, or nothing helps.

        Args:
            q: the server's Gaussian.
            bound: L(q), not finite where a derivative is not.
            fall: how much of L a step may lose.
        """
        if not bool(self.best_value.isfinite()):
            return None if bool(bound.isfinite()) and not self._is_too_wide(q, bound) else self._narrowed(q)
        if bool(bound.isfinite() & (bound >= self.best_value - fall)):
            return None
        tried = largest_move(moments_of(self.best), moments_of(q))
        length = float(tried) if bool(tried.isfinite()) else math.inf
        if length < CLOSE and bool(bound.isfinite()):
            return None
        radius = min(SHRINK * length, FIRST_RADIUS)
        again = self._returned(q.eta.new_tensor(radius))
        if bool(again.returns >= RETURNS):
            return self.best, again
        fraction = fraction_within(self.best, self.onward, 1.0, radius)
        if not fraction:
            return self._narrowed(self.best)
        return self.best.product(self.onward.power(fraction)), replace(again, radius=q.eta.new_tensor(radius))

    def after_acceptance(self, q: Gaussian, bound: Tensor, move: Gaussian, fall: float) -> Self:
        """Update the best q, and enlarge the radius.

        If q was kept although L is lower, the old best value was wrong, and is discarded.

        Args:
            q: the server's Gaussian.
            bound: L(q), finite.
            move: what the clients propose there.
            fall: how much of L a step may lose.
        """
        grown = replace(self, radius=self.radius * GROW)
        unbelieved = bool(bound < self.best_value - fall)
        if unbelieved or bool(bound >= self.best_value):
            grown = replace(grown, best=q, onward=move, best_value=bound)
        return replace(grown, recent_bests=torch.full_like(self.recent_bests, -torch.inf)) if unbelieved else grown

    def _returned(self, radius: Tensor) -> Self:
        """How often the best q has been returned to with this radius, and what that is measured by."""
        best, shortest = self.best_value, self.return_radius
        again = best <= self.returned_to + GAIN
        return replace(
            self,
            returns=torch.where(again & (radius >= LESS * shortest), self.returns + 1, 1.0),
            returned_to=torch.where(again, self.returned_to, best),
            return_radius=torch.where(again, torch.minimum(shortest, radius), radius),
        )

    def _is_too_wide(self, q: Gaussian, bound: Tensor) -> bool:
        """Whether the log density falls off further under a start than under any Gaussian near a mode of a network."""
        expected = bound - q.entropy()
        return bool(expected < self.level - WIDE * q.dim)

    def _narrowed(self, q: Gaussian) -> tuple[Gaussian, Self] | None:
        """A Gaussian with half its SDs, which is judged by itself; None where that has been tried often enough."""
        if int(self.narrowed) >= NARROWINGS:
            return None
        value, bests = (torch.full_like(known, -torch.inf) for known in (self.best_value, self.recent_bests))
        anew = replace(self, narrowed=self.narrowed + 1, best_value=value, recent_bests=bests)
        return at_mean(type(q)(q.precision * 4, q.eta), q.mean()), anew


def first_climb(q: Gaussian) -> Climb:
    """The state before the first round: no best q, an infinite radius, no gain required."""
    zero, one = flat_like(q), q.eta.new_ones(())
    return Climb(
        best=zero,
        onward=zero,
        best_value=-torch.inf * one,
        radius=torch.inf * one,
        narrowed=0 * one,
        level=-torch.inf * one,
        returns=0 * one,
        returned_to=-torch.inf * one,
        return_radius=torch.inf * one,
        recent_bests=q.eta.new_full((RECENT,), -torch.inf),
        enough=0 * one,
        slow=0 * one,
    )


def of_network(level: float, rows: int, dim: int = 0) -> dict[str, float]:
    """Entries of the server's state for a network.

    Args:
        level: log density at the mode that it starts at.
        rows: by which the bound is computed, of all clients.
        dim: D where these are a part of the rows, and the rounds a start for those by more of them.
    """
    return {"level": level, "enough": max(SLOW * rows, START * dim)}


def fraction_within(q: Gaussian, move: Gaussian, fraction: float, radius: float) -> float:
    """A fraction of a change by halves until it leaves a Gaussian that is no further away than a radius; 0: none."""
    if math.isinf(radius):
        return fraction
    before = moments_of(q)
    for _ in range(HALVINGS):
        new = q.product(move.power(fraction))
        if bool(new.is_proper()) and float(largest_move(before, moments_of(new))) <= radius:
            return fraction
        fraction /= 2
    return 0.0


def is_in_vain(state: State) -> bool:
    """Whether the round that led to a state has come back to the best q for the last time."""
    return "returns" in state and bool(state["reset"]) and bool(state["returns"] >= RETURNS)


def is_slow(state: State) -> bool:
    """Whether it has come back to it for the last time as the bound hardly rises any more."""
    return "slow" in state and bool(state["slow"])
