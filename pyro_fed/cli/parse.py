"""Options of the command line that are made into objects: an executor, a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.graph import Graph
    from pyro_fed.runtime.executors import Executor


def parse_executor(text: str) -> str | Executor:
    """The executor of `--executor`: "vectorised", "sequential", or "ray:2" for two processes.

    Raises:
        SettingError: another word, or not a number of processes.
    """
    name, _, count = text.partition(":")
    if name == "ray" and count.isdecimal() and int(count):
        from pyro_fed.runtime.executors import Ray

        return Ray(num_workers=int(count))
    from pyro_fed.runtime.executors.local import NAMED

    if text not in NAMED:
        raise SettingError(f"--executor {text!r}: expected {', '.join(NAMED)} or ray:N with N processes, such as ray:2")
    return text


def parse_graph(text: str, num_clients: int) -> Graph:
    """The graph of `--graph`, a builder of `pyro_fed.graph` and its arguments, such as "small_world:4,0.1".

    Raises:
        SettingError: an unknown builder, or arguments that it does not take.
    """
    from pyro_fed.recipes.values import resolve_component

    name, _, rest = text.partition(":")
    try:
        values = [int(one) if one.strip().isdecimal() else float(one) for one in rest.split(",") if one.strip()]
    except ValueError:
        raise SettingError(
            f"--graph {text!r}: behind the colon stand numbers, such as erdos_renyi:0.5, received {rest!r}"
        ) from None
    graph: Graph = resolve_component("pyro_fed.graph", name, Path("--graph"), num_clients, *values)
    return graph
