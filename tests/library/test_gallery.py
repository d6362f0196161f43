"""Models that people come for: data by seed, densities by Pyro, and posteriors of federated runs against NUTS."""

import importlib
import re
from pathlib import Path

import gallery
import pyro
import pytest
import torch

import pyro_fed as pf

#: Those whose posterior FedEP's Gaussian fits.
FITTED = [name for name in gallery.NAMES if name not in ("item_response", "measurement_error", "regularised_horseshoe")]
DOUBLE = torch.float64


@pytest.mark.parametrize("name", gallery.NAMES)
def test_a_model_is_ordinary_pyro_and_its_data_come_by_seed(name):
    module = importlib.import_module(f"models.{name}")
    assert not re.search(r"(import|from) pyro_fed", Path(module.__file__).read_text(encoding="utf-8"))
    pyro.set_rng_seed(0)
    args = module.load_data()[0]
    with pyro.validation_enabled(True):
        trace = pyro.poutine.trace(module.model).get_trace(*args)
        assert torch.isfinite(trace.log_prob_sum())
    for again, first in zip(module.load_data()[0], args, strict=True):
        assert torch.equal(torch.as_tensor(again).nan_to_num(), torch.as_tensor(first).nan_to_num())


@pytest.mark.parametrize("name", FITTED)
def test_fedep_finds_the_posterior_of_nuts(name):
    """Means within 0.15 reference SD and SDs within 15 %: the targets, and the error of the reference's 4,000 draws."""
    fed = gallery.federation(name)
    found = pf.run(pf.FedEP(), fed, progress=False, log_likelihood=False, num_draws=4000, collect_local=False)
    error, low, high = gallery.error(found, name)
    assert error < 0.15
    assert 0.85 < low <= high < 1.15
