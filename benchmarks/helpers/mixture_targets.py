"""The DSVGD paper's mixtures on grids: what `mixtures.py` compares estimates with."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from models import gaussian_mixture_1d as line
from models import gaussian_mixture_2d as plane

AT_ONCE = 500  # kernels, when a density estimate is computed on the grid


@dataclass
class Target:
    """A posterior of two factors on a grid of points (M, D), and the width of density estimates there."""

    title: str
    model: Any
    log_density: Any
    grid: Tensor
    width: float

    @cached_property
    def exact(self) -> Tensor:
        """Probability of each cell, (M,)."""
        return self.log_density(self.grid).reshape(-1).softmax(0)

    def gaussian(self, points: Tensor, weights: Tensor) -> Tensor:
        """The same under the Gaussian with the moments of weighted points."""
        offsets = points - weights @ points
        covariance = offsets.T @ (weights[:, None] * offsets)
        return dist.MultivariateNormal(weights @ points, covariance).log_prob(self.grid).softmax(0)

    def smoothed(self, points: Tensor, weights: Tensor) -> Tensor:
        """The same under the kernel density estimate of weighted points."""
        density = torch.zeros(len(self.grid), dtype=torch.float64)
        for some, share in zip(points.split(AT_ONCE), weights.split(AT_ONCE), strict=True):
            density += torch.exp(-0.5 * torch.cdist(self.grid, some).square() / self.width**2) @ share
        return density / density.sum()

    def kl(self, q: Tensor) -> float:
        """KL(exact || q)."""
        tiny = torch.finfo(q.dtype).tiny
        return float((self.exact * (self.exact.clamp_min(tiny).log() - q.clamp_min(tiny).log())).sum())

    def estimate(self, idata: Any, gaussian: bool) -> Tensor:
        """What a result says: its Gaussian, or its particles' density estimate."""
        theta = torch.from_numpy(idata["posterior"]["theta"].values).double()
        points = theta.reshape(-1, self.grid.shape[1])
        weights = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
        return (self.gaussian if gaussian else self.smoothed)(points, weights)

    def lines(self) -> dict[str, Tensor]:
        """What does not depend on rounds."""
        return {
            "nearest Gaussian": self.gaussian(self.grid, self.exact),
            "exact, smoothed": self.smoothed(self.grid, self.exact),
        }


def flat_model(component):
    """The toy target in one dimension under a prior that is flat in θ."""
    theta = pyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
    factor = torch.where(component == 0, line.log_factor_0(theta), line.log_factor_1(theta))
    with pyro.plate("data", len(component)):
        pyro.factor("likelihood", factor)


def normal_model(component):
    """The same under N(0, 1)."""
    line.model(component, prior="gaussian")


AXIS = torch.linspace(-9, 9, 3601, dtype=torch.float64)[:, None]
SQUARE = torch.cartesian_prod(*[torch.linspace(-5, 6, 111, dtype=torch.float64)] * 2)
TARGETS = (
    Target("one dimension, flat prior", flat_model, lambda x: line.log_factor_0(x) + line.log_factor_1(x), AXIS, 0.55),
    Target("one dimension, N(0, 1)", normal_model, lambda x: line.log_density(x, "gaussian"), AXIS, 0.55),
    Target("two dimensions", plane.model, plane.log_density, SQUARE, 0.1**0.5),
)
