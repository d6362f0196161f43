"""Draws of modes that are far narrower than they are apart: each is judged in its own SDs; the modes are known."""

import re

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fed.audit import density_findings, draw_findings
from pyro_fed.audit.evidence import groups
from pyro_fed.audit.moment_findings import wrong_moment_findings
from tests.helpers.evidence import evidence_of

#: Correlation within a mode.
CORRELATION = 0.8


def narrow(tops, width):
    """A model whose rows say nothing: its posterior is the prior, equal Gaussians around these places."""
    shape = width**2 * ((1 - CORRELATION) * torch.eye(tops.shape[1], dtype=tops.dtype) + CORRELATION)

    def model(y):
        parts = dist.MultivariateNormal(tops, shape)
        b = pyro.sample("b", dist.MixtureSameFamily(dist.Categorical(tops.new_ones(len(tops))), parts))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(0.0 * b.sum(), 1.0), obs=y)

    return model, torch.linalg.cholesky(shape)


def audit(evidence):
    """All checks, as a run makes them."""
    return density_findings(evidence) or draw_findings(evidence)


def drawn(tops, factor, counts, wider=1.0, shift=0.0):
    """So many draws of each mode, shaped as it is: standardised, so that no chance is in them."""
    found = []
    for seed, (top, count) in enumerate(zip(tops, counts, strict=True)):
        u = torch.randn(count, len(top), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        u = u - u.mean(0)
        u = torch.linalg.solve_triangular(torch.linalg.cholesky(u.T @ u / (count - 1)), u.T, upper=False).T
        found.append(top + wider * (u + shift) @ factor.T)
    return torch.cat(found)


PAIR = torch.tensor([[1.0, -0.5, 0.7], [-1.0, 0.5, -0.7]], dtype=torch.float64)
FOUR = torch.tensor([[1.0, 2.0], [1.0, -2.0], [-1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
ONES = (torch.ones(2, dtype=torch.float64),)


@pytest.mark.parametrize(
    ("tops", "width", "count"),
    [(PAIR, 1e-4, 1000), (FOUR, 1e-2, 60)],
    ids=["pair-many", "four-few"],
)
def test_modes_are_judged_in_their_own_sds(tops, width, count):
    model, factor = narrow(tops, width)
    counts = [count // len(tops)] * len(tops)
    assert audit(evidence_of(model, ONES, drawn(tops, factor, counts))) == []
    (said,) = wrong_moment_findings(evidence_of(model, ONES, drawn(tops, factor, counts, wider=0.6)))
    assert re.search(rf"multiply the SD of 'b\[\d\]' \(mode \d of {len(tops)}\) by (at least )?[12]\.", said.text)
    (said,) = wrong_moment_findings(evidence_of(model, ONES, drawn(tops, factor, counts, shift=0.5)))
    assert re.search(rf"move the mean of 'b\[\d\]' \(mode \d of {len(tops)}\) by (at least )?[01]\.", said.text)


def test_modes_that_have_not_their_shares_are_said_to_be_that():
    model, factor = narrow(PAIR, 1e-3)
    (said,) = audit(evidence_of(model, ONES, drawn(PAIR, factor, [400, 100])))
    assert "the shares of the draws are not their shares of its mass" in said.text
    assert abs(float(re.search(r"(\d+) % of the mass", said.text)[1]) - 50) < 3  # 512 weights: ± 1


def test_draws_that_are_far_too_wide_are_no_modes():
    """No chain can move from them, and it is said."""
    model, factor = narrow(PAIR[:1], 1e-4)
    wide = drawn(PAIR[:1], factor, [500], wider=1e3)
    assert groups(wide) == []
    (said,) = wrong_moment_findings(evidence_of(model, ONES, wide))
    assert "no exact Markov chain can move" in said.text or "less than a third" in said.text


def test_chains_that_cannot_move_have_the_distance_of_the_mode(monkeypatch):
    """The posterior is N(top, 1e-8 S), and the draws' mean exactly 3e4 to 6e4 of its SDs away; no weights in 3 dims."""
    monkeypatch.setattr("pyro_fed.policy.audit.LARGEST_DIM_OF_WEIGHTS", 0)
    model, factor = narrow(PAIR[:1], 1e-4)
    far = drawn(PAIR[:1], factor, [500], wider=1e3) + torch.tensor([3.0, -4.0, 6.0], dtype=torch.float64)
    evidence = evidence_of(model, ONES, far)
    (said,) = wrong_moment_findings(evidence)
    assert said.code == "chains_are_stuck" and said.where == {"parameter": "b[2]"}
    assert said.figures["sds"] == pytest.approx(6.0 / 1e-4, rel=1e-3)
    assert "the mode uphill of them is 6e+04 posterior SDs (by Laplace) from their mean of 'b[2]'" in said.text


@pytest.mark.parametrize("seed", range(5))
def test_one_mode_is_no_groups(seed):
    """Gaussian, skewed and heavy tails, few and many draws."""
    generator = torch.Generator().manual_seed(seed)
    for count in (30, 300, 4000):
        normal = torch.randn(count, 3, generator=generator, dtype=torch.float64)
        cauchy = normal[:, :1] / torch.randn(count, 1, generator=generator, dtype=torch.float64)
        for draws in (normal, normal.exp(), cauchy):
            assert groups(draws) == []


def test_a_few_draws_apart_are_left_out():
    """A tenth at most is; a faint mode's draws are not judged, those of the others are."""
    tops = torch.cat([PAIR, torch.tensor([[3.0, 3.0, 3.0]], dtype=torch.float64)])
    _, factor = narrow(PAIR, 1e-3)
    parts = groups(drawn(PAIR, factor, [60, 40]))
    assert sorted(map(len, parts)) == [40, 60]
    some = torch.cat([drawn(PAIR, factor, [60, 40]), tops[2:].expand(5, 3)])
    assert sorted(map(len, groups(some))) == [40, 60]
