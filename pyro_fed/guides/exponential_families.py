"""Exponential families that a hand-written guide may use at its global sites, in natural parameters.

    q(θ | λ) = h(θ) exp(λ'T(θ) - A(λ))        products and quotients add and subtract λ; h cancels once

    Normal              T = (x, x²)              λ = (m / v, -1 / 2v)       h = 1
    LogNormal           T = (log x, log² x)      λ as of log x              h = 1 / x
    MultivariateNormal  T = (x, -x_a² / 2, -x_a x_b for a > b)   λ = (P m, P_aa, P_ab)   h = 1
    Gamma               T = (log x, x)           λ = (a - 1, -b)            h = 1
    Beta                T = (log x, log(1 - x))  λ = (a - 1, b - 1)         h = 1
    Dirichlet           T = log x                λ = α - 1                  h = 1

Letters: λ `natural` (..., p), T `statistics`, log h `log_base`. Leading axes are a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributions as dist

from pyro_fed.ops.matrices import times


class Family(ABC):
    """A family of distributions; `event_dim` trailing dimensions of a value belong to one member."""

    kind: ClassVar[Any]
    event_dim = 0

    @abstractmethod
    def natural(self, fn: Any) -> Tensor:
        """λ of a distribution, (*batch, p), float64."""

    @abstractmethod
    def distribution(self, natural: Tensor) -> dist.Distribution:
        """The members with parameters (*batch, p), whose `rsample` can be differentiated."""

    @abstractmethod
    def statistics(self, x: Tensor) -> Tensor:
        """T(x), (*batch, p), of values (*batch, *event)."""

    @abstractmethod
    def proper(self, natural: Tensor) -> Tensor:
        """Whether each member can be normalised, (*batch,)."""

    def draws(self, natural: Tensor) -> Tensor:
        """One draw of each member (S, *batch, p), differentiable; for normal ones the second half mirrors the first."""
        found: Tensor = self.distribution(natural).rsample()
        return found

    def log_base(self, x: Tensor) -> Tensor:
        """Log of the base measure h at x, (*batch,)."""
        return x.new_zeros(x.shape[: x.dim() - self.event_dim])


class NormalFamily(Family):
    """Normal distributions with natural parameters (m/s², -1/(2 s²))."""

    kind: ClassVar[Any] = dist.Normal

    def natural(self, fn: Any) -> Tensor:
        variance = fn.scale.double().square()
        return torch.stack([fn.loc.double() / variance, -0.5 / variance], -1)

    def distribution(self, natural: Tensor) -> dist.Distribution:
        variance = -0.5 / natural[..., 1]
        found: dist.Distribution = self.kind(natural[..., 0] * variance, variance.sqrt(), validate_args=False)
        return found

    def draws(self, natural: Tensor) -> Tensor:
        variance = -0.5 / natural[..., 1]
        return natural[..., 0] * variance + variance.sqrt() * _mirrored(variance)

    def statistics(self, x: Tensor) -> Tensor:
        return torch.stack([x, x.square()], -1)

    def proper(self, natural: Tensor) -> Tensor:
        return natural[..., 1] < 0


class LogNormalFamily(NormalFamily):
    """Log-normal distributions: the logarithm is normal, with its natural parameters."""

    kind = dist.LogNormal

    def draws(self, natural: Tensor) -> Tensor:
        return super().draws(natural).exp()

    def statistics(self, x: Tensor) -> Tensor:
        return super().statistics(x.log())

    def log_base(self, x: Tensor) -> Tensor:
        return -x.log()


class MultivariateNormalFamily(Family):
    """Normal distributions of vectors, with a full precision."""

    kind = dist.MultivariateNormal
    event_dim = 1

    def natural(self, fn: Any) -> Tensor:
        precision, mean = fn.precision_matrix.double(), fn.loc.double()
        rows, columns = torch.tril_indices(mean.shape[-1], mean.shape[-1])
        return torch.cat([times(precision, mean), precision[..., rows, columns]], -1)

    def distribution(self, natural: Tensor) -> dist.Distribution:
        eta, precision = self._split(natural)
        mean = torch.linalg.solve(precision, eta.unsqueeze(-1)).squeeze(-1)
        return self.kind(mean, precision_matrix=precision, validate_args=False)

    def draws(self, natural: Tensor) -> Tensor:
        fn: Any = self.distribution(natural)
        found: Tensor = fn.loc + times(fn.scale_tril, _mirrored(fn.loc))
        return found

    def statistics(self, x: Tensor) -> Tensor:
        rows, columns = torch.tril_indices(x.shape[-1], x.shape[-1])
        weight = torch.where(rows == columns, -0.5, -1.0).to(x)
        return torch.cat([x, weight * x[..., rows] * x[..., columns]], -1)

    def proper(self, natural: Tensor) -> Tensor:
        failed: Tensor = torch.linalg.cholesky_ex(self._split(natural)[1].nan_to_num()).info
        return failed == 0

    def _split(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """P m and P."""
        size = int(((9 + 8 * natural.shape[-1]) ** 0.5 - 3) / 2 + 0.5)
        rows, columns = torch.tril_indices(size, size)
        lower = natural.new_zeros((*natural.shape[:-1], size, size))
        lower[..., rows, columns] = natural[..., size:]
        return natural[..., :size], lower + lower.tril(-1).mT


class GammaFamily(Family):
    """Gamma distributions with natural parameters (shape - 1, -rate)."""

    kind = dist.Gamma

    def natural(self, fn: Any) -> Tensor:
        return torch.stack([fn.concentration.double() - 1, -fn.rate.double()], -1)

    def distribution(self, natural: Tensor) -> dist.Distribution:
        return self.kind(natural[..., 0] + 1, -natural[..., 1], validate_args=False)

    def statistics(self, x: Tensor) -> Tensor:
        return torch.stack([x.log(), x], -1)

    def proper(self, natural: Tensor) -> Tensor:
        return (natural[..., 0] > -1) & (natural[..., 1] < 0)


class BetaFamily(Family):
    """Beta distributions with natural parameters (a - 1, b - 1)."""

    kind = dist.Beta

    def natural(self, fn: Any) -> Tensor:
        return torch.stack([fn.concentration1.double() - 1, fn.concentration0.double() - 1], -1)

    def distribution(self, natural: Tensor) -> dist.Distribution:
        return self.kind(natural[..., 0] + 1, natural[..., 1] + 1, validate_args=False)

    def statistics(self, x: Tensor) -> Tensor:
        return torch.stack([x.log(), (-x).log1p()], -1)

    def proper(self, natural: Tensor) -> Tensor:
        return (natural > -1).all(-1)


class DirichletFamily(Family):
    """Dirichlet distributions with natural parameters concentration - 1."""

    kind = dist.Dirichlet
    event_dim = 1

    def natural(self, fn: Any) -> Tensor:
        concentration: Tensor = fn.concentration.double()
        return concentration - 1

    def distribution(self, natural: Tensor) -> dist.Distribution:
        return self.kind(natural + 1, validate_args=False)

    def statistics(self, x: Tensor) -> Tensor:
        return x.log()

    def proper(self, natural: Tensor) -> Tensor:
        return (natural > -1).all(-1)


def _mirrored(like: Tensor) -> Tensor:
    """Standard normal numbers (S, ...), whose second half is minus the first."""
    half = torch.randn_like(like[: (len(like) + 1) // 2])
    return torch.cat([half, -half])[: len(like)].detach()


#: The families, which are looked up by `isinstance`.
FAMILIES: tuple[Family, ...] = (
    LogNormalFamily(),
    NormalFamily(),
    MultivariateNormalFamily(),
    GammaFamily(),
    BetaFamily(),
    DirichletFamily(),
)
