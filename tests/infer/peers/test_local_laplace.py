"""Each agent's own Laplace approximation: it ends at the mode from an indefinite start, and stops there."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.infer.peers.local_laplace import local_laplace
from pyro_fed.ops.backtrack import MAX_ITERATIONS
from pyro_fed.policy import resolve


def located(y):
    """Cauchy observations, whose log-likelihood is convex far from them."""
    place = pyro.sample("place", dist.Normal(y.new_zeros(1), 100.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Cauchy(place, 1.0), obs=y)


def found(monkeypatch, fed, covariance="full"):
    """The agents' sites from zeros, each with all of its own rows, and how often the likelihood was looked at."""
    looks, looked = [], Derivatives.of_likelihood

    def counted(self, *args, **options):
        looks.append(1)
        return looked(self, *args, **options)

    monkeypatch.setattr(Derivatives, "of_likelihood", counted)
    algorithm = resolve(pf.infer.P2PPushSum(covariance=covariance), fed.problem.traits).algorithm
    clients = fed.num_clients
    share, start = torch.ones(clients).double(), torch.zeros(clients, fed.problem.dim, dtype=torch.float64)
    with torch.no_grad():
        batch = fed.client_data().full_batch()
        site = local_laplace(algorithm.derivatives(), fed.problem, batch, share, start)
    return site, len(looks)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_from_where_the_density_is_convex_it_ends_at_the_mode(monkeypatch, covariance):
    """Rows 20 SDs away, where steps are improper at first: the score is zero at the end, whatever the other does."""
    y = torch.linspace(-1, 1, 9, dtype=torch.float64)
    parts = [y + 20, y]
    site, looks = found(
        monkeypatch, pf.Federation.from_clients(located, [(one,) for one in parts], plate="data"), covariance
    )
    assert looks < MAX_ITERATIONS
    for mean, rows in zip(site.mean()[:, 0], parts, strict=True):
        away = rows - mean
        assert abs(float((2 * away / (1 + away.square())).sum() - mean / 100**2)) < 1e-7


def test_a_gaussian_takes_few_steps_and_has_its_exact_site(monkeypatch):
    fed = unequal_lines()
    site, looks = found(monkeypatch, fed)
    for k in range(fed.num_clients):
        x, y = fed.client_args(k)[0]
        torch.testing.assert_close(site.precision[k], x.T @ x + torch.eye(2, dtype=x.dtype), rtol=1e-12, atol=0)
        torch.testing.assert_close(site.eta[k], x.T @ y, rtol=1e-9, atol=1e-12)
    assert looks < 15


def positive(y):
    """Rows above five have a density that is zero where the latent is not positive, as it is at the start."""
    place = pyro.sample("place", dist.Normal(y.new_zeros(1), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.factor("row", torch.where((y > 5) & (place <= 0), -torch.inf, -((place - y) ** 2)))


@pytest.mark.filterwarnings("ignore:site 'row'")
def test_an_agent_whose_density_is_nowhere_finite_has_no_site(monkeypatch):
    """It had a standard normal one, and the others' belief was believed with it."""
    y = torch.linspace(-1, 1, 9, dtype=torch.float64)
    site, _ = found(monkeypatch, pf.Federation.from_clients(positive, [(y,), (y + 10,)], plate="data"))
    assert site.is_proper().tolist() == [True, False]
    assert bool(site.precision[1].isnan().all()) and bool(site.eta[1].isnan().all())
