"""The small federations of the checks; each is built once per process, so that its traced steps are reused."""

from __future__ import annotations

import functools
import itertools
import warnings

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fed.federation import partition
from pyro_fed.federation.federation import Federation

#: Rows of the three clients of `unequal_lines`.
ROWS = (3, 7, 13)
#: Constants of `group_means`: SD of the groups' effects around their mean, and of the mean's prior.
EFFECT_SD, MEAN_SD = 0.8, 2.0


def line(x: Tensor, y: Tensor) -> None:
    """Bayesian linear regression with known noise."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def line_data(rows: int = 23, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Covariates (rows, 2) and targets (rows,) in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + noise


def unequal_lines() -> Federation:
    """A new federation of `line` over three clients of 3, 7 and 13 rows."""
    return _lines(*ROWS)


@functools.cache
def lines() -> Federation:
    """`unequal_lines`, built once."""
    return unequal_lines()


@functools.cache
def with_empty_client() -> Federation:
    """`line` over clients of 3, 0 and 4 rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a client without rows is intended here
        return _lines(3, 0, 4)


@functools.cache
def one_row_each() -> Federation:
    """`line` over three clients of one row."""
    return _lines(1, 1, 1)


@functools.cache
def one_client() -> Federation:
    """`line` at a single client of 7 rows."""
    return _lines(7)


@functools.cache
def single_precision() -> Federation:
    """`unequal_lines` in float32."""
    return _lines(*ROWS, dtype=torch.float32)


def _lines(*rows: int, dtype: torch.dtype = torch.float64) -> Federation:
    ends = torch.tensor((0, *rows)).cumsum(0).tolist()
    parts = [list(range(first, last)) for first, last in itertools.pairwise(ends)]
    args = tuple(part.to(dtype) for part in line_data(sum(rows)))
    return Federation(line, args, plate="data", partition=partition.Explicit(parts))


@functools.cache
def conjugate() -> tuple[Federation, Tensor, Tensor]:
    """`line` with orthogonal columns at each client, so that a mean field is exact; exact mean and SDs, (2,)."""
    x = torch.zeros(24, 2, dtype=torch.float64)
    x[0::2, 0] = torch.linspace(0.4, 1.2, 12, dtype=torch.float64)
    x[1::2, 1] = torch.linspace(1.0, -0.5, 12, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + line_data(24, seed=1)[1] / 2
    parts = partition.Explicit([list(range(4)), list(range(4, 12)), list(range(12, 24))])
    precision = 1 + x.square().sum(0)
    return Federation(line, (x, y), plate="data", partition=parts), (x.T @ y) / precision, precision.rsqrt()


def group_means(sd: Tensor, y: Tensor) -> None:
    """One effect per group, with known SD."""
    mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), MEAN_SD))
    with pyro.plate("group", len(sd)):
        effect = pyro.sample("effect", dist.Normal(mu, EFFECT_SD))
        pyro.sample("y", dist.Normal(effect, sd), obs=y)


def marginal_means(sd: Tensor, y: Tensor) -> None:
    """`group_means` with the effects integrated out by hand."""
    mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), MEAN_SD))
    with pyro.plate("group", len(sd)):
        root = (sd.square() + EFFECT_SD**2).sqrt().reshape(-1, 1, 1)
        # As for integrals, linearity in mu is not detected, and a vector's Fisher information is the empirical one.
        mean = mu.sinh().asinh().expand(1)
        pyro.sample("y", dist.MultivariateNormal(mean, scale_tril=root), obs=y.unsqueeze(-1))


def group_data() -> tuple[Tensor, Tensor]:
    """SDs and means of nine groups, (9,) each, in float64."""
    generator = torch.Generator().manual_seed(3)
    sd, y = (torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(2))
    return sd.square() + 0.5, 1 + 1.5 * y


@functools.cache
def groups() -> Federation:
    """`group_means` of nine groups at three clients."""
    return Federation(group_means, group_data(), plate="group", num_clients=3)


@functools.cache
def marginal_groups() -> Federation:
    """The same groups at the same clients, with the effects integrated out by hand."""
    return Federation(marginal_means, group_data(), plate="group", num_clients=3)
