"""Gaussian guides: automatic ones that FedEP can federate in natural parameters, and the fit by Adam ("svi").

`AutoDiagonalNormal` and `AutoNormal` are diagonal Gaussians on the unconstrained scale, `AutoMultivariateNormal` is a
full one. No other automatic guide is an exponential family whose sites can be multiplied and divided. Even products of
the factors of `AutoLowRankMultivariateNormal` have full rank. `SFVI` fits other guides directly.

The "svi" of FedEP, PVI and P2PVI fits a Gaussian to a likelihood times a Gaussian cavity c,

    max_{a, B}  E_{z ~ N(0, I)}[log p_k(θ) + log c(θ)] + log |det B|,    θ = m + A (a + B z)

with reparametrised gradients, like Pyro's `SVI` with `Trace_ELBO`, or Bayes by backprop for a network. All clients of a
round are fitted in one compiled step. The guide begins at a Gaussian with mean m and covariance A A', so that Adam's
rate is in its SDs. With `needs_diagonal` A is diagonal, and the rate of the location is in units of θ, as if Adam moved
μ and log σ. Adam starts anew in every round.

Source: Kingma & Ba (2015), Adam; Blundell et al. (2015), *Weight uncertainty in neural networks*.

Letters: c `cavity`, a `loc`; B lower triangular, or diagonal with the structure "diag", held as `raw` with the
logarithm of its diagonal.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro.infer import autoguide
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.setting_checks import check_at_least, check_betas, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times

#: Covariance structure of an automatic guide, by the name of its class.
FAMILIES: dict[str, Literal["diag", "full"]] = {
    "AutoDiagonalNormal": "diag",
    "AutoNormal": "diag",
    "AutoMultivariateNormal": "full",
}
#: The algorithm that fits another automatic guide, by the guide's name. The default is `SFVI(guide=...)`.
FITTED_BY = {
    "AutoLaplaceApproximation": "FedLaplace(), which finds the mode and its Hessian",
    "AutoDelta": "SFVI(guide=AutoDelta), whose answer is a point, the MAP estimate; FedLaplace() has its SDs as well",
}


def is_hand_written(guide: Any) -> bool:
    """Whether a guide is a function of the model's arguments, or a `PyroModule`, not an automatic guide."""
    kind = guide if inspect.isclass(guide) else type(guide)
    return callable(guide) and not issubclass(kind, autoguide.AutoGuide)


def guided_covariance(owner: Any, guide: Any, covariance: str) -> Literal["diag", "full"]:
    """The covariance of an automatic guide, in place of "auto"; SettingError if the setting contradicts it."""
    name = type(owner).__name__
    if is_hand_written(guide):
        raise SettingError(
            f"{name}: only FedEP, FedSEP, PVI and P2PVI federate a hand-written guide; use FedEP(guide=...), "
            "or an automatic guide such as AutoMultivariateNormal"
        )
    family = covariance_of(owner, guide)
    if covariance not in ("auto", family):
        raise SettingError(
            f"{name}: covariance={covariance!r} is not that of the guide, {family!r}: give only one of the two"
        )
    return family


def covariance_of(owner: Any, guide: Any) -> Literal["diag", "full"]:
    """The Gaussian family of an automatic guide; SettingError if its factors cannot be multiplied and divided."""
    kind = guide if inspect.isclass(guide) else type(guide)
    for base in kind.__mro__:
        if base.__module__ == autoguide.guides.__name__ and base.__name__ in FAMILIES:
            return FAMILIES[base.__name__]
    name = getattr(guide, "__name__", kind.__name__)
    raise SettingError(
        f"{type(owner).__name__}: guide {name} has no natural parameters that can be multiplied and divided, as "
        f"{sorted(FAMILIES)} have: use {FITTED_BY.get(name, f'SFVI(guide={name})')}"
    )


