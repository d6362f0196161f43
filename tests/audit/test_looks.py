"""Which SDs can be judged, and what is done where neither chains nor weighted points decide."""

import math
from types import SimpleNamespace

import pytest
import torch

from pyro_fed.audit import evidence
from pyro_fed.audit.moments import Moments, judgeable_sds, kurtosis, wrong_moments
from pyro_fed.infer.langevin.chain_diagnostics import r_hat_limit
from pyro_fed.policy.audit import CHAINS


def test_long_tails_on_a_sites_own_scale_are_not_judged():
    """By the draws' or the places' alone, though its unconstrained number is only where both are long."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(1000, generator=generator, dtype=torch.float64)
    places = torch.randn(4 * CHAINS, generator=generator, dtype=torch.float64)
    long = torch.cat([places[:-1], places.new_full((1,), 60.0)])
    draws = torch.stack([normal, normal], 1)

    def judged(values):
        return judgeable_sds(kurtosis(draws), kurtosis(torch.stack([values, values], 1)), 1, CHAINS).tolist()

    assert judged(long) == [True, False]
    assert judged(places) == [True, True]


def test_r_hat_of_many_chains_says_what_it_says_of_four():
    """Means of 2 M halves, worth 400 draws in all, vary by 2 M / 400 of the draws' variance."""
    assert [round(r_hat_limit(chains), 3) for chains in (2, 4, 10)] == [1.01, 1.01, 1.025]
    assert r_hat_limit(20) == math.sqrt(1.1)


def of_sd(ratio, error, by):
    """One number whose SD is so many times the result's, as chains or weights have it."""
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    return Moments(zero, 0.01 * one, math.log(ratio) * one, error * one, by=by)


@pytest.mark.parametrize(
    ("chains", "weights", "many", "wrong", "asked"),
    [
        ((1.09, 0.095), (1.18, 0.05), (1.30, 0.02), True, 1),  # a random walk by FSGLD: neither tells
        ((1.09, 0.095), (1.18, 0.05), (1.05, 0.02), False, 1),
        ((1.26, 0.027), (1.205, 0.013), None, True, 0),  # the points are too near the limit to overrule chains
        ((1.02, 0.05), (1.03, 0.02), None, False, 0),
    ],
    ids=["undecided_wrong", "undecided_right", "near_the_limit", "right"],
)
def test_where_neither_chains_nor_points_tell_many_chains_are_asked(chains, weights, many, wrong, asked):
    calls = []

    def moved(_, which):
        calls.append(which)
        return of_sd(*many, "chains")

    found = SimpleNamespace(
        chains=of_sd(*chains, "chains"),
        by_weights=of_sd(*weights, "weights"),
        weighted_points=None,
        _weighed_groups=lambda points: None,
        _decided_alone=None,
        _by_chains=moved,
        quantities=SimpleNamespace(labels=("x",)),
        flat=torch.zeros(9, 1),
    )
    moments = evidence.Evidence.moments.func(found)
    assert bool(wrong_moments(moments).any()) == wrong
    assert calls == [slice(-1, None)] * asked
