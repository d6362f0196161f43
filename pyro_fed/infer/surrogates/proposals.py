"""Draws that a server proposes from the clients' sites or from points, with the part of their weights that it knows.

Of sites t_k and the Gaussian q, draws of N(0, I) in the coordinates that whiten q are taken to p_0 t by annealed
importance sampling (`ops.annealing`), of weights a_s. t is Π_k t_k with the tails of Student's t (`ops.student`): where
a likelihood falls more slowly than its Gaussian site, weights would have no variance. Half of the draws are wider than
q, also after annealing (`defence`): if the likelihood does not fall at all, like a ridge's, prior times sites is
narrower than the posterior. With clients' likelihoods p_k the weights are w_s = u_s Π_k p_k(z_s),

    u_s = a_s / t(z_s)

Around points that represent a posterior they are draws of a mixture q (`surrogates.neighbourhoods`), without annealing:

    u_s = p_0(z_s) / q(z_s)

Letters: z `draws`, logarithm of u `log_weights`.

At distant draws a log density may be NaN, or dominated by rounding: such draws are impossible, if they are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.derivatives import log_likelihoods_at, prior_scores_and_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, in_chunks
from pyro_fed.infer.surrogates.defence import Defence
from pyro_fed.infer.surrogates.neighbourhoods import around
from pyro_fed.ops.adaptive_importance import FREEDOM
from pyro_fed.ops.annealing import Annealed, Difference, anneal_sparingly, from_normal, levels_for
from pyro_fed.ops.gaussian import DiagGaussian, Gaussian
from pyro_fed.ops.points import even_normals
from pyro_fed.ops.student import Tails
from pyro_fed.ops.whitening import Coordinates, diagonal_coordinates

#: Share of the draws at which the prior, or a client's log-likelihood, may be NaN, because the proposals' tails exceed
#: its floating-point range: these draws are impossible. With more the model or the client has failed.
MOST_UNKNOWN = 0.1
#: Difference in nats between the highest log-likelihood of all draws and the eighth above which it is checked for
#: rounding; and its relative change beside the draw that shows rounding.
ABOVE, HIGHEST_DRAWS, ROUGH = 5.0, 8, 1e-3
#: Distances of the check, in roundings of the draw: several, because rounding has few values, and they may agree by
#: chance, most often at powers of two.
ROUNDINGS = (16, -16, 5, -11)


def log_likelihoods_beyond_rounding(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """The clients' log-likelihoods (C, S) at draws (S, D), NaN where they are dominated by rounding.

    Far away a likelihood may be the difference of large numbers with the same leading digits, such as lgamma(a + n) -
    lgamma(a) at a = e^50, and be thousands of nats above all others. There it has another value next to the same draw.
    """
    values = log_likelihoods_at(problem, draws, data)
    highest = values.nan_to_num(nan=-torch.inf).topk(min(HIGHEST_DRAWS, values.shape[1]), 1).values
    if not bool((highest[:, 0] - highest[:, -1] > ABOVE).any()):
        return values
    most = torch.maximum(torch.ones_like(values), ROUGH * values.abs())
    rounding = torch.zeros_like(values, dtype=torch.bool)
    for roundings in ROUNDINGS:
        beside = log_likelihoods_at(problem, draws * (1 + roundings * torch.finfo(draws.dtype).eps), data)
        rounding |= (values - beside).abs() > most
    return torch.where(rounding, torch.nan, values)


def with_few_impossible(values: Tensor) -> Tensor:
    """Log densities at draws (..., S), with NaN replaced by an impossible value if there are few."""
    few = values.isnan().double().mean(-1, keepdim=True) <= MOST_UNKNOWN
    return torch.where(values.isnan() & few, -torch.inf, values)


class Proposals(NamedTuple):
    """Draws z_s (S, D), their log u_s (S,), float64, and the acceptance rate of the annealing's transitions, ()."""

    draws: Tensor
    log_weights: Tensor
    accepted: Tensor


@dataclass(frozen=True, kw_only=True)
class AnnealedProposals:
    """Settings of the annealing of draws to prior times sites.

    Args:
        number: S.
        freedom: ν of t's tails; None leaves t a Gaussian, and no part of the draws wide.
        levels: J, the most temperatures.
        flat: there is no annealing if log p_0 t - log q varies by less than this over draws, an SD.
        spread: variance of log weights that all J temperatures are to leave.
        leapfrog_steps: of a transition.
        step_size: of the leapfrog steps, in SDs of q.
    """

    number: int
    freedom: float | None
    levels: int
    flat: float
    spread: float
    leapfrog_steps: int
    step_size: float

    def draw(self, problem: Problem, product: Gaussian, q: Gaussian, generator: torch.Generator) -> Proposals:
        """Draws z_s with u_s = a_s / t(z_s); `product` is Π_k t_k, and q is near p_0 Π_k t_k."""
        whitened = Coordinates.of(q)
        coordinates, site, turn = diagonal_coordinates(whitened, whitened.site(product.to(torch.float64)))
        tails = Tails.of(site, self.freedom)
        constant = product.log_factor(coordinates.mean) - q.log_prob(coordinates.mean)
        found = self._annealed(_difference(problem, coordinates, site, constant, tails), q, turn, generator)
        draws = coordinates.model(found.white).to(problem.dtype)
        log_t = product.log_factor(draws.double()) + tails.log_ratio(found.white)[0]
        return Proposals(draws, found.log_weights - log_t, found.accepted)

    def _annealed(
        self, difference: Difference, q: Gaussian, turn: Tensor | None, generator: torch.Generator
    ) -> Annealed:
        """Whitened draws of p_0 t, with log a_s.

        `difference` is log p_0 t - log q and its gradient; `turn`, if any, is the rotation of the whitened coordinates,
        and q gives the dimension, dtype and device.
        """
        white = even_normals(self.number, q.dim, generator).to(q.eta.device)
        white = white if turn is None else white @ turn
        value = difference(white)[0]
        if float(value.std()) < self.flat:
            return Annealed(white, value, value.new_ones(()))
        levels = min(self.levels, levels_for(value[value > -torch.inf], self.spread))
        how: Any = {"levels": levels, "leapfrog_steps": self.leapfrog_steps, "step_size": self.step_size, "axes": turn}
        usual = float(value.logsumexp(0)) - math.log(len(value))
        if self.freedom is None or not math.isfinite(usual):
            return anneal_sparingly(from_normal(difference), white, generator, **how)
        defence = Defence(usual)
        ends = defence.ends(difference)
        found = anneal_sparingly(ends, defence.draws(white, generator), generator, **how)
        narrow = difference(found.white)[0] - ends(found.white)[0][0]
        return found._replace(log_weights=found.log_weights + narrow)


def _difference(
    problem: Problem, coordinates: Coordinates, site: DiagGaussian, constant: Tensor, tails: Tails
) -> Difference:
    """log p_0 + log t - log q of whitened points, with its gradient.

    In `coordinates` q is N(0, I) and t, `site`, is diagonal with `tails`; `constant` is log t - log q at q's mean.
    """
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
    q = around(points)
    draws = q.sample(number, FREEDOM, generator).to(problem.dtype)
    log_prior = torch.cat([problem.log_prior(piece).double() for piece in in_chunks(draws, problem.evaluations)])
    log_weights = with_few_impossible(log_prior) - q.log_density(draws.double(), FREEDOM)
    return Proposals(draws, log_weights, log_weights.new_ones(()))
