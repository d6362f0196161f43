"""What a result is not as it was asked for; errors near their limits; points away from the mode."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from conjugate import federation

import pyro_fed as pf
from pyro_fed.audit import near_limit_findings, settings_findings
from pyro_fed.codes.finding import texts

QUIET = {"progress": False, "log_likelihood": False, "compile": "off"}


def draws(count, dim=3):
    return torch.zeros(1, count, dim)


@pytest.fixture(scope="module")
def fed():
    return federation()


def test_another_temperature_is_another_posterior(fed):
    with pytest.warns(UserWarning, match="temperature=4 asks for another posterior than the model's"):
        idata = pf.run(pf.FedLaplace(temperature=4.0), fed, **QUIET)
    assert "likelihood to the power 1/4" in idata.attrs["doubts"]
    assert settings_findings(pf.DSVGD(temperature=1.0), draws(5)) == []


def test_too_few_draws_of_a_distribution_are_said_with_how_many_are_enough(fed):
    with pytest.warns(UserWarning, match="20 draws are too few: by chance alone .* off by 0.22 SDs, and SDs by 16 %"):
        pf.run(pf.FedLaplace(), fed, num_draws=20, **QUIET)
    (said,) = settings_findings(pf.FedEP(), draws(72))
    assert said.code == "too_few_draws" and "num_draws of 73 or more" in said.text
    assert settings_findings(pf.FedEP(), draws(73)) == []
    # Particles and chains are told by other figures than their number.
    assert settings_findings(pf.DSVGD(), draws(20)) == settings_findings(pf.NUTS(), draws(20)) == []


def measured(mean=0.0, ratio=1.0, error=0.01):
    figures = {"mean_error": [0.0, mean], "sd_ratio": [1.0, ratio]}
    figures |= {"mean_error_se": [error] * 2, "sd_ratio_se": [error] * 2}
    return {"parameter": np.array(["a", "b (unconstrained)"])} | {k: np.array(v) for k, v in figures.items()}


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (measured(mean=-0.22), "'b' (unconstrained), its mean is 0.22 SDs off"),
        (measured(ratio=1.22), "'b' (unconstrained), its SD is 0.82 times the posterior's"),
        (measured(mean=0.1, ratio=0.9), ""),
        (measured(mean=0.22, error=0.1), ""),  # by chance
        ({}, ""),
    ],
)
def test_errors_near_their_limits_are_noted(figures, said):
    found = near_limit_findings(figures)
    assert len(found) == bool(said)
    assert said in "".join(texts(found))


def test_a_point_is_judged_by_its_distance_from_the_mode(fed):
    with pytest.warns(UserWarning, match="this point is not the posterior's mode: 'w.*posterior SDs"):
        pf.run(pf.FedAvg(step_size=1e-4), fed, num_rounds=3, **QUIET)
    settings = {"prior": True, "chain_steps": 1, "momentum": 0.0}
    near = pf.run(pf.FedAvg(step_size=0.1, **settings), fed, num_rounds=100, **QUIET)
    assert near.attrs["doubts"] == ""
    # Steps on minibatches are of a fixed size, here too long: no climb from there arrives.
    with pytest.warns(UserWarning, match=r"'w\[\d\]' is \d\.\d+e\+\d+ posterior SDs"):
        pf.run(pf.FedAvg(step_size=0.3, batch_size=20, **settings), fed, num_rounds=30, **QUIET)


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.parametrize("steps", [pytest.param(1, id="early"), pytest.param(50, id="near")])
def test_a_point_of_many_parameters_is_judged_by_its_gradient(steps):
    """A search for modes takes a curvature of 60 × 60; the log density along the gradient takes seven scores."""
    x = torch.randn(200, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = (x[:, :10].sum(1) > 0).double()
    fed = pf.Federation(logistic, (x, y), plate="data", num_clients=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pf.run(pf.FedAvg(prior=True, step_size=0.1, momentum=0.0), fed, num_rounds=steps, **QUIET | {"compile": "auto"})
    said = [str(w.message) for w in caught if "not the posterior's mode: along its gradient" in str(w.message)]
    assert len(said) == (steps == 1)
