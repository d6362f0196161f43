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
    with pytest.warns(UserWarning, match="density has no mode.*non-centred"):
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
