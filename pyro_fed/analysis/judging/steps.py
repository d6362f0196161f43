"""The stages of a run of `Auto`: a table with each stage's cost and the doubts about its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.results.inference_data import InferenceData

if TYPE_CHECKING:
    import pandas as pd


@checked
def steps(idata: InferenceData) -> pd.DataFrame:
    """The stages of a run of `Auto`: the algorithm of each, its cost, and why the next stage was tried.

    Args:
        idata: result of `pyro_fed.fit`, or of `pyro_fed.run` with `Auto`.

    Returns:
        A table with a row for each stage. `algorithm`: its name. `rounds`: its rounds, with those of the algorithms
        that it started from, unless an earlier stage counts them. `bytes`: received and sent by the clients in these
        rounds. `seconds`: wall-clock time. `chosen`: whether its answer is the result. `doubts`: sentences that speak
        against its answer, or why it has no answer.

    Raises:
        SettingError: the result is one of a single algorithm.

    Example:
        >>> idata = pf.fit(fed)
        >>> pf.metrics.steps(idata)[["algorithm", "rounds", "chosen"]]
    """
    import pandas as pd  # takes half a second

    if "steps" not in idata.attrs:
        raise SettingError(
            f"steps takes a result of pf.fit, or of pf.run with pf.Auto(), received a result of "
            f"{idata.attrs.get('algorithm', 'something else')} alone, which has no stages"
        )
    rows = json.loads(idata.attrs["steps"])
    columns = ["algorithm", "rounds", "bytes", "seconds", "chosen", "doubts"]
    said = [row["end"] or "; ".join(row["doubts"] or []) for row in rows]
    table = pd.DataFrame([{**row, "doubts": text} for row, text in zip(rows, said, strict=True)])
    return table[columns]
