"""Base classes and functions for Gaussian sites: of FedLaplace, FedEP, FSGLD's surrogates and peer-to-peer messages.

    q(θ) ∝ t_0(θ) Π_k t_k(θ),    t_k(θ) = exp(-θ'Λ_kθ/2 + η_k'θ),    t_0 the prior's own site

The format, on the flat unconstrained vector, always float64, "full" or "diag":

    shared   precision (D, D) or (D,), eta (D,)              q
             prior_precision, prior_eta, the same            t_0
    local    precision (K, D, D) or (K, D), eta (K, D)       t_k of each client; may be indefinite

A prior that is not Gaussian on the unconstrained scale has a site that the server updates (`prepare`) by the clients'
expected Newton step, at standardised antithetic Sobol points that are the same for all (`ops.points`):

    Λ ← E_q[-∇² log p],    η ← E_q[∇ log p] + Λ E_q[θ]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Tempered
from pyro_fed.algorithm.contributions import Contributions, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.conventions.setting_checks import check_at_least, check_choice, check_positive
from pyro_fed.density.derivatives import Derivatives, Kind, Structure
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.ops.backtrack import HALVINGS, MAX_ITERATIONS, NEGLIGIBLE_STEP, backtrack
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import choose, with_trailing_axes
from pyro_fed.ops.gaussian import STRUCTURES, Gaussian
from pyro_fed.ops.matrices import times, with_absolute_eigenvalues
from pyro_fed.ops.points import MOST_SOBOL_DIMS, standardised_random, standardised_sobol

#: Largest fall of the log prior from its value at a start's mean to its expectation, in nats per parameter (half a nat
#: for the Laplace approximation of a Gaussian).
MAX_PRIOR_FALL = 1e3
#: Largest number of entries of the points of an expectation: large models have fewer points, since densities, scores
#: and curvatures at all points are in memory together.
MAX_POINT_NUMBERS = 1_000_000
#: Smallest number of points; a density that is Gaussian on the unconstrained scale needs two.
MIN_POINTS = 8
#: Draws of the prior whose moments give the start of a search.
PRIOR_DRAWS = 32


@dataclass(frozen=True, kw_only=True)
class GaussianAlgorithm(Tempered):
    """Base of algorithms whose result is a Gaussian on the unconstrained scale.

    Args:
        covariance: of the Gaussian: "full", "diag", or "auto": full up to 100 parameters; where rounds are Newton
            steps, up to 1,000 of linear predictors.
        curvature: of the likelihoods: "hessian", "fisher" (never negative), or "auto": Hessians as far as
            the covariance is full by default.
    """

    covariance: Literal["auto", "full", "diag"] = "auto"
    curvature: Literal["auto", "hessian", "fisher"] = "auto"

    def advice(self, problem: Problem, before: State) -> str:
        """The cure for natural parameters that became non-finite."""
        funnel = set(problem.traits.effects) - set(problem.traits.in_units_of_scale)
        if not funnel and self.structure == "full" and problem.traits.layers:
            return (
                "the approximation at the start had not converged: a network's log density has many modes, and full "
                "steps lead away from them. Remove covariance and start, so that diagonal covariances are computed by "
                "stochastic gradients, or use FedEP, which rejects steps that lower the evidence lower bound"
            )
        damping = getattr(self, "damping", None)
        damping_cure = f"set damping below {damping:g}, " if isinstance(damping, float) else ""
        return (
            "the curvature is NaN or infinite at a point: in the neck of a funnel, which no Gaussian approximates, or "
            f"where a density overflows; {damping_cure}rescale parameters of very different scales, or sample the "
            "posterior with DSVGD or NUTS"
        )

    def __post_init__(self) -> None:
        check_choice(self, "covariance", ("auto", "full", "diag"))
        check_choice(self, "curvature", ("auto", "hessian", "fisher"))
        check_positive(self, "temperature")

    @property
    def by_newton(self) -> bool:
        """Whether rounds are Newton steps; full Hessians along linear predictors are then the default."""
        return False

    @property
    def structure(self) -> Structure:
        """The structure of the covariance, "full" or "diag"."""
        return cast(Structure, chosen_setting(self, "covariance"))

    def derivatives(self, structure: Structure | None = None) -> Derivatives:
        """The computation of scores and curvatures, in the algorithm's structure if `structure` is None."""
        return Derivatives(structure or self.structure, self.kind)

    @property
    def kind(self) -> Kind:
        """The curvature of the likelihoods, "hessian" or "fisher"."""
        return cast(Kind, chosen_setting(self, "curvature"))

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The largest move of a mean in SDs or change of a log SD."""
        return {"change": float(largest_move(*(moments_of(gaussian(state)) for state in (before, after))))}

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws of q, (1, num_draws, D), spread evenly (`pyro_fed.ops.points.even_normals`)."""
        return gaussian(shared).even_sample(num_draws, generator)[None]

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """The log density of q, or of every agent's q."""
        return gaussian(shared).log_factor(draws.transpose(0, 1)).T


