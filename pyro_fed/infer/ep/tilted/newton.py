"""Newton steps on the tilted density: expected steps, "newton", and steps to the mode, "laplace".

"newton" is natural-gradient variational inference with step size one (Bui et al. 2018, Property 4; Khan & Nielsen
2018). A fixed point minimises KL(q̂ ‖ p_k q_-k):

    Λ ← E_q̂[-∇² log p_k],   η ← E_q̂[∇ log p_k] + Λ m̂,   q̂ ← q_-k · site        `steps` times, from q̂ = q

With several steps, each is backtracked so that q̂ stays proper, and a client whose q̂ has converged stops. A step that
lowers the objective by more than `StepControl.fall` is rejected and replaced by a smaller fraction of the same change,
as at `FedEP`'s server (`ascent`). The objective is

    -KL(q̂ ‖ p_k q_-k) = E_q̂[log p_k] + E_q̂[log q_-k] + H(q̂) + const

If q is as wide as the prior, its points are far from the mass of the tilted density. `begin="mode"` starts each
client's steps at its Laplace approximation. This is also the inference "laplace",

    θ̂ = arg max log p_k(θ) + log q_-k(θ),    q̂ = N(θ̂, (Λ_lik(θ̂) + Λ_-k)⁻¹)                 Guo et al., Eq. (4)

by Newton steps with a line search, as in `fedlaplace`. Hessians of a small enough model are full even for a diagonal q:
q̂ is then projected to its mean and variances as in EP (KL(p ‖ q)), which is exact for Gaussian clients. Otherwise the
curvature has the structure of q. Its kind is the algorithm's `curvature`; the paper's is the diagonal Fisher
information.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice
from pyro_fed.density.derivatives import clients_log_likelihoods, pick_rows
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep import ascent
from pyro_fed.infer.ep.findings import UNSETTLED_SDS
from pyro_fed.infer.ep.step_control import StepControl
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference, site_from
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import absolute, is_finite, largest_move, moments_of, site_of, where
from pyro_fed.ops.backtrack import MIN_FRACTION, backtracked_step, move
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.gaussian import Gaussian

#: Tolerance of a client's q̂, as of Newton's method for the mode: the largest move of a mean in SDs, or relative change
#: of an SD, in a step. The fixed point does not depend on it.
REST = FedLaplace.tolerance


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Laplace(TiltedInference):
    """Laplace approximation of the tilted density: its mode by Newton's method, and the curvature there.

    It has no randomness. The algorithm's setting `curvature` determines how the curvature is computed.

    Args:
        steps: Newton steps per round, from the mean of q.
        fractions: fractions of a Newton step that the line search tries; it takes the best, or none.

    References:
        Guo et al. (2023), Eq. (4).

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.Laplace(steps=3)), fed)
    """

    steps: int = 10
    fractions: tuple[float, ...] = (1.0, 2.0, 0.5, 0.25, 0.1, 0.03, 0.01)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps")
        if not self.fractions or not all(fraction > 0 for fraction in self.fractions):
            raise SettingError(f"Laplace: fractions must be positive, and at least one, received {self.fractions}")

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the tilted mode and curvature."""
        batch, cavity = data.full_batch(), received.cavity
        inner = cavity.to_full() if numerics.full_hessians.structure == "full" else cavity
        point = received.q.mean()
        for _ in range(self.steps):
            tilted = _tilted(problem, numerics, point, inner, batch)
            metric = absolute(tilted)[0]
            step = type(metric)(metric.precision, tilted.score(point)).mean()
            point = self._search(problem, point, step, inner, data)
        tilted = _tilted(problem, numerics, point, inner, batch)
        squared_distance = (point - tilted.mean()).square() * tilted.to_diag().precision
        newton_step = squared_distance.amax(-1).sqrt().nan_to_num(nan=torch.inf)
        site = site_from(tilted if cavity.dense else tilted.to_diag(), cavity, newton_step=newton_step)
        # Where the curvature is nearly zero, the mean, which is one more step, is far from the mode.
        ends = torch.stack([point, tilted.mean()], 1)
        at_point, at_mean = self._heights(problem, ends, inner, data).unbind(1)
        return site._replace(usable=site.usable & ~ascent.has_fallen(at_mean, at_point, StepControl.fall))

    def _search(self, problem: Problem, point: Tensor, direction: Tensor, cavity: Gaussian, data: ClientData) -> Tensor:
        """The best fraction of the step for each client; zero if none is better."""
        fractions = point.new_tensor((0.0, *self.fractions))
        line = point.unsqueeze(1) + fractions.unsqueeze(-1) * direction.nan_to_num().unsqueeze(1)
        values = self._heights(problem, line, cavity, data)
        return torch.take_along_dim(line, values.argmax(1)[:, None, None], 1).squeeze(1)

    @staticmethod
    def _heights(problem: Problem, points: Tensor, cavity: Gaussian, data: ClientData) -> Tensor:
        """The log densities p_k q_-k (C, S) at each client's points (C, S, D), up to a constant; -inf for NaN."""
        values = clients_log_likelihoods(problem, points.to(problem.dtype), data)
        return (values + cavity.log_factor(points.movedim(1, 0)).movedim(0, 1)).nan_to_num(nan=-torch.inf)


