"""What a private run gives away, and how wide its answer is."""

import functools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from short_runs import quiet

import pyro_fed as pf
from pyro_fed.runtime import privacy_noise

CLIENTS, ROWS = 40, 25


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=x.dtype), 1.0).to_event(1))
    pyro.deterministic("twice", 2 * w)
    pyro.deterministic("fit", (x @ w).mean())
    with pyro.plate("data", len(x)):
        pyro.deterministic("each", x @ w)
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@functools.cache
def federation(clients=CLIENTS, partition=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * ROWS, 3, generator=generator).double()
    y = x @ torch.tensor([1.0, -1.0, 0.5]).double() + torch.randn(len(x), generator=generator).double()
    return pf.Federation(model, (x, y), plate="data", num_clients=clients, partition=partition)


def exact(fed):
    """Means and SDs of the posterior."""
    x, y = fed.problem.arguments.leaves
    covariance = torch.linalg.inv(torch.eye(3).double() + x.T @ x)
    return (covariance @ x.T @ y).numpy(), covariance.diagonal().sqrt().numpy()


def private(algorithm, fed=None, norm=200.0, noise_multiplier=0.05, **options):
    combination = pf.Private(norm=norm, noise_multiplier=noise_multiplier)
    return quiet(algorithm, fed or federation(), **{"combination": combination, "num_rounds": 6} | options)


@pytest.mark.parametrize(
    "algorithm",
    [pf.FedSEP(start="prior"), pf.FedAvg(step_size=0.05)],
    ids=["fedsep", "fedavg"],
)
def test_a_private_result_holds_what_was_released_alone(algorithm):
    fed = federation(partition=pf.partition.Explicit(np.arange(CLIENTS * ROWS).reshape(CLIENTS, ROWS).tolist()))
    idata = private(algorithm, fed)
    assert sorted(idata.groups()) == ["federation", "posterior"]
    assert sorted(idata.posterior.data_vars) == ["twice", "w"]  # the others are computed from rows
    assert not {"seconds", "failure_reason", "usable", "cavity_proper"} & set(idata.federation)
    assert idata.attrs["partition"] == "Explicit"
    assert "mechanism released" in idata.attrs["released"]
    np.testing.assert_allclose(idata.posterior["twice"], 2 * idata.posterior["w"])
    rows = {value for leaf in fed.problem.arguments.leaves for value in leaf.flatten().tolist()}
    everything = [*idata.posterior.variables.values(), *idata.federation.variables.values()]
    held = {value for part in everything if part.dtype.kind == "f" for value in np.ravel(part.values).tolist()}
    assert not rows & held


def test_without_noise_of_privacy_a_result_has_its_rows():
    idata = quiet(pf.FedSEP(start="prior"), federation(), combination=pf.combination.Clipped(norm=1e6))
    assert {"observed_data", "constant_data", "log_likelihood", "sample_stats"} <= set(idata.groups())


@pytest.mark.parametrize(
    ("algorithm", "noise_multiplier"),
    [
        (pf.FedSEP(start="prior"), 0.03),
        (pf.FedSEP(start="prior", damping=0.3), 0.08),
    ],
    ids=["fedsep", "fedsep damped"],
)
def test_the_noise_is_in_the_spread(algorithm, noise_multiplier):
    """Errors have the size that the result's wider SDs say, over 8 runs of 3 parameters.

    The noise is not seeded. Parameters are nearly independent, so that 24 times the mean square is near a chi-square of
    24 degrees of freedom: 7.2 to 57.6 leaves out 3e-4 at both ends together.
    """
    runs = [private(algorithm, num_rounds=8, noise_multiplier=noise_multiplier) for _ in range(8)]
    mean, sd = exact(federation())
    found = np.stack([run.posterior["w"].mean(("chain", "draw")).values for run in runs])
    wide = np.stack([run.posterior["w"].std(("chain", "draw")).values for run in runs])
    noise = np.sqrt((wide**2).mean(0) - sd**2)
    assert 0.3 < float((((found - mean) / noise) ** 2).mean()) < 2.4
    assert np.mean([run.attrs["noise"] for run in runs]) == pytest.approx(float((noise / sd).max()), rel=0.5)


