"""Results whose rows are elsewhere are judged by the clients' sums: the weights that a simulation would have."""

import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.audit.weights import moments_of_weighted_draws

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]

RECIPES = {
    "FedEP-exact": "",
    "FedEP-diag": '[settings]\ncovariance = "diag"\ntolerance = 1e-12',
    "FedEP-few": "[run]\nnum_draws = 100",
    "FedAIS": "[settings]\nnum_proposals = 400",
    "DSVGD": "[settings]\nnum_particles = 6\nlocal_steps = 3\n[run]\nnum_rounds = 4",
}


@pytest.fixture
def over_grid(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, RECIPES)

    def run(name, **config):
        grid = flower.grid(model, recipes, config.pop("faults", None))
        settings = flower.read_configuration({"num-clients": 3, "timeout": 0.05, "compile": "off", **config})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return flower.serve(grid, model, recipes[name], settings)

    return run


def simulated(algorithm):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, unequal_lines(), executor="sequential", compile="off", progress=False, audit=False)


def test_an_exact_answer_has_equal_weights(over_grid):
    found, here = over_grid("FedEP-exact"), simulated(pf.FedEP())
    assert (found.attrs["audited"], found.attrs["doubts"], found.attrs["pareto_k"]) == (1, "", -np.inf)
    assert found.attrs["effective_draws"] == pytest.approx(1000)
    assert "not checked: modes and tails" in found.attrs["unchecked"]
    np.testing.assert_allclose(found.sample_stats["lp"], here.sample_stats["lp"], rtol=1e-12)
    assert np.abs(found.audit["mean_error"].values).max() < 1e-9


def test_a_wrong_spread_is_found_as_the_weights_of_pooled_rows_find_it(over_grid):
    found, here = over_grid("FedEP-diag"), simulated(pf.FedEP(covariance="diag", tolerance=1e-12))
    fed = unequal_lines()
    z = torch.as_tensor(here.posterior["w"].values)[0]
    pooled = fed.problem.log_prior(z) + fed.problem.log_lik(z)
    sd = torch.as_tensor(_exact_sd_of_diagonal(fed))
    log_q = torch.distributions.Normal(_exact_mean(fed), sd).log_prob(z).sum(-1)
    moments = moments_of_weighted_draws(z, pooled - log_q)
    np.testing.assert_allclose(found.audit["sd_ratio"], moments.log_sd.exp(), rtol=1e-6)
    np.testing.assert_allclose(found.audit["mean_error"], moments.mean, atol=1e-6)
    exact = torch.linalg.inv(_precision(fed)).diagonal().sqrt() / sd
    errors = 5 * found.audit["sd_ratio_se"].values + 0.02
    assert (np.abs(found.audit["sd_ratio"].values - exact.numpy()) < errors).all()


def _precision(fed):
    (x, _) = fed.problem.rows
    return x.T @ x + torch.eye(x.shape[1], dtype=x.dtype)


def _exact_mean(fed):
    (x, y) = fed.problem.rows
    return torch.linalg.solve(_precision(fed), x.T @ y)


def _exact_sd_of_diagonal(fed):
    """The diagonal Gaussian of smallest KL(q | p) has the precision's diagonal."""
    return _precision(fed).diagonal().rsqrt()


def test_what_cannot_be_weighed_says_so(over_grid):
    for name, sentence in (
        ("DSVGD", "not audited: the density from which DSVGD draws is not known"),
        ("FedEP-few", "not audited: 100 draws are too few for weights"),
    ):
        found = over_grid(name)
        assert sentence in found.attrs["warnings"]
        assert found.attrs["audited"] == 0
        assert np.isfinite(found.sample_stats["lp"].values).all()
    own = over_grid("FedAIS")
    assert own.attrs["audited"] == 1 and "not audited" not in own.attrs["warnings"]


def test_a_client_that_is_silent_at_the_end_leaves_the_result_unaudited(flower, over_grid):
    """The result stands; the last exchange has the number of the round that would come next."""
    done = len(over_grid("FedEP-exact", audit=False).federation["round"])
    found = over_grid("FedEP-exact", faults={(done, 1): "error"})
    assert "not audited: clients [1]" in found.attrs["warnings"]
    assert found.attrs["audited"] == 0
