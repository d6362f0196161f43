"""The group log_prior against densities written out, and sensitivities against the exact posteriors' distance."""

import arviz as az
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from arviz_results import there_and_back
from scipy import stats

import pyro_fed as pf

QUIET = {"progress": False, "audit": False, "compile": "off"}
GENERATOR = torch.Generator().manual_seed(0)
Y = torch.randn(40, generator=GENERATOR, dtype=torch.float64) + 1.0


def many_supports(y):
    """A scale, a simplex, an interval, a vector, and a fixed result of an earlier study outside the plate."""
    m = pyro.sample("m", dist.Normal(torch.zeros(2, dtype=y.dtype), 2.0).to_event(1))
    s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
    p = pyro.sample("p", dist.Dirichlet(torch.tensor([2.0, 3.0, 4.0], dtype=y.dtype)))
    u = pyro.sample("u", dist.Uniform(-1.0, 3.0))
    pyro.sample("earlier", dist.Normal(m[0], 0.3), obs=torch.tensor(0.9, dtype=y.dtype))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(m.sum() * p[0] + u, s), obs=y)


def written_out(posterior):
    at = {name: posterior[name].values for name in posterior.data_vars}
    return {
        "m": stats.norm(0.0, 2.0).logpdf(at["m"]).sum(-1),
        "s": stats.lognorm(0.5).logpdf(at["s"]),
        "p": np.apply_along_axis(stats.dirichlet([2.0, 3.0, 4.0]).logpdf, -1, at["p"]),
        "u": np.full(at["u"].shape, -np.log(4.0)),
        "earlier": stats.norm(at["m"][..., 0], 0.3).logpdf(0.9),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (pf.FedEP(), {}),
        (pf.papers.PaperSVGD(num_particles=20, local_steps=3), {}),
        (pf.P2PVI(), {"graph": pf.graph.ring(2)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_log_prior_is_the_density_of_the_parameters_as_they_are_written(algorithm, options):
    """Densities without the transforms' Jacobians, at every draw; each latent of the model's own has its variable."""
    fed = pf.Federation(many_supports, (Y,), plate="rows", num_clients=2)
    found = pf.run(algorithm, fed, num_draws=20, num_rounds=2, **options, **QUIET)
    exact = written_out(found["posterior"])
    assert set(found["log_prior"].data_vars) == set(exact)
    for name, values in exact.items():
        np.testing.assert_allclose(found["log_prior"][name], values, rtol=1e-9, atol=1e-9)
    jacobian = found["sample_stats"]["lp"] - sum(exact.values()) - found["log_likelihood"]["y"].sum("rows")
    assert float(jacobian.std()) > 0.01  # `lp` is of the unconstrained scale


def levels(y):
    m = pyro.sample("m", dist.Normal(torch.tensor(0.0, dtype=y.dtype), 3.0))
    t = pyro.sample("t", dist.HalfNormal(torch.tensor(1.0, dtype=y.dtype)))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(pyro.sample("level", dist.Normal(m, t)), 0.5), obs=y)


def shared_effects(y, group):
    t = pyro.sample("t", dist.HalfNormal(torch.tensor(1.0, dtype=y.dtype)))
    level = pyro.sample("level", dist.Normal(0.0, t).expand([2]).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(level[group], 0.5), obs=y)


def test_effects_at_the_clients_belong_to_the_model_and_not_to_the_prior():
    fed = pf.Federation(levels, (Y[:8],), plate="rows", num_clients=2)
    found = pf.run(pf.FedLaplace(), fed, num_draws=30, **QUIET)
    assert "level" in found["posterior"] and set(found["log_prior"].data_vars) == {"m", "t"}
    np.testing.assert_allclose(found["log_prior"]["t"], stats.halfnorm.logpdf(found["posterior"]["t"]), rtol=1e-9)


def test_in_the_noncentred_form_it_is_the_model_s_own_density():
    fed = pf.Federation(shared_effects, (Y[:8], torch.arange(8) % 2), plate="rows", num_clients=2)
    found = pf.run(pf.FedLaplace(), fed.noncentred, num_draws=30, **QUIET)
    level, t = found["posterior"]["level"].values, found["posterior"]["t"].values[..., None]
    np.testing.assert_allclose(found["log_prior"]["level"], stats.norm(0.0, t).logpdf(level).sum(-1), rtol=1e-9)


#: Prior N(4, 1); ten rows of N(mean, 2) with mean 0.
CENTRE, NOISE, ROWS = 4.0, 2.0, 10


def conflict(y):
    mean = pyro.sample("mean", dist.Normal(CENTRE, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mean, NOISE), obs=y)


def exact_sensitivity(prior_power, likelihood_power, low, high):
    """The cumulative Jensen-Shannon distance per doubling of the power, by quadrature of the exact distributions.

    Over the range of the draws, by which its definition divides.
    """

    def posterior(prior_power, likelihood_power):
        precision = prior_power + likelihood_power * ROWS / NOISE**2
        return stats.norm(prior_power * CENTRE / precision, precision**-0.5)

    z = np.linspace(low, high, 200_001)
    base = posterior(1.0, 1.0)

    def distance(other):
        found = []
        for p, q in ((base.cdf(z), other.cdf(z)), (base.sf(z), other.sf(z))):
            middle = (p + q) / 2
            parts = [
                np.where(f > 0, f * np.log2(np.maximum(f, 1e-300) / np.maximum(middle, 1e-300)), 0) for f in (p, q)
            ]
            found.append(np.sqrt(np.trapezoid(sum(parts), z) / np.trapezoid(p + q, z)))
        return max(found)

    delta = 0.01
    powers = [(1 + delta) ** sign for sign in (-1, 1)]
    each = [distance(posterior(a**prior_power, a**likelihood_power)) for a in powers]
    return sum(each) / (2 * np.log2(1 + delta))


def test_sensitivities_are_those_of_the_exact_posteriors(tmp_path):
    """Draws of the exact posterior, 20,000 of them: the weights' error is below 5 %; a factor of 2 is far outside."""
    y = torch.linspace(-1.0, 1.0, ROWS, dtype=torch.float64)
    fed = pf.Federation(conflict, (y,), plate="rows", num_clients=2)
    found = pf.run(pf.FedEP(), fed, num_draws=20_000, **QUIET)
    table = pf.power_scale(found)
    assert table.index.tolist() == ["mean"]
    ends = float(found["posterior"]["mean"].min()), float(found["posterior"]["mean"].max())
    assert table.loc["mean", "prior"] == pytest.approx(exact_sensitivity(1, 0, *ends), rel=0.05)
    assert table.loc["mean", "likelihood"] == pytest.approx(exact_sensitivity(0, 1, *ends), rel=0.05)
    assert table.loc["mean", "diagnosis"] == "potential prior-data conflict"
    pd.testing.assert_frame_equal(pf.power_scale(there_and_back(found, tmp_path / "result.nc")), table)


def test_what_cannot_be_scaled_is_refused_by_name():
    fed = pf.Federation(conflict, (Y,), plate="rows", num_clients=2)
    found = pf.run(pf.FedEP(), fed, log_likelihood=False, **QUIET)
    assert pf.power_scale(found, prior=["mean"]).columns.tolist() == ["prior"]
    with pytest.raises(pf.errors.SettingError, match="var_names names 'maen'; did you mean 'mean'"):
        pf.power_scale(found, var_names=["maen"])
    with pytest.raises(pf.errors.SettingError, match="at least 25; this result, of FedAvg, has 1"):
        pf.power_scale(pf.run(pf.FedAvg(), fed, num_rounds=1, **QUIET))
    without = az.InferenceData(posterior=found["posterior"])
    with pytest.raises(pf.errors.DataError, match="no group 'log_prior'"):
        pf.power_scale(without)
