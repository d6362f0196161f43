"""Values that a model computes from all rows, once, and takes as given wherever it runs on some of them.

    num_groups = pf.shared("groups", lambda: int(g.max()) + 1)

The first run of a model is on all rows; what `shared` finds there is kept with the model's constants and given to every
other run. Outside of this package's runs it is the value itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.conventions.calls import checked, explained
from pyro_fed.errors import ModelError

#: Begins the names of shared values among a model's constants.
PREFIX = "shared: "

_KEPT: ContextVar[MutableMapping[str, Any] | None] = ContextVar("kept", default=None)


@checked
def shared(name: str, value: Any | Callable[[], Any]) -> Any:
    """A value that depends on all rows, and that all clients have in common.

    In a federation it is computed once, from the pooled data, and is known to all clients from then on, as an argument
    is that is not split. Clients that keep their data cannot pool them: over Flower a model with shared values is
    refused; agree on them beforehand there.

    Args:
        name: of the value, once in a model.
        value: the value, or a function without arguments that computes it, which is called on all rows alone.

    Returns:
        The value: numbers, tensors, or tuples, lists and dictionaries of them.

    Raises:
        ModelError: the function fails.

    Example:
        >>> def model(g, y):
        ...     num_groups = pf.shared("groups", lambda: int(g.max()) + 1)
        ...     with pyro.plate("groups", num_groups):
        ...         a = pyro.sample("a", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)
    """
    kept = _KEPT.get()
    if kept is not None and PREFIX + name in kept:
        return kept[PREFIX + name]
    found = value
    if callable(value) and not isinstance(value, Tensor):
        found = explained(ModelError, f"shared({name!r}): its function fails")(value)()
    if kept is not None:
        kept[PREFIX + name] = pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, found)
    return found


@contextmanager
def keeping(kept: MutableMapping[str, Any] | None) -> Iterator[None]:
    """Keep shared values in a model's constants, and take them from there, while it runs; None computes them anew."""
    token = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(token)


def is_shared(name: str) -> bool:
    """Whether a model's constant of this name is a shared value, and no `pyro.param`."""
    return name.startswith(PREFIX)
