"""Scalar kernels of Stein's method.

Source: Kassab & Simeone, *Federated generalized Bayesian learning via distributed Stein variational
gradient descent*, Eq. (8) and Section 7; Liu & Wang (2016) for SVGD; Liu, Lee & Jordan (2016) for the KSD;
Gorham & Mackey (2017) for the inverse multiquadric.

    RBF      k(x, y) = exp(-||x - y||² / h),   h = med² / log n                                 (Section 7)
    IMQ      k(x, y) = (c² + ||x - y||²)^beta,   beta in (-1, 0)
    Linear   k(x, y) = 1 + (x - m)'(y - m) / d,   m the mean of the particles

Letters: n particles, d dimension, h ``bandwidth``, med median distance, c ``scale``, beta ``exponent``,
m ``centre``. Sums, multiples and changes of coordinates: ``kernel_base``; many dimensions: ``balanced``.

The paper's "median of the pairwise distances between the particles" is read as the median over the
n (n - 1) / 2 pairs of *different* particles. The public codes differ from it: the original SVGD code and
the DSVGD authors' take the median of the squared distances over the whole n x n matrix, with its n zeros
on the diagonal, and the former divides by log(n + 1). For two particles that median is half their squared
distance; over the pairs it is what the formula says.

What a kernel learns from the particles (h, m) is found once by ``fit`` and then held fixed: the gradients
of Eq. (8) do not go through it.

Deviation: h has two floors. ``min_relative_bandwidth`` times the particles' mean squared distance to their
mean: where more than half of the pairs nearly coincide the median is less than that, and single precision
cannot tell such distances from rounding (a Gaussian cloud is at 2 / log n). And ``min_bandwidth``, for
particles that all coincide, whose kernel is then one everywhere and not exp(-0 / 0). With one particle the
formula has no meaning and Eq. (8) does not depend on h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.ops.kernel_base import RadialKernel, ScalarKernel
from pyro_fed.ops.pairwise import median_distance, squared_distances


def median_bandwidth(particles: Tensor, min_bandwidth: float, min_relative_bandwidth: float) -> Tensor:
    """h = med² / log n of the paper's Section 7 (0-d), with its two floors; the smallest value for a single particle.

    `min_bandwidth` is in squared units of the particles, `min_relative_bandwidth` a fraction of their mean squared
    distance to their mean.
    """
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
        bandwidth: h, in squared units of the particles, or "median" for med² / log n, or "ksd" for the
            multiple of that at which the KSD of the particles is largest, and so SVGD's descent steepest.
        min_bandwidth: smallest h that the median rule returns.
        min_relative_bandwidth: the same, as a fraction of the particles' mean squared distance to their mean.
        multiples: of the median bandwidth, that "ksd" chooses from.

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
        return replace(self, bandwidth=self._most_telling(particles, scores, median))

    def _most_telling(self, particles: Tensor, scores: Tensor, median: Tensor) -> Tensor:
        """The multiple in `multiples` of the median bandwidth that has the largest KSD (U-statistic)."""
        found = []
        for multiple in self.multiples:
            matrix = replace(self, bandwidth=multiple * median).stein_matrix(particles, scores, scores)
            found.append(matrix.sum() - matrix.diagonal().sum())
        best = torch.stack(found).argmax()
        return (
            median * torch.as_tensor(self.multiples, dtype=median.dtype, device=median.device).gather(0, best[None])[0]
        )

    def profile(self, squared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(self.bandwidth, str):
            raise ValueError("RBF: the bandwidth is not known yet; call kernel.fit(particles) first")
        value = torch.exp(-squared / self.bandwidth)
        slope = -value / self.bandwidth
        return value, slope, -slope / self.bandwidth


#: One kernel object for all defaults, so that equal settings are equal.
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
    matching*). It sees nothing beyond two moments: add it to another kernel.

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
