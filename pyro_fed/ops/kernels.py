"""Kernels of Stein's method.

Source: Kassab & Simeone, *Federated generalized Bayesian learning via distributed Stein variational
gradient descent*, Eq. (8) and Section 7; Liu & Wang (2016) for SVGD; Liu, Lee & Jordan (2016) for the KSD;
Gorham & Mackey (2017) for the inverse multiquadric; Wang et al. (2019), *SVGD with matrix-valued kernels*, and Liu &
Wang (2018), *SVGD as moment matching*, for those of few particles in many dimensions (Marginal, Balanced).

    RBF      k(x, y) = exp(-||x - y||² / h),   h = med² / log n                                 (Section 7)
    IMQ      k(x, y) = (c² + ||x - y||²)^beta,   beta in (-1, 0)
    Linear   k(x, y) = 1 + (x - m)'(y - m) / d,   m the mean of the particles
    Marginal   K(x, y) = diag_i exp(-(x_i - y_i)² / h_i)
    Balanced   w RBF + (1 - w) Marginal + Linear,   w = min(1, shrinkage n / d)

Letters: n particles, d dimension, h ``bandwidth``, med median distance, c ``scale``, beta ``exponent``,
m ``centre``. Sums, multiples and changes of coordinates: ``kernel_base``.

The paper's "median of the pairwise distances between the particles" is read as the median over the
n (n - 1) / 2 pairs of *different* particles. The public codes differ from it: the original SVGD code and
the DSVGD authors' take the median of the squared distances over the whole n x n matrix, with its n zeros
on the diagonal, and the former divides by log(n + 1). For two particles that median is half their squared
distance; over the pairs it is what the formula says.

``fit`` computes what depends on the particles (h, m) once and holds it fixed: the gradients of Eq. (8) do not go
through it.

Deviation: h has two floors. The first is ``min_relative_bandwidth`` times the particles' mean squared distance to their
mean (of a Gaussian cloud h is 2 / log n times that distance): if more than half of the pairs nearly coincide, the
median is smaller, and single precision cannot distinguish such distances from rounding errors. The second is
``min_bandwidth``, for particles that all coincide: their kernel is one, not exp(-0 / 0). For a single particle the
formula is undefined and Eq. (8) does not depend on h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.ops.kernel_base import Kernel, RadialKernel, ScalarKernel, median_distance, squared_distances
from pyro_fed.ops.memory import count_in_cache, count_in_memory

#: Largest number of blocks of coordinates, each of which adds a dozen operations to a traced step. Blocks of few
#: coordinates are two to four times as fast as all coordinates at once, which allocate memory each time.
MAX_BLOCKS = 256
#: The same for a Stein matrix, and the number of results of a block's size that are held at once.
MAX_MATRIX_BLOCKS, MATRIX_RESULTS = 16, 4


def median_bandwidth(particles: Tensor, min_bandwidth: float, min_relative_bandwidth: float) -> Tensor:
    """h = med² / log n of the paper's Section 7 (0-d), with its two floors; the smallest for a single particle."""
    num_particles = particles.shape[-2]
    if num_particles == 1:
        return particles.new_tensor(min_bandwidth)
    to_mean = 0.5 * squared_distances(particles, particles).mean((-2, -1))  # half the mean over all pairs
    floor = (min_relative_bandwidth * to_mean).clamp_min(min_bandwidth)
    return torch.maximum(median_distance(particles).square() / math.log(num_particles), floor)


