"""When the audit's chains end: at once where a result is far wrong or clearly right, later where chance decides."""

import math
from types import SimpleNamespace

import pytest
import torch

from pyro_fed.audit import evidence
from pyro_fed.audit.chains import motion
from pyro_fed.audit.chains.motion import (
    CHAINS,
    CLEAR_LOOK,
    CONFIRMATION_TRANSITIONS,
    EARLY_LOOK,
    FIRST_JUDGEMENT,
    LONGEST_WALK,
    MOST_TRANSITIONS,
    Looks,
    Moments,
    _judgeable_sds,
)
from pyro_fed.conventions.limits import Limits
from pyro_fed.infer.langevin.chain_diagnostics import r_hat_limit


def seen(excess, noise):
    """One number whose mean is so far off, in units of what matters, its SD right."""
    zero = torch.zeros(1)
    return Moments(torch.tensor([0.25 * excess]), torch.tensor([0.25 * noise]), zero, zero + 1e-3)


def looked(*found, long=False, most=1000, tailed=True, aim=None):
    """At which transitions there were looks, each with the next of the findings, the last again and again."""
    looks, at = Looks(most=most, tailed=tailed, aim=aim), []
    while not looks.over:
        at.append(looks.until)
        looks.take(seen(*found[min(len(at), len(found)) - 1]), long)
    return at


def test_what_is_clear_ends_at_the_first_look():
    assert looked((4.0, 0.2)) == [EARLY_LOOK, CLEAR_LOOK]
    assert looked((0.1, 0.1)) == [EARLY_LOOK, CLEAR_LOOK]


def test_what_is_wrong_without_tails_ends_after_one_transition():
    assert looked((4.0, 0.2), tailed=False) == [EARLY_LOOK]
    assert looked((4.0, 0.2), tailed=False, long=True) == [EARLY_LOOK, CLEAR_LOOK, FIRST_JUDGEMENT]
    assert looked((0.1, 0.1), tailed=False) == [EARLY_LOOK, CLEAR_LOOK]


@pytest.mark.parametrize("tailed", [True, False])
def test_what_is_wrong_by_little_is_looked_at_again(tailed):
    """Draws of a Gaussian have no tails, where the posterior that a few chains come to is skewed."""
    assert looked((1.8, 0.3), tailed=tailed) == [EARLY_LOOK, CLEAR_LOOK, CLEAR_LOOK + CONFIRMATION_TRANSITIONS]


def test_what_looked_wrong_once_and_is_undecided_goes_on():
    at = looked((1.8, 0.3), (1.8, 0.3), (0.9, 0.3), (0.0, 0.1))
    assert at[:3] == [EARLY_LOOK, CLEAR_LOOK, CLEAR_LOOK + CONFIRMATION_TRANSITIONS] and len(at) == 4


def test_long_tails_are_not_judged_at_the_first_look():
    assert looked((4.0, 0.2), long=True) == [EARLY_LOOK, CLEAR_LOOK, FIRST_JUDGEMENT]


@pytest.mark.parametrize(("excess", "until"), [(0.9, LONGEST_WALK), (0.7, MOST_TRANSITIONS)])
def test_what_stays_undecided_goes_on_if_it_looks_wrong(excess, until):
    assert looked((excess, 0.5))[-1] == until


@pytest.mark.parametrize(
    ("excess", "noise", "until"),
    [
        (0.1, 0.05, CLEAR_LOOK),
        (0.25, 0.05, CLEAR_LOOK),
        (0.35, 0.15, MOST_TRANSITIONS),
        (0.45, 0.2, MOST_TRANSITIONS),
        (0.6, 0.05, MOST_TRANSITIONS),
    ],
)
def test_what_seems_beyond_a_finer_aim_is_looked_at_until_it_is_told(excess, noise, until):
    """0.1 SDs are 0.4 of what matters: within twice, perhaps beyond twice, plainly beyond."""
    assert looked((excess, noise), aim=Limits(0.1, 1.1))[-1] == until
    assert looked((excess, noise))[-1] <= (FIRST_JUDGEMENT if excess < 0.6 else MOST_TRANSITIONS)
    assert looked((4.0, 0.2), aim=Limits(0.1, 1.1)) == looked((4.0, 0.2))


@pytest.mark.parametrize(
    ("excess", "noise", "until"), [(0.2, 0.01, CLEAR_LOOK), (0.4, 0.05, MOST_TRANSITIONS), (0.8, 0.02, LONGEST_WALK)]
)
def test_chains_that_have_plainly_moved_may_be_on_their_way(excess, noise, until):
    """Of 2,048 from weighted draws that lack a tail: SDs of 1.10 ± 0.02 times after four transitions, 1.31 after 32."""
    assert looked((excess, noise))[-1] == until


def test_no_more_is_looked_than_can_be_afforded():
    assert looked((0.9, 0.5), most=10)[-1] <= 10


def test_long_tails_on_a_sites_own_scale_are_not_judged():
    """By the draws' or the places' alone, though its unconstrained number is only where both are long."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(1000, generator=generator, dtype=torch.float64)
    places = torch.randn(4 * CHAINS, generator=generator, dtype=torch.float64)
    long = torch.cat([places[:-1], places.new_full((1,), 60.0)])
    draws, came = torch.stack([normal, normal], 1), torch.stack([long, long], 1).reshape(4, CHAINS, 2)
    assert _judgeable_sds(draws, came, 1).tolist() == [True, False]
    assert _judgeable_sds(draws, torch.stack([places, places], 1).reshape(4, CHAINS, 2), 1).tolist() == [True, True]


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
def test_where_neither_chains_nor_points_tell_many_chains_are_asked(chains, weights, many, wrong, asked, monkeypatch):
    calls = []

    def moved(*_, again):
        calls.append(again)
        return of_sd(*many, "chains")

    monkeypatch.setattr(evidence, "moments_by_chains", moved)
    found = SimpleNamespace(
        chains=of_sd(*chains, "chains"), by_weights=of_sd(*weights, "weights"), few_rows_target="target"
    )
    vars(found).update(quantities=SimpleNamespace(labels=("x",)), flat=torch.zeros(9, 1), seed=0, aim=None)
    moments = evidence.Evidence.estimated_moments.func(found).moments
    assert bool(motion.wrong_moments(moments).any()) == wrong
    assert calls == [True] * asked
