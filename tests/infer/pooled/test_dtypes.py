"""Observations and constants of any dtype, where Pyro's own algorithms run the model or its kernels the density."""

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDiagonalNormal
from short_runs import quiet, values

import pyro_fed as pf

X = np.random.default_rng(0).normal(size=24)
LABELS = (np.random.default_rng(1).uniform(size=24) < 0.6).astype(int)
SHORT = {"num_rounds": 1, "num_draws": 60, "log_likelihood": False}
SVI = pf.infer.SVI(num_steps=25, num_guide_draws=60)


def logistic(x, y):
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


def federated(model, *args, **options):
    return pf.Federation(model, args, plate="data", num_clients=2, **options)


@pytest.mark.parametrize("labels", [LABELS, LABELS > 0, torch.tensor(LABELS, dtype=torch.uint8), LABELS.tolist()])
def test_svi_takes_labels_of_any_dtype(labels):
    """To the bit as those in floating point."""
    assert (values(quiet(SVI, federated(logistic, X, labels), **SHORT)) == svi_of_floats()).all()


def svi_of_floats():
    return values(quiet(SVI, federated(logistic, X, LABELS * 1.0), **SHORT))


def test_svi_takes_counts_at_a_temperature():
    def counts(y):
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    warm = pf.infer.SVI(num_steps=25, num_guide_draws=60, temperature=2.0)
    of_ints, of_floats = (federated(counts, y, dtype=torch.float64) for y in (LABELS + 1, LABELS + 1.0))
    assert (values(quiet(warm, of_ints, **SHORT)) == values(quiet(warm, of_floats, **SHORT))).all()


def test_svi_of_a_frame_is_that_of_its_columns():
    """Written for pandas: `.values` and `torch.tensor(...)` of what is a tensor while the model runs."""

    def of_frame(frame):
        logistic(torch.tensor(frame["x"].values), torch.tensor(frame["y"].values))

    frame = pd.DataFrame({"x": X, "y": LABELS})
    assert (values(quiet(SVI, federated(of_frame, frame), **SHORT)) == svi_of_floats()).all()


def test_svi_leaves_masked_missing_values_out():
    """The posterior mean of the rows that are there, in closed form; its SD is 0.2, and draws alone are off by 0.01."""
    y = np.where(np.arange(24) % 4 == 0, np.nan, X)

    def observed(y):
        m = pyro.sample("m", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(y)), pyro.poutine.mask(mask=~torch.isnan(y)):
            pyro.sample("y", dist.Normal(m, 1.0), obs=y)

    algorithm = pf.infer.SVI(guide=AutoDiagonalNormal, num_steps=300, step_size=0.1, num_guide_draws=500)
    found = values(quiet(algorithm, federated(observed, y), **SHORT | {"num_draws": 500}))
    assert abs(found.mean() - np.nansum(y) / (18 + 0.01)) < 0.1 and abs(found.std() * 18**0.5 - 1) < 0.2


def test_svi_holds_parameters_of_the_model_constant():
    """They were trained: here the noise, 5, would be made that of the rows, and the SD of m with it."""

    def noisy(y):
        m = pyro.sample("m", dist.Normal(0.0, 10.0))
        noise = pyro.param("noise", torch.tensor(5.0, dtype=y.dtype), constraint=dist.constraints.positive)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(m, noise), obs=y)

    pyro.clear_param_store()
    with pytest.warns(UserWarning, match="held constant"):
        fed = federated(noisy, X)
    pyro.clear_param_store()
    algorithm = pf.infer.SVI(guide=AutoDiagonalNormal, num_steps=300, step_size=0.1, num_guide_draws=500)
    found = values(quiet(algorithm, fed, **SHORT | {"num_draws": 500}))
    assert abs(found.std() / (24 / 25 + 0.01) ** -0.5 - 1) < 0.2
    pyro.clear_param_store()


def test_a_guide_makes_its_constants_in_the_dtype_of_the_data():
    def guide(x, y):
        pyro.sample("b", dist.Normal(pyro.param("loc", torch.zeros(())), pyro.param("scale", torch.ones(()))))

    found = quiet(pf.FedEP(guide=guide), federated(logistic, X, LABELS), num_draws=50)
    assert found.posterior["b"].dtype == np.float64


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def mixed(y):
    p = pyro.sample("p", dist.Beta(double(0.5), double(0.5)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(p), obs=y)


@pytest.mark.parametrize("y", [LABELS, torch.tensor(LABELS).float()])
@pytest.mark.parametrize(
    "algorithm",
    [
        pf.NUTS(num_samples=200, warmup_steps=100, num_chains=1),
        pf.infer.ConsensusMC(num_samples=200, warmup_steps=100),
        pf.papers.PMD(),
        pf.infer.SVI(num_steps=400, num_guide_draws=400),
    ],
    ids=lambda one: type(one).__name__,
)
def test_constants_in_float64_beside_other_data(algorithm, y):
    """Against Beta(1/2 + n, 1/2 + N - n); seeded: averages of draws, ConsensusMC, are rough."""
    fed = federated(mixed, y)
    assert fed.problem.dtype == torch.float32
    found = values(quiet(algorithm, fed, **SHORT | {"num_draws": 400, "compile": "auto"}))
    exact = torch.distributions.Beta(0.5 + LABELS.sum(), 24.5 - LABELS.sum())
    assert abs(found.mean() - float(exact.mean)) < 0.35 * float(exact.stddev)
    assert abs(np.log(found.std() / float(exact.stddev))) < 0.3