@dataclass(frozen=True, eq=False)
class RBF(RadialKernel):
    """exp(-||x - y||² / h), the paper's kernel.

    Args:
        bandwidth: h, in squared units of the particles; "median" for med² / log n; or "ksd" for the multiple of
            that with the largest KSD of the particles, and so the steepest descent of SVGD.
        min_bandwidth: smallest h that the median rule returns.
        min_relative_bandwidth: the same, as a fraction of the particles' mean squared distance to their mean.
        multiples: multiples of the median bandwidth from which "ksd" chooses.

    Raises:
        ValueError: a setting out of its range.

    Example:
        >>> idata = pf.run(pf.DSVGD(kernel=RBF(bandwidth="ksd")), fed)
        >>> RBF(bandwidth=1.0).gram(torch.zeros(1, 2), torch.zeros(1, 2))
        tensor([[1.]])
    """

    bandwidth: float | Tensor | str = "median"
    min_bandwidth: float = 1e-18
    min_relative_bandwidth: float = 1e-4
    multiples: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)

    def __post_init__(self) -> None:
        if isinstance(self.bandwidth, str) and self.bandwidth not in ("median", "ksd"):
            raise ValueError(f"RBF: expected bandwidth 'median', 'ksd' or a number, received {self.bandwidth!r}")
        if not self.multiples or min(self.multiples) <= 0:
            raise ValueError(f"RBF: expected positive multiples, received {self.multiples}")
        if isinstance(self.bandwidth, float | int) and self.bandwidth <= 0:
            raise ValueError(f"RBF: expected bandwidth > 0, received {self.bandwidth}; or use 'median'")
        if self.min_bandwidth <= 0 or self.min_relative_bandwidth < 0:
            raise ValueError(
                "RBF: expected min_bandwidth > 0 and min_relative_bandwidth >= 0, "
                f"received {self.min_bandwidth} and {self.min_relative_bandwidth}"
            )

    def fit(self, particles: Tensor, scores: Tensor | None = None) -> RBF:
        if not isinstance(self.bandwidth, str):
            return self
        median = median_bandwidth(particles, self.min_bandwidth, self.min_relative_bandwidth)
        if self.bandwidth == "median":
            return replace(self, bandwidth=median)
        if scores is None:
            raise ValueError("RBF: bandwidth 'ksd' depends on the scores: call kernel.fit(particles, scores)")
        return replace(self, bandwidth=self._bandwidth_of_largest_ksd(particles, scores, median))

    def _bandwidth_of_largest_ksd(self, particles: Tensor, scores: Tensor, median: Tensor) -> Tensor:
        """The multiple in `multiples` of the median bandwidth that has the largest KSD (U-statistic)."""
        discrepancies = []
        for multiple in self.multiples:
            matrix = replace(self, bandwidth=multiple * median).stein_matrix(particles, scores, scores)
            discrepancies.append(matrix.sum() - matrix.diagonal().sum())
        best = torch.stack(discrepancies).argmax()
        return (
            median * torch.as_tensor(self.multiples, dtype=median.dtype, device=median.device).gather(0, best[None])[0]
        )

    def profile(self, squared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(self.bandwidth, str):
            raise ValueError("RBF: the bandwidth is not known yet; call kernel.fit(particles) first")
        value = torch.exp(-squared / self.bandwidth)
        slope = -value / self.bandwidth
        return value, slope, -slope / self.bandwidth


#: The kernel of all defaults, a single object so that equal settings compare equal.
MEDIAN_RBF = RBF()


@dataclass(frozen=True, eq=False)
class IMQ(RadialKernel):
    """(c² + ||x - y||²)^beta, the inverse multiquadric.

    Its slow decay makes the KSD control weak convergence, which the RBF kernel's does not
    (Gorham & Mackey, 2017, Theorem 8, for beta in (-1, 0)).

    Args:
        scale: c, in units of the particles.
        exponent: beta.

    Raises:
        ValueError: a setting out of its range.

    Example:
        >>> idata = pf.run(pf.DSVGD(kernel=IMQ()), fed)
        >>> IMQ(scale=2.0).gram(torch.zeros(1, 2), torch.zeros(1, 2))
        tensor([[0.5000]])
    """

    scale: float = 1.0
    exponent: float = -0.5

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"IMQ: expected scale > 0, received {self.scale}")
        if not -1 < self.exponent < 0:
            raise ValueError(f"IMQ: expected exponent in (-1, 0), received {self.exponent}; -0.5 is usual")

    def fit(self, particles: Tensor, scores: Tensor | None = None) -> IMQ:
        return self

    def profile(self, squared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        base = self.scale**2 + squared
        value = base.pow(self.exponent)
        slope = self.exponent * value / base
        return value, slope, (self.exponent - 1.0) * slope / base


@dataclass(frozen=True, eq=False)
class Linear(ScalarKernel):
    """1 + (x - m)'(y - m) / d, which makes SVGD match means and covariances exactly.

    For a Gaussian target N(mu, Sigma) the velocity is zero at N > d particles in general position exactly
    where their mean is mu and their covariance (divisor N) is Sigma (Liu & Wang, 2018, *SVGD as moment
    matching*). It is blind to higher moments: add it to another kernel.

    Args:
        centre: m, (D,); ``None`` takes the particles' mean.

    Example:
        >>> idata = pf.run(pf.DSVGD(kernel=RBF() + Linear()), fed)
    """

    centre: Tensor | None = None

    def fit(self, particles: Tensor, scores: Tensor | None = None) -> Linear:
        return self if self.centre is not None else replace(self, centre=particles.mean(-2))

    def _offset(self, x: Tensor) -> Tensor:
        if self.centre is None:
            raise ValueError("Linear: the centre is not known yet; call kernel.fit(particles) first")
        return x - self.centre

    def gram(self, x: Tensor, y: Tensor) -> Tensor:
        return 1.0 + self._offset(x) @ self._offset(y).transpose(-1, -2) / x.shape[-1]

    def gram_and_repulsion(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.gram(x, y), x.shape[-2] * self._offset(y) / x.shape[-1]

    def gradient_dot(self, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
        row = (self._offset(y) * vectors).sum(-1) / x.shape[-1]
        return row.unsqueeze(-2).expand(*row.shape[:-1], x.shape[-2], row.shape[-1])

    def trace(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(self.gram(x, y))


@dataclass(frozen=True, eq=False)
class Marginal(Kernel):
    """diag_i exp(-(x_i - y_i)² / h_i): the kernel of a coordinate depends on distances along that coordinate alone.

    This matrix-valued kernel imposes Stein's identity on every function of one coordinate, so that the marginals are
    right given how coordinates depend on each other, and it is as sharp in many dimensions as in one. It is blind to
    dependence: add `Linear` to it. It takes D of `RBF`'s Gram matrices, computed for some coordinates at a time.

    Args:
        bandwidth: h, (D,); None takes the mean of (x_i - y_i)² over pairs, 2 var(x_i), over log N.
        min_bandwidth: smallest h.
    """

    bandwidth: Tensor | None = None
    min_bandwidth: float = 1e-18

    def __post_init__(self) -> None:
        if self.min_bandwidth <= 0:
            raise ValueError(f"Marginal: expected min_bandwidth > 0, received {self.min_bandwidth}")

    def fit(self, particles: Tensor, scores: Tensor | None = None) -> Marginal:
        if self.bandwidth is not None:
            return self
        offset = particles - particles.mean(-2, keepdim=True)  # torch's `var` of columns takes ten times as long
        squares = 2.0 * offset.square().mean(-2) / math.log(max(particles.shape[-2], 2))
        return replace(self, bandwidth=squares.clamp_min(self.min_bandwidth))

    def _fitted(self) -> Tensor:
        if self.bandwidth is None:
            raise ValueError("Marginal: the bandwidth is not known yet; call kernel.fit(particles) first")
        return self.bandwidth

    def velocity(self, points: Tensor, particles: Tensor, scores: Tensor) -> Tensor:
        # Blocks of coordinates in units of √h: k = exp(-(y - x)²), and sums over particles are products with k,
        # Σ k (s + 2 (y - x) / √h) = Σ k (s - 2 x / √h) + 2 y / √h Σ k, which limits the (D, N, M) numbers. They are
        # stored by coordinate: with other strides torch copies and multiplies one matrix after another.
        unit = self._fitted().sqrt()
        centre = particles.mean(-2, keepdim=True)  # centred, since far from the origin the sums cancel
        x, y = (((part - centre) / unit).mT.contiguous() for part in (particles, points))
        weights = torch.stack([scores.mT - 2.0 * x / unit.unsqueeze(-1), torch.ones_like(x)], -2)
        size = max(count_in_cache(x.shape[-1] * y.shape[-1]), -(-x.shape[-2] // MAX_BLOCKS))
        blocks = zip(x.split(size, -2), y.split(size, -2), weights.split(size, -3), strict=True)
        sums = torch.cat([w @ torch.exp(-(b.unsqueeze(-2) - a.unsqueeze(-1)).square()) for a, b, w in blocks], -3)
        return ((sums[..., 0, :] + 2.0 * y / unit.unsqueeze(-1) * sums[..., 1, :]) / particles.shape[-2]).mT

    def stein_matrix(self, particles: Tensor, left: Tensor, right: Tensor) -> Tensor:
        count, dim = particles.shape[-2:]
        fast = max(count_in_cache(count**2), -(-dim // MAX_MATRIX_BLOCKS))
        size = min(fast, count_in_memory(MATRIX_RESULTS * count**2))
        parts = (part.split(size, -1) for part in (particles, left, right, self._fitted()))
        first, *others = (_stein_matrix(*part) for part in zip(*parts, strict=True))
        return sum(others, first)


def _stein_matrix(x: Tensor, left: Tensor, right: Tensor, bandwidth: Tensor) -> Tensor:
    """The Stein matrix of some coordinates: with g = 2 (x_j - x_i) / h it has g k, -g k, and (2 / h - g²) k mixed."""
    difference = x.unsqueeze(-3) - x.unsqueeze(-2)
    gram, slope = torch.exp(-difference.square() / bandwidth), 2.0 * difference / bandwidth
    return (gram * ((left.unsqueeze(-2) + slope) * (right.unsqueeze(-3) - slope) + 2.0 / bandwidth)).sum(-1)


@dataclass(frozen=True, eq=False)
class Balanced(Kernel):
    """w RBF + (1 - w) Marginal + Linear, with as large a share w of RBF as N particles in d dimensions allow.

    At the median bandwidth the RBF kernel between different particles is near 1 / N, by the choice of log N. In many
    dimensions a particle then hardly interacts with others and moves to the mode: each variance of a whitened target
    loses w d / N (exp(-med² / h) = 1 / N in the balance of attraction and repulsion). Hence

        w = min(1, shrinkage N / d)

    In few dimensions, with w near 1, the kernel matches more than two moments. In many, with w small, the linear part
    keeps the variances right. Alone it would only map the cloud affinely, and with D coefficients per coordinate it
    would fit chance relations among N particles, which then drift out along a skewed parameter. The marginal kernel has
    no such freedom and matches the shape of each coordinate.

    Args:
        shrinkage: largest share of a variance that may be lost.
    """

    shrinkage: float = 0.02

    def __post_init__(self) -> None:
        if self.shrinkage <= 0:
            raise ValueError(f"Balanced: expected shrinkage > 0, received {self.shrinkage}")

    def fit(self, particles: Tensor, scores: Tensor | None = None) -> Kernel:
        count, dim = particles.shape[-2:]
        share = min(1.0, self.shrinkage * count / dim)
        kernel = share * MEDIAN_RBF + Linear()
        return (kernel if share == 1.0 else kernel + (1.0 - share) * Marginal()).fit(particles, scores)

    def velocity(self, points: Tensor, particles: Tensor, scores: Tensor) -> Tensor:
        return self.fit(particles, scores).velocity(points, particles, scores)

    def stein_matrix(self, particles: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self.fit(particles, left).stein_matrix(particles, left, right)
