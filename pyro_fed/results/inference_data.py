"""The type of a result: `arviz.InferenceData`, or on ArviZ 1.x the `xarray.DataTree` that replaces it.

Type checkers see ArviZ's own class, or `Any` if the installed ArviZ has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError, listed

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
    """A flag, such as "centralized", in the attributes of a result; False if missing. Old files have flags as text."""
    return str(attrs.get(name)) in ("1", "True")


def check_savable(problem: Problem, what: str = "out") -> None:
    """Refuse site names with a slash, which separates groups in a NetCDF file.

    `what` is the argument or option that requests the file, for messages.
    """
    layout = problem.layout
    sites = {**layout.latents, **layout.local, **layout.discrete, **layout.reported, **layout.observed}
    slashed = [site for site in sites if "/" in site]
    if slashed:
        raise SettingError(
            f"{what}: no file of ArviZ holds names with a slash, and the model has site(s) {listed(slashed)}: give "
            "them other names in the model, or leave the file out"
        )


def recorded_findings(idata: InferenceData) -> list[Finding]:
    """The findings of a run about its result: notes and then doubts; only sentences if the result has no codes."""
    if "findings" in idata.attrs:
        findings = [Finding.from_plain(one) for one in json.loads(idata.attrs["findings"])]
        return sorted(findings, key=lambda one: one.is_doubt)
    lines = str(idata.attrs.get("warnings", "")).split("\n")
    return [sentences.recorded_warning(warning=line) for line in lines if line]
