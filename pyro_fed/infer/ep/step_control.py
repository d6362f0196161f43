"""The step rule of expected Newton steps: the sum of the clients' changes, rejected, shortened or accelerated.

If all clients take part, the server rejects a step that lowers the evidence lower bound (`ascent`), and uses Anderson
acceleration (`ops.anderson`).

Steps of a subset of the clients cannot be rejected, because the bound is unknown. With a diagonal precision P and
correlated parameters the step P⁻¹r of the mean, with r the score at q's mean, can be up to D times too long. Far from
q's mean a saturating likelihood is flat, so the next step is longer still. Diagonal steps are therefore limited in two
ways, which have no effect near the solution. With P' the precision after the step,

    δ ≤ `reach` √D / ‖P'⁻¹r‖_P           no step leaves the region where q's expectations are computed;
    δ is halved from now on if ‖r‖_{P'⁻¹} exceeds `reach` √D and `growth` times the shortest so far

With a full precision the step is halved until it is within reach. If the bound must not be used
(`combination.Bounded`), a step of all clients with a full precision that reverses the last one is also shortened by
Aitken's rule (Irons & Tuck 1969), unless acceleration is off. With z' the last undamped step and z this one, in SDs,

    δ ← δ ⟨z', z' - z⟩ / ‖z' - z‖²  within [`MIN_TURNING_SHARE`, 1]        no message can lengthen a step
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
from pyro_fed.infer.ep.steps import Server, Step, StepRule, factor_within_reach, largest_fractions
from pyro_fed.infer.sites.gaussian_sites import drop_batch_axis, flat_like
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import Gaussian

#: Smallest factor on steps that reverse each other: 35 of them still cover 99 % of the distance.
MIN_TURNING_SHARE = 0.125
#: Default number of rounds in the acceleration's history, and its longest step, by structure.
ACCELERATION = {"full": (4, 5.0), "diag": (20, 1e4)}
#: Entries of the server's state that are NaN or infinite while unknown.
UNKNOWN = ascent.UNKNOWN | {"shortest", "points_precision", "points_eta", "moves_precision", "moves_eta"}


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class StepControl(Settings):
    """Acceleration and limits of the sum of expected Newton steps at FedEP's server.

    The settings are for `client=pf.infer.tilted.Newton()` without an optimiser.

    Args:
        memory: rounds in the history of the acceleration, at least 2, or 0 for neither acceleration nor Aitken's rule;
            None takes 4 for a full covariance and 20 for a diagonal one.
        longest_step: longest step of the acceleration, in lengths of the undamped step; None takes 5 for a full
            covariance and 10,000 for a diagonal one.
        growth: the acceleration of a full covariance restarts if a step is this many times longer than one in its
            history. With a diagonal covariance, steps of a subset of the clients are halved then.
        reach: longest step of a subset of the clients, in units of √D SDs of q.
        fall: a step of all clients is rejected if it lowers the evidence lower bound by more than this, in nats, or
            leads to where a likelihood or a derivative is not finite. The error of expectations at few points is
            smaller.

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

    def without_acceleration(self) -> StepControl:
        """These settings without acceleration, which would amplify the noise of changes."""
        return replace(self, memory=0)

    def without_limits(self) -> StepControl:
        """These settings without acceleration and without limits on steps; `fall` still rejects them."""
        return replace(self, memory=0, reach=LARGEST_RATIO)


class Memory(NamedTuple):
    """The rule's record of past rounds."""

    caution: Tensor  # factor on δ for diagonal steps of a subset of the clients
    shortest: Tensor  # length of the shortest of these steps, in SDs; infinite before the first
    turning: Tensor  # factor on a step that reverses the previous one
    turned: Tensor  # the last undamped step, in SDs, (2 D,); zero before the first
    points: Gaussian  # q of the last rounds, oldest first, (M,); NaN where there is none
    moves: Gaussian  # the undamped changes of these, (M,)
    climb: Annotated[Climb, ""]  # the lower bounds


