"""What all tests share: no window is opened, and no parameter or random state is left behind."""

import gc
import os
import sys

import pyro
import pytest
import torch

from pyro_fed.conventions.memory import COMPUTING, TRIM_THRESHOLD, allocator, keep_freed

os.environ["MPLBACKEND"] = "Agg"

#: As during a run, here from the first test to the last: of a test with 6,000 rows a quarter
#: of the time was the kernel's. Runs leave it so, and processes that tests start have it too, by glibc's variable.
keep_freed()
os.environ["MALLOC_TRIM_THRESHOLD_"] = str(COMPUTING[TRIM_THRESHOLD])
allocator.cache_clear()


gc.set_threshold(20_000, 20, 20)  # of which imports and tracing, that leave little behind, cause many


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """A file's tests are one worker's, unless a mark names another group: what they share is made once, not twice.

    That is a module's fixtures and caches, the steps traced of its models, and imports that are late. xdist 3.8 adds a
    group to `_nodeid`, which pytest 9.2 does not read: left alone, `--dist loadgroup` would do nothing.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    yield
    if config.getoption("loadgroup", False) and hasattr(pytest.Item, "id"):  # a worker's, and pytest 9.2
        from _pytest.nodeid import coerce_node_id

        for item in items:
            if item.nodeid.rfind("@") <= item.nodeid.rfind("]"):
                groups = sorted({mark.args[0] for mark in item.iter_markers("xdist_group")})
                item._id = coerce_node_id(f"{item.nodeid}@{'_'.join(groups)}")


def pytest_collection_finish():
    """The modules' half a million objects stay: collections do not look at them."""
    gc.freeze()


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
