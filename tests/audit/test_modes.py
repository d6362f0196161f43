"""Modes that draws miss: of posteriors whose modes, and their shares of the mass, are known."""

import math
import re

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.contract import Stage
from pyro_fed.audit.audit import wrong_draw_findings
from pyro_fed.audit.modes.missed_modes import missed_modes
from pyro_fed.audit.modes.point import point_findings
from pyro_fed.codes import sentences
from pyro_fed.runtime.answers import Answer
from tests.helpers.evidence import evidence_of

#: Where a mode of `square` is, and its SD: 1 / (2 PLACE sqrt(rows)).
PLACE, SD = 2.0, 0.025


def square(y):
    """Normal(t², 1): t and -t are one to the data, and nearly to the prior."""
    t = pyro.sample("t", dist.Normal(y.new_tensor(0.01), 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(t * t, 1.0), obs=y)


def mixture(y):
    """Two components whose order the model does not know."""
    m = pyro.sample("m", dist.Normal(y.new_zeros(2), 5.0).to_event(1))
    even = dist.Categorical(y.new_tensor([0.5, 0.5]))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(even, dist.Normal(m, y.new_ones(2))), obs=y)


def faint(y):
    """N(0, 1), and N(9, 1) with exp(-8) of its mass: 0.03 %, which moves no mean by what matters."""
    t = pyro.sample("t", dist.Normal(y.new_tensor(0.0), 100.0))
    pyro.factor("shape", torch.logsumexp(torch.stack([-t.square() / 2, -(t - 9).square() / 2 - 8]), 0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * t, 1.0), obs=y)


