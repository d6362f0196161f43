"""Regressions on hundreds of covariates: full covariances by default, against the exact posterior."""

from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.derivatives.rowwise import at_points
from pyro_fed.ops.memory import count_in_memory
from pyro_fed.policy import resolve
from pyro_fed.policy.gaussian import full_is_cheap

DIM, ROWS, NOISE = 130, 400, 0.5


def linear(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


def robust(x, y):
    """Two predictors a row, one of them the scale's, and a parameter of its own."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    v = pyro.sample("v", dist.Normal(0.0, 0.2).expand([x.shape[1]]).to_event(1))
    df = pyro.sample("df", dist.Gamma(2.0, 0.2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(df, x @ w, (x @ v).exp()), obs=y)


@pytest.fixture(scope="module")
def correlated():
    """Rows whose covariates share a few causes, so that a diagonal covariance is wrong."""
    generator = torch.Generator().manual_seed(0)
    causes = torch.randn(ROWS, 8, generator=generator) @ torch.randn(8, DIM, generator=generator) / 8**0.5
    x = causes + 0.7 * torch.randn(ROWS, DIM, generator=generator)
    y = x @ (0.2 * torch.randn(DIM, generator=generator)) + NOISE * torch.randn(ROWS, generator=generator)
    return x.double(), y.double()


ALGORITHMS = {
    "FedEP": (pf.FedEP(), {}),
    "FedSEP": (pf.infer.FedSEP(), {}),
    "PVI": (pf.infer.PVI(), {}),
    "FedLaplace": (pf.FedLaplace(), {}),
    "P2PVI": (pf.P2PVI(), {"graph": pf.graph.complete(4)}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_posterior_of_hundreds_of_coefficients_is_exact_by_default(correlated, name):
    x, y = correlated
    algorithm, options = ALGORITHMS[name]
    federation = pf.Federation(linear, (x, y), plate="data", num_clients=4, partition=pf.partition.SortedBy(x[:, 0]))
    idata = pf.run(algorithm, federation, progress=False, compile="off", **options)
    precision = np.eye(DIM) + (x.T @ x).numpy() / NOISE**2
    covariance = np.linalg.inv(precision)
    mean, sd = covariance @ (x.T @ y).numpy() / NOISE**2, np.sqrt(np.diag(covariance))
    draws = idata.posterior["w"].values.reshape(-1, DIM)
    assert np.abs((draws.mean(0) - mean) / sd).max() < 0.05  # draws are spread evenly: their own error is 0.02
    assert np.abs(draws.std(0) / sd - 1).max() < 0.05
    fitted = (draws @ x.T.numpy()).std(0) / np.sqrt(np.einsum("nd,de,ne->n", x, covariance, x))
    assert np.abs(fitted - 1).max() < 0.15  # six standard errors of an SD by 1,000 independent draws


def test_what_is_asked_for_stays_and_memory_is_bounded(correlated):
    federation = pf.Federation(linear, correlated, plate="data", num_clients=4)
    problem = federation.problem
    assert problem.num_clients == 4 and full_is_cheap(problem.traits)
    for algorithm in (pf.FedEP(), pf.FedEP(covariance="full"), pf.FedLaplace(), pf.P2PVI()):
        fits = resolve(algorithm, problem.traits).algorithm
        assert fits.structure == "full" and fits.derivatives().kind == "hessian"
    for algorithm in (
        pf.FedEP(covariance="diag"),
        pf.FedEP(curvature="fisher"),
        pf.FedLaplace(covariance="diag"),
        pf.P2PVI(covariance="diag"),
    ):
        assert resolve(algorithm, problem.traits).algorithm.structure == "diag"
    many = replace(problem, num_clients=count_in_memory(DIM**2) + 1)
    assert not full_is_cheap(many.traits) and resolve(pf.FedEP(), many.traits).algorithm.structure == "diag"


def test_the_diagonal_alone_is_that_of_every_rows_hessian():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(60, 5, generator=generator).double(), torch.randn(60, generator=generator).double()
    federation = pf.Federation(robust, (x, y), plate="data", num_clients=3)
    problem, batch = federation.problem, federation.client_data().full_batch()
    points = 0.3 * torch.randn(8, 3, problem.dim, generator=generator, dtype=torch.float64)
    found = at_points(problem, points, batch, diagonal=True)
    mapped = Derivatives("diag", "hessian")._at_all(problem, points, batch)
    assert found.curvature.shape == (3, problem.dim)
    for ours, theirs in zip(found, mapped, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_client_of_one_row_has_the_same_structure_as_the_whole(correlated):
    one = pf.Federation.from_clients(linear, {"a": tuple(leaf[:1] for leaf in correlated)}, plate="data")
    assert full_is_cheap(one.problem.traits)
