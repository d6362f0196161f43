"""The noise of differential privacy: nobody can search for it, its grid shows nothing, its distribution is as stated.

Each random check fails by chance with a probability below 1e-9. The noise is not seeded.
"""

import math
import os
import random
import secrets

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from short_runs import quiet

import pyro_fed as pf
from pyro_fed.algorithm import privacy
from pyro_fed.density.rows.batches import ClientData

RARE = 1e-10
ZEROS = torch.zeros(4, 30_000, dtype=torch.float64)


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def federation(rows=40, clients=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator, dtype=dtype)
    y = x.sum(1) + torch.randn(rows, generator=generator, dtype=dtype)
    return pf.Federation(model, (x, y), plate="data", num_clients=clients)


def test_no_generator_with_a_seed_makes_the_noise(monkeypatch):
    """Torch's, NumPy's and Python's are out of order, and Python's bytes from the operating system always the same."""

    def forbidden(*args, **kwargs):
        raise AssertionError("noise of differential privacy from a generator with a seed")

    for owner, name in (
        *((torch, name) for name in ("Generator", "randn", "normal", "manual_seed", "seed")),
        *((np.random, name) for name in ("default_rng", "RandomState", "Generator", "normal", "seed")),
        (random, "Random"),
        (random, "gauss"),
    ):
        monkeypatch.setattr(owner, name, forbidden)
    monkeypatch.setattr(secrets, "randbits", lambda bits: 123456789)
    monkeypatch.setattr(os, "urandom", bytes)
    private = pf.Private(norm=1.0, noise_multiplier=1.0)
    one, other = (private.middle(ZEROS[:, :100]) for _ in range(2))
    assert (one != other).all()
    assert (privacy.standard_normal(one) != privacy.standard_normal(one)).all()


def test_bits_beyond_the_32nd_matter(monkeypatch):
    """Torch's generator on a CPU keeps the low 32 bits of a seed: equal ones, whatever is above, gave equal noise."""
    private, found = pf.Private(norm=1.0, noise_multiplier=1.0), []
    for high in (0, 1, 2**30 - 1):
        monkeypatch.setattr(secrets, "randbits", lambda bits, high=high: (high << 32) | 123456789)
        found.append(private.middle(ZEROS[:, :40]))
    assert not any(torch.equal(found[0], other) for other in found[1:])


def test_the_same_seed_has_other_noise():
    fed, private = federation(), pf.Private(norm=20.0, noise_multiplier=2.0)
    chain = pf.infer.SummedLangevin(burn_in=0, temperature=4.0)
    for algorithm, options in ((pf.FedAvg(), {"num_rounds": 2}), (chain, {"num_rounds": 30})):
        one, other = (quiet(algorithm, fed, combination=private, seed=7, **options) for _ in range(2))
        assert (one.posterior["w"].values != other.posterior["w"].values).all()
        assert one.attrs["epsilon"] == other.attrs["epsilon"]


@pytest.mark.parametrize("noise_multiplier", [0.02, 1.0, 37.3])
def test_the_noise_is_a_gaussian_of_the_stated_size(noise_multiplier):
    """Mean, variance, and Kolmogorov's distance by the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart."""
    private = pf.Private(norm=2.0, noise_multiplier=noise_multiplier)
    noise = (private.middle(ZEROS) * len(ZEROS) / (2.0 * noise_multiplier)).numpy()
    count = len(noise)
    assert abs(noise.mean()) < scipy.stats.norm.isf(RARE) / count**0.5
    low, high = scipy.stats.chi2.ppf([RARE, 1 - RARE], count)
    assert low < (noise**2).sum() < high
    distance = scipy.stats.kstest(noise, "norm").statistic
    assert distance < math.sqrt(math.log(2 / RARE) / (2 * count))


@pytest.mark.parametrize("sd", [0.7, 3.0])
def test_it_is_the_discrete_gaussian(sd):
    """Of a few whole numbers, where it is not the continuous one rounded."""
    count = 30_000
    found = privacy.with_discrete_gaussian(torch.zeros(count, dtype=torch.int64), sd).numpy()
    support = np.arange(-60, 61)
    pmf = np.exp(-(support**2) / (2 * sd**2))
    cumulative = np.cumsum(pmf / pmf.sum())
    empirical = (found[:, None] <= support).mean(0)
    assert np.abs(empirical - cumulative).max() < math.sqrt(math.log(2 / RARE) / (2 * count))
    rounded = scipy.stats.norm.cdf(support + 0.5, scale=sd)
    assert sd > 1 or np.abs(rounded - cumulative).max() > 0.01


def test_what_leaves_64_bits_is_held_at_its_end():
    ends = torch.tensor([torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min])
    noisy = privacy.with_discrete_gaussian(ends.repeat(50), 1e6)
    assert (noisy.sign() == ends.sign().repeat(50)).all()


