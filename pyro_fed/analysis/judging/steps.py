"""What `Auto` did: one row a stage, with its cost and what spoke against its answer."""

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
    """The stages of a run of `Auto`: what each was, what it cost, and why the next one was tried.

    Args:
        idata: result of `pyro_fed.fit`, or of `pyro_fed.run` with `Auto`.

    Returns:
        One row a stage: `algorithm`, `rounds` (of its own and of what it started from, unless an earlier stage had
        those), `bytes` (received and sent by the clients in them), `seconds` on the clock, `chosen`, and what speaks
        against its answer, `doubts`, or why it has none.

    Raises:
        SettingError: the result of a single algorithm.

    Example:
        >>> idata = pf.fit(fed)
        >>> pf.steps(idata)[["algorithm", "rounds", "chosen"]]
    """
    import pandas as pd  # takes half a second

    if "steps" not in idata.attrs:
        raise SettingError(
            f"this result has no steps: it is that of {idata.attrs.get('algorithm', 'something else')} alone, "
            "expected one of pyro_fed.fit"
        )
    rows = json.loads(idata.attrs["steps"])
    columns = ["algorithm", "rounds", "bytes", "seconds", "chosen", "doubts"]
    said = [row["end"] or "; ".join(row["doubts"] or []) for row in rows]
    table = pd.DataFrame([{**row, "doubts": text} for row, text in zip(rows, said, strict=True)])
    return table[columns]
