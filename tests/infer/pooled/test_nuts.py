"""NUTS against exact posteriors and against Pyro's own leapfrog steps."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data
from late import late
from pyro.infer import NUTS as PyroNUTS

import pyro_fed as pf
from pyro_fed.density.forms import funnel_hint, noncentred_form
from pyro_fed.errors import SettingError

az = late("arviz")

SHORT = {"num_samples": 400, "warmup_steps": 200, "num_chains": 2}


def exact(x, y):
    """Mean and covariance of the weights of `line`."""
    precision = x.T @ x + torch.eye(2, dtype=x.dtype)
    covariance = torch.linalg.inv(precision)
    return (covariance @ x.T @ y).numpy(), covariance.numpy()


def federation(**options):
    return pf.Federation(line, line_data(), plate="data", num_clients=3, **options)


@pytest.fixture(scope="module")
def result():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the chains have not mixed")  # R-hat of 1.01 asks for longer chains
        return pf.run(pf.NUTS(**SHORT), federation(), progress=False, compile="trace")


def test_the_posterior_is_the_exact_one(result):
    """Errors in units of the Monte Carlo SD: beyond 5 by chance in 2 parameters once in a million runs."""
    mean, covariance = exact(*line_data())
    w = result.posterior["w"].values
    error = az.mcse({"w": w})["w"].values
    assert np.all(np.abs(w.mean((0, 1)) - mean) < 5 * error)
    sd_error = az.mcse({"w": w}, method="sd")["w"].values
    assert np.all(np.abs(w.std((0, 1)) - np.sqrt(np.diag(covariance))) < 5 * sd_error)


def test_statistics_have_the_names_and_types_of_arviz(result):
    stats = result.sample_stats
    names = {"lp", "energy", "diverging", "acceptance_rate", "step_size", "tree_depth", "n_steps"}
    assert names == set(stats.data_vars)
    assert all(stats[name].shape == (2, 400) for name in names)
    assert stats["diverging"].dtype == bool
    assert stats["n_steps"].dtype == stats["tree_depth"].dtype == np.int64
    assert np.all(stats["n_steps"] <= 2 ** stats["tree_depth"] - 1)
    assert np.all((stats["acceptance_rate"] >= 0) & (stats["acceptance_rate"] <= 1))
    assert 0.7 < float(stats["acceptance_rate"].mean()) < 1
    assert np.ptp(stats["step_size"].values, axis=1).max() == 0


def test_the_energy_is_the_potential_and_a_chi_square(result):
    """H + lp of the draw before is the kinetic energy: half a chi-square of 2 degrees, mean 1 (SE 0.035)."""
    stats = result.sample_stats
    kinetic = stats["energy"].values[:, 1:] + stats["lp"].values[:, :-1]
    assert kinetic.min() > -1e-9
    assert abs(kinetic.mean() - 1.0) < 0.2
    assert np.all(az.bfmi(result) > 0.3)


@pytest.mark.parametrize("full_mass", [False, True])
def test_a_leaf_is_pyros(full_mass):
    """The same seeds give the same chain as Pyro's own kernel on the same density and starting point."""
    fed = federation()
    algorithm = pf.NUTS(num_samples=10, warmup_steps=30, num_chains=1, full_mass=full_mass)
    start, _ = algorithm.init(fed.problem, 1, torch.Generator().manual_seed(3), None)
    data, seed = fed.pooled_data(), torch.tensor([[5]])
    with torch.no_grad():
        shared = {name: value[None] for name, value in start.items()}
        message, _, _ = algorithm.local_step(fed.problem, shared, {}, data, seed)
    batch = type(data.full_batch())(*(data.rows, data.full_batch().weight[0]))
    kernel = PyroNUTS(potential_fn=lambda z: -fed.problem.log_joint(z["z"], batch), full_mass=full_mass)
    kernel.initial_params = params = {"z": start["draws"][0, 0].clone()}
    torch.manual_seed(5)
    with pyro.validation_enabled(False):
        kernel.setup(30)
        draws = [(params := kernel.sample(params))["z"] for _ in range(40)]
    np.testing.assert_allclose(message["draws"][0, 0], torch.stack(draws[30:]), rtol=1e-6)