#: Precision and eta of the cavity, and the coordinates: A and m.
Frame = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class GuideFit:
    """The fit and its settings; base of the classes named SVI.

    Args:
        steps: Adam steps per round.
        step_size: initial rate of Adam, in SDs of the Gaussian at which the guide begins; it falls linearly to zero.
        num_samples: draws of the guide per step.
        batch_size: rows per step, weighted to all of the client's; None takes all.
        betas: β_1 and β_2 of Adam, each in [0, 1).
        eps: ε of Adam.
    """

    steps: int = 300
    step_size: float = 0.03
    num_samples: int = 8
    batch_size: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "num_samples")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size", "eps")
        check_betas(self)

    @property
    def needs_diagonal(self) -> bool:
        """Whether the location's rate is in the parameters' own units, which needs a diagonal Gaussian."""
        return False

    def rate(self, count: Tensor) -> Tensor | float:
        """Adam's rate in the step of this number, which begins at one."""
        return self.step_size * (1 - (count - 1) / self.steps)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Draws of z, the step's number (for Adam's bias correction) and minibatches."""
        z = torch.randn(self.steps, self.num_samples, problem.dim, generator=generator, dtype=torch.float64)
        count = torch.arange(1, self.steps + 1, dtype=torch.float64)
        if self.batch_size is None:
            return z, count, ()
        return z, count, draw_minibatches(num_rows, self.batch_size, self.steps, generator, problem.dtype)

    def fit(
        self,
        problem: Problem,
        start: Gaussian,
        cavity: Gaussian,
        data: ClientData,
        noise: Noise,
        pace: Tensor | None = None,
    ) -> Gaussian:
        """Guides of C clients, fitted from `start`; cavities may be improper; `pace` (C,) multiplies Adam's rate."""
        mean, factor = start.mean(), start.root()
        rows, dims = with_batches(data, self.batch_size)
        zero = (torch.zeros_like(mean), torch.zeros_like(factor))
        pace = torch.ones_like(mean[:, 0]) if pace is None else pace
        const = ((cavity.precision, cavity.eta, factor, mean), rows, pace)
        axes = ((0, 0, 0, 0), dims, 0)
        ((loc, raw), _, _), _ = problem.scan(self._step, (zero, zero, zero), const, noise, self.steps, axes)
        location = mean + times(factor, loc)
        if raw.dim() == 2:
            return type(start).from_moments(location, (factor * raw.exp()).square())
        spread = factor @ lower(raw)
        return type(start).from_moments(location, spread @ spread.mT)

    def _step(self, problem: Problem, carry: Any, const: Any, x: Any) -> tuple[Any, tuple[()]]:
        """Take one step of Adam on the negative ELBO of one client."""
        guide, first, second = carry
        frame, rows, pace = const
        draws, count, picks = x
        batch = batch_of(rows, picks)

        def objective(guide: tuple[Tensor, Tensor]) -> Tensor:
            return negative_elbo(problem, guide, frame, batch, draws)

        slope = grad(objective)(guide)
        (b1, b2), rate = self.betas, pace * self.rate(count)
        first = tuple(b1 * m + (1 - b1) * g for m, g in zip(first, slope, strict=True))
        second = tuple(b2 * v + (1 - b2) * g.square() for v, g in zip(second, slope, strict=True))
        rates = (rate / frame[2] if self.needs_diagonal else rate, rate)
        guide = tuple(
            part - rate_of_part * (m / (1 - b1**count)) / ((v / (1 - b2**count)).sqrt() + self.eps)
            for part, m, v, rate_of_part in zip(guide, first, second, rates, strict=True)
        )
        return (guide, first, second), ()


def negative_elbo(problem: Problem, guide: tuple[Tensor, Tensor], frame: Frame, batch: Batch, draws: Tensor) -> Tensor:
    """The negative evidence lower bound of one client up to a constant, (), by a (D,), B as `raw`, and z (S, D)."""
    loc, raw = guide
    precision, eta, factor, mean = frame

    def log_tilted(z: Tensor) -> Tensor:
        white = loc + (lower(raw) @ z if raw.dim() == 2 else raw.exp() * z)
        theta = mean + times(factor, white)
        log_cavity = (theta * (eta - 0.5 * times(precision, theta))).sum()
        return problem.log_lik(theta.to(problem.dtype), batch).double() + log_cavity

    entropy = (raw.diagonal() if raw.dim() == 2 else raw).sum()
    values: Tensor = problem.vmap(log_tilted)(draws)
    return -(values.mean() + entropy)


def lower(raw: Tensor) -> Tensor:
    """A lower triangular matrix, with the exponential of the diagonal: (..., D, D)."""
    return torch.tril(raw, -1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())
