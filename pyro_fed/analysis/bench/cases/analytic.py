"""Posteriors in closed form: conjugate models, and one bounded parameter whose density a grid has.

Their references are quasi-random: Sobol points through quantile functions, and of Gaussians moved and scaled until
their means and covariances are those of the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fed.analysis.bench.cases.case import Case, Column, Reference
from pyro_fed.recipes.library import load_model

#: Points of the grid of a one-dimensional density.
GRID_POINTS = 200_001


def uniforms(dim: int, power: int = 12) -> np.ndarray:
    """Sobol points (2^power, dim) strictly inside the unit cube."""
    from scipy import stats  # takes a second

    points: np.ndarray = stats.qmc.Sobol(dim, seed=0).random_base2(power)
    inside: np.ndarray = np.clip(points, 1e-12, 1 - 1e-12)
    return inside


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Points (n, D) with exactly the given mean and covariance."""
    from scipy import stats

    z = stats.norm.ppf(uniforms(len(mean)))
    z = z - z.mean(0)
    whitened = np.linalg.solve(np.linalg.cholesky(z.T @ z / len(z)), z.T).T
    placed: np.ndarray = mean + whitened @ np.linalg.cholesky(covariance).T
    return placed


def exact(**values: np.ndarray) -> Reference:
    """An exact reference from points (n, *shape) by site."""
    return Reference({name: value[None] for name, value in values.items()}, True, "closed form")


def in_double_precision(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments in double precision."""
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def model_case(
    name: str,
    kind: str,
    about: str,
    reference: Callable[[tuple[Any, ...]], Reference],
    sort_by: Column,
    labels: Column | None = None,
    groups: Column | None = None,
) -> Case:
    """A case from a model of the gallery, split by the model's own plate; `labels` are by default what sorts it."""
    module: Any = load_model(name)
    return Case(
        name,
        kind,
        about,
        module.model,
        lambda: in_double_precision(module.load_data()[0]),
        reference,
        sort_by=sort_by,
        labels=labels or sort_by,
        groups=groups,
        plate=module.PLATE,
        rows=getattr(module, "ROWS", None),
    )


def quantile_groups(column: Tensor, count: int = 12) -> np.ndarray:
    """Groups of equal size along a column, such as age bands."""
    values = column.numpy()
    found: np.ndarray = np.argsort(np.argsort(values, kind="stable"), kind="stable") * count // len(values)
    return found


# -- the gallery's conjugate models, and its target of two modes ---------------------------------------------
def _mean_reference(args: tuple[Any, ...]) -> Reference:
    module: Any = load_model("gaussian_mean")
    mean, sd = (float(value) for value in module.exact_posterior(args))
    return exact(theta=gaussian(np.array([mean]), np.array([[sd**2]]))[:, 0])


def _regression_reference(args: tuple[Any, ...]) -> Reference:
    module: Any = load_model("linear_regression")
    mean, covariance = (value.numpy() for value in module.exact_posterior(args))
    return exact(w=gaussian(mean, covariance))


def _mixture_reference(_: tuple[Any, ...]) -> Reference:
    module: Any = load_model("gaussian_mixture_1d")
    grid = torch.linspace(-module.BOUND, module.BOUND, GRID_POINTS, dtype=torch.float64)
    density = module.log_density(grid).exp().numpy()
    mass = np.cumsum(density) / density.sum()
    return exact(theta=np.interp(uniforms(1)[:, 0], mass, grid.numpy()))


# -- a Gaussian of known covariance --------------------------------------------------------------------------
#: Prior SD of the mean, and the rows' covariance: correlated, its condition number about 1e4.
COVARIANCE_PRIOR_SD = 10.0
COVARIANCE_SDS = (1.0, 3.0, 0.3, 0.1, 10.0)
CORRELATION = 0.9


def _row_covariance() -> Tensor:
    sds = torch.tensor(COVARIANCE_SDS, dtype=torch.float64)
    correlation = torch.full((len(sds), len(sds)), CORRELATION, dtype=torch.float64).fill_diagonal_(1.0)
    return sds[:, None] * correlation * sds


def _covariance_model(y: Tensor) -> None:
    """The mean of rows of a known covariance."""
    theta = pyro.sample("theta", dist.Normal(y.new_zeros(y.shape[1]), COVARIANCE_PRIOR_SD).to_event(1))
    root = torch.linalg.cholesky(_row_covariance()).to(y.dtype)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(theta, scale_tril=root), obs=y)


def _covariance_data() -> tuple[Any, ...]:
    rng = np.random.default_rng(20)
    root = np.linalg.cholesky(_row_covariance().numpy())
    return (torch.as_tensor(2.0 + rng.normal(size=(200, len(root))) @ root.T),)


