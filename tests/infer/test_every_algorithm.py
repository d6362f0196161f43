"""Every algorithm sees marginal likelihoods alone: on a hierarchy it does what it does on a model without effects."""

from functools import partial

import hierarchies
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
from algorithms import ALGORITHMS
from contract import baseline, hierarchy, in_one_process, lasting, short_run

import pyro_fed as pf

FEDERATED = {name: make for name, make, _ in ALGORITHMS if not getattr(make(), "joint", False)}


def marginal(sd, y=None):
    """`hierarchies.means` with the effects integrated out by hand.

    Its outcomes are vectors of one number, whose Fisher information is the empirical one, as that of integrals is; and
    they are not seen to be linear in mu, as integrals are not, so that nobody is asked whether they have one mode.
    """
    mu = pyro.sample("mu", dist.Normal(hierarchies.number(0), hierarchies.PRIOR_SD))
    with pyro.plate(hierarchies.PLATE, len(sd)):
        root = (sd.square() + hierarchies.SPREAD**2).sqrt().reshape(-1, 1, 1)
        mean = mu.sinh().asinh().expand(1)
        pyro.sample("y", dist.MultivariateNormal(mean, scale_tril=root), obs=y.unsqueeze(-1))


def integrated():
    """The same groups at the same clients."""
    return pf.Federation(marginal, hierarchies.CASES["means"].args, plate="group", num_clients=3)


@pytest.mark.parametrize("name", [pytest.param(name, marks=in_one_process(name)) for name in FEDERATED])
def test_the_answer_is_that_of_the_model_with_the_effects_integrated_out(name):
    """Draws and sizes of messages alike: the same random numbers, the same densities, to rounding."""
    whole, plain = baseline(FEDERATED[name], hierarchy), short_run(FEDERATED[name], partial(lasting, integrated))
    drawn = whole["posterior"]
    np.testing.assert_allclose(drawn["mu"].values, plain["posterior"]["mu"].values, rtol=1e-6, atol=1e-6)
    assert drawn["effect"].shape == (*drawn["mu"].shape, hierarchies.J)
    assert np.isfinite(drawn["effect"].values).all()
    for sent in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(whole["federation"][sent].values, plain["federation"][sent].values)


def test_the_others_work_on_all_latents():
    assert {name for name, make, _ in ALGORITHMS} - FEDERATED.keys() == {"NUTS", "SVI"}
