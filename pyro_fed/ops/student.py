"""Mixtures of multivariate Student-t distributions: their density, draws of them, and fits to weighted points.

    t_j(z) ∝ |F_j|⁻¹ (1 + r²/ν)^(-(ν + D)/2),   r = |F_j⁻¹ (z - m_j)|

Fits are those of Gaussian mixtures by expectation-maximisation. The covariance of a component whose points have an
effective sample size of n is shrunk towards its diagonal by D / (n + D) (Cappé et al. 2008, *Adaptive importance
sampling in general mixture classes*, for the use of such fits as proposals).

Letters: m `centres` (J, D), F `factors` (J, D, D) lower triangular, ν `freedom`.

`Tails` replaces a Gaussian factor's tails by such longer ones, so that draws reach regions where the factor is too
small:

    t(z) = exp(-z'Λz/2 + η'z)  →  t(z) exp h(z),   h = r²/2 - (ν + R)/2 log(1 + r²/ν),   r² = Σ_i λ_i (z_i - b_i)²

Coordinates are such that the product of all factors is N(0, I) and Λ is diagonal. The sum is over the λ_i that count,
and b_i = η_i / λ_i is the factor's centre. R = Σ_i λ_i (1 + b_i²) is the mean of r² under N(0, I): near it the factor
keeps its slope, far out it falls as a power. With all λ_i = 1 and b_i = 0 it is the multivariate t.

Letters: λ `values` (D,), b `centre` (D,), R `typical`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.gaussian import DiagGaussian
from pyro_fed.ops.importance import systematic
from pyro_fed.ops.points import even_normals

#: Directions in which the factor has less than this share of the whole precision are left unchanged.
MIN_PRECISION_SHARE = 0.01


class Mixture(NamedTuple):
    """J components, each with the number of points (J,) drawn from it, or a share."""

    counts: Tensor
    centres: Tensor
    factors: Tensor

    def joined(self, other: Mixture) -> Mixture:
        """The components of both."""
        return Mixture(*(torch.cat(pair) for pair in zip(self, other, strict=True)))

    def log_density(self, points: Tensor, freedom: float) -> Tensor:
        """log Σ_j counts_j t_j at points (S, D): (S,); freedom inf is Gaussian."""
        return torch.logsumexp(self.log_densities(points, freedom), 0)

    def log_densities(self, points: Tensor, freedom: float) -> Tensor:
        """log counts_j t_j at points (S, D): (J, S), computed component by component to limit memory."""
        dim = points.shape[1]
        squared = torch.stack(
            [
                torch.linalg.solve_triangular(factor, (points - centre).mT, upper=False).square().sum(0)
                for centre, factor in zip(self.centres, self.factors, strict=True)
            ]
        )
        log_det = self.factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        if math.isinf(freedom):
            value = -0.5 * squared - 0.5 * dim * math.log(2 * math.pi)
        else:
            constant = math.lgamma((freedom + dim) / 2) - math.lgamma(freedom / 2)
            constant -= 0.5 * dim * math.log(freedom * math.pi)
            value = constant - 0.5 * (freedom + dim) * torch.log1p(squared / freedom)
        return value + (self.counts.log() - log_det).unsqueeze(1)

    def draws(self, freedom: int, generator: torch.Generator) -> Tensor:
        """`counts` draws of each component: (Σ counts, D)."""
        return self._drawn(torch.repeat_interleave(self.counts.long()), freedom, generator)

    def sample(self, count: int, freedom: int, generator: torch.Generator) -> Tensor:
        """Draws (count, D), if the counts are shares; each component's number is rounded up or down at random."""
        return self._drawn(systematic(self.counts, count, generator), freedom, generator)

    def _drawn(self, which: Tensor, freedom: int, generator: torch.Generator) -> Tensor:
        """One draw of each of the components with numbers `which` (S,)."""
        dim = self.centres.shape[1]
        normal = even_normals(len(which), dim + freedom, generator)
        root = normal[:, dim:].square().mean(1).sqrt()
        scaled = (normal[:, :dim] / root.unsqueeze(1)).to(self.centres)
        return self.centres[which] + torch.einsum("sde,se->sd", self.factors[which], scaled)

    def shared_out(self, total: int) -> Mixture:
        """This mixture with whole numbers that add up to `total`, in proportion to the counts."""
        edges = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0) / self.counts.sum()]) * total
        return self._replace(counts=edges.round().diff())

    def wider(self, factor: float) -> Mixture:
        """This mixture with standard deviations multiplied by a factor."""
        return self._replace(factors=factor * self.factors)

    def used(self) -> Mixture:
        """This mixture without the components that have no points."""
        return Mixture(*(part[self.counts > 0] for part in self))


