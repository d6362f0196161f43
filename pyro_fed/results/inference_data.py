"""The type of a result: what `run` and `predict` return, and what everything in `analysis` takes.

    ArviZ 0.23      arviz.InferenceData
    ArviZ 1.x       xarray.DataTree, which replaces it

`pyro_fed.ops.arviz_versions` has what differs. Type checkers read ArviZ's own class, and where the installed ArviZ has
none, take any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arviz import InferenceData as InferenceData
else:
    from pyro_fed.ops.arviz_versions import result_type

    InferenceData = result_type()
