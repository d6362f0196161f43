"""A hand-written guide as a product of exponential families, in one flat vector of natural parameters.

    q(θ | λ) = h(θ) exp(λ'T(θ) - A(λ))        products and quotients add and subtract λ; h cancels once

    Normal              T = (x, x²)              λ = (m / v, -1 / 2v)       h = 1
    LogNormal           T = (log x, log² x)      λ as of log x              h = 1 / x
    MultivariateNormal  T = (x, -x_a² / 2, -x_a x_b for a > b)   λ = (P m, P_aa, P_ab)   h = 1
    Gamma               T = (log x, x)           λ = (a - 1, -b)            h = 1
    Beta                T = (log x, log(1 - x))  λ = (a - 1, b - 1)         h = 1
    Dirichlet           T = log x                λ = α - 1                  h = 1

A run of the guide on the model's arguments, in a param store of its own, gives its families, their shapes and the
initial q. Global sites have to be independent of each other. Local sites, inside the plate, are not used and may depend
on anything.

Letters: λ `natural` (..., p), T `statistics`, log h `log_base`. Leading axes are a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from pyro import poutine
from torch import Tensor
from torch import distributions as dist

from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import run_by_pyro
from pyro_fed.density.running.trace_sites import without_event_dims
from pyro_fed.errors import SettingError
from pyro_fed.guides.guide_runs import check_names, check_support, model_sites, own_params, sampled_sites
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
        """The distribution with parameters (*batch, p); its `rsample` can be differentiated."""

    @abstractmethod
    def statistics(self, x: Tensor) -> Tensor:
        """T(x), (*batch, p), of values (*batch, *event)."""

    @abstractmethod
    def proper(self, natural: Tensor) -> Tensor:
        """Whether each member can be normalised, (*batch,)."""

    def draws(self, natural: Tensor) -> Tensor:
        """One differentiable draw of each member (S, *batch, p); normal draws come in antithetic halves."""
        draws: Tensor = self.distribution(natural).rsample()
        return draws

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
        normal: dist.Distribution = self.kind(natural[..., 0] * variance, variance.sqrt(), validate_args=False)
        return normal

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
        draws: Tensor = fn.loc + times(fn.scale_tril, _mirrored(fn.loc))
        return draws

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
    """Standard normal numbers (S, ...), whose second half is the negative of the first."""
    half = torch.randn_like(like[: (len(like) + 1) // 2])
    return torch.cat([half, -half])[: len(like)].detach()


#: All families; a site's family is looked up by `isinstance`.
FAMILIES: tuple[Family, ...] = (
    LogNormalFamily(),
    NormalFamily(),
    MultivariateNormalFamily(),
    GammaFamily(),
    BetaFamily(),
    DirichletFamily(),
)


#: End of every message that refuses a guide.
CURE = "use SFVI(guide=...), which takes any guide that can be reparametrised, or AutoMultivariateNormal"


@dataclass(frozen=True, eq=False)
class GuideSite:
    """One global site: its family, its initial λ, (*batch, p), and the model's transform of its support."""

    name: str
    family: Family
    start: Tensor
    transform: Any


class Draws(NamedTuple):
    """Reparametrised draws of q."""

    z: Tensor  # (S, D) on the model's unconstrained scale
    jacobian: Tensor  # dz/dλ, (S, D, P)
    fisher: Tensor  # mean of dT/dλ over the draws, (P, P)
    base_score: Tensor  # gradient in z of log h and of the transforms' log-Jacobian, (S, D)
    log_density: Tensor  # of q on that scale, (S,)


