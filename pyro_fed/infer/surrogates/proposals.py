"""Draws that a server proposes from the clients' sites or from points, with the part u_s of their weights.

With the clients' likelihoods p_k the weights are w_s = u_s Π_k p_k(z_s). With **sites** t_k and the Gaussian q,
annealed importance sampling (`ops.annealing`) moves draws of N(0, I), in coordinates that whiten q, to p_0 t with
weights a_s, and

    u_s = a_s / t(z_s)

t is Π_k t_k with the tails of Student's t of `FedAIS.freedom` degrees of freedom (`ops.student`): with Gaussian tails,
weights would have no variance if a likelihood falls more slowly than its site. A likelihood that is flat in a
direction, such as a ridge or a count's overdispersion on the log scale, has a flat site there, without tails. The draws
of prior times sites are then narrower than the posterior. Therefore a share ε of the proposals is wider than q
(`Defence`; Hesterberg 1995, *Weighted average importance sampling and defensive mixture distributions*; Owen & Zhou
2000, *Safe and effective importance sampling*):

    t(z) = Student's t of ν degrees of freedom and scale σ,     s = log t - log N(0, I),
    π_0 = N(0, I) exp b,   b = log((1 - ε) + ε exp s),
    π_1 = N(0, I) exp d',  d' = log((1 - ε) exp d + ε Z exp s),    Z = E_N exp d,

so that weights of the posterior p relative to π_1 are at most p / (ε t), which is bounded if p falls faster than a
power. If p_0 t is exact, the share multiplies the cost of an effective draw by 1 / (1 - ε).

With **points** θ_i that represent a posterior, proposals are draws of a mixture, without annealing (`around`),

    q(θ) = (1 - w) 1/N Σ_i t_κ(θ; θ_i, S_i) + w t_κ(θ; m, σ²S),    S_i = 1/k Σ_j∈N(i) (θ_j - θ_i)(θ_j - θ_i)'
    u_s = p_0(z_s) / q(z_s)

N(i) are the k nearest points to θ_i, without those that are more than `MAX_DISTANCE_RATIO` times as far away as the
median one (a mode with fewer points than k has neighbours in another mode). m and S are the mean and covariance of all
points. Covariances of neighbourhoods follow curved, narrow and separate parts; the heavy tails and the wide component
bound the weights beyond the points. Distances are in SDs of all points. S_i includes a share of a spherical covariance,
so that q is a density even if points lie on a line.

At distant draws a log density may be NaN or dominated by rounding. If there are only a few such draws, they count as
impossible.

Letters: z `draws`, logarithm of u `log_weights`; ε `DEFENCE_SHARE`, σ `DEFENCE_WIDTH`, ν `DEFENCE_FREEDOM`, logarithm
of Z `level`; w `WIDE_SHARE`, κ `ops.adaptive_importance.FREEDOM`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.conventions.limits import MIN_DRAWS
from pyro_fed.density.derivatives import log_likelihoods_at, prior_scores_and_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, in_chunks
from pyro_fed.errors import DivergenceError
from pyro_fed.ops.adaptive_importance import FREEDOM
from pyro_fed.ops.annealing import Difference, Ends, Slope
from pyro_fed.ops.gaussian import DiagGaussian
from pyro_fed.ops.matrices import MIN_EIGENVALUE
from pyro_fed.ops.student import Mixture, Tails
from pyro_fed.ops.whitening import Coordinates

#: ε, the share of wide proposals: a half, so that the effective number of the others is at most halved.
DEFENCE_SHARE = 0.5
#: Scale of wide proposals in SDs of q, for variances that are too small by half; and their degrees of freedom, the
#: smallest integer for which t has a variance.
DEFENCE_WIDTH, DEFENCE_FREEDOM = 1.5, 3.0


class Defence(NamedTuple):
    """The mixtures π_0 and π_1 with the wide component; `level` is log Z."""

    level: float

    def draws(self, white: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of π_0 from draws of N(0, I), (S, D), of which the last share is widened."""
        count = int(DEFENCE_SHARE * len(white))
        shape = torch.full((count, 1), DEFENCE_FREEDOM / 2, dtype=torch.float64)
        chi = 2 * torch._standard_gamma(shape, generator=generator).to(white)
        wide = DEFENCE_WIDTH * white[len(white) - count :] * (DEFENCE_FREEDOM / chi).sqrt()
        return torch.cat([white[: len(white) - count], wide])

    def log_densities(self, difference: Difference) -> Ends:
        """The log densities d' of π_1 and b of π_0, over N(0, I), with their gradients, from d and its gradient."""

        def mixed(white: Tensor) -> tuple[Slope, Slope]:
            (value, slope), (wide, along) = difference(white), _wider(white)
            over, near, far = _log_mixture(value, wide, self.level)
            under, _, at_base = _log_mixture(torch.zeros_like(value), wide, 0.0)
            along = along.unsqueeze(-1)
            return (over, near * slope + far * along * white), (under, at_base * along * white)

        return mixed