@pytest.mark.parametrize("unit", ["client", "row"])
@pytest.mark.parametrize("norm", [1.0, 0.1, 3e5])
def test_released_numbers_are_on_the_grid(unit, norm):
    private = pf.Private(norm=norm, noise_multiplier=1.5, unit=unit)
    assert math.frexp(private.grid)[0] == 0.5  # a power of two
    assert 2.0**-36 <= private.grid / (1.5 * norm) <= 2.0**-35
    messages = norm * torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = len(messages) * private.middle(messages) / private.grid
    assert torch.equal(steps, steps.round())
    assert (steps.abs() > 2.0**20).any()


def test_a_client_moves_the_sum_by_no_more_than_the_norm(monkeypatch):
    """In whole numbers, without an error: messages that clipping in float64 leaves a little too long among them."""
    monkeypatch.setattr(privacy, "with_discrete_gaussian", lambda total, sd: total)
    generator = torch.Generator().manual_seed(0)
    messages = torch.randn(6, 1000, generator=generator, dtype=torch.float64) * 10.0 ** torch.arange(-4, 8, 2)[:, None]
    messages[0] = torch.eye(1000, dtype=torch.float64)[0]
    private = pf.Private(norm=1.0, noise_multiplier=1.0)

    def steps(sent):
        return [int(one) for one in len(sent) * private.middle(sent) / private.grid]

    whole, norm = steps(messages), int(private.norm / private.grid)
    for client in range(len(messages)):
        without = messages.clone()
        without[client] = 0.0
        apart = sum((a - b) ** 2 for a, b in zip(whole, steps(without), strict=True))
        assert apart <= norm**2
        assert client < 2 or apart > (0.99 * norm) ** 2


def test_the_noise_covers_the_norm_and_the_rounding_of_a_client_s_sum(monkeypatch):
    seen = []
    monkeypatch.setattr(privacy, "with_discrete_gaussian", lambda total, sd: seen.append(sd) or total)
    private = pf.Private(norm=3.0, noise_multiplier=0.5)
    private.middle(ZEROS[:, :10_000])
    assert seen[0] >= 0.5 * (3.0 / private.grid + 100.0)
    assert seen[0] < 0.5 * (3.0 / private.grid + 100.0) + 1


def row_scores(fed, norm, rows):
    """The message of a client with these rows."""
    algorithm = pf.infer.SummedLangevin(step_size=0.1, row_norm=norm)
    shared, _ = algorithm.init(fed.problem, 1, torch.Generator().manual_seed(0), None)
    index = torch.tensor([rows])
    data = ClientData(tuple(fed.problem.rows), index, torch.tensor([len(rows)]))
    received = algorithm.download(shared, torch.tensor([0]))
    return algorithm.local_step(fed.problem, received, {}, data, ())[0]["score"].flatten()


@pytest.mark.parametrize("norm", [0.7, 5.0])
def test_a_row_moves_its_client_s_sum_by_its_own_part_exactly(norm):
    """In whatever order the rows stand, and whichever of them is missing: the sum has no rounding errors."""
    fed, rows = federation(), list(range(40))
    whole = row_scores(fed, norm, rows)
    assert torch.equal(whole, row_scores(fed, norm, rows[::-1]))
    shortened = 0
    for row in rows:
        without = row_scores(fed, norm, [one for one in rows if one != row])
        own = row_scores(fed, norm, [row])
        assert torch.equal(whole - without, own)
        assert float(own.square().sum()) <= norm**2 * (1 + 1e-15)
        shortened += float(own.norm()) > 0.99 * norm
    assert shortened


def test_rows_in_float32_have_an_exact_sum_too():
    found = row_scores(federation(dtype=torch.float32), 0.7, list(range(40)))
    assert found.dtype == torch.float64
    steps = found * 2.0**28  # frexp(0.7) = 0.7 × 2^0
    assert torch.equal(steps, steps.round())


def test_the_chain_s_own_noise_is_secret_where_the_sum_is_private():
    """The same state, twice: another step of a private chain, the same step of one that is not."""
    shared, _ = pf.infer.SummedLangevin(step_size=0.01).init(
        federation().problem, 4, torch.Generator().manual_seed(0), None
    )
    message = {"score": torch.ones(4, *shared["position"].shape, dtype=torch.float64)}
    for noise, same in ((0.0, True), (10.0, False)):
        algorithm = pf.infer.SummedLangevin(step_size=0.01, released_noise=noise)
        one, other = (algorithm.combine(shared, message, torch.full((4,), 0.25))["position"] for _ in range(2))
        assert torch.equal(one, other) == same


@pytest.mark.parametrize("norm", [1e-100, 1e100])
@pytest.mark.parametrize("noise_multiplier", [1e-99, 1e-3, 1e99])
def test_extreme_settings_have_finite_noise(norm, noise_multiplier):
    private = pf.Private(norm=norm, noise_multiplier=noise_multiplier)
    released = private.middle(norm * torch.ones(3, 5, dtype=torch.float64))
    assert released.isfinite().all()
    assert (released != 0).any()


@pytest.mark.parametrize(("name", "value"), [("norm", 1e300), ("norm", 1e-300), ("noise_multiplier", 1e200)])
def test_settings_that_no_grid_can_hold_are_refused(name, value):
    with pytest.raises(pf.errors.SettingError, match=f"Private: {name} must lie in"):
        pf.Private(**{"norm": 1.0, "noise_multiplier": 1.0, name: value})
