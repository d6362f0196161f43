"""Curvatures other than the negative Hessian: Fisher information, priors with jumping scores; and concavity of rows.

**Fisher information**, row by row, is never negative:

    F(θ) = Σ_i w_i E_{y ~ p(y | x_i, θ)}[∇ log p(y | x_i, θ) ∇ log p(y | x_i, θ)']

Source: Guo et al., Eq. (4), with the expectation over y taken exactly where they sample it: over all values of a
discrete observation, and for a normal one by the three-point Gauss-Hermite rule, exact for the location's and the
scale's score. Labels come from the model, not from the data (Kunstner et al. 2019). Deviation: for other distributions,
and where latents of the rows are integrated out, the observed y is used (the "empirical" Fisher information).

**Kinks.** A lasso's second derivatives are zero almost everywhere, and do not represent the prior's curvature. Along
coordinate i, the residual of z_i given the others is r ~ N(0, 1 / P_ii) under q = N(m, P⁻¹), and (Price's theorem,
given the other coordinates)

    E_q[-∂_i ∂_j f] = -E E_t[t ∂_j f(z - r e_i + t s_i e_i)] / s_i,    t ~ N(0, 1),    s_i = P_ii^(-1/2)

with the outer expectation over q's points and the inner one over cells of t, in each of which the density of t is taken
for its mean: exact for linear scores, and exactly zero if ∂_j f does not depend on z_i. The mean of ∂_i f over a cell
is the difference of f at its ends, so that it is continuous as q passes a kink; E_q[∂_i f] uses the same means. A
diagonal site's curvature is -E_q[∂_i f (z - m)_i] / S_ii, at q's points.

**Concavity.** With a Gaussian prior, and rows that are concave in their linear predictors, the posterior has a single
maximum:

    f_i(v) ≤ f_i(u) + ∇f_i(u)'(v - u)     for all u, v,      log p(y_i | z) = f_i(u_i),     u_i = A_i z + b_i

All pairs of some points within `PRIOR_REACH` times the prior's SDs around its mean are compared, which cover the
prior's range of a row's few predictors. A convex part, or an upward kink or jump, shows in some pair.

Letters: P `precision`, r `left`, s `sd`, t `EDGES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.func import grad, jacrev, vjp

from pyro_fed.density.compiling.predictors import CHECK_ROWS, Predictors, predictors
from pyro_fed.density.derivatives.rowwise import piece_size
from pyro_fed.density.derivatives.scores import prior_scores, prior_scores_and_values
from pyro_fed.density.latents.quadrature import GAUSSIAN_ORDER, gauss_hermite
from pyro_fed.density.observations import observation_distribution
from pyro_fed.density.problem import Problem
from pyro_fed.density.rounding import rounding_of
from pyro_fed.density.rows.batches import Batch, ClientData, row_pieces
from pyro_fed.density.running.trace_sites import without_event_dims
from pyro_fed.ops.batched import Moments, quiet, vmap
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.gaussian import FullGaussian
from pyro_fed.ops.matrices import symmetrised
from pyro_fed.ops.memory import count_in_memory
from pyro_fed.ops.points import MOST_SOBOL_DIMS, standardised_sobol
from pyro_fed.ops.whitening import Coordinates, site_scores


def fisher_kind(problem: Problem) -> str:
    """The word "expected" if the expectation over y is exact for this model, otherwise "empirical"."""
    if len(problem.layout.observed) != 1 or problem.layout.factors or problem.local_dim:
        return "empirical"
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    fn = observation_distribution(problem, z, tuple(leaf[:1] for leaf in problem.rows))
    known = fn.has_enumerate_support or isinstance(without_event_dims(fn), dist.Normal)
    return "expected" if known and not fn.event_shape else "empirical"


def fisher_information(problem: Problem, z: Tensor, batch: Batch, structure: str) -> Tensor:
    """F(θ) of a client's batch, (D, D) or, of the structure "diag", (D,)."""
    if fisher_kind(problem) == "empirical":
        with quiet:
            scores = jacrev(lambda t: problem.pointwise_log_lik(t, batch.rows))(z).unsqueeze(1)
        probs = torch.ones_like(batch.weight).unsqueeze(1)
    else:
        scores, probs = problem.vmap(lambda rows: _scores_of_row(problem, z, rows))(batch.rows)
    weights = probs * batch.weight.unsqueeze(1)
    if structure == "full":
        return torch.einsum("iv,ivd,ive->de", weights, scores, scores)
    return torch.einsum("iv,ivd->d", weights, scores.square())


