"""The step rule of expected Newton steps: their sum, held back or accelerated at the server.

A diagonal precision P does not have the posterior's curvature H. If parameters are correlated (650 weights of positive
pixels) the mean step P⁻¹r, with r the score of q's mean, is too long by up to the largest eigenvalue of P⁻¹H, which may
be as large as D, and would need damping by an unknown constant. Worse, beyond q's spread the classes saturate, the
curvature there vanishes, P falls, and the next step is longer still: q never returns, however many points its
expectations have. So the diagonal steps of a part of the clients are held back in two ways:

    δ ≤ `reach` √D / ‖P'⁻¹r‖_P           no further than q itself reaches, where its expectations were taken;
    δ is halved for good where ‖r‖_{P'⁻¹} > `growth` times the shortest so far, and beyond `reach` √D

with P the precision before and P' after the step. Near the solution neither has an effect. A full precision is
Newton's, but from a wide q, such as the prior, the expected curvature of a likelihood that saturates is as small. Only
the first rule applies to it: the step is halved until it is within reach.

If the clients' log-likelihoods are not to be used (`combination.Bounded`), so that no step can be taken back, and
nothing is accelerated, steps that reverse the one before are shortened by Aitken's rule (Irons & Tuck 1969),

    δ ← δ ⟨r', r' - r⟩ / ‖r' - r‖²  within [`LEAST_TURNING_SHARE`, 1],

with r' the last undamped step and r this one, in SDs. It can only shorten a step, whatever a client sends: q is still a
product of sites within their limits.

With all clients at work Anderson acceleration (`ops.anderson`) is added instead: it removes the long steps' modes in
fewer rounds than holding back takes, up to a few hundred parameters; if it does not, the run warns at its end.

If the clients send E_q[log p_k], a step after which the evidence's lower bound has fallen is taken back: see `ascent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import Settings, explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.infer.ep import ascent
from pyro_fed.infer.ep.ascent import Climb
from pyro_fed.infer.ep.steps import Server, Step, StepRule, largest_fractions
from pyro_fed.infer.sites.gaussian_sites import drop_batch_axis, flat_like
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.backtrack import HALVINGS
from pyro_fed.ops.gaussian import Gaussian

#: A reach that no step attains.
UNHELD = 1e30
#: Smallest factor on steps that reverse each other: q still covers 99 % of the way in 35 of them.
LEAST_TURNING_SHARE = 0.125
#: Rounds in the acceleration's history and its longest step if none are set, by structure.
ACCELERATION = {"full": (4, 5.0), "diag": (20, 1e4)}


#: Entries of the server's state that are NaN or infinite if nothing is recorded.
UNKNOWN = frozenset({"shortest", "points_precision", "points_eta", "moves_precision", "moves_eta"})


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class StepControl(Settings):
    """Settings by which FedEP's server accelerates the sum of expected Newton steps, or holds it back.

    It is for `client=pf.infer.tilted.Newton()` without an optimiser: nothing else takes steps whose length is known.

    Args:
        memory: rounds that the acceleration remembers, at least 2, or 0 for none; None takes 4 for a full covariance
            and 20 for a diagonal one.
        longest_step: of the acceleration, in lengths of the undamped step; None takes 5 and 10,000.
        growth: the acceleration starts again if a step is this many times longer than one in its history; diagonal
            steps of a part of the clients are halved there.
        reach: no step of a part of the clients goes beyond this many times √D SDs of q.
        fall: a step of all clients that loses more than this of the evidence's lower bound, in nats, is taken back, as
            is one to where a likelihood or its derivatives are not finite; expectations at few points err by less.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        Walker & Ni (2011), Anderson acceleration for fixed-point iterations.

    Example:
        >>> pf.run(pf.FedEP(covariance="diag", step_control=pf.infer.StepControl(reach=0.5)), fed)
    """

    memory: int | None = None
    longest_step: float | None = None
    growth: float = 2.0
    reach: float = 1.0
    fall: float = 1.0

    def __post_init__(self) -> None:
        if self.memory != 0:
            check_at_least(self, 2, "memory", allow_none=True)
        check_positive(self, "longest_step", allow_none=True)
        check_positive(self, "growth", "reach", "fall")

    def evenly(self) -> StepControl:
        """These settings without what depends on earlier steps, for changes with noise, which it would follow."""
        return replace(self, memory=0)

    def without_limits(self) -> StepControl:
        """These settings without acceleration and without limits."""
        return replace(self, memory=0, reach=UNHELD)


class Memory(NamedTuple):
    """What the rule keeps of past rounds.

    Args:
        caution: factor on δ for diagonal steps of a part of the clients.
        shortest: length of the shortest of these, in SDs; infinite before the first.
        turning: factor on a step that reverses the one before.
        turned: the last undamped step, in SDs, (2 D,); zero before the first.
        points: q of the last rounds, oldest first, (M,); NaN where there is none.
        moves: the undamped changes of these, (M,).
        climb: the lower bounds.
    """

    caution: Tensor
    shortest: Tensor
    turning: Tensor
    turned: Tensor
    points: Gaussian
    moves: Gaussian
    climb: Annotated[Climb, ""]


@dataclass(frozen=True)
class NewtonSteps(StepRule):
    """The sum of expected Newton steps, taken back if the bound falls, held back if it is not known, and accelerated.

    Args:
        control: the user's settings.
        damping: δ.
        accelerates: whether each client's change is one step at q itself, as the acceleration needs.
        takes_back: whether the clients send their parts of the bound, so that a step that lowers it is undone.
    """

    control: StepControl
    damping: float
    accelerates: bool
    takes_back: bool

    def memory(self, q: Gaussian) -> State:
        """The state with no best q, an empty history, and nothing held back."""
        empty = self._no_history(q)
        return as_entries(
            Memory(
                caution=q.eta.new_ones(()),
                shortest=q.eta.new_full((), torch.inf),
                turning=q.eta.new_ones(()),
                turned=q.eta.new_zeros(2 * q.dim),
                points=empty,
                moves=empty,
                climb=ascent.first_climb(q),
            )
        )

    def step(self, server: Server, changes: Gaussian, bound: Tensor | None) -> Step:
        """q Π_k (Δ_k)^s_k and the acceleration's addition; or a q to try in place of one at which the bound has fallen.

        It has four parts: take back if the bound fell (`ascent`); hold back a step that could not be undone; take the
        largest fraction that leaves q a distribution; accelerate, if nothing of the step was held back.
        """
        q, move, memory = server.q, changes.product_over(0), entries_as(Memory, server.memory)
        everyone = len(changes.eta) - 1 == int(server.num_clients)
        radius = torch.inf
        if self.takes_back and everyone and bound is not None:
            climb = memory.climb.with_bound(bound)
            if bool(climb.slow):
                return self._back_to(climb.highest(q, bound), server, changes, climb)
            if (back := climb.way_back(q, bound, self.control.fall)) is not None:
                return self._back_to(back[0], server, changes, back[1])
            if bool(bound.isfinite()):
                climb = climb.after_acceptance(q, bound, move, self.control.fall)
                radius = float(climb.radius)
            memory = memory._replace(climb=climb)
        # Steps of all clients go free, but where the parts of a bound that would be known have been withheld.
        free = everyone and (bound is not None or not self.takes_back)
        share, memory = (1.0, memory) if free else self._held_back(memory, q, move, everyone)
        within = ascent.fraction_within(q, move, share, radius)
        fractions = largest_fractions(q, changes, self.damping * within)
        taken = changes.power(fractions)
        whole = self.accelerates and free and bool((fractions == self.damping).all())
        added, memory = (
            self._accelerated(memory, q, move) if whole else (flat_like(q), self._without_history(memory, q))
        )
        new, kept = q.product(taken.product_over(0)).product(added), server.memory | as_entries(memory)
        return Step(new, drop_batch_axis(taken), fractions[1:], added, kept, cut=within < share)

    def _back_to(self, new: Gaussian, server: Server, changes: Gaussian, climb: Climb) -> Step:
        """Another q, whose sites are equal shares of it, as before any round.

        Sites from the rejected q are of no use: clients' changes relative to them would look like outliers.
        """
        before = entries_as(Memory, server.memory)._replace(climb=climb)
        memory = server.memory | as_entries(self._without_history(before, server.q))
        skipped, added = new.eta.new_zeros(len(changes.eta) - 1), new.quotient(server.prior)
        return Step(new, flat_like(new), skipped, added, memory, cut=bool(server.cut), reset=True)

    def _held_back(self, memory: Memory, q: Gaussian, move: Gaussian, everyone: bool) -> tuple[float, Memory]:
        """The factor on δ for a step that cannot be undone later, and what is kept of it."""
        control = self.control
        if everyone and q.dense and control.memory != 0:
            memory = _with_turn(memory, q, move)
            return float(memory.turning) * self._within_reach(q, move), memory
        after = q.precision + move.precision
        if q.dense or not bool((after > 0).all()):
            return self._within_reach(q, move), memory
        score = move.score(q.mean())
        length, reach = (score.square() / after).sum().sqrt(), control.reach * q.dim**0.5
        far = (length > control.growth * memory.shortest) & (length > reach)
        caution = torch.where(far, memory.caution / 2, memory.caution)
        shortest = torch.where(far, length, torch.minimum(length, memory.shortest))
        step = ((score / after).square() * q.precision).sum().sqrt()
        factor = float(caution * (reach / step).clamp_max(1.0))
        return factor, memory._replace(caution=caution, shortest=shortest)

    def _within_reach(self, q: Gaussian, move: Gaussian) -> float:
        """The largest fraction 1, 1/2, ... of a change that moves the mean no further than q reaches."""
        mean, fraction = q.mean(), 1.0
        for _ in range(HALVINGS):
            step = q.product(move.power(fraction)).mean() - mean
            if bool(-(step * (q.score(mean + step) - q.score(mean))).sum() <= self.control.reach**2 * q.dim):
                break
            fraction /= 2
        return fraction

    def _accelerated(self, memory: Memory, q: Gaussian, move: Gaussian) -> tuple[Gaussian, Memory]:
        """The addition by Anderson's rule to the undamped change of q, and the history of these."""
        control = self.control
        if control.memory == 0:
            return flat_like(q), self._without_history(memory, q)
        points, moves = remember(memory.points, q), remember(memory.moves, move)
        longest = control.longest_step or ACCELERATION[_structure(q)][1]
        added = acceleration(points, moves, self.damping, control.growth, longest)
        return added, memory._replace(points=points, moves=moves)

    def _without_history(self, memory: Memory, q: Gaussian) -> Memory:
        """The memory with an empty history of points and moves."""
        empty = self._no_history(q)
        return memory._replace(points=empty, moves=empty)

    def _no_history(self, q: Gaussian) -> Gaussian:
        """NaN in place of the points, or moves, of the last rounds, (M,)."""
        rounds = ACCELERATION[_structure(q)][0] if self.control.memory is None else self.control.memory
        return type(q)(*(part.new_full((rounds, *part.shape), torch.nan) for part in (q.precision, q.eta)))


def _structure(q: Gaussian) -> str:
    return "full" if q.dense else "diag"


def _with_turn(memory: Memory, q: Gaussian, move: Gaussian) -> Memory:
    """The memory with the factor on a step that reverses the one before, and this step."""
    covariance = q.moments()[1]
    variance = covariance.diagonal()
    mean = covariance @ move.score(q.mean()) * variance.rsqrt()
    narrower = 0.5 * (covariance @ move.precision * covariance).sum(-1) / variance
    step, before = torch.cat([mean, narrower]), memory.turned
    away = before - step
    share = memory.turning * (before * away).sum() / away.square().sum()
    known = bool(before.any()) and bool(share.isfinite())
    turning = share.clamp(LEAST_TURNING_SHARE, 1.0) if known else torch.ones_like(share)
    return memory._replace(turned=step, turning=turning)
