"""A density that rises without end where a hierarchy's scale goes to zero: no climb follows it there."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from short_runs import QUIET, quiet

import pyro_fed as pf

GROUP = torch.arange(12) % 4
Y = torch.linspace(-1, 1, 12, dtype=torch.float64)


def centred(g, y):
    tau = pyro.sample("tau", dist.HalfCauchy(0.3))
    with pyro.plate("groups", 4):
        a = pyro.sample("a", dist.Normal(0.0, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def exact_sds():
    """Of a, on a grid of τ: a | τ is Gaussian with precision 3 + τ⁻², and the groups' means are N(0, τ² + 1/3)."""
    tau = np.exp(np.linspace(-12, 4, 4000))
    means = np.array([Y[group == GROUP].mean() for group in range(4)])[:, None]
    log_weights = -np.log(1 + (tau / 0.3) ** 2) + np.log(tau)  # of log τ
    log_weights += (-0.5 * means**2 / (tau**2 + 1 / 3) - 0.5 * np.log(tau**2 + 1 / 3)).sum(0)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    centre, variance = means * 3 / (3 + tau**-2), 1 / (3 + tau**-2)
    mean = (weights * centre).sum(1)
    return np.sqrt((weights * (variance + centre**2)).sum(1) - mean**2)


@pytest.fixture(scope="module")
def federation():
    return pf.Federation(centred, (GROUP, Y), plate="data", partition=pf.partition.ByGroup(GROUP))


def test_the_climb_comes_back_to_where_most_mass_was(federation):
    with pytest.warns(UserWarning, match="no mode was found.*non-centred"):
        idata = pf.run(pf.FedLaplace(), federation, **QUIET)
    ratio = idata["posterior"]["a"].values.std((0, 1)) / exact_sds()
    assert ((ratio > 0.1) & (ratio < 3)).all(), ratio  # 1e-28 in the spike
    assert int(idata["federation"].sizes["round"]) < 30


def test_fedep_starts_there(federation):
    idata = quiet(pf.FedEP(), federation, num_rounds=50)
    ratio = idata["posterior"]["a"].values.std((0, 1)) / exact_sds()
    assert ((ratio > 0.5) & (ratio < 1.5)).all(), ratio


def test_a_mode_that_the_climb_reaches_is_kept():
    """The same hierarchy with groups that differ: no warning, and the point is the mode."""
    fed = pf.Federation(centred, (GROUP, 5 * GROUP + Y), plate="data", partition=pf.partition.ByGroup(GROUP))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.run(pf.FedLaplace(), fed, **QUIET)


FIVE = torch.arange(5).repeat_interleave(4)


def groups(group, y):
    """Centred: as tau goes to zero the effects may go to mu, and the density goes to infinity as tau⁻⁴."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("groups", 5):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["single", "double"])
def nearly_equal(request):
    """Group means that are nearly equal; in single precision a climb into the spike overflows."""
    effects = torch.tensor([0.6, 1.4, 1.0, 1.5, 0.7])[FIVE]
    noise = torch.randn(20, generator=torch.Generator().manual_seed(12))
    args = FIVE, (effects + noise).to(request.param)
    return pf.Federation(groups, args, plate="data", num_clients=5, dtype=request.param)


@pytest.mark.parametrize(("algorithm", "graph"), [(pf.FedEP(), None), (pf.P2PVI(), pf.graph.complete(5))])
@pytest.mark.filterwarnings("ignore::UserWarning")  # no Gaussian has the shape of a funnel, and the runs say so
def test_what_starts_there_has_an_answer(nearly_equal, algorithm, graph):
    idata = pf.run(algorithm, nearly_equal, graph=graph, progress=False, log_likelihood=False)
    assert idata.attrs["doubts"]
    assert not (idata.attrs["converged"] and "could not move" in idata.attrs["doubts"])  # agents that stood still
    assert -5 < float(np.log(idata["posterior"]["tau"].values).mean()) < 2
    assert abs(float(idata["posterior"]["mu"].mean()) - 1.04) < 1.5