def robust(y):
    """One mode, of two correlated parameters, in long tails."""
    t = pyro.sample("t", dist.Normal(y.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.StudentT(y.new_tensor(4.0), t.sum(), 1.0), obs=y)


def normal(count=500, dim=1):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def branching(y):
    """`square` by Python's `if`, so that it is run one draw at a time."""
    t = pyro.sample("t", dist.Normal(y.new_tensor(0.01), 3.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(t * t if t > 0 else -t * -t, 1.0), obs=y)


SQUARES = (torch.full((100,), PLACE**2, dtype=torch.float64),)


def test_a_mode_without_draws_is_found_with_its_share():
    (said,) = missed_modes(evidence_of(square, SQUARES, PLACE + SD * normal()))
    assert "another mode, with about 50 %" in said.text and "'t' is -2" in said.text


def test_modes_that_an_earlier_stage_has_found_are_reported_beside_what_chains_find():
    evidence = evidence_of(square, SQUARES, PLACE + 2 * SD * normal())
    assert len(wrong_draw_findings(evidence)) == 1
    evidence.record.modes[:] = [torch.tensor([place], dtype=torch.float64) for place in (PLACE, -PLACE)]
    assert {one.code for one in wrong_draw_findings(evidence)} == {"sd_is_off", "mode_without_draws"}


@pytest.mark.filterwarnings("ignore:the model cannot be vectorised")
def test_it_is_found_where_the_model_is_run_one_draw_at_a_time():
    (said,) = missed_modes(evidence_of(branching, SQUARES, PLACE + SD * normal()))
    assert "another mode, with about 50 %" in said.text and "'t' is -2" in said.text


def test_modes_that_all_have_draws_are_not_missed():
    draws = PLACE + SD * normal()
    assert missed_modes(evidence_of(square, SQUARES, torch.cat([draws, -draws]))) == []


@pytest.mark.parametrize("model", [faint, robust])
def test_a_mode_with_too_little_mass_to_matter_is_none(model):
    dim = 1 + (model is robust)
    assert missed_modes(evidence_of(model, (torch.zeros(20, dtype=torch.float64),), normal(dim=dim))) == []


def test_modes_by_relabelling_are_said_to_be_that():
    place = torch.tensor([-3.0, 3.0], dtype=torch.float64)
    draws = place + 0.14 * normal(dim=2)
    data = (place.repeat(50) + normal(100)[:, 0],)
    (said,) = missed_modes(evidence_of(mixture, data, draws))
    assert said.code == "modes_relabelled" and said.figures["lost"] == pytest.approx(0.5, abs=0.01)
    assert missed_modes(evidence_of(mixture, data, torch.cat([draws, draws.flip(1)]))) == []


def thin(y):
    """N(0, 1), and N(40, 1) with 0.1 % of the mass, of two parameters: no mean matters, but an SD is 1.6."""
    t = pyro.sample("t", dist.Normal(y.new_zeros(2), 100.0).to_event(1))
    there = t - torch.tensor([40.0, 0.0], dtype=t.dtype)
    pyro.factor("shape", torch.logsumexp(torch.stack([-t.square().sum() / 2, -there.square().sum() / 2 - SHARE]), 0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0 * t.sum(), 1.0), obs=y)


#: 0.1 %; the wide prior halves it at 40 SDs of 100.
SHARE = 6.9


def test_a_faint_mode_that_is_far_matters_by_its_weight():
    nothing = (torch.zeros(4, dtype=torch.float64),)
    (said,) = missed_modes(evidence_of(thin, nothing, normal(dim=2)))
    assert "by importance weights" in said.text and "'t' is 40" in said.text


def test_modes_have_their_shares_of_the_draws():
    draws, few = PLACE + SD * normal(), -PLACE + SD * normal(20)
    (said,) = missed_modes(evidence_of(square, SQUARES, torch.cat([draws, few])))
    assert "not their shares" in said.text and "50 % of the mass" in said.text
    assert missed_modes(evidence_of(square, SQUARES, torch.cat([draws, -draws[:400]]))) == []


@pytest.mark.parametrize("held", [0, 5])
def test_a_mode_at_the_other_end_of_an_interval_has_its_share(held):
    """An angle near π, of which -π is the other side: of 1,000 draws few or none are there, of those that should.

    The mass below zero is by quadrature.
    """
    y = torch.from_numpy(np.random.default_rng(22).vonmises(3.1, 2.0, 30))

    def angle(y):
        mu = pyro.sample("mu", dist.Uniform(y.new_tensor(-math.pi), math.pi))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.VonMises(mu, y.new_tensor(2.0)), obs=y)

    grid = torch.linspace(-math.pi, math.pi, 20_001, dtype=torch.float64)[1:-1]
    log_p = dist.VonMises(grid[:, None], 2.0).log_prob(y).sum(1)
    cdf = (log_p - log_p.max()).exp().cumsum(0) / (log_p - log_p.max()).exp().sum()
    below = float(cdf[grid < 0].max())
    u = below + (1 - below) * (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    right = grid[torch.searchsorted(cdf, u).clamp_max(len(grid) - 1)]
    right[torch.linspace(0, 999, held).long()] = -math.pi + 0.1
    draws = ((right + math.pi) / (2 * math.pi)).logit()[:, None]
    found = missed_modes(evidence_of(angle, (y,), draws))
    (said,) = found
    assert "'mu' is -3" in said.text
    shown = float(re.search(r"([\d.]+) % of (its|the) mass", said.text.replace("the \nmass", "the mass"))[1])
    assert abs(shown - 100 * below) < 3


def line(y):
    t = pyro.sample("t", dist.Normal(y.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(t, 1.0), obs=y)


def test_what_draws_around_a_point_miss_is_mass_without_draws_too(monkeypatch):
    found = sentences.mode_without_draws(site="t", value="9", lost=0.3, by="by Laplace", cures=["Search for it"])
    monkeypatch.setattr("pyro_fed.audit.modes.point.missed_modes", lambda around: [found])
    data = (torch.zeros(4, dtype=torch.float64),)
    evidence = evidence_of(line, data, torch.zeros(1, 1, dtype=torch.float64), pf.FedAvg())
    (said,) = point_findings(evidence)
    assert said.code == "around_the_point" and said.text.endswith(found.text)
    assert Answer(Stage(pf.FedAvg()), 0, {}, evidence.draws, [said], [], 1, None, {}).lost == 0.3
