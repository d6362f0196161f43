"""Few of many rows stand for all around the draws, within what is promised, or do not and are not taken."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.func import hessian

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.audit.evidence import Evidence, Unknown
from pyro_fed.audit.hmc import Detour
from pyro_fed.audit.modes.missed_modes import missed_modes
from pyro_fed.audit.moments import Quantities, wrong_moments
from pyro_fed.audit.motion import moments_by_chains
from pyro_fed.audit.target import Target, on_few_rows, on_rows_alone
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.derivatives.few_rows import MORE_ROWS, first_row_count

N, DIM = 17_000, 3
ROWS = first_row_count(DIM, MORE_ROWS)  # that stand for all at first


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def squared(y):
    """Two modes, near ± the root of the mean; the prior is not quite symmetric."""
    a = pyro.sample("a", dist.Normal(y.new_tensor(0.001), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a**2, 1.0), obs=y)


def in_groups(group, y):
    scale = pyro.sample("scale", dist.HalfNormal(y.new_ones(())))
    effect = pyro.sample("effect", dist.Normal(y.new_zeros(6), scale).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=effect[group]), obs=y)


def coins(logits, generator):
    return (torch.rand(len(logits), generator=generator, dtype=torch.float64) < logits.sigmoid()).double()


def federation(x, generator, dtype=torch.float64):
    y = coins(x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64), generator)
    return pf.Federation(logistic, (x.to(dtype), y.to(dtype)), plate="data", num_clients=3)


def laplace(problem, at, generator, count=800):
    """Draws of the Gaussian with the curvature at a mode that Newton finds from a point."""
    z = at.double()
    for _ in range(6):
        score, _ = torch.func.grad_and_value(lambda t: problem.log_prior(t) + problem.log_lik(t))(z)
        curvature = -hessian(lambda t: problem.log_prior(t) + problem.log_lik(t))(z)
        z = z + torch.linalg.solve(curvature, score)
    normal = torch.randn(count, len(z), generator=generator, dtype=torch.float64)
    return z + torch.linalg.solve_triangular(torch.linalg.cholesky(curvature).T, normal.T, upper=True).T


@pytest.fixture(scope="module")
def many():
    """A problem of many rows, and draws of its posterior, which is Gaussian but for 1 part in 100."""
    generator = torch.Generator().manual_seed(0)
    problem = federation(torch.randn(N, DIM, generator=generator, dtype=torch.float64), generator).problem
    return problem, laplace(problem, torch.zeros(DIM), generator)


def targets(problem, draws):
    target = Target.of(problem, draws)
    return target, on_few_rows(target, target.white(draws))


def test_few_rows_have_the_density_and_the_score_of_all(many):
    target, few = targets(*many)
    assert few.few is not None and few.few.count == ROWS and few.evaluations == ROWS
    white = target.white(many[1][:200])
    (value, score), (few_value, few_score) = target(white), few(white)
    assert float((few_value - value).abs().max()) < NEGLIGIBLE
    assert float((few_score - score).norm(dim=1).max()) < NEGLIGIBLE
    alone = on_rows_alone(target)
    assert float((alone(white)[1] - score).norm(dim=1).min()) > 1  # what is missed is worth SDs: N / ROWS is 17


@pytest.mark.parametrize(
    "factor, shift, bad", [(1.0, 0.0, False), (0.6, 0.0, True), (1.6, 0.0, True), (1.0, 0.5, True)]
)
def test_chains_by_few_rows_judge_as_those_by_all(many, factor, shift, bad):
    problem, draws = many
    draws = draws.mean(0) + factor * (draws - draws.mean(0)) + shift * draws.std(0)
    target, few = targets(problem, draws)
    assert few.few is not None
    quantities = Quantities.of(problem, draws)
    by_few = moments_by_chains(few, quantities, draws, torch.Generator().manual_seed(2))
    assert bool(wrong_moments(by_few).any()) == bad
    if factor > 1 or shift:
        return
    by_all = moments_by_chains(target, quantities, draws, torch.Generator().manual_seed(2))
    torch.testing.assert_close(by_few.mean, by_all.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(by_few.log_sd, by_all.log_sd, rtol=0, atol=0.03)


def test_rows_that_decide_alone_are_not_left_out():
    """Forty of the rows say all that is known of a weight: fewer rows than have some of them do not stand for all."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
    x[:, 2] = 0.0
    x[torch.randperm(N, generator=generator)[:40], 2] = 3.0
    problem = federation(x, generator).problem
    draws = laplace(problem, torch.zeros(DIM), generator)
    target, few = targets(problem, draws)
    assert few.few is not None and few.few.count == MORE_ROWS * ROWS
    assert bool((few.few.rows[0][:, 2] != 0).any())
    white = target.white(draws)
    assert float((few(white)[0] - target(white)[0]).abs().quantile(0.98)) < NEGLIGIBLE


def test_few_rows_in_float32_and_with_few_rows_there_are_none_to_leave():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
    problem = federation(x, generator, torch.float32).problem
    draws = laplace(problem.doubled(), torch.zeros(DIM), generator)
    assert targets(problem, draws)[1].few is not None
    problem = federation(x[: 4 * ROWS - 1], generator).problem
    target, few = targets(problem, draws)
    assert few is target and on_rows_alone(target) is target


def test_a_mode_that_is_missed_is_found_by_few_rows_and_weighed_by_all():
    generator = torch.Generator().manual_seed(5)
    y = 0.49 + torch.randn(N, generator=generator, dtype=torch.float64)
    fed = pf.Federation(squared, (y,), plate="data", num_clients=3)
    draws = laplace(fed.problem, torch.full((1,), 0.7), generator)
    evidence = Evidence(Unknown("independent"), fed, fed.problem, {}, draws[None], Record(fed.client_names), seed=0)
    (said,) = missed_modes(evidence)
    assert "another mode, with about 50 % of its mass" in said.text
    assert on_rows_alone(evidence.target).evaluations == ROWS


def test_effects_in_units_of_their_scale_are_by_few_rows_too():
    generator = torch.Generator().manual_seed(6)
    group = torch.randint(6, (N,), generator=generator)
    y = coins(torch.linspace(-1, 1, 6, dtype=torch.float64)[group], generator)
    problem = pf.Federation(in_groups, (group, y), plate="data", num_clients=3).problem
    normal = torch.randn(500, 7, generator=generator, dtype=torch.float64)
    centre = torch.cat([torch.zeros(1), torch.linspace(-1, 1, 6)]).double()
    draws = centre + normal * torch.tensor([0.3] + [0.03] * 6, dtype=torch.float64)
    target, few = targets(problem, draws)
    there, by_few = (Detour.of(one, draws, generator).target for one in (target, few))
    assert few.few is not None and by_few.evaluations == ROWS
    white = by_few.white(by_few.problem.to_noncentred(draws[:100]))
    (value, score), (few_value, few_score) = there(white), by_few(white)
    torch.testing.assert_close(few_value, value, rtol=0, atol=NEGLIGIBLE)
    torch.testing.assert_close(few_score, score, rtol=0, atol=NEGLIGIBLE)
