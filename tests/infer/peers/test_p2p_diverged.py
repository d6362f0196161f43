"""What a P2PVI that diverges says: the cause, which is the model's, and cures that its settings have."""

import json

import pyro
import pyro.distributions as dist
import pytest
import torch
from zoo_sites import horseshoe

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.errors import DivergenceError, ModelError
from pyro_fed.ops.gaussian import ImproperGaussianError

QUIET = {"progress": False, "log_likelihood": False, "seed": 0}


def shrunk(y):
    tau = pyro.sample("tau", dist.HalfCauchy(y.new_tensor(0.05)))
    m = pyro.sample("m", dist.Normal(y.new_zeros(4), tau).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(m, 1.0).to_event(1), obs=y)


def rows(model):
    generator = torch.Generator().manual_seed(0)
    if model is shrunk:
        return (torch.randn(20, 4, generator=generator, dtype=torch.float64),)
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    return x, x[:, :2].sum(1) * 2 + torch.randn(30, generator=generator, dtype=torch.float64)


def test_a_funnel_that_no_gaussian_is_near_is_named():
    """Points at which a derivative overflows are left out, so that agents reply; no belief is a distribution then."""
    fed = pf.Federation(horseshoe, rows(horseshoe), plate="data", num_clients=3, seed=0)
    with pytest.raises(DivergenceError) as caught:
        pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(3), **QUIET)
    said = str(caught.value)
    assert "A funnel is likely: the scale of 'w' depends on 'tau' and 'lam'" in said and "NUTS" in said
    assert "the neck of a funnel, which no Gaussian approximates" in said and "step size" not in said


def test_a_funnel_is_named_and_no_step_size_advised():
    """The agents reply numbers that are none, or that no honest agent's are; no agent is missing."""
    fed = pf.Federation(shrunk, rows(shrunk), plate="data", num_clients=3, seed=0)
    with pytest.raises(DivergenceError) as caught:
        pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(3), **QUIET)
    said = str(caught.value)
    assert "the neck of a funnel" in said and "damping" in said and "NUTS" in said
    assert "step size" not in said


def separated(x):
    w = pyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=(x[:, 0] > 0).to(x))


@pytest.mark.filterwarnings("ignore")
def test_separable_classes_under_a_flat_prior_do_not_pass_for_converged():
    """Agents that began half an SD from where a step would lead reported them as converged, with SDs of 1e18."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fed = pf.Federation.from_clients(separated, [(x[i::3],) for i in range(3)], plate="data")
    idata = pf.run(pf.P2PVI(), fed, graph=pf.graph.complete(3), audit=False, **QUIET)
    assert idata.attrs["converged"] == 0
    codes = {finding["code"] for finding in json.loads(idata.attrs["findings"])}
    assert "not_converged_and_stuck" in codes  # whether agents disagree as well depends on rounding


def survival(x, censored):
    """A Weibull's survival at t = |x| and after it, where 0 ** k has no second derivative in k."""
    k = pyro.sample("k", dist.LogNormal(x.new_zeros(()), 1.0))
    s = pyro.sample("s", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        at, after = (x.abs() / s) ** k, ((x.abs() + 1) / s) ** k
        pyro.factor("lik", -at + (1 - censored) * torch.log(-torch.expm1(at - after)))


def survival_after_entry(x, censored):
    """The same, of people who entered at a quarter: the edge is no extreme of the column."""
    survival(x - 0.25, censored)


def federation_of(x, model=survival):
    return pf.Federation(model, (x, (x > 1).double()), plate="data", num_clients=2, partition=pf.partition.IID())


def test_derivatives_that_are_no_numbers_are_named_with_their_rows():
    """Forward mode has the second derivatives; where the power is below 1, in half of the prior, gradients are NaN."""
    said = r"'lik': the gradient of the log density along 's' is not finite in 4 of the 12 rows.* at 50 %.*by pow"
    with pytest.raises(ModelError, match=said):
        federation_of(torch.tensor([0.0, 1.0, 2.0] * 4, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:not converged after 3 rounds", "ignore:the SD of 'k', 's' is not finite")
def test_curvatures_that_are_no_numbers_are_named():
    """In one of 9,000 rows, which a federation does not look at: `FedEP` says what the messages may be, too."""
    x = torch.linspace(-2, 2, 9000, dtype=torch.float64)
    x[1234] = 0.25
    fed = federation_of(x, survival_after_entry)
    with pytest.raises(DivergenceError, match="the curvature is NaN or infinite at a point"):
        pf.run(pf.P2PVI(), fed, graph=pf.graph.complete(2), num_rounds=3, audit=False, **QUIET)
    with pytest.warns(UserWarning, match=r"lack a finite second derivative at some row, as 0 \*\* k"):
        pf.run(pf.FedEP(), fed, num_rounds=3, audit=False, **QUIET)


def from_a_half_on(y):
    """Rows below 0.5 were not kept: the posterior is a long ridge, from which the Gaussians of agents run away."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 5.0))
    s = pyro.sample("s", dist.HalfNormal(y.new_tensor(3.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, s), obs=y)
        pyro.factor("kept", -torch.special.log_ndtr((mu - 0.5) / s).expand(len(y)))


def kept_rows(loc, dtype):
    y = loc + 1.2 * torch.randn(450, generator=torch.Generator().manual_seed(15), dtype=torch.float32)
    return y[(y > 0.5) & (y < 5)][:15].to(dtype)


@pytest.mark.filterwarnings("ignore:.*")
def test_agents_whose_beliefs_cannot_move_are_not_advised_to_take_more_rounds():
    """One row an agent: changes do not fall in 100 rounds, or none leaves a distribution; which, last digits decide."""
    fed = pf.Federation(from_a_half_on, (kept_rows(0.0, torch.float64),), plate="data", num_clients=15)
    found = pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(15), **QUIET).attrs["doubts"]
    assert "and more rounds do not help" in found and "run more rounds" not in found
    assert "FedAIS" in found  # weights its draws, or those of DSVGD


@pytest.mark.filterwarnings("ignore:.*")
def test_a_state_that_is_no_distribution_has_the_cures_that_apply(monkeypatch):
    """The priors are proper, and an agent that failed is the reason: neither priors nor rounds are blamed.

    Where the run itself ends so depends on the last digits; here its last state is said to be no distribution.
    """

    def improper(self, shared, num_draws, generator):
        raise ImproperGaussianError("the precision is not positive definite")

    monkeypatch.setattr(pf.P2PVI, "sample", improper)
    fed = pf.Federation(from_a_half_on, (kept_rows(0.0, torch.float32),), plate="data", num_clients=15)
    failed = sentences.clients_failed(failures=1, clients=["1"], times=[1], last=[1], reasons=["it is gone"], more=0)
    monkeypatch.setattr(Record, "clients_failed", lambda self: [failed])
    with pytest.raises(DivergenceError) as caught:
        pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(15), num_rounds=2, **QUIET)
    said = str(caught.value)
    assert "is no distribution" in said and "with DSVGD or NUTS" in said
    assert "more rounds" not in said and "proper prior" not in said
    assert "What else may help: dtype=torch.float64, where columns nearly depend on each other" in said
