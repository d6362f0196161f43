"""Moments of a client's chain: what their finite number of dependent samples does to the precision."""

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf


def test_samples_of_a_chain_do_not_bias_the_precision():
    """Mean of tr(Λ̂ Σ) / D over runs is 1, within five standard errors and 0.03 for the shrinkage."""
    dim, generator = 6, torch.Generator().manual_seed(0)
    y = torch.randn(50, dim, generator=generator, dtype=torch.float64)

    def model(y):
        m = pyro.sample("m", dist.Normal(y.new_zeros(dim), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(m, 1.0).to_event(1), obs=y)

    fed = pf.Federation(model, (y,), plate="data", num_clients=1)
    ratios, settings = [], {"num_rounds": 1, "progress": False, "audit": False, "log_likelihood": False}
    for seed in range(20):
        algorithm = pf.FedEP(client=pf.infer.tilted.MCMC(steps=100, burn_in=20, thin=2), start="prior")
        idata = pf.run(algorithm, fed, num_draws=4000, seed=seed, **settings)
        covariance = np.cov(idata.posterior["m"].values.reshape(-1, dim).T)
        ratios.append(np.trace(np.linalg.inv(covariance)) / (51 * dim))
    assert abs(np.mean(ratios) - 1) < 0.03 + 5 * np.std(ratios) / 20**0.5
    assert np.std(ratios) / 20**0.5 < 0.04
