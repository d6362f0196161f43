"""A call in a new Python of one thread, for figures that depend on what a process has done before, as memory does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyro_fed.analysis.bench.processes import Died, run_in_processes

R = TypeVar("R")


def alone(function: Callable[..., R], *arguments: Any) -> R:
    """What a function returns in a process of its own; what it prints is printed.

    Args:
        function: of a module.
        arguments: which can be pickled.

    Raises:
        RuntimeError: the process died.
    """
    ((_, found),) = run_in_processes(_called, [(function, arguments)], warm=False)
    if isinstance(found, Died):
        raise RuntimeError(f"{function.__name__}{arguments}: {found.said}")
    answer: R = found
    return answer


def _called(task: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = task
    return function(*arguments)
