"""The chains' verdict by simulation with known errors: how often results are called wrong, and when chains end.

The posterior is the prior, whose means and SDs are known. A result's draws are off by a known part of the limits.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

import pyro_fed as pf
from pyro_fed.audit.moments import TEST_LEVEL, Moments, Quantities, moments_of_chains, moments_verdict, wrong_moments
from pyro_fed.audit.motion import LOOKS, SequentialTest, moments_by_chains, spent_chance
from pyro_fed.audit.target import Target
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS, Limits

#: Results that are simulated for each error.
RESULTS = 12


def normal(y):
    pyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def student(y):
    pyro.sample("x", dist.StudentT(5.0, 0.0, 0.6**0.5).expand([3]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def verdicts(model, error_of_mean, ratio, exact=None):
    """Whether each of the results is called wrong: SD 1 / ratio, the first mean off by so many SDs."""
    zero = torch.zeros(1, dtype=torch.float64)
    problem = pf.Federation(model, (zero,), plate="data", num_clients=1).problem
    found = []
    for seed in range(RESULTS):
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(1000, 3, generator=generator, dtype=torch.float64)
        if exact:  # by the quantiles
            draws = torch.from_numpy(stats.t(exact).ppf(torch.special.ndtr(draws).numpy())) * (1 - 2 / exact) ** 0.5
        draws[:, 0] = draws[:, 0] / ratio + error_of_mean
        target, quantities = Target.of(problem, draws), Quantities.of(problem, draws)
        moments = moments_by_chains(target, quantities, draws, generator)
        found.append(bool(wrong_moments(moments).any()))
    return found


@pytest.mark.parametrize(
    ("model", "mean", "ratio", "exact"),
    [
        (normal, 0.8 * MATTERS, 1.0, None),
        (normal, 0.0, SD_MATTERS**-0.8, None),
        (student, 0.0, 1.0, 5),
    ],
)
def test_results_within_the_limits_are_hardly_ever_called_wrong(model, mean, ratio, exact):
    """If they are with the probability 0.1 each, more than seven of 12 are so three times in 10⁶."""
    assert sum(verdicts(model, mean, ratio, exact)) <= 7


@pytest.mark.parametrize(
    ("model", "mean", "ratio", "exact"),
    [
        (normal, 1.5 * MATTERS, 1.0, None),
        (normal, 0.0, SD_MATTERS**-1.5, None),
        (student, 0.0, SD_MATTERS**1.5, None),
    ],
)
def test_results_beyond_the_limits_by_half_are_called_wrong(model, mean, ratio, exact):
    """All of them were. At a power of 0.98 four of 12 are missed less than once in 10⁴ times."""
    assert sum(verdicts(model, mean, ratio, exact)) > RESULTS - 4


def test_the_looks_spend_alpha_in_all():
    """As O'Brien and Fleming's boundaries do, nearly all of it at the end: 1.645 / √t at the share t, of two sides."""
    assert spent_chance(0.0) == 0.0
    assert spent_chance(0.25) == pytest.approx(2 * stats.norm.sf(2 * 1.6448536), rel=1e-6)
    assert spent_chance(1.0) == pytest.approx(TEST_LEVEL)


def test_standard_errors_are_those_of_repeated_walks():
    """Of a skewed number with long tails, whose squares vary more where the number is large: within 15 % of its SD.

    The SD of 400 estimates has a standard error of 4 % for a Gaussian, and of less than 5 % here.
    """
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(400):
        begun, momenta = (torch.randn(128, 1, generator=generator, dtype=torch.float64) for _ in range(2))
        noise = torch.randn(128, 1, generator=generator, dtype=torch.float64)
        y = 0.3 * begun + 0.6 * momenta + 0.4 * momenta * noise.exp()
        found.append(moments_of_chains(begun, y[None], momenta[None]))
    for estimate, error in (("mean", "mean_error"), ("log_sd", "log_sd_error")):
        spread = float(torch.cat([getattr(one, estimate) for one in found]).std())
        root = float(torch.cat([getattr(one, error) for one in found]).square().mean().sqrt())
        assert abs(root / spread - 1) < 0.15


def seen(excess, noise):
    """One number whose mean is so far off, in units of what matters, its SD right."""
    zero = torch.zeros(1)
    return Moments(torch.tensor([0.25 * excess]), torch.tensor([0.25 * noise]), zero, zero + 1e-3)


def looked(*found, most=1000, aim=None):
    """At which transitions there were looks, each with the next of the findings, the last again and again."""
    test, at = SequentialTest(max_transitions=most, aim=aim), []
    while test.until:
        at.append(test.until)
        test.look(seen(*found[min(len(at), len(found)) - 1]))
    return at


@pytest.mark.parametrize("found", [(4.0, 0.2), (0.1, 0.1), (0.2, 0.01)])
def test_what_is_clear_ends_at_the_first_look(found):
    assert looked(found) == [LOOKS[0]]


def test_what_is_wrong_by_little_is_looked_at_again():
    assert len(looked((1.8, 0.3))) > 1


def test_what_stays_undecided_goes_on_to_the_end():
    assert looked((0.9, 0.5)) == list(LOOKS)
    assert moments_verdict(seen(0.9, 0.5)) is None


def test_chains_that_still_move_may_be_on_their_way():
    """Of 2,048 from weighted draws that lack a tail: SDs of 1.10 ± 0.02 times after four transitions, 1.31 after 32."""
    assert looked((0.3, 0.02), (0.45, 0.02), (0.8, 0.02), (1.2, 0.02)) == list(LOOKS[:4])
    assert looked((0.3, 0.02), (0.3, 0.02)) == list(LOOKS[:2])
    assert looked((0.2, 0.01), (1.2, 0.01)) == [LOOKS[0]]  # too small an error to matter


def test_what_may_be_beyond_a_finer_aim_is_looked_at_until_it_is_told():
    """0.1 SDs are 0.4 of what matters: within, perhaps beyond, plainly beyond."""
    aim = Limits(0.1, 1.1)
    assert looked((0.2, 0.1), aim=aim) == looked((0.2, 0.1))
    assert looked((0.45, 0.2), aim=aim)[-1] == LOOKS[-1]
    assert looked((0.45, 0.05), aim=aim) == looked((0.45, 0.05))
    assert looked((4.0, 0.2), aim=aim) == looked((4.0, 0.2))


def test_no_more_is_looked_than_can_be_afforded():
    assert looked((0.9, 0.5), most=10) == [2, 4, 8]
