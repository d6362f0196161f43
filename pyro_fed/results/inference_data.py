"""The type of a result: what `run` and `predict` return, and what everything in `analysis` takes.

    ArviZ 0.23      arviz.InferenceData
    ArviZ 1.x       xarray.DataTree, which replaces it

`pyro_fed.ops.arviz_versions` has what differs. Type checkers read ArviZ's own class, and where the installed ArviZ has
none, take any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arviz import InferenceData as InferenceData
else:

    def __getattr__(name: str) -> Any:
        """ArviZ's class, loaded where it is asked for: ArviZ takes seconds to import."""
        if name != "InferenceData":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pyro_fed.ops.arviz_versions import result_type

        return result_type()


def flag(attrs: Mapping[Any, Any], name: str) -> bool:
    """A flag among the attributes of a result; False where it is not there.

    Args:
        attrs: of a result, also of one whose file was written when flags were texts.
        name: such as "centralized".
    """
    return str(attrs.get(name)) in ("1", "True")
