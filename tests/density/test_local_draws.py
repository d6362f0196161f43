"""Draws of the latents inside the plate given draws of θ: each from its conditional, all of them spread evenly."""

import math

import hierarchies
import pytest
import torch

from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.latents import draws as drawing
from pyro_fed.density.latents.ascent_starts import ascent_starts, first_client, one_client
from pyro_fed.density.latents.draws import draw_locals
from pyro_fed.ops.points import balanced_normal

THETA = torch.tensor([0.9, -0.2], dtype=torch.float64)


def conditional(name, theta):
    """Exact means and variances of a row's latents given θ (..., D), on the constrained scale."""
    if name == "means":
        precision = hierarchies.SD**-2 + hierarchies.SPREAD**-2
        mean = (hierarchies.Y / hierarchies.SD**2 + theta / hierarchies.SPREAD**2) / precision
        return mean, (1 / precision).expand_as(mean)
    if name == "rates":
        shape, rate = hierarchies.COUNTS + theta[0].exp(), 1 + (-theta[1]).exp()
        return shape / rate, shape / rate**2
    design = torch.stack([torch.ones_like(hierarchies.X), hierarchies.X], -1)
    cover = torch.linalg.inv(design.mT @ design / hierarchies.NOISE**2 + torch.eye(2) / hierarchies.SPREAD**2)
    shift = design.mT @ hierarchies.TABLE.unsqueeze(-1) / hierarchies.NOISE**2
    mean = (cover @ (shift + theta.unsqueeze(-1) / hierarchies.SPREAD**2)).squeeze(-1)
    return mean, cover.diagonal(dim1=-2, dim2=-1)


def drawn(name, theta, seed=0):
    """Draws of the rows' latents (S, m, d) given θ (S, D), on the constrained scale."""
    problem = hierarchies.federation(name).problem
    local = draw_locals(problem, theta, problem.rows, torch.Generator().manual_seed(seed))
    return local.exp() if name == "rates" else local


@pytest.mark.parametrize("name", ["lines", "rates"])
def test_draws_of_the_latents_have_their_conditional_distribution(name):
    """8,000 draws at one θ; five standard errors, of independent draws, of a mean and a variance (kurtosis < 20)."""
    count = 8_000
    draws = drawn(name, THETA.expand(count, 2))
    mean, variance = (part.reshape(draws.shape[1:]) for part in conditional(name, THETA))
    assert float(((draws.mean(0) - mean) / variance.sqrt()).abs().max()) < 5 / math.sqrt(count)
    assert float((draws.var(0) / variance - 1).abs().max()) < 5 * math.sqrt(19 / count)


def test_each_draw_has_the_distribution_that_its_own_theta_gives_it():
    """Three θ far apart, 8,000 times each: the draw that goes with each is its own. Five standard errors."""
    count, theta = 8_000, torch.tensor([[-2.0], [0.5], [3.0]], dtype=torch.float64)
    problem = hierarchies.federation("means").problem
    rows = [row.unsqueeze(0).expand(count, *row.shape).flatten(0, 1) for row in problem.rows]
    generator = torch.Generator().manual_seed(0)
    local = draw_locals(problem, theta, tuple(rows), generator).reshape(3, count, hierarchies.J)
    mean, variance = conditional("means", theta)
    assert float(((local.mean(1) - mean) / variance.sqrt()).abs().max()) < 5 / math.sqrt(count)
    assert float((local.var(1) / variance - 1).abs().max()) < 5 * math.sqrt(2 / count)


def test_a_hundred_draws_have_the_moments_of_many():
    """At 0.0045 SD a mean and 0.0135 a ratio (root mean squares, 20 seeds), where independent draws err by 0.1."""
    theta = 0.9 + 0.3 * torch.randn(100, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, variance = conditional("means", theta)
    draws = drawn("means", theta).squeeze(-1)
    sd = (variance.mean(0) + mean.var(0)).sqrt()
    assert float(((draws.mean(0) - mean.mean(0)) / sd).abs().max()) < 0.025
    assert float((draws.std(0) / sd - 1).abs().max()) < 0.075


@pytest.mark.parametrize("name, apart", [("lines", 1.0), ("rates", 0.3), ("means", 40.0)])
def test_modes_are_climbed_to_from_those_at_the_mean_and_few_steps_forget_their_start(name, apart):
    """None where a normal proposal is the conditional distribution itself; 16 are the most."""
    problem = hierarchies.federation(name).problem
    theta = THETA[: problem.dim] + apart * torch.linspace(-1, 1, 12, dtype=torch.float64).unsqueeze(1)
    starts = ascent_starts(problem, theta.unsqueeze(0), one_client(problem.rows, theta))
    near = None if starts is None else first_client(starts.batch.near[0])
    centre = drawing._centres(problem, theta, problem.rows, near)
    exact = problem.mapped(problem.quadrature.centre, (0, None), calls=0)(theta, problem.rows)
    assert float(exact.distance(centre.mode).max()) < NEGLIGIBLE
    steps = drawing._steps(problem, theta, problem.rows, centre, torch.Generator().manual_seed(0))
    assert 2 <= steps <= problem.quadrature.draw_steps if name == "rates" else steps == 0


@pytest.mark.parametrize("count", [1, 2, 7, 16, 100])
def test_balanced_numbers_are_stratified_over_all_and_over_neighbours(count):
    values = torch.randn(count, 3, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    uniform = torch.special.ndtr(balanced_normal(values, torch.Generator().manual_seed(0)))
    width = math.ceil(math.sqrt(count))
    cells = width * math.ceil(count / width)
    strata = (uniform * cells).floor()
    assert all(len(column.unique()) == count for column in strata.T)  # none twice
    in_order = (uniform * width).floor().gather(0, values.argsort(0))
    for block in in_order.split(width):
        assert all(len(column.unique()) == len(block) for column in block.T)


@pytest.mark.parametrize("count", [3, 7, 16])
def test_every_balanced_number_is_normal_and_columns_are_independent(count):
    """40,000 columns with the same values: moments of each number, and products of neighbours; 5 standard errors."""
    columns = 40_000
    values = torch.arange(count, dtype=torch.float64).sin().unsqueeze(1).expand(count, columns)
    numbers = balanced_normal(values, torch.Generator().manual_seed(0))
    scale = math.sqrt(columns)
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = numbers.pow(power).mean(1) - moment
        assert float(error.abs().max()) < 5 * math.sqrt(spread) / scale
    products = numbers[:, ::2] * numbers[:, 1::2]
    assert float(products.mean(1).abs().max()) < 5 * math.sqrt(2) / scale
