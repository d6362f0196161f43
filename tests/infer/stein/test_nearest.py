"""Where particles of `DSVGD` start after the search for modes: one mode has a Gaussian nearer than Laplace's."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.contract import Start
from pyro_fed.infer.stein.modes import Nearest, nearest_of

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 0}
DIM = 14


def poisson(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y)


def two(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x[:, 0] * w[0].square() + x[:, 1:] @ w[1:], 0.5), obs=y)


def federation(model):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, DIM, generator=generator, dtype=torch.float64)
    if model is poisson:
        y = torch.poisson((0.3 * x.sum(1)).exp(), generator=generator)
    else:
        y = x[:, 0] + 0.5 * torch.randn(60, generator=generator, dtype=torch.float64)
    return pf.Federation(model, (x, y), plate="data", num_clients=6, partition=pf.partition.SortedBy(y.numpy()), seed=0)


def phases(idata):
    return idata["federation"]["phase"].values.tolist()


#: Effective draws of about a thousand: means within 0.03 SDs.
NUTS = pf.NUTS(num_samples=600, warmup_steps=300, num_chains=2)


def moments(idata):
    w = idata.posterior["w"].values
    return w.mean((0, 1)), w.std((0, 1))


@pytest.mark.filterwarnings("ignore:the chains have not mixed. R-hat is 1.01")  # of a processor's last digits
def test_one_mode_is_begun_at_the_gaussian_nearest_to_it():
    """Means are not the mode's, by up to 0.4 SDs; a turn is ten steps then, of which a hundred are made."""
    fed = federation(poisson)
    idata, exact = pf.run(pf.DSVGD(), fed, **QUIET), pf.run(NUTS, fed, **QUIET)
    (mean, sd), (true, unit) = moments(idata), moments(exact)
    assert np.abs((mean - true) / unit).max() < 0.1 and np.abs(np.log(sd / unit)).max() < 0.1
    assert phases(idata).count("Nearest") <= 6 and phases(idata).count("DSVGD") == 12
    steps = idata["federation"]["steps"].values
    assert np.nanmax(steps) == 120 and bool(idata.attrs["converged"])


def test_several_modes_are_begun_at_each():
    idata = pf.run(pf.DSVGD(), federation(two), **QUIET)
    assert phases(idata).count("Nearest") == 1  # which is not used
    assert idata["federation"]["modes"].values[-1] == 2
    w = idata.posterior["w"].values[0, :, 0]
    assert 0.3 < (w > 0).mean() < 0.7 and np.abs(np.abs(w).mean() - 1) < 0.2


def test_a_gaussian_that_has_not_come_to_rest_gives_way_to_laplace_s():
    precision, eta = 2.0 * torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    both = {"precision": precision, "eta": eta, "prior_precision": precision, "prior_eta": eta}
    before = {f"laplace_{name}": 3 * value for name, value in both.items()}
    local = {"precision": precision[None], "eta": eta[None]}
    kept = local | {f"laplace_{name}": 3 * value for name, value in local.items()}

    def taken(modes, moved):
        found = {"modes": torch.tensor(modes), "moved": torch.tensor(moved)}
        return nearest_of(Start(both | before | found, kept))

    still = taken(1.0, 0.5 * Nearest.tolerance)
    assert torch.equal(still.shared["eta"], eta) and torch.equal(still.local["eta"], eta[None])
    for other in (taken(1.0, 2 * Nearest.tolerance), taken(2.0, 0.0), taken(1.0, torch.inf)):
        assert all(torch.equal(other.shared[name], 3 * both[name]) for name in both)
        assert all(torch.equal(other.local[name], 3 * local[name]) for name in local)
