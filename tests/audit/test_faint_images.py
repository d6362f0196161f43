"""A mode that is another's image, faint and with little of the prior in its basin, is seen by any seed.

Two components of a mixture whose places a prior tells apart, by four of its SDs of their difference: the posterior with
the components exchanged has about exp(-4) of the mass, as the likelihood is the same, and a twelfth of the prior's
draws lie there.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.stein.modes import Modes, modes_of

SEEDS = range(4)


@pytest.fixture(scope="module")
def federation():
    def mixture(y):
        share = pyro.sample("share", dist.Beta(2.0, 2.0))
        place = pyro.sample("place", dist.Normal(torch.tensor([-2.0, 2.0]), 2.0).to_event(1))
        scale = pyro.sample("scale", dist.HalfNormal(2.0))
        shares = dist.Categorical(torch.stack([share, 1 - share]))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.MixtureSameFamily(shares, dist.Normal(place, scale)), obs=y)

    generator = torch.Generator().manual_seed(0)
    y = torch.cat([torch.randn(40, generator=generator) - 2, torch.randn(60, generator=generator) + 2]).double()
    return pf.Federation(mixture, (y,), plate="data", num_clients=4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gaussian_answer_is_told_of_the_image(federation, seed):
    with pytest.warns(UserWarning, match="the posterior has another mode, with about"):
        pf.run(pf.FedEP(), federation, seed=seed, progress=False, log_likelihood=False)


@pytest.mark.filterwarnings("ignore:not converged after 30 rounds")  # a start that does not settle is dropped
@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_that_particles_begin_with_finds_the_image(federation, seed):
    states = []

    class Kept(Modes):
        def sample(self, shared, num_draws, generator):
            states.append(shared)
            return super().sample(shared, num_draws, generator)

    pf.run(Kept(), federation, seed=seed, progress=False, audit=False, log_likelihood=False)
    shares = modes_of(states[-1], Modes.tolerance, Modes.same_mode)[2]
    assert len(shares) == 2
    assert 0.01 < shares.min() < 0.03  # exp(-4) where the share of one component is the other's, Beta(2, 2)