def test_a_chain_does_not_depend_on_how_many_there_are():
    fed, start, chains = federation(), torch.tensor([[0.1, 0.2]], dtype=torch.float64), []
    for seeds in ([7], [9, 7]):
        algorithm = pf.NUTS(num_samples=5, warmup_steps=5, num_chains=len(seeds))
        shared = {"draws": start.expand(1, len(seeds), 1, 2)}
        with torch.no_grad():
            message, _, _ = algorithm.local_step(
                fed.problem, shared, {}, fed.pooled_data(), torch.tensor(seeds)[:, None]
            )
        chains.append(message["draws"][0])
    assert chains[1].shape == (2, 5, 2)
    torch.testing.assert_close(chains[0][0], chains[1][1], rtol=0, atol=0)
    assert not torch.equal(chains[1][0], chains[1][1])


@pytest.mark.parametrize("start", ["uniform", "prior", "laplace"])
def test_the_posterior_is_found_from_every_start(start):
    algorithm = pf.NUTS(num_samples=150, warmup_steps=150, num_chains=1, start=start)
    idata = pf.run(algorithm, federation(), progress=False, compile="trace")
    mean, covariance = exact(*line_data())
    away = np.abs(idata.posterior["w"].values.mean((0, 1)) - mean) / np.sqrt(np.diag(covariance))
    assert away.max() < 0.7  # SE 0.1: once in 10^11


def improper(y):
    mu = pyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_an_improper_prior():
    y = torch.linspace(1.0, 3.0, 9, dtype=torch.float64)
    fed = pf.Federation(improper, (y,), plate="data", num_clients=2)
    idata = pf.run(pf.NUTS(num_samples=300, warmup_steps=150, num_chains=1), fed, progress=False, compile="trace")
    assert abs(float(idata.posterior["mu"].mean()) - 2.0) < 0.2  # SD 1/3, SE 0.03
    assert abs(float(idata.posterior["mu"].std()) - 1 / 3) < 0.1


def funnel(y):
    scale = pyro.sample("scale", dist.Normal(y.new_tensor(0.0), 3.0))
    mu = pyro.sample("mu", dist.Normal(torch.zeros(5, dtype=y.dtype), (scale / 2).exp()).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu[0], 10.0), obs=y)


def test_a_funnel_is_told():
    fed = pf.Federation(funnel, (torch.zeros(2, dtype=torch.float64),), plate="data", num_clients=1)
    algorithm = pf.NUTS(num_samples=150, warmup_steps=100, num_chains=1, max_tree_depth=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        idata = pf.run(algorithm, fed, progress=False, compile="trace")
    assert bool(idata.sample_stats["diverging"].any())
    assert any("diverged" in str(one.message) and "funnel" in str(one.message) for one in caught)
    assert "diverged" in idata.attrs["warnings"]
    assert funnel_hint(fed.problem) and not funnel_hint(noncentred_form(fed.problem))  # which is the cure


@pytest.mark.parametrize(
    "setting",
    [{"num_samples": 0}, {"num_chains": 0}, {"target_accept_prob": 0.0}, {"start": "mode"}, {"radius": -1.0}],
)
def test_settings_out_of_range(setting):
    with pytest.raises(SettingError, match=next(iter(setting))):
        pf.NUTS(**setting)


def test_a_funnel_of_latents_inside_the_plate_is_cured_by_rewriting_alone():
    """`fed.noncentred` has no other form of these, which all algorithms but the pooled ones integrate out."""

    def effects(y):
        spread = pyro.sample("spread", dist.HalfNormal(y.new_tensor(1.0)))
        with pyro.plate("data", len(y)):
            level = pyro.sample("level", dist.Normal(0.0, spread))
            pyro.sample("y", dist.Normal(level, 1.0), obs=y)

    fed = pf.Federation(effects, (torch.linspace(-1.0, 1.0, 6, dtype=torch.float64),), plate="data", num_clients=2)
    (hint,) = funnel_hint(fed.joint.problem)
    assert "LocScaleReparam" in hint and "fed.noncentred" not in hint
    with pytest.raises(pf.errors.ModelError, match=r"no non-centred form.*'level' inside the plate are integrated out"):
        _ = fed.noncentred
