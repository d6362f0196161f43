"""The type of a result: what `run` and `predict` return, and what everything in `analysis` takes.

    ArviZ 0.2x      arviz.InferenceData
    ArviZ 1.x       xarray.DataTree, which replaces it

Both give a group by `idata["posterior"]`, say whether there is one by `"log_likelihood" in idata`, have `attrs` and
write `to_netcdf`; this package uses nothing else of them. Type checkers read ArviZ's own class, and where the installed
ArviZ has none, take any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arviz import InferenceData as InferenceData
else:
    import arviz
    import xarray

    InferenceData = getattr(arviz, "InferenceData", None) or xarray.DataTree
