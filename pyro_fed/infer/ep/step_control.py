"""How far FedEP's server goes with the sum of its clients' expected Newton steps: held back, or accelerated.

A diagonal precision P has not the posterior's curvature H. Where parameters are correlated (650 weights of positive
pixels) the mean step P⁻¹r, with r the score of q's mean, is too long by up to the largest eigenvalue of P⁻¹H, which
may be as large as D, and damping by a constant that nobody knows would be needed. Worse, beyond q's spread the
classes saturate, the curvature there vanishes, P falls, and the next step is longer still: q never comes back,
however many points its expectations have. So the diagonal steps of a part of the clients are held back in two ways:

    δ ≤ `reach` √D / ‖P'⁻¹r‖_P           no further than q itself reaches, where its expectations were taken;
    δ is halved for good where ‖r‖_{P'⁻¹} > `growth` times the shortest so far, and beyond `reach` √D

with P the precision before and P' after the step. Near the solution neither is felt. A full precision is Newton's, but
from a wide q, such as the prior, the expected curvature of a likelihood that saturates is as small: it is held to the
first rule, by halves.

Where the clients' log-likelihoods are not to be used (`combination.Bounded`), so that no step can be taken back, and
nothing is accelerated, steps that turn back upon the one before are shortened by Aitken's rule (Irons & Tuck 1969),

    δ ← δ ⟨r', r' - r⟩ / ‖r' - r‖²  within [`LEAST`, 1],     r', r: the last undamped step and this one, in SDs

which only ever shortens, whatever a client sends: q is still a product of sites within their limits.

With all clients at work Anderson acceleration (`ops.anderson`) is added instead: it removes the long steps' modes in
fewer rounds than holding back takes, up to a few hundred parameters; where it does not, a run says so when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import Settings, explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import Gaussian

#: So often a fraction is halved in search of one within reach.
HALVINGS = 40
#: A reach that no step comes to.
UNHELD = 1e30
#: The least share of steps that turn back upon each other: q still comes 99 % of the way in 35 of them.
LEAST = 0.125
#: Rounds that the acceleration remembers and its longest step where none are set, by structure.
ACCELERATION = {"full": (4, 5.0), "diag": (20, 1e4)}


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class StepControl(Settings):
    """How FedEP's server accelerates the sum of expected Newton steps, or holds it back.

    It is for `client=pf.tilted.Newton()` without an optimiser: nothing else takes steps whose length is known.

    Args:
        memory: rounds that the acceleration remembers, at least 2, or 0 for none; None takes 4 for a full covariance
            and 20 for a diagonal one.
        longest_step: of the acceleration, in lengths of the undamped step; None takes 5 and 10,000.
        growth: the acceleration starts again where a step is this many times longer than one it remembers; diagonal
            steps of a part of the clients are halved there.
        reach: no step of a part of the clients goes beyond this many times √D SDs of q.
        fall: a step of all clients that loses more than this of the evidence's lower bound, in nats, is taken back, as
            is one to where a likelihood or its derivatives are not finite; expectations at few points err by less.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        Walker & Ni (2011), Anderson acceleration for fixed-point iterations.

    Example:
        >>> pf.run(pf.FedEP(covariance="diag", step_control=pf.StepControl(reach=0.5)), fed)
    """

    #: Entries of the server's state that are NaN or infinite where nothing is remembered.
    unknown: ClassVar[frozenset[str]] = frozenset(
        {"shortest", *(f"{kind}_{part}" for kind in ("points", "moves") for part in ("precision", "eta"))}
    )

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
        """Without what depends on the steps before: for changes with noise in them, which it would follow."""
        return replace(self, memory=0)

    def free(self) -> StepControl:
        """Likewise, and nothing is held back."""
        return replace(self, memory=0, reach=UNHELD)

    def acceleration(self, q: Gaussian) -> tuple[int, float]:
        """Rounds that the acceleration remembers, and its longest step."""
        memory, longest = ACCELERATION["full" if q.dense else "diag"]
        return memory if self.memory is None else self.memory, self.longest_step or longest

    def before(self, q: Gaussian) -> State:
        """What is remembered before the first round: an empty history, and that nothing was held back."""
        never = {
            "caution": q.eta.new_ones(()),
            "shortest": q.eta.new_full((), torch.inf),
            "turning": q.eta.new_ones(()),
            "turned": q.eta.new_zeros(2 * q.dim),
        }
        return {**self.nothing_known(q), **never}

    def nothing_known(self, q: Gaussian) -> State:
        """An empty history."""
        rounds = self.acceleration(q)[0]
        past = type(q)(*(part.new_full((rounds, *part.shape), torch.nan) for part in (q.precision, q.eta)))
        return {**as_state(past, "points_"), **as_state(past, "moves_")}

    def held_back(self, shared: State, move: Gaussian, clients: int, told: bool = True) -> tuple[float, State]:
        """The share of the damping that a step may take, and what is remembered of it.

        Args:
            shared: the server's state.
            move: the undamped change of q.
            clients: how many are at work.
            told: whether their log-likelihoods are known, by which a step of all of them can be taken back.
        """
        q = gaussian(shared)
        known = {name: shared[name] for name in ("caution", "shortest")}
        everyone = clients == int(shared["num_clients"])
        if everyone and told:
            return 1.0, known
        if everyone and q.dense and self.memory != 0:
            known |= _turned(shared, q, move)
            return float(known["turning"]) * self._within_reach(q, move), known
        after = q.precision + move.precision
        if q.dense or not bool((after > 0).all()):
            return self._within_reach(q, move), known
        score = move.score(q.mean())
        length, reach = (score.square() / after).sum().sqrt(), self.reach * q.dim**0.5
        far = (length > self.growth * shared["shortest"]) & (length > reach)
        known["caution"] = torch.where(far, shared["caution"] / 2, shared["caution"])
        known["shortest"] = torch.where(far, length, torch.minimum(length, shared["shortest"]))
        step = ((score / after).square() * q.precision).sum().sqrt()
        return float(known["caution"] * (reach / step).clamp_max(1.0)), known

    def _within_reach(self, q: Gaussian, move: Gaussian) -> float:
        """The largest fraction 1, 1/2, ... of a change that moves the mean no further than q reaches."""
        mean, fraction = q.mean(), 1.0
        for _ in range(HALVINGS):
            step = q.product(move.power(fraction)).mean() - mean
            if bool(-(step * (q.score(mean + step) - q.score(mean))).sum() <= self.reach**2 * q.dim):
                break
            fraction /= 2
        return fraction

    def added(self, shared: State, move: Gaussian, whole: bool, damping: float) -> State:
        """What acceleration adds to q, and its history.

        Args:
            shared: the server's state.
            move: the undamped change of q.
            whole: whether it is a step of all clients, none held back; only these are accelerated and remembered.
            damping: the fraction of the move that q takes.
        """
        q = gaussian(shared)
        if not whole or self.memory == 0:
            return {**nothing_added(q), **self.nothing_known(q)}
        points, moves = remember(gaussian(shared, "points_"), q), remember(gaussian(shared, "moves_"), move)
        further = acceleration(points, moves, damping, self.growth, self.acceleration(q)[1])
        return {**as_state(further, "added_"), **as_state(points, "points_"), **as_state(moves, "moves_")}


def nothing_added(q: Gaussian) -> State:
    """What `added` gives where q is not accelerated."""
    return as_state(type(q).zeros((), q.dim, device=q.eta.device), "added_")


def _turned(shared: State, q: Gaussian, move: Gaussian) -> State:
    """The share of a step by what the one before it has left, and what is remembered of this one."""
    covariance = q.moments()[1]
    variance = covariance.diagonal()
    mean = covariance @ move.score(q.mean()) * variance.rsqrt()
    narrower = 0.5 * (covariance @ move.precision * covariance).sum(-1) / variance
    step, before = torch.cat([mean, narrower]), shared["turned"]
    away = before - step
    share = shared["turning"] * (before * away).sum() / away.square().sum()
    known = bool(before.any()) and bool(share.isfinite())
    return {"turned": step, "turning": share.clamp(LEAST, 1.0) if known else torch.ones_like(share)}
