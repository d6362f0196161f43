"""The findings of a run about its result, read from the result."""

from __future__ import annotations

import json

from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.results.inference_data import InferenceData


def recorded_findings(idata: InferenceData) -> list[Finding]:
    """The findings of a run about its result: notes, and then doubts; sentences alone if the result has no codes."""
    if "findings" in idata.attrs:
        found = [Finding.from_plain(one) for one in json.loads(idata.attrs["findings"])]
        return sorted(found, key=lambda one: one.is_doubt)
    lines = str(idata.attrs.get("warnings", "")).split("\n")
    return [sentences.recorded_warning(warning=line) for line in lines if line]
