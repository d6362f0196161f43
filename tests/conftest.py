"""What all tests share: no window is opened, and no parameter or random state is left behind."""

import gc
import os
import random
import sys

import numpy as np
import pyro
import pytest
import torch

from pyro_fed.conventions.resources import COMPUTING, MMAP_THRESHOLD, TRIM_THRESHOLD, allocator, keep_freed

os.environ["MPLBACKEND"] = "Agg"

#: As during a run, here from the first test to the last: of a test with 6,000 rows a quarter
#: of the time was the kernel's. Runs leave it so, and processes that tests start have it too, the workers above all, by
#: glibc's variables: both, since one alone leaves every block of 128 kB to the kernel.
keep_freed()
os.environ["MALLOC_TRIM_THRESHOLD_"] = str(COMPUTING[TRIM_THRESHOLD])
os.environ["MALLOC_MMAP_THRESHOLD_"] = str(COMPUTING[MMAP_THRESHOLD])
allocator.cache_clear()


gc.set_threshold(20_000, 20, 20)  # of which imports and tracing, that leave little behind, cause many


#: Groups that take longest, of a file's tests or of a mark's: the workers begin with them, and end together.
LONGEST = (
    "flower",
    "tests/recipes/test_recipes_run.py",
    "tests/infer/test_networks.py",
    "tests/docs/test_tutorials.py",
    "tests/infer/ep/test_fedep.py",
    "ray",
    "tests/analysis/test_influence.py",
    "tests/infer/stein/test_stein.py",
    "tests/algorithm/test_bounded.py",
    "tests/infer/test_local_runs.py",
    "tests/deployment/agents/test_agents.py",
    "tests/runtime/test_device.py",
    "tests/library/test_gallery.py",
    "tests/trial/test_trial.py",
    "tests/test_public_names.py",
)


def pytest_configure(config):
    """Groups are handed out as they come, and not, as xdist has it, by their number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """A file's tests are one worker's, unless a mark names another group: what they share is made once, not twice.

    That is a module's fixtures and caches, the steps traced of its models, and imports that are late. xdist 3.8 adds a
    group to `_nodeid`, which pytest 9.2 does not read: left alone, `--dist loadgroup` would do nothing.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    if config.getoption("loadgroup", False):
        items.sort(key=_place)
    yield
    if config.getoption("loadgroup", False) and hasattr(pytest.Item, "id"):  # a worker's, and pytest 9.2
        from _pytest.nodeid import coerce_node_id

        for item in items:
            if item.nodeid.rfind("@") <= item.nodeid.rfind("]"):
                groups = sorted({mark.args[0] for mark in item.iter_markers("xdist_group")})
                item._id = coerce_node_id(f"{item.nodeid}@{'_'.join(groups)}")


def _place(item):
    """Of `LONGEST` in their order, then all others."""
    group = item.get_closest_marker("xdist_group").args[0]
    return LONGEST.index(group) if group in LONGEST else len(LONGEST)


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
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` keeps a stack for a GPU that may be used later: 1 ms
    dtype = torch.get_default_dtype()
    yield
    assert torch.get_default_dtype() == dtype


class Patches(pytest.MonkeyPatch):
    """Where code is changed, what was traced of it before is taken by nobody, and what is traced meanwhile neither."""

    changed = False

    def setattr(self, *args, **options):
        super().setattr(*args, **options)
        self._change()

    def delattr(self, *args, **options):
        super().delattr(*args, **options)
        self._change()

    def setitem(self, dic, name, value):
        super().setitem(dic, name, value)
        if dic is not os.environ:
            self._change()

    def delitem(self, dic, name, raising=True):
        super().delitem(dic, name, raising)
        if dic is not os.environ:
            self._change()

    def undo(self):
        super().undo()
        if self.changed:
            self._change()

    def _change(self):
        self.changed = True
        _forget()


@pytest.fixture
def monkeypatch():
    """As pytest's; a changed environment or directory leaves what was traced."""
    patches = Patches()
    yield patches
    patches.undo()


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