def fitted(points: Tensor, weights: Tensor, count: int, steps: int, generator: torch.Generator) -> Mixture:
    """A mixture of J = `count` Gaussians fitted to points (S, D) with normalised weights (S,); counts are shares."""
    positive = weights > 0
    points, weights = points[positive], weights[positive]
    dim = points.shape[1]
    mean = weights @ points
    scale = (weights @ (points - mean).square()).sqrt().clamp_min(torch.finfo(points.dtype).tiny)
    x = (points - mean) / scale
    centres = x[systematic(weights, count, generator)]
    whole = torch.einsum("s,sd,se->de", weights, x, x)
    factors = _factors((whole * count ** (-2 / dim)).expand(count, dim, dim), torch.ones(count, dtype=x.dtype))
    mixture = Mixture(torch.full((count,), 1 / count, dtype=x.dtype), centres, factors)
    for _ in range(steps):
        share = weights * torch.softmax(mixture.log_densities(x, math.inf), 0)  # (J, S)
        total = share.sum(1).clamp_min(torch.finfo(x.dtype).tiny)
        worth = total.square() / share.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
        centres = share @ x / total.unsqueeze(1)
        offset = x - centres.unsqueeze(1)
        covariance = torch.einsum("js,jsd,jse->jde", share, offset, offset) / total.reshape(-1, 1, 1)
        mixture = Mixture(total / total.sum(), centres, _factors(covariance, worth))
    return Mixture(mixture.counts, mean + mixture.centres * scale, scale.unsqueeze(1) * mixture.factors)


def _factors(covariance: Tensor, worth: Tensor) -> Tensor:
    """Cholesky factors of shrunk covariances (J, D, D) of points with effective sample sizes `worth` (J,)."""
    dim = covariance.shape[-1]
    # A component with a single point stays a density.
    diagonal = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1) + torch.finfo(covariance.dtype).eps ** 0.5)
    towards = (dim / (worth + dim)).reshape(-1, 1, 1)
    lower, failed = torch.linalg.cholesky_ex((1 - towards) * covariance + towards * diagonal)
    return torch.where((failed == 0).reshape(-1, 1, 1), lower, diagonal.sqrt())


class Tails(NamedTuple):
    """λ of a factor, zero where it does not count, its centre, degrees of freedom, and the typical r²."""

    values: Tensor
    centre: Tensor
    freedom: float
    typical: Tensor

    @classmethod
    def of(cls, factor: DiagGaussian, freedom: float | None) -> Tails:
        """The tails of a factor in coordinates that whiten the whole; None leaves the coordinates unchanged."""
        counted = factor.precision > (MIN_PRECISION_SHARE if freedom is not None else torch.inf)
        # Excluded are directions in which the whole mean is more than one of the factor's SDs from its centre: other
        # factors hold the mean there, and with longer tails of this factor would move it towards themselves.
        counted &= factor.eta.square() <= factor.precision
        values = torch.where(counted, factor.precision, 0.0)
        centre = torch.where(counted, factor.eta / torch.where(counted, factor.precision, 1.0), 0.0)
        return cls(values, centre, freedom or torch.inf, (values * (1 + centre.square())).sum())

    def log_ratio(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """h (S,) and its gradient (S, D) at z (S, D)."""
        if not bool(self.values.any()):
            return torch.zeros_like(z[:, 0]), torch.zeros_like(z)
        offset = z - self.centre
        slope = offset * self.values
        squared = (slope * offset).sum(-1)
        weight = self.freedom + self.typical
        value = squared / 2 - weight / 2 * torch.log1p(squared / self.freedom)
        return value, (1 - weight / (self.freedom + squared)).unsqueeze(-1) * slope