def _wider(white: Tensor) -> tuple[Tensor, Tensor]:
    """s, and the factor of its gradient to z, each (S,)."""
    dim, squared = white.shape[1], white.square().sum(-1)
    weight, reach = DEFENCE_FREEDOM + dim, DEFENCE_FREEDOM * DEFENCE_WIDTH**2
    constant = math.lgamma(weight / 2) - math.lgamma(DEFENCE_FREEDOM / 2) - dim / 2 * math.log(reach / 2)
    value = constant - weight / 2 * torch.log1p(squared / reach) + squared / 2
    return value, 1 - weight / (reach + squared)


def _log_mixture(narrow: Tensor, wide: Tensor, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithm of (1 - ε) exp d + ε Z exp s, (S,), and the shares of d and s in it, (S, 1)."""
    logs = torch.stack([narrow + math.log(1 - DEFENCE_SHARE), wide + level + math.log(DEFENCE_SHARE)])
    near, far = logs.softmax(0).unsqueeze(-1)
    return logs.logsumexp(0), near, far


#: w, the share of the wide component.
WIDE_SHARE = 0.1
#: k: this many for each dimension, and at least `MIN_DRAWS`.
NEIGHBOURS_PER_DIMENSION = 3
#: Largest distance of a neighbour, in units of the median one.
MAX_DISTANCE_RATIO = 6.0
#: Share of a spherical covariance in a neighbourhood's.
SPHERICAL_SHARE = 1e-2


def around(points: Tensor) -> Mixture:
    """The mixture around points (N, D), float64, with counts as shares; two points differ in every coordinate."""
    points = points.double()
    count, dim = points.shape
    scale = points.std(0)
    white = (points - points.mean(0)) / scale
    nearest = min(count - 1, max(MIN_DRAWS, NEIGHBOURS_PER_DIMENSION * dim))
    found = torch.cdist(white, white).topk(nearest + 1, largest=False)
    distance, neighbours = found.values[:, 1:], found.indices[:, 1:]
    near = (distance <= MAX_DISTANCE_RATIO * distance.median(1, keepdim=True).values).to(white)
    away = (white[neighbours] - white.unsqueeze(1)) * near.unsqueeze(-1)
    local = away.mT @ away / near.sum(1)[:, None, None]
    spread = local.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(dim, dtype=torch.float64, device=points.device)
    local = local + (SPHERICAL_SHARE * spread + MIN_EIGENVALUE)[:, None, None] * eye
    wide = DEFENCE_WIDTH**2 * (white.T @ white / count + SPHERICAL_SHARE * eye)
    factors = torch.linalg.cholesky(torch.cat([local, wide[None]])) * scale[:, None]
    shares = torch.full((count + 1,), (1 - WIDE_SHARE) / count, dtype=torch.float64, device=points.device)
    shares[-1] = WIDE_SHARE
    return Mixture(shares, torch.cat([points, points.mean(0)[None]]), factors)


#: Largest share of draws at which the prior, or a client's log-likelihood, may be NaN because the proposals' tails
#: exceed its floating-point range; these draws count as impossible. A larger share is a failure of the model or the
#: client.
UNKNOWN_SHARE = 0.1
#: Difference in nats between the highest log-likelihood of all draws and the tenth above which it is checked for
#: rounding; and its relative change next to the draw that indicates rounding.
SUSPICIOUS_NATS, MAX_ROUNDING_SHARE = 5.0, 1e-3
#: Distances of the check, in roundings of the draw: several, because rounding has few values, and they may agree by
#: chance, most often at powers of two.
ROUNDINGS = (16, -16, 5, -11)


def log_likelihoods_beyond_rounding(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """The clients' log-likelihoods (C, S) at draws (S, D), NaN where they are dominated by rounding."""
    # At distant draws a log-likelihood may be a difference of large numbers with the same leading digits, such as
    # lgamma(a + n) - lgamma(a) at a = e^50, and thousands of nats too high. It then changes next to the draw.
    values = log_likelihoods_at(problem, draws, data)
    highest = values.nan_to_num(nan=-torch.inf).topk(min(MIN_DRAWS, values.shape[1]), 1).values
    if not bool((highest[:, 0] - highest[:, -1] > SUSPICIOUS_NATS).any()):
        return values
    most = torch.maximum(torch.ones_like(values), MAX_ROUNDING_SHARE * values.abs())
    rounding = torch.zeros_like(values, dtype=torch.bool)
    for roundings in ROUNDINGS:
        beside = log_likelihoods_at(problem, draws * (1 + roundings * torch.finfo(draws.dtype).eps), data)
        rounding |= (values - beside).abs() > most
    return torch.where(rounding, torch.nan, values)


def with_few_impossible(values: Tensor) -> Tensor:
    """Log densities at draws (..., S), with NaN replaced by that of impossible draws if there are few."""
    few = values.isnan().double().mean(-1, keepdim=True) <= UNKNOWN_SHARE
    return torch.where(values.isnan() & few, -torch.inf, values)


class Proposals(NamedTuple):
    """Draws z_s (S, D), their log u_s (S,), float64, and the acceptance rate of the annealing's transitions, ()."""

    draws: Tensor
    log_weights: Tensor
    accepted: Tensor


def log_ratio_of_prior_and_sites(
    problem: Problem, coordinates: Coordinates, site: DiagGaussian, constant: Tensor, tails: Tails
) -> Difference:
    """log p_0 + log t - log q of whitened points, with its gradient; `constant` is log t - log q at q's mean."""
    # log t - log q is a quadratic form
    prior, curvature = problem.mapped(prior_scores_and_values, (0,)), site.precision - 1

    def difference(white: Tensor) -> tuple[Tensor, Tensor]:
        z = coordinates.model(white)
        score, value = (part[0].double() for part in prior(z.to(problem.dtype)[None]))
        value, score = with_few_impossible(value), score.nan_to_num(nan=0.0)
        wider, outward = tails.log_ratio(white)
        bent = white * curvature
        form = ((site.eta - 0.5 * bent) * white).sum(-1)
        return value + constant + form + wider, coordinates.pull(score) + site.eta - bent + outward

    return difference


def around_points(problem: Problem, points: Tensor, number: int, generator: torch.Generator) -> Proposals:
    """Draws z_s (S, D), S `number`, of a mixture q around points (N, D), with u_s = p_0(z_s) / q(z_s)."""
    if not bool((points.std(0, correction=0) > 0).all()):
        raise DivergenceError(
            f"the {len(points)} points around which draws would be proposed do not differ in every parameter: the "
            "algorithm that left them has no distribution, or all weight is on one draw"
        )
    q = around(points)
    draws = q.sample(number, FREEDOM, generator).to(problem.dtype)
    log_prior = torch.cat([problem.log_prior(piece).double() for piece in in_chunks(draws, problem.evaluations)])
    log_weights = with_few_impossible(log_prior) - q.log_density(draws.double(), FREEDOM)
    return Proposals(draws, log_weights, log_weights.new_ones(()))
