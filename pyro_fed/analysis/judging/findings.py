"""Tables of the findings about results, and of the stages of a run of `Auto`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyro_fed.analysis.judging.compare import findings_of
from pyro_fed.conventions.calls import checked, checked_but
from pyro_fed.errors import SettingError, shown
from pyro_fed.results.inference_data import InferenceData, recorded_findings

if TYPE_CHECKING:
    import pandas as pd

#: The columns of the table.
COLUMNS = ("code", "topic", "severity", "where", "figures", "cures", "text")


@checked_but("results")
def findings(results: Any) -> pd.DataFrame:
    """What was found about a result: what speaks against it, and what its user should know.

    Args:
        results: a result of `pyro_fed.run` or `pyro_fed.fit`, also one that was read back from a file; or the table of
            `pyro_fed.compare`, which has a row for each finding about each result.

    Returns:
        A table with a row for each finding, and the columns

        - `code`: what was found, such as "sd_is_off". Codes stay the same from version to version;
        - `topic`: what it is about, such as "moments", "modes", "convergence", "clients" or "density";
        - `severity`: "doubt" if it speaks against the result, else "note";
        - `where`: a dictionary with the parameter, site, clients or round;
        - `figures`: a dictionary with the numbers of the text;
        - `cures`: what to do about it, a list of sentences;
        - `text`: all of it in words. `attrs["doubts"]` and `attrs["warnings"]` of a result are these texts.

        Of a comparison, a first column `result` has the result's name.

    Raises:
        SettingError: `results` is neither a result nor a table of `compare`.

    Example:
        >>> idata = pf.run(pf.FedEP(), fed)
        >>> pf.findings(idata)[["code", "severity", "where"]]
        >>> table = pf.findings(pf.compare({"FedEP": idata}))
        >>> table[table.severity == "doubt"].groupby("result").code.apply(list)
    """
    import pandas as pd  # takes half a second

    if isinstance(results, pd.DataFrame):
        rows = [{"result": name, **one.to_plain()} for name, every in findings_of(results).items() for one in every]
        return pd.DataFrame(rows, columns=["result", *COLUMNS])
    if not hasattr(results, "attrs") or "posterior" not in results:
        raise SettingError(
            f"findings takes a result of pf.run or pf.fit, or the table of pf.compare, received {shown(results)}"
        )
    return pd.DataFrame([one.to_plain() for one in recorded_findings(results)], columns=list(COLUMNS))


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
    endings = [row["end"] or "; ".join(row["doubts"] or []) for row in rows]
    table = pd.DataFrame([{**row, "doubts": text} for row, text in zip(rows, endings, strict=True)])
    return table[columns]
