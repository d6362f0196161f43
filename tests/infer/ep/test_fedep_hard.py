"""FedEP where its steps go wrong: modes beside a saddle, likelihoods that overflow, a client that is gone."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.runtime.executors import Faulty

QUIET = {"progress": False, "log_likelihood": False, "collect_local": False, "audit": False}
F64 = torch.float64


def mixture(components):
    """Pyro's tutorial on mixtures, its assignments summed out."""

    def model(y):
        ones = torch.ones(components, dtype=y.dtype)
        weights = pyro.sample("weights", dist.Dirichlet(0.5 * ones))
        scale = pyro.sample("scale", dist.LogNormal(0.0 * ones[0], 2.0 * ones[0]))
        with pyro.plate("components", components):
            locs = pyro.sample("locs", dist.Normal(0.0 * ones[0], 10.0 * ones[0]))
        with pyro.plate("data", len(y)):
            member = pyro.sample("member", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(locs[member], scale), obs=y)

    return model


@pytest.mark.parametrize("components", [2, 3])
def test_the_components_of_a_mixture_are_found_from_clients_that_hold_one_each(components):
    """Centres 5 apart and an SD of 0.6: the memberships are certain, so that the means are those of the groups."""
    generator = torch.Generator().manual_seed(0)
    centres = 5.0 * torch.arange(components)
    y = (centres.repeat(60) + 0.6 * torch.randn(60 * components, generator=generator)).sort().values.to(F64)
    fed = pf.Federation(mixture(components), (y,), plate="data", num_clients=5, partition=pf.partition.SortedBy())
    idata = pf.run(pf.FedEP(), fed, **QUIET)
    assert idata.attrs["converged"] == 1
    posterior = idata["posterior"]
    found = np.sort(posterior["locs"].mean(("chain", "draw")).values)
    groups = y.reshape(components, 60)
    assert np.abs(found - groups.mean(1).numpy()).max() < 0.25 * 0.6 / 60**0.5
    within = float(groups.var(1).mean().sqrt())
    assert float(posterior["scale"].mean()) == pytest.approx(within, rel=0.03)


def logistic(x, y):
    slope = pyro.sample("slope", dist.Normal(x.new_zeros(x.shape[1]), 10.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


def labels(rows=200):
    generator = torch.Generator().manual_seed(1)
    x = torch.cat([torch.ones(rows, 1, dtype=F64), torch.randn(rows, 2, generator=generator, dtype=F64)], 1)
    probability = (x @ torch.tensor([0.5, 2.0, -1.0], dtype=F64)).sigmoid()
    return x, torch.bernoulli(probability, generator=generator)


def test_from_a_wide_prior_with_a_client_that_is_gone_the_answer_is_that_of_the_others():
    rows = [list(range(start, start + 40)) for start in range(0, 200, 40)]
    x, y = labels()
    fed = pf.Federation(logistic, (x, y), plate="data", num_clients=5, partition=pf.partition.Explicit(rows))
    algorithm = pf.FedEP(start="prior")
    gone = Faulty(probability=1.0, kinds=("dies",), clients=(1,))
    with (
        pytest.warns(UserWarning, match=r"client 1 \d+ times, .*is gone"),
        pytest.warns(UserWarning, match="clients 1 took part in no round"),
    ):
        found = pf.run(algorithm, fed, executor=gone, **QUIET)
    others = torch.tensor([row for client in (0, 2, 3, 4) for row in rows[client]])
    right = pf.run(pf.FedEP(), pf.Federation(logistic, (x[others], y[others]), plate="data", num_clients=4), **QUIET)
    draws, exact = (idata["posterior"]["slope"].values[0] for idata in (found, right))
    assert np.abs(draws.mean(0) - exact.mean(0)).max() < 0.15 * exact.std(0).min()
    assert np.allclose(draws.std(0), exact.std(0), rtol=0.15)


class Leaving(pf.FedEP):
    """Its server's state leaves the finite numbers in the second round."""

    def combine(self, shared, messages, weights):
        after = super().combine(shared, messages, weights)
        first = not bool(shared["best_value"].isfinite())
        return after if first else {**after, "eta": after["eta"] * torch.nan}


def test_a_state_that_is_not_finite_ends_the_run_with_the_last_one_that_was():
    fed = pf.Federation(logistic, labels(), plate="data", num_clients=5)
    with pytest.raises(
        pf.errors.DivergenceError, match=r"Leaving, round \d+: the server's 'eta' left the finite"
    ) as caught:
        pf.run(Leaving(start="prior"), fed, **QUIET)
    assert caught.value.result is not None
    assert np.isfinite(caught.value.result["posterior"]["slope"].values).all()


def horseshoe(x, y):
    """Centred: its density rises without end as scales vanish, and is nearly flat in the common scale far out."""
    tau = pyro.sample("tau", dist.HalfCauchy(x.new_tensor(0.1)))
    local = pyro.sample("local", dist.HalfCauchy(x.new_ones(x.shape[1])).to_event(1))
    w = pyro.sample("w", dist.Normal(0.0, tau * local).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@pytest.fixture(scope="module")
def sparse():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 12, generator=generator, dtype=F64)
    w = torch.tensor([2.0] * 4 + [0.0] * 8, dtype=F64)
    return x, x @ w + torch.randn(300, generator=generator, dtype=F64)


@pytest.mark.parametrize("seed", range(3))
def test_a_start_at_which_nothing_can_be_expected_is_narrowed(sparse, seed):
    """Laplace's approximation has SDs of 1e5 on a log scale; the large weights are nearly those of least squares."""
    x, y = sparse
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(300, generator=generator)
    federation = pf.Federation(horseshoe, (x[order], y[order]), plate="data", num_clients=5)
    with pytest.warns(UserWarning):  # it has not converged, or a scale's SD is doubted
        idata = pf.run(pf.FedEP(), federation, progress=False)
    w = idata["posterior"]["w"].values.reshape(-1, 12)
    large = torch.linalg.lstsq(x[:, :4], y).solution.numpy()
    assert np.abs(w.mean(0)[:4] - large).max() < 0.5 / 300**0.5
    assert np.abs(w.std(0)[:4] * 300**0.5 - 1).max() < 0.25
    assert idata.attrs["doubts"]


def test_an_error_over_a_funnel_names_it(sparse):
    federation = pf.Federation(horseshoe, sparse, plate="data", num_clients=5)
    with pytest.raises(
        pf.errors.DivergenceError, match=r"left the finite.*\. A funnel is likely: the scale of 'w' depends"
    ):
        pf.run(Leaving(start="prior"), federation, **QUIET)