@dataclass(frozen=True, eq=False)
class GuideFamily:
    """The product of a guide's families, in the order of the model's flat vector."""

    sites: tuple[GuideSite, ...]

    @property
    def start(self) -> Tensor:
        """The initial λ, (P,)."""
        return torch.cat([site.start.flatten() for site in self.sites])

    def split(self, natural: Tensor) -> list[Tensor]:
        """λ (..., P) by site, (..., *batch, p)."""
        parts = torch.split(natural, [site.start.numel() for site in self.sites], -1)
        return [part.reshape(*part.shape[:-1], *site.start.shape) for part, site in zip(parts, self.sites, strict=True)]

    def proper(self, natural: Tensor) -> bool:
        """Whether λ (P,) is that of a distribution."""
        parts = zip(self.sites, self.split(natural), strict=True)
        return bool(natural.isfinite().all()) and all(bool(site.family.proper(part).all()) for site, part in parts)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Means and SDs of the sites' values, flat."""
        fns = [site.family.distribution(part) for site, part in zip(self.sites, self.split(natural), strict=True)]
        return torch.cat([fn.mean.flatten() for fn in fns]), torch.cat([fn.stddev.flatten() for fn in fns])

    def sample(self, natural: Tensor, count: int, seed: int) -> Tensor:
        """Unconstrained draws, (count, D)."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            parts = zip(self.sites, self.split(natural.expand(count, -1)), strict=True)
            return self._unconstrained([site.family.distribution(part).rsample() for site, part in parts])

    def draws(self, natural: Tensor, count: int, seed: int) -> Draws:
        """Draws with their derivatives; the same seed gives the same random numbers."""
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            copies = natural.expand(count, -1).clone().requires_grad_()
            values, z = self._values(copies)
            parts = zip(self.sites, values, strict=True)
            statistics = torch.cat([site.family.statistics(one).reshape(len(one), -1) for site, one in parts], -1)
            jacobian, fisher = _row_jacobians(z, copies), _row_jacobians(statistics, copies).mean(0)
            leaf = z.detach().requires_grad_()
            base = torch.autograd.grad(self._log_base(leaf).sum(), leaf)[0]
        with torch.no_grad():
            log_density = self._log_density(natural, z)
        return Draws(z.detach(), jacobian, fisher, base, log_density)

    def _values(self, natural: Tensor) -> tuple[list[Tensor], Tensor]:
        """Values of each site, and all of them unconstrained and flat, for λ (S, P)."""
        values = [site.family.draws(part) for site, part in zip(self.sites, self.split(natural), strict=True)]
        return values, self._unconstrained(values)

    def _unconstrained(self, values: list[Tensor]) -> Tensor:
        """Values of each site (S, ...), unconstrained and flat, (S, D)."""
        parts = zip(self.sites, values, strict=True)
        return torch.cat([site.transform.inv(value).reshape(len(value), -1) for site, value in parts], -1)

    def _log_base(self, z: Tensor) -> Tensor:
        """Log of h and of the transforms' Jacobian at z (S, D), (S,)."""
        return self._sum_over_sites(z, [site.family.log_base for site in self.sites])

    def _log_density(self, natural: Tensor, z: Tensor) -> Tensor:
        """Log of q at z (S, D) on that scale, (S,)."""
        parts = zip(self.sites, self.split(natural), strict=True)
        return self._sum_over_sites(z, [site.family.distribution(part).log_prob for site, part in parts])

    def _sum_over_sites(self, z: Tensor, terms: list[Callable[[Tensor], Tensor]]) -> Tensor:
        """A function of each site's value and the transforms' log-Jacobian, summed over sites: z (S, D) → (S,)."""
        total, start = 0.0 * z.sum(-1), 0  # differentiable, also if no term is added
        for site, term in zip(self.sites, terms, strict=True):
            shape = site.start.shape[:-1] + site.family.distribution(site.start).event_shape
            shape = site.transform.inverse_shape(shape)
            part = z[:, start : start + shape.numel()].reshape(-1, *shape)
            value = site.transform(part)
            for one in (site.transform.log_abs_det_jacobian(part, value), term(value)):
                total = total + one.reshape(len(z), -1).sum(1)
            start += shape.numel()
        return total


def _row_jacobians(outputs: Tensor, inputs: Tensor) -> Tensor:
    """d outputs[s, a] / d inputs[s, b] as (S, A, B), if draw s depends on row s alone."""
    columns = [torch.autograd.grad(outputs[:, a].sum(), inputs, retain_graph=True)[0] for a in range(outputs.shape[1])]
    return torch.stack(columns, 1)


@lru_cache(maxsize=8)
def read_guide(guide: Callable[..., Any], problem: Problem) -> GuideFamily:
    """The families of a guide's global sites; warns of local sites, and raises a SettingError for any other guide."""
    name = getattr(guide, "__name__", type(guide).__name__)
    first, second = _guide_messages(guide, problem, 0), _guide_messages(guide, problem, 1)
    check_names(name, set(first), problem, CURE)
    models = model_sites(problem)
    sites = []
    for site in problem.sites:
        family, start = _family_and_start(name, site, first[site]["fn"])
        if not torch.equal(start, _family_and_start(name, site, second[site]["fn"])[1]):
            raise SettingError(
                f"guide {name}: the parameters of site '{site}' depend on another site's draw, so that q "
                f"does not factorise; {CURE}"
            )
        support, transform = models[site]
        check_support(name, first[site], support)
        sites.append(GuideSite(site, family, start, transform))
    return GuideFamily(tuple(sites))


def _guide_messages(guide: Callable[..., Any], problem: Problem, seed: int) -> dict[str, Any]:
    """The messages of the guide's latent sites."""
    args, kwargs = problem.arguments.call_arguments()
    with own_params(seed), torch.no_grad(), run_by_pyro(problem.dtype, problem.bound.constants):
        return sampled_sites(poutine.trace(guide).get_trace(*args, **kwargs))


def _family_and_start(guide: str, site: str, fn: Any) -> tuple[Family, Tensor]:
    fn = without_event_dims(fn)
    for family in FAMILIES:
        if isinstance(fn, family.kind):
            return family, family.natural(fn)
    known = sorted(family.kind.__name__ for family in FAMILIES)
    raise SettingError(
        f"guide {guide}: site '{site}' is a {type(fn).__name__}, which has no natural parameters that can "
        f"be multiplied and divided; expected one of {known}, or {CURE}"
    )
