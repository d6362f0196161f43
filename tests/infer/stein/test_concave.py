"""A posterior that has one mode by what it is made of is not searched for others; every other one is."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.stein import modes
from pyro_fed.infer.stein.modes import Modes, modes_of

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 0}
ROWS, DIM = 60, 14


def regression(noise, prior=dist.Normal):
    def model(x, y):
        w = pyro.sample("w", prior(x.new_zeros(DIM), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", noise(x @ w), obs=y)

    return model


CONCAVE = {
    "coins": lambda u: dist.Bernoulli(logits=u),
    "counts": lambda u: dist.Poisson(u.exp()),
    "normal": lambda u: dist.Normal(u, 0.5),
}
#: Tails that fall too slowly, u and -u alike, and a part of the rows that may be something else.
BENT = {
    "student": lambda u: dist.StudentT(4.0, u, 0.5),
    "square": lambda u: dist.Normal(u.square(), 0.5),
    "mixture": lambda u: dist.MixtureSameFamily(
        dist.Categorical(u.new_tensor([0.8, 0.2])), dist.Normal(torch.stack([u, 0 * u], -1), 0.5)
    ),
}


def federation(model, dtype, coins=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DIM, generator=generator).to(dtype)
    y = (x.sum(1) > 0).to(dtype) if coins else x[:, 0].abs().round()
    clients = zip(x[y.argsort()].tensor_split(6), y[y.argsort()].tensor_split(6), strict=True)
    return pf.Federation.from_clients(model, list(clients), plate="data")


def searched(fed):
    """The last state of a search, and its rounds."""
    states = []

    class Kept(Modes):
        def sample(self, shared, num_draws, generator):
            states.append(shared)
            return super().sample(shared, num_draws, generator)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not converged")  # some starts of what is bent climb for long
        idata = pf.run(Kept(), fed, **QUIET)
    return states[-1], idata["federation"]["phase"].values.tolist().count("Kept")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONCAVE)
def test_concave_rows_are_not_searched(monkeypatch, name, dtype):
    fed = federation(regression(CONCAVE[name]), dtype, name == "coins")
    found, rounds = searched(fed)
    assert rounds == 1 and len(found["points"]) == 1 and found["bent"] == 0
    monkeypatch.setattr(modes, "points_for_tangents", lambda problem: None)
    whole, rounds = searched(fed)
    assert rounds > 1 and len(whole["points"]) > Modes.num_starts
    one, other = (modes_of(state, Modes.tolerance, Modes.same_mode) for state in (found, whole))
    assert len(one[0]) == len(other[0]) == 1
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-3)
    torch.testing.assert_close(one[1], other[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BENT)
def test_others_are_searched_for_modes(name, dtype):
    found, rounds = searched(federation(regression(BENT[name]), dtype))
    assert rounds > 1 and len(found["points"]) > Modes.num_starts
    assert found["bent"] > 0


def test_one_client_s_rows_are_enough():
    """One row of sixty has the square of what the others have."""

    def model(x, y, squared):
        w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
        u = x @ w
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(torch.where(squared > 0, u.square(), u), 0.5), obs=y)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DIM, generator=generator)
    y, squared = x[:, 0].abs(), (torch.arange(ROWS) == 7).float()
    parts = zip(*(leaf.tensor_split(6) for leaf in (x, y, squared)), strict=True)
    _, rounds = searched(pf.Federation.from_clients(model, list(parts), plate="data"))
    assert rounds > 1


def test_a_prior_that_is_no_gaussian_is_searched():
    def wide(mean, scale):
        return dist.StudentT(4.0, mean, scale)

    found, _ = searched(federation(regression(CONCAVE["normal"], wide), torch.float64))
    assert len(found["points"]) > Modes.num_starts and "bent" not in found