def test_a_clients_site_is_what_the_server_has_taken():
    """Without noise to speak of, clipped sites add up: q is the prior's times the clients' own."""
    from pyro_fed.algorithm.combination import Clipped

    sent = {
        "precision": torch.tensor([[3.0, 0.0], [0.3, 0.4]], dtype=torch.float64),
        "eta": torch.tensor([[4.0, 0.0], [0.0, 0.0]], dtype=torch.float64),
        "usable": torch.tensor([True, True]),
    }
    told = Clipped(norm=1.0).corrections(sent)
    kept = {name: sent[name] + told[f"correction_{name}"] for name in ("precision", "eta")}
    torch.testing.assert_close(kept["precision"][0], torch.tensor([0.6, 0.0], dtype=torch.float64))
    assert torch.equal(kept["precision"][1], sent["precision"][1])
    mean = Clipped(norm=1.0)(sent)
    torch.testing.assert_close(2 * mean["precision"][0], kept["precision"].sum(0))
    torch.testing.assert_close(2 * mean["eta"][0], kept["eta"].sum(0))


def test_large_noise_is_told_in_sds_with_the_cure():
    idata = private(pf.FedSEP(start="prior"), federation(10), norm=100.0, noise_multiplier=1.0)
    assert idata.attrs["noise"] > 5
    assert "posterior SDs" in idata.attrs["doubts"]
    assert "more clients; fewer rounds" in idata.attrs["doubts"]
    mean, _ = exact(federation(10))
    off = np.abs(idata.posterior["w"].mean(("chain", "draw")).values - mean)
    assert (off < 6 * idata.posterior["w"].std(("chain", "draw")).values).all()  # of an honest width


def test_small_noise_is_not_doubted():
    idata = private(pf.FedSEP(start="prior"), noise_multiplier=1e-4)
    assert idata.attrs["noise"] < privacy_noise.LARGEST_NOISE
    assert "noise" not in idata.attrs["doubts"]


def test_a_point_says_how_large_its_noise_is():
    """200 clients' clipped steps of norm 1, noise 0.1 a round: √6 rounds × 0.1 / 40 at most."""
    idata = private(pf.FedAvg(step_size=0.05), norm=1.0, noise_multiplier=0.1)
    assert idata.posterior.sizes["draw"] == 1
    assert idata.attrs["noise"] == pytest.approx(6**0.5 * 0.1 / CLIENTS, rel=0.5)
    assert "the result no spread that could hold it" in idata.attrs["doubts"]


def test_a_model_that_indexes_its_own_data_reports_no_deterministic_site():
    x, y = federation().problem.arguments.leaves

    def own():
        w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=x.dtype), 1.0).to_event(1))
        pyro.deterministic("first", x[0] @ w)
        with pyro.plate("data", len(x)) as index:
            pyro.sample("y", dist.Normal(x[index] @ w, 1.0), obs=y[index])

    fed = pf.Federation(own, plate="data", num_clients=CLIENTS, dtype=torch.float64)
    assert list(private(pf.FedSEP(start="prior"), fed).posterior.data_vars) == ["w"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"norm": float("inf"), "noise_multiplier": 1.0}, "norm must be a finite number"),
        ({"norm": 1.0, "noise_multiplier": float("nan")}, "noise_multiplier must be a finite number"),
        ({"norm": "1", "noise_multiplier": 1.0}, "norm must be a finite number"),
    ],
)
def test_settings_of_the_mechanism(settings, words):
    with pytest.raises(pf.SettingError, match=words):
        pf.Private(**settings)


def test_delta_is_below_one_over_the_clients():
    with pytest.raises(pf.SettingError, match=r"delta=0\.4 .* below 1/40"):
        quiet(
            pf.FedAvg(), federation(), combination=pf.Private(norm=1.0, noise_multiplier=1.0, delta=0.4), num_rounds=1
        )


@pytest.mark.parametrize("algorithm", [pf.FedEP(start="prior"), pf.PVI(start="prior")], ids=["fedep", "pvi"])
def test_steps_that_take_a_part_of_the_noise_are_refused(algorithm):
    """Three rounds at epsilon 1 to 10 gave 90 % intervals that held the truth in 19 to 64 % of cases."""
    with pytest.raises(pf.SettingError, match="too little of it; use FedSEP"):
        private(algorithm)