@dataclass(frozen=True)
class NewtonSteps(StepRule):
    """The sum of expected Newton steps: rejected if the bound falls, shortened if it is unknown, and accelerated."""

    control: StepControl
    damping: float  # δ
    accelerates: bool  # whether each client's change is one step at q, as acceleration requires
    takes_back: bool  # whether clients send their terms of the bound, so that a step that lowers it is rejected

    def memory(self, q: Gaussian) -> State:
        """The state without a best q, with an empty history and no limits."""
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
        """The step q Π_k (Δ_k)^s_k times the acceleration, or the step to the q that replaces a rejected one."""
        q, move, memory = server.q, changes.product_over(0), entries_as(Memory, server.memory)
        all_clients = len(changes.eta) - 1 == int(server.num_clients)
        radius = torch.inf
        if self.takes_back and all_clients and bound is not None:
            climb = memory.climb.with_bound(bound)
            if (rejection := climb.replacement(q, bound, self.control.fall)) is not None:
                return self._step_to_replacement(*rejection, server, changes)
            if bool(bound.isfinite()):
                climb = climb.after_acceptance(q, bound, move, self.control.fall)
                radius = float(climb.radius)
            memory = memory._replace(climb=climb)
        # Steps of all clients are not limited, unless the bound could be known but its terms are withheld.
        is_unlimited = all_clients and (bound is not None or not self.takes_back)
        fraction, memory = (1.0, memory) if is_unlimited else self._step_factor(memory, q, move, all_clients)
        shortened = ascent.fraction_within(q, move, fraction, radius)
        step = self._step_by(self.damping * shortened, server, changes, memory, is_unlimited)
        return step._replace(cut=shortened < fraction)

    def _step_by(self, damping: float, server: Server, changes: Gaussian, memory: Memory, is_unlimited: bool) -> Step:
        """The step with fractions up to `damping`; accelerated if it is unlimited and no fraction was reduced."""
        q = server.q
        fractions = largest_fractions(q, changes, damping)
        damped = changes.power(fractions)
        if self.accelerates and is_unlimited and bool((fractions == self.damping).all()):
            added, memory = self._accelerated(memory, q, changes.product_over(0))
        else:
            added, memory = flat_like(q), self._without_history(memory, q)
        new_q, new_memory = q.product(damped.product_over(0)).product(added), server.memory | as_entries(memory)
        return Step(new_q, drop_batch_axis(damped), fractions[1:], added, new_memory)

    def _step_to_replacement(self, new_q: Gaussian, climb: Climb, server: Server, changes: Gaussian) -> Step:
        """The step to another q, with equal shares of it as sites: changes of older sites would look like outliers."""
        old_memory = entries_as(Memory, server.memory)._replace(climb=climb)
        memory = server.memory | as_entries(self._without_history(old_memory, server.q))
        no_fractions, added = new_q.eta.new_zeros(len(changes.eta) - 1), new_q.quotient(server.prior)
        return Step(new_q, flat_like(new_q), no_fractions, added, memory, cut=bool(server.cut), reset=True)

    def _step_factor(self, memory: Memory, q: Gaussian, move: Gaussian, all_clients: bool) -> tuple[float, Memory]:
        """The factor on δ for a step that cannot be rejected later, and the memory with it."""
        if q.dense:
            return self._full_step_factor(memory, q, move, all_clients)
        return self._diagonal_step_factor(memory, q, move)

    def _full_step_factor(self, memory: Memory, q: Gaussian, move: Gaussian, all_clients: bool) -> tuple[float, Memory]:
        """`_step_factor` for full precisions: the reach, and Aitken's rule for steps of all clients."""
        if not all_clients or self.control.memory == 0:
            return factor_within_reach(q, move, self.control.reach), memory
        memory = _with_reversal_factor(memory, q, move)
        return float(memory.turning) * factor_within_reach(q, move, self.control.reach), memory

    def _diagonal_step_factor(self, memory: Memory, q: Gaussian, move: Gaussian) -> tuple[float, Memory]:
        """`_step_factor` for diagonal precisions: the reach, and a half after each step that is much too long."""
        new_precision = q.precision + move.precision
        if not bool((new_precision > 0).all()):
            return factor_within_reach(q, move, self.control.reach), memory
        score = move.score(q.mean())
        length, reach = (score.square() / new_precision).sum().sqrt(), self.control.reach * q.dim**0.5
        too_long = (length > self.control.growth * memory.shortest) & (length > reach)
        caution = torch.where(too_long, memory.caution / 2, memory.caution)
        shortest = torch.where(too_long, length, torch.minimum(length, memory.shortest))
        step = ((score / new_precision).square() * q.precision).sum().sqrt()
        factor = float(caution * (reach / step).clamp_max(1.0))
        return factor, memory._replace(caution=caution, shortest=shortest)

    def _accelerated(self, memory: Memory, q: Gaussian, move: Gaussian) -> tuple[Gaussian, Memory]:
        """The factor that Anderson acceleration adds to the undamped change of q, and the memory with its history."""
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


def _with_reversal_factor(memory: Memory, q: Gaussian, move: Gaussian) -> Memory:
    """The memory with the factor on a step that reverses the previous one, and with this step."""
    covariance = q.moments()[1]
    variance = covariance.diagonal()
    mean = covariance @ move.score(q.mean()) * variance.rsqrt()
    narrower = 0.5 * (covariance @ move.precision * covariance).sum(-1) / variance
    step, last_step = torch.cat([mean, narrower]), memory.turned
    away = last_step - step
    factor = memory.turning * (last_step * away).sum() / away.square().sum()
    is_known = bool(last_step.any()) and bool(factor.isfinite())
    turning = factor.clamp(MIN_TURNING_SHARE, 1.0) if is_known else torch.ones_like(factor)
    return memory._replace(turned=step, turning=turning)
