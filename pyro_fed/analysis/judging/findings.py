"""The findings about a result, or about results that were compared, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyro_fed.analysis.judging.compare import findings_of
from pyro_fed.conventions.calls import checked_but
from pyro_fed.errors import SettingError, shown
from pyro_fed.results.inference_data import recorded_findings

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
