"""What the audit looks at: how many draws it takes of a distribution, and those of the prior that are numbers."""

from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.audit.evidence import COPIES_OF_DRAWS, DISTRIBUTION_DRAWS, PRIOR_DRAWS, Evidence
from pyro_fed.conventions.limits import MIN_EFFECTIVE_DRAWS
from pyro_fed.ops.memory import count_in_memory


@pytest.mark.parametrize(
    ("dim", "expected"),
    [(2, DISTRIBUTION_DRAWS), (1_000, count_in_memory(COPIES_OF_DRAWS * 1_000)), (50_000, MIN_EFFECTIVE_DRAWS)],
)
def test_the_audits_own_draws_are_bounded_in_numbers(dim, expected):
    algorithm = SimpleNamespace(
        draws_are="independent",
        sample=lambda shared, num_draws, generator: torch.zeros(1, 1).expand(num_draws, dim)[None],
    )
    evidence = Evidence(
        algorithm=algorithm,
        federation=None,
        problem=SimpleNamespace(dim=dim),
        shared={"eta": torch.zeros(1)},
        draws=torch.zeros(1, 10, dim),
        record=Record([]),
        seed=0,
    )
    assert evidence.flat.shape == (expected, dim)


def wide(y):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 500.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, scale), obs=y)


def vast(y):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1e6))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, scale), obs=y)


@pytest.mark.parametrize(("model", "some"), [(wide, True), (vast, False)])
def test_draws_of_the_prior_that_are_no_numbers_are_left_out(model, some):
    """exp(500 x) is beyond the range of float64 for |x| above 1.4, a sixth of the draws, where no posterior is."""
    y = torch.linspace(-1, 1, 20, dtype=torch.float64)
    result = pf.run(
        pf.FedEP(), pf.Federation(model, (y,), plate="data", num_clients=2), progress=False, log_likelihood=False
    )
    assert result.attrs["doubts"] == ""
    problem = pf.Federation(model, (y,), plate="data", num_clients=2).problem
    evidence = Evidence(None, None, problem, {}, torch.zeros(1, 10, 1), None, 0)
    prior = evidence.from_prior
    assert (prior is not None) == some
    if some:
        assert len(prior) < PRIOR_DRAWS and bool(prior.isfinite().all())


def kept_above_zero(y):
    """What was observed of rows above zero: in float32 the difference is rounded to zero far out, and so cut off."""
    mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
    scale = pyro.sample("scale", dist.HalfNormal(2.0))
    normal = dist.Normal(mean, scale)
    with pyro.plate("data", len(y)):
        pyro.factor("y", normal.log_prob(y) - (1 - normal.cdf(torch.zeros_like(y))).clamp_min(1e-12).log())


@pytest.mark.filterwarnings("ignore:these draws are not the posterior's")
def test_weights_that_float32_spoils_far_from_all_draws_are_computed_in_float64():
    """There each row's density is e^10 times too large: all weight is where the posterior has no mass."""
    y = 1 + torch.randn(200, generator=torch.Generator().manual_seed(1))
    fed = pf.Federation(kept_above_zero, (y[y > 0][:20],), plate="data", num_clients=2)
    found = pf.run(pf.FedEP(), fed, progress=False, log_likelihood=False)
    assert fed.problem.dtype == torch.float32
    assert "importance weights of points that are spread more widely multiply the SD of 'mean'" in found.attrs["doubts"]
