"""A worker's part of a federation has the densities that these clients have at the server, bit for bit."""

import importlib

import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.runtime.executors.remote import share_of

#: Groups whose number is an argument of the model, and rows in groups; a plate over rows; latents in rows.
MODELS = ("hierarchical_logistic", "varying_slopes", "eight_schools", "item_response", "missing_covariate")


@pytest.mark.parametrize("name", MODELS)
def test_a_share_has_the_clients_densities(name):
    module = importlib.import_module(f"models.{name}")
    args, rows = module.load_data()[0], getattr(module, "ROWS", None)
    fed = pf.Federation(module.model, args, plate=module.PLATE, rows=rows, num_clients=3)
    problem, data = fed.problem, fed.client_data()
    at = torch.tensor([0, 2])
    own, theirs = share_of(problem, data, at.tolist(), at).build(module.model)
    assert own.num_rows == problem.num_rows
    z = torch.randn(problem.dim, dtype=problem.dtype, generator=torch.Generator().manual_seed(0))
    for here, there in enumerate(at.tolist()):
        expected, found = _log_lik(problem, data, there, z), _log_lik(own, theirs, here, z)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(own.log_prior(z), problem.log_prior(z), rtol=0, atol=0)


def _log_lik(problem, data: ClientData, client, z):
    index = data.row_index[client][: int(data.num_rows[client])]
    return problem.pointwise_log_lik(z, tuple(leaf[index] for leaf in data.rows))