def _scores_of_row(problem: Problem, z: Tensor, row: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Scores at each value of a row's observation, (V, D), and the values' probabilities (V,)."""
    rows = tuple(leaf.unsqueeze(0) for leaf in row)
    values, probs = _quadrature(observation_distribution(problem, z, rows))

    def log_probs(t: Tensor) -> Tensor:
        fn = observation_distribution(problem, t, rows)
        return torch.stack([fn.log_prob(value).reshape(()) for value in values])

    pull = vjp(log_probs, z)[1]
    units = torch.eye(len(values), dtype=z.dtype, device=z.device)
    return torch.stack([pull(unit)[0] for unit in units]), probs


def _quadrature(fn: Any) -> tuple[list[Tensor], Tensor]:
    """Values y and probabilities that give E[f(y)] under a discrete or a normal distribution."""
    if fn.has_enumerate_support:
        values = list(fn.enumerate_support())
        return values, torch.stack([fn.log_prob(value).reshape(()) for value in values]).exp()
    base, (nodes, log_weights) = without_event_dims(fn), gauss_hermite(GAUSSIAN_ORDER, 1)
    return [base.loc + node * base.scale for node in nodes.flatten().tolist()], log_weights.exp().to(base.loc)


#: Ends of the cells along a coordinate, in SDs.
EDGES = torch.linspace(-4.5, 4.5, 25, dtype=torch.float64)
#: Points under q at which it is followed, at most.
KINK_POINTS = 64


def with_kinks(problem: Problem, points: Tensor, found: Moments) -> Moments:
    """The prior's moments at points (S, C, D), along coordinates along which its score jumps by the scores there."""
    turns = problem.traits.prior_kinks.to(points.device)
    if len(points) == 1 or not bool(turns.any()):
        return found
    points = points.double()
    mean = points.mean(0)
    away = points - mean
    if found.curvature.dim() == 2:
        own = -(away * _at(problem, points)[0]).mean(0) / away.square().mean(0)
        return found._replace(curvature=torch.where(turns, own, found.curvature))
    precision = torch.linalg.inv(torch.einsum("sci,scj->cij", away, away) / len(points))
    own = precision.diagonal(dim1=-2, dim2=-1)
    left = torch.einsum("sci,cij->scj", away, precision) / own
    some = evenly(len(points), KINK_POINTS).to(points.device)
    score, curvature = found.score.clone(), found.curvature.clone()
    for entry in turns.nonzero().flatten().tolist():
        others = points[some].clone()
        others[..., entry] -= left[some, :, entry]
        slope, column = _along(problem, others, own[:, entry] ** -0.5, entry)
        score[:, entry] = slope + ((others.mean(0) - mean) * column).sum(-1)  # to where the mean is
        curvature[:, entry], curvature[:, :, entry] = column, column
    return Moments(found.value, score, curvature)


def _along(problem: Problem, others: Tensor, sd: Tensor, entry: int) -> tuple[Tensor, Tensor]:
    """Mean score (C,) along a coordinate of points (S, C, D), of SD `sd` (C,), and its curvatures (C, D)."""
    edges, (mass, slope) = EDGES.to(others), (part.to(others) for part in _cells())
    places = others.unsqueeze(1).repeat(1, len(edges), 1, 1)  # (S, K + 1, C, D)
    places[..., entry] += edges[None, :, None] * sd
    score, value = _at(problem, places)
    over_cells = (score[:, 1:] + score[:, :-1]) / 2
    over_cells[..., entry] = value.diff(dim=1) / (edges.diff()[None, :, None] * sd)
    mean = torch.einsum("k,skc->c", mass, over_cells[..., entry]) / len(others)
    return mean, -torch.einsum("k,skcd->cd", slope, over_cells) / (len(others) * sd.unsqueeze(-1))


def _at(problem: Problem, places: Tensor) -> tuple[Tensor, Tensor]:
    """The prior's scores (..., D) and values (...) at places (..., D), some at a time."""
    flat = places.reshape(-1, places.shape[-1]).to(problem.dtype)
    both = problem.mapped(prior_scores_and_values, (0,))
    pieces = [both(piece[None]) for piece in flat.split(count_in_memory(flat.shape[1]))]
    score, value = (torch.cat([part[0].double() for part in parts]) for parts in zip(*pieces, strict=True))
    return score.reshape(places.shape), value.reshape(places.shape[:-1])


@lru_cache(maxsize=1)
def _cells() -> tuple[Tensor, Tensor]:
    """The mass of t in each cell, (K,), and t times it: such that linear scores have their slope."""
    density = torch.exp(-EDGES.square() / 2) / (2 * torch.pi) ** 0.5
    first = -density.diff()
    mass = torch.special.ndtr(EDGES).diff()
    return mass / mass.sum(), first / (first * (EDGES[1:] + EDGES[:-1]) / 2).sum()


#: Number of points whose tangents are compared, and the number of the prior's SDs over which one of them is spread.
TANGENT_POINTS, PRIOR_REACH = 16, 2.0


def points_for_tangents(problem: Problem) -> Tensor | None:
    """Points (P, D) at which tangents are compared; None if the prior is no Gaussian, or rows have no predictors."""

    def find() -> Tensor | None:
        if problem.layout.improper or problem.dim > MOST_SOBOL_DIMS:
            return None
        sample = predictors(problem, CHECK_ROWS)
        return _under_gaussian(problem) if sample is not None and not sample.direct else None

    found: Tensor | None = problem.compiler.find_once("spread points", find, problem)
    return found


def _under_gaussian(problem: Problem) -> Tensor | None:
    """Points under the prior, `PRIOR_REACH` times as wide; None if it is no Gaussian."""
    eye = torch.eye(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
    ends = prior_scores(problem, torch.cat([torch.zeros_like(eye[:1]), eye])).double()
    precision, eta = symmetrised(ends[0] - ends[1:]), ends[0]
    prior = FullGaussian(precision, eta)
    if not bool(prior.is_proper()):
        return None
    points = Coordinates.of(prior).model(PRIOR_REACH * standardised_sobol(TANGENT_POINTS, problem.dim).to(precision))
    own = prior_scores(problem, points.to(problem.dtype)).double()
    size = eta.abs() + points.abs() @ precision.abs()
    near = rounding_of(size.to(problem.dtype))
    off = (own - site_scores(precision, eta, points)).abs()
    return points if bool((off <= near).all()) else None  # NaN is not less


def count_tangents_below(problem: Problem, points: Tensor, data: ClientData) -> Tensor:
    """Numbers of pairs of points (C, P, D) at which a tangent lies below the log-likelihood of a client's row, (C,)."""
    clients, count = points.shape[:2]
    size = piece_size(data.row_index.shape[-1], clients * count**2)
    parts = predictors(problem, size)
    if parts is None:
        return torch.ones(clients, dtype=torch.float64, device=points.device)
    index, weight = row_pieces(data, size)
    const = (data.rows, points.to(problem.dtype))
    total = torch.zeros(clients, dtype=torch.float64, device=points.device)
    found: Tensor = problem.scan(Tangents(parts).add, total, const, (index, weight), len(index), (None, 0))[0]
    return found


@dataclass(frozen=True)
class Tangents:
    """A count of rows' tangents that lie below, by the predictors `parts` of the model."""

    parts: Predictors

    def add(
        self, problem: Problem, total: Tensor, const: tuple[Any, Tensor], piece: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Any]:
        """The count with a piece of one client's rows, at points (P, D), by row numbers (b,) and weights (b,)."""
        (rows, points), (index, weight) = const, piece
        picked = tuple(leaf[index] for leaf in rows)
        parts = self.parts

        def of_rows(u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            values = parts.rest(u, z, *picked)
            return values.sum(), values

        us = vmap(lambda z: parts.linear(z, *picked))(points)  # (P, b, p)
        slopes, values = vmap(grad(of_rows, has_aux=True))(us, points)
        rise = torch.einsum("amp,bmp->abm", slopes, us) - (slopes * us).sum(-1).unsqueeze(1)
        size = torch.einsum("amp,bmp->abm", slopes.abs(), us.abs()) + (slopes * us).abs().sum(-1).unsqueeze(1)
        size = 1.0 + size + values.abs().unsqueeze(1) + values.abs().unsqueeze(0)
        above = values.unsqueeze(0) <= values.unsqueeze(1) + rise + rounding_of(size)
        below = ~above  # NaN counts as below too
        return total + (below & (weight > 0)).sum().to(total), ()
