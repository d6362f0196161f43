"""A run to its last state, against the closed form and against what `run` draws from."""

import pytest
import torch
from algorithms import line, line_data

import pyro_fed as pf
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.runtime.run import final_state


@pytest.fixture(scope="module")
def fed():
    return pf.Federation(line, line_data(), plate="data", num_clients=3, seed=0)


def test_the_last_state_of_newtons_method_is_the_posterior_of_a_linear_model(fed):
    x, y = line_data()
    precision = x.T @ x + torch.eye(2, dtype=x.dtype)
    found = final_state(pf.FedLaplace(), fed)
    q = gaussian(found.shared).to_full()
    assert found.converged is True
    torch.testing.assert_close(q.precision, precision, rtol=1e-8, atol=0)
    torch.testing.assert_close(q.moments()[0], torch.linalg.solve(precision, x.T @ y), rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:PaperDSVGD as published", "ignore:these draws are not the posterior")
def test_it_is_the_state_that_run_ends_with(fed):
    quick = {"num_particles": 8, "local_steps": 3, "distill_steps": 3}
    algorithm = pf.papers.PaperDSVGD(**quick)
    draws = pf.run(algorithm, fed, seed=4, compile="off", progress=False)["posterior"]["w"].values
    final = final_state(algorithm, fed, seed=4)
    particles = algorithm.sample(final.shared, 8, torch.Generator())
    torch.testing.assert_close(particles, torch.as_tensor(draws), rtol=1e-12, atol=0)
    assert final.converged is None


def test_an_algorithm_without_a_server_is_refused(fed):
    with pytest.raises(SettingError, match="has no server"):
        final_state(pf.P2PVI(), fed)
