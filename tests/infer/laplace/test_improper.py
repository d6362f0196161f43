"""Posteriors that do not exist are named as such (separable classes under a flat prior), and others are not."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

QUIET = {"progress": False, "num_draws": 10, "log_likelihood": False, "compile": "off", "audit": False}


def flat(x, y):
    w = pyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (x.shape[1],)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def federation(noise):
    """Sixty rows that a plane separates, where there is no noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    score = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y = (score + noise * torch.randn(60, generator=generator, dtype=torch.float64) > 0).double()
    return pf.Federation(flat, (x, y), plate="data", num_clients=3)


def test_a_mode_at_infinity_is_reported():
    with pytest.warns(UserWarning, match="posterior is improper"):
        pf.run(pf.FedLaplace(), federation(0.0), **QUIET)


def test_fedep_refuses_it_before_its_first_round():
    with pytest.raises(pf.errors.ModelError, match="FedEP: the posterior is improper"):
        pf.run(pf.FedEP(), federation(0.0), **QUIET)


@pytest.mark.parametrize("algorithm", [pf.FedLaplace(), pf.FedEP()], ids=lambda a: type(a).__name__)
def test_a_mode_that_exists_is_not(algorithm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.run(algorithm, federation(2.0), **QUIET)


def test_the_committee_machine_needs_a_proper_prior():
    with pytest.raises(pf.errors.ModelError, match=r"BCM gives every client the whole prior.*\['w'\].*proper priors"):
        pf.run(pf.BCM(), federation(2.0), **QUIET)
