"""The step rule of expected Newton steps: their sum, taken back, held back or accelerated at the server.

With all clients at work a step after which the evidence's lower bound has fallen is taken back (`ascent`), and
Anderson's acceleration is added (`ops.anderson`).

The steps of a part of the clients cannot be taken back. A diagonal precision P has not the posterior's curvature: with
correlated parameters the mean step P⁻¹r, r the score of q's mean, is too long by up to a factor of D, and beyond q's
spread the curvature of a likelihood that saturates vanishes, so that the next step is longer still. So diagonal steps
are held back in two ways, P' being the precision after the step; neither has an effect near the solution:

    δ ≤ `reach` √D / ‖P'⁻¹r‖_P           no further than q itself reaches, where its expectations were taken;
    δ is halved for good where ‖r‖_{P'⁻¹} > `growth` times the shortest so far, and beyond `reach` √D

A full precision is halved until the step is within reach. If the clients' log-likelihoods must not be used
(`combination.Bounded`), steps of all clients that reverse the one before are shortened by Aitken's rule (Irons & Tuck
1969), with r' the last undamped step and r this one, in SDs; it can only shorten, whatever a client sends:

    δ ← δ ⟨r', r' - r⟩ / ‖r' - r‖²  within [`MIN_TURNING_SHARE`, 1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.message_limits import LARGEST_RATIO
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import Settings, explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.infer.ep import ascent
from pyro_fed.infer.ep.ascent import Climb
from pyro_fed.infer.ep.steps import Server, Step, StepRule, largest_fractions
from pyro_fed.infer.sites.gaussian_sites import drop_batch_axis, flat_like
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.backtrack import halved
from pyro_fed.ops.gaussian import Gaussian

#: Smallest factor on steps that reverse each other: q still covers 99 % of the way in 35 of them.
MIN_TURNING_SHARE = 0.125
#: Rounds in the acceleration's history and its longest step if none are set, by structure.
ACCELERATION = {"full": (4, 5.0), "diag": (20, 1e4)}
#: Entries of the server's state that are NaN or infinite if nothing is recorded.
UNKNOWN = ascent.UNKNOWN | {"shortest", "points_precision", "points_eta", "moves_precision", "moves_eta"}


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
        """These settings without acceleration, which would follow the noise of changes."""
        return replace(self, memory=0)

    def without_limits(self) -> StepControl:
        """These settings without acceleration and without limits."""
        return replace(self, memory=0, reach=LARGEST_RATIO)


class Memory(NamedTuple):
    """What the rule keeps of past rounds."""

    caution: Tensor  # factor on δ for diagonal steps of a part of the clients
    shortest: Tensor  # length of the shortest of these, in SDs; infinite before the first
    turning: Tensor  # factor on a step that reverses the one before
    turned: Tensor  # the last undamped step, in SDs, (2 D,); zero before the first
    points: Gaussian  # q of the last rounds, oldest first, (M,); NaN where there is none
    moves: Gaussian  # the undamped changes of these, (M,)
    climb: Annotated[Climb, ""]  # the lower bounds


@dataclass(frozen=True)
class NewtonSteps(StepRule):
    """The sum of expected Newton steps, taken back if the bound falls, held back if unknown, and accelerated."""

    control: StepControl
    damping: float  # δ
    accelerates: bool  # whether each client's change is one step at q itself, as the acceleration needs
    takes_back: bool  # whether the clients send their parts of the bound, so that a step that lowers it is undone

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
        """The step q Π_k (Δ_k)^s_k with the acceleration's addition, or to a q in place of a rejected one."""
        q, move, memory = server.q, changes.product_over(0), entries_as(Memory, server.memory)
        everyone = len(changes.eta) - 1 == int(server.num_clients)
        radius = torch.inf
        if self.takes_back and everyone and bound is not None:
            climb = memory.climb.with_bound(bound)
            if (back := climb.way_back(q, bound, self.control.fall)) is not None:
                return self._back_to(back[0], server, changes, back[1])
            if bool(bound.isfinite()):
                climb = climb.after_acceptance(q, bound, move, self.control.fall)
                radius = float(climb.radius)
            memory = memory._replace(climb=climb)
        # Steps of all clients go free, but where the parts of a bound that would be known have been withheld.
        free = everyone and (bound is not None or not self.takes_back)
        fraction, memory = (1.0, memory) if free else self._held_back(memory, q, move, everyone)
        within = ascent.fraction_within(q, move, fraction, radius)
        fractions = largest_fractions(q, changes, self.damping * within)
        taken = changes.power(fractions)
        whole = self.accelerates and free and bool((fractions == self.damping).all())
        added, memory = (
            self._accelerated(memory, q, move) if whole else (flat_like(q), self._without_history(memory, q))
        )
        new, kept = q.product(taken.product_over(0)).product(added), server.memory | as_entries(memory)
        return Step(new, drop_batch_axis(taken), fractions[1:], added, kept, cut=within < fraction)

    def _back_to(self, new: Gaussian, server: Server, changes: Gaussian, climb: Climb) -> Step:
        """The step to another q, with equal shares of it as sites: changes of older ones would look like outliers."""
        before = entries_as(Memory, server.memory)._replace(climb=climb)
        memory = server.memory | as_entries(self._without_history(before, server.q))
        skipped, added = new.eta.new_zeros(len(changes.eta) - 1), new.quotient(server.prior)
        return Step(new, flat_like(new), skipped, added, memory, cut=bool(server.cut), reset=True)

    def _held_back(self, memory: Memory, q: Gaussian, move: Gaussian, everyone: bool) -> tuple[float, Memory]:
        """The factor on δ for a step that cannot be undone later, and the memory with it."""
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
        mean = q.mean()

        def is_near(fraction: float) -> bool:
            step = q.product(move.power(fraction)).mean() - mean
            return bool(-(step * (q.score(mean + step) - q.score(mean))).sum() <= self.control.reach**2 * q.dim)

        return halved(is_near)

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
    factor = memory.turning * (before * away).sum() / away.square().sum()
    known = bool(before.any()) and bool(factor.isfinite())
    turning = factor.clamp(MIN_TURNING_SHARE, 1.0) if known else torch.ones_like(factor)
    return memory._replace(turned=step, turning=turning)