def _tilted(problem: Problem, numerics: Numerics, point: Tensor, cavity: Gaussian, batch: Batch) -> Gaussian:
    return site_of(numerics.full_hessians.of_likelihood(problem, point[None], batch), point).product(cavity)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Newton(TiltedInference):
    """Expected Newton steps at Sobol points, the same for all clients: natural-gradient variational inference.

    It has no randomness, and its fixed point in FedEP is the Gaussian of smallest KL(q ‖ posterior). The algorithm's
    `num_points` is the number of points.

    Args:
        steps: largest number of steps per round. With one, the site is that of an expected Newton step at q. With more,
            the cavity is held fixed and each step is backtracked or rejected, as in partitioned variational inference.
        enough: a turn also ends with a step no longer than this share of its first, or of the one that replaced the
            last rejected step, in [0, 1). The client's next turn continues from there, so that the fixed point is the
            same.
        begin: where a turn of several steps begins: at "q", or at the "mode" of the client's tilted density, with the
            Laplace approximation there, which needs fewer rounds but costs the client more in each.
        few_rows: number of rows of all clients, approximately, on which steps are computed, so that q is the posterior
            given these rows; each client takes its share at equal intervals. None takes all rows. `FedEP` on a network
            of many rows starts with fewer.

    References:
        Bui et al. (2018), Partitioned variational inference, Property 4. Khan & Nielsen (2018).

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.Newton(steps=5)), fed)
    """

    minimises_free_energy: ClassVar[bool] = True

    steps: int = 1
    enough: float = 0.0
    begin: Literal["q", "mode"] = "q"
    few_rows: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps")
        check_at_least(self, 1, "few_rows", allow_none=True)
        check_between(self, "enough", 0, 1, "[)")
        check_choice(self, "begin", ("q", "mode"))
        if self.steps == 1:
            refuse_unused(self, "the only step is at q; set steps to 2 or more", "begin")

    @property
    def newton_steps(self) -> int:
        """The setting `steps`."""
        return self.steps

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites of the last step."""
        if self.few_rows is not None:
            data = pick_rows(problem, data, self.few_rows)[0]
        if self.begin == "mode":
            received = received._replace(q=_at_modes(problem, numerics, received, data, noise))
        moments = numerics.expected(problem, received.q, data)
        site, value = site_of(moments, received.q.mean()), moments.value
        usable = is_finite(site)
        if self.steps > 1:
            q_hat, value, stepped = self._free_energy_ascent(problem, numerics, received, data, moments)
            site = q_hat.quotient(received.cavity)
            usable = is_finite(site) & stepped
        return Tilted(site, usable, {"expected_log_lik": torch.where(usable, value, torch.nan)})

    def _free_energy_ascent(
        self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, moments: Moments
    ) -> tuple[Gaussian, Tensor, Tensor]:
        """q̂ after all steps, the last expected log-likelihood, (C,), and whether a step was possible, (C,)."""
        q_hat = start = onward = received.q
        value = moments.value
        moving, length = torch.ones_like(value, dtype=torch.bool), torch.zeros_like(value)
        stepped = ~moving
        top, radius, rest = torch.full_like(value, -torch.inf), torch.full_like(value, torch.inf), length + REST
        for number in range(self.steps):
            if number:
                moments = numerics.expected(problem, q_hat, data)
                value = torch.where(moving, moments.value, value)
            gain = _gain(q_hat, received.cavity, moments)
            fell = moving & ascent.has_fallen(gain, top, StepControl.fall)
            top = torch.fmax(top, torch.where(moving, gain, top))
            radius = torch.where(fell, ascent.shorter_radius(length), ascent.RADIUS_GROWTH * radius)
            step = site_of(moments, q_hat.mean()).product(received.cavity).quotient(q_hat)
            start, onward = _where_keeping_factors(fell, start, q_hat), _where_keeping_factors(fell, onward, step)
            taken, moved = _steps_within_radius(start, onward, radius)
            stepped = stepped | (taken > 0)
            q_hat = _where_keeping_factors(moving & (taken > 0), moved, start)
            length = largest_move(moments_of(start), moments_of(q_hat))
            rest = torch.where(
                fell | (number == 0), torch.fmax(torch.full_like(rest, REST), self.enough * length), rest
            )
            moving = moving & ~(length <= rest)
            if not bool(moving.any()):
                break
        far = moving & (length > UNSETTLED_SDS)
        if bool(far.any()):  # the bound after a last step is unknown; shortening a long one is safe
            gain = _gain(q_hat, received.cavity, numerics.expected(problem, q_hat, data))
            q_hat = _where_keeping_factors(far & ascent.has_fallen(gain, top, StepControl.fall), start, q_hat)
        return q_hat, value, stepped


def _at_modes(problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Gaussian:
    """Laplace's approximations of the tilted densities, (C,); q itself where there is none."""
    answer = Laplace().infer(problem, numerics, received, data, noise)
    tilted = answer.site.product(received.cavity)
    return _where_keeping_factors(answer.usable & tilted.is_proper(), tilted, received.q)


def _gain(q: Gaussian, cavity: Gaussian, moments: Moments) -> Tensor:
    """The negative local free energy up to a constant, (C,); -inf if a derivative is not finite."""
    value = moments.value + cavity.mean_log_factor(q) + q.entropy()
    return torch.where(moments.finite() & value.isfinite(), value, -torch.inf)


def _steps_within_radius(q: Gaussian, step: Gaussian, radius: Tensor) -> tuple[Tensor, Gaussian]:
    """The fractions (C,) of changes, 0 if there is none, whose ends are within a radius, and these ends."""
    (taken, moved), old = backtracked_step(q, step), moments_of(q)
    while bool((far := (taken > 0) & ~(largest_move(old, moments_of(moved)) <= radius)).any()):
        taken = torch.where(far, torch.where(taken < MIN_FRACTION, 0.0, taken / 2), taken)
        moved = move(q, step, taken)
    return taken, moved


def _where_keeping_factors(condition: Tensor, yes: Gaussian, no: Gaussian) -> Gaussian:
    """`where`, keeping the factors of Gaussians that are already computed."""
    if bool(condition.all()):
        return yes
    return where(condition, yes, no) if bool(condition.any()) else no
