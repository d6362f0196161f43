"""Take a user's model apart into a plain one and all of its data as arguments.

The data that `functools.partial` and `pyro.condition` hold are data like others, and have to be split over the clients.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyro import poutine
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import _bound_partial
from torch import Tensor

from pyro_fed.density.rows.arguments import positional
from pyro_fed.errors import ModelError


class Conditioned:
    """A model conditioned on observations that it takes as an argument, from the model without them."""

    #: Arguments whose entries may be left out, one by one: a site that is not observed is drawn.
    separable = ("conditioned",)

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.__name__ = getattr(model, "__name__", "model")
        signature = inspect.signature(getattr(model, "forward", model))
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        rest = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        own = inspect.Parameter("conditioned", inspect.Parameter.KEYWORD_ONLY)
        self.__signature__ = signature.replace(parameters=[*parameters, own, *rest])

    def __call__(self, *args: Any, conditioned: Mapping[str, Any], **kwargs: Any) -> Any:
        return poutine.condition(self.model, data=dict(conditioned))(*args, **kwargs)


def taken_apart(
    model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None
) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    """A model without the data that it holds by `functools.partial` or `pyro.condition`, and all of its (args, kwargs).

    Raises:
        ModelError: a function whose call runs none of its lines.
    """
    kwargs = dict(kwargs or {})
    _check_runs(model)
    while isinstance(model, functools.partial):
        while isinstance(model, _bound_partial):
            model = model.func
        held = _condition_parts(model)
        if held is not None:
            model, data = held
            model, kwargs = Conditioned(model), {**kwargs, "conditioned": data}
        elif isinstance(model, functools.partial) and not _of_pyro(model):
            args = (*model.args, *positional(model, args, kwargs))
            kwargs = {**model.keywords, **kwargs}
            model = model.func
        else:
            break
    return model, args, kwargs


def _check_runs(model: Any) -> None:
    body = getattr(model, "forward", model)
    body = body if inspect.isroutine(body) else getattr(body, "__call__", body)  # noqa: B004
    if inspect.isgeneratorfunction(body):
        raise ModelError("the model has a `yield`, so that a call of it runs none of its lines: take the `yield` out")
    if inspect.iscoroutinefunction(body):
        raise ModelError("the model is an `async def`, so that a call of it runs none of its lines: write `def`")


def _of_pyro(model: Any) -> bool:
    """Whether a partial function is one of Pyro's handlers around a model."""
    return getattr(model.func, "__module__", "").startswith("pyro.")


def _condition_parts(model: Any) -> tuple[Any, dict[str, Tensor]] | None:
    """The model and the data of `pyro.condition`; None for any other model."""
    if not _of_pyro(model) or len(model.args) != 2 or not isinstance(model.args[0], ConditionMessenger):
        return None
    data = model.args[0].data
    return (model.args[1], dict(data)) if isinstance(data, Mapping) else None
