"""Angles on an interval: right away from its ends, and across them the cause is told, and a cure that works."""

import math
import re
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.modes.angles import angles_across_ends
from tests.helpers.evidence import evidence_of

#: Concentration of the rows around the angle.
CONCENTRATION = 2.0
QUIET = {"progress": False, "log_likelihood": False, "seed": 0}


def uniform(lower):
    return lambda y: dist.Uniform(y.new_tensor(lower), lower + 2 * math.pi)


def von_mises(y):
    return dist.VonMises(y.new_tensor(0.0), 0.1)


def mixed(y):
    even = dist.Categorical(y.new_tensor([0.5, 0.5]))
    return dist.MixtureSameFamily(even, dist.VonMises(y.new_tensor([0.0, 1.0]), y.new_tensor([0.1, 0.2])))


def angle(prior, origin=0.0):
    def model(y):
        mu = pyro.sample("mu", prior(y))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.VonMises((origin + mu).expand(len(y)), CONCENTRATION), obs=y)

    return model


def rows(centre, count=30):
    return torch.from_numpy(np.random.default_rng(22).vonmises(centre, CONCENTRATION, count))


def federation(model, y):
    return pf.Federation(model, (y,), plate="data", num_clients=3)


def run(model, y, algorithm):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        idata = pf.run(algorithm, federation(model, y), **QUIET)
    return idata, [str(one.message) for one in caught]


def on_a_grid(prior, y):
    """Mean and SD of the angle on (-π, π), by the formula."""
    grid = torch.linspace(-math.pi, math.pi, 40_001, dtype=torch.float64)[1:-1]
    log_p = prior(y).log_prob(grid) + dist.VonMises(grid[:, None], CONCENTRATION).log_prob(y).sum(1)
    p = log_p.softmax(0)
    return float(p @ grid), float((p @ grid.square() - (p @ grid).square()).sqrt())


@pytest.mark.parametrize(
    ("prior", "algorithm"),
    [(von_mises, pf.FedEP()), (mixed, pf.FedEP()), (uniform(-math.pi), pf.FedEP()), (mixed, pf.DSVGD())],
    ids=["vonmises-fedep", "mixed-fedep", "uniform-fedep", "mixed-dsvgd"],
)
def test_an_angle_away_from_the_ends_is_right(prior, algorithm):
    """On the real line it has a mode at every turn: half of the mass was said to be at -5, and particles were at 39."""
    y = rows(1.0)
    idata, said = run(angle(prior), y, algorithm)
    mean, sd = on_a_grid(prior, y)
    mu = idata["posterior"]["mu"].values
    assert abs(float(mu.mean()) - mean) < 0.1 * sd and float(mu.std()) == pytest.approx(sd, rel=0.1)
    assert said == [] and idata.attrs["doubts"] == ""


@pytest.mark.parametrize(
    ("prior", "centre"),
    [(von_mises, 3.1), (mixed, -3.0), (uniform(-math.pi), 2.9), (uniform(0.0), 0.1)],
    ids=["vonmises", "mixed", "uniform", "from zero"],
)
def test_across_the_ends_the_cause_is_told_and_the_cure_works(prior, centre):
    y = rows(centre)
    idata, _ = run(angle(prior), y, pf.FedEP())
    (said,) = idata.attrs["doubts"].splitlines()
    assert "'mu' is an angle" in said and "another mode" not in said
    origin = float(re.search(r"sample its difference to (-?[\d.]+) on the", said)[1])
    mended, said = run(angle(uniform(-math.pi), origin), y, pf.FedEP())
    assert said == []
    turned = (y - origin + math.pi) % (2 * math.pi) - math.pi
    mean, sd = on_a_grid(uniform(-math.pi), turned)
    mu = mended["posterior"]["mu"].values
    assert abs(float(mu.mean()) - mean) < 0.1 * sd and float(mu.std()) == pytest.approx(sd, rel=0.1)


def test_right_draws_of_both_parts_are_no_doubt_but_noted():
    idata, said = run(angle(uniform(-math.pi)), rows(3.1), pf.DSVGD())
    assert idata.attrs["doubts"] == ""
    (note,) = said
    assert "the mean and SD of its values have no meaning" in note


def probability(y):
    p = pyro.sample("p", dist.Beta(y.new_tensor(0.5), 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * p, 1.0), obs=y)


def bent(y):
    """Equal at both ends of the interval, where its slopes are not."""
    r = pyro.sample("r", dist.Uniform(y.new_tensor(-1.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(r.square(), 0.5), obs=y)


def offset(y):
    """Data that say nothing of a latent with a flat prior: equal densities at both ends are no period."""
    m = pyro.sample("m", dist.Uniform(y.new_tensor(0.0), 0.01))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(m.expand(len(y)), 1.0), obs=y)


def in_the_prior_alone(y):
    r = pyro.sample("r", dist.Uniform(y.new_tensor(-1.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * r, 1.0), obs=y)


def weight(y):
    """Components that overlap, and rows on both sides of their middle: the sum over rows is equal by chance."""
    p = pyro.sample("p", dist.Beta(y.new_tensor(1.0), 1.0))
    shares = dist.Categorical(torch.stack([p, 1 - p]))
    with pyro.plate("data", len(y)):
        component = dist.Normal(y.new_tensor([0.7, 1.2]), 1.0)
        pyro.sample("y", dist.MixtureSameFamily(shares, component), obs=y)


def bump(y):
    """Flat at both ends, with all that the data say in the middle."""
    r = pyro.sample("r", dist.Uniform(y.new_tensor(-1.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((-20 * r.square()).exp().expand(len(y)), 1.0), obs=y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("model", [probability, bent, offset, in_the_prior_alone, weight, bump])
def test_other_intervals_have_two_ends(model, dtype):
    y = torch.tensor([1.0, 0.8, 1.1], dtype=dtype)
    assert angles_across_ends(evidence_of(model, (y,), even_draws(1, dtype))) == []


def even_draws(dim, dtype):
    """Draws (S, D) that are even over intervals."""
    u = torch.quasirandom.SobolEngine(dim, seed=0, scramble=True).draw(1024, dtype=torch.float64)
    return u.logit().to(dtype)


def phase(x, y):
    """The part of a turn by which a wave is ahead, and how high it is."""
    part = pyro.sample("part", dist.Uniform(x.new_tensor(0.0), 1.0))
    high = pyro.sample("high", dist.Normal(x.new_tensor(0.0), 0.3))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(high * (2 * math.pi * (x + part)).sin(), 0.5), obs=y)


def weekday(x, y):
    """An angle that data enter through its sine and cosine, beside a latent weight that is none."""
    at = pyro.sample("at", dist.VonMises(x.new_tensor(3.0), 0.5))
    share = pyro.sample("share", dist.Uniform(x.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        mean = share * (at.cos() * x + at.sin() * (1 - x))
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("model", "name"), [(phase, "part"), (weekday, "at")], ids=["phase", "weekday"])
def test_an_angle_that_few_rows_hardly_tell_is_one(model, name, dtype):
    """Its density is nearly flat over the circle, and the same at both ends all the same, row by row."""
    x = torch.tensor([0.1, 0.4, 0.45, 0.7, 0.9], dtype=dtype)
    y = torch.tensor([0.2, -0.3, 0.1, 0.4, 0.0], dtype=dtype)
    found = angles_across_ends(evidence_of(model, (x, y), even_draws(2, dtype)))
    assert [angle.name for angle in found] == [name]
