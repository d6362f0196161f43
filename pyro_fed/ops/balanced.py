"""Kernels for clouds of few particles in many dimensions.

Source: Wang et al. (2019), *SVGD with matrix-valued kernels*; Liu & Wang (2018), *SVGD as moment matching*.

    Marginal   K(x, y) = diag_i exp(-(x_i - y_i)² / h_i)
    Balanced   w RBF + (1 - w) Marginal + Linear,   w = min(1, shrinkage N / d)

Letters: N particles, d dimension, h ``bandwidth``, found by ``fit`` as in ``kernels``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pyro_fed.ops.kernel_base import Kernel
from pyro_fed.ops.kernels import MEDIAN_RBF, Linear

#: Bytes of differences that are written out at once: two to four times as fast as all of them, for which memory is
#: asked for each time.
BLOCK = 640_000
#: Blocks that there are at most, larger where need be: each is a dozen operations of a traced step.
MOST_BLOCKS = 256
#: Numbers of a Stein matrix's differences that are written out at once: 8 MB in single precision, several times over.
DIFFERENCES = 2_000_000
#: Pieces that these are cut into, at most, to be as quick as the others (`BLOCK`).
FEW_BLOCKS = 16


@dataclass(frozen=True, eq=False)
class Marginal(Kernel):
    """diag_i exp(-(x_i - y_i)² / h_i): each coordinate sees the distances along itself alone.

    As a matrix-valued kernel it asks Stein's identity of every function of one coordinate, so that the marginals
    are right given how coordinates depend on each other, and it is as sharp in many dimensions as in one. It does
    not see dependence: add `Linear` to it. Its (N, M, D) differences are written out, some coordinates at a time: D of
    `RBF`'s Gram matrices.

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
        away = particles - particles.mean(-2, keepdim=True)  # torch's `var` of columns takes ten times as long
        squares = 2.0 * away.square().mean(-2) / math.log(max(particles.shape[-2], 2))
        return replace(self, bandwidth=squares.clamp_min(self.min_bandwidth))

    def _fitted(self) -> Tensor:
        if self.bandwidth is None:
            raise ValueError("Marginal: the bandwidth is not known yet; call kernel.fit(particles) first")
        return self.bandwidth

    def velocity(self, points: Tensor, particles: Tensor, scores: Tensor) -> Tensor:
        # Some coordinates at a time, in units of √h: k = exp(-(y - x)²), and sums over particles are products with k,
        # Σ k (s + 2 (y - x) / √h) = Σ k (s - 2 x / √h) + 2 y / √h Σ k, so that few (D, N, M) numbers are made. They lie
        # coordinate by coordinate: of other strides torch multiplies one matrix after another, each copied first.
        unit = self._fitted().sqrt()
        middle = particles.mean(-2, keepdim=True)  # far from the origin the sums would cancel
        x, y = (((part - middle) / unit).mT.contiguous() for part in (particles, points))
        weights = torch.stack([scores.mT - 2.0 * x / unit.unsqueeze(-1), torch.ones_like(x)], -2)
        size = max(1, BLOCK // (x.element_size() * x.shape[-1] * y.shape[-1]), -(-x.shape[-2] // MOST_BLOCKS))
        blocks = zip(x.split(size, -2), y.split(size, -2), weights.split(size, -3), strict=True)
        sums = torch.cat([w @ torch.exp(-(b.unsqueeze(-2) - a.unsqueeze(-1)).square()) for a, b, w in blocks], -3)
        return ((sums[..., 0, :] + 2.0 * y / unit.unsqueeze(-1) * sums[..., 1, :]) / particles.shape[-2]).mT

    def stein_matrix(self, particles: Tensor, left: Tensor, right: Tensor) -> Tensor:
        count, dim = particles.shape[-2:]
        fast = max(BLOCK // particles.element_size(), count**2 * -(-dim // FEW_BLOCKS))
        size = max(1, min(fast, DIFFERENCES) // count**2)
        parts = (part.split(size, -1) for part in (particles, left, right, self._fitted()))
        first, *others = (_stein_matrix(*part) for part in zip(*parts, strict=True))
        return sum(others, first)


def _stein_matrix(x: Tensor, left: Tensor, right: Tensor, bandwidth: Tensor) -> Tensor:
    """The Stein matrix of some coordinates: with g = 2 (x_j - x_i) / h it has g k, -g k, and (2 / h - g²) k mixed."""
    apart = x.unsqueeze(-3) - x.unsqueeze(-2)
    gram, slope = torch.exp(-apart.square() / bandwidth), 2.0 * apart / bandwidth
    return (gram * ((left.unsqueeze(-2) + slope) * (right.unsqueeze(-3) - slope) + 2.0 / bandwidth)).sum(-1)


@dataclass(frozen=True, eq=False)
class Balanced(Kernel):
    """w RBF + (1 - w) Marginal + Linear, with as large a share w of RBF as N particles in d dimensions allow.

    Off the diagonal the RBF kernel is near 1 / N at the median bandwidth (that is what log N is for), so in
    many dimensions it sees a particle alone, pulls it to the mode, and takes w d / N off each variance of a
    whitened target (exp(-med² / h) = 1 / N in the balance of attraction and repulsion). Hence

        w = min(1, shrinkage N / d)

    With w near 1 in few dimensions the kernel sees more than two moments. With w small in many, the linear part
    keeps the variances right; but alone it can only map the cloud affinely, and with D coefficients a coordinate
    it fits chance relations among N particles, which then drift out along a skewed parameter. The marginal
    kernel has no such freedom and sees the shape of each coordinate.

    Args:
        shrinkage: largest share of a variance that may be lost.
        rbf: the RBF kernel.
    """

    shrinkage: float = 0.02
    rbf: Kernel = field(default=MEDIAN_RBF)

    def __post_init__(self) -> None:
        if self.shrinkage <= 0:
            raise ValueError(f"Balanced: expected shrinkage > 0, received {self.shrinkage}")

    def fit(self, particles: Tensor, scores: Tensor | None = None) -> Kernel:
        count, dim = particles.shape[-2:]
        share = min(1.0, self.shrinkage * count / dim)
        kernel = share * self.rbf + Linear()
        return (kernel if share == 1.0 else kernel + (1.0 - share) * Marginal()).fit(particles, scores)

    def velocity(self, points: Tensor, particles: Tensor, scores: Tensor) -> Tensor:
        return self.fit(particles, scores).velocity(points, particles, scores)

    def stein_matrix(self, particles: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self.fit(particles, left).stein_matrix(particles, left, right)
