"""Groups' own latents given the shared parameters: a conjugate Gaussian is the oracle."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr

import pyro_fed as pf
from pyro_fed.results.to_arviz import make_inference_data

DRAWS, WARDS, EACH = 4000, 3, 4
WARD = torch.arange(WARDS).repeat(EACH)
Y = torch.randn(WARDS * EACH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def levels(ward, y):
    """The prior of a level is N(centre, 1/4), and of a row N(level, 1)."""
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    with pyro.plate("wards", WARDS):
        level = pyro.sample("level", dist.Normal(centre, 0.5))
    with pyro.plate("patients", len(y)):
        pyro.sample("y", dist.Normal(level[ward], 1.0), obs=y)


def result(centre=1.0):
    draws = {"centre": (["chain", "draw"], np.full((1, DRAWS), centre))}
    return make_inference_data({"posterior": xr.Dataset(draws)}, {"local_sites": "level"})


def federation(rows=slice(None), clients=3):
    arguments = WARD[rows], Y[rows]
    return pf.Federation(levels, arguments, plate="wards", rows={"patients": "ward"}, num_clients=clients)


def test_they_are_drawn_from_their_conditional_distribution():
    """At five standard errors of 12 figures, chance fails this with a probability of 7e-6."""
    found = pf.own_effects(result(), federation()).posterior
    precision = 4 + EACH
    mean = (4 * 1.0 + Y.reshape(EACH, WARDS).sum(0).numpy()) / precision
    level = found["level"].values[0]
    assert np.abs((level.mean(0) - mean) * np.sqrt(precision * DRAWS)).max() < 5
    assert np.abs(level.var(0) * precision - 1).max() < 5 * np.sqrt(2 / DRAWS)
    np.testing.assert_array_equal(found["centre"].values, result().posterior["centre"].values)


def test_they_are_those_that_a_run_collects():
    fed = federation()
    idata = pf.run(pf.FedEP(), fed, progress=False, audit=False)
    found = pf.own_effects(idata, fed).posterior["level"]
    np.testing.assert_array_equal(found.values, idata.posterior["level"].values)


def plain(y):
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    with pyro.plate("patients", len(y)):
        pyro.sample("y", dist.Normal(centre, 1.0), obs=y)


def test_a_model_without_them_is_refused():
    fed = pf.Federation(plain, (Y,), plate="patients", num_clients=2)
    with pytest.raises(pf.errors.DataError, match="no latent inside"):
        pf.own_effects(result(), fed)
    with pytest.raises(pf.errors.DataError, match="centre"):
        pf.own_effects(
            make_inference_data({"posterior": xr.Dataset({"a": (["chain", "draw"], np.ones((1, 3)))})}, {}),
            federation(),
        )
