"""Nonparametric variational inference: a mixture of isotropic Gaussians fitted to the pooled data.

Source: Gershman, Hoffman & Blei (2012), *Nonparametric variational inference*, Section 3.

    q(θ) = 1/N Σ_n N(θ | μ_n, σ_n² I),     f(θ) = log p(θ) p(y | θ)
    H[q] >= -1/N Σ_n log q_n,              q_n = 1/N Σ_j N(μ_n | μ_j, (σ_n² + σ_j²) I)
    L_1(μ) = 1/N Σ_n [f(μ_n) - log q_n]
    L_2(μ, σ) = 1/N Σ_n [f(μ_n) + σ_n²/2 tr ∇²f(μ_n) - log q_n]

As published, a round maximises L_1 over the means, which needs no Hessians, then L_2 over the variances, both by
L-BFGS. L_2 is a lower bound of the evidence if f is quadratic, and otherwise approximates one.

Letters: N `num_components`, μ `means` (N, D), log σ² `log_variances` (N,), both on the unconstrained scale.

Deviations: L-BFGS maximises over all means together, where the paper takes one component after the other. A component
where f curves upwards (tr ∇²f >= 0) has no best variance: it keeps its variance, and the run warns.

Limits: isotropic components fit badly if the posterior's scales differ or its parameters are correlated. A long
direction needs many components, and standard deviations are too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, grad_and_value

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.kernel_base import squared_distances


class Mixture(NamedTuple):
    """q: means μ (N, D) and log σ² (N,); with a leading axis of one at the client."""

    means: Tensor
    log_variances: Tensor

    @property
    def sd(self) -> Tensor:
        """σ, (N,)."""
        return (self.log_variances / 2).exp()


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class NPV(Algorithm):
    """Nonparametric variational inference: a mixture of isotropic Gaussians on the pooled data.

    Args:
        num_components: N, Gaussians of equal weight.
        steps: L-BFGS steps per round over the means, and as many over the variances.
        start_sd: initial standard deviation of components, on the unconstrained scale.
        tolerance: the run has converged when no mean moves by more than this many of its σ in a round, and no log σ
            changes by more than this.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    References:
        Gershman, Hoffman & Blei (2012), Nonparametric variational inference.

    Example:
        >>> idata = pf.run(pf.papers.NPV(num_components=10), fed)
    """

    pooled: ClassVar[bool] = True
    on_cpu: ClassVar[bool] = True
    draws_are: ClassVar[str] = "independent"

    num_components: int = 10
    steps: int = 20
    start_sd: float = 0.1
    tolerance: float = 1e-3
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_components", "steps")
        check_positive(self, "start_sd", "tolerance", "temperature")

    def default_rounds(self, num_clients: int) -> int:
        """At most 50 rounds; the run ends when the mixture has converged."""
        return 50

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Draw means from the prior."""
        means = problem.init(self.num_components, generator)
        return Mixture(means, torch.full_like(means[:, 0], 2 * math.log(self.start_sd)))._asdict(), {}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        return ()

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Maximise by L-BFGS over the means, then over the variances."""
        batch, (means, level) = data.full_batch(), entries_as(Mixture, shared)
        first = problem.mapped(self._means_bound, (0, 0, BATCHES), calls=self.steps)
        means = _lbfgs(lambda at: first(at, level, batch), means, self.steps)
        heights, curvature = problem.mapped(self._heights, (0, BATCHES))(means, batch)
        curves_down = curvature < 0

        def second(at: Tensor) -> tuple[Tensor, Tensor]:
            slope, value = grad_and_value(_variance_bound)(at, means, heights, curvature)
            return torch.where(curves_down, slope, 0.0), value[None]

        level = _lbfgs(second, level, self.steps)
        figures = {
            "bound": _variance_bound(level, means, heights, curvature)[None],
            "curving_up": (~curves_down).sum(-1).to(means.dtype),
        }
        return Mixture(means, level)._asdict(), {}, figures

    def _means_bound(self, problem: Problem, means: Tensor, level: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Slope of L_1 in the means, and L_1."""

        def bound(at: Tensor) -> Tensor:
            height = problem.vmap(lambda z: problem.log_joint(z, batch, self.temperature))(at)
            mean: Tensor = (height - _log_overlap(at, level)).mean()
            return mean

        slope, value = grad_and_value(bound)(means)
        return slope, value

    def _heights(self, problem: Problem, means: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """f at each mean, and the trace of its Hessian: (N,) and (N,)."""
        axes = torch.eye(means.shape[-1], dtype=means.dtype, device=means.device)

        def at(z: Tensor) -> tuple[Tensor, Tensor]:
            def joint(z: Tensor) -> Tensor:
                return problem.log_joint(z, batch, self.temperature)

            def along(axis: Tensor) -> Tensor:
                bend: Tensor = grad(lambda z: (grad(joint)(z) * axis).sum())(z) @ axis
                return bend

            return joint(z), problem.vmap(along)(axes).sum()

        height, trace = problem.vmap(at)(means)
        return height, trace

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return {name: value[0] for name, value in messages.items()}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Largest change of a mean, in its σ, or of a log σ."""
        old, new = entries_as(Mixture, before), entries_as(Mixture, after)
        mean_change = ((new.means - old.means).abs().amax(-1) / new.sd).amax()
        sd_change = (new.log_variances - old.log_variances).abs().amax() / 2
        return {"change": float(torch.maximum(mean_change, sd_change))}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return figures[-1]["change"] < self.tolerance

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Independent draws of the mixture, (1, num_draws, D), equally many of each component."""
        q = entries_as(Mixture, shared)
        order = torch.arange(num_draws) % len(q.means)
        noise = torch.randn(num_draws, q.means.shape[1], generator=generator, dtype=q.means.dtype)
        return (q.means[order] + q.sd[order, None] * noise)[None]

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """The log density of the mixture."""
        means, level = entries_as(Mixture, shared)
        flat = draws.reshape(-1, draws.shape[-1]).to(level.dtype)
        log_density = _log_normals(squared_distances(flat, means), level, draws.shape[-1]).logsumexp(-1)
        return log_density.reshape(draws.shape[:-1])

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """A warning about components whose variance is not determined."""
        upwards = record.last("curving_up")
        if not len(upwards) or not upwards.sum():
            return []
        return [sentences.components_curve_upwards(components=int(upwards.sum()), of_components=self.num_components)]


def _log_normals(squared: Tensor, level: Tensor, dim: int) -> Tensor:
    """log N(distance² | variance exp(level)) of each pair."""
    return -0.5 * (squared * (-level).exp() + dim * (level + math.log(2 * math.pi)))


def _log_overlap(means: Tensor, level: Tensor) -> Tensor:
    """log q_n, (N,)."""
    both = torch.logaddexp(level[:, None], level[None, :])
    squared = (means[:, None, :] - means[None, :, :]).square().sum(-1)
    return _log_normals(squared, both, means.shape[-1]).logsumexp(-1) - math.log(len(means))


def _variance_bound(level: Tensor, means: Tensor, heights: Tensor, curvature: Tensor) -> Tensor:
    """L_2 of the one client's mixture, from log σ² (1, N)."""
    bend = torch.where(curvature < 0, curvature, 0.0)
    return (heights + 0.5 * level.exp() * bend)[0].mean() - _log_overlap(means[0], level[0]).mean()


def _lbfgs(slope_and_value: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, steps: int) -> Tensor:
    """The point at the end of `steps` steps of L-BFGS with strong Wolfe line searches."""
    at = start.clone().detach()
    optimiser = torch.optim.LBFGS([at], max_iter=steps, line_search_fn="strong_wolfe", tolerance_change=0.0)

    def closure() -> Tensor:
        slope, value = slope_and_value(at.detach())
        at.grad = -slope.detach()
        return -value.detach().sum()

    optimiser.step(closure)
    return at.detach()
