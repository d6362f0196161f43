"""Layers of `torch.nn` that make a row's density depend on the rows beside it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from pyro_fed.errors import ModelError

#: The warning of `pyro.module` on each frozen weight at every run of the model: it is not a parameter, as intended.
FROZEN = r".* was not registered in the param store because requires_grad=False"


def check_modules(model: Callable[..., Any]) -> None:
    """Refuse batch normalisation by the batch at hand, in a module or in one that a function refers to.

    Frozen weights are fine. If a module has some, Pyro's warning at every run of the model, that these are not
    parameters, is suppressed from here on.

    Raises:
        ModelError: names the layer and the cure.
    """
    for module in _modules_of(model):
        if any(not weight.requires_grad for weight in module.parameters()):
            warnings.filterwarnings("ignore", FROZEN, UserWarning)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or not layer.track_running_stats):
                raise ModelError(
                    f"layer '{name or type(layer).__name__}' of the model is a {type(layer).__name__}, which scales a "
                    "row by the mean and SD of the rows that happen to stand beside it, others at each client: the "
                    "likelihood is no product over rows. Take a GroupNorm or LayerNorm, which look at the row alone, "
                    "or hold its statistics fixed, by the module's .eval()"
                )


def _modules_of(model: Callable[..., Any]) -> Iterator[nn.Module]:
    """The model if it is a module, the module whose method it is, and those that a function refers to."""
    owner = getattr(model, "__self__", model)
    if isinstance(owner, nn.Module):
        yield owner
    elif inspect.isfunction(model):
        found = inspect.getclosurevars(model)
        yield from (value for value in {**found.globals, **found.nonlocals}.values() if isinstance(value, nn.Module))