def _covariance_reference(args: tuple[Any, ...]) -> Reference:
    rows = args[0].numpy()
    precision = np.linalg.inv(_row_covariance().numpy())
    covariance = np.linalg.inv(len(rows) * precision + np.eye(rows.shape[1]) / COVARIANCE_PRIOR_SD**2)
    return exact(theta=gaussian(covariance @ precision @ rows.sum(0), covariance))


# -- a share of few successes --------------------------------------------------------------------------------
SHARE_PRIOR = (1.0, 2.0)


def _share_model(y: Tensor) -> None:
    """A share with few successes: skewed, at its bound."""
    share = pyro.sample("share", dist.Beta(y.new_tensor(SHARE_PRIOR[0]), y.new_tensor(SHARE_PRIOR[1])))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(share), obs=y)


def _share_data() -> tuple[Any, ...]:
    y = torch.zeros(200, dtype=torch.float64)
    y[[3, 77, 150]] = 1.0
    return (y,)


def _share_reference(args: tuple[Any, ...]) -> Reference:
    from scipy import stats

    wins = float(args[0].sum())
    posterior = stats.beta(SHARE_PRIOR[0] + wins, SHARE_PRIOR[1] + len(args[0]) - wins)
    return exact(share=posterior.ppf(uniforms(1)[:, 0]))


# -- a mean and a precision ----------------------------------------------------------------------------------
#: Prior: mean, rows it is worth, shape and rate of the precision.
NORMAL_GAMMA = (0.0, 0.1, 1.0, 1.0)


def _normal_gamma_model(y: Tensor) -> None:
    """A mean and a precision, whose prior they share."""
    centre, worth, shape, rate = y.new_tensor(NORMAL_GAMMA)
    tau = pyro.sample("tau", dist.Gamma(shape, rate))
    mu = pyro.sample("mu", dist.Normal(centre, (worth * tau).rsqrt()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, tau.rsqrt()), obs=y)


def _normal_gamma_data() -> tuple[Any, ...]:
    return (torch.as_tensor(3.0 + 2.0 * np.random.default_rng(21).normal(size=20)),)


def _normal_gamma_reference(args: tuple[Any, ...]) -> Reference:
    from scipy import stats

    y = args[0].numpy()
    centre, worth, shape, rate = NORMAL_GAMMA
    n, mean = len(y), y.mean()
    rate = rate + np.square(y - mean).sum() / 2 + worth * n * (mean - centre) ** 2 / (2 * (worth + n))
    u = uniforms(2)
    tau = stats.gamma(shape + n / 2, scale=1 / rate).ppf(u[:, 0])
    mu = (worth * centre + n * mean) / (worth + n) + stats.norm.ppf(u[:, 1]) / np.sqrt((worth + n) * tau)
    return exact(mu=mu, tau=tau)


# -- all of them ---------------------------------------------------------------------------------------------
def analytic_cases() -> list[Case]:
    """All cases in closed form."""
    return [
        model_case(
            "gaussian_mean",
            "analytic",
            "one mean, measurements of known precision",
            _mean_reference,
            lambda args: args[1],
        ),
        Case(
            "gaussian_covariance",
            "analytic",
            "5 means, SDs from 0.1 to 10, correlated by 0.9, known covariance",
            _covariance_model,
            _covariance_data,
            _covariance_reference,
            sort_by=lambda args: args[0][:, 0],
            labels=lambda args: args[0][:, 0],
        ),
        model_case(
            "linear_regression",
            "analytic",
            "11 coefficients, some strongly correlated (diabetes data), known noise",
            _regression_reference,
            lambda args: args[0][:, 2],
            lambda args: args[1],
            lambda args: quantile_groups(args[0][:, 0]),
        ),
        Case(
            "beta_bernoulli",
            "analytic",
            "a share with 3 successes in 200: skewed, near its bound",
            _share_model,
            _share_data,
            _share_reference,
            sort_by=lambda args: args[0],
            labels=lambda args: args[0],
        ),
        Case(
            "normal_gamma",
            "analytic",
            "a mean and a precision from 20 rows: Student's tails, a skewed precision",
            _normal_gamma_model,
            _normal_gamma_data,
            _normal_gamma_reference,
            sort_by=lambda args: args[0],
            labels=lambda args: args[0],
        ),
        model_case(
            "gaussian_mixture_1d",
            "analytic",
            "two modes in one dimension; two rows, so two clients at most",
            _mixture_reference,
            lambda args: args[0],
        ),
    ]
