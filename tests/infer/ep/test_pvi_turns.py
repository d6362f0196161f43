"""What a turn of `PVI` leaves to the next, and when a pass over the clients need not be made."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.ep import expectation_propagation
from pyro_fed.infer.ep.findings import at_rest
from pyro_fed.infer.ep.tilted import newton

NORMAL = dist.Normal(0.0, 1.0)
QUIET = {"progress": False, "log_likelihood": False, "audit": False, "num_draws": 2000, "seed": 0}


def model(x, y, prior):
    w = pyro.sample("w", prior.expand([3]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def federation(prior=NORMAL):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    odds = x @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    y = (torch.rand(60, generator=generator, dtype=torch.float64) < odds.sigmoid()).double()
    by = pf.partition.SortedBy(x[:, 0].numpy())
    return pf.Federation(model, (x, y, prior), plate="data", num_clients=6, partition=by, seed=0)


def moments(idata):
    w = idata.posterior["w"].values[0]
    return w.mean(0), w.std(0)


def test_turns_that_leave_the_rest_to_the_next_end_where_whole_ones_do(monkeypatch):
    steps, site_of = [], newton.site_of
    monkeypatch.setattr(newton, "site_of", lambda *args: steps.append(1) or site_of(*args))
    fed, found, counts = federation(), [], []
    for client in (pf.infer.tilted.Newton(steps=10), "newton"):
        steps.clear()
        found.append(moments(pf.run(pf.infer.PVI(client=client), fed, **QUIET)))
        counts.append(len(steps))
    exact = moments(pf.run(pf.FedEP(tolerance=1e-8), fed, **QUIET))
    for mean, sd in found:
        assert np.abs((mean - exact[0]) / exact[1]).max() < 5e-3 and np.abs(np.log(sd / exact[1])).max() < 5e-3
    assert counts[1] < 0.8 * counts[0]


def test_a_single_turn_is_taken_whole():
    assert (
        pf.infer.StreamingVB().client
        == pf.infer.tilted.Newton(steps=10)
        == pf.infer.StreamingVB(client="newton").client
    )
    assert pf.infer.PVI().client == pf.infer.PVI(client="newton").client == pf.infer.tilted.Newton(steps=10, enough=0.1)


def passes(*changes, **more):
    return [{"change": change, "fraction": 1.0, "share": 0.5, **more} for change in changes]


@pytest.mark.parametrize(
    ("figures", "ends"),
    [
        (passes(1e-4, 1e-4), True),
        (passes(1e-4, 2e-3), False),
        (passes(0.1, 0.1, 4e-3, 4e-3), True),  # the next by 0.04 of that
        (passes(0.1, 0.1, 2e-2, 1e-3), False),  # 0.1 of 0.02
        (passes(0.04, 0.04, 4e-3, 4.1e-3), True),  # 4e-4 would be the next, and 5e-4 with all after it
        (passes(0.04, 0.04, 1e-2, 1e-2), False),  # 3e-3 with all after it
        (passes(0.04, 0.04, 4e-3, 1.6e-2), False),  # the next would be 4e-3
        (passes(0.1, 4e-3, 4e-3), False),  # one pass and a half
        (passes(0.1, 0.1, cut=1.0) + passes(4e-3, 4e-3), False),
        ([{"change": c, "fraction": 1.0, "share": 1.0} for c in (0.1, 4e-3)], False),  # all at once: they are asked
    ],
)
def test_a_pass_that_two_others_foretell_is_not_made(figures, ends):
    assert at_rest(figures, 1e-3) is ends


@pytest.mark.parametrize("prior", [NORMAL, dist.StudentT(3.0, 0.0, 1.0)], ids=["normal", "student"])
def test_the_site_of_a_gaussian_prior_is_asked_for_once(prior, monkeypatch):
    asked, change = [], expectation_propagation._newton_step
    monkeypatch.setattr(expectation_propagation, "_newton_step", lambda *args: asked.append(1) or change(*args))
    fed = federation(prior)
    idata = pf.run(pf.infer.PVI(), fed, **QUIET)
    mean, sd = moments(idata)
    exact = moments(pf.run(pf.FedEP(tolerance=1e-8), fed, **QUIET))  # asks in every round
    assert np.abs((mean - exact[0]) / exact[1]).max() < 5e-3 and np.abs(np.log(sd / exact[1])).max() < 5e-3
    rounds = int((idata["federation"]["phase"].values == "PVI").sum())
    asked.clear()
    pf.run(pf.infer.PVI(), fed, **QUIET)
    assert len(asked) == (len(expectation_propagation.NEAR_AND_FAR) if prior is NORMAL else 1 + rounds)


def median_line(x, y):
    a, b = (pyro.sample(name, dist.Normal(0.0, 10.0)) for name in "ab")
    scale = pyro.sample("scale", dist.HalfNormal(2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Laplace(a + b * x, scale), obs=y)


def hinge(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.factor("loss", -torch.relu(1 - (2.0 * (y > 1) - 1) * (x * w[0] + w[1])))


@pytest.mark.parametrize("model", [median_line, hinge])
def test_a_step_from_a_wide_prior_that_loses_is_taken_back(model):
    """Scores that jump leave no Laplace approximation to begin at, and Newton's steps from the prior lead anywhere."""
    generator = torch.Generator().manual_seed(0)
    x, e = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    y = 1 + 2 * x + e
    fed = pf.Federation(model, (x, y), plate="data", num_clients=4, partition=pf.partition.SortedBy(y.numpy()), seed=0)
    exact, *found = (
        pf.run(algorithm, fed, **QUIET).posterior
        for algorithm in (pf.FedEP(tolerance=1e-5), pf.infer.PVI(), pf.infer.PVI(order="synchronous"))
    )
    for one in found:
        error = np.abs((one.mean() - exact.mean()) / exact.std()).to_array()
        ratio = np.abs(np.log(one.std() / exact.std())).to_array()
        assert float(error.max()) < 0.01 and float(ratio.max()) < 0.01


@pytest.mark.parametrize("algorithm", [pf.infer.PVI(start="prior"), pf.infer.StreamingVB()])
@pytest.mark.filterwarnings("ignore:not converged|clients .* had one turn")
def test_clients_that_can_take_no_step_have_not_converged(algorithm, monkeypatch):
    """As under a prior whose points are so far from the data that no part of a step leaves q proper."""
    monkeypatch.setattr(newton, "backtracked_step", lambda q, step: (torch.zeros(len(q.eta)).to(q.eta), q))
    with pytest.warns(UserWarning, match=r"1 of 1\) were not used"):
        idata = pf.run(algorithm, federation(), **QUIET)
    rounds = idata["federation"]
    assert not np.nanmax(rounds["usable"].values)
    assert rounds.sizes["round"] == algorithm.default_rounds(6)  # none in which nothing moves ends the run
    assert idata.posterior["w"].values.std() == pytest.approx(1.0, rel=0.05)  # the prior
