"""What all tests share: no window is opened, and no parameter or random state is left behind."""

import os
import sys

import pyro
import pytest
import torch

os.environ["MPLBACKEND"] = "Agg"


@pytest.fixture(scope="session", autouse=True)
def _arviz():
    """What ArviZ says at its first import is said here, and to no test; collecting tests does without ArviZ."""
    import arviz  # noqa: F401


@pytest.fixture(autouse=True)
def _clean_state():
    """Pyro's global parameter store and the global random state, as a fresh process has them."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    dtype = torch.get_default_dtype()
    yield
    assert torch.get_default_dtype() == dtype


@pytest.fixture(autouse=True)
def _changed_modules(request):
    """A test that changes our modules takes no step that was traced of them before, and leaves none behind."""
    changes = "monkeypatch" in request.fixturenames
    if changes:
        _forget()
    yield
    if changes:
        _forget()


def _forget():
    process = sys.modules.get("pyro_fed.density.compiling.process")
    if process is not None:
        process.forget()


@pytest.fixture
def close_figures():
    """Close what a test has drawn."""
    import matplotlib.pyplot as plt

    yield
    plt.close("all")
