"""Particles that begin where a funnel is too steep for steps: nearer, until it is not; no run ends in divergence."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from zoo_sites import horseshoe

import pyro_fed as pf
from pyro_fed.algorithm.contract import Start
from pyro_fed.infer.sites.gaussian_sites import as_state
from pyro_fed.infer.stein.survey import MAX_APPROACH_ROUNDS, MAX_SCORE_RATIO, Survey
from pyro_fed.ops.gaussian import FullGaussian

QUIET = {"progress": False, "log_likelihood": False, "audit": False}


def regression(count, dim):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return x, x[:, 0] * 2 + x[:, 1] * 2 + torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize(("count", "dim"), [(30, 5), (60, 10)])
def test_a_horseshoe_does_not_diverge(count, dim):
    """Its mode is infinitely narrow: 'white' left the finite numbers, or the clients' turns were refused one by one."""
    fed = pf.Federation(horseshoe, regression(count, dim), plate="data", num_clients=3, seed=0)
    idata = pf.run(pf.DSVGD(), fed, **QUIET, seed=0)
    w = torch.from_numpy(idata.posterior["w"].values[0])
    assert bool(w.isfinite().all())
    # The data say 2 ± 0.2 of the two large weights, and the prior hardly shrinks these.
    assert float((w[:, :2].mean(0) - 2).abs().max()) < 0.6 and float(w.std(0).max()) < 0.6


def quartic(y):
    """A flat top between walls: at three of its Gaussian's SDs the score is 27 times the Gaussian's."""
    z = pyro.sample("z", dist.Normal(y.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(WALLS * z[0] ** 4, 1.0), obs=y)


WALLS = 1e3


def test_steep_points_are_put_nearer_and_others_stay():
    fed = pf.Federation(quartic, (torch.zeros(4, dtype=torch.float64),), plate="data", num_clients=2)
    survey = Survey(num_particles=20, begin="gaussian")
    eye = torch.eye(2, dtype=torch.float64)
    sites = as_state(FullGaussian(torch.zeros(2, 2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)))
    found = as_state(FullGaussian(eye, eye[0] * 0)) | {"point": eye[0] * 0}
    prior = {f"prior_{name}": value for name, value in as_state(FullGaussian(eye, eye[0] * 0)).items()}
    shared, local = survey.init(fed.problem, 2, torch.Generator().manual_seed(0), Start(found | prior, sites))
    first = shared["white"].clone()
    data, rounds = fed.client_data([0, 1]), 0
    while rounds == 0 or int(shared["steep"]):
        received = {name: value.expand(2, *value.shape) for name, value in shared.items()}
        message, local, _ = survey.local_step(fed.problem, received, local, data, None)
        shared, rounds = survey.refine(fed.problem, survey.combine(shared, message, torch.ones(2))), rounds + 1
        assert rounds <= MAX_APPROACH_ROUNDS
    nearer = shared["white"] / first
    z0 = shared["white"][:, 0]
    score = -4 * 4 * WALLS**2 * z0**7 - z0  # four rows, each -(WALLS z⁴)² / 2
    assert float(score.abs().max()) <= MAX_SCORE_RATIO * 2**0.5
    assert rounds > 1 and bool((nearer == 1).all(1).any()) and bool((nearer.log2() == nearer.log2().round()).all())
