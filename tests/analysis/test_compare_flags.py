"""`pf.compare` on results of real runs: the wrong ones are flagged, the right ones are not."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from late import late

import pyro_fed as pf
from pyro_fed.results.to_arviz import make_inference_data

xr = late("xarray")

CLIENTS, ROWS = 5, 20
#: DSGLD as in the papers, without what this package adds.
PUBLISHED = {"surrogates": None, "control_variate": False, "target_ess": None}


def model(x, prior_sd):
    mu = pyro.sample("mu", dist.Normal(x.new_zeros(x.shape[1]), prior_sd).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, 1.0).to_event(1), obs=x)


def shards(dim, rows, spread):
    """Each client's rows around its own mean."""
    generator = torch.Generator().manual_seed(0)
    means = spread * torch.randn(CLIENTS, 1, dim, generator=generator, dtype=torch.float64)
    return means + torch.randn(CLIENTS, rows, dim, generator=generator, dtype=torch.float64)


def truth(x, prior_sd, draws=2000):
    """Draws of the exact posterior."""
    rows = x.flatten(0, 1).numpy()
    precision = len(rows) + prior_sd**-2
    mean = rows.sum(0) / precision
    values = mean + np.random.default_rng(0).normal(size=(1, draws, len(mean))) / precision**0.5
    posterior = xr.Dataset({"mu": (("chain", "draw", "mu_dim_0"), values)})
    return make_inference_data({"posterior": posterior}, {"draws_are": "independent"})


def flags(algorithms, x, prior_sd):
    """The column of warnings, the truth as reference."""
    clients = [(rows, prior_sd) for rows in x]
    fed = pf.Federation.from_clients(model, clients, plate="data", shard=("x",))
    results = {name: run(algorithm, fed, rounds) for name, (algorithm, rounds) in algorithms.items()}
    results["truth"] = truth(x, prior_sd)
    return pf.compare(results, reference="truth", federation=fed)["warnings"]


def run(algorithm, fed, rounds):
    """Without the audit, whose say is in the same column."""
    options = {"progress": False, "log_likelihood": False, "audit": False, "compile": "trace"}
    return pf.run(algorithm, fed, num_rounds=rounds, **options)


@pytest.mark.filterwarnings("ignore:.*R-hat", "ignore:only .* effective draws", "ignore:these draws are not")
def test_dsgld_with_a_thousand_local_updates_is_flagged_and_right_results_are_not():
    """DSGLD ends near a client's own posterior, tens of SDs away."""
    x = shards(2, ROWS, 6.0)
    step = pf.infer.step.Fixed(size=1e-3, precondition=False, midpoint=False)
    drifting = pf.infer.DSGLD(**PUBLISHED, step=step, local_steps=1000, batch_size=10, burn_in=2000)
    said = flags(
        {"DSGLD": (drifting, 5), "FSGLD": (pf.FSGLD(num_chains=20), None), "FedEP": (pf.FedEP(), None)}, x, 1.0
    )
    assert "reference SDs off" in said["DSGLD"] or "times the reference's" in said["DSGLD"]
    assert said["FSGLD"] == said["FedEP"] == ""


@pytest.mark.filterwarnings("ignore:the KDE of bandwidth", "ignore:.*particles")
def test_dsvgd_with_a_dead_kde_is_flagged_and_the_default_is_not():
    """One row a client in eight dimensions: particles are much further apart than the bandwidth 0.55."""
    x = shards(8, 1, 3.0)
    said = flags(
        {
            "published": (pf.papers.PaperDSVGD(num_particles=40, local_steps=50, distill_steps=50), 5),
            "default": (pf.DSVGD(num_particles=100), None),
        },
        x,
        10.0,
    )
    assert "KDE" in said["published"] and "carries no information" in said["published"]
    assert said["default"] == ""
