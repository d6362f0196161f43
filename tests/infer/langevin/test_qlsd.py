"""Quantised scores: the quantiser's mean and variance, exact posteriors of clients that differ, and bytes."""

import functools
import re

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from short_runs import quiet

import pyro_fed as pf

CLIENTS, ROWS, DIM = 5, 40, 2


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(DIM, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@functools.cache
def federation():
    """Clients with effects of their own, so that no client's score is zero at the posterior's mode."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
    own = 3 * torch.randn(CLIENTS, DIM, generator=generator, dtype=torch.float64).repeat_interleave(ROWS, 0)
    y = (x * own).sum(1) + torch.randn(len(x), generator=generator, dtype=torch.float64)
    where = [torch.arange(k * ROWS, (k + 1) * ROWS) for k in range(CLIENTS)]
    return pf.Federation(model, (x, y), plate="data", num_clients=CLIENTS, partition=pf.partition.Explicit(where))


def exact():
    """Mean and SDs."""
    x, y = federation().problem.arguments.leaves
    covariance = torch.linalg.inv(torch.eye(DIM).double() + x.T @ x)
    return (covariance @ x.T @ y).numpy(), covariance.diagonal().sqrt().numpy()


@pytest.mark.parametrize("levels", [1, 3, 127])
def test_the_quantiser_has_no_bias_and_the_variance_that_is_said(levels):
    algorithm = pf.infer.QLSD(step_size=0.01, levels=levels)
    vector = torch.tensor([[0.3, -2.0, 0.0, 1.1], [0.0, 0.0, 0.0, 0.0], [0.0, -5.0, 0.0, 0.0]], dtype=torch.float64)
    uniform = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000  # the integral over u by midpoints
    sent = algorithm.quantised(vector.expand(4000, 3, 4), uniform[:, None, None].expand(4000, 3, 4))
    assert sent.level.dtype == torch.int8
    values = algorithm.restored(sent)
    assert torch.allclose(values.mean(0), vector, atol=5e-4)
    omega = min(4 / levels**2, 4**0.5 / levels)
    variance = ((values - vector) ** 2).mean(0).sum(-1)
    assert bool((variance <= omega * (vector**2).sum(-1) + 1e-12).all())


def test_the_posterior_is_exact_but_for_the_step_and_a_memory_takes_the_quantisers_noise_away():
    """64 chains of 60 rounds, with a memory of some 20: a mean within 0.07 SD and an SD within 5 %; five of these."""
    mean, sd = exact()
    step = 0.2 * float(sd.min()) ** 2
    settings = {"step_size": step, "num_chains": 64, "burn_in": 100, "target_ess": None, "levels": 1}
    widths = {}
    for memory in (True, False):
        idata = quiet(pf.infer.QLSD(**settings, memory=memory), federation(), num_rounds=160, num_draws=64 * 60)
        draws = idata.posterior["w"].values.reshape(-1, DIM)
        widths[memory] = draws.std(0) / sd
        assert (np.abs(draws.mean(0) - mean) < 0.36 * draws.std(0)).all()
    assert (np.abs(widths[True] - 1) < 0.25).all()
    assert (widths[False] > 1.5).all()


def test_a_number_is_sent_in_a_byte():
    def many(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(y.shape[1], dtype=y.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w, 1.0).to_event(1), obs=y)

    sent = {}
    for dim in (500, 1500):  # the difference is free of headers
        y = torch.zeros(4, dim, dtype=torch.float64)
        fed = pf.Federation(many, (y,), plate="data", num_clients=2)
        for algorithm in (pf.infer.QLSD(step_size=0.1, burn_in=0), pf.infer.SummedLangevin(step_size=0.1, burn_in=0)):
            idata = quiet(algorithm, fed, num_rounds=1, num_draws=1, compile="off")
            sent[type(algorithm).__name__, dim] = float(idata.federation["bytes_up"][0, 0])
    assert abs(sent["QLSD", 1500] - sent["QLSD", 500] - 1000) < 20
    assert abs(sent["SummedLangevin", 1500] - sent["SummedLangevin", 500] - 8000) < 20


def test_what_it_needs_is_said():
    with pytest.raises(pf.errors.SettingError, match=re.escape("QLSD: give step_size, about a quarter")):
        quiet(pf.infer.QLSD(), federation(), num_rounds=2)
    with pytest.raises(pf.errors.SettingError, match="levels"):
        pf.infer.QLSD(step_size=0.1, levels=128)