@dataclass(frozen=True, kw_only=True)
class SpreadGaussian(GaussianAlgorithm):
    """Base of algorithms that take expectations under q.

    Args:
        num_points: Sobol points for expectations under q; even.
    """

    num_points: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "num_points")
        if self.num_points % 2:
            raise SettingError(f"{type(self).__name__}: num_points must be even, received {self.num_points}")

    def points(self, q: Gaussian) -> Tensor:
        """Sobol points under a batch of Gaussians (C,): (S, C, D), float64."""
        return spread_points(q, self.num_points)

    def prior_site(self, problem: Problem, q: Gaussian) -> Gaussian:
        """The prior's site by an expected Newton step at q."""
        q = add_batch_axis(q)
        return drop_batch_axis(site_of(self.derivatives().of_prior(problem, self.points(q)), q.mean()))

    def narrowed(self, problem: Problem, q: Gaussian) -> Gaussian:
        """q () or (K,), with its SDs halved until the log prior under it falls by no more than `MAX_PRIOR_FALL`.

        The curvature of a half-Cauchy scale may give SDs of 1e5 on the log scale, where expectations overflow.
        """
        batch = q if q.eta.dim() > 1 else add_batch_axis(q)
        mean, log_prior = batch.mean(), self.derivatives().of_prior
        value = log_prior(problem, mean[None]).value
        for _ in range(HALVINGS):
            fall = value - log_prior(problem, self.points(batch)).value
            too_wide = ~(fall <= MAX_PRIOR_FALL * batch.dim)
            if not bool(too_wide.any()):
                break
            batch = where(too_wide, at_mean(type(batch)(batch.precision * 4, batch.eta), mean), batch)
        return batch if q.eta.dim() > 1 else drop_batch_axis(batch)


def gaussian(state: State, prefix: str = "") -> Gaussian:
    """The Gaussian, or batch of Gaussians, of a state's entries `{prefix}precision` and `{prefix}eta`."""
    precision, eta = state[f"{prefix}precision"], state[f"{prefix}eta"]
    return STRUCTURES["full" if precision.dim() > eta.dim() else "diag"](precision, eta)


def as_state(q: Gaussian, prefix: str = "") -> State:
    """A Gaussian's natural parameters as entries of a state."""
    return {f"{prefix}precision": q.precision, f"{prefix}eta": q.eta}


def moments_of(q: Gaussian) -> tuple[Tensor, Tensor]:
    """Means (..., D) and SDs (..., D); NaN if q is improper."""
    mean, spread = q.moments()
    variance = spread.diagonal(dim1=-2, dim2=-1) if spread.dim() > mean.dim() else spread
    return mean, variance.sqrt()


def shifts_by(scores: Tensor, q: Gaussian) -> Tensor:
    """(C e)_i / √C_ii: shifts in SDs of parameter i of Gaussians q (...), with covariance C, by scores e (..., D)."""
    spread = q.moments()[1]
    if not q.dense:
        return spread.sqrt() * scores
    moved = (spread @ scores.unsqueeze(-1)).squeeze(-1)
    return moved / spread.diagonal(dim1=-2, dim2=-1).sqrt()


