"""The type of a result, which `run` and `predict` return, and which functions of `analysis` take.

    ArviZ 0.23      arviz.InferenceData
    ArviZ 1.x       xarray.DataTree, which replaces it

`pyro_fed.ops.arviz_versions` hides the differences. Type checkers see ArviZ's own class, or `Any` if the installed
ArviZ has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arviz import InferenceData as InferenceData
else:

    def __getattr__(name: str) -> Any:
        """ArviZ's class, imported when it is first used, since ArviZ takes seconds to import."""
        if name != "InferenceData":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pyro_fed.ops.arviz_versions import result_type

        return result_type()


def flag(attrs: Mapping[Any, Any], name: str) -> bool:
    """A flag, such as "centralized", among the attributes of a result; False if it is missing. Old files have texts."""
    return str(attrs.get(name)) in ("1", "True")
