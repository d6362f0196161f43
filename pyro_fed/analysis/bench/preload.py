"""Loads libraries once, in the server from which cells are forked, so that no cell is charged the time for it."""

from __future__ import annotations

import importlib
import warnings

from pyro_fed import infer

#: Libraries that this package, or a library that it uses, imports within functions.
LIBRARIES = (
    *("arviz", "pandas", "scipy.stats", "sklearn.datasets", "pyro.infer.autoguide", "torch.func"),
    *("torch._dynamo", "torch.fx.experimental.proxy_tensor", "torch.fx.experimental.symbolic_shapes"),
)


def load() -> None:
    """Load the libraries and every algorithm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ announces its next version, once a day
        for name in LIBRARIES:
            importlib.import_module(name)
        for name in dir(infer):
            getattr(infer, name)


load()
