"""What cells load as they need it, loaded once by the server that they are forked from: seconds that are no cell's."""

from __future__ import annotations

import importlib
import warnings

from pyro_fed import infer

#: Libraries that are imported within functions, here or in what is used here.
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
