"""Weighted points around a result's draws are asked first: chains are run only where the points do not decide."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fed.audit import evidence as evidences
from pyro_fed.audit.audit import wrong_draw_findings
from pyro_fed.audit.moments import moments_verdict, wrong_moments
from pyro_fed.audit.weighted_points import moments_of_group
from tests.helpers.evidence import evidence_of

ROWS = torch.linspace(-1.0, 2.0, 30, dtype=torch.float64)


def normal_mean(y):
    mu = pyro.sample("mu", dist.Normal(y.new_tensor(0.0), 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu.expand(len(y)), 2.0), obs=y)


def exact_draws(count):
    """Draws of the conjugate posterior, precision 1/9 + 30/4, evenly spread."""
    precision = 1 / 9 + len(ROWS) / 4
    z = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    return (ROWS.sum() / 4 / precision + z / precision**0.5).unsqueeze(1)


@pytest.mark.parametrize(("shift", "scale", "right"), [(0.0, 1.0, True), (0.6, 1.0, False), (0.0, 0.6, False)])
def test_points_that_decide_need_no_chain(monkeypatch, shift, scale, right):
    """Errors in SDs: the estimates are those of the closed form, to five of their standard errors."""
    monkeypatch.setattr(evidences, "moments_by_chains", lambda *args: pytest.fail("a chain was run"))
    draws = exact_draws(1000)
    mean, sd = draws.mean(), draws.std()
    moments = evidence_of(normal_mean, (ROWS,), mean + shift * sd + scale * (draws - mean)).moments
    assert moments.by == "weights" and bool(wrong_moments(moments).any()) is not right
    assert (moments_verdict(moments) is False) is right
    assert float(moments.mean[0]) == pytest.approx(-shift, abs=5 * float(moments.mean_error[0]))
    assert float(moments.log_sd[0].exp()) == pytest.approx(1 / scale, rel=5 * float(moments.log_sd_error[0]))


def nine_means(y):
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(9), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu.sum().expand(len(y)), 1.0), obs=y)


def test_chains_are_run_where_there_are_no_points(monkeypatch):
    """In nine dimensions weights are not used. One row at zero: the precision is I + 1 1'."""
    calls, chains = [], evidences.moments_by_chains
    monkeypatch.setattr(evidences, "moments_by_chains", lambda *args: calls.append(1) or chains(*args))
    factor = torch.linalg.cholesky(torch.linalg.inv(torch.eye(9).double() + 1.0))
    draws = torch.randn(1000, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ factor.T
    moments = evidence_of(nine_means, (torch.zeros(1, dtype=torch.float64),), draws).moments
    assert calls and moments.by == "chains" and not bool(wrong_moments(moments).any())


def far_modes(dim):
    """Two modes of SD 0.1 that are 200 SDs apart; the row says nothing on them."""

    def model(y):
        places = 10.0 * y.new_tensor([[-1.0], [1.0]]).expand(2, dim)
        modes = dist.Normal(places, 0.1).to_event(1)
        pyro.sample("w", dist.MixtureSameFamily(dist.Categorical(y.new_ones(2)), modes))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(y.new_zeros(len(y)), 1.0), obs=y)

    return model


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize(
    ("sd", "shift", "codes"),
    [
        (0.1, 0.0, []),
        (0.05, 0.0, ["sd_is_off"]),
        (0.2, 0.0, ["sd_is_off"]),
        (0.7, 0.0, ["sd_is_off"]),
        (0.1, 0.1, ["mean_is_off"]),
    ],
)
def test_moments_that_are_wrong_within_groups_of_draws_are_found(dim, sd, shift, codes):
    """The groups' distance hides them from the moments of all draws."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([-10.0, 10.0], dtype=torch.float64).repeat(100).unsqueeze(1)
    draws = centres + shift + sd * torch.randn(200, dim, generator=generator, dtype=torch.float64)
    evidence = evidence_of(far_modes(dim), (torch.zeros(1, dtype=torch.float64),), draws)
    found = wrong_draw_findings(evidence)
    assert [one.code for one in found] == codes
    assert all("(mode " in one.text for one in found)
    assert all(len(figure) == dim for figure in evidence.moment_figures.values())  # those of all draws


def test_points_that_judge_nothing_within_a_group_of_draws_do_not_decide(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([-10.0, 10.0], dtype=torch.float64).repeat(500).unsqueeze(1)
    draws = centres + 0.1 * torch.randn(1000, 1, generator=generator, dtype=torch.float64)

    def evidence():
        return evidence_of(far_modes(1), (torch.zeros(1, dtype=torch.float64),), draws)

    assert evidence()._decided_alone is not None
    monkeypatch.setattr(evidences, "moments_of_group", lambda *args: moments_of_group(0.0 * args[0], *args[1:]))
    assert evidence()._decided_alone is None


def test_chains_are_run_where_points_find_an_sd_near_the_limit(monkeypatch):
    """An SD of 1 / 1.2: within the limit of 1.25 by eight standard errors of the points, and near it."""
    calls, chains = [], evidences.moments_by_chains
    monkeypatch.setattr(evidences, "moments_by_chains", lambda *args: calls.append(1) or chains(*args))
    draws = exact_draws(1000)
    moments = evidence_of(normal_mean, (ROWS,), draws.mean() + (draws - draws.mean()) / 1.2).moments
    assert calls and moments_verdict(moments) is False
    assert float(moments.log_sd[0].exp()) == pytest.approx(1.2, rel=0.03)
