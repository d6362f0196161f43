"""Executors by name, as `run` takes them."""

from __future__ import annotations

from typing import Any

from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.runtime.executors.base import Executor
from pyro_fed.runtime.executors.local import Sequential, Vectorised

#: Executors that `run` takes by name.
NAMED = {"vectorised": Vectorised, "vectorized": Vectorised, "sequential": Sequential}


@checked
def resolve(executor: Any) -> Executor:
    """Return an executor, given itself or its name.

    Args:
        executor: "vectorised", "sequential", or an Executor.

    Raises:
        SettingError: an unknown name.

    Example:
        >>> isinstance(pf.executors.resolve("sequential"), pf.executors.Sequential)
        True
    """
    if isinstance(executor, Executor):
        return executor
    if not isinstance(executor, str) or executor not in NAMED:
        raise SettingError(f"executor must be one of {sorted(NAMED)} or an Executor, received {executor!r}")
    return NAMED[executor]()
