"""Models with latents inside the partitioned plate whose marginal likelihood is known in closed form."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf

PLATE = "group"
J = 9
_GENERATOR = torch.Generator().manual_seed(3)


def _normal(*shape):
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


SD = _normal(J).square() + 0.5
Y = 1.0 + 1.5 * _normal(J)
X = _normal(J, 4)
TABLE = 0.5 + _normal(J, 4)
COUNTS = torch.randint(0, 7, (J,), generator=_GENERATOR).double()
SPREAD, NOISE, PRIOR_SD = 0.8, 0.6, 2.0


def number(value):
    """A scalar in the dtype of the computation."""
    return torch.tensor(float(value))


def means(sd, y=None):
    """One effect a group, of known spread: conjugate."""
    mu = pyro.sample("mu", dist.Normal(number(0), PRIOR_SD))
    with pyro.plate(PLATE, len(sd)):
        effect = pyro.sample("effect", dist.Normal(mu, SPREAD))
        pyro.sample("y", dist.Normal(effect, sd), obs=y)


def means_log_lik(theta, sd, y):
    """Of each row: (m,)."""
    return dist.Normal(theta[0], (sd.square() + SPREAD**2).sqrt()).log_prob(y)


def means_posterior(sd, y):
    """Exact mean and covariance of (mu, effects)."""
    precision = torch.diag(torch.cat([sd.new_tensor([PRIOR_SD**-2 + len(sd) / SPREAD**2]), sd**-2 + SPREAD**-2]))
    precision[0, 1:] = precision[1:, 0] = -(SPREAD**-2)
    cover = torch.linalg.inv(precision)
    return cover @ torch.cat([sd.new_zeros(1), y / sd**2]), cover


def scaled(sd, y=None):
    """The same with unknown spread, and a reported value that depends on the effects."""
    mu = pyro.sample("mu", dist.Normal(number(0), PRIOR_SD))
    tau = pyro.sample("tau", dist.LogNormal(number(0), 1.0))
    with pyro.plate(PLATE, len(sd)):
        z = pyro.sample("z", dist.Normal(number(0), 1.0))
        effect = pyro.deterministic("effect", mu + tau * z, event_dim=0)
        pyro.sample("y", dist.Normal(effect, sd), obs=y)
    pyro.deterministic("log_tau", tau.log())


def scaled_log_lik(theta, sd, y):
    """Of each row."""
    return dist.Normal(theta[0], (sd.square() + (2 * theta[1]).exp()).sqrt()).log_prob(y)


def lines(x, y=None):
    """An intercept and a slope a group, and four rows nested in each: a site of shape (rows, 2)."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), PRIOR_SD).to_event(1))
    with pyro.plate(PLATE, len(x), dim=-2):
        beta = pyro.sample("beta", dist.Normal(w, SPREAD).to_event(1))
        with pyro.plate("inner", x.shape[1], dim=-1):
            pyro.sample("y", dist.Normal(beta[..., 0] + beta[..., 1] * x, NOISE), obs=y)


def lines_log_lik(theta, x, y):
    """Of each row."""
    design = torch.stack([torch.ones_like(x), x], -1)
    cover = SPREAD**2 * design @ design.mT + NOISE**2 * torch.eye(x.shape[1], dtype=x.dtype)
    return dist.MultivariateNormal(design @ theta, cover).log_prob(y)


def rates(y):
    """Poisson counts with a rate a row from a Gamma distribution: negative binomial; positive latents."""
    shape = pyro.sample("shape", dist.LogNormal(number(0), 1.0))
    scale = pyro.sample("scale", dist.LogNormal(number(0), 1.0))
    with pyro.plate(PLATE, len(y)):
        rate = pyro.sample("rate", dist.Gamma(shape, 1 / scale))
        pyro.sample("y", dist.Poisson(rate), obs=y)


def rates_log_lik(theta, y):
    """Of each row."""
    return dist.NegativeBinomial(theta[0].exp(), logits=theta[1]).log_prob(y)


@dataclass(frozen=True)
class Case:
    """A model, its data, its exact log-likelihood (θ, *data) → (m,), the rule, and how exact that is for it."""

    model: Callable[..., Any]
    args: tuple[Tensor, ...]
    log_lik: Callable[..., Tensor]
    order: int | None = None
    tolerance: float = 1e-11

    def federation(self, num_clients: int = 3, **settings: Any) -> pf.Federation:
        """The model's data over clients."""
        rule = pf.Quadrature(**{"order": self.order, **settings})
        return pf.Federation(self.model, self.args, plate=PLATE, num_clients=num_clients, quadrature=rule)


CASES = {
    "means": Case(means, (SD, Y), means_log_lik),
    "scaled": Case(scaled, (SD, Y), scaled_log_lik),
    "lines": Case(lines, (X, TABLE), lines_log_lik),
    "rates": Case(rates, (COUNTS,), rates_log_lik, order=61, tolerance=1e-8),
}


@functools.cache
def federation(name: str) -> pf.Federation:
    """A case over three clients with the default rule, made once, when a test asks for it."""
    return CASES[name].federation()
