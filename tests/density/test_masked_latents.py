"""Masks over latents of rows, of which a part or all are left out with what is observed of them: exact likelihoods.

Every model is Gaussian given θ, so that the rows' latents are integrated out by hand. A constant is left open: the
integral of a latent that nothing depends on is infinite, whatever θ.
"""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

import pyro_fed as pf

ROWS, TIMES = 24, 3


@pytest.fixture
def data():
    """Rows of three times, of which the last ones are missing, and their numbers of times (N,)."""
    generator = torch.Generator().manual_seed(0)
    length = torch.randint(1, TIMES + 1, (ROWS,), generator=generator)
    return 1 + 1.3 * torch.randn(ROWS, TIMES, generator=generator, dtype=torch.float64), length


def level_and_width(y):
    zero = y.new_zeros(())
    return pyro.sample("level", dist.Normal(zero, 2.0)), pyro.sample("width", dist.LogNormal(zero, 0.7))


def vectors(y, length):
    level, width = level_and_width(y)
    there = torch.arange(TIMES) < length[..., None]
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Normal(level, width).expand([len(y), TIMES]).mask(there).to_event(1))
        pyro.sample("y", dist.Normal(z, 1.0).mask(there).to_event(1), obs=y)


def plates(y, length):
    level, width = level_and_width(y)
    there = torch.arange(TIMES) < length[..., None]
    with pyro.plate("rows", len(y), dim=-2), pyro.plate("times", TIMES, dim=-1), poutine.mask(mask=there):
        z = pyro.sample("z", dist.Normal(level, width))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def observed_alone(y, length):
    level, width = level_and_width(y)
    there = torch.arange(TIMES) < length[..., None]
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Normal(level, width).expand([len(y), TIMES]).to_event(1))
        pyro.sample("y", dist.Normal(z, 1.0).mask(there).to_event(1), obs=y)


def latent_alone(y, length):
    """What is observed of a latent without a density says nothing of θ."""
    level, width = level_and_width(y)
    there = torch.arange(TIMES) < length[..., None]
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Normal(level, width).expand([len(y), TIMES]).mask(there).to_event(1))
        pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)


def whole_rows(y, length):
    level, width = level_and_width(y)
    with pyro.plate("rows", len(y)), poutine.mask(mask=length == TIMES):
        z = pyro.sample("z", dist.MultivariateNormal(level.expand(TIMES), scale_tril=width * torch.eye(TIMES).to(y)))
        pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)


def series(y, length):
    level, width = level_and_width(y)
    with pyro.plate("rows", len(y)):
        z = y.new_zeros(len(y))
        for t in pyro.markov(range(TIMES)):
            with poutine.mask(mask=t < length):
                z = pyro.sample(f"z{t}", dist.Normal(level * z, width))
                pyro.sample(f"y{t}", dist.Normal(z, 1.0), obs=y[..., t])


def hidden_states(y, length):
    level, width = level_and_width(y)
    moves = y.new_tensor([[0.8, 0.2], [0.3, 0.7]])
    with pyro.plate("rows", len(y)):
        state = torch.zeros((), dtype=torch.int64)
        for t in pyro.markov(range(TIMES)):
            with poutine.mask(mask=t < length):
                state = pyro.sample(f"s{t}", dist.Categorical(moves[state]), infer={"enumerate": "parallel"})
                pyro.sample(f"y{t}", dist.Normal(level + state.to(y), width), obs=y[..., t])


def independent(y, length, level, width):
    of_rows = torch.distributions.Normal(torch.full_like(y, level), (1 + width**2) ** 0.5).log_prob(y)
    return (of_rows * (torch.arange(TIMES) < length[:, None])).sum()


def complete_rows(y, length, level, width):
    return independent(y[length == TIMES], length[length == TIMES], level, width)


def autoregression(y, length, level, width):
    """A series' values have the variances v_t = level² v_(t-1) + width², and covariances level^(s-t) v_t."""
    total, variances = y.new_zeros(()), [width**2]
    for _ in range(TIMES - 1):
        variances.append(level**2 * variances[-1] + width**2)
    whole = [[variances[min(s, t)] * level ** abs(s - t) for s in range(TIMES)] for t in range(TIMES)]
    for n in range(1, TIMES + 1):
        covariance = torch.tensor(whole, dtype=torch.float64)[:n, :n] + torch.eye(n)
        total += (
            torch.distributions.MultivariateNormal(torch.zeros(n).double(), covariance)
            .log_prob(y[length == n, :n])
            .sum()
        )
    return total


def forward(y, length, level, width):
    total, moves = y.new_zeros(()), torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=torch.float64).log()
    for row, n in zip(y, length, strict=True):
        known = moves[0]
        for t in range(n):
            known = known if t == 0 else torch.logsumexp(known[:, None] + moves, 0)
            means = torch.tensor([level, level + 1], dtype=torch.float64)
            known = known + torch.distributions.Normal(means, width).log_prob(row[t])
        total += torch.logsumexp(known, 0)
    return total


@pytest.mark.parametrize(
    ("model", "exact"),
    [
        (vectors, independent),
        (plates, independent),
        (observed_alone, independent),
        (latent_alone, independent),
        (whole_rows, complete_rows),
        (series, autoregression),
        (hidden_states, forward),
    ],
)
def test_likelihoods_under_masks_are_exact_but_for_a_constant(data, model, exact):
    """Without unit curvatures of what is left out, `vectors`, `plates` and `series` differed by up to 40 nats."""
    fed = pf.Federation(model, data, plate="rows", num_clients=3)
    at = [(0.0, 1.0), (1.0, 0.6), (0.9, 0.2), (1.1, 1.4), (0.5, 2.2), (-1.0, 0.8), (2.0, 2.7)]
    points = torch.tensor([(level, math.log(width)) for level, width in at], dtype=torch.float64)
    found = fed.problem.log_lik(points)
    off = found - torch.stack([torch.as_tensor(exact(*data, level, width)) for level, width in at])
    assert float((off - off[0]).abs().max()) < 1e-9


def positive(y, length):
    level, width = level_and_width(y)
    there = torch.arange(TIMES) < length[..., None]
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.LogNormal(level, width).expand([len(y), TIMES]).mask(there).to_event(1))
        pyro.sample("y", dist.Normal(z.log(), 1.0).mask(there).to_event(1), obs=y)


def positive_and_used(y, length):
    level, width = level_and_width(y)
    there = torch.arange(TIMES) < length[..., None]
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.LogNormal(level, width).expand([len(y), TIMES]).mask(there).to_event(1))
        pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)


def test_a_latent_with_bounds_that_nothing_holds_is_refused(data):
    """Its integral is a slope without an end: the likelihood was no number, and a run came to no end either."""
    with pytest.raises(
        pf.errors.ModelError, match=r"latent 'z' has bounds and no density .* of 24 .*Mask only the observations"
    ):
        pf.Federation(positive, data, plate="rows", num_clients=3)
    fed = pf.Federation(positive_and_used, data, plate="rows", num_clients=3)
    assert bool(fed.problem.log_lik(torch.zeros(2, dtype=torch.float64)).isfinite())
