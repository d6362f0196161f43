"""Generalised Bayes: a likelihood raised to 1/alpha, in every family that fits or samples a distribution."""

import dataclasses
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import graph_of
from conjugate import data, exact, federation

import pyro_fed as pf
from pyro_fed import infer
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.errors import SettingError

ALPHA = 2.5
QUIET = {"progress": False, "log_likelihood": False, "num_draws": 4000, "audit": False}
#: Of SVI, whose rate falls to a thousandth: errors of 0.04 to 0.09 SD over four seeds.
FEW_STEPS = {"num_steps": 400, "step_size": 0.2, "final_share": 0.001}


@pytest.fixture(scope="module")
def fed():
    return federation()


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [
        (pf.FedLaplace(temperature=ALPHA), 0.1),
        (pf.FedEP(temperature=ALPHA), 0.1),
        (pf.infer.FedSEP(temperature=ALPHA), 0.1),
        (pf.infer.PVI(temperature=ALPHA), 0.1),
        (pf.infer.StreamingVB(temperature=ALPHA), 0.1),
        (pf.papers.GVI(temperature=ALPHA), 0.1),
        (pf.infer.BCM(temperature=ALPHA), 0.1),
        (pf.infer.FedPA(temperature=ALPHA, client="laplace"), 0.1),
        (pf.P2PVI(temperature=ALPHA), 0.1),
        (pf.infer.P2PEP(temperature=ALPHA), 0.1),
        (pf.infer.P2PPushSum(temperature=ALPHA), 0.1),
        (pf.papers.PMD(temperature=ALPHA, num_particles=1000), 0.2),
        (pf.FedAIS(temperature=ALPHA), 0.1),
        (pf.FedAIS(temperature=ALPHA, surrogates=pf.FedEP()), 0.15),  # sites of α = 1: the weights are all that tempers
        (pf.infer.SVI(temperature=ALPHA, **FEW_STEPS), 0.1),
        (pf.infer.SFVI(temperature=ALPHA, num_steps=400, step_size=0.05), 0.15),  # the steps' noise is some 0.04 SD
        (pf.FSGLD(temperature=ALPHA, target_ess=None, num_chains=60, burn_in=100, local_steps=20), 0.2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, pf.FedEP | pf.FedLaplace) else None,
)
def test_it_is_the_posterior_of_the_tempered_likelihood(fed, algorithm, most):
    """Within Monte Carlo error of 4000 draws (0.016 SD), or that of short chains; without it SDs are 0.63 of these."""
    mean, covariance = exact(*data(), power=1 / ALPHA)
    options = QUIET | graph_of(algorithm, fed) | ({"num_rounds": 100} if isinstance(algorithm, pf.FSGLD) else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a short chain
        idata = pf.run(algorithm, fed, **options)
    draws = idata.posterior["w"].values.reshape(-1, len(mean))
    sd = covariance.diagonal().sqrt().numpy()
    assert np.abs((draws.mean(0) - mean.numpy()) / sd).max() < most
    assert np.abs(draws.std(0) / sd - 1).max() < most


def test_the_audit_judges_by_the_same_posterior(fed):
    with pytest.warns(UserWarning, match="asks for another posterior than the model's"):
        idata = pf.run(pf.FedEP(temperature=ALPHA), fed, seed=0, progress=False)
    assert idata.attrs["audited"]
    assert "\n" not in idata.attrs["doubts"]  # chains at the tempered posterior have none


def test_whatever_has_a_distribution_has_a_temperature():
    every = [one for name in dir(infer) if isinstance(one := getattr(infer, name), type) and issubclass(one, Algorithm)]
    fields = {one.__name__: {f.name for f in dataclasses.fields(one)} for one in every if one.draws_are != "point"}
    assert len(fields) > 30
    assert [name for name, settings in fields.items() if "temperature" not in settings] == []


def test_surrogates_of_local_draws_are_tempered_too(fed):
    """By draws of SGLD, whose step is a twentieth of the largest stable one: SDs within some 10 % (without: 37 %)."""
    options = QUIET | {"num_rounds": 1}
    plain, tempered = (
        pf.run(pf.infer.LocalSGLD(temperature=alpha, num_samples=4000), fed, **options).posterior["w"].values
        for alpha in (1.0, ALPHA)
    )
    assert tempered.std((0, 1)) / plain.std((0, 1)) == pytest.approx(np.sqrt(ALPHA), rel=0.2)


def test_svi_tempers_rows_alone_and_refuses_latents_of_theirs():
    """A factor outside the plate is the prior's: N(0, 1) twice is N(0, 1/2), whatever the temperature."""

    def model(y, levels=False):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
        pyro.factor("again", -0.5 * mu.square().sum())
        with pyro.plate("data", len(y)):
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0)) if levels else 0.0
            pyro.sample("y", dist.Normal(mu + shift, 1.0), obs=y)

    y = torch.tensor([0.3, 1.2, -0.4, 0.8, 1.0], dtype=torch.float64)
    svi = pf.infer.SVI(temperature=ALPHA, **FEW_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the factor, and of another posterior
        draws = pf.run(svi, pf.Federation(model, (y,), plate="data", num_clients=2), **QUIET).posterior["mu"].values
        fed = pf.Federation(model, (y, True), plate="data", num_clients=2)
        with pytest.raises(SettingError, match="not a factor of the joint density"):
            pf.run(svi, fed, **QUIET)
    precision = 2 + len(y) / ALPHA
    assert draws.mean() == pytest.approx(float(y.sum()) / ALPHA / precision, abs=0.1 * precision**-0.5)
    assert draws.std() == pytest.approx(precision**-0.5, rel=0.1)


def test_one_is_bayes(fed):
    runs = [pf.run(pf.FedEP(**more), fed, **QUIET).posterior["w"].values for more in ({}, {"temperature": 1.0})]
    assert np.array_equal(*runs)


def test_minibatches_are_tempered_too(fed):
    rows = fed.client_data([0])._replace(power=torch.tensor(1 / ALPHA))
    assert float(rows.full_batch().weight.sum()) == pytest.approx(float(rows.num_rows.sum()) / ALPHA)