def largest_move(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> Tensor:
    """Largest move of a mean in SDs of `after`, or change of a log SD, (...), of means and SDs (..., D)."""
    (old_mean, old_sd), (mean, sd) = before, after
    return torch.maximum(((mean - old_mean) / sd).abs(), (sd / old_sd).log().abs()).amax(-1)


def flat_site(problem: Problem, structure: Structure, *batch: int) -> Gaussian:
    """Flat sites, t = 1."""
    return STRUCTURES[structure].zeros(batch, problem.dim, device=problem.rows[0].device)


def flat_like(q: Gaussian) -> Gaussian:
    """Sites equal to one, in the structure and batch of q."""
    return type(q)(torch.zeros_like(q.precision), torch.zeros_like(q.eta))


def add_batch_axis(q: Gaussian) -> Gaussian:
    """q with a leading axis of one."""
    return type(q)(q.precision[None], q.eta[None])


def drop_batch_axis(q: Gaussian) -> Gaussian:
    """q without its leading axis."""
    return type(q)(q.precision[0], q.eta[0])


def site_of(moments: Moments, mean: Tensor) -> Gaussian:
    """The factor exp(g'(θ-m) - (θ-m)'Λ(θ-m)/2) of an expected Newton step, as a site: η = g + Λ m."""
    full = moments.curvature.dim() > moments.score.dim()
    return STRUCTURES["full" if full else "diag"](moments.curvature, moments.score + times(moments.curvature, mean))


def with_prior(
    derivatives: Derivatives, problem: Problem, points: Tensor, moments: Moments, prior_share: Tensor | None
) -> Moments:
    """A likelihood's moments at points (S, C, D) plus `prior_share` (C,) times the prior's; None is 0."""
    if prior_share is None or not bool((prior_share != 0).any()):
        return moments
    prior = derivatives.of_prior(problem, points)
    return Moments(
        *(part + own * with_trailing_axes(prior_share, part) for part, own in zip(moments, prior, strict=True))
    )


def at_mean(q: Gaussian, mean: Tensor) -> Gaussian:
    """The Gaussian of the same precision with another mean."""
    still = type(q)(q.precision, torch.zeros_like(q.eta))
    return type(q)(q.precision, -still.score(mean))


def prepend_gaussian(first: Gaussian, others: Gaussian) -> Gaussian:
    """One Gaussian and a batch (C,) as a batch (1 + C,)."""
    return type(others)(torch.cat([first.precision[None], others.precision]), torch.cat([first.eta[None], others.eta]))


def kept_where(keep: Tensor, sites: Gaussian) -> Gaussian:
    """The sites where `keep` (C,) is true, and flat sites elsewhere."""
    return type(sites)(choose(keep, sites.precision, 0.0), choose(keep, sites.eta, 0.0))


def where(condition: Tensor, yes: Gaussian, no: Gaussian) -> Gaussian:
    """The Gaussians of one batch where a condition (C,) holds, and those of another elsewhere."""
    return type(yes)(choose(condition, yes.precision, no.precision), choose(condition, yes.eta, no.eta))


def is_finite(q: Gaussian) -> Tensor:
    """Whether all natural parameters are finite, of each Gaussian of a batch (C,) or of one ()."""
    return q.precision.flatten(q.eta.dim() - 1).isfinite().all(-1) & q.eta.isfinite().all(-1)


def absolute(q: Gaussian) -> tuple[Gaussian, Tensor]:
    """The Gaussian with |H| in place of an indefinite precision H (`ops.matrices`), and whether H was, (...)."""
    proper = q.is_proper()
    if bool(proper.all()):
        return q, ~proper
    size = with_absolute_eigenvalues(q.to_full().precision)
    fixed = size if q.dense else size.diagonal(dim1=-2, dim2=-1)
    return type(q)(choose(proper, q.precision, fixed), q.eta), ~proper


def spread_points(q: Gaussian, count: int) -> Tensor:
    """Standardised points under a batch of Gaussians (C,): (S, C, D); fewer than `count` beyond `MAX_POINT_NUMBERS`."""
    fewer = min(count, max(MIN_POINTS, MAX_POINT_NUMBERS // q.dim // 2 * 2))
    standard = sobol(fewer, q.dim).to(q.eta.device)
    return q.transform(standard.unsqueeze(1).expand(-1, *q.eta.shape))


@lru_cache(maxsize=8)
def sobol(count: int, dim: int) -> Tensor:
    """Cached standardised points: Sobol points, or pseudo-random ones beyond the dimension of the Sobol sequence."""
    return standardised_sobol(count, dim) if dim <= MOST_SOBOL_DIMS else standardised_random(count, dim)


def fit_prior(algorithm: SpreadGaussian, problem: Problem, generator: torch.Generator) -> Gaussian:
    """The Gaussian of smallest KL(q ‖ prior) for a proper prior, in the algorithm's structure, by Newton steps."""
    draws = problem.sample_prior(PRIOR_DRAWS, generator).double()
    q = STRUCTURES["diag"].from_moments(draws.mean(0), draws.var(0))
    q = q.to_full() if algorithm.structure == "full" else q
    for _ in range(MAX_ITERATIONS):
        delta = algorithm.prior_site(problem, q).quotient(q)
        new = q.product(delta.power(backtrack(q, delta)))
        if float(largest_move(moments_of(q), moments_of(new))) < NEGLIGIBLE_STEP:
            return new
        q = new
    return q


@dataclass(frozen=True)
class SiteContributions(Contributions, ABC):
    """Clients' Gaussian sites, and the shifts of the mean of q by their changes."""

    def answer(self, shared: State) -> Gaussian:
        """The Gaussian q."""
        return gaussian(shared)

    @abstractmethod
    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The changes of the clients' sites in messages, (C,); arguments as of `client_shift_sds`."""

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """Shifts of the mean of q in SDs by each site's change, in the coordinate that moves most, (C,)."""
        q, changes = self.answer(shared), self.site_changes(shared, ledger, sent)
        if not bool(q.is_proper()):
            return torch.zeros(len(changes.eta), dtype=torch.float64)
        return shifts_by(changes.score(q.mean().expand_as(changes.eta)), q).abs().amax(-1)


def limited_changes(
    limits: Bounded,
    base: Gaussian,
    sites: Gaussian,
    clients: Tensor,
    deltas: Gaussian,
    centre: Tensor,
    rows: Tensor | None = None,
) -> tuple[Gaussian, Tensor, Tensor]:
    """Changes (C,) that keep sites within the cohort's limits, the excess of each site (C,), and `widened` (C,).

    `base` is q without the `sites` (K,) before the round, which are flat for clients that have not sent any. `deltas`
    (C,) are the changes that `clients` sent, `centre` is near q's mean, and `rows` (K,) is None for equal numbers.
    """
    precision, eta = sites.precision.clone(), sites.eta.clone()
    precision[clients] += deltas.precision
    eta[clients] += deltas.eta
    has_sent = (eta != 0).any(-1) | (precision.flatten(1) != 0).any(-1)
    limited = limits.sites(
        base, type(sites)(precision[has_sent], eta[has_sent]), centre, None if rows is None else rows[has_sent]
    )
    precision[has_sent], eta[has_sent] = limited.sites.precision, limited.sites.eta
    excess = torch.zeros(len(eta), dtype=torch.float64, device=eta.device)
    excess[has_sent] = limited.limit_excess
    widened = torch.ones_like(excess)
    widened[has_sent] = limited.widened
    client_excess = excess[clients]
    limited_deltas = type(sites)(precision[clients] - sites.precision[clients], eta[clients] - sites.eta[clients])
    return where(client_excess > 0, limited_deltas, deltas), client_excess, widened[clients]
